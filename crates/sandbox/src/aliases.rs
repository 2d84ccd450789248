//! Other paths at which a protected directory can be seen: bind mounts of it, and file systems that
//! show another one, such as overlays and FUSE.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Stat, statat};

use super::mount_table::AttachedMounts;
use swarmletfs_base::store::MOUNT_TYPE;

/// Types of file systems that can show the directories of another one.
const SHOWING_OTHERS: [&str; 8] =
    ["overlay", "fuse.", "fuse", "nfs", "nfs4", "9p", "virtiofs", "aufs"];

/// Returns all paths at which `folder`, which is absolute and without links, can be seen, except
/// its own. `witness` is an entry in it, by which it is recognized.
///
/// Mounts of this program and mounts that do not answer are left out: none of them is shown.
pub(super) fn aliases(
    table: &AttachedMounts,
    folder: &Path,
    witness: &Path,
    silent: &BTreeSet<PathBuf>,
) -> Vec<PathBuf> {
    let mut found = table.aliases(folder);
    let Ok(own) = look(folder) else { return found };
    let names: Vec<_> = folder.components().skip(1).collect();
    let showing = table.of_types(&SHOWING_OTHERS).filter(|mount| !mount.is_of(&[MOUNT_TYPE]));
    let points = showing.map(|mount| mount.point.as_path());
    let has_witness = !witness.as_os_str().is_empty();
    for point in points.filter(|point| !folder.starts_with(point) && !silent.contains(*point)) {
        // The other file system shows a directory on the way to `folder`.
        for start in 0..=names.len() {
            let path: PathBuf =
                [point].into_iter().chain(names.iter().skip(start).map(AsRef::as_ref)).collect();
            let is_same = look(&path).is_ok_and(|other| is_same(&own, &other, has_witness));
            if is_same && look(&path.join(witness)).is_ok() {
                found.push(path);
            }
        }
    }
    found.retain(|path| look(path).is_ok());
    found
}

fn look(path: &Path) -> rustix::io::Result<Stat> {
    statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)
}

/// Compares the attributes that such file systems pass on; most number their files anew. Some round
/// times to seconds, so these suffice where a witness is compared as well.
fn is_same(own: &Stat, other: &Stat, has_witness: bool) -> bool {
    (own.st_mtime, own.st_mode) == (other.st_mtime, other.st_mode)
        && (has_witness || own.st_mtime_nsec == other.st_mtime_nsec)
}
