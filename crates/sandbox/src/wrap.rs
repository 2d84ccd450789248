//! The command line that enters a sandbox.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::getpid;

use super::files::write_all;
use super::spec::SandboxSpec;
use super::stage::{PROGRAM, Stage, StageRequest};

/// A command line that runs a command in a sandbox. It must live until the program runs.
#[derive(Debug)]
pub struct WrappedCommand {
    pub command: Vec<OsString>,
    _request: OwnedFd,
}

impl SandboxSpec {
    /// Returns the command line that runs `command` in the sandbox.
    ///
    /// The started process ends with the exit code or the signal of the command; with 125 if the
    /// sandbox failed, 126 if the command cannot be executed, and 127 if it was not found. It is
    /// killed if the thread that started it ends.
    ///
    /// # Errors
    ///
    /// Fails with `InvalidInput` for a path that the command must not be able to write, or if no
    /// descriptor is left.
    pub fn wrap(&self, command: &[OsString]) -> io::Result<WrappedCommand> {
        self.check()?;
        let request = StageRequest {
            spec: self.clone(),
            command: command.to_vec(),
            parent: getpid().as_raw_pid(),
            blocked_signals: Vec::new(),
            has_group: false,
        };
        let bytes = postcard::to_stdvec(&request).map_err(io::Error::other)?;
        // Without CLOEXEC, so that the stages inherit it.
        let file = memfd_create("swarmletfs-sandbox", MemfdFlags::empty())?;
        write_all(&file, &bytes)?;
        let stage = Stage::Outer.arguments(file.as_raw_fd(), None);
        let command = [OsString::from(PROGRAM)].into_iter().chain(stage).collect();
        Ok(WrappedCommand { command, _request: file })
    }

    /// Checks that no writable path shows anything that must stay hidden or unchanged.
    fn check(&self) -> io::Result<()> {
        let refuse = |path: &PathBuf, why: &str| {
            let path = swarmletfs_base::name::printable(path.as_os_str().as_encoded_bytes());
            let text = format!("cannot make {path} writable: {why}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        };
        for path in &self.write {
            if !path.is_absolute() {
                return refuse(path, "it is not an absolute path");
            }
            if let Some(reason) = writable_refusal(path, &self.store) {
                return refuse(path, reason);
            }
        }
        Ok(())
    }
}

/// Returns the reason why no command may write the absolute path `path`; `None` if one may.
pub fn writable_refusal(path: &Path, store: &Path) -> Option<&'static str> {
    if path.parent().is_none() {
        return Some("all files would be writable; try a directory beneath it");
    }
    if path.starts_with(store) {
        return Some("it is in the store, which workers cannot see");
    }
    let reason = "the store is in it, and could be replaced; try a directory beneath it";
    store.starts_with(path).then_some(reason)
}
