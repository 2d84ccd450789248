//! A disk that fails under a mount in use (R19). A file system on an image is shut down, so that
//! each call that needs the disk fails with EIO. The mount keeps answering and returns no wrong
//! data. It recovers with the disk, without a new mount.
//!
//! The disk for the program's own files is full (R21): caches, index and log. Reads return the same
//! bytes, and the failure is reported once.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::thread;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::{Value, json};

use super::eventually;
use crate::cli::program::{is_root, run, swarmletfs};
use crate::hostile::Dice;
use crate::needs_fuse;
use crate::support::tool::is_here;
use crate::support::{Mount, TestStore, scale, seed, skip};

/// Number of times the disk fails and comes back.
const ROUNDS: usize = 3;
const READERS: usize = 6;
/// Minimum size of the file systems, in bytes.
const IMAGE: u64 = 320 << 20;
/// Size in bytes of a file that the kernel may read directly.
const LARGE: usize = 1 << 20;

/// Shuts down the file system of a directory at once. Both tested file systems accept this ioctl.
const SHUT_DOWN: &str = "
import fcntl, os, struct, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))
";

/// A store on its own disk.
struct Disk {
    store: TestStore,
    images: tempfile::TempDir,
    options: &'static str,
    image: PathBuf,
}

fn run_command(command: &mut Command) -> Result<(), String> {
    let out = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let describe_failure = || format!("{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    if out.status.success() { Ok(()) } else { Err(describe_failure()) }
}

impl Disk {
    /// Creates a disk with this file system. Prints SKIP if that is not possible.
    fn new(system: &str, options: &'static str) -> Option<Disk> {
        let make = format!("mkfs.{system}");
        if !is_root() || !is_here(&make) || !is_here("python3") {
            return None;
        }
        let images = tempfile::tempdir().unwrap();
        let image = images.path().join("0");
        File::create(&image).unwrap().set_len(IMAGE).unwrap();
        run_command(Command::new(make).arg("-q").arg(&image)).unwrap();
        let disk = Disk { store: TestStore::new(), images, options, image };
        if let Err(why) = disk.mount() {
            skip(&format!("an image cannot be mounted here: {why}"));
            return None;
        }
        Some(disk)
    }

    fn mount(&self) -> Result<(), String> {
        run_command(
            Command::new("mount")
                .args(["-o", self.options])
                .arg(&self.image)
                .arg(self.store.path()),
        )
    }

    /// Makes every access to the disk fail from now on.
    fn shut_down(&self) {
        run_command(Command::new("python3").args(["-c", SHUT_DOWN]).arg(self.store.path()))
            .unwrap();
        assert!(fs::read(self.store.at(SMALL)).is_err(), "the disk still works");
    }

    /// Replaces the disk by a copy, which holds the written files once it is mounted.
    fn replace(&mut self) {
        rustix::mount::unmount(self.store.path(), UnmountFlags::DETACH).unwrap();
        let next =
            self.images.path().join(format!("{}-then", self.image.file_name().unwrap().display()));
        run_command(Command::new("cp").arg("--sparse=always").arg(&self.image).arg(&next)).unwrap();
        self.image = next;
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.store.path(), UnmountFlags::DETACH);
    }
}

const SMALL: &str = "workers/finished/outputs/small";
const WORKER_FILES: [&str; 5] = [
    SMALL,
    "workers/finished/outputs/large",
    "workers/running/outputs/small",
    "workers/running/outputs/large",
    "workers/finished/tool_calls/002_sh.txt",
];
const GENERATED_FILES: [&str; 7] = [
    "index.json",
    "summary",
    "evidence.txt",
    "workers/finished/index.json",
    "workers/running/evidence.txt",
    "grep/disk",
    "search/disk",
];
const FOLDERS: [&str; 4] = ["", "workers", "workers/finished/outputs", "by/status/completed"];

fn fill(store: &TestStore) {
    for (id, status) in [("finished", "success"), ("running", "running")] {
        store.worker(id, json!({"status": status, "run_id": "r"}));
        store.call(id, 1, "sh", "fine\n").call(
            id,
            2,
            "sh",
            "Error: the disk of the other machine is full\n",
        );
        store.write(format!("workers/{id}/outputs/small"), format!("small of {id}\n"));
        let large: Vec<u8> =
            (0..LARGE).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        store.write(format!("workers/{id}/outputs/large"), large);
    }
}

/// Permitted results: while the disk works, while it fails, and while it is being replaced.
const WORKING: u8 = 0;
const FAILED: u8 = 1;
const REPLACING: u8 = 2;

fn errno(error: &io::Error) -> Errno {
    Errno::from_raw_os_error(
        error.raw_os_error().unwrap_or_else(|| panic!("no error of the system: {error}")),
    )
}

/// Reads something. The result must be correct or a disk error, unless `weather` changed meanwhile.
fn read_one(mount: &Mount, right: &BTreeMap<String, Vec<u8>>, weather: &AtomicU8, dice: &mut Dice) {
    let before = weather.load(Ordering::SeqCst);
    let (path, found) = match dice.below(10) {
        0..5 => {
            let path = *dice.pick(&WORKER_FILES);
            let found = fs::read(mount.at(path));
            if let Ok(found) = &found {
                assert!(*found == right[path], "{path}: {} wrong bytes", found.len());
            }
            (path, found.map(drop))
        }
        5..7 => {
            let path = *dice.pick(&GENERATED_FILES);
            let found = fs::read(mount.at(path));
            if let Ok(found) = &found {
                assert!(!found.is_empty(), "{path}: nothing");
                assert!(
                    !path.ends_with(".json") || serde_json::from_slice::<Value>(found).is_ok(),
                    "{path}: no JSON"
                );
            }
            (path, found.map(drop))
        }
        7 => {
            let path = *dice.pick(&FOLDERS);
            (
                path,
                fs::read_dir(mount.at(path))
                    .and_then(|mut entries| entries.try_for_each(|entry| entry.map(drop))),
            )
        }
        8 => {
            let path = *dice.pick(&WORKER_FILES);
            (path, fs::metadata(mount.at(path)).map(drop))
        }
        _ => ("the root", fs::metadata(mount.path()).map(drop)),
    };
    let Err(error) = found else { return };
    let allowed: &[Errno] = match before.max(weather.load(Ordering::SeqCst)) {
        WORKING => &[],
        FAILED => &[Errno::IO],
        _ => &[Errno::IO, Errno::NOENT, Errno::STALE, Errno::NOTCONN],
    };
    assert!(allowed.contains(&errno(&error)), "{path}: {error}, with the disk in state {before}");
}

fn fails(path: &Path) -> Option<()> {
    fs::read(path).is_err_and(|error| errno(&error) == Errno::IO).then_some(())
}

fn fails_and_recovers(system: &str, options: &'static str) {
    let Some(mut disk) = Disk::new(system, options) else { return };
    fill(&disk.store);
    rustix::fs::syncfs(File::open(disk.store.path()).unwrap()).unwrap();
    let mut mount = Mount::new(&disk.store.path());
    mount.expect_warning("input/output error");
    let right: BTreeMap<String, Vec<u8>> = WORKER_FILES
        .iter()
        .chain(&GENERATED_FILES)
        .map(|path| ((*path).to_owned(), mount.read(path)))
        .collect();
    let (weather, reads, stop) = (AtomicU8::new(WORKING), AtomicUsize::new(0), AtomicU8::new(0));
    let first = seed();
    thread::scope(|scope| {
        for reader in 0..READERS {
            let (mount, right, weather, reads, stop) = (&mount, &right, &weather, &reads, &stop);
            scope.spawn(move || {
                let mut dice = Dice::new(first + reader as u64);
                while stop.load(Ordering::SeqCst) == 0 {
                    read_one(mount, right, weather, &mut dice);
                    reads.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        // Runs even if a check here fails.
        let stopping = StopOnDrop(&stop);
        let some_reads = |what: &str| {
            let before = reads.load(Ordering::SeqCst);
            eventually(what, || {
                (reads.load(Ordering::SeqCst) > before + 40 * READERS).then_some(())
            });
        };
        for _ in 0..scale(ROUNDS) {
            some_reads("reads while the disk works");
            let held = File::open(mount.at(WORKER_FILES[1])).unwrap();
            weather.store(FAILED, Ordering::SeqCst);
            disk.shut_down();
            for path in WORKER_FILES {
                eventually(&format!("EIO of {path}"), || fails(&mount.at(path)));
            }
            let error = held.read_at(&mut [0; 4_096], 0).map(|_| ()).map_err(|error| errno(&error));
            assert!(error.is_ok() || error == Err(Errno::IO), "through the handle: {error:?}");
            some_reads("reads while the disk is broken");
            weather.store(REPLACING, Ordering::SeqCst);
            disk.replace();
            drop(held);
            disk.mount().unwrap();
            for (path, bytes) in &right {
                eventually(&format!("{path} as it was"), || {
                    (fs::read(mount.at(path)).ok()? == *bytes).then_some(())
                });
            }
            for folder in FOLDERS {
                eventually(&format!("the folder {folder:?}"), || {
                    fs::read_dir(mount.at(folder)).ok().map(drop)
                });
            }
            weather.store(WORKING, Ordering::SeqCst);
        }
        drop(stopping);
    });
}

struct StopOnDrop<'a>(&'a AtomicU8);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(1, Ordering::SeqCst);
    }
}

#[test]
fn failing_ext4_disk_gives_errors_and_recovers_under_load() {
    needs_fuse!();
    fails_and_recovers("ext4", "loop");
}

#[test]
fn failing_xfs_disk_gives_errors_and_recovers_under_load() {
    needs_fuse!();
    // The failed disk may stay in use for a moment, and the next one is its copy.
    fails_and_recovers("xfs", "loop,nouuid");
}

/// Warning when a cache cannot be written.
const NOT_KEPT: &str = "cannot write to the cache";

/// A disk of one mebibyte.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn new(options: &std::ffi::CStr) -> SmallDisk {
        let dir = tempfile::tempdir().unwrap();
        rustix::mount::mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), options).unwrap();
        let full = SmallDisk { dir };
        full.fill();
        full
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Uses up all space; the cache directory exists already.
    fn fill(&self) {
        fs::create_dir_all(self.at("caches")).unwrap();
        let mut filler = File::options().create(true).append(true).open(self.at("filler")).unwrap();
        let error = (0..).find_map(|_| filler.write_all(&[1; 4_096]).err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        // If the number of files is limited too, use up all of them.
        let _ = (0..100)
            .try_for_each(|number| File::create(self.at(&format!("file-{number}"))).map(drop));
    }

    fn make_room(&self) {
        // A process that another test is about to start may still hold the file.
        fs::write(self.at("filler"), "").unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir.path(), UnmountFlags::DETACH);
    }
}

/// Returns a store with enough data to make caching worthwhile.
fn store() -> TestStore {
    let store = TestStore::new();
    for number in 0..80 {
        let id = format!("w{number:02}");
        store.worker(&id, json!({"run_id": "r", "status": "failed"}));
        store.call(
            &id,
            1,
            "sh",
            format!("Error: reason {number}\n{}", "and nothing more\n".repeat(500)),
        );
    }
    store
}

const PATHS: [&str; 9] = [
    "README.md",
    "index.json",
    "summary",
    "evidence.txt",
    "workers/w17/evidence.txt",
    "workers/w17/tool_calls/001_sh.txt",
    "runs/r/index.json",
    "grep/reason 7",
    "search/reason 42",
];

fn read_all(mount: &Mount) -> BTreeMap<&'static str, Vec<u8>> {
    PATHS.iter().map(|path| (*path, mount.read(path))).collect()
}

/// Returns the results of a mount without caches.
fn expected_files(store: &TestStore) -> BTreeMap<&'static str, Vec<u8>> {
    read_all(&Mount::with(&store.path(), &["--no-cache", "--no-index"]))
}

fn mount_with_caches(store: &TestStore, caches: &Path, arguments: &[&str]) -> Mount {
    Mount::by(&["env", &format!("XDG_CACHE_HOME={}", caches.display())], &store.path(), arguments)
}

fn check(mount: &Mount, right: &BTreeMap<&str, Vec<u8>>) {
    for _ in 0..3 {
        let found = read_all(mount);
        for (path, bytes) in right {
            assert!(
                found[path] == *bytes,
                "{path} is another: {}",
                String::from_utf8_lossy(&found[path])
            );
        }
    }
}

#[test]
fn full_disk_for_caches_allows_reads_and_warns_once() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let (store, disk) = (store(), SmallDisk::new(c"size=1m,mode=755"));
    let right = expected_files(&store);
    let caches = disk.at("caches");
    let mut mount = mount_with_caches(&store, &caches, &[]);
    mount.expect_warning(NOT_KEPT);
    check(&mount, &right);
    eventually("the warning in the log", || mount.log().contains(NOT_KEPT).then_some(()));
    check(&mount, &right);
    // One warning for the caches and one for the index: each has a directory on that disk.
    let count = mount.log().matches(NOT_KEPT).count();
    assert!(count <= 2, "the warning was logged {count} times");
    drop(mount);
    // A partly written cache does no harm to a later mount with free space.
    disk.make_room();
    let next = mount_with_caches(&store, &caches, &[]);
    check(&next, &right);
    eventually("a cache file", || {
        let mut files = fs::read_dir(caches.join("swarmletfs")).unwrap();
        files.any(|file| file.unwrap().path().is_file()).then_some(())
    });
}

#[test]
fn full_disk_for_the_index_allows_searches_and_warns_once() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let (store, disk) = (store(), SmallDisk::new(c"size=1m,mode=755"));
    let right = expected_files(&store);
    let caches = tempfile::tempdir().unwrap();
    let mut mount =
        mount_with_caches(&store, caches.path(), &["--index", disk.at("index").to_str().unwrap()]);
    mount.expect_warning(NOT_KEPT);
    check(&mount, &right);
    eventually("the warning in the log", || mount.log().contains(NOT_KEPT).then_some(()));
    check(&mount, &right);
    assert_eq!(mount.log().matches(NOT_KEPT).count(), 1);
}

#[test]
fn full_disk_for_the_log_allows_reads() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let (store, disk) = (store(), SmallDisk::new(c"size=1m,mode=755"));
    let right = expected_files(&store);
    let log = disk.at("log");
    let mount = mount_with_caches(&store, &disk.at("caches"), &["--log", log.to_str().unwrap()]);
    check(&mount, &right);
    assert_eq!(fs::metadata(&log).unwrap().len(), 0, "the log was written to a full disk");
}

#[test]
fn full_inode_table_allows_reads_and_refuses_named_files() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let (store, disk) = (store(), SmallDisk::new(c"size=1m,nr_inodes=20,mode=755"));
    let right = expected_files(&store);
    let mut mount = mount_with_caches(&store, &disk.at("caches"), &[]);
    let warning = "cannot cache parsed data in";
    mount.expect_warning(warning);
    check(&mount, &right);
    assert_eq!(mount.log().matches(warning).count(), 1, "{}", mount.log());
    let point = tempfile::tempdir().unwrap();
    for (option, name) in [("--index", "index"), ("--log", "log")] {
        let mut command = swarmletfs(["mount", "--foreground", "--store"]);
        command.arg(store.path()).arg(option).arg(disk.at(name)).arg(point.path());
        let done = run(command);
        assert!(done.code.is_some_and(|code| code > 0), "{option}: {done:?}");
        assert!(
            done.err.starts_with("swarmletfs: ") && done.err.contains("No space left"),
            "{option}: {done:?}"
        );
    }
}
