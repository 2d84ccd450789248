//! The kernel caches attributes of finished workers for long, but a late change is still visible at
//! once where the system reports it.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use swarmletfs_base::model::Status;
use swarmletfs_base::name::Name;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::view::{Filter, View};

use super::{eventually, reply_count};
use crate::cli::program::{is_root, program, run};
use crate::needs_fuse;
use crate::support::mount::PROGRAM;
use crate::support::skip;
use crate::support::tool::is_here;
use crate::support::{Mount, TestStore};

/// During the test nothing is checked because of its age.
const HOUR: [&str; 2] = ["--ttl", "3600"];
/// A directory of a finished worker that contains a call and a directory.
const CALLS: &str = "workers/done/tool_calls";

fn store() -> TestStore {
    let store = TestStore::new();
    store.worker("done", json!({"run_id": "r", "status": "success"}));
    for number in 1..=20 {
        store.call("done", number, "sh", format!("output {number}\n"));
    }
    store.write(format!("{CALLS}/inner/deep/file"), "deep\n");
    store
}

/// Visits all files of a worker, so that the kernel knows them.
fn walk(mount: &Mount) {
    let out = mount.shell("ls -lR $M/workers/done && cat $M/workers/done/tool_calls/*.txt");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

fn append(path: &Path, text: &str) {
    File::options().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

/// Promise: The kernel reports late changes of a finished worker.
#[test]
fn watch_reports_late_changes_of_a_finished_worker() {
    needs_fuse!();
    let store = store();
    let mount = Mount::with(&store.path(), &HOUR);
    let size = |path: &str| fs::metadata(mount.at(path)).map(|meta| meta.len()).ok();
    let call = |number: u32| format!("{CALLS}/{number:03}_sh.txt");
    walk(&mount);
    append(&store.at(call(1)), "and more\n");
    eventually("its size", || (size(&call(1)) == Some(18)).then_some(()));
    assert_eq!(mount.text(&call(1)), "output 1\nand more\n");
    // After a change the worker is polled each second for a while instead of watched.
    store.call("done", 1, "sh", "Error: broken\n");
    eventually("its size once more", || (size(&call(1)) == Some(14)).then_some(()));
    eventually("the excerpt", || {
        mount.text("workers/done/evidence.txt").contains("Error: broken").then_some(())
    });
    eventually("the failure in the evidence of the swarm", || {
        mount.text("evidence.txt").contains("failure_never_made_good").then_some(())
    });
}

/// A change, and its visible result.
type Change = (&'static str, fn(&TestStore), fn(&Mount) -> bool);

/// Promise: The kernel reports every kind of late change.
#[test]
fn watch_reports_every_kind_of_late_change() {
    needs_fuse!();
    let changes: [Change; 8] = [
        (
            "removed",
            |store| fs::remove_file(store.at(format!("{CALLS}/002_sh.txt"))).unwrap(),
            |mount| fs::metadata(mount.at(&format!("{CALLS}/002_sh.txt"))).is_err(),
        ),
        (
            "replaced",
            |store| {
                let new = store.write("new", "another\n");
                fs::rename(new, store.at(format!("{CALLS}/003_sh.txt"))).unwrap();
            },
            |mount| fs::metadata(mount.at(&format!("{CALLS}/003_sh.txt"))).unwrap().len() == 8,
        ),
        (
            "mode",
            |store| {
                fs::set_permissions(
                    store.at(format!("{CALLS}/004_sh.txt")),
                    Permissions::from_mode(0o600),
                )
                .unwrap()
            },
            |mount| {
                fs::metadata(mount.at(&format!("{CALLS}/004_sh.txt"))).unwrap().mode() & 0o777
                    == 0o400
            },
        ),
        (
            "time",
            |store| {
                let file = File::options()
                    .write(true)
                    .open(store.at(format!("{CALLS}/005_sh.txt")))
                    .unwrap();
                file.set_modified(std::time::UNIX_EPOCH).unwrap();
            },
            |mount| fs::metadata(mount.at(&format!("{CALLS}/005_sh.txt"))).unwrap().mtime() == 0,
        ),
        (
            "deep",
            |store| append(&store.at(format!("{CALLS}/inner/deep/file")), "deeper\n"),
            |mount| {
                fs::metadata(mount.at(&format!("{CALLS}/inner/deep/file"))).unwrap().len() == 12
            },
        ),
        (
            "a folder with a file in it",
            |store| {
                store.write(format!("{CALLS}/late/later/file"), "late\n");
            },
            |mount| mount.shell("ls -R $M/workers/done | grep -c '^file$'").stdout == b"2\n",
        ),
        (
            "a folder moved away",
            |store| fs::rename(store.at(format!("{CALLS}/inner")), store.at("elsewhere")).unwrap(),
            |mount| fs::metadata(mount.at(&format!("{CALLS}/inner/deep"))).is_err(),
        ),
        (
            "the worker goes on",
            |store| {
                store.worker("done", json!({"run_id": "r", "status": "running"}));
            },
            |mount| mount.list("by/status/running") == ["done"],
        ),
    ];
    for (what, change, is_seen) in changes {
        let store = store();
        let mount = Mount::with(&store.path(), &HOUR);
        walk(&mount);
        change(&store);
        eventually(what, || is_seen(&mount).then_some(()));
    }
}

/// Promise: The kernel answers from its cache for an unchanged finished worker.
#[test]
fn unchanged_finished_worker_is_not_requested_again() {
    needs_fuse!();
    let store = store();
    // The change of the directories themselves must have settled.
    eventually("the folders rest", || {
        let changed = fs::metadata(store.at(CALLS)).unwrap().modified().unwrap();
        changed.elapsed().is_ok_and(|age| age.as_secs() >= 2).then_some(())
    });
    let mount = Mount::with(&store.path(), &HOUR);
    let all = || {
        let before = reply_count(&mount);
        let out = mount.shell("cd $M/workers/done/tool_calls && ls -lR && stat *");
        assert!(out.status.success());
        reply_count(&mount) - before
    };
    let (first, again) = (all(), all());
    // Twenty lookups of files; then three directories, each opened and closed, and the directories
    // that lead to them.
    assert!(first > 30 && again <= 12, "{first} requests on the first walk, {again} on the second");
}

/// Promise: Without change reports, a file that grew is still read to its end.
#[test]
fn file_that_grew_is_read_to_its_end_without_watches() {
    needs_fuse!();
    if !is_here("strace") {
        return;
    }
    let store = store();
    let inject = [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-o",
        "/dev/null",
        "-e",
        "inject=inotify_init1:error=EMFILE",
    ];
    let mount = Mount::by(&inject, &store.path(), &HOUR);
    walk(&mount);
    let path = format!("{CALLS}/001_sh.txt");
    append(&store.at(&path), "and more\n");
    eventually("all of it", || (mount.text(&path) == "output 1\nand more\n").then_some(()));
    // Also for a change in place within the second of the last reply.
    File::options().write(true).open(store.at(&path)).unwrap().write_all_at(b"OUTPUT", 0).unwrap();
    eventually("all of it again", || (mount.text(&path) == "OUTPUT 1\nand more\n").then_some(()));
    store.write(format!("{CALLS}/late.txt"), "late\n");
    eventually("its name", || mount.list(CALLS).contains(&"late.txt".to_owned()).then_some(()));
}

/// Returns a view that never checks anything because of its age.
fn unhurried(store: &TestStore) -> View {
    let hour = Duration::from_secs(3_600);
    let freshness = Freshness { unfinished: hour, finished: hour };
    View::new(vec![Source::open(&store.path()).unwrap()], freshness, Filter::default()).unwrap()
}

/// Promise: A worker that resumes appears before the next full scan.
#[test]
fn resumed_worker_appears_before_the_next_full_scan() {
    let store = TestStore::new();
    let says = |id: &str, status: &str| store.worker(id, json!({"status": status}));
    for id in ["a", "b"] {
        says(id, "running");
    }
    let view = unhurried(&store);
    let status = |id: &str| view.visible().get(&Name::new(id).unwrap()).unwrap().entry.status;
    view.watch().unwrap();
    let (end, _open) = rustix::pipe::pipe().unwrap();
    let mut changed = HashSet::new();
    let mut changes = || {
        changed.extend(
            view.wait_for_changes(end.as_fd(), Some(Duration::from_millis(10))).unwrap().unwrap(),
        )
    };
    // Between the time it was seen and the first report.
    says("a", "success");
    changes();
    says("b", "success");
    eventually("both changes", || {
        changes();
        (status("a") == Status::Completed && status("b") == Status::Completed).then_some(())
    });
    assert_eq!(changed, HashSet::new(), "unchanged workers were reported as changed");
}

/// Promise: A late change is reported even if a reader found it first.
#[test]
fn late_change_found_by_a_reader_is_still_reported() {
    let store = TestStore::new();
    store.worker("a", json!({"status": "success"}));
    let (view, name) = (unhurried(&store), Name::new("a").unwrap());
    view.watch().unwrap();
    let (end, _open) = rustix::pipe::pipe().unwrap();
    let member = view.worker(&name).unwrap();
    view.fingerprint_now(&member).unwrap();
    store.worker("a", json!({"status": "running"}));
    assert_eq!(view.worker_now(&member).unwrap().entry.status, Status::Running);
    let changed = view.wait_for_changes(end.as_fd(), Some(Duration::from_secs(10))).unwrap();
    assert_eq!(view.names_at(&changed.unwrap()), HashSet::from([name]));
}

/// Mounts in a namespace whose limit on watches is the content of `$5`.
const FEW: &str = r#"
mount --bind "$5" /proc/sys/fs/inotify/max_user_watches
"$1" mount --store "$2" --log "$4" "$3"
"$1" umount "$3"
"#;

/// Promise: Half of the system's limit of watches is left to other programs.
#[test]
fn half_of_the_watch_limit_is_left_to_others() {
    needs_fuse!();
    if !is_root() || run(program("unshare", ["-m", "true"])).code != Some(0) {
        skip("a mount namespace is not permitted");
        return;
    }
    let (store, folder) = (store(), tempfile::tempdir().unwrap());
    let [point, log, limit] = ["point", "log", "limit"].map(|name| folder.path().join(name));
    fs::create_dir(&point).unwrap();
    fs::write(&limit, "1000\n").unwrap();
    let words = ["-m", "sh", "-ec", FEW, "sh", PROGRAM].map(OsString::from);
    let paths = [store.path(), point, log.clone(), limit].map(PathBuf::into_os_string);
    let done = run(program("unshare", words.into_iter().chain(paths)));
    assert_eq!(done.code, Some(0), "{done:#?}");
    let log = fs::read_to_string(&log).unwrap();
    assert!(log.contains("watching up to 500 folders for changes"), "{log}");
}
