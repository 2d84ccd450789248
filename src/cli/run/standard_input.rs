//! The standard input of a command in a sandbox.
//!
//! A descriptor of a file or folder leads to the real file system, past the mounts of the sandbox:
//! the command could open it anew for writing, or an entry beneath it.

use std::fs::File;
use std::io;
use std::thread;

use anyhow::{Context, bail};
use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::fs::{FileType, fstat};
use rustix::pipe::{PipeFlags, pipe_with};

/// Puts a pipe in place of stdin if that is a file, and copies the file to it.
///
/// # Errors
///
/// Stdin is a folder, or no pipe or thread can be made.
pub(super) fn detach() -> anyhow::Result<()> {
    let stdin = rustix::stdio::stdin();
    // A closed stdin leads nowhere.
    let Ok(stat) = fstat(stdin) else { return Ok(()) };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            bail!(
                "cannot give a command a folder as its stdin, which leads out of its view; \
                 try `< /dev/null`"
            )
        }
        FileType::RegularFile | FileType::BlockDevice => {}
        _ => return Ok(()),
    }
    let mut file = File::from(stdin.try_clone_to_owned().context("cannot copy stdin")?);
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe for stdin")?;
    rustix::stdio::dup2_stdin(&read).context("cannot replace stdin")?;
    // The signals of this process are for the thread that runs the command.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let mask = mask.context("cannot block signals")?;
    let started = thread::Builder::new().spawn(move || {
        // The command may end before it has read everything.
        let _ = io::copy(&mut file, &mut File::from(write));
    });
    mask.thread_set_mask().context("cannot unblock signals")?;
    started.context("cannot start a thread")?;
    Ok(())
}
