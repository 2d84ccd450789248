//! The spools of this user, and what waits in them to be uploaded.
//!
//! A spool is a directory in the state folder. This module reads spools, also in a build that
//! cannot upload them.

pub(super) mod progress;

use std::path::PathBuf;

use anyhow::Context;

use self::progress::{SpoolFile, UploadProgress};
use super::discover::state_folder;
use super::object_facts::Waiting;
use super::terminal::display_path;
use crate::deadline::Deadline;
use crate::error::Error as PathError;
use crate::name::{Name, RelPath};
use crate::store::{Disk, Kind, Store as _};
use swarmletfs_record::write::{Dir, Durability, Store};

/// Directory of all spools, in the state folder.
const FOLDER: &str = "spool";
/// The local store, in the directory of a spool.
const STORE: &str = "store";
/// The file with two lines: the URL, and the provider and endpoint for which it was last used.
pub(super) const URL: &str = "url";
const URL_MAX: u64 = 64 << 10;
/// Directory of the progress of uploads.
pub(super) const PROGRESS: &str = "uploaded";
/// Deepest directory of a worker that is uploaded.
const DEPTH_MAX: usize = 64;
pub(super) const WORKERS: &str = "workers";

/// A spool: the part of an object store that it is for, and its directory.
#[derive(Debug, Clone)]
pub(super) struct Spool {
    /// The URL, without a `/` at its end.
    pub(super) url: String,
    /// The provider and endpoint, see [`crate::objects::BucketWriter::scope`], if it is known.
    pub(super) scope: Option<String>,
    pub(super) path: PathBuf,
}

impl Spool {
    /// Lists the spools of this user.
    ///
    /// # Errors
    ///
    /// There is no state folder, or it cannot be read.
    pub(super) fn list() -> anyhow::Result<Vec<Spool>> {
        let all = spools_folder()?;
        let cannot = || format!("cannot read {}", display_path(&all));
        let folder = match Dir::open(&all, Durability::None) {
            Err(PathError::NotFound) => return Ok(Vec::new()),
            folder => folder.with_context(cannot)?,
        };
        let mut spools = Vec::new();
        for name in folder.list().with_context(cannot)? {
            let Ok(spool) = folder.enter(&RelPath::from(name.clone())) else { continue };
            // A crash may have left a spool without its URL, which is empty then.
            let Ok(Some(url)) = Name::new(URL).and_then(|file| spool.read(&file, URL_MAX)) else {
                continue;
            };
            let Ok(text) = String::from_utf8(url) else { continue };
            let mut lines = text.lines().map(str::to_owned);
            let Some(url) = lines.next() else { continue };
            spools.push(Spool { url, scope: lines.next(), path: all.join(name.as_os_str()) });
        }
        spools.sort_by(|a, b| a.url.cmp(&b.url));
        Ok(spools)
    }

    pub(super) fn exists(&self) -> bool {
        // Written last.
        self.path.join(URL).is_file()
    }

    /// Returns the path of the local store.
    pub(super) fn store_path(&self) -> PathBuf {
        self.path.join(STORE)
    }

    pub(super) fn folder(&self) -> Result<Dir, PathError> {
        Dir::open(&self.path, Durability::Full)
    }

    /// Opens the progress of uploads.
    pub(super) fn progress(&self) -> anyhow::Result<UploadProgress> {
        let open = || self.folder()?.enter(&RelPath::parse(PROGRESS)?);
        let folder = open().with_context(|| {
            let shown = display_path(&self.path);
            format!("cannot read what was uploaded of the spool {shown}")
        })?;
        Ok(UploadProgress(folder))
    }

    /// Opens the directory of a worker to read it.
    pub(super) fn worker(&self, id: &Name) -> Result<Disk, PathError> {
        Disk::open_nofollow(&self.store_path().join(WORKERS).join(id.as_os_str()))
    }

    /// Counts the files that are not uploaded, as far as this machine knows, until `deadline`
    /// passes.
    ///
    /// # Errors
    ///
    /// The spool cannot be read.
    pub(super) fn waiting(&self, deadline: Deadline<'_>) -> anyhow::Result<Waiting> {
        let mut waiting = Waiting::default();
        if !self.exists() {
            return Ok(waiting);
        }
        let store = Store::open(self.store_path())?;
        let progress = self.progress()?;
        for id in store.worker_names()? {
            if !deadline.has_time() {
                waiting.uncounted += 1;
                continue;
            }
            // One that cannot be read is not uploaded, so it waits.
            if self.count_worker(&store, &progress, &id, &mut waiting).is_err() {
                waiting.uncounted += 1;
            }
        }
        Ok(waiting)
    }

    /// Adds the files of a worker that are not uploaded.
    fn count_worker(
        &self,
        store: &Store,
        progress: &UploadProgress,
        id: &Name,
        waiting: &mut Waiting,
    ) -> anyhow::Result<()> {
        let Some(worker) = store.find_worker(id)? else { return Ok(()) };
        let done = progress.read(id, worker.folder().identity()?)?.unwrap_or_default();
        let (_, metadata, has_ended) = worker.shown_metadata()?;
        let files = walk(&self.worker(id)?)?;
        let before = waiting.files;
        for file in files.iter().filter(|file| !file.is_metadata() && !done.has(file)) {
            waiting.add(done.missing_bytes(file), Some(file.meta.mtime));
        }
        if !done.has_metadata(&metadata) || has_ended && !done.is_closed {
            let file = files.iter().find(|file| file.is_metadata());
            waiting.add(metadata.len() as u64, file.map(|file| file.meta.mtime));
        }
        if waiting.files > before {
            waiting.workers += 1;
            waiting.ended += u64::from(has_ended);
        }
        Ok(())
    }
}

/// Returns the path of the directory of all spools.
///
/// # Errors
///
/// The environment names no state folder.
pub(super) fn spools_folder() -> anyhow::Result<PathBuf> {
    let state = state_folder().with_context(
        || "cannot keep a spool: neither $XDG_STATE_HOME nor $HOME is set; set one of them",
    )?;
    Ok(state.join(FOLDER))
}

/// Lists the files beneath `top`, sorted by path. Links, special files and temporary files are left
/// out.
///
/// # Errors
///
/// A directory cannot be read, or is too deep.
pub(super) fn walk(top: &Disk) -> Result<Vec<SpoolFile>, PathError> {
    let (mut files, mut folders) = (Vec::new(), vec![RelPath::root()]);
    while let Some(folder) = folders.pop() {
        if folder.depth() > DEPTH_MAX {
            return Err(PathError::Io(rustix::io::Errno::LOOP));
        }
        let entries = match top.list(&folder) {
            Err(error) if error.is_not_found() => continue,
            entries => entries?,
        };
        for entry in entries {
            let path = folder.join(&entry.name);
            match entry.kind {
                Kind::Folder => folders.push(path),
                Kind::File => match top.stat(&path) {
                    Ok(meta) if meta.kind == Kind::File => files.push(SpoolFile { path, meta }),
                    Ok(_) => {}
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error),
                },
                Kind::Link | Kind::Special => {}
            }
        }
    }
    files.sort_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
    Ok(files)
}
