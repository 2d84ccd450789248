//! `gc` with a failure and with a crash at each of its system calls.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;

use super::store::{gc, indexed, make_draft, new_store, old_worker, tombstone, workers};
use crate::cli::program::{CommandOutput, program, run};
use crate::recording::store::{assert_whole, in_store, read_tree, record, worker};
use crate::support::mount::PROGRAM;
use crate::support::sample;
use crate::support::tool::is_here;

/// System calls that change the store, or decide about it.
const CALLS: &str =
    "openat2,mkdirat,renameat,renameat2,unlinkat,fsync,write,flock,getdents64,statx";
const ARGUMENTS: [&str; 4] = ["--older-than", "30d", "--unreviewed", "--yes"];
/// One of this many calls is injected with an archive, which needs far more calls.
const ARCHIVE_STEP: usize = 4;

/// A store in memory with one old worker and its draft, and copies of it.
struct Original {
    dir: tempfile::TempDir,
    store: PathBuf,
    files: BTreeMap<String, Option<Vec<u8>>>,
    /// The archive, if there is one.
    copies: Option<PathBuf>,
}

impl Original {
    fn new(is_archived: bool) -> Original {
        let (dir, store) = new_store();
        let copies = is_archived.then(|| dir.path().join("copies"));
        old_worker(&store, "w1", 1, &[]);
        make_draft(&store, "w1", "ended");
        let files = read_tree(&worker(&store, "w1"));
        Original { dir, store, files, copies }
    }

    fn arguments(&self) -> Vec<&str> {
        let mut arguments = ARGUMENTS.to_vec();
        if let Some(copies) = &self.copies {
            arguments.extend(["--archive", copies.to_str().unwrap()]);
        }
        arguments
    }

    fn copy(&self) -> PathBuf {
        let copy = self.dir.path().join("copy");
        let _ = fs::remove_dir_all(&copy);
        if let Some(copies) = &self.copies {
            let _ = fs::remove_dir_all(copies);
        }
        let mut cp = program("cp", ["-a"]);
        cp.arg(&self.store).arg(&copy);
        run(cp).assert_success();
        copy
    }

    fn traced(&self, store: &Path, options: &[&str]) -> Command {
        let mut command = program("strace", ["-f", "-y", "-o"]);
        command.arg(self.dir.path().join("trace")).args(options);
        command.arg("--").arg(PROGRAM).arg("gc").args(self.arguments());
        in_store(command, store)
    }

    /// Asserts that the worker is whole, or gone with its tombstone.
    #[track_caller]
    fn assert_whole_or_gone(&self, store: &Path, about: &str) {
        if workers(store).contains(&"w1".to_owned()) {
            assert!(read_tree(&worker(store, "w1")) == self.files, "{about}: w1 is torn");
            assert_eq!(indexed(store), ["w1"], "{about}: w1 is not in the index");
            assert!(store.join("drafts/w1/upper/file").exists(), "{about}: the draft is torn");
        } else {
            let tombstone = tombstone(store, "w1");
            assert_eq!(tombstone["id"], "w1", "{about}: there is no tombstone");
            if let Some(copies) = &self.copies {
                assert_eq!(tombstone["archived_to"], copies.to_str().unwrap(), "{about}");
                assert!(
                    read_tree(&worker(copies, "w1")) == self.files,
                    "{about}: the copy is torn"
                );
            }
        }
        assert_whole(store);
    }
}

/// Promise: A crash or an error at any system call of `gc` leaves a worker whole, or gone with its
/// tombstone, and the next `gc` completes the removal.
#[test]
fn a_crash_or_an_error_at_any_call_leaves_the_worker_whole_or_gone() {
    inject_everywhere(&Original::new(false), 1);
}

#[test]
fn a_crash_or_an_error_while_archiving_leaves_the_worker_whole_or_copied() {
    inject_everywhere(&Original::new(true), ARCHIVE_STEP);
}

/// Injects a failure and a crash at one of `step` calls.
fn inject_everywhere(original: &Original, step: usize) {
    if !is_here("strace") {
        return;
    }
    let store = original.copy();
    let trace = format!("trace={CALLS}");
    run(original.traced(&store, &["-e", &trace])).assert_success();
    assert!(workers(&store).is_empty());
    let text = fs::read_to_string(original.dir.path().join("trace")).unwrap();
    let line = Regex::new(r"^(\d+) +(\w+)\(").unwrap();
    let (mut numbers, mut plan) = (BTreeMap::new(), Vec::new());
    let mut is_locked = false;
    for line_text in text.lines() {
        let Some(found) = line.captures(line_text) else { continue };
        let name = found[2].to_owned();
        let number = numbers.entry((found[1].to_owned(), name.clone())).or_insert(0);
        *number += 1;
        let in_archive =
            original.copies.as_ref().is_some_and(|at| line_text.contains(at.to_str().unwrap()));
        if !line_text.contains(store.to_str().unwrap()) && !in_archive {
            continue;
        }
        is_locked |= line_text.contains("tombstones");
        if !is_locked {
            continue;
        }
        let changes = !matches!(name.as_str(), "openat2" | "statx" | "getdents64" | "flock");
        if changes {
            plan.push((name.clone(), *number, "signal=KILL"));
        }
        if changes || line_text.contains("/w1") {
            plan.push((name, *number, "error=EIO"));
        }
    }
    assert!(plan.len() > 40, "{} injections: {plan:?}", plan.len());
    for (name, number, injection) in sample(plan.into_iter().step_by(step)) {
        let store = original.copy();
        let about = format!("{injection} at {name} {number}");
        let inject = format!("inject={name}:{injection}:when={number}");
        let ended: CommandOutput = run(original.traced(&store, &["-e", &trace, "-e", &inject]));
        original.assert_whole_or_gone(&store, &about);
        let next = gc(&store, &original.arguments());
        next.assert_success();
        let left = workers(&store);
        // `doctor --repair` removes a file that was being written.
        let is_file = |name: &String| name.starts_with(".swarmletfs-tmp-");
        assert!(left.iter().all(is_file), "{about}: {left:?} {ended:#?} {next:#?}");
        assert!(indexed(&store).is_empty(), "{about}: the index has an entry");
        assert_eq!(read_tree(&store.join("drafts")), BTreeMap::new(), "{about}: a draft stays");
        assert_eq!(tombstone(&store, "w1")["rule"], "--older-than 30d", "{about}");
    }
    let store = original.copy();
    record(&store, &["worker", "create", "--id", "w2"], "").assert_success();
}
