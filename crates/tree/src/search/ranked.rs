//! Full-text search: passages ranked by the words of a query.
//!
//! Text is cut into passages of a few lines, and each passage into words (`words`).
//! The words of a worker's files are indexed in segments of a few megabytes of text (`segment`).
//! A segment is built once and cached under a hash of its text (`index`). A cached segment
//! therefore always belongs to its text, and a file that grows costs only its last segment.
//!
//! A query (`query`) is scored against the segments of the selected workers alone (`rank`).
//! Document frequencies come from these segments only, so files outside the view cannot change a
//! score, and cached and fresh segments give equal results. `select` picks the passages to show, in
//! the order of their scores (`order`).
//!
//! The passages of a segment can also be embedded (`embedding`), and ranked by how close they are
//! to the meaning of the query (`meaning`).

mod conversation;
mod embedding;
mod index;
mod meaning;
mod order;
mod query;
mod rank;
mod segment;
mod select;
mod words;

pub use conversation::{CONVERSATION, PassageKind, shown};
pub use index::{Index, IndexPart, Unread, WorkerIndex, tool_of};
pub use meaning::{ClosestPassages, QueryMeaning};
pub use order::BestPassages;
pub use query::{FilterValues, Filters, RankedQuery};
pub use rank::{RankedPassages, WorkerMatches, rank};
pub use select::{FileHit, MatchCounts, PassageSelection, SelectionLimits};
pub use words::WordStemmer;
