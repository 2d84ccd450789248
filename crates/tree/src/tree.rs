//! The mounted tree without a kernel: inodes, handles, attributes, directory listings and bytes.
//!
//! # Inodes
//!
//! An inode number identifies a node of the namespace together with its content: the bytes of a
//! generated file, or a worker's file on disk. New bytes of a generated file get a new inode, so no
//! cache can mix two versions. A worker's file that was replaced gets a new inode; one that only
//! grew keeps its inode. A number is a hash of node and content and is never reused for anything
//! else.
//!
//! Opening a generated file pins one version until the handle is closed. The bytes of a version
//! stay in memory while a handle is open, and otherwise in a cache bounded by bytes. Opening an
//! evicted version renders it again. If its sources have changed meanwhile, the open fails with
//! [`Error::Stale`], and the kernel repeats the lookup by itself.
//!
//! Inodes hold no descriptors. Only open files do, and for a moment the few files that are replaced
//! faster than they are opened (see `PinnedOpens`).
//!
//! # Locks
//!
//! `inodes`, `handles`, `dir_cache` and `pinned_opens` are each held briefly and never across a
//! call into a lower layer. Only `pinned_opens` is ever locked while another lock, `inodes`, is
//! held: to pin a file under an inode number or to unpin it together with the inode.

mod dir_cache;
mod handle;
mod inode;
mod namespace;
mod node;
mod path;
mod read_ahead;
mod versions;

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

pub use handle::{DirListing, DirPosition, ListedEntry};
pub use inode::{InoRange, ROOT};
pub use node::{Attr, NodeKind, RequestClass};
pub use path::{LookupGuard, ResolvedPath, Symlinks};
pub use read_ahead::warm_up;

pub use crate::analysis::settings::Settings;
pub use crate::view::WorkerLocation;

use crate::render::Renderer;
use crate::route::ContentKind;
use crate::view::View;
use dir_cache::{CurrentKey, DirCache, ListingHash};
use handle::{Handle, Handles, PinnedOpens};
use inode::Inodes;
use namespace::{AttrReply, Namespace};
use node::{ContentId, FacetPath, Node};
use read_ahead::ReadAhead;
use swarmletfs_base::digest::digest;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::Name;
use swarmletfs_base::split::Split;
use swarmletfs_base::store::File;

/// Time for which the kernel may cache a name or attributes of a worker's file or of a directory.
const TTL: Duration = Duration::from_secs(1);
/// Time since the last change of a file after which it is expected to stay as it is.
const SETTLED: Duration = Duration::from_secs(3_600);
/// Time for which the kernel may cache attributes of one version of a generated file. A version
/// never changes.
const TTL_VERSION: Duration = Duration::from_secs(3_600);

/// Most directories of workers, or of groups of workers, that are looked up for a listing of them.
/// This bounds the cost of a listing for a reader that enters none of them.
const LOOKED_UP_MAX: usize = 2_000;

pub type Ino = u64;
/// Number of an open file.
pub type Fh = u64;

#[derive(Debug, Clone, Copy)]
pub struct Lookup {
    pub ino: Ino,
    pub attr: Attr,
    pub name_ttl: Duration,
    pub attr_ttl: Duration,
}

#[derive(Debug, Clone, Copy)]
pub struct Opened {
    pub fh: Fh,
    /// Size in bytes of a worker's file that the kernel may read directly (FUSE passthrough).
    /// `None` if the kernel last received another size: it would read past the size that stat
    /// reports.
    pub passthrough_size: Option<u64>,
    pub cache: PageCache,
}

/// What the kernel does with the pages of a file that this program reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageCache {
    /// Reads the pages that it has.
    Keep,
    /// Drops the pages that it has, and fills new ones.
    Refill,
    /// Has none, and asks for each read. A file may be growing, and the kernel would show the rest
    /// of its last page as zeros for a moment after each new size.
    Bypass,
}

pub struct Tree {
    namespace: Namespace,
    inodes: Arc<Mutex<Inodes>>,
    handles: Arc<Mutex<Handles>>,
    pinned_opens: Arc<Mutex<PinnedOpens>>,
    dir_cache: Arc<Mutex<DirCache>>,
    read_ahead: ReadAhead,
    root: Ino,
    /// The user who owns all files and directories, and reads them all. `None` to show owners and
    /// permissions as they are in the stores.
    reader: Option<FileOwner>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileOwner {
    pub uid: u32,
    pub gid: u32,
}

impl Tree {
    pub fn new(view: View, settings: Settings) -> Tree {
        Tree::of_reader(view, settings, InoRange::ALL, None)
    }

    /// Creates the tree of `view`, with inode numbers in `numbers`. If `reader` is given, all of it
    /// belongs to that user, who alone can read it.
    pub fn of_reader(
        view: View,
        settings: Settings,
        numbers: InoRange,
        reader: Option<FileOwner>,
    ) -> Tree {
        Tree {
            namespace: Namespace::new(Renderer::new(view, settings)),
            inodes: Arc::new(Mutex::new(Inodes::new(numbers))),
            handles: Arc::default(),
            pinned_opens: Arc::default(),
            dir_cache: Arc::default(),
            read_ahead: ReadAhead::default(),
            root: numbers.root(),
            reader,
        }
    }

    /// Creates the tree of another view of this tree's mount. Inodes and handles are shared: their
    /// numbers lead to the same workers in both trees, and open files stay open.
    pub fn with_view(&self, view: View) -> Tree {
        let renderer = self.namespace.renderer();
        let view = view.keeping_names_of(renderer.view());
        Tree {
            namespace: Namespace::new(renderer.with_view(view)),
            inodes: self.inodes.clone(),
            handles: self.handles.clone(),
            pinned_opens: self.pinned_opens.clone(),
            dir_cache: self.dir_cache.clone(),
            read_ahead: ReadAhead::default(),
            root: self.root,
            reader: self.reader,
        }
    }

    pub fn root(&self) -> Ino {
        self.root
    }

    pub fn view(&self) -> &View {
        self.namespace.view()
    }

    pub fn renderer(&self) -> &Renderer {
        self.namespace.renderer()
    }

    /// Reads the stores and the worker `id` again, so that later requests see the writes of this
    /// process.
    pub fn refresh(&self, id: &Name) {
        let view = self.namespace.view();
        if let Some(member) = view.visible_now().get(id) {
            // A worker that was removed meanwhile is not found later, either.
            drop(view.worker_now(&member));
        }
    }

    /// Claims the pending work that a render skipped for lack of time; see [`Tree::backfill`].
    /// Returns true for one caller only until that work is done.
    pub fn claim_backfill(&self) -> bool {
        self.namespace.analyzer().claim_backfill()
    }

    /// Does a short slice of the pending work. Returns true if more is left.
    pub fn backfill(&self) -> bool {
        self.namespace.analyzer().backfill()
    }

    /// Returns the inodes of the directories of the workers at `locations` and of all files in
    /// them.
    pub fn worker_inodes(&self, locations: &HashSet<WorkerLocation>) -> Vec<Ino> {
        let workers = self.namespace.view().names_at(locations);
        self.inodes
            .lock()
            .inodes_matching(|node| node.worker().is_some_and(|worker| workers.contains(worker)))
    }

    pub fn inodes(&self) -> Vec<Ino> {
        self.inodes.lock().numbers()
    }

    /// Looks up `name` in the directory `parent`. Each success adds one lookup, which the caller
    /// must give back with [`Tree::forget`].
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Lookup> {
        self.look_up_node(self.child(parent, name)?)
    }

    /// Looks up `name` like [`Tree::lookup`] for a reader that is followed; see
    /// [`Tree::claim_read_ahead`].
    pub fn lookup_for_reader(&self, parent: Ino, name: &[u8]) -> Result<Lookup> {
        let node = self.child(parent, name)?;
        self.note_lookup(&node);
        self.look_up_node(node)
    }

    fn child(&self, parent: Ino, name: &[u8]) -> Result<Node> {
        self.namespace.child(&self.node(parent)?, &parse_name(name)?)
    }

    fn look_up_node(&self, node: Node) -> Result<Lookup> {
        let (is_contended, expired) = {
            let mut pinned_opens = self.pinned_opens.lock();
            (pinned_opens.was_stale(&node), pinned_opens.expired())
        };
        drop(expired);
        let opened = if is_contended && node.document().is_none() {
            self.open_with_attr(&node).ok()
        } else {
            None
        };
        let mut opened = opened.map(|(attr, file)| (attr, Handle::File(None, file)));
        let AttrReply { attr, version, ttl } = match &opened {
            Some((attr, _)) => AttrReply { attr: *attr, version: None, ttl: TTL },
            None => self.namespace.attr(&node)?,
        };
        if let Some(version) = version.as_ref().filter(|_| is_contended) {
            opened =
                self.namespace.bytes(&node, version).ok().map(|bytes| (attr, Handle::Bytes(bytes)));
        }
        let name_ttl = if version.is_some() { Duration::ZERO } else { ttl };
        let shown = if attr.kind == NodeKind::Folder {
            let number = self.inodes.lock().number(&node, attr.content_id);
            self.with_listing_time(number, &node, attr)
        } else {
            attr
        };
        let mut inodes = self.inodes.lock();
        let ino = inodes.look_up(node, attr.content_id, version);
        inodes.record_reported(ino, attr.signature(), ttl);
        let evicted = opened.map(|(_, opened)| self.pinned_opens.lock().pin(ino, opened));
        drop(inodes);
        // Dropped after the locks are released: closing may be slow on the underlying file system.
        drop(evicted);
        Ok(Lookup { ino, attr: self.shown_attr(shown), name_ttl, attr_ttl: ttl })
    }

    /// Looks up an entry of the listing of `folder` like [`Tree::lookup`], if that costs no more
    /// than a stat and the reader may need it: a reader that does not read attributes needs only
    /// directories, which it enters. `at` is the position in the listing. Far into a long listing
    /// of workers or of groups, only a reader of attributes gets some.
    pub fn look_up_listed(
        &self,
        folder: Ino,
        entry: &ListedEntry,
        at: usize,
        reads_attrs: bool,
    ) -> Option<Lookup> {
        if !reads_attrs && entry.kind != NodeKind::Folder {
            return None;
        }
        let parent = self.node(folder).ok()?;
        let is_wanted = reads_attrs || at < LOOKED_UP_MAX || parent.has_stored_entries();
        if !is_wanted || !parent.has_cheap_entries() || self.view().has_virtual_folders() {
            return None;
        }
        if let Node::Facet(FacetPath::Facet(_, facet)) = &parent
            && !self.namespace.analyzer().is_cheap_value(*facet, &entry.name)
        {
            return None;
        }
        let node = self.namespace.child(&parent, &entry.name).ok()?;
        let is_cheap = match &node {
            Node::WorkerPath { .. }
            | Node::Supervisor(_)
            | Node::Facet(FacetPath::Selection(_)) => true,
            Node::Worker(worker)
            | Node::RunWorker(_, worker)
            | Node::Child(_, worker)
            | Node::Original(_, worker)
            | Node::Facet(FacetPath::Worker(_, worker)) => {
                self.namespace.view().has_fresh_fingerprint(worker)
            }
            _ => false,
        };
        if is_cheap { self.look_up_node(node).ok() } else { None }
    }

    pub fn count_listed(&self, ino: Ino) {
        self.inodes.lock().count_listed(ino);
    }

    /// Gives back `count` lookups. An inode without lookups is removed.
    pub fn forget(&self, ino: Ino, count: u64) {
        let mut inodes = self.inodes.lock();
        let unpinned =
            if inodes.forget(ino, count) { self.pinned_opens.lock().unpin(ino) } else { None };
        drop(inodes);
        drop(unpinned);
    }

    pub fn is_known(&self, ino: Ino) -> bool {
        self.inodes.lock().get(ino).is_ok()
    }

    /// Returns the kind of content of a file, for the log of reads.
    pub fn content_kind(&self, ino: Ino) -> Result<ContentKind> {
        Ok(self.node(ino)?.content_kind())
    }

    /// Returns the attributes of an inode, and the time for which they may be cached.
    pub fn attr(&self, ino: Ino) -> Result<(Attr, Duration)> {
        let entry = self.inodes.lock().get(ino)?;
        if let Some(version) = entry.version {
            return Ok((self.shown_attr(version.attr), TTL_VERSION));
        }
        let current = self.namespace.attr(&entry.node).and_then(|reply| {
            check_unchanged(entry.content_id, reply.attr.content_id)?;
            Ok(reply)
        });
        let (attr, ttl) = match current {
            Ok(reply) => (reply.attr, reply.ttl),
            Err(error) => {
                // A file replaced or deleted on disk stays readable through its open handles.
                let mut file = self.handles.lock().file(ino);
                if file.is_none() && error == Error::Stale {
                    file = self.pinned_file(ino, entry.node.clone());
                }
                (Attr::from_meta(&file.ok_or(error)?.meta()?), TTL)
            }
        };
        self.inodes.lock().record_reported(ino, attr.signature(), ttl);
        let attr = self.with_listing_time(ino, &entry.node, attr);
        Ok((self.shown_attr(attr), ttl))
    }

    fn shown_attr(&self, attr: Attr) -> Attr {
        self.reader.map_or(attr, |reader| attr.readable_only_by(reader))
    }

    /// Returns the target of a symlink, relative to the directory that contains it.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.namespace.link_target(&self.node(ino)?)
    }

    pub fn open(&self, ino: Ino) -> Result<Opened> {
        let entry = self.inodes.lock().get(ino)?;
        if let Some(version) = &entry.version {
            let pinned = self.pinned_opens.lock().get(ino);
            let bytes = match pinned {
                Some(Handle::Bytes(bytes)) => Ok(bytes),
                _ => self.namespace.bytes(&entry.node, version),
            };
            if bytes.as_ref().err() == Some(&Error::Stale) {
                self.pinned_opens.lock().note_stale(entry.node);
            }
            let bytes = bytes?;
            let fh = self.handles.lock().add(Handle::Bytes(bytes));
            return Ok(Opened { fh, passthrough_size: None, cache: PageCache::Keep });
        }
        // The kernel repeats the lookup and then receives the new kind.
        let mut file = self
            .open_current(&entry.node)
            .map_err(|error| if error == Error::IsADirectory { Error::Stale } else { error })?;
        let mut attr = Attr::from_meta(&file.stat_without_acl()?);
        if attr.content_id != entry.content_id {
            file = self.pinned_file(ino, entry.node).ok_or(Error::Stale)?;
            attr = Attr::from_meta(&file.stat_without_acl()?);
        } else if self.inodes.lock().is_outdated(ino, attr.signature(), TTL) {
            // The kernel would read no further than the size that it last received.
            self.pinned_opens.lock().note_stale(entry.node);
            return Err(Error::Stale);
        }
        let (is_valid, is_reported) = {
            let (mut inodes, signature) = (self.inodes.lock(), attr.signature());
            let is_valid = inodes.record_open(ino, signature, attr.ctime.is_past_tick());
            (is_valid, inodes.matches_reported(ino, signature))
        };
        let age = SystemTime::now().duration_since(attr.ctime.to_system());
        let cache = match is_valid {
            _ if !age.is_ok_and(|age| age >= SETTLED) => PageCache::Bypass,
            true => PageCache::Keep,
            false => PageCache::Refill,
        };
        let fh = self.handles.lock().add(Handle::File(Some(ino), file));
        Ok(Opened { fh, passthrough_size: is_reported.then_some(attr.size), cache })
    }

    /// Opens a worker's file, which is open as `fh`, a second time for FUSE passthrough. Returns
    /// `None` if that is not possible.
    pub fn backing(&self, fh: Fh) -> Option<OwnedFd> {
        let Ok(Handle::File(Some(ino), file)) = self.handles.lock().get(fh) else { return None };
        let Ok(Node::WorkerPath { worker, path }) = self.node(ino) else { return None };
        let view = self.namespace.view();
        view.backing(&*view.worker(&worker).ok()?, &path, &*file).ok()?
    }

    /// Reads up to `size` bytes at `offset`, and fewer only at the end of the file. Returns the
    /// result of `reply`, which receives the bytes.
    pub fn read<R>(
        &self,
        fh: Fh,
        offset: u64,
        size: usize,
        reply: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let handle = self.handles.lock().get(fh)?;
        match handle {
            Handle::Bytes(bytes) => {
                let offset = usize::try_from(offset).unwrap_or(usize::MAX);
                Ok(reply(bytes.split_at_most(offset).1.split_at_most(size).0))
            }
            Handle::File(_, file) => {
                Ok(reply(&swarmletfs_base::store::read_range(&*file, offset, size)?))
            }
        }
    }

    /// Returns the size that the kernel may hold of a worker's own file, which is open as `fh`.
    pub fn reported_size(&self, fh: Fh) -> Option<u64> {
        let Ok(Handle::File(Some(ino), _)) = self.handles.lock().get(fh) else { return None };
        self.inodes.lock().reported_size(ino)
    }

    pub fn size(&self, fh: Fh) -> Result<u64> {
        let handle = self.handles.lock().get(fh)?;
        match handle {
            Handle::Bytes(bytes) => Ok(bytes.len() as u64),
            Handle::File(_, file) => Ok(file.stat_without_acl()?.size),
        }
    }

    /// Returns a listing of a directory, and the number of its entries before `position`. It is the
    /// current listing or the one that the reader continues.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] if the directory has changed, and too much was listed meanwhile to know
    /// where to continue.
    pub fn entries(&self, ino: Ino, position: DirPosition) -> Result<(DirListing, usize)> {
        let node = self.node(ino)?;
        let (version, count) = match position {
            DirPosition::Start => return Ok((self.list_from_start(ino, &node)?, 0)),
            DirPosition::After(version, count) => (version, count),
        };
        let cached = self.dir_cache.lock().get(ino, version);
        let listing = match cached {
            Some(listing) => listing,
            None => self.current_listing(ino, &node)?,
        };
        if listing.version == version {
            return Ok((listing, count));
        }
        let past = self.dir_cache.lock().past(ino, version).ok_or(Error::Stale)?;
        let before = past.position_in(&listing.items, count);
        Ok((listing, before))
    }

    fn list_from_start(&self, ino: Ino, node: &Node) -> Result<DirListing> {
        // Before the entries, so that it does not stand for older ones.
        let key = self.namespace.listing_key(node)?;
        let (listing, hash) = self.list(ino, node)?;
        self.inodes.lock().note_listed(ino, hash, key.map(|(key, _)| key));
        Ok(listing)
    }

    fn current_listing(&self, ino: Ino, node: &Node) -> Result<DirListing> {
        let key = self.namespace.listing_key(node)?;
        let known = self.known_listing_hash(ino, key);
        let cached = known.and_then(|hash| self.dir_cache.lock().get(ino, listing_version(hash)));
        if let Some(listing) = cached {
            return Ok(listing);
        }
        let (listing, hash) = self.list(ino, node)?;
        self.note_listing_key(ino, key, hash);
        Ok(listing)
    }

    /// Returns the hash of a directory's listing, if `key` shows that the listing is unchanged.
    fn known_listing_hash(&self, ino: Ino, key: Option<CurrentKey>) -> Option<ListingHash> {
        let (key, max_age) = key?;
        self.inodes.lock().listing_hash(ino, key, max_age)
    }

    /// Records the hash of a directory's listing, which is valid as long as the directory has this
    /// `key`.
    fn note_listing_key(&self, ino: Ino, key: Option<CurrentKey>, hash: ListingHash) {
        if let Some((key, _)) = key {
            self.inodes.lock().note_key(ino, key, hash);
        }
    }

    fn list(&self, ino: Ino, node: &Node) -> Result<(DirListing, ListingHash)> {
        // A file has replaced the directory.
        let stale = |error| if error == Error::NotADirectory { Error::Stale } else { error };
        let items = self.list_items(node).map_err(stale)?;
        let hash = listing_hash(&items);
        let listing = DirListing { items: items.into(), version: listing_version(hash) };
        self.dir_cache.lock().insert(ino, listing.clone());
        Ok((listing, hash))
    }

    /// Returns the attributes of a directory with the mtime by which the kernel validates its
    /// cached entries. Attributes of other nodes are returned unchanged.
    fn with_listing_time(&self, ino: Ino, node: &Node, attr: Attr) -> Attr {
        if attr.kind != NodeKind::Folder || !self.inodes.lock().is_listed(ino) {
            return attr;
        }
        // A directory that cannot be listed is read again, which reports the error.
        let hash = self.current_listing_hash(ino, node).ok();
        Attr { mtime: self.inodes.lock().listing_time(ino, attr.mtime, hash), ..attr }
    }

    fn current_listing_hash(&self, ino: Ino, node: &Node) -> Result<ListingHash> {
        let key = self.namespace.listing_key(node)?;
        if let Some(hash) = self.known_listing_hash(ino, key) {
            return Ok(hash);
        }
        let hash = listing_hash(&self.list_items(node)?);
        self.note_listing_key(ino, key, hash);
        Ok(hash)
    }

    pub fn release(&self, fh: Fh) {
        let handle = self.handles.lock().remove(fh);
        // Dropped after the lock is released: closing may be slow on the underlying file system.
        drop(handle);
    }

    /// Returns the numbers of known inodes, without the root, and of open handles.
    pub fn open_counts(&self) -> (usize, usize) {
        let inodes = self.inodes.lock().len();
        (inodes, self.handles.lock().len())
    }

    fn open_with_attr(&self, node: &Node) -> Result<(Attr, Arc<dyn File>)> {
        let file = self.open_current(node)?;
        Ok((Attr::from_meta(&file.meta()?), file))
    }

    fn open_current(&self, node: &Node) -> Result<Arc<dyn File>> {
        self.namespace.open(node).map(Arc::from)
    }

    /// Returns the file that the last lookup of `ino` pinned, if any, and notes that `node` is
    /// replaced often.
    fn pinned_file(&self, ino: Ino, node: Node) -> Option<Arc<dyn File>> {
        let mut pinned_opens = self.pinned_opens.lock();
        pinned_opens.note_stale(node);
        match pinned_opens.get(ino) {
            Some(Handle::File(_, file)) => Some(file),
            _ => None,
        }
    }

    fn list_items(&self, node: &Node) -> Result<Vec<ListedEntry>> {
        let listed = self.namespace.list(node)?;
        let inodes = self.inodes.lock();
        let entries = listed.into_iter().map(|(name, node, kind)| {
            let ino = inodes.number(&node, ContentId::Fixed);
            ListedEntry { name, kind, ino }
        });
        Ok(entries.collect())
    }

    /// Returns the name in a directory of workers of the only worker whose name begins with `id`.
    ///
    /// # Errors
    /// [`Error::NotFound`] for any other directory; any error of [`VisibleWorkers::find`].
    ///
    /// [`VisibleWorkers::find`]: crate::view::VisibleWorkers::find
    fn complete_id(&self, folder: Ino, id: &[u8]) -> Result<Name> {
        self.namespace.complete_id(&self.node(folder)?, &parse_name(id)?)
    }

    fn node(&self, ino: Ino) -> Result<Node> {
        Ok(self.inodes.lock().get(ino)?.node)
    }
}

/// Parses a name of a request. An invalid name is reported as absent, since no file can have it.
fn parse_name(raw: &[u8]) -> Result<Name> {
    Name::new(raw)
        .map_err(|error| if error == Error::NameTooLong { error } else { Error::NotFound })
}

fn listing_hash(items: &[ListedEntry]) -> ListingHash {
    let mut hash = blake3::Hasher::new();
    for item in items {
        hash.update(item.name.as_bytes()).update(&[0, item.kind as u8]);
    }
    ListingHash::from_le_bytes(digest(&hash))
}

/// Returns the version number of the listing with this hash. It has 31 bits, since an offset of
/// readdir is signed.
fn listing_version(hash: ListingHash) -> NonZeroU32 {
    NonZeroU32::new((hash >> 33) as u32).unwrap_or(NonZeroU32::MIN)
}

/// Fails with [`Error::Stale`] if the content behind a node was replaced.
fn check_unchanged(known: ContentId, current: ContentId) -> Result<()> {
    if known == current { Ok(()) } else { Err(Error::Stale) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Freshness, Source};
    use crate::view::Filter;
    use swarmletfs_base::name::RelPath;
    use swarmletfs_base::store::Memory;

    fn store(ids: &[&str]) -> Arc<Memory> {
        let store = Arc::new(Memory::new());
        for id in ids {
            let at = |name: &str| RelPath::parse(format!("workers/{id}/{name}")).unwrap();
            store.write(&at("metadata.json"), "{}");
            store.write(&at("task.txt"), format!("{id} of {ids:?}"));
        }
        store
    }

    /// Looks up a path and returns the last inode.
    fn look_up(tree: &Tree, path: &str) -> Result<Ino> {
        let names = path.split('/');
        names
            .into_iter()
            .try_fold(tree.root(), |at, name| Ok(tree.lookup(at, name.as_bytes())?.ino))
    }

    #[test]
    fn a_tree_of_other_stores_has_the_same_inodes_handles_and_names() {
        let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
        let (one, two) = (store(&["a", "b"]), store(&["a"]));
        let view = |stores: &[&Arc<Memory>]| {
            let open = |store: &&Arc<Memory>| Source::from_store((*store).clone(), None);
            View::new(stores.iter().map(open).collect(), fresh, Filter::default()).unwrap()
        };
        let first = Tree::new(view(&[&one]), Settings::default());
        let task = look_up(&first, "workers/a/task.txt").unwrap();
        let summary = look_up(&first, "workers/a/summary").unwrap();
        let opened = first.open(summary).unwrap();
        let bytes = first.read(opened.fh, 0, 1 << 20, <[u8]>::to_vec).unwrap();

        let both = first.with_view(view(&[&one, &two]));
        assert_eq!(look_up(&both, "workers/a/task.txt").unwrap(), task);
        let other = look_up(&both, "workers/a~2/task.txt").unwrap();
        assert_ne!(other, task);
        assert_eq!(both.read(opened.fh, 0, 1 << 20, <[u8]>::to_vec).unwrap(), bytes);

        let second = both.with_view(view(&[&two]));
        assert_eq!(look_up(&second, "workers/a~2/task.txt").unwrap(), other, "the name stays");
        assert_eq!(look_up(&second, "workers/a").err(), Some(Error::NotFound));
        assert_eq!(second.attr(task).err(), Some(Error::NotFound));
        assert_eq!(second.read(opened.fh, 0, 1 << 20, <[u8]>::to_vec).unwrap(), bytes);
        second.release(opened.fh);
        assert_eq!(first.open_counts().1, 0);
    }

    /// Promise: A file opens even if a newer version replaces it between lookup and open.
    #[test]
    fn open_succeeds_if_a_newer_version_follows_each_lookup() {
        let store = Arc::new(Memory::new());
        let write = |name: &str, text: &str| {
            store.write(&RelPath::parse(format!("workers/w/{name}")).unwrap(), text);
        };
        write("metadata.json", r#"{"status": "running"}"#);
        let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
        let view =
            View::new(vec![Source::from_store(store.clone(), None)], fresh, Filter::default())
                .unwrap();
        let tree = Tree::new(view, Settings::default());
        let look_up = || {
            let inside = |at: Ino, name: &str| tree.lookup(at, name.as_bytes()).unwrap();
            inside(inside(inside(ROOT, "workers").ino, "w").ino, "index.json")
        };
        // The bytes are evicted, and cannot be rendered again once the sources have changed.
        let replace = |number: u32| {
            write(&format!("tool_calls/{number:03}_sh.txt"), "output");
            tree.namespace.evict();
        };
        let first = look_up();
        replace(1);
        assert_eq!(
            tree.open(first.ino).err(),
            Some(Error::Stale),
            "the kernel looks up a replaced version again"
        );
        for number in 2..5 {
            let found = look_up();
            replace(number);
            let opened = tree.open(found.ino).unwrap();
            assert_eq!(
                tree.read(opened.fh, 0, 1 << 20, <[u8]>::len).unwrap() as u64,
                found.attr.size
            );
        }
    }
}
