//! The comments of a person on the changes of a worker, which wait for it in its directory.

use crate::name::{Name, RelPath};
use swarmletfs_record::write::{Dir, Error, Result};

const FILE: &str = "comments.txt";
/// Maximum size of all comments, in bytes.
const SIZE_MAX: u64 = 1 << 20;

/// Adds comments to the file in the directory `worker`.
///
/// # Errors
///
/// The file cannot be written, or all comments are too large.
pub(super) fn add(worker: &Dir, new: &[String]) -> anyhow::Result<()> {
    let old = read(worker)?;
    let all = old.iter().map(|old| old.trim_end()).chain(new.iter().map(String::as_str));
    let text = all.collect::<Vec<_>>().join("\n\n") + "\n";
    if text.len() as u64 > SIZE_MAX {
        anyhow::bail!("cannot keep the comments: they have more than {SIZE_MAX} bytes");
    }
    let name = Name::new(FILE)?;
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
pub(super) fn read(worker: &Dir) -> Result<Option<String>> {
    let read = || match worker.read(&Name::new(FILE)?, SIZE_MAX) {
        Err(error) if error.is_not_a_file() => Ok(None),
        read => read,
    };
    let action = || format!("read {FILE} of the worker");
    let bytes = read().map_err(|error| Error::Path { action: action(), error })?;
    let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(text.filter(|text| !text.trim().is_empty()))
}

pub(super) fn remove(worker: &Dir) -> anyhow::Result<()> {
    Ok(worker.remove_all(&Name::new(FILE)?)?)
}
