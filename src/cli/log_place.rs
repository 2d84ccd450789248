//! Checks the places where a mount may write a log.

use std::path::Path;

use anyhow::bail;

use super::folder_identity::FolderIdentity;
use super::mountpoint::read_mount_table;
use super::terminal::display_path;

/// Rejects a log inside a store, which must not be written to, or beneath the mountpoint, where the
/// mount would hide it.
pub(super) fn check(
    log: &Path,
    stores: &[FolderIdentity],
    point: &FolderIdentity,
) -> anyhow::Result<()> {
    let Some(Ok(folder)) = log.parent().map(|folder| {
        FolderIdentity::resolve(folder, &read_mount_table()?).map_err(anyhow::Error::from)
    }) else {
        bail!("cannot log to {}: its folder does not exist", display_path(log));
    };
    check_folder(log, &folder, stores, point)
}

pub(super) fn check_folder(
    log: &Path,
    folder: &FolderIdentity,
    stores: &[FolderIdentity],
    point: &FolderIdentity,
) -> anyhow::Result<()> {
    match stores.iter().chain([point]).find(|place| folder.is_within(place)) {
        Some(place) => {
            bail!(
                "cannot log to {}: it lies inside {}; choose another folder",
                display_path(log),
                display_path(&place.path)
            )
        }
        None => Ok(()),
    }
}
