//! `by/`: workers grouped by common properties.
//!
//! The directory of a value lists symlinks to its workers and nothing deeper. It also resolves
//! further facets, `limit/N`, `grep/` and reports such as `summary`, which are not listed.

use super::NodeKind;
use super::attr::Attr;
use super::namespace::Namespace;
use super::node::{FacetPath, NamedNode, Node, facet_link_target};
use crate::analysis::facets::{Facet, Selection};
use crate::route::name_collision::{is_index, shown_name, stored_name};
use crate::route::query_dir::QueryDir;
use crate::route::{Document, Group, Report, Scope};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::Name;

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
