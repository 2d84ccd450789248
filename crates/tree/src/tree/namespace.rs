//! The namespace: names, the nodes that they lead to, and the nodes' attributes, listings and
//! bytes.
//!
//! Query names such as `evidence.4k.txt` resolve in [`Namespace::child`] and appear in no listing.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use super::dir_cache::{CurrentKey, ListingKey};
use super::node::{Attr, FacetPath, NamedNode, Node, facet_link_target};
use super::versions::{Version, Versions};
use super::{NodeKind, TTL, TTL_VERSION};
use crate::analysis::analyzer::Analyzer;
use crate::analysis::facets::Selection;
use crate::render::Renderer;
use crate::route::cursor::Cursor;
use crate::route::name_collision::{INDEX, is_index, shown_name, stored_name};
use crate::route::query_dir::{QueryDir, QueryKind};
use crate::route::shown_path::{CHILDREN, CONTINUES, is_generated};
use crate::route::{CHANGES, Document, Group, Report, Scope};
use crate::view::{Member, View};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::digest::{digest, hash_value};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{DirEntry, File, Kind, Time};

const WORKERS: &str = "workers";
const RUNS: &str = "runs";
const SUPERVISOR: &str = "supervisor";
const LATEST: &str = "latest";
const README: &str = "README.md";
const SINCE: &str = "since";
const BY: &str = "by";

pub(super) struct AttrReply {
    pub(super) attr: Attr,
    /// Set for generated files only.
    pub(super) version: Option<Arc<Version>>,
    pub(super) ttl: Duration,
}

pub(super) struct Namespace {
    renderer: Renderer,
    versions: Versions,
}

impl Namespace {
    pub(super) fn new(renderer: Renderer) -> Namespace {
        let versions = Versions::new(renderer.settings().trees);
        Namespace { renderer, versions }
    }

    #[cfg(test)]
    pub(super) fn evict(&self) {
        self.versions.evict();
    }

    #[cfg(test)]
    pub(super) fn has_version(&self, document: &Document) -> bool {
        self.versions.contains(document)
    }

    pub(super) fn view(&self) -> &View {
        self.renderer.view()
    }

    pub(super) fn renderer(&self) -> &Renderer {
        &self.renderer
    }

    pub(super) fn analyzer(&self) -> &Analyzer {
        self.renderer.analyzer()
    }

    /// Returns the node under `name` in the directory `parent`. The node may still be absent; see
    /// [`Namespace::attr`].
    pub(super) fn child(&self, parent: &Node, name: &Name) -> Result<Node> {
        let text = std::str::from_utf8(name.as_bytes()).unwrap_or_default();
        match parent {
            Node::Root => match text {
                README => Ok(Node::Document(Document::Readme)),
                WORKERS => Ok(Node::Workers),
                RUNS => Ok(Node::Runs),
                SUPERVISOR => Ok(Node::Supervisor(RelPath::root())),
                SINCE => Ok(Node::Since),
                BY => Ok(Node::Facet(FacetPath::Selection(Selection::default()))),
                _ => document_or_query_dir(
                    Document::in_group(Group::Swarm, name),
                    QueryDir::parse_at_root(name),
                    Scope::Swarm,
                ),
            },
            Node::Since => {
                let cursor = Cursor::parse(text).map_err(|_| Error::NotFound)?;
                Ok(Node::Document(Document::Since(cursor)))
            }
            Node::Workers if text == INDEX => Ok(Node::WorkersIndex),
            Node::Workers => {
                match stored_name(name, is_index)
                    .filter(|worker| self.view().visible().get(worker).is_some())
                {
                    Some(worker) => Ok(Node::Worker(worker)),
                    None if stored_name(name, is_index).is_some_and(|name| is_index(&name)) => {
                        Ok(Node::StoreIndex)
                    }
                    None => Err(Error::NotFound),
                }
            }
            Node::Runs if text == LATEST => Ok(Node::Latest),
            Node::Runs => {
                let exists = self.view().visible().runs.contains_key(name);
                if exists { Ok(Node::Run(name.clone())) } else { Err(Error::NotFound) }
            }
            Node::Run(run) if text == WORKERS => Ok(Node::RunWorkers(run.clone())),
            Node::Run(run) => {
                let document = Document::in_group(Group::Run(run.clone()), name);
                document_or_query_dir(document, QueryDir::parse(name), Scope::Run(run.clone()))
            }
            Node::RunWorkers(run) => {
                let worker = stored_name(name, is_index).ok_or(Error::NotFound)?;
                let exists = self.view().visible().is_in_run(run, &worker);
                if exists { Ok(Node::RunWorker(run.clone(), worker)) } else { Err(Error::NotFound) }
            }
            Node::Worker(worker) if text == CHILDREN => Ok(Node::Children(worker.clone())),
            Node::Worker(worker) if text == CONTINUES => {
                let original = self.view().visible().original(worker).ok_or(Error::NotFound)?;
                Ok(Node::Original(worker.clone(), original))
            }
            Node::Children(worker) => {
                let child = stored_name(name, is_index).ok_or(Error::NotFound)?;
                let exists = self.view().visible().is_child(worker, &child);
                if exists { Ok(Node::Child(worker.clone(), child)) } else { Err(Error::NotFound) }
            }
            Node::Worker(worker) => {
                let document = Document::in_worker(worker, name);
                document_or_query_dir(
                    document,
                    QueryDir::parse(name),
                    Scope::Worker(worker.clone()),
                )
                .or_else(|_| {
                    let file_name = stored_name(name, is_generated).ok_or(Error::NotFound)?;
                    Ok(Node::WorkerPath { worker: worker.clone(), path: file_name.into() })
                })
            }
            Node::QueryDir(scope, dir) => {
                dir.document(scope, name).map(Node::Document).ok_or(Error::NotFound)
            }
            Node::WorkerPath { worker, path } => {
                Ok(Node::WorkerPath { worker: worker.clone(), path: path.join(name) })
            }
            Node::Facet(path) => self.facet_child(path, name),
            Node::Supervisor(path) => Ok(Node::Supervisor(path.join(name))),
            Node::Latest
            | Node::RunWorker(..)
            | Node::Child(..)
            | Node::Original(..)
            | Node::StoreIndex
            | Node::Document(_)
            | Node::WorkersIndex => Err(Error::NotADirectory),
        }
    }

    pub(super) fn attr(&self, node: &Node) -> Result<AttrReply> {
        let view = self.view();
        let mut ttl = TTL;
        let attr = match node {
            Node::Root
            | Node::Workers
            | Node::Runs
            | Node::Since
            | Node::QueryDir(Scope::Swarm | Scope::Workers(_), _) => {
                Attr::virtual_folder(&view.root_meta()?, view.newest(&view.visible())?)
            }
            Node::Run(run) | Node::RunWorkers(run) | Node::QueryDir(Scope::Run(run), _) => {
                Attr::virtual_folder(&view.root_meta()?, self.run_newest(run)?)
            }
            Node::Children(worker) => {
                let member = view.worker(worker)?;
                let visible = view.visible();
                let newest =
                    visible.children(worker).iter().map(|child| child.entry.last_write()).max();
                Attr::virtual_folder(
                    &view.stat(&member, &RelPath::root())?,
                    newest.ok_or(Error::NotFound)?,
                )
            }
            Node::Latest | Node::RunWorker(..) | Node::Child(..) | Node::Original(..) => {
                let newest = match node {
                    Node::RunWorker(_, worker)
                    | Node::Child(_, worker)
                    | Node::Original(_, worker) => {
                        view.fingerprint_without_acls(&*view.worker(worker)?, false)?.newest_mtime
                    }
                    _ => view.newest(&view.visible())?,
                };
                Attr::symlink(&self.link_target(node)?, &view.root_meta()?, newest)
            }
            Node::Worker(worker) | Node::QueryDir(Scope::Worker(worker), _) => {
                let member = view.worker(worker)?;
                let attr = Attr::from_meta(&view.stat(&member, &RelPath::root())?);
                let mtime = view.fingerprint_without_acls(&member, true)?.newest_mtime;
                let attr = Attr { mtime, ..attr };
                ttl = view.dir_attr_ttl(&member);
                attr
            }
            Node::Facet(path) => self.facet_attr(path)?,
            Node::QueryDir(Scope::Selected(selection), _) => {
                self.facet_attr(&FacetPath::Selection(selection.clone()))?
            }
            Node::WorkerPath { worker, path } => {
                let member = view.worker(worker)?;
                let attr = Attr::from_meta(&view.stat(&member, path)?);
                let is_dir = attr.kind == NodeKind::Folder;
                ttl = if is_dir { view.dir_attr_ttl(&member) } else { view.attr_ttl(&member) };
                attr
            }
            Node::Supervisor(path) => {
                let shared = view.supervisor()?.ok_or(Error::NotFound)?;
                Attr::from_meta(&view.shared_stat(&shared, path)?)
            }
            Node::StoreIndex => {
                let shared = view.index_file()?.ok_or(Error::NotFound)?;
                Attr::from_meta(&view.shared_stat(&shared, &RelPath::root())?)
            }
            Node::Document(document) => return self.document_attr(document),
            Node::WorkersIndex => {
                return self.document_attr(&Document::Group(Group::Swarm, Report::Index));
            }
        };
        // The kernel lists a directory again once its attributes have expired. Together, they and
        // the list of workers must not be older than the list may be.
        if node.lists_workers() {
            ttl = ttl.min(view.fresh_for());
        }
        Ok(AttrReply { attr, version: None, ttl })
    }

    fn document_attr(&self, document: &Document) -> Result<AttrReply> {
        let version = self.versions.current(&self.renderer, document)?;
        Ok(AttrReply { attr: version.attr, version: Some(version), ttl: TTL_VERSION })
    }

    /// Returns a value that stays the same as long as the entries of a directory do, and the time
    /// for which that is certain. Returns `None` if only listing the directory shows a change.
    pub(super) fn listing_key(&self, node: &Node) -> Result<Option<CurrentKey>> {
        let view = self.view();
        let always = |key| Ok(Some((key, Duration::MAX)));
        let of_workers =
            |has_file: bool| always(listing_key(&(view.visible().arrangement, has_file)));
        match node {
            // A worker's directory also lists links to other workers.
            Node::Worker(worker) => {
                let visible = view.visible();
                let has_children = !visible.children(worker).is_empty();
                let has_original = visible.original(worker).is_some();
                self.stored_listing_key(worker, &RelPath::root(), (has_children, has_original))
            }
            Node::WorkerPath { worker, path } => {
                self.stored_listing_key(worker, path, (false, false))
            }
            Node::Workers => of_workers(!matches!(view.index_file(), Ok(None))),
            Node::Runs | Node::Run(_) | Node::RunWorkers(_) | Node::Children(_) => {
                of_workers(false)
            }
            Node::Facet(path) if !path.needs_digest() => {
                always(listing_key(&view.visible().generation))
            }
            _ => Ok(None),
        }
    }

    /// Returns the key of a directory of a worker, unless a change may leave its times as they are.
    fn stored_listing_key(
        &self,
        worker: &Name,
        path: &RelPath,
        links: (bool, bool),
    ) -> Result<Option<CurrentKey>> {
        let view = self.view();
        let member = view.worker(worker)?;
        let meta = view.stat_without_acl(&member, path)?;
        let is_certain = view.is_listing_cacheable(&member) && meta.ctime.is_past_tick();
        let state = (meta.identity, meta.mtime, meta.ctime, links);
        Ok(is_certain.then(|| (listing_key(&state), view.listing_ttl(&member))))
    }

    /// Returns the entries of a directory, sorted by name.
    pub(super) fn list(&self, node: &Node) -> Result<Vec<NamedNode>> {
        let view = self.view();
        let mut listed = match node {
            Node::Root => {
                let mut listed = listed_reports(|report| Document::Group(Group::Swarm, report));
                let folder =
                    |text, node| Name::new(text).map(|name| (name, node, NodeKind::Folder));
                let readme = Node::Document(Document::Readme);
                listed.extend([folder(WORKERS, Node::Workers)?, folder(RUNS, Node::Runs)?]);
                listed.push(folder(BY, Node::Facet(FacetPath::Selection(Selection::default())))?);
                for kind in QueryKind::ALL {
                    listed.push(folder(
                        kind.name(),
                        Node::QueryDir(Scope::Swarm, kind.default_dir()),
                    )?);
                }
                listed.push((Name::new(README)?, readme, NodeKind::File));
                // After an error it is listed too, so that opening it reports the error.
                if !matches!(view.supervisor(), Ok(None)) {
                    listed.push(folder(SUPERVISOR, Node::Supervisor(RelPath::root()))?);
                }
                listed
            }
            Node::Workers => {
                let visible = view.visible();
                let mut listed = worker_entries(&visible.members, NodeKind::Folder, Node::Worker);
                let index = Name::new(INDEX)?;
                // A worker with that name takes precedence.
                if visible.get(&index).is_none() && !matches!(view.index_file(), Ok(None)) {
                    listed.push((shown_name(&index, is_index), Node::StoreIndex, NodeKind::File));
                }
                listed.push((index, Node::WorkersIndex, NodeKind::File));
                listed
            }
            Node::Runs => {
                let runs = &view.visible().runs;
                let mut listed: Vec<NamedNode> = runs
                    .keys()
                    .map(|name| (name.clone(), Node::Run(name.clone()), NodeKind::Folder))
                    .collect();
                if !listed.is_empty() {
                    listed.push((Name::new(LATEST)?, Node::Latest, NodeKind::Link));
                }
                listed
            }
            Node::Since => {
                let cursor = |cursor: Cursor| {
                    let node = Node::Document(Document::Since(cursor));
                    Name::new(cursor.to_string()).map(|name| (name, node, NodeKind::File))
                };
                vec![cursor(Cursor::ALL)?, cursor(Cursor::Now)?]
            }
            Node::Run(run) => {
                view.visible().runs.get(run).ok_or(Error::NotFound)?;
                let mut listed =
                    listed_reports(|report| Document::Group(Group::Run(run.clone()), report));
                listed.push((Name::new(WORKERS)?, Node::RunWorkers(run.clone()), NodeKind::Folder));
                listed
            }
            Node::RunWorkers(run) => {
                let visible = view.visible();
                let members = &visible.runs.get(run).ok_or(Error::NotFound)?.members;
                worker_entries(members, NodeKind::Link, |name| Node::RunWorker(run.clone(), name))
            }
            Node::Worker(worker) => {
                let member = view.worker(worker)?;
                let entries = view.list(&member, &RelPath::root())?;
                let has_edits = view.has_edits(&member, &entries, Deadline::never());
                let mut listed = stored_entries(entries, |name| Node::WorkerPath {
                    worker: worker.clone(),
                    path: name.into(),
                });
                listed.iter_mut().for_each(|(name, ..)| *name = shown_name(name, is_generated));
                listed.extend(listed_reports(|report| Document::Worker(worker.clone(), report)));
                // After an error it is listed too, so that opening it reports the error.
                if !matches!(has_edits, Ok(false)) {
                    let changes = Node::Document(Document::Changes(worker.clone(), None));
                    listed.push((Name::new(CHANGES)?, changes, NodeKind::File));
                }
                if !view.visible().children(worker).is_empty() {
                    listed.push((
                        Name::new(CHILDREN)?,
                        Node::Children(worker.clone()),
                        NodeKind::Folder,
                    ));
                }
                if let Some(original) = view.visible().original(worker) {
                    let link = Node::Original(worker.clone(), original);
                    listed.push((Name::new(CONTINUES)?, link, NodeKind::Link));
                }
                listed
            }
            Node::Children(worker) => {
                let visible = view.visible();
                let children = visible.children(worker);
                worker_entries(children, NodeKind::Link, |name| Node::Child(worker.clone(), name))
            }
            Node::Facet(path) => self.list_facet(path)?,
            Node::QueryDir(_, dir) => {
                let how_to = Node::Document(Document::QueryReadme(dir.kind()));
                vec![(Name::new(README)?, how_to, NodeKind::File)]
            }
            Node::WorkerPath { worker, path } => {
                stored_entries(view.list(&*view.worker(worker)?, path)?, |name| Node::WorkerPath {
                    worker: worker.clone(),
                    path: path.join(&name),
                })
            }
            Node::Supervisor(path) => {
                let shared = view.supervisor()?.ok_or(Error::NotFound)?;
                let entries = view.shared_list(&shared, path)?;
                stored_entries(entries, |name| Node::Supervisor(path.join(&name)))
            }
            Node::Latest
            | Node::RunWorker(..)
            | Node::Child(..)
            | Node::Original(..)
            | Node::StoreIndex
            | Node::Document(_)
            | Node::WorkersIndex => return Err(Error::NotADirectory),
        };
        listed.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(listed)
    }

    /// Returns the target of a symlink, relative to its directory.
    pub(super) fn link_target(&self, node: &Node) -> Result<Vec<u8>> {
        match node {
            Node::Latest => {
                let visible = self.view().visible();
                let in_runs = visible.runs.iter().flat_map(|(name, run)| {
                    run.members.iter().map(move |member| (name, member.clone()))
                });
                let (runs, members): (Vec<&Name>, Vec<Arc<Member>>) = in_runs.unzip();
                let latest = self.analyzer().last_writes(&members).into_iter().zip(runs).max();
                latest.map(|(_, run)| run.as_bytes().to_vec()).ok_or(Error::NotFound)
            }
            Node::Facet(path) => facet_link_target(path),
            Node::Child(_, child) => {
                Ok([b"../../", shown_name(child, is_index).as_bytes()].concat())
            }
            Node::Original(_, original) => {
                Ok([b"../", shown_name(original, is_index).as_bytes()].concat())
            }
            Node::RunWorker(_, worker) => {
                Ok([b"../../../workers/", shown_name(worker, is_index).as_bytes()].concat())
            }
            _ => Err(Error::InvalidName),
        }
    }

    pub(super) fn complete_id(&self, folder: &Node, id: &Name) -> Result<Name> {
        let is_facet = match folder {
            Node::Workers | Node::RunWorkers(_) | Node::Children(_) => false,
            Node::Facet(FacetPath::Selection(selection)) if !selection.is_all() => true,
            _ => return Err(Error::NotFound),
        };
        let name = &self.view().visible().find(id)?.name;
        Ok(if is_facet { self.facet_link_name(name) } else { shown_name(name, is_index) })
    }

    pub(super) fn open(&self, node: &Node) -> Result<Box<dyn File>> {
        let view = self.view();
        match node {
            Node::WorkerPath { worker, path } => view.open(&*view.worker(worker)?, path),
            Node::Supervisor(path) => {
                view.shared_open(&view.supervisor()?.ok_or(Error::NotFound)?, path)
            }
            Node::StoreIndex => {
                view.shared_open(&view.index_file()?.ok_or(Error::NotFound)?, &RelPath::root())
            }
            _ => Err(Error::IsADirectory),
        }
    }

    pub(super) fn bytes(&self, node: &Node, version: &Version) -> Result<Arc<[u8]>> {
        let document = node.document().ok_or(Error::IsADirectory)?;
        self.versions.bytes(&self.renderer, &document, version)
    }

    fn run_newest(&self, run: &Name) -> Result<Time> {
        let visible = self.view().visible();
        let run = visible.runs.get(run).ok_or(Error::NotFound)?;
        let last_writes = self.analyzer().last_writes(&run.members);
        Ok(last_writes.into_iter().flatten().max().unwrap_or_default())
    }
}

/// Returns the node of a document, or else of a query directory over `scope`.
fn document_or_query_dir(
    document: Option<Document>,
    dir: Option<QueryDir>,
    scope: Scope,
) -> Result<Node> {
    document
        .map(Node::Document)
        .or_else(|| dir.map(|dir| Node::QueryDir(scope, dir)))
        .ok_or(Error::NotFound)
}

fn worker_entries(
    members: &[Arc<Member>],
    kind: NodeKind,
    node: impl Fn(Name) -> Node,
) -> Vec<NamedNode> {
    members
        .iter()
        .map(|member| (shown_name(&member.name, is_index), node(member.name.clone()), kind))
        .collect()
}

fn stored_entries(entries: Vec<DirEntry>, node: impl Fn(Name) -> Node) -> Vec<NamedNode> {
    entries
        .into_iter()
        .map(|DirEntry { name, kind: stored_kind }| {
            let node = node(name.clone());
            (name, node, kind(stored_kind))
        })
        .collect()
}

fn listed_reports(document: impl Fn(Report) -> Document) -> Vec<NamedNode> {
    let listed = Report::LISTED.into_iter().filter_map(|(text, report)| {
        let name = Name::new(text).ok()?;
        Some((name, Node::Document(document(report)), NodeKind::File))
    });
    listed.collect()
}

fn kind(kind: Kind) -> NodeKind {
    if kind == Kind::Folder { NodeKind::Folder } else { NodeKind::File }
}

fn listing_key(state: &impl Hash) -> ListingKey {
    let mut hash = blake3::Hasher::new();
    hash_value(&mut hash, state);
    ListingKey::from_le_bytes(digest(&hash))
}
