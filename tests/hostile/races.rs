//! R3, in small: while one process exchanges what lies under a name, no reader gets what the name must not lead to.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags};
use serde_json::json;
use swarmletfs::error::Error;
use swarmletfs::name::RelPath;
use swarmletfs::store::{Disk, Store, read_range};
use swarmletfs::tree::{ROOT, Tree};

use super::{CANARY, holds_canary, make_fifo};
use crate::support::TestStore;

/// How often the readers open, together.
const OPENS: usize = 20_000;
/// After this long without an end something hangs.
const WATCHDOG: Duration = Duration::from_secs(60);
/// How often the control tries before it counts as broken.
const TRIES: usize = 3_000_000;

/// A store where `sub` is a folder one moment and a link to the canary's folder the next, and `file` a file and a
/// FIFO.
struct Arena {
    store: TestStore,
    stop: Arc<AtomicBool>,
    exchanger: Option<thread::JoinHandle<u64>>,
}

impl Arena {
    fn new() -> Arena {
        let store = TestStore::new();
        store.worker("w1", json!({}));
        store.write("workers/w1/sub/f", "own");
        store.write("workers/w1/file", "own");
        let outside = store.path().parent().unwrap().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("f"), CANARY).unwrap();
        symlink(&outside, store.at("workers/w1/sub.x")).unwrap();
        make_fifo(&store.at("workers/w1/file.x"));
        let stop = Arc::new(AtomicBool::new(false));
        let (folder, stopped) = (store.at("workers/w1"), stop.clone());
        let exchanger = thread::spawn(move || {
            let mut turns = 0;
            while !stopped.load(Ordering::Relaxed) {
                for name in ["sub", "file"] {
                    exchange(&folder.join(name), &folder.join(format!("{name}.x")));
                }
                turns += 1;
            }
            turns
        });
        Arena { store, stop, exchanger: Some(exchanger) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let turns = self.exchanger.take().unwrap().join();
        if !thread::panicking() {
            assert!(turns.unwrap() > 0, "nothing was exchanged");
        }
    }
}

fn exchange(a: &Path, b: &Path) {
    rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
}

/// Runs `work` in a thread of its own, and fails if it does not end.
fn watched<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let worker = thread::spawn(move || sender.send(work()));
    match receiver.recv_timeout(WATCHDOG) {
        Ok(result) => {
            worker.join().unwrap().unwrap();
            result
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a reader hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(worker.join().unwrap_err()),
    }
}

/// Opens and reads in turn. Returns how often it got the right bytes, and how often a refusal.
fn read_on(disk: &Disk, opens: usize) -> (usize, usize) {
    let (mut right, mut refused) = (0, 0);
    for turn in 0..opens {
        let path = RelPath::parse(["workers/w1/sub/f", "workers/w1/file"][turn % 2]).unwrap();
        match disk.open(&path).and_then(|file| read_range(&*file, 0, 4_096)) {
            Ok(bytes) => {
                assert!(!holds_canary(&bytes), "the canary was reached");
                assert_eq!(bytes, b"own", "{path:?}");
                right += 1;
            }
            Err(Error::Escape | Error::Special | Error::NotFound | Error::NotADirectory) => refused += 1,
            Err(error) => panic!("{path:?}: {error:?}"),
        }
        if turn % 16 == 0 {
            match disk.list(&RelPath::parse("workers/w1/sub").unwrap()) {
                Ok(entries) => assert_eq!(entries.len(), 1),
                Err(error) => assert!(matches!(error, Error::Escape | Error::NotADirectory), "{error:?}"),
            }
        }
    }
    (right, refused)
}

#[test]
fn no_exchange_of_a_folder_with_a_link_or_a_file_with_a_pipe_leads_out() {
    let arena = Arena::new();
    let disk = Arc::new(Disk::open(&arena.store.path()).unwrap());
    let (right, refused) = watched(move || {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let disk = disk.clone();
                thread::spawn(move || read_on(&disk, OPENS / 2))
            })
            .collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    });
    assert_eq!(right + refused, OPENS);
    assert!(right > 0 && refused > 0, "both sides of the exchange were met: {right} {refused}");
}

/// RELIABILITY.md, R3: a worker's folder is exchanged with another owner's.
#[test]
fn no_exchange_of_a_workers_folder_with_another_owners_leads_into_it() {
    let store = TestStore::new();
    store.worker("w1", json!({"owner_id": "A"})).worker("w2", json!({"owner_id": "B"}));
    store.write("workers/w1/result.txt", "own");
    store.write("workers/w2/result.txt", CANARY);
    let tree = Arc::new(store.tree_of_owner("A"));
    let stop = Arc::new(AtomicBool::new(false));
    let (folder, stopped) = (store.at("workers"), stop.clone());
    let exchanger = thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            exchange(&folder.join("w1"), &folder.join("w2"));
        }
    });
    let shared = tree.clone();
    let (own, foreign) = watched(move || {
        let (mut own, mut foreign) = (0, 0);
        for turn in 0..OPENS {
            let path: [&[u8]; 3] = [b"workers", [b"w1", b"w2"][turn % 2], b"result.txt"];
            let Ok(bytes) = read_at(&shared, &path) else { continue };
            own += usize::from(bytes == b"own");
            foreign += usize::from(holds_canary(&bytes));
        }
        (own, foreign)
    });
    stop.store(true, Ordering::Relaxed);
    exchanger.join().unwrap();
    assert!(own > 0, "not one read came through");
    assert_eq!(foreign, 0, "of {OPENS} reads, {own} were of the reader's own file");
}

fn read_at(tree: &Tree, path: &[&[u8]]) -> Result<Vec<u8>, Error> {
    let mut ino = ROOT;
    let mut held = Vec::new();
    let found = path.iter().try_for_each(|name| {
        ino = tree.lookup(ino, name)?.ino;
        held.push(ino);
        Ok(())
    });
    let bytes = found.and_then(|()| {
        let fh = tree.open(ino)?.fh;
        let bytes = tree.read(fh, 0, 4_096, <[u8]>::to_vec);
        tree.release(fh);
        bytes
    });
    held.into_iter().for_each(|ino| tree.forget(ino, 1));
    bytes
}

/// What most file servers do: resolve, compare with the root, open.
fn resolve_check_open(root: &Path, path: &Path) -> Option<Vec<u8>> {
    let real: PathBuf = path.canonicalize().ok()?;
    if !real.starts_with(root) {
        return None;
    }
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[test]
fn control_who_resolves_checks_and_then_opens_loses_the_race() {
    let arena = Arena::new();
    let (root, path) = (arena.store.path().canonicalize().unwrap(), arena.store.at("workers/w1/sub/f"));
    let escaped = watched(move || {
        let reads = |_: &usize| resolve_check_open(&root, &path).is_some_and(|bytes| holds_canary(&bytes));
        (0..TRIES).any(|turn| reads(&turn))
    });
    assert!(escaped, "not one escape in {TRIES} tries: the exchange does not race");
}
