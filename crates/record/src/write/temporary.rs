//! Names of files and directories that are being written.
//!
//! A change that is not complete has a name that readers do not show ([`TEMPORARY_PREFIX`]). Only a
//! crash leaves one behind; [`super::leftovers`] finds it.

use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use swarmletfs_base::digest::to_hex;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::Name;
use swarmletfs_base::store::TEMPORARY_PREFIX;

pub(super) fn file_name() -> Result<Name> {
    Name::new(format!("{TEMPORARY_PREFIX}tmp-{}", random_hex::<8>()?))
}

pub(super) fn worker_name() -> Result<Name> {
    Name::new(format!("{TEMPORARY_PREFIX}new-{}", random_hex::<8>()?))
}

const REMOVED_PREFIX: &str = "gone-";

pub(super) fn removed_name() -> Result<Name> {
    Name::new(format!("{TEMPORARY_PREFIX}{REMOVED_PREFIX}{}", random_hex::<8>()?))
}

/// Returns true if `name` is the name of a directory whose removal began.
pub(super) fn is_removed_name(name: &Name) -> bool {
    let rest = name.as_bytes().strip_prefix(TEMPORARY_PREFIX.as_bytes());
    rest.is_some_and(|rest| rest.starts_with(REMOVED_PREFIX.as_bytes()))
}

pub(super) fn random_hex<const N: usize>() -> Result<String> {
    let mut bytes = [0; N];
    match rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(filled) if filled == N => Ok(to_hex(&bytes)),
        Ok(_) => Err(Error::Io(Errno::IO)),
        Err(error) => Err(error.into()),
    }
}
