//! A validated mount: the stores to mount, and the mountpoint.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};

use super::exit::UsageError;
use super::mount_options::MountOptions;
use super::mountinfo::{Mount, MountTable};
use super::owners_map::{self, MappedOwner};
use super::quiet::QuietArg;
use super::store_selection::StoreSelection;
use super::terminal::display_path;
use super::{diagnosis, log, reads};
use crate::catalog::{Freshness, STALE_AFTER};
use crate::fuse::{MountAccess, MountExtras, MountListing, OwnerDir, OwnerDirs, Session, Trees};
use crate::read_log::{LIMIT_DEFAULT, ReadLog};
use crate::text::budget::Budget;
use crate::text::count;
use crate::tree::{InoRange, Settings, Tree};
use crate::view::{Filter, View};

/// A validated mount: every path is absolute, and all checks that do not read the store have
/// passed.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Absolute and resolved.
    pub(super) mountpoint: PathBuf,
    /// Contains at least one store.
    pub(super) options: MountOptions,
    /// The owners who have a directory each, if the mount is for several.
    owners: Option<Vec<MappedOwner>>,
}

pub(super) struct MountContent {
    /// One view, or one for each owner.
    pub(super) views: Vec<View>,
    /// A text for people, such as the number of workers.
    pub(super) description: String,
}

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

    /// Plans a mount of `options` at `mountpoint`, and reads the file of owners, if there is one.
    ///
    /// # Errors
    ///
    /// The file of owners is invalid.
    pub(super) fn new(mountpoint: PathBuf, options: MountOptions) -> anyhow::Result<Plan> {
        let owners = options.owners.as_deref().map(owners_map::read).transpose()?;
        Ok(Plan { mountpoint, options, owners })
    }

    pub(super) fn read(&self) -> anyhow::Result<MountContent> {
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
            // A mount shows no progress itself.
            quiet: QuietArg::new(true),
        };
        let Some(owners) = &self.owners else {
            let view = selection.open(freshness)?;
            return Ok(MountContent { description: view.describe(), views: vec![view] });
        };
        let ids = owners.iter().map(|owner| owner.id.as_str());
        let views = selection.open_for_owners(freshness, ids)?;
        let workers: usize = views.iter().map(|view| view.visible().members.len()).sum();
        let description =
            format!("{} of {}", count(workers, "worker"), count(owners.len(), "owner"));
        Ok(MountContent { views, description })
    }

    /// Returns the trees of `views`, and the directories around them if there are several.
    fn trees(&self, views: Vec<View>) -> anyhow::Result<(Trees, Option<OwnerDirs>)> {
        let budget = self.options.budget.as_deref().map(Budget::parse);
        let settings =
            Settings { budget: budget.transpose().map_err(UsageError)?, ..Settings::default() };
        let Some(owners) = &self.owners else {
            let view = views.into_iter().next().context("there is no view to show")?;
            return Ok((Trees::One(Arc::new(Tree::new(view, settings))), None));
        };
        let settings = Settings { trees: owners.len(), ..settings };
        let dirs = || owners.iter().map(|mapped| &mapped.dir);
        let places = dirs().zip(InoRange::split(owners.len()));
        let tree = |((dir, range), view): ((&OwnerDir, InoRange), View)| {
            Arc::new(Tree::of_reader(view, settings.clone(), range, Some(dir.user)))
        };
        let trees = Trees::Owners(places.zip(views).map(tree).collect());
        Ok((trees, Some(OwnerDirs::new(dirs().cloned().collect()))))
    }

    /// Checks that stores can be attached and detached.
    ///
    /// # Errors
    ///
    /// The mount records the reads of its only store.
    pub(super) fn check_stores_can_change(&self) -> anyhow::Result<()> {
        if self.options.audit {
            bail!(
                "the stores of this mount cannot change, since it has --audit; mount the other \
                 store elsewhere"
            );
        }
        Ok(())
    }

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

    pub(super) fn mount(&self, content: MountContent) -> anyhow::Result<MountedSession> {
        let is_shared = self.options.allow_other || self.owners.is_some();
        let access = if is_shared { MountAccess::Everyone } else { MountAccess::Mounter };
        let (trees, owner_dirs) = self.trees(content.views)?;
        let listing =
            MountListing { source: self.options.source.clone(), no_exec: self.options.no_exec };
        let extras = MountExtras { log: self.read_log()?, owner_dirs, listing };
        let session = crate::fuse::mount_with(trees, &self.mountpoint, access, extras)
            .map_err(|error| diagnosis::diagnose_mount(&error).or_without_mount())?;
        let mounts = MountTable::read()?;
        let mount = mounts.topmost_at(&self.mountpoint).filter(|mount| Mount::is_ours(mount));
        let mount = mount.with_context(|| {
            format!("{} was unmounted again by another process", display_path(&self.mountpoint))
        })?;
        Ok(MountedSession { session, device: mount.device.clone() })
    }
}
