//! Machines without FUSE or with unreadable stores: a message with a remedy, exit code 1, and no
//! mount.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::program::{
    CommandOutput, MountSandbox, is_root, make_accessible, program, run, small_store,
    without_privileges,
};
use crate::support::mount::PROGRAM;
use crate::support::skip;

/// Runs the shell script `prepare` and then the program in a mount namespace. Prints a skip and
/// returns `None` if that is not permitted.
fn confined<S: AsRef<OsStr>>(prepare: &str, arguments: &[S]) -> Option<CommandOutput> {
    if !is_root() || !permitted(program("unshare", ["-m", "true"])) {
        skip("a mount namespace is not permitted here");
        return None;
    }
    let mut command = program("unshare", ["-m", "bash", "-ec"]);
    command.arg(format!("{prepare}\nexec \"$@\"")).arg("bash").args(arguments);
    Some(run(command))
}

fn permitted(mut command: Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

fn mounting<'a>(store: &'a Path, point: &'a Path) -> Vec<&'a OsStr> {
    vec![
        PROGRAM.as_ref(),
        "mount".as_ref(),
        "--store".as_ref(),
        store.as_os_str(),
        point.as_os_str(),
    ]
}

#[test]
fn mount_without_the_device_fails_with_a_remedy() {
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    // A `/dev` that contains only null.
    let dev = sandbox.folder("dev");
    let no_device = format!("mknod -m 666 {0}/null c 1 3; mount --bind {0} /dev", dev.display());
    for prepare in [no_device.as_str(), "mount --bind /dev/null /dev/fuse"] {
        let Some(done) = confined(prepare, &mounting(&store.path(), &point)) else { return };
        done.assert_failure(1, &["/dev/fuse"]);
        assert!(
            done.err.contains("modprobe") || done.err.contains("--device"),
            "no cure: {done:#?}"
        );
        assert!(done.err.contains("`swarmletfs ls`"), "no other way: {done:#?}");
        assert_eq!(done.err.contains("`swarmletfs mcp`"), cfg!(feature = "mcp"), "{done:#?}");
        let _ = fs::remove_file(dev.join("null"));
    }
}

/// Promise: The tree can be read without `/dev/fuse`.
#[test]
fn tree_is_readable_without_the_fuse_device() {
    let store = small_store();
    let path = store.path();
    let words = ["cat", "workers/w1/result.txt", "runs/latest/workers/w1/result.txt", "--store"]
        .map(OsStr::new);
    let words = [&[PROGRAM.as_ref()], &words[..], &[path.as_os_str()]].concat();
    let Some(done) = confined("mount --bind /dev/null /dev/fuse", &words) else { return };
    assert_eq!(done.assert_success().out, "donedone");
}

#[test]
fn mount_without_access_to_the_device_fails_with_a_remedy() {
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let folder = |path: &Path| path.parent().unwrap().to_path_buf();
    [folder(&store.path()), sandbox.path(), point.clone()]
        .iter()
        .for_each(|path| make_accessible(path));
    let device = sandbox.at("fuse");
    let prepare =
        format!("mknod {0} c 10 229; chmod 600 {0}; mount --bind {0} /dev/fuse", device.display());
    let Some(done) = confined(&prepare, &without_privileges(&mounting(&store.path(), &point)))
    else {
        return;
    };
    done.assert_failure(1, &["/dev/fuse", "chmod 666", "`swarmletfs ls`"]);
}

#[test]
fn mount_without_fusermount_names_the_package_and_another_way() {
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    [store.path().parent().unwrap(), &sandbox.path(), &point].into_iter().for_each(make_accessible);
    let device = sandbox.at("fuse");
    let prepare = format!(
        "mknod {0} c 10 229; chmod 666 {0}; mount --bind {0} /dev/fuse
        for name in fusermount3 fusermount; do
            if file=$(command -v $name); then mount --bind /dev/null $(readlink -f $file); fi
        done",
        device.display()
    );
    let Some(done) = confined(&prepare, &without_privileges(&mounting(&store.path(), &point)))
    else {
        return;
    };
    done.assert_failure(1, &["fusermount", "`swarmletfs ls`"]);
}

#[test]
fn mount_names_an_unreadable_store() {
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    make_accessible(store.path().parent().unwrap());
    make_accessible(&sandbox.path());
    fs::set_permissions(store.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let device = sandbox.at("fuse");
    let prepare =
        format!("mknod {0} c 10 229; chmod 666 {0}; mount --bind {0} /dev/fuse", device.display());
    let path = store.path();
    let Some(done) = confined(&prepare, &without_privileges(&mounting(&path, &point))) else {
        return;
    };
    done.assert_failure(1, &[path.to_str().unwrap(), "permission denied"]);
    assert!(!done.err.contains("mounted on"), "{done:#?}");
}

#[test]
fn mount_names_an_unreadable_mountpoint() {
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    make_accessible(store.path().parent().unwrap());
    make_accessible(&sandbox.path());
    fs::set_permissions(&point, fs::Permissions::from_mode(0o700)).unwrap();
    let path = store.path();
    let Some(done) = confined("true", &without_privileges(&mounting(&path, &point))) else {
        return;
    };
    done.assert_failure(1, &[point.to_str().unwrap(), "may not be read by this user"]);
}

#[test]
fn mount_at_the_process_limit_fails_with_a_message() {
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    [store.path().parent().unwrap(), &sandbox.path(), &point].into_iter().for_each(make_accessible);
    let path = store.path();
    for number in 1..4 {
        let limit = format!("--nproc={number}");
        let command =
            [&["prlimit".as_ref(), limit.as_ref()], &mounting(&path, &point)[..]].concat();
        let Some(done) = confined("true", &without_privileges(&command)) else { return };
        done.assert_failure(1, &[]);
    }
}
