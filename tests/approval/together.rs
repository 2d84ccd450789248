//! Several workers and commands on one workspace at once.

use std::fs;
use std::thread;

use rustix::fs::{FlockOperation, flock};

use crate::support::draft::{Workbench, file, folder};
use crate::support::scale;

/// Promise: Of two workers that changed one file, the second one has a conflict, even if both are
/// applied at once.
#[test]
fn applications_at_once_exclude_each_other() {
    let old = folder([("both", file("old\n")), ("dir", folder([]))]);
    let view = |name: &str| folder([("both", file(name)), ("dir", folder([(name, file(name))]))]);
    for _ in 0..scale(10) {
        let bench = Workbench::new(&old);
        bench.worker("w1", &old, &view("one")).worker("w2", &old, &view("two"));
        let apply = |id: &'static str| bench.run(&["apply", id, "--yes"]);
        let (one, two) = thread::scope(|scope| {
            let one = scope.spawn(|| apply("w1"));
            let two = scope.spawn(|| apply("w2"));
            (one.join().unwrap(), two.join().unwrap())
        });
        let (winner, loser) = if one.code == Some(0) { ("one", &two) } else { ("two", &one) };
        loser.assert_failure(1, &["conflict: both: it was changed meanwhile"]);
        assert_eq!(bench.tree(), view(winner));
    }
}

#[test]
fn applications_of_other_files_at_once_all_happen() {
    let old = folder([]);
    let bench = Workbench::new(&old);
    let ids: Vec<String> = (0..8).map(|number| format!("w{number}")).collect();
    for id in &ids {
        bench.worker(id, &old, &folder([(id, file(id))]));
    }
    thread::scope(|scope| {
        for id in &ids {
            scope.spawn(|| bench.run(&["apply", id, "--yes"]).assert_success().code);
        }
    });
    for id in &ids {
        assert_eq!(fs::read_to_string(bench.at(id)).unwrap(), *id);
    }
}

/// Promise: What is replaced while another worker runs on the workspace is saved as that worker's
/// base, unless it changed since that worker began.
#[test]
fn what_is_replaced_is_saved_as_the_base_of_workers_that_run() {
    let old = folder([("src", folder([("a.rs", file("old\n"))])), ("gone", file("gone\n"))]);
    let new = folder([("src", folder([("a.rs", file("new\n"))]))]);
    for (started, is_base) in [("2999-01-01T00:00:00Z", true), ("2020-01-01T00:00:00Z", false)] {
        let bench = Workbench::new(&old);
        bench.worker("w1", &old, &new).worker("w2", &old, &old);
        bench.edit(&bench.draft("w2").join("draft.json"), |draft| {
            draft["state"] = "running".into();
            draft["started_at"] = started.into();
        });
        let draft = fs::File::open(bench.draft("w2")).unwrap();
        flock(&draft, FlockOperation::LockExclusive).unwrap();
        let applied = bench.run(&["apply", "w1", "--yes"]);
        assert!(applied.assert_success().err.contains("warning: w2 runs on this workspace"));
        let base = |path: &str| fs::read_to_string(bench.draft("w2").join("base").join(path)).ok();
        let saved = |text: &str| is_base.then(|| text.to_owned());
        assert_eq!((base("src/a.rs"), base("gone")), (saved("old\n"), saved("gone\n")));
        // The base stays what the worker found.
        bench.run(&["undo", "w1", "--yes"]).assert_success();
        assert_eq!(base("src/a.rs"), saved("old\n"));
    }
}
