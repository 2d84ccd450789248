//! `ls`, `tree` and `stat`: contents, order and format.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::super::program::{is_root, make_accessible, without_privileges};
use super::{look, ok_text, two_owners};
use crate::needs_fuse;
use crate::support::mount::PROGRAM;
use crate::support::{Mount, TestStore};

/// Creates a worker with files of known sizes and times.
fn dated() -> TestStore {
    let store = TestStore::new();
    store.worker("w1", json!({"owner_id": 7, "run_id": 48}));
    for (name, size, second) in [("a", 10, 3), ("b", 1_300, 1), ("c", 10_240, 2), ("d", 10, 3)] {
        let file = store.write(format!("workers/w1/files/{name}"), "x".repeat(size));
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_768_903_200 + second, 500_000_000);
        fs::File::open(&file).unwrap().set_modified(time).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o640)).unwrap();
    }
    store
}

#[test]
fn listings_have_the_requested_order() {
    let store = dated();
    for (options, order) in [
        ("-1", "a b c d"),
        ("-ar", "d c b a"),
        ("-t", "a d c b"),
        ("-tr", "b c d a"),
        ("-S", "c b a d"),
        ("-rS", "d a b c"),
        ("-tS", "c b a d"),
        ("-St", "a d c b"),
    ] {
        assert_eq!(
            ok_text(&store, "ls", [options, "workers/w1/files"])
                .lines()
                .collect::<Vec<_>>()
                .join(" "),
            order
        );
        let listing = look(&store.path(), "ls", ["--json", options, "workers/w1/files"])
            .assert_success()
            .json();
        let names: Vec<&str> = listing
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["name"].as_str().unwrap())
            .collect();
        assert_eq!(names.join(" "), order, "{options}");
    }
}

#[test]
fn sort_takes_a_key() {
    let store = dated();
    for (options, order) in [
        (&["--sort", "name"][..], "a b c d"),
        (&["--sort=time"], "a d c b"),
        (&["--sort", "size"], "c b a d"),
        (&["--sort", "size", "-r"], "d a b c"),
        (&["--sort", "outcome"], "a b c d"),
        (&["--sort", "size", "-t"], "a d c b"),
        (&["-t", "--sort", "size"], "c b a d"),
    ] {
        let listed = look(&store.path(), "ls", options.iter().chain(&["workers/w1/files"]));
        assert_eq!(listed.assert_success().lines().join(" "), order, "{options:?}");
    }
}

#[test]
fn sort_by_outcome_puts_failed_workers_first() {
    let store = TestStore::new();
    store.worker("a", json!({"status": "completed"})).call("a", 1, "sh", "{\"ok\": true}");
    store.worker("b", json!({"status": "running", "run_id": 1}));
    store.worker("c", json!({"status": "failed", "run_id": 1}));
    for (path, order) in [
        ("workers", &["c", "b", "a", "index.json"][..]),
        ("runs/1/workers", &["c", "b"]),
        ("by/status/failed", &["c"]),
    ] {
        let listed = ok_text(&store, "ls", ["--sort", "outcome", path]);
        assert_eq!(listed.lines().collect::<Vec<_>>(), order, "{path}");
    }
    let reversed = ok_text(&store, "ls", ["--sort=outcome", "-r", "workers"]);
    assert_eq!(reversed.lines().collect::<Vec<_>>(), ["index.json", "a", "b", "c"]);
}

/// Promise: `ls` lists the same names as `ls` in a mount.
#[test]
fn ls_lists_the_same_names_as_in_a_mount() {
    needs_fuse!();
    let store = two_owners();
    store.write("workers/w1/outputs/deep/er/file", "x");
    let mount = Mount::new(&store.path());
    for words in [
        &[][..],
        &["-R"],
        &["-Rtr"],
        &["-RS", "workers", "runs/latest/", "summary"],
        &["-t", "workers/w1", "README.md", "runs/latest", "workers/w2", "evidence.txt"],
        &["-d", "workers", "runs/latest", "."],
        &["-R", "/", "workers/../runs"],
    ] {
        let inside: Vec<String> =
            words.iter().map(|word| word.strip_prefix('/').unwrap_or(word).to_owned()).collect();
        let inside = inside.iter().map(|word| if word.is_empty() { "./" } else { word.as_str() });
        let listed = Command::new("ls")
            .args(inside)
            .current_dir(mount.path())
            .env("LC_ALL", "C")
            .output()
            .unwrap();
        assert!(listed.status.success(), "{words:?}: {}", String::from_utf8_lossy(&listed.stderr));
        let wanted = String::from_utf8(listed.stdout).unwrap();
        let done = look(&store.path(), "ls", words);
        let own = if words.contains(&"/") {
            done.text().replace("\n/:\n", "\n./:\n").replace("\n/", "\n./")
        } else {
            done.text().to_owned()
        };
        assert_eq!(
            own.strip_prefix("/:").map_or(own.clone(), |rest| format!("./:{rest}")),
            wanted,
            "{words:?}"
        );
        done.assert_success();
    }
}

#[test]
fn long_listing_of_workers_has_outcomes_and_titles() {
    let store = TestStore::new();
    store.worker("w1", json!({"task": "Fix the parser.\nNow."})).call(
        "w1",
        1,
        "sh",
        "{\"ok\": true}",
    );
    store.worker("worker-2", json!({"status": "failed", "error": "no", "task": "Test it."}));
    let lines = ok_text(&store, "ls", ["-l", "workers"]);
    let folders: Vec<&str> = lines.lines().filter(|line| line.starts_with('d')).collect();
    let ends: Vec<&str> = folders.iter().map(|line| line.split_once("Z ").unwrap().1).collect();
    assert_eq!(ends, ["w1        ok       Fix the parser. Now.", "worker-2  failed   Test it."]);
    assert!(folders.iter().all(|line| line.split_whitespace().nth(3) == Some("-")), "{lines}");
    let links = ok_text(&store, "ls", ["-l", "by/status/failed"]);
    assert!(links.ends_with("worker-2  failed   Test it.\n"), "{links}");
}

#[test]
fn long_listing_prints_all_attributes() {
    let store = dated();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let line = |size: &str, second: u32, name: &str| {
        format!("-r--r----- {uid} {gid} {size} 2026-01-20T10:00:0{second}Z {name}\n")
    };
    let plain = [
        line("   10", 3, "a"),
        line(" 1300", 1, "b"),
        line("10240", 2, "c"),
        line("   10", 3, "d"),
    ]
    .concat();
    assert_eq!(ok_text(&store, "ls", ["-l", "workers/w1/files"]), plain);
    let human =
        [line("  10", 3, "a"), line("1.3K", 1, "b"), line(" 10K", 2, "c"), line("  10", 3, "d")]
            .concat();
    assert_eq!(ok_text(&store, "ls", ["-lh", "workers/w1/files"]), human);
    let root = ok_text(&store, "ls", ["-lF"]);
    assert!(
        root.contains("Z runs/\n") && root.contains("Z summary\n") && root.starts_with("-r"),
        "{root}"
    );
    let printed = ok_text(&store, "stat", ["workers/w1/files/b", "runs/latest"]);
    let begins = format!(
        "path      workers/w1/files/b\nkind      file\nsize      1300\nmode      0440 -r--r-----\nuid       {uid}\ngid       {gid}\n\
         modified  2026-01-20T10:00:01.500000000Z\nchanged   2"
    );
    assert!(printed.starts_with(&begins) && printed.ends_with("target    48\n"), "{printed}");
    assert!(
        printed.contains(
            "\n\npath      runs/latest\nkind      link\nsize      2\nmode      0777 lrwxrwxrwx\n"
        ),
        "{printed}"
    );
}

/// Promise: JSON objects have the same fields in every command.
#[test]
fn json_objects_have_the_same_fields_everywhere() {
    let store = dated();
    let list = look(&store.path(), "ls", ["--json", "-d", "workers/w1/files/b", "runs/latest"])
        .assert_success()
        .json();
    let stat = look(&store.path(), "stat", ["--json", "runs/latest", "workers/w1/files/b"])
        .assert_success()
        .json();
    assert_eq!((&list[0], &list[1]), (&stat[0], &stat[1]));
    let mut file = list[1].clone();
    assert!(file["ctime"].take().as_str().unwrap().ends_with('Z'));
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let wanted = json!({
        "path": "workers/w1/files/b", "name": "b", "kind": "file", "size": 1_300, "mode": "0440", "uid": uid, "gid": gid,
        "mtime": "2026-01-20T10:00:01.5Z", "ctime": null,
    });
    assert_eq!(file, wanted);
    assert_eq!((&list[0]["kind"], &list[0]["target"]), (&json!("link"), &json!("48")));
    let root = look(&store.path(), "stat", ["--json"]).assert_success().json();
    assert_eq!((&root[0]["path"], &root[0]["name"]), (&json!("."), &json!(".")));
    // All entries are in one array, one per line.
    let all = look(&store.path(), "ls", ["-R", "--json"]);
    assert_eq!(all.assert_success().lines().len(), all.json().as_array().unwrap().len() + 2);
    let tree =
        look(&store.path(), "tree", ["--json", "-L", "1", "workers/w1"]).assert_success().json();
    let children = tree[0]["children"].as_array().unwrap();
    let names: Vec<&str> = children.iter().map(|child| child["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["evidence.txt", "files", "index.json", "metadata.json", "summary"]);
    assert!(children.iter().all(|child| child.get("children").is_none()), "{children:#?}");
    let tree = look(&store.path(), "tree", ["--json", "workers/w1"]).assert_success().json();
    assert_eq!(tree[0]["children"][1]["children"][1], stat[1]);
}

/// Promise: `tree` draws the tree and counts its entries.
#[test]
fn tree_is_drawn_and_counted() {
    let store = dated();
    let drawn = "\
runs
├── 48
│   ├── evidence.txt
│   ├── index.json
│   ├── summary
│   └── workers
│       └── w1 -> ../../../workers/w1
└── latest -> 48

2 folders, 5 files
";
    assert_eq!(ok_text(&store, "tree", ["runs"]), drawn);
    assert_eq!(
        ok_text(&store, "tree", ["-L", "1", "runs"]),
        "runs\n├── 48\n└── latest -> 48\n\n1 folder, 1 file\n"
    );
    assert_eq!(
        ok_text(&store, "tree", ["-d", "runs"]),
        "runs\n└── 48\n    └── workers\n\n2 folders\n"
    );
    let files = ok_text(&store, "tree", ["-h", "-D", "workers/w1/files"]);
    assert!(files.contains("├── [ 1.3K 2026-01-20T10:00:01Z]  b\n"), "{files}");
    assert!(ok_text(&store, "tree", ["-s", "workers/w1/files"]).contains("└── [         10]  d\n"));
    assert!(ok_text(&store, "tree", []).starts_with(".\n├── README.md\n"));
    assert_eq!(
        ok_text(&store, "tree", ["summary", "runs/latest/workers"]).lines().last(),
        Some("0 folders, 2 files")
    );
}

/// Promise: A directory that cannot be read is reported in its place.
#[test]
fn unreadable_directory_is_reported_in_place() {
    if !is_root() {
        return;
    }
    let store = dated();
    store.write("workers/w1/secret/file", "x");
    fs::set_permissions(store.at("workers/w1/secret"), fs::Permissions::from_mode(0o700)).unwrap();
    [store.path(), store.path().parent().unwrap().to_path_buf(), store.at("workers/w1")]
        .iter()
        .for_each(|path| make_accessible(path));
    let run_unprivileged = |words: &[&str]| {
        let store = store.path();
        let words =
            [&[PROGRAM.as_ref()], &words.iter().map(|word| word.as_ref()).collect::<Vec<_>>()[..]]
                .concat();
        let words = without_privileges(&words);
        let mut command = Command::new(words[0]);
        let done =
            command.args(&words[1..]).args(["--no-cache", "--store"]).arg(store).output().unwrap();
        (
            done.status.code(),
            String::from_utf8(done.stdout).unwrap(),
            String::from_utf8(done.stderr).unwrap(),
        )
    };
    let (code, out, err) = run_unprivileged(&["tree", "workers/w1"]);
    assert_eq!(code, Some(1));
    assert!(
        out.contains("├── secret  [permission denied]\n") && out.ends_with(", 1 not readable\n"),
        "{out}"
    );
    assert_eq!(err.lines().count(), 1, "{err}");
    for words in [&["ls", "-R", "workers/w1"][..], &["tree", "--json", "workers/w1"]] {
        let (code, out, err) = run_unprivileged(words);
        assert_eq!(code, Some(1));
        assert!(err.ends_with("\nswarmletfs: workers/w1/secret: permission denied\n"), "{err}");
        assert!(out.contains("metadata.json") && out.contains("secret"), "{out}");
    }
    let (code, out, err) = run_unprivileged(&[
        "cat",
        "workers/w1/secret/file",
        "workers/w1/files/a",
        "workers/w1/secret",
    ]);
    // Mode 0640 of another user.
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert_eq!(err.matches("permission denied").count(), 2, "{err}");
}
