//! Text of generated files: what is known of workers, as text and JSON within a budget.

mod causes;
pub(crate) mod evidence;
pub(crate) mod index;
mod json;
pub(crate) mod marker;
pub(crate) mod since;
pub(crate) mod summary;
