//! The directories of spools, in the state folder of this user.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::progress::{SpoolFile, UploadProgress, WorkerProgress};
use crate::cli::discover::state_folder;
use crate::cli::object_facts::Waiting;
use crate::cli::terminal::display_path;
use crate::digest::{digest, to_hex};
use crate::error::Error as PathError;
use crate::name::{Name, RelPath};
use crate::store::{Disk, Kind, Store as _};
use swarmletfs_record::write::{Dir, Durability, Lock, Store};

/// Directory of all spools, in the state folder.
const FOLDER: &str = "spool";
/// Mode of the directories of spools.
const OWN: u32 = 0o700;
/// The local store, in the directory of a spool.
const STORE: &str = "store";
/// The file with two lines: the URL, and the provider and endpoint for which it was last used.
const URL: &str = "url";
const URL_MAX: u64 = 64 << 10;
/// Directory of the progress of uploads.
const PROGRESS: &str = "uploaded";
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Deepest directory of a worker that is uploaded.
const DEPTH_MAX: usize = 64;
pub(super) const WORKERS: &str = "workers";

/// A spool: the part of an object store that it is for, and its directory.
#[derive(Debug, Clone)]
pub(crate) struct Spool {
    /// The URL, without a `/` at its end.
    pub(crate) url: String,
    /// The provider and endpoint, see [`crate::objects::BucketWriter::scope`], if it is known.
    pub(crate) scope: Option<String>,
    path: PathBuf,
}

impl Spool {
    /// Returns the spool of `url`, which may not exist yet.
    ///
    /// # Errors
    ///
    /// There is no state folder, or the URL is no text.
    pub(crate) fn for_url(url: &Path) -> anyhow::Result<Spool> {
        let Some(text) = url.to_str() else {
            bail!("cannot use {} as a store: it is not UTF-8", display_path(url));
        };
        let url = text.trim_end_matches('/').to_owned();
        let mut hash = blake3::Hasher::new();
        let key: [u8; 16] = digest(hash.update(url.as_bytes()));
        Ok(Spool { path: all()?.join(to_hex(&key)), scope: None, url })
    }

    /// Lists the spools of this user.
    ///
    /// # Errors
    ///
    /// There is no state folder, or it cannot be read.
    pub(crate) fn list() -> anyhow::Result<Vec<Spool>> {
        let all = all()?;
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

    pub(crate) fn exists(&self) -> bool {
        // Written last.
        self.path.join(URL).is_file()
    }

    /// Makes the spool, if it is missing, and keeps the `scope` for which it is used.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub(super) fn make(&self, scope: &str) -> anyhow::Result<()> {
        let about = format!("{}\n{scope}\n", self.url);
        let is_made = || std::fs::read_to_string(self.path.join(URL)).is_ok_and(|is| is == about);
        if is_made() {
            return Ok(());
        }
        let shown = display_path(&self.path);
        let make = || -> anyhow::Result<()> {
            DirBuilder::new().recursive(true).mode(OWN).create(&self.path)?;
            let folder = self.folder()?;
            let _lock = folder.lock()?;
            if is_made() {
                return Ok(());
            }
            folder.enter_or_create(&Name::new(PROGRESS)?)?;
            Store::init(self.store_path())?;
            folder.write_temporary(&mut about.as_bytes())?.replace(&folder, &Name::new(URL)?)?;
            Ok(())
        };
        make().with_context(|| {
            format!("cannot make the spool {shown}; set $XDG_STATE_HOME to another folder")
        })
    }

    /// Returns the path of the local store.
    pub(crate) fn store_path(&self) -> PathBuf {
        self.path.join(STORE)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn folder(&self) -> Result<Dir, PathError> {
        Dir::open(&self.path, Durability::Full)
    }

    /// Opens the progress of uploads.
    pub(super) fn progress(&self) -> anyhow::Result<UploadProgress> {
        let open = || self.folder()?.enter(&RelPath::parse(PROGRESS)?);
        let folder = open().with_context(|| {
            let shown = display_path(&self.path);
            format!("cannot read what was uploaded of the spool {shown}")
        })?;
        Ok(UploadProgress::new(folder))
    }

    /// Takes the lock of uploads. Returns `None` if another process still holds it at `end`.
    ///
    /// # Errors
    ///
    /// The spool cannot be read.
    pub(super) fn lock(&self, end: Instant) -> anyhow::Result<Option<Lock>> {
        let cannot = || format!("cannot lock the spool {}", display_path(&self.path));
        let folder = self.folder().with_context(cannot)?;
        loop {
            let lock = folder.try_lock().with_context(cannot)?;
            if lock.is_some() || Instant::now() >= end {
                return Ok(lock);
            }
            thread::sleep(LOCK_PAUSE);
        }
    }

    /// Returns the size of the files of all workers, in bytes.
    ///
    /// # Errors
    ///
    /// The spool cannot be read.
    pub(super) fn size(&self) -> anyhow::Result<u64> {
        let path = self.store_path().join(WORKERS);
        let files = Disk::open(&path).and_then(|disk| walk(&disk));
        let files = files.with_context(|| format!("cannot read {}", display_path(&path)))?;
        Ok(files.iter().map(|file| file.meta.size).sum())
    }

    /// Opens the directory of a worker to read it.
    pub(super) fn worker(&self, id: &Name) -> Result<Disk, PathError> {
        Disk::open_nofollow(&self.store_path().join(WORKERS).join(id.as_os_str()))
    }

    /// Counts the files that are not uploaded, as far as this machine knows.
    ///
    /// # Errors
    ///
    /// The spool cannot be read.
    pub(crate) fn waiting(&self) -> anyhow::Result<Waiting> {
        let mut waiting = Waiting::default();
        if !self.exists() {
            return Ok(waiting);
        }
        let store = Store::open(self.store_path())?;
        let progress = self.progress()?;
        for id in store.worker_names()? {
            let Ok(Some(worker)) = store.find_worker(&id) else { continue };
            let Ok(identity) = worker.folder().identity() else { continue };
            let done = progress.read(&id, identity)?.unwrap_or_default();
            let Ok((_, metadata, has_ended)) = worker.shown_metadata() else { continue };
            let Ok(files) = self.worker(&id).and_then(|disk| walk(&disk)) else { continue };
            let left = waiting_files(&done, &files);
            let mut of_worker = Waiting {
                files: left.len() as u64,
                bytes: left.iter().map(|file| done.missing_bytes(file)).sum(),
                ..Waiting::default()
            };
            if !done.has_metadata(&metadata) || has_ended && !done.is_closed {
                of_worker.files += 1;
                of_worker.bytes += metadata.len() as u64;
            }
            if of_worker.files > 0 {
                of_worker.workers = 1;
                of_worker.ended = u64::from(has_ended);
            }
            waiting.files += of_worker.files;
            waiting.bytes += of_worker.bytes;
            waiting.workers += of_worker.workers;
            waiting.ended += of_worker.ended;
        }
        Ok(waiting)
    }
}

/// Returns the files that differ from the uploaded ones, without metadata.json.
fn waiting_files<'a>(done: &WorkerProgress, files: &'a [SpoolFile]) -> Vec<&'a SpoolFile> {
    files.iter().filter(|file| !file.is_metadata() && !done.has(file)).collect()
}

fn all() -> anyhow::Result<PathBuf> {
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
