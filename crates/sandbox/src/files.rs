//! The few files that the stages open: files of /proc, and mountpoints on file systems that the
//! sandbox itself mounted. The files of stores and workspaces are not opened here.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, SeekFrom, fstat, mkdirat, openat, readlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use swarmletfs_base::path_bytes;

/// Mode of directories and files of the sandbox that are mounted over.
const MOUNTPOINT_MODE: Mode = Mode::from_raw_mode(0o755);

/// Returns the path of a descriptor of this process. Opening it opens the file anew.
pub(super) fn own_descriptor(number: i32) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{number}"))
}

/// Opens a file or directory to mount it. No part of its absolute path may be a link.
///
/// A sandbox in a sandbox has no openat2(2), which does the same.
pub(super) fn open_real(path: &Path) -> rustix::io::Result<OwnedFd> {
    let root = open_entry(CWD, OsStr::new("/"))?;
    let names = path.components().filter(|part| *part != Component::RootDir);
    names.map(Component::as_os_str).try_fold(root, |folder, name| {
        let entry = open_entry(folder, name)?;
        match FileType::from_raw_mode(fstat(&entry)?.st_mode) {
            FileType::Symlink => Err(Errno::LOOP),
            _ => Ok(entry),
        }
    })
}

pub(super) fn open_entry(folder: impl AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(folder, name, flags, Mode::empty())
}

pub(super) fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

pub(super) fn open_for_writing(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
}

pub(super) fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    read_to_end(&open(path)?, max)
}

fn read_to_end(file: &OwnedFd, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = match rustix::io::read(file, &mut buffer) {
            Err(Errno::INTR) => continue,
            count => count?,
        };
        if count == 0 {
            return Ok(bytes);
        }
        bytes.extend(buffer.iter().take(count));
        if bytes.len() as u64 > max {
            return Err(Errno::FBIG.into());
        }
    }
}

/// Replaces the first bytes of a file with one call where that is possible, as files of /proc
/// require.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_all(open_for_writing(path)?, bytes)
}

pub(super) fn write_all(file: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(&file, bytes) {
            Err(Errno::INTR) => {}
            count => bytes = bytes.get(count?..).ok_or(Errno::IO)?,
        }
    }
    Ok(())
}

pub(super) fn print_error(text: &str) -> io::Result<()> {
    write_all(rustix::stdio::stderr(), text.as_bytes())
}

/// Makes a directory and its parents on a file system of the sandbox.
pub(super) fn make_dirs(path: &Path) -> io::Result<()> {
    match mkdirat(CWD, path, MOUNTPOINT_MODE) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(Errno::NOENT) => {
            make_dirs(path.parent().ok_or(Errno::NOENT)?)?;
            match mkdirat(CWD, path, MOUNTPOINT_MODE) {
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Makes a directory with these permissions on a file system of the sandbox. It may exist.
pub(super) fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    make_dirs(path)?;
    Ok(rustix::fs::chmod(path, Mode::from_raw_mode(mode))?)
}

pub(super) fn make_file(path: &Path) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(CWD, path, flags, MOUNTPOINT_MODE)?;
    Ok(())
}

/// Returns true if `path` is a directory, and no link to one.
pub(super) fn is_dir(path: &Path) -> bool {
    rustix::fs::lstat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir())
}

/// Reads a file of the kernel from its start, through a descriptor that stays open.
pub(super) fn read_again(file: &OwnedFd, max: u64) -> io::Result<Vec<u8>> {
    rustix::fs::seek(file, SeekFrom::Start(0))?;
    read_to_end(file, max)
}

pub(super) fn list(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for entry in Dir::new(openat(CWD, path, flags, Mode::empty())?)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

pub(super) fn resolve(path: &Path) -> io::Result<PathBuf> {
    let entry = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let target = readlinkat(CWD, own_descriptor(entry.as_raw_fd()), Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

/// Closes every descriptor except for the standard streams and the numbers in `kept`.
///
/// Descriptors that the caller left open could reach files that the mounts hide.
pub fn close_descriptors_except(kept: &[i32]) -> io::Result<()> {
    for name in list(Path::new("/proc/self/fd"))? {
        let number = std::str::from_utf8(&name).ok().and_then(|name| name.parse::<i32>().ok());
        let Some(number) = number.filter(|number| *number > 2 && !kept.contains(number)) else {
            continue;
        };
        match nix::unistd::close(number) {
            // The descriptor of the directory that was just listed.
            Ok(()) | Err(nix::errno::Errno::EBADF) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The files in the private directories for temporary files, which vanish with the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftFiles {
    /// Number of files.
    pub files: u64,
    /// Their size, in bytes.
    pub bytes: u64,
    /// The first ones.
    #[serde(with = "path_bytes::list")]
    pub paths: Vec<PathBuf>,
    /// True if there are more than were counted.
    pub has_more: bool,
}

/// Maximum number of entries that are looked at.
const LEFT_MAX: usize = 10_000;
/// Maximum depth of directories that are looked into.
const LEFT_DEPTH: usize = 32;
const LEFT_PATHS: usize = 3;

impl LeftFiles {
    /// Counts the files below `folders`, without the mounts in them. An entry that cannot be read
    /// does not count.
    pub(super) fn find<'a>(folders: impl IntoIterator<Item = &'a str>) -> LeftFiles {
        let (mut found, mut left) = (LeftFiles::default(), LEFT_MAX);
        for folder in folders {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            if let Ok(opened) = openat(CWD, folder, flags, Mode::empty())
                && let Ok(stat) = fstat(&opened)
            {
                found.add(&opened, Path::new(folder), stat.st_dev, (&mut left, LEFT_DEPTH));
            }
        }
        found
    }

    fn add(
        &mut self,
        folder: &OwnedFd,
        path: &Path,
        device: u64,
        (left, depth): (&mut usize, usize),
    ) {
        let Ok(entries) = Dir::read_from(folder) else { return };
        for entry in entries.flatten() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if *left == 0 || depth == 0 {
                self.has_more = true;
                return;
            }
            *left -= 1;
            let path = path.join(name);
            let Ok(opened) = open_entry(folder, name) else { continue };
            let Ok(stat) = fstat(&opened) else { continue };
            match FileType::from_raw_mode(stat.st_mode) {
                _ if stat.st_dev != device => {}
                FileType::RegularFile => {
                    self.files += 1;
                    self.bytes =
                        self.bytes.saturating_add(u64::try_from(stat.st_size).unwrap_or(0));
                    if self.paths.len() < LEFT_PATHS {
                        self.paths.push(path);
                    }
                }
                FileType::Directory => {
                    let flags =
                        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    if let Ok(inner) = openat(folder, name, flags, Mode::empty()) {
                        self.add(&inner, &path, device, (left, depth - 1));
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_below_folders_and_through_no_link() {
        let temporary = tempfile::tempdir().unwrap();
        let at = |name: &str| temporary.path().join(name);
        std::fs::create_dir_all(at("left/deep")).unwrap();
        std::fs::create_dir(at("other")).unwrap();
        for (name, text) in [("left/a", "12345"), ("left/deep/b", "1"), ("other/c", "1")] {
            std::fs::write(at(name), text).unwrap();
        }
        std::os::unix::fs::symlink("../other", at("left/link")).unwrap();
        let found = LeftFiles::find([at("left").to_str().unwrap(), "/nothing"]);
        assert_eq!((found.files, found.bytes, found.has_more), (2, 6, false));
        assert!(found.paths.contains(&at("left/deep/b")), "{found:?}");
    }

    #[test]
    fn what_is_mounted_is_reached_by_no_link() {
        let temporary = tempfile::tempdir().unwrap();
        let place = temporary.path().canonicalize().unwrap();
        std::fs::create_dir_all(place.join("real/inner")).unwrap();
        std::os::unix::fs::symlink("real", place.join("link")).unwrap();
        open_real(&place.join("real/inner")).unwrap();
        for path in ["link", "link/inner"] {
            assert_eq!(open_real(&place.join(path)).unwrap_err(), Errno::LOOP, "{path}");
        }
    }
}
