//! Text of generated files: facts about workers, as text and JSON within a budget.

pub mod board;
mod causes;
pub mod changes;
pub mod chrome_trace;
pub mod cost;
pub mod evidence;
pub mod export;
pub mod index;
pub mod json;
pub mod log;
pub mod marker;
mod overlaps;
pub mod overview;
pub mod panel;
pub mod since;
pub mod summary;
mod thread;
mod triage;
pub mod verdict;

pub struct Body {
    pub bytes: Vec<u8>,
    /// False if something could not be read; the text says so, and a retry may succeed.
    pub complete: bool,
}
