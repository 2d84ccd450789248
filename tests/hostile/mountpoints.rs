//! R24: odd mountpoints are served, or refused with a message that names them. They never hang.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::cli::program::{
    LIMIT, MountSandbox, bind, mount, mount_count_at, mount_in_foreground, run, servers,
    small_store, swarmletfs, tmpfs, umount, wait_timeout, wait_until, with_log,
};
use crate::needs_fuse;
use crate::support::TestStore;

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[track_caller]
fn check_nothing_serves(point: &Path) {
    assert_eq!(mount_count_at(point), 0);
    // A process may outlive its mount for a moment.
    wait_until("the end of the server", || servers(|at| at == point).is_empty());
}

/// Promise: A mountpoint inside the store is refused.
#[test]
fn mountpoint_inside_the_store_is_refused() {
    needs_fuse!();
    let store = small_store();
    for inside in ["mnt", "workers/mnt", "workers/w1/mnt", "workers/w1/outputs/a/b"] {
        let point = store.at(inside);
        fs::create_dir_all(&point).unwrap();
        mount(&store.path(), &point, &[])
            .assert_failure(1, &[shown(&point), "inside the store", shown(&store.path())]);
        check_nothing_serves(&point);
        fs::remove_dir(point).unwrap();
    }
}

/// Promise: A swarmletfs mount is refused as a store.
#[test]
fn swarmletfs_mount_is_refused_as_a_store() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (first, second) = (sandbox.folder("mnt"), sandbox.folder("second"));
    mount(&store.path(), &first, &[]).assert_success();
    let refusal = "a swarmletfs mount; give the store behind it";
    for folder in
        [first.clone(), first.join("workers"), first.join("workers/w1"), first.join("grep")]
    {
        let refusal = format!("cannot use {} as a store: it is {refusal}", shown(&folder));
        mount(&folder, &second, &[]).assert_failure(1, &[&refusal]);
        check_nothing_serves(&second);
        let mut command = swarmletfs(["ls", "--store"]);
        command.arg(&folder);
        assert!(run(command).err.contains(&refusal));
    }
    // If no store is named, the mount is skipped and reported.
    let mut command = swarmletfs(["ls"]);
    command.current_dir(first.join("workers"));
    let done = run(command);
    assert!(!done.err.contains(&format!("the store is {}", shown(&first))), "{done:#?}");
    assert!(
        done.err.contains(&format!("{} was skipped: it is a swarmletfs mount", shown(&first))),
        "{done:#?}"
    );
    umount(&first, &[]).assert_success();
    // Control.
    mount(&store.path(), &second, &[]).assert_success();
    umount(&second, &[]).assert_success();
}

#[test]
fn the_store_itself_is_refused_as_a_mountpoint() {
    needs_fuse!();
    let store = small_store();
    mount(&store.path(), &store.path(), &[])
        .assert_failure(1, &[shown(&store.path()), "the store itself"]);
    let empty = TestStore::new();
    mount(&empty.path(), &empty.path(), &[])
        .assert_failure(1, &[shown(&empty.path()), "the store itself"]);
    check_nothing_serves(&store.path());
    check_nothing_serves(&empty.path());
}

#[test]
fn a_mountpoint_that_holds_the_store_is_refused() {
    needs_fuse!();
    let store = small_store();
    let above = store.path().parent().unwrap().to_path_buf();
    mount(&store.path(), &above, &[])
        .assert_failure(1, &[shown(&above), shown(&store.path()), "hidden"]);
    mount(&store.path(), Path::new("/"), &[]).assert_failure(1, &["hidden"]);
    check_nothing_serves(&above);
}

#[test]
fn the_root_directory_is_refused_as_a_store() {
    needs_fuse!();
    let sandbox = MountSandbox::new();
    let point = sandbox.folder("mnt");
    mount(Path::new("/"), &point, &[]).assert_failure(1, &[shown(&point), "inside the store /"]);
    mount(Path::new("/proc/self/root"), &point, &[])
        .assert_failure(1, &[shown(&point), "inside the store"]);
    check_nothing_serves(&point);
}

#[test]
fn links_to_and_into_the_store_are_resolved() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let inside = store.at("workers/mnt");
    fs::create_dir(&inside).unwrap();
    symlink(store.path(), sandbox.at("store")).unwrap();
    symlink(&inside, sandbox.at("point")).unwrap();
    for (from, at) in [
        (sandbox.at("store"), inside.clone()),
        (sandbox.at("store"), sandbox.at("point")),
        (store.path(), sandbox.at("point")),
        (store.path(), sandbox.at("store/workers/mnt")),
        (store.path(), sandbox.at("../").join(sandbox.path()).join("store/workers/../workers/mnt")),
    ] {
        mount(&from, &at, &[]).assert_failure(1, &[shown(&inside), "inside the store"]);
    }
    check_nothing_serves(&inside);
    // A link to a good mountpoint works like the mountpoint.
    let point = sandbox.folder("mnt");
    symlink(&point, sandbox.at("link")).unwrap();
    mount(&sandbox.at("store"), &sandbox.at("link"), &[]).assert_success();
    assert_eq!(mount_count_at(&point), 1);
    umount(&sandbox.at("link"), &[]).assert_success();
    check_nothing_serves(&point);
}

#[test]
fn bind_mounts_of_the_store_are_recognized_and_served() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    fs::create_dir(store.at("workers/mnt")).unwrap();
    let (whole, part) = (sandbox.folder("whole"), sandbox.folder("part"));
    if bind(&store.path(), &whole).is_none() || bind(&store.at("workers"), &part).is_none() {
        return;
    }
    for point in [whole.join("workers/mnt"), part.join("mnt")] {
        mount(&store.path(), &point, &[]).assert_failure(1, &[shown(&point), "inside the store"]);
    }
    mount(&whole, &store.at("workers/mnt"), &[]).assert_failure(1, &["inside the store"]);
    mount(&whole, &store.path(), &[]).assert_failure(1, &["the store itself"]);
    // A bind mount as a store, and a store with a part bound elsewhere, are ordinary stores.
    let point = sandbox.folder("mnt");
    mount(&whole, &point, &[]).assert_success();
    assert_eq!(fs::read(point.join("workers/w1/result.txt")).unwrap(), b"done");
    umount(&point, &[]).assert_success();
}

#[test]
fn mountpoints_with_odd_names_are_served_and_unmounted_by_name() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let names: [&[u8]; 14] = [
        b"a,b",
        b"a b",
        b"a\nb",
        b"a\\b",
        b"a\\040b",
        b"a#b",
        b"\xff\xfe",
        b"-rf",
        b" ",
        b"'\"$(x)`",
        b"\x1b[31m",
        "\u{202e}gnp".as_bytes(),
        b"ro,allow_other",
        b"a\tb:c=d",
    ];
    for name in names {
        let point = sandbox.folder(name);
        let done = mount(&store.path(), &point, &[]);
        done.assert_success();
        assert!(done.err.contains("mounted on"), "{done:#?}");
        assert_eq!(mount_count_at(&point), 1, "{}", name.escape_ascii());
        assert_eq!(fs::read(point.join("workers/w1/result.txt")).unwrap(), b"done");
        mount(&store.path(), &point, &[]).assert_failure(1, &["already mounted"]);
        // The printed unmount command works when pasted into a shell.
        let command = done.err.split('`').nth(1).filter(|_| !name.contains(&b'`'));
        if let Some(arguments) = command.and_then(|command| command.strip_prefix("swarmletfs ")) {
            let program = crate::support::mount::PROGRAM;
            run(crate::cli::program::program("bash", ["-c", &format!("{program} {arguments}")]))
                .assert_success();
        } else {
            umount(&point, &[]).assert_success();
        }
        assert_eq!(mount_count_at(&point), 0, "{}", name.escape_ascii());
    }
}

#[test]
fn a_relative_mountpoint_is_accepted() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let mut command = with_log(swarmletfs(["mount"]), &point);
    command.arg("--store").arg(store.path()).arg("mnt").current_dir(sandbox.path());
    run(command).assert_success();
    assert_eq!(mount_count_at(&point), 1);
    let mut command = swarmletfs(["umount", "./mnt/../mnt/"]);
    command.current_dir(sandbox.path());
    run(command).assert_success();
    check_nothing_serves(&point);
}

/// Promise: A second mount at the same mountpoint is refused, and at another is served.
#[test]
fn second_mount_needs_another_mountpoint() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (first, second) = (sandbox.folder("first"), sandbox.folder("second"));
    mount(&store.path(), &first, &[]).assert_success();
    mount(&store.path(), &first, &[]).assert_failure(1, &["already mounted", shown(&first)]);
    mount(&store.path(), &second, &[]).assert_success();
    assert_eq!((mount_count_at(&first), mount_count_at(&second)), (1, 1));
    umount(&first, &[]).assert_success();
    assert_eq!(fs::read(second.join("workers/w1/result.txt")).unwrap(), b"done");
    umount(&second, &[]).assert_success();
}

#[test]
fn one_of_two_concurrent_mounts_on_one_mountpoint_wins() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let start = |name: &str| {
        let mut command = with_log(swarmletfs(["mount"]), &point);
        command
            .arg("--store")
            .arg(store.path())
            .arg(&point)
            .stderr(fs::File::create(sandbox.at(name)).unwrap());
        command.spawn().unwrap()
    };
    let mut both = [start("a.err"), start("b.err")];
    let mut codes =
        both.each_mut().map(|child| wait_timeout(child, LIMIT).expect("no hang").code());
    codes.sort_unstable();
    assert_eq!(codes, [Some(0), Some(1)]);
    assert_eq!(mount_count_at(&point), 1);
    assert!(point.join("README.md").exists());
}

/// Promise: A mount that is in use is removed only with the option for it.
#[test]
fn mount_in_use_is_removed_only_on_request() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    mount(&store.path(), &point, &[]).assert_success();
    let mut open = fs::File::open(point.join("workers/w1/result.txt")).unwrap();
    umount(&point, &[]).assert_failure(1, &["in use", shown(&point), "--lazy"]);
    assert_eq!(mount_count_at(&point), 1);
    umount(&point, &["--lazy"]).assert_success();
    assert_eq!(mount_count_at(&point), 0);
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "done", "who has it open may finish");
    drop(open);
    wait_until("the end of the server", || servers(|at| at == point).is_empty());
}

#[test]
fn a_missing_nonempty_or_non_folder_mountpoint_is_refused_by_name() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let missing = sandbox.at("missing/one");
    mount(&store.path(), &missing, &[])
        .assert_failure(1, &[shown(&missing), "does not exist", "mkdir -p"]);
    let full = sandbox.folder("full");
    fs::write(full.join("occupant"), "").unwrap();
    mount(&store.path(), &full, &[]).assert_failure(1, &[shown(&full), "not empty", "occupant"]);
    let file = sandbox.at("file");
    fs::write(&file, "").unwrap();
    mount(&store.path(), &file, &[]).assert_failure(1, &[shown(&file), "not a folder"]);
    let below = file.join("x");
    mount(&store.path(), &below, &[]).assert_failure(1, &[shown(&below)]);
    let pipe = sandbox.at("pipe");
    super::make_fifo(&pipe);
    mount(&store.path(), &pipe, &[]).assert_failure(1, &[shown(&pipe), "not a folder"]);
    symlink("loop", sandbox.at("loop")).unwrap();
    mount(&store.path(), &sandbox.at("loop"), &[]).assert_failure(1, &[shown(&sandbox.at("loop"))]);
    let long = sandbox.at("n".repeat(300));
    mount(&store.path(), &long, &[]).assert_failure(1, &[shown(&long)]);
    for path in [&missing, &full, &file, &pipe] {
        check_nothing_serves(path);
    }
}

#[test]
fn an_empty_mount_of_another_kind_is_mounted_over_and_survives() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    if tmpfs(&point).is_none() {
        return;
    }
    mount(&store.path(), &point, &[]).assert_success();
    umount(&point, &[]).assert_success();
    assert!(
        crate::cli::program::mounted().iter().any(|(at, kind)| *at == point && kind == "tmpfs")
    );
    umount(&point, &[]).assert_failure(1, &[shown(&point), "not swarmletfs", "tmpfs"]);
}

#[test]
fn mounting_inside_a_swarmletfs_mount_never_hangs() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    fs::create_dir(store.at("workers/w1/empty")).unwrap();
    let point = sandbox.folder("mnt");
    mount(&store.path(), &point, &[]).assert_success();
    let inner = point.join("workers/w1/empty");
    let done = mount(&store.path(), &inner, &[]);
    if done.code == Some(0) {
        assert_eq!(fs::read(inner.join("workers/w1/result.txt")).unwrap(), b"done");
        umount(&inner, &[]).assert_success();
    } else {
        done.assert_failure(1, &[shown(&inner)]);
    }
    // Use the mount as a store of its own mountpoint.
    mount(&point, &inner, &[]).assert_failure(1, &[shown(&inner), "inside the store"]);
    umount(&point, &[]).assert_success();
}

/// For a second the kernel answers from its cache for a file system that hangs, so a stat does not
/// reveal the hang.
#[test]
fn a_hanging_store_is_refused_even_while_the_kernel_caches_it() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (hung, point) = (sandbox.folder("hung"), sandbox.folder("mnt"));
    let mut child = mount_in_foreground(&store.path(), &hung, &sandbox.at("log"));
    assert!(fs::metadata(hung.join("workers")).is_ok());
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::STOP,
    )
    .unwrap();
    let done = mount(&hung, &point, &[]);
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::CONT,
    )
    .unwrap();
    done.assert_failure(1, &[shown(&hung), "did not answer within 5 seconds"]);
    check_nothing_serves(&point);
    umount(&hung, &[]).assert_success();
    assert!(wait_timeout(&mut child, LIMIT).expect("no hang").success());
}
