//! Changes in a view since a cursor: one line per worker, and the next cursor as the last line.
//!
//! No change is lost between two cursors. The next cursor holds the newest time seen *before* the
//! snapshot for this answer is taken. A change that is too late for the answer is at least as new,
//! so the next answer reports it. A change during the snapshot may be reported twice.
//!
//! Times are change times (ctime), which no program can set. A file system may assign the time of a
//! write before the write becomes visible, so the cursor is a tenth of a second older still.
//!
//! Sometimes no time accounts for a different state: after a change within one clock tick, after a
//! clock was set back, or for a status that only the store's index records. Everything is then
//! reported again.
//!
//! Workers are ordered by their newest change, the oldest first. Those that do not fit are counted,
//! and the next cursor continues with them.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

pub use crate::route::cursor::{Checkpoint, Cursor};

use super::Rendered;
use crate::analysis::missing::Missing;
use crate::catalog::{Access, FileStat, Fingerprint};
use crate::digest::{Key, digest};
use crate::error::{Error, Result};
use crate::name::{Name, RelPath};
use crate::route::cursor::{ChangePosition, ResumePoint, ViewFingerprint};
use crate::route::name_collision::shown_path;
use crate::store::Time;
use crate::text::clean::one_line;
use crate::text::{count, utc};
use crate::view::{Member, View, VisibleWorkers};

/// Longest delay between the time of a write and its visibility, in nanoseconds.
const MARGIN: u64 = 100_000_000;
/// Largest answer, in bytes.
const BYTES: usize = 16_000;
/// Part of [`BYTES`] that is reserved for everything but workers' lines.
const FRAME: usize = 1_600;
/// Number of files named per worker.
const FILES: usize = 5;
/// Longest displayed path of a file, in bytes.
const PATH_MAX: usize = 120;
/// Number of workers created at about the cursor's time for which all combinations are tried.
const DOUBTFUL_MAX: usize = 12;
/// Number of store problems reported.
const TROUBLES: usize = 3;

/// The state of all workers of a view, read for one answer.
pub struct ViewSnapshot {
    visible: Arc<VisibleWorkers>,
    workers: Vec<WorkerSnapshot>,
    /// All changes older than this were visible to the snapshot; nanoseconds since 1970.
    complete_before: u64,
    fingerprint: ViewFingerprint,
}

/// The state of one worker in a snapshot.
struct WorkerSnapshot {
    member: Arc<Member>,
    stamp: Result<Arc<Fingerprint>>,
    name_hash: u32,
}

impl WorkerSnapshot {
    /// Returns the worker's position in the order of changes, or `None` if it cannot be read.
    fn position(&self) -> Option<ChangePosition> {
        let stamp = self.stamp.as_ref().ok()?;
        Some(ChangePosition { time: nanos(stamp.newest_ctime), name_hash: self.name_hash })
    }
}

impl ViewFingerprint {
    /// Returns the fingerprint with one more worker.
    fn with_worker(self, name_hash: u32) -> ViewFingerprint {
        let names = self.names.wrapping_add(name_hash);
        ViewFingerprint { workers: self.workers.saturating_add(1), names, ..self }
    }

    /// Returns true if both fingerprints have the same workers, in whatever state.
    fn has_same_workers(&self, other: &ViewFingerprint) -> bool {
        (self.workers, self.names) == (other.workers, other.names)
    }
}

/// The changes since a cursor.
struct Changes<'a> {
    /// Changes at this time or later are included; nanoseconds since 1970.
    from: u64,
    /// True if everything is included because no time accounts for the changed state.
    is_full: bool,
    /// The changed workers, ordered by position.
    changed: Vec<(ChangePosition, &'a WorkerSnapshot)>,
}

impl ViewSnapshot {
    /// Reads the state of all workers of `view` and their files.
    pub fn take(view: &View) -> ViewSnapshot {
        let newest = |stamp: &Fingerprint| nanos(stamp.newest_ctime);
        let stamps =
            view.visible().members.iter().filter_map(|member| view.fingerprint(member, true).ok()).collect::<Vec<_>>();
        let newest_before = stamps.iter().map(|stamp| newest(stamp)).max().unwrap_or_default();
        // From here on, everything is read anew, beginning with the list of workers.
        let visible = view.visible_now();
        let workers: Vec<WorkerSnapshot> = visible
            .members
            .iter()
            .map(|member| WorkerSnapshot {
                stamp: view.fingerprint_now(member),
                member: member.clone(),
                name_hash: name_hash(&member.name),
            })
            // Leave out workers that were removed meanwhile.
            .filter(|worker| worker.stamp.as_ref().err() != Some(&Error::NotFound))
            .collect();
        let newest_now = workers.iter().filter_map(|worker| worker.stamp.as_deref().ok().map(newest)).max();
        let key = |worker: &WorkerSnapshot| worker.stamp.as_deref().ok().map(|stamp| stamp.key);
        let fingerprint = fingerprint(workers.iter().map(|worker| (&*worker.member, key(worker))));
        // The older of both, so that the cursor reveals no time of a worker that has left the view.
        let complete_before = newest_before.min(newest_now.unwrap_or_default()).saturating_sub(MARGIN);
        ViewSnapshot { complete_before, visible, workers, fingerprint }
    }

    /// Returns the workers in the state of the snapshot.
    pub fn workers(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.workers.iter().map(|worker| &worker.member)
    }

    /// Returns the cursor after all changes in the snapshot.
    pub fn cursor(&self) -> Cursor {
        Cursor::Since(Checkpoint { from: self.complete_before, resume: None, fingerprint: Some(self.fingerprint) })
    }

    /// Returns the workers that changed since `cursor`.
    pub fn changed(&self, cursor: Cursor) -> impl Iterator<Item = &Arc<Member>> {
        self.changes_since(cursor).changed.into_iter().map(|(_, worker)| &worker.member)
    }

    /// Returns true if workers changed, appeared or disappeared since `cursor`.
    pub fn has_changes(&self, cursor: Cursor) -> bool {
        let Cursor::Since(checkpoint) = cursor else { return false };
        let has_same_workers =
            checkpoint.fingerprint.is_none_or(|fingerprint| fingerprint.has_same_workers(&self.fingerprint));
        !has_same_workers || !self.changes_since(cursor).changed.is_empty()
    }

    /// Hashes everything that the answer to a cursor depends on.
    pub(super) fn hash(&self, hash: &mut blake3::Hasher) {
        let ViewSnapshot { visible, complete_before, fingerprint, .. } = self;
        hash.update(
            format!("{complete_before:?}{fingerprint:?}{:?}{}", visible.list_errors, visible.unread.len()).as_bytes(),
        );
        for worker in &self.workers {
            hash.update(worker.member.name.as_bytes());
            hash.update(&[0]);
            hash.update(&worker.member.entry.key());
            hash.update(&worker.stamp.as_ref().map(|stamp| stamp.version).unwrap_or_default());
        }
    }

    fn changes_since(&self, cursor: Cursor) -> Changes<'_> {
        let none = |from| Changes { from, is_full: false, changed: Vec::new() };
        let Cursor::Since(checkpoint) = cursor else { return none(0) };
        let is_same_state =
            checkpoint.fingerprint.is_some_and(|fingerprint| fingerprint.state == self.fingerprint.state);
        let begin = match checkpoint.resume {
            None if is_same_state => return none(checkpoint.from),
            Some(resume) if resume.settled || is_same_state => resume.at,
            _ => ChangePosition { time: checkpoint.from, name_hash: 0 },
        };
        let changes = self.changes_from(checkpoint.from, begin);
        let Some(fingerprint) = checkpoint.fingerprint.filter(|_| checkpoint.resume.is_none()) else {
            return changes;
        };
        let newest = changes.changed.last().map(|(position, _)| position.time).unwrap_or_default();
        if newest > checkpoint.from.saturating_add(MARGIN) || !fingerprint.has_same_workers(&self.fingerprint) {
            return changes;
        }
        Changes { is_full: true, ..self.changes_from(0, ChangePosition { time: 0, name_hash: 0 }) }
    }

    fn changes_from(&self, from: u64, begin: ChangePosition) -> Changes<'_> {
        let positions = self.workers.iter().filter_map(|worker| Some((worker.position()?, worker)));
        let mut changed: Vec<_> = positions.filter(|(position, _)| *position >= begin).collect();
        changed.sort_by(|(a, one), (b, other)| a.cmp(b).then_with(|| one.member.name.cmp(&other.member.name)));
        Changes { from, is_full: false, changed }
    }

    /// Returns the cursor after an answer in which `rest` is the first worker that did not fit.
    fn next_cursor(&self, from: u64, rest: Option<ChangePosition>) -> Cursor {
        match rest {
            Some(at) => {
                let resume = ResumePoint { at, settled: at.time < self.complete_before };
                Cursor::Since(Checkpoint { from, resume: Some(resume), fingerprint: Some(self.fingerprint) })
            }
            None => self.cursor(),
        }
    }
}

/// Returns a hash of a view's state, which any change alters. Recent results are reused for
/// finished workers, unless `closely`.
pub fn state_hash(view: &View, closely: bool) -> u64 {
    let visible = view.visible();
    let stamped = visible.members.iter().map(|member| (&**member, view.fingerprint(member, closely)));
    let present = stamped.filter(|(_, stamp)| stamp.as_ref().err() != Some(&Error::NotFound));
    fingerprint(present.map(|(member, stamp)| (member, stamp.ok().map(|stamp| stamp.key)))).state
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
fn nanos(time: Time) -> u64 {
    let secs = u64::try_from(time.secs).unwrap_or_default();
    secs.saturating_mul(1_000_000_000).saturating_add(if time.secs < 0 { 0 } else { time.nanos.into() })
}

/// Returns the time for nanoseconds since 1970, rounded down to seconds.
fn time_from_nanos(nanos: u64) -> Time {
    Time { secs: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX), nanos: 0 }
}

/// Renders the answer to `cursor`.
///
/// It has no deadline: a cut answer would depend on the interface that requested it.
///
/// # Errors
/// The root of the store cannot be read.
pub(super) fn answer(view: &View, snapshot: &ViewSnapshot, cursor: Cursor) -> Result<Rendered> {
    let changes = snapshot.changes_since(cursor);
    let membership = compare_membership(view, snapshot, &changes, cursor);
    let (mut lines, mut complete, mut rest) = (String::new(), true, None);
    for (at, (position, worker)) in changes.changed.iter().enumerate() {
        let is_new = membership.new.contains(&worker.member.name);
        let Some(line) = worker_line(view, worker, changes.from, is_new, &mut complete) else {
            // The worker was removed meanwhile, which the next answer reports.
            complete = false;
            continue;
        };
        if lines.len() + line.len() > BYTES - FRAME {
            rest = Some((*position, changes.changed.len() - at));
            break;
        }
        lines.push_str(&line);
    }
    let mut out = String::new();
    if cursor != Cursor::Now {
        out.push_str(&head(snapshot, &changes));
        out.push_str(&lines);
        out.push_str(&membership.gone);
        if let Some((_, left)) = rest {
            let workers = count(left, "more worker");
            out.push_str(&format!("left out: {workers}; the next cursor continues with them\n"));
        }
        out.push_str(&warnings(snapshot));
    }
    let next = snapshot.next_cursor(changes.from, rest.map(|(position, _)| position));
    out.push_str(&format!("{next}\n"));
    let stamps = || snapshot.workers.iter().filter_map(|worker| worker.stamp.as_deref().ok());
    let newest = match stamps().map(|stamp| stamp.newest_mtime).max() {
        Some(newest) => newest,
        None => view.newest(&snapshot.visible)?,
    };
    let access = stamps().fold(Access::from_meta(&view.root_meta()?), |access, stamp| access.intersect(&stamp.access));
    let sessions = snapshot.visible.unread.len();
    let missing = Missing { sessions, ..Missing::default() }.if_any(false);
    if let Some(missing) = missing.as_ref().filter(|_| cursor != Cursor::Now) {
        out.insert_str(0, &format!("{missing}\n"));
    }
    Ok(Rendered { bytes: out.into_bytes().into(), newest, access, complete, missing })
}

fn head(snapshot: &ViewSnapshot, changes: &Changes<'_>) -> String {
    let all = count(snapshot.workers.len(), "worker");
    let since = match changes.from {
        _ if changes.is_full => "Timestamps do not show what changed, so everything is listed again".into(),
        0 => "From the beginning".into(),
        from => format!("Since {}", utc(time_from_nanos(from))),
    };
    match (snapshot.workers.len(), changes.changed.len()) {
        (0, _) => format!("{since}: there are no workers. The last line is the next cursor.\n"),
        (_, 0) => format!("{since}: nothing changed in {all}. The last line is the next cursor.\n"),
        (_, some) => format!(
            "{since}: {some} of {all} new or changed, with their new or changed files, the newest first. The last line \
             is the next cursor.\n"
        ),
    }
}

/// Renders the line of one worker, or returns `None` if it was removed. Clears `complete` if the
/// worker changed after the snapshot.
fn worker_line(view: &View, worker: &WorkerSnapshot, from: u64, is_new: bool, complete: &mut bool) -> Option<String> {
    let files = match view.files(&worker.member, usize::MAX) {
        Ok((files, stamp)) => {
            *complete &= worker.stamp.as_ref().is_ok_and(|before| before.key == stamp.key);
            let files = files.into_iter().filter(|file| nanos(file.ctime) >= from).collect();
            format!("last write {}; {}", utc(stamp.newest_mtime), list_files(files))
        }
        Err(Error::NotFound) => return None,
        Err(error) => format!("its files cannot be read: {error}"),
    };
    // Read the status after the files: no later answer would correct an older status.
    let member = view.worker_now(&worker.member).ok()?;
    *complete &= Arc::ptr_eq(&member.entry, &worker.member.entry);
    let status = member.entry.status;
    let change = match status.is_finished() {
        _ if is_new => "new",
        true => "finished",
        false => "changed",
    };
    Some(format!("{change:<8} {:<9} {}: {files}\n", status.as_str(), display_name(&member)))
}

/// Returns a worker's name on one line.
pub(super) fn display_name(member: &Member) -> String {
    one_line(&member.name.display(), usize::MAX)
}

fn list_files(mut files: Vec<FileStat>) -> String {
    files.sort_by(|a, b| b.ctime.cmp(&a.ctime).then_with(|| a.path.cmp(&b.path)));
    let named = files.iter().take(FILES).map(|file| {
        let path = one_line(&shown_path(&file.path).display(), PATH_MAX);
        format!("{path} ({} B)", file.bytes)
    });
    let named = named.collect::<Vec<_>>().join(", ");
    match files.len() {
        0 => "no file is newer; one may have been removed".into(),
        all if all > FILES => format!("{}: {named} and {} more", count(all, "file"), all - FILES),
        all => format!("{}: {named}", count(all, "file")),
    }
}

/// The workers that are new since a cursor, and a line about those that are gone.
struct Membership<'a> {
    new: HashSet<&'a Name>,
    gone: String,
}

/// Compares the workers of the snapshot with those of the cursor. A worker is new if its folder was
/// created since.
fn compare_membership<'a>(
    view: &View,
    snapshot: &ViewSnapshot,
    changes: &Changes<'a>,
    cursor: Cursor,
) -> Membership<'a> {
    let Cursor::Since(Checkpoint { resume, fingerprint, .. }) = cursor else {
        return Membership { new: HashSet::new(), gone: String::new() };
    };
    let compare_birth = |worker: &WorkerSnapshot| {
        let born = view.stat(&worker.member, &RelPath::root()).map(|meta| nanos(meta.identity.born));
        match born.unwrap_or_default() {
            _ if changes.is_full => Ordering::Less,
            _ if changes.from == 0 => Ordering::Greater,
            born if born < changes.from => Ordering::Less,
            born if born <= changes.from.saturating_add(MARGIN) => Ordering::Equal,
            _ => Ordering::Greater,
        }
    };
    let births: Vec<(Ordering, &'a WorkerSnapshot)> =
        changes.changed.iter().map(|(_, worker)| (compare_birth(worker), *worker)).collect();
    let born = |wanted| births.iter().filter(move |(birth, _)| *birth == wanted).map(|(_, worker)| *worker);
    let name = |worker: &'a WorkerSnapshot| &worker.member.name;
    let mut new: HashSet<&Name> = born(Ordering::Greater).map(name).collect();
    // Workers created at about the cursor's time may be older or newer than the cursor.
    let doubtful: Vec<&WorkerSnapshot> = born(Ordering::Equal).collect();
    let Some(before) = fingerprint else {
        new.extend(doubtful.into_iter().map(name));
        return Membership { new, gone: String::new() };
    };
    if before.has_same_workers(&snapshot.fingerprint) {
        return Membership { new, gone: String::new() };
    }
    let expected = born(Ordering::Greater).fold(before, |all, worker| all.with_worker(worker.name_hash));
    let chosen =
        |set: u32| doubtful.iter().enumerate().filter(move |(at, _)| set >> at & 1 == 1).map(|(_, worker)| *worker);
    // The doubtful workers are new whose addition explains the snapshot's fingerprint.
    let explains = |set: &u32| {
        let all = chosen(*set).fold(expected, |all, worker| all.with_worker(worker.name_hash));
        all.has_same_workers(&snapshot.fingerprint)
    };
    let gone = match (0..1 << doubtful.len().min(DOUBTFUL_MAX)).find(explains) {
        // After a partial answer, the fingerprint is newer than the time the changes start from.
        _ if resume.is_some() || changes.from == 0 => None,
        Some(set) => {
            new.extend(chosen(set).map(name));
            return Membership { new, gone: String::new() };
        }
        None => expected.workers.checked_sub(snapshot.fingerprint.workers).filter(|gone| *gone > 0),
    };
    let at_least = if doubtful.is_empty() { "" } else { "at least " };
    let gone = match gone {
        Some(1) => format!("gone: {at_least}1 worker\n"),
        Some(gone) => format!("gone: {at_least}{gone} workers\n"),
        // A worker has no birth time, or was moved here from elsewhere.
        None => {
            let (before, now) = (before.workers, snapshot.fingerprint.workers);
            format!("workers came or went: there were {before}, there are {now}\n")
        }
    };
    Membership { new, gone }
}

/// Lists problems that may leave the answer incomplete.
fn warnings(snapshot: &ViewSnapshot) -> String {
    let mut out = String::new();
    match snapshot.workers.iter().filter(|worker| worker.stamp.is_err()).count() {
        0 => {}
        some => out.push_str(&format!("warning: {} cannot be read\n", count(some, "worker"))),
    }
    for trouble in snapshot.visible.list_errors.iter().take(TROUBLES) {
        out.push_str(&format!("warning: {}\n", one_line(trouble, 300)));
    }
    out
}
