//! `swarmletfs mount`: validates the arguments, mounts, and serves.
//!
//! All checks that do not read the store run first: the arguments, the store's path, the
//! mountpoint, and FUSE. Then the store is read and mounted, in this process or in the background.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};

use super::exit::Usage;
use super::folder_identity::FolderIdentity;
use super::mount_options::Options;
use super::mountinfo::{Mount, MountTable};
use super::terminal::{display_path, print_message, shell_quote};
use super::{MountArgs, background, diagnosis, limits, log, mountpoint, serve, store_selection, teardown};
use crate::catalog::Freshness;
use crate::fuse::Access;
use crate::render::Budget;
use crate::tree::{Settings, Tree};
use crate::view::Filter;
use serve::MountedSession;
use store_selection::StoreSelection;

/// A validated mount: every path is absolute, and all checks that do not read the store have
/// passed.
#[derive(Debug)]
pub(super) struct Plan {
    /// Absolute and resolved.
    pub(super) mountpoint: PathBuf,
    /// Contains at least one store.
    options: Options,
}

impl Plan {
    /// Returns the arguments with which the background process serves this plan.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let options = &self.options;
        let mut arguments: Vec<OsString> = vec!["mount".into(), "--__serve".into()];
        let mut add = |name: &str, value: &OsStr| {
            let mut argument = OsString::from(name);
            argument.push(value);
            arguments.push(argument);
        };
        options.stores.iter().for_each(|store| add("--store=", store.as_os_str()));
        options.owner.iter().for_each(|owner| add("--owner=", owner.as_ref()));
        options.run.iter().for_each(|run| add("--run=", run.as_ref()));
        options.budget.iter().for_each(|budget| add("--budget=", budget.as_ref()));
        options.ttl.iter().for_each(|ttl| add("--ttl=", ttl.to_string().as_ref()));
        options.log.iter().for_each(|log| add("--log=", log.as_os_str()));
        options.cache.index.iter().for_each(|index| add("--index=", index.as_os_str()));
        let flags = [
            ("--all-owners", options.all_owners),
            ("--hard-links", options.hard_links),
            ("--no-cache", options.cache.no_cache),
            ("--no-index", options.cache.no_index),
            ("--allow-other", options.allow_other),
        ];
        flags.iter().filter(|(_, said)| *said).for_each(|(flag, _)| add(flag, OsStr::new("")));
        add("--", OsStr::new(""));
        add("", self.mountpoint.as_os_str());
        arguments
    }

    /// Starts the log. Without a log file it goes to stderr in the foreground, otherwise nowhere.
    pub(super) fn start_log(&self, foreground: bool) -> anyhow::Result<()> {
        log::start(self.options.log.as_deref(), foreground)
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
        let view = StoreSelection { stores, hard_links, cache: options.cache.clone(), filter }.open(freshness)?;
        let description = view.describe();
        let budget = options.budget.as_deref().map(Budget::parse).transpose().map_err(Usage)?;
        Ok((Tree::new(view, Settings { budget, ..Settings::default() }), description))
    }

    /// Mounts `tree`.
    pub(super) fn mount(&self, tree: Tree) -> anyhow::Result<MountedSession> {
        let access = if self.options.allow_other { Access::Everyone } else { Access::Mounter };
        let session =
            crate::fuse::mount(tree, &self.mountpoint, access).map_err(|error| diagnosis::diagnose_mount(&error))?;
        let mounts = MountTable::read()?;
        let mount = mounts.topmost_at(&self.mountpoint).filter(|mount| Mount::is_ours(mount));
        let mount = mount
            .with_context(|| format!("{} was unmounted again by another process", display_path(&self.mountpoint)))?;
        Ok(MountedSession { session, device: mount.device.clone() })
    }
}

/// Mounts as the arguments say. Returns when the mount answers, or in the foreground when it has
/// ended.
pub(super) fn run(arguments: MountArgs) -> anyhow::Result<()> {
    limits::reexec_with_few_arenas();
    let options = Options::from_args(&arguments)?;
    if arguments.serve {
        let mountpoint = arguments.paths.into_iter().next().ok_or_else(|| Usage("no mountpoint given".into()))?;
        return background::serve(&Plan { mountpoint, options });
    }
    log::check()?;
    let (plan, claim) = plan(arguments.paths, options)?;
    if !plan.options.foreground {
        let description = background::start(&plan)?;
        print_message(&mounted_message(&description, &plan.mountpoint));
        return Ok(());
    }
    plan.start_log(true)?;
    serve(&plan, true, |description| {
        background::check_readable(&plan.mountpoint).map_err(|error| io::Error::other(error.to_string()))?;
        print_message(&mounted_message(description, &plan.mountpoint));
        drop(claim);
        Ok(())
    })
}

fn mounted_message(description: &str, mountpoint: &Path) -> String {
    format!(
        "{description}: mounted on {}; to unmount: `swarmletfs umount {}`",
        display_path(mountpoint),
        shell_quote(mountpoint)
    )
}

/// Finds the store, checks the mountpoint and FUSE, and locks the mountpoint.
///
/// The lock keeps other processes from mounting there until the returned descriptor is dropped.
fn plan(mut paths: Vec<PathBuf>, mut options: Options) -> anyhow::Result<(Plan, OwnedFd)> {
    let mountpoint = paths.pop();
    let operand = paths.pop();
    if mountpoint.iter().chain(&operand).any(|path| path.as_os_str().is_empty()) {
        return Err(Usage("a path cannot be empty".into()).into());
    }
    if let Some(operand) = &operand
        && !options.stores.is_empty()
        && !options.stores.contains(operand)
    {
        let operand = display_path(operand);
        return Err(
            Usage(format!("{operand} and --store both name a store: to show both, use --store for each")).into()
        );
    }
    let mountpoint = match mountpoint {
        Some(path) => path,
        None => {
            let path = mountpoint::default_for_user()?;
            mountpoint::create(&path)?;
            path
        }
    };
    let stores = store_selection::choose(&mut options.stores, operand.as_slice())?;
    let point = mountpoint::prepare(&mountpoint, &stores)?;
    if let Some(log) = &mut options.log {
        *log = std::env::current_dir()?.join(&log);
        check_log(log, &stores, &point)?;
    }
    if let Some(index) = &mut options.cache.index {
        *index = std::env::current_dir()?.join(&index);
    }
    diagnosis::check_fuse()?;
    let claim = mountpoint::claim(&point)?;
    Ok((Plan { mountpoint: point.path, options }, claim))
}

/// Rejects a log inside a store, which must not be written to, or beneath the mountpoint, where the
/// mount would hide it.
fn check_log(log: &Path, stores: &[FolderIdentity], point: &FolderIdentity) -> anyhow::Result<()> {
    let Some(Ok(folder)) = log
        .parent()
        .map(|folder| FolderIdentity::resolve(folder, &mountpoint::read_mount_table()?).map_err(anyhow::Error::from))
    else {
        bail!("cannot log to {}: its folder does not exist", display_path(log));
    };
    match stores.iter().chain([point]).find(|place| folder.is_within(place)) {
        Some(place) => {
            bail!(
                "cannot log to {}: it lies inside {}; choose another folder",
                display_path(log),
                display_path(&place.path)
            )
        }
        None => Ok(()),
    }
}

/// Reads the stores, mounts, calls `ready` with a description of the mount, and serves until the
/// mount ends. Unmounts if `ready` fails.
pub(super) fn serve(plan: &Plan, foreground: bool, ready: impl FnOnce(&str) -> io::Result<()>) -> anyhow::Result<()> {
    limits::raise_open_files();
    let (tree, description) = plan.tree()?;
    let signals = serve::catch_signals()?;
    let served = plan.mount(tree)?;
    if let Err(error) = ready(&description) {
        let _ = teardown::unmount(&plan.mountpoint, teardown::UnmountMode::Detached);
        return Err(error.into());
    }
    serve::run_until_unmounted(plan, served, signals, foreground)
}
