//! The kernel reads large files of a worker directly (FUSE passthrough) where that is permitted.
//! Readers see no difference but speed.

use std::fs::{self, File, FileTimes};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::{eventually, reply_count};
use crate::needs_fuse;
use crate::support::mount::PROGRAM;
use crate::support::{Mount, TestStore, skip};

const LARGE: usize = 8 << 20;
const PATH: &str = "workers/w/outputs/large";

/// Returns bytes that differ at every position.
fn bytes(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed).collect()
}

fn store() -> (TestStore, PathBuf) {
    let store = TestStore::new();
    store.worker("w", json!({"status": "success"}));
    let path = store.write(PATH, bytes(1, LARGE));
    (store, path)
}

/// Returns true if this process may use passthrough.
fn can_pass_through() -> bool {
    let out = Command::new(PROGRAM).args(["doctor", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let possible = report["fuse"]["passthrough"] == true;
    if !possible {
        skip("the kernel does not read files by itself here");
    }
    possible
}

/// Promise: The kernel alone reads a large file (passthrough).
#[test]
fn large_file_is_read_by_the_kernel_alone() {
    needs_fuse!();
    if !can_pass_through() {
        return;
    }
    let (store, _) = store();
    store.write("workers/w/outputs/small", "small\n");
    let mount = Mount::new(&store.path());
    assert_eq!(mount.read("workers/w/outputs/small"), b"small\n");
    assert_eq!(mount.read(PATH), bytes(1, LARGE));
    let before = reply_count(&mount);
    for _ in 0..10 {
        assert_eq!(mount.read(PATH), bytes(1, LARGE));
    }
    // Requests per round: open, stat and close. Reading 8 MiB through the program would add 64.
    let requests = reply_count(&mount) - before;
    assert!(requests <= 50, "{requests} requests for ten reads of a file");
}

#[test]
fn passthrough_reads_update_no_access_time() {
    needs_fuse!();
    let (store, path) = store();
    let accessed = || {
        let meta = fs::metadata(&path).unwrap();
        (meta.atime(), meta.atime_nsec())
    };
    // Old enough that the first read renews it, unless the disk keeps no atimes.
    let old = SystemTime::now() - Duration::from_secs(400_000);
    let set_old = || {
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_times(FileTimes::new().set_accessed(old))
            .unwrap()
    };
    set_old();
    let then = accessed();
    let mount = Mount::new(&store.path());
    assert_eq!(mount.read(PATH), bytes(1, LARGE));
    let out = mount.shell(&format!(
        "grep -c nothing $M/{PATH}; python3 -c 'import mmap, sys; f = open(sys.argv[1], \"rb\"); \
        print(len(bytes(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ))))' $M/{PATH}"
    ));
    assert!(out.stdout.ends_with(format!("{LARGE}\n").as_bytes()), "{out:?}");
    assert_eq!(accessed(), then);
    drop(mount);
    // A direct read renews it on a disk that keeps atimes.
    fs::read(&path).unwrap();
    if accessed() == then {
        skip("this disk keeps no times of access");
    }
}

/// Promise: A reader that opens a file while it changes reads one state of it.
#[test]
fn open_during_a_change_reads_one_state() {
    needs_fuse!();
    let (store, path) = store();
    let mount = Mount::new(&store.path());
    let at = mount.at(PATH);
    // An inode opened without passthrough stays so until its last handle is closed, however large
    // the file grows.
    fs::write(&path, "small\n").unwrap();
    eventually("it is small", || (fs::read(&at).ok()? == b"small\n").then_some(()));
    let held = File::open(&at).unwrap();
    fs::write(&path, bytes(2, LARGE)).unwrap();
    eventually("it is large", || (fs::metadata(&at).unwrap().len() == LARGE as u64).then_some(()));
    eventually("all is read", || (fs::read(&at).ok()? == bytes(2, LARGE)).then_some(()));
    let mut start = [0; 64];
    held.read_exact_at(&mut start, 4 << 20).unwrap();
    assert_eq!(start[..], bytes(2, LARGE)[4 << 20..][..64]);
    drop(held);
    // The reverse: opened with passthrough.
    let held = File::open(&at).unwrap();
    fs::write(&path, "small\n").unwrap();
    eventually("it is small again", || (fs::read(&at).ok()? == b"small\n").then_some(()));
    drop(held);
    // A replaced file stays readable through open handles.
    fs::write(&path, bytes(3, LARGE)).unwrap();
    eventually("it is large again", || (fs::read(&at).ok()? == bytes(3, LARGE)).then_some(()));
    let mut held = File::open(&at).unwrap();
    let new = store.write("new", bytes(4, LARGE));
    fs::rename(new, &path).unwrap();
    eventually("the new content", || (fs::read(&at).ok()? == bytes(4, LARGE)).then_some(()));
    let mut all = Vec::new();
    held.read_to_end(&mut all).unwrap();
    assert!(all == bytes(3, LARGE), "the open handle reads other bytes");
}

/// Promise: Many readers can open and close a file while it grows past each size threshold.
#[test]
fn many_readers_open_a_file_that_grows_past_each_threshold() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({"status": "running"}));
    let path = store.write(PATH, "");
    let mount = Mount::new(&store.path());
    let whole = bytes(5, 1 << 20);
    let reads = AtomicUsize::new(0);
    let read = |at: &Path| {
        let got = fs::read(at).unwrap();
        assert!(got == whole[..got.len()], "the {} bytes read are not its beginning", got.len());
        reads.fetch_add(1, Ordering::Relaxed);
        got.len()
    };
    thread::scope(|scope| {
        let readers: Vec<_> =
            (0..8).map(|_| scope.spawn(|| while read(&mount.at(PATH)) < whole.len() {})).collect();
        let mut file = File::options().append(true).open(&path).unwrap();
        for piece in whole.chunks(17_001) {
            let before = reads.load(Ordering::Relaxed);
            file.write_all(piece).unwrap();
            // Another reader reads between.
            eventually("a read", || (reads.load(Ordering::Relaxed) > before).then_some(()));
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}
