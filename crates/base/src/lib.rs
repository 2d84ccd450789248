//! Values without I/O, names, texts and stores: what every other crate of swarmletfs builds on.
//!
//! Lowest layer first:
//!
//! ```text
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
pub mod store;
pub mod text;
pub mod unicode;
pub mod watchdog;
