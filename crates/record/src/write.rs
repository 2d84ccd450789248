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

mod audit_log;
mod call;
mod copied_worker;
mod dir;
mod error;
mod execution_log;
mod folder;
mod hashing;
mod id;
mod index;
mod leftovers;
mod lines;
mod lock;
mod messages;
mod metadata;
mod new_worker;
mod put_path;
mod registry;
mod removal;
mod store;
mod supervisor_file;
mod temporary;
mod tombstones;
mod worker;
mod worker_folder;

pub use audit_log::append_line;
pub use dir::ViewEntry;
pub use dir::{
    Dir, EntryIdentity, EntryMeta, File, NewOwner, SetIdReport, from_io, set_file_attributes,
    set_mode,
};
pub use error::During;
pub use execution_log::LogState;
pub use hashing::{HashingReader, hash_bytes};
pub use lines::to_line;
pub use lock::Lock;
pub use removal::{Decision, RemovalLock, Removed};
pub use supervisor_file::NotePlace;

pub use call::{Call, CallEnd, CallReceipt};
pub use dir::Durability;
pub use error::{Error, Result};
pub use execution_log::ExecutionLog;
pub use leftovers::{Leftover, Leftovers};
pub use new_worker::NewWorker;
pub use store::{Store, StoreOptions};
pub use worker::{Finish, Worker};
