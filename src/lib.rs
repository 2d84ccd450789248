//! Mount what a swarm of agents did, and read it inside the budget of whoever reads it.
//!
//! From the ground up; an arrow goes only downward, which `tests/tidy.rs` holds:
//!
//! ```text
//! unicode          characters that are invisible, and what text looks like
//! name, error      raw bytes become Name and RelPath once, at the door; one exhaustive errno table
//! digest           the beginning of a hash, which tells contents and states apart
//! spread           the same done for many, by several threads where that takes long
//! watchdog         runs work that may never return on threads that can be given up
//! cache            caches that are bounded by what they hold, in memory and in a folder
//! model            Worker, Trace, ToolCall, Outcome, Status: plain values; no I/O, no serialisation
//! store            bytes beneath roots that were opened once; never a link, never a way to write
//! trace            formats: store -> workers
//! catalog          all workers, swapped whole; how old what is shown may be
//! view             the catalog as one owner may see it; the only way to a name or a byte
//! search           a regex or ranked words over the files of a view
//! render           view -> bytes: index.json, summary, evidence.txt, README.md, answers
//! tree             names to nodes to attributes, listings and bytes; inodes and handles, without a kernel
//! fuse, mcp, cli   doors: translate and reply; they hold no logic. The command line starts the others, which do not
//!                  know each other
//! ```

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
mod parallel;
pub mod render;
pub mod search;
pub mod store;
pub mod trace;
pub mod tree;
mod unicode;
pub mod view;
mod watchdog;
