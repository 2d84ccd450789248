//! Approval: applies a worker's changes to the workspace, and takes them back.
//!
//! Everything is checked before anything is written: each entry of the workspace must be as the
//! worker found it. Then new contents are written under temporary names, a journal states the
//! renames, and the renames follow. A crash at any moment is finished or rolled back by the next
//! command, whichever the journal says; so is an error.
//!
//! ```text
//! drafts/<id>/journal.json             the renames in progress; absent otherwise
//! workers/<id>/applied/<n>/            one application of changes
//!   applied.json                       who applied which paths, and their states before and after
//!   replaced/<path>                    contents that were replaced
//! ```
//!
//! The changes of a worker are hostile input: paths are opened beneath the workspace, no link is
//! followed, and contents must have the hashes that were shown.

mod applied;
mod check;
mod commits;
mod continuation;
mod moves;
mod review;
mod selection;
mod session;
mod stage;
mod unasked;

pub use commits::{BranchMove, CommitTarget, describe_move};
pub use continuation::Continuation;
pub use review::{describe_change, describe_left_out, relevant_diff, unseen_changes};
pub use selection::{ChangeSelection, UnappliedChange, has_changed};
pub use session::{ApplyOptions, Approval, Checked, Merging, keep_review_state, recover_workspace};
pub use unasked::PathRules;
