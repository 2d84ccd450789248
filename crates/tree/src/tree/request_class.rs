//! Classifies a request by its cost before it is answered.
//!
//! The thread that reads from the kernel classifies the request, and the thread that answers it
//! resolves the node again. Classifying only reads the inode table and parses a name. Resolving may
//! read the files of workers, as in `by/`, so it must stay with the answering thread. Handing over
//! the parsed part would save one table lookup, and every caller without a kernel would have to do
//! both steps.

use super::node::{FacetPath, Node};
use super::{DirPosition, Ino, Tree, parse_name};
use crate::route::query_dir::QueryDir;
use crate::route::shown_path::is_generated;
use crate::route::{Document, Scope};
use swarmletfs_base::name::Name;

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
            (Ok(Node::WorkerPath { .. } | Node::Worker(_)), _) if self.has_virtual_folders() => {
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
            Ok(Node::WorkerPath { .. } | Node::Supervisor(_)) if !self.has_virtual_folders() => {
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
        if self.has_virtual_folders() { RequestClass::Render } else { RequestClass::Stat }
    }

    pub fn classify_open(&self, ino: Ino) -> RequestClass {
        let node = self.node(ino);
        match node.as_ref().map(Node::document) {
            Ok(Some(document)) => render_class(&document),
            Ok(None) if self.has_virtual_folders() => RequestClass::Render,
            _ => RequestClass::Stat,
        }
    }

    pub(super) fn has_virtual_folders(&self) -> bool {
        self.namespace.view().has_virtual_folders()
    }
}

fn render_class(document: &Document) -> RequestClass {
    match document {
        Document::Grep(..) | Document::Search(..) | Document::Focus(..) | Document::Compare(_) => {
            RequestClass::Search
        }
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
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::ROOT;
    use super::*;
    use crate::analysis::settings::Settings;
    use crate::catalog::{Freshness, Source};
    use crate::view::{Filter, View};
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
