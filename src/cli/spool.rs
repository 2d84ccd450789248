//! Spools: local stores whose workers are uploaded to an object store.
//!
//! A command that writes to `s3://…` writes to a store of its own user on this machine, exactly as
//! to any other store. Its files are then uploaded, so a command works without a connection, and a
//! crash loses none of them. A worker that has ended and lies in the object
//! store as a whole is removed from the spool. `spools` reads spools.
//!
//! ```text
//! place      makes and locks the directories of spools
//! progress   writes the progress of uploads, and marks by which objects of a worker are known
//! gate       bounds the requests of an upload
//! upload     copies new parts of a spool to the object store
//! direct     changes objects without a spool: notes on a worker, and notes of a supervisor
//! session    the spool of one command: uploads while it runs and at its end
//! flushing   uploads everything that waits
//! ```

mod direct;
mod flushing;
mod gate;
mod place;
mod progress;
mod session;
mod upload;

pub(super) use direct::{annotate, list_notes, write_note};
pub(super) use flushing::flush;
pub(super) use session::SpoolSession;
