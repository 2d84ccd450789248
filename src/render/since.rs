//! What changed in a view since a cursor, a line a worker, and the next cursor as the last line.
//!
//! Nothing is lost between two cursors. The next cursor bears the newest time that was seen *before* everything is looked
//! at for this answer: whatever is too late for the answer is at least as new, and told by the next one. So what changes
//! while it is looked at may be told twice. Times are those that nobody can set (ctime). A file system takes the time of a
//! write before it shows what was written; for that, the cursor is a tenth of a second older still. Where times tell of
//! nothing, though the state is another (a change within one tick of the clock, a clock that was set back, a status that
//! only the store's index tells), everything is told again.
//!
//! Workers are told by the time of their newest change, the oldest first. Those that do not fit are counted, and the next
//! cursor leads to them.

mod cursor;

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

pub use cursor::{Cursor, Mark};

use super::own::shown_path;
use super::text::{count, one_line, utc};
use super::{Key, Missing, Rendered};
use crate::catalog::{Access, FileStat, Fingerprint};
use crate::digest::digest;
use crate::error::{Error, Result};
use crate::name::{Name, RelPath};
use crate::store::Time;
use crate::view::{Member, View, Visible};
use cursor::{Memory, Page, Place};

/// How long a write may take from its time until it can be seen, in nanoseconds: a tenth of a second.
const MARGIN: u64 = 100_000_000;
/// The whole answer is never larger, in bytes.
const BYTES: usize = 16_000;
/// What is kept of that for all but the workers' lines.
const FRAME: usize = 1_600;
/// How many files of a worker are named.
const FILES: usize = 5;
/// The longest path of one, in bytes.
const PATH_MAX: usize = 120;
/// Of how many workers it is tried to tell whether they were made before the cursor or after it, if it was at about its
/// time.
const DOUBTFUL: usize = 12;
/// How many troubles of stores are told.
const TROUBLES: usize = 3;

/// All of a view, looked at for one answer.
pub struct Look {
    visible: Arc<Visible>,
    looked: Vec<Looked>,
    /// All changes that are older were to be seen when this was looked at.
    before: u64,
    memory: Memory,
}

struct Looked {
    member: Arc<Member>,
    stamp: Result<Arc<Fingerprint>>,
    order: u32,
}

impl Looked {
    /// Its place among the changes; none if it cannot be read.
    fn place(&self) -> Option<Place> {
        let stamp = self.stamp.as_ref().ok()?;
        Some(Place { time: nanos(stamp.newest_ctime), order: self.order })
    }
}

impl Memory {
    /// The same with one worker more, by the hash of its name.
    fn and(self, order: u32) -> Memory {
        Memory { workers: self.workers.saturating_add(1), names: self.names.wrapping_add(order), ..self }
    }

    /// Whether it is of the same workers, in whatever state.
    fn is_of_those_in(&self, other: &Memory) -> bool {
        (self.workers, self.names) == (other.workers, other.names)
    }
}

/// What of a look is told to who has a cursor.
struct Told<'a> {
    /// What is as new as this, or newer.
    from: u64,
    /// Whether it is told again since no time tells what changed.
    again: bool,
    /// In the order they are told in.
    changed: Vec<(Place, &'a Looked)>,
}

impl Look {
    /// Looks at all workers of `view` and at all their files.
    pub fn at(view: &View) -> Look {
        let newest = |stamp: &Fingerprint| nanos(stamp.newest_ctime);
        let stamps =
            view.visible().members.iter().filter_map(|member| view.fingerprint(member, true).ok()).collect::<Vec<_>>();
        let seen = stamps.iter().map(|stamp| newest(stamp)).max().unwrap_or_default();
        // From here on all is looked at anew, beginning with which workers there are.
        let visible = view.visible_now();
        let looked: Vec<Looked> = visible
            .members
            .iter()
            .map(|member| Looked {
                stamp: view.fingerprint_now(member),
                member: member.clone(),
                order: order(&member.name),
            })
            // It went just now.
            .filter(|looked| looked.stamp.as_ref().err() != Some(&Error::NotFound))
            .collect();
        let newest_now = looked.iter().filter_map(|looked| looked.stamp.as_deref().ok().map(newest)).max();
        let key = |looked: &Looked| looked.stamp.as_deref().ok().map(|stamp| stamp.key);
        let memory = remember(looked.iter().map(|looked| (&*looked.member, key(looked))));
        // Nothing is told of a worker that was in view before and is not now.
        let before = seen.min(newest_now.unwrap_or_default()).saturating_sub(MARGIN);
        Look { before, visible, looked, memory }
    }

    /// Its workers, each as it was when it was looked for.
    pub fn workers(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.looked.iter().map(|looked| &looked.member)
    }

    /// The cursor of who has seen all of it.
    pub fn cursor(&self) -> Cursor {
        Cursor::Since(Mark { from: self.before, page: None, memory: Some(self.memory) })
    }

    /// The workers that changed since `cursor`.
    pub fn changed(&self, cursor: Cursor) -> impl Iterator<Item = &Arc<Member>> {
        self.told(cursor).changed.into_iter().map(|(_, looked)| &looked.member)
    }

    /// Whether there is anything to tell since `cursor`: workers that changed, came or went.
    pub fn tells(&self, cursor: Cursor) -> bool {
        let Cursor::Since(mark) = cursor else { return false };
        let same = mark.memory.is_none_or(|memory| memory.is_of_those_in(&self.memory));
        !same || !self.told(cursor).changed.is_empty()
    }

    /// Changes whenever the answer to a cursor could.
    pub(super) fn hash(&self, hash: &mut blake3::Hasher) {
        hash.update(
            format!("{:?}{:?}{:?}{}", self.before, self.memory, self.visible.troubles, self.visible.unread.len())
                .as_bytes(),
        );
        for looked in &self.looked {
            hash.update(looked.member.name.as_bytes());
            hash.update(&[0]);
            hash.update(&looked.member.entry.key());
            hash.update(&looked.stamp.as_ref().map(|stamp| stamp.version).unwrap_or_default());
        }
    }

    fn told(&self, cursor: Cursor) -> Told<'_> {
        let nobody = |from| Told { from, again: false, changed: Vec::new() };
        let Cursor::Since(mark) = cursor else { return nobody(0) };
        let same = mark.memory.is_some_and(|memory| memory.state == self.memory.state);
        let begin = match mark.page {
            None if same => return nobody(mark.from),
            Some(page) if page.settled || same => page.at,
            _ => Place { time: mark.from, order: 0 },
        };
        let told = self.since(mark.from, begin);
        let Some(memory) = mark.memory.filter(|_| mark.page.is_none()) else { return told };
        let newest = told.changed.last().map(|(place, _)| place.time).unwrap_or_default();
        if newest > mark.from.saturating_add(MARGIN) || !memory.is_of_those_in(&self.memory) {
            return told;
        }
        Told { again: true, ..self.since(0, Place { time: 0, order: 0 }) }
    }

    fn since(&self, from: u64, begin: Place) -> Told<'_> {
        let placed = self.looked.iter().filter_map(|looked| Some((looked.place()?, looked)));
        let mut changed: Vec<_> = placed.filter(|(place, _)| *place >= begin).collect();
        changed.sort_by(|(a, one), (b, other)| a.cmp(b).then_with(|| one.member.name.cmp(&other.member.name)));
        Told { from, again: false, changed }
    }

    /// The cursor of who has been told all up to `rest`, the first worker that did not fit.
    fn next(&self, from: u64, rest: Option<Place>) -> Cursor {
        match rest {
            Some(at) => {
                let page = Page { at, settled: at.time < self.before };
                Cursor::Since(Mark { from, page: Some(page), memory: Some(self.memory) })
            }
            None => self.cursor(),
        }
    }
}

/// The state of a view at a glance: it changes whenever something does; but for finished workers that were looked at
/// lately, unless it is looked `closely`.
pub fn glance(view: &View, closely: bool) -> u64 {
    let visible = view.visible();
    let stamped = visible.members.iter().map(|member| (&**member, view.fingerprint(member, closely)));
    let there = stamped.filter(|(_, stamp)| stamp.as_ref().err() != Some(&Error::NotFound));
    remember(there.map(|(member, stamp)| (member, stamp.ok().map(|stamp| stamp.key)))).state
}

/// What is remembered of workers and the state of their files. Of a status only what nobody else's record could change;
/// of torn metadata it is what was read before, which not every process has.
fn remember<'a>(workers: impl Iterator<Item = (&'a Member, Option<Key>)>) -> Memory {
    let mut memory = Memory::default();
    let mut hash = blake3::Hasher::new();
    for (member, key) in workers {
        memory = memory.and(order(&member.name));
        let status = if member.entry.is_torn() { "" } else { member.entry.status.as_str() };
        hash.update(member.name.as_bytes());
        hash.update(format!("\0{status}\0").as_bytes());
        hash.update(&key.unwrap_or_default());
    }
    memory.state = u64::from_be_bytes(digest(&hash));
    memory
}

/// A hash of a worker's name.
fn order(name: &Name) -> u32 {
    u32::from_be_bytes(digest(blake3::Hasher::new().update(name.as_bytes())))
}

/// Nanoseconds since 1970, which is also the beginning of all that is older.
fn nanos(time: Time) -> u64 {
    let secs = u64::try_from(time.secs).unwrap_or_default();
    secs.saturating_mul(1_000_000_000).saturating_add(if time.secs < 0 { 0 } else { time.nanos.into() })
}

fn of_nanos(nanos: u64) -> Time {
    Time { secs: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX), nanos: 0 }
}

/// The answer to `cursor`. However long it takes, it is told to the end: cut by a clock, it would not be the same through
/// another door.
pub(super) fn answer(view: &View, look: &Look, cursor: Cursor) -> Result<Rendered> {
    let told = look.told(cursor);
    let compared = compare(view, look, &told, cursor);
    let (mut lines, mut complete, mut rest) = (String::new(), true, None);
    for (at, (place, looked)) in told.changed.iter().enumerate() {
        let is_new = compared.new.contains(&looked.member.name);
        let Some(line) = line(view, looked, told.from, is_new, &mut complete) else {
            // It went just now, which the next answer tells.
            complete = false;
            continue;
        };
        if lines.len() + line.len() > BYTES - FRAME {
            rest = Some((*place, told.changed.len() - at));
            break;
        }
        lines.push_str(&line);
    }
    let mut out = String::new();
    if cursor != Cursor::Now {
        out.push_str(&head(look, &told));
        out.push_str(&lines);
        out.push_str(&compared.gone);
        if let Some((_, left)) = rest {
            let workers = count(left, "more worker");
            out.push_str(&format!("left out: {workers}, to which the next cursor leads\n"));
        }
        out.push_str(&warnings(look));
    }
    let next = look.next(told.from, rest.map(|(place, _)| place));
    out.push_str(&format!("{next}\n"));
    let stamps = || look.looked.iter().filter_map(|looked| looked.stamp.as_deref().ok());
    let newest = match stamps().map(|stamp| stamp.newest_mtime).max() {
        Some(newest) => newest,
        None => view.newest(&look.visible)?,
    };
    let access = stamps().fold(Access::from_meta(&view.root_meta()?), |access, stamp| access.intersect(&stamp.access));
    let sessions = look.visible.unread.len();
    let missing = Missing { sessions, ..Missing::default() }.if_any(false);
    if let Some(missing) = missing.as_ref().filter(|_| cursor != Cursor::Now) {
        out.insert_str(0, &format!("{missing}\n"));
    }
    Ok(Rendered { bytes: out.into_bytes().into(), newest, access, complete, missing })
}

fn head(look: &Look, told: &Told<'_>) -> String {
    let all = count(look.looked.len(), "worker");
    let since = match told.from {
        _ if told.again => "No time tells what changed, so all is told again".into(),
        0 => "From the beginning".into(),
        from => format!("Since {}", utc(of_nanos(from))),
    };
    match (look.looked.len(), told.changed.len()) {
        (0, _) => format!("{since}: there is no worker. The last line is the next cursor.\n"),
        (_, 0) => format!("{since}: nothing changed, of {all}. The last line is the next cursor.\n"),
        (_, some) => format!(
            "{since}: {some} of {all} new or changed, with their new or changed files, the newest first. The last line \
             is the next cursor.\n"
        ),
    }
}

/// The line of one worker; none if it is gone. Clears `complete` if it changed since it was looked at.
fn line(view: &View, looked: &Looked, from: u64, is_new: bool, complete: &mut bool) -> Option<String> {
    let files = match view.files(&looked.member, usize::MAX) {
        Ok((files, stamp)) => {
            *complete &= looked.stamp.as_ref().is_ok_and(|asked| asked.key == stamp.key);
            let files = files.into_iter().filter(|file| nanos(file.ctime) >= from).collect();
            format!("last write {}; {}", utc(stamp.newest_mtime), list(files))
        }
        Err(Error::NotFound) => return None,
        Err(error) => format!("its files cannot be read: {error}"),
    };
    // Only now: a status that is older than the files would not be told again.
    let member = view.worker_now(&looked.member).ok()?;
    *complete &= Arc::ptr_eq(&member.entry, &looked.member.entry);
    let status = member.entry.status;
    let what = match status.is_finished() {
        _ if is_new => "new",
        true => "finished",
        false => "changed",
    };
    Some(format!("{what:<8} {:<9} {}: {files}\n", status.as_str(), shown(&member)))
}

/// A worker's name as a part of a line.
pub(super) fn shown(member: &Member) -> String {
    one_line(&member.name.display(), usize::MAX)
}

fn list(mut files: Vec<FileStat>) -> String {
    files.sort_by(|a, b| b.ctime.cmp(&a.ctime).then_with(|| a.path.cmp(&b.path)));
    let named = files.iter().take(FILES).map(|file| {
        let path = one_line(&shown_path(&file.path).display(), PATH_MAX);
        format!("{path} ({} B)", file.bytes)
    });
    let named = named.collect::<Vec<_>>().join(", ");
    match files.len() {
        0 => "no file is newer, one may have been removed".into(),
        all if all > FILES => format!("{}: {named} and {} more", count(all, "file"), all - FILES),
        all => format!("{}: {named}", count(all, "file")),
    }
}

/// Which of the workers that changed are new, and what is to be said of those that are not there any more.
struct Compared<'a> {
    new: HashSet<&'a Name>,
    gone: String,
}

/// Compares who is there with who was there when the cursor was made. A worker is new if its folder was made since.
fn compare<'a>(view: &View, look: &Look, told: &Told<'a>, cursor: Cursor) -> Compared<'a> {
    let Cursor::Since(Mark { page, memory, .. }) = cursor else {
        return Compared { new: HashSet::new(), gone: String::new() };
    };
    let born = |looked: &Looked| {
        let born = view.stat(&looked.member, &RelPath::root()).map(|meta| nanos(meta.identity.born));
        match born.unwrap_or_default() {
            _ if told.again => Ordering::Less,
            _ if told.from == 0 => Ordering::Greater,
            born if born < told.from => Ordering::Less,
            born if born <= told.from.saturating_add(MARGIN) => Ordering::Equal,
            _ => Ordering::Greater,
        }
    };
    let born: Vec<(Ordering, &'a Looked)> = told.changed.iter().map(|(_, looked)| (born(looked), *looked)).collect();
    let of = |wanted| born.iter().filter(move |(born, _)| *born == wanted).map(|(_, looked)| *looked);
    let name = |looked: &'a Looked| &looked.member.name;
    let mut new: HashSet<&Name> = of(Ordering::Greater).map(name).collect();
    // Made at about the time of the cursor: before it or after it.
    let doubtful: Vec<&Looked> = of(Ordering::Equal).collect();
    let Some(before) = memory else {
        new.extend(doubtful.into_iter().map(name));
        return Compared { new, gone: String::new() };
    };
    if before.is_of_those_in(&look.memory) {
        return Compared { new, gone: String::new() };
    }
    let expected = of(Ordering::Greater).fold(before, |all, looked| all.and(looked.order));
    let chosen = |set: u32| doubtful.iter().enumerate().filter(move |(at, _)| set >> at & 1 == 1).map(|(_, one)| *one);
    let explains =
        |set: &u32| chosen(*set).fold(expected, |all, looked| all.and(looked.order)).is_of_those_in(&look.memory);
    let gone = match (0..1 << doubtful.len().min(DOUBTFUL)).find(explains) {
        // Of what was told in part, who is remembered is not who was there at the time that it is told from.
        _ if page.is_some() || told.from == 0 => None,
        Some(set) => {
            new.extend(chosen(set).map(name));
            return Compared { new, gone: String::new() };
        }
        None => expected.workers.checked_sub(look.memory.workers).filter(|gone| *gone > 0),
    };
    let at_least = if doubtful.is_empty() { "" } else { "at least " };
    let gone = match gone {
        Some(1) => format!("gone: {at_least}1 worker\n"),
        Some(gone) => format!("gone: {at_least}{gone} workers\n"),
        // Without a time of birth, or moved here from elsewhere.
        None => format!("workers came or went: there were {}, there are {}\n", before.workers, look.memory.workers),
    };
    Compared { new, gone }
}

/// What may be missing from the answer.
fn warnings(look: &Look) -> String {
    let mut out = String::new();
    match look.looked.iter().filter(|looked| looked.stamp.is_err()).count() {
        0 => {}
        some => out.push_str(&format!("warning: {} cannot be read\n", count(some, "worker"))),
    }
    for trouble in look.visible.troubles.iter().take(TROUBLES) {
        out.push_str(&format!("warning: {}\n", one_line(trouble, 300)));
    }
    out
}
