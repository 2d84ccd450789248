//! Random commands in random workspaces: the diff, `apply` and `undo` are exact.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::workspace::Workspace;
use crate::cli::program::{CommandOutput, run};
use crate::formats::workspace_changes::fixture;
use crate::support::mount::PROGRAM;
use crate::support::tool::is_here;
use crate::support::{is_full, scale, seed};

/// Changes a folder at random, and lists its entries.
const SCRIPT: &str = include_str!("random.py");
/// Comments of a diff in the place of a change that exceeds its limits.
const TOO_LARGE: [&str; 2] = ["Binary files ", " bytes are too many for a diff"];
/// Number of runs in a workspace, each of which starts where an earlier one ended.
const ROUNDS: u64 = 5;

/// An entry: its type, its mode, and the hash of a file or the target of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listed {
    kind: &'static str,
    mode: u32,
    content: Vec<u8>,
}

/// The entries of a workspace by path.
type Listing = BTreeMap<Vec<u8>, Listed>;

fn kind(name: &str) -> &'static str {
    ["file", "link", "folder"].into_iter().find(|kind| *kind == name).unwrap()
}

/// Reads all entries of a workspace, with the contents of its files.
fn read(folder: &Path) -> BTreeMap<Vec<u8>, (Listed, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(path) = folders.pop() {
        for entry in fs::read_dir(folder.join(&path)).unwrap() {
            let path = path.join(entry.unwrap().file_name());
            let at = folder.join(&path);
            let meta = fs::symlink_metadata(&at).unwrap();
            let mode = meta.permissions().mode() & 0o7777;
            let (kind, bytes, content) = if meta.is_symlink() {
                let target = fs::read_link(&at).unwrap().as_os_str().as_bytes().to_vec();
                ("link", target.clone(), target)
            } else if meta.is_dir() {
                folders.push(path.clone());
                ("folder", Vec::new(), Vec::new())
            } else {
                let bytes = fs::read(&at).unwrap();
                ("file", bytes.clone(), Sha256::digest(bytes).to_vec())
            };
            let listed = Listed { kind, mode, content };
            found.insert(path.as_os_str().as_bytes().to_vec(), (listed, bytes));
        }
    }
    found
}

fn list(folder: &Path) -> Listing {
    read(folder).into_iter().map(|(path, (listed, _))| (path, listed)).collect()
}

/// Parses the listing that the command printed.
fn parse(text: &str) -> Listing {
    let bytes = |value: &Value| -> Vec<u8> {
        let digits = value.as_str().unwrap().as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
        digits.chunks(2).map(|pair| byte(pair).unwrap()).collect()
    };
    let entry = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap();
        let mode = value[2].as_u64().unwrap().try_into().unwrap();
        let kind = kind(value[1].as_str().unwrap());
        (bytes(&value[0]), Listed { kind, mode, content: bytes(&value[3]) })
    };
    text.lines().map(entry).collect()
}

/// Asserts that two listings are equal. A failure shows the entries that differ.
#[track_caller]
fn assert_same(left: &Listing, right: &Listing, about: &str) {
    let paths = left.keys().chain(right.keys()).collect::<BTreeSet<_>>();
    let differing = paths.into_iter().filter(|path| left.get(*path) != right.get(*path));
    let show = |path| (OsStr::from_bytes(path), left.get(path), right.get(path));
    assert_eq!(differing.map(|path| show(path)).collect::<Vec<_>>(), [], "{about}");
}

/// Returns the one of two modes that git would record.
fn git_mode(mode: u32) -> u32 {
    if mode & 0o100 == 0 { 0o644 } else { 0o755 }
}

/// Returns what git would record: files and links.
fn as_git_records(mut listing: Listing) -> Listing {
    listing.retain(|_, entry| entry.kind != "folder");
    for entry in listing.values_mut().filter(|entry| entry.kind == "file") {
        entry.mode = git_mode(entry.mode);
    }
    listing
}

/// Applies a diff with git to a copy of the workspace. Returns the entries after that.
fn apply_with_git(workspace: &Path, diff: &str) -> Result<Listing, String> {
    let copied = |(path, (listed, bytes)): (Vec<u8>, (Listed, Vec<u8>))| {
        let entry = match listed.kind {
            "file" => fixture::Entry::File { bytes, mode: git_mode(listed.mode) },
            "link" => fixture::Entry::Link(bytes),
            _ => return None,
        };
        Some((path, entry))
    };
    let old = read(workspace).into_iter().filter_map(copied).collect();
    let listed = |entry| match entry {
        fixture::Entry::File { bytes, mode } => {
            Listed { kind: "file", mode, content: Sha256::digest(bytes).to_vec() }
        }
        fixture::Entry::Link(target) => Listed { kind: "link", mode: 0o777, content: target },
    };
    let new = fixture::apply(&old, diff)?;
    Ok(new.into_iter().map(|(path, entry)| (path, listed(entry))).collect())
}

/// Runs `swarmletfs <words>` for the store, as the user of the workspace.
#[track_caller]
fn swarmletfs(place: &Workspace, words: &[&str]) -> CommandOutput {
    let store = place.at("store");
    let words = [&[PROGRAM, words[0], "--store", store.to_str().unwrap()], &words[1..]].concat();
    run(place.command(words.into_iter().map(OsStr::new)))
}

/// One worker in a workspace.
struct Round<'a> {
    place: &'a Workspace,
    python: &'a OsStr,
    engine: &'a str,
    id: String,
    seed: u64,
    /// True if the worker may take away the rights of the owner.
    is_closed: bool,
    /// True if it is applied at the end.
    stays: bool,
}

impl Round<'_> {
    /// Returns true if the user has the rights to read all entries.
    fn can_read_all(&self, listing: &Listing) -> bool {
        let is_open = |entry: &Listed| {
            let needed = if entry.kind == "folder" { 0o500 } else { 0o400 };
            entry.mode & needed == needed
        };
        !self.place.is_ordinary() || listing.values().all(is_open)
    }

    /// Undoes changes after which the owner may not read some entries: that is possible, or else
    /// nothing is changed.
    fn check_undo_of_closed_entries(&self, view: &Listing, old: &Listing) {
        let undone = swarmletfs(self.place, &["undo", &self.id, "--yes", "--no-sync"]);
        let now = list(&self.place.at("workspace"));
        if undone.code == Some(0) {
            assert_same(&now, old, &format!("seed {}: undone", self.seed));
        } else {
            undone.assert_failure(1, &["permission denied"]);
            assert_same(&now, view, &format!("seed {}: not undone", self.seed));
        }
    }

    /// Runs the worker, and applies and takes back its changes. Returns the kinds of them, and
    /// whether git has applied them, too.
    fn check(&self) -> (BTreeSet<String>, bool) {
        let (place, id) = (self.place, self.id.as_str());
        let about = format!("seed {} of {id} with {}", self.seed, self.engine);
        let workspace = place.at("workspace");
        let old = list(&workspace);
        let seed = self.seed.to_string();
        let script = [self.python.to_str().unwrap(), "-c", SCRIPT, &seed, "25", "closed"];
        let script = if self.is_closed { &script[..] } else { &script[..5] };
        let options = ["--id", id, "--engine", self.engine, "-q", "--all-changes", "--no-sync"];
        let done = place.run(&options, script);
        assert_eq!((done.code, &*done.err), (Some(0), ""), "{about}: {done:#?}");
        let view = parse(&done.out);
        assert_same(&list(&workspace), &old, &format!("{about}: the workspace changed"));

        let diff = swarmletfs(place, &["cat", &format!("workers/{id}/changes.diff")]);
        if view == old {
            assert_ne!(diff.code, Some(0), "{about}: {diff:#?}");
            return (BTreeSet::new(), false);
        }
        diff.assert_success();
        let is_exact = !TOO_LARGE.iter().any(|comment| diff.out.contains(comment));
        if is_exact {
            let about = format!("{about}: git apply of\n{}", diff.out);
            let new = apply_with_git(&workspace, &diff.out);
            let new = new.unwrap_or_else(|error| panic!("{error}{about}"));
            assert_same(&new, &as_git_records(view.clone()), &about);
        }

        let run = |words: &[&str]| {
            let done = swarmletfs(place, words);
            assert_eq!(done.code, Some(0), "{about}, {words:?}: {done:#?}");
        };
        run(&["apply", id, "--yes", "--no-sync"]);
        assert_same(&list(&workspace), &view, &format!("{about}: applied"));
        if self.is_closed && !self.can_read_all(&view) {
            self.check_undo_of_closed_entries(&view, &old);
            return (BTreeSet::new(), is_exact);
        }
        run(&["undo", id, "--yes", "--no-sync"]);
        assert_same(&list(&workspace), &old, &format!("{about}: undone"));
        if self.stays {
            run(&["apply", id, "--yes", "--no-sync"]);
            assert_same(&list(&workspace), &view, &format!("{about}: applied again"));
        }
        let kind = |change: String| change.split(' ').next().unwrap().to_owned();
        (place.changes(id).into_iter().map(kind).collect(), is_exact)
    }
}

/// Checks `count` workers of each engine.
fn check(make: fn() -> Workspace, count: usize, first: u64) {
    // The user may not enter the directory of another interpreter.
    let python = OsString::from("python3");
    if !is_here("python3") || !is_here("git") {
        return;
    }
    let (mut kinds, mut exact) = (BTreeSet::new(), 0);
    for seed in (first..first + count as u64).step_by(ROUNDS as usize) {
        let place = make();
        let mut fill = place.command(
            [python.as_os_str(), "-c".as_ref(), SCRIPT.as_ref()]
                .into_iter()
                .chain([seed.to_string(), "60".into()].iter().map(OsStr::new)),
        );
        fill.current_dir(place.at("workspace"));
        run(fill).assert_success();
        let mut rng = Rng::with_seed(seed);
        for round in 0..ROUNDS {
            let engine = if rng.bool() { "overlay" } else { "copy" };
            // The last one: later workers of an ordinary user could not read the closed entries.
            let is_closed = round == ROUNDS - 1 && rustix::process::geteuid().is_root();
            let stays = rng.bool() && !is_closed;
            let id = format!("w{round}");
            let seed = seed + round;
            let python = &python;
            let round = Round { place: &place, python, engine, id, seed, is_closed, stays };
            let (found, is_exact) = round.check();
            kinds.extend(found);
            exact += usize::from(is_exact);
        }
    }
    let all = ["added", "deleted", "mode", "modified", "replaced"].map(str::to_owned);
    assert!(kinds == all.into() || !is_full(), "{kinds:?}");
    eprintln!("{count} workers, the diffs of {exact} applied by git");
    assert!(
        exact * 4 > count * 3 || !is_full(),
        "the diffs of {exact} of {count} workers are exact"
    );
}

/// Promise: A worker's changes.diff, applied by git, gives the files and links that the command saw
/// at its end; `apply` gives its whole view with permissions, and `undo` the old workspace.
#[test]
fn random_commands_are_recorded_applied_and_taken_back_exactly() {
    check(Workspace::new, scale(30), seed());
}

#[test]
fn random_commands_of_an_ordinary_user_are_exact() {
    check(Workspace::of_ordinary_user, scale(30), !seed() >> 1);
}
