//! The log of reads of a mount, and what `audit --stats` sums up.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::cli::program::{CommandOutput, is_root, run, swarmletfs};
use crate::needs_fuse;
use crate::support::mount::PROGRAM;
use crate::support::user::as_user;
use crate::support::{Mount, TestStore};

/// A store with two workers, and a state directory for the log.
struct Audited {
    store: TestStore,
    state: tempfile::TempDir,
}

impl Audited {
    fn new() -> Audited {
        let store = TestStore::new();
        for (id, owner) in [("w1", "7"), ("w2", "8")] {
            store.worker(id, json!({"owner_id": owner}));
            let output = format!("output of {id}\n").repeat(4_000);
            store.write(format!("workers/{id}/tool_calls/001_sh.txt"), output);
        }
        Audited { store, state: tempfile::tempdir().unwrap() }
    }

    fn mount(&self, options: &[&str]) -> Mount {
        Mount::of(|point| {
            let mut command = Command::new(PROGRAM);
            command.args(["mount", "--foreground", "--audit", "--store"]).arg(self.store.path());
            command.args(options).arg(point).env("XDG_STATE_HOME", self.state.path());
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command
        })
    }

    fn audit(&self, options: &[&str]) -> CommandOutput {
        let mut command = swarmletfs(["audit", "--store"]);
        command.arg(self.store.path()).args(options).env("XDG_STATE_HOME", self.state.path());
        run(command)
    }

    /// Returns the entries of the log.
    #[track_caller]
    fn entries(&self) -> Vec<Value> {
        let printed = self.audit(&["--reads", "--json"]);
        let lines = printed.assert_success().out.lines();
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[track_caller]
    fn stats(&self, options: &[&str]) -> Value {
        let printed = self.audit(&[&["--stats", "--json"], options].concat());
        serde_json::from_str(&printed.assert_success().out).unwrap()
    }

    /// Returns the files of the log.
    fn files(&self) -> Vec<PathBuf> {
        let folders = fs::read_dir(self.state.path().join("swarmletfs/reads")).unwrap();
        let files = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
        files.map(|file| file.unwrap().path()).collect()
    }
}

fn cat(path: &Path) -> std::process::Output {
    Command::new("cat").arg(path).output().unwrap()
}

/// Promise: With `--audit`, every open in a mount is recorded with its reader, and every name that
/// is not there.
#[test]
fn opens_and_misses_are_recorded() {
    needs_fuse!();
    let audited = Audited::new();
    let mount = audited.mount(&[]);
    let size = fs::metadata(mount.at("workers/w1/summary")).unwrap().len();
    for path in ["workers/w1/summary", "workers/w1/tool_calls/001_sh.txt", "summary"] {
        assert!(cat(&mount.at(path)).status.success());
    }
    // A second open is another entry, although the kernel has the file in its cache.
    assert!(cat(&mount.at("workers/w1/summary")).status.success());
    assert!(!cat(&mount.at("workers/w1/none\nforged")).status.success());
    assert!(cat(&mount.at("workers/w2/grep/output")).status.success());
    fs::read_dir(mount.at("workers/w1")).unwrap().for_each(drop);
    drop(mount);
    let entries = audited.entries();
    let of = |program: &str, path: &str| -> Vec<&Value> {
        let wanted = |entry: &&Value| entry["program"] == program && entry["path"] == path;
        entries.iter().filter(wanted).collect()
    };
    let summaries = of("cat", "workers/w1/summary");
    assert_eq!(summaries.len(), 2, "{entries:#?}");
    for entry in summaries {
        assert_eq!((&entry["kind"], &entry["result"]), (&json!("summary"), &json!("ok")));
        assert_eq!(entry["bytes"], size);
        assert_eq!(entry["uid"], rustix::process::geteuid().as_raw());
    }
    for (path, kind) in [
        ("summary", "summary"),
        ("workers/w1/tool_calls/001_sh.txt", "raw"),
        ("workers/w2/grep/output", "query"),
    ] {
        assert_eq!(of("cat", path)[0]["kind"], kind, "{path}");
    }
    assert_eq!(of("cat", "workers/w1/none\nforged")[0]["result"], "absent");
    let folder = entries.iter().find(|entry| entry["kind"] == "folder").unwrap();
    assert_eq!(folder["path"], "workers/w1");
    let text = audited.audit(&["--reads"]).assert_success().out.clone();
    assert_eq!(text.lines().count(), entries.len(), "no name makes a line: {text}");
    for file in audited.files() {
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(file.parent().unwrap()), 0o700);
    }
    // Without the option, nothing is recorded.
    let before = entries.len();
    let plain = Mount::new(&audited.store.path());
    cat(&plain.at("summary"));
    drop(plain);
    assert_eq!(audited.entries().len(), before);
}

/// Promise: `audit --stats` sums up readers, kinds, misses and the context that summaries saved.
#[test]
fn numbers_sum_up_what_was_read() {
    needs_fuse!();
    let audited = Audited::new();
    let mount = audited.mount(&[]);
    let summary = cat(&mount.at("workers/w1/summary")).stdout.len() as u64;
    let evidence = cat(&mount.at("workers/w1/evidence.500.txt")).stdout.len() as u64;
    for _ in 0..3 {
        cat(&mount.at("workers/w1/none"));
    }
    drop(mount);
    let stats = audited.stats(&[]);
    let reads = &stats["reads"];
    assert_eq!(reads["kinds"]["summary"], json!({"opens": 1, "bytes": summary}));
    assert_eq!(reads["kinds"]["evidence"], json!({"opens": 1, "bytes": evidence}));
    assert_eq!(reads["misses"], 3);
    assert_eq!(reads["most_missed"][0]["path"], "workers/w1/none");
    let reader = &reads["readers"][0];
    assert_eq!((&reader["program"], &reader["opens"]), (&json!("cat"), &json!(2)));
    assert_eq!((&reads["workers_read"], &reads["lost"]), (&json!(1), &json!(0)));
    assert_eq!(reads["opened_bytes"], summary + evidence);
    let whole = reads["workers_bytes"].as_u64().unwrap();
    assert!(whole > 50_000, "{reads}");
    let saved = 1.0 - (summary + evidence) as f64 / whole as f64;
    assert!((reads["saved"].as_f64().unwrap() - saved).abs() < 1e-9, "{reads}");
    assert_eq!(audited.stats(&["--worker", "w2"])["reads"]["opens"], 0);
    let text = audited.audit(&["--stats"]).assert_success().out.clone();
    assert!(text.contains("by cat (uid ") && text.contains("context saved: "), "{text}");
    // A torn line and another one are counted.
    let file = &audited.files()[0];
    let log = fs::read_to_string(file).unwrap();
    fs::write(file, format!("{log}{{\"time\": \n[1]\n")).unwrap();
    let stats = audited.audit(&["--stats"]);
    assert!(stats.assert_success().err.contains("2 lines that are not entries"), "{stats:?}");
}

/// What a view hides, and what is not there, have the same entries.
#[test]
fn hidden_workers_are_absent_in_the_log() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let audited = Audited::new();
    let mount = audited.mount(&["--owner", "7", "--allow-other"]);
    as_user(54_321, || {
        for id in ["w2", "w3"] {
            assert!(!cat(&mount.at(&format!("workers/{id}/summary"))).status.success());
        }
        assert!(cat(&mount.at("workers/w1/summary")).status.success());
    });
    drop(mount);
    let entries = audited.entries();
    for id in ["w2", "w3"] {
        let path = format!("workers/{id}");
        let entry = entries.iter().find(|entry| entry["path"] == path).unwrap();
        assert_eq!((&entry["result"], &entry["uid"]), (&json!("absent"), &json!(54_321)));
        assert!(entry.get("kind").is_none() && entry.get("bytes").is_none(), "{entry}");
    }
}

/// Promise: The log of reads stays within its limit, and keeps the newest entries.
#[test]
fn log_of_reads_is_bounded() {
    needs_fuse!();
    let audited = Audited::new();
    let mount = audited.mount(&["--audit-max", "20k"]);
    for _ in 0..600 {
        fs::read(mount.at("workers/w1/summary")).unwrap();
    }
    fs::read(mount.at("workers/w2/summary")).unwrap();
    drop(mount);
    let sizes: u64 = audited.files().iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    // A batch is written as a whole.
    assert!(sizes <= 100 << 10, "{sizes}");
    let entries = audited.entries();
    // The last entry only says how many were removed.
    let last = entries.iter().rfind(|entry| entry["result"] != "lost").unwrap();
    assert_eq!(last["path"], "workers/w2/summary");
    assert!(entries.len() < 600);
}

#[test]
fn wrong_options_are_refused() {
    let audited = Audited::new();
    let point = tempfile::tempdir().unwrap();
    let mut command = swarmletfs(["mount", "--audit-max", "1M", "--store"]);
    command.arg(audited.store.path()).arg(point.path());
    run(command).assert_failure(2, &["--audit"]);
    let state = audited.store.path().join("state");
    let mut command = swarmletfs(["mount", "--audit", "--store"]);
    command.arg(audited.store.path()).arg(point.path()).env("XDG_STATE_HOME", state);
    run(command).assert_failure(1, &["cannot log to", "it lies inside"]);
    assert!(!audited.store.path().join("state").exists(), "nothing is made in a store");
    let mut command = swarmletfs(["mount", "--audit", "--store"]);
    let other = Audited::new();
    command.arg(audited.store.path()).arg("--store").arg(other.store.path()).arg(point.path());
    run(command).assert_failure(2, &["--audit records reads of one store"]);
    audited.audit(&["--reads", "--stats"]).assert_failure(2, &["--stats"]);
    // There is no log yet.
    assert_eq!(audited.entries(), Vec::<Value>::new());
    assert_eq!(audited.stats(&[])["reads"]["opens"], 0);
}

/// Promise: A reader that opens much removes its own entries from the log of reads, and not those
/// of the others. The log says how many it removed.
#[test]
fn a_reader_that_opens_much_does_not_empty_the_log_of_reads() {
    needs_fuse!();
    let (own, child) = ("for f in $(seq 700); do : < summary; done", "cat summary");
    let children = "for f in $(seq 700); do cat summary; done > /dev/null";
    for flood in [own, children] {
        let audited = Audited::new();
        let mount = audited.mount(&["--audit-max", "60k"]);
        assert!(
            mount
                .shell(&format!("cd \"$M\" && {child} > /dev/null && cd workers/w2 && {child}"))
                .status
                .success()
        );
        assert!(mount.shell(&format!("cd \"$M\"/workers/w1 && {flood}")).status.success());
        drop(mount);
        let sizes: u64 = audited.files().iter().map(|file| fs::metadata(file).unwrap().len()).sum();
        // A batch is written as a whole.
        assert!(sizes <= 200 << 10, "{sizes}");
        let entries = audited.entries();
        let of = |path: &str| entries.iter().filter(|entry| entry["path"] == path).count() as u64;
        assert_eq!((of("summary"), of("workers/w2/summary")), (1, 1), "{flood}");
        // The control: the log is full.
        let kept = of("workers/w1/summary");
        assert!(kept > 0 && kept < 700, "{flood}: {kept}");
        let removed = audited.stats(&[])["reads"]["removed"].as_u64().unwrap();
        assert!(removed >= 700 - kept, "{flood}: {removed} removed, {kept} kept");
    }
}
