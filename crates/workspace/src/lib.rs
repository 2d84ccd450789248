//! The changes that a worker makes in its view of a workspace, and their way into the workspace.
//!
//! ```text
//! draft      the files that a worker writes in its view, and the changes in them
//! approval   applies changes to the workspace, and takes them back
//! ```
//!
//! # Approval
//!
//! Carries out a person's decisions about the changes of a worker: `Approval` checks, applies,
//! takes back and discards them. `selection` reads changes.json, which is hostile input, and leaves
//! out changes that are never applied. `unasked` finds paths that programs run by themselves: by
//! the list in `unasked/table`, and by the entries that make a folder a repository of git. It looks
//! once more when the workspace is locked. `check` compares each change with the workspace and
//! makes steps of them; it runs `git merge-file`. `stage` writes new entries under temporary names,
//! lists the moves and states them in a journal, `moves` makes them and recovers from a command
//! that was interrupted, and `applied` keeps the replaced contents. `moves` knows the other
//! workers on the workspace, too.
//!
//! An entry is moved or exchanged, never rewritten: an entry that is rolled back is the same inode
//! as before, and a roll-back needs no space. The journal has three phases. While new entries are
//! staged, and while entries are moved, recovery takes everything back; after that, it only removes
//! the replaced entries. The identity of each entry (inode and time of creation) tells which moves
//! were made.

pub mod approval;
pub mod draft;
mod git;
#[cfg(test)]
#[path = "../../../tests/support/scale.rs"]
#[allow(dead_code, unreachable_pub)]
mod scale;
