//! Makes the directories of spools, and locks them.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::cli::spools::{PROGRESS, Spool, URL, WORKERS, spools_folder, walk};
use crate::cli::terminal::display_path;
use crate::digest::{digest, to_hex};
use crate::name::Name;
use crate::store::Disk;
use swarmletfs_record::write::{Lock, Store};

/// Mode of the directories of spools.
const OWN: u32 = 0o700;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

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
        Ok(Spool { path: spools_folder()?.join(to_hex(&key)), scope: None, url })
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
}
