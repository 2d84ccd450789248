//! A search cannot be made a weapon (R28): whatever is asked, of whatever size of files, there is an answer in time that
//! says what was not searched, and everything else is answered meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use swarmletfs::catalog::{Freshness, Source};
use swarmletfs::error::Result;
use swarmletfs::name::RelPath;
use swarmletfs::store::{File, Memory, Meta, Store};
use swarmletfs::tree::{Settings, Tree};
use swarmletfs::view::{Filter, View};

use super::text;
use crate::support::intercept::{InterceptedStore, Interceptor};
use crate::support::scale::scale;

/// What every file of it holds, over and over, as long as its size says.
const TEXT: &[u8] = b"abababbabaaabbbabab xyxyxyyx 0101010011 error: no such file or directory aaaaaaaaaaaaaaaaaa\n";
/// As much as there is of it.
const CORPUS: u64 = 1 << 30;
/// What a search has for itself, and much more for a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes the tool outputs of a store long; nothing of them is on a disk.
#[derive(Clone)]
struct Long {
    each: u64,
    read: Arc<AtomicU64>,
}

struct LongFile {
    meta: Meta,
    read: Arc<AtomicU64>,
}

impl Long {
    fn is_long(path: &RelPath) -> bool {
        path.as_bytes().ends_with(b".log")
    }

    fn lengthened(&self, path: &RelPath, meta: Meta) -> Meta {
        if Long::is_long(path) { Meta { size: self.each, ..meta } } else { meta }
    }
}

impl Interceptor for Long {
    fn stat(&self, store: &dyn Store, path: &RelPath) -> Result<Meta> {
        Ok(self.lengthened(path, store.stat(path)?))
    }

    fn open(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn File>> {
        let file = store.open(path)?;
        if !Long::is_long(path) {
            return Ok(file);
        }
        Ok(Box::new(LongFile { meta: self.lengthened(path, file.meta()?), read: self.read.clone() }))
    }
}

impl File for LongFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let left = self.meta.size.saturating_sub(offset);
        let wanted = buffer.len().min(usize::try_from(left).unwrap());
        for (at, byte) in (offset..).zip(&mut buffer[..wanted]) {
            *byte = TEXT[(at % TEXT.len() as u64) as usize];
        }
        self.read.fetch_add(wanted as u64, Ordering::Relaxed);
        Ok(wanted)
    }

    fn meta(&self) -> Result<Meta> {
        Ok(self.meta)
    }
}

/// A gibibyte of files, of 16 workers.
fn corpus() -> (Arc<Tree>, Arc<AtomicU64>) {
    let store = Memory::new();
    for worker in 0..16 {
        let path = |name: &str| RelPath::parse(format!("workers/w{worker}/{name}")).unwrap();
        store.write(&path("metadata.json"), "{\"status\": \"success\"}");
        store.write(&path("task.txt"), "what there is to do\n");
        (0..4).for_each(|file| store.write(&path(&format!("logs/{file}.log")), ""));
    }
    let read = Arc::new(AtomicU64::new(0));
    let long = InterceptedStore::new(Long { each: CORPUS / 64, read: read.clone() }, Arc::new(store));
    let hour = Duration::from_secs(3_600);
    let freshness = Freshness { unfinished: hour, finished: hour };
    let view = View::new(vec![Source::from_store(Arc::new(long), None)], freshness, Filter::default()).unwrap();
    (Arc::new(Tree::new(view, Settings::default())), read)
}

/// Regexes that are slow to compile, slow to match, or match everything.
fn pathological() -> Vec<String> {
    let mut all: Vec<String> = vec![
        "(a|b)*a(a|b){200}c".into(),
        "(a*)*b$".into(),
        "(x+x+)+z".into(),
        "(a|aa)+$".into(),
        "(.*)*(.*)*(.*)*q".into(),
        "(?:a?){100}a{100}".into(),
        "\\w{1,60}\\W\\w{1,60}\\W\\w{1,60}Q".into(),
        "(.)".into(),
        "(?:)".into(),
        "^".into(),
        "(?i)(e|r|o|:| |n|s|u|c|h)*Q".into(),
        "[01]*1[01]{300}x".into(),
        "(.{1,300}a){3}Q".into(),
        "((((((((((a|b)*)*)*)*)*)*)*)*)*)*Z".into(),
        "(?:\\pL+\\pN*){20}Z".into(),
    ];
    all.extend((1..100).map(|n| format!("([a-b]*b){{{n}}}[xy]{{{n}}}.{{0,{n}}}Q")));
    all.truncate(scale(18));
    all
}

/// Promise: A slow regex ends by the deadline, and the answer counts what was not searched.
#[test]
fn slow_regex_ends_by_the_deadline() {
    let (tree, _) = corpus();
    for regex in pathological() {
        let begun = Instant::now();
        let answer = text(&tree, &format!("grep.2k/{regex}"));
        assert!(begun.elapsed() < PATIENCE, "{regex}: {:?}", begun.elapsed());
        let whole = answer.contains("; searched 96 files of 16 workers");
        let told = answer.contains(" for lack of time") || answer.contains("invalid query");
        assert!(whole != told, "{regex}: {}", answer.lines().next().unwrap_or_default());
    }
}

/// Promise: Many simultaneous searches all end, and no other request waits for them.
#[test]
fn simultaneous_searches_end_and_delay_nothing_else() {
    let (tree, read) = corpus();
    let searches: Vec<_> = (0..32)
        .map(|n| {
            let tree = tree.clone();
            thread::spawn(move || text(&tree, &format!("grep.2k/(a|b)*a(a|b){{{}}}c", 100 + n)))
        })
        .collect();
    // They are at it.
    while read.load(Ordering::Relaxed) < 1 << 20 {
        thread::yield_now();
    }
    let mut looks = 0;
    while searches.iter().any(|search| !search.is_finished()) {
        assert_eq!(text(&tree, "workers/w3/task.txt"), "what there is to do\n");
        looks += 1;
    }
    assert!(looks > 10, "only {looks} other files were read meanwhile");
    for search in searches {
        assert!(search.join().unwrap().contains(" for lack of time"));
    }
}
