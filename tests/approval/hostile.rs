//! Hostile changes and workspaces: nothing outside of the workspace changes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};

use crate::support::draft::{Node, Workbench, file, folder};
use crate::support::{is_full, scale};

fn one_change(path: &str, new: Node) -> Workbench {
    let bench = Workbench::new(&folder([]));
    bench.worker("w1", &folder([]), &folder([(path, new)]));
    bench
}

/// Promise: No path in changes.json leads out of the workspace.
#[test]
fn paths_that_lead_out_of_the_workspace_are_refused() {
    let outside = tempfile::tempdir().unwrap();
    let absolute = outside.path().join("x").to_str().unwrap().to_owned();
    for path in ["../x", "..", "a/../../x", ".", "", "a//x", absolute.as_str()] {
        let bench = one_change("x", file("evil\n"));
        bench.edit_change("w1", "x", |change| change["path"] = path.into());
        for arguments in [&["apply", "w1", "--yes"][..], &["apply", "w1", "x", "--yes"]] {
            bench.run(arguments).assert_failure(2, &["a path leads elsewhere"]);
        }
        assert!(!bench.path().join("x").exists() && bench.tree() == folder([]), "{path}");
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    let bench = one_change("x", file("evil\n"));
    bench.edit(&bench.worker_folder("w1").join("changes.json"), |changes| {
        let files = changes["files"].as_array_mut().unwrap();
        files.push(files[0].clone());
    });
    bench.run(&["apply", "w1", "--yes"]).assert_failure(2, &["a path is listed twice"]);
}

/// Promise: Changes go only to the directory with which the worker began.
#[test]
fn another_folder_at_the_path_of_the_workspace_is_not_changed() {
    let bench = one_change("x", file("new\n"));
    bench.edit(&bench.draft("w1").join("draft.json"), |draft| {
        draft["workspace_entry"] = serde_json::json!({"inode": 1, "created": [0, 0]});
    });
    for command in ["apply", "undo"] {
        let refused = bench.run(&[command, "w1", "--yes"]);
        refused.assert_failure(1, &["the workspace is another folder now"]);
    }
    assert_eq!(bench.tree(), folder([]));
}

#[test]
fn a_forged_record_of_an_application_leads_nowhere() {
    let bench = one_change("x", file("evil\n"));
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    let record = bench.worker_folder("w1").join("applied/1/applied.json");
    bench.edit(&record, |record| record["files"][0]["path"] = "../x".into());
    fs::write(bench.path().join("x"), "evil\n").unwrap();
    bench.run(&["undo", "w1", "--yes"]).assert_failure(2, &["a path leads elsewhere"]);
    assert!(bench.path().join("x").exists());
}

/// Promise: No link in the workspace is followed, at whatever component of a path.
#[test]
fn links_in_the_workspace_are_not_followed() {
    let new = folder([("a", folder([("b", folder([("c", file("evil\n"))]))]))]);
    let old = folder([("a", folder([("b", folder([("c", file("old\n"))]))]))]);
    for link in ["a", "a/b", "a/b/c"] {
        let bench = Workbench::new(&old);
        bench.worker("w1", &old, &new);
        let outside = bench.path().join("outside");
        fs::rename(bench.at(link), &outside).unwrap();
        symlink(&outside, bench.at(link)).unwrap();
        let before = (bench.tree(), Node::read(&outside));
        bench.run(&["apply", "w1", "--yes"]).assert_failure(1, &["conflict: a/b/c:"]);
        assert_eq!((bench.tree(), Node::read(&outside)), before, "{link}");
    }
}

/// Promise: A link that a worker made is applied as it is, and nothing is written through it.
#[test]
fn links_of_the_worker_are_made_and_not_followed() {
    let bench = one_change("link", Node::Link("/etc".into()));
    bench.edit(&bench.worker_folder("w1").join("changes.json"), |changes| {
        let mut below = serde_json::json!({"path": "link/passwd", "kind": "added", "base": "none"});
        below["new"] = serde_json::json!({"type": "folder", "mode": "0755"});
        changes["files"].as_array_mut().unwrap().push(below);
    });
    bench.run(&["apply", "w1", "--yes"]).assert_failure(1, &["its folder does not exist"]);
    assert_eq!(bench.tree(), folder([]));
    bench.run(&["apply", "w1", "--yes", "link"]).assert_failure(1, &["link/passwd"]);

    let bench = one_change("link", Node::Link("../outside".into()));
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    assert_eq!(bench.tree(), folder([("link", Node::Link("../outside".into()))]));
    bench.run(&["undo", "w1", "--yes"]).assert_success();
    assert_eq!(bench.tree(), folder([]));
}

/// Promise: Contents are applied only if they have the hashes that changes.json states.
#[test]
fn contents_that_were_changed_or_linked_are_refused() {
    let secret = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    fs::write(secret.path(), "new\n").unwrap();
    let plants: [&dyn Fn(&Path); 5] = [
        &|at| fs::write(at, "evi\n").unwrap(),
        &|at| fs::write(at, "a longer text\n").unwrap(),
        &|at| fs::remove_file(at).unwrap(),
        &|at| {
            fs::remove_file(at).unwrap();
            symlink(secret.path(), at).unwrap();
        },
        &|at| {
            fs::remove_file(at).unwrap();
            fifo(at);
        },
    ];
    for plant in plants {
        let old = folder([("a", file("old\n")), ("x", file("old\n"))]);
        let bench = Workbench::new(&old);
        bench.worker("w1", &old, &folder([("a", file("new\n")), ("x", file("new\n"))]));
        plant(&bench.worker_folder("w1").join("changes/x"));
        bench.run(&["apply", "w1", "--yes"]).assert_failure(1, &["x: "]);
        assert_eq!(bench.tree(), old);
        assert!(!bench.worker_folder("w1").join("applied/1").exists());
    }
}

fn fifo(at: &Path) {
    mknodat(CWD, at, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// Promise: Files that programs run unasked are left out and named, under every spelling of their
/// names, unless `--git-dir` or `--with-programs` is given.
#[test]
fn paths_within_git_are_left_out() {
    let git = || folder([("hooks", folder([("pre-commit", file("evil\n"))]))]);
    for path in [".git", ".GIT"] {
        let bench = Workbench::new(&folder([]));
        let new =
            folder([("ok", file("ok\n")), (path, git()), ("sub", folder([(path, file("x"))]))]);
        bench.worker("w1", &folder([]), &new);
        let applied = bench.run(&["apply", "w1", "--yes"]);
        let left_out = format!("left out: sub/{path}: it belongs to git");
        assert!(applied.assert_success().err.contains(&left_out), "{applied:#?}");
        assert_eq!(bench.tree(), folder([("ok", file("ok\n")), ("sub", folder([]))]));
        let named = bench.run(&["apply", "w1", "--yes", &format!("sub/{path}")]);
        named.assert_failure(1, &["left out", "--git-dir"]);
        bench.run(&["apply", "w1", "--yes", "--git-dir"]).assert_success();
        assert_eq!(bench.tree(), new);
    }
}

/// Promise: Setuid, setgid and sticky bits, devices, FIFOs and sockets are never applied.
#[test]
fn special_bits_and_entries_are_never_applied() {
    let old = folder([("mode", file("x"))]);
    let special = |mode| Node::File { mode, bytes: b"x".into() };
    let new = folder([("mode", special(0o4755)), ("new", special(0o6711))]);
    let bench = Workbench::new(&old);
    bench.worker("w1", &old, &new);
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    assert_eq!(bench.tree(), folder([("mode", special(0o755)), ("new", special(0o711))]));

    let bench = one_change("x", file("x"));
    bench.edit_change("w1", "x", |change| change["new"]["type"] = "special".into());
    let applied = bench.run(&["apply", "w1", "--yes"]);
    assert!(applied.assert_success().err.contains("left out: x: it is a device"), "{applied:#?}");
    let bench = one_change("x", file("x"));
    bench.edit_change("w1", "x", |change| change["refused"] = "because".into());
    bench.run(&["apply", "w1", "--yes", "x"]).assert_failure(1, &["left out: x: because"]);
    let bench = one_change(".swarmletfs-tmp-1", file("x"));
    let applied = bench.run(&["apply", "w1", "--yes"]);
    assert!(applied.assert_success().err.contains("left out"), "{applied:#?}");
    assert_eq!(bench.tree(), folder([]));
}

#[test]
fn a_fifo_in_the_workspace_does_not_block() {
    let (old, new) = (folder([("x", file("old\n"))]), folder([("x", file("new\n"))]));
    let bench = Workbench::new(&old);
    bench.worker("w1", &old, &new);
    fs::remove_file(bench.at("x")).unwrap();
    fifo(&bench.at("x"));
    bench.run(&["apply", "w1", "--yes"]).assert_failure(1, &["a device, FIFO or socket now"]);
}

#[test]
fn hard_linked_files_are_replaced_and_not_written() {
    let (old, new) = (folder([("x", file("old\n"))]), folder([("x", file("new\n"))]));
    let bench = Workbench::new(&old);
    bench.worker("w1", &old, &new);
    fs::hard_link(bench.at("x"), bench.path().join("other")).unwrap();
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    assert_eq!(fs::read_to_string(bench.path().join("other")).unwrap(), "old\n");
    assert_eq!(bench.tree(), new);
    bench.run(&["undo", "w1", "--yes"]).assert_success();
    assert_eq!(bench.tree(), old);
}

/// The other name can be outside of the workspace.
#[test]
fn permissions_of_hard_linked_files_change_under_one_name_only() {
    let with = |mode| Node::File { mode, bytes: b"text\n".into() };
    let tree = |x, y| folder([("x", with(x)), ("y", with(y)), ("z", with(0o644))]);
    let (old, new) = (tree(0o644, 0o644), tree(0o400, 0o755));
    for is_of_user in [false, true] {
        if is_of_user && !rustix::process::geteuid().is_root() {
            continue;
        }
        let mut bench = Workbench::new(&old);
        bench.worker("w1", &old, &new);
        for name in ["y", "z"] {
            fs::remove_file(bench.at(name)).unwrap();
            fs::hard_link(bench.at("x"), bench.at(name)).unwrap();
        }
        let other = bench.path().join("other");
        fs::hard_link(bench.at("x"), &other).unwrap();
        if is_of_user {
            bench.give_away(true);
        }
        let dry = bench.run(&["apply", "w1", "--dry-run"]);
        assert!(dry.assert_success().out.contains("set the permissions of x"), "{dry:#?}");
        bench.run(&["apply", "w1", "--yes"]).assert_success();
        assert_eq!(bench.tree(), new);
        let mode = fs::metadata(&other).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        bench.run(&["undo", "w1", "--yes"]).assert_success();
        assert_eq!(bench.tree(), old);
    }
}

/// Promise: No link in the workspace is followed, at whatever component of a path.
#[test]
fn folders_that_become_links_at_any_moment_lead_nowhere() {
    let old = folder([("dir", folder([("x", file("old\n")), ("gone", file("old\n"))]))]);
    let new = folder([("dir", folder([("x", file("new\n")), ("add", file("new\n"))]))]);
    let bench = Workbench::new(&old);
    bench.worker("w1", &old, &new);
    let outside = bench.path().join("outside");
    folder([("x", file("old\n")), ("gone", file("old\n"))]).write(&outside);
    let before = Node::read(&outside);
    let link = bench.path().join("link");
    symlink(&outside, &link).unwrap();
    let (is_done, dir) = (AtomicBool::new(false), bench.at("dir"));
    let swap = || renameat_with(CWD, &link, CWD, &dir, RenameFlags::EXCHANGE).unwrap();
    let (mut applied, mut refused) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                swap();
                thread::yield_now();
                swap();
                thread::sleep(Duration::from_micros(300));
            }
        });
        for _ in 0..scale(60) {
            for command in ["apply", "undo"] {
                match bench.run(&[command, "w1", "--yes", "--no-sync"]).code {
                    Some(0) => applied += 1,
                    _ => refused += 1,
                }
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    eprintln!("{applied} commands succeeded, {refused} met a link");
    assert!(applied > 0 || !is_full());
    assert_eq!(Node::read(&outside), before);
    // With the folder in its place, the next command completes or takes back what was left.
    bench.run(&["apply", "w1", "--dry-run"]).assert_success();
    let tree = bench.tree();
    assert!(tree == old || tree == new, "{tree:?}");
}

#[test]
fn names_cannot_control_the_terminal() {
    let name = "a\u{1b}[2K\u{202e}b";
    let bench = one_change(name, file("x"));
    fs::write(bench.at(name), "ours").unwrap();
    // The helpers check that messages are printable.
    bench.run(&["apply", "w1", "--yes"]).assert_failure(1, &["conflict: a\\u{1b}[2K\\u{202e}b"]);
    let stat = bench.run(&["changes", "w1", "--stat"]);
    assert!(!stat.assert_success().out.contains('\u{1b}'), "{stat:#?}");
}
