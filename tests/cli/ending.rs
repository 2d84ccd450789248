//! How a mount ends: by umount, by a signal, by the death of its process; and that nothing else is ever ended.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::thread;

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};

use super::program::{
    LIMIT, Yard, bind, ended, in_foreground, mount, ours_at, run, servers, small_store, tmpfs, typed, umount,
    wait_until,
};
use crate::needs_fuse;
use crate::support::mount::connection_at;

fn signal(child: &std::process::Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn signals_unmount_in_the_foreground() {
    needs_fuse!();
    for number in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (store, yard) = (small_store(), Yard::new());
        let point = yard.folder("mnt");
        let mut child = in_foreground(&store.path(), &point, &yard.at("log"));
        assert_eq!(ours_at(&point), 1);
        signal(&child, number);
        let status = ended(&mut child, LIMIT).expect("no hang");
        assert_eq!(status.code(), Some(0), "{number:?}: {}", fs::read_to_string(yard.at("log")).unwrap());
        assert_eq!(ours_at(&point), 0, "{number:?}");
    }
}

#[test]
fn signals_unmount_in_the_background_but_a_hangup_does_not() {
    needs_fuse!();
    for number in [Signal::TERM, Signal::INT] {
        let (store, yard) = (small_store(), Yard::new());
        let point = yard.folder("mnt");
        mount(&store.path(), &point, &[]).fine();
        let [pid] = servers(|at| at == point)[..] else { panic!("one server") };
        kill_process(pid, Signal::HUP).unwrap();
        assert_eq!(fs::read(point.join("workers/w1/result.txt")).unwrap(), b"done");
        kill_process(pid, number).unwrap();
        wait_until("the end of the server", || servers(|at| at == point).is_empty());
        assert_eq!(ours_at(&point), 0, "{number:?}");
    }
}

#[test]
fn a_signal_ends_even_a_mount_in_use() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    let mut child = in_foreground(&store.path(), &point, &yard.at("log"));
    let mut open = fs::File::open(point.join("workers/w1/result.txt")).unwrap();
    signal(&child, Signal::TERM);
    let status = ended(&mut child, LIMIT).expect("no hang");
    assert_eq!(status.code(), Some(0));
    assert_eq!(ours_at(&point), 0);
    // Whoever had it open gets bytes or an error, and no hang.
    let _ = open.read(&mut [0; 16]);
}

#[test]
fn umount_ends_the_foreground_too() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    let mut child = in_foreground(&store.path(), &point, &yard.at("log"));
    run(typed(["unmount".as_ref(), point.as_os_str()])).fine();
    assert_eq!(ended(&mut child, LIMIT).expect("no hang").code(), Some(0));
}

#[test]
fn a_mount_whose_process_was_killed_is_cleared_by_the_next_one() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    for _ in 0..2 {
        let mut child = in_foreground(&store.path(), &point, &yard.at("log"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(ours_at(&point), 1, "a dead mount is left");
        let error = fs::metadata(&point).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
        let done = mount(&store.path(), &point, &[]);
        done.fine();
        assert!(done.err.contains("removed a dead swarmletfs mount"), "{done:#?}");
        assert_eq!(ours_at(&point), 1, "and no other lies beneath");
        assert_eq!(fs::read(point.join("workers/w1/result.txt")).unwrap(), b"done");
        umount(&point, &[]).fine();
        assert_eq!(ours_at(&point), 0);
    }
}

/// As after an abort, when the mount's own process clears it while the next one looks at it.
#[test]
fn a_mount_that_goes_while_it_is_looked_at_is_in_nobodys_way() {
    needs_fuse!();
    for (number, last) in [(Signal::KILL, "died"), (Signal::CONT, "answered")] {
        let (store, yard) = (small_store(), Yard::new());
        let point = yard.folder("mnt");
        let mut first = in_foreground(&store.path(), &point, &yard.at("log"));
        signal(&first, Signal::STOP);
        let next = thread::scope(|scope| {
            let next = scope.spawn(|| mount(&store.path(), &point, &[]));
            wait_until("a look that waits for an answer", || a_look_waits(&point));
            rustix::mount::unmount(&point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).unwrap();
            signal(&first, number);
            next.join().unwrap()
        });
        ended(&mut first, LIMIT).expect("no hang");
        next.fine();
        assert_eq!(ours_at(&point), 1, "the first {last}");
    }
}

/// Whether a process of the program that looks at `point` sleeps, which it has no other reason for.
fn a_look_waits(point: &Path) -> bool {
    fs::read_dir("/proc").unwrap().any(|entry| {
        let process = entry.unwrap().path();
        let words = fs::read(process.join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = words.split(|b| *b == 0).collect();
        let looks = words.contains(&&b"alive"[..]) && words.contains(&point.as_os_str().as_encoded_bytes());
        let state = fs::read_to_string(process.join("stat")).unwrap_or_default();
        looks && state.rsplit(") ").next().is_some_and(|state| state.starts_with('S'))
    })
}

#[test]
fn umount_clears_a_dead_mount() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    for lazy in [&[][..], &["--lazy"]] {
        let mut child = in_foreground(&store.path(), &point, &yard.at("log"));
        let held = fs::File::open(point.join("workers")).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        umount(&point, lazy).fine();
        assert_eq!(ours_at(&point), 0);
        drop(held);
    }
}

#[test]
fn a_mount_that_does_not_answer_is_said_to_and_can_be_taken_away() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    let mut child = in_foreground(&store.path(), &point, &yard.at("log"));
    // Whoever waits for a stopped server cannot be ended: nothing here touches the mount but the program's own looks.
    signal(&child, Signal::STOP);
    let done = mount(&store.path(), &point, &[]);
    let lazy = umount(&point, &["--lazy"]);
    let left = ours_at(&point);
    signal(&child, Signal::CONT);
    done.refused(1, &["does not answer", point.to_str().unwrap(), "--lazy"]);
    lazy.fine();
    assert_eq!(left, 0);
    assert_eq!(ended(&mut child, LIMIT).expect("no hang").code(), Some(0));
}

/// The number of a mount that is gone is given to the next one at once, whoever mounts it.
#[test]
fn the_end_of_one_mount_takes_no_other_down_that_was_given_its_number() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let first = yard.folder("first");
    let mut child = in_foreground(&store.path(), &first, &yard.at("log"));
    let number = connection_at(&first).unwrap();
    // The first is gone from the kernel's table, but does not know it yet.
    signal(&child, Signal::STOP);
    rustix::mount::unmount(&first, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).unwrap();
    let others: Vec<_> = (0..8).map(|number| yard.folder(format!("other-{number}"))).collect();
    // Other tests mount at the same time, so it may be any of these that is given the number, or none.
    let heir = others.iter().find(|other| {
        mount(&store.path(), other, &[]).fine();
        connection_at(other) == Some(number)
    });
    signal(&child, Signal::CONT);
    assert_eq!(ended(&mut child, LIMIT).expect("no hang").code(), Some(0));
    let Some(other) = heir else {
        eprintln!("SKIP: another mount was given the number {number}");
        return;
    };
    assert_eq!(ours_at(other), 1, "{other:?} was taken down with the first");
    assert_eq!(fs::read(other.join("workers/w1/result.txt")).unwrap(), b"done");
}

#[test]
fn umount_leaves_alone_what_is_not_ours() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let folder = yard.folder("plain");
    let (plain, missing, file) = (folder.to_str().unwrap(), yard.at("missing"), yard.at("file"));
    fs::write(&file, "").unwrap();
    for lazy in [&[][..], &["--lazy"]] {
        umount(&folder, lazy).refused(1, &[plain, "nothing is mounted"]);
        umount(&missing, lazy).refused(1, &[missing.to_str().unwrap(), "does not exist"]);
        umount(&file, lazy).refused(1, &[file.to_str().unwrap(), "nothing is mounted"]);
        umount("/proc".as_ref(), lazy).refused(1, &["/proc", "not swarmletfs"]);
        umount("/".as_ref(), lazy).refused(1, &["not swarmletfs"]);
    }
    let point = yard.folder("mnt");
    mount(&store.path(), &point, &[]).fine();
    let inside = point.join("workers/w1");
    umount(&inside, &["--lazy"]).refused(1, &[inside.to_str().unwrap(), "inside the mount", point.to_str().unwrap()]);
    assert_eq!(ours_at(&point), 1);
    let (other, bound) = (yard.folder("other"), yard.folder("bound"));
    if tmpfs(&other).is_some() && bind(&folder, &bound).is_some() {
        for foreign in [&other, &bound] {
            umount(foreign, &[]).refused(1, &[foreign.to_str().unwrap(), "left alone"]);
            umount(foreign, &["--lazy"]).refused(1, &["left alone"]);
            assert!(super::program::mounted().iter().any(|(at, _)| at == foreign));
        }
        // Ours is beneath: what is on top is not ours, so nothing is done.
        assert!(tmpfs(&point).is_some());
        umount(&point, &["--lazy"]).refused(1, &["left alone"]);
        assert_eq!(ours_at(&point), 1);
    }
}
