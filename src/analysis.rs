//! What is learnt about a worker from its record: the digest, the checks, the root cause and the
//! excerpts of its outputs, within the time that the settings allow.

pub(crate) mod checks;
mod claims;
mod cut;
pub(crate) mod digest_store;
pub(crate) mod excerpt;
mod failure_signs;
mod line_scores;
mod lines;
pub mod missing;
pub(crate) mod retry;
pub(crate) mod root_cause;
pub mod settings;
mod strings;
pub(crate) mod worker_digest;

/// The reason given for a call without output.
pub(crate) const NO_RESULT: &str = "no result has come";
