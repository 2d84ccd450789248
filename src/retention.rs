//! Which workers of a store are removed, and their removal.
//!
//! [`Plan::new`] applies [`Rules`] to all workers: it lists those to remove, the oldest first, and
//! the reasons to keep others. [`Remover`] looks at a worker again while it is locked, so that one
//! that changed meanwhile is kept. [`crate::write`] removes it in an order that a crash cannot
//! tear.
//!
//! [`copy_sessions()`] keeps the sessions of programs that remove them after some time.

mod archive;
mod candidates;
mod copy_sessions;
mod plan;
mod removal;
mod rules;

pub(crate) use archive::Archive;
pub(crate) use candidates::Candidate;
pub(crate) use copy_sessions::{CopiedSessions, PathList, copy_sessions};
pub(crate) use plan::Plan;
pub(crate) use removal::Remover;
pub(crate) use rules::{AgeLimit, Rules, SizeLimit};
