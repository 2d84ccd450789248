//! Regex search in the files of workers.
//!
//! ripgrep's own crates find the lines (`lines`), so a regex means the same as in ripgrep. It
//! matches within a line, `^` and `$` are the ends of the line, and Unicode is on. `pattern` and
//! `corpus` decide which files are searched, how much of them, and when to stop. `copies`
//! recognizes lines that repeat lines of other files.

mod copies;
mod corpus;
mod lines;
mod pattern;

pub use copies::{CopiedLines, RecordFormat};
pub use corpus::{FileMatchCount, FileTraits, Unsearched, WorkerMatchCounts, lines, search};
pub use lines::{FoundLine, LineKind, SearchEnd, StopReason};
pub use pattern::Pattern;
