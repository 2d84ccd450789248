//! A regex over the files of workers: how many lines of a file match, and which.
//!
//! ripgrep's own crates find the lines (`lines`), so that a regex means what it means there: it matches within a line,
//! `^` and `$` are its ends, Unicode is known. What is here decides which files are searched, how much of them, and when
//! to stop (`pattern`, `corpus`).

mod corpus;
mod lines;
mod pattern;

pub use corpus::{Found, Hits, Unsearched, lines, search};
pub use lines::{End, Line, LineKind, Stopped};
pub use pattern::Pattern;
