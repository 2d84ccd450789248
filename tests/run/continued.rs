//! Workers that go on with the changes of others: `run --continue` and `rebase`.

use std::ffi::OsStr;
use std::fs;

use super::commits::swarmletfs;
use super::git::{has_git, repository};
use super::workspace::Workspace;
use crate::cli::program::run;
use crate::support::mount::PROGRAM;

/// Runs `swarmletfs run --continue`.
fn go_on(
    place: &Workspace,
    id: &str,
    options: &[&str],
    command: &[&str],
) -> crate::cli::program::CommandOutput {
    let store = place.at("store");
    let mut words = vec![PROGRAM, "run", "--continue", id];
    words.extend(options);
    let mut words: Vec<&OsStr> = words.into_iter().map(OsStr::new).collect();
    words.extend([OsStr::new("--store"), store.as_os_str()]);
    if !command.is_empty() {
        words.push(OsStr::new("--"));
        words.extend(command.iter().map(OsStr::new));
    }
    run(place.command(words))
}

const CHANGE: &str = "set -e; echo three >> notes; mkdir -p new/in; echo n > new/in/n
    ln -s notes link; chmod +x tool; rm gone; rm -r dir; echo file > dir";

fn workspace() -> [Workspace; 2] {
    let places = Workspace::all();
    for place in &places {
        place.outside("echo t > tool; echo g > gone; mkdir dir; echo a > dir/a; echo k > kept");
    }
    places
}

/// Promise: `run --continue` starts a worker with the changes of another one, on the workspace as
/// it is now; the commands on the old worker lead to it until it is discarded.
#[test]
fn a_worker_goes_on_with_the_changes_of_another_one() {
    for (place, engine) in workspace().into_iter().zip(["overlay", "copy"]) {
        place.sh(&["--owner", "7"], CHANGE).assert_success();
        let before = place.changes("w");
        place.outside("echo mine > other; sed -i '1s/one/uno/' notes");
        let done = go_on(
            &place,
            "w",
            &["--engine", engine],
            &["sh", "-c", "cat notes dir link other; ls; echo x > x"],
        );
        done.assert_success();
        let shown = "uno\ntwo\nthree\nfile\nuno\ntwo\nthree\nmine\ndir\nkept\nlink\nnew\nnotes\nother\ntool\n";
        assert_eq!(done.out, shown, "{done:#?}");
        assert!(done.err.contains("merged notes with the workspace"), "{done:#?}");
        let mut expected = before.clone();
        expected.push("added x".to_owned());
        assert_eq!(place.changes("w-2"), expected);
        assert_eq!(place.changes("w"), before);
        let metadata = place.metadata("w-2");
        assert_eq!((&metadata["parent_id"], &metadata["owner_id"]), (&"w".into(), &"7".into()));
        let states = || {
            let listed = swarmletfs(&place, &["review", "--json"]).assert_success().out.clone();
            let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
            let rows = listed.as_array().unwrap().clone();
            let text = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap().to_owned();
            let mut rows: Vec<_> =
                rows.iter().map(|row| (text(row, "id"), text(row, "state"))).collect();
            rows.sort();
            rows
        };
        let row = |id: &str, state: &str| (id.to_owned(), state.to_owned());
        assert_eq!(states(), [row("w", "continued"), row("w-2", "waiting")]);
        let applied = swarmletfs(&place, &["apply", "w", "--yes"]);
        assert!(applied.assert_success().err.contains("w-2 went on with the changes of w"));
        let tree = "uno\ntwo\nthree\nfile\nx\n";
        assert_eq!(place.outside("cat notes dir x; test -x tool; test ! -e gone"), tree);
        swarmletfs(&place, &["undo", "w", "--yes"]).assert_success();
        assert_eq!(place.outside("cat notes dir/a gone; test ! -e x"), "uno\ntwo\na\ng\n");
        swarmletfs(&place, &["discard", "w", "--yes"]).assert_success();
        assert_eq!(states(), [row("w", "waiting"), row("w-2", "discarded")]);
        // A third one: the id of the second is taken.
        go_on(&place, "w", &[], &["true"]).assert_success();
        assert_eq!(place.changes("w-3"), before);
        go_on(&place, "w", &[], &["rm", "notes"]).assert_success();
        assert_eq!(states()[0..1], [row("w", "continued")]);
        assert!(place.changes("w-4").contains(&"deleted notes".to_owned()));
    }
}

#[test]
fn comments_come_into_the_prompt() {
    let place = Workspace::new();
    place.write("workspace/claude", "#!/bin/sh\nprintf '%s|' \"$@\" >> said\n");
    place.outside("chmod +x claude");
    place.run(&[], &["./claude", "-p", "Do it", "--verbose"]).assert_success();
    let refused = go_on(&place, "w", &[], &[]);
    assert_eq!(refused.code, Some(125), "{refused:#?}");
    assert!(refused.err.contains("nobody commented on it"), "{refused:#?}");
    swarmletfs(&place, &["review", "w", "--comment", "Say less"]).assert_success();
    let done = go_on(&place, "w", &[], &[]);
    done.assert_success();
    let said = place.read("store/workers/w-2/changes/said");
    assert!(said.starts_with("-p|Do it|--verbose|-p|Do it\n\nYour earlier changes"), "{said}");
    assert!(said.ends_with("\n\nSay less\n|--verbose|"), "{said}");
    assert!(!place.at("store/workers/w/comments.txt").exists());
    // Another program needs to be told where its prompt is.
    place.run(&["--id", "v"], &["sh", "-c", "true"]).assert_success();
    swarmletfs(&place, &["review", "v", "--comment", "A $(touch /tmp/x) comment"]).assert_success();
    let refused = go_on(&place, "v", &[], &[]);
    assert!(refused.err.contains("COMMAND {}") && refused.code == Some(125), "{refused:#?}");
    let done = go_on(&place, "v", &[], &["sh", "-c", "echo \"$1\"", "sh", "{}"]);
    assert!(done.assert_success().out.ends_with("\n\nA $(touch /tmp/x) comment\n\n"), "{done:#?}");
}

/// Promise: `rebase` merges what others changed meanwhile and runs the worker's checks again; a
/// conflict makes nothing and is named.
#[test]
fn a_draft_comes_onto_the_workspace_of_now() {
    let place = Workspace::new();
    place.outside("seq 9 > lines");
    let check = "swarmletfs record -- sh -c 'grep -q two lines'";
    let program = std::path::Path::new(PROGRAM).parent().unwrap().display().to_string();
    let script = format!("PATH=$PATH:{program}; sed -i s/^2/two/ lines; {check}");
    place.sh(&[], &script).assert_success();
    place.outside("sed -i s/^8/eight/ lines");
    let rebase = |options: &[&str]| swarmletfs(&place, &[&["rebase", "w"], options].concat());
    let done = rebase(&["--check", "grep -q two lines", "--check", "grep -q eight lines"]);
    assert!(done.assert_success().err.contains("merged lines with the workspace"), "{done:#?}");
    let checks = fs::read_dir(place.at("store/workers/w-2/tool_calls")).unwrap().count();
    assert_eq!(checks, 1);
    let red = rebase(&["--check", "grep -q nine lines", "--check", "touch never"]);
    assert_eq!(red.code, Some(1), "{red:#?}");
    assert_eq!(place.changes("w-3"), ["modified lines"]);
    swarmletfs(&place, &["apply", "w", "--yes"]).assert_success();
    assert_eq!(place.read("workspace/lines"), "1\ntwo\n3\n4\n5\n6\n7\neight\n9\n");
    swarmletfs(&place, &["undo", "w", "--yes"]).assert_success();
    place.outside("sed -i s/^2/zwei/ lines");
    let workers = place.workers();
    let refused = rebase(&[]);
    assert_eq!(refused.code, Some(125), "{refused:#?}");
    assert!(refused.err.contains("lines: it was changed meanwhile"), "{refused:#?}");
    assert_eq!(place.workers(), workers, "a refusal leaves no worker");
    let marked = rebase(&["--merge=markers"]);
    assert!(marked.assert_success().err.contains("1 conflict between markers"), "{marked:#?}");
    assert!(marked.err.contains("no check of the worker is known"), "{marked:#?}");
    let lines = place.read("store/workers/w-4/changes/lines");
    assert!(lines.contains("<<<<<<< workspace\nzwei\n=======\ntwo\n>>>>>>> worker\n"), "{lines}");
}

/// A check is run as it is given, and comments wait for the next run of the agent.
#[test]
fn a_rebase_takes_no_words_from_comments() {
    let place = Workspace::new();
    place.sh(&[], "echo three >> notes").assert_success();
    swarmletfs(&place, &["review", "w", "--comment", "Say $(touch said) less"]).assert_success();
    let check = "test -e notes && find notes -exec grep -q three {} +";
    swarmletfs(&place, &["rebase", "w", "--check", check]).assert_success();
    assert_eq!(place.changes("w-2"), ["modified notes"]);
    assert!(!place.at("store/workers/w/comments.txt").exists());
    assert_eq!(place.read("store/workers/w-2/comments.txt"), "Say $(touch said) less\n");
    let done = go_on(&place, "w", &[], &["sh", "-c", "echo \"$1\"", "sh", "{}"]);
    assert!(done.assert_success().out.ends_with("\n\nSay $(touch said) less\n\n"), "{done:#?}");
}

#[test]
fn commits_are_there_when_a_worker_goes_on() {
    if !has_git() {
        return;
    }
    for (place, engine) in Workspace::all().into_iter().zip(["overlay", "copy"]) {
        repository(&place);
        place
            .sh(
                &[],
                "git config user.name Agent; echo b > b; git add b; git commit -qm one; echo c > c",
            )
            .assert_success();
        place.outside("echo mine > mine; git add mine; git commit -qm mine");
        let script = "set -e; git status --short; git config user.name Agent; echo d > d; git add d
            git commit -qm two; git log --format=%s";
        let done = go_on(&place, "w", &["--engine", engine], &["sh", "-c", script]);
        assert_eq!(done.assert_success().out, "?? c\ntwo\none\nmine\nfirst\n", "{done:#?}");
        assert_eq!(place.outside("git log --format=%s; git status --short"), "mine\nfirst\n");
        swarmletfs(&place, &["apply", "w", "--commits", "--yes"]).assert_success();
        let log = place.outside(
            "git log --format='%an %s'; git status --short; git fsck --strict --no-dangling",
        );
        assert_eq!(log, "Agent two\nAgent one\nT mine\nT first\n?? c\n");
    }
}

/// Promise: An archive holds the drafts of its workers, which can be applied from there.
#[test]
fn a_draft_is_applied_from_an_archive() {
    let place = Workspace::new();
    place.sh(&[], CHANGE_OF_NOTES).assert_success();
    let archive = place.at("archive").display().to_string();
    let rules = ["--max-workers", "0", "--unreviewed", "--attention", "--yes"];
    swarmletfs(&place, &[&["gc", "--archive", &archive], &rules[..]].concat()).assert_success();
    let gone = swarmletfs(&place, &["changes", "w"]);
    assert!(gone.err.contains(&format!("--store {archive}")), "{gone:#?}");
    let in_archive = |words: &[&str]| {
        let words = [&[PROGRAM], words, &["--store", &archive]].concat();
        run(place.command(words.into_iter().map(OsStr::new)))
    };
    assert!(in_archive(&["review"]).assert_success().out.contains("waiting"));
    in_archive(&["apply", "w", "--yes"]).assert_success();
    assert_eq!(place.read("workspace/notes"), "one\ntwo\nthree\n");
    in_archive(&["undo", "w", "--yes"]).assert_success();
    assert_eq!(place.read("workspace/notes"), "one\ntwo\n");
}

const CHANGE_OF_NOTES: &str = "echo three >> notes";

/// A commit that conflicts comes as files with markers, for the agent to resolve, if that is asked
/// for.
#[test]
fn an_agent_resolves_the_conflict_of_its_commit() {
    if !has_git() {
        return;
    }
    let place = Workspace::new();
    repository(&place);
    place.sh(&[], "sed -i s/one/uno/ notes; git commit -qam uno").assert_success();
    place.outside("sed -i s/one/eins/ notes; git commit -qam eins");
    let refused = go_on(&place, "w", &[], &["true"]);
    assert_eq!(refused.code, Some(125), "{refused:#?}");
    let script = "cat notes; printf 'uno, eins\\ntwo\\n' > notes; git commit -qam both";
    let done = go_on(&place, "w", &["--merge=markers"], &["sh", "-c", script]);
    let both = "<<<<<<< workspace\neins\n=======\nuno\n>>>>>>> worker\ntwo\n";
    assert_eq!(done.assert_success().out, both, "{done:#?}");
    assert!(done.err.contains("its commits are not in the new view"), "{done:#?}");
    swarmletfs(&place, &["apply", "w", "--commits", "--yes"]).assert_success();
    let log = place.outside("git log --format=%s; cat notes; git status --porcelain");
    assert_eq!(log, "both\neins\nfirst\nuno, eins\ntwo\n");
}
