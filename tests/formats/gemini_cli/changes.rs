//! Tests of changes.diff.

use std::fs;

use super::*;
use crate::support::tool::{is_here, shell as run};

/// Returns a call that changes a file, with the display that the program records.
fn edit(id: &str, tool: &str, args: Value, before: Value, after: Value) -> Value {
    let file = args["file_path"].clone();
    let is_new = before.is_null() || before == "";
    let mut call = call(id, tool, args, "success", json!({"output": "Done."}));
    call["resultDisplay"] = json!({"fileDiff": "display", "fileName": "f", "filePath": file,
        "originalContent": before, "newContent": after, "isNewFile": is_new,
        "diffStat": {"model_added_lines": 1, "model_removed_lines": 0}});
    call
}

/// Promise: `git apply` of changes.diff turns the recorded originals into exactly the contents that
/// the edits left behind.
#[test]
fn changes_apply_to_the_files_before_them() {
    let mut log = Log::new();
    log.user("u", "go");
    let args = |file: &str| json!({"file_path": format!("/w/app/{file}"), "old_string": "b", "new_string": "c", "content": "x\n"});
    log.model(
        "m1",
        "",
        json!([
            edit("e1", "write_file", args("new.txt"), json!(""), json!("x\n")),
            edit("e2", "replace", args("a.txt"), json!("a\nb\n"), json!("a\nc\n"))
        ]),
    );
    log.model(
        "m2",
        "",
        json!([edit("e3", "write_file", args("a.txt"), json!("a\nc\n"), json!("z\n"))]),
    );
    let failed = call("e4", "replace", args("a.txt"), "error", json!({"error": "no match"}));
    // A creation by replace has no diff to display.
    let created = call(
        "e5",
        "replace",
        json!({"file_path": "/w/app/d/e.txt", "old_string": "", "new_string": "e\n"}),
        "success",
        json!({"output": "Created new file"}),
    );
    log.model("m3", "", json!([failed, created]));
    let store = store_of(&log);
    store.write(&path(format!("{PROJECT}/.project_root")), "/w/app");
    let seen = read_once(&store);
    let diff = seen.text(SESSION, "changes.diff");
    let index = seen.index(SESSION);
    let files = |kind: &str| -> Vec<String> {
        let files = index[kind].as_array().unwrap().iter();
        files.map(|file| file["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(files("files_created"), ["d/e.txt", "new.txt"]);
    assert_eq!(files("files_edited"), ["a.txt"]);
    if !is_here("git") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("w")).unwrap();
    fs::write(dir.path().join("w/a.txt"), "a\nb\n").unwrap();
    fs::write(dir.path().join("changes.diff"), diff).unwrap();
    let out = run(
        "git apply --check ../changes.diff && git apply ../changes.diff",
        &dir.path().join("w"),
    )
    .env("GIT_CEILING_DIRECTORIES", dir.path())
    .output()
    .unwrap();
    assert!(out.status.success(), "{}\n{diff}", String::from_utf8_lossy(&out.stderr));
    let read = |file: &str| fs::read_to_string(dir.path().join("w").join(file)).unwrap();
    assert_eq!(
        (read("a.txt"), read("new.txt"), read("d/e.txt")),
        ("z\n".into(), "x\n".into(), "e\n".into())
    );
}

#[test]
fn changes_without_a_display_come_from_the_arguments() {
    let mut log = Log::new();
    log.user("u", "go");
    let all = json!({"file_path": "/w/b.txt", "old_string": "old", "new_string": "new", "allow_multiple": true});
    log.model(
        "m",
        "",
        json!([
            call("e1", "replace", all, "success", json!({"output": "ok"})),
            call(
                "e2",
                "write_file",
                json!({"file_path": "/w/c.txt", "content": "whole\n"}),
                "success",
                json!({"output": "ok"})
            )
        ]),
    );
    let diff = shown(&log).text(SESSION, "changes.diff").to_owned();
    assert!(diff.contains("#-old\n#+new\n") && diff.contains("+whole\n"), "{diff}");
}
