//! Where FUSE cannot be had, or the store cannot be read: a sentence with a cure, exit code 1, and no mount.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::program::{Done, Yard, as_nobody, is_root, open_up, plain, run, small_store};
use crate::support::mount::PROGRAM;
use crate::support::skip;

/// Runs `prepare` as a shell script in a mount namespace of its own, and then the program. `None`, said aloud, where
/// that is not permitted.
fn confined<S: AsRef<OsStr>>(prepare: &str, arguments: &[S]) -> Option<Done> {
    if !is_root() || !permitted(plain("unshare", ["-m", "true"])) {
        skip("a mount namespace is not permitted here");
        return None;
    }
    let mut command = plain("unshare", ["-m", "bash", "-ec"]);
    command.arg(format!("{prepare}\nexec \"$@\"")).arg("bash").args(arguments);
    Some(run(command))
}

fn permitted(mut command: Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

fn mounting<'a>(store: &'a Path, point: &'a Path) -> Vec<&'a OsStr> {
    vec![PROGRAM.as_ref(), "mount".as_ref(), "--store".as_ref(), store.as_os_str(), point.as_os_str()]
}

#[test]
fn without_the_device_there_is_a_sentence_and_no_mount() {
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    // A `/dev` with nothing but null in it.
    let dev = yard.folder("dev");
    let no_device = format!("mknod -m 666 {0}/null c 1 3; mount --bind {0} /dev", dev.display());
    for prepare in [no_device.as_str(), "mount --bind /dev/null /dev/fuse"] {
        let Some(done) = confined(prepare, &mounting(&store.path(), &point)) else { return };
        done.refused(1, &["/dev/fuse"]);
        assert!(done.err.contains("modprobe") || done.err.contains("--device"), "no cure: {done:#?}");
        let _ = fs::remove_file(dev.join("null"));
    }
}

#[test]
fn without_the_device_the_tree_is_read_all_the_same() {
    let store = small_store();
    let path = store.path();
    let words = ["cat", "workers/w1/result.txt", "runs/latest/workers/w1/result.txt", "--store"].map(OsStr::new);
    let words = [&[PROGRAM.as_ref()], &words[..], &[path.as_os_str()]].concat();
    let Some(done) = confined("mount --bind /dev/null /dev/fuse", &words) else { return };
    assert_eq!(done.fine().out, "donedone");
}

#[test]
fn a_user_who_may_not_open_the_device_is_told_so() {
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    let folder = |path: &Path| path.parent().unwrap().to_path_buf();
    [folder(&store.path()), yard.path(), point.clone()].iter().for_each(|path| open_up(path));
    let device = yard.at("fuse");
    let prepare = format!("mknod {0} c 10 229; chmod 600 {0}; mount --bind {0} /dev/fuse", device.display());
    let Some(done) = confined(&prepare, &as_nobody(&mounting(&store.path(), &point))) else { return };
    done.refused(1, &["/dev/fuse", "chmod 666"]);
}

#[test]
fn a_store_that_may_not_be_read_is_named() {
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    open_up(store.path().parent().unwrap());
    open_up(&yard.path());
    fs::set_permissions(store.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let device = yard.at("fuse");
    let prepare = format!("mknod {0} c 10 229; chmod 666 {0}; mount --bind {0} /dev/fuse", device.display());
    let path = store.path();
    let Some(done) = confined(&prepare, &as_nobody(&mounting(&path, &point))) else { return };
    done.refused(1, &[path.to_str().unwrap(), "permission denied"]);
    assert!(!done.err.contains("mounted on"), "{done:#?}");
}

#[test]
fn a_mountpoint_that_may_not_be_read_is_named() {
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    open_up(store.path().parent().unwrap());
    open_up(&yard.path());
    fs::set_permissions(&point, fs::Permissions::from_mode(0o700)).unwrap();
    let path = store.path();
    let Some(done) = confined("true", &as_nobody(&mounting(&path, &point))) else { return };
    done.refused(1, &[point.to_str().unwrap(), "may not be read by this user"]);
}

#[test]
fn without_processes_to_start_there_is_a_sentence_and_no_mount() {
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    [store.path().parent().unwrap(), &yard.path(), &point].into_iter().for_each(open_up);
    let path = store.path();
    for number in 1..4 {
        let limit = format!("--nproc={number}");
        let command = [&["prlimit".as_ref(), limit.as_ref()], &mounting(&path, &point)[..]].concat();
        let Some(done) = confined("true", &as_nobody(&command)) else { return };
        done.refused(1, &[]);
    }
}
