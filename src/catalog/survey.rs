//! A walk over all files of a worker, which stats and never reads: has anything changed, when, and who may read it.

use std::sync::Arc;
use std::time::SystemTime;

use crate::digest::digest;
use crate::error::{Error, Result};
use crate::model::Skipped;
use crate::name::RelPath;
use crate::store::{Kind, Meta, Store, Time, earlier};

/// Deeper folders are not walked into.
const DEPTH_MAX: usize = 64;
/// After this many entries the walk ends.
const ENTRIES_MAX: u64 = 200_000;
/// So often it is begun again if a folder was moved away meanwhile.
const ATTEMPTS: usize = 3;
/// The system takes no longer path, in bytes.
const PATH_MAX: usize = 4_096;

/// The state of all files of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// Changes with every change of any file; but not always with one in the same moment as the last one before.
    pub key: [u8; 16],
    /// Under this is kept what was made of the files: the key, unless a change since this was seen could leave the same
    /// key. Then nothing that is seen later has the same version.
    pub version: [u8; 16],
    /// The newest mtime. Whoever writes a file can set it to any time; to compare workers, use [`Stamp::last_write`].
    pub newest: Time,
    /// The newest ctime, which only the kernel sets.
    pub newest_change: Time,
    /// How many files there are; of a folder that is made of others, 0 unless they were listed.
    pub files: u64,
    /// Their sizes together, in bytes; likewise.
    pub bytes: u64,
    /// What is in the folder and not shown.
    pub skipped: Skipped,
    /// Who may read something made out of all of them.
    pub access: Access,
}

impl Stamp {
    /// Returns when the worker last wrote, never later than the kernel saw a change; see [`Meta::last_write`].
    pub fn last_write(&self) -> Time {
        earlier(self.newest, self.newest_change)
    }
}

impl Stamp {
    /// The same, known by other means to be of all times in which it has its key.
    pub(super) fn lasting(self: Arc<Stamp>) -> Arc<Stamp> {
        if self.lasts() { self } else { Arc::new(Stamp { version: self.key, ..(*self).clone() }) }
    }

    /// Whether these are two looks at one state, which nothing tells apart but when they were made.
    pub(super) fn is_version_of(&self, other: &Stamp) -> bool {
        Stamp { version: other.version, ..self.clone() } == *other
    }

    /// Whether what is made of the files in this state is of all times in which they have the same key.
    pub fn lasts(&self) -> bool {
        self.version == self.key
    }

    /// Whether this, of a [`Look::Glimpse`], is what the other one is, in which lists of access may have taken away more.
    pub(super) fn is_as(&self, other: &Stamp) -> bool {
        let within = other.access.within(&self.access) == other.access;
        within && Stamp { access: other.access, ..self.clone() } == *other
    }
}

/// One file of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStat {
    /// The file, from the worker's folder.
    pub path: RelPath,
    /// Size in bytes.
    pub bytes: u64,
    /// Last change of the bytes.
    pub mtime: Time,
    /// Last change of any kind.
    pub ctime: Time,
}

/// Who may read: an owner, a group, and permission bits for reading only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Permission bits, within 0444.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Access {
    /// Who may read something in the folder, or made of the file, `meta`, before anything more is quoted in it.
    pub fn of(meta: &Meta) -> Access {
        Access { mode: 0o444, uid: meta.uid, gid: meta.gid }.quoting(meta)
    }

    /// The same, less those who may not read `meta` at its source: a class of readers keeps its bit only if everybody
    /// in it may read the source. To read what is in a folder, one must be able to enter it.
    pub fn quoting(self, meta: &Meta) -> Access {
        let bits = if meta.kind == Kind::Folder { (meta.mode & 0o111) << 2 } else { meta.mode & 0o444 };
        self.within(&Access { mode: bits, uid: meta.uid, gid: meta.gid })
    }

    /// The same, less those who may not read what `other` lets be read.
    pub fn within(self, other: &Access) -> Access {
        let (owner, group, rest) = (other.mode & 0o400, other.mode & 0o040, other.mode & 0o004);
        let for_owner = if self.uid == other.uid { owner } else { rest << 6 };
        let for_group = if self.gid == other.gid && self.uid == other.uid { group } else { rest << 3 };
        Access { mode: self.mode & (for_owner | for_group | rest), ..self }
    }
}

/// When files are looked at, and by whose clock they have their times.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// Before the first of them is.
    pub(super) began: SystemTime,
    /// Whether the clock is this machine's.
    pub(super) here: bool,
}

impl Moment {
    /// Whether nothing that changes since has this time of change.
    fn is_past(&self, change: Time) -> bool {
        if self.here { change.was_at_rest_here(self.began) } else { change.was_at_rest(self.began) }
    }
}

/// How closely files are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Who may read them is told.
    Whole,
    /// What is told is whether anything changed: [`Stamp::access`] may give more than lists of access leave of it.
    Glimpse,
}

impl Look {
    fn at(self, store: &dyn Store, path: &RelPath) -> Result<Meta> {
        match self {
            Look::Whole => store.stat(path),
            Look::Glimpse => store.glimpse(path),
        }
    }
}

/// Told of each folder on disk, entered, before anything in it is looked at.
type Enter<'a> = &'a mut dyn FnMut(&dyn Store);

/// Walks a worker's folder, entered as `store`. With `files`, also lists all files there, sorted by path.
/// [`Error::NotFound`] if folders in it are moved away again and again.
pub(super) fn survey(
    store: &dyn Store,
    (look, moment): (Look, Moment),
    mut files: Option<&mut Vec<FileStat>>,
    enter: Enter<'_>,
) -> Result<Stamp> {
    if let Some(sources) = store.made_of() {
        return of_made(store, moment, &sources?, files);
    }
    for _ in 0..ATTEMPTS {
        files.iter_mut().for_each(|files| files.clear());
        enter(store);
        let own = look.at(store, &RelPath::root())?;
        let mut walk = Walk::of(store, (look, moment), &own, files.as_deref_mut(), enter);
        walk.note(&RelPath::root(), &own);
        walk.folder(store, &RelPath::root(), &RelPath::root(), 0)?;
        if !walk.moved {
            return Ok(walk.stamp());
        }
    }
    Err(Error::NotFound)
}

/// The files in a worker's folder, entered as `store`, sorted by path; of the same ones that a survey stats, and without a
/// stat of each. And how many folders could not be listed.
pub fn files(store: &dyn Store) -> Result<(Vec<RelPath>, u64)> {
    let (mut found, mut unreadable) = (Vec::new(), 0);
    let mut folders = vec![(RelPath::root(), 0)];
    let mut left = ENTRIES_MAX;
    while let Some((folder, depth)) = folders.pop() {
        let entries = match store.list(&folder) {
            Ok(entries) => entries,
            Err(error) if depth == 0 => return Err(error),
            Err(error) => {
                unreadable += u64::from(error != Error::NotFound);
                continue;
            }
        };
        for entry in entries {
            if left == 0 {
                unreadable += 1;
                break;
            }
            left -= 1;
            let inner = folder.join(&entry.name);
            match entry.kind {
                Kind::File => found.push(inner),
                Kind::Folder if depth < DEPTH_MAX => folders.push((inner, depth + 1)),
                Kind::Folder => unreadable += 1,
                Kind::Link | Kind::Special => {}
            }
        }
    }
    found.sort();
    Ok((found, unreadable))
}

/// The same of a folder that is made of `sources`, with which it changes: a walk would make all of it, and is made only
/// where its files are wanted.
fn of_made(store: &dyn Store, moment: Moment, sources: &[Meta], files: Option<&mut Vec<FileStat>>) -> Result<Stamp> {
    let own = match sources.first() {
        Some(first) => *first,
        None => store.stat(&RelPath::root())?,
    };
    let mut enter = |_: &dyn Store| {};
    let mut walk = Walk::of(store, (Look::Whole, moment), &own, None, &mut enter);
    sources.iter().for_each(|meta| walk.note(&RelPath::root(), meta));
    let stamp = Stamp { files: 0, bytes: 0, ..walk.stamp() };
    if files.is_none() {
        return Ok(stamp);
    }
    let mut walk = Walk { made: true, ..Walk::of(store, (Look::Whole, moment), &own, files, &mut enter) };
    walk.folder(store, &RelPath::root(), &RelPath::root(), 0)?;
    Ok(Stamp { files: walk.stamp.files, bytes: walk.stamp.bytes, ..stamp })
}

struct Walk<'a> {
    root: &'a dyn Store,
    /// Whether the folder is made of others: there is nothing to be entered in it.
    made: bool,
    /// Whether a folder is elsewhere by now. What was found in it may be another worker's.
    moved: bool,
    /// Whether something in it could change once more without another time of change.
    recent: bool,
    look: Look,
    moment: Moment,
    hash: blake3::Hasher,
    left: u64,
    stamp: Stamp,
    files: Option<&'a mut Vec<FileStat>>,
    enter: Enter<'a>,
}

impl<'a> Walk<'a> {
    fn of(
        root: &'a dyn Store,
        (look, moment): (Look, Moment),
        own: &Meta,
        files: Option<&'a mut Vec<FileStat>>,
        enter: Enter<'a>,
    ) -> Walk<'a> {
        let stamp = Stamp {
            key: [0; 16],
            version: [0; 16],
            newest: own.mtime,
            newest_change: own.ctime,
            files: 0,
            bytes: 0,
            skipped: Skipped::default(),
            access: Access::of(own),
        };
        let (made, moved, recent, hash) = (false, false, false, blake3::Hasher::new());
        Walk { root, made, moved, recent, look, moment, hash, left: ENTRIES_MAX, stamp, files, enter }
    }

    /// What was found.
    fn stamp(mut self) -> Stamp {
        let key = digest(&self.hash);
        if self.recent {
            let began = self.moment.began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            self.hash.update(&began.as_nanos().to_le_bytes());
        }
        Stamp { key, version: digest(&self.hash), ..self.stamp }
    }

    /// Looks at all in the folder that lies in `store` at `at`; `path` leads there from the worker's.
    fn folder(&mut self, store: &dyn Store, at: &RelPath, path: &RelPath, depth: usize) -> Result<()> {
        let mut entries = store.list(at)?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            if self.left == 0 {
                self.stamp.skipped.unreadable += 1;
                return Ok(());
            }
            self.left -= 1;
            let (inner, at) = (path.join(&entry.name), at.join(&entry.name));
            // What no path leads to cannot be read.
            let seen =
                if inner.as_bytes().len() < PATH_MAX { self.look.at(store, &at) } else { Err(Error::NameTooLong) };
            let meta = match seen {
                Ok(meta) => meta,
                Err(Error::NotFound) => continue,
                Err(Error::Escape) => {
                    self.stamp.skipped.special += 1;
                    continue;
                }
                Err(_) => {
                    self.stamp.skipped.unreadable += 1;
                    continue;
                }
            };
            self.note(&inner, &meta);
            let inside = match meta.kind {
                Kind::Folder if depth < DEPTH_MAX => self.inside(store, &at, &inner, depth + 1),
                Kind::Folder => Err(Error::NameTooLong),
                _ => Ok(()),
            };
            if inside.is_err_and(|error| error != Error::NotFound) {
                self.stamp.skipped.unreadable += 1;
            }
        }
        Ok(())
    }

    fn inside(&mut self, store: &dyn Store, at: &RelPath, path: &RelPath, depth: usize) -> Result<()> {
        if self.made {
            return self.folder(store, at, path, depth);
        }
        let folder = store.enter(at)?;
        (self.enter)(&*folder);
        let walked = self.folder(&*folder, &RelPath::root(), path, depth);
        match self.root.glimpse(path) {
            Ok(there) if there.identity == folder.identity()? => {}
            Ok(_) => self.moved = true,
            // One that was removed went with what was in it.
            Err(error) if error.is_not_found() => {
                self.moved |= folder.glimpse(&RelPath::root()).is_ok_and(|folder| folder.nlink > 0);
            }
            Err(error) => return Err(error),
        }
        walked
    }

    fn note(&mut self, path: &RelPath, meta: &Meta) {
        match meta.kind {
            Kind::Link => self.stamp.skipped.links += 1,
            Kind::Special => self.stamp.skipped.special += 1,
            Kind::File | Kind::Folder => {
                self.hash.update(path.as_bytes());
                self.hash.update(&[0]);
                for number in [meta.identity.ino, meta.size, meta.mtime.secs as u64, meta.mtime.nanos.into()] {
                    self.hash.update(&number.to_le_bytes());
                }
                for number in [meta.ctime.secs as u64, meta.ctime.nanos.into()] {
                    self.hash.update(&number.to_le_bytes());
                }
                self.recent |= !self.moment.is_past(meta.ctime);
                self.stamp.newest = self.stamp.newest.max(meta.mtime);
                self.stamp.newest_change = self.stamp.newest_change.max(meta.ctime);
                self.stamp.access = self.stamp.access.quoting(meta);
            }
        }
        if meta.kind == Kind::File {
            self.stamp.files += 1;
            self.stamp.bytes = self.stamp.bytes.saturating_add(meta.size);
            if let Some(files) = self.files.as_deref_mut() {
                let (path, bytes) = (path.clone(), meta.size);
                files.push(FileStat { path, bytes, mtime: meta.mtime, ctime: meta.ctime });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(mode: u32, uid: u32, gid: u32) -> Access {
        Access { mode, uid, gid }
    }

    #[test]
    fn a_quotation_is_readable_by_those_who_may_read_all_its_sources() {
        let all = access(0o444, 1, 1);
        assert_eq!(all.within(&access(0o440, 1, 1)).mode, 0o440);
        assert_eq!(all.within(&access(0o400, 1, 1)).mode, 0o400);
        assert_eq!(all.within(&access(0o400, 2, 1)).mode, 0o000);
        assert_eq!(all.within(&access(0o444, 2, 2)).mode, 0o444);
        assert_eq!(all.within(&access(0o440, 2, 1)).mode, 0o000);
    }
}
