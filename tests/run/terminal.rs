//! Runs on a terminal: as a job of an interactive shell, and many at once.

use std::ffi::OsStr;

use serde_json::{Value, json};

use super::workspace::Workspace;
use crate::cli::program::{is_root, run, wait_until};
use crate::support::mount::PROGRAM;
use crate::support::terminal::Terminal;
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

/// Prints lines without end, and the size of the terminal when it changes.
///
/// Not a shell that starts programs: it does not end if one of them has just ended by itself when
/// Ctrl-C is typed, and does not stop if Ctrl-Z stops a program that vfork still waits for.
const PRINTER: &str = r"
import os, signal, time
def show(text):
    os.write(1, text.encode() + b'\n')
def show_size(*_):
    size = os.get_terminal_size(0)
    show(f'size {size.lines} {size.columns}')
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGWINCH, show_size)
show('ready')
while True:
    show('tick')
    time.sleep(0.02)
";

/// Follows `steps` in a shell with job control, where `$RUN` is `prefix`. The shell is one of the
/// user of `place`, or one of root.
#[track_caller]
fn follow(place: &Workspace, is_root: bool, prefix: &str, steps: &Value) {
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
    let mut command = if is_root { place.command_of_root(words) } else { place.command(words) };
    command
        .env("RUN", prefix)
        .env("TERM", "dumb")
        .env("PS1", "shell> ")
        .current_dir(place.at("workspace"));
    let done = run(command);
    assert_eq!(done.code, Some(0), "{prefix}: {done:#?}");
}

/// Ctrl-C, Ctrl-Z and the size of the terminal work as without `run`.
#[test]
fn keys_and_size_of_the_terminal_work_as_without_a_sandbox() {
    if !tool::is_here("bash") || !tool::is_here("python3") {
        return skip("bash or python3 is not installed");
    }
    let steps = json!([
        ["type", "$RUN -- python3 ../printer.py\n"],
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
        ["await", "shell>"],
        ["type", "echo code $?\n"],
        ["await", "code 130"],
    ]);
    for place in Workspace::all() {
        place.write("printer.py", PRINTER);
        follow(&place, false, "env", &steps);
        let (store, workspace) = (place.at("store"), place.at("workspace"));
        let prefix = format!(
            "{PROGRAM} run --quiet --id w --store {} --workspace {}",
            store.display(),
            workspace.display()
        );
        follow(&place, false, &prefix, &steps);
        assert_eq!(place.metadata("w")["error"], "ended by signal 2 (SIGINT)");
        if is_root() && place.is_ordinary() {
            let prefix = prefix.replace("--id w ", "--id of-root --as nobody ");
            follow(&place, true, &prefix, &steps);
            assert_eq!(place.metadata("of-root")["error"], "ended by signal 2 (SIGINT)");
        }
    }
}

/// A terminal shows a live line for each worker that runs, and Ctrl-C ends all workers.
#[test]
fn each_shows_live_lines_and_ends_by_ctrl_c() {
    for place in Workspace::all() {
        let tasks = place.write("tasks.txt", "first task\nsecond task\nthird task\n");
        let tasks = tasks.to_str().unwrap();
        let script = "echo {} > out; sleep 1000";
        let options = ["--each", tasks, "-j", "2"];
        let mut terminal = Terminal::start(&place.runner(&options, &["sh", "-c", script]));
        for task in ["first task", "second task"] {
            terminal.expect(task);
        }
        wait_until("both commands", || {
            let workers = place.workers();
            let drafts = workers.iter().map(|worker| format!("store/drafts/{worker}/upper/out"));
            workers.len() == 2 && drafts.into_iter().all(|out| place.at(&out).exists())
        });
        // The time of a line goes on.
        terminal.expect("1s");
        terminal.send("\u{3}");
        terminal.expect("WORKER ");
        let (code, shown) = terminal.end();
        assert_eq!(code, Some(1), "{shown}");
        let table = &shown[shown.rfind("WORKER ").unwrap()..];
        let names: Vec<&str> =
            table.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(table.matches("failed (ended by signal ").count(), 2, "{table}");
        assert_eq!(table.matches("not started").count(), 1, "{table}");
        for worker in place.workers() {
            assert!(names.contains(&worker.as_str()), "{table}");
            assert!(shown.matches(&worker).count() > 2, "{worker} has a live line: {shown}");
            assert_eq!(place.metadata(&worker)["status"], "failed");
            assert_eq!(place.changes(&worker), ["added out"]);
        }
    }
}
