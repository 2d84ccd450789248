//! How long a request may take, told before it is answered.

use super::node::Node;
use super::{Ino, Tree, name_of};
use crate::render::Generated;
use crate::render::name_collision::is_generated;

/// How long a request may take: who answers it goes by that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// As long as a stat.
    Stat,
    /// As long as it takes to make a generated file.
    Render,
    /// As long as it takes to search the files of all workers.
    Search,
}

impl Tree {
    /// How long a lookup may take.
    pub fn lookup_pace(&self, parent: Ino, name: &[u8]) -> Pace {
        match (self.node(parent), name_of(name)) {
            (Ok(Node::Own { .. } | Node::Worker(_)), _) if self.makes_folders() => Pace::Render,
            (Ok(Node::Own { .. } | Node::Supervisor(_)), _) => Pace::Stat,
            (Ok(Node::Worker(_)), Ok(name)) if !is_generated(&name) => Pace::Stat,
            // What is there without a search, and what tools look for by themselves, needs no thread of its own.
            (Ok(folder @ Node::Ask(..)), Ok(name)) => {
                self.namespace.child(&folder, &name).map_or(Pace::Render, |node| pace_of(&node))
            }
            _ => Pace::Render,
        }
    }

    /// How long getattr, opendir and readdir of `ino` may take.
    pub fn pace(&self, ino: Ino) -> Pace {
        let Ok(node) = self.node(ino) else { return Pace::Stat };
        let is_own = matches!(node, Node::Own { .. } | Node::Supervisor(_)) && !self.makes_folders();
        if is_own || node.generated().is_some() { Pace::Stat } else { Pace::Render }
    }

    /// How long opening the folder `ino` may take.
    pub fn open_folder_pace(&self, ino: Ino) -> Pace {
        let stored = self.node(ino).is_ok_and(|node| matches!(node, Node::Own { .. } | Node::Worker(_)));
        if stored && !self.makes_folders() { Pace::Stat } else { Pace::Render }
    }

    /// How long opening `ino` may take.
    pub fn open_pace(&self, ino: Ino) -> Pace {
        match self.node(ino) {
            Ok(node) if node.generated().is_some() => pace_of(&node),
            Ok(_) if self.makes_folders() => Pace::Render,
            _ => Pace::Stat,
        }
    }

    fn makes_folders(&self) -> bool {
        self.namespace.view().makes_folders()
    }
}

/// How long it may take to make a generated file.
fn pace_of(node: &Node) -> Pace {
    let is_search = matches!(
        node,
        Node::Generated(_, Generated::Grep(_) | Generated::Search(_) | Generated::Focus(_) | Generated::Compare(_))
    );
    if is_search { Pace::Search } else { Pace::Render }
}
