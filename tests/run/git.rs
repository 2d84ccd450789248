//! Workspaces that are repositories of git.

use super::commits::apply;
use super::workspace::Workspace;
use crate::support::{skip, tool};

/// Options of git that do not depend on the user.
pub const SETUP: &str =
    "git config user.name T; git config user.email t@t; git config commit.gpgsign false";

pub fn has_git() -> bool {
    let is_here = tool::is_here("git");
    if !is_here {
        skip("git is not installed");
    }
    is_here
}

/// Makes a repository of the workspace, with a folder.
pub fn repository(place: &Workspace) {
    place.outside(&format!(
        "git init -q .; {SETUP}; mkdir dir; echo a > dir/a; git add .; git commit -qm first"
    ));
}

/// A workspace that is a linked worktree of git works; its common `.git` is covered by an
/// overlay, too. Commits stay in the worker's view.
#[test]
fn commits_in_a_linked_worktree_stay_in_the_view_of_the_worker() {
    if !has_git() {
        return;
    }
    for place in Workspace::all() {
        place.folder("main");
        place.outside(&format!(
            "mv notes ../main; cd ../main; git init -q .; {SETUP}; git add .; git commit -qm first;
             rmdir ../workspace; git worktree add -q ../workspace"
        ));
        let script = "set -e; git status --porcelain; echo three >> notes; git commit -qam second
            git status --porcelain; git log --oneline | wc -l; git format-patch -q -1";
        let done = place.sh(&[], script);
        done.assert_success();
        assert_eq!(done.out, "2\n", "{done:#?}");
        assert!(done.err.contains(", 1 commit"), "{done:#?}");
        let outside = place.outside(
            "git status --porcelain; git log --all --oneline | wc -l; git fsck --lost-found",
        );
        assert_eq!(outside, "1\n");
        assert!(!place.at("main/.git/worktrees/workspace/index.lock").exists());
        // The content is not lost, and neither is a patch.
        assert_eq!(place.changes("w"), ["added 0001-second.patch", "modified notes"]);
        assert_eq!(place.read("store/workers/w/changes/notes"), "one\ntwo\nthree\n");
        let patch = place.at("store/workers/w/changes/0001-second.patch");
        assert!(patch.exists());
        apply(&place, &["--commits"]).assert_success();
        let log = place.outside("git log --format=%s; git status --porcelain; git fsck");
        assert_eq!(log, "second\nfirst\n?? 0001-second.patch\n");
    }
}

/// Renaming a directory of the workspace fails with EXDEV. Use `mv` and `git add`, or
/// `--engine copy`. Directories that the command made itself can be renamed.
#[test]
fn git_moves_directories_as_documented() {
    if !has_git() {
        return;
    }
    for place in Workspace::all() {
        repository(&place);
        let failed = place.sh(&["--id", "w0"], "git mv dir moved");
        assert!(failed.code != Some(0) && failed.err.contains("cross-device"), "{failed:#?}");
        let renames =
            [("w1", "overlay", "mv dir moved && git add -A"), ("w2", "copy", "git mv dir moved")];
        for (id, engine, script) in renames {
            let script =
                format!("{script} && git status --porcelain && mkdir x && mv x y && rmdir y");
            let done = place.sh(&["--id", id, "--engine", engine], &script);
            done.assert_success();
            assert_eq!(done.out, "R  dir/a -> moved/a\n");
            let changes = ["deleted dir", "deleted dir/a", "added moved", "added moved/a"];
            assert_eq!(place.changes(id), changes);
        }
        assert_eq!(place.outside("git status --porcelain"), "");
    }
}

#[test]
fn submodule_of_the_workspace_can_be_changed() {
    if !has_git() {
        return;
    }
    for place in Workspace::all() {
        place.folder("library");
        place.outside(&format!(
            "cd ../library; git init -q .; {SETUP}; echo a > a; git add .; git commit -qm first"
        ));
        repository(&place);
        place.outside(
            "git -c protocol.file.allow=always submodule --quiet add ../library sub; \
             git commit -qm submodule",
        );
        let script = format!(
            "set -e; git submodule status | cut -c1; cd sub; {SETUP}; echo b >> a
             git status --porcelain; git commit -qam second; cd ..; git status --porcelain"
        );
        let done = place.sh(&[], &script);
        done.assert_success();
        assert_eq!(done.out, " \n M a\n M sub\n", "{done:#?}");
        assert_eq!(place.changes("w"), ["modified sub/a"]);
        let outside = place.outside("git status --porcelain; git -C sub log --oneline | wc -l");
        assert_eq!(outside, "1\n");
    }
}

/// If the workspace is a submodule without the repository around it, git can read there but not
/// commit.
#[test]
fn submodule_alone_can_be_read_and_not_committed_to() {
    if !has_git() {
        return;
    }
    for place in Workspace::all() {
        place.folder("whole");
        repository(&place);
        // The workspace becomes a submodule of `whole`, under its own path.
        place.outside(&format!(
            "cd ../whole; git init -q .; {SETUP}
             git -c protocol.file.allow=always submodule --quiet add ../workspace sub
             git commit -qm first; rm -rf ../workspace; mv sub ../workspace; rm ../workspace/.git
             echo 'gitdir: ../whole/.git/modules/sub' > ../workspace/.git
             git config -f ../whole/.git/modules/sub/config core.worktree ../../../../workspace"
        ));
        assert_eq!(place.outside("git status --porcelain"), "");
        let script = "git status --porcelain; echo three >> notes; git commit -qam second";
        let done = place.sh(&[], script);
        assert_eq!((done.code, done.out.as_str()), (Some(128), ""), "{done:#?}");
        assert!(done.err.contains("Read-only file system"), "{done:#?}");
        assert_eq!(place.changes("w"), ["modified notes"]);
        assert_eq!(place.outside("git status --porcelain; git log --oneline | wc -l"), "1\n");
    }
}

#[test]
fn hooks_in_the_folder_that_the_settings_name_are_left_out() {
    if !has_git() {
        return;
    }
    for place in Workspace::all() {
        repository(&place);
        place.outside("git config core.hooksPath tools/hooks");
        let marker = place.at("outside/marker");
        let script = format!(
            "mkdir -p tools/hooks; cd tools/hooks; printf '#!/bin/sh\ntouch {}\n' > pre-commit; chmod +x *",
            marker.display()
        );
        place.sh(&[], &script).assert_success();
        let apply = |options: &[&str]| apply(&place, options);
        let commit = || {
            place.outside("echo >> dir/a; git commit -qam again");
            marker.exists()
        };
        let applied = apply(&[]);
        let left_out = "left out: tools/hooks/pre-commit: git runs the hooks";
        assert!(applied.assert_success().err.contains(left_out), "{applied:#?}");
        assert!(!commit());
        apply(&["--git-dir"]).assert_success();
        assert!(commit(), "the control runs no program");
    }
}

/// A setting or a link that is there already can make any file one that runs.
#[test]
fn what_settings_and_links_of_the_person_lead_to_is_left_out() {
    if !has_git() {
        return;
    }
    for place in Workspace::all() {
        repository(&place);
        place.outside(
            "git config include.path ../conf/git
            git config filter.x.clean 'sh tools/clean.sh -v'
            ln -s ../../tools/hook .git/hooks/pre-commit
            mkdir .vscode; ln -s ../conf/tasks.json .vscode/tasks.json",
        );
        let script = "mkdir -p conf tools
            for file in conf/git conf/other conf/tasks.json tools/clean.sh tools/hook; do
                echo new > $file
            done";
        place.sh(&[], script).assert_success();
        let applied = apply(&place, &[]);
        for path in ["conf/git", "conf/tasks.json", "tools/clean.sh", "tools/hook"] {
            assert!(applied.err.contains(&format!("left out: {path}: ")), "{path}: {applied:#?}");
            assert!(!place.at("workspace").join(path).exists());
        }
        assert_eq!(place.read("workspace/conf/other"), "new\n");
    }
}

/// The folder of a worker is none of the person's, and stays.
#[test]
fn links_into_the_store_are_left_out() {
    for place in Workspace::all() {
        let script = "own=$SWARMLET_STORE/workers/$SWARMLET_WORKER; mkdir $own/evil
            ln -s $own/evil absolute; ln -s ../store/workers/w/evil relative
            ln -s $(dirname $SWARMLET_STORE) above; ln -s above/store/workers/w/evil through
            ln -s ../outside harmless";
        place.sh(&[], script).assert_success();
        let apply = |options: &[&str]| apply(&place, options);
        let applied = apply(&[]);
        for path in ["absolute", "relative", "through"] {
            let left_out = format!("left out: {path}: it leads into the store");
            assert!(applied.err.contains(&left_out), "{path}: {applied:#?}");
            assert!(!place.at("workspace").join(path).is_symlink());
        }
        assert!(place.at("workspace/harmless").is_symlink());
        apply(&["--with-programs"]).assert_success();
        assert!(place.at("workspace/through").is_symlink());
    }
}

/// Promise: A folder that is or becomes a repository of git is left out, unless `--git-dir` is
/// given.
#[test]
fn a_repository_of_a_worker_runs_no_program_of_the_person() {
    if !has_git() {
        return;
    }
    for place in Workspace::all() {
        repository(&place);
        let marker = place.at("outside/marker");
        let path = marker.display();
        let script = format!(
            "mkdir dir/objects dir/refs; echo 'ref: refs/heads/main' > dir/HEAD
            set -- git config --file dir/config
            \"$@\" core.repositoryformatversion 0; \"$@\" core.bare false
            \"$@\" core.worktree .; \"$@\" core.fsmonitor 'touch {path}; false'
            echo b > b"
        );
        place.sh(&[], &script).assert_success();
        let apply = |options: &[&str]| apply(&place, options);
        let status = || {
            place.outside("cd dir; git status --short");
            let is_made = marker.exists();
            let _ = std::fs::remove_file(&marker);
            is_made
        };
        let applied = apply(&[]);
        let left_out = "left out: dir/config: git takes its folder for a repository";
        assert!(applied.assert_success().err.contains(left_out), "{applied:#?}");
        assert!(place.at("workspace/b").exists() && !status());
        // The same files, asked for, run the program.
        apply(&["--git-dir"]).assert_success();
        assert!(status(), "the control runs no program");
    }
}
