//! `swarmletfs record`: runs a command and records it as a call of a worker.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

use super::program::{program, swarmletfs, wait_timeout};
use crate::support::mount::PROGRAM;
use crate::support::python::any_python;
use crate::support::{rng, terminal};

/// Time limit of a command, far more than any needs.
const LIMIT: Duration = Duration::from_secs(120);

/// A directory with a store and a worker, whose latest call is the recording.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        for arguments in [vec!["init"], vec!["worker", "create", "--id", "w", "--store"]] {
            let made = swarmletfs(arguments).arg(place.at("store")).output().unwrap();
            assert!(made.status.success(), "{made:?}");
        }
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.at(name), text).unwrap();
        self.at(name)
    }

    /// Returns the arguments of a recording.
    fn arguments(&self, options: &[&str], command: &[&str]) -> Vec<String> {
        let store = self.at("store").to_str().unwrap().to_owned();
        let mut arguments = ["record", "--worker", "w", "--store"].map(str::to_owned).to_vec();
        arguments.push(store);
        arguments.extend(options.iter().map(|&option| option.to_owned()));
        arguments.push("--".to_owned());
        arguments.extend(command.iter().map(|&word| word.to_owned()));
        arguments
    }

    fn command(&self, options: &[&str], command: &[&str]) -> Command {
        swarmletfs(self.arguments(options, command))
    }

    /// Runs a recording, with stdout and stderr in two files.
    #[track_caller]
    fn run(&self, options: &[&str], command: &[&str]) -> Recorded {
        self.finish(self.command(options, command))
    }

    #[track_caller]
    fn finish(&self, mut command: Command) -> Recorded {
        command
            .stdout(File::create(self.at("out")).unwrap())
            .stderr(File::create(self.at("err")).unwrap());
        let mut child = command.spawn().unwrap();
        let status = end(&mut child);
        let read = |name: &str| fs::read(self.at(name)).unwrap_or_default();
        Recorded { status, out: read("out"), err: read("err"), recording: self.recording() }
    }

    /// Returns the output of the latest call; empty if there is none yet.
    fn recording(&self) -> Vec<u8> {
        let calls = fs::read_dir(self.at("store/workers/w/tool_calls")).unwrap();
        let latest = calls.map(|call| call.unwrap().path()).max();
        latest.map(|call| fs::read(call).unwrap()).unwrap_or_default()
    }

    /// Returns the record of the call that ended last.
    #[track_caller]
    fn ended(&self) -> Value {
        let metrics = fs::read_to_string(self.at("store/workers/w/metrics.jsonl")).unwrap();
        let line = metrics.lines().rfind(|line| line.contains(r#""event":"tool_call""#)).unwrap();
        serde_json::from_str(line).unwrap()
    }
}

struct Recorded {
    status: ExitStatus,
    out: Vec<u8>,
    err: Vec<u8>,
    recording: Vec<u8>,
}

impl Recorded {
    #[track_caller]
    fn assert(&self, code: i32, out: &str, err: &str, recording: &str) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(
            (self.status.code(), text(&self.out), text(&self.err), text(&self.recording)),
            (Some(code), out.to_owned(), err.to_owned(), recording.to_owned())
        );
    }

    /// Asserts that `count` numbered lines are recorded in order, and that each stream has its own.
    #[track_caller]
    fn assert_in_order_and_apart(&self, count: usize) {
        assert_in_order(&self.recording, count);
        assert_eq!(lines_of(&self.recording, "1:").as_bytes(), self.out);
        assert_eq!(lines_of(&self.recording, "2:").as_bytes(), self.err);
    }
}

/// Waits for a child to exit. Panics after [`LIMIT`].
#[track_caller]
fn end(child: &mut Child) -> ExitStatus {
    wait_timeout(child, LIMIT).unwrap_or_else(|| {
        let _ = child.kill();
        panic!("the recording did not end in time")
    })
}

#[track_caller]
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "timed out waiting for: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len()).any(|window| window == part.as_bytes())
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn exists(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let is_zombie = stat.rsplit_once(')').is_some_and(|(_, after)| after.starts_with(" Z"));
    !is_zombie && test_kill_process(Pid::from_raw(pid).unwrap()).is_ok()
}

/// Returns the command of a Python script, or `None` without Python.
fn python(place: &Place, script: &str) -> Option<[String; 2]> {
    let path = place.write("script.py", script);
    let python = any_python()?;
    Some([python.to_str().unwrap().to_owned(), path.to_str().unwrap().to_owned()])
}

macro_rules! python {
    ($place:expr, $script:expr) => {
        match python($place, $script) {
            Some(command) => command,
            None => return,
        }
    };
}

/// Asserts that lines `<stream>:<number>…` are in order.
#[track_caller]
fn assert_in_order(recording: &[u8], count: usize) {
    let text = str::from_utf8(recording).unwrap();
    let numbers: Vec<usize> =
        text.lines().map(|line| line[2..].split(' ').next().unwrap().parse().unwrap()).collect();
    let misplaced = numbers.iter().enumerate().filter(|(at, number)| at != *number).count();
    assert_eq!((numbers.len(), misplaced), (count, 0));
}

/// Returns the lines of a stream.
fn lines_of(recording: &[u8], stream: &str) -> String {
    let text = str::from_utf8(recording).unwrap();
    text.split_inclusive('\n').filter(|line| line.starts_with(stream)).collect()
}

#[test]
fn writes_to_two_streams_are_recorded_in_order_and_stay_apart() {
    let place = Place::new();
    let [python, script] = python!(
        &place,
        "import os, random\n\
         random.seed(7)\n\
         for number in range(20000):\n\
         \x20   fd = random.choice([1, 2])\n\
         \x20   os.write(fd, b'%d:%d \\n' % (fd, number))\n"
    );
    let recorded = place.run(&[], &[&python, &script]);
    recorded.assert_in_order_and_apart(20_000);
}

#[test]
fn writes_larger_than_a_page_are_recorded_whole_and_in_order() {
    let place = Place::new();
    let [python, script] = python!(
        &place,
        "import os, random\n\
         random.seed(8)\n\
         for number in range(3000):\n\
         \x20   fd = random.choice([1, 2])\n\
         \x20   size = random.choice([0, 1, 500, 4085, 4096, 4097, 8192, 20000])\n\
         \x20   os.write(fd, b'%d:%d %s\\n' % (fd, number, b'x' * size))\n"
    );
    let recorded = place.run(&[], &[&python, &script]);
    recorded.assert_in_order_and_apart(3_000);
}

#[test]
fn order_is_exact_again_after_bulk() {
    let place = Place::new();
    // F_GETPIPE_SZ is 1032.
    let [python, script] = python!(
        &place,
        "import fcntl, os, random, resource\n\
         page = resource.getpagesize()\n\
         def size():\n\
         \x20   return fcntl.fcntl(1, 1032)\n\
         while size() == page:\n\
         \x20   os.write(1, b'b' * (16 * page))\n\
         os.write(1, b'\\n')\n\
         while size() > page:\n\
         \x20   pass\n\
         random.seed(9)\n\
         for number in range(5000):\n\
         \x20   fd = random.choice([1, 2])\n\
         \x20   os.write(fd, b'%d:%d \\n' % (fd, number))\n"
    );
    let recorded = place.run(&[], &[&python, &script]);
    let bulk = recorded.recording.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    assert!(bulk > 64 * 4_096);
    assert_in_order(&recorded.recording[bulk..], 5_000);
}

#[test]
fn streams_with_one_target_are_recorded_as_that_target_gets_them() {
    let place = Place::new();
    let mut command =
        place.command(&[], &["sh", "-c", "for i in 1 2 3; do echo o; echo e >&2; done"]);
    let out = File::create(place.at("out")).unwrap();
    command.stdout(out.try_clone().unwrap()).stderr(out);
    assert!(end(&mut command.spawn().unwrap()).success());
    assert_eq!(place.recording(), b"o\ne\no\ne\no\ne\n");
    assert_eq!(fs::read(place.at("out")).unwrap(), place.recording());
}

#[test]
fn large_output_is_recorded_whole() {
    let place = Place::new();
    let mut generator = rng();
    let mut bytes = vec![0; 64 << 20];
    generator.fill(&mut bytes);
    fs::write(place.at("large"), &bytes).unwrap();
    let large = place.at("large");
    let cat = ["cat", large.to_str().unwrap()];

    let recorded = place.run(&[], &cat);
    assert!(recorded.status.success());
    assert!(recorded.recording == bytes && recorded.out == bytes);

    let mut command = place.command(&[], &cat);
    let out = File::create(place.at("out")).unwrap();
    command.stdout(out.try_clone().unwrap()).stderr(out);
    assert!(end(&mut command.spawn().unwrap()).success());
    assert!(place.recording() == bytes && fs::read(place.at("out")).unwrap() == bytes);

    // Through a pipe that is read slowly.
    let mut child = place.command(&[], &cat).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    assert!(end(&mut child).success());
    assert!(place.recording() == bytes && out == bytes);
}

#[test]
fn exit_code_and_signal_of_the_command_are_passed_on() {
    let place = Place::new();
    let recorded = place.run(&[], &["sh", "-c", "echo out; exit 42"]);
    recorded.assert(42, "out\n", "", "out\n");
    let ended = place.ended();
    assert_eq!((&ended["exit_code"], &ended["success"]), (&42.into(), &false.into()));
    assert_eq!((&ended["tool"], &ended["error"]), (&"sh".into(), &Value::Null));
    assert_eq!(ended["input"]["command"], "sh -c 'echo out; exit 42'");

    let recorded = place.run(&[], &["sh", "-c", "kill -9 $$"]);
    recorded.assert(137, "", "", "");
    assert_eq!(place.ended()["error"], "ended by signal 9");
}

#[test]
fn exit_code_is_known_while_sigchld_is_ignored() {
    let place = Place::new();
    let [python, script] = python!(
        &place,
        "import os, signal, sys\n\
         signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
         os.execv(sys.argv[1], sys.argv[1:])\n"
    );
    let mut command = program(python, [script, PROGRAM.to_owned()]);
    command.args(place.arguments(&[], &["sh", "-c", "exit 9"]));
    place.finish(command).assert(9, "", "", "");
}

#[test]
fn command_that_cannot_be_run_is_reported_and_recorded() {
    let place = Place::new();
    let message = "swarmletfs: cannot run no-such-command: no such command in $PATH; check the \
                   name, or give a path\n";
    place.run(&[], &["no-such-command"]).assert(127, "", message, message);
    let error = place.ended()["error"].as_str().unwrap().to_owned();
    assert!(error.starts_with("cannot be run: "), "{error}");

    let file = place.write("file", "");
    let name = file.to_str().unwrap();
    let message = format!(
        "swarmletfs: cannot run {name}: permission denied; try `chmod +x`, or name its \
         interpreter\n"
    );
    place.run(&[], &[name]).assert(126, "", &message, &message);

    let recorded = place.run(&["--tty"], &["no-such-command"]);
    assert_eq!(recorded.status.code(), Some(127));
    assert!(contains(&recorded.recording, "no such command in $PATH"));
}

#[test]
fn script_without_an_interpreter_line_runs_in_the_shell() {
    let place = Place::new();
    let script = place.write("script", "echo \"got $1\"\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    place.run(&[], &[script.to_str().unwrap(), "x"]).assert(0, "got x\n", "", "got x\n");
}

#[test]
fn script_without_an_interpreter_line_is_found_in_path() {
    let place = Place::new();
    for dir in ["a", "a/tool", "b", "c"] {
        fs::create_dir(place.at(dir)).unwrap();
    }
    place.write("b/tool", "echo not executable\n");
    let script = place.write("c/tool", "echo \"$0 got $1\"\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let dirs = ["a", "b", "c"].map(|dir| place.at(dir));
    let mut command = place.command(&[], &["tool", "x"]);
    command.env("PATH", std::env::join_paths(dirs).unwrap());
    let expected = format!("{} got x\n", script.display());
    place.finish(command).assert(0, &expected, "", &expected);
}

#[test]
fn signals_are_passed_to_the_command_and_never_end_the_recording() {
    let place = Place::new();
    let [python, script] = python!(
        &place,
        "import os, signal\n\
         signals = [1, 2, 3, 10, 12, 15]\n\
         signal.pthread_sigmask(signal.SIG_BLOCK, signals)\n\
         os.write(1, b'ready\\n')\n\
         number = 0\n\
         while number != signal.SIGTERM:\n\
         \x20   number = signal.sigwait(signals)\n\
         \x20   os.write(1, b'%d\\n' % number)\n\
         os._exit(7)\n"
    );
    let mut command = place.command(&[], &[&python, &script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    for number in [1, 2, 3, 10, 12, 15] {
        signal(&child, Signal::from_named_raw(number).unwrap());
        assert_eq!(lines.next().unwrap().unwrap(), number.to_string());
    }
    assert_eq!(end(&mut child).code(), Some(7));
    assert_eq!(place.recording(), b"ready\n1\n2\n3\n10\n12\n15\n");
}

#[test]
fn key_of_the_terminal_reaches_the_command_once() {
    let place = Place::new();
    let [python, script] = python!(
        &place,
        "import os, pty, signal, sys\n\
         pid, fd = pty.fork()\n\
         if pid == 0:\n\
         \x20   os.execv(sys.argv[1], sys.argv[1:])\n\
         seen = b''\n\
         def wait_for(text):\n\
         \x20   global seen\n\
         \x20   while text not in seen:\n\
         \x20       seen += os.read(fd, 1000)\n\
         wait_for(b'ready')\n\
         os.write(fd, b'\\x03')\n\
         wait_for(b'interrupted')\n\
         os.kill(pid, signal.SIGUSR1)\n\
         wait_for(b'done')\n\
         sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    );
    let inner = place.write(
        "inner.py",
        "import os, signal\n\
         signals = [signal.SIGINT, signal.SIGUSR1]\n\
         signal.pthread_sigmask(signal.SIG_BLOCK, signals)\n\
         os.write(1, b'ready\\n')\n\
         while signal.sigwait(signals) == signal.SIGINT:\n\
         \x20   os.write(1, b'interrupted\\n')\n\
         os.write(1, b'done\\n')\n\
         os._exit(5)\n",
    );
    let mut command = program(&python, [script, PROGRAM.to_owned()]);
    command.args(place.arguments(&[], &[&python, inner.to_str().unwrap()]));
    let recorded = place.finish(command);
    recorded.assert(5, "", "", "ready\ninterrupted\ndone\n");
}

/// A shell with job control is played by a process that is no child of the recording.
#[test]
fn key_that_stops_the_job_stops_command_and_recording_until_both_continue() {
    let place = Place::new();
    let [python, script] = python!(
        &place,
        "import os, pty, signal, sys\n\
         pid, fd = pty.fork()\n\
         if pid == 0:\n\
         \x20   signal.signal(signal.SIGTTOU, signal.SIG_IGN)\n\
         \x20   job = os.fork()\n\
         \x20   if job == 0:\n\
         \x20       os.setpgid(0, 0)\n\
         \x20       os.tcsetpgrp(0, os.getpid())\n\
         \x20       signal.signal(signal.SIGTTOU, signal.SIG_DFL)\n\
         \x20       os.execv(sys.argv[1], sys.argv[1:])\n\
         \x20   stopped = os.waitpid(job, os.WUNTRACED)[1]\n\
         \x20   os.write(1, b'stopped by %d\\n' % os.WSTOPSIG(stopped))\n\
         \x20   os.kill(-job, signal.SIGCONT)\n\
         \x20   os._exit(os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]))\n\
         seen = b''\n\
         def wait_for(text):\n\
         \x20   global seen\n\
         \x20   while text not in seen:\n\
         \x20       seen += os.read(fd, 1000)\n\
         wait_for(b'ready')\n\
         os.write(fd, b'\\x1a')\n\
         wait_for(b'stopped by 20')\n\
         os.write(fd, b'typed\\n')\n\
         wait_for(b'got typed')\n\
         sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    );
    let mut command = program(python, [script, PROGRAM.to_owned()]);
    let read = "echo ready; read line; echo got $line; exit 4";
    command.args(place.arguments(&[], &["sh", "-c", read]));
    place.finish(command).assert(4, "", "", "ready\ngot typed\n");
}

#[test]
fn command_starts_with_the_signal_settings_of_its_caller() {
    let place = Place::new();
    let show = ["grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status"];
    let direct = program(show[0], &show[1..]).output().unwrap();
    let recorded = place.run(&[], &show);
    assert_eq!(recorded.out, direct.stdout);

    // As under nohup.
    let ignoring = ["-c", "trap '' HUP; exec \"$@\"", "sh"];
    let direct = program("sh", ignoring).args(show).output().unwrap();
    let mut command = program("sh", ignoring);
    command.arg(PROGRAM).args(place.arguments(&[], &show));
    assert_eq!(place.finish(command).out, direct.stdout);
    assert_ne!(recorded.out, direct.stdout);
}

#[test]
fn command_keeps_process_group_descriptors_and_environment() {
    let place = Place::new();
    let file = place.write("file", "from a descriptor\n");
    let script = "cat <&7; echo $VARIABLE; cut -d ' ' -f 5 /proc/self/stat";
    let mut command = program("sh", ["-c", "exec \"$@\" 7<$FILE", "sh", PROGRAM]);
    command.args(place.arguments(&[], &["sh", "-c", script]));
    command.env("FILE", file).env("VARIABLE", "value");
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    let child = command.spawn().unwrap();
    let group = child.id();
    let out = child.wait_with_output().unwrap().stdout;
    let expected = format!("from a descriptor\nvalue\n{group}\n");
    assert_eq!(String::from_utf8_lossy(&out), expected);
}

#[test]
fn command_is_ended_by_sigpipe_when_nobody_reads_the_output() {
    let place = Place::new();
    let mut child = place.command(&[], &["yes"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::with_capacity(2, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "y\n");
    assert_eq!(end(&mut child).code(), Some(128 + 13));
    assert!(place.recording().starts_with(b"y\ny\n"));
}

#[test]
fn time_limit_ends_daemons_and_processes_that_ignore_sigterm() {
    let place = Place::new();
    let script = "trap '' TERM; \
                  setsid sh -c 'sleep 1000 >/dev/null 2>&1 </dev/null & echo $!' & wait $!; \
                  sh -c 'while :; do sleep 1000; done' & echo $!; sleep 1000 & echo $!; echo -n $$; while :; do sleep 1000; done";
    let recorded = place.run(&["--timeout", "1s"], &["sh", "-c", script]);
    assert_eq!(recorded.status.code(), Some(124));
    let text = String::from_utf8(recorded.recording).unwrap();
    let marker = "\n[timed out after 1s: the command and all its processes were ended]\n";
    let output = text.strip_suffix(marker).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(output.as_bytes(), recorded.out);
    let pids: Vec<i32> = output.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(pids.len(), 4, "{output}");
    assert!(pids.iter().all(|pid| !exists(*pid)), "{pids:?}");
    assert_eq!(
        String::from_utf8_lossy(&recorded.err),
        "swarmletfs: timed out after 1s: the command and all its processes were ended\n"
    );
    assert_eq!(place.ended()["error"], "timed out after 1s");
}

#[test]
fn time_limit_lets_a_command_end_in_its_own_way() {
    let place = Place::new();
    // A second signal while it counts would make it begin anew.
    let script = "trap 'echo cleans up; while [ $((n += 1)) -lt 300000 ]; do :; done; exit 0' TERM; \
                  echo begun; sleep 1000 & wait";
    let recorded = place.run(&["--timeout", "1s"], &["sh", "-c", script]);
    assert_eq!(recorded.status.code(), Some(124));
    assert_eq!(recorded.out, b"begun\ncleans up\n");
    assert_eq!(place.ended()["exit_code"], 124);
}

#[test]
fn time_limit_spares_processes_that_were_there_before() {
    let place = Place::new();
    let script = "sleep 1000 >/dev/null 2>&1 & echo $!; exec \"$@\"";
    let mut command = program("sh", ["-c", script, "sh", PROGRAM]);
    command.args(place.arguments(&["--timeout", "1s"], &["sleep", "1000"]));
    let recorded = place.finish(command);
    let earlier: i32 = String::from_utf8(recorded.out).unwrap().trim().parse().unwrap();
    assert_eq!(recorded.status.code(), Some(124));
    assert!(exists(earlier));
    kill_process(Pid::from_raw(earlier).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn time_limit_holds_while_nobody_reads_the_output() {
    let place = Place::new();
    let mut command = place.command(&["--timeout", "1s"], &["yes"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let unread = child.stdout.take();
    assert_eq!(end(&mut child).code(), Some(124));
    drop(unread);
}

/// A filter of system calls plays a command with the rights of another user.
#[test]
fn time_limit_gives_up_a_command_that_cannot_be_ended() {
    let place = Place::new();
    // 424 is pidfd_send_signal, 62 and 129 are kill, 22 is PR_SET_SECCOMP and 38
    // PR_SET_NO_NEW_PRIVS.
    let [python, script] = python!(
        &place,
        "import ctypes, os, struct, sys\n\
         kill = 62 if os.uname().machine == 'x86_64' else 129\n\
         code = [(0x20, 0, 0, 0), (0x15, 1, 0, 424), (0x15, 0, 1, kill)]\n\
         code += [(6, 0, 0, 0x50001), (6, 0, 0, 0x7fff0000)]\n\
         bytes = b''.join(struct.pack('HBBI', *it) for it in code)\n\
         instructions = ctypes.create_string_buffer(bytes)\n\
         filter = struct.pack('HP', len(code), ctypes.addressof(instructions))\n\
         prctl = ctypes.CDLL(None).prctl\n\
         prctl.argtypes = [ctypes.c_int] + 4 * [ctypes.c_ulong]\n\
         assert prctl(38, 1, 0, 0, 0) == 0\n\
         filter = ctypes.create_string_buffer(filter)\n\
         assert prctl(22, 2, ctypes.addressof(filter), 0, 0) == 0\n\
         os.execv(sys.argv[1], sys.argv[1:])\n"
    );
    let mut command = program(python, [script, PROGRAM.to_owned()]);
    let sleep = ["sh", "-c", "echo $$; exec sleep 1000"];
    command.args(place.arguments(&["--timeout", "100ms"], &sleep));
    let recorded = place.finish(command);
    let pid: i32 = String::from_utf8(recorded.out).unwrap().trim().parse().unwrap();
    assert!(exists(pid));
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    assert_eq!(recorded.status.code(), Some(124));
    let message = format!("these processes could not be ended: {pid} (sleep)\n");
    assert!(contains(&recorded.err, &message), "{}", String::from_utf8_lossy(&recorded.err));
}

#[test]
fn output_beyond_the_limit_loses_its_middle() {
    let place = Place::new();
    let print = ["printf", "0123456789abcdefghij"];
    let recorded = place.run(&["--max-bytes", "10"], &print);
    let expected = "01234\n[... 10 B omitted: bytes 5-14 ...]\nfghij";
    recorded.assert(0, "0123456789abcdefghij", "", expected);

    let recorded = place.run(&["--max-bytes", "20"], &print);
    recorded.assert(0, "0123456789abcdefghij", "", "0123456789abcdefghij");

    let count = ["seq", "1", "1000000"];
    let recorded = place.run(&["--max-bytes", "2001"], &count);
    let (head, tail) = (&recorded.out[..1_001], &recorded.out[recorded.out.len() - 1_000..]);
    let omitted = recorded.out.len() - 2_001;
    let line = format!("\n[... {omitted} B omitted: bytes 1001-{} ...]\n", 1_000 + omitted);
    assert!(recorded.recording == [head, line.as_bytes(), tail].concat());
}

#[test]
fn processes_that_keep_the_output_open_are_waited_for_and_named() {
    let place = Place::new();
    let fifo = place.at("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let script = format!("(read x < {}; echo late) & echo first", fifo.display());
    let mut command = place.command(&[], &["sh", "-c", &script]);
    command.stdout(File::create(place.at("out")).unwrap());
    command.stderr(File::create(place.at("err")).unwrap());
    let mut child = command.spawn().unwrap();
    let err = || fs::read_to_string(place.at("err")).unwrap();
    wait_until("the hint", || err().ends_with('\n'));
    assert!(err().contains("its output is still open in") && err().contains("(sh)"), "{}", err());
    assert_eq!(err().lines().count(), 1);
    fs::write(&fifo, "go\n").unwrap();
    assert_eq!(end(&mut child).code(), Some(0));
    assert_eq!(place.recording(), b"first\nlate\n");

    // A signal ends the wait.
    let mut command = place.command(&["--quiet"], &["sh", "-c", "sleep 1000 & echo $!"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let sleep: i32 = line.trim().parse().unwrap();
    let parent_is = |parent: u32| {
        let stat = fs::read_to_string(format!("/proc/{sleep}/stat")).unwrap();
        stat.rsplit_once(") S ").is_some_and(|(_, it)| it.starts_with(&format!("{parent} ")))
    };
    wait_until("the command to end", || parent_is(child.id()));
    wait_until("the end of the wait", || {
        signal(&child, Signal::TERM);
        wait_timeout(&mut child, Duration::from_millis(50)).is_some()
    });
    assert_eq!(end(&mut child).code(), Some(0));
    kill_process(Pid::from_raw(sleep).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn stdin_is_passed_through() {
    let place = Place::new();
    let mut child =
        place.command(&[], &["cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"typed\n").unwrap();
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(end(&mut child).success());
    assert_eq!((out.as_str(), place.recording().as_slice()), ("typed\n", b"typed\n".as_slice()));
}

#[test]
fn closed_standard_streams_do_not_stop_the_recording() {
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let place = Place::new();
        let mut command = program("sh", ["-c", &format!("exec \"$@\" {closed}"), "sh", PROGRAM]);
        command.args(place.arguments(&[], &["sh", "-c", "echo out; echo err >&2; exit 3"]));
        let recorded = place.finish(command);
        assert_eq!(recorded.status.code(), Some(3), "{closed}");
        assert_eq!(recorded.recording, b"out\nerr\n", "{closed}");
    }
}

#[test]
fn full_disk_of_stdout_is_reported_and_the_recording_goes_on() {
    let place = Place::new();
    let mut command = place.command(&[], &["echo", "text"]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let output = output.wait_with_output().unwrap();
    // The command succeeded, and its output is lost.
    assert_eq!(output.status.code(), Some(125));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.starts_with("swarmletfs: cannot write to stdout: No space left"), "{message}");
    assert_eq!(place.recording(), b"text\n");
}

/// A terminal for the recording.
struct Terminal {
    master: File,
    slave: OwnedFd,
}

impl Terminal {
    fn new() -> Terminal {
        let (master, slave) = terminal::open();
        let terminal = Terminal { master, slave };
        terminal.resize(33, 101);
        terminal
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.master, size).unwrap();
    }

    /// Starts a recording on this terminal.
    fn spawn(&self, mut command: Command) -> Child {
        let fd = || self.slave.as_fd().try_clone_to_owned().unwrap();
        command.stdin(fd()).stdout(fd()).stderr(fd()).spawn().unwrap()
    }

    /// Reads from the terminal until `text` came.
    fn read_until(&mut self, text: &str) {
        let mut seen = Vec::new();
        while !contains(&seen, text) {
            let mut fds = [PollFd::new(&self.master, PollFlags::IN)];
            let ready = poll(&mut fds, Some(&LIMIT.try_into().unwrap())).unwrap();
            assert!(ready > 0, "{text} did not come after {}", String::from_utf8_lossy(&seen));
            let mut buffer = [0; 1_000];
            let count = self.master.read(&mut buffer).unwrap();
            seen.extend_from_slice(&buffer[..count]);
        }
    }
}

#[test]
fn tty_gives_the_command_a_terminal_and_the_end_of_our_stdin() {
    let place = Place::new();
    let script = "test -t 0 && test -t 1 && test -t 2 && stty size && stty -echo && cat";
    for (input, expected) in [("", ""), ("typed\n", "typed\r\n"), ("half", "half")] {
        let file = place.write("input", input);
        let mut command = place.command(&["--tty"], &["sh", "-c", script]);
        command.stdin(File::open(file).unwrap());
        let recorded = place.finish(command);
        assert_eq!(recorded.status.code(), Some(0), "{input}");
        let text = String::from_utf8(recorded.recording).unwrap();
        // The terminal may echo the input before the command turns that off.
        assert!(text.contains("24 80\r\n") && text.ends_with(expected), "{text}");
        assert_eq!(recorded.out, text.as_bytes());
    }
}

#[test]
fn tty_passes_keys_size_and_restores_our_terminal() {
    let place = Place::new();
    let mut terminal = Terminal::new();
    let modes = |terminal: &Terminal| {
        let modes = tcgetattr(&terminal.slave).unwrap();
        (modes.input_modes, modes.output_modes, modes.local_modes, modes.control_modes)
    };
    let before = modes(&terminal);
    let [python, script] = python!(
        &place,
        "import os, signal\n\
         signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n\
         while True:\n\
         \x20   size = os.get_terminal_size(1)\n\
         \x20   os.write(1, b'size %d %d\\n' % (size.lines, size.columns))\n\
         \x20   signal.sigwaitinfo([signal.SIGWINCH])\n"
    );
    let mut child = terminal.spawn(place.command(&["--tty"], &[&python, &script]));
    terminal.read_until("size 33 101");
    assert_ne!(modes(&terminal), before);

    terminal.resize(40, 60);
    signal(&child, Signal::WINCH);
    terminal.read_until("size 40 60");

    terminal.master.write_all(b"\x03").unwrap();
    terminal.read_until("KeyboardInterrupt");
    assert_eq!(end(&mut child).code(), Some(130));
    assert_eq!(modes(&terminal), before);
    assert!(contains(&place.recording(), "size 33 101\r\nsize 40 60\r\n"));
}

#[test]
fn tty_restores_our_terminal_when_a_signal_ends_the_command() {
    let place = Place::new();
    let mut terminal = Terminal::new();
    let before = tcgetattr(&terminal.slave).unwrap().local_modes;
    let script = "echo ready; exec sleep 1000";
    let mut child = terminal.spawn(place.command(&["--tty"], &["sh", "-c", script]));
    terminal.read_until("ready");
    signal(&child, Signal::HUP);
    let status = end(&mut child);
    assert_eq!((status.code(), status.signal()), (Some(129), None));
    assert_eq!(tcgetattr(&terminal.slave).unwrap().local_modes, before);
}

#[test]
fn tty_ends_with_the_command_even_if_a_process_keeps_the_terminal() {
    let place = Place::new();
    let script = "trap '' HUP; sleep 1000 & echo $!; exit 6";
    let recorded = place.run(&["--tty"], &["sh", "-c", script]);
    assert_eq!(recorded.status.code(), Some(6));
    let sleep = String::from_utf8(recorded.recording).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(sleep).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn recording_that_cannot_begin_runs_nothing() {
    let place = Place::new();
    let witness = place.at("witness");
    let touch = ["touch", witness.to_str().unwrap()];
    let store = place.at("store");
    let record = |options: &[&str]| {
        let mut command = swarmletfs(["record"]);
        command.args(options).arg("--").args(touch).env_remove("SWARMLET_WORKER");
        command.output().unwrap()
    };
    let at_store = ["--store", store.to_str().unwrap()];
    for (options, message) in [
        (&at_store[..], "no worker is named"),
        (&[at_store[0], at_store[1], "--worker", "none"][..], "cannot find worker none"),
        (&["--store", "/nowhere", "--worker", "w"][..], "cannot open the store /nowhere"),
        (&["--no-such-option"][..], "unexpected argument"),
    ] {
        let output = record(options);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(message), "{text}");
        assert_eq!(output.status.code(), Some(125), "{text}");
    }
    assert!(!witness.exists());
}

#[test]
fn worker_and_store_are_found_in_the_environment() {
    let place = Place::new();
    let mut command = swarmletfs(["record", "--tool", "say", "--", "echo", "text"]);
    command.env("SWARMLET_STORE", place.at("store")).env("SWARMLET_WORKER", "w");
    place.finish(command).assert(0, "text\n", "", "text\n");
    assert_eq!(place.ended()["tool"], "say");
}

/// A recorder inside make, npm and cargo finds the descriptors of their job servers.
#[test]
fn recording_works_inside_make() {
    let place = Place::new();
    let recorder = format!("{PROGRAM} {}", place.arguments(&[], &[]).join(" "));
    place.write("makefile", &format!("all: a b\na b:\n\t@{recorder} echo $@\n"));
    let mut make = program("make", ["-j2", "-C", place.at("").to_str().unwrap(), "-f", "makefile"]);
    let output = make.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let calls = fs::read_dir(place.at("store/workers/w/tool_calls")).unwrap();
    let mut outputs: Vec<String> =
        calls.map(|call| fs::read_to_string(call.unwrap().path()).unwrap()).collect();
    outputs.sort();
    assert_eq!(outputs, ["a\n", "b\n"]);
}

#[test]
fn file_size_limit_is_an_error_and_the_command_goes_on() {
    let place = Place::new();
    let script = "ulimit -f 8; exec \"$@\"";
    let mut command = program("sh", ["-c", script, "sh", PROGRAM]);
    command.args(place.arguments(&[], &["seq", "10000"])).stdout(Stdio::piped());
    let output = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(output.stdout.ends_with(b"\n10000\n"));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("the recording is not complete"), "{message}");
    assert_eq!(place.ended()["truncated"], true);
}
