//! Text that several calls have in common is shown once.

use super::*;

/// Returns distinct lines without any sign of failure.
fn filler(from: usize, lines: usize) -> String {
    (from..from + lines).map(|n| format!("step {n} of many, going on\n")).collect()
}

/// Promise: Equal outputs are shown once, and the others refer to the first.
#[test]
fn equal_outputs_are_shown_once_with_references() {
    let same = format!("Error: it broke\n{}", filler(0, 20));
    let other = format!("Error: it broke too\n{}", filler(50, 20));
    let store = worker_with([same.as_str(), &other, &same, "Error: x\n", "Error: x\n"]);
    let report = hold(&evidence(&store.tree(), "workers/w/", 16_000), 16_000).unwrap();
    let section = |number: usize| report.section(&format!("tool_calls/{number:03}_x.txt"));
    assert_eq!(
        (section(3).body.as_str(), section(2).body.as_str()),
        (same.as_str(), other.as_str())
    );
    assert_eq!((section(1).body.as_str(), section(1).bytes), ("", same.len() as u64));
    assert!(section(1).notes.ends_with(", the same as tool_calls/003_x.txt"), "{report:#?}");
    // A reference must not be longer than the text it replaces.
    assert_eq!((section(4).body.as_str(), section(5).body.as_str()), ("Error: x\n", "Error: x\n"));
    assert_eq!((report.whole, report.cut), (5, 0));
}

/// Promise: If two steps share text, the second shows what only it has.
#[test]
fn second_step_shows_what_only_it_has() {
    let plan: String =
        (0..40).map(|n| format!("the plan says in its line {n} what is to be done\n")).collect();
    let first = format!("{}{plan}", filler(0, 400));
    let second =
        format!("{}the one thing that only this step found out\n{plan}", filler(1_000, 400));
    let store = worker_with([first.as_str(), &second]);
    let report = hold(&evidence(&store.tree(), "workers/w/", 4_096), 4_096).unwrap();
    let shown = |number: usize, line: &str| {
        report.section(&format!("tool_calls/{number:03}_x.txt")).body.contains(line)
    };
    assert!(shown(1, "line 39 what"), "{report:#?}");
    assert!(shown(2, "only this step found out"), "{report:#?}");
}

/// Promise: If not all steps fit, steps that only hand over come last.
#[test]
fn handover_steps_come_last() {
    let steps =
        (0..60).map(|n| if n % 2 == 0 { format!("over to {n}\n") } else { filler(n * 100, 100) });
    let store = worker_with(steps);
    let shown = || -> Vec<usize> {
        let report = hold(&evidence(&store.tree(), "workers/w/", 4_096), 4_096).unwrap();
        let number = |section: &Section| section.path["tool_calls/".len()..][..3].parse().unwrap();
        report.sections.iter().map(number).collect()
    };
    let (brief, telling): (Vec<usize>, Vec<usize>) =
        shown().into_iter().partition(|number| number % 2 == 1);
    assert!(telling.starts_with(&[2, 4, 6]) && telling.ends_with(&[60]), "{telling:?} {brief:?}");
    // The input of a step shows its action, so its short output is the result.
    let one = json!({"name": "x", "args": {"command": "run"}});
    let line = json!({"role": "assistant", "content": "x", "tool_calls": vec![one; 60]});
    store.write("workers/w/thread.jsonl", format!("{line}\n"));
    assert!(shown().starts_with(&[1, 2, 3]), "{:?}", shown());
}

/// Promise: A line that imitates an exit status does not hide the failure below it.
#[test]
fn imitated_exit_status_does_not_hide_the_failure() {
    let output = format!(
        "exited with code 1\n{}Error: the cause of it all\n{}",
        filler(0, 400),
        filler(400, 600)
    );
    let store = worker_with([output.as_str()]);
    for budget in [2_048, 4_096, 16_000] {
        let report = hold(&evidence(&store.tree(), "workers/w/", budget), budget).unwrap();
        assert!(report.sections[0].body.contains("the cause of it all"), "{budget}: {report:#?}");
    }
}
