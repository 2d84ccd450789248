//! applied.json: the record of applied changes, by which they can be taken back.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::check::{ChangeStep, StoredContents, WorkspaceEntry};
use super::commits::BranchMove;
use super::selection::{Change, ChangeSelection};
use swarmletfs_base::error::{Error as PathError, Result as PathResult};
use swarmletfs_base::model::{ChangedPath, EntryState};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_record::write::{Dir, During, Error, Result};
use swarmletfs_trace::swarmlet::APPLIED;

const VERSION: u32 = 1;
const RECORD: &str = "applied.json";
const REPLACED: &str = "replaced";
const RECORD_MAX: u64 = 256 << 20;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct AppliedRecord {
    version: u32,
    /// Number of the application, from 1.
    pub(super) number: u64,
    pub(super) applied_at: Timestamp,
    /// User id of the process that applied the changes.
    uid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) undone_at: Option<Timestamp>,
    /// The commits that came with the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) commits: Option<BranchMove>,
    pub(super) files: Vec<AppliedFile>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct AppliedFile {
    #[serde(flatten)]
    pub(super) path: ChangedPath,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    old: Option<EntryState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) new: Option<EntryState>,
    /// True if only a part of the worker's change of the file was applied.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_part: bool,
}

impl AppliedRecord {
    pub(super) fn new<'a>(
        number: u64,
        steps: impl IntoIterator<Item = &'a ChangeStep>,
        commits: Option<BranchMove>,
    ) -> AppliedRecord {
        let file = |step: &ChangeStep| AppliedFile {
            path: ChangedPath::new(&step.path),
            old: step.before.as_ref().map(WorkspaceEntry::state),
            new: step.after.clone(),
            is_part: step.merged.as_ref().is_some_and(|merged| merged.is_part),
        };
        AppliedRecord {
            version: VERSION,
            number,
            applied_at: Timestamp::now(),
            uid: rustix::process::geteuid().as_raw(),
            undone_at: None,
            commits,
            files: steps.into_iter().map(file).collect(),
        }
    }

    /// Returns the changes that take this application back.
    ///
    /// # Errors
    ///
    /// The record has a path that leads elsewhere.
    pub(super) fn reverse(&self) -> Result<ChangeSelection> {
        let mut changes = Vec::new();
        for file in &self.files {
            let path = file.path.parse().map_err(|_| bad_record("a path leads elsewhere"))?;
            let (from, to) = (file.new.clone(), file.old.clone());
            changes.push(Change { path, from, to, is_from_known: true, part: None });
        }
        Ok(ChangeSelection::from_changes(changes))
    }
}

#[derive(Debug)]
pub(super) struct Application {
    folder: Dir,
}

impl Application {
    pub(super) fn create(worker: &Dir, number: u64) -> Result<Application> {
        let create = || {
            // The replaced files may be private, or in a private folder.
            let applied = worker.enter_or_create_private(&Name::new(APPLIED)?)?;
            let folder = applied.create_dir(&Name::new(number.to_string())?)?;
            applied.sync()?;
            folder.enter_or_create(&Name::new(REPLACED)?)?;
            Ok(Application { folder })
        };
        create().during("write", worker.path(), APPLIED.as_bytes())
    }

    pub(super) fn open(worker: &Dir, number: u64) -> Result<Application> {
        let path = RelPath::constant(APPLIED);
        let open = || worker.enter(&path.join(&Name::new(number.to_string())?));
        let folder = open().during("open", worker.path(), path.as_bytes())?;
        let owners = || Ok((worker.owner()?, worker.enter(&path)?.owner()?, folder.owner()?));
        let owners = owners().during("open", worker.path(), path.as_bytes())?;
        // Root gives its directories to the owner of the worker, and may be interrupted before.
        let own = rustix::process::geteuid().as_raw();
        let is_trusted = |owner| owner == owners.0 || owner == own;
        if !is_trusted(owners.1) || !is_trusted(owners.2) {
            return Err(bad_record("another user made it"));
        }
        Ok(Application { folder })
    }

    /// Saves the content of a file that is about to be replaced. Returns false if the content is
    /// not the one in `state`.
    pub(super) fn save(
        &self,
        workspace: &Dir,
        path: &RelPath,
        state: &EntryState,
    ) -> PathResult<bool> {
        let mut folder = self.folder.enter(&RelPath::constant(REPLACED))?;
        for name in path.parent().names() {
            folder = folder.enter_or_create(&name)?;
        }
        let name = path.file_name().ok_or(PathError::InvalidName)?;
        super::stage::copy_checked(&folder, &name, workspace.open_workspace_file(path)?, state)
    }

    pub(super) fn replaced(&self) -> StoredContents<'_> {
        StoredContents::new(&self.folder, REPLACED)
    }

    /// Reads the record; `None` if the application was not completed.
    pub(super) fn read(&self) -> Result<Option<AppliedRecord>> {
        let read = || self.folder.read_own(&Name::new(RECORD)?, RECORD_MAX);
        let bytes = read().during("read", self.folder.path(), RECORD.as_bytes())?;
        let parse = |bytes: Vec<u8>| {
            let record: Option<AppliedRecord> = serde_json::from_slice(&bytes).ok();
            record
                .filter(|record| record.version == VERSION)
                .ok_or_else(|| bad_record("this version does not know it"))
        };
        bytes.map(parse).transpose()
    }

    pub(super) fn write(&self, record: &AppliedRecord) -> Result<()> {
        let write = || {
            let json = serde_json::to_vec_pretty(record)
                .map_err(|_| PathError::Io(rustix::io::Errno::INVAL))?;
            let temporary = self.folder.write_temporary(&mut json.as_slice())?;
            temporary.replace(&self.folder, &Name::new(RECORD)?)
        };
        write().during("write", self.folder.path(), RECORD.as_bytes())
    }
}

pub(super) fn numbers(worker: &Dir) -> Result<Vec<u64>> {
    let path = RelPath::constant(APPLIED);
    let list = || match worker.kind(&path)? {
        None => Ok(Vec::new()),
        Some(_) => worker.enter(&path)?.list(),
    };
    let names = list().during("list", worker.path(), path.as_bytes())?;
    let mut numbers: Vec<u64> =
        names.iter().filter_map(|name| name.to_text().parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Removes an application that was not completed.
pub(super) fn remove(worker: &Dir, number: u64) -> Result<()> {
    let remove = || {
        let name = Name::new(number.to_string())?;
        match worker.enter(&RelPath::constant(APPLIED)) {
            Err(PathError::NotFound) => Ok(()),
            entered => entered?.remove_all(&name),
        }
    };
    remove().during("remove", worker.path(), APPLIED.as_bytes())
}

fn bad_record(reason: &str) -> Error {
    Error::invalid(RECORD.as_bytes(), "the record of an application", reason)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;
    use swarmletfs_record::write::Durability;

    #[test]
    fn an_application_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let worker = Dir::open(folder.path(), Durability::None).unwrap();
        let application = Application::create(&worker, 1).unwrap();
        application.write(&AppliedRecord::new(1, [], None)).unwrap();
        let is_read = || Application::open(&worker, 1).and_then(|found| found.read()).is_ok();
        assert!(is_read());
        for planted in ["applied/1/applied.json", "applied/1", "applied"] {
            let planted = folder.path().join(planted);
            chown(&planted, Some(65_534), None).unwrap();
            assert!(!is_read(), "{}", planted.display());
            chown(&planted, Some(0), None).unwrap();
            assert!(is_read());
        }
    }
}
