//! Records workers: changes of a store, whole or not at all.
//!
//! [`Store::create_worker`] makes a [`Worker`]; its calls, messages and files are recorded while it
//! works, and [`Worker::finish`] ends it. The written files have the layout of docs/FORMATS.md, so
//! any other program could have written them, and the reading half needs to know nothing of this
//! module.
//!
//! After a crash at any moment, a store holds the old or the new state of each change. A change is
//! a temporary file and a rename, or an append of whole lines; [`Durability`] decides whether it
//! waits for the disk. Several processes and users may record at once: the calls of a worker are
//! numbered under a lock. Problems that do not prevent a change are in [`Store::take_warnings`].
//!
//! Nothing here runs commands or prints, and the reading half never uses this module.
//!
//! # Examples
//!
//! ```
//! use std::io::Write;
//!
//! use swarmletfs_record::write::{CallEnd, Finish, NewWorker, Store};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let store = Store::init(folder.path().join("swarm"))?;
//! let worker = store.create_worker(NewWorker::new("Check the backups").run("48"))?;
//!
//! let mut call = worker.begin_call("shell", Some(serde_json::json!({"command": "df -h"})))?;
//! call.write_all(b"/dev/sda1  40G  40G  0  100%  /\n")?;
//! call.end(CallEnd::exit_code(0))?;
//!
//! worker.finish(Finish::completed().result("The disk is full."))?;
//! # Ok(())
//! # }
//! ```

mod call;
mod dir;
mod error;
mod folder;
mod leftovers;
mod lines;
mod names;
mod new_worker;
mod registry;
mod removal;
mod store;
mod worker;

pub use call::{Call, CallEnd, CallReceipt, ExecutionLog, LogState};
pub use dir::{
    Dir, Durability, EntryIdentity, EntryMeta, File, Lock, NewOwner, SetIdReport, ViewEntry,
    from_io, set_file_attributes, set_mode,
};
pub use error::{During, Error, Result};
pub use folder::{NewWorkerCheck, SpaceLimit, append_line};
pub use leftovers::{Leftover, Leftovers};
pub use lines::{HashingReader, hash_bytes, to_document, to_line};
pub use new_worker::NewWorker;
pub use removal::{Decision, RemovalLock, Removed};
pub use store::{NotePlace, Store, StoreOptions, parse_note_path};
pub use worker::{Finish, Worker};
