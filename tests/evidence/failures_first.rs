//! Failures first: at every budget, the relevant line of a failed call comes before any text of a
//! successful call.

use proptest::prelude::*;

use super::*;
use crate::support::cases;

/// Word that occurs only in outputs of successful calls.
const FINE: &str = "flawless";
/// Text without a sign of failure.
const NOISE: &str = "an ordinary line that goes on and on\n";

/// Outcome of a generated call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ended {
    Failed,
    Ok,
    Unknown,
}

/// A call: outcome, size of its output in bytes, length of its failure line in bytes, and shape.
type Call = (Ended, usize, usize, u8);

/// Returns the word that only the failure line of a call contains.
fn failure_word(number: usize) -> String {
    format!("telling-{number:03}")
}

fn output(number: usize, (ended, size, line, shape): Call) -> String {
    let noise = NOISE.repeat(size / 2 / NOISE.len());
    let line = format!("Error: {} {}", failure_word(number), "detail ".repeat(line / 7));
    match (ended, shape) {
        (Ended::Failed, 0) => format!("<tool-error>\n{noise}{line}\n{noise}"),
        (Ended::Failed, 1) => {
            format!("Error: {}\n{noise}{noise}", line.trim_start_matches("Error: "))
        }
        (Ended::Failed, 2) => format!("<tool-error>\n{noise}{noise}\x1b[31m{line}\x1b[0m"),
        (Ended::Failed, _) => {
            json!({"ok": false, "stdout": noise, "stderr": format!("{noise}{line}\n")}).to_string()
        }
        (Ended::Ok, _) => {
            json!({"ok": true, "stdout": format!("{FINE} ").repeat(1 + size / 9)}).to_string()
        }
        (Ended::Unknown, _) => format!("{FINE} and more\n").repeat(1 + size / 18),
    }
}

fn call() -> impl Strategy<Value = Call> {
    let ended = prop_oneof![Just(Ended::Failed), Just(Ended::Ok), Just(Ended::Unknown)];
    let size = prop_oneof![3 => 0_usize..60, 3 => 60_usize..2_000, 1 => 2_000_usize..100_000];
    (ended, size, prop_oneof![2 => 0_usize..40, 1 => 40_usize..900], 0_u8..4)
}

fn store_of(calls: &[Call], inputs: bool) -> TestStore {
    let store = worker_with(calls.iter().enumerate().map(|(at, call)| output(at + 1, *call)));
    if inputs {
        let call = json!({"name": "x", "args": {"command": "a long command ".repeat(20)}});
        let line =
            json!({"role": "assistant", "content": "", "tool_calls": vec![call; calls.len()]});
        store.write("workers/w/thread.jsonl", format!("{line}\n"));
    }
    store
}

/// Checks an excerpt of `calls`.
fn check(text: &str, calls: &[Call], budget: usize) {
    let of = |wanted| {
        (1..).zip(calls).filter(move |(_, call)| call.0 == wanted).map(|(number, _)| number)
    };
    let Some(latest) = of(Ended::Failed).last() else { return };
    let fine = text.find(FINE);
    let tells = text.find(&failure_word(latest));
    assert!(
        fine.is_none_or(|fine| tells.is_some_and(|tells| tells < fine)),
        "{budget}: {calls:?}: {text}"
    );
    // With room for the counts and one line, the line must be shown.
    assert!(budget < 200 || tells.is_some(), "{budget}: {calls:?}: {text}");
    for other in of(Ended::Failed) {
        let tells = text.find(&failure_word(other));
        assert!(
            fine.is_none_or(|fine| tells.is_some_and(|tells| tells < fine)),
            "{budget}, {other}: {calls:?}: {text}"
        );
    }
}

fn budgets() -> impl Iterator<Item = usize> {
    (0..2_000).step_by(61).chain([2_048, 3_000, 4_096, 8_192, 16_000, 65_536])
}

proptest! {
    #![proptest_config(cases(24))]

    /// Promise: At every budget the root cause of a failed call comes before any text of a
    /// successful call.
    #[test]
    fn root_cause_comes_before_successful_calls_at_every_budget(
        calls in proptest::collection::vec(call(), 1..8), inputs in any::<bool>(), offset in 0_usize..61,
    ) {
        let store = store_of(&calls, inputs);
        let tree = store.tree();
        for budget in budgets().map(|budget| budget + offset) {
            let text = evidence(&tree, "workers/w/", budget);
            hold(&text, budget);
            check(&text, &calls, budget);
        }
        for tokens in (0..900).step_by(97).chain([2_000, 8_000]) {
            let seen = see(&tree, format!("workers/w/evidence.{tokens}tok.txt")).unwrap();
            check(seen.text(), &calls, tokens);
        }
    }
}

#[test]
fn every_budget_with_room_for_one_line_shows_the_failed_call() {
    // The sizes of the demo: a failed call in JSON after a successful one.
    let calls =
        [(Ended::Ok, 200, 0, 0), (Ended::Unknown, 28_000, 0, 0), (Ended::Failed, 200, 70, 3)];
    for inputs in [false, true] {
        let store = store_of(&calls, inputs);
        let tree = store.tree();
        for budget in (0..2_000).step_by(7) {
            check(&evidence(&tree, "workers/w/", budget), &calls, budget);
        }
    }
}

/// Promise: A line that exceeds its share of the budget is cut and marked.
#[test]
fn line_over_its_share_is_cut_and_marked() {
    let line = format!("Error: telling-001 {}", "x".repeat(430));
    let output = format!("<tool-error>\n{}{line}\n{}", NOISE.repeat(40), NOISE.repeat(40));
    let store = worker_with([output]);
    let tree = store.tree();
    let mut cut = 0;
    for budget in 430..900 {
        let report = hold(&evidence(&tree, "workers/w/", budget), budget).unwrap();
        let Some(section) = report.sections.first() else { continue };
        let shown = section.own_text();
        assert!(shown.contains("Error: telling-001"), "{budget}: {report:#?}");
        let shown_line = shown.lines().find(|shown| shown.starts_with("Error:")).unwrap();
        assert!(line.starts_with(shown_line), "{budget}: {report:#?}");
        cut += usize::from(shown_line.len() < line.len());
    }
    assert!(cut > 100, "only {cut} budgets cut the line");
}

#[test]
fn no_call_is_shown_if_the_failed_one_does_not_fit() {
    let store = TestStore::new();
    store.worker("w", json!({}));
    store.call("w", 1, &"n".repeat(240), output(1, (Ended::Failed, 3_000, 400, 0)));
    store.call("w", 2, "x", output(2, (Ended::Ok, 30, 0, 0)));
    let tree = store.tree();
    for budget in (0..3_000).step_by(23) {
        check(
            &evidence(&tree, "workers/w/", budget),
            &[(Ended::Failed, 0, 0, 0), (Ended::Ok, 0, 0, 0)],
            budget,
        );
    }
}

#[test]
fn a_long_error_of_the_worker_leaves_room_for_the_failed_call() {
    let calls = [(Ended::Ok, 40, 0, 0), (Ended::Failed, 500, 20, 0)];
    let store = store_of(&calls, true);
    store.worker(
        "w",
        json!({"status": "failed", "error": "the worker ended without a result ".repeat(8)}),
    );
    let tree = store.tree();
    for budget in (0..2_000).step_by(13) {
        let text = evidence(&tree, "workers/w/", budget);
        hold(&text, budget);
        check(&text, &calls, budget);
    }
    assert!(
        evidence(&tree, "workers/w/", 900).contains("\nError: the worker ended without a result")
    );
}

/// Promise: In the evidence of many workers, failures come before any text of successful calls.
#[test]
fn failures_come_first_in_evidence_of_many_workers() {
    let store = TestStore::new();
    for (number, ended) in (1..).zip([Ended::Ok, Ended::Failed, Ended::Unknown, Ended::Failed]) {
        let id = format!("worker-{number}");
        store.worker(&id, json!({"run_id": "r", "status": "failed"}));
        store.call(&id, 1, "x", output(number, (ended, 300, 30, 0)));
    }
    let tree = store.tree();
    for folder in ["", "runs/r/"] {
        for budget in (0..3_000).step_by(17) {
            let text = evidence(&tree, folder, budget);
            hold(&text, budget);
            let fine = text.find(FINE);
            for number in [2, 4] {
                let tells = text.find(&failure_word(number));
                assert!(
                    fine.is_none_or(|fine| tells.is_some_and(|tells| tells < fine)),
                    "{budget}: {text}"
                );
            }
            assert!(budget < 500 || text.contains("telling-"), "{budget}: {text}");
        }
    }
}
