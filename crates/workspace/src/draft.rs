//! Drafts: the files that workers write in a view of a workspace, until a person approves them.
//!
//! A draft is a directory of the store that no worker can see:
//!
//! ```text
//! drafts/<id>/
//!   draft.json       the workspace, the engine and the state
//!   boot_id          the boot of the machine at which the worker started
//!   upper/, work/    the layer of an overlay, with the files that the worker wrote
//!   git-upper/, git-work/   the layer over the common directory of git, if the workspace is a
//!                    linked worktree
//!   copy/, manifest  the worker's copy of the workspace, and its entries, with the other engine
//!   commits.git/     a repository with the commits that the worker made, while they are kept
//!   base/            contents that the workspace had when the worker began, until its end
//! ```
//!
//! The process that runs the worker holds the lock of the directory, so a draft without a lock has
//! no worker that runs.
//!
//! [`ChangeSearch`] compares the worker's files with the workspace, and copies contents into the
//! worker's directory. After its last search the layers and the bases are no longer needed.

mod bases;
mod candidates;
mod commits;
mod comparison;
mod content;
mod folder;
mod ignore_rules;
mod layers;
mod search;

pub use commits::view_of_git;
pub use folder::{Draft, DraftRecord, DraftState, Engine};
pub use layers::{LayerPaths, MissingPart};
pub use search::{ChangeSearch, SearchReport};
