//! The rights of the command: its ids in a user namespace, its capabilities, Landlock, a filter of
//! system calls, and the loopback device of a new network namespace, which is down at first.
//!
//! An ordinary user keeps its own user and group id and nothing else. Root keeps all ids, because
//! with user id 0 alone the command could not read or change the files of others in its draft; the
//! map of all ids must be written from outside.
//!
//! Landlock is a second layer behind the read-only mounts, and the only one around abstract sockets
//! and around processes outside that are in the process group of the command.
//!
//! A seccomp filter refuses calls that no namespace confines. They type into the terminal of the
//! caller, use its keyring, make a file setuid or setgid, give it capabilities, or open a socket to
//! the host of a virtual machine.
//!
//! A file that a command leaves on the real disk outlives the sandbox. With a setuid bit it would
//! lend the rights of its owner to every user of the machine, so the bits are refused where they
//! would be set. A filter cannot read modes that are passed in memory, as by openat2(2), which
//! programs replace where it is missing, and by io_uring. Capabilities are an extended attribute,
//! whose name is in memory, too, and which root of a user namespace may set. So no attribute can be
//! set, as on a file system that has none.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, Stdio};

use Rule::{Create, Fail, First, Mode, Request};
use landlock::{
    ABI, Access, AccessFs, LandlockStatus, RestrictSelf, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope, path_beneath_rules,
};
use nix::sched::{CloneFlags, unshare};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use rustix::process::{DumpableBehavior, getegid, geteuid, getppid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};
use seccompiler::{BpfProgram, apply_filter, sock_filter};

use super::files;
use super::stage::{FailedStep, SandboxSpec, Stage, StageFailure};

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
pub(super) fn enter_namespaces(others: CloneFlags, descriptor: i32) -> Result<(), StageFailure> {
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
    allow_tracing(true)?;
    let opened = ["setgroups", "uid_map", "gid_map"].map(open);
    allow_tracing(false)?;
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

/// Capabilities that root keeps, for files and processes of the sandbox. Without FSETID, a file
/// that is written loses its setuid bit.
const OF_ROOT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::KILL);

/// Gives up for good all capabilities that the command does not keep.
pub(super) fn give_up_capabilities() -> Result<(), StageFailure> {
    let kept = if geteuid().is_root() { OF_ROOT } else { CapabilitySet::empty() };
    clear_ambient_capability_set().step("give up capabilities")?;
    for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        if !kept.contains(capability) {
            // The kernel has fewer capabilities than bits; that all are gone is checked below.
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    limit_capabilities(kept)?;
    set_no_new_privs(true).step("forbid new privileges")
}

/// Lets the next stage have the capabilities of this process. An ordinary user would lose them when
/// a program is executed.
pub(super) fn pass_capabilities_on() -> Result<(), StageFailure> {
    let held = capabilities(None).step("pass capabilities on")?.permitted;
    let sets = CapabilitySets { effective: held, permitted: held, inheritable: held };
    set_capabilities(None, sets).step("pass capabilities on")?;
    for capability in held.iter() {
        configure_capability_in_ambient_set(capability, true).step("pass capabilities on")?;
    }
    Ok(())
}

/// Forbids other processes of the same user to trace this one, or to read its memory, environment
/// and descriptors by /proc, or allows it. It is allowed again when a program is executed.
pub(super) fn allow_tracing(is_allowed: bool) -> Result<(), StageFailure> {
    let behavior =
        if is_allowed { DumpableBehavior::Dumpable } else { DumpableBehavior::NotDumpable };
    set_dumpable_behavior(behavior).step("protect a process of the sandbox")
}

pub(super) fn keep_no_capability() -> Result<(), StageFailure> {
    limit_capabilities(CapabilitySet::empty())
}

fn limit_capabilities(kept: CapabilitySet) -> Result<(), StageFailure> {
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).step("give up capabilities")
}

/// Newest version of Landlock that this program supports. An older kernel has fewer rights.
const LANDLOCK_VERSION: ABI = ABI::V7;
/// Oldest version that restricts signals and abstract sockets. Linux 6.12 has it.
const SCOPES_VERSION: ABI = ABI::V6;

/// The accesses that Landlock restricts on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LandlockLevel {
    /// Files, signals and abstract sockets.
    Full,
    /// Files only: the kernel is older than Linux 6.12.
    Files,
    /// Nothing: the kernel has no Landlock, or it is disabled.
    Nothing,
}

impl LandlockLevel {
    const ALL: [LandlockLevel; 3] =
        [LandlockLevel::Full, LandlockLevel::Files, LandlockLevel::Nothing];

    pub fn as_str(self) -> &'static str {
        match self {
            LandlockLevel::Full => "full",
            LandlockLevel::Files => "files",
            LandlockLevel::Nothing => "none",
        }
    }

    pub fn from_name(name: &[u8]) -> Option<LandlockLevel> {
        LandlockLevel::ALL.into_iter().find(|level| level.as_str().as_bytes() == name)
    }
}

/// Lets this process write only where the mounts allow it, and reach no process or abstract socket
/// outside of the sandbox. If the command may build a sandbox of its own, the files are left out:
/// rules for them would forbid every mount.
///
/// A kernel without Landlock restricts nothing: only the mounts and namespaces hold. The trial of
/// the sandbox reports that, see [`landlock_level`].
pub(super) fn restrict_by_landlock(spec: &SandboxSpec) -> Result<(), StageFailure> {
    apply_landlock(spec)
        .map_err(|error| StageFailure::new(format!("cannot restrict the command: {error}")))
}

pub(super) fn landlock_level() -> LandlockLevel {
    // Without rules nothing is restricted; this only queries the version.
    let status = RestrictSelf::default().no_new_privs(false).apply();
    match status.map(|status| status.landlock) {
        Ok(LandlockStatus::Available { effective_abi, .. }) if effective_abi >= SCOPES_VERSION => {
            LandlockLevel::Full
        }
        Ok(LandlockStatus::Available { .. }) => LandlockLevel::Files,
        _ => LandlockLevel::Nothing,
    }
}

fn apply_landlock(spec: &SandboxSpec) -> Result<(), RulesetError> {
    if spec.nested {
        return scopes(Ruleset::default())?.create()?.restrict_self().map(drop);
    }
    let all = AccessFs::from_all(LANDLOCK_VERSION);
    let reading = AccessFs::from_read(LANDLOCK_VERSION);
    // Devices and the files of processes are written in place.
    let in_place = reading | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let mut writable: Vec<PathBuf> = ["/tmp", "/dev/shm"].map(PathBuf::from).to_vec();
    writable.extend([spec.workspace.clone(), spec.worker_folder.clone()]);
    writable.extend(spec.git_common.iter().map(|(path, _)| path.clone()));
    writable.extend(spec.write.iter().cloned());
    // All rights are handled and granted together, else a rename between folders fails.
    scopes(Ruleset::default().handle_access(all)?)?
        .create()?
        .add_rules(path_beneath_rules([Path::new("/")], reading))?
        .add_rules(path_beneath_rules(["/dev", "/proc"], in_place))?
        .add_rules(path_beneath_rules(&writable, all))?
        .restrict_self()?;
    Ok(())
}

/// Isolates processes and abstract sockets. A process namespace does not hold
/// `kill(0)`, which signals every process of the group, also the processes of the terminal outside.
fn scopes(ruleset: Ruleset) -> Result<Ruleset, RulesetError> {
    ruleset.scope(Scope::from_all(LANDLOCK_VERSION))
}

const RTM_NEWLINK: u16 = 16;

/// Flags of a request that is answered in any case.
const REQUEST_WITH_ANSWER: u16 = 0x1 | 0x4;

const LOOPBACK: i32 = 1;

const UP: u32 = 1;

/// Size of the request, in bytes: a header and the description of a device.
const REQUEST_SIZE: u32 = 32;

/// Offset of the errno in an answer, in bytes.
const ERRNO_OFFSET: usize = 16;

/// Brings the loopback device up, so that programs can talk to themselves.
pub(super) fn bring_loopback_up() -> Result<(), StageFailure> {
    change_loopback().step_with("bring the loopback device up", |_| {
        Some("try with the network, without `--no-network`")
    })
}

fn change_loopback() -> rustix::io::Result<()> {
    // Protocol 0 of netlink is for network devices.
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    let mut request = Vec::new();
    request.extend(REQUEST_SIZE.to_ne_bytes());
    request.extend(RTM_NEWLINK.to_ne_bytes());
    request.extend(REQUEST_WITH_ANSWER.to_ne_bytes());
    // The number of the request and of the sender, then the family and kind of the device.
    request.extend([0; 12]);
    request.extend(LOOPBACK.to_ne_bytes());
    // The flags, and the mask of the flags to change.
    request.extend(UP.to_ne_bytes());
    request.extend(UP.to_ne_bytes());
    send(&socket, &request, SendFlags::empty())?;
    let mut answer = [0_u8; 256];
    recv(&socket, &mut answer, RecvFlags::empty())?;
    match answer.get(ERRNO_OFFSET..).and_then(|rest| rest.first_chunk::<4>()) {
        Some(&[0, 0, 0, 0]) => Ok(()),
        Some(errno) => Err(Errno::from_raw_os_error(-i32::from_ne_bytes(*errno))),
        None => Err(Errno::IO),
    }
}

/// The requests of ioctl(2) that are refused: TIOCSTI and TIOCLINUX.
const REQUESTS: [u32; 2] = [0x5412, 0x541c];

/// The setuid and setgid bits of a mode.
const SET_ID: u32 = 0o6000;

/// The flags of open(2) with which the mode counts: O_CREAT and O_TMPFILE.
const CREATES: u32 = 0o100 | 0o20_000_000;

/// AF_VSOCK: one space of addresses for the host and all namespaces.
const TO_HOST: u32 = 40;

/// The number of socket(2) among the calls of socketcall(2), whose arguments are in memory.
const SOCKET: u32 = 1;

#[derive(Clone, Copy)]
enum Rule {
    Fail(u32),
    /// Fails if its second argument is one of [`REQUESTS`].
    Request,
    /// Fails if the mode in this argument has a bit of [`SET_ID`].
    Mode(u32),
    /// Fails with this result if its first argument is this one.
    First(u32, u32),
    /// Fails as `Mode` does for the argument after the flags in this one, if these create a file.
    Create(u32),
}

/// Results of the filter: allow the call, or fail it with EPERM, ENOSYS, EAFNOSUPPORT or
/// EOPNOTSUPP.
const ALLOW: u32 = 0x7fff_0000;
const REFUSE: u32 = 0x0005_0001;
const MISSING: u32 = 0x0005_0026;
const NO_FAMILY: u32 = 0x0005_0061;
const NO_ATTRIBUTES: u32 = 0x0005_005f;

/// The numbers that all architectures share: openat2, io_uring_setup, fchmodat2 and setxattrat.
const SHARED: [(u32, Rule); 4] =
    [(437, Fail(MISSING)), (425, Fail(REFUSE)), (452, Mode(2)), (463, Fail(NO_ATTRIBUTES))];

/// The calls of an architecture, by their numbers: ioctl, the three of the keyring, open, openat,
/// creat, chmod, fchmod, fchmodat, mknod, mknodat, mq_open, whose files an overlay can copy,
/// socket, and the three that set an extended attribute.
type Calls = &'static [(u32, Rule)];

const X86_64: Calls = &[
    (16, Request),
    (248, Fail(REFUSE)),
    (249, Fail(REFUSE)),
    (250, Fail(REFUSE)),
    (2, Create(1)),
    (257, Create(2)),
    (85, Mode(1)),
    (90, Mode(1)),
    (91, Mode(1)),
    (268, Mode(2)),
    (133, Mode(1)),
    (259, Mode(2)),
    (240, Create(1)),
    (41, First(TO_HOST, NO_FAMILY)),
    (188, Fail(NO_ATTRIBUTES)),
    (189, Fail(NO_ATTRIBUTES)),
    (190, Fail(NO_ATTRIBUTES)),
];

const I386: Calls = &[
    (54, Request),
    (286, Fail(REFUSE)),
    (287, Fail(REFUSE)),
    (288, Fail(REFUSE)),
    (5, Create(1)),
    (295, Create(2)),
    (8, Mode(1)),
    (15, Mode(1)),
    (94, Mode(1)),
    (306, Mode(2)),
    (14, Mode(1)),
    (297, Mode(2)),
    (277, Create(1)),
    (359, First(TO_HOST, NO_FAMILY)),
    (102, First(SOCKET, MISSING)),
    (226, Fail(NO_ATTRIBUTES)),
    (227, Fail(NO_ATTRIBUTES)),
    (228, Fail(NO_ATTRIBUTES)),
];

const ARM: Calls = &[
    (54, Request),
    (309, Fail(REFUSE)),
    (310, Fail(REFUSE)),
    (311, Fail(REFUSE)),
    (5, Create(1)),
    (322, Create(2)),
    (8, Mode(1)),
    (15, Mode(1)),
    (94, Mode(1)),
    (333, Mode(2)),
    (14, Mode(1)),
    (324, Mode(2)),
    (274, Create(1)),
    (281, First(TO_HOST, NO_FAMILY)),
    (226, Fail(NO_ATTRIBUTES)),
    (227, Fail(NO_ATTRIBUTES)),
    (228, Fail(NO_ATTRIBUTES)),
];

/// The numbers of newer architectures, which have only the calls that name a directory.
const GENERIC: Calls = &[
    (29, Request),
    (217, Fail(REFUSE)),
    (218, Fail(REFUSE)),
    (219, Fail(REFUSE)),
    (56, Create(2)),
    (52, Mode(1)),
    (53, Mode(2)),
    (33, Mode(2)),
    (180, Create(1)),
    (198, First(TO_HOST, NO_FAMILY)),
    (5, Fail(NO_ATTRIBUTES)),
    (6, Fail(NO_ATTRIBUTES)),
    (7, Fail(NO_ATTRIBUTES)),
];

/// The architectures by which a kernel can be called that this program runs on: x86-64, i386,
/// AArch64, ARM and RISC-V of 64 bits.
const ARCHITECTURES: [(u32, Calls); 5] = [
    (0xc000_003e, X86_64),
    (0x4000_0003, I386),
    (0xc000_00b7, GENERIC),
    (0x4000_0028, ARM),
    (0xc000_00f3, GENERIC),
];

/// The bit in the numbers of x32, which has the architecture of x86-64, and its number of ioctl.
const X32: u32 = 0x4000_0000;
const X32_IOCTL: u32 = 514;

/// Offsets in the data of a call: its number, its architecture, and its first argument.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// Instructions: load a word, jump, jump if equal, jump if a bit is set, return.
const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_SET: u16 = 0x45;
const RETURN: u16 = 0x06;

pub(super) fn install() -> Result<(), StageFailure> {
    apply_filter(&program()).map_err(|error| {
        StageFailure::new(format!("cannot filter the system calls of the command: {error}"))
    })
}

/// Returns the filter. The filter of seccompiler would kill programs of every other architecture,
/// such as programs of 32 bits.
///
/// The number is compared before any argument is loaded, so that the kernel remembers which calls
/// are always allowed. A call of an unknown architecture is refused.
fn program() -> BpfProgram {
    let mut program = vec![statement(LOAD, ARCHITECTURE)];
    for (architecture, calls) in ARCHITECTURES {
        let mut numbered: Vec<(u32, Rule)> = calls.iter().chain(&SHARED).copied().collect();
        if std::ptr::eq(calls, X86_64) {
            let x32 = numbered.iter().map(|(number, rule)| match rule {
                Request => (X32 | X32_IOCTL, *rule),
                _ => (X32 | number, *rule),
            });
            let x32: Vec<(u32, Rule)> = x32.collect();
            numbered.extend(x32);
        }
        let mut block = vec![statement(LOAD, NUMBER)];
        for (number, rule) in numbered {
            let checks = rule.checks();
            block.push(jump(JUMP_IF_EQUAL, number, 0, length(&checks)));
            block.extend(checks);
        }
        block.push(statement(RETURN, ALLOW));
        program.push(jump(JUMP_IF_EQUAL, architecture, 1, 0));
        program.push(statement(JUMP, u32::try_from(block.len()).unwrap_or(u32::MAX)));
        program.extend(block);
    }
    program.push(statement(RETURN, REFUSE));
    program
}

impl Rule {
    fn checks(self) -> Vec<sock_filter> {
        let mode = |argument| {
            vec![
                statement(LOAD, low_half(argument)),
                jump(JUMP_IF_SET, SET_ID, 0, 1),
                statement(RETURN, REFUSE),
                statement(RETURN, ALLOW),
            ]
        };
        match self {
            Fail(result) => vec![statement(RETURN, result)],
            Request => {
                let [first, second] = REQUESTS;
                vec![
                    statement(LOAD, low_half(1)),
                    jump(JUMP_IF_EQUAL, first, 1, 0),
                    jump(JUMP_IF_EQUAL, second, 0, 1),
                    statement(RETURN, REFUSE),
                    statement(RETURN, ALLOW),
                ]
            }
            First(argument, result) => vec![
                statement(LOAD, low_half(0)),
                jump(JUMP_IF_EQUAL, argument, 0, 1),
                statement(RETURN, result),
                statement(RETURN, ALLOW),
            ],
            Mode(argument) => mode(argument),
            Create(argument) => {
                let checks = mode(argument + 1);
                let mut all = vec![
                    statement(LOAD, low_half(argument)),
                    jump(JUMP_IF_SET, CREATES, 0, length(&checks) - 1),
                ];
                all.extend(checks);
                all
            }
        }
    }
}

/// Returns the offset of the low half of an argument, which all these architectures have first.
fn low_half(argument: u32) -> u32 {
    ARGUMENTS + 8 * argument
}

fn statement(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Returns the number of instructions to jump over. No rule has more than ten.
fn length(checks: &[sock_filter]) -> u8 {
    u8::try_from(checks.len()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel does.
    fn run(architecture: u32, number: u32, arguments: [u32; 4]) -> u32 {
        let program = program();
        let (mut at, mut word) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match code {
                LOAD if k == NUMBER => word = number,
                LOAD if k == ARCHITECTURE => word = architecture,
                LOAD => word = arguments[((k - ARGUMENTS) / 8) as usize],
                JUMP => at += k as usize,
                JUMP_IF_EQUAL => at += usize::from(if word == k { jt } else { jf }),
                JUMP_IF_SET => at += usize::from(if word & k != 0 { jt } else { jf }),
                RETURN => return k,
                _ => panic!("unknown instruction {code}"),
            }
        }
    }

    #[test]
    fn modes_with_set_id_bits_are_refused_by_every_call() {
        for (architecture, calls) in ARCHITECTURES {
            for (number, rule) in calls.iter().chain(&SHARED) {
                let with = |mode| match rule {
                    Mode(argument) | Create(argument) => {
                        let mut arguments = [!SET_ID; 4];
                        let at = *argument as usize + usize::from(matches!(rule, Create(_)));
                        arguments[at] = mode;
                        Some(arguments)
                    }
                    _ => None,
                };
                for mode in [0o4755, 0o2755, 0o6000] {
                    let Some(arguments) = with(mode) else { continue };
                    assert_eq!(run(architecture, *number, arguments), REFUSE, "{number}");
                }
                let Some(arguments) = with(0o1777) else { continue };
                assert_eq!(run(architecture, *number, arguments), ALLOW, "{number}");
            }
        }
        // Without O_CREAT, the mode is an arbitrary value in the register.
        assert_eq!(run(0xc000_003e, 257, [0, 0, 0o2, 0o6777]), ALLOW);
        assert_eq!(run(0xc000_003e, X32 | 257, [0, 0, 0o102, 0o4777]), REFUSE);
    }

    #[test]
    fn calls_with_modes_in_memory_are_missing_and_others_are_allowed() {
        let x86_64 = 0xc000_003e;
        assert_eq!(run(x86_64, 437, [0; 4]), MISSING);
        assert_eq!(run(x86_64, 425, [0; 4]), REFUSE);
        assert_eq!(run(x86_64, 16, [0, 0x5412, 0, 0]), REFUSE);
        assert_eq!(run(x86_64, X32 | 514, [0, 0x541c, 0, 0]), REFUSE);
        assert_eq!(run(x86_64, 16, [0, 0x5413, 0, 0]), ALLOW);
        assert_eq!(run(x86_64, 0, [u32::MAX; 4]), ALLOW);
        assert_eq!(run(0x1234, 0, [0; 4]), REFUSE);
        assert_eq!(run(x86_64, 41, [40, 1, 0, 0]), NO_FAMILY);
        assert_eq!(run(x86_64, 41, [1, 1, 0, 0]), ALLOW);
        for number in [188, 189, 190, 463, X32 | 190] {
            assert_eq!(run(x86_64, number, [0; 4]), NO_ATTRIBUTES);
        }
        assert_eq!(run(0x4000_0003, 102, [1, 0, 0, 0]), MISSING);
        assert_eq!(run(0x4000_0003, 102, [3, 0, 0, 0]), ALLOW);
    }
}
