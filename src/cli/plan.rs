//! A validated mount: what to mount, and where.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

use super::exit::UsageError;
use super::mount_options::MountOptions;
use super::mountinfo::{Mount, MountTable};
use super::store_selection::StoreSelection;
use super::terminal::display_path;
use super::{diagnosis, log, reads};
use crate::catalog::{Freshness, STALE_AFTER};
use crate::fuse::{MountAccess, MountExtras, Session};
use crate::notes::Notes;
use crate::read_log::{LIMIT_DEFAULT, ReadLog};
use crate::text::budget::Budget;
use crate::tree::{Settings, Tree};
use crate::view::Filter;
use crate::write::Store;

/// A validated mount: every path is absolute, and all checks that do not read the store have
/// passed.
#[derive(Debug)]
pub(super) struct Plan {
    /// Absolute and resolved.
    pub(super) mountpoint: PathBuf,
    /// Contains at least one store.
    pub(super) options: MountOptions,
}

/// A mount and the session that serves it.
pub(super) struct MountedSession {
    pub(super) session: Session,
    /// Device of the mount. Its mountpoint may be moved or covered at any time.
    pub(super) device: String,
}

impl Plan {
    /// Starts the log. Without a log file it goes to stderr in the foreground, otherwise nowhere.
    pub(super) fn start_log(&self) -> anyhow::Result<()> {
        log::start(self.options.log.as_deref(), self.options.foreground)
    }

    /// Opens and reads the stores. Returns the tree to mount and a description of it.
    pub(super) fn tree(&self) -> anyhow::Result<(Tree, String)> {
        let options = &self.options;
        let mut freshness = Freshness::default();
        if let Some(seconds) = options.ttl {
            freshness.finished = Duration::from_secs(seconds.into());
        }
        let filter = Filter { owner: options.owner.clone(), run: options.run.clone() };
        let (stores, hard_links) = (options.stores.clone(), options.hard_links);
        let selection = StoreSelection {
            stores,
            format: options.format(),
            hard_links,
            stale_after: options.stale.unwrap_or(STALE_AFTER),
            cache: options.cache.clone(),
            filter,
        };
        let view = selection.open(freshness)?;
        let description = view.describe();
        let budget =
            options.budget.as_deref().map(Budget::parse).transpose().map_err(UsageError)?;
        Ok((Tree::new(view, Settings { budget, ..Settings::default() }), description))
    }

    /// Opens the notes, if they are served.
    fn notes(&self) -> anyhow::Result<Option<Notes>> {
        let options = &self.options;
        let [store] = options.stores.as_slice() else { return Ok(None) };
        if !options.notes {
            return Ok(None);
        }
        let notes = Store::open(store)?.notes_folder()?;
        let place = display_path(notes.path());
        Notes::new(notes).map(Some).with_context(|| {
            format!("cannot serve notes in {place}; try without --notes, or let this user write it")
        })
    }

    /// Starts the log of reads, if there is one.
    fn read_log(&self) -> anyhow::Result<Option<ReadLog>> {
        if !self.options.audit {
            return Ok(None);
        }
        let folder = reads::folder(&self.options.stores)?;
        let limit = self.options.audit_max.unwrap_or(LIMIT_DEFAULT);
        let log = ReadLog::start(&folder, limit);
        log.map(Some).with_context(|| {
            let folder = display_path(&folder);
            format!("cannot write the log of reads in {folder}; try without --audit")
        })
    }

    /// Mounts `tree`.
    pub(super) fn mount(&self, tree: Tree) -> anyhow::Result<MountedSession> {
        let access =
            if self.options.allow_other { MountAccess::Everyone } else { MountAccess::Mounter };
        let extras = MountExtras { notes: self.notes()?, log: self.read_log()? };
        let session = crate::fuse::mount_with(tree, &self.mountpoint, access, extras)
            .map_err(|error| diagnosis::diagnose_mount(&error))?;
        let mounts = MountTable::read()?;
        let mount = mounts.topmost_at(&self.mountpoint).filter(|mount| Mount::is_ours(mount));
        let mount = mount.with_context(|| {
            format!("{} was unmounted again by another process", display_path(&self.mountpoint))
        })?;
        Ok(MountedSession { session, device: mount.device.clone() })
    }
}
