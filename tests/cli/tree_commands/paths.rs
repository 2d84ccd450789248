//! Path resolution, and the errors for paths that do not exist.

use std::fs;

use serde_json::json;

use super::super::program::{MountSandbox, run, swarmletfs};
use super::{look, ok_text, two_owners};
use crate::needs_fuse;
use crate::support::{Mount, TestStore};

#[test]
fn paths_resolve_as_in_a_mount() {
    let store = two_owners();
    let first = ok_text(&store, "cat", ["workers/w1/result.txt"]);
    assert_eq!(first, "done by the first\n");
    for path in [
        "/workers/w1/result.txt",
        "./workers//w1/./result.txt",
        "runs/48/workers/w1/result.txt",
        "runs/48/workers/../../../workers/w1/result.txt",
        // A link is followed before its parent is taken.
        "runs/48/workers/w1/../w1/result.txt",
        "runs/latest/../48/workers/w1/result.txt",
        "../../workers/../../workers/w1/result.txt",
    ] {
        assert_eq!(ok_text(&store, "cat", [path]), first, "{path}");
    }
    assert_eq!(
        ok_text(&store, "cat", ["runs/latest/summary"]),
        ok_text(&store, "cat", ["runs/49/summary"])
    );
    let asked =
        ok_text(&store, "cat", ["runs/latest/evidence.500.txt", "workers/w1/evidence.20tok.txt"]);
    assert!(asked.len() < 1_000 && !asked.is_empty());
    assert_eq!(ok_text(&store, "cat", ["since/now"]).lines().count(), 1);
    assert_eq!(
        ok_text(&store, "cat", ["evidence.txt", "--budget", "300"]),
        ok_text(&store, "cat", ["evidence.300.txt"])
    );
}

/// Promise: A symlink at the end of a path is followed where the standard tools follow it.
#[test]
fn final_symlinks_are_followed_like_in_standard_tools() {
    let store = two_owners();
    let inside = "evidence.txt\nindex.json\nsummary\nworkers\n";
    assert_eq!(ok_text(&store, "ls", ["runs/latest"]), inside);
    assert_eq!(
        ok_text(&store, "ls", ["-F", "runs/latest/"]),
        inside.replace("workers", "workers/")
    );
    assert_eq!(ok_text(&store, "ls", ["-d", "runs/latest"]), "runs/latest\n");
    assert_eq!(ok_text(&store, "ls", ["-F", "runs/latest"]), "runs/latest@\n");
    let long = ok_text(&store, "ls", ["-l", "runs/latest"]);
    assert!(long.starts_with("lrwxrwxrwx ") && long.ends_with("Z runs/latest -> 49\n"), "{long}");
    assert_eq!(ok_text(&store, "ls", ["-l", "runs/latest/"]).lines().count(), 4);
    let stat =
        |words: &[&str]| look(&store.path(), "stat", words).assert_success().json()[0].clone();
    assert_eq!(stat(&["--json", "runs/latest"])["target"], "49");
    for words in [["--json", "runs/latest/"], ["--json", "runs/latest/."], ["--json", "runs/49"]] {
        assert_eq!(stat(&words), stat(&["--json", "-L", "runs/latest"]), "{words:?}");
    }
    assert_eq!(stat(&["--json", "runs/48/workers/w1/result.txt"])["path"], "workers/w1/result.txt");
}

/// Promise: No path leads out of the tree.
#[test]
fn paths_stay_in_the_tree() {
    let store = two_owners();
    fs::write(store.path().parent().unwrap().join("outside"), "outside").unwrap();
    let root = ok_text(&store, "ls", []);
    for path in [
        "..",
        "/..",
        "../..",
        "workers/../..",
        "runs/latest/../../..",
        "/",
        ".",
        "runs/48/workers/w1/../..",
    ] {
        assert_eq!(ok_text(&store, "ls", [path]), root, "{path}");
    }
    for path in ["../outside", "workers/w1/../../../outside", "runs/latest/../../../../outside"] {
        look(&store.path(), "cat", [path])
            .failed(&[&format!("{path}: no such file or folder in this view")]);
    }
    // The limit on links is that of a mount.
    let many = |times: usize| format!("{}summary", "runs/latest/../../".repeat(times));
    ok_text(&store, "cat", [&many(40)]);
    look(&store.path(), "cat", [many(41)])
        .failed(&[&format!("{}: too many levels of symbolic links", many(41))]);
}

/// Promise: A path with a slash after a file is refused.
#[test]
fn slash_after_a_file_is_refused() {
    let store = two_owners();
    for path in [
        "summary/",
        "summary/.",
        "summary/..",
        "summary/x",
        "workers/w1/result.txt/",
        "workers/w1/result.txt/x",
    ] {
        for command in ["ls", "cat", "stat", "tree"] {
            look(&store.path(), command, [path]).failed(&[&format!("{path}: not a folder")]);
        }
    }
    look(&store.path(), "cat", ["workers", "runs/latest", "."]).failed(&[
        "workers: a folder, not a file",
        "runs/latest: a folder, not a file",
        ".: a folder, not a file",
    ]);
    look(&store.path(), "cat", [""]).failed(&["'': no such file or folder in this view"]);
    let long = "x".repeat(3_000);
    look(&store.path(), "stat", [&long]).failed(&[&format!("{long}: the name is too long")]);
}

/// Promise: A path that fails costs one line, and the others are printed.
#[test]
fn failing_path_costs_one_line() {
    let store = two_owners();
    let absent = "workers/absent: no such file or folder in this view";
    let done = look(
        &store.path(),
        "cat",
        ["workers/w1/result.txt", "workers/absent", "workers/w2/result.txt"],
    );
    assert_eq!(done.failed(&[absent]).text(), "done by the first\ndone by the second\n");
    let done = look(&store.path(), "ls", ["runs", "workers/absent", "summary"]);
    assert_eq!(done.failed(&[absent]).text(), "summary\n\nruns:\n48\n49\nlatest\n");
    let done = look(&store.path(), "ls", ["--json", "-d", "workers/absent", "runs"]);
    assert_eq!(done.failed(&[absent]).json().as_array().unwrap().len(), 1);
    let done = look(&store.path(), "stat", ["--json", "workers/absent", "runs"]);
    assert_eq!(done.failed(&[absent]).json()[0]["path"], "runs");
    let done = look(&store.path(), "tree", ["workers/absent", "runs/48/workers"]);
    let drawn = "runs/48/workers\n└── w1 -> ../../../workers/w1\n\n0 folders, 1 file\n";
    assert_eq!(done.failed(&[absent]).text(), drawn);
    assert_eq!(look(&store.path(), "ls", ["--json", "absent"]).json(), serde_json::json!([]));
}

/// Promise: A path that is absent and one of another owner get the same answer.
#[test]
fn absent_and_foreign_paths_get_the_same_answer() {
    let store = two_owners();
    let store = store.path();
    for command in ["ls", "cat", "stat", "tree"] {
        let message = |id: &str| {
            let on_disk = store.join("workers").join(id);
            let paths = [
                format!("workers/{id}/result.txt"),
                format!("runs/49/workers/{id}"),
                format!("/mnt/workers/{id}"),
            ];
            let words = ["--owner".into(), "7".into(), on_disk.to_str().unwrap().to_owned()]
                .into_iter()
                .chain(paths);
            let done = look(&store, command, words);
            assert_eq!(done.code, Some(1));
            // The name of a temporary folder can contain an id.
            let place = store.to_str().unwrap();
            [done.text(), &done.err].map(|text| text.replace(place, "STORE").replace(id, "ID"))
        };
        assert_eq!(message("w2"), message("w9"), "{command}");
    }
    assert!(!look(&store, "ls", ["--owner", "7", "-R"]).assert_success().text().contains("w2"));
    assert_eq!(
        look(&store, "ls", ["--run", "49", "workers"]).assert_success().lines(),
        ["index.json", "w2"]
    );
    // Control: its owner sees it.
    assert!(look(&store, "ls", ["--owner", "8", "-R"]).assert_success().text().contains("w2"));
}

#[test]
fn mistyped_path_names_the_nearest_one() {
    let store = TestStore::new();
    store.worker("cloud-12-9e8d7c6b", json!({"owner_id": 7})).worker("hidden-7", json!({}));
    for (typed, meant) in [
        ("sumary", "summary"),
        ("worker/cloud-12-9e8d7c6b/summary", "workers/cloud-12-9e8d7c6b/summary"),
        ("workers/cloud-12-9e8d7c6b/evidence.tx", "workers/cloud-12-9e8d7c6b/evidence.txt"),
        ("workers/cluod-12-9e8d7c6b/sumary", "workers/cloud-12-9e8d7c6b/summary"),
        ("/workers/clod-12-9e8d7c6b", "workers/cloud-12-9e8d7c6b"),
    ] {
        for command in ["cat", "stat", "ls", "tree"] {
            look(&store.path(), command, [typed]).failed(&[&format!(
                "{typed}: no such file or folder in this view: did you mean `{meant}`?"
            )]);
        }
    }
    // A worker outside the view is never named.
    look(&store.path(), "cat", ["--owner", "7", "workers/hiddn-7/summary"])
        .failed(&["workers/hiddn-7/summary: no such file or folder in this view"]);
    look(&store.path(), "cat", ["workers/hiddn-7/summary"])
        .failed(&["workers/hiddn-7/summary: no such file or folder in this view: did you mean \
         `workers/hidden-7/summary`?"]);
}

/// Promise: A path of the disk gets a hint with the path in the tree.
#[test]
fn path_of_the_disk_gets_a_hint() {
    let store = two_owners();
    let at = |path: &str| store.at(path).to_str().unwrap().to_owned();
    let says = |typed: &str, meant: &str| {
        look(&store.path(), "cat", [typed]).failed(&[&format!(
            "{typed}: no such file or folder in this view: paths start at the root of the tree, as in `{meant}`"
        )]);
    };
    says(&at("workers/w1/result.txt"), "workers/w1/result.txt");
    says(&at("workers/absent"), "workers/absent");
    says(&at("w1/result.txt"), "workers/w1/result.txt");
    says(store.path().to_str().unwrap(), ".");
    says("/mnt/swarm/workers/a b", "'workers/a b'");
    says("/mnt/swarm/runs/latest/summary", "runs/latest/summary");
    for path in ["/absent", "absent/workers/w1", "/workers/absent", "/mnt/swarm"] {
        look(&store.path(), "cat", [path])
            .failed(&[&format!("{path}: no such file or folder in this view")]);
    }
    needs_fuse!();
    let mount = Mount::new(&store.path());
    let point = mount.path();
    let point = point.to_str().unwrap();
    says(&format!("{point}/summary"), "summary");
    says(point, ".");
}

#[test]
fn tree_commands_reject_invalid_arguments() {
    let (store, sandbox) = (two_owners(), MountSandbox::new());
    let cases: [(&[&str], &str); 9] = [
        (&["cat"], "PATH"),
        (&["ls", "--no-such"], "--no-such"),
        (&["ls", "-x"], "-x"),
        (&["tree", "-L", "0"], "0"),
        (&["tree", "-L", "deep"], "deep"),
        (&["stat", "--budget", "4Q"], "4Q"),
        (&["cat", "summary", "--owner", ""], "--owner"),
        (&["ls", "--store", ""], "--store"),
        (&["cat", "-n", "summary"], "-n"),
    ];
    for (words, named) in cases {
        let mut command = swarmletfs(words);
        command.env("SWARMLET_DATA_PATH", store.path());
        assert_eq!(run(command).assert_failure(2, &[named]).out, "");
    }
    for command in ["ls", "cat", "stat", "tree"] {
        let missing = sandbox.at("missing");
        let mut words = swarmletfs([command, "summary", "--store"]);
        words.arg(&missing);
        run(words).assert_failure(1, &[missing.to_str().unwrap(), "no such"]);
        let help = run(swarmletfs([command, "--help"]));
        assert!(help.assert_success().out.contains("Exit code:") && help.err.is_empty());
    }
    // The store is found as by `mount`.
    let mut command = swarmletfs(["ls"]);
    command.current_dir(store.at("workers/w1"));
    let done = run(command);
    assert_eq!(done.assert_success().out.lines().next(), Some("README.md"));
    assert!(done.err.contains("the current folder is inside it"), "{done:#?}");
}

/// Promise: Commands take the beginning of a worker's id.
#[test]
fn beginning_of_an_id_stands_for_the_worker() {
    let store = TestStore::new();
    for (id, owner) in [("build-1", 7), ("build-2", 7), ("deploy-1", 7), ("deploy-x", 8)] {
        store.worker(id, json!({"owner_id": owner, "run_id": 48, "status": "failed"})).call(
            id,
            1,
            "sh",
            "{\"ok\": true}",
        );
    }
    let mine = |command: &str, path: &str| look(&store.path(), command, ["--owner", "7", path]);
    for folder in ["workers", "runs/48/workers", "by/status/failed"] {
        let whole = mine("cat", "workers/deploy-1/summary").assert_success().out.clone();
        let short = mine("cat", &format!("{folder}/depl/summary")).assert_success().out.clone();
        assert_eq!(short, whole, "{folder}");
        let ambiguous = mine("cat", &format!("{folder}/buil/summary"));
        assert_eq!(ambiguous.code, Some(1));
        assert!(ambiguous.err.contains("ambiguous: build-1, build-2"), "{ambiguous:?}");
    }
    assert!(mine("ls", "workers/depl").text().contains("summary"));
    // Absent and foreign workers get the same answer.
    let answer = |id: &str| mine("cat", &format!("workers/{id}/summary")).err.replace(id, "ID");
    assert_eq!(answer("deploy-x"), answer("deploy-y"));
    assert_eq!(answer("dep"), answer("xyz"));
    let compared = look(&store.path(), "compare", ["--owner", "7", "depl", "build-2"]);
    assert!(compared.text().contains("deploy-1"), "{compared:?}");
    let ambiguous = look(&store.path(), "compare", ["--owner", "7", "depl", "buil"]);
    assert!(ambiguous.text().contains("ambiguous: build-1, build-2"), "{ambiguous:?}");
}
