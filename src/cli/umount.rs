//! `swarmletfs umount`: ends a mount of ours, and leaves every other alone.
//!
//! It works on a dead mount and on one that hangs. It returns when the mount is gone from the kernel's table and, unless
//! others still use it, when its process has ended and so has closed the store.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::UmountArgs;
use super::mountinfo::{Mount, MountTable};
use super::mountpoint::{default_for_user, is_dead, read_mount_table, resolve};
use super::probe;
use super::servers::{Server, has_requests};
use super::teardown::{UnmountMode, unmount, wait_until_unmounted};
use super::terminal::{display_path, shell_quote};

/// Time that the kernel may take to remove a mount, and its process to end.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which requests that are under way may keep a mount busy: a generated file is answered within seconds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(4);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Unmounts. Errors are sentences: not mounted, not ours, in use.
pub(super) fn run(arguments: UmountArgs) -> anyhow::Result<()> {
    let asked = match arguments.mountpoint {
        Some(path) => path,
        None => default_for_user()?,
    };
    let mounts = read_mount_table()?;
    let point = match resolve(&asked, &mounts) {
        Ok(point) => point,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{} does not exist, so nothing is mounted there", display_path(&asked))
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot look at {}", display_path(&asked)));
        }
    };
    let device = ours(&point, &mounts)?.device.clone();
    let servers = Server::find_all(&device);
    let how = if arguments.lazy { UnmountMode::Detached } else { UnmountMode::Idle };
    if let Err(error) = unmount_when_idle(&point, &device, how) {
        if error.kind() != ErrorKind::ResourceBusy {
            return Err(error).with_context(|| format!("cannot unmount {}", display_path(&point)));
        }
        if !probe::check_alive(&point).is_err_and(|error| is_dead(&error)) {
            bail!(
                "{} is in use: close what is open there (`fuser -vm {1}` lists who), or take it out of sight now with \
                 `swarmletfs umount --lazy {1}`",
                display_path(&point),
                shell_quote(&point),
            );
        }
        // Who still stands in a dead mount has nothing to lose.
        unmount(&point, UnmountMode::Detached).with_context(|| format!("cannot unmount {}", display_path(&point)))?;
    }
    if !wait_until_unmounted(&point, &device, TIMEOUT)? {
        bail!("{} is still mounted after {} seconds", display_path(&point), TIMEOUT.as_secs());
    }
    if arguments.lazy {
        // Those who still use it are served until they close what they have open.
        return Ok(());
    }
    let end = Instant::now() + TIMEOUT;
    if let Some(server) = servers.iter().find(|server| !server.has_ended(end)) {
        bail!(
            "{} is unmounted, but its process {} still has the store open after {} seconds; `kill {1}` ends it",
            display_path(&point),
            server.pid,
            TIMEOUT.as_secs(),
        );
    }
    Ok(())
}

/// Takes the mount down. Tries again while it is busy with requests that are about to be answered.
fn unmount_when_idle(point: &Path, device: &str, how: UnmountMode) -> std::io::Result<()> {
    let end = Instant::now() + BUSY_TIMEOUT;
    loop {
        match unmount(point, how) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < end && has_requests(device) => {
                std::thread::sleep(RETRY_INTERVAL);
            }
            other => return other,
        }
    }
}

/// The mount of ours at `point`; a sentence on what is there if there is none.
fn ours<'a>(point: &Path, mounts: &'a MountTable) -> anyhow::Result<&'a Mount> {
    match mounts.topmost_at(point) {
        Some(mount) if mount.is_ours() => Ok(mount),
        Some(mount) => bail!(
            "what is mounted on {} is not swarmletfs but {} ({}): it was left alone",
            display_path(point),
            display_path(&mount.source),
            display_path(Path::new(&mount.fs_type)),
        ),
        None => match mounts.containing(point) {
            Some(mount) if mount.is_ours() => bail!(
                "{} lies inside the mount on {}: `swarmletfs umount {}` ends that",
                display_path(point),
                display_path(&mount.point),
                shell_quote(&mount.point),
            ),
            _ => bail!("nothing is mounted on {}", display_path(point)),
        },
    }
}
