//! Serves until the mount ends: by umount from anywhere, or by a signal to this process.
//!
//! SIGTERM and SIGINT unmount, and so does SIGHUP in the foreground, where it means that the terminal is gone; in the
//! background it means nothing. A mount in use is detached, and its users are given a moment to finish.
//!
//! Once a second it looks whether another folder stands where a store was opened. Its roots were opened once and for
//! all, and the threads that serve may read nothing else; so the store that is there now is opened, read and mounted
//! in the place of the old one, which those who have it open keep until they close.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{error, info, warn};

use super::mount::Plan;
use super::mountinfo::{Mount, MountTable};
use super::mountpoint::is_dead;
use super::probe;
use super::teardown::{HeldMount, UnmountMode, unmount, unmount_or_detach};
use super::terminal::{display_path, print_message};
use crate::fuse::{Session, contained};

/// UnmountMode long a session may take to end once its mount is detached.
const SESSION_END_TIMEOUT: Duration = Duration::from_secs(2);
/// UnmountMode often the stores' places are looked at.
const REPLACEMENT_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A mount that is mounted.
pub(super) struct MountedSession {
    pub(super) session: Session,
    /// The device of the mount, which may be moved or covered at any time.
    pub(super) device: String,
}

/// From here on the signals are kept until [`run_until_unmounted`] takes them: a mount must not be left behind by one that
/// comes while it is made.
pub(super) fn catch_signals() -> anyhow::Result<Signals> {
    Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot watch for signals")
}

/// Waits until the session ends, and serves `plan` anew where its store was replaced.
pub(super) fn run_until_unmounted(
    plan: &Plan,
    mut mounted: MountedSession,
    mut signals: Signals,
    foreground: bool,
) -> anyhow::Result<()> {
    // HeldMount while one mount takes the place of another: a signal then ends the new one.
    let device = Arc::new(Mutex::new(mounted.device.clone()));
    let of_mount = device.clone();
    let watch = move || {
        for signal in signals.forever() {
            if signal != SIGHUP || foreground {
                info!(signal, "unmounting because of a signal");
                std::process::exit(end(&of_mount.lock()));
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("signals".into()).spawn(watch) {
        unmount_device(&mounted.device)?;
        return Err(error).context("cannot watch for signals");
    }
    let mut refused = None;
    while !mounted.session.has_ended(REPLACEMENT_POLL_INTERVAL) {
        if !mounted.session.is_replaced() {
            refused = None;
            continue;
        }
        // Whatever is in the new one, it does not end the old one.
        match contained(|| plan.tree()).unwrap_or_else(|| Err(anyhow!("reading it panicked"))) {
            Ok((tree, what)) => {
                let mut device = device.lock();
                let mounts = MountTable::read()?;
                let old: Vec<&Mount> = mounts.with_device(&device).collect();
                if old.is_empty() {
                    // Unmounted just now: that was meant.
                    continue;
                }
                old.iter().try_for_each(|mount| unmount(&mount.point, UnmountMode::Detached))?;
                mounted = plan.mount(tree).context("the store was replaced, but cannot be mounted again")?;
                device.clone_from(&mounted.device);
                info!("the store was replaced by another folder, which is mounted now: {what}");
            }
            Err(error) => {
                let why = format!("{error:#}");
                if refused.as_ref() != Some(&why) {
                    warn!("the store was replaced by what cannot be mounted, the old one stays: {why}");
                    refused = Some(why);
                }
            }
        }
    }
    clear(&mounted.device)
}

/// An aborted connection ends the session and leaves a dead mount.
fn clear(device: &str) -> anyhow::Result<()> {
    for mount in MountTable::read()?.with_device(device) {
        if let Err(error) = clear_at(&mount.point, device) {
            error!(mountpoint = display_path(&mount.point), %error, "cannot clear the mount");
        }
    }
    Ok(())
}

/// The number of a mount that is gone is given to the next one at once, which may be at the same place: whatever
/// answers is not ours.
fn clear_at(point: &Path, device: &str) -> io::Result<()> {
    let Some(held) = HeldMount::at(point, device)? else { return Ok(()) };
    if probe::check_alive(point).is_err_and(|error| is_dead(&error)) {
        held.detach()?;
    }
    Ok(())
}

/// Takes the mount down and lets the session end by itself. Returns the exit code for a session that does not.
fn end(device: &str) -> i32 {
    if let Err(error) = unmount_device(device) {
        error!(%error, "cannot unmount");
        print_message(&format!("cannot unmount: {error}"));
        return 1;
    }
    std::thread::sleep(SESSION_END_TIMEOUT);
    0
}

fn unmount_device(device: &str) -> io::Result<()> {
    let mounts = MountTable::read()?;
    mounts.with_device(device).try_for_each(|mount| {
        if mounts.topmost_at(&mount.point).is_some_and(|top| top.device != device) {
            let covered = format!("something else is mounted over it on {}", display_path(&mount.point));
            return Err(io::Error::other(covered));
        }
        unmount_or_detach(&mount.point)
    })
}
