//! `--as`: runs everything as another user, the runner, too.

use std::convert::Infallible;
use std::ffi::{CString, OsStr};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, bail};
use nix::unistd::{User, getgrouplist};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::cli::terminal::escape_controls;

/// The file that a process runs.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Returns true if this process has no rights to give up any more.
pub(super) fn is_done() -> bool {
    !rustix::process::geteuid().is_root()
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
    let shown = escape_controls(&name.to_string_lossy());
    let context = || format!("cannot run as {shown}");
    let user = name.to_str().map(User::from_name).transpose().with_context(context)?.flatten();
    let user = user.with_context(|| format!("cannot run as {shown}: there is no such user"))?;
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
