//! All tests that are not in the files they test: one binary, since linking is the slow part.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::string_slice)]
#![allow(missing_docs, unreachable_pub)]

mod ask;
mod cache_format;
mod cli;
mod evidence;
mod examples;
mod expand;
mod faults;
mod formats;
mod hostile;
mod made_up;
#[cfg(feature = "mcp")]
mod mcp;
mod mount;
mod quiet;
mod reference;
mod regression;
mod schema;
mod since;
mod support;
mod tidy;
