//! Stores in an object store, served by SeaweedFS: the same tree as from a folder, one version of
//! each object, clear errors, and recording through a spool that loses nothing.

mod catalog;
mod emulators;
mod expiry;
mod faults;
mod keys;
mod other_providers;
mod profiles;
mod proxy;
mod recorded;
mod recorder;
mod same_tree;
pub mod server;
mod synced;
mod versions;
mod writes;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use swarmletfs_base::store::Store;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

/// Returns the tree of a store, without caching.
pub fn tree(store: impl Store) -> Tree {
    let source = Source::open_store(Arc::new(store), Path::new("s3://swarm"), None, None).unwrap();
    let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    Tree::new(View::new(vec![source], fresh, Filter::default()).unwrap(), Settings::default())
}
