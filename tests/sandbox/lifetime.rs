//! Ends, signals and descendants.
//!
//! What a command inherits from its caller: stdin, terminals and keys.

use std::fs::{File, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::for_each_user;
use super::place::{Place, text};

/// Waits until `condition` holds.
pub fn await_that(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the processes whose command line contains `word`.
pub fn processes_with(word: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).into_owned();
            (line.starts_with("sleep") && line.contains(word)).then_some(pid)
        })
        .collect()
}

#[test]
fn exit_codes_and_signals_are_those_of_the_command() {
    for_each_user(|place| {
        assert_eq!(place.run(&[], &["sh", "-c", "exit 7"]).status.code(), Some(7));
        assert_eq!(place.run(&[], &["/no/such/program"]).status.code(), Some(127));
        assert_eq!(place.run(&[], &["/etc/passwd"]).status.code(), Some(126));
        let status = place.run(&[], &["sh", "-c", "kill -TERM $$"]).status;
        assert!(status.signal() == Some(15) || status.code() == Some(143), "{status:?}");
    });
}

#[test]
fn daemons_end_with_the_command() {
    for_each_user(|place| {
        let time = format!("86{}1", place.uid);
        place.shell(&[], &format!("setsid sleep {time} </dev/null >/dev/null 2>&1 & sleep 0.1"));
        await_that("the daemon ends", || processes_with(&time).is_empty());
    });
}

#[test]
fn nothing_survives_a_killed_runner() {
    for_each_user(|place| {
        let time = format!("86{}2", place.uid);
        let script = format!("setsid sleep {time} & sleep {time}");
        let line = place.in_sandbox(&[], &["sh", "-c", &script]);
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        // exec makes the runner the process that is killed, not its `timeout`.
        let mut command = std::process::Command::new("setpriv");
        let uid = place.uid.to_string();
        command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups"]).args(words);
        let mut runner = command.stdin(Stdio::null()).spawn().unwrap();
        await_that("both processes run", || processes_with(&time).len() == 2);
        kill_process(Pid::from_child(&runner), Signal::KILL).unwrap();
        runner.wait().unwrap();
        await_that("all processes end", || processes_with(&time).is_empty());
    });
}

/// Promise: No signal of a command reaches a process outside, also if it is in the process group of
/// the command.
#[test]
fn process_group_outside_cannot_be_signaled() {
    if !has_signal_scopes() {
        return crate::support::skip("Landlock holds signals from Linux 6.12 on");
    }
    for_each_user(|place| {
        let attack = ["sh", "-c", "trap '' USR1; kill -USR1 0; echo sent"];
        let with_caller = |words: &[&str]| {
            place.plain(&[&["sh", "-c", "\"$@\"; echo lives", "sh"], words].concat())
        };
        for options in [&[][..], &["--nested"]] {
            let line = place.in_sandbox(options, &attack);
            let output = with_caller(&line.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(output.status.success(), "uid {}, {options:?}: {output:?}", place.uid);
            assert_eq!(output.stdout, b"sent\nlives\n");
        }
        // `timeout` is the leader of the group.
        let control = with_caller(&attack);
        assert_eq!((control.status.signal(), &*control.stdout), (Some(10), &b"sent\n"[..]));
    });
}

/// Returns true if the kernel is at least Linux 6.12.
pub fn has_signal_scopes() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

#[test]
fn signals_reach_the_command() {
    let place = Place::of_user();
    let script = "trap 'echo got; exit 5' TERM; echo ready > \"$SWARMLET_STORE/workers/\
                  $SWARMLET_WORKER/ready\"; while :; do sleep 0.05; done";
    let line = place.in_sandbox(&[], &["sh", "-c", script]);
    let uid = place.uid.to_string();
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups"]).args(&line);
    let runner = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    await_that("the command is ready", || place.path("store/workers/worker-1/ready").exists());
    // The stage between the runner and the namespace receives it, as the runner passes signals on.
    let children = format!("/proc/{0}/task/{0}/children", runner.id());
    let child: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(child).unwrap(), Signal::TERM).unwrap();
    let output = runner.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(output.stdout, b"got\n");
}

#[test]
fn limits_hold() {
    let place = Place::of_user();
    let many = "for i in 1 2 3 4 5 6 7 8 9; do sleep 0.3 & done; wait";
    assert!(place.run(&[], &["sh", "-c", many]).status.success());
    assert!(!place.run(&["--pids", "5"], &["sh", "-c", many]).status.success());
    let large = ["python3", "-c", "x = bytearray(400 << 20)"];
    assert!(place.run(&[], &large).status.success());
    assert!(!place.run(&["--memory", "209715200"], &large).status.success());
}

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

/// Types a character into a terminal of its own, by both requests that can.
const TYPE: &str = "
import pty, termios
leader, follower = pty.openpty()
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(follower, termios.TIOCSCTTY, 0)
    attempt(lambda: fcntl.ioctl(follower, termios.TIOCSTI, b'x'))
    sys.stdout.flush()
    os._exit(0)
os.waitpid(pid, 0)
";

#[test]
fn characters_cannot_be_typed_into_the_terminal() {
    if std::fs::read("/proc/sys/dev/tty/legacy_tiocsti").is_ok_and(|value| value == b"0\n") {
        return crate::support::skip("the kernel forbids TIOCSTI");
    }
    for_each_user(|place| place.fails_inside(&[], TYPE, &["EPERM"]));
}

/// A terminal of this kind has no such request, but the filter refuses it before.
#[test]
fn request_that_pastes_into_a_console_is_refused() {
    let code = "
import pty
leader, follower = pty.openpty()
attempt(lambda: fcntl.ioctl(follower, 0x541c, b'\\x02' + bytes(15)))
";
    for_each_user(|place| {
        let (outside, inside) = place.attack(&[], code);
        assert_ne!(outside, ["EPERM"]);
        assert_eq!(inside, ["EPERM"]);
    });
}
