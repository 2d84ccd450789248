//! Approval: `changes`, `apply`, `undo` and `discard`, on drafts made by hand.

mod commands;
mod conflicts;
mod hostile;
mod interruptions;
mod questions;
mod random;
mod unasked;
