//! The few files that the stages open: files of /proc, and mountpoints on file systems that the
//! sandbox itself mounted. The files of stores and workspaces are not opened here.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, SeekFrom, fstat, mkdirat, openat, readlinkat};
use rustix::io::Errno;

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

#[cfg(test)]
mod tests {
    use super::*;

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
