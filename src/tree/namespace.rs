//! The namespace: which names there are, what they stand for, and their attributes, listings and bytes.
//!
//! Names that are asked and not listed (`evidence.4k.txt`) answer in [`Namespace::child`] and are in no listing.

use std::sync::Arc;
use std::time::Duration;

use super::attr::{Attr, Ident};
use super::by::{By, by_target};
use super::inode::Signature;
use super::node::Node;
use super::versions::{Version, Versions};
use super::{NodeKind, TTL, TTL_VERSION};
use crate::error::{Error, Result};
use crate::name::{Name, RelPath};
use crate::render::ask::{self, Ask};
use crate::render::facets::Selection;
use crate::render::own::{CHILDREN, INDEX, behind, is_generated, is_index, shown};
use crate::render::since::Cursor;
use crate::render::{Generated, LISTED, Renderer, Scope, grep, search};
use crate::store::{DirEntry, File, Kind, Time};
use crate::view::{Member, View};

const WORKERS: &str = "workers";
const RUNS: &str = "runs";
const SUPERVISOR: &str = "supervisor";
const LATEST: &str = "latest";
const README: &str = "README.md";
const SINCE: &str = "since";
const BY: &str = "by";

pub(super) type Listed = (Name, Node, NodeKind);

/// What a node is, and how long that may be believed.
pub(super) struct Told {
    pub(super) attr: Attr,
    /// Of a generated file.
    pub(super) version: Option<Arc<Version>>,
    pub(super) ttl: Duration,
}

/// A folder that lies in the store.
pub(super) struct Stored {
    pub(super) ident: Ident,
    /// What its entries are to be believed by, and how long, where they may be kept.
    pub(super) kept: Option<(Signature, Duration)>,
}

/// The tree's names over a renderer and its view.
pub(super) struct Namespace {
    renderer: Renderer,
    versions: Versions,
}

impl Namespace {
    pub(super) fn new(renderer: Renderer) -> Namespace {
        Namespace { renderer, versions: Versions::new() }
    }

    /// Keeps no bytes of generated files any more.
    #[cfg(test)]
    pub(super) fn evict(&self) {
        self.versions.evict();
    }

    /// What it shows.
    pub(super) fn view(&self) -> &View {
        self.renderer.view()
    }

    pub(super) fn renderer(&self) -> &Renderer {
        &self.renderer
    }

    pub(super) fn is_behind(&self) -> bool {
        self.renderer.is_behind()
    }

    pub(super) fn catch_up(&self) -> bool {
        self.renderer.catch_up()
    }

    /// The node under `name` in the folder `parent`. Whether there is something behind it, its attributes tell.
    pub(super) fn child(&self, parent: &Node, name: &Name) -> Result<Node> {
        let text = std::str::from_utf8(name.as_bytes()).unwrap_or_default();
        match parent {
            Node::Root => match text {
                README => Ok(Node::Generated(Scope::Swarm, Generated::Readme)),
                WORKERS => Ok(Node::Workers),
                RUNS => Ok(Node::Runs),
                SUPERVISOR => Ok(Node::Supervisor(RelPath::root())),
                SINCE => Ok(Node::Since),
                BY => Ok(Node::By(By::Selection(Selection::default()))),
                _ => asked(Scope::Swarm, name).or_else(|error| at_root(name).ok_or(error)),
            },
            Node::Since => {
                let cursor = Cursor::parse(text).map_err(|_| Error::NotFound)?;
                Ok(Node::Generated(Scope::Swarm, Generated::Since(cursor)))
            }
            Node::Workers if text == INDEX => Ok(Node::WorkersIndex),
            Node::Workers => match behind(name, is_index).filter(|own| self.view().visible().get(own).is_some()) {
                Some(worker) => Ok(Node::Worker(worker)),
                None if behind(name, is_index).is_some_and(|own| is_index(&own)) => Ok(Node::StoreIndex),
                None => Err(Error::NotFound),
            },
            Node::Runs if text == LATEST => Ok(Node::Latest),
            Node::Runs => {
                let known = self.view().visible().runs.contains_key(name);
                if known { Ok(Node::Run(name.clone())) } else { Err(Error::NotFound) }
            }
            Node::Run(run) if text == WORKERS => Ok(Node::RunWorkers(run.clone())),
            Node::Run(run) => asked(Scope::Run(run.clone()), name),
            Node::RunWorkers(run) => {
                let worker = behind(name, is_index).ok_or(Error::NotFound)?;
                let visible = self.view().visible();
                let mut members = visible.runs.get(run).ok_or(Error::NotFound)?.members.iter();
                members.find(|member| member.name == worker).ok_or(Error::NotFound)?;
                Ok(Node::RunWorker(run.clone(), worker))
            }
            Node::Worker(worker) if text == CHILDREN => Ok(Node::Children(worker.clone())),
            Node::Children(worker) => {
                let child = behind(name, is_index).ok_or(Error::NotFound)?;
                let visible = self.view().visible();
                visible.children(worker).iter().find(|member| member.name == child).ok_or(Error::NotFound)?;
                Ok(Node::Child(worker.clone(), child))
            }
            Node::Worker(worker) => asked(Scope::Worker(worker.clone()), name).or_else(|_| {
                let own = behind(name, is_generated).ok_or(Error::NotFound)?;
                Ok(Node::Own { worker: worker.clone(), path: own.into() })
            }),
            Node::Ask(scope, ask) => {
                let file = ask.file(name).ok_or(Error::NotFound)?;
                let scope = if matches!(file, Generated::HowTo(_)) { &Scope::Swarm } else { scope };
                Ok(Node::Generated(scope.clone(), file))
            }
            Node::Own { worker, path } => Ok(Node::Own { worker: worker.clone(), path: path.join(name) }),
            Node::By(by) => self.by_child(by, name),
            Node::Supervisor(path) => Ok(Node::Supervisor(path.join(name))),
            Node::Latest
            | Node::RunWorker(..)
            | Node::Child(..)
            | Node::StoreIndex
            | Node::Generated(..)
            | Node::WorkersIndex => Err(Error::NotADirectory),
        }
    }

    /// What a node is now. [`Error::NotFound`] if nothing is behind it.
    pub(super) fn attr(&self, node: &Node) -> Result<Told> {
        let view = self.view();
        let mut ttl = TTL;
        let attr = match node {
            Node::Root | Node::Workers | Node::Runs | Node::Since | Node::Ask(Scope::Swarm, _) => {
                Attr::of_folder(&view.root_meta()?, view.newest(&view.visible())?)
            }
            Node::Run(run) | Node::RunWorkers(run) | Node::Ask(Scope::Run(run), _) => {
                Attr::of_folder(&view.root_meta()?, self.run_newest(run)?)
            }
            Node::Children(worker) => {
                let member = view.worker(worker)?;
                let visible = view.visible();
                let newest = visible.children(worker).iter().map(|child| child.entry.last_write()).max();
                Attr::of_folder(&view.stat(&member, &RelPath::root())?, newest.ok_or(Error::NotFound)?)
            }
            Node::Latest | Node::RunWorker(..) | Node::Child(..) => {
                let newest = match node {
                    Node::RunWorker(_, worker) | Node::Child(_, worker) => {
                        view.fingerprint(&*view.worker(worker)?, false)?.newest_mtime
                    }
                    _ => view.newest(&view.visible())?,
                };
                Attr::of_link(&self.link_target(node)?, &view.root_meta()?, newest)
            }
            Node::Worker(worker) | Node::Ask(Scope::Worker(worker), _) => {
                let member = view.worker(worker)?;
                let attr = Attr::of_source(&view.stat(&member, &RelPath::root())?);
                let attr = Attr { mtime: view.fingerprint(&member, true)?.newest_mtime, ..attr };
                ttl = view.holds(&member);
                attr
            }
            Node::By(by) => self.by_attr(by)?,
            Node::Ask(Scope::Workers(_), _) => return Err(Error::NotFound),
            Node::Ask(Scope::Selected(selection), _) => self.by_attr(&By::Selection(selection.clone()))?,
            Node::Own { worker, path } => {
                let member = view.worker(worker)?;
                let attr = Attr::of_source(&view.stat(&member, path)?);
                ttl = view.holds(&member);
                attr
            }
            Node::Supervisor(path) => {
                let place = view.supervisor()?.ok_or(Error::NotFound)?;
                Attr::of_source(&view.shared_stat(&place, path)?)
            }
            Node::StoreIndex => {
                let place = view.index_file()?.ok_or(Error::NotFound)?;
                Attr::of_source(&view.shared_stat(&place, &RelPath::root())?)
            }
            Node::Generated(..) | Node::WorkersIndex => {
                let file = node.generated().ok_or(Error::IsADirectory)?;
                let version = self.versions.current(&self.renderer, &file)?;
                return Ok(Told { attr: version.attr, version: Some(version), ttl: TTL_VERSION });
            }
        };
        Ok(Told { attr, version: None, ttl })
    }

    /// What a worker's folder, or one in it, is now; `None` for all others.
    pub(super) fn stored_folder(&self, node: &Node) -> Result<Option<Stored>> {
        let view = self.view();
        let (worker, path) = match node {
            Node::Worker(worker) => (worker, &RelPath::root()),
            Node::Own { worker, path } => (worker, path),
            _ => return Ok(None),
        };
        let member = view.worker(worker)?;
        let attr = Attr::of_source(&view.stat_without_acl(&member, path)?);
        if attr.kind != NodeKind::Folder {
            return Err(Error::NotADirectory);
        }
        // What a worker's folder lists beside its own is one folder more where it has children.
        let more = matches!(node, Node::Worker(_)) && !view.visible().children(worker).is_empty();
        let kept = (attr.ctime.is_past_tick() && view.lists_by_folder(&member))
            .then(|| ((attr.mtime, attr.ctime, more.into()), view.lists_for(&member)));
        Ok(Some(Stored { ident: attr.ident, kept }))
    }

    /// The entries of a folder, sorted by name.
    pub(super) fn list(&self, node: &Node) -> Result<Vec<Listed>> {
        let view = self.view();
        let mut listed = match node {
            Node::Root => {
                let mut listed = listed_generated(&Scope::Swarm);
                let folder = |text, node| Name::new(text).map(|name| (name, node, NodeKind::Folder));
                let readme = Node::Generated(Scope::Swarm, Generated::Readme);
                listed.extend([folder(WORKERS, Node::Workers)?, folder(RUNS, Node::Runs)?]);
                listed.push(folder(BY, Node::By(By::Selection(Selection::default())))?);
                for kind in ask::Kind::ALL {
                    listed.push(folder(kind.name(), Node::Ask(Scope::Swarm, kind.plain()))?);
                }
                listed.push((Name::new(README)?, readme, NodeKind::File));
                // Where that cannot be told it is listed, and who looks closer is told why.
                if !matches!(view.supervisor(), Ok(None)) {
                    listed.push(folder(SUPERVISOR, Node::Supervisor(RelPath::root()))?);
                }
                listed
            }
            Node::Workers => {
                let worker = |member: &Arc<Member>| {
                    (shown(&member.name, is_index), Node::Worker(member.name.clone()), NodeKind::Folder)
                };
                let visible = view.visible();
                let mut listed: Vec<Listed> = visible.members.iter().map(worker).collect();
                let index = Name::new(INDEX)?;
                // A worker of that name goes first.
                if visible.get(&index).is_none() && !matches!(view.index_file(), Ok(None)) {
                    listed.push((shown(&index, is_index), Node::StoreIndex, NodeKind::File));
                }
                listed.push((index, Node::WorkersIndex, NodeKind::File));
                listed
            }
            Node::Runs => {
                let visible = view.visible();
                let run = |name: &Name| (name.clone(), Node::Run(name.clone()), NodeKind::Folder);
                let mut listed: Vec<Listed> = visible.runs.keys().map(run).collect();
                if !listed.is_empty() {
                    listed.push((Name::new(LATEST)?, Node::Latest, NodeKind::Link));
                }
                listed
            }
            Node::Since => {
                let cursor = |cursor: Cursor| {
                    let node = Node::Generated(Scope::Swarm, Generated::Since(cursor));
                    Name::new(cursor.to_string()).map(|name| (name, node, NodeKind::File))
                };
                vec![cursor(Cursor::ALL)?, cursor(Cursor::Now)?]
            }
            Node::Run(run) => {
                view.visible().runs.get(run).ok_or(Error::NotFound)?;
                let mut listed = listed_generated(&Scope::Run(run.clone()));
                listed.push((Name::new(WORKERS)?, Node::RunWorkers(run.clone()), NodeKind::Folder));
                listed
            }
            Node::RunWorkers(run) => {
                let visible = view.visible();
                let link = |member: &Arc<Member>| {
                    let node = Node::RunWorker(run.clone(), member.name.clone());
                    (shown(&member.name, is_index), node, NodeKind::Link)
                };
                visible.runs.get(run).ok_or(Error::NotFound)?.members.iter().map(link).collect()
            }
            Node::Worker(worker) => {
                let entries = view.list(&*view.worker(worker)?, &RelPath::root())?;
                let own = |entry: DirEntry| {
                    let path = entry.name.clone().into();
                    let node = Node::Own { worker: worker.clone(), path };
                    (shown(&entry.name, is_generated), node, kind(entry.kind))
                };
                let mut listed: Vec<Listed> = entries.into_iter().map(own).collect();
                listed.extend(listed_generated(&Scope::Worker(worker.clone())));
                if !view.visible().children(worker).is_empty() {
                    listed.push((Name::new(CHILDREN)?, Node::Children(worker.clone()), NodeKind::Folder));
                }
                listed
            }
            Node::Children(worker) => {
                let link = |member: &Arc<Member>| {
                    let node = Node::Child(worker.clone(), member.name.clone());
                    (shown(&member.name, is_index), node, NodeKind::Link)
                };
                view.visible().children(worker).iter().map(link).collect()
            }
            Node::By(by) => self.by_list(by)?,
            Node::Ask(_, ask) => {
                let how_to = Node::Generated(Scope::Swarm, Generated::HowTo(ask.kind()));
                vec![(Name::new(README)?, how_to, NodeKind::File)]
            }
            Node::Own { worker, path } => {
                let entries = view.list(&*view.worker(worker)?, path)?;
                let own = |entry: DirEntry| {
                    let node = Node::Own { worker: worker.clone(), path: path.join(&entry.name) };
                    (entry.name, node, kind(entry.kind))
                };
                entries.into_iter().map(own).collect()
            }
            Node::Supervisor(path) => {
                let place = view.supervisor()?.ok_or(Error::NotFound)?;
                let entries = view.shared_list(&place, path)?;
                let note = |entry: DirEntry| {
                    let node = Node::Supervisor(path.join(&entry.name));
                    (entry.name, node, kind(entry.kind))
                };
                entries.into_iter().map(note).collect()
            }
            Node::Latest
            | Node::RunWorker(..)
            | Node::Child(..)
            | Node::StoreIndex
            | Node::Generated(..)
            | Node::WorkersIndex => return Err(Error::NotADirectory),
        };
        listed.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(listed)
    }

    /// Where a link leads, relative to its folder.
    pub(super) fn link_target(&self, node: &Node) -> Result<Vec<u8>> {
        match node {
            Node::Latest => {
                let visible = self.view().visible();
                let in_runs =
                    visible.runs.iter().flat_map(|(name, run)| run.members.iter().map(move |one| (name, one.clone())));
                let (runs, members): (Vec<&Name>, Vec<Arc<Member>>) = in_runs.unzip();
                let latest = self.renderer.last_writes(&members).into_iter().zip(runs).max();
                latest.map(|(_, run)| run.as_bytes().to_vec()).ok_or(Error::NotFound)
            }
            Node::By(by) => by_target(by),
            Node::Child(_, child) => Ok([b"../../", shown(child, is_index).as_bytes()].concat()),
            Node::RunWorker(_, worker) => Ok([b"../../../workers/", shown(worker, is_index).as_bytes()].concat()),
            _ => Err(Error::InvalidName),
        }
    }

    /// The lines that match in the files at a node; `None` where no worker's files are.
    pub(super) fn grep(&self, node: &Node, query: &grep::Query) -> Result<Option<grep::Answer>> {
        let Some((scope, under)) = node.searched() else { return Ok(None) };
        self.renderer.grep(&scope, &grep::Query { under, ..query.clone() }).map(Some)
    }

    /// The passages that bear on words in the files at a node; `None` where no worker's files are.
    pub(super) fn search(&self, node: &Node, query: &search::Query) -> Result<Option<search::Answer>> {
        let Some((scope, under)) = node.searched() else { return Ok(None) };
        self.renderer.search(&scope, &search::Query { under, ..query.clone() }).map(Some)
    }

    /// Opens a file of the store.
    pub(super) fn open(&self, node: &Node) -> Result<Box<dyn File>> {
        let view = self.view();
        match node {
            Node::Own { worker, path } => view.open(&*view.worker(worker)?, path),
            Node::Supervisor(path) => view.shared_open(&view.supervisor()?.ok_or(Error::NotFound)?, path),
            Node::StoreIndex => view.shared_open(&view.index_file()?.ok_or(Error::NotFound)?, &RelPath::root()),
            _ => Err(Error::IsADirectory),
        }
    }

    /// The bytes of one version of a generated file.
    pub(super) fn bytes(&self, node: &Node, version: &Version) -> Result<Arc<[u8]>> {
        let file = node.generated().ok_or(Error::IsADirectory)?;
        self.versions.bytes(&self.renderer, &file, version)
    }

    /// The newest change among a run's workers.
    fn run_newest(&self, run: &Name) -> Result<Time> {
        let visible = self.view().visible();
        let run = visible.runs.get(run).ok_or(Error::NotFound)?;
        Ok(self.renderer.last_writes(&run.members).into_iter().flatten().max().unwrap_or_default())
    }
}

/// What a name asks for in a folder that stands for something.
fn asked(scope: Scope, name: &Name) -> Result<Node> {
    if let Some(file) = Generated::asked(name) {
        return Ok(Node::Generated(scope, file));
    }
    Ask::named(name).map(|ask| Node::Ask(scope, ask)).ok_or(Error::NotFound)
}

/// What a name asks for at the root alone.
fn at_root(name: &Name) -> Option<Node> {
    Ask::at_root(name).map(|ask| Node::Ask(Scope::Swarm, ask))
}

fn listed_generated(scope: &Scope) -> Vec<Listed> {
    let listed = LISTED.iter().filter_map(|(text, file)| {
        let name = Name::new(text).ok()?;
        Some((name, Node::Generated(scope.clone(), file.clone()), NodeKind::File))
    });
    listed.collect()
}

fn kind(kind: Kind) -> NodeKind {
    if kind == Kind::Folder { NodeKind::Folder } else { NodeKind::File }
}
