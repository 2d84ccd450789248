//! `by/`: workers by what they have in common. A folder of a value lists links to its workers and nothing deeper; further
//! facets, `limit/N` and `grep/` are asked there.

use super::NodeKind;
use super::attr::Attr;
use super::namespace::{Listed, Namespace};
use super::node::Node;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::render::Scope;
use crate::render::ask::Ask;
use crate::render::facets::{Facet, Selection};
use crate::render::own::{behind, is_index, shown};

/// The folder in which a number is asked.
const LIMIT: &str = "limit";

/// A place in `by/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum By {
    /// `by/` itself, which lists the facets; a folder of a value, or of the latest, which lists links.
    Selection(Selection),
    /// The folder of a facet, which lists its values.
    Facet(Selection, Facet),
    /// `limit/`, which lists nothing.
    Limit(Selection),
    /// A link to a worker.
    Worker(Selection, Name),
}

/// Whether a name is ours beside links.
fn is_ours(name: &Name) -> bool {
    Facet::named(name).is_some() || name.as_bytes() == LIMIT.as_bytes() || Ask::named(name).is_some()
}

impl Namespace {
    /// The place under `name`.
    pub(super) fn by_child(&self, by: &By, name: &Name) -> Result<Node> {
        match (by, Ask::named(name)) {
            (By::Selection(selection), Some(ask)) if !selection.is_all() => {
                Ok(Node::Ask(Scope::Selected(selection.clone()), ask))
            }
            _ => self.by_place(by, name).map(Node::By),
        }
    }

    fn by_place(&self, by: &By, name: &Name) -> Result<By> {
        match by {
            By::Selection(selection) => {
                if let Some(facet) = Facet::named(name).filter(|_| !selection.is_limited()) {
                    return Ok(By::Facet(selection.clone(), facet));
                }
                if selection.is_all() {
                    return Err(Error::NotFound);
                }
                if name.as_bytes() == LIMIT.as_bytes() && !selection.is_limited() {
                    return Ok(By::Limit(selection.clone()));
                }
                let worker = behind(name, is_ours).and_then(|name| behind(&name, is_index)).ok_or(Error::NotFound)?;
                let is_there = self.renderer().is_selected(selection, &worker);
                is_there.then(|| By::Worker(selection.clone(), worker)).ok_or(Error::NotFound)
            }
            By::Facet(selection, facet) => Ok(By::Selection(self.renderer().pick(selection, *facet, name)?)),
            By::Limit(selection) => {
                let digits = std::str::from_utf8(name.as_bytes()).ok().filter(|text| !text.starts_with('+'));
                // One number has one name.
                let most =
                    digits.and_then(|text| text.parse().ok()).filter(|n: &usize| Some(&*n.to_string()) == digits);
                most.and_then(|most| selection.latest(most)).map(By::Selection).ok_or(Error::NotFound)
            }
            By::Worker(..) => Err(Error::NotADirectory),
        }
    }

    pub(super) fn by_attr(&self, by: &By) -> Result<Attr> {
        let view = self.view();
        let root = view.root_meta()?;
        match by {
            By::Selection(selection) if !selection.is_all() => {
                Ok(Attr::of_folder(&root, self.renderer().last_write_of(selection)))
            }
            By::Selection(_) | By::Facet(..) | By::Limit(_) => {
                Ok(Attr::of_folder(&root, view.newest(&view.visible())?))
            }
            By::Worker(_, worker) => {
                let newest = view.fingerprint(&*view.worker(worker)?, false)?.newest_mtime;
                Ok(Attr::of_link(&by_target(by)?, &root, newest))
            }
        }
    }

    pub(super) fn by_list(&self, by: &By) -> Result<Vec<Listed>> {
        let folder = |name, by| (name, Node::By(by), NodeKind::Folder);
        match by {
            By::Selection(selection) if selection.is_all() => {
                let facet = |facet: Facet| Ok(folder(Name::new(facet.as_str())?, By::Facet(selection.clone(), facet)));
                Facet::ALL.into_iter().map(facet).collect()
            }
            By::Selection(selection) => {
                let link = |name: Name| {
                    let node = Node::By(By::Worker(selection.clone(), name.clone()));
                    (shown(&shown(&name, is_index), is_ours), node, NodeKind::Link)
                };
                Ok(self.renderer().selected(selection).iter().map(|member| link(member.name.clone())).collect())
            }
            By::Facet(selection, facet) => {
                let picks = self.renderer().picks(selection, *facet);
                Ok(picks.into_iter().map(|(name, picked)| folder(name, By::Selection(picked))).collect())
            }
            By::Limit(_) => Ok(Vec::new()),
            By::Worker(..) => Err(Error::NotADirectory),
        }
    }
}

/// Where a link in `by/` leads, relative to its folder.
pub(super) fn by_target(by: &By) -> Result<Vec<u8>> {
    let By::Worker(selection, worker) = by else { return Err(Error::InvalidName) };
    let levels = 1 + 2 * (selection.depth() + usize::from(selection.is_limited()));
    let up = b"../".repeat(levels);
    Ok([&up, &b"workers/"[..], shown(worker, is_index).as_bytes()].concat())
}
