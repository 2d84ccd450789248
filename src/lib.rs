//! Mounts the recorded work of a swarm of agents as a read-only file system, and renders it within
//! a reader's budget.
//!
//! The modules, lowest layer first. A module uses only modules listed before it, which
//! `tests/tidy.rs` checks:
//!
//! ```text
//! unicode          invisible characters and characters that look alike
//! name, error      raw bytes become Name and RelPath once, on entry; the errno table
//! digest           truncated hashes that identify contents and states
//! parallel         maps a slice with several threads if that takes long
//! watchdog         runs work that may never return on threads that can be detached
//! cache            bounded caches, in memory and in a folder
//! model            Worker, Trace, ToolCall, Outcome, Status: plain values without I/O
//! store            reads bytes beneath roots that are opened once; no symlinks, no writes
//! trace            formats: from a store to workers
//! catalog          snapshots of all workers, and how stale they may be
//! view             the catalog restricted to one owner; the only way to a name or a byte
//! search           regex and ranked search over the files of a view
//! text             budgets, cleaning, and the format of times and counts
//! analysis         facts about a worker: digest, checks, root cause, excerpts
//! route            names to requests: generated files, queries, cursors
//! query            answers as values: grep, search, compare, changes, the output of a call
//! output           values as text: index.json, summary, evidence.txt, changes
//! render           from a document of a view to bytes, again if it changes meanwhile
//! tree             names to nodes to attributes, listings and bytes; inodes and handles
//! fuse, mcp, cli   adapters that translate and reply, without logic; cli starts the others
//! ```

pub mod analysis;
pub mod cache;
pub mod catalog;
pub mod cli;
mod digest;
pub mod error;
pub mod fuse;
#[cfg(feature = "mcp")]
pub mod mcp;
pub mod model;
pub mod name;
mod output;
mod parallel;
pub mod query;
pub mod render;
pub mod route;
pub mod search;
pub mod store;
pub mod text;
pub mod trace;
pub mod tree;
mod unicode;
pub mod view;
mod watchdog;
