//! Serves until the mount ends: by umount from anywhere, or by a signal to this process.
//!
//! SIGTERM and SIGINT unmount, and so does SIGHUP in the foreground, where it means that the terminal is gone; in the
//! background it means nothing. A mount in use is detached, and its users are given a moment to finish.

use std::io;
use std::time::Duration;

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::mountinfo::{Mount, Mounts};
use super::mountpoint::is_dead;
use super::probe;
use super::say::{say, shown};
use super::take_down::{How, take_down, take_down_anyhow};
use crate::fuse::Session;

/// How long a session may take to end once its mount is detached.
const PATIENCE: Duration = Duration::from_secs(2);

/// From here on the signals are kept until [`serve`] takes them: a mount must not be left behind by one that comes
/// while it is made.
pub(super) fn catch() -> anyhow::Result<Signals> {
    Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot watch for signals")
}

/// Waits until the session ends. `device` is that of the mount, which may have been moved or covered meanwhile.
pub(super) fn serve(session: Session, device: &str, mut signals: Signals, foreground: bool) -> anyhow::Result<()> {
    let of_mount = device.to_owned();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if signal != SIGHUP || foreground {
                tracing::info!(signal, "unmounting because of a signal");
                std::process::exit(end(&of_mount));
            }
        }
    })?;
    let ended = session.wait();
    // An aborted connection ends the session and leaves a dead mount. The number of a mount that is gone is given to the
    // next one at once: whatever answers is not ours.
    let is_ours = |mount: &&Mount| probe::alive(&mount.point).is_err_and(|error| is_dead(&error));
    for mount in Mounts::read()?.of_device(device).filter(is_ours) {
        if let Err(error) = take_down(&mount.point, How::Detached) {
            tracing::error!(mountpoint = shown(&mount.point), %error, "cannot clear the mount");
        }
    }
    ended.context("the session ended with an error")
}

/// Takes the mount down and lets the session end by itself. Returns the exit code for a session that does not.
fn end(device: &str) -> i32 {
    if let Err(error) = unmount(device) {
        tracing::error!(%error, "cannot unmount");
        say(&format!("cannot unmount: {error}"));
        return 1;
    }
    std::thread::sleep(PATIENCE);
    0
}

fn unmount(device: &str) -> io::Result<()> {
    let mounts = Mounts::read()?;
    mounts.of_device(device).try_for_each(|mount| {
        if mounts.at(&mount.point).is_some_and(|top| top.device != device) {
            let covered = format!("something else is mounted over it on {}", shown(&mount.point));
            return Err(io::Error::other(covered));
        }
        take_down_anyhow(&mount.point)
    })
}
