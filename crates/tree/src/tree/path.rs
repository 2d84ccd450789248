//! Resolves paths in the tree from its root, as the kernel does in a mount, and answers queries.
//!
//! A path is bytes, with or without a leading `/`. It cannot leave the root: `..` of the root is
//! the root. A component before a `/` must be a directory, even before a trailing `/` or `/.`. MCP
//! and the command line use these functions, since they have no mount.
//!
//! `by/` groups workers by common properties. The directory of a value lists symlinks to its
//! workers and nothing deeper. It also resolves further facets, `limit/N`, `grep/` and reports such
//! as `summary`, which are not listed.

use std::sync::Arc;

use rustix::io::Errno;

use super::handle::Handle;
use super::namespace::Namespace;
use super::node::{FacetPath, NamedNode, Node, facet_link_target};
use super::{Attr, Fh, Ino, ListedEntry, Lookup, NodeKind, Opened, Tree};
use crate::analysis::facets::{Facet, Selection};
use crate::query::compare::{self, CompareAnswer, CompareQuery};
use crate::query::{self, FileAnswer, FileQuery, call_output};
use crate::render::list::{WorkerList, WorkerQuery};
use crate::route::name_collision::{is_index, shown_name, stored_name};
use crate::route::query_dir::QueryDir;
use crate::route::{Document, Group, Report, Scope};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::Name;

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

const LIMIT: &str = "limit";

/// Returns true if `name` has a meaning of its own beside the symlinks.
fn is_reserved(name: &Name) -> bool {
    Facet::from_name(name).is_some()
        || name.as_bytes() == LIMIT.as_bytes()
        || QueryDir::parse(name).is_some()
        // A worker with the name of the index is escaped before.
        || Report::from_name(name).is_some_and(|report| report != Report::Index)
}

fn link_name(worker: &Name) -> Name {
    shown_name(&shown_name(worker, is_index), is_reserved)
}

fn worker_link(selection: &Selection, worker: &Name) -> NamedNode {
    let node = Node::Facet(FacetPath::Worker(selection.clone(), worker.clone()));
    (link_name(worker), node, NodeKind::Link)
}

impl Namespace {
    pub(super) fn facet_link_name(&self, worker: &Name) -> Name {
        link_name(worker)
    }

    pub(super) fn facet_child(&self, path: &FacetPath, name: &Name) -> Result<Node> {
        match (path, QueryDir::parse(name)) {
            (FacetPath::Selection(selection), dir) if !selection.is_all() => {
                let report = Document::in_group(Group::Selected(selection.clone()), name);
                match (dir, report) {
                    (Some(dir), _) => Ok(Node::QueryDir(Scope::Selected(selection.clone()), dir)),
                    (None, Some(report)) => Ok(Node::Document(report)),
                    (None, None) => self.facet_path_child(path, name).map(Node::Facet),
                }
            }
            _ => self.facet_path_child(path, name).map(Node::Facet),
        }
    }

    fn facet_path_child(&self, path: &FacetPath, name: &Name) -> Result<FacetPath> {
        match path {
            FacetPath::Selection(selection) => {
                if let Some(facet) = Facet::from_name(name).filter(|_| !selection.is_limited()) {
                    return Ok(FacetPath::Facet(selection.clone(), facet));
                }
                if selection.is_all() {
                    return Err(Error::NotFound);
                }
                if name.as_bytes() == LIMIT.as_bytes() && !selection.is_limited() {
                    return Ok(FacetPath::Limit(selection.clone()));
                }
                let worker = stored_name(name, is_reserved)
                    .and_then(|name| stored_name(&name, is_index))
                    .ok_or(Error::NotFound)?;
                let is_selected = self.analyzer().is_selected(selection, &worker);
                is_selected
                    .then(|| FacetPath::Worker(selection.clone(), worker))
                    .ok_or(Error::NotFound)
            }
            FacetPath::Facet(selection, facet) => {
                Ok(FacetPath::Selection(self.analyzer().select(selection, *facet, name)?))
            }
            FacetPath::Limit(selection) => {
                let digits =
                    std::str::from_utf8(name.as_bytes()).ok().filter(|text| !text.starts_with('+'));
                // Each number has exactly one name: no sign and no leading zeros.
                let count = digits
                    .and_then(|text| text.parse().ok())
                    .filter(|n: &usize| Some(&*n.to_string()) == digits);
                count
                    .and_then(|count| selection.latest(count))
                    .map(FacetPath::Selection)
                    .ok_or(Error::NotFound)
            }
            FacetPath::Worker(..) => Err(Error::NotADirectory),
        }
    }

    pub(super) fn facet_attr(&self, path: &FacetPath) -> Result<Attr> {
        let view = self.view();
        let root = view.root_meta()?;
        match path {
            // There are many files, and each selection of one would go through all workers.
            FacetPath::Selection(selection) if !selection.is_all() && !selection.has_file() => {
                Ok(Attr::virtual_folder(&root, self.analyzer().last_write(selection)))
            }
            FacetPath::Selection(_) | FacetPath::Facet(..) | FacetPath::Limit(_) => {
                Ok(Attr::virtual_folder(&root, view.newest(&view.visible())?))
            }
            FacetPath::Worker(_, worker) => {
                let member = view.worker(worker)?;
                let newest = view.fingerprint_without_acls(&member, false)?.newest_mtime;
                Ok(Attr::symlink(&facet_link_target(path)?, &root, newest))
            }
        }
    }

    pub(super) fn list_facet(&self, path: &FacetPath) -> Result<Vec<NamedNode>> {
        let folder = |name, path| (name, Node::Facet(path), NodeKind::Folder);
        match path {
            FacetPath::Selection(selection) if selection.is_all() => {
                let facets = Facet::ALL.into_iter().map(|facet| {
                    let path = FacetPath::Facet(selection.clone(), facet);
                    Ok(folder(Name::new(facet.as_str())?, path))
                });
                facets.collect()
            }
            FacetPath::Selection(selection) => {
                let selected = self.analyzer().selected(selection);
                Ok(selected.iter().map(|member| worker_link(selection, &member.name)).collect())
            }
            FacetPath::Facet(selection, facet) => {
                let picks = self.analyzer().facet_values(selection, *facet);
                Ok(picks
                    .into_iter()
                    .map(|(name, picked)| folder(name, FacetPath::Selection(picked)))
                    .collect())
            }
            FacetPath::Limit(_) => Ok(Vec::new()),
            FacetPath::Worker(..) => Err(Error::NotADirectory),
        }
    }
}

impl Tree {
    /// Searches the files under `ino`, which may stand for all workers, a run, a worker, or a path
    /// in a worker's directory. Returns `None` if it stands for nothing that can be searched.
    pub fn search<Q: FileQuery>(
        &self,
        ino: Ino,
        query: &Q,
    ) -> Result<Option<FileAnswer<Q::Found>>> {
        let Some((scope, under)) = self.node(ino)?.search_scope() else { return Ok(None) };
        query::run(self.namespace.analyzer(), &scope, &query.under(under)).map(Some)
    }

    /// Searches the files of `workers`.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if one of `workers` is not in the view.
    pub fn search_workers<Q: FileQuery>(
        &self,
        workers: Arc<[Name]>,
        query: &Q,
    ) -> Result<FileAnswer<Q::Found>> {
        query::run(self.namespace.analyzer(), &Scope::Workers(workers), query)
    }

    /// Lists the workers of the run at `ino`, or of the swarm at the root. Returns `None` if no
    /// worker has the id `query.after`.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if `ino` stands for no workers.
    pub fn list_workers(&self, ino: Ino, query: &WorkerQuery) -> Result<Option<WorkerList>> {
        self.namespace.renderer().list(&self.worker_scope(ino)?, query)
    }

    /// Returns the workers that `ino` stands for: all, a run, one, or a folder in `by/`.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if it stands for no workers.
    pub fn worker_scope(&self, ino: Ino) -> Result<Scope> {
        match self.node(ino)?.search_scope() {
            Some((scope, None)) => Ok(scope),
            _ => Err(Error::NotFound),
        }
    }

    pub fn compare(&self, query: &CompareQuery) -> Result<CompareAnswer> {
        compare::answer(self.namespace.analyzer(), query)
    }

    /// Opens the output of a call, in the worker's directory or outside of it. The handle is `None`
    /// if the output is missing; the location then gives the reason.
    pub fn open_output(
        &self,
        call: &call_output::CallSelector<'_>,
    ) -> Result<(call_output::OutputLocation, Option<Fh>)> {
        let (place, file) = call_output::open(self.namespace.analyzer(), call)?;
        Ok((place, file.map(|file| self.handles.lock().add(Handle::File(None, file.into())))))
    }
}
