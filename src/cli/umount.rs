//! `swarmletfs umount`: ends a mount of ours, and leaves every other alone.
//!
//! It works on a dead mount and on one that hangs. It returns when the mount is gone from the kernel's table and, unless
//! others still use it, when its process has ended and so has closed the store.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::UmountArgs;
use super::mountinfo::{Mount, Mounts};
use super::mountpoint::{default_for_user, is_dead, resolve, table};
use super::probe;
use super::say::{shown, typed};
use super::servers::{Server, has_requests};
use super::take_down::{How, is_gone, take_down};

/// Time that the kernel may take to remove a mount, and its process to end.
const LIMIT: Duration = Duration::from_secs(10);
/// Time for which requests that are under way may keep a mount busy: a generated file is answered within seconds.
const BUSY: Duration = Duration::from_secs(4);
const RETRY: Duration = Duration::from_millis(50);

/// Unmounts. Errors are sentences: not mounted, not ours, in use.
pub(super) fn run(arguments: UmountArgs) -> anyhow::Result<()> {
    let asked = match arguments.mountpoint {
        Some(path) => path,
        None => default_for_user()?,
    };
    let mounts = table()?;
    let point = match resolve(&asked, &mounts) {
        Ok(point) => point,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{} does not exist, so nothing is mounted there", shown(&asked))
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot look at {}", shown(&asked)));
        }
    };
    let device = ours(&point, &mounts)?.device.clone();
    let servers = Server::all_of(&device);
    let how = if arguments.lazy { How::Detached } else { How::Idle };
    if let Err(error) = take_down_when_idle(&point, &device, how) {
        if error.kind() != ErrorKind::ResourceBusy {
            return Err(error).with_context(|| format!("cannot unmount {}", shown(&point)));
        }
        if !probe::alive(&point).is_err_and(|error| is_dead(&error)) {
            bail!(
                "{} is in use: close what is open there (`fuser -vm {1}` lists who), or take it out of sight now with \
                 `swarmletfs umount --lazy {1}`",
                shown(&point),
                typed(&point),
            );
        }
        // Who still stands in a dead mount has nothing to lose.
        take_down(&point, How::Detached).with_context(|| format!("cannot unmount {}", shown(&point)))?;
    }
    if !is_gone(&point, &device, LIMIT)? {
        bail!("{} is still mounted after {} seconds", shown(&point), LIMIT.as_secs());
    }
    if arguments.lazy {
        // Those who still use it are served until they close what they have open.
        return Ok(());
    }
    let end = Instant::now() + LIMIT;
    if let Some(server) = servers.iter().find(|server| !server.has_ended(end)) {
        bail!(
            "{} is unmounted, but its process {} still has the store open after {} seconds; `kill {1}` ends it",
            shown(&point),
            server.pid,
            LIMIT.as_secs(),
        );
    }
    Ok(())
}

/// Takes the mount down. Tries again while it is busy with requests that are about to be answered.
fn take_down_when_idle(point: &Path, device: &str, how: How) -> std::io::Result<()> {
    let end = Instant::now() + BUSY;
    loop {
        match take_down(point, how) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < end && has_requests(device) => {
                std::thread::sleep(RETRY);
            }
            other => return other,
        }
    }
}

/// The mount of ours at `point`; a sentence on what is there if there is none.
fn ours<'a>(point: &Path, mounts: &'a Mounts) -> anyhow::Result<&'a Mount> {
    match mounts.at(point) {
        Some(mount) if mount.is_ours() => Ok(mount),
        Some(mount) => bail!(
            "what is mounted on {} is not swarmletfs but {} ({}): it was left alone",
            shown(point),
            shown(&mount.source),
            shown(Path::new(&mount.fs_type)),
        ),
        None => match mounts.holding(point) {
            Some(mount) if mount.is_ours() => bail!(
                "{} lies inside the mount on {}: `swarmletfs umount {}` ends that",
                shown(point),
                shown(&mount.point),
                typed(&mount.point),
            ),
            _ => bail!("nothing is mounted on {}", shown(point)),
        },
    }
}
