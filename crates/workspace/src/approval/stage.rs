//! Writes new entries under temporary names, and lists the moves that put them in their place.
//!
//! journal.json states the moves that a command is about to make in a workspace, for recovery after
//! a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use serde::{Deserialize, Serialize};

use super::check::{Action, ChangeStep, StoredContents, is_content_of};
use swarmletfs_base::error::{Error as PathError, Result as PathResult};
use swarmletfs_base::model::{EntryKind, EntryState, decode, encode};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, is_temporary};
use swarmletfs_record::write::{
    Dir, During, EntryIdentity, EntryMeta, Error, File, HashingReader, NewOwner, Result,
};

/// Permissions that the owner of a folder needs to open it and change its entries.
const OPEN: u32 = 0o700;

type Steps = BTreeMap<RelPath, ChangeStep>;

/// Returns a temporary name for each path that gets another entry: first for the new entry, then
/// for the old one.
pub(super) fn name_temporaries(
    workspace: &Dir,
    steps: &Steps,
) -> Result<BTreeMap<RelPath, RelPath>> {
    let mut names = BTreeMap::new();
    for step in steps.values().filter(|step| !step.is_in_place()) {
        let name = || Ok(folder_for(workspace, steps, &step.path)?.join(&Dir::temporary_name()?));
        let name = name().during("write in", workspace.path(), step.path.as_bytes())?;
        names.insert(step.path.clone(), name);
    }
    Ok(names)
}

/// Returns the nearest folder above `path` that is there and can be changed before, during and
/// after the moves. In it, an entry is most likely on the file system of its place.
fn folder_for(workspace: &Dir, steps: &Steps, path: &RelPath) -> PathResult<RelPath> {
    let mut found = RelPath::root();
    for name in path.parent().names() {
        let folder = found.join(&name);
        let stays = steps.get(&folder).is_none_or(|step| {
            let after = step.after.as_ref().map(|after| after.mode);
            step.is_in_place() && after.is_some_and(can_change)
        });
        let is_open = |meta: &EntryMeta| meta.kind == Kind::Folder && can_change(meta.mode);
        // A folder beneath one that closes is out of reach, so it can hold no temporary entry.
        if !stays || !folder_meta(workspace, &folder)?.as_ref().is_some_and(is_open) {
            break;
        }
        found = folder;
    }
    Ok(found)
}

/// Returns the attributes of the entry `path`; `None` also if it is beneath a link.
fn folder_meta(workspace: &Dir, path: &RelPath) -> PathResult<Option<EntryMeta>> {
    match workspace.entry(path) {
        Err(PathError::Escape) => Ok(None),
        found => found,
    }
}

/// Returns true if this process can change the entries of a folder with these permissions.
fn can_change(mode: u32) -> bool {
    mode & OPEN == OPEN || rustix::process::geteuid().is_root()
}

/// Writes the new entries of `steps` under their names in `temporaries`, and returns the moves.
///
/// # Errors
///
/// The workspace cannot be written, or a content is not the one that was stated.
pub(super) fn stage(
    workspace: &Dir,
    steps: &Steps,
    temporaries: &BTreeMap<RelPath, RelPath>,
    contents: &StoredContents<'_>,
) -> Result<Vec<Move>> {
    let loosened = folders_to_loosen(workspace, steps)?;
    let opened = loosened.iter().map(|(path, folder)| Move::Mode {
        path: Encoded::new(path),
        entry: folder.identity,
        from: folder.mode,
        to: folder.mode | OPEN,
    });
    let mut moves: Vec<Move> = opened.collect();
    let (mut modes, mut placed) = (Vec::new(), Vec::new());
    let mut final_modes: BTreeMap<&RelPath, (EntryIdentity, u32, u32)> = BTreeMap::new();
    for (path, folder) in &loosened {
        if steps.get(path).is_none_or(ChangeStep::is_in_place) {
            final_modes.insert(path, (folder.identity, folder.mode | OPEN, folder.mode));
        }
    }
    for (path, step) in steps {
        let temporary = temporaries.get(path);
        match (step.is_in_place(), &step.before, &step.after, temporary) {
            (true, Some(before), Some(after), _) => {
                let entry = before.meta.identity;
                if before.kind() == EntryKind::Folder {
                    let is_loosened = loosened.contains_key(path);
                    let from = before.meta.mode | if is_loosened { OPEN } else { 0 };
                    final_modes.insert(path, (entry, from, after.mode));
                } else {
                    let (path, from, to) = (Encoded::new(path), before.meta.mode, after.mode);
                    modes.push(Move::Mode { path, entry, from, to });
                }
            }
            (_, before, Some(after), Some(temporary)) => {
                let made = make(workspace, step, after, temporary, contents);
                let new = made.during("write", workspace.path(), path.as_bytes())?;
                if after.kind == EntryKind::Folder && after.mode & OPEN != OPEN {
                    final_modes.insert(path, (new, after.mode | OPEN, after.mode));
                }
                let (temporary, path) = (Encoded::new(temporary), Encoded::new(path));
                placed.push(match before {
                    None => Move::Rename { from: temporary, to: path, entry: new },
                    Some(old) => Move::Exchange { temporary, path, new, old: old.meta.identity },
                });
            }
            _ => {}
        }
    }
    // Entries leave a folder before the folder itself does.
    for (path, step) in steps.iter().rev() {
        if let (Some(before), None, Some(temporary)) =
            (&step.before, &step.after, temporaries.get(path))
        {
            let (from, to) = (Encoded::new(path), Encoded::new(temporary));
            moves.push(Move::Rename { from, to, entry: before.meta.identity });
        }
    }
    moves.extend(placed);
    moves.extend(modes);
    for (path, (entry, from, to)) in final_modes.into_iter().rev() {
        moves.push(Move::Mode { path: Encoded::new(path), entry, from, to });
    }
    let folders: BTreeSet<RelPath> = temporaries.values().map(RelPath::parent).collect();
    for folder in folders {
        let sync = || workspace.enter(&folder)?.sync();
        sync().during("write", workspace.path(), folder.as_bytes())?;
    }
    Ok(moves)
}

/// Returns the folders whose entries are changed and whose permissions forbid that.
fn folders_to_loosen(workspace: &Dir, steps: &Steps) -> Result<BTreeMap<RelPath, EntryMeta>> {
    let mut found = BTreeMap::new();
    for step in steps.values().filter(|step| !step.is_in_place()) {
        // A folder that moves to another one changes itself.
        let moved = step.before.as_ref().filter(|entry| entry.kind() == EntryKind::Folder);
        for path in
            [Some(step.path.parent()), moved.map(|_| step.path.clone())].into_iter().flatten()
        {
            let folder = folder_meta(workspace, &path);
            let folder = folder.during("read", workspace.path(), path.as_bytes())?;
            let is_closed = |meta: &EntryMeta| meta.kind == Kind::Folder && !can_change(meta.mode);
            if let Some(folder) = folder.filter(is_closed) {
                found.insert(path, folder);
            }
        }
    }
    Ok(found)
}

fn make(
    workspace: &Dir,
    step: &ChangeStep,
    after: &EntryState,
    temporary: &RelPath,
    contents: &StoredContents<'_>,
) -> PathResult<EntryIdentity> {
    let name = temporary.file_name().ok_or(PathError::InvalidName)?;
    let folder = workspace.enter(&temporary.parent())?;
    let owner = match &step.before {
        Some(before) => NewOwner::Like(before.meta.uid, before.meta.gid),
        None => NewOwner::OfFolder,
    };
    match after.kind {
        EntryKind::File => {
            let mut content: HashingReader<Box<dyn Read>> =
                HashingReader::new(match &step.merged {
                    Some(merged) => Box::new(&*merged.bytes),
                    // Only the permissions change, so its content is not stored.
                    None if step.action() == Action::SetMode => {
                        Box::new(workspace.open_workspace_file(&step.path)?)
                    }
                    // One more byte reveals a content that is longer than stated.
                    None => Box::new(contents.open(&step.path)?.take(after.size.saturating_add(1))),
                });
            let is_file = step.before.as_ref().is_some_and(|old| old.kind() == EntryKind::File);
            let old = is_file.then(|| workspace.open_workspace_file(&step.path)).transpose()?;
            let made = folder.make_file(&name, &mut content, after.mode, owner, old.as_ref())?;
            // On a mismatch, the worker's file was changed after it was shown.
            if is_content_of(content, after) { Ok(made) } else { Err(PathError::Stale) }
        }
        EntryKind::Link => {
            let target = after.target_bytes().ok_or(PathError::InvalidName)?;
            folder.make_link(&name, &target, owner)
        }
        EntryKind::Folder => folder.make_folder(&name, after.mode | OPEN, owner),
        EntryKind::Special => Err(PathError::Special),
    }
}

/// Copies a file to `name` in `folder`, whole or not at all. Returns false if the content does not
/// match `state`.
pub(super) fn copy_checked(
    folder: &Dir,
    name: &Name,
    file: File,
    state: &EntryState,
) -> PathResult<bool> {
    let mut content = HashingReader::new(file.take(state.size.saturating_add(1)));
    let temporary = folder.write_temporary(&mut content)?;
    if !is_content_of(content, state) {
        return Ok(false);
    }
    temporary.replace(folder, name)?;
    Ok(true)
}

const VERSION: u32 = 1;
const JOURNAL: &str = "journal.json";
const JOURNAL_MAX: u64 = 256 << 20;

/// The content of journal.json. Workers cannot write it, so it can be trusted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Journal {
    version: u32,
    pub(super) operation: ApprovalCommand,
    pub(super) number: u64,
    pub(super) phase: Phase,
    /// Temporary names in the workspace: of new entries until they are moved to their place, and
    /// then of old ones.
    temporaries: Vec<String>,
    pub(super) moves: Vec<Move>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ApprovalCommand {
    Apply,
    Undo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// New entries are written under temporary names. After a crash, they are removed.
    Staging,
    /// Entries are moved. After a crash, they are moved back.
    Moving,
    /// All is done. After a crash, old entries are removed.
    Cleaning,
}

/// One change of the workspace, which happens as a whole and can be taken back.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(super) enum Move {
    /// An entry gets another name.
    Rename { from: Encoded, to: Encoded, entry: EntryIdentity },
    /// A new entry takes the place of an old one, which gets the temporary name.
    Exchange { temporary: Encoded, path: Encoded, new: EntryIdentity, old: EntryIdentity },
    /// An entry gets other permissions.
    Mode { path: Encoded, entry: EntryIdentity, from: u32, to: u32 },
}

/// A path of the workspace, percent-encoded.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Encoded(String);

impl Encoded {
    pub(super) fn new(path: &RelPath) -> Encoded {
        Encoded(encode(path.as_bytes()))
    }

    pub(super) fn path(&self) -> PathResult<RelPath> {
        RelPath::parse(decode(&self.0))
    }
}

impl Journal {
    pub(super) fn new<'a>(
        operation: ApprovalCommand,
        number: u64,
        temporaries: impl IntoIterator<Item = &'a RelPath>,
    ) -> Journal {
        let temporaries = temporaries.into_iter().map(|path| encode(path.as_bytes())).collect();
        Journal {
            version: VERSION,
            operation,
            number,
            phase: Phase::Staging,
            temporaries,
            moves: Vec::new(),
        }
    }

    pub(super) fn temporaries(&self) -> PathResult<Vec<RelPath>> {
        self.temporaries.iter().map(|path| RelPath::parse(decode(path))).collect()
    }

    /// Reads the journal of a draft; `None` if no command was interrupted.
    pub(super) fn read(draft: &Dir) -> Result<Option<Journal>> {
        let read = || draft.read_own(&Name::new(JOURNAL)?, JOURNAL_MAX);
        let Some(json) = read().during("read", draft.path(), JOURNAL.as_bytes())? else {
            return Ok(None);
        };
        let journal = serde_json::from_slice(&json).ok();
        let journal = journal.filter(|journal: &Journal| journal.version == VERSION);
        let unknown = || {
            Error::invalid(JOURNAL.as_bytes(), "a journal", "another version may have written it")
        };
        let journal = journal.ok_or_else(unknown)?;
        if !journal.is_consistent().during("read", draft.path(), JOURNAL.as_bytes())? {
            let reason = "it names paths that no command of this program moves or removes";
            return Err(Error::invalid(JOURNAL.as_bytes(), "a journal", reason));
        }
        Ok(Some(journal))
    }

    /// Returns true if only temporary names are removed, and each entry moves to or from one.
    fn is_consistent(&self) -> PathResult<bool> {
        let temporaries: BTreeSet<RelPath> = self.temporaries()?.into_iter().collect();
        let is_named = |path: &RelPath| path.file_name().is_some_and(|name| is_temporary(&name));
        if !temporaries.iter().all(is_named) {
            return Ok(false);
        }
        for step in &self.moves {
            let is_known = match step {
                Move::Rename { from, to, .. } => {
                    let (from, to) = (temporaries.contains(&from.path()?), to.path()?);
                    from != temporaries.contains(&to)
                }
                Move::Exchange { temporary, path, .. } => {
                    temporaries.contains(&temporary.path()?) && !temporaries.contains(&path.path()?)
                }
                Move::Mode { .. } => true,
            };
            if !is_known {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the journal.
    ///
    /// # Errors
    ///
    /// The draft cannot be written. The journal may have been written.
    pub(super) fn write(&self, draft: &Dir) -> Result<()> {
        let write = || {
            let json =
                serde_json::to_vec(self).map_err(|_| PathError::Io(rustix::io::Errno::INVAL))?;
            let temporary = draft.write_temporary(&mut json.as_slice())?;
            temporary.replace(draft, &Name::new(JOURNAL)?)
        };
        write().during("write", draft.path(), JOURNAL.as_bytes())
    }

    pub(super) fn remove(draft: &Dir) -> Result<()> {
        let remove = || {
            draft.remove_entry(&Name::new(JOURNAL)?)?;
            draft.sync()
        };
        remove().during("remove", draft.path(), JOURNAL.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarmletfs_record::write::Durability;

    const TEMPORARY: &str = "a/.swarmletfs-tmp-1";

    /// Returns true if a journal with these temporary names and moves is read.
    fn is_read(temporaries: &[&str], moves: serde_json::Value) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let dir = Dir::open(folder.path(), Durability::None).unwrap();
        let json = serde_json::json!({
            "version": VERSION, "operation": "apply", "number": 1, "phase": "moving",
            "temporaries": temporaries, "moves": moves,
        });
        std::fs::write(folder.path().join(JOURNAL), json.to_string()).unwrap();
        Journal::read(&dir).is_ok_and(|journal| journal.is_some())
    }

    /// Promise: A journal moves and removes only what a command of this program would.
    #[test]
    fn a_journal_that_no_command_wrote_is_refused() {
        let entry = serde_json::json!({"inode": 7, "created": [0, 0]});
        let rename = |from: &str, to: &str| serde_json::json!([{"step": "rename", "from": from, "to": to, "entry": entry}]);
        let none = || serde_json::json!([]);
        assert!(is_read(&[TEMPORARY], none()));
        assert!(is_read(&[TEMPORARY], rename("a/x", TEMPORARY)));
        assert!(is_read(&[TEMPORARY], rename(TEMPORARY, "a/x")));
        assert!(!is_read(&["a/x"], none()));
        assert!(!is_read(&[TEMPORARY, "../.swarmletfs-tmp-1"], none()));
        assert!(!is_read(&[TEMPORARY], rename("a/x", "a/y")));
        assert!(!is_read(&[], rename("a/x", TEMPORARY)));
        let exchange = serde_json::json!([
            {"step": "exchange", "temporary": "a/y", "path": "a/x", "new": entry, "old": entry}
        ]);
        assert!(!is_read(&[TEMPORARY], exchange));
    }
}
