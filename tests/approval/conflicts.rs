//! Conflicts: the workspace is not as the worker found it.
//!
//! `apply --merge`: files that several workers changed.
//!
//! Several workers and commands on one workspace at once.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::thread;

use fastrand::Rng;
use rustix::fs::{FlockOperation, XattrFlags, flock, getxattr, setxattr};
use rustix::io::Errno;

use crate::cli::program::{program, run};
use crate::support::draft::{Node, Workbench, file, folder};
use crate::support::tool::is_here;
use crate::support::{is_full, scale, seeds, skip};

/// Returns a workspace, and the worker's view of it.
fn trees() -> (Node, Node) {
    let old = folder([
        ("changed", file("old\n")),
        ("gone", file("old\n")),
        ("link", Node::Link("changed".into())),
        ("mode", file("script\n")),
        ("src", folder([("a.rs", file("a\n")), ("deep", folder([("b.rs", file("b\n"))]))])),
    ]);
    let new = folder([
        ("added", file("new\n")),
        ("changed", file("new\n")),
        ("link", Node::Link("added".into())),
        ("mode", Node::File { mode: 0o755, bytes: b"script\n".into() }),
        ("src", folder([("a.rs", file("a\n")), ("deep", file("now a file\n"))])),
    ]);
    (old, new)
}

fn bench() -> Workbench {
    Workbench::with_worker(trees())
}

fn replace(path: &Path, make: impl FnOnce(&Path)) {
    fs::remove_file(path).unwrap();
    make(path);
}

/// Changes that others make, the path that conflicts, and a part of the reason.
type Case = (fn(&Workbench), &'static str, &'static str);

const CASES: [Case; 14] = [
    (|b| fs::write(b.at("changed"), "ours\n").unwrap(), "changed", "it was changed meanwhile"),
    (|b| fs::remove_file(b.at("changed")).unwrap(), "changed", "it was removed meanwhile"),
    (|b| replace(&b.at("changed"), |at| fs::create_dir(at).unwrap()), "changed", "a folder now"),
    (|b| replace(&b.at("changed"), |at| symlink("gone", at).unwrap()), "changed", "a link now"),
    (|b| fs::write(b.at("gone"), "ours\n").unwrap(), "gone", "it was changed meanwhile"),
    (|b| fs::write(b.at("added"), "ours\n").unwrap(), "added", "it was made meanwhile"),
    (|b| replace(&b.at("link"), |at| symlink("gone", at).unwrap()), "link", "it was changed"),
    (|b| replace(&b.at("link"), |at| fs::write(at, "").unwrap()), "link", "it is a file now"),
    (|b| chmod(&b.at("mode"), 0o600), "mode", "its permissions were changed"),
    (|b| fs::write(b.at("mode"), "ours\n").unwrap(), "mode", "it was changed meanwhile"),
    (|b| fs::write(b.at("src/deep/c.rs"), "ours\n").unwrap(), "src/deep", "a folder with entries"),
    (|b| fs::write(b.at("src/deep/b.rs"), "ours\n").unwrap(), "src/deep/b.rs", "it was changed"),
    (
        |b| {
            fs::rename(b.at("src"), b.at("moved")).unwrap();
            symlink("moved", b.at("src")).unwrap();
        },
        "src/deep",
        "a folder of its path is a link",
    ),
    (
        |b| b.edit_change("w1", "changed", |change| change["base"] = "unknown".into()),
        "changed",
        "nobody knows",
    ),
];

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Promise: If an entry is not as the worker found it, nothing is applied, and all conflicts are
/// listed.
#[test]
fn a_conflict_of_any_kind_prevents_all_changes() {
    for (change, path, reason) in CASES {
        let bench = bench();
        change(&bench);
        let before = bench.tree();
        let conflict = format!("swarmletfs: conflict: {path}: ");
        for arguments in [&["apply", "w1", "--yes"][..], &["apply", "w1", "--dry-run"]] {
            let done = bench.run(arguments);
            done.assert_failure(1, &[&conflict, reason, "nothing was changed"]);
        }
        assert_eq!(bench.tree(), before, "{path}: {reason}");
        assert!(!bench.worker_folder("w1").join("applied").exists(), "{path}: {reason}");
    }
}

#[test]
fn all_conflicts_are_listed() {
    let bench = bench();
    for name in ["added", "changed", "gone"] {
        fs::write(bench.at(name), "ours\n").unwrap();
    }
    bench.run(&["apply", "w1", "--yes"]).assert_failure(
        1,
        &[
            "conflict: added:",
            "conflict: changed:",
            "conflict: gone:",
            ": 3 conflicts,",
            "versions are in",
            "w1/changes",
            "--interactive",
        ],
    );
}

/// Promise: A change that the workspace has already is skipped.
#[test]
fn a_change_that_is_there_already_is_skipped() {
    let (_, new) = trees();
    let bench = bench();
    fs::write(bench.at("changed"), "new\n").unwrap();
    fs::remove_file(bench.at("gone")).unwrap();
    bench.edit_change("w1", "changed", |change| change["base"] = "unknown".into());
    let applied = bench.run(&["apply", "w1", "--yes"]);
    assert!(applied.assert_success().err.contains("(2 changes had been made already)"));
    assert_eq!(bench.tree(), new);
}

#[test]
fn permissions_that_the_worker_did_not_change_stay() {
    let bench = bench();
    chmod(&bench.at("changed"), 0o600);
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    let changed = Node::File { mode: 0o600, bytes: b"new\n".into() };
    assert_eq!(Node::read(&bench.at("changed")), changed);
    bench.run(&["undo", "w1", "--yes"]).assert_success();
    let changed = Node::File { mode: 0o600, bytes: b"old\n".into() };
    assert_eq!(Node::read(&bench.at("changed")), changed);
}

/// Promise: A file that is replaced keeps its ACL and its extended attributes.
#[test]
fn acl_and_extended_attributes_of_a_replaced_file_stay() {
    let bench = bench();
    let path = bench.at("changed");
    // The owner may read and write, the user 1234 and the group may read, others nothing.
    let entries = [(0x01, 6, u32::MAX), (0x02, 4, 1234), (0x04, 4, u32::MAX), (0x10, 4, u32::MAX)];
    let entries = entries.into_iter().chain([(0x20_u16, 0_u16, u32::MAX)]);
    let entry = |(tag, rights, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let acl = [2_u32.to_le_bytes().to_vec(), entries.flat_map(entry).collect()].concat();
    let attributes = [("system.posix_acl_access", &acl[..]), ("user.note", b"mine")];
    for (name, value) in attributes {
        match setxattr(&path, name, value, XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP) => return skip("the file system has no such attributes"),
            set => set.unwrap(),
        }
    }
    bench.edit_change("w1", "changed", |change| change["old"]["mode"] = "0640".into());
    bench.edit_change("w1", "changed", |change| change["new"]["mode"] = "0640".into());
    let read = |name: &str| {
        let mut value = vec![0; 256];
        let length = getxattr(&path, name, value.as_mut_slice());
        length.map(|length| value[..length].to_vec())
    };
    for command in ["apply", "undo"] {
        bench.run(&[command, "w1", "--yes"]).assert_success();
        let content = if command == "apply" { b"new\n" } else { b"old\n" };
        assert_eq!(fs::read(&path).unwrap(), content);
        for (name, value) in attributes {
            assert_eq!(read(name).as_deref(), Ok(value), "{command}: {name}");
        }
    }
}

#[test]
fn a_removed_folder_stays_if_others_have_entries_in_it() {
    let old = folder([("src", folder([("a.rs", file("a\n"))]))]);
    let bench = Workbench::new(&old);
    bench.worker("w1", &old, &folder([]));
    fs::write(bench.at("src/ours"), "").unwrap();
    let applied = bench.run(&["apply", "w1", "--yes"]);
    assert!(applied.assert_success().err.contains("the folder src stays"), "{applied:#?}");
    assert_eq!(bench.tree(), folder([("src", folder([("ours", file(""))]))]));
    bench.run(&["undo", "w1", "--yes"]).assert_success();
    assert_eq!(
        bench.tree(),
        folder([("src", folder([("a.rs", file("a\n")), ("ours", file(""))]))])
    );
}

/// Promise: Undoing changes nothing if an entry is not as it was applied.
#[test]
fn what_changed_since_it_was_applied_is_not_taken_back() {
    let bench = bench();
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    fs::write(bench.at("added"), "mine\n").unwrap();
    fs::remove_file(bench.at("changed")).unwrap();
    let before = bench.tree();
    bench.run(&["undo", "w1", "--yes"]).assert_failure(
        1,
        &["conflict: added: it was changed meanwhile", "conflict: changed: it was removed"],
    );
    assert_eq!(bench.tree(), before);
}

const BASE: &str = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";

/// Returns a workspace in which two workers changed a file: the first line, and `second` of it.
fn two_workers(second: &str) -> Workbench {
    let with = |text: &str| folder([("file", file(text)), ("other", file(text))]);
    let bench = Workbench::new(&with(BASE));
    bench.worker("w1", &with(BASE), &with(&BASE.replace("1\n", "one\n")));
    bench.worker("w2", &with(BASE), &with(second));
    bench
}

/// Promise: Changes of one file by two workers are merged as git merges them, or nothing is
/// applied.
#[test]
fn changes_of_other_lines_are_merged() {
    if !is_here("git") {
        return;
    }
    let bench = two_workers(&BASE.replace("9\n", "nine\n"));
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    let before = bench.tree();
    bench.run(&["apply", "w2", "--yes"]).assert_failure(1, &["conflict: file: it was changed"]);
    assert_eq!(bench.tree(), before);
    bench.run(&["apply", "w2", "--yes", "--merge"]).assert_success();
    let both = BASE.replace("1\n", "one\n").replace("9\n", "nine\n");
    assert_eq!(bench.tree(), folder([("file", file(&both)), ("other", file(&both))]));
    bench.run(&["undo", "w2", "--yes"]).assert_success();
    assert_eq!(bench.tree(), before);
}

#[test]
fn changes_of_one_line_stay_conflicts_and_nothing_is_applied() {
    if !is_here("git") {
        return;
    }
    let bench = two_workers(&BASE.replace("1\n", "eins\n"));
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    let before = bench.tree();
    let merged = bench.run(&["apply", "w2", "--yes", "--merge"]);
    // The first one ends the merge.
    merged.assert_failure(1, &["conflict: file: it was changed", "only the other paths"]);
    assert!(!merged.err.contains("conflict: other"), "{merged:#?}");
    assert_eq!(bench.tree(), before);
}

#[test]
fn a_merge_without_git_or_with_a_forged_base_fails() {
    let bench = two_workers(&BASE.replace("9\n", "nine\n"));
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    let before = bench.tree();
    let mut command = bench.command(&["apply", "w2", "--yes", "--merge"]);
    command.env("PATH", "/nonexistent");
    crate::cli::program::run(command).assert_failure(1, &["git is not installed", "--merge"]);
    fs::write(bench.worker_folder("w2").join("base/file"), "forged\n").unwrap();
    bench.run(&["apply", "w2", "--yes", "--merge"]).assert_failure(1, &["conflict: file:"]);
    assert_eq!(bench.tree(), before);
    assert_eq!(Node::read(Path::new(&bench.at("file"))), file(&BASE.replace("1\n", "one\n")));
}

/// Returns a random text, or a changed one.
fn random_text(rng: &mut Rng, of: Option<&str>) -> String {
    let line = |rng: &mut Rng| format!("line {}\n", rng.u8(..6));
    let Some(of) = of else { return (0..rng.usize(..40)).map(|_| line(rng)).collect() };
    let mut lines: Vec<String> = of.split_inclusive('\n').map(str::to_owned).collect();
    for _ in 0..rng.usize(1..4) {
        let at = rng.usize(..=lines.len());
        match rng.u8(..3) {
            0 if at < lines.len() => drop(lines.remove(at)),
            1 if at < lines.len() => lines[at] = line(rng),
            _ => lines.insert(at, line(rng)),
        }
    }
    lines.concat()
}

/// Returns what git makes of the changes; `None` for a conflict.
fn merged_by_git(dir: &Path, texts: [&str; 3]) -> Option<String> {
    let mut git = program("git", ["merge-file", "-p", "-q"]);
    for (name, text) in ["current", "base", "new"].into_iter().zip(texts) {
        fs::write(dir.join(name), text).unwrap();
        git.arg(dir.join(name));
    }
    let done = run(git);
    (done.code == Some(0)).then_some(done.out)
}

/// Promise: Changes of one file by two workers are merged as git merges them, or nothing is
/// applied.
#[test]
fn random_changes_are_merged_as_by_git() {
    if !is_here("git") {
        return;
    }
    let (mut merges, mut conflicts) = (0, 0);
    for seed in seeds(40) {
        let mut rng = Rng::with_seed(seed);
        let base = random_text(&mut rng, None);
        let [current, new] = [(); 2].map(|()| random_text(&mut rng, Some(&base)));
        let with = |text: &str| folder([("file", file(text)), ("other", file("other\n"))]);
        let bench = Workbench::new(&with(&base));
        bench.worker("w1", &with(&base), &with(&new));
        fs::write(bench.at("file"), &current).unwrap();
        let expected = merged_by_git(bench.path(), [&current, &base, &new]);
        let done = bench.run(&["apply", "w1", "--yes", "--merge", "--no-sync"]);
        let about = format!("seed {seed}: {done:#?}");
        match expected {
            Some(text) => {
                assert_eq!((done.code, bench.tree()), (Some(0), with(&text)), "{about}");
                bench.run(&["undo", "w1", "--yes", "--no-sync"]).assert_success();
                merges += 1;
            }
            None => {
                assert_eq!(done.code, Some(1), "{about}");
                conflicts += 1;
            }
        }
        assert_eq!(bench.tree(), with(&current), "{about}");
    }
    assert!(merges > 5 && conflicts > 5 || !is_full(), "{merges} merges and {conflicts} conflicts");
}

/// Promise: Of two workers that changed one file, the second one has a conflict, even if both are
/// applied at once.
#[test]
fn applications_at_once_exclude_each_other() {
    let old = folder([("both", file("old\n")), ("dir", folder([]))]);
    let view = |name: &str| folder([("both", file(name)), ("dir", folder([(name, file(name))]))]);
    for _ in 0..scale(10) {
        let bench = Workbench::new(&old);
        bench.worker("w1", &old, &view("one")).worker("w2", &old, &view("two"));
        let apply = |id: &'static str| bench.run(&["apply", id, "--yes"]);
        let (one, two) = thread::scope(|scope| {
            let one = scope.spawn(|| apply("w1"));
            let two = scope.spawn(|| apply("w2"));
            (one.join().unwrap(), two.join().unwrap())
        });
        let (winner, loser) = if one.code == Some(0) { ("one", &two) } else { ("two", &one) };
        loser.assert_failure(1, &["conflict: both: it was changed meanwhile"]);
        assert_eq!(bench.tree(), view(winner));
    }
}

#[test]
fn applications_of_other_files_at_once_all_happen() {
    let old = folder([]);
    let bench = Workbench::new(&old);
    let ids: Vec<String> = (0..8).map(|number| format!("w{number}")).collect();
    for id in &ids {
        bench.worker(id, &old, &folder([(id, file(id))]));
    }
    thread::scope(|scope| {
        for id in &ids {
            scope.spawn(|| bench.run(&["apply", id, "--yes"]).assert_success().code);
        }
    });
    for id in &ids {
        assert_eq!(fs::read_to_string(bench.at(id)).unwrap(), *id);
    }
}

/// Promise: What is replaced while another worker runs on the workspace is saved as that worker's
/// base, unless it changed since that worker began.
#[test]
fn what_is_replaced_is_saved_as_the_base_of_workers_that_run() {
    let old = folder([("src", folder([("a.rs", file("old\n"))])), ("gone", file("gone\n"))]);
    let new = folder([("src", folder([("a.rs", file("new\n"))]))]);
    for (started, is_base) in [("2999-01-01T00:00:00Z", true), ("2020-01-01T00:00:00Z", false)] {
        let bench = Workbench::new(&old);
        bench.worker("w1", &old, &new).worker("w2", &old, &old);
        bench.edit(&bench.draft("w2").join("draft.json"), |draft| {
            draft["state"] = "running".into();
            draft["started_at"] = started.into();
        });
        let draft = fs::File::open(bench.draft("w2")).unwrap();
        flock(&draft, FlockOperation::LockExclusive).unwrap();
        let applied = bench.run(&["apply", "w1", "--yes"]);
        assert!(applied.assert_success().err.contains("warning: w2 runs on this workspace"));
        let base = |path: &str| fs::read_to_string(bench.draft("w2").join("base").join(path)).ok();
        let saved = |text: &str| is_base.then(|| text.to_owned());
        assert_eq!((base("src/a.rs"), base("gone")), (saved("old\n"), saved("gone\n")));
        // The base stays what the worker found.
        bench.run(&["undo", "w1", "--yes"]).assert_success();
        assert_eq!(base("src/a.rs"), saved("old\n"));
    }
}

/// Promise: With `--merge`, changes that others made to a file that the worker moved come along to
/// its new path, also if its whole folder was moved.
#[test]
fn a_renamed_folder_is_a_rename() {
    let lines =
        |second: &str, last: &str| file(&format!("1\n{second}\n3\n4\n5\n6\n7\n8\n{last}\n"));
    let kept = || file("the same\n");
    let old =
        folder([("dir", folder([("a", lines("2", "9")), ("b", lines("b", "b")), ("c", kept())]))]);
    let moved = |a: Node, b: Node| folder([("moved", folder([("a", a), ("b", b), ("c", kept())]))]);
    let new = moved(lines("2", "9"), lines("two", "b"));
    let bench = Workbench::with_worker((old.clone(), new));
    let shown = bench.run(&["changes", "w1", "--stat"]);
    assert!(shown.assert_success().err.contains("moved: dir/b -> moved/b"), "{shown:#?}");
    std::fs::write(bench.at("dir/a"), "1\nzwei\n3\n4\n5\n6\n7\n8\n9\n").unwrap();
    std::fs::write(bench.at("dir/b"), "1\nb\n3\n4\n5\n6\n7\n8\nnine\n").unwrap();
    let before = bench.tree();
    bench.run(&["apply", "w1", "--yes"]).assert_failure(1, &["dir/a: it was changed meanwhile"]);
    assert_eq!(bench.tree(), before);
    bench.run(&["apply", "w1", "--yes", "--merge"]).assert_success();
    assert_eq!(bench.tree(), moved(lines("zwei", "9"), lines("two", "nine")));
    bench.run(&["undo", "w1", "--yes"]).assert_success();
    assert_eq!(bench.tree(), before);
    // Both sides changed the same line.
    std::fs::write(bench.at("dir/b"), "1\nanother\n3\n4\n5\n6\n7\n8\nb\n").unwrap();
    let before = bench.tree();
    bench.run(&["apply", "w1", "--yes", "--merge"]).assert_failure(1, &["dir/b: it was changed"]);
    assert_eq!(bench.tree(), before);
    bench.run(&["apply", "w1", "--yes", "--merge=markers"]).assert_success();
    let marked = std::fs::read_to_string(bench.at("moved/b")).unwrap();
    assert!(marked.contains("another\n=======\ntwo\n"), "{marked}");
}
