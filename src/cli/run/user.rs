//! `--as`: runs everything as another user, the runner, too.

use std::convert::Infallible;
use std::ffi::{CString, OsStr};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, bail};
use nix::unistd::{User, getgrouplist};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::cli::exit::UsageError;
use crate::cli::terminal::escape_controls;

/// The file that a process runs.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Returns true if this process runs as `user`, or false if it is root, which can become anyone.
///
/// # Errors
///
/// This process is another ordinary user.
pub(super) fn is_done(user: &OsStr) -> anyhow::Result<bool> {
    let own = rustix::process::geteuid();
    if own.is_root() {
        return Ok(false);
    }
    if find(user)?.uid.as_raw() == own.as_raw() {
        return Ok(true);
    }
    let message = format!("cannot run as {}: only root can; leave out --as", show(user));
    Err(UsageError(message).into())
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

/// Replaces this process by one that has the rights of `user` and the same arguments. Returns only
/// on failure.
pub(super) fn run_as(user: &OsStr) -> anyhow::Error {
    match become_user(user) {
        Err(error) => error,
        Ok(never) => match never {},
    }
}

fn become_user(name: &OsStr) -> anyhow::Result<Infallible> {
    let shown = show(name);
    let context = || format!("cannot run as {shown}");
    let user = find(name)?;
    if user.uid.is_root() {
        bail!("cannot run as {shown}: this is root itself; leave out --as");
    }
    let groups = CString::new(user.name.as_bytes()).context("a name holds a NUL")?;
    let groups = getgrouplist(&groups, user.gid).with_context(context)?;
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(group.as_raw())).collect();
    let (uid, gid) = (Uid::from_raw(user.uid.as_raw()), Gid::from_raw(user.gid.as_raw()));
    // These set the rights of this thread. The new program starts with them.
    set_thread_groups(&groups).with_context(context)?;
    set_thread_res_gid(gid, gid, gid).with_context(context)?;
    set_thread_res_uid(uid, uid, uid).with_context(context)?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new(OWN_PROGRAM);
    command.arg0(arguments.next().unwrap_or_default()).args(arguments);
    command.env("HOME", &user.dir).env("USER", &user.name).env("LOGNAME", &user.name);
    let error = command.exec();
    Err(error).with_context(|| format!("{}: cannot start again", context()))
}
