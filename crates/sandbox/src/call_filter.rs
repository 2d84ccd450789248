//! A seccomp filter for calls that no namespace confines. They type into the terminal of the
//! caller, use its keyring, make a file setuid or setgid, give it capabilities, or open a socket to
//! the host of a virtual machine.
//!
//! A file that a command leaves on the real disk outlives the sandbox. With a setuid bit it would
//! lend the rights of its owner to every user of the machine, so the bits are refused where they
//! would be set. A filter cannot read modes that are passed in memory, as by openat2(2), which
//! programs replace where it is missing, and by io_uring. Capabilities are an extended attribute,
//! whose name is in memory, too, and which root of a user namespace may set. So no attribute can be
//! set, as on a file system that has none.

use seccompiler::{BpfProgram, apply_filter, sock_filter};

use super::stage::StageFailure;

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

use Rule::{Create, Fail, First, Mode, Request};

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
