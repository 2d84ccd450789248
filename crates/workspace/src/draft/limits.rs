//! Paths that can be stored in a worker's directory.

use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::is_temporary;

pub(super) const DEPTH_MAX: usize = 60;
pub(super) const HIDDEN: &str = "the worker could not see what is there";
pub(super) const FOREIGN: &str = "it is on another file system than the workspace";
/// Maximum length of a path, in bytes. With the directory in front, the system accepts it.
const LENGTH_MAX: usize = 4_000;

/// Largest file that is recorded, in bytes, before and after a change.
const FILE_MAX: u64 = 8 << 30;

/// Returns why a file of `size` bytes is not recorded, or `None` if it is.
pub(super) fn size_refusal(size: u64) -> Option<String> {
    let is_too_large = size > FILE_MAX;
    is_too_large.then(|| format!("it has more than {} GiB", FILE_MAX >> 30))
}

/// Returns why the change of `path` cannot be stored, or `None` if it can.
pub(super) fn refusal(path: &RelPath) -> Option<String> {
    if path.depth() > DEPTH_MAX {
        return Some(format!("the path has more than {DEPTH_MAX} names"));
    }
    if path.as_bytes().len() > LENGTH_MAX {
        return Some(format!("the path has more than {LENGTH_MAX} bytes"));
    }
    let is_reserved = path.names().any(|name| is_temporary(&name));
    is_reserved.then(|| "a name begins like those of files that are being written".to_owned())
}
