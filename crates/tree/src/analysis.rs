//! Facts about workers that are derived from their records: digests, checks, the root cause of a
//! failure and excerpts of outputs. [`analyzer::Analyzer`] reads them within the time that the
//! settings allow.

pub mod analyzer;
pub mod attention;
pub mod changes;
pub mod checks;
mod claims;
mod cut;
pub mod digest_cache;
pub mod digest_store;
pub mod excerpt;
pub mod facets;
pub mod file_uses;
mod line_scores;
mod lines;
pub mod missing;
pub mod overlaps;
pub mod peers;
pub mod prose;
pub mod retry;
pub mod root_cause;
mod selection;
pub mod settings;
pub mod spending;
mod strings;
mod success_claim;
pub mod worker_digest;
pub mod worker_states;

pub const NO_RESULT: &str = "no result has come";
/// Why the output of a call cannot be shown, if its program records none.
pub const UNRECORDED: &str = "its program records no results";
