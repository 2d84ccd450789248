//! A run as a job of an interactive shell.

use std::ffi::OsStr;

use serde_json::{Value, json};

use super::workspace::Workspace;
use crate::cli::program::run;
use crate::support::mount::PROGRAM;
use crate::support::{skip, tool};

/// Starts a program on a terminal of its own, and follows steps: text to wait for, text to type, or
/// a size for the terminal.
const DRIVER: &str = r"
import fcntl, json, os, pty, select, struct, sys, termios
steps, command = json.loads(sys.argv[1]), sys.argv[2:]
pid, fd = pty.fork()
if pid == 0:
    os.execvp(command[0], command)
seen = b''
for kind, value in steps:
    if kind == 'type':
        os.write(fd, value.encode())
    elif kind == 'resize':
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack('HHHH', *value, 0, 0))
    else:
        while value.encode() not in seen:
            if not select.select([fd], [], [], 60)[0]:
                sys.exit('no %r after %r' % (value, seen))
            seen += os.read(fd, 4096)
        seen = seen[seen.index(value.encode()) + len(value):]
os.write(fd, b'exit\n')
try:
    while os.read(fd, 4096):
        pass
except OSError:
    pass
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

/// Follows `steps` in a shell with job control, where `$RUN` is `swarmletfs run` of the workspace.
#[track_caller]
fn follow(place: &Workspace, steps: &Value) {
    let driver = place.write("driver.py", DRIVER);
    let steps = steps.to_string();
    let words = [
        "python3".as_ref(),
        driver.as_os_str(),
        steps.as_ref(),
        "bash".as_ref(),
        "--norc".as_ref(),
        "--noprofile".as_ref(),
        OsStr::new("-i"),
    ];
    let (store, workspace) = (place.at("store"), place.at("workspace"));
    let line = format!(
        "{PROGRAM} run --quiet --id w --store {} --workspace {}",
        store.display(),
        workspace.display()
    );
    let mut command = place.command(words);
    command.env("RUN", line).env("TERM", "dumb").current_dir(workspace);
    let done = run(command);
    assert_eq!(done.code, Some(0), "{done:#?}");
}

/// Ctrl-C, Ctrl-Z and the size of the terminal work as without `run`.
#[test]
fn keys_and_size_of_the_terminal_work_as_without_a_sandbox() {
    if !tool::is_here("bash") {
        return skip("bash is not installed");
    }
    for place in Workspace::all() {
        let script = r#"trap "echo size \$(stty size)" WINCH; echo rea""dy;
            while :; do echo ti""ck; sleep 0.02; done"#;
        let script = script.replace('\n', " ");
        let steps = json!([
            ["type", format!("$RUN -- sh -c '{script}'\n")],
            ["await", "ready"],
            ["resize", [40, 120]],
            ["await", "size 40 120"],
            ["type", "\u{1a}"],
            ["await", "Stopped"],
            ["type", "echo mid\"\"dle\n"],
            ["await", "middle"],
            ["type", "fg\n"],
            ["await", "tick"],
            ["resize", [41, 121]],
            ["await", "size 41 121"],
            ["type", "\u{3}"],
            ["type", "echo code $?\n"],
            ["await", "code 130"],
        ]);
        follow(&place, &steps);
        assert_eq!(place.metadata("w")["error"], "ended by signal 2 (SIGINT)");
    }
}
