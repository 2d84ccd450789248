//! R3: while a process exchanges the files under a name, no reader gets what the name must not lead
//! to. It exchanges a directory and a link, a file and a FIFO, a worker's directory and another
//! owner's. Each test has a control that loses the same race.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use serde_json::{Value, json};
use swarmletfs_base::error::Error;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Disk, Store, read_range};
use swarmletfs_tree::catalog::Freshness;
use swarmletfs_tree::tree::{ROOT, Settings, Tree};
use swarmletfs_tree::view::Filter;

use super::{CANARY, holds_canary, make_fifo};
use crate::mount::eventually;
use crate::needs_fuse;
use crate::support::{Mount, TestStore};
use crate::support::{patience, scale};

/// Number of opens through the disk store.
const DISK_OPENS: usize = 150_000;
/// Number of opens through an owner's tree that caches its view for a second.
const TREE_OPENS: usize = 48_000;
/// Number of opens through an owner's tree that caches nothing.
const FRESH_TREE_OPENS: usize = 2_000;
/// Number of opens through a mount.
const MOUNT_OPENS: usize = 20_000;
/// Fewer reads may be over before anything is exchanged.
const OPENS_MIN: usize = 2_000;
/// Number of concurrent readers.
const READERS: usize = 4;
/// A test that runs longer hangs.
const WATCHDOG: Duration = Duration::from_secs(100);
/// Number of tries after which a control counts as broken.
const TRIES: usize = 3_000_000;

/// A store with continuous exchanges. `sub` and `file` of A's worker `steady` are exchanged for a
/// link to the canary's directory and a FIFO, and A's worker `ours` for B's worker `theirs`.
struct RaceStore {
    store: TestStore,
    stop: Arc<AtomicBool>,
    exchangers: Vec<thread::JoinHandle<u64>>,
}

impl RaceStore {
    /// Exchanges these pairs of paths in the store's `workers`.
    fn exchanging(pairs: &[(&str, &str)]) -> RaceStore {
        let store = TestStore::new();
        for (worker, owner, text) in
            [("steady", "A", "own"), ("ours", "A", "own"), ("theirs", "B", CANARY)]
        {
            store.worker(worker, json!({"owner_id": owner}));
            store.write(format!("workers/{worker}/result.txt"), text);
            store.call(worker, 1, "sh", text);
        }
        store.write("workers/steady/sub/f", "own");
        store.write("workers/steady/file", "own");
        let outside = store.path().parent().unwrap().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("f"), CANARY).unwrap();
        // Relative, because NO_XDEV alone refuses an absolute one.
        symlink("../../../outside", store.at("workers/steady/sub.x")).unwrap();
        make_fifo(&store.at("workers/steady/file.x"));
        let stop = Arc::new(AtomicBool::new(false));
        let exchangers = pairs.iter().map(|(a, b)| {
            let (a, b) = (store.at(format!("workers/{a}")), store.at(format!("workers/{b}")));
            let stopped = stop.clone();
            thread::spawn(move || {
                let mut turns = 0;
                while !stopped.load(Ordering::Relaxed) {
                    rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
                    turns += 1;
                }
                turns
            })
        });
        let exchangers = exchangers.collect();
        RaceStore { store, stop, exchangers }
    }
}

const SUB: (&str, &str) = ("steady/sub", "steady/sub.x");
const FILE: (&str, &str) = ("steady/file", "steady/file.x");
const WORKER: (&str, &str) = ("ours", "theirs");

impl Drop for RaceStore {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for exchanger in self.exchangers.drain(..) {
            let turns = exchanger.join();
            assert!(thread::panicking() || turns.unwrap() > 0, "nothing was exchanged");
        }
    }
}

/// Runs `work` on a thread, and fails if it does not end.
fn watched<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let worker = thread::spawn(move || sender.send(work()));
    match receiver.recv_timeout(patience(WATCHDOG)) {
        Ok(result) => {
            worker.join().unwrap().unwrap();
            result
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a reader hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(worker.join().unwrap_err())
        }
    }
}

/// Number of correct reads and of refusals.
#[derive(Debug, Default, Clone, Copy)]
struct ReadCounts {
    right: usize,
    refused: usize,
}

/// Runs `opens` reads on concurrent threads. `read` returns the correct bytes, or `None` for a
/// refusal.
#[track_caller]
fn read_at_once(
    opens: usize,
    read: impl Fn(usize) -> Option<Vec<u8>> + Send + Sync + 'static,
) -> ReadCounts {
    let met = watched(move || {
        thread::scope(|scope| {
            let reader = |number: usize| {
                let read = &read;
                scope.spawn(move || {
                    let mut met = ReadCounts::default();
                    for turn in (number..opens).step_by(READERS) {
                        match read(turn) {
                            Some(bytes) => {
                                assert!(
                                    !holds_canary(&bytes),
                                    "turn {turn}: the canary was reached"
                                );
                                met.right += 1;
                            }
                            None => met.refused += 1,
                        }
                    }
                    met
                })
            };
            let readers: Vec<_> = (0..READERS).map(reader).collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).fold(
                ReadCounts::default(),
                |all, met| ReadCounts {
                    right: all.right + met.right,
                    refused: all.refused + met.refused,
                },
            )
        })
    });
    assert_eq!(met.right + met.refused, opens);
    assert!(met.right > 0 && met.refused > 0, "both sides of the exchange are to be met: {met:?}");
    eprintln!("{met:?}");
    met
}

/// Promise: Swapping a directory for a symlink, or a file for a pipe, during a read never leads out
/// of the store.
#[test]
fn swapping_directories_and_files_during_reads_never_escapes() {
    let race = RaceStore::exchanging(&[SUB, FILE]);
    let disk = Disk::open(&race.store.path()).unwrap();
    read_at_once(scale(DISK_OPENS), move |turn| {
        if turn % 64 == 0 {
            match disk.list(&RelPath::parse("workers/steady/sub").unwrap()) {
                Ok(entries) => assert_eq!(entries.len(), 1),
                Err(error) => {
                    assert!(matches!(error, Error::Escape | Error::NotADirectory), "{error:?}")
                }
            }
        }
        let path =
            RelPath::parse(["workers/steady/sub/f", "workers/steady/file"][turn / READERS % 2])
                .unwrap();
        match disk.open(&path).and_then(|file| read_range(&*file, 0, 4_096)) {
            Ok(bytes) => {
                assert!(bytes == b"own" || holds_canary(&bytes), "{path:?}");
                Some(bytes)
            }
            Err(Error::Escape | Error::Special | Error::NotFound | Error::NotADirectory) => None,
            Err(error) => panic!("{path:?}: {error:?}"),
        }
    });
}

/// Promise: Swapping a worker's directory for one of another owner during a read never shows that
/// owner's files.
#[test]
fn swapping_a_worker_for_a_foreign_one_never_shows_it() {
    let never = Duration::ZERO;
    for (opens, fresh) in [(TREE_OPENS, Freshness::default().unfinished), (FRESH_TREE_OPENS, never)]
    {
        let race = RaceStore::exchanging(&[WORKER]);
        let filter = Filter { owner: Some("A".into()), run: None };
        // If the first look met the other owner's directory under both names, the view shows nobody
        // until it is refreshed, and all reads would fail.
        let tree = eventually("a view that shows the worker", || {
            let tree = Tree::new(race.store.view(fresh, filter.clone()), Settings::default());
            let names = [&b"ours"[..], b"theirs"];
            let shown =
                |name| read_at(&tree, [&b"workers"[..], name, b"result.txt"].into_iter()).is_ok();
            names.into_iter().any(shown).then_some(tree)
        });
        const FILES: [&[&[u8]]; 4] =
            [&[b"result.txt"], &[b"tool_calls", b"001_sh.txt"], &[b"evidence.txt"], &[b"summary"]];
        read_at_once(scale(opens).max(OPENS_MIN), move |turn| {
            let worker: &[u8] = [&b"ours"[..], b"theirs"][turn / READERS % 2];
            // Generated files take longer, so they are read less often.
            let file = FILES[if turn / READERS % 64 < 60 {
                turn / READERS / 2 % 2
            } else {
                2 + turn / READERS % 2
            }];
            let path = [&b"workers"[..], worker].into_iter().chain(file.iter().copied());
            read_at(&tree, path).ok()
        });
    }
}

fn read_at<'a>(tree: &Tree, path: impl Iterator<Item = &'a [u8]>) -> Result<Vec<u8>, Error> {
    let mut ino = ROOT;
    let mut held = Vec::new();
    let found = path.into_iter().try_for_each(|name| {
        ino = tree.lookup(ino, name)?.ino;
        held.push(ino);
        Ok(())
    });
    let bytes = found.and_then(|()| {
        let fh = tree.open(ino)?.fh;
        let bytes = tree.read(fh, 0, 16_384, <[u8]>::to_vec);
        tree.release(fh);
        bytes
    });
    held.into_iter().for_each(|ino| tree.forget(ino, 1));
    bytes
}

#[test]
fn no_exchange_leads_out_through_a_mount() {
    needs_fuse!();
    let race = RaceStore::exchanging(&[SUB, FILE, WORKER]);
    let mut mount = Mount::with(&race.store.path(), &["--owner", "A"]);
    for warned in ["a link or a path out of the store", "not a regular file"] {
        mount.expect_warning(warned);
    }
    const PATHS: [&str; 6] = [
        "steady/sub/f",
        "steady/file",
        "ours/result.txt",
        "theirs/result.txt",
        "ours/tool_calls/001_sh.txt",
        "theirs/tool_calls/001_sh.txt",
    ];
    let workers = mount.at("workers");
    read_at_once(scale(MOUNT_OPENS), move |turn| {
        let turn = turn / READERS;
        let path = if turn % 100 < 98 {
            PATHS[turn % PATHS.len()]
        } else {
            ["ours/evidence.txt", "theirs/summary"][turn % 2]
        };
        match fs::read(workers.join(path)) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap();
                assert!(
                    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::STALE),
                    "{path}: {error}"
                );
                None
            }
        }
    });
}

/// Opens a file like most file servers: resolve, compare with the root, open.
fn resolve_check_open(root: &Path, path: &Path) -> Option<Vec<u8>> {
    let real: PathBuf = path.canonicalize().ok()?;
    if !real.starts_with(root) {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[track_caller]
fn assert_loses_race(mut read: impl FnMut() -> Option<Vec<u8>> + Send + 'static) {
    let escaped =
        watched(move || (0..TRIES).any(|_| read().is_some_and(|bytes| holds_canary(&bytes))));
    assert!(escaped, "not one escape in {TRIES} tries: the exchange does not race");
}

#[test]
fn control_resolve_check_open_loses_the_race() {
    let race = RaceStore::exchanging(&[SUB]);
    let (root, path) =
        (race.store.path().canonicalize().unwrap(), race.store.at("workers/steady/sub/f"));
    assert_loses_race(move || resolve_check_open(&root, &path));
}

#[test]
fn control_reading_owner_then_files_by_name_loses_the_race() {
    let race = RaceStore::exchanging(&[WORKER]);
    let worker = race.store.at("workers/ours");
    assert_loses_race(move || {
        let metadata: Value =
            serde_json::from_slice(&fs::read(worker.join("metadata.json")).ok()?).ok()?;
        if metadata["owner_id"] == "A" { fs::read(worker.join("result.txt")).ok() } else { None }
    });
}

#[test]
fn control_stat_then_open_waits_for_a_pipe() {
    let race = RaceStore::exchanging(&[FILE]);
    let file = race.store.at("workers/steady/file");
    let waits = Arc::new(AtomicBool::new(false));
    let (looked_at, seen) = (file.clone(), waits.clone());
    let reader = thread::spawn(move || {
        while !seen.load(Ordering::Relaxed) {
            if fs::symlink_metadata(&looked_at).unwrap().is_file() {
                drop(File::open(&looked_at));
            }
        }
    });
    // A nonblocking open for writing succeeds only while a reader waits for the pipe, and it
    // releases the reader.
    let to_write = || -> Result<bool, Errno> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let fd = rustix::fs::open(&file, flags, Mode::empty())?;
        Ok(rustix::fs::fstat(&fd)?.st_mode & 0o170_000 == 0o010_000)
    };
    let met = (0..TRIES).any(|_| to_write().unwrap_or(false));
    waits.store(true, Ordering::Relaxed);
    // Release a reader that waits now, too.
    while !reader.is_finished() {
        let _ = to_write();
    }
    reader.join().unwrap();
    assert!(met, "not one waited in {TRIES} tries: the exchange does not race");
}
