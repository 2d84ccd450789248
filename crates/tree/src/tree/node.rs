//! The nodes of the tree, and their attributes: the attributes of the source, without any
//! permission to write or to change privileges.
//!
//! A request is classified by its cost before it is answered. The thread that reads from the kernel
//! classifies the request, and the thread that answers it resolves the node again. Classifying only
//! reads the inode table and parses a name. Resolving may read the files of workers, as in `by/`,
//! so it must stay with the answering thread. Handing over the parsed part would save one table
//! lookup, and every caller without a kernel would have to do both steps.

use super::{DirPosition, FileOwner, Ino, Tree, parse_name};
use crate::analysis::facets::{Facet, Selection};
use crate::catalog::Access;
use crate::route::name_collision::{is_index, shown_name};
use crate::route::query_dir::QueryDir;
use crate::route::shown_path::is_generated;
use crate::route::{ContentKind, Document, Group, Report, Scope};
use swarmletfs_base::digest::digest;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Identity, Kind, Meta, Time};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Node {
    Root,
    Workers,
    Runs,
    /// `runs/latest`.
    Latest,
    Run(Name),
    RunWorkers(Name),
    RunWorker(Name, Name),
    Worker(Name),
    /// `workers/<worker>/children/`, if the worker has any.
    Children(Name),
    Child(Name, Name),
    /// `workers/<worker>/continues`: a link to the worker whose history this one begins with.
    Original(Name, Name),
    /// A file or directory in a worker's directory.
    WorkerPath {
        worker: Name,
        /// The path in the worker's directory, as on disk.
        path: RelPath,
    },
    Supervisor(RelPath),
    /// The store's own list of workers.
    StoreIndex,
    /// `since/`, which resolves cursors and lists only two.
    Since,
    Facet(FacetPath),
    /// A directory such as `grep/` that resolves queries over all workers, a run, a worker or a
    /// selection.
    QueryDir(Scope, QueryDir),
    Document(Document),
    /// `workers/index.json`, a second name of the root's index. It has its own inode: tools such as
    /// du count an inode that they meet twice as one file.
    WorkersIndex,
}

pub(super) type NamedNode = (Name, Node, NodeKind);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum FacetPath {
    /// `by/` itself, which lists the facets; otherwise a directory that lists symlinks to the
    /// selected workers.
    Selection(Selection),
    /// The directory of a facet, which lists its values.
    Facet(Selection, Facet),
    /// `limit/`, which lists nothing.
    Limit(Selection),
    Worker(Selection, Name),
}

impl FacetPath {
    /// Returns true if the entries depend on more of the workers than the catalog has.
    pub(super) fn needs_digest(&self) -> bool {
        match self {
            FacetPath::Selection(selection)
            | FacetPath::Limit(selection)
            | FacetPath::Worker(selection, _) => selection.needs_digest(),
            FacetPath::Facet(selection, facet) => selection.needs_digest() || facet.needs_digest(),
        }
    }
}

impl Node {
    /// Returns true if the entries of this directory depend on which workers there are.
    pub(super) fn lists_workers(&self) -> bool {
        matches!(
            self,
            Node::Workers
                | Node::Runs
                | Node::RunWorkers(_)
                | Node::Children(_)
                | Node::Facet(FacetPath::Selection(_) | FacetPath::Facet(..))
        )
    }

    /// Returns true if it costs little to find an entry of this directory by its name, however many
    /// there are.
    pub(super) fn has_cheap_entries(&self) -> bool {
        match self {
            Node::Workers
            | Node::RunWorkers(_)
            | Node::Children(_)
            | Node::Worker(_)
            | Node::WorkerPath { .. }
            | Node::Supervisor(_) => true,
            // The workers of a limited selection are sorted for each name.
            Node::Facet(FacetPath::Selection(selection)) => !selection.is_limited(),
            Node::Facet(FacetPath::Facet(selection, _)) => selection.is_all(),
            _ => false,
        }
    }

    /// Returns true if this directory shows the entries of one in a store.
    pub(super) fn has_stored_entries(&self) -> bool {
        matches!(self, Node::Worker(_) | Node::WorkerPath { .. } | Node::Supervisor(_))
    }

    /// Returns the worker whose directory this node is or is in.
    pub(super) fn worker(&self) -> Option<&Name> {
        match self {
            Node::Worker(worker) | Node::WorkerPath { worker, .. } => Some(worker),
            _ => None,
        }
    }

    pub(super) fn document(&self) -> Option<Document> {
        match self {
            Node::Document(document) => Some(document.clone()),
            Node::WorkersIndex => Some(Document::Group(Group::Swarm, Report::Index)),
            _ => None,
        }
    }

    pub(super) fn content_kind(&self) -> ContentKind {
        match self {
            Node::WorkerPath { .. } => ContentKind::Raw,
            Node::Supervisor(_) => ContentKind::Note,
            Node::StoreIndex | Node::WorkersIndex => ContentKind::Index,
            Node::Document(document) => match document {
                Document::Readme | Document::QueryReadme(_) => ContentKind::Help,
                Document::Group(_, report) | Document::Worker(_, report) => match report {
                    Report::Index => ContentKind::Index,
                    Report::Summary => ContentKind::Summary,
                    Report::Evidence(_) => ContentKind::Evidence,
                },
                Document::Changes(..) => ContentKind::Changes,
                Document::Focus(..) | Document::Prose(_) => ContentKind::Summary,
                Document::Since(_)
                | Document::Compare(_)
                | Document::Grep(..)
                | Document::Search(..) => ContentKind::Query,
            },
            Node::Root
            | Node::Workers
            | Node::Runs
            | Node::Latest
            | Node::Run(_)
            | Node::RunWorkers(_)
            | Node::RunWorker(..)
            | Node::Worker(_)
            | Node::Children(_)
            | Node::Child(..)
            | Node::Original(..)
            | Node::Since
            | Node::Facet(_)
            | Node::QueryDir(..) => ContentKind::Folder,
        }
    }

    /// Returns the workers that a search under this node covers, and the path that it is limited to
    /// in a worker's directory. Returns `None` if nothing can be searched.
    pub(super) fn search_scope(&self) -> Option<(Scope, Option<RelPath>)> {
        Some(match self {
            Node::Root | Node::Workers | Node::Runs => (Scope::Swarm, None),
            Node::Run(run) | Node::RunWorkers(run) => (Scope::Run(run.clone()), None),
            Node::Worker(worker) => (Scope::Worker(worker.clone()), None),
            Node::WorkerPath { worker, path } => {
                (Scope::Worker(worker.clone()), Some(path.clone()))
            }
            Node::Facet(FacetPath::Selection(selection)) => {
                (Scope::Selected(selection.clone()), None)
            }
            _ => return None,
        })
    }
}
/// Returns the target of a symlink in `by/`, relative to its directory.
pub(super) fn facet_link_target(path: &FacetPath) -> Result<Vec<u8>> {
    let FacetPath::Worker(selection, worker) = path else { return Err(Error::InvalidName) };
    let levels = 1 + 2 * (selection.depth() + usize::from(selection.is_limited()));
    let up = b"../".repeat(levels);
    Ok([&up, &b"workers/"[..], shown_name(worker, is_index).as_bytes()].concat())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeKind {
    File,
    Folder,
    /// A symlink within the tree.
    Link,
}

impl NodeKind {
    pub fn as_str(self) -> &'static str {
        match self {
            NodeKind::File => "file",
            NodeKind::Folder => "folder",
            NodeKind::Link => "link",
        }
    }
}

/// State of a file or directory: mtime, ctime and size. Data read in an equal state is still valid.
pub(super) type Signature = (Time, Time, u64);

/// Identity of a node's content. Nodes with equal names and different content are different inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ContentId {
    /// The content cannot be replaced.
    Fixed,
    Source(Identity),
    Hash([u8; 16]),
}

/// File attributes as stat reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    pub kind: NodeKind,
    /// Size in bytes. For a generated file it is exactly the number of bytes that can be read.
    pub size: u64,
    /// Permission bits, within 0555.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Time,
    pub ctime: Time,
    pub(super) content_id: ContentId,
}

impl Attr {
    pub(super) fn signature(&self) -> Signature {
        (self.mtime, self.ctime, self.size)
    }

    /// Returns these attributes with `reader` as the owner and the only reader.
    pub(super) fn readable_only_by(self, reader: FileOwner) -> Attr {
        let FileOwner { uid, gid } = reader;
        let mode = match self.kind {
            NodeKind::File => 0o400 | self.mode & 0o100,
            NodeKind::Folder => 0o500,
            NodeKind::Link => self.mode,
        };
        Attr { mode, uid, gid, ..self }
    }

    /// Converts the metadata of a file or directory in a store.
    ///
    /// A directory keeps its identity if another one replaces it, since its entries are looked up
    /// by path, too.
    pub(super) fn from_meta(meta: &Meta) -> Attr {
        let kind = if meta.kind == Kind::Folder { NodeKind::Folder } else { NodeKind::File };
        Attr {
            kind,
            size: if kind == NodeKind::Folder { 0 } else { meta.size },
            mode: meta.mode & 0o555,
            uid: meta.uid,
            gid: meta.gid,
            mtime: meta.mtime,
            ctime: meta.ctime,
            content_id: match kind {
                NodeKind::Folder => ContentId::Fixed,
                _ => ContentId::Source(meta.identity),
            },
        }
    }

    /// Returns the attributes of a directory that exists in no store, with the owner and mode of
    /// the store's `root`.
    pub(super) fn virtual_folder(root: &Meta, newest: Time) -> Attr {
        Attr { mtime: newest, ctime: newest, content_id: ContentId::Fixed, ..Attr::from_meta(root) }
    }

    pub(super) fn symlink(target: &[u8], root: &Meta, newest: Time) -> Attr {
        let mut hash = blake3::Hasher::new();
        hash.update(target);
        Attr {
            kind: NodeKind::Link,
            size: target.len() as u64,
            mode: 0o777,
            content_id: ContentId::Hash(digest(&hash)),
            ..Attr::virtual_folder(root, newest)
        }
    }

    /// Returns the attributes of a version of a generated file: its `size` in bytes and the hash of
    /// its `content`.
    pub(super) fn generated(size: u64, content: [u8; 16], access: Access, newest: Time) -> Attr {
        Attr {
            kind: NodeKind::File,
            size,
            mode: access.mode,
            uid: access.uid,
            gid: access.gid,
            mtime: newest,
            ctime: newest,
            content_id: ContentId::Hash(content),
        }
    }
}

/// Cost of a request, which decides which thread answers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestClass {
    /// As cheap as a stat.
    Stat,
    /// May render a generated file.
    Render,
    /// May search the files of all workers.
    Search,
}

impl Tree {
    pub fn classify_lookup(&self, parent: Ino, name: &[u8]) -> RequestClass {
        match (self.node(parent), parse_name(name)) {
            (Ok(Node::WorkerPath { .. } | Node::Worker(_)), _)
                if self.view().has_virtual_folders() =>
            {
                RequestClass::Render
            }
            (Ok(Node::WorkerPath { .. } | Node::Supervisor(_)), _) => RequestClass::Stat,
            (Ok(Node::Worker(_)), Ok(name)) if !is_generated(&name) => RequestClass::Stat,
            (Ok(Node::Worker(worker)), Ok(name)) if QueryDir::parse(&name).is_some() => {
                self.class_by_fingerprint(&worker)
            }
            (Ok(Node::Workers | Node::RunWorkers(_) | Node::Children(_)), Ok(name)) => {
                self.class_by_fingerprint(&name)
            }
            // A link to a worker of a selection that depends on the catalog alone.
            (Ok(Node::Facet(FacetPath::Selection(selection))), Ok(name))
                if !selection.is_limited() && !selection.needs_digest() =>
            {
                self.class_by_fingerprint(&name)
            }
            (Ok(Node::Facet(FacetPath::Facet(selection, facet))), Ok(name))
                if selection.is_all() && self.namespace.analyzer().is_cheap_value(facet, &name) =>
            {
                self.class_without_virtual_folders()
            }
            // Resolving decides: a name that needs no search, such as a name that tools probe for,
            // gets no search thread.
            (Ok(folder @ Node::QueryDir(..)), Ok(name)) => {
                self.namespace.child(&folder, &name).map_or(RequestClass::Render, |node| {
                    node.document().map_or(RequestClass::Render, |document| render_class(&document))
                })
            }
            _ => RequestClass::Render,
        }
    }

    /// Classifies getattr, readdir and their like on `ino`.
    pub fn classify(&self, ino: Ino) -> RequestClass {
        match self.node(ino) {
            Ok(Node::WorkerPath { .. } | Node::Supervisor(_))
                if !self.view().has_virtual_folders() =>
            {
                RequestClass::Stat
            }
            Ok(
                Node::QueryDir(Scope::Worker(worker), _)
                | Node::RunWorker(_, worker)
                | Node::Child(_, worker)
                | Node::Original(_, worker),
            ) => self.class_by_fingerprint(&worker),
            Ok(Node::Facet(FacetPath::Selection(selection)))
                if self.namespace.analyzer().is_cheap(&selection) =>
            {
                self.class_without_virtual_folders()
            }
            Ok(node) if node.document().is_none() => RequestClass::Render,
            Ok(_) | Err(_) => RequestClass::Stat,
        }
    }

    pub fn classify_listing(&self, ino: Ino, position: DirPosition) -> RequestClass {
        match (position, self.node(ino)) {
            (DirPosition::After(version, _), _)
                if self.dir_cache.lock().get(ino, version).is_some() =>
            {
                RequestClass::Stat
            }
            (_, Ok(Node::Worker(worker))) if self.namespace.view().lists_at_once(&worker) => {
                self.class_without_virtual_folders()
            }
            _ => self.classify(ino),
        }
    }

    /// Classifies reading the attributes that are derived from all files of a worker.
    fn class_by_fingerprint(&self, worker: &Name) -> RequestClass {
        if self.namespace.view().has_fresh_fingerprint(worker) {
            self.class_without_virtual_folders()
        } else {
            RequestClass::Render
        }
    }

    /// Classifies a request that is cheap unless stores have virtual folders.
    fn class_without_virtual_folders(&self) -> RequestClass {
        if self.view().has_virtual_folders() { RequestClass::Render } else { RequestClass::Stat }
    }

    pub fn classify_open(&self, ino: Ino) -> RequestClass {
        let node = self.node(ino);
        match node.as_ref().map(Node::document) {
            Ok(Some(document)) => render_class(&document),
            Ok(None) if self.view().has_virtual_folders() => RequestClass::Render,
            _ => RequestClass::Stat,
        }
    }
}

fn render_class(document: &Document) -> RequestClass {
    match document {
        Document::Grep(..)
        | Document::Search(..)
        | Document::Focus(..)
        | Document::Prose(_)
        | Document::Compare(_) => RequestClass::Search,
        Document::Readme
        | Document::QueryReadme(_)
        | Document::Since(_)
        | Document::Group(..)
        | Document::Changes(..)
        | Document::Worker(..) => RequestClass::Render,
    }
}

#[cfg(test)]
mod tests {
    use super::super::ROOT;
    use super::*;
    use crate::analysis::settings::Settings;
    use crate::catalog::{Freshness, Source};
    use crate::view::{Filter, View};
    use std::sync::Arc;
    use std::time::Duration;
    use swarmletfs_base::name::RelPath;
    use swarmletfs_base::store::Memory;

    #[test]
    fn a_small_group_is_as_cheap_as_a_stat_once_its_workers_are_known() {
        let store = Arc::new(Memory::new());
        for (worker, job) in (0..40).map(|worker| (worker, if worker < 3 { worker } else { 9 })) {
            let path = RelPath::parse(format!("workers/w{worker}/metadata.json")).unwrap();
            store.write(&path, format!(r#"{{"status": "success", "job_id": {job}}}"#));
        }
        let hour = Duration::from_secs(3_600);
        let fresh = Freshness { unfinished: hour, finished: hour };
        let view =
            View::new(vec![Source::from_store(store, None)], fresh, Filter::default()).unwrap();
        let tree = Tree::new(view, Settings::default());
        let by = tree.lookup(ROOT, b"by").unwrap().ino;
        let jobs = tree.lookup(by, b"job").unwrap().ino;
        let class = |name: &[u8]| tree.classify_lookup(jobs, name);
        assert_eq!(class(b"1"), RequestClass::Render, "nothing is known");
        tree.entries(jobs, DirPosition::Start).unwrap();
        assert_eq!(class(b"1"), RequestClass::Render, "the states of files are not known");
        let found = [b"1", b"9"].map(|name| tree.lookup(jobs, name).unwrap().ino);
        assert_eq!(
            [b"1", b"9"].map(|name| class(name)),
            [RequestClass::Stat, RequestClass::Render]
        );
        for (ino, class) in found.into_iter().zip([RequestClass::Stat, RequestClass::Render]) {
            assert_eq!(tree.classify(ino), class);
            assert_eq!(tree.classify_listing(ino, DirPosition::Start), class);
        }
        assert_eq!(class(b"none"), RequestClass::Render);
    }
}
