//! Searches cannot deny service (R28): every query over files of any size ends by the deadline,
//! counts what was not searched, and delays no other request.
//!
//! Tools probe every directory for well-known names. A probe must not start a search.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::text;
use crate::mount::swarm;
use crate::needs_fuse;
use crate::support::intercept::{InterceptedStore, Interceptor};
use crate::support::tool::{is_here, shell};
use crate::support::{Mount, scale, some};
use swarmletfs_base::error::Result;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{File, Memory, Meta, Store};
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

/// Content of every log, repeated up to its size.
const TEXT: &[u8] = b"abababbabaaabbbabab xyxyxyyx 0101010011 error: no such file or directory aaaaaaaaaaaaaaaaaa\n";
/// Size of all logs, in bytes.
const CORPUS: u64 = 1 << 30;
/// Time limit for a search; far above the deadline, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Generates long content for the logs of a store, so that none of it is on disk.
#[derive(Clone)]
struct LongLogs {
    /// Size of each log, in bytes.
    size: u64,
    bytes_read: Arc<AtomicU64>,
}

struct LongLog {
    meta: Meta,
    bytes_read: Arc<AtomicU64>,
}

impl LongLogs {
    fn is_log(path: &RelPath) -> bool {
        path.as_bytes().ends_with(b".log")
    }

    fn with_size(&self, path: &RelPath, meta: Meta) -> Meta {
        if LongLogs::is_log(path) { Meta { size: self.size, ..meta } } else { meta }
    }
}

impl Interceptor for LongLogs {
    fn stat(&self, store: &dyn Store, path: &RelPath) -> Result<Meta> {
        Ok(self.with_size(path, store.stat(path)?))
    }

    fn open(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn File>> {
        let file = store.open(path)?;
        if !LongLogs::is_log(path) {
            return Ok(file);
        }
        let meta = self.with_size(path, file.meta()?);
        Ok(Box::new(LongLog { meta, bytes_read: self.bytes_read.clone() }))
    }
}

impl File for LongLog {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let remaining = self.meta.size.saturating_sub(offset);
        let length = buffer.len().min(usize::try_from(remaining).unwrap());
        for (position, byte) in (offset..).zip(&mut buffer[..length]) {
            *byte = TEXT[(position % TEXT.len() as u64) as usize];
        }
        self.bytes_read.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }

    fn meta(&self) -> Result<Meta> {
        Ok(self.meta)
    }
}

/// Returns a tree of 16 workers with a gibibyte of logs, and the counter of bytes read.
fn corpus() -> (Arc<Tree>, Arc<AtomicU64>) {
    let store = Memory::new();
    for worker in 0..16 {
        let path = |name: &str| RelPath::parse(format!("workers/w{worker}/{name}")).unwrap();
        store.write(&path("metadata.json"), "{\"status\": \"success\"}");
        store.write(&path("task.txt"), "what there is to do\n");
        (0..4).for_each(|file| store.write(&path(&format!("logs/{file}.log")), ""));
    }
    let bytes_read = Arc::new(AtomicU64::new(0));
    let long_logs = LongLogs { size: CORPUS / 64, bytes_read: bytes_read.clone() };
    let store = InterceptedStore::new(long_logs, Arc::new(store));
    let hour = Duration::from_secs(3_600);
    let freshness = Freshness { unfinished: hour, finished: hour };
    let view =
        View::new(vec![Source::from_store(Arc::new(store), None)], freshness, Filter::default())
            .unwrap();
    (Arc::new(Tree::new(view, Settings::default())), bytes_read)
}

/// Returns regexes that are slow to compile, slow to match, or match everything.
fn pathological() -> Vec<String> {
    let mut regexes: Vec<String> = vec![
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
    regexes.extend((1..100).map(|n| format!("([a-b]*b){{{n}}}[xy]{{{n}}}.{{0,{n}}}Q")));
    regexes.truncate(scale(18));
    regexes
}

/// Promise: A slow regex ends by the deadline, and the answer counts what was not searched.
#[test]
fn slow_regex_ends_by_the_deadline() {
    let (tree, _) = corpus();
    for regex in pathological() {
        let begun = Instant::now();
        let answer = text(&tree, &format!("grep.2k/{regex}"));
        assert!(begun.elapsed() < PATIENCE, "{regex}: {:?}", begun.elapsed());
        let is_complete = answer.contains("; searched 96 files of 16 workers");
        let is_explained = answer.contains(" for lack of time") || answer.contains("invalid query");
        assert!(
            is_complete != is_explained,
            "{regex}: {}",
            answer.lines().next().unwrap_or_default()
        );
    }
}

/// Promise: Many simultaneous searches all end, and no other request waits for them.
#[test]
fn simultaneous_searches_end_and_delay_nothing_else() {
    let (tree, bytes_read) = corpus();
    let searches: Vec<_> = (0..32)
        .map(|n| {
            let tree = tree.clone();
            thread::spawn(move || text(&tree, &format!("grep.2k/(a|b)*a(a|b){{{}}}c", 100 + n)))
        })
        .collect();
    // Waits until the searches are reading.
    while bytes_read.load(Ordering::Relaxed) < 1 << 20 {
        thread::yield_now();
    }
    let mut reads = 0;
    while searches.iter().any(|search| !search.is_finished()) {
        assert_eq!(text(&tree, "workers/w3/task.txt"), "what there is to do\n");
        reads += 1;
    }
    assert!(reads > 10, "only {reads} reads of other files succeeded during the searches");
    for search in searches {
        assert!(search.join().unwrap().contains(" for lack of time"));
    }
}

/// Tools, each with a command that probes the current directory.
const PROBES: &[(&str, &str)] = &[
    ("ls", "ls -laR . >/dev/null"),
    ("find", "find . -name '*.md' -newer README.md"),
    ("grep", "grep -rIl needle ."),
    ("rg", "rg needle"),
    ("rg", "rg --files --hidden"),
    ("fdfind", "fdfind md"),
    ("fdfind", "fdfind -HI md"),
    ("tree", "tree -a"),
    ("du", "du -a"),
    ("git", "git status"),
    ("git", "git log"),
    ("git", "git rev-parse --show-toplevel"),
    ("git", "git grep --no-index needle"),
    ("git", "git diff --no-index README.md /dev/null"),
    (
        "python3",
        "python3 -c 'import json, sys, os; sys.path.insert(0, \".\"); import random; os.listdir()'",
    ),
    ("python3", "python3 -m json.tool README.md"),
    ("ex", "ex -R -c 'visual' -c 'e README.md' -c q! README.md </dev/null"),
    ("less", "less README.md"),
    ("tar", "tar -cf /dev/null ."),
    ("rsync", "rsync -an ./ /nonexistent-but-dry/"),
    ("file", "file *"),
    ("bash", "for name in *; do [ -d $name ]; [ -e $name/.envrc ]; done; compgen -f ."),
    ("dash", "dash -c 'cd . && echo *'"),
    ("perl", "perl -e 'opendir D, q(.); print readdir D'"),
    ("zip", "zip -r - . >/dev/null"),
    ("cp", "cp -a . /dev/shm/$$ ; rm -rf /dev/shm/$$"),
];

/// Returns the number of queries that a log records.
fn query_count(log: &str) -> usize {
    log.lines().filter(|line| line.contains(": running a ")).count()
}

/// Promise: A tool that only probes the tree starts no search.
#[test]
fn probing_tools_start_no_search() {
    needs_fuse!();
    let store = swarm();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let wrapper = ["env", "SWARMLETFS_LOG=swarmletfs=debug"];
    let mount = Mount::by(&wrapper, &store.path(), &["--log", log.to_str().unwrap()]);
    let queries_run = || query_count(&fs::read_to_string(&log).unwrap());
    for place in [
        "",
        "grep",
        "grep.i.4k",
        "search",
        "search.4k",
        "workers/alpha/search",
        "compare",
        "compare.4k@report",
        "workers/alpha",
        "workers/alpha/grep",
        "runs/r1",
        "by/status",
    ] {
        for (tool, command) in some(PROBES.iter().filter(|(tool, _)| is_here(tool))) {
            // The result of the tool does not matter.
            let _ = shell(command, &mount.at(place)).output().unwrap();
            assert_eq!(
                queries_run(),
                0,
                "{tool} started a search in {place:?}: {command}\n{}",
                last_lines(&fs::read_to_string(&log).unwrap())
            );
        }
    }
    // Control: reading a query starts a search.
    for (before, query) in
        ["grep/needle", "search/needle", "compare/alpha..beta"].into_iter().enumerate()
    {
        mount.read(query);
        assert_eq!(
            queries_run(),
            before + 1,
            "{query}: {}",
            last_lines(&fs::read_to_string(&log).unwrap())
        );
    }
}

/// Returns the last five lines of a log, the latest first.
fn last_lines(log: &str) -> String {
    log.lines().rev().take(5).collect::<Vec<_>>().join("\n")
}
