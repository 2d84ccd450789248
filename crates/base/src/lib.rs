//! Values without I/O, names, texts and stores: the base of every other crate of swarmletfs.
//!
//! Lowest layer first:
//!
//! ```text
//! split            splits slices and texts without a panic
//! unicode          invisible characters and characters that look alike
//! name, error      raw bytes become Name and RelPath once, on entry; the errno table
//! digest           truncated hashes that identify contents and states
//! deadline         time limits that work polls
//! parallel         maps a slice with several threads if that takes long
//! path_bytes       serializes paths that are not UTF-8
//! watchdog         runs work that may never return on threads that can be detached
//! cache            bounded caches, in memory and in a directory
//! model            Worker, Trace, ToolCall, Outcome, Status: plain values
//! store            reads bytes beneath roots that are opened once; no symlinks, no writes
//! text             budgets, cleaning, and the format of times and counts
//! failure_signs    words by which an output states a failure
//! ```
//!
//! # Modules
//!
//! `model`: Plain values: Worker, Record, ToolCall, FileEdit, Outcome, Status. No I/O. `attempt`
//! decides which later call resolves a failed one.
//!
//! `store`: Bytes beneath a root: stat, list, open, enter. `store.rs` defines the `Store` trait;
//! `disk` and `memory` implement it, and `disk` reads access control lists, opens directories
//! without updating access times, and reports changes. `openat2` is the only module that opens a
//! path, name by name where that call is missing. `SingleLinkStore` wraps a store for a single
//! owner and hides files with several hard links.
//!
//! `text`: Text primitives without knowledge of workers: `Budget` (bytes or tokens), shares of a
//! budget, `clean` (control and invisible characters, escaped markers), unified diffs, times and
//! counts.
//!
//! `failure_signs`: General signs of failure in a line, such as words, exit markers and source
//! locations. `suspect` finds the line that shows a failure in the output of a command that is ok
//! by the record. No sign is specific to a tool. `docs/EVIDENCE.md` has the measurements.

pub mod cache;
pub mod deadline;
pub mod digest;
pub mod error;
pub mod failure_signs;
pub mod model;
pub mod name;
pub mod parallel;
pub mod path_bytes;
#[cfg(test)]
#[path = "../../../tests/support/scale.rs"]
#[allow(dead_code, unreachable_pub)]
mod scale;
pub mod split;
pub mod store;
pub mod text;
pub mod unicode;
pub mod watchdog;
