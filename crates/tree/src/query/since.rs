//! Changes in a view since a cursor, and the next cursor.
//!
//! No change is lost between two cursors. The next cursor holds the newest time seen *before* the
//! snapshot for this answer is taken. A change that is too late for the answer is at least as new,
//! so the next answer reports it. A change during the snapshot may be reported twice.
//!
//! Times are change times (ctime), which no program can set. A file system may assign the time of a
//! write before the write becomes visible, so the cursor is a tenth of a second older still.
//!
//! A worker becomes abandoned by the clock although none of its files changes. The time at which
//! this happens counts as its newest change. The cursor holds only times of files, whose clock may
//! differ from the clock of this machine.
//!
//! Sometimes no time accounts for a different state: after a change within one clock tick, after a
//! clock was set back, or for a status that only the store's index records. Everything is then
//! reported again.
//!
//! Workers are ordered by their newest change, the oldest first.

use std::sync::Arc;

pub use crate::route::cursor::{Checkpoint, Cursor};

use crate::catalog::{Access, Fingerprint};
use crate::route::cursor::{ChangePosition, ResumePoint, ViewFingerprint};
use crate::view::{Member, View, VisibleWorkers};
use swarmletfs_base::digest::{Key, digest, hash_value};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::Name;
use swarmletfs_base::store::Time;
use swarmletfs_base::text::clean::one_line;

/// Longest delay between the time of a write and its visibility, in nanoseconds.
pub const MARGIN: u64 = 100_000_000;

/// The state of all workers of a view, read for one answer.
pub struct ViewSnapshot {
    pub visible: Arc<VisibleWorkers>,
    pub workers: Vec<WorkerSnapshot>,
    /// All changes older than this were visible to the snapshot; nanoseconds since 1970.
    complete_before: u64,
    pub fingerprint: ViewFingerprint,
}

pub struct WorkerSnapshot {
    pub member: Arc<Member>,
    pub fingerprint: Result<Arc<Fingerprint>>,
    pub name_hash: u32,
    /// Time at which the worker became abandoned by the clock.
    pub abandoned_at: Option<Time>,
}

impl WorkerSnapshot {
    /// Returns the worker's position in the order of changes, or `None` if it cannot be read.
    fn position(&self) -> Option<ChangePosition> {
        let newest = self.fingerprint.as_ref().ok()?.newest_ctime;
        let newest = self.abandoned_at.map_or(newest, |at| newest.max(at));
        Some(ChangePosition { time: nanos(newest), name_hash: self.name_hash })
    }
}

impl ViewFingerprint {
    pub fn with_worker(self, name_hash: u32) -> ViewFingerprint {
        let names = self.names.wrapping_add(name_hash);
        ViewFingerprint { workers: self.workers.saturating_add(1), names, ..self }
    }

    /// Returns true if both fingerprints have the same workers, regardless of their states.
    pub fn has_same_workers(&self, other: &ViewFingerprint) -> bool {
        (self.workers, self.names) == (other.workers, other.names)
    }
}

pub struct Changes<'a> {
    /// Changes at this time or later are included; nanoseconds since 1970.
    pub from: u64,
    /// True if everything is included because no time accounts for the changed state.
    pub is_full: bool,
    /// The changed workers, ordered by position.
    pub changed: Vec<(ChangePosition, &'a WorkerSnapshot)>,
}

impl ViewSnapshot {
    pub fn take(view: &View) -> ViewSnapshot {
        let newest = |fingerprint: &Fingerprint| nanos(fingerprint.newest_ctime);
        let fingerprints = view
            .visible()
            .members
            .iter()
            .filter_map(|member| view.fingerprint(member, true).ok())
            .collect::<Vec<_>>();
        let newest_before =
            fingerprints.iter().map(|fingerprint| newest(fingerprint)).max().unwrap_or_default();
        // From here on, everything is read anew, beginning with the list of workers.
        let visible = view.visible_now();
        let workers: Vec<WorkerSnapshot> = visible
            .members
            .iter()
            .map(|member| WorkerSnapshot {
                fingerprint: view.fingerprint_now(member),
                member: member.clone(),
                name_hash: name_hash(&member.name),
                abandoned_at: view.abandoned_at(member),
            })
            // Leave out workers that were removed meanwhile.
            .filter(|worker| worker.fingerprint.as_ref().err() != Some(&Error::NotFound))
            .collect();
        let newest_now = workers
            .iter()
            .filter_map(|worker| worker.fingerprint.as_deref().ok().map(newest))
            .max();
        let key = |worker: &WorkerSnapshot| {
            worker.fingerprint.as_deref().ok().map(|fingerprint| fingerprint.key)
        };
        let fingerprint = fingerprint(workers.iter().map(|worker| (&*worker.member, key(worker))));
        // The older of both times, so that the cursor reveals no time of a worker that has left the
        // view.
        let complete_before =
            newest_before.min(newest_now.unwrap_or_default()).saturating_sub(MARGIN);
        ViewSnapshot { complete_before, visible, workers, fingerprint }
    }

    pub fn workers(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.workers.iter().map(|worker| &worker.member)
    }

    /// Returns the cursor after all changes in the snapshot.
    pub fn cursor(&self) -> Cursor {
        Cursor::Since(Checkpoint {
            from: self.complete_before,
            resume: None,
            fingerprint: Some(self.fingerprint),
        })
    }

    pub fn changed(&self, cursor: Cursor) -> impl Iterator<Item = &Arc<Member>> {
        self.changes_since(cursor).changed.into_iter().map(|(_, worker)| &worker.member)
    }

    pub fn has_changes(&self, cursor: Cursor) -> bool {
        let Cursor::Since(checkpoint) = cursor else { return false };
        let has_same_workers = checkpoint
            .fingerprint
            .is_none_or(|fingerprint| fingerprint.has_same_workers(&self.fingerprint));
        !has_same_workers || !self.changes_since(cursor).changed.is_empty()
    }

    /// Returns the newest modification time of the workers' files, and the permission to read an
    /// answer about them.
    ///
    /// # Errors
    /// The root of the store cannot be read.
    pub fn newest_and_access(&self, view: &View) -> Result<(Time, Access)> {
        let fingerprints =
            || self.workers.iter().filter_map(|worker| worker.fingerprint.as_deref().ok());
        let newest = match fingerprints().map(|fingerprint| fingerprint.newest_mtime).max() {
            Some(newest) => newest,
            None => view.newest(&self.visible)?,
        };
        let access = fingerprints()
            .fold(Access::from_meta(&view.root_meta()?), |access, fingerprint| {
                access.intersect(&fingerprint.access())
            });
        Ok((newest, access))
    }

    /// Hashes everything that the answer to a cursor depends on.
    pub fn hash_into(&self, hash: &mut blake3::Hasher) {
        let ViewSnapshot { visible, complete_before, fingerprint, .. } = self;
        hash_value(
            hash,
            &(complete_before, fingerprint, &visible.list_errors, visible.unread.len()),
        );
        for worker in &self.workers {
            hash.update(worker.member.name.as_bytes());
            hash.update(&[0]);
            hash.update(&worker.member.entry.key());
            hash.update(
                &worker
                    .fingerprint
                    .as_ref()
                    .map(|fingerprint| fingerprint.version)
                    .unwrap_or_default(),
            );
        }
    }

    pub fn changes_since(&self, cursor: Cursor) -> Changes<'_> {
        let none = |from| Changes { from, is_full: false, changed: Vec::new() };
        let Cursor::Since(checkpoint) = cursor else { return none(0) };
        let is_same_state = checkpoint
            .fingerprint
            .is_some_and(|fingerprint| fingerprint.state == self.fingerprint.state);
        let begin = match checkpoint.resume {
            None if is_same_state => return none(checkpoint.from),
            Some(resume) if resume.settled || is_same_state => resume.at,
            _ => ChangePosition { time: checkpoint.from, name_hash: 0 },
        };
        let changes = self.changes_from(checkpoint.from, begin);
        let Some(fingerprint) = checkpoint.fingerprint.filter(|_| checkpoint.resume.is_none())
        else {
            return changes;
        };
        let newest = changes.changed.last().map(|(position, _)| position.time).unwrap_or_default();
        if newest > checkpoint.from.saturating_add(MARGIN)
            || !fingerprint.has_same_workers(&self.fingerprint)
        {
            return changes;
        }
        Changes { is_full: true, ..self.changes_from(0, ChangePosition { time: 0, name_hash: 0 }) }
    }

    fn changes_from(&self, from: u64, begin: ChangePosition) -> Changes<'_> {
        let positions = self.workers.iter().filter_map(|worker| Some((worker.position()?, worker)));
        let mut changed: Vec<_> = positions.filter(|(position, _)| *position >= begin).collect();
        changed.sort_by(|(a, one), (b, other)| {
            a.cmp(b).then_with(|| one.member.name.cmp(&other.member.name))
        });
        Changes { from, is_full: false, changed }
    }

    /// Returns the cursor after an answer in which `rest` is the first worker that did not fit.
    pub fn next_cursor(&self, from: u64, rest: Option<ChangePosition>) -> Cursor {
        match rest {
            Some(at) => {
                let resume = ResumePoint { at, settled: at.time < self.complete_before };
                Cursor::Since(Checkpoint {
                    from,
                    resume: Some(resume),
                    fingerprint: Some(self.fingerprint),
                })
            }
            None => self.cursor(),
        }
    }
}

/// Returns a hash of a view's state, which any change alters. Recent results are reused for
/// finished workers, unless `closely`.
pub fn state_hash(view: &View, closely: bool) -> u64 {
    let visible = view.visible();
    let states =
        visible.members.iter().map(|member| (&**member, view.fingerprint(member, closely)));
    let present =
        states.filter(|(_, fingerprint)| fingerprint.as_ref().err() != Some(&Error::NotFound));
    fingerprint(
        present.map(|(member, fingerprint)| {
            (member, fingerprint.ok().map(|fingerprint| fingerprint.key))
        }),
    )
    .state
}

/// Returns the fingerprint of workers and the state of their files.
///
/// Torn metadata leaves the status out: it then comes from an earlier read, which differs between
/// processes.
fn fingerprint<'a>(workers: impl Iterator<Item = (&'a Member, Option<Key>)>) -> ViewFingerprint {
    let mut fingerprint = ViewFingerprint::default();
    let mut hash = blake3::Hasher::new();
    for (member, key) in workers {
        fingerprint = fingerprint.with_worker(name_hash(&member.name));
        let status = if member.entry.is_torn() { "" } else { member.entry.status.as_str() };
        hash.update(member.name.as_bytes());
        hash.update(format!("\0{status}\0").as_bytes());
        hash.update(&key.unwrap_or_default());
    }
    fingerprint.state = u64::from_be_bytes(digest(&hash));
    fingerprint
}

fn name_hash(name: &Name) -> u32 {
    u32::from_be_bytes(digest(blake3::Hasher::new().update(name.as_bytes())))
}

/// Returns a time as nanoseconds since 1970; earlier times as 0.
pub fn nanos(time: Time) -> u64 {
    let secs = u64::try_from(time.secs).unwrap_or_default();
    secs.saturating_mul(1_000_000_000).saturating_add(if time.secs < 0 {
        0
    } else {
        time.nanos.into()
    })
}

pub fn display_name(member: &Member) -> String {
    one_line(&member.name.display(), usize::MAX)
}
