//! Commits that a command makes in its view, and their way out.

use std::ffi::OsStr;
use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use super::git::{SETUP, has_git, repository};
use super::workspace::Workspace;
use crate::cli::program::{CommandOutput, program, run, wait_until};
use crate::support::mount::PROGRAM;
use crate::support::scale;

/// Runs `swarmletfs` with these words on the store.
pub fn swarmletfs(place: &Workspace, words: &[&str]) -> CommandOutput {
    let store = place.at("store");
    let words = [&[PROGRAM], words].concat();
    let words = words.into_iter().map(OsStr::new);
    run(place.command(words.chain([OsStr::new("--store"), store.as_os_str()])))
}

/// Applies the changes of the worker `w`.
pub fn apply(place: &Workspace, options: &[&str]) -> CommandOutput {
    swarmletfs(place, &[&["apply", "w", "--yes"], options].concat())
}

#[track_caller]
fn refused(done: &CommandOutput, reason: &str) {
    assert_eq!(done.code, Some(1), "{done:#?}");
    assert!(done.err.contains(reason), "{done:#?}");
}

const LOG: &str = "git log --format='%an: %s'; git status --porcelain";

/// Makes two commits and a change that is not committed.
const SCRIPT: &str = "set -e; git config user.name Agent
    echo three >> notes; git commit -qam 'Add three'
    echo b > dir/b; git add .; git commit -qm 'Add b'; echo c > c";

/// Promise: Commits that a command makes in its view are kept, and `apply --commits` brings them
/// onto the branch with their authors and messages, without hooks; `undo` takes them back.
#[test]
fn commits_come_onto_the_branch() {
    if !has_git() {
        return;
    }
    for (place, engine) in Workspace::all().into_iter().zip(["overlay", "copy"]) {
        repository(&place);
        let marker = place.at("outside/marker");
        place.outside(&format!(
            "for hook in post-commit post-checkout reference-transaction post-rewrite; do
                 printf '#!/bin/sh\ntouch {} 2> /dev/null; true\n' > .git/hooks/$hook; chmod +x .git/hooks/$hook; done",
            marker.display()
        ));
        let before = place.outside("git rev-parse HEAD");
        let done = place.sh(&["--engine", engine], SCRIPT);
        assert!(done.assert_success().err.contains(", 2 commits"), "{done:#?}");
        let shown = swarmletfs(&place, &["changes", "w", "--stat"]);
        assert!(shown.err.contains("2 commits: ") && shown.err.contains("Add b"), "{shown:#?}");
        assert_eq!(place.outside("git rev-parse HEAD"), before);
        let applied = apply(&place, &["--commits"]);
        let branch = place.outside("git branch --show-current");
        let expected = format!("applied 2 commits onto {}, and ", branch.trim());
        assert!(applied.assert_success().err.contains(&expected), "{applied:#?}");
        let expected = "Agent: Add b\nAgent: Add three\nT: first\n?? c\n";
        assert_eq!(place.outside(LOG), expected);
        place.outside("git fsck --strict");
        if place.is_ordinary() {
            assert_eq!(place.outside("find .git ! -user $(id -u)"), "");
        }
        let undone = swarmletfs(&place, &["undo", "w", "--yes"]);
        undone.assert_success();
        assert_eq!(
            place.outside(&format!("git rev-parse HEAD; {LOG}")),
            format!("{before}T: first\n")
        );
        // The files alone, and the commits later.
        apply(&place, &[]).assert_success();
        apply(&place, &["--commits"]).assert_success();
        assert_eq!(place.outside(LOG), "Agent: Add b\nAgent: Add three\nT: first\n?? c\n");
        assert!(apply(&place, &["--commits"]).err.contains("nothing to apply"));
        assert!(!marker.exists(), "a hook was run");
    }
}

#[test]
fn a_new_branch_changes_no_file() {
    if !has_git() {
        return;
    }
    let place = Workspace::new();
    repository(&place);
    place.sh(&[], SCRIPT).assert_success();
    let applied = apply(&place, &["--branch", "fix/12"]);
    assert!(applied.assert_success().err.contains("1 changed file in no commit"), "{applied:#?}");
    assert_eq!(place.outside(LOG), "T: first\n");
    assert_eq!(place.outside("git log --format=%s fix/12"), "Add b\nAdd three\nfirst\n");
    let review = swarmletfs(&place, &["review"]);
    assert!(review.out.contains("partly applied"), "{review:#?}");
    refused(&apply(&place, &["--branch", "fix/12"]), "there is a branch fix/12 already");
    for name in ["-x", "a..b", "refs/../x", "@{-1}"] {
        let done = apply(&place, &[&format!("--branch={name}")]);
        refused(&done, "is no name of a branch");
    }
    swarmletfs(&place, &["undo", "w", "--yes"]).assert_success();
    assert_eq!(place.outside("git branch | wc -l"), "1\n");
    let done = place.sh(&["--id", "w2"], "echo x > x");
    done.assert_success();
    refused(&swarmletfs(&place, &["apply", "w2", "--yes", "--branch", "x"]), "it made none");
    let plain = swarmletfs(&place, &["apply", "w2", "--yes", "--commits"]);
    assert!(plain.assert_success().err.contains("made no commits"), "{plain:#?}");
}

/// Promise: If the branch moved, `apply --commits` makes the commits anew on top of it; a conflict,
/// an index with changes, an unfinished merge and a submodule that moved change nothing, and are
/// named.
#[test]
fn a_branch_that_moved_gets_the_commits_or_nothing() {
    if !has_git() {
        return;
    }
    let place = Workspace::new();
    repository(&place);
    place.outside("seq 9 > lines; git add .; git commit -qm lines");
    place
        .sh(&[], "git config user.name Agent; sed -i s/^2/two/ lines; git commit -qam 'Two'")
        .assert_success();
    place.outside("sed -i s/^8/eight/ lines; git commit -qam mine; echo x > x; git add x");
    refused(&apply(&place, &["--commits", "--merge"]), "the index has changes");
    place.outside("git rm -q --cached x");
    refused(&apply(&place, &["--commits"]), "lines: it was changed meanwhile");
    assert_eq!(place.outside(LOG), "T: mine\nT: lines\nT: first\n?? x\n");
    apply(&place, &["--commits", "--merge"]).assert_success();
    assert_eq!(place.outside(LOG), "Agent: Two\nT: mine\nT: lines\nT: first\n?? x\n");
    let lines = "1\ntwo\n3\n4\n5\n6\n7\neight\n9\n";
    assert_eq!(place.read("workspace/lines"), lines);
    place.outside("git commit -q --allow-empty -m later");
    refused(&swarmletfs(&place, &["undo", "w", "--yes"]), "has moved since");
    place.outside("git reset -q --soft HEAD^");
    swarmletfs(&place, &["undo", "w", "--yes"]).assert_success();
    assert_eq!(place.outside(LOG), "T: mine\nT: lines\nT: first\n?? x\n");
    place.outside("touch .git/MERGE_HEAD");
    refused(&apply(&place, &["--commits", "--merge"]), "MERGE_HEAD");
    place.outside("rm .git/MERGE_HEAD; sed -i s/^2/zwei/ lines; git commit -qam other");
    let tree = place.outside("git rev-parse HEAD; cat lines");
    refused(&apply(&place, &["--commits", "--merge=markers"]), "conflicts with it in lines");
    assert_eq!(place.outside("git rev-parse HEAD; cat lines"), tree);
    let marked = apply(&place, &["--merge=markers"]);
    assert!(marked.assert_success().err.contains("1 conflict between markers in lines"));
    let both = "1\n<<<<<<< workspace\nzwei\n=======\ntwo\n>>>>>>> worker\n3\n";
    assert!(place.read("workspace/lines").starts_with(both));
}

/// A commit comes whole or not at all, so a file that programs run unasked keeps all of them out.
#[test]
fn hostile_commits_stay_outside() {
    if !has_git() {
        return;
    }
    for place in Workspace::all() {
        repository(&place);
        let marker = place.at("outside/marker");
        let path = marker.display();
        let cases = [
            // A later commit hides it again.
            "echo evil > .envrc; git add .; git commit -qm 1; git rm -q .envrc; git commit -qm 2",
            "ln -s ../../outside .vscode; git add .; git commit -qm 1",
            "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub; git commit -qm 1",
        ];
        for (number, script) in cases.into_iter().enumerate() {
            let id = format!("bad{number}");
            place.sh(&["--id", &id], script).assert_success();
            let done = swarmletfs(&place, &["apply", &id, "--yes", "--commits"]);
            refused(&done, "cannot apply the commits of");
            refused(&swarmletfs(&place, &["apply", &id, "--branch", "b", "--yes"]), "cannot apply");
        }
        assert_eq!(place.outside("git branch | wc -l; git log --oneline | wc -l"), "1\n1\n");
        // Settings, hooks and borrowed objects of the view are not used.
        let script = format!(
            "git init -q ../../tmp/other || git init -q /tmp/other; {SETUP}
             echo three >> notes; git commit -qam 'Add three'
             git config core.fsmonitor 'touch {path}'; git config core.hooksPath /tmp/hooks
             git config uploadpack.packObjectsHook 'touch {path}'
             printf '{}\n' > .git/objects/info/alternates",
            place.at("outside/objects").display()
        );
        place.sh(&[], &script).assert_success();
        apply(&place, &["--commits"]).assert_success();
        assert!(!marker.exists());
        // A bundle that is not the runner's.
        swarmletfs(&place, &["undo", "w", "--yes"]).assert_success();
        let bundle = place.at("store/workers/w/commits.bundle");
        let mut bytes = fs::read(&bundle).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&bundle, bytes).unwrap();
        refused(&apply(&place, &["--commits"]), "is not the one that its runner wrote");
        // Files that the worker put in the place of others' are removed.
        let plant =
            "cd $SWARMLET_STORE/workers/planted; echo x | tee commits.bundle > comments.txt";
        place.sh(&["--id", "planted"], plant).assert_success();
        for name in ["commits.bundle", "comments.txt"] {
            assert!(!place.at("store/workers/planted").join(name).exists(), "{name}");
        }
        // A file that it could not see is no file that it removed.
        place.outside("echo secret > .env; git add .env; git commit -qm env");
        let env = place.at("workspace/.env").display().to_string();
        let hidden = ["--id", "hidden", "--hide", &env];
        place.run(&hidden, &["sh", "-c", "git commit -qam 'No secret'"]).assert_success();
        let done = swarmletfs(&place, &["apply", "hidden", "--yes", "--commits"]);
        refused(&done, "they change .env, which it could not see");
    }
}

#[test]
fn every_kind_of_history_comes_out() {
    if !has_git() {
        return;
    }
    for (name, start, script, log) in [
        ("first", "", "git add .; git commit -qm one", "one\n"),
        (
            "amended",
            "git add .; git commit -qm zero",
            "echo x > x; git add .; git commit -q --amend -m changed",
            "changed\nzero\n",
        ),
        (
            "packed",
            "git add .; git commit -qm zero",
            "echo x > x; git add .; git commit -qm one; git gc -q --prune=now; git pack-refs --all",
            "one\nzero\n",
        ),
        (
            "merged",
            "git add .; git commit -qm zero",
            "git checkout -qb side; echo x > x; git add .; git commit -qm one; git checkout -q -
             echo y > y; git add .; git commit -qm two; git merge -q -m joined side",
            "joined\ntwo\none\nzero\n",
        ),
        (
            "detached",
            "git add .; git commit -qm zero",
            "git checkout -q --detach; echo x > x; git add .; git commit -qm one",
            "one\nzero\n",
        ),
    ] {
        let place = Workspace::new();
        place.outside(&format!("git init -q .; {SETUP}; {start}"));
        place.sh(&[], script).assert_success();
        apply(&place, &["--commits"]).assert_success();
        let expected: Vec<&str> = log.lines().collect();
        let shown = place.outside("git log --topo-order --format=%s; git status --porcelain");
        let mut shown: Vec<&str> = shown.lines().collect();
        let mut expected = expected;
        shown.sort_unstable();
        expected.sort_unstable();
        assert_eq!(shown, expected, "{name}");
        swarmletfs(&place, &["undo", "w", "--yes"]).assert_success();
    }
}

/// Random edits, commits and moves inside, and commits outside meanwhile: the branch has the tree
/// that `git rebase` makes of the same commits, or both refuse.
#[test]
fn random_histories_come_out_as_git_would_rebase_them() {
    if !has_git() {
        return;
    }
    let seed = scale::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..scale::scale(20) {
        let place = Workspace::new();
        place.outside(&format!(
            "git init -q -b main .; {SETUP}; for f in a b c; do seq 12 > $f; done
             git add .; git commit -qm base"
        ));
        let edit = |random: &mut fastrand::Rng| {
            let (file, other) =
                (random.choice(["a", "b", "c", "d"]), random.choice(["a", "b", "d"]));
            let (file, other) = (file.unwrap(), other.unwrap());
            let (line, value) = (random.u8(1..=12), random.u16(..));
            match random.u8(..8) {
                0 => format!("echo {value} > new{}", value % 5),
                1 => format!("rm -f {file}"),
                2 => format!("mv {file} {other} 2> /dev/null || true"),
                3 => format!("chmod +x {file} 2> /dev/null || true"),
                _ => format!("sed -i '{line}s/.*/{value}/' {file} 2> /dev/null || true"),
            }
        };
        let commit = "git add -A; git commit -qm more > /dev/null || true";
        let mut inside = Vec::new();
        for _ in 0..random.u8(1..6) {
            inside.extend((0..random.u8(1..3)).map(|_| edit(&mut random)));
            inside.push(commit.to_owned());
        }
        let mut outside = Vec::new();
        for _ in 0..random.u8(..3) {
            outside.push(edit(&mut random));
            outside.push(commit.to_owned());
        }
        let (inside, outside) = (inside.join("\n"), outside.join("\n"));
        place.outside("cp -a ../workspace ../model");
        place.sh(&[], &inside).assert_success();
        place.outside(&outside);
        let model = place.outside(&format!(
            "cd ../model; git checkout -qb worker; {inside}; git checkout -q main; {outside}
             git checkout -q worker
             git rebase -q main > /dev/null 2>&1 && git rev-parse HEAD^{{tree}} || echo conflict"
        ));
        let head = place.outside("git rev-parse HEAD; git status --porcelain");
        let applied = apply(&place, &["--commits", "--merge"]);
        let tree = match applied.code {
            Some(0) => place.outside("git rev-parse HEAD^{tree}"),
            _ => "conflict\n".to_owned(),
        };
        let what = format!("seed {seed}\ninside\n{inside}\noutside\n{outside}\n{applied:#?}");
        // The files are merged one by one, without a search for renames.
        if applied.code == Some(1) {
            assert_eq!(place.outside("git rev-parse HEAD; git status --porcelain"), head, "{what}");
            continue;
        }
        assert_eq!(tree, model, "{what}");
        assert_eq!(place.outside("git status --porcelain"), "", "{what}");
    }
}

/// Promise: A file that others changed before the worker did has the content of the commit before,
/// so that it shows a diff and can be merged.
#[test]
fn a_file_that_others_changed_is_compared_with_the_commit() {
    if !has_git() {
        return;
    }
    let place = Workspace::new();
    repository(&place);
    place.outside("seq 9 > lines; git add .; git commit -qm lines; echo x > untracked");
    let script = "echo ready; while [ ! -e $SWARMLET_STORE/workers/w/go ]; do sleep 0.05; done
        sed -i s/^2/two/ lines; echo y >> untracked";
    let mut child = place.start(&[], script);
    place.outside("sed -i s/^8/eight/ lines; echo z >> untracked");
    place.write("store/workers/w/go", "");
    assert!(child.wait().unwrap().success());
    let changes = place.json("store/workers/w/changes.json");
    let base = |at: usize| changes["files"][at]["base"].as_str().unwrap().to_owned();
    assert_eq!((base(0), base(1)), ("commit".to_owned(), "unknown".to_owned()));
    let diff = swarmletfs(&place, &["changes", "w", "lines"]);
    assert!(diff.assert_success().out.contains("\n-2\n+two\n"), "{diff:#?}");
    refused(&apply(&place, &[]), "lines: it was changed meanwhile");
    let lines = ["lines", "--merge", "--yes"];
    swarmletfs(&place, &[&["apply", "w"], &lines[..]].concat()).assert_success();
    assert_eq!(place.read("workspace/lines"), "1\ntwo\n3\n4\n5\n6\n7\neight\n9\n");
}

/// A killed `apply --commits` leaves nothing, the files alone, or all. The next one completes it.
#[test]
fn a_killed_application_of_commits_is_completed_by_the_next() {
    if !has_git() {
        return;
    }
    let mut random = fastrand::Rng::with_seed(scale::seed());
    let done = "Agent: Add b\nAgent: Add three\nT: first\n?? c\n";
    for _ in 0..scale::scale(20) {
        let place = Workspace::new();
        repository(&place);
        place.sh(&[], SCRIPT).assert_success();
        let store = place.at("store");
        let words = [PROGRAM, "apply", "w", "--yes", "--commits", "--store"].map(OsStr::new);
        let mut command = place.command(words.into_iter().chain([store.as_os_str()]));
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_millis(random.u64(..120)));
        child.kill().unwrap();
        child.wait().unwrap();
        // Git, which is not killed, may still hold its lock.
        wait_until("the commits to be applied", || {
            apply(&place, &["--commits"]).code == Some(0) && place.outside(LOG) == done
        });
        place.outside("git fsck --strict --no-dangling");
        wait_until("everything to be taken back", || {
            let undone = swarmletfs(&place, &["undo", "w", "--yes"]);
            undone.assert_success().err.contains("nothing to undo")
        });
        assert_eq!(place.outside(LOG), "T: first\n");
    }
}

/// The comparison with `git worktree` in docs/RUN.md is what its script finds.
#[test]
fn the_comparison_with_worktrees_finds_what_the_page_says() {
    if !has_git() {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/compare-worktrees");
    let words = [OsStr::new("python3"), OsStr::new(script), OsStr::new(PROGRAM)];
    let files = ["--files", "20"].map(OsStr::new);
    let compared = run(program(words[0], words[1..].iter().chain(&files)));
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/RUN.md")).unwrap();
    // Without the seconds.
    let results = |text: &str| -> Vec<Vec<String>> {
        let rows = text.lines().skip_while(|line| !line.starts_with("| Task | `git"));
        let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
        let cells = |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect();
        let rows: Vec<Vec<String>> = rows.map(cells).collect();
        rows.into_iter().map(|row| [1, 2, 4, 5, 7].map(|at| row[at].clone()).to_vec()).collect()
    };
    let found = results(&compared.assert_success().out);
    assert_eq!(found, results(&page), "{compared:#?}");
    assert_eq!(found.len(), 11);
}
