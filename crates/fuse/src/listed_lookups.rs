//! The lookups that the kernel counts when it receives a listing.

use swarmletfs_tree::tree::{Ino, Tree};

/// Lookups of the entries of a listing that is being written. Gives them back if it is not sent.
pub(super) struct ListedLookups<'t> {
    tree: &'t Tree,
    inos: Vec<Ino>,
}

impl<'t> ListedLookups<'t> {
    pub(super) fn new(tree: &'t Tree) -> ListedLookups<'t> {
        ListedLookups { tree, inos: Vec::new() }
    }

    /// Takes over a lookup that the tree has counted.
    pub(super) fn push(&mut self, ino: Ino) {
        self.inos.push(ino);
    }

    /// Counts a lookup of an inode that comes without attributes.
    pub(super) fn count(&mut self, ino: Ino) {
        self.tree.count_listed(ino);
        self.inos.push(ino);
    }

    pub(super) fn pop(&mut self) {
        self.inos.pop().inspect(|ino| self.tree.forget(*ino, 1));
    }

    pub(super) fn leave_to_kernel(mut self) {
        self.inos.clear();
    }
}

impl Drop for ListedLookups<'_> {
    fn drop(&mut self) {
        for ino in &self.inos {
            self.tree.forget(*ino, 1);
        }
    }
}
