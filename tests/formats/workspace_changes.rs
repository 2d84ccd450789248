//! Workers with a changes.json: what they changed in their own views of a workspace.

pub mod fixture;
mod hostile;

use std::fs;
use std::path::Path;

use fixture::{Entry, Workspace, apply, random_pair, record};

use super::*;
use crate::cli::program::{run, swarmletfs};
use crate::mount::eventually;
use crate::needs_fuse;
use crate::support::Mount;
use crate::support::seeds;
use crate::support::tool::is_here;

/// Number of pairs of random workspaces.
const PAIRS: usize = 200;

fn file(bytes: &[u8]) -> Entry {
    Entry::File { bytes: bytes.to_vec(), mode: 0o644 }
}

fn script(bytes: &[u8]) -> Entry {
    Entry::File { bytes: bytes.to_vec(), mode: 0o755 }
}

fn link(target: &[u8]) -> Entry {
    Entry::Link(target.to_vec())
}

fn workspace(entries: &[(&[u8], Entry)]) -> Workspace {
    entries.iter().map(|(path, entry)| (path.to_vec(), entry.clone())).collect()
}

fn diff(store: &TestStore) -> String {
    text(&store.tree(), "w", "changes.diff")
}

/// Returns a store with a worker that turned `old` into `new`.
fn store_of(old: &Workspace, new: &Workspace) -> TestStore {
    let store = TestStore::new();
    store.worker("w", json!({}));
    record(&store, "w", old, new, &json!({}));
    store
}

/// Promise: `git apply` of changes.diff turns the workspace that a worker found into exactly what
/// it left: contents, links, and which files can be executed.
#[test]
fn applied_diffs_give_exactly_what_the_worker_left() {
    if !is_here("git") {
        return;
    }
    for seed in seeds(PAIRS) {
        let (old, new) = random_pair(seed);
        let store = store_of(&old, &new);
        let diff = diff(&store);
        assert_eq!(apply(&old, &diff), Ok(new), "seed {seed}\n{diff}");
    }
}

#[test]
fn every_kind_of_change_is_exact() {
    if !is_here("git") {
        return;
    }
    let old = workspace(&[
        (b"text", file(b"one\ntwo\nthree\n")),
        (b"crlf", file(b"one\r\ntwo\r\n")),
        (b"open end", file(b"one\ntwo")),
        (b"tool", file(b"#!/bin/sh\n")),
        (b"binary", file(b"\0old")),
        (b"latin", file(b"caf\xe9\n")),
        (b"gone", file(b"bye\n")),
        (b"gone-empty", file(b"")),
        (b"gone-binary", file(b"\0\xff")),
        (b"link", link(b"text")),
        (b"file-to-link", file(b"a\n")),
        (b"link-to-file", link(b"text")),
        (b"dir-to-file/a/b", file(b"b\n")),
        (b"file-to-dir", file(b"f\n")),
        (b"link-to-dir", link(b"text")),
        (b"emptied", file(b"full\n")),
    ]);
    let new = workspace(&[
        (b"text", file(b"one\n2\nthree\n")),
        (b"crlf", file(b"one\r\n2\r\n")),
        (b"open end", file(b"one\ntwo\nthree")),
        (b"tool", script(b"#!/bin/sh\n")),
        (b"binary", script(b"\0new")),
        (b"latin", file(b"caf\xe8\n")),
        (b"link", link(b"new\nname")),
        (b"file-to-link", link(b"\xff")),
        (b"link-to-file", file(b"b\n")),
        (b"dir-to-file", file(b"d\n")),
        (b"file-to-dir/x", file(b"x\n")),
        (b"link-to-dir/x", link(b"../text")),
        (b"emptied", file(b"")),
        (b"new-empty", file(b"")),
        (b"new-script", script(b"#!/bin/sh\nls\n")),
        (b"new-binary", file(&[b"\0".as_slice(), &[7; 9_000]].concat())),
        ("d/\u{e9} \"q\"\\\t\n\x1b".as_bytes(), file(b"odd\n")),
        (b"\xff\xfe", file(b"odd\n")),
        (b"a b/a b", file(b"")),
    ]);
    let store = store_of(&old, &new);
    let diff = diff(&store);
    assert_eq!(apply(&old, &diff), Ok(new), "{diff}");
    for line in [
        "# from its workspace /srv/app, taken when the worker ended\n",
        "old mode 100644\nnew mode 100755\n",
        "new file mode 120000\n",
        "index 0000000..e69de29\n",
        "GIT binary patch\nliteral 4\n",
        "\\ No newline at end of file\n",
        "diff --git \"a/\\377\\376\" \"b/\\377\\376\"\n",
        "# d: a new folder with mode 0755, which git does not record\n",
    ] {
        assert!(diff.contains(line), "{line}\n{diff}");
    }
    // The command line shows the same bytes.
    let path = "workers/w/changes.diff";
    let done = run(swarmletfs(["cat", "--store", store.path().to_str().unwrap(), path]));
    assert_eq!((done.code, done.out), (Some(0), diff));
}

#[test]
fn parts_of_a_diff_can_be_applied() {
    if !is_here("git") {
        return;
    }
    for seed in seeds(PAIRS / 10) {
        let (old, new) = random_pair(seed);
        let store = store_of(&old, &new);
        let tree = store.tree();
        for size in ["600", "1k", "2k", "4k", "700tok"] {
            let part = text(&tree, "w", &format!("changes.{size}.diff"));
            let budget = swarmletfs_base::text::budget::Budget::parse(size).unwrap();
            assert!(budget.used(&part) <= budget.size(), "{size}: {part}");
            if part.contains("\ndiff --git") {
                assert!(apply(&old, &part).is_ok(), "seed {seed}, {size}:\n{part}");
            }
        }
    }
}

#[test]
fn what_git_does_not_record_is_a_comment() {
    let store = store_of(&workspace(&[]), &workspace(&[]));
    let state = |kind: &str, mode: &str| json!({"type": kind, "mode": mode});
    fixture::write_changes(
        &store,
        "w",
        &json!([
            {"path": "cache", "kind": "added", "new": state("folder", "0700"), "base": "none"},
            {"path": "fifo", "kind": "added", "new": state("special", "0644"), "base": "none"},
            {"path": "locked", "kind": "added", "new": state("file", "0600"), "base": "none",
             "refused": "it cannot\u{1b}[31m be read"},
            {"path": "secret", "kind": "mode", "base": "none",
             "old": {"type": "file", "mode": "0644", "size": 1, "sha256": "ab"},
             "new": {"type": "file", "mode": "0600", "size": 1, "sha256": "ab"}},
            {"path": "lost", "kind": "modified", "base": "unknown",
             "old": {"type": "file", "mode": "0644", "size": 1, "sha256": "ab"},
             "new": fixture::file_state(b"new\n", 0o644)},
        ]),
        &json!({"is_final": false, "ignored": 3, "notes": ["it was\u{1b}[31m killed"]}),
    );
    store.write("workers/w/changes/lost", "new\n");
    let diff = diff(&store);
    assert!(!diff.contains("diff --git") && !diff.contains('\u{1b}'), "{diff}");
    for line in [
        "# 4 files, +0 -0, by worker w\n# from its workspace /srv/app, taken while it runs\n",
        "# 3 changed paths left out: ignored by .gitignore, or git's own\n# it was",
        "# cache: a new folder with mode 0700, which git does not record\n",
        "# fifo: a device, FIFO or socket, which is not applied\n",
        "# locked: changed, but cannot be applied: it cannot",
        "# secret: its mode changed from 0644 to 0600, which git does not record\n",
        "# lost: changed, but no diff can be shown: the workspace changed before the content that \
         the worker found was saved\n",
    ] {
        assert!(diff.contains(line), "{line}\n{diff}");
    }
}

#[test]
fn contents_that_are_too_large_are_named() {
    let large = [&[0_u8][..], &vec![7; 1 << 20]].concat();
    let old = workspace(&[(b"gone", file(&large)), (b"kept", file(b"a\n"))]);
    let new = workspace(&[(b"new", file(&large)), (b"kept", file(b"b\n"))]);
    let store = store_of(&old, &new);
    let diff = diff(&store);
    let line = "# new: Binary files a/new and b/new differ, 1048577 bytes now\n";
    assert!(diff.contains(line), "{diff}");
    // A deletion needs only the name of the content.
    if is_here("git") {
        assert_eq!(apply(&old, &diff), Ok(workspace(&[(b"kept", file(b"b\n"))])), "{diff}");
    }
}

/// Promise: A worker that changed files in a workspace is in `by/file` under each of them.
#[test]
fn changed_files_are_in_every_view() {
    let old = workspace(&[(b"src/a.rs", file(b"1\n2\n")), (b"src/b.rs", file(b"b\n"))]);
    let new = workspace(&[(b"src/a.rs", file(b"1\n3\n4\n")), (b"docs/c.md", file(b"c\n"))]);
    let store = store_of(&old, &new);
    let other = workspace(&[(b"src/a.rs", file(b"1\n5\n")), (b"src/b.rs", file(b"b\n"))]);
    store.worker("v", json!({})).worker("idle", json!({}));
    record(&store, "v", &old, &other, &json!({}));
    let tree = store.tree();
    assert_eq!(names(&tree, "by/file").unwrap().len(), 3, "{:?}", names(&tree, "by/file"));
    let workers =
        names(&tree, "by/file/src%2Fa.rs").or_else(|_| names(&tree, "by/file/src∕a.rs")).unwrap();
    for worker in [&b"v"[..], b"w"] {
        assert!(workers.iter().any(|name| name == worker), "{workers:?}");
    }
    assert!(!workers.iter().any(|name| name == b"idle"), "{workers:?}");
    let line = "changes  3 files, +3 -2: src/a.rs, docs/c.md, src/b.rs\n";
    assert!(text(&tree, "w", "summary").contains(line), "{}", text(&tree, "w", "summary"));
    assert!(!text(&tree, "idle", "summary").contains("changes "));
    let files = &index(&tree, "w")["files"];
    assert!(files.to_string().contains("src/a.rs"), "{files:#}");
    let compared = see(&tree, "compare/v..w").unwrap().text().to_owned();
    for line in
        ["--- workers/v/changes/src/a.rs\n", "workers/w/changes/docs/c.md", "deleted: src/b.rs"]
    {
        assert!(compared.contains(line), "{line}\n{compared}");
    }
    assert!(!compared.contains("/base/"), "{compared}");
    assert!(names(&tree, "workers/w").unwrap().iter().any(|name| name == b"changes.diff"));
    assert!(!names(&tree, "workers/idle").unwrap().iter().any(|name| name == b"changes.diff"));
    assert_eq!(text(&tree, "w", "changes/src/a.rs"), "1\n3\n4\n");
    assert_eq!(text(&tree, "w", "base/src/a.rs"), "1\n2\n");
    assert!(!text(&tree, "w", "evidence.txt").contains("base/"));
}

/// Promise: `grep/` and `search/` leave out what a worker found before it changed a workspace.
#[test]
fn queries_search_what_the_worker_left() {
    let old = workspace(&[(b"a", file(b"ancient words\n"))]);
    let new = workspace(&[(b"a", file(b"modern words\n"))]);
    let store = store_of(&old, &new);
    // Another program's directory of that name is searched.
    store.worker("other", json!({})).write("workers/other/base/a", "ancient words\n");
    let tree = store.tree();
    for query in ["grep/ancient", "search/ancient"] {
        let answer = see(&tree, query).unwrap().text().to_owned();
        assert!(answer.contains("workers/other/base/a"), "{query}: {answer}");
        assert!(!answer.contains("workers/w/"), "{query}: {answer}");
    }
    for query in ["grep/modern", "search/modern"] {
        let answer = see(&tree, query).unwrap().text().to_owned();
        assert!(answer.contains("workers/w/changes/a"), "{query}: {answer}");
    }
}

#[test]
fn another_file_of_the_name_is_the_workers_own() {
    let store = TestStore::new();
    store.worker("w", json!({})).write("workers/w/changes.json", r#"[{"file": "a"}]"#);
    let tree = store.tree();
    assert!(see(&tree, "workers/w/changes.diff").is_err());
    assert!(!text(&tree, "w", "summary").contains("changes "));
    assert!(checks(&index(&tree, "w")).iter().all(|check| *check != "unreadable_file"));
}

/// Promise: changes.diff of a running worker follows its changes.
#[test]
fn mounted_diff_follows_the_changes_of_a_running_worker() {
    needs_fuse!();
    let old = workspace(&[(b"a", file(b"1\n"))]);
    let store = TestStore::new();
    store.worker("w", json!({"status": "running"}));
    let mount = Mount::new(&store.path());
    assert!(!mount.at("workers/w/changes.diff").exists());
    for step in ["2", "3", "4"] {
        let new = workspace(&[(b"a", file(format!("{step}\n").as_bytes()))]);
        record(&store, "w", &old, &new, &json!({"is_final": false}));
        eventually(&format!("+{step} in changes.diff"), || {
            let diff = fs::read_to_string(mount.at("workers/w/changes.diff")).ok()?;
            (diff.contains("taken while it runs") && diff.contains(&format!("\n+{step}\n")))
                .then_some(())
        });
    }
    let diff = fs::read_to_string(mount.at("workers/w/changes.diff")).unwrap();
    assert_eq!(fs::metadata(mount.at("workers/w/changes.diff")).unwrap().len(), diff.len() as u64);
    assert_eq!(fs::read(mount.at("workers/w/changes/a")).unwrap(), b"4\n");
    assert!(Path::new(&mount.at("by/file/a/w")).exists());
}
