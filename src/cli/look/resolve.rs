//! Paths in the tree, resolved from its root as the kernel resolves them in a mount.
//!
//! A path is bytes. It begins at the root, with a `/` or without, and never leads out of it: `..` of the root is the root.
//! What is behind a `/`, were it nothing or a `.`, must be in a folder.

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::tree::{Attr, Ino, NodeKind, ROOT, Tree};

/// So many links lead on at most, as in the kernel.
const LINKS_MAX: usize = 40;

/// What is done with a link at the end of a path; on the way every one is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Links {
    /// What it leads to is meant.
    Followed,
    /// It is meant itself.
    Kept,
}

/// What was looked up; the lookup is given back when this is dropped.
pub(in crate::cli) struct Held<'t> {
    tree: &'t Tree,
    name: Vec<u8>,
    pub(in crate::cli) ino: Ino,
    pub(in crate::cli) attr: Attr,
}

impl<'t> Held<'t> {
    /// Looks `name` up in a folder.
    pub(in crate::cli) fn find(tree: &'t Tree, folder: Ino, name: &[u8]) -> Result<Held<'t>> {
        let found = tree.lookup(folder, name)?;
        Ok(Held { tree, name: name.to_vec(), ino: found.ino, attr: found.attr })
    }

    /// Where it leads, of a link.
    pub(in crate::cli) fn target(&self) -> Result<Option<Vec<u8>>> {
        let is_link = self.attr.kind == NodeKind::Link;
        is_link.then(|| self.tree.read_link(self.ino)).transpose()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.tree.forget(self.ino, 1);
    }
}

/// What is at a path, and the folders that it is in.
pub(in crate::cli) struct Place<'t> {
    root: Held<'t>,
    below: Vec<Held<'t>>,
}

impl<'t> Place<'t> {
    /// Resolves `path`.
    pub(in crate::cli) fn find(tree: &'t Tree, path: &[u8], links: Links) -> Result<Place<'t>> {
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
    pub(in crate::cli) fn last(&self) -> &Held<'t> {
        self.below.last().unwrap_or(&self.root)
    }

    /// Where it is, links followed: from the root, which is `.`.
    pub(in crate::cli) fn path(&self) -> Vec<u8> {
        let names: Vec<&[u8]> = self.below.iter().map(|held| held.name.as_slice()).collect();
        if names.is_empty() { self.root.name.clone() } else { names.join(&b'/') }
    }
}

/// The parts of a path, the first one last.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect()
}
