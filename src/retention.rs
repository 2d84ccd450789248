//! Selects workers of a store to remove, and removes them.
//!
//! [`Plan::new`] applies [`Rules`] to all workers: it lists those to remove, the oldest first, and
//! the reasons to keep others. [`Remover`] looks at a worker again while it is locked, so that one
//! that changed meanwhile is kept. [`swarmletfs_record::write`] removes it in an order that a crash
//! cannot tear.
//!
//! [`copy_sessions()`] keeps the sessions of programs that remove them after some time.
//!
//! # Modules
//!
//! Which workers `gc` removes. `plan` reads the facts about all workers and applies the rules to
//! them, and `removal` looks at each chosen worker again while it is locked,
//! and copies it first. `write/removal.rs` removes it: the tombstone first, then a rename to
//! a temporary name, then the rest. The lock of `tombstones/` excludes other removals; its
//! holder completes an interrupted one.

mod copy_sessions;
mod plan;
mod removal;

pub(crate) use copy_sessions::{CopiedSessions, PathList, copy_sessions};
pub(crate) use plan::{AgeLimit, Candidate, Plan, Rules, SizeLimit};
pub(crate) use removal::{Archive, Remover};
