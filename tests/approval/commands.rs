//! What the commands print, select, log and refuse.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use crate::cli::program::is_root;
use crate::support::draft::{NOBODY, Node, Workbench, file, folder};

fn trees() -> (Node, Node) {
    let old = folder([("a.rs", file("a\n")), ("src", folder([("b.rs", file("b\n"))]))]);
    let new = folder([
        ("a.rs", file("a2\n")),
        ("src", folder([("b.rs", file("b2\n")), ("new", folder([("c.rs", file("c\n"))]))])),
    ]);
    (old, new)
}

fn bench() -> Workbench {
    Workbench::with_worker(trees())
}

#[test]
fn changes_are_listed_by_name_with_counts_and_as_json() {
    let bench = bench();
    let names = bench.run(&["changes", "w1", "--name-only"]);
    assert_eq!(names.assert_success().out, "a.rs\nsrc/b.rs\nsrc/new\nsrc/new/c.rs\n");
    let names = bench.run(&["changes", "w1", "src/new/", "--name-only"]);
    assert_eq!(names.assert_success().out, "src/new\nsrc/new/c.rs\n");
    let stat = bench.run(&["changes", "w1", "./src/b.rs", "--stat"]);
    assert_eq!(stat.assert_success().out, "src/b.rs  modified  +1 -1\n1 file, +1 -1\n");
    let json = bench.run(&["changes", "w1", bench.at("a.rs").to_str().unwrap(), "--json"]);
    let json: Value = serde_json::from_str(&json.assert_success().out).unwrap();
    assert_eq!((&json["version"], json["files"].as_array().unwrap().len()), (&1.into(), 1));
    bench.run(&["changes", "w1", "README", "--stat"]).assert_failure(2, &["w1 has not changed it"]);
    bench.run(&["changes", "w1", "/etc/passwd"]).assert_failure(2, &["not in the workspace"]);
    bench.run(&["changes", "w2"]).assert_failure(1, &["cannot find worker w2"]);
}

#[test]
fn changes_prints_the_diff_of_the_tree() {
    let bench = bench();
    let tree = bench.run(&["cat", "workers/w1/changes.diff"]).assert_success().out.clone();
    assert!(tree.contains("-a\n+a2\n") && tree.contains("+c\n"), "{tree}");
    assert_eq!(bench.run(&["changes", "w1"]).assert_success().out, tree);
    let part = bench.run(&["changes", "w1", "src/new"]).assert_success().out.clone();
    assert!(part.starts_with("diff --git a/src/new/c.rs b/src/new/c.rs\n"), "{part}");
    assert!(tree.contains(&part) && !part.contains("a.rs"), "{part}");
    let colored = bench.run(&["changes", "w1", "src/new", "--color", "always"]);
    assert!(colored.assert_success().out.contains("\u{1b}[32m+c\u{1b}[0m\n"), "{colored:#?}");
}

#[test]
fn named_paths_are_applied_with_the_folders_that_they_need() {
    let bench = bench();
    bench.run(&["apply", "w1", "src/new/c.rs", "--yes"]).assert_success();
    let src = folder([("b.rs", file("b\n")), ("new", folder([("c.rs", file("c\n"))]))]);
    assert_eq!(bench.tree(), folder([("a.rs", file("a\n")), ("src", src)]));
    bench.run(&["apply", "w1", "README", "--yes"]).assert_failure(2, &["has not changed it"]);
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    assert_eq!(bench.tree(), trees().1);
    // The last application is taken back first.
    bench.run(&["undo", "w1", "--yes"]).assert_success();
    assert_ne!(bench.tree(), trees().0);
    bench.run(&["undo", "w1", "--yes"]).assert_success();
    assert_eq!(bench.tree(), trees().0);
}

#[test]
fn a_dry_run_prints_and_changes_nothing() {
    let bench = bench();
    let printed = bench.run(&["apply", "w1", "--dry-run"]);
    assert_eq!(
        printed.assert_success().out,
        "replace a.rs\nreplace src/b.rs\nadd src/new\nadd src/new/c.rs\n"
    );
    assert_eq!(bench.tree(), trees().0);
    assert!(!bench.worker_folder("w1").join("applied").exists());
}

/// Promise: Changes are applied only after a yes: without a terminal and `--yes`, nothing is.
#[test]
fn nothing_is_done_without_a_terminal_or_yes() {
    let bench = bench();
    // A session of its own has no terminal.
    let run = |arguments: &[&str]| {
        let command = bench.command(arguments);
        let mut session = crate::cli::program::program("setsid", ["--wait"]);
        session.arg(command.get_program()).args(command.get_args());
        crate::cli::program::run(session)
    };
    run(&["apply", "w1"]).assert_failure(1, &["cannot apply", "no terminal", "try --yes"]);
    run(&["discard", "w1"]).assert_failure(1, &["cannot discard", "try --yes"]);
    assert_eq!(bench.tree(), trees().0);
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    run(&["undo", "w1"]).assert_failure(1, &["cannot undo", "try --yes"]);
    assert_eq!(bench.tree(), trees().1);
}

/// Promise: The changes of a worker that runs, or whose draft was discarded, are not applied.
#[test]
fn running_and_discarded_workers_are_refused() {
    let bench = bench();
    let draft = fs::File::open(bench.draft("w1")).unwrap();
    flock(&draft, FlockOperation::LockExclusive).unwrap();
    for command in ["apply", "undo", "discard"] {
        bench.run(&[command, "w1", "--yes"]).assert_failure(1, &["w1: it is still running"]);
    }
    drop(draft);

    let changes = bench.worker_folder("w1").join("changes.json");
    bench.edit(&changes, |changes| changes["is_final"] = false.into());
    bench.run(&["apply", "w1", "--yes"]).assert_failure(1, &["not searched for after its end"]);
    bench.edit(&changes, |changes| changes["is_final"] = true.into());

    bench.run(&["apply", "w1", "a.rs", "--yes"]).assert_success();
    bench.run(&["discard", "w1", "--yes"]).assert_success();
    assert!(!bench.draft("w1").join("upper").exists());
    bench.run(&["apply", "w1", "--yes"]).assert_failure(1, &["they were discarded"]);
    bench.run(&["changes", "w1", "--stat"]).assert_success();
    let again = bench.run(&["discard", "w1", "--yes"]);
    assert!(again.assert_success().err.contains("nothing to discard"), "{again:#?}");
    // What was applied can still be taken back.
    bench.run(&["undo", "w1", "--yes"]).assert_success();
    assert_eq!(bench.tree(), trees().0);

    fs::remove_dir_all(bench.draft("w1")).unwrap();
    for command in ["apply", "undo", "discard"] {
        bench.run(&[command, "w1", "--yes"]).assert_failure(1, &["it has no draft"]);
    }
}

#[test]
fn the_log_of_changes_has_every_decision() {
    let bench = bench();
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    bench.run(&["undo", "w1", "--yes"]).assert_success();
    fs::write(bench.at("a.rs"), "ours\n").unwrap();
    bench.run(&["apply", "w1", "--yes"]).assert_failure(1, &["conflict"]);
    bench.run(&["discard", "w1", "--yes"]).assert_success();
    let log = bench.run(&["audit", "--json"]);
    let log: Vec<Value> =
        log.assert_success().out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let actions: Vec<&str> = log.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["apply", "undo", "apply", "discard"]);
    let path = &log[0]["paths"][0];
    assert_eq!(path["path"], "workers/w1/changes/a.rs");
    assert_eq!((path["bytes"].as_u64(), path["sha256"].as_str().unwrap().len()), (Some(3), 64));
    assert_eq!(log[1]["paths"][0]["path"], "workers/w1/applied/1/replaced/a.rs");
    assert_eq!((log[0]["result"].as_str(), log[3]["result"].as_str()), (Some("ok"), Some("ok")));
    assert!(log[2]["result"].as_str().unwrap().contains("1 conflict"), "{}", log[2]);
}

/// Promise: What root applies to the workspace of a user belongs to that user.
#[test]
fn root_gives_what_it_applies_to_the_owner_of_the_workspace() {
    if !is_root() {
        return;
    }
    let mut bench = bench();
    bench.give_away(false);
    // Another group, which the replaced file has.
    std::os::unix::fs::chown(bench.at("a.rs"), Some(1_234), Some(4_321)).unwrap();
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    let owner = |path: &str| {
        let meta = fs::symlink_metadata(bench.at(path)).unwrap();
        (meta.uid(), meta.gid())
    };
    assert_eq!(owner("a.rs"), (1_234, 4_321));
    assert_eq!(owner("src/b.rs"), (NOBODY, NOBODY));
    for new in ["src/new", "src/new/c.rs"] {
        assert_eq!(owner(new).0, NOBODY, "{new}");
    }
    let applied = bench.worker_folder("w1").join("applied/1/applied.json");
    assert_eq!(fs::metadata(applied).unwrap().uid(), NOBODY);
    bench.run(&["undo", "w1", "--yes"]).assert_success();
    assert_eq!(bench.tree(), trees().0);
}

#[test]
fn folders_that_their_owner_may_not_read_are_put_back() {
    if !is_root() {
        return;
    }
    let with_mode = |mode| {
        let entries = [("a".to_owned(), file("x\n"))].into();
        folder([("d", Node::Folder { mode, entries })])
    };
    for mode in [0, 0o200, 0o311] {
        let (old, new) = (with_mode(0o755), with_mode(mode));
        let mut bench = Workbench::new(&old);
        bench.worker("w1", &old, &new);
        bench.give_away(true);
        bench.run(&["apply", "w1", "--yes"]).assert_success();
        assert_eq!(bench.tree(), new);
        bench.run(&["undo", "w1", "--yes"]).assert_success();
        assert_eq!(bench.tree(), old);
    }
}

#[test]
fn folders_with_changed_entries_can_be_closed() {
    if !is_root() {
        return;
    }
    let tree = |folder_mode, mode, content: &str| {
        let a = Node::File { mode, bytes: b"a\n".to_vec() };
        let entries = [("a".to_owned(), a), ("b".to_owned(), file(content))].into();
        folder([("d", Node::Folder { mode: folder_mode, entries })])
    };
    for mode in [0, 0o200, 0o311] {
        let (old, new) = (tree(0o755, 0o644, "old\n"), tree(mode, 0o600, "new\n"));
        let mut bench = Workbench::new(&old);
        bench.worker("w1", &old, &new);
        bench.give_away(true);
        bench.run(&["apply", "w1", "--yes"]).assert_success();
        assert_eq!(bench.tree(), new, "{mode:o}");
    }
}

/// Numbers of files agree: folders do not count, and refused changes do.
#[test]
fn numbers_of_files_agree() {
    let bench = bench();
    bench.edit_change("w1", "a.rs", |change| change["refused"] = "it is a test".into());
    let stat = bench.run(&["changes", "w1", "--stat"]);
    assert!(stat.assert_success().out.ends_with("\n3 files, +4 -4\n"), "{stat:#?}");
    let diff = bench.run(&["changes", "w1"]);
    assert!(diff.assert_success().out.starts_with("# 3 files, "), "{diff:#?}");
    let summary = bench.run(&["cat", "workers/w1/summary"]);
    assert!(summary.assert_success().out.contains("3 files, "), "{summary:#?}");
}

#[test]
fn ignored_paths_are_counted_and_named() {
    let bench = bench();
    let changes = bench.worker_folder("w1").join("changes.json");
    bench.edit(&changes, |changes| changes["ignored"] = 2.into());
    let says = "2 changed paths left out: ignored by .gitignore, or git's own";
    let stat = bench.run(&["changes", "w1", "--stat"]);
    assert!(stat.assert_success().out.ends_with(&format!("{says}\n")), "{stat:#?}");
    let diff = bench.run(&["changes", "w1"]);
    assert!(diff.assert_success().out.contains(says), "{diff:#?}");
    fs::write(bench.at(".gitignore"), ".env\nbuild/\n").unwrap();
    for path in [".env", "build/x", ".git/config"] {
        for command in ["changes", "apply"] {
            let refused = bench.run(&[command, "w1", path]);
            refused.assert_failure(2, &["it is ignored by .gitignore, or git's own"]);
        }
    }
    bench.run(&["changes", "w1", "other"]).assert_failure(2, &["has not changed it"]);
    for options in [["apply", "w1", "--dry-run"], ["apply", "w1", "--yes"]] {
        let done = bench.run(&options);
        assert!(done.assert_success().err.contains(says), "{done:#?}");
    }
}

#[test]
fn messages_have_the_right_number() {
    let bench = bench();
    let done = bench.run(&["apply", "w1", "a.rs", "--yes"]);
    let text = format!(
        "applied 1 change to {}; `swarmletfs undo w1` takes it back",
        bench.workspace.display()
    );
    assert!(done.assert_success().err.contains(&text), "{done:#?}");
    fs::rename(&bench.workspace, bench.path().join("away")).unwrap();
    let gone = bench.run(&["apply", "w1", "--yes"]);
    gone.assert_failure(1, &["cannot open the workspace", "no such file or folder"]);
    assert!(!gone.err.contains("in this view"), "{gone:#?}");
}

/// Returns the rows of `review --json`, by the id.
fn reviewed(bench: &Workbench) -> impl Fn(&str) -> Value {
    let json = bench.run(&["review", "--json"]).assert_success().out.clone();
    let rows: Vec<Value> = serde_json::from_str(&json).unwrap();
    move |id| rows.iter().find(|row| row["id"] == id).unwrap().clone()
}

/// Promise: A review says what became of each draft, and which changes of drafts collide.
#[test]
fn review_lists_what_became_of_each_draft() {
    let (old, new) = trees();
    let bench = bench();
    let other = folder([("a.rs", file("a3\n")), ("src", folder([("b.rs", file("b\n"))]))]);
    bench.worker("w2", &old, &other).worker("w3", &old, &old);
    let row = reviewed(&bench);
    assert_eq!((&row("w1")["state"], &row("w3")["state"]), (&"waiting".into(), &"empty".into()));
    assert_eq!((&row("w1")["files"], &row("w1")["added"]), (&3.into(), &4.into()));
    assert_eq!(
        (&row("w1")["overlaps"][0], &row("w2")["overlaps"][0]),
        (&"w2".into(), &"w1".into())
    );
    assert_eq!(row("w1")["conflicts"], 0);
    let text = bench.run(&["changes"]).assert_success().out.clone();
    assert_eq!(text, bench.run(&["review"]).assert_success().out);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("id  state") && lines[3] == "1 draft without changes", "{text}");

    bench.run(&["apply", "w1", "a.rs", "--yes"]).assert_success();
    let row = reviewed(&bench);
    assert_eq!(row("w1")["state"], "partly_applied");
    assert_eq!((&row("w2")["state"], &row("w2")["conflicts"]), (&"waiting".into(), &1.into()));
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    assert_eq!(reviewed(&bench)("w1")["state"], "applied");
    assert_eq!(bench.tree(), new);
    bench.run(&["undo", "w1", "--yes"]).assert_success();
    bench.run(&["undo", "w1", "--yes"]).assert_success();
    assert_eq!(reviewed(&bench)("w1")["state"], "taken_back");
    bench.run(&["discard", "w1", "--yes"]).assert_success();
    let row = reviewed(&bench);
    assert_eq!(row("w1")["state"], "discarded");
    assert_eq!((&row("w2")["overlaps"], &row("w2")["conflicts"]), (&json!([]), &0.into()));
}
