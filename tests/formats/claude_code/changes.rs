//! changes.diff of a transcript: what its edits did, exact enough for `git apply`, and honest about
//! what the transcript does not tell.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use swarmletfs_base::error::Error;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_trace::ClaudeCode;
use swarmletfs_tree::analysis::settings::Control;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use crate::formats::text;
use crate::support::seen::names;
use crate::support::tool::{is_here, shell};
use crate::support::transcript::{Transcript, place, store, tree};
use crate::support::{cases, see, seed};

/// Directory of the worker.
const CWD: &str = "/home/dev/app";

/// Returns the tree over a store with this transcript as its only session, `s`.
fn tree_of(transcript: &Transcript) -> Tree {
    let store = store();
    store.write(&place("s"), transcript.bytes());
    tree(&store)
}

fn diff(transcript: &Transcript) -> String {
    text(&tree_of(transcript), "s", "changes.diff")
}

/// Appends a call that changes a file, and its result with these details.
fn edit(transcript: &mut Transcript, tool: &str, input: Value, details: Value) {
    let id = format!("e{}", transcript.bytes().len());
    transcript.call(&id, tool, input);
    let block =
        json!([{"type": "tool_result", "tool_use_id": id, "content": "The file was updated."}]);
    transcript.line(json!({"type": "user", "message": {"role": "user", "content": block},
        "toolUseResult": details}));
}

/// Appends an edit of a file with the content `before`.
fn replace(transcript: &mut Transcript, path: &str, before: &str, old: &str, new: &str) {
    let input = json!({"file_path": path, "old_string": old, "new_string": new});
    // The lines of the recorded diff are made for display, so only their number may be used.
    let lines = if new.is_empty() { &["-displayed"][..] } else { &["-displayed", "+shown"] };
    let patch =
        json!([{"oldStart": 1, "oldLines": 1, "newStart": 1, "newLines": 1, "lines": lines}]);
    let details = json!({"filePath": path, "oldString": old, "newString": new,
        "originalFile": before, "replaceAll": false, "userModified": false, "structuredPatch": patch});
    edit(transcript, "Edit", input, details);
}

/// Appends a call that writes a new file.
fn create(transcript: &mut Transcript, path: &str, content: &str) {
    let details = json!({"type": "create", "filePath": path, "content": content,
        "originalFile": null, "structuredPatch": []});
    edit(transcript, "Write", json!({"file_path": path, "content": content}), details);
}

/// Writes files into a new directory.
fn lay_out(files: &BTreeMap<String, String>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = dir.path().join("work").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    fs::create_dir_all(dir.path().join("work")).unwrap();
    dir
}

/// Applies a diff with git. Returns what git says if it refuses.
fn git_apply(dir: &Path, diff: &str) -> Result<(), String> {
    fs::write(dir.join("changes.diff"), diff).unwrap();
    let command =
        "git apply --check ../changes.diff && git apply --whitespace=nowarn ../changes.diff";
    let out =
        shell(command, &dir.join("work")).env("GIT_CEILING_DIRECTORIES", dir).output().unwrap();
    match out.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
    }
}

/// Names that git has to quote, and others.
const NAMES: [&str; 6] = ["src/a.rs", "my file.txt", "ü\"q\\.txt", "tab\tand\nline", "d/-e", "#x"];
/// Lines that a diff, a terminal or an attacker may write.
const LINES: [&str; 14] = [
    "a",
    "b",
    "c",
    "",
    "\tindented",
    "a\r",
    "x\ry",
    "diff --git a/z b/z",
    "--- a/z",
    "+++ b/z",
    "@@ -1,1 +1,1 @@",
    "# forged",
    "\\ No newline at end of file",
    "\u{200b}\u{1b}[31mé",
];

fn content(random: &mut fastrand::Rng) -> String {
    let mut text: String =
        (0..random.usize(..25)).map(|_| format!("{}\n", random.choice(LINES).unwrap())).collect();
    if random.bool() {
        text.pop();
    }
    text
}

/// A transcript with random edits, and the files before and after.
struct Session {
    transcript: Transcript,
    before: BTreeMap<String, String>,
    after: BTreeMap<String, String>,
}

impl Session {
    fn new(steps: &[(u8, usize, u64)]) -> Session {
        let mut random = fastrand::Rng::with_seed(seed());
        let before: BTreeMap<String, String> =
            NAMES.iter().take(4).map(|name| ((*name).into(), content(&mut random))).collect();
        let mut transcript = Transcript::new("s");
        transcript.user("Change it.");
        let mut session = Session { transcript, after: before.clone(), before };
        for (kind, name, seed) in steps {
            session.step(*kind, NAMES[*name], &mut fastrand::Rng::with_seed(*seed));
        }
        session.transcript.says("Done.");
        session
    }

    fn step(&mut self, kind: u8, name: &str, random: &mut fastrand::Rng) {
        let path = format!("{CWD}/{name}");
        let new = content(random);
        let transcript = &mut self.transcript;
        let Some(known) = self.after.get(name).cloned() else {
            create(transcript, &path, &new);
            self.after.insert(name.into(), new);
            return;
        };
        let lines: Vec<&str> = known.split_inclusive('\n').collect();
        let line = random.choice(&lines).copied().unwrap_or_default();
        let is_unique = !line.is_empty() && known.matches(line).count() == 1;
        let changed = match kind {
            0 => {
                let details = json!({"type": "update", "filePath": path, "content": new,
                    "originalFile": known, "structuredPatch": []});
                edit(transcript, "Write", json!({"file_path": path, "content": new}), details);
                new
            }
            1 | 2 if is_unique => {
                replace(transcript, &path, &known, line, &new);
                known.replacen(line, &new, 1)
            }
            3 if !line.trim().is_empty() => {
                let (old, new) = (line.trim_end(), "all");
                let input = json!({"file_path": path, "old_string": old, "new_string": new, "replace_all": true});
                let details = json!({"filePath": path, "oldString": old, "newString": new,
                    "originalFile": known, "replaceAll": true});
                edit(transcript, "Edit", input, details);
                known.replace(old, new)
            }
            4 if is_unique => {
                let edits = json!([{"old_string": line, "new_string": "first\n"},
                    {"old_string": "first\n", "new_string": new}]);
                let details = json!({"filePath": path, "originalFileContents": known});
                edit(transcript, "MultiEdit", json!({"file_path": path, "edits": edits}), details);
                let once = known.replacen(line, "first\n", 1);
                if once.matches("first\n").count() != 1 {
                    return;
                }
                once.replace("first\n", &new)
            }
            // The program removes the end of a line with the line.
            5 if is_unique && line.ends_with('\n') && line.len() > 1 => {
                let old = line.trim_end_matches('\n');
                if known.matches(&format!("{old}\n")).count() != 1 {
                    return;
                }
                replace(transcript, &path, &known, old, "");
                known.replacen(line, "", 1)
            }
            _ => {
                let id = format!("f{}", transcript.bytes().len());
                transcript.call(&id, "Write", json!({"file_path": path, "content": "refused"}));
                let why = "The user doesn't want to proceed with this tool use.";
                transcript.result(&id, json!({"content": why, "is_error": true}));
                return;
            }
        };
        self.after.insert(name.into(), changed);
    }
}

proptest! {
    #![proptest_config(cases(48))]

    /// Promise: `git apply` of changes.diff turns the recorded originals into exactly the contents
    /// that the edits left behind.
    #[test]
    fn git_applies_changes_exactly(
        steps in proptest::collection::vec((0..7_u8, 0..NAMES.len(), any::<u64>()), 1..14),
    ) {
        if !is_here("git") {
            return Ok(());
        }
        let session = Session::new(&steps);
        let tree = tree_of(&session.transcript);
        let dir = lay_out(&session.before);
        match see(&tree, "workers/s/changes.diff") {
            Ok(seen) => git_apply(dir.path(), seen.text()).map_err(TestCaseError::fail)?,
            Err(error) => prop_assert!(error.is_not_found() && session.before == session.after),
        }
        for (path, content) in &session.after {
            let found = fs::read_to_string(dir.path().join("work").join(path)).unwrap_or_default();
            prop_assert_eq!(&found, content, "{}", path);
        }
    }

    /// Promise: `changes.<size>.diff` is never larger than its size, and holds only whole hunks
    /// that git can apply.
    #[test]
    fn a_budget_of_changes_holds_and_cuts_no_hunk(
        steps in proptest::collection::vec((0..7_u8, 0..NAMES.len(), any::<u64>()), 1..14),
        size in 0..3_000_usize,
        in_tokens in any::<bool>(),
    ) {
        let session = Session::new(&steps);
        let tree = tree_of(&session.transcript);
        let unit = if in_tokens { "tok" } else { "" };
        let Ok(seen) = see(&tree, format!("workers/s/changes.{size}{unit}.diff")) else {
            return Ok(());
        };
        let part = seen.text();
        let budget = Budget::parse(&format!("{size}{unit}")).unwrap();
        prop_assert!(budget.used(part) <= size, "{} of {}", budget.used(part), size);
        let dir = lay_out(&session.before);
        if part.contains("\ndiff --git") && is_here("git") {
            git_apply(dir.path(), part).map_err(|error| TestCaseError::fail(error + part))?;
        }
        let whole = text(&tree, "s", "changes.diff");
        let head = |text: &str| text.lines().next().unwrap_or_default().to_owned();
        prop_assert!(head(&whole).starts_with(&head(part)));
        let hunks = |text: &str| text.lines().filter(|line| line.starts_with("@@ ")).count();
        let left_out = hunks(&whole) - hunks(part);
        let is_told = left_out == 0 || part.contains("left out") || !part.contains("\ndiff --git");
        prop_assert!(is_told, "{}", part);
    }
}

/// Promise: Calls that failed or were refused change nothing in changes.diff.
#[test]
fn failed_and_refused_edits_change_nothing() {
    let mut transcript = Transcript::new("s");
    transcript.user("Change it.");
    for (id, why) in [
        ("1", "String to replace not found in file."),
        ("2", "The user doesn't want to proceed with this tool use."),
        ("3", "Permission to use Edit has been denied."),
    ] {
        let path = format!("{CWD}/a.txt");
        transcript.call(
            id,
            "Edit",
            json!({"file_path": path, "old_string": "a", "new_string": "b"}),
        );
        transcript.result(id, json!({"content": why, "is_error": true}));
    }
    // A call without a result may not have run.
    transcript.call("4", "Write", json!({"file_path": format!("{CWD}/b.txt"), "content": "b"}));
    let tree = tree_of(&transcript);
    assert_eq!(see(&tree, "workers/s/changes.diff"), Err(Error::NotFound));
    create(&mut transcript, &format!("{CWD}/c.txt"), "c\n");
    let diff = diff(&transcript);
    assert!(diff.starts_with("# 1 file, +1 -0, by 1 edit of worker s\n"), "{diff}");
    let summary = text(&tree_of(&transcript), "s", "summary");
    assert!(summary.contains("\nchanges  1 file, +1 -0: c.txt\n"), "{summary}");
}

/// Promise: The summary of a worker counts its changes as changes.diff does.
#[test]
fn summary_counts_changes_as_changes_diff_does() {
    let mut transcript = Transcript::new("s");
    transcript.user("Change it.");
    let small = format!("{CWD}/a.txt");
    // The same line is edited again and again: one line changes in all.
    for [before, after] in [["1\n", "2\n"], ["2\n", "3\n"], ["3\n", "4\n"], ["4\n", "5\n"]] {
        replace(&mut transcript, &small, before, before, after);
    }
    create(&mut transcript, "/tmp/notes.txt", "a\nb\nc\n");
    // These two edits undo each other, so the file is not in changes.diff.
    let undone = format!("{CWD}/b.txt");
    replace(&mut transcript, &undone, "x\n", "x\n", "y\n");
    replace(&mut transcript, &undone, "y\n", "y\n", "x\n");
    let tree = tree_of(&transcript);
    let diff = text(&tree, "s", "changes.diff");
    assert!(diff.starts_with("# 2 files, +4 -1, by 7 edits of worker s\n"), "{diff}");
    let summary = text(&tree, "s", "summary");
    let line = "\nchanges  2 files, +4 -1: /tmp/notes.txt, a.txt\n";
    assert!(summary.contains(line), "largest first: {summary}");
    let index: Value = serde_json::from_str(&text(&tree, "s", "index.json")).unwrap();
    let edited = index["files_edited"].as_array().unwrap();
    let [file] = edited.iter().filter(|file| file["path"] == "a.txt").collect::<Vec<_>>()[..]
    else {
        panic!("{index:#}")
    };
    assert_eq!(file["edits"], 4, "all edits are added up: {index:#}");
}

/// Promise: A worker has a changes.diff only if its record holds edits.
#[test]
fn a_worker_without_edits_has_no_changes() {
    let mut transcript = Transcript::new("s");
    transcript.user("Look.").bash("1", "ls", "a");
    let tree = tree_of(&transcript);
    let has = |tree: &Tree| names(tree, "workers/s").unwrap().contains(&b"changes.diff".to_vec());
    assert!(!has(&tree));
    for name in ["changes.diff", "changes.4k.diff"] {
        assert_eq!(see(&tree, format!("workers/s/{name}")), Err(Error::NotFound), "{name}");
    }
    create(&mut transcript, "/home/dev/app/a", "");
    let tree = tree_of(&transcript);
    assert!(has(&tree));
    let diff = text(&tree, "s", "changes.diff");
    let expected = "diff --git a/a b/a\nnew file mode 100644\nindex 0000000..e69de29\n";
    assert!(diff.ends_with(expected), "{diff}");
    for path in ["changes.diff", "changes.4k.diff"] {
        assert_eq!(see(&tree, path), Err(Error::NotFound), "{path}");
    }
}

#[test]
fn the_recorded_diff_tells_whether_a_removed_text_took_its_line_end() {
    for (lines, left) in [(&["-b"][..], "a\nc\n"), (&["-b", "+"], "a\n\nc\n")] {
        let mut transcript = Transcript::new("s");
        let path = format!("{CWD}/a.txt");
        let input = json!({"file_path": path, "old_string": "b", "new_string": ""});
        let details = json!({"filePath": path, "oldString": "b", "newString": "",
            "originalFile": "a\nb\nc\n", "structuredPatch": [{"oldStart": 2, "lines": lines}]});
        edit(&mut transcript, "Edit", input, details);
        // The next edit confirms the content.
        replace(&mut transcript, &path, left, "c", "d");
        let diff = diff(&transcript);
        assert!(!diff.contains("changed in between"), "{left:?}: {diff}");
    }
}

#[test]
fn a_change_that_the_record_does_not_hold_begins_a_further_part() {
    let mut transcript = Transcript::new("s");
    let path = format!("{CWD}/a.txt");
    replace(&mut transcript, &path, "a\nb\n", "b", "c");
    replace(&mut transcript, &path, "other\na\nc\n", "a", "d");
    let diff = diff(&transcript);
    let parts = "# +2 -2 a.txt\n\
        diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\
        # a.txt: changed in between by something that the record does not hold\n\
        diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n other\n-a\n+d\n c\n";
    assert!(diff.ends_with(parts), "{diff}");
}

/// Promise: An edit whose place is not recorded is a comment in changes.diff that says so.
#[test]
fn edits_without_the_original_are_comments() {
    let mut transcript = Transcript::new("s");
    transcript.user("Begin.");
    // The lines of a subagent inside a session have no details of results.
    let agent = |transcript: &mut Transcript, id: &str, tool: &str, input: Value| {
        let call = json!([{"type": "tool_use", "id": id, "name": tool, "input": input}]);
        transcript.progress("helper", "assistant", json!({"role": "assistant", "content": call}));
        let result = json!([{"type": "tool_result", "tool_use_id": id, "content": "ok"}]);
        transcript.progress("helper", "user", json!({"role": "user", "content": result}));
    };
    let file = |name: &str| format!("{CWD}/{name}");
    agent(
        &mut transcript,
        "1",
        "Edit",
        json!({"file_path": file("a.txt"), "old_string": "one\u{1b}[1m\n[EVIDENCE:x]", "new_string": "two"}),
    );
    agent(&mut transcript, "2", "Write", json!({"file_path": file("b.txt"), "content": "new\n"}));
    // What the agent itself wrote is known.
    let input = json!({"file_path": file("b.txt"), "old_string": "new", "new_string": "newer"});
    agent(&mut transcript, "3", "Edit", input);
    let notebook =
        json!({"notebook_path": file("n.ipynb"), "cell_id": "c7", "new_source": "print(1)"});
    agent(&mut transcript, "4", "NotebookEdit", notebook);
    let tree = tree_of(&transcript);
    let diff = text(&tree, "helper", "changes.diff");
    for line in [
        "# 2 edits cannot be placed, because the record does not hold the content before\n",
        "# a.txt: call 1 changed it at an unknown place:\n#-one\n#-[\\EVIDENCE:x]\n#+two\n",
        "# b.txt: written whole; the record does not hold what was there before, so it is shown as new\n",
        "@@ -0,0 +1,1 @@\n+newer\n",
        "# n.ipynb: call 4 changed it at replace cell c7:\n#+print(1)\n",
    ] {
        assert!(diff.contains(line), "{line:?} is not in {diff}");
    }
    if is_here("git") {
        let dir = lay_out(&BTreeMap::new());
        git_apply(dir.path(), &diff).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("work/b.txt")).unwrap(), "newer\n");
    }
    assert_eq!(see(&tree, "workers/s/changes.diff"), Err(Error::NotFound));
}

#[test]
fn the_record_s_own_diff_is_shown_where_nothing_else_is_known() {
    let mut transcript = Transcript::new("s");
    let patch = json!([{"oldStart": 4, "oldLines": 2, "newStart": 4, "newLines": 3,
        "lines": [" a", "-b", "+c", "+d"]}]);
    let input = json!({"file_path": format!("{CWD}/a"), "old_string": "b", "new_string": "c\nd"});
    edit(&mut transcript, "Edit", input, json!({"originalFile": null, "structuredPatch": patch}));
    let diff = diff(&transcript);
    assert!(diff.contains("# a: as the record's own diff shows it"), "{diff}");
    assert!(diff.ends_with("+++ b/a\n@@ -4,2 +4,3 @@\n a\n-b\n+c\n+d\n"), "{diff}");
}

/// Promise: No path and no text of a worker forges a file or a comment in changes.diff.
#[test]
fn hostile_paths_and_texts_stay_in_their_place() {
    let mut transcript = Transcript::new("s");
    let forged =
        "x\n# 9 files\ndiff --git a/evil b/evil\n--- a/evil\n+++ b/evil\n@@ -0,0 +1 @@\n+evil\n";
    for path in [
        "../../../etc/passwd",
        "/etc/passwd",
        "/home/dev/app/../other/x",
        "/home/dev/app/etc/passwd",
        "src/\n--- a/evil\n+++ b/evil\n\"q\"",
        "/home/dev/app/./deep//er/\u{202e}x",
    ] {
        create(&mut transcript, path, forged);
    }
    // Git refuses a whole diff because of such a path, so it must not see it.
    for path in ["/home/dev/app/.git/hooks/x", "/home/dev/app/a/.GIT/x", "/", "nul\0"] {
        create(&mut transcript, path, "#!/bin/sh\n");
    }
    let tree = tree_of(&transcript);
    let diff = text(&tree, "s", "changes.diff");
    let files = |sign: &str| {
        let lines = diff.lines().filter_map(|line| line.strip_prefix(sign));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let inside = [
        "b/etc/passwd",
        "\"b/src/\\n--- a/evil\\n+++ b/evil\\n\\\"q\\\"\"",
        "\"b/deep/er/\\342\\200\\256x\"",
    ];
    let expected = ["b/home/dev/other/x", inside[0], inside[1], inside[2]];
    assert_eq!(files("+++ "), expected, "{diff}");
    assert!(
        diff.contains("its diff is a comment, because another file has the same path"),
        "{diff}"
    );
    assert_eq!(diff.lines().filter(|line| line.starts_with("diff --git ")).count(), 4);
    assert_eq!(diff.matches("because git accepts no such path").count(), 4, "{diff}");
    for line in diff.lines() {
        let is_known =
            ["#", "diff --git ", "new file mode ", "--- ", "+++ ", "@@ -0,0 +1,7 @@", "+"]
                .iter()
                .any(|begin| line.starts_with(begin));
        assert!(is_known, "{line:?} in {diff}");
    }
    if is_here("git") {
        let dir = lay_out(&BTreeMap::new());
        git_apply(dir.path(), &diff).unwrap();
        let made = fs::read_to_string(dir.path().join("work/etc/passwd")).unwrap();
        assert_eq!(made, forged);
        assert!(!dir.path().join("evil").exists() && !dir.path().join("work/evil").exists());
    }
}

#[test]
fn invisible_characters_in_a_diff_are_unchanged_and_counted() {
    let mut transcript = Transcript::new("s");
    create(&mut transcript, &format!("{CWD}/a"), "a\u{200b}b\u{1b}[1m\r\n");
    let diff = diff(&transcript);
    let told =
        "# holds 2 invisible or control characters, unchanged so that the diff stays exact\n";
    assert!(diff.contains(told), "{diff}");
    assert!(diff.ends_with("+a\u{200b}b\u{1b}[1m\r\n"), "{diff}");
}

#[test]
fn edits_beyond_a_limit_are_counted() {
    let mut transcript = Transcript::new("s");
    let huge = "0123456789abcde\n".repeat(900_000);
    for number in 0..5 {
        let path = format!("{CWD}/{number}");
        replace(&mut transcript, &path, &format!("{huge}last\n"), "last", "x");
    }
    let store = store();
    store.write(&place("s"), transcript.bytes());
    let source = Source::from_store(store, None).with_format(Box::new(ClaudeCode::transcripts()));
    let view = View::new(vec![source], Freshness::default(), Filter::default()).unwrap();
    let settings = Settings::without_deadline(Arc::new(Control::new(|| true)));
    let diff = text(&Tree::new(view, settings), "s", "changes.4k.diff");
    assert!(diff.contains("\n# 1 edit not shown: the record exceeds a limit\n"), "{diff}");
    assert!(diff.starts_with("# 4 files, +4 -4, by 4 edits of worker s\n"), "{diff}");
    assert!(diff.contains("@@ -899998,4 +899998,4 @@\n"), "{diff}");
}

#[test]
fn index_lists_files_read_edited_and_created() {
    let mut transcript = Transcript::new("s");
    transcript.call("r", "Read", json!({"file_path": format!("{CWD}/r.txt")}));
    transcript.result("r", json!({"content": "text"}));
    replace(&mut transcript, &format!("{CWD}/e.txt"), "a\n", "a", "b");
    create(&mut transcript, "/tmp/c.txt", "1\n2\n");
    let seen = see(&tree_of(&transcript), "workers/s/index.json").unwrap();
    let index: Value = serde_json::from_slice(seen.bytes()).unwrap();
    assert_eq!(index["files_read"], json!([{"path": "r.txt", "reads": 1}]));
    let edited = json!([{"path": "e.txt", "edits": 1, "added": 1, "removed": 1}]);
    assert_eq!(index["files_edited"], edited);
    let created = json!([{"path": "/tmp/c.txt", "edits": 1, "added": 2, "removed": 0}]);
    assert_eq!(index["files_created"], created);
    assert!(index["files_not_listed"].is_null());
}
