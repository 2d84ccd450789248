//! Ends, signals and descendants.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Place, for_each_user};

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
