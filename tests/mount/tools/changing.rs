//! Tools on files that change: each output is that of one version, or the tool fails with a reason.
//!
//! A writer takes a worker through a series of states and back by replacing one file at a time by
//! rename. The tree without a kernel provides the expected content of each generated file in each
//! state. Any other output of a tool is wrong. After each change a reader requests evidence in a
//! new size, which makes the mount check the worker at once. So versions change as fast as they can
//! be rendered.
//!
//! Tools that walk while workers and files come and go. Permanent files are visited exactly once,
//! and the tools complain about nothing but the temporary ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;

use super::Gives::{self, AsOnDisk, TheBytes};
use super::Row;
use crate::mount::{PATIENCE, eventually, swarm};
use crate::needs_fuse;
use crate::support::tool::{is_here, lay_out, shell};
use crate::support::{Mount, Seen, TestStore, patience, scale, see, see_folder, some};

/// Number of states.
const STATES: usize = 12;
/// Versions of every file that each tool must have read without an excuse.
const VERSIONS: usize = 3;
/// Least number of runs per tool.
const TIMES: usize = 4;

/// Files in the worker's directory that the tools read.
const FILES: [&str; 2] = ["index.json", "evidence.300k.txt"];

/// Tools that may fail, and the message that they must then print. No other tool may fail or print
/// to standard error.
const EXCUSES: [(&str, &str); 2] =
    [("cp", "replaced while being copied"), ("tar", "file changed as we read it")];

const READERS: &[Row] = &[
    ("cat", r#"cat "$F""#, TheBytes),
    ("head", r#"head -c 10000000 "$F""#, TheBytes),
    ("tail", r#"tail -c 999 "$F""#, AsOnDisk),
    ("tac", r#"tac "$F" | tac"#, TheBytes),
    // wc formats its columns by the size from stat, which may be of the previous version.
    ("wc", r#"echo $(wc "$F")"#, AsOnDisk),
    ("grep", r#"grep -n '' "$F""#, AsOnDisk),
    ("rg", r#"rg --no-config --mmap -N '^' "$F""#, TheBytes),
    ("rg", r#"rg --no-config --no-mmap -N '^' "$F""#, TheBytes),
    ("less", r#"less "$F""#, TheBytes),
    ("sort", r#"sort "$F""#, AsOnDisk),
    ("jq", r#"jq -Rs 'if startswith("{") then fromjson else . end' "$F""#, AsOnDisk),
    ("cp", r#"cp "$F" "$T/x" && cat "$T/x""#, TheBytes),
    ("rsync", r#"rsync -a "$F" "$T/x" && cat "$T/x""#, TheBytes),
    ("tar", r#"tar -cf "$T/t" "$F" && tar -xOf "$T/t""#, TheBytes),
    ("zip", r#"zip -q "$T/z.zip" "$F" && unzip -p "$T/z.zip""#, TheBytes),
    ("dd", r#"dd if="$F" bs=777 status=none"#, TheBytes),
    ("curl", r#"curl -sS "file://$PWD/$F""#, TheBytes),
    ("sha256sum", r#"sha256sum "$F""#, AsOnDisk),
    ("b3sum", r#"b3sum "$F""#, AsOnDisk),
    ("git", r#"git hash-object "$F""#, AsOnDisk),
    ("bash", r#"while IFS= read -r line; do printf '%s\n' "$line"; done <"$F""#, TheBytes),
    ("python3", python!(r#"out = open(f, "rb").read()"#), TheBytes),
    ("python3", python!(r#"d = os.open(f, 0); out = os.read(d, os.fstat(d).st_size)"#), TheBytes),
    (
        "python3",
        python!(r#"d = os.open(f, 0); out = b"".join(iter(lambda: os.read(d, 777), b""))"#),
        TheBytes,
    ),
    (
        "python3",
        python!(
            r#"import mmap; m = mmap.mmap(os.open(f, 0), 0, access=mmap.ACCESS_READ); out = m[:]"#
        ),
        TheBytes,
    ),
];

/// A tool, and a command that copies the tree to `$T/copy`.
const COPIERS: &[(&str, &str)] = &[
    ("cp", r#"cp -a . "$T/copy""#),
    ("rsync", r#"rsync -a ./ "$T/copy""#),
    ("tar", r#"mkdir "$T/copy"; tar -cf - . | tar -C "$T/copy" --warning=no-timestamp -xf -"#),
    ("zip", r#"zip -qry "$T/z.zip" .; unzip -q "$T/z.zip" -d "$T/copy""#),
    ("python3", r#"python3 -c 'import shutil, sys; shutil.copytree(".", sys.argv[1])' "$T/copy""#),
    (
        "find",
        r#"find . -type f -exec sh -c 'mkdir -p "$0/${1%/*}"; cat "$1" >"$0/$1"' "$T/copy" {} \;"#,
    ),
];

/// Replaces a file by rename, with a fixed time.
fn put(store: &TestStore, path: &str, bytes: &[u8], seconds: u64) {
    let fresh = store.path().with_file_name("fresh");
    fs::write(&fresh, bytes).unwrap();
    File::open(&fresh)
        .unwrap()
        .set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
        .unwrap();
    let place = store.at(path);
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    fs::rename(fresh, place).unwrap();
}

/// Returns the worker's metadata in a state.
fn record(state: usize) -> Vec<u8> {
    let version = state.div_ceil(2);
    let body = json!({
        "worker_id": "w", "status": "failed", "created_at": "2026-01-20T10:00:00Z", "error": format!("error {version}"),
        "task": format!("task {version}{}", "!".repeat(version)), "summary": format!("words {version}. ").repeat(version),
    });
    serde_json::to_vec(&body).unwrap()
}

/// Returns the output of its only call in a state.
fn output(state: usize) -> Vec<u8> {
    let version = state / 2;
    let lines = 300 + version * 977 % 300;
    let line = |number| format!("{version} says line {number}{}\n", " and more".repeat(12));
    (0..lines).map(line).collect::<String>().into_bytes()
}

const RECORD: &str = "workers/w/metadata.json";
const OUTPUT: &str = "workers/w/tool_calls/001_sh.txt";

/// Brings the worker to a state. From a neighboring state this replaces one file.
fn go_to_state(store: &TestStore, state: usize) {
    for (path, bytes) in [(RECORD, record(state)), (OUTPUT, output(state))] {
        if fs::read(store.at(path)).ok().as_ref() != Some(&bytes) {
            put(store, path, &bytes, 1_700_000_000);
        }
    }
}

/// Returns the state at a step of a repeated walk from the first to the last and back.
fn state_at(step: usize) -> usize {
    let (there, back) = (step % (2 * STATES - 2), 2 * STATES - 2 - step % (2 * STATES - 2));
    there.min(back)
}

type Hash = [u8; 32];

fn hash(bytes: &[u8]) -> Hash {
    *blake3::hash(bytes).as_bytes()
}

fn beginning(bytes: &[u8]) -> String {
    format!("{} bytes, {:?}", bytes.len(), String::from_utf8_lossy(&bytes[..bytes.len().min(200)]))
}

/// The content of the tree in each state.
struct Versions {
    /// All listed paths with their content.
    seen: Vec<BTreeMap<Vec<u8>, Seen>>,
    /// A directory for each state that contains [`FILES`].
    disk: tempfile::TempDir,
}

impl Versions {
    /// Takes the worker through all states, and leaves it in the first.
    fn of(store: &TestStore) -> Versions {
        // The newest file never changes, so that no generated file shows the time of a change.
        put(store, "workers/w/outputs/newest", b"x", 2_000_000_000);
        let mut versions = Versions { seen: Vec::new(), disk: tempfile::tempdir().unwrap() };
        for state in (0..STATES).rev() {
            go_to_state(store, state);
            let tree = store.tree();
            let files =
                FILES.map(|name| (name.into(), see(&tree, format!("workers/w/{name}")).unwrap()));
            fs::create_dir(versions.folder(state)).unwrap();
            lay_out(&files.into(), &versions.folder(state));
            versions.seen.insert(0, see_folder(&tree, "").unwrap());
        }
        versions
    }

    fn folder(&self, state: usize) -> PathBuf {
        self.disk.path().join(state.to_string())
    }

    /// Returns the hash of a command's output for a file, for each state.
    fn expected_outputs(&self, command: &str, gives: Gives, name: &str) -> Vec<Hash> {
        let expected = |state| match gives {
            TheBytes => hash(&fs::read(self.folder(state).join(name)).unwrap()),
            AsOnDisk => hash(&run(command, &self.folder(state), name).0.stdout),
        };
        (0..STATES).map(expected).collect()
    }

    /// Returns the hash of a copied tree if each file in it is of one version. If `whole`, no file
    /// may be missing.
    fn check(&self, copy: &Path, whole: bool) -> Result<Hash, String> {
        let mut all = Vec::new();
        for (path, _) in self.seen[0].iter().filter(|(_, seen)| matches!(seen, Seen::File { .. })) {
            let text = String::from_utf8_lossy(path);
            let found = match fs::read(copy.join(&*text)) {
                Ok(found) => found,
                Err(_) if !whole => continue,
                Err(error) => return Err(format!("{text}: {error}")),
            };
            if !self
                .seen
                .iter()
                .any(|seen| matches!(&seen[path], Seen::File { bytes, .. } if *bytes == found))
            {
                return Err(format!("{text} is of no version: {}", beginning(&found)));
            }
            all.extend(found);
        }
        Ok(hash(&all))
    }
}

/// Runs a command in `folder` on the file `name`. Returns its output and the directory that it may
/// write to.
fn run(command: &str, folder: &Path, name: &str) -> (Output, tempfile::TempDir) {
    let room = tempfile::tempdir().unwrap();
    (
        shell(command, folder).env("F", name).env("E", "").env("T", room.path()).output().unwrap(),
        room,
    )
}

/// Returns true if a tool succeeded, and false if it failed with its excuse. Any other message is
/// an error.
fn succeeded(tool: &str, out: &Output) -> Result<bool, String> {
    let is_excuse =
        |line: &str| EXCUSES.iter().any(|(who, excuse)| *who == tool && line.contains(excuse));
    let complaint = String::from_utf8_lossy(&out.stderr);
    match (out.status.success(), complaint.is_empty()) {
        (true, true) => Ok(true),
        (false, false) if complaint.lines().all(is_excuse) => Ok(false),
        _ => Err(format!("{}: {complaint}", out.status)),
    }
}

/// A tool to run on a file or tree. A run returns the hash of the version it read, or nothing if it
/// was excused.
struct Case<'a> {
    name: String,
    once: Box<dyn Fn() -> Result<Option<Hash>, String> + Sync + 'a>,
}

/// Makes changes as fast as the mount can follow until each case has read enough versions. Returns
/// all failures.
fn repeat(cases: &[Case<'_>], mount: &Mount, change: impl Fn(usize)) -> Vec<String> {
    let (reading, wrong) = (AtomicUsize::new(2), Mutex::new(Vec::new()));
    let (begun, limit) = (Instant::now(), patience(PATIENCE * 2));
    let read = |cases: &[Case<'_>]| {
        let mut progress = vec![(0, BTreeSet::new()); cases.len()];
        let is_done = |(times, versions): &(usize, BTreeSet<Hash>)| {
            *times >= scale(TIMES) && versions.len() >= VERSIONS
        };
        while !progress.iter().all(is_done) && wrong.lock().unwrap().is_empty() {
            for (case, progress) in
                cases.iter().zip(&mut progress).filter(|(_, progress)| !is_done(progress))
            {
                match (case.once)() {
                    Ok(version) => progress.1.extend(version),
                    Err(what) => wrong.lock().unwrap().push(format!("{}\n    {what}", case.name)),
                }
                progress.0 += 1;
                if begun.elapsed() > limit {
                    let what = format!("only {} versions in {} runs", progress.1.len(), progress.0);
                    return wrong.lock().unwrap().push(format!("{}\n    {what}", case.name));
                }
            }
        }
    };
    let half = cases.len() / 2;
    thread::scope(|scope| {
        for cases in [&cases[..half], &cases[half..]] {
            let (read, reading) = (&read, &reading);
            scope.spawn(move || {
                read(cases);
                reading.fetch_sub(1, Ordering::Relaxed);
            });
        }
        for step in 1.. {
            change(state_at(step));
            mount.read(&format!("workers/w/evidence.{}.txt", 1_000_000 + step));
            if reading.load(Ordering::Relaxed) == 0 {
                break;
            }
        }
    });
    wrong.into_inner().unwrap()
}

/// Promise: A tool that reads a changing file reads one version.
#[test]
fn tools_read_one_version_of_a_changing_file() {
    needs_fuse!();
    let store = TestStore::new();
    let versions = Versions::of(&store);
    let mount = Mount::new(&store.path());
    let last = 5;
    let (mut cases, mut at_last) = (Vec::new(), Vec::new());
    for (tool, command, gives) in READERS.iter().filter(|(tool, ..)| is_here(tool)) {
        for file in some(FILES) {
            let (right, folder) =
                (versions.expected_outputs(command, *gives, file), mount.at("workers/w"));
            at_last.push(right[last]);
            let once = move || {
                let (out, _) = run(command, &folder, file);
                match succeeded(tool, &out)? {
                    true if right.contains(&hash(&out.stdout)) => Ok(Some(hash(&out.stdout))),
                    true => Err(format!("of no version: {}", beginning(&out.stdout))),
                    false => Ok(None),
                }
            };
            cases.push(Case { name: format!("{tool}: {command} of {file}"), once: Box::new(once) });
        }
    }
    let wrong = repeat(&cases, &mount, |state| go_to_state(&store, state));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    go_to_state(&store, last);
    for (case, right) in cases.iter().zip(at_last) {
        eventually(&format!("the last version by {}", case.name), || {
            ((case.once)() == Ok(Some(right))).then_some(())
        });
    }
}

/// Promise: A tool that copies a changing tree copies whole versions.
#[test]
fn tools_copy_whole_versions_of_a_changing_tree() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("still", json!({})).call("still", 1, "sh", "nothing happens\n");
    let versions = Versions::of(&store);
    let mount = Mount::new(&store.path());
    let case = |(tool, command): &'static (&str, &str)| {
        let (versions, root) = (&versions, mount.path());
        let once = move || {
            let (out, room) = run(command, &root, "");
            let whole = succeeded(tool, &out)?;
            let hash = versions.check(&room.path().join("copy"), whole)?;
            Ok(whole.then_some(hash))
        };
        Case { name: format!("{tool}: {command}"), once: Box::new(once) }
    };
    let cases: Vec<Case<'_>> =
        COPIERS.iter().filter(|(tool, ..)| is_here(tool)).map(case).collect();
    let wrong = repeat(&cases, &mount, |state| go_to_state(&store, state));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Control: a file rewritten in place yields a mix of versions, and the test detects it.
#[test]
fn a_mix_would_be_found() {
    needs_fuse!();
    let store = TestStore::new();
    let versions = Versions::of(&store);
    let mount = Mount::new(&store.path());
    let once = || versions.check(&mount.path(), true).map(Some);
    let torn = |state: usize| {
        let bytes = output(state);
        fs::write(store.at(OUTPUT), &bytes[..bytes.len() / 2]).unwrap();
        mount.read(&format!("workers/w/evidence.{}.txt", 2_000_000 + state));
        fs::write(store.at(OUTPUT), &bytes).unwrap();
    };
    let case = Case { name: "a plain read".into(), once: Box::new(once) };
    let wrong = repeat(&[case], &mount, torn);
    assert!(wrong.iter().any(|what| what.contains("is of no version")), "{wrong:?}");
}

/// Part of the name of every temporary file or worker.
const PASSING: &str = "passing";
/// Number of temporary workers and files that exist at a time.
const PRESENT: usize = 8;
/// Walks per tool.
const WALKS_PER_TOOL: usize = 4;

/// A tool, and a command that prints the path of every file in the tree, among other paths.
const WALKS: &[(&str, &str)] = &[
    ("find", "find ."),
    ("grep", "grep -rc '' . | sed 's/:[0-9]*$//'"),
    ("rg", "rg --no-config --files"),
    ("fdfind", "fdfind"),
    ("du", "du -a . | cut -f 2-"),
    ("tree", "tree -afi --noreport | sed 's/ -> .*//'"),
    ("tar", "tar -cf - . | tar -tf -"),
    ("git", "git grep --no-index -c '' | sed 's/:[0-9]*$//'"),
    (
        "python3",
        r#"python3 -c 'import os; [print(at + "/" + name) for at, _, files in os.walk(".") for name in files]'"#,
    ),
];
/// Permitted messages about other files. git requests the size of a path before it opens it.
const SAYINGS: [&str; 3] = ["file changed as we read it", "due to previous errors", "short read"];

/// Creates the `n`-th worker and the `n`-th file of another worker, and removes old ones.
fn pass(store: &TestStore, n: usize) {
    let name = |n: usize| format!("{PASSING}-{n}");
    let waiting = |n| format!("waiting/{}", name(n));
    let (worker, file) =
        (|n| format!("workers/{}", name(n)), |n| format!("workers/gamma/logs/{}", name(n)));
    store.write(
        waiting(n) + "/metadata.json",
        json!({"worker_id": name(n), "run_id": "r1", "status": "success"}).to_string(),
    );
    store.write(waiting(n) + &format!("/tool_calls/001_{PASSING}.txt"), "here today\n");
    fs::rename(store.at(waiting(n)), store.at(worker(n))).unwrap();
    store.write(file(n), "here today\n");
    if let Some(old) = n.checked_sub(PRESENT) {
        fs::rename(store.at(worker(old)), store.at(waiting(old))).unwrap();
        fs::remove_dir_all(store.at(waiting(old))).unwrap();
        fs::remove_file(store.at(file(old))).unwrap();
    }
}

#[test]
fn stable_entries_are_visited_once_during_changes() {
    needs_fuse!();
    let store = swarm();
    // More names than one read returns.
    for n in 0..300 {
        store.write(format!("workers/gamma/logs/{n}-{}", "x".repeat(80)), "stays\n");
    }
    let (mut files, mut all) = (BTreeSet::new(), BTreeSet::new());
    for (path, seen) in see_folder(&store.tree(), "").unwrap() {
        let path = String::from_utf8(path).unwrap();
        if matches!(seen, Seen::File { .. }) {
            files.insert(path.clone());
        }
        all.insert(path);
    }
    let mount = Mount::new(&store.path());
    let (done, begun) = (AtomicBool::new(false), Instant::now());
    // Failures of one walk, and true if a temporary file was visited.
    let walk = |command: &str| -> (Vec<String>, bool) {
        let out = shell(command, &mount.path()).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        let path =
            |line: &str| line.strip_prefix("./").unwrap_or(line).trim_end_matches('/').to_owned();
        let (passing, stable): (Vec<String>, Vec<String>) =
            text.lines().map(path).partition(|path| path.contains(PASSING));
        let once = |path: &&String| stable.iter().filter(|other| other == path).count() == 1;
        let mut wrong: Vec<String> = files.iter().filter(|path| !once(path)).cloned().collect();
        wrong.extend(
            stable
                .iter()
                .filter(|path| !all.contains(*path) && !matches!(path.as_str(), "" | "."))
                .cloned(),
        );
        let complaint = String::from_utf8_lossy(&out.stderr).into_owned();
        let known = |line: &&str| {
            !line.contains(PASSING) && !SAYINGS.iter().any(|saying| line.contains(saying))
        };
        wrong.extend(complaint.lines().filter(known).map(str::to_owned));
        (wrong, !passing.is_empty())
    };
    let wrong = thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                pass(&store, n);
                mount.read(&format!("workers/gamma/evidence.{}.txt", 1_000 + n));
                // One walk per change, so that temporary files exist for a few walks.
                mount.shell("find \"$M\" >/dev/null 2>&1");
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut wrong = Vec::new();
        for (tool, command) in WALKS.iter().filter(|(tool, _)| is_here(tool)) {
            let mut disturbed = 0;
            for times in 1.. {
                let (these, passing) = walk(command);
                disturbed += usize::from(passing);
                let late = begun.elapsed() > patience(PATIENCE * 2);
                if !these.is_empty() || late {
                    wrong.push(format!(
                        "{tool}: {command}\n    {times} walks, {disturbed} of them visited a temporary file; {these:?}"
                    ));
                }
                if times >= scale(WALKS_PER_TOOL) && disturbed > 0 || !these.is_empty() || late {
                    break;
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        wrong
    });
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
