//! `swarmletfs run --each`: a worker for each line of a file.

use std::ffi::OsStr;
use std::fs;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use super::workspace::Workspace;
use crate::cli::program::{LIMIT, wait_timeout, wait_until};
use crate::support::mount::PROGRAM;

#[test]
fn each_line_is_the_task_of_a_worker() {
    for place in Workspace::all() {
        let tasks = place.write("tasks.txt", "one\n\n  fail me \nthree\n");
        let script = "echo {} > out; test '{}' != 'fail me'";
        let done = place.sh(&["--each", tasks.to_str().unwrap(), "-j", "2"], script);
        done.assert_failure(1, &[]);
        let lines: Vec<Vec<&str>> =
            done.out.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 4, "{done:#?}");
        assert_eq!(lines[0], ["WORKER", "OUTCOME", "TIME", "CHANGES"]);
        for (line, (task, outcome)) in
            lines[1..].iter().zip([("one", "ok"), ("fail me", "failed"), ("three", "ok")])
        {
            let worker = line[0];
            assert_eq!(line[1], outcome, "{done:#?}");
            let status = if outcome == "ok" { "completed" } else { "failed" };
            let metadata = place.metadata(worker);
            assert_eq!((&metadata["task"], &metadata["status"]), (&task.into(), &status.into()));
            assert_eq!(
                place.read(&format!("store/workers/{worker}/changes/out")),
                format!("{task}\n")
            );
        }
        // Plain lines tell of each end.
        assert!(done.err.contains("failed (exit code 1), 1 file changed (+1 -0)"), "{done:#?}");
        assert_eq!(place.workers().len(), 3);
        assert!(!place.at("workspace/out").exists());
    }
}

/// Options may stand in front of the command, also for the processes that it starts.
#[test]
fn options_in_front_of_the_command_reach_each_worker() {
    let place = Workspace::new();
    let (tasks, store) = (place.write("tasks.txt", "one\ntwo\n"), place.at("store"));
    let words = [PROGRAM, "--store", store.to_str().unwrap(), "run", "--each"];
    let rest = [tasks.to_str().unwrap(), "--", "sh", "-c", "echo {} > out"];
    let words = words.iter().chain(&rest).map(|word| OsStr::new(*word));
    let done = crate::cli::program::run(place.command(words));
    done.assert_success();
    assert_eq!(done.out.matches(" ok ").count(), 2, "{done:#?}");
}

#[test]
fn ten_workers_run_at_once_on_one_workspace() {
    for place in Workspace::all() {
        let tasks: String = (0..10).map(|number| format!("task-{number}\n")).collect();
        let tasks = place.write("tasks.txt", &tasks);
        let outside = place.at("outside");
        // Each waits until all have started.
        let script = format!(
            "touch {0}/{{}}; until test $(ls {0} | wc -l) = 10; do sleep 0.01; done
            echo {{}} >> notes; cat notes",
            outside.display()
        );
        let each = ["--each", tasks.to_str().unwrap(), "-j", "10"];
        let options = [&each[..], &["--write", outside.to_str().unwrap()]].concat();
        place.sh(&options, &script).assert_success();
        let workers = place.workers();
        assert_eq!(workers.len(), 10);
        for worker in workers {
            let task = place.metadata(&worker)["task"].as_str().unwrap().to_owned();
            let log = place.read(&format!("store/workers/{worker}/logs/execution.log"));
            assert_eq!(log, format!("one\ntwo\n{task}\n"));
            assert_eq!(place.changes(&worker), ["modified notes"]);
        }
        assert_eq!(place.read("workspace/notes"), "one\ntwo\n");
    }
}

#[test]
fn signal_ends_all_workers_and_starts_no_more() {
    for place in Workspace::all() {
        let tasks = place.write("tasks.txt", "a\nb\nc\n");
        let outside = place.at("outside");
        let script = format!("touch {}/{{}}; sleep 1000", outside.display());
        let each = ["--each", tasks.to_str().unwrap(), "-j", "2"];
        let options = [&each[..], &["--write", outside.to_str().unwrap()]].concat();
        let mut command = place.runner(&options, &["sh", "-c", &script]);
        let out = fs::File::create(place.at("out")).unwrap();
        let mut child = command.stdout(out).stderr(Stdio::null()).spawn().unwrap();
        wait_until("two workers", || fs::read_dir(&outside).unwrap().count() == 2);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let status = wait_timeout(&mut child, LIMIT).expect("--each goes on");
        assert_eq!(status.code(), Some(1));
        let out = place.read("out");
        assert_eq!(out.matches("failed (ended by signal 15 (SIGTERM))").count(), 2, "{out}");
        assert_eq!(out.matches("not started").count(), 1, "{out}");
        assert_eq!(place.workers().len(), 2);
    }
}

#[test]
fn runner_that_is_killed_leaves_an_ended_worker() {
    let place = Workspace::new();
    let tasks = place.write("tasks.txt", "a\n");
    // The parent of the first process in the sandbox cannot be seen in it, so this kills the
    // runner from outside.
    let script = "echo new > new; echo ready; sleep 1000; : {}";
    let options = ["--each", tasks.to_str().unwrap()];
    let mut command = place.runner(&options, &["sh", "-c", script]);
    let out = fs::File::create(place.at("out")).unwrap();
    let mut child = command.stdout(out).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the worker", || {
        place.workers().first().is_some_and(|worker| {
            let log = place.at(&format!("store/workers/{worker}/logs/execution.log"));
            fs::read_to_string(log).is_ok_and(|log| log.contains("ready"))
        })
    });
    let children = format!("/proc/{}/task", child.id());
    let runner = fs::read_dir(children).unwrap().find_map(|task| {
        let children = fs::read_to_string(task.unwrap().path().join("children")).ok()?;
        children.split_whitespace().next().and_then(|pid| pid.parse::<i32>().ok())
    });
    kill_process(Pid::from_raw(runner.unwrap()).unwrap(), Signal::KILL).unwrap();
    let status = wait_timeout(&mut child, LIMIT).expect("--each goes on");
    assert_eq!(status.code(), Some(1));
    let out = place.read("out");
    assert!(out.contains("failed (the runner ended early)"), "{out}");
    assert_eq!(place.changes(&place.workers()[0]), ["added new"]);
}

#[test]
fn command_needs_a_place_for_the_line() {
    let place = Workspace::new();
    let tasks = place.write("tasks.txt", "one\n");
    let done = place.sh(&["--each", tasks.to_str().unwrap()], "true");
    done.assert_failure(2, &["no argument of the command has {}"]);
    let empty = place.write("empty.txt", "\n \n");
    let done = place.sh(&["--each", empty.to_str().unwrap()], "echo {}");
    done.assert_failure(1, &["has no line"]);
    assert_eq!(place.workers(), [""; 0]);
}
