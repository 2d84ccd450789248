//! Machines on which the sandbox cannot work: the cause is named, and the command does not run.

use super::Place;
use super::place::{swarmletfs, text};
use crate::support::{skip, tool};

/// Runs a command that must not run, on a machine where `setting` was applied in a namespace.
fn refused_after(place: &Place, setting: &str) -> String {
    let store = place.path("store");
    let workspace = place.path("workspace");
    let script = format!("{setting}; exec \"$@\"");
    let output = place.plain(&[
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "--pid",
        "--fork",
        "sh",
        "-ec",
        &script,
        "sh",
        swarmletfs(),
        "run",
        "--quiet",
        "--store",
        store.to_str().unwrap(),
        "--workspace",
        workspace.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        "echo ran",
    ]);
    assert!(!text(&output.stdout).contains("ran"), "{output:?}");
    assert!(!output.status.success(), "{output:?}");
    text(&output.stderr)
}

#[test]
fn missing_namespaces_are_named() {
    let place = Place::of_user();
    let error = refused_after(
        &place,
        "mount -t proc proc /proc; echo 0 > /proc/sys/user/max_user_namespaces",
    );
    assert!(error.contains("max_user_namespaces"), "{error}");
    let error = refused_after(
        &place,
        "mount -t proc proc /proc; echo 0 > /proc/sys/user/max_mnt_namespaces",
    );
    assert!(error.contains("max_mnt_namespaces"), "{error}");
}

#[test]
fn hidden_parts_of_proc_are_named() {
    let place = Place::of_user();
    let error = refused_after(
        &place,
        "mount -t proc proc /proc; mount -t tmpfs none /proc/acpi || \
         mount -t tmpfs none /proc/fs; unshare -U true",
    );
    assert!(error.contains("/proc"), "{error}");
}

#[test]
fn forbidden_calls_are_named() {
    let place = Place::of_user();
    if !tool::is_here("strace") {
        return skip("strace is not installed");
    }
    for (call, errno, cause) in [
        ("unshare", "EPERM", "container"),
        ("unshare", "ENOSPC", "max_user_namespaces"),
        ("mount", "EPERM", "cannot"),
    ] {
        let inject = format!("inject={call}:error={errno}");
        let line = place.in_sandbox(&[], &["sh", "-c", "echo ran"]);
        let mut words = vec!["strace", "-f", "-qq", "-o", "/dev/null", "-e", &inject];
        words.extend(line.iter().map(String::as_str));
        let output = place.plain(&words);
        assert!(!text(&output.stdout).contains("ran"), "{call}: {output:?}");
        assert!(!output.status.success(), "{call}: {output:?}");
        assert!(text(&output.stderr).contains(cause), "{call}: {output:?}");
    }
}

/// Kernels before 6.7 lack the new calls or some of their options; mount(2) takes their place.
#[test]
fn old_kernels_use_the_old_call() {
    let place = Place::of_user();
    if !tool::is_here("strace") {
        return skip("strace is not installed");
    }
    for (call, errno) in [("fsopen", "ENOSYS"), ("fsconfig", "EINVAL")] {
        let inject = format!("inject={call}:error={errno}");
        let line = place.in_sandbox(&[], &["sh", "-ec", "echo changed > file; cat file"]);
        let mut words = vec!["strace", "-f", "-qq", "-o", "/dev/null", "-e", &inject];
        words.extend(line.iter().map(String::as_str));
        let output = place.plain(&words);
        assert_eq!(text(&output.stdout), "changed\n", "{call}: {output:?}");
        assert_eq!(place.read("workspace/file"), "original\n");
    }
}
