//! Facts about workers that are derived from their records: digests, checks, the root cause of a
//! failure and excerpts of outputs. [`analyzer::Analyzer`] reads them within the time that the
//! settings allow.

pub mod analyzer;
mod backfill;
pub(crate) mod changes;
pub(crate) mod checks;
mod claims;
mod cut;
pub(crate) mod digest_cache;
pub(crate) mod digest_store;
pub(crate) mod excerpt;
pub mod facets;
pub(crate) mod file_uses;
pub(crate) mod isolation;
mod line_scores;
mod lines;
pub mod missing;
pub(crate) mod overlaps;
pub(crate) mod retry;
pub(crate) mod root_cause;
mod selection;
pub mod settings;
mod strings;
mod success_claim;
pub(crate) mod worker_digest;
pub(crate) mod worker_states;

/// The reason given for a call without output.
pub(crate) const NO_RESULT: &str = "no result has come";
