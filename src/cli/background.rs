//! Serving in the background: two processes, without a fork.
//!
//! The first runs this program once more and waits for what the second has to say: the second leaves the session of
//! the terminal, mounts, and reports over its stdout one mark and a text. Only when the mount has answered does the
//! first one return. If the first is gone before the report, the second has nobody to serve and unmounts again.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};

use super::mount::Plan;
use super::terminal::{display_path, escape_controls, print_message};
use super::{mount, mountpoint, probe, teardown};

/// The mark of a report that the mount is up; the text describes it.
pub(super) const READY: u8 = b'+';

/// The mark of a report that there is no mount; the text says why.
pub(super) const FAILED: u8 = b'-';

/// MountTable in another process and returns when the mount answers. Returns a description of what is mounted. Errors are
/// sentences; there is no mount then.
pub(super) fn start(plan: &Plan) -> anyhow::Result<String> {
    let mut child = Command::new(std::env::current_exe().context("cannot find this program itself")?)
        .args(plan.arguments())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the process that serves in the background")?;
    let mut report = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_end(&mut report).context("cannot hear the process that serves in the background")?;
    }
    match report.split_first() {
        Some((&READY, text)) => {
            check_readable(&plan.mountpoint).inspect_err(|_| end(&mut child, &plan.mountpoint))?;
            Ok(String::from_utf8_lossy(text).into_owned())
        }
        Some((&FAILED, text)) => bail!("{}", escape_controls(&String::from_utf8_lossy(text))),
        _ => {
            let status = child.wait()?;
            let left = mountpoint::clear_dead(&plan.mountpoint).err().map(|error| format!("; {error:#}"));
            bail!(
                "the process that serves in the background ended without a word ({status}){}",
                left.unwrap_or_default()
            )
        }
    }
}

/// Checks that a fresh mount can be read. Errors are sentences.
pub(super) fn check_readable(mountpoint: &Path) -> anyhow::Result<()> {
    probe::check_readable(&mountpoint.join("README.md")).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::TimedOut => {
                format!("did not answer within {} seconds", probe::MOUNT_TIMEOUT.as_secs())
            }
            _ => format!("cannot be read ({error})"),
        };
        anyhow::anyhow!(
            "{} was mounted, but its README.md {why}, so it was unmounted again: \
             `SWARMLETFS_LOG=debug swarmletfs mount --foreground` shows what happens",
            display_path(mountpoint),
        )
    })
}

fn end(child: &mut Child, mountpoint: &Path) {
    if let Err(error) = teardown::unmount(mountpoint, teardown::UnmountMode::Detached) {
        print_message(&format!("cannot unmount {}: {error}", display_path(mountpoint)));
    }
    let _ = child.kill();
}

/// The second process: mounts, reports, serves.
pub(super) fn serve(plan: &Plan) -> anyhow::Result<()> {
    // It can fail only for a process that leads a group already, which then has left its terminal's session.
    let _ = rustix::process::setsid();
    let ready = |text: &str| {
        report(READY, text.as_bytes())?;
        leave_terminal()
    };
    plan.start_log(false).and_then(|()| mount::serve(plan, false, ready)).inspect_err(|error| {
        // After readiness this goes nowhere, and so does what the end of the process would say on stderr.
        let _ = report(FAILED, format!("{error:#}").as_bytes());
        let _ = leave_terminal();
    })
}

/// Writes a mark and a text to stdout, for the process that waits.
pub(super) fn report(mark: u8, text: &[u8]) -> io::Result<()> {
    let mut bytes = vec![mark];
    bytes.extend_from_slice(text);
    let mut stdout = io::stdout().lock();
    stdout.write_all(&bytes)?;
    stdout.flush()
}

/// Lets go of the first process's terminal, pipes and folder.
fn leave_terminal() -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")
}
