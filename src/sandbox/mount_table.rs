//! The mounts of this namespace, with what is needed to make them read-only.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::{MountFlags, mount_remount};

use super::cause::{Failure, Step};
use super::files;

/// Maximum size of the table, in bytes. The kernel allows 100,000 mounts by default.
const TABLE_MAX: u64 = 64 << 20;

/// Options of a mount in the table, with their flags.
const OPTIONS: [(&[u8], MountFlags); 7] = [
    (b"nosuid", MountFlags::NOSUID),
    (b"nodev", MountFlags::NODEV),
    (b"noexec", MountFlags::NOEXEC),
    (b"noatime", MountFlags::NOATIME),
    (b"nodiratime", MountFlags::NODIRATIME),
    (b"relatime", MountFlags::RELATIME),
    (b"nosymfollow", MountFlags::NOSYMFOLLOW),
];

/// A mount of this namespace.
#[derive(Debug)]
struct Entry {
    id: u64,
    point: PathBuf,
    flags: MountFlags,
    is_read_only: bool,
}

/// Makes every mount that can be reached by a path read-only.
///
/// There is no safe wrapper of mount_setattr(2), which does that with one call, so each mount is
/// remounted. Its other options are kept: the kernel has locked them.
pub(super) fn make_all_read_only() -> Result<(), Failure> {
    for entry in read()?.iter().filter(|entry| !entry.is_read_only) {
        // The second pass decides, so errors do not count here.
        let _ = remount_read_only(&entry.point, entry.flags);
    }
    for entry in read()?.iter().filter(|entry| !entry.is_read_only) {
        // A mount that lies beneath another one, or in a directory that we may not enter, can be
        // reached by no path. If it can be reached, this call names the error.
        if is_at(&entry.point, entry.id) {
            remount_read_only(&entry.point, entry.flags).step(&format!(
                "make {} read-only",
                crate::name::printable(entry.point.as_os_str().as_encoded_bytes())
            ))?;
        }
    }
    Ok(())
}

/// Makes the mount at `point` read-only, which has the options `flags`.
pub(super) fn remount_read_only(point: &Path, flags: MountFlags) -> rustix::io::Result<()> {
    mount_remount(point, MountFlags::BIND | MountFlags::RDONLY | flags, c"")
}

/// Returns true if a path lookup of `point` ends at the mount `id`.
fn is_at(point: &Path, id: u64) -> bool {
    statx(CWD, point, AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID)
        .is_ok_and(|stat| stat.stx_mnt_id == id)
}

fn read() -> Result<Vec<Entry>, Failure> {
    let table = files::read(Path::new("/proc/self/mountinfo"), TABLE_MAX)
        .step("read the table of mounts")?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// Parses `id parent device root point options …`.
fn parse(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let point = unescape(fields.nth(3)?);
    let options: Vec<&[u8]> = fields.next()?.split(|byte| *byte == b',').collect();
    let has = |name: &[u8]| options.contains(&name);
    let mut flags: MountFlags =
        OPTIONS.iter().filter(|(name, _)| has(name)).map(|(_, flag)| *flag).collect();
    // An update of every access time has no name in the table.
    if !flags.intersects(MountFlags::NOATIME | MountFlags::RELATIME) {
        flags |= MountFlags::STRICTATIME;
    }
    Some(Entry { id, point, flags, is_read_only: has(b"ro") })
}

/// Decodes octal escapes such as `\040`; any other backslash is literal.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        match (byte, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}
