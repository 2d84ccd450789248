//! What a command inherits from its caller: stdin, terminals and keys.

use std::fs::{File, OpenOptions};
use std::process::Stdio;

use super::for_each_user;
use super::place::{Place, text};

/// Runs a shell script inside with a file or folder as its stdin.
fn run_with_stdin(place: &Place, options: &[&str], stdin: File, script: &str) -> (i32, String) {
    let words = place.in_sandbox(options, &["sh", "-c", script]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = place.command(&words).stdin(Stdio::from(stdin)).output().unwrap();
    (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn file_as_stdin_is_no_way_out() {
    for_each_user(|place| {
        let path = place.write("home/input", "line\n");
        for options in [&[][..], &["--nested"], &["--engine", "copy", "--nested"]] {
            let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
            let script = "cat; echo forged > /proc/self/fd/0; true";
            let (code, said) = run_with_stdin(place, options, open(), script);
            assert_eq!(code, 0, "{said}");
            assert!(said.contains("line"), "{said}");
            assert_eq!(place.read("home/input"), "line\n", "{options:?}");
        }
    });
}

#[test]
fn folder_as_stdin_is_refused() {
    for_each_user(|place| {
        let folder = || File::open(place.path("")).unwrap();
        let (code, said) = run_with_stdin(place, &[], folder(), "ls /proc/self/fd/0/store");
        assert_eq!(code, 125, "{said}");
        assert!(said.contains("a folder as its stdin"), "{said}");
    });
}

#[test]
fn keys_of_the_session_cannot_be_reached() {
    for_each_user(|place| {
        // add_key(2) of the session's keyring: user, name, payload, length, keyring.
        let code = "
import platform
number = {'x86_64': 248, 'aarch64': 217, 'riscv64': 217}[platform.machine()]
def add():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, b'user', b'swarmletfs-test', b'x', 1, -3) < 0:
        raise OSError(ctypes.get_errno(), 'add_key')
attempt(add)
";
        place.fails_inside(&[], code, &["EPERM"]);
        place.fails_inside(&["--nested"], code, &["EPERM"]);
    });
}

#[test]
fn other_terminals_are_not_there() {
    for_each_user(|place| {
        let said = place.shell(&[], "ls /dev/pts");
        let names: Vec<&str> = said.split_whitespace().collect();
        assert_eq!(names, ["ptmx"], "{said}");
    });
}
