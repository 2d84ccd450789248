//! The worker whose draft a command is about, and the comments of a person on it, which wait for
//! the agent in the worker's directory.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use super::terminal::print_message;
use super::write_args::into_cli_error;
use crate::approval::Approval;
use crate::name::{Name, RelPath};
use crate::trace::swarmlet::COMMENTS;
use swarmletfs_record::write::{Dir, Error, Result, Store};

/// Maximum size of all comments, in bytes.
const SIZE_MAX: u64 = 1 << 20;

/// Opens the changes of a worker, or of the one that goes on with them, which is said.
///
/// # Errors
///
/// There is no such worker, or its draft cannot be read.
pub(super) fn open<'a>(store: &'a Store, worker: &OsString) -> anyhow::Result<Approval<'a>> {
    let mut approval = Approval::open(store, worker.as_bytes()).map_err(into_cli_error)?;
    while let Some(next) = approval.continued_in().map_err(into_cli_error)? {
        let (id, shown) = (approval.id().display(), next.display());
        print_message(&format!("{shown} went on with the changes of {id}, and is taken"));
        approval = Approval::open(store, next.as_bytes()).map_err(into_cli_error)?;
    }
    Ok(approval)
}

/// Adds comments to the file in the directory `worker`.
///
/// # Errors
///
/// The file cannot be written, or all comments are too large.
pub(super) fn add_comments(worker: &Dir, new: &[String]) -> anyhow::Result<()> {
    let old = read_comments(worker)?;
    let all = old.iter().map(|old| old.trim_end()).chain(new.iter().map(String::as_str));
    let text = all.collect::<Vec<_>>().join("\n\n") + "\n";
    if text.len() as u64 > SIZE_MAX {
        anyhow::bail!("cannot keep the comments: they have more than {SIZE_MAX} bytes");
    }
    let name = Name::new(COMMENTS)?;
    // The worker may have made a folder of this name.
    if worker.kind(&RelPath::from(name.clone()))?.is_some() {
        worker.remove_all(&name)?;
    }
    worker.write_temporary(&mut text.as_bytes())?.replace(worker, &name)?;
    Ok(())
}

/// Returns the comments that wait; `None` if there are none.
///
/// # Errors
///
/// The file cannot be read.
pub(super) fn read_comments(worker: &Dir) -> Result<Option<String>> {
    let read = || match worker.read(&Name::new(COMMENTS)?, SIZE_MAX) {
        Err(error) if error.is_not_a_file() => Ok(None),
        read => read,
    };
    let action = || format!("read {COMMENTS} of the worker");
    let bytes = read().map_err(|error| Error::Path { action: action(), error })?;
    let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(text.filter(|text| !text.trim().is_empty()))
}

pub(super) fn remove_comments(worker: &Dir) -> anyhow::Result<()> {
    Ok(worker.remove_all(&Name::new(COMMENTS)?)?)
}
