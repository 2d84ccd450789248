//! All integration tests in one binary, because linking is the slowest step.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::string_slice
)]
#![allow(missing_docs, unreachable_pub)]

mod approval;
mod cache_format;
mod cli;
mod clients;
mod evidence;
mod examples;
mod expand;
mod faults;
mod formats;
mod generated_swarm;
mod hostile;
mod library;
mod log_guard;
#[cfg(feature = "mcp")]
mod mcp;
mod mount;
mod notes;
#[cfg(feature = "object-store")]
mod objects;
mod packages;
mod page;
mod prose;
mod queries;
mod reads;
mod recording;
mod reference;
mod regression;
mod release;
mod retention;
mod run;
mod sandbox;
mod scenarios;
mod schema;
mod seeds;
mod since;
mod support;
mod tidy;
