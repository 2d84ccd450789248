//! Contents that the workspace had when the worker began, and the proof that it had them.
//!
//! The workspace is live, so a content counts only if nobody can have changed it since: the kernel
//! stamps each change of a file with its own clock, and a stamp before the start is the proof. A
//! content that was proved once is kept in the draft, where no worker can write.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::candidates::LiveEntry;
use super::content::{self, ContentHash, FileContent, ReadLimits};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{EntryStat, OpenFolder, Time};
use swarmletfs_record::write::Dir;
use swarmletfs_trace::swarmlet::BASE;

/// Time that one stamp of a file system without fractions of a second may stand for, in seconds.
const COARSE: i64 = 2;

pub(super) struct Bases {
    draft: Arc<Dir>,
    started_at: Time,
    saved: HashSet<RelPath>,
}

pub(super) struct OldContent {
    pub(super) content: FileContent,
    pub(super) proof: Proof,
}

/// The relation of a content to the one that the worker saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// The worker saw it, and it is saved in the draft.
    Saved,
    /// The worker saw it.
    Fresh,
    /// It is of the commit with which the worker began: the workspace may have changed since.
    Committed,
    /// The workspace may have changed since.
    None,
}

impl Bases {
    pub(super) fn new(draft: Arc<Dir>, started_at: Time) -> Bases {
        Bases { draft, started_at, saved: HashSet::new() }
    }

    /// Returns true if an entry has not changed since the start.
    pub(super) fn is_proved(&self, stat: &EntryStat) -> bool {
        let allowance = if stat.ctime.nanos == 0 { COARSE } else { 0 };
        let last = Time { secs: stat.ctime.secs.saturating_add(allowance), ..stat.ctime };
        last < self.started_at
    }

    /// Returns the content that was saved for `path`: by an earlier search, or before another
    /// command replaced the file.
    pub(super) fn saved(
        &self,
        path: &RelPath,
        limits: ReadLimits<'_>,
    ) -> Result<Option<FileContent>> {
        let Some(root) = self.root()? else { return Ok(None) };
        let file = content::open_stored(&root, path)?;
        file.map(|file| FileContent::read(file, limits)).transpose()
    }

    pub(super) fn read(
        &self,
        path: &RelPath,
        live: &LiveEntry<'_>,
        limits: ReadLimits<'_>,
    ) -> Result<OldContent> {
        if !self.is_proved(&live.stat)
            && let Some(content) = self.saved(path, limits)?
        {
            return Ok(OldContent { content, proof: Proof::Saved });
        }
        let (file, before) = live.folder.open_file(live.name)?;
        let content = FileContent::read(file, limits)?;
        let after = live.folder.stat(live.name)?;
        let is_proved = self.is_proved(&before) && after == Some(before);
        let proof = if is_proved { Proof::Fresh } else { Proof::None };
        Ok(OldContent { content, proof })
    }

    /// Reads the file of the workspace at `path` if it has the hash `sha256`.
    pub(super) fn read_copied(
        &self,
        path: &RelPath,
        workspace: &OpenFolder,
        sha256: &str,
        limits: ReadLimits<'_>,
    ) -> Result<Option<FileContent>> {
        if let Some(content) = self.saved(path, limits)? {
            return Ok(Some(content));
        }
        let Some(content) = read_beneath(workspace, path, limits)? else { return Ok(None) };
        // The file may change while it is read, so the hash is checked again when it is stored.
        Ok((content.id(limits)?.sha256 == sha256).then_some(content))
    }

    /// Saves the content of the workspace's file at `path`. A large content is read from the saved
    /// file from now on. Returns false, and saves nothing, if it changed meanwhile:
    /// `is_unchanged` decides that after it was stored.
    pub(super) fn save(
        &mut self,
        path: &RelPath,
        content: &mut FileContent,
        limits: ReadLimits<'_>,
        is_unchanged: impl FnOnce(&ContentHash) -> bool,
    ) -> Result<bool> {
        if !self.saved.contains(path) {
            let root = content::enter_or_replace(&self.draft, &Name::new(BASE)?)?;
            let ((), id) =
                content.hashed(limits, |reader| content::store_content(&root, path, reader))?;
            // A small content was whole in memory when it was proved.
            if matches!(content, FileContent::Large(_)) && !is_unchanged(&id) {
                content::remove_content(&root, path)?;
                return Ok(false);
            }
            self.saved.insert(path.clone());
        }
        if matches!(content, FileContent::Large(_))
            && let Some(saved) = self.saved(path, limits)?
        {
            *content = saved;
        }
        Ok(true)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.draft.path().join(BASE)
    }

    fn root(&self) -> Result<Option<Dir>> {
        match self.draft.enter(&RelPath::constant(BASE)) {
            Ok(root) => Ok(Some(root)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Reads the file `path` beneath `root`, or returns `None` if there is none.
fn read_beneath(
    root: &OpenFolder,
    path: &RelPath,
    limits: ReadLimits<'_>,
) -> Result<Option<FileContent>> {
    let name = path.file_name().ok_or(Error::InvalidName)?;
    let open = || {
        let parent = path.parent().names().try_fold(None, |parent: Option<OpenFolder>, name| {
            parent.as_ref().unwrap_or(root).enter(&name).map(Some)
        })?;
        parent.as_ref().unwrap_or(root).open_file(&name)
    };
    match open() {
        Ok((file, _)) => FileContent::read(file, limits).map(Some),
        Err(error) if super::candidates::is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
