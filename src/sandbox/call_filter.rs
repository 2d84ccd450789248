//! A seccomp filter for calls that no namespace holds: those that type into the terminal of the
//! caller, and those of its keyring.

use seccompiler::{BpfProgram, apply_filter, sock_filter};

use super::cause::StageFailure;

/// The requests of ioctl(2) that are refused: TIOCSTI and TIOCLINUX.
const REQUESTS: [u32; 2] = [0x5412, 0x541c];

/// Architecture and number of ioctl(2), for each way in which a kernel of these architectures can
/// be called. The second of x86-64 is that of x32.
const CALLS: [(u32, u32); 6] = [
    (0xc000_003e, 16),
    (0xc000_003e, 0x4000_0202),
    (0x4000_0003, 54),
    (0xc000_00b7, 29),
    (0x4000_0028, 54),
    (0xc000_00f3, 29),
];

/// Architecture, and numbers of add_key(2), request_key(2) and keyctl(2), in the same order. The
/// keyring of a session belongs to all processes that it started, whatever their namespaces are.
const KEY_CALLS: [(u32, [u32; 3]); 6] = [
    (0xc000_003e, [248, 249, 250]),
    (0xc000_003e, [0x4000_00f8, 0x4000_00f9, 0x4000_00fa]),
    (0x4000_0003, [286, 287, 288]),
    (0xc000_00b7, [217, 218, 219]),
    (0x4000_0028, [309, 310, 311]),
    (0xc000_00f3, [217, 218, 219]),
];

/// Offsets in the data of a call: its number, its architecture, and the low half of its second
/// argument, which is the request. All architectures have the low half first.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const REQUEST: u32 = 24;

/// Instructions: load a word, jump if equal, return.
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// Results of the filter: allow the call, or fail it with EPERM.
const ALLOW: u32 = 0x7fff_0000;
const REFUSE: u32 = 0x0005_0001;

/// Installs the filter in this thread and all processes that it starts.
pub(super) fn install() -> Result<(), StageFailure> {
    apply_filter(&program()).map_err(|error| {
        StageFailure::new(format!("cannot protect the terminal and the keyring: {error}"))
    })
}

/// Returns the filter. seccompiler's own would kill programs of any other architecture than ours,
/// such as those of 32 bits.
fn program() -> BpfProgram {
    let statement = |code, k| sock_filter { code, jt: 0, jf: 0, k };
    let jump = |k, jt, jf| sock_filter { code: JUMP_IF_EQUAL, jt, jf, k };
    let mut program = Vec::new();
    for (architecture, [first, second, third]) in KEY_CALLS {
        program.extend([
            statement(LOAD, ARCHITECTURE),
            jump(architecture, 0, 5),
            statement(LOAD, NUMBER),
            jump(first, 2, 0),
            jump(second, 1, 0),
            jump(third, 0, 1),
            statement(RETURN, REFUSE),
        ]);
    }
    let [first, second] = REQUESTS;
    program.extend([
        statement(LOAD, REQUEST),
        jump(first, 2, 0),
        jump(second, 1, 0),
        statement(RETURN, ALLOW),
    ]);
    for (architecture, number) in CALLS {
        program.extend([
            statement(LOAD, ARCHITECTURE),
            jump(architecture, 0, 3),
            statement(LOAD, NUMBER),
            jump(number, 0, 1),
            statement(RETURN, REFUSE),
        ]);
    }
    program.push(statement(RETURN, ALLOW));
    program
}
