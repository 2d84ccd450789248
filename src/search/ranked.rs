//! Passages of files ranked by words.
//!
//! Text is cut into passages of a few lines (`passages`), of which each holds some words (`words`). What there is of a
//! worker's words is put down in parts of a few megabytes of text (`part`), each of which is made once and kept under a
//! hash of that text (`index`): so what is kept is never of another text than it says, whoever wrote it down, and a file
//! that grows costs its last part. A question (`query`) is answered out of the parts of the workers that are asked about,
//! and of nothing else (`rank`): how rare a word is, is counted in these alone, so nothing that is outside a view can
//! move a score, and what was kept and what was just read give the same.

mod choose;
mod index;
mod part;
mod passages;
mod query;
mod rank;
mod words;

pub use choose::{Chosen, Hit, Room};
pub use index::{Index, Indexed, Unread, tool_of};
pub use query::{Filters, Query, Values};
pub use rank::{Matched, Ranked, rank};
pub use words::Stems;
