//! The text of the changes since a cursor: one line per worker, and the next cursor as the last.
//!
//! Workers that do not fit are counted, and the next cursor continues with them.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use super::summary::waiting_for;
use crate::analysis::attention::{Attention, AttentionLevel};
use crate::analysis::digest_cache::DigestResult;
use crate::analysis::missing::Missing;
use crate::analysis::worker_states::WorkerStates;
use crate::catalog::FileStat;
use crate::query::since::{Changes, MARGIN, ViewSnapshot, WorkerSnapshot, display_name, nanos};
use crate::route::cursor::{ChangePosition, Checkpoint, Cursor};
use crate::route::shown_path::shown_path;
use crate::view::{Member, View};
use swarmletfs_base::error::Error;
use swarmletfs_base::model::Status;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::Time;
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::{count, utc};

/// Largest answer, in bytes.
const BYTES: usize = 16_000;
/// Part of [`BYTES`] that is reserved for everything but workers' lines.
const FRAME: usize = 3_200;
const FILES: usize = 5;
/// Longest displayed path of a file, in bytes.
const PATH_MAX: usize = 120;
/// Number of workers created at about the cursor's time for which all combinations are tried.
const DOUBTFUL_MAX: usize = 12;
const TROUBLES: usize = 3;
/// Most workers that wait for a person and are listed first.
const WAITING_LINES: usize = 4;
/// Most workers that need a person for another reason and are listed first.
const URGENT_LINES: usize = 4;
/// Longest quoted reason, in bytes.
const LINE_MAX: usize = 120;
/// Number of workers that are analyzed together, of which the last may not fit.
const DIGESTS_AT_ONCE: usize = 32;

/// Returns the answer to `cursor`; true if all that it shows is from the snapshot; and the parts
/// that are missing.
///
/// It has no deadline: a cut answer would depend on the interface that requested it. `digests` may
/// have one: the attention of the workers that it leaves out is not shown.
pub fn answer(
    view: &View,
    snapshot: &ViewSnapshot,
    cursor: Cursor,
    digests: impl Fn(&WorkerStates) -> Vec<DigestResult>,
) -> (String, bool, Option<Missing>) {
    let changes = snapshot.changes_since(cursor);
    let membership = compare_membership(view, snapshot, &changes, cursor);
    let (mut lines, mut complete, mut rest) = (String::new(), true, None);
    let mut urgent = Vec::new();
    let states = |chunk: &[(ChangePosition, &WorkerSnapshot)]| -> WorkerStates {
        let workers = chunk.iter().map(|(_, worker)| worker);
        workers.map(|worker| (worker.member.clone(), worker.fingerprint.clone())).collect()
    };
    let chunks = changes.changed.chunks(DIGESTS_AT_ONCE);
    let with_digests = chunks.flat_map(|chunk| chunk.iter().zip(digests(&states(chunk))));
    for (at, ((position, worker), digest)) in with_digests.enumerate() {
        let is_new = membership.new.contains(&worker.member.name);
        let attention = digest.digest().map(|digest| &digest.attention);
        complete &= attention.is_some();
        let line = worker_line(view, worker, changes.from, is_new, attention, &mut complete);
        let Some(line) = line else {
            // The worker was removed meanwhile, which the next answer reports.
            complete = false;
            continue;
        };
        if lines.len() + line.len() > BYTES - FRAME {
            rest = Some((*position, changes.changed.len() - at));
            break;
        }
        lines.push_str(&line);
        urgent.extend(attention.and_then(|attention| urgent_line(&worker.member, attention)));
    }
    let mut out = String::new();
    if cursor != Cursor::Now {
        out.push_str(&head(snapshot, &changes));
        out.push_str(&waiting(&changes));
        out.extend(urgent.into_iter().take(URGENT_LINES));
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
    let sessions = snapshot.visible.unread.len();
    let missing = Missing { sessions, ..Missing::default() }.if_any(false);
    if let Some(missing) = missing.as_ref().filter(|_| cursor != Cursor::Now) {
        out.insert_str(0, &format!("{missing}\n"));
    }
    (out, complete, missing)
}

fn head(snapshot: &ViewSnapshot, changes: &Changes<'_>) -> String {
    let all = count(snapshot.workers.len(), "worker");
    let since = match changes.from {
        _ if changes.is_full => {
            "Timestamps do not show what changed, so everything is listed again".into()
        }
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

/// Lists the changed workers that wait for a person, which nothing else helps.
fn waiting(changes: &Changes<'_>) -> String {
    let members = changes.changed.iter().map(|(_, worker)| &worker.member);
    let waiting = members.filter(|member| member.entry.status == Status::Waiting);
    let line = |member: &Arc<Member>| {
        let what = waiting_for(&member.entry.worker());
        format!("waiting for a person: {}: {what}\n", display_name(member))
    };
    waiting.take(WAITING_LINES).map(line).collect()
}

/// Returns the line of a worker that needs a person, unless [`waiting`] lists it.
fn urgent_line(member: &Member, attention: &Attention) -> Option<String> {
    let first = attention.reasons.first().filter(|reason| reason.level == AttentionLevel::High)?;
    let is_listed = member.entry.status == Status::Waiting;
    (!is_listed).then(|| {
        let line = one_line(&first.line, LINE_MAX);
        format!("needs a person: {}: {}: {line}\n", display_name(member), first.kind.as_str())
    })
}

/// Renders the line of one worker, or returns `None` if it was removed. Clears `complete` if the
/// worker changed after the snapshot.
fn worker_line(
    view: &View,
    worker: &WorkerSnapshot,
    from: u64,
    is_new: bool,
    attention: Option<&Attention>,
    complete: &mut bool,
) -> Option<String> {
    let attention = match attention {
        Some(attention) if attention.reasons.is_empty() => String::new(),
        Some(attention) => {
            format!("attention {}: {}; ", attention.level().as_str(), attention.kinds())
        }
        None => "attention not read; ".into(),
    };
    let files = match view.files(&worker.member, usize::MAX) {
        Ok((files, fingerprint)) => {
            *complete &=
                worker.fingerprint.as_ref().is_ok_and(|before| before.key == fingerprint.key);
            let files = files.into_iter().filter(|file| nanos(file.ctime) >= from).collect();
            let files = list_files(files, worker.abandoned_at.is_some());
            format!("last write {}; {attention}{files}", utc(fingerprint.newest_mtime))
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
    let name = display_name(&member);
    Some(format!("{change:<8} {:<9} {name}: {files}\n", status.as_str()))
}

/// Lists the files of a worker, which is abandoned by the clock if `is_abandoned`.
fn list_files(mut files: Vec<FileStat>, is_abandoned: bool) -> String {
    files.sort_by(|a, b| b.ctime.cmp(&a.ctime).then_with(|| a.path.cmp(&b.path)));
    let named = files.iter().take(FILES).map(|file| {
        let path = one_line(&shown_path(&file.path).display(), PATH_MAX);
        format!("{path} ({} B)", file.bytes)
    });
    let named = named.collect::<Vec<_>>().join(", ");
    match files.len() {
        0 if is_abandoned => "nothing was written for long".into(),
        0 => "no file is newer; one may have been removed".into(),
        all if all > FILES => format!("{}: {named} and {} more", count(all, "file"), all - FILES),
        all => format!("{}: {named}", count(all, "file")),
    }
}

/// The workers that are new since a cursor, and a line about the removed ones.
struct Membership<'a> {
    new: HashSet<&'a Name>,
    gone: String,
}

/// Compares the workers of the snapshot with the workers of the cursor. A worker is new if its
/// directory was created since.
fn compare_membership<'a>(
    view: &View,
    snapshot: &ViewSnapshot,
    changes: &Changes<'a>,
    cursor: Cursor,
) -> Membership<'a> {
    let Cursor::Since(Checkpoint { resume, fingerprint, .. }) = cursor else {
        return Membership { new: HashSet::new(), gone: String::new() };
    };
    let births: Vec<(Ordering, &'a WorkerSnapshot)> = changes
        .changed
        .iter()
        .map(|(_, worker)| (compare_birth(view, worker, changes), *worker))
        .collect();
    let born = |wanted| {
        births.iter().filter(move |(birth, _)| *birth == wanted).map(|(_, worker)| *worker)
    };
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
    let expected =
        born(Ordering::Greater).fold(before, |all, worker| all.with_worker(worker.name_hash));
    let chosen = |set: u32| {
        doubtful
            .iter()
            .enumerate()
            .filter(move |(at, _)| set >> at & 1 == 1)
            .map(|(_, worker)| *worker)
    };
    // The doubtful workers are new whose addition explains the snapshot's fingerprint.
    let explanation = (0..1 << doubtful.len().min(DOUBTFUL_MAX)).find(|set| {
        let all = chosen(*set).fold(expected, |all, worker| all.with_worker(worker.name_hash));
        all.has_same_workers(&snapshot.fingerprint)
    });
    let gone = match explanation {
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

/// Compares the time at which a worker's directory was created with the start of the changes. The
/// times are equal if they are too close to tell.
fn compare_birth(view: &View, worker: &WorkerSnapshot, changes: &Changes<'_>) -> Ordering {
    let born = view.stat(&worker.member, &RelPath::root()).map(|meta| nanos(meta.identity.born));
    match born.unwrap_or_default() {
        _ if changes.is_full => Ordering::Less,
        _ if changes.from == 0 => Ordering::Greater,
        born if born < changes.from => Ordering::Less,
        born if born <= changes.from.saturating_add(MARGIN) => Ordering::Equal,
        _ => Ordering::Greater,
    }
}

/// Lists problems that may leave the answer incomplete.
fn warnings(snapshot: &ViewSnapshot) -> String {
    let mut out = String::new();
    match snapshot.workers.iter().filter(|worker| worker.fingerprint.is_err()).count() {
        0 => {}
        some => out.push_str(&format!("warning: {} cannot be read\n", count(some, "worker"))),
    }
    for trouble in snapshot.visible.list_errors.iter().take(TROUBLES) {
        out.push_str(&format!("warning: {}\n", one_line(trouble, 300)));
    }
    out
}

/// Returns the time for nanoseconds since 1970, rounded down to seconds.
fn time_from_nanos(nanos: u64) -> Time {
    Time { secs: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX), nanos: 0 }
}
