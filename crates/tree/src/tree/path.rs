//! Resolves paths in the tree from its root, as the kernel does in a mount.
//!
//! A path is bytes, with or without a leading `/`. It cannot leave the root: `..` of the root is
//! the root. A component before a `/` must be a directory, even before a trailing `/` or `/.`. MCP
//! and the command line use these functions, since they have no mount.

use std::sync::Arc;

use rustix::io::Errno;

use super::{Attr, Ino, ListedEntry, Lookup, NodeKind, Opened, Tree};
use swarmletfs_base::error::{Error, Result};

/// Most symlinks followed in one path, as in the kernel.
const SYMLINKS_MAX: usize = 40;
/// Most attempts to read a node that is replaced meanwhile.
const ATTEMPTS_MAX: usize = 16;

/// Treatment of a symlink in the last component; all others are always followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symlinks {
    Follow,
    NoFollow,
}

/// An inode that was looked up. Dropping it gives the lookup back.
pub struct LookupGuard<'t> {
    tree: &'t Tree,
    name: Vec<u8>,
    pub ino: Ino,
    /// Attributes at the time of the lookup.
    pub attr: Attr,
}

impl<'t> LookupGuard<'t> {
    fn lookup(tree: &'t Tree, folder: Ino, name: &[u8]) -> Result<LookupGuard<'t>> {
        let Lookup { ino, attr, .. } = tree.lookup(folder, name)?;
        Ok(LookupGuard { tree, name: name.to_vec(), ino, attr })
    }

    /// Looks up `name` in a directory. In a directory of workers, the beginning of an id stands for
    /// the only worker whose id begins so.
    fn lookup_worker(tree: &'t Tree, folder: Ino, name: &[u8]) -> Result<LookupGuard<'t>> {
        match LookupGuard::lookup(tree, folder, name) {
            Err(Error::NotFound) => {
                let whole = tree.complete_id(folder, name)?;
                LookupGuard::lookup(tree, folder, whole.as_bytes())
            }
            found => found,
        }
    }

    pub fn link_target(&self) -> Result<Option<Vec<u8>>> {
        let is_link = self.attr.kind == NodeKind::Link;
        is_link.then(|| self.tree.read_link(self.ino)).transpose()
    }

    /// Returns the entries, sorted by name.
    ///
    /// # Errors
    ///
    /// [`Error::NotADirectory`] if this is not a directory.
    pub fn list_folder(&self) -> Result<Arc<[ListedEntry]>> {
        if self.attr.kind == NodeKind::Folder {
            self.tree.list_folder(self.ino)
        } else {
            Err(Error::NotADirectory)
        }
    }

    /// Opens the file for reading.
    ///
    /// # Errors
    ///
    /// [`Error::IsADirectory`] if this is a directory; [`Tree::open`] would report it as stale.
    pub fn open(&self) -> Result<Opened> {
        if self.attr.kind == NodeKind::Folder {
            Err(Error::IsADirectory)
        } else {
            self.tree.open(self.ino)
        }
    }
}

impl Drop for LookupGuard<'_> {
    fn drop(&mut self) {
        self.tree.forget(self.ino, 1);
    }
}

/// The inode at a path, and the directories on the way to it.
pub struct ResolvedPath<'t> {
    root: LookupGuard<'t>,
    below: Vec<LookupGuard<'t>>,
}

impl<'t> ResolvedPath<'t> {
    fn resolve(tree: &'t Tree, path: &[u8], symlinks: Symlinks) -> Result<ResolvedPath<'t>> {
        if path.is_empty() {
            return Err(Error::NotFound);
        }
        let (attr, _) = tree.attr(tree.root())?;
        let mut resolved = ResolvedPath {
            root: LookupGuard { tree, name: b".".to_vec(), ino: tree.root(), attr },
            below: Vec::new(),
        };
        // Components still to resolve, the next one last.
        let mut pending = components(path);
        let mut followed = 0;
        while let Some(component) = pending.pop() {
            if resolved.leaf().attr.kind != NodeKind::Folder {
                return Err(Error::NotADirectory);
            }
            match component.as_slice() {
                b"" | b"." => {}
                b".." => drop(resolved.below.pop()),
                name => {
                    let next = LookupGuard::lookup_worker(tree, resolved.leaf().ino, name)?;
                    match next
                        .link_target()?
                        .filter(|_| symlinks == Symlinks::Follow || !pending.is_empty())
                    {
                        None => resolved.below.push(next),
                        Some(_) if followed == SYMLINKS_MAX => return Err(Error::Io(Errno::LOOP)),
                        Some(link_target) => {
                            followed += 1;
                            pending.extend(components(&link_target));
                        }
                    }
                }
            }
        }
        Ok(resolved)
    }

    pub fn leaf(&self) -> &LookupGuard<'t> {
        self.below.last().unwrap_or(&self.root)
    }

    /// Returns the path from the root with symlinks resolved, `.` for the root itself.
    pub fn path(&self) -> Vec<u8> {
        let names: Vec<&[u8]> = self.below.iter().map(|guard| guard.name.as_slice()).collect();
        if names.is_empty() { self.root.name.clone() } else { names.join(&b'/') }
    }
}

impl Tree {
    /// Calls `read` with the inode at `path`. Calls it again if that was replaced meanwhile, so
    /// `read` must not print.
    pub fn with_path<'t, T>(
        &'t self,
        path: &[u8],
        symlinks: Symlinks,
        mut read: impl FnMut(ResolvedPath<'t>) -> Result<T>,
    ) -> Result<T> {
        retry_stale(|| read(ResolvedPath::resolve(self, path, symlinks)?))
    }

    /// Calls `read` with the entry `name` of the directory `folder`. Calls it again if that was
    /// replaced meanwhile.
    pub fn with_entry<'t, T>(
        &'t self,
        folder: Ino,
        name: &[u8],
        mut read: impl FnMut(LookupGuard<'t>) -> Result<T>,
    ) -> Result<T> {
        retry_stale(|| read(LookupGuard::lookup(self, folder, name)?))
    }

    pub fn list_folder(&self, folder: Ino) -> Result<Arc<[ListedEntry]>> {
        Ok(self.list_items(&self.node(folder)?)?.into())
    }
}

/// Repeats the lookup of an inode that is stale, as the kernel does.
fn retry_stale<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..ATTEMPTS_MAX {
        match attempt() {
            Err(Error::Stale) => {}
            done => return done,
        }
    }
    attempt()
}

/// Splits a path into its components, the first one last.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect()
}
