//! The mounts of a namespace: their places, how to restrict them, the other paths at which a
//! directory can be seen, and the file systems whose server does not answer.
//!
//! Reading the table accesses no mount, so it never blocks on a dead or hung one. Paths are bytes,
//! with the octal escapes of the table decoded.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Stat, StatxFlags, lstat, statat, statfs, statx};
use rustix::mount::{MountFlags, mount_remount};

use super::files;
use super::stage::{FailedStep, StageFailure};
use swarmletfs_base::store::MOUNT_TYPE;

/// Maximum size of the table, in bytes. The kernel allows 100,000 mounts by default.
pub(super) const TABLE_MAX: u64 = 64 << 20;

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

#[derive(Debug, PartialEq, Eq)]
pub struct AttachedMount {
    pub(super) id: u64,
    /// Number of the device as `major:minor`; unique for each mount of this program.
    pub device: String,
    /// The directory of the file system that appears at `point`; not `/` for some bind mounts.
    pub root: PathBuf,
    /// Mountpoint: absolute and resolved.
    pub point: PathBuf,
    pub(super) flags: MountFlags,
    is_read_only: bool,
    /// Type of the file system, such as `ext4` or `fuse.sshfs`.
    pub kind: String,
    pub source: PathBuf,
    upper: Option<PathBuf>,
}

impl AttachedMount {
    /// Returns true if the file system is of one of `types`. A type with a dot at its end stands
    /// for all types with this beginning.
    pub(super) fn is_of(&self, types: &[&str]) -> bool {
        types.iter().any(|kind| match kind.ends_with('.') {
            true => self.kind.starts_with(kind),
            false => self.kind == *kind,
        })
    }

    /// Returns true for a mount of this program.
    pub fn is_ours(&self) -> bool {
        self.kind == MOUNT_TYPE
    }
}

/// All mounts, in the order of the table. Of two at one path, the later one is visible.
#[derive(Debug, Default)]
pub struct AttachedMounts(Vec<AttachedMount>);

impl AttachedMounts {
    /// Reads the table of this process.
    ///
    /// # Errors
    ///
    /// Fails if /proc is not mounted.
    pub fn read() -> io::Result<AttachedMounts> {
        Ok(AttachedMounts::parse(&files::read(Path::new("/proc/self/mountinfo"), TABLE_MAX)?))
    }

    /// Parses a table; invalid lines are skipped.
    pub fn parse(table: &[u8]) -> AttachedMounts {
        AttachedMounts(table.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
    }

    /// Returns the mount that is visible at the mountpoint `point`.
    pub fn at(&self, point: &Path) -> Option<&AttachedMount> {
        self.0.iter().rfind(|entry| entry.point == point)
    }

    /// Iterates over the mounts of this program.
    pub fn ours(&self) -> impl Iterator<Item = &AttachedMount> {
        self.0.iter().filter(|entry| entry.is_ours())
    }

    /// Iterates over the mounts of a device, latest first: its own mountpoint and bind mounts.
    pub fn with_device(&self, device: &str) -> impl Iterator<Item = &AttachedMount> {
        self.0.iter().rev().filter(move |entry| entry.device == device)
    }

    /// Returns true if `device` is mounted at exactly `point`, even beneath another mount.
    pub fn is_mounted_at(&self, point: &Path, device: &str) -> bool {
        self.0.iter().any(|entry| entry.point == point && entry.device == device)
    }

    /// Returns the mount that holds `path`, which must be absolute and resolved.
    pub fn holder(&self, path: &Path) -> Option<&AttachedMount> {
        let holders = self.0.iter().filter(|entry| path.starts_with(&entry.point));
        // `max_by_key` returns the last of several equal ones, which is the topmost.
        holders.max_by_key(|entry| entry.point.components().count())
    }

    /// Returns true if the same file system is mounted at `point` in another table.
    pub(super) fn agrees(&self, other: &AttachedMounts, point: &Path) -> bool {
        let device = |table: &AttachedMounts| table.at(point).map(|entry| entry.device.clone());
        device(self) == device(other)
    }

    /// Iterates over the mountpoints beneath `path`, which must be absolute and without links.
    pub(super) fn points_beneath(&self, path: &Path) -> impl Iterator<Item = &Path> {
        let points = self.0.iter().map(|entry| entry.point.as_path());
        points.filter(move |point| *point != path && point.starts_with(path))
    }

    /// Iterates over the mounts whose file system is of one of `types`, see
    /// [`AttachedMount::is_of`].
    fn of_types<'a>(&'a self, types: &'a [&str]) -> impl Iterator<Item = &'a AttachedMount> {
        self.0.iter().filter(|entry| entry.is_of(types))
    }

    /// Returns true if `path` is in the upper layer of an overlay that is mounted.
    pub(super) fn is_in_upper_layer(&self, path: &Path) -> bool {
        self.0.iter().filter_map(|entry| entry.upper.as_ref()).any(|upper| path.starts_with(upper))
    }

    /// Returns the other paths at which `path`, or something in it, is visible because of bind
    /// mounts.
    pub(super) fn aliases(&self, path: &Path) -> Vec<PathBuf> {
        let Some(holder) = self.holder(path) else { return Vec::new() };
        let Ok(rest) = path.strip_prefix(&holder.point) else { return Vec::new() };
        let inner = join(&holder.root, rest);
        let others = self.0.iter().filter(|entry| {
            entry.device == holder.device && entry.id != holder.id && !entry.point.starts_with(path)
        });
        others
            .filter_map(|entry| match inner.strip_prefix(&entry.root) {
                Ok(rest) => Some(join(&entry.point, rest)),
                Err(_) => entry.root.starts_with(&inner).then(|| entry.point.clone()),
            })
            .filter(|alias| alias != path)
            .collect()
    }
}

/// Adds flags to all mounts at and beneath each of `targets`, which are mountpoints, deeper ones
/// after the ones above them.
///
/// There is no safe wrapper of mount_setattr(2), which would do this with one call, so each mount
/// is remounted. Its other options are kept: the kernel has locked them.
pub(super) fn restrict(targets: &[(&Path, MountFlags)]) -> Result<(), StageFailure> {
    let table = AttachedMounts::read().step("read the table of mounts")?;
    for entry in &table.0 {
        let Some((_, more)) = targets.iter().rfind(|(target, _)| entry.point.starts_with(target))
        else {
            continue;
        };
        // A mount beneath another one, or in a directory that this process may not enter, can be
        // reached by no path.
        if is_at(&entry.point, entry.id) {
            let kept = if entry.is_read_only { MountFlags::RDONLY } else { MountFlags::empty() };
            remount(&entry.point, entry.flags | kept | *more).step(&format!(
                "restrict the mount at {}",
                swarmletfs_base::name::printable(entry.point.as_os_str().as_encoded_bytes())
            ))?;
        }
    }
    Ok(())
}

/// Makes the mount at `point`, which has the options `flags`, read-only.
pub(super) fn remount_read_only(point: &Path, flags: MountFlags) -> rustix::io::Result<()> {
    remount(point, MountFlags::RDONLY | flags)
}

fn remount(point: &Path, flags: MountFlags) -> rustix::io::Result<()> {
    mount_remount(point, MountFlags::BIND | flags, c"")
}

/// Returns true if a path lookup of `point` ends at the mount `id`.
fn is_at(point: &Path, id: u64) -> bool {
    statx(CWD, point, AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID)
        .is_ok_and(|stat| stat.stx_mnt_id == id)
}

/// Joins paths without a slash at the end.
fn join(path: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { path.to_path_buf() } else { path.join(rest) }
}

/// Parses `id parent device root point options optional… - type source superoptions`.
fn parse_line(line: &[u8]) -> Option<AttachedMount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = text(fields.nth(1)?);
    let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
    let options: Vec<&[u8]> = fields.next()?.split(|byte| *byte == b',').collect();
    let has = |name: &[u8]| options.contains(&name);
    let mut flags: MountFlags =
        OPTIONS.iter().filter(|(name, _)| has(name)).map(|(_, flag)| *flag).collect();
    // An update of every access time has no name in the table.
    if !flags.intersects(MountFlags::NOATIME | MountFlags::RELATIME) {
        flags |= MountFlags::STRICTATIME;
    }
    let mut of_file_system = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, source) = (text(of_file_system.next()?), unescape(of_file_system.next()?));
    let upper = of_file_system.next().filter(|_| kind == "overlay").and_then(|options| {
        let mut options = options.split(|byte| *byte == b',');
        options.find_map(|option| option.strip_prefix(b"upperdir=")).map(unescape)
    });
    let is_read_only = has(b"ro");
    Some(AttachedMount { id, device, root, point, flags, is_read_only, kind, source, upper })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
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
    let showing = table.of_types(&SHOWING_OTHERS).filter(|mount| !mount.is_ours());
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

/// Types of file systems that a server answers for.
const SERVED: [&str; 11] =
    ["fuse.", "fuse", "fuseblk", "nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "afs"];

/// Time limit for the answers of all servers.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns the mountpoints whose file systems do not answer in time.
pub(super) fn silent_mounts(table: &AttachedMounts) -> BTreeSet<PathBuf> {
    let served = table.of_types(&SERVED).map(|mount| mount.point.clone());
    let mut silent: BTreeSet<PathBuf> = served.collect();
    let (answers, answered) = mpsc::channel();
    for point in &silent {
        let (point, answers) = (point.clone(), answers.clone());
        // A thread that waits for an answer ends with this process. Without a thread, the file
        // system counts as silent.
        let _ = thread::Builder::new().spawn(move || {
            // An error is an answer, too.
            let _ = (lstat(&point), statfs(&point));
            answers.send(point)
        });
    }
    drop(answers);
    let deadline = Instant::now() + PATIENCE;
    while let Ok(point) = answered.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        silent.remove(&point);
    }
    silent
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r"
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 8:2 / /data rw,nosuid,noatime shared:2 - ext4 /dev/sdb rw
31 22 8:2 /stores /mnt/a\040b ro,nodev - ext4 /dev/sdb rw
32 22 8:2 /stores/s/drafts /mnt/drafts rw - ext4 /dev/sdb rw
33 22 0:50 / /merged rw,relatime - overlay none rw,lowerdir=/l,upperdir=/u\040p,workdir=/w
not a line
";

    #[test]
    fn octal_escapes_are_decoded() {
        assert_eq!(unescape(br"\134040\8\"), Path::new(r"\040\8\"));
        assert_eq!(unescape(br"\400\777"), Path::new(r"\400\777"));
    }

    #[test]
    fn bind_mounts_of_a_path_are_found() {
        let table = AttachedMounts::parse(TABLE.as_bytes());
        assert_eq!(
            table.aliases(Path::new("/data/stores/s")),
            [Path::new("/mnt/a b/s"), Path::new("/mnt/drafts")]
        );
        assert_eq!(table.aliases(Path::new("/home")), [] as [PathBuf; 0]);
    }

    #[test]
    fn mountpoints_and_upper_layers_are_found() {
        let table = AttachedMounts::parse(TABLE.as_bytes());
        let beneath: Vec<&Path> = table.points_beneath(Path::new("/mnt")).collect();
        assert_eq!(beneath, [Path::new("/mnt/a b"), Path::new("/mnt/drafts")]);
        assert!(table.is_in_upper_layer(Path::new("/u p/x")));
        assert!(!table.is_in_upper_layer(Path::new("/u")));
    }

    #[test]
    fn options_that_the_kernel_locks_are_kept() {
        let AttachedMounts(entries) = AttachedMounts::parse(TABLE.as_bytes());
        assert_eq!(entries[1].flags, MountFlags::NOSUID | MountFlags::NOATIME);
        assert_eq!(entries[2].flags, MountFlags::NODEV | MountFlags::STRICTATIME);
        assert!(entries[2].is_read_only && !entries[1].is_read_only);
    }
}
