//! Entries of a workspace as they are now.

use super::content::hash_file;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{EntryKind, EntryState, encode};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Kind;
use swarmletfs_record::write::{Dir, EntryMeta};

/// Bits of a mode that are compared and set.
const PERMISSIONS: u32 = 0o777;

#[derive(Debug, Clone)]
pub(super) struct WorkspaceEntry {
    pub(super) meta: EntryMeta,
    /// SHA-256 of a file whose size is one of the expected sizes; empty otherwise.
    sha256: String,
    target: Option<Vec<u8>>,
}

impl WorkspaceEntry {
    /// Reads the entry `path`; `None` if there is none. A file is read only if its size matches one
    /// of `expected`.
    ///
    /// # Errors
    ///
    /// [`swarmletfs_base::error::Error::Escape`] if a folder of the path is a link.
    pub(super) fn read(
        workspace: &Dir,
        path: &RelPath,
        expected: &[&EntryState],
    ) -> Result<Option<WorkspaceEntry>> {
        let Some(meta) = workspace.entry(path)? else { return Ok(None) };
        let is_expected = |state: &&EntryState| {
            state.kind == EntryKind::File && meta.kind == Kind::File && state.size == meta.size
        };
        let sha256 = if expected.iter().any(is_expected) {
            hash_file(workspace.open_workspace_file(path)?)?
        } else {
            String::new()
        };
        let target =
            if meta.kind == Kind::Link { Some(workspace.link_target(path)?) } else { None };
        Ok(Some(WorkspaceEntry { meta, sha256, target }))
    }

    pub(super) fn with_hash(self, sha256: String) -> WorkspaceEntry {
        WorkspaceEntry { sha256, ..self }
    }

    pub(super) fn kind(&self) -> EntryKind {
        self.meta.kind.into()
    }

    /// Returns true if the kind and the content match `state`, regardless of the permissions.
    pub(super) fn is_content_of(&self, state: &EntryState) -> bool {
        self.kind() == state.kind
            && match state.kind {
                EntryKind::File => self.meta.size == state.size && self.sha256 == state.sha256,
                EntryKind::Link => self.target == state.target_bytes(),
                EntryKind::Folder => true,
                EntryKind::Special => false,
            }
    }

    pub(super) fn state(&self) -> EntryState {
        EntryState {
            kind: self.kind(),
            mode: self.meta.mode,
            size: self.meta.size,
            sha256: self.sha256.clone(),
            target: self.target.as_deref().map(encode),
        }
    }
}

/// Returns the permissions of `state` that can be applied: never setuid, setgid or sticky.
pub(super) fn permissions(state: &EntryState) -> u32 {
    state.mode & PERMISSIONS
}
