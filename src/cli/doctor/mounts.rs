//! Inspects the swarmletfs mounts: alive, dead, or hung.
//!
//! They are read from the kernel's table and accessed by parallel probes, so several hung ones take
//! no longer than one.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::thread;

use serde::Serialize;

use super::finding::Finding;
use crate::cli::diagnosis::Diagnosis;
use crate::cli::mountinfo::{Mount, MountTable};
use crate::cli::mountpoint::is_dead;
use crate::cli::probe;
use crate::cli::terminal::{display_path, shell_quote};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum MountState {
    Alive,
    /// Its process is gone.
    Dead,
    Hung,
    /// Readable only by another user.
    Private,
    /// Another file system is mounted over it.
    Covered,
    Broken,
}

#[derive(Debug, Serialize)]
pub(super) struct MountFacts {
    point: String,
    state: MountState,
}

pub(super) fn inspect(table: io::Result<MountTable>) -> (Vec<MountFacts>, Vec<Finding>) {
    let table = match table {
        Ok(table) => table,
        Err(error) => {
            let message = format!("cannot read the mount table: {error}");
            return (
                Vec::new(),
                vec![Finding::problem("mounts", "table", Diagnosis::new(message, "mount /proc"))],
            );
        }
    };
    let probes: Vec<(&Mount, io::Result<()>)> = thread::scope(|scope| {
        let probes: Vec<_> = table
            .ours()
            .map(|mount| {
                let inspect = || probe::first_entry(&mount.point).map(drop);
                let start = || thread::Builder::new().spawn_scoped(scope, inspect);
                (mount, is_seen(mount, &table).then(start))
            })
            .collect();
        let finished = probes.into_iter().map(|(mount, probe)| {
            let result = probe.map_or(Ok(()), |thread| {
                thread?.join().unwrap_or_else(|_| Err(io::Error::other("the inspection panicked")))
            });
            (mount, result)
        });
        finished.collect()
    });
    // A mount that was unmounted meanwhile is skipped.
    let now = MountTable::read().unwrap_or_default();
    let still =
        probes.into_iter().filter(|(mount, _)| now.is_mounted_at(&mount.point, &mount.device));
    let (mounts, mut findings): (Vec<_>, Vec<_>) = still
        .map(|(mount, probe)| {
            let state = if is_seen(mount, &table) { state(&probe) } else { MountState::Covered };
            let finding = finding(&mount.point, state, probe.err());
            let point = display_path(&mount.point);
            (MountFacts { point: point.clone(), state }, finding.about(&point))
        })
        .unzip();
    if mounts.is_empty() {
        findings.push(Finding::ok("mounts", "none", "no swarmletfs is mounted"));
    }
    (mounts, findings)
}

/// Returns true if `mount` is the topmost one at its mountpoint.
fn is_seen(mount: &Mount, table: &MountTable) -> bool {
    table.topmost_at(&mount.point).is_some_and(|top| top.device == mount.device)
}

fn state(probe: &io::Result<()>) -> MountState {
    match probe {
        Ok(()) => MountState::Alive,
        Err(error) if is_dead(error) => MountState::Dead,
        Err(error) => match error.kind() {
            ErrorKind::TimedOut => MountState::Hung,
            ErrorKind::PermissionDenied => MountState::Private,
            _ => MountState::Broken,
        },
    }
}

fn finding(point: &Path, state: MountState, error: Option<io::Error>) -> Finding {
    let (here, quoted) = (display_path(point), shell_quote(point));
    let lazy = format!("`swarmletfs umount --lazy {quoted}` detaches it");
    match state {
        MountState::Alive => Finding::ok("mounts", "alive", format!("the mount on {here} answers")),
        MountState::Dead => {
            let message = format!("the mount on {here} is dead: its process is gone");
            Finding::problem(
                "mounts",
                "dead",
                Diagnosis::new(message, format!("`swarmletfs umount {quoted}` removes it")),
            )
        }
        MountState::Hung => {
            let message = format!(
                "the mount on {here} did not answer within {} seconds",
                probe::TIMEOUT.as_secs()
            );
            Finding::problem("mounts", "hung", Diagnosis::new(message, lazy))
        }
        MountState::Private => {
            let message = format!("the mount on {here} can be read only by another user");
            Finding::note("mounts", "private", message)
        }
        MountState::Covered => Finding::note(
            "mounts",
            "covered",
            format!("the mount on {here} is covered by another mount"),
        ),
        MountState::Broken => {
            let why = error.map(|error| format!(": {error}")).unwrap_or_default();
            let message = format!("the mount on {here} cannot be accessed{why}");
            Finding::problem("mounts", "broken", Diagnosis::new(message, lazy))
        }
    }
}
