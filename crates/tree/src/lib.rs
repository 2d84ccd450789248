//! The read-only tree of swarmletfs, without a kernel: which workers there are, who may see them,
//! facts about them, answers to queries, and names, inodes and handles.
//!
//! Lowest layer first:
//!
//! ```text
//! catalog    snapshots of all workers, and how stale they may be
//! view       the catalog restricted to one owner; the only way to a name or a byte
//! search     regex and ranked search over the files of a view
//! analysis   facts about a worker: digest, checks, root cause, excerpts
//! route      names to requests: generated files, queries, cursors
//! query      answers as values: grep, search, compare, changes, the output of a call
//! output     values as text: index.json, summary, evidence.txt, changes
//! render     from a document of a view to bytes, again if it changes meanwhile
//! tree       names to nodes to attributes, listings and bytes; inodes and handles
//! ```

pub mod analysis;
pub mod catalog;
pub mod output;
pub mod query;
pub mod render;
pub mod route;
#[cfg(test)]
#[path = "../../../tests/support/scale.rs"]
#[allow(dead_code, unreachable_pub)]
mod scale;
pub mod search;
pub mod tree;
pub mod view;
