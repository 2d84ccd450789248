//! Findings about mounts: alive, dead, hung, and the remedies.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{IsolatedDoctor, finding};
use crate::cli::program::{
    LIMIT, MountSandbox, make_accessible, mount, mount_count_at, mount_in_foreground, program, run,
    small_store, tmpfs, wait_timeout, without_privileges,
};
use crate::needs_fuse;
use crate::support::mount::PROGRAM;

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn doctor_reports_mount_states_and_a_remedy_that_works() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (path, keep) = (store.path(), sandbox.path());
    let (alive, dead, covered) =
        (sandbox.folder("alive"), sandbox.folder("it's dead"), sandbox.folder("covered"));
    mount(&path, &alive, &[]).assert_success();
    let mut child = mount_in_foreground(&path, &dead, &sandbox.at("log"));
    child.kill().unwrap();
    child.wait().unwrap();
    mount(&path, &covered, &[]).assert_success();
    if tmpfs(&covered).is_none() {
        return;
    }
    let Some(report) = IsolatedDoctor::new(&keep).json(&[&path]) else { return };
    let states = [(&alive, "alive"), (&dead, "dead"), (&covered, "covered")];
    let expected: Vec<_> =
        states.iter().map(|(point, state)| json!({"point": point, "state": state})).collect();
    assert_eq!(report["mounts"], json!(expected), "{report:#}");
    for ((point, state), level) in states.iter().zip(["ok", "problem", "note"]) {
        assert_eq!(finding(&report, state, level, &[shown(point)])["about"], json!(point));
    }
    let cure = finding(&report, "dead", "problem", &[])["cure"].as_str().unwrap().to_owned();
    let command = cure.split('`').nth(1).unwrap().strip_prefix("swarmletfs ").unwrap();
    run(program("bash", ["-c", &format!("{PROGRAM} {command}")])).assert_success();
    assert_eq!(mount_count_at(&dead), 0);
    assert_eq!(IsolatedDoctor::new(&keep).json(&[&path]).unwrap()["problems"], 0);
}

#[test]
fn doctor_probes_hung_mounts_in_parallel() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (path, keep) = (store.path(), sandbox.path());
    let points = [sandbox.folder("a"), sandbox.folder("b"), sandbox.folder("c")];
    let mut children: Vec<_> =
        points.iter().map(|point| mount_in_foreground(&path, point, &sandbox.at("log"))).collect();
    children.iter().for_each(|child| kill_process(Pid::from_child(child), Signal::STOP).unwrap());
    // Probed one after the other, they would exceed the time limit.
    let report = IsolatedDoctor::new(&keep).json(&[&path]);
    children.iter().for_each(|child| kill_process(Pid::from_child(child), Signal::CONT).unwrap());
    drop(sandbox);
    for child in &mut children {
        assert!(wait_timeout(child, LIMIT).is_some());
    }
    let Some(report) = report else { return };
    let hung: Vec<_> =
        points.iter().map(|point| json!({"point": point, "state": "hung"})).collect();
    assert_eq!(report["mounts"], json!(hung), "{report:#}");
    assert_eq!(report["problems"], 3);
    assert_eq!(report["stores"][0]["workers"], 1, "other findings are missing");
}

#[test]
fn doctor_notes_a_mount_of_another_user() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (path, keep, point) = (store.path(), sandbox.path(), sandbox.folder("mnt"));
    [path.parent().unwrap(), &keep].into_iter().for_each(make_accessible);
    mount(&path, &point, &[]).assert_success();
    let Some(report) =
        (IsolatedDoctor { before: without_privileges(&[]), ..IsolatedDoctor::new(&keep) })
            .json(&[&path])
    else {
        return;
    };
    finding(&report, "private", "note", &[shown(&point), "another user"]);
    assert_eq!(report["mounts"], json!([{"point": point, "state": "private"}]));
}
