//! User namespaces: which user and group ids exist in the sandbox.
//!
//! An ordinary user keeps its own user and group id and nothing else. Root keeps all ids, because
//! with user id 0 alone the command could not read or change the files of others in its draft; the
//! map of all ids must be written from outside.

use std::io::Write;
use std::path::Path;
use std::process::{Child, ExitCode, Stdio};

use nix::sched::{CloneFlags, unshare};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getppid};

use super::cause::{FailedStep, StageFailure};
use super::stage::Stage;
use super::{files, privileges};

/// Maximum size of a map of ids, in bytes. The kernel allows 340 lines.
const MAP_MAX: u64 = 64 << 10;

/// The number of namespaces of control groups that a user namespace allows.
const CONTROL_GROUP_NAMESPACES: &str = "/proc/sys/user/max_cgroup_namespaces";

/// Known cause if a namespace can be made, but no user id can be mapped.
const RESTRICTED: &str = "the kernel restricts user namespaces, as AppArmor on Ubuntu does; try \
     `sysctl kernel.apparmor_restrict_unprivileged_userns=0`";

/// Enters a user namespace in which each id of the present one stands for itself, and the
/// namespaces `others`, which belong to it.
///
/// An ordinary user has its own user and group id only.
pub(super) fn enter(others: CloneFlags, descriptor: i32) -> Result<(), StageFailure> {
    let flags = CloneFlags::CLONE_NEWUSER | others;
    if !geteuid().is_root() {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        unshare(flags).step_with("make namespaces", namespace_cause)?;
        return write_own_maps(uid, gid);
    }
    let mut helper = start_maps(descriptor)?;
    unshare(flags).step_with("make namespaces", namespace_cause)?;
    let told = helper.stdin.take().map(|mut stdin| stdin.write_all(b"\n"));
    told.transpose().step("map the user ids")?;
    let status = helper.wait().step("map the user ids")?;
    if !status.success() {
        return Err(StageFailure::new(
            "cannot map the user ids for root; try `--as USER` to run as an ordinary user",
        ));
    }
    Ok(())
}

/// Forbids namespaces of control groups in this user namespace and the namespaces in it. A command
/// with one could mount the tree of control groups, and end or change processes outside by it.
pub(super) fn forbid_control_groups() -> Result<(), StageFailure> {
    let limited = files::write(Path::new(CONTROL_GROUP_NAMESPACES), b"0\n");
    // A sandbox around this one has forbidden them already.
    match unshare(CloneFlags::CLONE_NEWCGROUP) {
        Err(_) => Ok(()),
        Ok(()) => limited
            .and(Err(Errno::PERM.into()))
            .step_with("keep the command from control groups", |_| {
                Some("/proc/sys must be writable for that; try to leave out --nested")
            }),
    }
}

fn start_maps(descriptor: i32) -> Result<Child, StageFailure> {
    let mut command = Stage::Maps.command(descriptor, None);
    command.stdin(Stdio::piped()).spawn().step("start a process of the sandbox")
}

/// Writes the maps of the parent process once it has entered its namespace.
pub(super) fn serve_maps(_descriptor: i32) -> Result<ExitCode, StageFailure> {
    let mut byte = [0];
    let count = rustix::io::read(rustix::stdio::stdin(), &mut byte).step("map the user ids")?;
    let Some(parent) = getppid().filter(|_| count == 1) else {
        return Ok(ExitCode::FAILURE);
    };
    for name in ["uid_map", "gid_map"] {
        let path = format!("/proc/{}/{name}", parent.as_raw_pid());
        files::write(Path::new(&path), identity_map(name)?.as_bytes())
            .step("map all user ids for root")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn identity_map(name: &str) -> Result<String, StageFailure> {
    let path = Path::new("/proc/self").join(name);
    let map = files::read(&path, MAP_MAX).step("read the map of user ids")?;
    let mut identity = String::new();
    for line in String::from_utf8_lossy(&map).lines() {
        let mut fields = line.split_whitespace();
        if let (Some(first), Some(count)) = (fields.next(), fields.nth(1)) {
            identity.push_str(&format!("{first} {first} {count}\n"));
        }
    }
    Ok(identity)
}

fn write_own_maps(uid: u32, gid: u32) -> Result<(), StageFailure> {
    let open = |name| {
        let opened = files::open_for_writing(&Path::new("/proc/self").join(name));
        opened.step_with("map the user id", |_| Some(RESTRICTED))
    };
    // The files of a process that cannot be traced belong to root.
    privileges::allow_tracing(true)?;
    let opened = ["setgroups", "uid_map", "gid_map"].map(open);
    privileges::allow_tracing(false)?;
    let texts = ["deny".to_owned(), format!("{uid} {uid} 1"), format!("{gid} {gid} 1")];
    for (file, text) in opened.into_iter().zip(texts) {
        files::write_all(file?, text.as_bytes())
            .step_with("map the user id", |_| Some(RESTRICTED))?;
    }
    Ok(())
}

fn namespace_cause(errno: Option<Errno>) -> Option<&'static str> {
    match errno {
        Some(Errno::NOSPC) => Some(
            "the limit of namespaces is reached or zero; try to raise the sysctls \
             user.max_user_namespaces and user.max_mnt_namespaces",
        ),
        Some(Errno::PERM) => Some(
            "user namespaces are forbidden, as in containers; try to start the container with a \
             seccomp profile that allows unshare and mount",
        ),
        Some(Errno::INVAL | Errno::NOSYS) => {
            Some("this kernel has no user namespaces; try a kernel with CONFIG_USER_NS")
        }
        _ => None,
    }
}
