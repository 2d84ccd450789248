//! Approval: `changes`, `apply`, `undo` and `discard`, on drafts made by hand.

mod commands;
mod conflicts;
mod hostile;
mod interruptions;
mod merges;
mod questions;
mod random;
mod together;
mod unasked;
