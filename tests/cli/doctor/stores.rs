//! Findings about stores: the choice, the workers, and hidden entries.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use swarmletfs_trace::known::CLAUDE_CODE;

use super::{IsolatedDoctor, finding, findings};
use crate::cli::printing::{check_lines, hostile_names};
use crate::cli::program::{
    Bound, LIMIT, MountSandbox, make_accessible, mount, mount_in_foreground, run, small_store,
    swarmletfs, umount, wait_timeout, without_privileges,
};
use crate::needs_fuse;
use crate::support::TestStore;
use crate::support::skip;

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn doctor_reports_a_swarmletfs_mount_as_store() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    mount(&store.path(), &point, &[]).assert_success();
    let keep = sandbox.path();
    if let Some(report) = IsolatedDoctor::new(&keep).json(&[&point]) {
        finding(
            &report,
            "open",
            "problem",
            &["it is a swarmletfs mount; give the store behind it"],
        );
    }
    umount(&point, &[]).assert_success();
}

#[test]
fn doctor_counts_workers_of_a_view() {
    let (store, sandbox) = (TestStore::new(), MountSandbox::new());
    for (id, run) in [("a", 48), ("b", 48), ("c", 49)] {
        store.worker(id, json!({"run_id": run}));
    }
    store.worker("d", json!({}));
    store.write("e/metadata.json", json!({"status": "odd"}).to_string());
    let path = store.path();
    let keep = sandbox.path();
    let Some(report) = IsolatedDoctor::new(&keep).json(&[&path]) else { return };
    let expected = json!({
        "path": path, "why": "named on the command line", "format": "swarmlet", "workers": 5,
        "recording": {
            "new_workers": 0, "temporary_files": 0, "open_calls": 0, "lost_runners": 0, "not_searched": 0,
            "repaired": 0,
        },
    });
    assert_eq!(report["stores"], json!([expected]), "{report:#}");
    let says = finding(&report, "workers", "ok", &["swarmlet, 5 workers"]);
    assert_eq!(says["about"], json!(path));
    let report = IsolatedDoctor::new(&keep)
        .json(&[path.as_os_str(), "--run".as_ref(), "48".as_ref()])
        .unwrap();
    finding(&report, "run", "ok", &["2 of 5"]);
    assert_eq!(report["view"], json!({"owner": null, "run": "48", "workers": 2}));
    let report = IsolatedDoctor::new(&keep)
        .json(&[path.as_os_str(), "--run".as_ref(), "50".as_ref()])
        .unwrap();
    finding(&report, "run", "note", &["none of 5", "the runs are 48, 49"]);
    assert_eq!(report["view"]["workers"], 0);
}

#[test]
fn doctor_lists_hidden_entries_with_reason_and_remedy() {
    let (store, sandbox) = (small_store(), MountSandbox::new());
    for name in ["l4", "l1", "l3", "l2"] {
        symlink("/nowhere", store.at(format!("workers/{name}"))).unwrap();
    }
    crate::hostile::make_fifo(&store.at("workers/pipe"));
    // The log of changes is no worker, but not out of place either.
    for folder in ["workers/plain", "workers/supervisor", "workers/foreign", "audit"] {
        fs::create_dir(store.at(folder)).unwrap();
    }
    let (other, path, keep) = (sandbox.folder("other"), store.path(), sandbox.path());
    let Some(_bound) = Bound::new(&other, &store.at("workers/foreign")) else { return };
    let Some(report) = IsolatedDoctor::new(&keep).json(&[&path]) else { return };
    let cure = format!("`readlink -f {}`", shown(&store.at("workers/l1")));
    finding(
        &report,
        "links",
        "note",
        &[
            "4 links are not followed: workers/l1, workers/l2, workers/l3, and 1 more",
            &cure,
            "--store",
        ],
    );
    let cure = format!("`--store {}`", shown(&store.at("workers/foreign")));
    finding(
        &report,
        "foreign_mounts",
        "note",
        &["1 other file system is not entered: workers/foreign", &cure],
    );
    finding(&report, "special", "note", &["1 special file is not opened: workers/pipe"]);
    finding(
        &report,
        "not_workers",
        "note",
        &["2 folders are not", "workers/plain, workers/supervisor", "metadata.json"],
    );
    assert_eq!(report["problems"], 0, "{report:#}");
}

#[test]
fn doctor_names_workers_with_flawed_records() {
    let (store, sandbox) = (small_store(), MountSandbox::new());
    store.write("workers/torn/metadata.json", "{\"owner_id\": 7, ");
    store.call("bare", 1, "sh", "x");
    store.worker("other", json!({"worker_id": "w1"}));
    store.worker("two", json!({"owner_id": 7, "config": {"owner_id": 8}}));
    store.worker("late", json!({"status": "success"}));
    store.write(
        "workers/index.json",
        json!({"workers": [{"id": "late", "status": "failed"}]}).to_string(),
    );
    store.write("w1/metadata.json", json!({"worker_id": "w1"}).to_string());
    let (path, keep) = (store.path(), sandbox.path());
    let Some(report) = IsolatedDoctor::new(&keep).json(&[&path]) else { return };
    for (check, name) in [
        ("bad_metadata", "torn (not JSON"),
        ("no_metadata", "bare"),
        ("other_id", "other"),
        ("two_owners", "two"),
        ("index_disagrees", "late"),
        ("same_id", "w1~2"),
    ] {
        finding(&report, check, "note", &["1 worker", name]);
    }
}

#[test]
fn doctor_reports_unreadable_entries_as_problems() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    store.worker("closed", json!({})).worker("sealed", json!({}));
    let mode = |path: &str, mode| {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(store.at(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("workers/closed", 0o700);
    mode("workers/sealed/metadata.json", 0o600);
    let (path, keep) = (store.path(), sandbox.path());
    [path.parent().unwrap(), &keep].into_iter().for_each(make_accessible);
    let Some(report) =
        (IsolatedDoctor { before: without_privileges(&[]), ..IsolatedDoctor::new(&keep) })
            .json(&[&path])
    else {
        return;
    };
    let closed = format!("`ls -ld {}`", shown(&store.at("workers/closed")));
    finding(&report, "unreadable", "problem", &["workers/closed (permission denied)", &closed]);
    let sealed = format!("`ls -la {}`", shown(&store.at("workers/sealed")));
    finding(&report, "unreadable_metadata", "problem", &["sealed (permission denied)", &sealed]);
    mode("", 0o700);
    let report = (IsolatedDoctor { before: without_privileges(&[]), ..IsolatedDoctor::new(&keep) })
        .json(&[&path])
        .unwrap();
    finding(&report, "open", "problem", &["permission denied", shown(&path)]);
}

/// Adds everything that a report could reveal of other owners to a store.
fn crowded(store: &TestStore) {
    for (id, owner) in [("o1", json!(8)), ("o2", json!("7 ")), ("o3", Value::Null)] {
        store.worker(
            id,
            json!({"owner_id": owner, "run_id": 49, "status": "running", "worker_id": "mine"}),
        );
    }
    store.write("o1/metadata.json", "{\"owner_id\": 7, ");
    store.worker("two", json!({"owner_id": 7, "config": {"owner_id": 8}}));
    store.call("bare", 1, "sh", "x");
    symlink("/nowhere", store.at("workers/link")).unwrap();
    crate::hostile::make_fifo(&store.at("workers/pipe"));
    fs::create_dir_all(store.at("workers/plain")).unwrap();
    fs::create_dir_all(store.at("supervisor")).unwrap();
    store.write("workers/mine-too/metadata.json", json!({"owner_id": 9}).to_string());
}

/// Promise: With `--owner`, the output does not depend on other owners' workers.
#[test]
fn doctor_output_is_independent_of_foreign_workers() {
    let sandbox = MountSandbox::new();
    let (mixed, own) = (TestStore::new(), TestStore::new());
    for store in [&mixed, &own] {
        store.worker("mine", json!({"owner_id": 7, "run_id": 48}));
        store.worker("odd", json!({"owner_id": 7, "worker_id": "other"}));
    }
    crowded(&mixed);
    let keep = sandbox.path();
    let report = |store: &TestStore, more: &[&str]| {
        let path = store.path();
        let mut arguments = vec![path.as_os_str()];
        arguments.extend(more.iter().map(OsStr::new));
        let out = IsolatedDoctor::new(&keep).run(&arguments)?.out.replace(shown(&path), "STORE");
        Some(out)
    };
    for more in [
        &["--json", "--owner", "7"][..],
        &["--json", "--owner", "7", "--run", "48"],
        &["--json", "--owner", "7", "--run", "49"],
        &["--json", "--owner", "6"],
        &["--owner", "7"],
    ] {
        let Some(text) = report(&mixed, more) else { return };
        assert_eq!(text, report(&own, more).unwrap(), "{more:?}");
    }
    // Control: without an owner, the other workers are reported.
    assert_ne!(report(&mixed, &[]).unwrap(), report(&own, &[]).unwrap());
    assert_ne!(report(&mixed, &["--run", "48"]).unwrap(), report(&own, &["--run", "48"]).unwrap());
}

#[test]
fn doctor_reports_each_store_once() {
    let (first, second, sandbox) = (small_store(), small_store(), MountSandbox::new());
    second.worker("w2", json!({}));
    symlink("/nowhere", second.at("workers/link")).unwrap();
    let (one, two, missing, keep) =
        (first.path(), second.path(), sandbox.at("missing"), sandbox.path());
    let all = [&one, &two, &missing, &one].map(|path| path.as_os_str());
    let Some(report) = IsolatedDoctor::new(&keep).json(&all) else { return };
    let facts: Vec<Value> = report["stores"]
        .as_array()
        .unwrap()
        .iter()
        .map(|store| json!([store["path"], store["workers"]]))
        .collect();
    assert_eq!(facts, [json!([one, 1]), json!([two, 2]), json!([missing, null])]);
    assert_eq!(findings(&report, "workers").len(), 2);
    assert_eq!(finding(&report, "links", "note", &[])["about"], json!(two));
    finding(&report, "open", "problem", &[shown(&missing), "no such folder"]);
    finding(&report, "same_id", "note", &["w1~2"]);
    assert_eq!(report["view"]["workers"], 3);
    let options = ["--store".as_ref(), one.as_os_str(), two.as_os_str()];
    assert_eq!(IsolatedDoctor::new(&keep).json(&options).unwrap()["view"]["workers"], 3);
}

#[test]
fn doctor_chooses_the_store_like_mount() {
    let (here, variable, sandbox) = (small_store(), small_store(), MountSandbox::new());
    let (inside, keep) = (here.at("workers"), sandbox.path());
    let report = |current: &Path, value: Option<&Path>| {
        let variables =
            value.map(|value| ("SWARMLET_DATA_PATH", value.into())).into_iter().collect();
        (IsolatedDoctor { current, variables, ..IsolatedDoctor::new(&keep) }).json::<&str>(&[])
    };
    let Some(found) = report(&inside, None) else { return };
    assert_eq!(
        (&found["stores"][0]["path"], found["stores"].as_array().unwrap().len()),
        (&json!(here.path()), 1)
    );
    finding(&found, "workers", "ok", &["the current folder is inside it"]);
    let found = report(&inside, Some(&variable.path())).unwrap();
    assert_eq!(found["stores"][0]["path"], json!(variable.path()));
    let found = report(&inside, Some("/no/such/place".as_ref())).unwrap();
    finding(&found, "open", "problem", &["/no/such/place"]);
    if ["/data/swarmlet", "/data/workers"].iter().any(|place| Path::new(place).exists()) {
        skip("this machine has a store at a known path");
        return;
    }
    // Not below this test's directory: other users' files could make an ancestor look like a store.
    let none = report("/".as_ref(), None).unwrap();
    finding(
        &none,
        "found",
        "problem",
        &["no store", "$SWARMLET_DATA_PATH", "from / upwards", "/data/workers", "--store"],
    );
    assert_eq!((&none["stores"], &none["view"]), (&json!([]), &Value::Null));
}

#[test]
fn doctor_rejects_an_invalid_store_with_a_remedy() {
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (papers, linked, whole) =
        (sandbox.folder("papers/letters"), sandbox.folder("linked"), sandbox.folder("empty"));
    fs::write(papers.join("a.txt"), "").unwrap();
    symlink(store.at("workers"), linked.join("workers")).unwrap();
    let (papers, one, keep) = (sandbox.at("papers"), store.at("workers/w1"), sandbox.path());
    let report = |path: &Path| IsolatedDoctor::new(&keep).json(&[path]);
    let Some(none) = report(&papers) else { return };
    finding(&none, "open", "problem", &[shown(&papers), "no workers", "metadata.json", "`find "]);
    assert_eq!(
        none["stores"],
        json!([{
            "path": papers, "why": "named on the command line", "format": null, "workers": null, "recording": null,
        }])
    );
    let cure = format!("`readlink -f {}`", shown(&linked.join("workers")));
    finding(
        &report(&linked).unwrap(),
        "open",
        "problem",
        &["no workers", "not followed: workers", &cure],
    );
    let cure = format!("`swarmletfs doctor {}`", shown(&store.at("workers")));
    finding(&report(&one).unwrap(), "open", "problem", &["is one worker", &cure]);
    finding(&report(&whole).unwrap(), "workers", "note", &["no worker yet"]);
    // `mount` prints the same message.
    mount(&linked, &sandbox.folder("mnt"), &[])
        .assert_failure(1, &["no workers", "not followed: workers"]);
}

#[test]
fn doctor_reports_a_hung_store() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (point, keep) = (sandbox.folder("mnt"), sandbox.path());
    let mut child = mount_in_foreground(&store.path(), &point, &sandbox.at("log"));
    // A directory that the kernel has cached for a second must not hide the hang.
    let _ = fs::read_dir(&point).unwrap().count();
    kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
    let report = IsolatedDoctor::new(&keep).json(&[&point]);
    kill_process(Pid::from_child(&child), Signal::CONT).unwrap();
    rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(wait_timeout(&mut child, LIMIT).expect("no hang").success());
    let Some(report) = report else { return };
    finding(&report, "open", "problem", &[shown(&point), "did not answer within 5 seconds"]);
    finding(&report, "hung", "problem", &[shown(&point), "--lazy"]);
    assert_eq!(report["fuse"]["mount"], true, "{report:#}");
}

#[test]
fn doctor_escapes_names() {
    let sandbox = MountSandbox::new();
    let keep = sandbox.path();
    for name in hostile_names() {
        let raw = OsStr::from_bytes(&name);
        let store = sandbox.folder([b"s".as_slice(), &name].concat());
        let at = |folder: &str| {
            store.join("workers").join(OsString::from_iter([OsStr::new(folder), raw]))
        };
        let text = String::from_utf8_lossy(&name);
        let metadata = json!({"worker_id": text, "owner_id": text, "run_id": text, "status": text, "task": text});
        for (folder, metadata) in [("good", metadata.to_string()), ("torn", format!("{{{text}"))] {
            fs::create_dir_all(at(folder)).unwrap();
            fs::write(at(folder).join("metadata.json"), metadata).unwrap();
        }
        fs::create_dir(at("plain")).unwrap();
        symlink(raw, at("link")).unwrap();
        crate::hostile::make_fifo(&at("pipe"));
        let missing = sandbox.at([b"missing".as_slice(), &name].concat());
        let arguments =
            [store.as_os_str(), missing.as_os_str(), "--run".as_ref(), OsStr::new("none")];
        let Some(report) = IsolatedDoctor::new(&keep).json(&arguments) else { return };
        assert_eq!(report["stores"][0]["workers"], 2, "{report:#}");
        finding(&report, "run", "note", &["the runs are"]);
        check_lines(&IsolatedDoctor::new(&keep).run(&arguments).unwrap().out);
        // The remedy is a working command, whatever the name is.
        let cure =
            finding(&report, "links", "note", &["1 link is"])["cure"].as_str().unwrap().to_owned();
        let command = cure.split('`').nth(1).unwrap().replace("readlink -f", "readlink -z");
        let link = std::process::Command::new("bash").args(["-c", &command]).output().unwrap();
        assert_eq!(link.stdout.strip_suffix(b"\0"), Some(name.as_slice()), "{command}");
    }
    let raw = OsStr::from_bytes(b"\x1b[31m\xff");
    run(swarmletfs(["doctor".as_ref(), "--owner".as_ref(), raw])).assert_failure(2, &["UTF-8"]);
}

/// Promise: Sessions that were not read yet are not reported as problems.
///
/// A mount finishes long sessions in the background, so an unread session is no problem.
#[test]
fn unread_sessions_are_not_problems() {
    let (sandbox, keep) = (MountSandbox::new(), MountSandbox::new());
    let project = sandbox.folder("claude/projects/-home-dev");
    let line = json!({"type": "user", "uuid": "u", "sessionId": "s", "message": {"role": "user", "content": "go"}});
    let path = project.join("s.jsonl");
    fs::write(&path, format!("{line}\n")).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(40 << 20).unwrap();
    let Some(report) = IsolatedDoctor::new(&keep.path()).json(&[&sandbox.path().join("claude")])
    else {
        return;
    };
    finding(&report, "unread", "note", &["1 session not yet searched for workers"]);
    let problems: Vec<_> = findings(&report, "trouble");
    assert!(problems.is_empty(), "{report:#}");
}

/// Promise: `doctor` names every place where a known program left sessions, also one that cannot be
/// read yet.
#[test]
fn doctor_names_the_places_of_known_programs() {
    if ["/data/swarmlet", "/data/workers"].iter().any(|place| Path::new(place).exists()) {
        skip("this machine has a store at a known path");
        return;
    }
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (keep, home) = (sandbox.path(), sandbox.folder("home"));
    let claude = sandbox.folder("home/.claude");
    let project = sandbox.folder("home/.claude/projects/p");
    let line = |more: &str| {
        format!(
            "{{\"type\":\"user\",\"uuid\":\"u\",\"sessionId\":\"s\",\
             \"message\":{{\"role\":\"user\",\"content\":\"look\"}}}}\n{more}\n"
        )
    };
    fs::write(project.join("s.jsonl"), line("{\"type\":\"novelty\"}\nnot JSON")).unwrap();
    let unread = sandbox.folder("home/.kimi-code/sessions");
    let environment = |current| IsolatedDoctor {
        current,
        variables: vec![("HOME", home.clone().into()), ("CLAUDE_CONFIG_DIR", OsString::new())],
        ..IsolatedDoctor::new(&keep)
    };
    // Not below this test's directory, whose ancestors could look like a store.
    let Some(report) = environment(Path::new("/")).json::<&OsStr>(&[]) else { return };
    finding(&report, "unread_program", "note", &["Kimi Code", shown(&unread), "not read yet"]);
    finding(&report, "workers", "ok", &["claude-code", "1 worker"]);
    let place = |program: &str, path: &Path, format: Value, is_store| {
        json!({"program": program, "path": path, "format": format, "is_store": is_store,
            "workers": null})
    };
    let unread = place("Kimi Code", &unread, Value::Null, false);
    assert_eq!(
        report["places"],
        json!([place("Claude Code", &claude, json!("claude-code"), true), unread])
    );
    // A store of workers wins, and the sessions are counted beside it.
    let current = store.path();
    let report = environment(&current).json::<&OsStr>(&[]).unwrap();
    let cure = format!("`--store {}`", shown(&claude));
    finding(&report, "sessions", "ok", &["Claude Code: 1 worker in", "not shown", &cure]);
    assert_eq!(report["places"][0]["workers"], 1);
    // The places do not matter if the store is named.
    let report = environment(Path::new("/")).json(&[&current]).unwrap();
    assert_eq!(report["places"], json!([]));
    assert_eq!(findings(&report, "unread_program"), Vec::<&Value>::new());
}

/// The latest session counts: older ones may have been read long ago.
#[test]
fn doctor_notes_sessions_of_a_newer_version_than_was_tested() {
    let sandbox = MountSandbox::new();
    let keep = sandbox.path();
    let projects = keep.join("store/projects/p");
    fs::create_dir_all(&projects).unwrap();
    let write = |id: &str, day: u32, version: &str| {
        let line = json!({"type": "user", "uuid": id, "sessionId": id, "version": version,
            "cwd": "/app", "timestamp": format!("2026-11-{day:02}T10:00:00.000Z"),
            "message": {"role": "user", "content": "Fix it."}});
        fs::write(projects.join(format!("{id}.jsonl")), format!("{line}\n")).unwrap();
    };
    write("11111111-aaaa-bbbb-cccc-222222222222", 2, "99.1.0");
    let path = keep.join("store");
    let Some(report) = IsolatedDoctor::new(&keep).json(&[&path]) else { return };
    let named = ["Claude Code 99.1.0", CLAUDE_CODE.tested_version.unwrap(), "swarmletfs validate"];
    finding(&report, "newer_version", "note", &named);
    write("11111111-aaaa-bbbb-cccc-333333333333", 3, "2.0.0");
    let Some(report) = IsolatedDoctor::new(&keep).json(&[&path]) else { return };
    assert_eq!(findings(&report, "newer_version"), [&Value::Null; 0]);
}
