//! Fingerprint of a worker's files: a walk that stats every file and reads none.
//!
//! It detects changes, and collects the newest times and the common read permissions.
//!
//! A fingerprint is kept in the worker's entry, and taken again when it is too old.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::{Catalog, Entry, Freshness, Source};
use swarmletfs_base::digest::{Key, digest};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::Skipped;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Meta, Store, TICK_MAX, Time, earlier};

const DEPTH_MAX: usize = 64;
const ENTRIES_MAX: u64 = 200_000;
/// Maximum number of walks if directories are moved away during a walk.
const ATTEMPTS: usize = 3;
/// Minimum length of a path that the system refuses, in bytes.
const PATH_MAX: usize = 4_096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// Hash of the paths, sizes and times of all files. A change within the clock tick of the
    /// previous change may leave it the same.
    pub key: Key,
    /// Cache key for data derived from the files. Equals `key`, or is salted if a later change
    /// could still leave `key` the same; a salted version is never seen again.
    pub version: Key,
    /// Newest mtime. Any program can set it to any time; to compare workers, use
    /// [`Fingerprint::last_write`].
    pub newest_mtime: Time,
    /// Newest ctime, which only the kernel sets.
    pub newest_ctime: Time,
    /// Number of files; 0 for a generated directory whose files were not listed.
    pub files: u64,
    /// Total size of the files, in bytes; 0 for a generated directory whose files were not listed.
    pub bytes: u64,
    pub skipped: Skipped,
    /// Permission to read a document derived from all files, or more than that if ACLs were not
    /// read.
    access: Access,
    has_acls: bool,
}

impl Fingerprint {
    /// Returns the time of the worker's last write, never later than the newest ctime; see
    /// [`Meta::last_write`].
    pub fn last_write(&self) -> Time {
        earlier(self.newest_mtime, self.newest_ctime)
    }

    /// Returns the permission to read a document derived from all files. Only the owner may if ACLs
    /// were not read.
    pub fn access(&self) -> Access {
        let mode = if self.has_acls { self.access.mode } else { self.access.mode & 0o400 };
        Access { mode, ..self.access }
    }

    /// Returns true if every state with this `key` has the same file contents, so derived data
    /// stays valid.
    pub fn is_stable(&self) -> bool {
        self.version == self.key
    }

    /// Marks the fingerprint as stable. The caller knows that no later change can have the same
    /// `key`.
    fn into_stable(self: Arc<Fingerprint>) -> Arc<Fingerprint> {
        if self.is_stable() { self } else { self.with_version(self.key) }
    }

    fn with_version(&self, version: Key) -> Arc<Fingerprint> {
        Arc::new(Fingerprint { version, ..self.clone() })
    }

    /// Returns true if both describe the same state of the files. They may then differ in
    /// `version`, and in the access if ACLs were read for only one of them.
    fn is_of_state(&self, other: &Fingerprint) -> bool {
        let access = if self.has_acls == other.has_acls { self.access } else { other.access };
        let Fingerprint { version, has_acls, .. } = *other;
        Fingerprint { version, access, has_acls, ..self.clone() } == *other
    }

    /// Returns true if this fingerprint, taken with [`StatMode::WithoutAcl`], matches the files in
    /// the state `known`, whose access ACLs may have narrowed.
    fn matches_without_acl(&self, known: &Fingerprint) -> bool {
        let is_narrower = known.access.intersect(&self.access) == known.access;
        let Fingerprint { access, has_acls, .. } = *known;
        is_narrower && Fingerprint { access, has_acls, ..self.clone() } == *known
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStat {
    /// Path relative to the worker's directory.
    pub path: RelPath,
    pub bytes: u64,
    pub mtime: Time,
    pub ctime: Time,
}

/// Read permission: an owner, a group and the read bits of a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Access {
    /// Permission bits, within 0444.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Access {
    pub fn from_meta(meta: &Meta) -> Access {
        Access { mode: 0o444, uid: meta.uid, gid: meta.gid }.restrict_to(meta)
    }

    /// Removes the readers that may not read `meta` at its source.
    ///
    /// A class of readers keeps its bit only if all its members may read the source. For a
    /// directory, the permission to enter it counts.
    fn restrict_to(self, meta: &Meta) -> Access {
        let bits =
            if meta.kind == Kind::Folder { (meta.mode & 0o111) << 2 } else { meta.mode & 0o444 };
        self.intersect(&Access { mode: bits, uid: meta.uid, gid: meta.gid })
    }

    /// Removes the readers that `other` does not permit.
    pub fn intersect(self, other: &Access) -> Access {
        let (owner, group, rest) = (other.mode & 0o400, other.mode & 0o040, other.mode & 0o004);
        let for_owner = if self.uid == other.uid { owner } else { rest << 6 };
        let for_group =
            if self.gid == other.gid && self.uid == other.uid { group } else { rest << 3 };
        Access { mode: self.mode & (for_owner | for_group | rest), ..self }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct WalkOptions {
    stat_mode: StatMode,
    pub(super) start: SystemTime,
    /// True if this machine's clock sets the ctimes.
    pub(super) is_local: bool,
}

impl WalkOptions {
    /// Returns true if no change after the start can have this ctime.
    fn is_past_tick(&self, ctime: Time) -> bool {
        if self.is_local {
            ctime.was_past_local_tick(self.start)
        } else {
            ctime.was_past_tick(self.start)
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StatMode {
    /// Reads ACLs, so [`Fingerprint::access`] is exact.
    Full,
    /// Skips ACLs. Suffices to detect changes.
    WithoutAcl,
}

impl StatMode {
    fn stat(self, store: &dyn Store, path: &RelPath) -> Result<Meta> {
        match self {
            StatMode::Full => store.stat(path),
            StatMode::WithoutAcl => store.stat_without_acl(path),
        }
    }
}

/// Callback for each directory on disk, called after it is entered and before its entries are
/// stat'ed.
type OnEnter<'a> = &'a mut dyn FnMut(&dyn Store);

/// Takes the fingerprint of a worker's directory, entered as `store`. Fills `files`, if given,
/// sorted by path.
///
/// # Errors
///
/// [`Error::NotFound`] if directories are moved away in each of several attempts.
fn take_fingerprint(
    store: &dyn Store,
    options: WalkOptions,
    mut files: Option<&mut Vec<FileStat>>,
    on_enter: OnEnter<'_>,
) -> Result<Fingerprint> {
    if let Some(sources) = store.source_files() {
        return fingerprint_generated(store, options, &sources?, files);
    }
    for _ in 0..ATTEMPTS {
        files.iter_mut().for_each(|files| files.clear());
        on_enter(store);
        let own = options.stat_mode.stat(store, &RelPath::root())?;
        let mut walk = FileWalk::new(store, options, &own, files.as_deref_mut(), on_enter);
        walk.add(&RelPath::root(), &own);
        walk.walk_dir(store, &RelPath::root(), &RelPath::root(), 0)?;
        if !walk.dir_moved {
            return Ok(walk.finish());
        }
    }
    Err(Error::NotFound)
}

/// Lists the files in a worker's directory, entered as `store`, sorted by path, without a stat of
/// each file.
///
/// These are the files that `take_fingerprint` counts. Also returns the number of directories that
/// could not be listed.
pub fn list_files(store: &dyn Store) -> Result<(Vec<RelPath>, u64)> {
    let (mut files, mut unreadable) = (Vec::new(), 0);
    let mut folders = vec![(RelPath::root(), 0)];
    let mut entries_left = ENTRIES_MAX;
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
            if entries_left == 0 {
                unreadable += 1;
                break;
            }
            entries_left -= 1;
            let path = folder.join(&entry.name);
            match entry.kind {
                Kind::File => files.push(path),
                Kind::Folder if depth < DEPTH_MAX => folders.push((path, depth + 1)),
                Kind::Folder => unreadable += 1,
                Kind::Link | Kind::Special => {}
            }
        }
    }
    files.sort();
    Ok((files, unreadable))
}

/// Takes the fingerprint of a directory that is generated from `sources`.
///
/// The fingerprint follows from `sources` alone. A walk would generate every file, so it is made
/// only to fill `files`. ACLs are always read.
fn fingerprint_generated(
    store: &dyn Store,
    options: WalkOptions,
    sources: &[Meta],
    files: Option<&mut Vec<FileStat>>,
) -> Result<Fingerprint> {
    let own = match sources.first() {
        Some(first) => *first,
        None => store.stat(&RelPath::root())?,
    };
    let options = WalkOptions { stat_mode: StatMode::Full, ..options };
    let mut on_enter = |_: &dyn Store| {};
    let mut walk = FileWalk::new(store, options, &own, None, &mut on_enter);
    sources.iter().for_each(|meta| walk.add(&RelPath::root(), meta));
    let fingerprint = Fingerprint { files: 0, bytes: 0, ..walk.finish() };
    if files.is_none() {
        return Ok(fingerprint);
    }
    let walk = FileWalk::new(store, options, &own, files, &mut on_enter);
    let mut walk = FileWalk { is_generated: true, ..walk };
    walk.walk_dir(store, &RelPath::root(), &RelPath::root(), 0)?;
    Ok(Fingerprint { files: walk.fingerprint.files, bytes: walk.fingerprint.bytes, ..fingerprint })
}

struct FileWalk<'a> {
    root: &'a dyn Store,
    /// True if the directory is generated: its subdirectories cannot be entered.
    is_generated: bool,
    /// True if a directory was moved during the walk. Its contents may belong to another worker.
    dir_moved: bool,
    /// True if a later change could leave the ctime of an entry the same.
    has_recent_change: bool,
    options: WalkOptions,
    hash: blake3::Hasher,
    entries_left: u64,
    fingerprint: Fingerprint,
    files: Option<&'a mut Vec<FileStat>>,
    on_enter: OnEnter<'a>,
}

impl<'a> FileWalk<'a> {
    fn new(
        root: &'a dyn Store,
        options: WalkOptions,
        own: &Meta,
        files: Option<&'a mut Vec<FileStat>>,
        on_enter: OnEnter<'a>,
    ) -> FileWalk<'a> {
        let fingerprint = Fingerprint {
            key: [0; 16],
            version: [0; 16],
            newest_mtime: own.mtime,
            newest_ctime: own.ctime,
            files: 0,
            bytes: 0,
            skipped: Skipped::default(),
            access: Access::from_meta(own),
            has_acls: options.stat_mode == StatMode::Full,
        };
        FileWalk {
            root,
            is_generated: false,
            dir_moved: false,
            has_recent_change: false,
            options,
            hash: blake3::Hasher::new(),
            entries_left: ENTRIES_MAX,
            fingerprint,
            files,
            on_enter,
        }
    }

    fn finish(mut self) -> Fingerprint {
        let key = digest(&self.hash);
        if self.has_recent_change {
            let start =
                self.options.start.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            self.hash.update(&start.as_nanos().to_le_bytes());
        }
        Fingerprint { key, version: digest(&self.hash), ..self.fingerprint }
    }

    /// Walks the directory `dir` of `store`, which is at `path` in the worker's directory, `depth`
    /// levels below it.
    fn walk_dir(
        &mut self,
        store: &dyn Store,
        dir: &RelPath,
        path: &RelPath,
        depth: usize,
    ) -> Result<()> {
        let mut entries = store.list(dir)?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            if self.entries_left == 0 {
                self.fingerprint.skipped.unreadable += 1;
                return Ok(());
            }
            self.entries_left -= 1;
            let (entry_path, entry) = (path.join(&entry.name), dir.join(&entry.name));
            // Readers cannot open a longer path.
            let stat = if entry_path.as_bytes().len() < PATH_MAX {
                self.options.stat_mode.stat(store, &entry)
            } else {
                Err(Error::NameTooLong)
            };
            let meta = match stat {
                Ok(meta) => meta,
                Err(Error::NotFound) => continue,
                Err(Error::Escape) => {
                    self.fingerprint.skipped.special += 1;
                    continue;
                }
                Err(_) => {
                    self.fingerprint.skipped.unreadable += 1;
                    continue;
                }
            };
            self.add(&entry_path, &meta);
            let walked = match meta.kind {
                Kind::Folder if depth < DEPTH_MAX => {
                    self.enter_dir(store, &entry, &entry_path, depth + 1)
                }
                Kind::Folder => Err(Error::NameTooLong),
                _ => Ok(()),
            };
            if walked.is_err_and(|error| error != Error::NotFound) {
                self.fingerprint.skipped.unreadable += 1;
            }
        }
        Ok(())
    }

    fn enter_dir(
        &mut self,
        store: &dyn Store,
        dir: &RelPath,
        path: &RelPath,
        depth: usize,
    ) -> Result<()> {
        if self.is_generated {
            return self.walk_dir(store, dir, path, depth);
        }
        let entered = store.enter(dir)?;
        (self.on_enter)(&*entered);
        let walked = self.walk_dir(&*entered, &RelPath::root(), path, depth);
        match self.root.stat_without_acl(path) {
            Ok(current) if current.identity == entered.identity()? => {}
            Ok(_) => self.dir_moved = true,
            // A removed directory took its entries with it; only a moved one still has links.
            Err(error) if error.is_not_found() => {
                self.dir_moved |=
                    entered.stat_without_acl(&RelPath::root()).is_ok_and(|meta| meta.nlink > 0);
            }
            Err(error) => return Err(error),
        }
        walked
    }

    fn add(&mut self, path: &RelPath, meta: &Meta) {
        match meta.kind {
            Kind::Link => self.fingerprint.skipped.links += 1,
            Kind::Special => self.fingerprint.skipped.special += 1,
            Kind::File | Kind::Folder => {
                self.hash.update(path.as_bytes());
                self.hash.update(&[0]);
                self.hash.update(&meta.identity.ino.to_le_bytes());
                self.hash.update(&meta.size.to_le_bytes());
                for time in [meta.mtime, meta.ctime] {
                    self.hash.update(&(time.secs as u64).to_le_bytes());
                    self.hash.update(&u64::from(time.nanos).to_le_bytes());
                }
                self.has_recent_change |= !self.options.is_past_tick(meta.ctime);
                let fingerprint = &mut self.fingerprint;
                fingerprint.newest_mtime = fingerprint.newest_mtime.max(meta.mtime);
                fingerprint.newest_ctime = fingerprint.newest_ctime.max(meta.ctime);
                fingerprint.access = fingerprint.access.restrict_to(meta);
            }
        }
        if meta.kind == Kind::File {
            self.fingerprint.files += 1;
            self.fingerprint.bytes = self.fingerprint.bytes.saturating_add(meta.size);
            if let Some(files) = self.files.as_deref_mut() {
                let (path, bytes) = (path.clone(), meta.size);
                files.push(FileStat { path, bytes, mtime: meta.mtime, ctime: meta.ctime });
            }
        }
    }
}

#[derive(Clone)]
pub(super) struct CachedFingerprint {
    taken_at: Instant,
    /// Time when a fingerprint with this key was first taken.
    key_since: Instant,
    cost: Duration,
    pub(super) fingerprint: Arc<Fingerprint>,
    pub(super) is_watched: bool,
}

impl CachedFingerprint {
    /// Returns true if taking the fingerprint with `stat_mode` would add nothing.
    fn suffices(&self, stat_mode: StatMode) -> bool {
        self.fingerprint.has_acls || stat_mode == StatMode::WithoutAcl
    }
}

impl Catalog {
    /// Returns the fingerprint of a worker's files.
    ///
    /// It is at most as old as [`Freshness::unfinished`] if `closely` or if the worker is
    /// unfinished; otherwise as old as [`Freshness::finished`]. A fingerprint of watched files is
    /// always current.
    pub fn fingerprint(&self, entry: &Arc<Entry>, closely: bool) -> Result<Arc<Fingerprint>> {
        self.cached_or_taken(entry, closely, StatMode::Full)
    }

    /// Returns the same as [`Catalog::fingerprint`], but need not read ACLs, which takes most of
    /// the time. Use it only for the times and the state of files.
    pub fn fingerprint_without_acls(
        &self,
        entry: &Arc<Entry>,
        closely: bool,
    ) -> Result<Arc<Fingerprint>> {
        self.cached_or_taken(entry, closely, StatMode::WithoutAcl)
    }

    /// Returns true if [`Catalog::fingerprint_without_acls`] would read nothing.
    pub fn has_fresh_fingerprint(&self, entry: &Arc<Entry>, closely: bool) -> bool {
        self.fresh_fingerprint(entry, closely, StatMode::WithoutAcl).is_some()
    }

    fn cached_or_taken(
        &self,
        entry: &Arc<Entry>,
        closely: bool,
        stat_mode: StatMode,
    ) -> Result<Arc<Fingerprint>> {
        match self.fresh_fingerprint(entry, closely, stat_mode) {
            Some(fingerprint) => Ok(fingerprint),
            None => self.take_fingerprint(entry, stat_mode),
        }
    }

    fn fresh_fingerprint(
        &self,
        entry: &Arc<Entry>,
        closely: bool,
        stat_mode: StatMode,
    ) -> Option<Arc<Fingerprint>> {
        let cached = entry.check_state.lock().fingerprint.as_deref().cloned()?;
        if !cached.suffices(stat_mode) {
            return None;
        }
        // An unreadable file may have become readable.
        let may_change = cached.fingerprint.skipped.unreadable > 0
            || !cached.fingerprint.is_stable()
            || closely && !cached.is_watched;
        let fresh = if may_change { self.freshness.unfinished } else { self.max_age(entry) };
        let is_fresh = cached.taken_at.elapsed() < Freshness::max_age(fresh, cached.cost);
        is_fresh.then_some(cached.fingerprint)
    }

    pub fn fingerprint_now(&self, entry: &Arc<Entry>) -> Result<Arc<Fingerprint>> {
        self.take_fingerprint(entry, StatMode::Full)
    }

    /// Takes the fingerprint of a worker's files now. Reads ACLs only if they were read for
    /// `before`.
    pub fn fingerprint_again(
        &self,
        entry: &Arc<Entry>,
        before: &Fingerprint,
    ) -> Result<Arc<Fingerprint>> {
        let stat_mode = if before.has_acls { StatMode::Full } else { StatMode::WithoutAcl };
        self.take_fingerprint(entry, stat_mode)
    }

    fn take_fingerprint(
        &self,
        entry: &Arc<Entry>,
        stat_mode: StatMode,
    ) -> Result<Arc<Fingerprint>> {
        let (taken_at, start) = (Instant::now(), SystemTime::now());
        let (changed_at, cached) = {
            let state = entry.check_state.lock();
            (state.changed_at, state.fingerprint.as_deref().cloned())
        };
        let was_watched = cached.as_ref().is_some_and(|cached| cached.is_watched);
        let can_watch = self.source(entry).is_ok_and(Source::can_watch);
        let watcher =
            self.watcher.get().filter(|_| !was_watched && can_watch && self.is_settled(entry));
        let folder = self.folder(entry)?;
        let take = |stat_mode| -> Result<(Arc<Fingerprint>, bool)> {
            let (mut entered, mut watched) = (0_u32, 0);
            let options = self.walk_options(entry, stat_mode, start);
            let fingerprint = take_fingerprint(&*folder, options, None, &mut |dir| {
                entered += 1;
                watched +=
                    u32::from(watcher.is_some_and(|watcher| watcher.watch_finished(entry, dir)));
            })?;
            Ok((Arc::new(fingerprint), entered > 0 && entered == watched))
        };
        let known = cached.as_ref().map(|cached| &cached.fingerprint);
        let (mut fingerprint, is_watched) = match known.filter(|known| known.is_stable()) {
            // Reading ACLs is unnecessary if nothing changed.
            Some(known) if known.has_acls || stat_mode == StatMode::WithoutAcl => {
                let (taken, is_watched) = take(StatMode::WithoutAcl)?;
                match stat_mode {
                    _ if taken.matches_without_acl(known) => (known.clone(), is_watched),
                    StatMode::WithoutAcl => (taken, is_watched),
                    StatMode::Full => take(StatMode::Full)?,
                }
            }
            _ => take(stat_mode)?,
        };
        // A key that is unchanged for a full clock tick is stable, whichever clock set the ctimes.
        let same_key = cached.filter(|cached| cached.fingerprint.key == fingerprint.key);
        let key_since = same_key.map_or(taken_at, |cached| cached.key_since);
        if taken_at >= key_since + TICK_MAX {
            fingerprint = fingerprint.into_stable();
        }
        // Locked until the fingerprint is stored, so that a concurrent change invalidates it. A
        // directory that could not be entered is not watched.
        let mut state = entry.check_state.lock();
        let is_watched = (was_watched || is_watched)
            && fingerprint.skipped.unreadable == 0
            && state.changed_at == changed_at;
        // Data derived from an unstable version is usable while that version is fresh, also by
        // another thread that took the fingerprint at the same time. So the version of an earlier
        // fingerprint of the same state is kept.
        let fresh = state.fingerprint.as_ref().filter(|cached| {
            !cached.is_watched && cached.taken_at.elapsed() < self.freshness.unfinished
        });
        let same = fresh.filter(|cached| {
            !fingerprint.is_stable() && fingerprint.is_of_state(&cached.fingerprint)
        });
        if let Some(same) = same {
            if same.suffices(stat_mode) {
                return Ok(same.fingerprint.clone());
            }
            fingerprint = fingerprint.with_version(same.fingerprint.version);
        }
        let cost = taken_at.elapsed();
        let cached = CachedFingerprint {
            taken_at,
            key_since,
            cost,
            fingerprint: fingerprint.clone(),
            is_watched,
        };
        state.fingerprint = Some(Box::new(cached));
        Ok(fingerprint)
    }

    /// Returns at most `limit` files of a worker, sorted by path, and the fingerprint of all its
    /// files.
    pub fn files(&self, entry: &Entry, limit: usize) -> Result<(Vec<FileStat>, Fingerprint)> {
        let mut files = Vec::new();
        let options = self.walk_options(entry, StatMode::Full, SystemTime::now());
        let fingerprint =
            take_fingerprint(&*self.folder(entry)?, options, Some(&mut files), &mut |_| {})?;
        files.truncate(limit);
        Ok((files, fingerprint))
    }

    fn walk_options(&self, entry: &Entry, stat_mode: StatMode, start: SystemTime) -> WalkOptions {
        let is_local = self.source(entry).is_ok_and(Source::is_local);
        WalkOptions { stat_mode, start, is_local }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(mode: u32, uid: u32, gid: u32) -> Access {
        Access { mode, uid, gid }
    }

    /// Promise: A file that quotes several sources is readable only by users who may read all of
    /// them.
    #[test]
    fn quoting_file_is_readable_only_with_access_to_all_sources() {
        let all = access(0o444, 1, 1);
        assert_eq!(all.intersect(&access(0o440, 1, 1)).mode, 0o440);
        assert_eq!(all.intersect(&access(0o400, 1, 1)).mode, 0o400);
        assert_eq!(all.intersect(&access(0o400, 2, 1)).mode, 0o000);
        assert_eq!(all.intersect(&access(0o444, 2, 2)).mode, 0o444);
        assert_eq!(all.intersect(&access(0o440, 2, 1)).mode, 0o000);
    }
}
