//! The nodes of the tree.

use super::NodeKind;
use crate::analysis::facets::{Facet, Selection};
use crate::route::ContentKind;
use crate::route::name_collision::{is_index, shown_name};
use crate::route::query_dir::QueryDir;
use crate::route::{Document, Group, Report, Scope};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};

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
                Document::Focus(..) => ContentKind::Summary,
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
