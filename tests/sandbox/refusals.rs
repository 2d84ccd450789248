//! Machines on which the sandbox cannot work: the cause is named, and the command does not run.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use super::Place;
use super::place::{swarmletfs, text};
use crate::support::{skip, tool};

/// Runs the program on a machine where `setting` was applied in a namespace.
fn after(place: &Place, setting: &str, words: &[&str]) -> Output {
    let script = format!("{setting}; exec \"$@\"");
    let namespaces = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork"];
    let shell = ["sh", "-ec", &script, "sh", swarmletfs()];
    place.plain(&[&namespaces[..], &shell, words].concat())
}

/// Asserts that a command does not run on a machine where `setting` was applied in a namespace, and
/// that `run` and `doctor` name the cause and the way out.
#[track_caller]
fn assert_refused_after(place: &Place, setting: &str, cause: &str) {
    let (store, workspace) = (place.path("store"), place.path("workspace"));
    let (store, workspace) = (store.to_str().unwrap(), workspace.to_str().unwrap());
    let words = ["run", "--quiet", "--store", store, "--workspace", workspace, "--"];
    let output = after(place, setting, &[&words[..], &["sh", "-c", "echo ran"]].concat());
    assert_refusal(&output, cause);
    assert_reported(&after(place, setting, &["doctor", "--json"]), cause);
}

#[track_caller]
fn assert_refusal(output: &Output, cause: &str) {
    assert!(!text(&output.stdout).contains("ran"), "{output:?}");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let error = text(&output.stderr);
    assert!(error.contains(cause) && error.contains("--no-sandbox"), "{error}");
}

/// Asserts that the report of `doctor --json` is valid and names the cause and the way out.
#[track_caller]
fn assert_reported(output: &Output, cause: &str) {
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/doctor.schema.json");
    let schema = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let faults: Vec<String> = schema.iter_errors(&report).map(|fault| fault.to_string()).collect();
    assert_eq!(faults, [""; 0], "{report:#}");
    let findings = report["findings"].as_array().unwrap();
    let isolation = findings.iter().find(|finding| finding["check"] == "isolation").unwrap();
    assert_eq!(isolation["level"], "note");
    assert!(isolation["says"].as_str().unwrap().contains(cause), "{isolation:#}");
    assert!(isolation["cure"].as_str().unwrap().contains("--no-sandbox"), "{isolation:#}");
}

#[test]
fn missing_namespaces_are_named() {
    let place = Place::of_user();
    for limit in ["max_user_namespaces", "max_mnt_namespaces"] {
        let setting = format!("mount -t proc proc /proc; echo 0 > /proc/sys/user/{limit}");
        assert_refused_after(&place, &setting, limit);
    }
}

#[test]
fn hidden_parts_of_proc_are_named() {
    let place = Place::of_user();
    let setting = "mount -t proc proc /proc; mount -t tmpfs none /proc/acpi || \
                   mount -t tmpfs none /proc/fs; unshare -U true";
    assert_refused_after(&place, setting, "/proc");
}

#[test]
fn forbidden_calls_are_named() {
    let place = Place::of_user();
    if !tool::is_here("strace") {
        return skip("strace is not installed");
    }
    // AppArmor of Ubuntu lets a namespace be made, and then forbids to map the user id.
    let map = "/proc/self/uid_map";
    for (call, path, errno, cause) in [
        ("unshare", "", "EPERM", "container"),
        ("unshare", "", "ENOSPC", "max_user_namespaces"),
        ("openat", map, "EPERM", "apparmor_restrict_unprivileged_userns"),
        ("mount", "", "EPERM", "cannot"),
    ] {
        let inject = format!("inject={call}:error={errno}");
        let line = place.in_sandbox(&[], &["sh", "-c", "echo ran"]);
        let mut words = vec!["strace", "-f", "-qq", "-o", "/dev/null", "-e", &inject];
        if !path.is_empty() {
            words.extend(["-P", path]);
        }
        let doctor = [&words[..], &[swarmletfs(), "doctor", "--json"]].concat();
        words.extend(line.iter().map(String::as_str));
        assert_refusal(&place.plain(&words), cause);
        assert_reported(&place.plain(&doctor), cause);
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
