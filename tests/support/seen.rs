//! Access to the tree by path without a kernel, as a reader would see it.
//!
//! Validation of every generated index.json that a test reads against docs/index.schema.json.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Value, json};

use swarmletfs_base::error::Result;
use swarmletfs_tree::tree::{Attr, DirPosition, Ino, Lookup, NodeKind, ROOT, Tree};

/// Contents of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// A file with its bytes.
    File { attr: (u32, u32, u32), mtime: (i64, u32), bytes: Vec<u8> },
    /// Target of a symlink.
    Link(Vec<u8>),
    /// A directory.
    Folder { attr: (u32, u32, u32), mtime: (i64, u32) },
}

impl Seen {
    /// Returns the bytes of a file.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Seen::File { bytes, .. } => bytes,
            other => panic!("not a file: {other:?}"),
        }
    }

    /// Returns the text of a file.
    pub fn text(&self) -> &str {
        std::str::from_utf8(self.bytes()).unwrap()
    }
}

/// Resolves `path` from the root. Forgets all lookups except the last, which the caller must
/// forget.
pub fn find(tree: &Tree, path: &[u8]) -> Result<Lookup> {
    let mut found: Option<Lookup> = None;
    for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
        let parent = found.map_or(ROOT, |found| found.ino);
        let next = tree.lookup(parent, name);
        if let Some(found) = found {
            tree.forget(found.ino, 1);
        }
        found = Some(next?);
    }
    Ok(found.expect("a path has a name"))
}

/// Reads the node at `path`.
pub fn see(tree: &Tree, path: impl AsRef<[u8]>) -> Result<Seen> {
    let found = find(tree, path.as_ref())?;
    let seen = see_found(tree, found.ino, &found.attr);
    if let Ok(Seen::File { bytes, .. }) = &seen {
        check(path.as_ref(), bytes);
    }
    tree.forget(found.ino, 1);
    seen
}

fn see_found(tree: &Tree, ino: Ino, attr: &Attr) -> Result<Seen> {
    let rights = (attr.mode, attr.uid, attr.gid);
    let mtime = (attr.mtime.secs, attr.mtime.nanos);
    match attr.kind {
        NodeKind::Link => tree.read_link(ino).map(Seen::Link),
        NodeKind::Folder => Ok(Seen::Folder { attr: rights, mtime }),
        NodeKind::File => {
            let opened = tree.open(ino)?;
            let mut bytes = Vec::new();
            // Reads pages until a short one, like the kernel.
            let mut read = || -> Result<usize> {
                let part = tree.read(opened.fh, bytes.len() as u64, 4_096, <[u8]>::to_vec)?;
                bytes.extend_from_slice(&part);
                Ok(part.len())
            };
            let last = loop {
                match read() {
                    Ok(4_096) => {}
                    last => break last,
                }
            };
            tree.release(opened.fh);
            last?;
            assert_eq!(
                bytes.len() as u64,
                attr.size,
                "the size in the attributes differs from the size read"
            );
            Ok(Seen::File { attr: rights, mtime, bytes })
        }
    }
}

/// Returns the sorted names in the directory at `path`; an empty path is the root.
pub fn names(tree: &Tree, path: impl AsRef<[u8]>) -> Result<Vec<Vec<u8>>> {
    let path = path.as_ref();
    let ino = if path.is_empty() { ROOT } else { find(tree, path)?.ino };
    let names = names_in(tree, ino);
    if ino != ROOT {
        tree.forget(ino, 1);
    }
    names
}

fn names_in(tree: &Tree, ino: Ino) -> Result<Vec<Vec<u8>>> {
    let items = tree.entries(ino, DirPosition::Start)?.0.items;
    let names: Vec<Vec<u8>> = items.iter().map(|item| item.name.as_bytes().to_vec()).collect();
    assert!(names.is_sorted_by(|a, b| a < b), "not sorted, or a name twice: {names:?}");
    Ok(names)
}

/// Reads every listed node below the directory at `path`; an empty path is the root.
pub fn see_folder(tree: &Tree, path: impl AsRef<[u8]>) -> Result<BTreeMap<Vec<u8>, Seen>> {
    let path = path.as_ref();
    let mut all = BTreeMap::new();
    if path.is_empty() {
        see_into(tree, ROOT, path, &mut all)?;
    } else {
        let ino = find(tree, path)?.ino;
        let seen = see_into(tree, ino, path, &mut all);
        tree.forget(ino, 1);
        seen?;
    }
    Ok(all)
}

fn see_into(
    tree: &Tree,
    folder: Ino,
    path: &[u8],
    all: &mut BTreeMap<Vec<u8>, Seen>,
) -> Result<()> {
    for name in names_in(tree, folder)? {
        let path = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
        let found = tree.lookup(folder, &name)?;
        let seen = see_found(tree, found.ino, &found.attr);
        if let Ok(Seen::File { bytes, .. }) = &seen {
            check(&path, bytes);
        }
        let inside = if matches!(seen, Ok(Seen::Folder { .. })) {
            see_into(tree, found.ino, &path, all)
        } else {
            Ok(())
        };
        tree.forget(found.ino, 1);
        inside?;
        all.insert(path, seen?);
    }
    Ok(())
}

static WORKER: LazyLock<Validator> = LazyLock::new(|| validator("worker"));
static SWARM: LazyLock<Validator> = LazyLock::new(|| validator("swarm"));

/// Returns the validator of one definition of the schema.
fn validator(shape: &str) -> Validator {
    let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/index.schema.json"))
        .unwrap();
    let schema: Value = serde_json::from_slice(&text).unwrap();
    let one = json!({"$schema": schema["$schema"], "$defs": schema["$defs"], "$ref": format!("#/$defs/{shape}")});
    jsonschema::validator_for(&one).unwrap()
}

/// Returns the schema violations of the index.json of a worker, or of a run or the swarm.
pub fn faults(of_worker: bool, index: &Value) -> Vec<String> {
    let validator = if of_worker { &*WORKER } else { &*SWARM };
    validator
        .iter_errors(index)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

/// Fails if `path` is a generated index.json and `bytes` violate the schema.
pub fn check(path: &[u8], bytes: &[u8]) {
    let parts: Vec<&[u8]> = path.split(|b| *b == b'/').collect();
    let of_worker = match parts.as_slice() {
        [b"index.json"] | [b"workers", b"index.json"] | [b"runs", _, b"index.json"] => false,
        [b"workers", _, b"index.json"] | [b"runs", _, b"workers", _, b"index.json"] => true,
        _ => return,
    };
    let index = serde_json::from_slice(bytes).unwrap();
    let faults = faults(of_worker, &index);
    assert!(faults.is_empty(), "{}: {faults:#?}\n{index:#}", path.escape_ascii());
}
