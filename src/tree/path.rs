//! Paths in the tree, resolved from its root as the kernel resolves them in a mount.
//!
//! A path is bytes. It begins at the root, with a `/` or without, and never leads out of it: `..` of the root is the root.
//! What is behind a `/`, were it nothing or a `.`, must be in a folder. The doors that are no mount come in here.

use std::sync::Arc;

use rustix::io::Errno;

use super::{Attr, Ino, Item, NodeKind, Opened, ROOT, Tree};
use crate::error::{Error, Result};

/// So many links lead on at most, as in the kernel.
const LINKS_MAX: usize = 40;
/// How often it is looked again at what is replaced while it is looked at.
const TRIES: usize = 16;

/// What is done with a link at the end of a path; on the way every one is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// What it leads to is meant.
    Followed,
    /// It is meant itself.
    Kept,
}

/// What was looked up; the lookup is given back when this is dropped.
pub struct Held<'t> {
    tree: &'t Tree,
    name: Vec<u8>,
    /// Its inode number.
    pub ino: Ino,
    /// Its attributes, as the lookup found them.
    pub attr: Attr,
}

impl<'t> Held<'t> {
    /// Looks `name` up in a folder.
    fn find(tree: &'t Tree, folder: Ino, name: &[u8]) -> Result<Held<'t>> {
        let found = tree.lookup(folder, name)?;
        Ok(Held { tree, name: name.to_vec(), ino: found.ino, attr: found.attr })
    }

    /// Where it leads, of a link.
    pub fn target(&self) -> Result<Option<Vec<u8>>> {
        let is_link = self.attr.kind == NodeKind::Link;
        is_link.then(|| self.tree.read_link(self.ino)).transpose()
    }

    /// Its entries, sorted by name. What is no folder says so: the tree would say that it was replaced.
    pub fn listed(&self) -> Result<Arc<[Item]>> {
        if self.attr.kind == NodeKind::Folder { self.tree.listed(self.ino) } else { Err(Error::NotADirectory) }
    }

    /// Opens it for reading. A folder says that it is one: the tree would say that it was replaced.
    pub fn open(&self) -> Result<Opened> {
        if self.attr.kind == NodeKind::Folder { Err(Error::IsADirectory) } else { self.tree.open(self.ino) }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.tree.forget(self.ino, 1);
    }
}

/// What is at a path, and the folders that it is in.
pub struct Place<'t> {
    root: Held<'t>,
    below: Vec<Held<'t>>,
}

impl<'t> Place<'t> {
    /// Resolves `path`.
    fn find(tree: &'t Tree, path: &[u8], links: Links) -> Result<Place<'t>> {
        if path.is_empty() {
            return Err(Error::NotFound);
        }
        let (attr, _) = tree.attr(ROOT)?;
        let mut place = Place { root: Held { tree, name: b".".to_vec(), ino: ROOT, attr }, below: Vec::new() };
        // What is still to be gone, the next part last.
        let mut rest = parts(path);
        let mut followed = 0;
        while let Some(part) = rest.pop() {
            if place.last().attr.kind != NodeKind::Folder {
                return Err(Error::NotADirectory);
            }
            match part.as_slice() {
                b"" | b"." => {}
                b".." => drop(place.below.pop()),
                name => {
                    let next = Held::find(tree, place.last().ino, name)?;
                    match next.target()?.filter(|_| links == Links::Followed || !rest.is_empty()) {
                        None => place.below.push(next),
                        Some(_) if followed == LINKS_MAX => return Err(Error::Io(Errno::LOOP)),
                        Some(target) => {
                            followed += 1;
                            rest.extend(parts(&target));
                        }
                    }
                }
            }
        }
        Ok(place)
    }

    /// What is there.
    pub fn last(&self) -> &Held<'t> {
        self.below.last().unwrap_or(&self.root)
    }

    /// Where it is, links followed: from the root, which is `.`.
    pub fn path(&self) -> Vec<u8> {
        let names: Vec<&[u8]> = self.below.iter().map(|held| held.name.as_slice()).collect();
        if names.is_empty() { self.root.name.clone() } else { names.join(&b'/') }
    }
}

impl Tree {
    /// Does `read` with what is at `path`; again, where that was replaced in between. So `read` may print nothing.
    pub fn at<'t, T>(&'t self, path: &[u8], links: Links, mut read: impl FnMut(Place<'t>) -> Result<T>) -> Result<T> {
        unless_stale(|| read(Place::find(self, path, links)?))
    }

    /// Does `read` with the entry `name` of a folder that is held; again, where that was replaced in between.
    pub fn inside<'t, T>(&'t self, folder: Ino, name: &[u8], mut read: impl FnMut(Held<'t>) -> Result<T>) -> Result<T> {
        unless_stale(|| read(Held::find(self, folder, name)?))
    }

    /// The entries of a folder, sorted by name.
    pub fn listed(&self, folder: Ino) -> Result<Arc<[Item]>> {
        let opened = self.open_folder(folder)?.fh;
        let items = self.entries(folder, opened, super::Whence::Start);
        self.release(opened);
        Ok(items?.items)
    }
}

/// What is replaced while it is looked at is looked up anew, as the kernel does.
fn unless_stale<T>(mut once: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..TRIES {
        match once() {
            Err(Error::Stale) => {}
            done => return done,
        }
    }
    once()
}

/// The parts of a path, the first one last.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect()
}
