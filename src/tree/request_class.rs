//! Classifies a request by its cost before it is answered.

use super::node::Node;
use super::{Ino, Tree, parse_name};
use crate::route::Generated;
use crate::route::shown_path::is_generated;

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
    /// Classifies a lookup.
    pub fn classify_lookup(&self, parent: Ino, name: &[u8]) -> RequestClass {
        match (self.node(parent), parse_name(name)) {
            (Ok(Node::WorkerPath { .. } | Node::Worker(_)), _) if self.has_virtual_folders() => RequestClass::Render,
            (Ok(Node::WorkerPath { .. } | Node::Supervisor(_)), _) => RequestClass::Stat,
            (Ok(Node::Worker(_)), Ok(name)) if !is_generated(&name) => RequestClass::Stat,
            // Resolving decides: a name that needs no search, such as those that tools probe for,
            // gets no search thread.
            (Ok(folder @ Node::QueryDir(..)), Ok(name)) => {
                self.namespace.child(&folder, &name).map_or(RequestClass::Render, |node| generation_class(&node))
            }
            _ => RequestClass::Render,
        }
    }

    /// Classifies getattr, readdir and their like on `ino`.
    pub fn classify(&self, ino: Ino) -> RequestClass {
        let Ok(node) = self.node(ino) else { return RequestClass::Stat };
        let is_stored = matches!(node, Node::WorkerPath { .. } | Node::Supervisor(_)) && !self.has_virtual_folders();
        if is_stored || node.generated().is_some() { RequestClass::Stat } else { RequestClass::Render }
    }

    /// Classifies opening the folder `ino`.
    pub fn classify_opendir(&self, ino: Ino) -> RequestClass {
        let is_stored = self.node(ino).is_ok_and(|node| matches!(node, Node::WorkerPath { .. } | Node::Worker(_)));
        if is_stored && !self.has_virtual_folders() { RequestClass::Stat } else { RequestClass::Render }
    }

    /// Classifies opening the file `ino`.
    pub fn classify_open(&self, ino: Ino) -> RequestClass {
        match self.node(ino) {
            Ok(node) if node.generated().is_some() => generation_class(&node),
            Ok(_) if self.has_virtual_folders() => RequestClass::Render,
            _ => RequestClass::Stat,
        }
    }

    fn has_virtual_folders(&self) -> bool {
        self.namespace.view().has_virtual_folders()
    }
}

/// Classifies the generation of a file.
fn generation_class(node: &Node) -> RequestClass {
    let is_search = matches!(
        node,
        Node::Generated(_, Generated::Grep(_) | Generated::Search(_) | Generated::Focus(_) | Generated::Compare(_))
    );
    if is_search { RequestClass::Search } else { RequestClass::Render }
}
