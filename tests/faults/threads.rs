//! Many threads use one tree at once (R29), while the store changes.
//!
//! They look up, forget, open, read, list and release in random order. An open file keeps its
//! content, and nothing leaks after all threads have released everything.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Memory};
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{DirPosition, Fh, Ino, Lookup, NodeKind, ROOT, Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use crate::hostile::Dice;
use crate::mount::eventually;
use crate::support::{seeds, seen};

/// Number of trees.
const TREES: usize = 100;
/// Number of threads in each tree.
const THREADS: usize = 6;
/// Number of steps of each thread.
const STEPS: usize = 250;
/// Number of workers that are added, removed and changed; one more stays.
const WORKERS: usize = 4;

fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

fn metadata(id: &str, status: &str) -> String {
    json!({"worker_id": id, "status": status, "run_id": "r"}).to_string()
}

/// Returns equal bytes, so that a mix of two contents is detectable.
fn uniform_bytes(dice: &mut Dice) -> Vec<u8> {
    vec![b'a' + dice.below(26) as u8; 1 + dice.below(5_000)]
}

fn put_worker(store: &Memory, id: &str, dice: &mut Dice) {
    store.write(&path(&format!("{id}/outputs/file")), uniform_bytes(dice));
    store.write(&path(&format!("{id}/tool_calls/001_sh.txt")), "Error: first\n");
    store.write(&path(&format!("{id}/metadata.json")), metadata(id, "running"));
}

fn store(dice: &mut Dice) -> Memory {
    let store = Memory::new();
    for id in (0..WORKERS).map(|number| format!("w{number}")).chain(["stays".to_owned()]) {
        put_worker(&store, &id, dice);
    }
    store
}

/// Changes the store once.
fn change(store: &Memory, dice: &mut Dice) {
    let (id, other) = (format!("w{}", dice.below(WORKERS)), format!("w{}", dice.below(WORKERS)));
    let file = path(&format!("{id}/outputs/file"));
    match dice.below(10) {
        0 | 1 => store.write(&file, uniform_bytes(dice)),
        2 | 3 => store.replace(&file, uniform_bytes(dice)),
        4 => store.remove(&file),
        5 => store.put(&file, if dice.once_in(2) { Kind::Folder } else { Kind::Special }),
        6 => store.write(
            &path(&format!("{id}/metadata.json")),
            metadata(&id, ["success", "running"][dice.below(2)]),
        ),
        7 => store.remove(&path(&id)),
        8 => store.rename(&path(&id), &path(&other)),
        _ => put_worker(store, &id, dice),
    }
}

/// Names to look up in any directory.
const NAMES: [&str; 24] = [
    "workers",
    "workers",
    "runs",
    "by",
    "r",
    "latest",
    "status",
    "running",
    "stays",
    "w0",
    "w1",
    "w2",
    "w3",
    "outputs",
    "file",
    "tool_calls",
    "001_sh.txt",
    "index.json",
    "evidence.txt",
    "summary",
    "metadata.json",
    "grep",
    "Error",
    "absent",
];

/// An inode that was looked up and is not forgotten yet.
struct HeldInode {
    ino: Ino,
    kind: NodeKind,
    /// True for one version of a generated file.
    is_version: bool,
}

/// What a client has begun to read.
enum Open {
    /// A file, with the content of a generated one.
    File(Fh, Option<Vec<u8>>),
    /// A directory, and the position after its first entries.
    Folder(Ino, DirPosition),
}

/// Acts like the kernel: uses only inodes and handles that it looked up or opened, and releases
/// each once.
struct Client<'a> {
    tree: &'a Tree,
    dice: Dice,
    known: Vec<HeldInode>,
    open: Vec<Open>,
    calls: &'a AtomicUsize,
    /// Number of reads of open files.
    reads: &'a AtomicUsize,
}

/// Returns the result of a call, or `None` for an error that a concurrent change explains.
fn allow_change<T>(what: &str, result: Result<T>) -> Option<T> {
    match result {
        Ok(found) => Some(found),
        Err(
            Error::NotFound
            | Error::Stale
            | Error::NotADirectory
            | Error::IsADirectory
            | Error::Special,
        ) => None,
        Err(error) => panic!("{what}: {error}"),
    }
}

impl Client<'_> {
    /// Returns a random known directory, sometimes the root.
    fn folder(&mut self) -> Ino {
        let folders: Vec<Ino> = self
            .known
            .iter()
            .filter(|known| known.kind == NodeKind::Folder)
            .map(|known| known.ino)
            .collect();
        if folders.is_empty() || self.dice.once_in(8) { ROOT } else { *self.dice.pick(&folders) }
    }

    fn look_up(&mut self) {
        let (folder, name) = (self.folder(), *self.dice.pick(&NAMES));
        let Some(Lookup { ino, attr, name_ttl, attr_ttl }) =
            allow_change(name, self.tree.lookup(folder, name.as_bytes()))
        else {
            return;
        };
        // A generated file has a name TTL of zero, and an inode that never changes.
        let is_version = attr.kind == NodeKind::File && name_ttl.is_zero() && !attr_ttl.is_zero();
        self.known.push(HeldInode { ino, kind: attr.kind, is_version });
    }

    fn forget(&mut self) {
        if self.known.is_empty() {
            return;
        }
        let at = self.dice.below(self.known.len());
        let ino = self.known.swap_remove(at).ino;
        let mut count = 1;
        if self.dice.once_in(2) {
            // The kernel may forget several lookups at once.
            let before = self.known.len();
            self.known.retain(|known| known.ino != ino);
            count += before - self.known.len();
        }
        self.tree.forget(ino, count as u64);
    }

    fn ask(&mut self) {
        let at = self.dice.below(self.known.len());
        let HeldInode { ino, kind, is_version } = self.known[at];
        match self.tree.attr(ino) {
            Ok((attr, _)) => assert_eq!(attr.kind, kind, "an inode changed its kind"),
            Err(error) => {
                assert!(!is_version, "a version that was looked up: {error}");
                allow_change("attributes", Err::<(), _>(error));
            }
        }
        if kind == NodeKind::Link {
            allow_change("a link", self.tree.read_link(ino));
        }
    }

    fn open(&mut self) {
        let at = self.dice.below(self.known.len());
        let HeldInode { ino, kind, is_version } = self.known[at];
        let open = match kind {
            NodeKind::Folder => self.list(ino, DirPosition::Start),
            NodeKind::File => allow_change("to open", self.tree.open(ino)).map(|opened| {
                let read = || self.tree.read(opened.fh, 0, 1 << 20, <[u8]>::to_vec).unwrap();
                Open::File(opened.fh, is_version.then(read))
            }),
            NodeKind::Link => None,
        };
        self.open.extend(open);
    }

    fn list(&self, ino: Ino, position: DirPosition) -> Option<Open> {
        // The inode may be unknown by now, so the listing may fail.
        let (listing, before) = allow_change("a listing", self.tree.entries(ino, position))?;
        assert!(before <= listing.items.len(), "a position after the end");
        let names: BTreeSet<&[u8]> =
            listing.items.iter().map(|item| item.name.as_bytes()).collect();
        assert_eq!(names.len(), listing.items.len(), "a name is listed twice");
        Some(Open::Folder(ino, DirPosition::After(listing.version, listing.items.len() / 2)))
    }

    fn use_open(&mut self) {
        let at = self.dice.below(self.open.len());
        let rewinds = self.dice.once_in(2);
        let (fh, bytes) = match &self.open[at] {
            Open::File(fh, bytes) => (fh, bytes),
            Open::Folder(ino, position) => {
                self.list(*ino, if rewinds { DirPosition::Start } else { *position });
                return;
            }
        };
        let found =
            self.tree.read(*fh, 0, 1 << 20, <[u8]>::to_vec).expect("an open file must be readable");
        self.reads.fetch_add(1, Ordering::Relaxed);
        match bytes {
            Some(bytes) => {
                assert!(found == *bytes, "the content of an open file changed");
                assert_eq!(self.tree.size(*fh), Ok(bytes.len() as u64));
            }
            // A file of equal bytes starts with a lowercase letter.
            None if found.first().is_some_and(u8::is_ascii_lowercase) => {
                assert!(found.iter().all(|byte| *byte == found[0]), "a mix of two contents");
            }
            None => {}
        }
    }

    fn release(&mut self) {
        if !self.open.is_empty() {
            let at = self.dice.below(self.open.len());
            if let Open::File(fh, _) = self.open.swap_remove(at) {
                self.tree.release(fh);
            }
        }
    }

    fn step(&mut self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        match self.dice.below(20) {
            0..8 => self.look_up(),
            8..10 if !self.known.is_empty() => self.ask(),
            10..13 if !self.known.is_empty() => self.open(),
            13..16 if !self.open.is_empty() => self.use_open(),
            16 | 17 => self.release(),
            _ => self.forget(),
        }
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        while !self.open.is_empty() {
            self.release();
        }
        self.known.drain(..).for_each(|known| self.tree.forget(known.ino, 1));
    }
}

fn tree_over(store: &Arc<Memory>, fresh: Duration) -> Tree {
    let fresh = Freshness { unfinished: fresh, finished: fresh };
    let view =
        View::new(vec![Source::from_store(store.clone(), None)], fresh, Filter::default()).unwrap();
    Tree::new(view, Settings::default())
}

#[test]
fn concurrent_use_leaks_nothing_and_open_files_keep_their_content() {
    let (calls, reads) = (AtomicUsize::new(0), AtomicUsize::new(0));
    for number in seeds(TREES) {
        let mut dice = Dice::new(number);
        let store = Arc::new(store(&mut dice));
        // Half of the trees read the store at each call, the others cache for a millisecond.
        let tree = tree_over(&store, Duration::from_millis(number % 2));
        let ended = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                let dice = Dice::new(dice.next());
                let (known, open) = (Vec::new(), Vec::new());
                let mut client =
                    Client { tree: &tree, dice, known, open, calls: &calls, reads: &reads };
                let ended = &ended;
                scope.spawn(move || {
                    let _ended = CountOnDrop(ended);
                    (0..STEPS).for_each(|_| client.step());
                });
            }
            // One change per five calls, independent of the speed of the machine.
            let mut changed_at = calls.load(Ordering::Relaxed);
            while ended.load(Ordering::Relaxed) < THREADS {
                if calls.load(Ordering::Relaxed) >= changed_at + 5 {
                    changed_at = calls.load(Ordering::Relaxed);
                    change(&store, &mut dice);
                }
                thread::yield_now();
            }
        });
        assert_eq!(tree.open_counts(), (0, 0), "tree {number}: leaked inodes and handles");
        // A new tree must show the same.
        let fresh_tree = tree_over(&store, Duration::ZERO);
        for at in [
            "workers",
            "workers/stays/outputs",
            "index.json",
            "summary",
            "evidence.txt",
            "by/status/running",
        ] {
            let look = |tree: &Tree| {
                super::read(tree, at).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            };
            let right = look(&fresh_tree);
            // The old tree may serve cached data for a moment.
            eventually(&format!("in tree {number} {at} is {right:?}"), || {
                (look(&tree) == right).then_some(())
            });
        }
        assert!(seen::names(&tree, "workers").unwrap().contains(&b"stays".to_vec()));
    }
    let (calls, reads) = (calls.into_inner(), reads.into_inner());
    assert!(reads > calls / 50, "only {reads} of {calls} calls read something");
}

/// Counts a thread that has ended, also by a panic.
struct CountOnDrop<'a>(&'a AtomicUsize);

impl Drop for CountOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
