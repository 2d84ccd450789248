//! Tools on files that change under them: each gives what is right of one whole version, or fails and says why.
//!
//! A writer takes a worker through a series of states and back, one file at a time, renamed into its place. What each
//! generated file says in each state is told by the tree without a kernel; so whatever a tool gives is right of one of
//! these versions, or is wrong. After each change somebody asks for an excerpt in a size that nobody asked for before,
//! which makes the mount look at the worker at once instead of within a second: versions follow each other as fast as
//! they can be made.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;

use super::Gives::{self, AsOnDisk, TheBytes};
use super::Row;
use crate::mount::{PATIENCE, eventually};
use crate::needs_fuse;
use crate::support::scale::{factor, scale};
use crate::support::tool::{is_here, lay_out, shell};
use crate::support::{Mount, Seen, TestStore, see, see_folder};

/// How many states there are.
const STATES: usize = 12;
/// So many versions must every tool have read of every file, without an excuse.
const VERSIONS: usize = 3;
/// So often must it have tried.
const TIMES: usize = 4;

/// What the tools read in the worker's folder.
const FILES: [&str; 2] = ["index.json", "evidence.300k.txt"];

/// Who may fail instead, and what must then be said. Nobody else may fail, or say anything.
const EXCUSES: [(&str, &str); 2] = [("cp", "replaced while being copied"), ("tar", "file changed as we read it")];

const READERS: &[Row] = &[
    ("cat", r#"cat "$F""#, TheBytes),
    ("head", r#"head -c 10000000 "$F""#, TheBytes),
    ("tail", r#"tail -c 999 "$F""#, AsOnDisk),
    ("tac", r#"tac "$F" | tac"#, TheBytes),
    // wc lays its columns out by the size that stat tells, which may be of the version before.
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
    ("python3", python!(r#"d = os.open(f, 0); out = b"".join(iter(lambda: os.read(d, 777), b""))"#), TheBytes),
    (
        "python3",
        python!(r#"import mmap; m = mmap.mmap(os.open(f, 0), 0, access=mmap.ACCESS_READ); out = m[:]"#),
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
    ("find", r#"find . -type f -exec sh -c 'mkdir -p "$0/${1%/*}"; cat "$1" >"$0/$1"' "$T/copy" {} \;"#),
];

/// Puts a file in its place whole, with a time that does not depend on when.
fn put(store: &TestStore, path: &str, bytes: &[u8], seconds: u64) {
    let fresh = store.path().with_file_name("fresh");
    fs::write(&fresh, bytes).unwrap();
    File::open(&fresh).unwrap().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    let place = store.at(path);
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    fs::rename(fresh, place).unwrap();
}

/// The worker's metadata in a state.
fn record(state: usize) -> Vec<u8> {
    let version = state.div_ceil(2);
    let body = json!({
        "worker_id": "w", "status": "failed", "created_at": "2026-01-20T10:00:00Z", "error": format!("error {version}"),
        "task": format!("task {version}{}", "!".repeat(version)), "summary": format!("words {version}. ").repeat(version),
    });
    serde_json::to_vec(&body).unwrap()
}

/// The output of its one call in a state.
fn output(state: usize) -> Vec<u8> {
    let version = state / 2;
    let lines = 300 + version * 977 % 300;
    let line = |number| format!("{version} says line {number}{}\n", " and more".repeat(12));
    (0..lines).map(line).collect::<String>().into_bytes()
}

const RECORD: &str = "workers/w/metadata.json";
const OUTPUT: &str = "workers/w/tool_calls/001_sh.txt";

/// Brings the worker to a state; from its neighbour, by replacing one file.
fn go(store: &TestStore, state: usize) {
    for (path, bytes) in [(RECORD, record(state)), (OUTPUT, output(state))] {
        if fs::read(store.at(path)).ok().as_ref() != Some(&bytes) {
            put(store, path, &bytes, 1_700_000_000);
        }
    }
}

/// The state at a step of a walk from the first to the last and back, again and again.
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

/// What the tree holds in each state.
struct Versions {
    /// Everything that is listed, by its path.
    seen: Vec<BTreeMap<Vec<u8>, Seen>>,
    /// A folder for each state, with [`FILES`].
    disk: tempfile::TempDir,
}

impl Versions {
    /// Takes the worker through all states, and leaves it in the first.
    fn of(store: &TestStore) -> Versions {
        // The newest file of all never changes, so that no file tells when it was changed.
        put(store, "workers/w/outputs/newest", b"x", 2_000_000_000);
        let mut versions = Versions { seen: Vec::new(), disk: tempfile::tempdir().unwrap() };
        for state in (0..STATES).rev() {
            go(store, state);
            let tree = store.tree();
            let files = FILES.map(|name| (name.into(), see(&tree, format!("workers/w/{name}")).unwrap()));
            fs::create_dir(versions.folder(state)).unwrap();
            lay_out(&files.into(), &versions.folder(state));
            versions.seen.insert(0, see_folder(&tree, "").unwrap());
        }
        versions
    }

    fn folder(&self, state: usize) -> PathBuf {
        self.disk.path().join(state.to_string())
    }

    /// The hash of what a command gives of a file, in each state.
    fn given(&self, command: &str, gives: Gives, name: &str) -> Vec<Hash> {
        let given = |state| match gives {
            TheBytes => hash(&fs::read(self.folder(state).join(name)).unwrap()),
            AsOnDisk => hash(&run(command, &self.folder(state), name).0.stdout),
        };
        (0..STATES).map(given).collect()
    }

    /// The hash of a copy of the tree, if each file in it is of a version, and if none is missing where it is `whole`.
    fn check(&self, copy: &Path, whole: bool) -> Result<Hash, String> {
        let mut all = Vec::new();
        for (path, _) in self.seen[0].iter().filter(|(_, seen)| matches!(seen, Seen::File { .. })) {
            let text = String::from_utf8_lossy(path);
            let found = match fs::read(copy.join(&*text)) {
                Ok(found) => found,
                Err(_) if !whole => continue,
                Err(error) => return Err(format!("{text}: {error}")),
            };
            if !self.seen.iter().any(|seen| matches!(&seen[path], Seen::File { bytes, .. } if *bytes == found)) {
                return Err(format!("{text} is of no version: {}", beginning(&found)));
            }
            all.extend(found);
        }
        Ok(hash(&all))
    }
}

/// Runs a command in `folder`, on the file `name`; with what came of it, the folder that it could write in.
fn run(command: &str, folder: &Path, name: &str) -> (Output, tempfile::TempDir) {
    let room = tempfile::tempdir().unwrap();
    (shell(command, folder).env("F", name).env("E", "").env("T", room.path()).output().unwrap(), room)
}

/// Whether a tool did what it was to do: no, if it failed and gave its excuse. Error: anything else that it says.
fn went_well(tool: &str, out: &Output) -> Result<bool, String> {
    let is_excuse = |line: &str| EXCUSES.iter().any(|(who, excuse)| *who == tool && line.contains(excuse));
    let complaint = String::from_utf8_lossy(&out.stderr);
    match (out.status.success(), complaint.is_empty()) {
        (true, true) => Ok(true),
        (false, false) if complaint.lines().all(is_excuse) => Ok(false),
        _ => Err(format!("{}: {complaint}", out.status)),
    }
}

/// A tool at work on something. Run once, it gives the hash of what it made of one version, or nothing if it is excused.
struct Case<'a> {
    name: String,
    once: Box<dyn Fn() -> Result<Option<Hash>, String> + Sync + 'a>,
}

/// Makes one change after the other, as fast as the mount can follow, until each case has met so many versions. Gives
/// what went wrong.
fn repeat(cases: &[Case<'_>], mount: &Mount, change: impl Fn(usize)) -> Vec<String> {
    let (reading, wrong) = (AtomicUsize::new(2), Mutex::new(Vec::new()));
    let (begun, patience) = (Instant::now(), PATIENCE * 2 * factor() as u32);
    let read = |cases: &[Case<'_>]| {
        let mut met = vec![(0, BTreeSet::new()); cases.len()];
        let is_done =
            |(times, versions): &(usize, BTreeSet<Hash>)| *times >= scale(TIMES) && versions.len() >= VERSIONS;
        while !met.iter().all(is_done) && wrong.lock().unwrap().is_empty() {
            for (case, met) in cases.iter().zip(&mut met).filter(|(_, met)| !is_done(met)) {
                match (case.once)() {
                    Ok(version) => met.1.extend(version),
                    Err(what) => wrong.lock().unwrap().push(format!("{}\n    {what}", case.name)),
                }
                met.0 += 1;
                if begun.elapsed() > patience {
                    let what = format!("only {} versions in {} runs", met.1.len(), met.0);
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

#[test]
fn what_reads_a_file_that_changes_reads_one_version() {
    needs_fuse!();
    let store = TestStore::new();
    let versions = Versions::of(&store);
    let mount = Mount::new(&store.path());
    let last = 5;
    let (mut cases, mut at_last) = (Vec::new(), Vec::new());
    for (tool, command, gives) in READERS.iter().filter(|(tool, ..)| is_here(tool)) {
        for file in FILES {
            let (right, folder) = (versions.given(command, *gives, file), mount.at("workers/w"));
            at_last.push(right[last]);
            let once = move || {
                let (out, _) = run(command, &folder, file);
                match went_well(tool, &out)? {
                    true if right.contains(&hash(&out.stdout)) => Ok(Some(hash(&out.stdout))),
                    true => Err(format!("of no version: {}", beginning(&out.stdout))),
                    false => Ok(None),
                }
            };
            cases.push(Case { name: format!("{tool}: {command} of {file}"), once: Box::new(once) });
        }
    }
    let wrong = repeat(&cases, &mount, |state| go(&store, state));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    go(&store, last);
    for (case, right) in cases.iter().zip(at_last) {
        eventually(&format!("the last version by {}", case.name), || ((case.once)() == Ok(Some(right))).then_some(()));
    }
}

#[test]
fn what_copies_a_tree_that_changes_copies_whole_versions() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("still", json!({})).call("still", 1, "sh", "nothing happens\n");
    let versions = Versions::of(&store);
    let mount = Mount::new(&store.path());
    let case = |(tool, command): &'static (&str, &str)| {
        let (versions, root) = (&versions, mount.path());
        let once = move || {
            let (out, room) = run(command, &root, "");
            let whole = went_well(tool, &out)?;
            let hash = versions.check(&room.path().join("copy"), whole)?;
            Ok(whole.then_some(hash))
        };
        Case { name: format!("{tool}: {command}"), once: Box::new(once) }
    };
    let cases: Vec<Case<'_>> = COPIERS.iter().filter(|(tool, ..)| is_here(tool)).map(case).collect();
    let wrong = repeat(&cases, &mount, |state| go(&store, state));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The control of these tests: of a file that is rewritten in its place there is a mix to be read, and it is found.
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
