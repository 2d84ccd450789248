//! Serving in the background with two processes, without a fork.
//!
//! The parent runs this program again, writes the mount options to its stdin, and waits for a
//! report. The child mounts, leaves the terminal's session, and reports over its stdout: a mark
//! byte, then a text. The parent returns once the mount answers. If the parent has exited before
//! the report, the child unmounts again.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};

use super::mount_options::MountOptions;
use super::plan::Plan;
use super::terminal::{display_path, escape_controls, print_message};
use super::{mountpoint, probe, serve as session, teardown};

/// Mark of a report that the mount is up; the text describes it.
pub(super) const READY: u8 = b'+';

/// Mark of a report that mounting failed; the text gives the reason.
pub(super) const FAILED: u8 = b'-';

/// Mounts in a child process and returns a description of the mount once it answers.
///
/// # Errors
///
/// Fails if the child cannot be started or cannot mount. No mount is left behind.
pub(super) fn start(plan: &Plan) -> anyhow::Result<String> {
    let options =
        postcard::to_stdvec(&plan.options).context("cannot encode the options of the mount")?;
    let mut child =
        Command::new(std::env::current_exe().context("cannot find the path of this program")?)
            .args(["mount", "--__serve", "--"])
            .arg(&plan.mountpoint)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the background process")?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that cannot read them reports why, or ends without a report.
        let _ = stdin.write_all(&options);
    }
    let mut report = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout
            .read_to_end(&mut report)
            .context("cannot read the report of the background process")?;
    }
    match report.split_first() {
        Some((&READY, text)) => {
            check_readable(&plan.mountpoint).inspect_err(|_| end(&mut child, &plan.mountpoint))?;
            Ok(String::from_utf8_lossy(text).into_owned())
        }
        Some((&FAILED, text)) => bail!("{}", escape_controls(&String::from_utf8_lossy(text))),
        _ => {
            let status = child.wait()?;
            let cleanup_error =
                mountpoint::clear_dead(&plan.mountpoint).err().map(|error| format!("; {error:#}"));
            bail!(
                "the background process ended without a report ({status}){}",
                cleanup_error.unwrap_or_default()
            )
        }
    }
}

/// Checks that a new mount can be read.
///
/// # Errors
///
/// Fails if README.md of the mount cannot be read in time.
pub(super) fn check_readable(mountpoint: &Path) -> anyhow::Result<()> {
    probe::check_readable(&mountpoint.join("README.md")).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::TimedOut => {
                format!("did not answer within {} seconds", probe::MOUNT_TIMEOUT.as_secs())
            }
            _ => format!("cannot be read ({error})"),
        };
        anyhow::anyhow!(
            "{} was mounted, but its README.md {why}, so it was unmounted again; \
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

/// Runs the child: mounts, reports, and serves.
pub(super) fn serve(mountpoint: PathBuf) -> anyhow::Result<()> {
    mount_and_serve(mountpoint).inspect_err(|error| {
        // After readiness, stdout and stderr are /dev/null.
        let _ = report(FAILED, format!("{error:#}").as_bytes());
        let _ = leave_terminal();
    })
}

fn mount_and_serve(mountpoint: PathBuf) -> anyhow::Result<()> {
    let plan = Plan::new(mountpoint, read_options()?)?;
    plan.start_log()?;
    session::serve(plan, |text| {
        // Not before it is mounted: an automount of systemd lets only its own process group through
        // until then. This fails only for a process group leader, which has already left its
        // terminal's session.
        let _ = rustix::process::setsid();
        report(READY, text.as_bytes())?;
        leave_terminal()
    })
}

fn read_options() -> anyhow::Result<MountOptions> {
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).context("cannot read the options of the mount")?;
    postcard::from_bytes(&bytes).context("cannot decode the options of the mount")
}

pub(super) fn report(mark: u8, text: &[u8]) -> io::Result<()> {
    let mut bytes = vec![mark];
    bytes.extend_from_slice(text);
    let mut stdout = io::stdout().lock();
    stdout.write_all(&bytes)?;
    stdout.flush()
}

/// Releases the parent's terminal, pipes and current directory.
fn leave_terminal() -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")
}
