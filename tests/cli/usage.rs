//! What is typed wrongly is exit code 2, a sentence, and never a mount; what fails is exit code 1.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use serde_json::json;

use super::program::{Yard, mount, ours_at, run, servers, small_store, typed, wait_until};
use crate::needs_fuse;
use crate::support::TestStore;

#[test]
fn help_and_version_are_fine_and_go_to_stdout() {
    for arguments in
        [&["--help"][..], &["-h"], &["--version"], &["-V"], &["mount", "--help"], &["umount", "--help"], &[]]
    {
        let done = run(typed(arguments));
        done.fine();
        assert!(!done.out.is_empty() && done.err.is_empty(), "{arguments:?}: {done:#?}");
    }
    assert!(run(typed(["--version"])).out.starts_with("swarmletfs "));
}

#[test]
fn a_mistyped_command_is_a_usage_error_with_a_suggestion_and_never_a_mount() {
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    for (mistyped, meant) in
        [("mout", "'mount'"), ("mounts", "'mount'"), ("unmout", "'unmount'"), ("umout", "'umount'")]
    {
        let mut command = typed([mistyped]);
        command.arg(store.path()).arg(&point);
        run(command).refused(2, &[mistyped, meant]);
    }
    for word in ["swarm", "help", "list", "MOUNT", ""] {
        let mut command = typed([word]);
        command.arg(&point).env("SWARMLET_DATA_PATH", store.path());
        run(command).refused(2, &[]);
    }
    assert_eq!(ours_at(&point), 0);
    assert!(servers(|at| at == point).is_empty());
}

#[test]
fn what_only_the_program_types_is_suggested_to_nobody() {
    for word in ["frob", "prob", "__prob", "__probe", "trial", "__", "stores", "store"] {
        let done = run(typed([word]));
        done.refused(2, &[word]);
        let others: Vec<&str> = done.err.lines().skip(1).filter(|line| line.contains("__")).collect();
        assert!(others.is_empty(), "{done:#?}");
    }
    assert!(!run(typed(["--help"])).out.contains("__"));
}

#[test]
fn a_folder_typed_without_a_slash_is_refused_with_how_it_is_written() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    for name in [&b"m1"[..], b"a b", b"\x1b[31m\n"] {
        let point = yard.folder(name);
        let mut command = typed([OsStr::from_bytes(name)]);
        command.current_dir(yard.path());
        let done = run(command);
        let tip = done.refused(2, &["`swarmletfs "]).err.split('`').nth(1).unwrap().to_owned();
        assert_eq!(ours_at(&point), 0);
        let tip = tip.replace("swarmletfs", crate::support::mount::PROGRAM);
        let mut command = super::program::plain("bash", ["-c", &tip]);
        command.current_dir(yard.path()).env("SWARMLET_DATA_PATH", store.path());
        run(command).fine();
        assert_eq!(ours_at(&point), 1);
    }
    fs::write(yard.at("file"), "").unwrap();
    for word in ["file", "missing", "mout"] {
        let mut command = typed([word]);
        command.current_dir(yard.path());
        let done = run(command);
        assert!(!done.refused(2, &[word]).err.contains("./"), "{done:#?}");
    }
}

#[test]
fn what_is_typed_wrongly_is_named_and_mounts_nothing() {
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    let cases: [(&[&str], &str); 41] = [
        (&["--no-such"], "--no-such"),
        (&["--ownr", "7"], "--ownr"),
        (&["-x"], "-x"),
        (&["--budget", "4K"], "4K"),
        (&["--budget", "65M"], "65M"),
        (&["--budget", ""], "--budget"),
        (&["--budget", "-1"], "-1"),
        (&["--budget", "1.5k"], "1.5k"),
        (&["--budget", "99999999999999999999"], "99999999999999999999"),
        (&["--budget"], "--budget"),
        (&["--ttl", "soon"], "soon"),
        (&["--ttl", "-1"], "-1"),
        (&["--ttl", "1.5"], "1.5"),
        (&["--ttl", "4294967296"], "4294967296"),
        (&["--ttl", ""], "--ttl"),
        (&["--owner", "7", "--all-owners"], "--all-owners"),
        (&["--owner", "7", "-o", "all_owners"], "all_owners"),
        (&["--owner", "7", "-o", "owner=8"], "owner"),
        (&["--owner", "7", "--owner", "8"], "--owner"),
        (&["--owner", ""], "--owner"),
        (&["--run", ""], "--run"),
        (&["--allow-other"], "--owner"),
        (&["-o", "allow_other"], "--owner"),
        (&["--allow-other", "--run", "48"], "--owner"),
        (&["-o", "colour=red"], "colour=red"),
        (&["-o", "ownr=7"], "ownr=7"),
        (&["-o", "owner"], "owner"),
        (&["-o", "owner="], "owner="),
        (&["-o", "suid"], "suid"),
        (&["-o", "dev"], "dev"),
        (&["-o", "ttl=soon"], "ttl=soon"),
        (&["-o", "budget=4K"], "budget=4K"),
        (&["-o", "ttl=1,ttl=2"], "ttl"),
        (&["-o", "store="], "store="),
        (&["-o", "foreground=1"], "foreground=1"),
        (&["-o"], "-o"),
        (&["--log"], "--log"),
        (&["--run", "1", "-o", "run=2"], "run"),
        (&["--foreground=yes"], "--foreground"),
        (&["", ""], ""),
        (&["/a", "/b"], ""),
    ];
    for (arguments, named) in cases {
        let mut command = typed(["mount", "--store"]);
        command.arg(store.path()).arg(&point).args(arguments);
        run(command).refused(2, &[named]);
    }
    let mut command = typed(["mount", "--store"]);
    command.arg(store.path()).arg("/other").arg(&point);
    run(command).refused(2, &["/other", "--store"]);
    let mut command = typed(["mount", "--store"]);
    command.arg(store.path()).arg(&point).env("SWARMLETFS_LOG", "verbose");
    run(command).refused(2, &["SWARMLETFS_LOG", "verbose"]);
    let mut command = typed(["mount", "--budget"]);
    command.arg(OsStr::from_bytes(b"\xff")).arg(&point);
    run(command).refused(2, &["--budget"]);
    run(typed(["umount", "/a", "/b"])).refused(2, &["/b"]);
    assert_eq!(ours_at(&point), 0);
    assert!(servers(|at| at == point).is_empty());
}

#[test]
fn a_mountpoint_that_is_not_said_is_that_of_the_user_and_root_has_none() {
    let store = small_store();
    if !super::program::is_root() {
        return;
    }
    for command in [&["mount"][..], &["mount", "--owner", "7"], &["umount"]] {
        let mut command = typed(command);
        command.env("SWARMLET_DATA_PATH", store.path()).env("XDG_RUNTIME_DIR", "/tmp");
        run(command).refused(2, &["root", "MOUNTPOINT"]);
    }
}

#[test]
fn a_store_that_is_none_is_refused_with_the_cause_and_the_cure() {
    needs_fuse!();
    let yard = Yard::new();
    let point = yard.folder("mnt");
    let refused = |store: &std::path::Path, named: &[&str]| {
        let done = mount(store, &point, &[]);
        done.refused(1, named);
        assert_eq!(ours_at(&point), 0);
        wait_until("the end of the server", || servers(|at| at == point).is_empty());
    };
    let missing = yard.at("missing");
    refused(&missing, &[missing.to_str().unwrap(), "no such", "--store"]);
    let file = yard.at("file");
    fs::write(&file, "").unwrap();
    refused(&file, &[file.to_str().unwrap(), "not a folder"]);
    let pipe = yard.at("pipe");
    crate::hostile::make_fifo(&pipe);
    refused(&pipe, &[pipe.to_str().unwrap(), "not a folder"]);
    let papers = yard.folder("papers/letters");
    fs::write(papers.join("a.txt"), "").unwrap();
    let papers = yard.at("papers");
    refused(&papers, &[papers.to_str().unwrap(), "no workers"]);
    let store = small_store();
    let linked = yard.folder("linked");
    std::os::unix::fs::symlink(store.at("workers"), linked.join("workers")).unwrap();
    refused(&linked, &[linked.to_str().unwrap(), "no workers", "links are not followed: workers"]);
    let worker = store.at("workers/w1");
    refused(&worker, &[worker.to_str().unwrap(), "is one worker", store.at("workers").to_str().unwrap()]);
}

#[test]
fn an_empty_store_is_a_swarm_that_has_not_begun() {
    needs_fuse!();
    let (store, yard) = (TestStore::new(), Yard::new());
    let point = yard.folder("mnt");
    let done = mount(&store.path(), &point, &[]);
    done.fine();
    assert!(done.err.contains("0 workers"), "{done:#?}");
    store.worker("w1", json!({}));
    wait_until("the first worker", || point.join("workers/w1").exists());
}

#[test]
fn a_log_in_the_store_beneath_the_mount_or_nowhere_is_refused() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    for log in [store.at("log"), store.at("workers/w1/log"), point.join("log"), yard.at("missing/log"), yard.path()] {
        let done = mount(&store.path(), &point, &["--log", log.to_str().unwrap()]);
        done.refused(1, &[log.to_str().unwrap()]);
        assert!(!log.is_file(), "{log:?}");
        assert_eq!(ours_at(&point), 0);
    }
}

#[test]
fn an_owner_or_run_of_nothing_is_an_empty_view_and_no_error() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    for (name, options) in [("a", ["--owner", "../7"]), ("b", ["--run", "*"])] {
        let point = yard.folder(name);
        let done = mount(&store.path(), &point, &options);
        done.fine();
        assert!(done.err.contains("0 workers"), "{done:#?}");
        assert!(!point.join("workers/w1").exists());
    }
}
