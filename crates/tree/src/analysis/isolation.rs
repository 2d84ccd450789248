//! The subjects of work on threads that can be abandoned, and the time that it may take to return.

use std::time::Duration;

use swarmletfs_base::digest::Key;
use swarmletfs_base::name::Name;

/// Time that a part of an answer may take to return after its deadline.
pub const PART_GRACE: Duration = Duration::from_millis(500);

/// The subject of a task. While an abandoned task runs, no other starts on its subject.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    Worker(Name),
    Answer(Key),
}
