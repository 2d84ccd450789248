//! Which places there are in the tree.

use super::by::By;
use crate::name::{Name, RelPath};
use crate::render::query_dir::QueryDir;
use crate::render::{Generated, Scope};

/// A place in the tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// The root.
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
    /// `workers/<worker>/children/`, where it has any.
    Children(Name),
    /// `workers/<worker>/children/<child>`.
    Child(Name, Name),
    /// A file or folder of a worker's own.
    Own {
        /// The worker.
        worker: Name,
        /// The path in its folder, as on disk.
        path: RelPath,
    },
    /// `supervisor/` and what is in it.
    Supervisor(RelPath),
    /// The store's own list of workers.
    StoreIndex,
    /// `since/`, which is asked and not listed.
    Since,
    /// `by/` and what is in it.
    By(By),
    /// A folder in which something is asked of all, a run, a worker or a selection: `grep/`.
    Ask(Scope, QueryDir),
    /// A generated file.
    Generated(Scope, Generated),
    /// `workers/index.json`: the root's under a second name. It has an inode of its own, since who meets one inode twice
    /// (du, say) takes it for one file.
    WorkersIndex,
}

impl Node {
    /// The worker whose folder it is, or in whose folder it lies.
    pub(super) fn worker(&self) -> Option<&Name> {
        match self {
            Node::Worker(worker) | Node::Own { worker, .. } => Some(worker),
            _ => None,
        }
    }

    /// The generated file that it is.
    pub(super) fn generated(&self) -> Option<(Scope, Generated)> {
        match self {
            Node::Generated(scope, file) => Some((scope.clone(), file.clone())),
            Node::WorkersIndex => Some((Scope::Swarm, Generated::Index)),
            _ => None,
        }
    }

    /// Whose files are searched that are at a node, and which of them.
    pub(super) fn searched(&self) -> Option<(Scope, Option<RelPath>)> {
        Some(match self {
            Node::Root | Node::Workers | Node::Runs => (Scope::Swarm, None),
            Node::Run(run) | Node::RunWorkers(run) => (Scope::Run(run.clone()), None),
            Node::Worker(worker) => (Scope::Worker(worker.clone()), None),
            Node::Own { worker, path } => (Scope::Worker(worker.clone()), Some(path.clone())),
            Node::By(By::Selection(selection)) => (Scope::Selected(selection.clone()), None),
            _ => return None,
        })
    }
}
