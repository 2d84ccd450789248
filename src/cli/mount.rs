//! `swarmletfs mount`: validates the arguments, mounts, and serves.
//!
//! All checks that do not read the store run first: the arguments, the store's path, the
//! mountpoint, and FUSE. Then the store is read and mounted, in this process or in the background.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args};
use sd_notify::NotifyState;
use tracing::warn;

use super::diagnosis::Diagnosis;
use super::exit::UsageError;
use super::mount_options::MountOptions;
use super::mountinfo::FolderIdentity;
use super::plan::Plan;
use super::terminal::{ProgressLine, QuietArg, display_path, shell_quote};
use super::{diagnosis, log, mount_options, mountpoint, plan, probe, serve, store_selection};
use crate::catalog::{is_artifact_store, is_own_mount};
use crate::store::is_object_url;

pub(super) const HELP: &str = "\
The store is the first of these: --store, STORE, $SWARMLET_STORE, $SWARMLET_DATA_PATH, the \
nearest store from the current folder upwards, a known path (/data/swarmlet, /data/workers, \
/data/swarmlet/workers), the sessions of all programs that are found (Claude Code: \
$CLAUDE_CONFIG_DIR or ~/.claude). A message on stderr names the store and the reason for the \
choice.

The default MOUNTPOINT is $XDG_RUNTIME_DIR/swarm. Root has no default.

Examples:
  swarmletfs mount /data/swarmlet /mnt/swarm
  swarmletfs mount --owner 7 --run 48 /mnt/run     one owner's workers of one run
  swarmletfs mount --foreground --log swarm.log /mnt/swarm

$SWARMLETFS_LOG sets what is logged: error, warn, info, debug, trace, or a filter such as \
swarmletfs=debug,fuser=warn. The default is info for --log, and warn for stderr in the \
foreground.";

/// Arguments of `mount`. Most of them can also be given in `-o`.
#[derive(Debug, Args)]
pub(super) struct MountArgs {
    /// The folder of traces, and the empty folder to mount it on
    #[arg(value_name = "[STORE] MOUNTPOINT", num_args = 0..=2)]
    pub(super) paths: Vec<PathBuf>,

    #[command(flatten)]
    pub(super) options: MountOptions,

    /// Comma-separated mount options, as passed by mount(8): store=, format=, only_owner=, owners=,
    /// run=, all_owners, audit, audit_max=, hard_links, no_cache, index=, no_index, prices=,
    /// allow_other, budget=, ttl=, stale=, poll=, no_catalog, log=, foreground, and the usual ones,
    /// which have no effect here; write a comma inside a value as \,
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(super) lists: Vec<OsString>,

    #[command(flatten)]
    pub(super) quiet: QuietArg,

    /// Set when the short form was used, as by mount(8)
    #[arg(long = "__short", hide = true)]
    pub(super) short: bool,

    /// Set for the process that serves the mount in the background
    #[arg(long = "__serve", hide = true)]
    pub(super) serve: bool,
}

/// Mounts with the given arguments. Returns when the mount answers, or in the foreground when it
/// has ended.
///
/// `typed` has the same arguments, as clap parsed them.
pub(super) fn run(arguments: MountArgs, typed: Option<&ArgMatches>) -> anyhow::Result<()> {
    serve::reexec_with_few_arenas();
    if arguments.serve {
        let mountpoint = arguments
            .paths
            .into_iter()
            .next()
            .ok_or_else(|| UsageError("no mountpoint given".into()))?;
        return serve::serve_in_background(mountpoint);
    }
    let options = options(&arguments, typed)?;
    log::check()?;
    let (plan, claim) = plan(arguments.paths, options, arguments.quiet)?;
    start(plan, claim, arguments.quiet)
}

/// Mounts as planned. Returns when the mount answers, or in the foreground when it has ended.
///
/// # Errors
///
/// The store cannot be read, or the system refuses the mount.
pub(super) fn start(plan: Plan, claim: OwnedFd, quiet: QuietArg) -> anyhow::Result<()> {
    if !plan.options.foreground {
        let progress = ProgressLine::without_counts("reading the store", quiet);
        let description = serve::start_in_background(&plan);
        drop(progress);
        let description = description?;
        quiet.inform(&mounted_message(&description, &plan.mountpoint));
        return Ok(());
    }
    plan.start_log()?;
    let mountpoint = plan.mountpoint.clone();
    serve::serve(plan, |description| {
        serve::check_readable(&mountpoint).map_err(|error| io::Error::other(error.to_string()))?;
        quiet.inform(&mounted_message(description, &mountpoint));
        notify_service_manager(description);
        drop(claim);
        Ok(())
    })
}

/// Reports to systemd that the mount is up, if a service of `Type=notify` runs this program.
fn notify_service_manager(description: &str) {
    let status = [NotifyState::Ready, NotifyState::Status(description)];
    if let Err(error) = sd_notify::notify(&status) {
        warn!("cannot report to the service manager that the mount is up: {error}");
    }
}

/// Returns the options on the command line and in `-o`.
///
/// # Errors
///
/// Fails for an unknown option, an invalid value, or contradictory values.
pub(super) fn options(
    arguments: &MountArgs,
    typed: Option<&ArgMatches>,
) -> Result<MountOptions, UsageError> {
    if arguments.lists.is_empty() {
        return arguments.options.clone().check();
    }
    mount_options::parse_dash_o(typed, &arguments.lists, arguments.short)?.check()
}

fn mounted_message(description: &str, mountpoint: &Path) -> String {
    format!(
        "{description}: mounted on {}; to unmount: `swarmletfs umount {}`",
        display_path(mountpoint),
        shell_quote(mountpoint)
    )
}

/// Rejects a store as the mountpoint, which is an easy slip if no mountpoint was given.
///
/// # Errors
///
/// Fails with a usage error if `path` is a store.
fn refuse_store(path: &Path) -> anyhow::Result<()> {
    let path = match (is_object_url(path), std::path::absolute(path)) {
        (true, _) => path.to_path_buf(),
        (false, Ok(path)) => {
            // The entry is read with a time limit. A mount that hangs is reported later.
            let is_store = matches!(probe::first_entry(&path), Ok(Some(_)))
                && !is_own_mount(&path)
                && is_artifact_store(&path);
            if !is_store {
                return Ok(());
            }
            path
        }
        (false, Err(_)) => return Ok(()),
    };
    let (store, quoted) = (display_path(&path), shell_quote(&path));
    Err(UsageError(format!(
        "cannot mount on {store}: it is a store, and no mountpoint is given; try `swarmletfs mount \
         {quoted} MOUNTPOINT`, or `swarmletfs mount --store {quoted}` for the default one"
    ))
    .into())
}

/// Finds the store, checks the mountpoint and FUSE, and locks the mountpoint.
///
/// The lock keeps other processes from mounting there until the returned descriptor is dropped.
///
/// # Errors
///
/// There is no store, or it cannot be mounted there.
pub(super) fn plan(
    mut paths: Vec<PathBuf>,
    mut options: MountOptions,
    quiet: QuietArg,
) -> anyhow::Result<(Plan, OwnedFd)> {
    let mountpoint = paths.pop();
    let operand = paths.pop();
    if mountpoint.iter().chain(&operand).any(|path| path.as_os_str().is_empty()) {
        return Err(UsageError("a path cannot be empty".into()).into());
    }
    if let Some(operand) = &operand
        && !options.stores.is_empty()
        && !options.stores.contains(operand)
    {
        let operand = display_path(operand);
        return Err(UsageError(format!(
            "{operand} and --store both name a store: to show both, use --store for each"
        ))
        .into());
    }
    let mountpoint = match mountpoint {
        Some(path) => {
            if operand.is_none() && options.stores.is_empty() {
                refuse_store(&path)?;
            }
            path
        }
        None => {
            let path = mountpoint::default_for_user()?;
            mountpoint::create(&path)?;
            path
        }
    };
    let format = options.format();
    let stores = store_selection::choose(&mut options.stores, operand.as_slice(), format, quiet)?;
    if options.audit && stores.len() > 1 {
        return Err(UsageError(
            "--audit records reads of one store, and several are given: mount the others elsewhere"
                .into(),
        )
        .into());
    }
    let point = mountpoint::prepare(&mountpoint, &stores)?;
    if let Some(log) = &mut options.log {
        *log = std::env::current_dir()?.join(&log);
        log::check_place(log, &stores, &point)?;
    }
    if options.audit {
        let folder = plan::reads_folder(&options.stores)?;
        // It may not exist yet, and must not be made in a store.
        let place = FolderIdentity::resolve_nearest(&folder, &mountpoint::read_mount_table()?)?;
        log::check_folder(&folder, &place, &stores, &point)?;
    }
    if let Some(index) = &mut options.cache.index {
        *index = std::env::current_dir()?.join(&index);
    }
    if let Some(owners) = &mut options.owners {
        *owners = std::env::current_dir()?.join(&owners);
    }
    if let Some(prices) = &mut options.prices {
        *prices = std::env::current_dir()?.join(&prices);
    }
    let plan = Plan::new(point.path.clone(), options)?;
    diagnosis::check_fuse().map_err(Diagnosis::or_without_mount)?;
    let claim = mountpoint::claim(&point)?;
    Ok((plan, claim))
}
