//! The mounted tree without a kernel: inodes, handles, attributes, listings and bytes.
//!
//! Inode policy. An inode number stands for a node of the namespace *and* for what is behind it: the bytes of a
//! generated file, the file of a worker on disk. New content of a generated file is therefore a new inode, so no cache
//! can mix two versions; a worker's file that was replaced is a new inode, and one that merely grew is the same. A
//! number is a hash of both and is never used for anything else. What `open` gives of a generated file is one version
//! until it is closed. Bytes of a version are held while a handle is open, else in a cache bounded by bytes; opening an
//! evicted version makes it again, and answers [`Error::Stale`] if its source has changed meanwhile, upon which the
//! kernel looks the name up again by itself. No descriptor is held for an inode, only for open files, and for a moment
//! for the few that are replaced faster than they are opened.
//!
//! Locks: `inodes`, `handles`, `listings` and `contended` are each held for a moment and never across a call downward. Two are held
//! only where a file is kept for a number or let go with it: `contended` within `inodes`.

mod attr;
mod by;
mod contended;
mod handle;
mod inode;
mod listings;
mod namespace;
mod node;
mod pace;
mod path;
mod versions;

use std::collections::HashSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use attr::{Attr, NodeKind};
pub use handle::{Entries, Item};
pub use inode::ROOT;
pub use pace::Pace;
pub use path::{Held, Links, Place};

pub use crate::render::Settings;

use crate::digest::digest;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::render::expand::{ExpandError, Expanded, Form};
use crate::render::{Budget, Renderer, Scope, compare, grep, output, search};
use crate::store::File;
use crate::view::View;
use attr::Ident;
use contended::Contended;
use handle::{Handle, Handles, Listing};
use inode::Inodes;
use listings::Listings;
use namespace::{Namespace, Told};
use node::Node;

/// For how long the kernel may believe what it was told of a worker's own file or of a folder.
const TTL: Duration = Duration::from_secs(1);
/// For how long it may believe what it was told of one version of a generated file, which never changes.
const TTL_VERSION: Duration = Duration::from_secs(3_600);

/// An inode number.
pub type Ino = u64;
/// The number of an open file or folder.
pub type Fh = u64;

/// What a lookup finds.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// The inode number.
    pub ino: Ino,
    /// Its attributes.
    pub attr: Attr,
    /// How long the name may be believed to lead there.
    pub name_ttl: Duration,
    /// How long the attributes may be believed.
    pub attr_ttl: Duration,
}

/// What an open gives.
#[derive(Debug, Clone, Copy)]
pub struct Opened {
    /// The handle.
    pub fh: Fh,
    /// Of a file of a worker's own that the kernel may read by itself, its size in bytes. Not of one whose size it was told
    /// otherwise: it would read more than stat tells.
    pub passable: Option<u64>,
    /// Whether what the kernel read before, of a file or of a folder, is still right.
    pub keep_cache: bool,
    /// Of a folder, whether the kernel may keep its entries.
    pub keep_entries: bool,
}

/// From where the entries of a folder are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    /// From the first.
    Start,
    /// From a place in those of this version.
    Within(u32),
}

impl Whence {
    fn is_in(self, entries: &Entries) -> bool {
        self == Whence::Start || self == Whence::Within(entries.version)
    }
}

/// The tree of one view.
pub struct Tree {
    namespace: Namespace,
    inodes: Mutex<Inodes>,
    handles: Mutex<Handles>,
    contended: Mutex<Contended>,
    listings: Mutex<Listings>,
}

impl Tree {
    /// The tree of `view`.
    pub fn new(view: View, settings: Settings) -> Tree {
        Tree {
            namespace: Namespace::new(Renderer::new(view, settings)),
            inodes: Mutex::new(Inodes::new()),
            handles: Mutex::new(Handles::default()),
            contended: Mutex::new(Contended::default()),
            listings: Mutex::default(),
        }
    }

    /// The folders on disk that reading the tree needs.
    pub fn roots(&self) -> Vec<BorrowedFd<'_>> {
        self.namespace.view().roots()
    }

    /// Whether by now other folders stand in the places of the stores.
    pub fn is_replaced(&self) -> bool {
        self.namespace.view().is_replaced()
    }

    /// Returns how many sessions were not read yet for the workers inside them: there may be more workers than are listed.
    pub fn unread_sessions(&self) -> usize {
        self.namespace.renderer().view().visible().unread.len()
    }

    /// Whether something is to be read on that was not read in time; see [`Tree::catch_up`]. Says so to
    /// one, until that is done.
    pub fn is_behind(&self) -> bool {
        self.namespace.is_behind()
    }

    /// Reads on for a moment what was not read in time. Whether there is more of it.
    pub fn catch_up(&self) -> bool {
        self.namespace.catch_up()
    }

    /// From now on workers are watched where that can be done, and [`Tree::changes`] is to be called for as long
    /// as anybody reads. How many folders may be. Errors: the system watches nothing for this process.
    pub fn watch(&self) -> Result<usize> {
        self.namespace.view().watch()
    }

    /// Waits for changes of workers that are watched, no longer than `limit`; these are looked at anew from now on. Which
    /// they are of those of which the kernel was told for long; `None` once `end` is readable or closed.
    pub fn changes(&self, end: BorrowedFd<'_>, limit: Option<Duration>) -> Result<Option<HashSet<Name>>> {
        self.namespace.view().changes(end, limit)
    }

    /// The inodes of these workers' folders and of all in them.
    pub fn inodes_of(&self, workers: &HashSet<Name>) -> Vec<Ino> {
        self.inodes.lock().those(|node| node.worker().is_some_and(|worker| workers.contains(worker)))
    }

    /// Finds `name` in the folder `parent`. Every success is one lookup more, to be given back by [`Tree::forget`].
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Found> {
        let parent = self.node(parent)?;
        let node = self.namespace.child(&parent, &name_of(name)?)?;
        let (contended, expired) = {
            let mut all = self.contended.lock();
            (all.contains(&node), all.expired())
        };
        drop(expired);
        let opened = if contended && node.generated().is_none() { self.opened_now(&node).ok() } else { None };
        let mut opened = opened.map(|(attr, file)| (attr, Handle::File(0, file)));
        let Told { attr, version, ttl } = match &opened {
            Some((attr, _)) => Told { attr: *attr, version: None, ttl: TTL },
            None => self.namespace.attr(&node)?,
        };
        if let Some(version) = version.as_ref().filter(|_| contended) {
            opened = self.namespace.bytes(&node, version).ok().map(|bytes| (attr, Handle::Bytes(bytes)));
        }
        let name_ttl = if version.is_some() { Duration::ZERO } else { ttl };
        let mut inodes = self.inodes.lock();
        let ino = inodes.look_up(node, attr.ident, version);
        inodes.told(ino, attr.signature(), ttl > TTL);
        let gone = opened.map(|(_, opened)| self.contended.lock().keep(ino, opened));
        drop(inodes);
        // Closed only when the locks are given back: the file system beneath may take its time.
        drop(gone);
        Ok(Found { ino, attr, name_ttl, attr_ttl: ttl })
    }

    /// Gives back `count` lookups; an inode without lookups is forgotten.
    pub fn forget(&self, ino: Ino, count: u64) {
        let mut inodes = self.inodes.lock();
        let kept = if inodes.forget(ino, count) { self.contended.lock().forget(ino) } else { None };
        drop(inodes);
        drop(kept);
    }

    /// The attributes of an inode, and how long they may be believed.
    pub fn attr(&self, ino: Ino) -> Result<(Attr, Duration)> {
        let slot = self.inodes.lock().get(ino)?;
        if let Some(version) = slot.version {
            return Ok((version.attr, TTL_VERSION));
        }
        let now = self.namespace.attr(&slot.node).and_then(|told| same(slot.ident, told.attr.ident).map(|()| told));
        let told: Result<(Attr, Duration)> = now.map(|told| (told.attr, told.ttl)).or_else(|error| {
            // Replaced or deleted on disk, a file lives on for those who hold it open.
            let held = self.handles.lock().file(ino);
            let looked_up = || if error == Error::Stale { self.looked_up(ino, slot.node) } else { None };
            let held = held.or_else(looked_up).ok_or(error)?;
            Ok((Attr::of_source(&held.meta()?), TTL))
        });
        let (attr, ttl) = told?;
        self.inodes.lock().told(ino, attr.signature(), ttl > TTL);
        Ok((attr, ttl))
    }

    /// Where a link leads, relative to the folder it is in.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.namespace.link_target(&self.node(ino)?)
    }

    /// The lines that match in the files that are at `ino`: of all workers, a run, a worker, or a file or folder of a
    /// worker's own. `None` where no worker's files are.
    pub fn grep(&self, ino: Ino, query: &grep::Query) -> Result<Option<grep::Answer>> {
        self.namespace.grep(&self.node(ino)?, query)
    }

    /// The passages that bear on words in the files that are at `ino`, as for [`Tree::grep`].
    pub fn search(&self, ino: Ino, query: &search::Query) -> Result<Option<search::Answer>> {
        self.namespace.search(&self.node(ino)?, query)
    }

    /// The same for these workers together. [`Error::NotFound`] if one of them is not in the view.
    pub fn grep_of(&self, workers: Arc<[Name]>, query: &grep::Query) -> Result<grep::Answer> {
        self.namespace.renderer().grep(&Scope::Workers(workers), query)
    }

    /// The passages that bear on words in the files of these workers together, as for [`Tree::grep_of`].
    pub fn search_of(&self, workers: Arc<[Name]>, query: &search::Query) -> Result<search::Answer> {
        self.namespace.renderer().search(&Scope::Workers(workers), query)
    }

    /// What workers share and where they differ.
    pub fn compare(&self, query: &compare::Query) -> Result<compare::Answer> {
        self.namespace.renderer().compare(query)
    }

    /// Copies a text with evidence behind every marker in it; see [`Renderer::expand`].
    pub fn expand(
        &self,
        form: Form,
        budget: Option<Budget>,
        input: impl io::Read,
        output: impl io::Write,
    ) -> Result<Expanded, ExpandError> {
        self.namespace.renderer().expand(form, budget, input, output)
    }

    /// Opens the output of a call, wherever it lies.
    pub fn open_output(&self, call: &output::Asked<'_>) -> Result<(output::Place, Option<Fh>)> {
        let (place, file) = self.namespace.renderer().output(call)?;
        // It was opened by no inode.
        Ok((place, file.map(|file| self.handles.lock().add(Handle::File(0, file.into())))))
    }

    /// Opens a file for reading.
    pub fn open(&self, ino: Ino) -> Result<Opened> {
        let slot = self.inodes.lock().get(ino)?;
        if let Some(version) = &slot.version {
            let kept = self.contended.lock().opened(ino);
            let bytes = match kept {
                Some(Handle::Bytes(bytes)) => Ok(bytes),
                _ => self.namespace.bytes(&slot.node, version),
            };
            if bytes.as_ref().err() == Some(&Error::Stale) {
                self.contended.lock().note(slot.node);
            }
            let bytes = bytes?;
            let fh = self.handles.lock().add(Handle::Bytes(bytes));
            return Ok(Opened { fh, passable: None, keep_cache: true, keep_entries: false });
        }
        // Another kind of thing by now: whoever looks it up again sees that.
        let replaced = |error| if error == Error::IsADirectory { Error::Stale } else { error };
        let mut file = self.open_now(&slot.node).map_err(replaced)?;
        let mut attr = Attr::of_source(&file.stat_without_acl()?);
        if attr.ident != slot.ident {
            file = self.looked_up(ino, slot.node).ok_or(Error::Stale)?;
            attr = Attr::of_source(&file.stat_without_acl()?);
        } else if self.inodes.lock().is_outdated(ino, attr.signature(), TTL) {
            // The kernel would read no further than the size it was told.
            self.contended.lock().note(slot.node);
            return Err(Error::Stale);
        }
        let (keep_cache, told) = {
            let (mut inodes, now) = (self.inodes.lock(), attr.signature());
            (inodes.opened(ino, now, Duration::MAX, attr.ctime.is_past_tick()), inodes.is_told(ino, now))
        };
        let fh = self.handles.lock().add(Handle::File(ino, file));
        Ok(Opened { fh, passable: told.then_some(attr.size), keep_cache, keep_entries: false })
    }

    /// From now on, [`Tree::backing`] opens files, where that can be done. Errors: why it cannot.
    pub fn pass_through(&self) -> Result<()> {
        self.namespace.view().pass_through()
    }

    /// Opens an open file of a worker's own once more, so that the kernel may read it by itself. `None` where that cannot
    /// be done.
    pub fn backing(&self, fh: Fh) -> Option<OwnedFd> {
        let Ok(Handle::File(ino, file)) = self.handles.lock().get(fh) else { return None };
        let Ok(Node::Own { worker, path }) = self.node(ino) else { return None };
        let view = self.namespace.view();
        view.backing(&*view.worker(&worker).ok()?, &path, &*file).ok()?
    }

    /// Reads from an open file: up to `size` bytes at `offset`, less only where the file ends.
    pub fn read<R>(&self, fh: Fh, offset: u64, size: usize, reply: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let handle = self.handles.lock().get(fh)?;
        match handle {
            Handle::Bytes(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let end = start.saturating_add(size).min(bytes.len());
                Ok(reply(bytes.get(start..end).unwrap_or_default()))
            }
            Handle::File(_, file) => Ok(reply(&crate::store::read_range(&*file, offset, size)?)),
            Handle::Folder(_) => Err(Error::IsADirectory),
        }
    }

    /// The size of an open file in bytes: that of what is read, now.
    pub fn size(&self, fh: Fh) -> Result<u64> {
        let handle = self.handles.lock().get(fh)?;
        match handle {
            Handle::Bytes(bytes) => Ok(bytes.len() as u64),
            Handle::File(_, file) => Ok(file.stat_without_acl()?.size),
            Handle::Folder(_) => Err(Error::IsADirectory),
        }
    }

    /// Opens a folder: its entries as they are now, or when they are first asked for where it lies in the store.
    pub fn open_folder(&self, ino: Ino) -> Result<Opened> {
        let slot = self.inodes.lock().get(ino)?;
        let replaced = |error| if error == Error::NotADirectory { Error::Stale } else { error };
        let stored = self.namespace.stored_folder(&slot.node).map_err(replaced)?;
        let (mut listing, mut keep_cache) = (Listing::default(), false);
        match stored {
            Some(folder) => {
                same(slot.ident, folder.ident)?;
                if let Some((state, most)) = folder.kept {
                    listing.kept = true;
                    keep_cache = self.inodes.lock().opened(ino, state, most, true);
                }
            }
            None => listing.entries = Some(Entries { items: self.items(ino)?.into(), version: 0 }),
        }
        let keep_entries = listing.kept;
        let fh = self.handles.lock().add(Handle::Folder(Arc::new(Mutex::new(listing))));
        Ok(Opened { fh, passable: None, keep_cache, keep_entries })
    }

    /// The entries of an open folder. From its start they are read anew, as rewinddir(3) wants it. Who reads on gives the
    /// version of what was read so far.
    pub fn entries(&self, ino: Ino, fh: Fh, whence: Whence) -> Result<Entries> {
        let Handle::Folder(held) = self.handles.lock().get(fh)? else { return Err(Error::NotADirectory) };
        let (known, kept) = {
            let mut listing = held.lock();
            let again = whence == Whence::Start && listing.given;
            listing.given = true;
            (listing.entries.clone().filter(|entries| !again && whence.is_in(entries)), listing.kept)
        };
        let known = known.or_else(|| match whence {
            Whence::Start => None,
            Whence::Within(version) => self.listings.lock().get(ino, version),
        });
        if let Some(entries) = known {
            return Ok(entries);
        }
        let items = self.items(ino)?;
        let entries = Entries { version: if kept { version_of(&items) } else { 0 }, items: items.into() };
        held.lock().entries = Some(entries.clone());
        if kept {
            self.listings.lock().keep(ino, entries.clone());
        }
        Ok(entries)
    }

    /// Closes a file or folder.
    pub fn release(&self, fh: Fh) {
        let held = self.handles.lock().remove(fh);
        // Closed only when the lock is given back: the file system beneath may take its time.
        drop(held);
    }

    /// How many inodes and handles are held, the root not counted.
    pub fn held(&self) -> (usize, usize) {
        let inodes = self.inodes.lock().len();
        (inodes, self.handles.lock().len())
    }

    /// The same with what it is.
    fn opened_now(&self, node: &Node) -> Result<(Attr, Arc<dyn File>)> {
        let file = self.open_now(node)?;
        Ok((Attr::of_source(&file.meta()?), file))
    }

    /// Opens the file of the store that a node leads to now.
    fn open_now(&self, node: &Node) -> Result<Arc<dyn File>> {
        self.namespace.open(node).map(Arc::from)
    }

    /// The file that a node led to when it was looked up, though another has taken its place.
    fn looked_up(&self, ino: Ino, node: Node) -> Option<Arc<dyn File>> {
        let mut contended = self.contended.lock();
        contended.note(node);
        match contended.opened(ino) {
            Some(Handle::File(_, file)) => Some(file),
            _ => None,
        }
    }

    fn items(&self, ino: Ino) -> Result<Vec<Item>> {
        let node = self.node(ino)?;
        let listed = self.namespace.list(&node)?;
        let inodes = self.inodes.lock();
        let number = |node: &Node| inodes.number(node, Ident::Fixed);
        Ok(listed.into_iter().map(|(name, node, kind)| Item { name, kind, ino: number(&node) }).collect())
    }

    fn node(&self, ino: Ino) -> Result<Node> {
        Ok(self.inodes.lock().get(ino)?.node)
    }
}

/// What cannot be a name is no name here: absent, like any other.
fn name_of(raw: &[u8]) -> Result<Name> {
    Name::new(raw).map_err(|error| if error == Error::NameTooLong { error } else { Error::NotFound })
}

/// A number of 31 bits that tells these entries from others; not 0.
fn version_of(items: &[Item]) -> u32 {
    let mut hash = blake3::Hasher::new();
    for item in items {
        hash.update(item.name.as_bytes()).update(&[0, item.kind as u8]);
    }
    (u32::from_le_bytes(digest(&hash)) & (u32::MAX >> 1)).max(1)
}

fn same(held: Ident, now: Ident) -> Result<()> {
    if held == now { Ok(()) } else { Err(Error::Stale) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Freshness, Source};
    use crate::name::RelPath;
    use crate::store::Memory;
    use crate::view::Filter;

    #[test]
    fn a_version_succeeded_between_every_lookup_and_open_is_opened_all_the_same() {
        let store = Arc::new(Memory::new());
        let write = |name: &str, text: &str| {
            store.write(&RelPath::parse(format!("workers/w/{name}")).unwrap(), text);
        };
        write("metadata.json", r#"{"status": "running"}"#);
        let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
        let view = View::over(vec![Source::from_store(store.clone(), None)], fresh, Filter::default()).unwrap();
        let tree = Tree::new(view, Settings::default());
        let look = || {
            let inside = |at: Ino, name: &str| tree.lookup(at, name.as_bytes()).unwrap();
            inside(inside(inside(ROOT, "workers").ino, "w").ino, "index.json")
        };
        // Its bytes are evicted and cannot be made again.
        let succeed = |number: u32| {
            write(&format!("tool_calls/{number:03}_sh.txt"), "output");
            tree.namespace.evict();
        };
        let first = look();
        succeed(1);
        assert_eq!(tree.open(first.ino).err(), Some(Error::Stale), "what was succeeded is looked up again");
        for number in 2..5 {
            let found = look();
            succeed(number);
            let opened = tree.open(found.ino).unwrap();
            assert_eq!(tree.read(opened.fh, 0, 1 << 20, <[u8]>::len).unwrap() as u64, found.attr.size);
        }
    }
}
