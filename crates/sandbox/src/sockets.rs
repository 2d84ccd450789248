//! Sockets in the real directories that a command may write, through which it could act outside of
//! its sandbox: an agent for keys, a connection of ssh, an editor.
//!
//! Each one is covered when the command starts, except for the admitted ones. All other parts of
//! the machine are shown without sockets, see [`super::machine`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, openat};

use super::cause::StageFailure;

/// Maximum number of entries to inspect in one directory that may be written.
const ENTRIES_MAX: usize = 2_000_000;

/// Returns the sockets at and beneath `path`. Links are not followed, and directories that cannot
/// be listed are left out.
///
/// # Errors
///
/// There are too many entries to look at.
pub(super) fn beneath(path: &Path) -> Result<Vec<PathBuf>, StageFailure> {
    let (mut found, mut seen) = (Vec::new(), 0);
    let mut folders = vec![path.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let listed = openat(CWD, &folder, flags, Mode::empty()).and_then(Dir::new);
        for entry in listed.into_iter().flatten().map_while(Result::ok) {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not report the type.
                FileType::Unknown => rustix::fs::lstat(folder.join(name))
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            match kind {
                FileType::Directory => folders.push(folder.join(name)),
                FileType::Socket => found.push(folder.join(name)),
                _ => {}
            }
            seen += 1;
        }
        if seen > ENTRIES_MAX {
            let path = swarmletfs_base::name::printable(path.as_os_str().as_bytes());
            return Err(StageFailure::new(format!(
                "cannot look for sockets in {path}: it has more than {ENTRIES_MAX} entries; try to \
                 make a smaller directory writable"
            )));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_are_found_under_every_name_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("shown/inner")).unwrap();
        let _socket = UnixListener::bind(at("bound")).unwrap();
        std::fs::hard_link(at("bound"), at("shown/inner/other-name")).unwrap();
        std::fs::rename(at("bound"), at("shown/renamed")).unwrap();
        std::os::unix::fs::symlink(folder.path(), at("shown/link")).unwrap();
        std::fs::write(at("shown/file"), "").unwrap();
        let mut found = beneath(&at("shown")).unwrap();
        found.sort();
        assert_eq!(found, [at("shown/inner/other-name"), at("shown/renamed")]);
        assert_eq!(beneath(&at("none")).unwrap(), [] as [PathBuf; 0]);
    }
}
