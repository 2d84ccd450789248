//! `--as`: runs everything as another user, the runner, too.
//!
//! No process of the user may have something of root: other processes of the user could take it
//! from there. So two processes of root come before the runner:
//!
//! - The first stays. It connects root's terminal with a terminal of the runner, which has a
//!   session of its own, and passes signals on.
//! - The second closes its inherited descriptors, and becomes the runner.

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use nix::unistd::{User, getgrouplist};
use rustix::process::{
    DumpableBehavior, Gid, Signal, Uid, set_dumpable_behavior, set_parent_process_death_signal,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::environment::{EnvOption, EnvironmentRules, Variables};
use crate::cli::exit::UsageError;
use crate::cli::help::own_arguments;
use crate::cli::run_command::{self, CommandSpec, Sink, StreamMode};
use crate::cli::terminal::escape_controls;
use crate::sandbox::close_descriptors_except;

const OWN_PROGRAM: &str = "/proc/self/exe";

/// The option of the process that becomes the runner.
pub(super) const BECOMES: &str = "__becomes-user";

/// Makes sure that the run belongs to `user`. Returns `None` if this process is the runner, and
/// otherwise the exit code of the runner, which has ended.
///
/// `becomes` is true for the process that becomes the runner.
///
/// # Errors
///
/// This process is another ordinary user, or there is no such user, or it cannot be started.
pub(super) fn run_as(
    user: &OsStr,
    options: &[EnvOption],
    becomes: bool,
) -> anyhow::Result<Option<ExitCode>> {
    let own = rustix::process::geteuid();
    if !own.is_root() {
        if find(user)?.uid.as_raw() != own.as_raw() {
            let message = format!("cannot run as {}: only root can; leave out --as", show(user));
            return Err(UsageError(message).into());
        }
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .context("cannot protect this process")?;
        return Ok(None);
    }
    if becomes {
        match become_user(user)? {}
    }
    start_runner(user, options).map(Some)
}

/// Returns the name of the user of this process, or else the number.
pub(super) fn own_name() -> String {
    let own = rustix::process::geteuid().as_raw();
    let user = User::from_uid(nix::unistd::Uid::from_raw(own)).ok().flatten();
    user.map_or_else(|| own.to_string(), |user| escape_controls(&user.name))
}

fn show(name: &OsStr) -> String {
    escape_controls(&name.to_string_lossy())
}

fn find(name: &OsStr) -> anyhow::Result<User> {
    let context = || format!("cannot run as {}", show(name));
    let user = name.to_str().map(User::from_name).transpose().with_context(context)?.flatten();
    user.with_context(|| format!("cannot run as {}: there is no such user", show(name)))
}

/// A recording of the runner, which records its command itself.
struct NoRecord;

impl Sink for NoRecord {
    fn write(&mut self, _: &[u8]) -> anyhow::Result<()> {
        Ok(())
    }
}

fn start_runner(name: &OsStr, options: &[EnvOption]) -> anyhow::Result<ExitCode> {
    let user = find(name)?;
    if user.uid.is_root() {
        bail!("cannot run as {}: this is root itself; leave out --as", show(name));
    }
    let rules = EnvironmentRules::of_other_user(options)?;
    let passed = std::env::vars_os().filter(|(name, _)| rules.passes(name));
    let own = [
        ("HOME", user.dir.into()),
        ("SHELL", user.shell.into()),
        ("USER", OsString::from(&user.name)),
        ("LOGNAME", OsString::from(&user.name)),
    ];
    let own = own.into_iter().map(|(name, value)| (OsString::from(name), value));
    let environment: Variables = passed.chain(own).collect();
    let mut arguments = own_arguments();
    let mut command = vec![OWN_PROGRAM.into()];
    command.extend(arguments.next());
    command.push(format!("--{BECOMES}").into());
    command.extend(arguments);
    let spec = CommandSpec {
        command,
        environment,
        timeout: None,
        streams: StreamMode::Apart,
        max_bytes: None,
        quiet: true,
    };
    Ok(ExitCode::from(run_command::run(&spec, &mut NoRecord)?.exit_code))
}

/// Replaces this process by the runner, which has the rights of a user and the same arguments.
fn become_user(name: &OsStr) -> anyhow::Result<Infallible> {
    let shown = show(name);
    let context = || format!("cannot run as {shown}");
    let user = find(name)?;
    close_descriptors_except(&[]).with_context(context)?;
    let groups = CString::new(user.name.as_bytes()).context("a name holds a NUL")?;
    let groups = getgrouplist(&groups, user.gid).with_context(context)?;
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(group.as_raw())).collect();
    let (uid, gid) = (Uid::from_raw(user.uid.as_raw()), Gid::from_raw(user.gid.as_raw()));
    // These set the rights of this thread. The new program starts with them. Other processes of the
    // user cannot trace this one, since its user changes.
    set_thread_groups(&groups).with_context(context)?;
    set_thread_res_gid(gid, gid, gid).with_context(context)?;
    set_thread_res_uid(uid, uid, uid).with_context(context)?;
    clear_ambient_capability_set().with_context(context)?;
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, none).with_context(context)?;
    // If the other process is killed, nobody could end this one.
    set_parent_process_death_signal(Some(Signal::TERM)).with_context(context)?;
    let mut command = Command::new(OWN_PROGRAM);
    let error = command.arg0("swarmletfs").args(std::env::args_os().skip(1)).exec();
    Err(error).with_context(|| format!("{}: cannot start again", context()))
}
