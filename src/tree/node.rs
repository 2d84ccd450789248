//! The nodes of the tree.

use super::facet_path::FacetPath;
use crate::name::{Name, RelPath};
use crate::route::query_dir::QueryDir;
use crate::route::{Generated, Scope};

/// A node of the tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Node {
    Root,
    /// `workers/`.
    Workers,
    /// `runs/`.
    Runs,
    /// `runs/latest`.
    Latest,
    /// `runs/<run>/`.
    Run(Name),
    /// `runs/<run>/workers/`.
    RunWorkers(Name),
    /// `runs/<run>/workers/<worker>`.
    RunWorker(Name, Name),
    /// `workers/<worker>/`.
    Worker(Name),
    /// `workers/<worker>/children/`, if the worker has any.
    Children(Name),
    /// `workers/<worker>/children/<child>`.
    Child(Name, Name),
    /// A file or folder in a worker's folder.
    WorkerPath {
        worker: Name,
        /// The path in the worker's folder, as on disk.
        path: RelPath,
    },
    /// `supervisor/` and its content.
    Supervisor(RelPath),
    /// The store's own list of workers.
    StoreIndex,
    /// `since/`, which resolves cursors and lists only two.
    Since,
    /// `by/` and its content.
    Facet(FacetPath),
    /// A folder such as `grep/` that resolves queries over all workers, a run, a worker or a
    /// selection.
    QueryDir(Scope, QueryDir),
    Generated(Scope, Generated),
    /// `workers/index.json`, a second name of the root's index. It has its own inode: tools such as
    /// du count an inode that they meet twice as one file.
    WorkersIndex,
}

impl Node {
    /// Returns the worker whose folder this node is or is in.
    pub(super) fn worker(&self) -> Option<&Name> {
        match self {
            Node::Worker(worker) | Node::WorkerPath { worker, .. } => Some(worker),
            _ => None,
        }
    }

    /// Returns the scope and the file of a generated file.
    pub(super) fn generated(&self) -> Option<(Scope, Generated)> {
        match self {
            Node::Generated(scope, file) => Some((scope.clone(), file.clone())),
            Node::WorkersIndex => Some((Scope::Swarm, Generated::Index)),
            _ => None,
        }
    }

    /// Returns the scope and the path that a search under this node covers.
    pub(super) fn search_scope(&self) -> Option<(Scope, Option<RelPath>)> {
        Some(match self {
            Node::Root | Node::Workers | Node::Runs => (Scope::Swarm, None),
            Node::Run(run) | Node::RunWorkers(run) => (Scope::Run(run.clone()), None),
            Node::Worker(worker) => (Scope::Worker(worker.clone()), None),
            Node::WorkerPath { worker, path } => (Scope::Worker(worker.clone()), Some(path.clone())),
            Node::Facet(FacetPath::Selection(selection)) => (Scope::Selected(selection.clone()), None),
            _ => return None,
        })
    }
}
