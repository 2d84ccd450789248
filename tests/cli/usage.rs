//! Usage errors have exit code 2 and never mount; failures have exit code 1.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use serde_json::json;

use super::program::{
    MountSandbox, mount, mount_count_at, run, servers, small_store, swarmletfs, wait_until,
};
use crate::needs_fuse;
use crate::support::TestStore;

#[test]
fn help_and_version_succeed_on_stdout() {
    for arguments in [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["-V"],
        &["mount", "--help"],
        &["umount", "--help"],
        &[],
    ] {
        let done = run(swarmletfs(arguments));
        done.assert_success();
        assert!(!done.out.is_empty() && done.err.is_empty(), "{arguments:?}: {done:#?}");
    }
    assert!(run(swarmletfs(["--version"])).out.starts_with("swarmletfs "));
}

#[test]
fn mistyped_command_suggests_a_correction_and_never_mounts() {
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    for (mistyped, meant) in
        [("mout", "'mount'"), ("mounts", "'mount'"), ("unmout", "'unmount'"), ("umout", "'umount'")]
    {
        let mut command = swarmletfs([mistyped]);
        command.arg(store.path()).arg(&point);
        run(command).assert_failure(2, &[mistyped, meant]);
    }
    for word in ["swarm", "help", "list", "MOUNT", ""] {
        let mut command = swarmletfs([word]);
        command.arg(&point).env("SWARMLET_DATA_PATH", store.path());
        run(command).assert_failure(2, &[]);
    }
    assert_eq!(mount_count_at(&point), 0);
    assert!(servers(|at| at == point).is_empty());
}

#[test]
fn internal_commands_are_never_suggested() {
    for word in ["frob", "prob", "__prob", "__probe", "trial", "__", "stores", "store"] {
        let done = run(swarmletfs([word]));
        done.assert_failure(2, &[word]);
        let others: Vec<&str> =
            done.err.lines().skip(1).filter(|line| line.contains("__")).collect();
        assert!(others.is_empty(), "{done:#?}");
    }
    assert!(!run(swarmletfs(["--help"])).out.contains("__"));
}

#[test]
fn folder_without_a_slash_is_rejected_with_a_hint() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    for name in [&b"m1"[..], b"a b", b"\x1b[31m\n"] {
        let point = sandbox.folder(name);
        let mut command = swarmletfs([OsStr::from_bytes(name)]);
        command.current_dir(sandbox.path());
        let done = run(command);
        let tip =
            done.assert_failure(2, &["`swarmletfs "]).err.split('`').nth(1).unwrap().to_owned();
        assert_eq!(mount_count_at(&point), 0);
        let tip = tip.replace("swarmletfs", crate::support::mount::PROGRAM);
        let mut command = super::program::program("bash", ["-c", &tip]);
        command.current_dir(sandbox.path()).env("SWARMLET_DATA_PATH", store.path());
        run(command).assert_success();
        assert_eq!(mount_count_at(&point), 1);
    }
    fs::write(sandbox.at("file"), "").unwrap();
    for word in ["file", "missing", "mout"] {
        let mut command = swarmletfs([word]);
        command.current_dir(sandbox.path());
        let done = run(command);
        assert!(!done.assert_failure(2, &[word]).err.contains("./"), "{done:#?}");
    }
}

#[test]
fn invalid_mount_arguments_are_named_and_nothing_is_mounted() {
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let cases: [(&[&str], &str); 41] = [
        (&["--no-such"], "--no-such"),
        (&["--ownr", "7"], "--ownr"),
        (&["-x"], "-x"),
        (&["--budget", "4Q"], "4Q"),
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
        (&["-o", "budget=4Q"], "budget=4Q"),
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
        let mut command = swarmletfs(["mount", "--store"]);
        command.arg(store.path()).arg(&point).args(arguments);
        run(command).assert_failure(2, &[named]);
    }
    let mut command = swarmletfs(["mount", "--store"]);
    command.arg(store.path()).arg("/other").arg(&point);
    run(command).assert_failure(2, &["/other", "--store"]);
    let mut command = swarmletfs(["mount", "--store"]);
    command.arg(store.path()).arg(&point).env("SWARMLETFS_LOG", "verbose");
    run(command).assert_failure(2, &["SWARMLETFS_LOG", "verbose"]);
    let mut command = swarmletfs(["mount", "--budget"]);
    command.arg(OsStr::from_bytes(b"\xff")).arg(&point);
    run(command).assert_failure(2, &["--budget"]);
    run(swarmletfs(["umount", "/a", "/b"])).assert_failure(2, &["/b"]);
    assert_eq!(mount_count_at(&point), 0);
    assert!(servers(|at| at == point).is_empty());
}

#[test]
fn root_has_no_default_mountpoint() {
    let store = small_store();
    if !super::program::is_root() {
        return;
    }
    for command in [&["mount"][..], &["mount", "--owner", "7"], &["umount"]] {
        let mut command = swarmletfs(command);
        command.env("SWARMLET_DATA_PATH", store.path()).env("XDG_RUNTIME_DIR", "/tmp");
        run(command).assert_failure(2, &["root", "MOUNTPOINT"]);
    }
}

#[test]
fn store_without_a_mountpoint_is_refused_with_both_forms() {
    let (store, other) = (small_store(), small_store());
    let path = store.path();
    for variable in [None, Some(other.path())] {
        for words in [&["mount"][..], &[]] {
            let mut command = swarmletfs(words);
            command.arg(&path);
            command.envs(variable.as_ref().map(|path| ("SWARMLET_STORE", path)));
            let done = run(command);
            let forms = [
                format!("`swarmletfs mount {} MOUNTPOINT`", path.display()),
                format!("`swarmletfs mount --store {}`", path.display()),
            ];
            done.assert_failure(2, &["no mountpoint is given", &forms[0], &forms[1]]);
        }
    }
    assert_eq!(mount_count_at(&path), 0);
}

#[test]
fn mount_rejects_an_invalid_store_with_cause_and_remedy() {
    needs_fuse!();
    let sandbox = MountSandbox::new();
    let point = sandbox.folder("mnt");
    let refused = |store: &std::path::Path, named: &[&str]| {
        let done = mount(store, &point, &[]);
        done.assert_failure(1, named);
        assert_eq!(mount_count_at(&point), 0);
        wait_until("the end of the server", || servers(|at| at == point).is_empty());
    };
    let missing = sandbox.at("missing");
    refused(&missing, &[missing.to_str().unwrap(), "no such", "--store"]);
    let file = sandbox.at("file");
    fs::write(&file, "").unwrap();
    refused(&file, &[file.to_str().unwrap(), "it is a file; expected a transcript of"]);
    let pipe = sandbox.at("pipe");
    crate::hostile::make_fifo(&pipe);
    refused(&pipe, &[pipe.to_str().unwrap(), "neither a folder nor a regular file"]);
    let papers = sandbox.folder("papers/letters");
    fs::write(papers.join("a.txt"), "").unwrap();
    let papers = sandbox.at("papers");
    refused(&papers, &[papers.to_str().unwrap(), "no workers"]);
    let store = small_store();
    let linked = sandbox.folder("linked");
    std::os::unix::fs::symlink(store.at("workers"), linked.join("workers")).unwrap();
    refused(&linked, &[linked.to_str().unwrap(), "no workers", "links are not followed: workers"]);
    let worker = store.at("workers/w1");
    refused(
        &worker,
        &[worker.to_str().unwrap(), "is one worker", store.at("workers").to_str().unwrap()],
    );
}

#[test]
fn mount_accepts_an_empty_store() {
    needs_fuse!();
    let (store, sandbox) = (TestStore::new(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let done = mount(&store.path(), &point, &[]);
    done.assert_success();
    assert!(done.err.contains("0 workers"), "{done:#?}");
    store.worker("w1", json!({}));
    wait_until("the first worker", || point.join("workers/w1").exists());
}

#[test]
fn log_inside_the_store_or_mount_is_rejected() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    for log in [
        store.at("log"),
        store.at("workers/w1/log"),
        point.join("log"),
        sandbox.at("missing/log"),
        sandbox.path(),
    ] {
        let done = mount(&store.path(), &point, &["--log", log.to_str().unwrap()]);
        done.assert_failure(1, &[log.to_str().unwrap()]);
        assert!(!log.is_file(), "{log:?}");
        assert_eq!(mount_count_at(&point), 0);
    }
}

#[test]
fn unknown_owner_or_run_gives_an_empty_view() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    for (name, options) in [("a", ["--owner", "../7"]), ("b", ["--run", "*"])] {
        let point = sandbox.folder(name);
        let done = mount(&store.path(), &point, &options);
        done.assert_success();
        assert!(done.err.contains("0 workers"), "{done:#?}");
        assert!(!point.join("workers/w1").exists());
    }
}
