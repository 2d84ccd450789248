//! The recording half of swarmletfs: changes of a store, and the logs of changes and reads.

pub mod audit;
pub mod read_log;
pub mod write;
