//! A worker can write everything in its directory while it runs: forged, torn and huge records.

use super::*;

fn lines_of_git(diff: &str) -> Vec<&str> {
    diff.lines().filter(|line| !line.starts_with('#')).collect()
}

/// Promise: A content that is not the one of changes.json is in no diff.
#[test]
fn forged_contents_are_in_no_diff() {
    let old = workspace(&[(b"a", file(b"1\n")), (b"b", file(b"1\n")), (b"c", file(b"1\n"))]);
    let new = workspace(&[(b"a", file(b"2\n")), (b"b", file(b"2\n")), (b"c", file(b"2\n"))]);
    let store = store_of(&old, &new);
    store.write("workers/w/changes/a", "3\n");
    store.write("workers/w/base/b", "longer than before\n");
    fs::remove_file(store.at("workers/w/changes/c")).unwrap();
    let diff = diff(&store);
    assert!(lines_of_git(&diff).is_empty(), "{diff}");
    for line in [
        "# a: changed, but its content in changes/ is not that of changes.json, so no diff is shown\n",
        "# b: changed, but its content in base/ is not that of changes.json, so no diff is shown\n",
        "# c: changed, but changes/ does not hold it: no such file or folder in this view\n",
    ] {
        assert!(diff.contains(line), "{line}\n{diff}");
    }
    let done = run(swarmletfs(["validate", "--json", store.path().to_str().unwrap()]));
    for part in [
        "change_content",
        "has 19 bytes; changes.json states 2",
        "is not the content whose SHA-256 changes.json states",
        "cannot be read, so no diff shows this change",
    ] {
        assert!(done.out.contains(part), "{part}\n{done:#?}");
    }
}

#[test]
fn links_in_the_place_of_contents_are_not_followed() {
    let store = store_of(&workspace(&[]), &workspace(&[(b"a", file(b"secret\n"))]));
    let outside = store.path().parent().unwrap().join("outside");
    fs::write(&outside, "secret\n").unwrap();
    fs::remove_file(store.at("workers/w/changes/a")).unwrap();
    std::os::unix::fs::symlink(&outside, store.at("workers/w/changes/a")).unwrap();
    let diff = diff(&store);
    assert!(lines_of_git(&diff).is_empty() && !diff.contains("secret"), "{diff}");
}

#[test]
fn hostile_paths_and_names_stay_comments() {
    let store = store_of(&workspace(&[]), &workspace(&[]));
    let state = fixture::file_state(b"x\n", 0o644);
    let change = |path: &str| json!({"path": path, "kind": "added", "base": "none", "new": state});
    let link = json!({"type": "link", "mode": "0777", "target": "x"});
    let paths = [
        "../../etc/passwd",
        "/etc/passwd",
        "a/../../b",
        "",
        ".git/hooks/pre-commit",
        "sub/.GIT/config",
        "git~1",
        ".git ",
        "twice",
        "twice",
        "up\u{1b}[2J\n+++ b/evil",
    ];
    let mut files: Vec<Value> = paths.map(change).into();
    files.push(json!({"path": ".gitmodules", "kind": "added", "base": "none", "new": link}));
    fixture::write_changes(
        &store,
        "w",
        &files.into(),
        &json!({
            "workspace": "/x\n+++ b/evil\u{1b}[31m", "notes": ["\n+++ b/evil"],
        }),
    );
    for path in [
        ".git/hooks/pre-commit",
        "sub/.GIT/config",
        "git~1",
        ".git ",
        "twice",
        "up\u{1b}[2J\n+++ b/evil",
    ] {
        store.write(format!("workers/w/changes/{path}"), "x\n");
    }
    let diff = diff(&store);
    assert!(!diff.contains('\u{1b}'), "{diff}");
    let diffed: Vec<&str> = diff.lines().filter(|line| line.starts_with("diff --git")).collect();
    assert_eq!(
        diffed,
        [
            "diff --git a/twice b/twice",
            "diff --git \"a/up\\033[2J\\n+++ b/evil\" \"b/up\\033[2J\\n+++ b/evil\"",
        ],
        "{diff}"
    );
    assert!(diff.contains("# ../../etc/passwd: leads out of the workspace, so it is not shown\n"));
    assert!(diff.contains("its diff is a comment, because git accepts no such path\n"), "{diff}");
    if is_here("git") {
        let expected =
            workspace(&[(b"twice", file(b"x\n")), (b"up\x1b[2J\n+++ b/evil", file(b"x\n"))]);
        assert_eq!(apply(&workspace(&[]), &diff), Ok(expected), "{diff}");
    }
    let done = run(swarmletfs(["validate", "--json", store.path().to_str().unwrap()]));
    assert!(done.out.contains("\"kind\": \"change_path\",\n          \"count\": 5,"), "{done:#?}");
}

#[test]
fn records_that_are_not_understood_say_why() {
    let store = TestStore::new();
    store.worker("w", json!({}));
    let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
    let deep = format!(r#"{{"version": 1, "files": [{{"x": {open}{close}}}]}}"#);
    for (json, reason) in [
        (r#"{"version": 2, "changes": []}"#, "version 2 is not known; expected 1"),
        (r#"{"version": 1, "works"#, "EOF while parsing"),
        (r#"{"version": 1}"#, "missing field"),
        (deep.as_str(), "recursion limit exceeded"),
    ] {
        store.write("workers/w/changes.json", json);
        let diff = diff(&store);
        assert!(diff.starts_with("# 0 files, +0 -0, by worker w\n"), "{diff}");
        let line = format!("# its changes.json is not understood: {reason}");
        assert!(diff.contains(&line), "{line}\n{diff}");
        assert!(!text(&store.tree(), "w", "summary").contains("changes  "), "{json}");
        let done = run(swarmletfs(["validate", "--json", store.path().to_str().unwrap()]));
        assert!(done.out.contains(&format!("not understood: {reason}")), "{done:#?}");
    }
}

#[test]
fn a_huge_record_is_refused_and_hides_nothing() {
    let store = TestStore::new();
    store.worker("w", json!({}));
    let path = store.write("workers/w/changes.json", r#"{"version": 1, "#);
    fs::File::options().write(true).open(path).unwrap().set_len(1 << 40).unwrap();
    let diff = diff(&store);
    assert!(diff.contains("larger than 67108864 bytes, so it is not read"), "{diff}");
    assert!(text(&store.tree(), "w", "summary").contains("status   completed"));
}

#[test]
fn what_replaces_an_unknown_file_is_a_comment() {
    let store = store_of(&workspace(&[]), &workspace(&[]));
    let old = fixture::file_state(b"old\n", 0o644);
    let folder = json!({"type": "folder", "mode": "0755"});
    fixture::write_changes(
        &store,
        "w",
        &json!([
            {"path": "d", "kind": "replaced", "base": "unknown", "old": old, "new": folder},
            {"path": "d/x", "kind": "added", "base": "none", "new": fixture::file_state(b"x\n", 0o644)},
        ]),
        &json!({}),
    );
    store.write("workers/w/changes/d/x", "x\n");
    let diff = diff(&store);
    assert!(lines_of_git(&diff).is_empty(), "{diff}");
    let line =
        "# d/x: its diff is a comment, because what it replaces is not deleted in this diff\n";
    assert!(diff.contains(line), "{diff}");
}
