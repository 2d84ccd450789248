//! The recording half of swarmletfs: changes of a store, and the logs of changes and reads.
//!
//! # Modules
//!
//! `write`: Records workers into a store, as `docs/RECORDING.md` describes. `Store` opens or makes
//! a store and writes the supervisor's notes, `NewWorker` creates a worker under a temporary name,
//! `Worker` adds messages and files and finishes it, and `Call` records a call while it runs. `dir`
//! is a directory that was opened for changes beneath it: it resolves paths as `store` does,
//! replaces files by a rename, appends whole lines, locks, and waits for the disk. `dir/workspace`
//! changes a workspace, and reads and writes files of a worker's view of one. `names` decides which
//! names may be written. `registry` keeps the identity of a worker in a sandbox in a place that the
//! worker cannot write. `folder` updates an index.json that exists, and `leftovers` finds and
//! repairs the leftovers of a crash. The record is checked against the disk, not against memory:
//! several processes may record one worker, so each change takes the worker's lock and reads its
//! status again.
//!
//! `audit`: The entries of the log of changes in a store, and how they are read.
//! `write/audit_log.rs` appends them.
//!
//! `read_log`: The log of the files that readers of a mount open: its entries, and the thread that
//! writes them. `fuse/readers` feeds it with the paths as they were looked up. No reader waits for
//! it: entries that do not fit into its queue are counted.

pub mod audit;
pub mod read_log;
pub mod write;
