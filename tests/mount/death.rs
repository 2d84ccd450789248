//! The server dies at any moment under load (R23). Every client receives an error instead of
//! blocking, the next mount works at once, and nothing is left in the store or the system.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::process::{Pid, Signal, kill_process};

use super::{PATIENCE, eventually, swarm};
use crate::cli::program::{
    LIMIT, MountSandbox, is_root, mount, mount_count_at, mount_in_foreground, mounted, servers,
    swarmletfs, umount, wait_timeout, with_log,
};
use crate::hostile::Dice;
use crate::needs_fuse;
use crate::support::mount::{connection_at, end_by_force};
use crate::support::{Mount, TestStore, scale, seed};

const KILLS: usize = 50;
const KILLS_AT_START: usize = 20;
const ABORTS: usize = 20;
const CLIENTS: usize = 4;

/// Errors from a mount without a server: for requests that wait, and for new requests.
const GONE: [Errno; 2] = [Errno::CONNABORTED, Errno::NOTCONN];

const WORKER_FILE: &str = "workers/alpha/result.txt";
const WORKER_BYTES: &[u8] = b"All hosts were checked.\n";

/// Makes one random request.
fn send_request(point: &Path, held: &mut Vec<File>, dice: &mut Dice) -> io::Result<()> {
    let files = [
        WORKER_FILE,
        "README.md",
        "index.json",
        "summary",
        "workers/alpha/evidence.txt",
        "runs/r1/workers/beta/summary",
    ];
    match dice.below(5) {
        0 => fs::read(point.join(dice.pick(&files))).map(drop),
        1 => fs::metadata(point.join(dice.pick(&files))).map(drop),
        2 => fs::read_dir(point.join(dice.pick(&["", "workers", "workers/alpha"])))?
            .try_for_each(|e| e.map(drop)),
        3 => {
            held.push(File::open(point.join(dice.pick(&files)))?);
            Ok(())
        }
        _ => held.pop().map_or(Ok(()), |file| file.read_at(&mut [0; 5_000], 0).map(drop)),
    }
}

/// Clients that send requests until one fails.
struct Load {
    request_count: Arc<AtomicU64>,
    ends: mpsc::Receiver<io::Error>,
}

impl Load {
    fn on(point: &Path, number: usize) -> Load {
        let seed = seed() + (number * CLIENTS) as u64;
        let (request_count, (sender, ends)) = (Arc::new(AtomicU64::new(0)), mpsc::channel());
        for client in 0..CLIENTS {
            let (point, request_count, sender) =
                (point.to_path_buf(), request_count.clone(), sender.clone());
            thread::spawn(move || {
                let (mut dice, mut held) = (Dice::new(seed + client as u64), Vec::new());
                let end = loop {
                    match send_request(&point, &mut held, &mut dice) {
                        Ok(()) => request_count.fetch_add(1, Ordering::Relaxed),
                        Err(error) => break error,
                    };
                };
                sender.send(end)
            });
        }
        Load { request_count, ends }
    }

    /// Waits until the clients have sent `request_count` requests.
    fn wait_for_requests(self, request_count: u64) -> Load {
        eventually("the load", || {
            (self.request_count.load(Ordering::Relaxed) >= request_count).then_some(())
        });
        self
    }

    /// Waits until every client has ended, each with one of the errors in `wanted`.
    fn expect_end_with(self, wanted: &[Errno]) {
        for _ in 0..CLIENTS {
            let end =
                self.ends.recv_timeout(PATIENCE).expect("a client waits for a server that is gone");
            let is_wanted =
                wanted.iter().any(|errno| end.raw_os_error() == Some(errno.raw_os_error()));
            assert!(is_wanted, "a client ended by: {end}");
        }
    }
}

/// Returns all metadata of the store, which any write would change.
fn state(store: &TestStore) -> BTreeMap<PathBuf, [i64; 8]> {
    let (mut all, mut open) = (BTreeMap::new(), vec![store.path()]);
    while let Some(path) = open.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let [ino, size] = [meta.ino(), meta.size()].map(|number| number as i64);
        let times = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
        all.insert(
            path,
            [
                ino,
                size,
                meta.mode().into(),
                times[0],
                times[1],
                times[2],
                times[3],
                meta.nlink() as i64,
            ],
        );
    }
    all
}

/// Returns the server's process.
fn server(point: &Path) -> Pid {
    let [pid] = servers(|at| at == point)[..] else { panic!("one server") };
    pid
}

fn is_served(point: &Path) -> bool {
    fs::read(point.join(WORKER_FILE)).is_ok_and(|bytes| bytes == WORKER_BYTES)
}

/// Returns true if something is mounted but its server is gone.
fn is_dead(point: &Path) -> bool {
    File::open(point.join(WORKER_FILE))
        .is_err_and(|error| error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()))
}

/// Returns the kernel's control files of a connection; see [`MountSandbox`] for their removal.
fn control(sandbox: &MountSandbox, point: &Path) -> PathBuf {
    let folder = sandbox.folder("control");
    if !folder.join("0").exists() && fs::read_dir(&folder).unwrap().next().is_none() {
        rustix::mount::mount("none", &folder, "fusectl", MountFlags::empty(), None).unwrap();
    }
    folder.join(connection_at(point).unwrap().to_string())
}

/// Checks that nothing is mounted, served or left over.
fn assert_clean(sandbox: &MountSandbox, point: &Path) {
    assert_eq!(mount_count_at(point), 0);
    assert!(servers(|at| at == point).is_empty());
    let left = |folder: &Path| {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    assert_eq!(left(point), [""; 0]);
    let own = left(&sandbox.path())
        .into_iter()
        .filter(|name| !["mnt", "log", "control"].contains(&name.to_str().unwrap()));
    assert_eq!(own.count(), 0);
}

/// Promise: If the server is killed, every request fails, and the next mount works.
#[test]
fn killed_server_fails_requests_and_can_be_mounted_again() {
    needs_fuse!();
    let (store, sandbox) = (swarm(), MountSandbox::new());
    let (point, before) = (sandbox.folder("mnt"), state(&store));
    let mut dice = Dice::new(seed());
    for number in 0..scale(KILLS) {
        let done = mount(&store.path(), &point, &[]);
        done.assert_success();
        assert_eq!(done.err.contains("removed a dead swarmletfs mount"), number > 0, "{done:#?}");
        assert_eq!(mount_count_at(&point), 1);
        let load = Load::on(&point, number).wait_for_requests(dice.next() % 300);
        let server = server(&point);
        let stopped = dice.once_in(4);
        if stopped {
            // Some requests wait already when the server dies.
            kill_process(server, Signal::STOP).unwrap();
        }
        kill_process(server, Signal::KILL).unwrap();
        load.expect_end_with(&GONE);
        assert!(is_dead(&point));
    }
    mount(&store.path(), &point, &[]).assert_success();
    assert!(is_served(&point));
    umount(&point, &[]).assert_success();
    eventually("the end of the server", || servers(|at| at == point).is_empty().then_some(()));
    assert_clean(&sandbox, &point);
    assert_eq!(state(&store), before);
}

#[test]
fn server_killed_during_startup_leaves_no_unreported_mount() {
    needs_fuse!();
    let (store, sandbox) = (swarm(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let mut dice = Dice::new(seed());
    for number in 0..scale(KILLS_AT_START) {
        let mut command = with_log(swarmletfs(["mount"]), &point);
        command
            .arg("--store")
            .arg(store.path())
            .arg(&point)
            .stderr(File::create(sandbox.at("log")).unwrap());
        let mut first = command.spawn().unwrap();
        let server = eventually("the server", || servers(|at| at == point).first().copied());
        // The kill hits anywhere between the first and the last step, which takes a few hundred
        // rounds.
        for _ in 0..dice.below(200) {
            let _ = mounted();
        }
        let kill_first = number % 3 == 0;
        let _ =
            kill_process(if kill_first { Pid::from_child(&first) } else { server }, Signal::KILL);
        let code = wait_timeout(&mut first, LIMIT).expect("no hang").code();
        if kill_first {
            // The server has no clients, or has already reported and left its terminal.
            let out = format!("/proc/{}/fd/1", server.as_raw_nonzero());
            eventually("no server, or one that reported its mount", || {
                let nothing = servers(|at| at == point).is_empty() && mount_count_at(&point) == 0;
                let reported = fs::read_link(&out).is_ok_and(|out| out == Path::new("/dev/null"));
                (nothing || (reported && is_served(&point))).then_some(())
            });
        } else if code == Some(0) {
            eventually("its death", || is_dead(&point).then_some(()));
        } else {
            assert_eq!(
                mount_count_at(&point),
                0,
                "{}",
                fs::read_to_string(sandbox.at("log")).unwrap()
            );
        }
        if !is_served(&point) {
            mount(&store.path(), &point, &[]).assert_success();
        }
        assert!(is_served(&point));
        // The mount stays busy until the last request of a killed client has ended.
        eventually("an idle mount", || (umount(&point, &[]).code == Some(0)).then_some(()));
        eventually("the end of the server", || servers(|at| at == point).is_empty().then_some(()));
        assert_clean(&sandbox, &point);
    }
}

/// Promise: If the connection is aborted, every request fails, and the server ends.
#[test]
fn aborted_connection_ends_the_server() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let (store, sandbox) = (swarm(), MountSandbox::new());
    let (point, before) = (sandbox.folder("mnt"), state(&store));
    let mut dice = Dice::new(seed());
    for number in 0..scale(ABORTS) {
        let mut child = mount_in_foreground(&store.path(), &point, &sandbox.at("log"));
        let load = Load::on(&point, number).wait_for_requests(dice.next() % 300);
        fs::write(control(&sandbox, &point).join("abort"), "1").unwrap();
        load.expect_end_with(&[GONE[0], GONE[1], Errno::NOENT]);
        assert_eq!(wait_timeout(&mut child, LIMIT).expect("no hang").code(), Some(0));
        assert_clean(&sandbox, &point);
    }
    assert_eq!(state(&store), before);
}

/// Promise: A server that is told to stop under load unmounts.
#[test]
fn server_stopped_under_load_unmounts() {
    needs_fuse!();
    let (store, sandbox) = (swarm(), MountSandbox::new());
    let (point, before) = (sandbox.folder("mnt"), state(&store));
    for number in 0..2 {
        let mut child = mount_in_foreground(&store.path(), &point, &sandbox.at("log"));
        let load = Load::on(&point, number).wait_for_requests(100);
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert_eq!(wait_timeout(&mut child, LIMIT).expect("no hang").code(), Some(0));
        // A client may also find nothing mounted there.
        load.expect_end_with(&[GONE[0], GONE[1], Errno::NOENT]);
        assert_clean(&sandbox, &point);
    }
    assert_eq!(state(&store), before);
}

/// A stopped process. Dropping this continues it.
struct Stopped(Pid);

impl Stopped {
    fn new(child: &Child) -> Stopped {
        let pid = Pid::from_child(child);
        kill_process(pid, Signal::STOP).unwrap();
        // Threads that are running just then continue for a moment and may answer.
        let tasks = format!("/proc/{}/task", child.id());
        let is_stopped = |stat: &str| {
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
        };
        eventually("all threads are stopped", || {
            let mut stats =
                fs::read_dir(&tasks).unwrap().map(|task| task.unwrap().path().join("stat"));
            stats
                .all(|stat| fs::read_to_string(stat).is_ok_and(|stat| is_stopped(&stat)))
                .then_some(())
        });
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Control: verifies the watchdog of the tests.
#[test]
fn forced_umount_releases_readers_of_a_stopped_server() {
    needs_fuse!();
    let store = swarm();
    let mut mount = Mount::new(&store.path());
    let load = Load::on(&mount.path(), 7);
    let _stopped = Stopped::new(mount.process());
    end_by_force(&mount.path());
    load.expect_end_with(&[GONE[0], GONE[1], Errno::NOENT]);
}

#[test]
fn readers_of_a_stopped_server_are_served_when_it_continues() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let (store, sandbox) = (swarm(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let mut child = mount_in_foreground(&store.path(), &point, &sandbox.at("log"));
    let waiting = control(&sandbox, &point).join("waiting");
    let stopped = Stopped::new(&child);
    let (sender, answers) = mpsc::channel();
    for _ in 0..CLIENTS {
        let (path, sender) = (point.join(WORKER_FILE), sender.clone());
        thread::spawn(move || sender.send(fs::read(path).map_err(|error| error.kind())));
    }
    eventually("somebody waits", || {
        (fs::read_to_string(&waiting).unwrap().trim() != "0").then_some(())
    });
    assert!(answers.try_recv().is_err(), "nobody is there to answer");
    drop(stopped);
    for _ in 0..CLIENTS {
        assert_eq!(answers.recv_timeout(PATIENCE).expect("no hang").as_deref(), Ok(WORKER_BYTES));
    }
    umount(&point, &[]).assert_success();
    assert_eq!(wait_timeout(&mut child, LIMIT).expect("no hang").code(), Some(0));
    assert_clean(&sandbox, &point);
}
