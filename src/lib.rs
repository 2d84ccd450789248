//! Mounts the recorded work of a swarm of agents as a read-only file system, and renders it within
//! a reader's budget.
//!
//! This crate is the program `swarmletfs` and its library. It runs on Linux. Most users need only
//! the program; the library is for Rust programs that read, mount or record a swarm in their own
//! process.
//!
//! # Reading
//!
//! [`Source`] opens a store, [`View`] restricts it to what one user may see, and [`Tree`] is the
//! directory tree of the view, without a mount:
//!
//! ```
//! use swarmletfs::tree::Symlinks;
//! use swarmletfs::{Filter, Freshness, Settings, Source, Tree, View};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let store = folder.path();
//! # std::fs::create_dir_all(store.join("workers/build-1"))?;
//! # std::fs::write(
//! #     store.join("workers/build-1/metadata.json"),
//! #     r#"{"worker_id": "build-1", "status": "failed", "error": "No space left on device"}"#,
//! # )?;
//! let source = Source::open(store)?;
//! let view = View::new(vec![source], Freshness::default(), Filter::default())?;
//! let tree = Tree::new(view, Settings::default());
//!
//! let opened = tree.with_path(b"summary", Symlinks::Follow, |place| place.leaf().open())?;
//! let bytes = tree.read(opened.fh, 0, 65_536, <[u8]>::to_vec)?;
//! assert!(String::from_utf8(bytes)?.contains("build-1: No space left on device"));
//! # Ok(())
//! # }
//! ```
//!
//! [`Renderer`] makes one generated file as bytes, and [`query`] answers searches as values.
//!
//! # Mounting
//!
//! [`fuse::mount`] mounts a [`Tree`], as `swarmletfs mount` does. It needs `/dev/fuse`, and
//! `fusermount3` if the process is not root, but not libfuse.
//!
//! # Recording
//!
//! [`mod@write`] records workers. Every change is whole or not made at all, and readers follow
//! it:
//!
//! ```
//! use swarmletfs::write::{CallEnd, Finish, NewWorker, Store};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let store = Store::init(folder.path().join("swarm"))?;
//! let worker = store.create_worker(NewWorker::new("Check the disks").run("48"))?;
//! let call = worker.begin_call("df", None)?;
//! call.end(CallEnd::exit_code(0))?;
//! worker.finish(Finish::completed().result("All disks are fine."))?;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! `mcp`, on by default, serves the tree through the Model Context Protocol (`swarmletfs mcp`) and
//! brings an asynchronous runtime. Without it, the library and all other commands are the same.
//!
//! # Versions
//!
//! Versions follow [semantic versioning](https://semver.org): before 1.0, a release that breaks
//! something raises the second number. Covered are the public items of this crate except
//! [`cli`], the command line, the paths of the tree, and the JSON with a schema in
//! `docs/`. The wording of files for people (`summary`, `evidence.txt`, help and errors) may change
//! in any release. [`cli`] is public for the program and the Python package.
//!
//! The crate needs the Rust version that its `Cargo.toml` states (1.91). A higher one is a change
//! of the second number, too, and is at least six months old.
//!
//! # Modules
//!
//! This crate has the commands and the adapters; what they build on lies in crates of their own:
//!
//! ```text
//! swarmletfs-base      names, errors, stores, texts, caches, and plain values such as Worker
//! swarmletfs-trace     formats: from a store to workers
//! swarmletfs-tree      the read-only tree without a kernel: views, facts, queries, reports, names
//! swarmletfs-record    changes of a store: recording workers, and logs of changes and of reads
//! swarmletfs-workspace what a worker changes in its view of a workspace, and how it is applied
//! swarmletfs-fuse      translates requests of the kernel
//! swarmletfs-mcp       serves the tree, and a workspace, over the Model Context Protocol
//! swarmletfs-sandbox   runs a command in its own view of a workspace, behind walls of the kernel
//! ```

#![warn(missing_docs)]

pub mod cli;
mod retention;
#[cfg(test)]
#[path = "../tests/support/scale.rs"]
#[allow(dead_code, unreachable_pub)]
mod scale;

pub use swarmletfs_base::{cache, deadline, error, model, name, store, text};
use swarmletfs_base::{digest, parallel, path_bytes};
pub use swarmletfs_fuse as fuse;
#[cfg(feature = "mcp")]
pub use swarmletfs_mcp as mcp;
use swarmletfs_record::read_log;
pub use swarmletfs_record::{audit, write};
use swarmletfs_sandbox as sandbox;
pub use swarmletfs_trace as trace;
use swarmletfs_workspace::{approval, draft};

use swarmletfs_tree::output;
pub use swarmletfs_tree::{analysis, catalog, query, render, route, search, tree, view};

pub use analysis::settings::Settings;
pub use catalog::{Freshness, Source};
pub use error::Error;
pub use render::{Rendered, Renderer};
pub use route::{Document, Group, Report, Scope};
pub use text::budget::Budget;
pub use tree::Tree;
pub use view::{Filter, View};
