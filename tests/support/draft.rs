//! Drafts of workers and their workspaces, made by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::cli::program::{CommandOutput, program, run, swarmletfs, without_privileges};
use crate::support::mount::PROGRAM;

/// A file system in memory, on which waiting for the disk takes no time.
const MEMORY: &str = "/dev/shm";
/// User that runs commands without privileges.
pub const NOBODY: u32 = 65_534;

/// An entry of a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    File { mode: u32, bytes: Vec<u8> },
    Link(String),
    Folder { mode: u32, entries: BTreeMap<String, Node> },
}

/// Returns a file with mode 0644.
pub fn file(text: &str) -> Node {
    Node::File { mode: 0o644, bytes: text.into() }
}

/// Returns a folder with mode 0755.
pub fn folder<const N: usize>(entries: [(&str, Node); N]) -> Node {
    let entries = entries.into_iter().map(|(name, node)| (name.to_owned(), node)).collect();
    Node::Folder { mode: 0o755, entries }
}

impl Node {
    /// Reads the entry at `path`.
    pub fn read(path: &Path) -> Node {
        let meta = fs::symlink_metadata(path).unwrap();
        let mode = meta.mode() & 0o7777;
        if meta.is_symlink() {
            Node::Link(fs::read_link(path).unwrap().to_str().unwrap().to_owned())
        } else if meta.is_dir() {
            let entries = fs::read_dir(path).unwrap().map(|entry| {
                let entry = entry.unwrap();
                (entry.file_name().into_string().unwrap(), Node::read(&entry.path()))
            });
            Node::Folder { mode, entries: entries.collect() }
        } else {
            Node::File { mode, bytes: fs::read(path).unwrap() }
        }
    }

    /// Writes the entry at `path`, which does not exist.
    pub fn write(&self, path: &Path) {
        match self {
            Node::File { mode, bytes } => {
                fs::write(path, bytes).unwrap();
                fs::set_permissions(path, Permissions::from_mode(*mode)).unwrap();
            }
            Node::Link(target) => symlink(target, path).unwrap(),
            Node::Folder { mode, entries } => {
                fs::create_dir(path).unwrap();
                entries.iter().for_each(|(name, node)| node.write(&path.join(name)));
                fs::set_permissions(path, Permissions::from_mode(*mode)).unwrap();
            }
        }
    }

    fn state(&self) -> Value {
        match self {
            Node::File { mode, bytes } => json!({
                "type": "file",
                "mode": format!("{mode:04o}"),
                "size": bytes.len(),
                "sha256": hex(&Sha256::digest(bytes)),
            }),
            Node::Link(target) => json!({"type": "link", "mode": "0777", "target": target}),
            Node::Folder { mode, .. } => json!({"type": "folder", "mode": format!("{mode:04o}")}),
        }
    }

    fn entries(&self) -> Option<&BTreeMap<String, Node>> {
        match self {
            Node::Folder { entries, .. } => Some(entries),
            _ => None,
        }
    }

    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Node::File { bytes, .. } => Some(bytes),
            _ => None,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A changed path: its states before and after.
type Change<'a> = (String, Option<&'a Node>, Option<&'a Node>);

/// Lists the changes from `old` to `new`, without those of the root itself.
fn changes<'a>(old: &'a Node, new: &'a Node) -> Vec<Change<'a>> {
    fn visit<'a>(
        path: &str,
        old: Option<&'a Node>,
        new: Option<&'a Node>,
        out: &mut Vec<Change<'a>>,
    ) {
        let entries = |node: Option<&'a Node>| node.and_then(Node::entries);
        let is_same = match (old, new) {
            (Some(Node::Folder { mode: a, .. }), Some(Node::Folder { mode: b, .. })) => a == b,
            (old, new) => old == new,
        };
        if !is_same && !path.is_empty() {
            out.push((path.to_owned(), old, new));
        }
        let names = [entries(old), entries(new)].into_iter().flatten().flat_map(BTreeMap::keys);
        for name in names.collect::<BTreeSet<_>>() {
            let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            let get = |node: Option<&'a Node>| entries(node).and_then(|entries| entries.get(name));
            visit(&below, get(old), get(new), out);
        }
    }
    let mut out = Vec::new();
    visit("", Some(old), Some(new), &mut out);
    out
}

fn kind(old: Option<&Node>, new: Option<&Node>) -> &'static str {
    match (old, new) {
        (None, _) => "added",
        (_, None) => "deleted",
        (Some(old), Some(new)) if std::mem::discriminant(old) != std::mem::discriminant(new) => {
            "replaced"
        }
        (Some(old), Some(new)) if old.bytes() == new.bytes() && new.state()["target"].is_null() => {
            "mode"
        }
        _ => "modified",
    }
}

/// A store and a workspace in a new directory.
pub struct Workbench {
    dir: tempfile::TempDir,
    pub store: PathBuf,
    pub workspace: PathBuf,
    /// Runs commands as an ordinary user.
    is_unprivileged: bool,
}

impl Workbench {
    /// Makes a store without workers, and a workspace.
    pub fn new(workspace: &Node) -> Workbench {
        let parent = Path::new(MEMORY);
        let dir = if parent.is_dir() {
            tempfile::tempdir_in(parent).unwrap()
        } else {
            tempfile::tempdir().unwrap()
        };
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let (store, at) = (dir.path().join("store"), dir.path().join("workspace"));
        for folder in ["workers", "audit", "drafts"] {
            fs::create_dir_all(store.join(folder)).unwrap();
        }
        workspace.write(&at);
        Workbench { dir, store, workspace: at, is_unprivileged: false }
    }

    /// Makes a store with the worker `w1`, who changed the workspace from the first to the second.
    pub fn with_worker((old, new): (Node, Node)) -> Workbench {
        let bench = Workbench::new(&old);
        bench.worker("w1", &old, &new);
        bench
    }

    /// Records that the worker `id` changed the workspace from `old` to `new`.
    pub fn worker(&self, id: &str, old: &Node, new: &Node) -> &Workbench {
        let worker = self.worker_folder(id);
        let draft = self.draft(id);
        fs::create_dir_all(&worker).unwrap();
        fs::create_dir_all(draft.join("upper")).unwrap();
        let metadata = json!({"worker_id": id, "task": "a task", "status": "completed"});
        fs::write(worker.join("metadata.json"), metadata.to_string()).unwrap();
        let record = json!({
            "version": 1,
            "workspace": self.workspace.to_str().unwrap(),
            "engine": "overlay",
            "started_at": "2026-01-20T10:00:00Z",
            "state": "ended",
        });
        fs::write(draft.join("draft.json"), record.to_string()).unwrap();
        let mut files = Vec::new();
        for (path, old, new) in changes(old, new) {
            let kind = kind(old, new);
            let save = |folder: &str, node: Option<&Node>| {
                let Some(bytes) = node.and_then(Node::bytes) else { return false };
                let at = worker.join(folder).join(&path);
                fs::create_dir_all(at.parent().unwrap()).unwrap();
                fs::write(at, bytes).unwrap();
                true
            };
            let has_base = kind != "mode" && save("base", old);
            if kind != "mode" {
                save("changes", new);
            }
            let mut entry = json!({
                "path": path, "kind": kind, "added": 1, "removed": 1,
                "base": if has_base { "saved" } else { "none" },
            });
            for (key, node) in [("old", old), ("new", new)] {
                if let Some(node) = node {
                    entry[key] = node.state();
                }
            }
            files.push(entry);
        }
        let changes = json!({
            "version": 1,
            "workspace": self.workspace.to_str().unwrap(),
            "engine": "overlay",
            "started_at": "2026-01-20T10:00:00Z",
            "scanned_at": "2026-01-20T10:00:00Z",
            "is_final": true,
            "files": files,
        });
        fs::write(worker.join("changes.json"), changes.to_string()).unwrap();
        self
    }

    /// Changes the JSON file at `path`.
    pub fn edit(&self, path: &Path, change: impl FnOnce(&mut Value)) {
        let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        change(&mut value);
        fs::write(path, value.to_string()).unwrap();
    }

    /// Changes the entry of `path` in changes.json of the worker `id`.
    pub fn edit_change(&self, id: &str, path: &str, change: impl FnOnce(&mut Value)) {
        self.edit(&self.worker_folder(id).join("changes.json"), |changes| {
            let files = changes["files"].as_array_mut().unwrap();
            change(files.iter_mut().find(|file| file["path"] == path).unwrap());
        });
    }

    pub fn worker_folder(&self, id: &str) -> PathBuf {
        self.store.join("workers").join(id)
    }

    pub fn draft(&self, id: &str) -> PathBuf {
        self.store.join("drafts").join(id)
    }

    /// Returns the path of an entry of the workspace.
    pub fn at(&self, path: &str) -> PathBuf {
        self.workspace.join(path)
    }

    /// Returns the directory of the store and the workspace.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Reads the workspace.
    pub fn tree(&self) -> Node {
        Node::read(&self.workspace)
    }

    /// Gives everything to an ordinary user, who runs the commands from now on if `runs_them`.
    pub fn give_away(&mut self, runs_them: bool) {
        fn visit(path: &Path) {
            std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            if fs::symlink_metadata(path).unwrap().is_dir() {
                fs::read_dir(path).unwrap().for_each(|entry| visit(&entry.unwrap().path()));
            }
        }
        visit(&self.store);
        visit(&self.workspace);
        chown(self.dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        self.is_unprivileged = runs_them;
    }

    /// Returns the command `swarmletfs <arguments>` for the store.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = if self.is_unprivileged {
            let words = without_privileges(&[PROGRAM.as_ref()]);
            program(words[0], &words[1..])
        } else {
            swarmletfs::<&str>([])
        };
        command.args(arguments).arg("--store").arg(&self.store).env_remove("SWARMLET_WORKER");
        command
    }

    /// Runs `swarmletfs <arguments>` for the store.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> CommandOutput {
        run(self.command(arguments))
    }
}
