//! Text of generated files: what is known of workers, as text and JSON within a budget.

mod causes;
pub(crate) mod changes;
pub(crate) mod evidence;
pub(crate) mod index;
pub(crate) mod json;
pub(crate) mod marker;
mod overlaps;
pub(crate) mod since;
pub(crate) mod summary;
pub(crate) mod verdict;

/// The bytes of a document.
pub(crate) struct Body {
    pub(crate) bytes: Vec<u8>,
    /// False if something could not be read; the text says so, and a retry may succeed.
    pub(crate) complete: bool,
}
