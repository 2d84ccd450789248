//! Mounts the recorded work of a swarm of agents as a read-only file system, and renders it within
//! a reader's budget.
//!
//! This crate is the program `swarmletfs` and its library. It runs on Linux. Most users need only
//! the program; the library is for Rust programs that read, mount or record a swarm in their own
//! process.
//!
//! # Reading
//!
//! [`open`] opens a store, and [`OpenOptions`] restricts it to what one owner may see:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let store = folder.path();
//! # std::fs::create_dir_all(store.join("workers/build-1"))?;
//! # std::fs::write(
//! #     store.join("workers/build-1/metadata.json"),
//! #     r#"{"worker_id": "build-1", "status": "failed", "error": "No space left on device"}"#,
//! # )?;
//! let swarm = swarmletfs::open(store)?;
//! assert!(swarm.summary()?.contains(": No space left on device"));
//! let worker = swarm.worker("build-1")?;
//! assert_eq!(worker.index()?["status"], "failed");
//! assert!(worker.evidence(4_096)?.len() <= 4_096);
//! # Ok(())
//! # }
//! ```
//!
//! [`Swarm::mount`] mounts it, as `swarmletfs mount` does.
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
//! `object-store` reads stores in an object store, such as `s3://bucket/prefix`. `parquet` exports
//! tables. The packages have both.
//!
//! `mcp`, on by default, serves the tree through the Model Context Protocol (`swarmletfs mcp`) and
//! brings an asynchronous runtime. Without it, the library and all other commands are the same.
//! `parquet` adds that format to `swarmletfs export`, and `tls` language models behind https.
//!
//! # Versions
//!
//! Versions follow [semantic versioning](https://semver.org): before 1.0, a release that breaks
//! something raises the second number. Covered are the documented items of this crate, the command
//! line, the paths of the tree, and the JSON with a schema in `docs/`. The wording of files for
//! people (`summary`, `evidence.txt`, help and errors) may change in any release. The crates below
//! this one change without notice.
//!
//! The crate needs the Rust version that its `Cargo.toml` states (1.91). A higher one is a change
//! of the second number, too, and is at least six months old.
//!
//! # Crates
//!
//! This crate has the commands; what they build on lies in crates of their own:
//!
//! ```text
//! swarmletfs-base      names, errors, stores, texts, caches, and plain values such as Worker
//! swarmletfs-table     tables of Parquet
//! swarmletfs-trace     formats: from a store to workers
//! swarmletfs-tree      the read-only tree without a kernel: views, facts, queries, reports, names
//! swarmletfs-record    changes of a store: recording workers, and logs of changes and of reads
//! swarmletfs-workspace what a worker changes in its view of a workspace, and how it is applied
//! swarmletfs-fuse      translates requests of the kernel
//! swarmletfs-page      the page for people
//! swarmletfs-prose     asks a language model
//! swarmletfs-objects   object stores, with the feature `object-store`
//! swarmletfs-mcp       serves the tree, and a workspace, over the Model Context Protocol
//! swarmletfs-sandbox   runs a command in its own view of a workspace, isolated by the kernel
//! ```

#![warn(missing_docs)]

#[doc(hidden)]
pub mod cli;
mod retention;
#[cfg(test)]
#[path = "../tests/support/scale.rs"]
#[allow(dead_code, unreachable_pub)]
mod scale;
mod swarm;

/// Recording: creates a store and writes its workers.
pub mod write {
    pub use swarmletfs_record::write::{
        Call, CallEnd, CallReceipt, Durability, Error, Finish, NewWorker, Result, Store,
        StoreOptions, Worker,
    };
}

pub use swarm::{Error, MountedSwarm, OpenOptions, Run, Swarm, SwarmEntry, Worker, open};
pub use swarmletfs_base::text::budget::Budget;
pub use swarmletfs_fuse::MountAccess;
pub use swarmletfs_tree::tree::NodeKind;

use swarmletfs_base::{
    cache, deadline, digest, error, model, name, parallel, path_bytes, store, text,
};
use swarmletfs_fuse as fuse;
#[cfg(feature = "mcp")]
use swarmletfs_mcp as mcp;
#[cfg(feature = "object-store")]
use swarmletfs_objects as objects;
use swarmletfs_page as page;
use swarmletfs_record::{audit, read_log};
use swarmletfs_sandbox as sandbox;
use swarmletfs_trace as trace;
use swarmletfs_tree::{analysis, catalog, output, query, render, route, search, tree, view};
use swarmletfs_workspace::{approval, draft};
