//! `run --as`: nothing of root is in reach of other processes of the user.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::workspace::{ORDINARY, Workspace};
use crate::cli::program::{is_root, run, wait_until};
use crate::support::mount::PROGRAM;
use crate::support::python::any_python;
use crate::support::terminal::Terminal;

/// Tries to reach into processes: prints each way that succeeds. First its own child, as a control,
/// then the processes of the arguments.
const ATTACKER: &str = r#"
import ctypes, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
SEIZE = 0x4206
def seize(pid):
    if libc.ptrace(SEIZE, pid, None, None):
        raise OSError(ctypes.get_errno(), "ptrace")
ways = {
    "environ": lambda pid: open(f"/proc/{pid}/environ", "rb").read(),
    "memory": lambda pid: open(f"/proc/{pid}/mem", "rb"),
    "stdin": lambda pid: open(f"/proc/{pid}/fd/0", "rb", buffering=0),
    "trace": seize,
}
def attack(name, pid):
    for way, reach in ways.items():
        try:
            reach(pid)
            print(name, way)
        except OSError:
            pass
child = subprocess.Popen(["sleep", "1000"])
attack("control", child.pid)
child.kill()
for pid in sys.argv[1:]:
    attack(pid, int(pid))
"#;

/// Returns `swarmletfs run --as nobody` of root, as the worker `w`, for the workspace of that user.
fn runner(place: &Workspace, options: &[&str], script: &str) -> Command {
    let runner = place.runner(&[&["--as", "nobody"][..], options].concat(), &["sh", "-c", script]);
    let words = runner.get_args().skip_while(|word| *word != OsStr::new(PROGRAM));
    let mut command = place.command_of_root(words);
    command.current_dir(place.at("workspace"));
    command
}

/// A process.
#[derive(Debug)]
struct Process {
    pid: i32,
    /// The number of its controlling terminal; 0 for none.
    terminal: String,
    /// True for the runner and the outer stage of the sandbox.
    ///
    /// The other stages run in a namespace that belongs to the user, who may trace what runs there.
    is_closed: bool,
}

/// Returns the processes of the ordinary user that belong to a run in `place`.
fn processes(place: &Workspace) -> Vec<Process> {
    let store = place.at("store").into_os_string().into_encoded_bytes();
    let names_store = |text: &[u8]| memchr::memmem::find(text, &store).is_some();
    let read = |pid: i32| -> Option<Process> {
        let file = |name: &str| fs::read(format!("/proc/{pid}/{name}")).ok();
        let (line, status, stat) = (file("cmdline")?, file("status")?, file("stat")?);
        let user = format!("\nUid:\t{ORDINARY}\t{ORDINARY}\t{ORDINARY}\t");
        let is_of_user = String::from_utf8_lossy(&status).contains(&user);
        let is_of_place = names_store(&line) || names_store(&file("environ")?);
        let stat = String::from_utf8_lossy(&stat).into_owned();
        let terminal = stat.rsplit_once(") ")?.1.split(' ').nth(4)?.to_owned();
        let is_stage = line.starts_with(b"/proc/self/exe\0__sandbox\0outer\0");
        let is_closed = is_stage || line.starts_with(b"swarmletfs\0run\0");
        (is_of_user && is_of_place).then_some(Process { pid, terminal, is_closed })
    };
    let entries = fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter_map(read).collect()
}

/// No process of the user has root's variables, descriptors or terminal, and others of the
/// user cannot trace the runner or read its memory.
#[test]
fn processes_of_the_user_have_nothing_of_root() {
    let Some(python) = any_python().filter(|_| is_root()) else { return };
    let place = Workspace::of_ordinary_user();
    place.write("secret", "root's own\n");
    fs::set_permissions(place.at("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(place.at("secret"), Some(0), Some(0)).unwrap();
    let script = "echo rea''dy; read line; echo got $line";
    let mut outer = Command::new("bash");
    outer.args(["-c", "exec 7< \"$0\"; exec \"$@\""]).arg(place.at("secret"));
    let inner = runner(&place, &["--quiet"], script);
    outer.arg(inner.get_program()).args(inner.get_args()).current_dir(place.at("workspace"));
    outer.env("GITHUB_TOKEN", "secret-of-root");
    let mut terminal = Terminal::start(&outer);
    terminal.expect("ready");

    let processes = processes(&place);
    let closed = processes.iter().filter(|process| process.is_closed).map(|process| process.pid);
    let closed: Vec<String> = closed.map(|pid| pid.to_string()).collect();
    // The others are the first process of the sandbox and the command.
    assert_eq!((closed.len(), processes.len()), (2, 4), "{processes:?}");
    let root = terminal.device();
    for Process { pid, terminal, .. } in &processes {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment);
        assert!(environment.contains("USER=nobody"), "{environment}");
        assert!(!environment.contains("secret-of-root"), "{environment}");
        assert!(*terminal != "0" && *terminal != root.to_string(), "{terminal} {root}");
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
            let path = entry.unwrap().path();
            let Ok(meta) = fs::metadata(&path) else { continue };
            let target = fs::read_link(&path).unwrap();
            assert_ne!(meta.rdev(), root, "{target:?} of {pid}");
            assert!(!target.ends_with("secret"), "{target:?} of {pid}");
        }
    }
    let words = [python.as_os_str(), "-c".as_ref(), ATTACKER.as_ref()];
    let words = words.into_iter().chain(closed.iter().map(OsStr::new));
    let attacked = run(place.command(words));
    attacked.assert_success();
    let control = "control environ\ncontrol memory\ncontrol stdin\ncontrol trace\n";
    assert_eq!(attacked.out, control, "{attacked:#?}");

    terminal.send("input\n");
    terminal.expect("got input");
    let (code, shown) = terminal.end();
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!(place.metadata("w")["status"], "completed");
}

/// Root's terminal has its settings back after the end of the runner, however it ends.
#[test]
fn terminal_of_root_has_its_settings_back() {
    if !is_root() {
        return;
    }
    for (id, end) in [("a", None), ("b", Some(Signal::TERM)), ("c", Some(Signal::KILL))] {
        let place = Workspace::of_ordinary_user();
        let script = "stty size; echo rea''dy; read line; exit 3";
        let run = runner(&place, &["--quiet", "--id", id], script);
        let mut shell = Command::new("sh");
        shell.args(["-c", "stty -g; \"$@\"; echo code $?; stty -g", "sh"]);
        shell.arg(run.get_program()).args(run.get_args()).current_dir(place.at("workspace"));
        let mut terminal = Terminal::start(&shell);
        let is_raw = |terminal: &Terminal| {
            !terminal.settings().local_modes.contains(rustix::termios::LocalModes::ICANON)
        };
        terminal.expect("24 400");
        terminal.expect("ready");
        assert!(is_raw(&terminal));
        let code = match end {
            None => {
                terminal.send("line\n");
                3
            }
            Some(signal) => {
                let processes = processes(&place);
                let runner = processes.iter().filter(|process| process.is_closed);
                let runner = runner.map(|process| process.pid).min().unwrap();
                kill_process(Pid::from_raw(runner).unwrap(), signal).unwrap();
                128 + signal.as_raw()
            }
        };
        terminal.expect(&format!("code {code}"));
        let (_, shown) = terminal.end();
        let settings: Vec<&str> = shown.lines().filter(|line| line.contains(":0:")).collect();
        assert!(settings.len() == 2 && settings[0] == settings[1], "{shown}");
    }
}

/// What is no terminal is passed on as it is, and root's terminal cannot be opened.
#[test]
fn pipes_are_passed_on_and_the_terminal_is_not() {
    if !is_root() {
        return;
    }
    let script = "cat; id -un; echo $HOME $GITHUB_TOKEN; true < /dev/tty && echo open; cat <&7";
    for (options, user, home, others) in [
        (&["--no-sandbox"][..], "nobody", "/nonexistent", ""),
        (&["--no-sandbox", "--env", "GITHUB_TOKEN"], "nobody", "/nonexistent x", ""),
        (&[], "nobody", "/nonexistent", ""),
    ] {
        let place = Workspace::of_ordinary_user();
        place.write("file", "7\n");
        let as_user = runner(&place, &[options, &["--quiet"]].concat(), script);
        let mut shell = Command::new("bash");
        shell.args(["-c", "exec 7< ../file; echo in | \"$@\" 2> /dev/null | cat", "bash"]);
        shell.env("GITHUB_TOKEN", "x").current_dir(place.at("workspace"));
        let mut control = Command::new("bash");
        control
            .args(shell.get_args())
            .args(["sh", "-c", script])
            .current_dir(place.at("workspace"));
        shell.arg(as_user.get_program()).args(as_user.get_args());
        let (_, shown) = Terminal::start(&shell).end();
        assert_eq!(shown, format!("in\n{user}\n{home}\n{others}"), "{options:?}");
        let (_, shown) = Terminal::start(&control).end();
        assert!(shown.starts_with("in\nroot\n") && shown.ends_with("open\n7\n"), "{shown}");
    }
}

/// The runner ends with the process of root, also if that is killed.
#[test]
fn runner_ends_with_the_process_of_root() {
    if !is_root() {
        return;
    }
    for signal in [Signal::TERM, Signal::KILL] {
        let place = Workspace::of_ordinary_user();
        let mut command = runner(&place, &["--quiet"], "echo ready; sleep 1000");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let log = place.at("store/workers/w/logs/execution.log");
        wait_until("the command to be ready", || {
            fs::read_to_string(&log).is_ok_and(|text| text.contains("ready"))
        });
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
        wait_until("the end of the worker", || place.metadata("w")["status"] == "failed");
        assert_eq!(place.metadata("w")["error"], "ended by signal 15 (SIGTERM)");
    }
}
