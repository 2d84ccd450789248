//! R31: the commands show the same names, bytes, attributes and errors as a mount.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use jiff::Timestamp;
use serde_json::Value;
use swarmletfs_base::error::Error;
use swarmletfs_tree::tree::Tree;
use swarmletfs_tree::view::Filter;

use super::{CommandBytes, look};
use crate::hostile::{views::random_store, walk};
use crate::support::{Mount, Seen, TestStore, fuse_is_here, see, see_folder, seeds};

/// Number of random stores; each is also mounted.
const STORES: usize = 32;
const MOUNTED: usize = 5;

/// Kind, mode, owner, group, mtime, size (except of directories), and link target.
type ListedEntry = (String, u32, u32, u32, i128, Option<u64>, Option<Vec<u8>>);

/// A store and the arguments for its view.
struct StoreCase {
    store: TestStore,
    view: Vec<String>,
}

impl StoreCase {
    fn new(store: TestStore, filter: &Filter) -> StoreCase {
        let owner = filter.owner.iter().flat_map(|owner| ["--owner".to_owned(), owner.clone()]);
        let run = filter.run.iter().flat_map(|run| ["--run".to_owned(), run.clone()]);
        StoreCase { store, view: owner.chain(run).collect() }
    }

    #[track_caller]
    fn look(&self, command: &str, paths: &[&[u8]]) -> CommandBytes {
        let view = self.view.iter().map(|word| OsStr::new(word.as_str()));
        let words =
            view.chain([OsStr::new("--")]).chain(paths.iter().map(|path| OsStr::from_bytes(path)));
        look(&self.store.path(), command, words)
    }

    /// Returns all entries of `ls -R --json` by path.
    #[track_caller]
    fn listed(&self) -> BTreeMap<Vec<u8>, ListedEntry> {
        let view = self.view.iter().map(String::as_str);
        let listed = look(&self.store.path(), "ls", ["-R", "--json"].into_iter().chain(view));
        let listed = listed.assert_success().json();
        let all = listed.as_array().unwrap();
        let by_path: BTreeMap<Vec<u8>, ListedEntry> = all.iter().map(parse_entry).collect();
        assert_eq!(by_path.len(), all.len(), "an entry is listed twice");
        by_path
    }

    /// Returns the concatenated bytes of all `files`.
    #[track_caller]
    fn printed(&self, files: &[&[u8]]) -> Vec<u8> {
        self.look("cat", files).assert_success().out.clone()
    }
}

fn bytes(object: &Value, field: &str) -> Option<Vec<u8>> {
    let text = object[field].as_str()?;
    let Some(hex) = object[format!("{field}_bytes")].as_str() else { return Some(text.into()) };
    let bytes: Vec<u8> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect();
    assert_eq!(String::from_utf8_lossy(&bytes), text);
    Some(bytes)
}

fn parse_entry(object: &Value) -> (Vec<u8>, ListedEntry) {
    let number = |field: &str| u32::try_from(object[field].as_u64().unwrap()).unwrap();
    let kind = object["kind"].as_str().unwrap().to_owned();
    let mode = u32::from_str_radix(object["mode"].as_str().unwrap(), 8).unwrap();
    let time: Timestamp = object["mtime"].as_str().unwrap().parse().unwrap();
    let size = object["size"].as_u64().filter(|_| kind != "folder");
    let path = bytes(object, "path").unwrap();
    assert_eq!(bytes(object, "name").unwrap(), path.rsplit(|byte| *byte == b'/').next().unwrap());
    (
        path,
        (
            kind,
            mode,
            number("uid"),
            number("gid"),
            time.as_nanosecond(),
            size,
            bytes(object, "target"),
        ),
    )
}

fn nanos((secs, nanos): (i64, u32)) -> i128 {
    i128::from(secs) * 1_000_000_000 + i128::from(nanos)
}

/// Compares the listing with the tree in this process.
fn as_seen(seed: u64, listed: &BTreeMap<Vec<u8>, ListedEntry>, seen: &BTreeMap<Vec<u8>, Seen>) {
    assert_eq!(listed.keys().collect::<Vec<_>>(), seen.keys().collect::<Vec<_>>(), "store {seed}");
    for (path, entry) in listed {
        let place = format!("store {seed}: {}", path.escape_ascii());
        match &seen[path] {
            Seen::File { attr: (mode, uid, gid), mtime, bytes } => {
                let size = Some(bytes.len() as u64);
                assert_eq!(
                    *entry,
                    ("file".into(), *mode, *uid, *gid, nanos(*mtime), size, None),
                    "{place}"
                );
            }
            Seen::Folder { attr: (mode, uid, gid), mtime } => {
                assert_eq!(
                    *entry,
                    ("folder".into(), *mode, *uid, *gid, nanos(*mtime), None, None),
                    "{place}"
                );
            }
            Seen::Link(target) => {
                assert_eq!((entry.0.as_str(), entry.6.as_ref()), ("link", Some(target)), "{place}");
            }
        }
    }
}

/// Compares the listing and the bytes with a mount of the same view.
fn as_mounted(
    seed: u64,
    ground: &StoreCase,
    listed: &BTreeMap<Vec<u8>, ListedEntry>,
    printed: &[u8],
) {
    let mount = Mount::with(
        &ground.store.path(),
        &ground.view.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    let walked = walk(&mount.path());
    assert_eq!(
        listed.keys().collect::<Vec<_>>(),
        walked.keys().collect::<Vec<_>>(),
        "store {seed}"
    );
    let mut read = Vec::new();
    for (path, entry) in listed {
        let meta = fs::symlink_metadata(mount.path().join(OsStr::from_bytes(path))).unwrap();
        let time = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
        let (kind, size) = match &entry.6 {
            Some(target) => {
                assert_eq!(target, &walked[path]);
                ("link", Some(meta.len()))
            }
            None if meta.is_dir() => ("folder", None),
            None => ("file", Some(meta.len())),
        };
        if kind == "file" {
            read.extend_from_slice(&walked[path]);
        }
        let mounted = (
            kind.into(),
            meta.mode() & 0o7777,
            meta.uid(),
            meta.gid(),
            time,
            size,
            entry.6.clone(),
        );
        assert_eq!(*entry, mounted, "store {seed}: {}", path.escape_ascii());
    }
    assert_eq!(read, printed, "store {seed}");
    let asked = |path: &str| (mount.read(path), ground.printed(&[path.as_bytes()]));
    for path in [
        "compare/nobody..noone",
        "evidence.900.txt",
        "since/0",
        "since/now",
        "grep/.*",
        "grep.i.2k@*.txt/error",
        "grep/a(b",
        "search/error a",
        "search.2k@*.txt/\"the error\" a",
    ] {
        let (mounted, typed) = asked(path);
        assert_eq!(mounted, typed, "store {seed}: {path}");
    }
}

/// Asserts that absent paths and those of other owners give equal errors.
fn misses(seed: u64, ground: &StoreCase, tree: &Tree, ids: &[String]) {
    let is_absent = |id: &&String| see(tree, format!("workers/{id}")) == Err(Error::NotFound);
    let Some(id) = ids.iter().find(is_absent) else { return };
    let miss = |id: &str| {
        let paths = [
            format!("workers/{id}"),
            format!("workers/{id}/metadata.json"),
            format!("/mnt/workers/{id}"),
        ];
        let paths: Vec<&[u8]> = paths.iter().map(String::as_bytes).collect();
        let done = ground.look("stat", &paths);
        assert_eq!((done.code, done.text()), (Some(1), ""), "store {seed}: {id}");
        // A hint depends on the id that was typed. It names only what the view shows.
        let lines = done.err.lines().map(|line| {
            let Some((error, hint)) = line.split_once(": did you mean `") else { return line };
            let meant = hint.trim_end_matches("`?").trim_matches('\'').split('/').nth(1).unwrap();
            let workers = see_folder(tree, "workers").unwrap();
            let is_meant = |path: &Vec<u8>| {
                path.split(|byte| *byte == b'/').any(|name| name == meant.as_bytes())
            };
            assert!(workers.keys().any(is_meant), "store {seed}: {line}");
            error
        });
        lines.map(|line| format!("{}\n", line.replace(id, "ID"))).collect::<String>()
    };
    let message = miss(id);
    assert!(
        message.starts_with("swarmletfs: workers/ID: no such file or folder in this view\n"),
        "{message}"
    );
    assert_eq!(message, miss(&format!("{id}-never-there")), "store {seed}");
}

fn compare(number: usize, seed: u64) {
    let (store, filter, ids) = random_store(seed);
    let tree = store.tree_of(filter.clone());
    let ground = StoreCase::new(store, &filter);
    let (seen, listed) = (see_folder(&tree, "").unwrap(), ground.listed());
    as_seen(seed, &listed, &seen);
    let files: Vec<&[u8]> = seen
        .iter()
        .filter(|(_, seen)| matches!(seen, Seen::File { .. }))
        .map(|(path, _)| &**path)
        .collect();
    let mut printed = ground.printed(&files);
    let wanted: Vec<u8> = files.iter().flat_map(|path| seen[*path].bytes()).copied().collect();
    assert!(printed == wanted, "store {seed}: the printed bytes differ from those of the tree");
    let answer = see(&tree, "grep.i.4k/error|a").unwrap();
    let typed = ground.look("grep", &[b"error|a"]);
    assert_ne!(typed.text(), answer.text(), "store {seed}: the control, another question");
    let mut words: Vec<&str> = ground.view.iter().map(String::as_str).collect();
    words.extend(["-i", "-b", "4k", "error|a"]);
    assert_eq!(look(&ground.store.path(), "grep", words).text(), answer.text(), "store {seed}");
    misses(seed, &ground, &tree, &ids);
    if number.is_multiple_of(MOUNTED) && fuse_is_here("both doors") {
        as_mounted(seed, &ground, &listed, &printed);
    }
    // Control: an additional byte is detected.
    printed.push(0);
    assert!(printed != wanted);
}

/// Promise: The command line and a mount show the same names, bytes, attributes and errors.
#[test]
fn command_line_and_mount_show_the_same_tree() {
    seeds(STORES).enumerate().for_each(|(number, seed)| compare(number, seed));
}
