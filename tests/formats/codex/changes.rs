//! changes.diff of a rollout: from the operations that the program reports, else from the patches
//! that the assistant wrote.

use std::fs;
use std::path::Path;

use super::*;
use crate::support::tool::{is_here, shell};

fn diff(rollout: &Rollout) -> String {
    text(&tree_of(rollout), ID, "changes.diff")
}

/// Applies a diff with git to these files. Returns the files after it.
fn applied(files: &[(&str, &str)], diff: &str) -> BTreeMap<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    for (path, content) in files {
        fs::write(work.join(path), content).unwrap();
    }
    fs::write(dir.path().join("changes.diff"), diff).unwrap();
    let command = "git apply --check ../changes.diff && git apply ../changes.diff";
    let out = shell(command, &work).env("GIT_CEILING_DIRECTORIES", dir.path()).output().unwrap();
    assert!(out.status.success(), "{}\n{diff}", String::from_utf8_lossy(&out.stderr));
    let mut found = BTreeMap::new();
    collect(&work, "", &mut found);
    found
}

fn collect(folder: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        match entry.path().is_dir() {
            true => collect(&entry.path(), &format!("{name}/"), found),
            false => drop(found.insert(name, fs::read_to_string(entry.path()).unwrap())),
        }
    }
}

fn files(expected: &[(&str, &str)]) -> BTreeMap<String, String> {
    expected.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

/// Appends a patch with the operation that the program reports.
fn change(rollout: &mut Rollout, id: &str, changes: Value) {
    rollout.custom(id, "apply_patch", "*** Begin Patch\n*** End Patch\n");
    rollout.operation("FileChange", id, json!({"status": "completed", "changes": changes}));
    rollout.output(id, "Exit code: 0\nWall time: 0 seconds\nOutput:\nSuccess.\n");
}

/// Promise: `git apply` of changes.diff of a session of Codex adds, changes, moves and deletes its
/// files as the session did.
#[test]
fn operations_become_one_diff_per_file() {
    if !is_here("git") {
        return;
    }
    let mut rollout = Rollout::begun();
    change(
        &mut rollout,
        "a",
        json!({"/app/new.txt": {"type": "add", "content": "hello\nworld\n"}}),
    );
    change(
        &mut rollout,
        "b",
        json!({"/app/new.txt": {"type": "update",
        "unified_diff": "@@ -1,2 +1,2 @@\n hello\n-world\n+swarm\n", "move_path": null}}),
    );
    change(
        &mut rollout,
        "c",
        json!({
        "/app/docs/a.md": {"type": "add", "content": "# A\n"},
        "/app/old.txt": {"type": "update", "unified_diff": "@@ -2,2 +2,3 @@\n two\n-three\n+3\n+4\n"}}),
    );
    change(&mut rollout, "d", json!({"/app/gone.txt": {"type": "delete", "content": "bye\n"}}));
    let diff = diff(&rollout);
    assert_eq!(
        diffed(&diff),
        BTreeMap::from([
            ("docs/a.md".into(), (1, 0)),
            ("gone.txt".into(), (0, 1)),
            ("new.txt".into(), (2, 0)),
            ("old.txt".into(), (2, 1)),
        ]),
        "{diff}"
    );
    let before = [("old.txt", "one\ntwo\nthree\n"), ("gone.txt", "bye\n")];
    let after =
        [("new.txt", "hello\nswarm\n"), ("docs/a.md", "# A\n"), ("old.txt", "one\ntwo\n3\n4\n")];
    assert_eq!(applied(&before, &diff), files(&after));
}

#[test]
fn moved_files_are_gone_from_their_old_path() {
    if !is_here("git") {
        return;
    }
    let mut rollout = Rollout::begun();
    change(&mut rollout, "a", json!({"/app/a.txt": {"type": "add", "content": "one\ntwo\n"}}));
    change(
        &mut rollout,
        "b",
        json!({"/app/a.txt": {"type": "update", "move_path": "/app/b.txt",
        "unified_diff": "@@ -1,2 +1,2 @@\n one\n-two\n+2\n"}}),
    );
    assert_eq!(applied(&[], &diff(&rollout)), files(&[("b.txt", "one\n2\n")]));
    let mut rollout = Rollout::begun();
    change(
        &mut rollout,
        "b",
        json!({"/app/a.txt": {"type": "update", "move_path": "/app/b.txt",
        "unified_diff": "@@ -1,2 +1,2 @@\n one\n-two\n+2\n"}}),
    );
    let diff = diff(&rollout);
    assert!(diff.contains("# a.txt: call 1 moved it away\n"), "{diff}");
    assert!(diff.contains("# b.txt: call 1 moved it here from /app/a.txt\n"), "{diff}");
    assert_eq!(applied(&[("a.txt", "one\ntwo\n")], &diff), files(&[("a.txt", "one\n2\n")]));
}

#[test]
fn without_operations_the_patches_of_the_calls_count() {
    if !is_here("git") {
        return;
    }
    let mut rollout = Rollout::begun();
    let add = "*** Begin Patch\n*** Add File: a.txt\n+one\n+two\n*** Add File: b.txt\n+x\n*** End Patch\n";
    let edit = "*** Begin Patch\n*** Update File: a.txt\n@@\n one\n-two\n+2\n*** Delete File: b.txt\n*** End Patch\n";
    rollout.custom("a", "apply_patch", add).output("a", "Exit code: 0\nOutput:\n");
    let here = format!("apply_patch <<'EOF'\n{edit}EOF\n");
    rollout.call("b", "shell", json!({"command": ["bash", "-lc", here]})).output("b", ran(0, ""));
    rollout.call(
        "c",
        "apply_patch",
        json!({"input": "*** Begin Patch\n*** Add File: c.txt\n+c\n*** End Patch"}),
    );
    rollout.output(
        "c",
        "{\"output\":\"Success.\",\"metadata\":{\"exit_code\":0,\"duration_seconds\":0.1}}",
    );
    rollout.custom("d", "apply_patch", add).output("d", "Exit code: 1\nOutput:\nno");
    let after = [("a.txt", "one\n2\n"), ("c.txt", "c\n")];
    assert_eq!(applied(&[], &diff(&rollout)), files(&after));
    let index = index_of(&rollout);
    let uses = format!("{}{}", index["files_created"], index["files_edited"]);
    assert!(uses.contains("a.txt") && uses.contains("c.txt"), "{uses}");
}

#[test]
fn operations_of_a_script_and_of_a_shell_change_files() {
    if !is_here("git") {
        return;
    }
    let mut rollout = Rollout::begun();
    rollout.custom("w", "exec", "await tools.apply_patch(x)");
    rollout.operation(
        "FileChange",
        "exec-1",
        json!({"status": "completed",
        "changes": {"/app/js.txt": {"type": "add", "content": "js\n"}}}),
    );
    rollout.output("w", "Script completed\nOutput:\n");
    rollout.call("s", "exec_command", json!({"cmd": "apply_patch <<'EOF'\n…\nEOF"}));
    rollout.operation(
        "FileChange",
        "s",
        json!({"status": "completed",
        "changes": {"/app/by_shell.txt": {"type": "add", "content": "shell\n"}}}),
    );
    rollout.output("s", "Wall time: 0 seconds\nOutput:\nExit code: 0\n");
    rollout.custom("f", "apply_patch", "*** Begin Patch\n*** Add File: no.txt\n+x\n*** End Patch");
    rollout.operation(
        "FileChange",
        "f",
        json!({"status": "failed",
        "changes": {"/app/no.txt": {"type": "add", "content": "x\n"}}}),
    );
    assert_eq!(
        applied(&[], &diff(&rollout)),
        files(&[("js.txt", "js\n"), ("by_shell.txt", "shell\n")])
    );
}

/// The operations of a script may not be recorded; then its text is all there is.
#[test]
fn patch_in_a_script_changes_files() {
    if !is_here("git") {
        return;
    }
    let patch = "*** Begin Patch\n*** Add File: a.txt\n+one \"1\"\n*** End Patch";
    for input in [
        format!("const p = {};\nawait tools.apply_patch(p);", json!(patch)),
        format!("await tools.apply_patch(`{patch}`); text('done')"),
    ] {
        let mut rollout = Rollout::begun();
        rollout.custom("w", "exec", &input).output("w", "Script completed\nOutput:\n");
        assert_eq!(applied(&[], &diff(&rollout)), files(&[("a.txt", "one \"1\"\n")]));
        // What an operation records is not counted twice.
        let mut rollout = Rollout::begun();
        rollout.custom("w", "exec", &input);
        let changes = json!({"/app/a.txt": {"type": "add", "content": "2\n"}});
        rollout.operation(
            "FileChange",
            "exec-1",
            json!({"status": "completed", "changes": changes}),
        );
        rollout.output("w", "Script completed\nOutput:\n");
        assert_eq!(applied(&[], &diff(&rollout)), files(&[("a.txt", "2\n")]));
        // A script that failed changes nothing.
        let mut rollout = Rollout::begun();
        rollout.custom("w", "exec", &input).output("w", "Script failed\nOutput:\n");
        assert_eq!(index_of(&rollout)["files_created"], Value::Null);
    }
}

#[test]
fn damaged_diffs_are_shown_as_unplaced() {
    let mut rollout = Rollout::begun();
    for (at, diff) in
        ["", "@@ nonsense", "@@ -1,9 +1,9 @@\n x\n", "@@ -0,0 +1 @@\n+x"].iter().enumerate()
    {
        let changes = json!({"/app/x": {"type": "update", "unified_diff": diff}});
        change(&mut rollout, &format!("c{at}"), changes);
    }
    change(&mut rollout, "odd", json!({"/app/y": 7, "/app/z": {"type": "vanish"}}));
    diff(&rollout);
}
