//! Random workspaces, the record of their changes, and what git makes of a diff.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use fastrand::Rng;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::TestStore;
use crate::support::tool::shell;

/// A file or link of a workspace. Git knows no folders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    File { bytes: Vec<u8>, mode: u32 },
    Link(Vec<u8>),
}

/// The entries of a workspace by path.
pub type Workspace = BTreeMap<Vec<u8>, Entry>;

/// Names that are odd for git, for shells or for diffs.
const NAMES: [&[u8]; 20] = [
    b"a",
    b"b",
    b"c",
    b"d",
    b"src",
    b"a b",
    b"b/",
    b"x b",
    "\u{e9}".as_bytes(),
    b"\xff\xfe",
    b"\"",
    b"tab\t",
    b"line\n",
    b"back\\slash",
    b"-rf",
    b"#c",
    b"/dev",
    b"...",
    b"\x1b[31m",
    b"$(id)",
];
/// Lines that look like parts of a diff, and ordinary ones.
const LINES: [&str; 12] = [
    "--- a/a",
    "+++ b/a",
    "@@ -1,1 +1,1 @@",
    "diff --git a/a b/a",
    "# note",
    "\\ No newline at end of file",
    "",
    "\t",
    "GIT binary patch",
    "x\r",
    "word",
    "\u{202e}evil",
];

/// Returns two workspaces of which the second one came from changes of the first.
pub fn random_pair(seed: u64) -> (Workspace, Workspace) {
    let mut rng = Rng::with_seed(seed);
    let mut old = Workspace::new();
    for _ in 0..rng.usize(0..12) {
        let entry = random_entry(&mut rng);
        put(&mut old, random_path(&mut rng), entry);
    }
    let mut new = old.clone();
    for _ in 0..rng.usize(1..10) {
        let paths: Vec<Vec<u8>> = new.keys().cloned().collect();
        let known = rng.choice(paths);
        match (rng.u8(0..6), known) {
            (0, Some(path)) => drop(new.remove(&path)),
            (1 | 2, Some(path)) => change(&mut rng, new.get_mut(&path).unwrap()),
            (3, Some(path)) => drop(new.insert(path, random_entry(&mut rng))),
            // In the place of a folder, or beneath a file.
            (4, Some(path)) if path.contains(&b'/') => {
                let end = path.iter().position(|byte| *byte == b'/').unwrap();
                put(&mut new, path[..end].to_vec(), random_entry(&mut rng));
            }
            (4, Some(path)) => put(&mut new, [&path[..], b"/x"].concat(), random_entry(&mut rng)),
            _ => {
                let entry = random_entry(&mut rng);
                put(&mut new, random_path(&mut rng), entry);
            }
        }
    }
    (old, new)
}

/// Adds an entry and removes those that it replaces.
fn put(workspace: &mut Workspace, path: Vec<u8>, entry: Entry) {
    let beneath = [&path[..], b"/"].concat();
    workspace.retain(|other, _| {
        !other.starts_with(&beneath) && !path.starts_with(&[&other[..], b"/"].concat())
    });
    workspace.insert(path, entry);
}

fn random_path(rng: &mut Rng) -> Vec<u8> {
    let names = (0..rng.usize(1..4)).map(|_| {
        let name = NAMES[rng.usize(0..NAMES.len())];
        name.iter().copied().filter(|byte| *byte != b'/').collect::<Vec<u8>>()
    });
    names.collect::<Vec<_>>().join(&b'/')
}

fn random_entry(rng: &mut Rng) -> Entry {
    if rng.u8(0..6) == 0 {
        // No link leads to itself: git does not apply what replaces such a link by a folder.
        let target = rng.choice([&b"."[..], b"../x", b"\xff", b"two\nlines", b"/etc"]).unwrap();
        return Entry::Link(target.to_vec());
    }
    let bytes = match rng.u8(0..8) {
        0 => Vec::new(),
        1 => (0..rng.usize(1..600)).map(|_| rng.u8(..)).collect(),
        2 => b"caf\xe9\n".to_vec(),
        _ => random_text(rng),
    };
    Entry::File { bytes, mode: if rng.u8(0..4) == 0 { 0o755 } else { 0o644 } }
}

fn random_text(rng: &mut Rng) -> Vec<u8> {
    let lines =
        (0..rng.usize(1..60)).map(|at| format!("{} {}", LINES[rng.usize(0..LINES.len())], at % 7));
    let text = lines.collect::<Vec<_>>().join("\n");
    (text + if rng.bool() { "\n" } else { "" }).into_bytes()
}

/// Changes an entry in one of the ways of an editor.
fn change(rng: &mut Rng, entry: &mut Entry) {
    match entry {
        Entry::Link(target) => target.push(b'x'),
        Entry::File { mode, .. } if rng.u8(0..4) == 0 => *mode ^= 0o111,
        Entry::File { bytes, .. } => {
            let mut lines: Vec<Vec<u8>> =
                bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(0..=lines.len());
                match rng.bool() {
                    true => {
                        lines.insert(at, format!("{}\n", LINES[rng.usize(0..LINES.len())]).into())
                    }
                    false => drop((at < lines.len()).then(|| lines.remove(at))),
                }
            }
            *bytes = lines.concat();
        }
    }
}

/// Writes changes.json, `changes/` and `base/` of a worker that turned `old` into `new`. `fields`
/// replace those of changes.json.
pub fn record(store: &TestStore, id: &str, old: &Workspace, new: &Workspace, fields: &Value) {
    for side in ["changes", "base"] {
        let _ = fs::remove_dir_all(store.at(format!("workers/{id}/{side}")));
    }
    let folders = [old, new].map(folders_of);
    let mut paths: BTreeSet<&Vec<u8>> = old.keys().chain(new.keys()).collect();
    paths.extend(folders.iter().flatten());
    let mut files = Vec::new();
    for path in paths {
        let states = [(old, &folders[0]), (new, &folders[1])].map(|(workspace, folders)| {
            let folder =
                || folders.contains(path).then(|| json!({"type": "folder", "mode": "0755"}));
            workspace.get(path).map(state).or_else(folder)
        });
        let [before, after] = states;
        if before == after {
            continue;
        }
        let content = |workspace: &Workspace| match workspace.get(path) {
            Some(Entry::File { bytes, .. }) => Some(bytes.clone()),
            _ => None,
        };
        let (base, changed) = (content(old), content(new));
        let is_same = base.is_some() && base == changed;
        for (side, content) in [("base", &base), ("changes", &changed)] {
            if let Some(content) = content.as_ref().filter(|_| !is_same) {
                let place = format!("workers/{id}/{side}/");
                store.write([place.as_bytes(), path].concat(), content);
            }
        }
        let kind = match (&before, &after) {
            (None, _) => "added",
            (_, None) => "deleted",
            (Some(before), Some(after)) if before["type"] != after["type"] => "replaced",
            _ if is_same => "mode",
            _ => "modified",
        };
        let lines = |content: &Option<Vec<u8>>| {
            content.iter().flatten().filter(|byte| **byte == b'\n').count()
        };
        let mut file = json!({
            "kind": kind, "base": if base.is_some() && !is_same { "saved" } else { "none" },
            "added": lines(&changed), "removed": lines(&base),
        });
        file["path"] = String::from_utf8_lossy(path).into();
        if std::str::from_utf8(path).is_err() {
            file["path_encoded"] = encoded(path).into();
        }
        for (key, state) in [("old", before), ("new", after)] {
            if let Some(state) = state {
                file[key] = state;
            }
        }
        files.push(file);
    }
    write_changes(store, id, &Value::from(files), fields);
}

/// Writes changes.json with these changes by renaming, as programs do.
pub fn write_changes(store: &TestStore, id: &str, files: &Value, fields: &Value) {
    let mut all = json!({
        "version": 1, "workspace": "/srv/app", "engine": "overlay", "is_final": true,
        "started_at": "2026-11-24T10:00:00Z", "scanned_at": "2026-11-24T10:00:05Z",
        "files": files,
    });
    for (key, value) in fields.as_object().unwrap() {
        all[key] = value.clone();
    }
    let path = format!("workers/{id}/changes.json");
    let temporary = store.write(format!("workers/{id}/.swarmletfs-changes"), all.to_string());
    fs::rename(temporary, store.at(path)).unwrap();
}

/// Returns the state of a file, as changes.json has it.
pub fn file_state(bytes: &[u8], mode: u32) -> Value {
    let hash: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    json!({"type": "file", "mode": format!("{mode:04o}"), "size": bytes.len(), "sha256": hash})
}

fn state(entry: &Entry) -> Value {
    match entry {
        Entry::File { bytes, mode } => file_state(bytes, *mode),
        Entry::Link(target) => json!({"type": "link", "mode": "0777", "target": encoded(target)}),
    }
}

fn encoded(bytes: &[u8]) -> String {
    let byte = |byte: &u8| match byte {
        b' '..=b'~' if *byte != b'%' => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    bytes.iter().map(byte).collect()
}

fn folders_of(workspace: &Workspace) -> BTreeSet<Vec<u8>> {
    let ends = workspace.keys().flat_map(|path| {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        ends.map(move |(end, _)| path[..end].to_vec())
    });
    ends.collect()
}

/// Applies a diff to a copy of `old` by `git apply` outside of a repository. Returns the workspace
/// after it, or what git says.
pub fn apply(old: &Workspace, diff: &str) -> Result<Workspace, String> {
    let dir = tempfile::tempdir().unwrap();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    for (path, entry) in old {
        let path = work.join(OsStr::from_bytes(path));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match entry {
            Entry::File { bytes, mode } => {
                fs::write(&path, bytes).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(*mode)).unwrap();
            }
            Entry::Link(target) => symlink(OsStr::from_bytes(target), &path).unwrap(),
        }
    }
    fs::write(dir.path().join("changes.diff"), diff).unwrap();
    let command = "umask 022; git apply --check ../changes.diff && git apply ../changes.diff";
    let is_empty = !diff.lines().any(|line| line.starts_with("diff --git"));
    let command = if is_empty { "true" } else { command };
    let out = shell(command, &work).env("GIT_CEILING_DIRECTORIES", dir.path()).output().unwrap();
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    let mut found = Workspace::new();
    collect(&work, Path::new(""), &mut found);
    Ok(found)
}

fn collect(folder: &Path, prefix: &Path, found: &mut Workspace) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, name): (_, OsString) = (entry.path(), prefix.join(entry.file_name()).into());
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            collect(&path, Path::new(&name), found);
        } else if meta.is_symlink() {
            let target = fs::read_link(&path).unwrap().into_os_string().into_vec();
            found.insert(name.into_vec(), Entry::Link(target));
        } else {
            let mode = meta.permissions().mode() & 0o777;
            found.insert(name.into_vec(), Entry::File { bytes: fs::read(&path).unwrap(), mode });
        }
    }
}
