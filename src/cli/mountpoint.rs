//! Checks of the mountpoint. Every error names the directory and a remedy.
//!
//! A dead swarmletfs mount in the way is removed. A directory that may hang is accessed only
//! through [`probe`]. The kernel's mount table is read first, since that accesses no mount.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::diagnosis::Diagnosis;
use super::exit::UsageError;
use super::mountinfo::{FolderIdentity, Mount, MountTable};
use super::probe;
use super::teardown::HeldMount;
use super::terminal::{display_path, print_message, shell_quote};
use crate::store::is_object_url;

const MAX_STACKED: usize = 16;

/// Returns the default mountpoint, `$XDG_RUNTIME_DIR/swarm`.
///
/// # Errors
///
/// Fails for root, which has no default, and without that variable.
pub(super) fn default_for_user() -> Result<PathBuf, UsageError> {
    if rustix::process::geteuid().is_root() {
        return Err(UsageError("root has no default mountpoint: give MOUNTPOINT".into()));
    }
    match std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute())
    {
        Some(folder) => Ok(folder.join("swarm")),
        None => Err(UsageError(
            "there is no default mountpoint, as $XDG_RUNTIME_DIR is not set: give MOUNTPOINT"
                .into(),
        )),
    }
}

pub(super) fn create(path: &Path) -> anyhow::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot create {}", display_path(path)))
        }
        _ => Ok(()),
    }
}

/// Resolves links and `..` in `path_arg`, even if the mount there is dead or hung.
pub(super) fn resolve(path_arg: &Path, mounts: &MountTable) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path_arg)?;
    // Paths in the table are resolved already. Probing a path that is in it could hang.
    if mounts.at(&absolute).is_some() { Ok(absolute) } else { probe::resolve(&absolute) }
}

/// Checks that `path_arg` can be mounted on to show `stores`, and removes a dead swarmletfs mount
/// there. Returns the resolved directory.
pub(super) fn prepare(
    path_arg: &Path,
    stores: &[FolderIdentity],
) -> anyhow::Result<FolderIdentity> {
    let path = resolve(path_arg, &read_mount_table()?)
        .map_err(|error| access_error(path_arg, &error, None))?;
    clear_dead(&path)?;
    let mounts = read_mount_table()?;
    let point = FolderIdentity::new(path.clone(), &mounts)
        .map_err(|error| access_error(&path, &error, mounts.at(&path)))?;
    check_apart(&point, stores)?;
    match probe::first_entry(&path) {
        Ok(None) => Ok(point),
        Ok(Some(entry)) => bail!(
            "{} is not empty (it contains {}): mount on an empty folder",
            display_path(&path),
            display_path(Path::new(&entry)),
        ),
        Err(error) => Err(access_error(&path, &error, mounts.at(&path))),
    }
}

/// Checks that the mountpoint is not in one of `stores`, and none of them beneath it.
pub(super) fn check_apart(point: &FolderIdentity, stores: &[FolderIdentity]) -> anyhow::Result<()> {
    for store in stores {
        let (here, there) = (display_path(&point.path), display_path(&store.path));
        if point.is_same_folder(store) {
            bail!("{here} is the store itself: mount on an empty folder outside it");
        }
        if point.is_within(store) {
            bail!(
                "{here} lies inside the store {there}, which would then contain itself: mount \
                 outside it"
            );
        }
        if store.is_within(point) {
            bail!(
                "the store {there} lies inside {here} and would be hidden by the mount: choose \
                 another mountpoint"
            );
        }
    }
    Ok(())
}

/// Locks the mountpoint against other swarmletfs processes until the returned descriptor is
/// dropped.
///
/// # Errors
///
/// Fails if another process is mounting there, or has mounted since [`prepare`] checked.
pub(super) fn claim(point: &FolderIdentity) -> anyhow::Result<OwnedFd> {
    let here = display_path(&point.path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(&point.path, flags, Mode::empty())
        .with_context(|| format!("cannot open {here}"))?;
    // The lock is optional: some file systems have none.
    if rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)
        == Err(Errno::WOULDBLOCK)
    {
        bail!("another swarmletfs is just being mounted on {here}");
    }
    if read_mount_table()?.at(&point.path).is_some_and(Mount::is_ours) {
        return Err(already_mounted(&point.path));
    }
    Ok(folder)
}

fn already_mounted(path: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "swarmletfs is already mounted on {}; to unmount: `swarmletfs umount {}`",
        display_path(path),
        shell_quote(path)
    )
}

/// Removes dead swarmletfs mounts at `path`.
///
/// # Errors
///
/// Fails if the mount there is alive or cannot be removed.
pub(super) fn clear_dead(path: &Path) -> anyhow::Result<()> {
    for _ in 0..MAX_STACKED {
        let mounts = read_mount_table()?;
        let Some(mount) = mounts.at(path).filter(|mount| mount.is_ours()) else {
            return Ok(());
        };
        // The mount's own process may remove it at any moment, as it does after an abort.
        let is_gone =
            || Ok::<_, anyhow::Error>(!read_mount_table()?.is_mounted_at(path, &mount.device));
        let cannot = || format!("cannot remove the dead mount on {}", display_path(path));
        let Some(held) = HeldMount::pin(path, &mount.device).with_context(cannot)? else {
            continue;
        };
        match probe::check_alive(path) {
            Ok(()) if is_gone()? => {}
            Ok(()) => return Err(already_mounted(path)),
            Err(error) if is_dead(&error) => match held.detach() {
                Ok(true) => print_message(&format!(
                    "removed a dead swarmletfs mount on {}",
                    display_path(path)
                )),
                Ok(false) => {}
                Err(_) if is_gone()? => {}
                Err(error) => return Err(error).with_context(cannot),
            },
            Err(error) if error.kind() == ErrorKind::TimedOut => bail!(
                "the swarmletfs mount on {} does not answer; to detach it: `swarmletfs umount \
                 --lazy {}`",
                display_path(path),
                shell_quote(path),
            ),
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot access the mount on {}", display_path(path)));
            }
        }
    }
    bail!(
        "too many dead mounts are stacked on {}; to remove one: `umount -l {}`",
        display_path(path),
        shell_quote(path)
    )
}

/// Returns true if the error means that the file system's process is gone.
pub(super) fn is_dead(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotConnected | ErrorKind::ConnectionAborted)
}

pub(super) fn read_mount_table() -> anyhow::Result<MountTable> {
    MountTable::read().context("cannot read the mount table in /proc/self/mountinfo; mount /proc")
}

fn access_error(path: &Path, error: &io::Error, mount: Option<&Mount>) -> anyhow::Error {
    let (here, quoted) = (display_path(path), shell_quote(path));
    let mount_clause = mount
        .map(|mount| format!(" ({} is mounted there)", display_path(Path::new(&mount.kind))))
        .unwrap_or_default();
    match error.kind() {
        ErrorKind::NotFound => {
            anyhow::anyhow!("{here} does not exist: create it with `mkdir -p {quoted}`")
        }
        ErrorKind::NotADirectory => {
            anyhow::anyhow!("{here} is not a folder: mount on an empty folder")
        }
        ErrorKind::TimedOut => anyhow::anyhow!(
            "{here} did not answer within {} seconds{mount_clause}: a mount there or above it \
             hangs; choose another mountpoint",
            probe::TIMEOUT.as_secs(),
        ),
        ErrorKind::PermissionDenied => {
            anyhow::anyhow!(
                "{here} may not be read by this user{mount_clause}: mount on a folder of your own"
            )
        }
        _ if is_dead(error) => {
            anyhow::anyhow!(
                "{here} has a dead mount{mount_clause}; remove it with `umount -l {quoted}`, or \
                 mount elsewhere"
            )
        }
        _ => anyhow::anyhow!("cannot access {here}: {error}"),
    }
}

/// Resolves a store and adds it to `identities`. Returns `None` if it is a duplicate.
///
/// A store that cannot be accessed is returned unchanged: opening it reports the reason. So is the
/// URL of an object store.
///
/// # Errors
///
/// Fails if the store does not answer.
pub(super) fn identify_store(
    store: PathBuf,
    identities: &mut Vec<FolderIdentity>,
    mounts: &MountTable,
) -> Result<Option<PathBuf>, Diagnosis> {
    if is_object_url(&store) {
        return Ok(Some(store));
    }
    let resolved = FolderIdentity::resolve(&store, mounts).and_then(|found| {
        // The kernel may answer from its cache for a directory whose entries can no longer be read.
        match probe::first_entry(&found.path) {
            Err(error) if error.kind() == ErrorKind::TimedOut => Err(error),
            _ => Ok(found),
        }
    });
    match resolved {
        Ok(found) if identities.iter().any(|other| other.is_same_folder(&found)) => Ok(None),
        Ok(found) => {
            let path = found.path.clone();
            identities.push(found);
            Ok(Some(path))
        }
        Err(error) if error.kind() == ErrorKind::TimedOut => Err(Diagnosis::new(
            format!(
                "the store {} did not answer within {} seconds",
                display_path(&store),
                probe::TIMEOUT.as_secs()
            ),
            "check that its disk or server is available",
        )),
        Err(_) => Ok(Some(store)),
    }
}
