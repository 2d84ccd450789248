//! The end of a mount by umount, by a signal, or by the death of its process.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};

use super::program::{
    LIMIT, MountSandbox, bind, mount, mount_count_at, mount_in_foreground, run, servers,
    small_store, swarmletfs, tmpfs, umount, wait_timeout, wait_until,
};
use crate::needs_fuse;
use crate::support::mount::connection_at;

fn signal(child: &std::process::Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn signals_unmount_in_the_foreground() {
    needs_fuse!();
    let mut fastest = LIMIT;
    for number in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (store, sandbox) = (small_store(), MountSandbox::new());
        let point = sandbox.folder("mnt");
        let mut child = mount_in_foreground(&store.path(), &point, &sandbox.at("log"));
        assert_eq!(mount_count_at(&point), 1);
        let begun = Instant::now();
        signal(&child, number);
        let status = wait_timeout(&mut child, LIMIT).expect("no hang");
        fastest = fastest.min(begun.elapsed());
        assert_eq!(
            status.code(),
            Some(0),
            "{number:?}: {}",
            fs::read_to_string(sandbox.at("log")).unwrap()
        );
        assert_eq!(mount_count_at(&point), 0, "{number:?}");
    }
    // Nothing is open, so there is nobody to wait for.
    assert!(fastest < Duration::from_secs(2), "a mount took {fastest:?} to end");
}

#[test]
fn signals_except_hangup_unmount_in_the_background() {
    needs_fuse!();
    for number in [Signal::TERM, Signal::INT] {
        let (store, sandbox) = (small_store(), MountSandbox::new());
        let point = sandbox.folder("mnt");
        mount(&store.path(), &point, &[]).assert_success();
        let [pid] = servers(|at| at == point)[..] else { panic!("one server") };
        kill_process(pid, Signal::HUP).unwrap();
        assert_eq!(fs::read(point.join("workers/w1/result.txt")).unwrap(), b"done");
        kill_process(pid, number).unwrap();
        wait_until("the end of the server", || servers(|at| at == point).is_empty());
        assert_eq!(mount_count_at(&point), 0, "{number:?}");
    }
}

#[test]
fn signal_ends_a_mount_in_use() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let mut child = mount_in_foreground(&store.path(), &point, &sandbox.at("log"));
    let mut open = fs::File::open(point.join("workers/w1/result.txt")).unwrap();
    signal(&child, Signal::TERM);
    let status = wait_timeout(&mut child, LIMIT).expect("no hang");
    assert_eq!(status.code(), Some(0));
    assert_eq!(mount_count_at(&point), 0);
    // A reader with an open file gets bytes or an error, but never hangs.
    let _ = open.read(&mut [0; 16]);
}

#[test]
fn umount_ends_a_foreground_mount() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let mut child = mount_in_foreground(&store.path(), &point, &sandbox.at("log"));
    run(swarmletfs(["unmount".as_ref(), point.as_os_str()])).assert_success();
    assert_eq!(wait_timeout(&mut child, LIMIT).expect("no hang").code(), Some(0));
}

/// Promise: The next mount clears one whose process was killed.
#[test]
fn next_mount_clears_a_dead_one() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    for _ in 0..2 {
        let mut child = mount_in_foreground(&store.path(), &point, &sandbox.at("log"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(mount_count_at(&point), 1, "a dead mount is left");
        let error = fs::metadata(&point).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
        let done = mount(&store.path(), &point, &[]);
        done.assert_success();
        assert!(done.err.contains("removed a dead swarmletfs mount"), "{done:#?}");
        assert_eq!(mount_count_at(&point), 1, "another mount lies beneath");
        assert_eq!(fs::read(point.join("workers/w1/result.txt")).unwrap(), b"done");
        umount(&point, &[]).assert_success();
        assert_eq!(mount_count_at(&point), 0);
    }
}

/// Simulates an abort: the mount's own process removes it while the next mount probes it.
#[test]
fn mount_succeeds_when_a_dead_mount_vanishes_meanwhile() {
    needs_fuse!();
    for (number, last) in [(Signal::KILL, "died"), (Signal::CONT, "answered")] {
        let (store, sandbox) = (small_store(), MountSandbox::new());
        let point = sandbox.folder("mnt");
        let mut first = mount_in_foreground(&store.path(), &point, &sandbox.at("log"));
        signal(&first, Signal::STOP);
        let next = thread::scope(|scope| {
            let next = scope.spawn(|| mount(&store.path(), &point, &[]));
            wait_until("a lookup that waits for an answer", || a_look_waits(&point));
            rustix::mount::unmount(&point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).unwrap();
            signal(&first, number);
            next.join().unwrap()
        });
        wait_timeout(&mut first, LIMIT).expect("no hang");
        next.assert_success();
        assert_eq!(mount_count_at(&point), 1, "the first {last}");
    }
}

/// Returns true if a process of the program that probes `point` sleeps, which only the probe can
/// cause.
fn a_look_waits(point: &Path) -> bool {
    fs::read_dir("/proc").unwrap().any(|entry| {
        let process = entry.unwrap().path();
        let words = fs::read(process.join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = words.split(|b| *b == 0).collect();
        let looks =
            words.contains(&&b"alive"[..]) && words.contains(&point.as_os_str().as_encoded_bytes());
        let state = fs::read_to_string(process.join("stat")).unwrap_or_default();
        looks && state.rsplit(") ").next().is_some_and(|state| state.starts_with('S'))
    })
}

#[test]
fn umount_removes_a_dead_mount() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    for lazy in [&[][..], &["--lazy"]] {
        let mut child = mount_in_foreground(&store.path(), &point, &sandbox.at("log"));
        let held = fs::File::open(point.join("workers")).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        umount(&point, lazy).assert_success();
        assert_eq!(mount_count_at(&point), 0);
        drop(held);
    }
}

#[test]
fn hung_mount_is_reported_and_can_be_detached() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let mut child = mount_in_foreground(&store.path(), &point, &sandbox.at("log"));
    // A process waiting for a stopped server cannot be killed, so only the program's probes access
    // the mount.
    signal(&child, Signal::STOP);
    let done = mount(&store.path(), &point, &[]);
    let lazy = umount(&point, &["--lazy"]);
    let left = mount_count_at(&point);
    signal(&child, Signal::CONT);
    done.assert_failure(1, &["does not answer", point.to_str().unwrap(), "--lazy"]);
    lazy.assert_success();
    assert_eq!(left, 0);
    assert_eq!(wait_timeout(&mut child, LIMIT).expect("no hang").code(), Some(0));
}

/// The kernel reuses the device number of an ended mount at once.
#[test]
fn reused_device_number_does_not_unmount_another_mount() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let first = sandbox.folder("first");
    let mut child = mount_in_foreground(&store.path(), &first, &sandbox.at("log"));
    let number = connection_at(&first).unwrap();
    // The first mount has left the kernel's table, but its process has not noticed yet.
    signal(&child, Signal::STOP);
    rustix::mount::unmount(&first, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).unwrap();
    let others: Vec<_> = (0..8).map(|number| sandbox.folder(format!("other-{number}"))).collect();
    // Other tests mount in parallel, so any of these mounts may get the number, or none.
    let heir = others.iter().find(|other| {
        mount(&store.path(), other, &[]).assert_success();
        connection_at(other) == Some(number)
    });
    signal(&child, Signal::CONT);
    assert_eq!(wait_timeout(&mut child, LIMIT).expect("no hang").code(), Some(0));
    let Some(other) = heir else {
        eprintln!("SKIP: another mount was given the number {number}");
        return;
    };
    assert_eq!(mount_count_at(other), 1, "{other:?} was unmounted together with the first mount");
    assert_eq!(fs::read(other.join("workers/w1/result.txt")).unwrap(), b"done");
}

#[test]
fn umount_leaves_foreign_mounts_alone() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let folder = sandbox.folder("plain");
    let (plain, missing, file) =
        (folder.to_str().unwrap(), sandbox.at("missing"), sandbox.at("file"));
    fs::write(&file, "").unwrap();
    for lazy in [&[][..], &["--lazy"]] {
        umount(&folder, lazy).assert_failure(1, &[plain, "nothing is mounted"]);
        umount(&missing, lazy).assert_failure(1, &[missing.to_str().unwrap(), "does not exist"]);
        umount(&file, lazy).assert_failure(1, &[file.to_str().unwrap(), "nothing is mounted"]);
        umount("/proc".as_ref(), lazy).assert_failure(1, &["/proc", "not swarmletfs"]);
        umount("/".as_ref(), lazy).assert_failure(1, &["not swarmletfs"]);
    }
    let point = sandbox.folder("mnt");
    mount(&store.path(), &point, &[]).assert_success();
    let inside = point.join("workers/w1");
    umount(&inside, &["--lazy"]).assert_failure(
        1,
        &[inside.to_str().unwrap(), "inside the mount", point.to_str().unwrap()],
    );
    assert_eq!(mount_count_at(&point), 1);
    let (other, bound) = (sandbox.folder("other"), sandbox.folder("bound"));
    if tmpfs(&other).is_some() && bind(&folder, &bound).is_some() {
        for foreign in [&other, &bound] {
            umount(foreign, &[]).assert_failure(1, &[foreign.to_str().unwrap(), "left alone"]);
            umount(foreign, &["--lazy"]).assert_failure(1, &["left alone"]);
            assert!(super::program::mounted().iter().any(|(at, _)| at == foreign));
        }
        // The mount on top is a tmpfs, so nothing is done.
        assert!(tmpfs(&point).is_some());
        umount(&point, &["--lazy"]).assert_failure(1, &["left alone"]);
        assert_eq!(mount_count_at(&point), 1);
    }
}
