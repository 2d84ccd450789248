//! Serves until the mount ends, by an unmount or by a signal to this process.
//!
//! SIGTERM and SIGINT unmount. SIGHUP unmounts in the foreground, where the terminal is gone; in
//! the background it is ignored. A mount in use is detached, and its users get a moment to finish.
//!
//! Once a second, the session checks whether a store's directory was replaced by another one. The
//! roots were opened once, and the serving threads may read nothing else. So the new store is
//! opened, read and mounted in place of the old one, which stays available to processes that have
//! it open.

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{error, info};

use super::live_mount::{LiveMount, MountPlace};
use super::mountinfo::MountTable;
use super::mountpoint::is_dead;
use super::plan::Plan;
use super::teardown::{HeldMount, UnmountMode, unmount, unmount_or_detach};
use super::terminal::{display_path, print_message};
use super::{limits, probe};

/// Time for a session to end after its mount is detached.
const SESSION_END_TIMEOUT: Duration = Duration::from_secs(2);
const REPLACEMENT_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Reads the stores, mounts, calls `ready` with a description of the mount, and serves until the
/// mount ends. Unmounts if `ready` fails.
pub(super) fn serve(plan: Plan, ready: impl FnOnce(&str) -> io::Result<()>) -> anyhow::Result<()> {
    limits::raise_open_files();
    let content = plan.read()?;
    let description = content.description.clone();
    let signals = catch_signals()?;
    let (mountpoint, foreground) = (plan.mountpoint.clone(), plan.options.foreground);
    let mounted = plan.mount(content)?;
    let live = LiveMount::new(plan, mounted);
    if let Err(error) = ready(&description) {
        let _ = unmount(&mountpoint, UnmountMode::Detached);
        live.place().lock().socket = None;
        return Err(error.into());
    }
    run_until_unmounted(&live, signals, foreground)
}

/// Starts to queue signals for [`run_until_unmounted`], so that a signal during mounting leaves no
/// mount behind.
fn catch_signals() -> anyhow::Result<Signals> {
    Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot watch for signals")
}

/// Waits until the session ends. Mounts again when a store was replaced.
fn run_until_unmounted(live: &LiveMount, signals: Signals, foreground: bool) -> anyhow::Result<()> {
    let place = live.place();
    let signal_place = place.clone();
    let started = std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || exit_on_signal(signals, &signal_place, foreground));
    if let Err(error) = started {
        unmount_device(&place.lock().device)?;
        return Err(error).context("cannot watch for signals");
    }
    while !live.has_ended(REPLACEMENT_POLL_INTERVAL) {
        live.remount_if_replaced()?;
    }
    let mut place = place.lock();
    place.socket = None;
    clear(&place.device)
}

/// Waits for a signal that ends the mount, unmounts and exits. SIGHUP ends it only in the
/// `foreground`.
fn exit_on_signal(mut signals: Signals, place: &Mutex<MountPlace>, foreground: bool) {
    for signal in signals.forever() {
        if signal != SIGHUP || foreground {
            info!(signal, "unmounting because of a signal");
            let unmounted = {
                let mut place = place.lock();
                place.socket = None;
                unmount_device(&place.device)
            };
            // With the place unlocked, the process ends as soon as the session does.
            std::process::exit(end(unmounted));
        }
    }
}

/// Removes the dead mount that an aborted connection leaves behind.
fn clear(device: &str) -> anyhow::Result<()> {
    for mount in MountTable::read()?.with_device(device) {
        if let Err(error) = clear_at(&mount.point, device) {
            error!(mountpoint = display_path(&mount.point), %error, "cannot clear the mount");
        }
    }
    Ok(())
}

/// Removes a dead mount of `device` at `point`.
///
/// The kernel reuses device numbers at once, possibly for the same mountpoint. A mount that answers
/// is therefore another one.
fn clear_at(point: &Path, device: &str) -> io::Result<()> {
    let Some(held) = HeldMount::pin(point, device)? else { return Ok(()) };
    if probe::check_alive(point).is_err_and(|error| is_dead(&error)) {
        held.detach()?;
    }
    Ok(())
}

/// Waits for an unmounted session to end by itself. Returns the exit code to use if it does not.
fn end(unmounted: io::Result<()>) -> i32 {
    if let Err(error) = unmounted {
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
            let covered =
                format!("another file system is mounted over it on {}", display_path(&mount.point));
            return Err(io::Error::other(covered));
        }
        unmount_or_detach(&mount.point)
    })
}
