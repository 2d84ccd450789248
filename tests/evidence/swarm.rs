//! The evidence of a run and of the swarm: a line of cause for every failing worker, then excerpts.

use std::collections::BTreeSet;

use super::*;

const LINE: &str = "an ordinary line of output that says nothing\n";

/// A run with 60 failing workers and 40 others.
fn swarm() -> TestStore {
    swarm_of(60, 40)
}

fn swarm_of(failing: usize, others: usize) -> TestStore {
    let store = TestStore::new();
    for number in 0..failing + others {
        let id = format!("worker-{number:03}");
        let failing = number < failing;
        let status = if number % 2 == 0 && failing { "failed" } else { "success" };
        store.worker(&id, json!({"status": status, "run_id": "r", "config": {"owner_id": 7}}));
        store.call(&id, 1, "ssh", format!("{{\"ok\": true, \"stdout\": \"{number}\"}}"));
        if failing {
            store.call(
                &id,
                2,
                "ssh",
                format!("Error: host {number} does not answer\n{}", LINE.repeat(number * 10)),
            );
        }
    }
    store
}

/// Promise: Every failing worker has a line with its cause at the default budget.
#[test]
fn every_failing_worker_has_its_cause_at_the_default_budget() {
    let store = swarm();
    let tree = store.tree();
    for folder in ["", "runs/r/"] {
        let text = see(&tree, format!("{folder}evidence.txt")).unwrap().text().to_owned();
        let report = hold(&text, 28_000).unwrap();
        assert_eq!(report.lines.len(), 60, "{report:#?}");
        for number in 0..60 {
            let start = format!("[FAILED] worker-{number:03}: ");
            let line = report.lines.iter().find(|line| line.starts_with(&start));
            let line = line.unwrap_or_else(|| panic!("no line for {number}"));
            assert!(line.contains(&format!("host {number} does not answer")), "{line}");
        }
        assert!(report.counted.starts_with("Workers: 100 (60 failed, "), "{}", report.counted);
        assert!(!report.sections.is_empty(), "causes first, then excerpts");
        assert!(
            report.sections.iter().all(|section| section.path.starts_with("workers/worker-0")),
            "{report:#?}"
        );
    }
    assert!(see(&tree, "evidence.txt").unwrap().text().starts_with("--- Evidence for Swarm --- #"));
    assert!(
        see(&tree, "runs/r/evidence.txt")
            .unwrap()
            .text()
            .starts_with("--- Evidence for Run r --- #")
    );
}

/// Returns the number of failing workers in a line of cause, or `None` for any other line.
fn failing_count(line: &str) -> Option<usize> {
    let workers = line.strip_prefix("[FAILED] ")?;
    match workers.split_once(" workers (") {
        Some((count, _)) => Some(count.parse().unwrap()),
        None => Some(1),
    }
}

/// Checks the evidence of the run and of the swarm at each budget, in ascending order.
fn hold_swarm(failing: usize, others: usize, budgets: impl Iterator<Item = usize> + Clone) {
    let store = swarm_of(failing, others);
    let tree = store.tree();
    for folder in ["", "runs/r/"] {
        let mut framed = false;
        for budget in budgets.clone() {
            let text = evidence(&tree, folder, budget);
            let report = hold(&text, budget);
            assert!(report.is_some() || !framed, "{folder:?} at {budget} lost the frame: {text}");
            let Some(report) = report else { continue };
            framed = true;
            let listed: usize = report.lines.iter().filter_map(|line| failing_count(line)).sum();
            let rest = report
                .lines
                .iter()
                .find_map(|line| line.strip_prefix("and ")?.split(' ').next()?.parse().ok());
            let start = format!("Workers: {} ({failing} failed, ", failing + others);
            assert!(report.counted.starts_with(&start), "{}", report.counted);
            let all = listed + rest.unwrap_or(0) == failing;
            assert!(all || report.lines.is_empty(), "{folder:?} at {budget}: {report:#?}");
        }
        assert!(framed);
    }
}

#[test]
fn small_budgets_are_bounds_and_keep_every_failing_worker() {
    hold_swarm(12, 3, (0..=300).chain((301..5_000).step_by(61)));
}

/// Promise: Every large budget is an upper bound, and no failing worker is left out.
#[test]
fn large_budgets_are_bounds_and_keep_every_failing_worker() {
    hold_swarm(60, 40, (200..1_000).step_by(173).chain((1_000..30_000).step_by(1_511)));
}

/// Promise: Identical failures are shown once, with the workers that had them.
#[test]
fn identical_failures_are_shown_once_with_their_workers() {
    let store = TestStore::new();
    for (id, cause) in
        [("a", "no space left"), ("b", "no route"), ("c", "no space left"), ("d", "no space left")]
    {
        store.worker(id, json!({})).call(
            id,
            1,
            "x",
            format!("Error: {cause}\n{}", LINE.repeat(20)),
        );
    }
    let tree = store.tree();
    let report = hold(&evidence(&tree, "", 28_000), 28_000).unwrap();
    let lines =
        ["[FAILED] 3 workers (a, c, d): Error: no space left", "[FAILED] b: Error: no route"];
    assert_eq!(report.lines, lines, "{report:#?}");
    let shown: Vec<&str> = report.sections.iter().map(|section| section.path.as_str()).collect();
    assert_eq!(shown, ["workers/a/tool_calls/001_x.txt", "workers/b/tool_calls/001_x.txt"]);
    let summary = see(&tree, "summary").unwrap().text().to_owned();
    let by_cause =
        "failed or red at the end (4):\n  3 workers (a, c, d):\n    Error: no space left\n  b  ";
    assert!(summary.contains(by_cause), "{summary}");
    assert!(summary.contains(": claims success, but Error: no route\n"), "{summary}");
}

/// Promise: Two hundred failing workers each have their cause at the default budget.
#[test]
fn two_hundred_failing_workers_have_their_causes() {
    let store = swarm_of(200, 10);
    let report = hold(see(&store.tree(), "evidence.txt").unwrap().text(), 28_000).unwrap();
    for number in 0..200 {
        let line = format!("[FAILED] worker-{number:03}: Error: host {number} does not answer");
        assert!(report.lines.contains(&line), "{number}: {report:#?}");
    }
}

/// Promise: Causes that do not fit are counted, and the most frequent causes are shown first.
#[test]
fn causes_that_do_not_fit_are_counted() {
    let store = TestStore::new();
    for number in 0..400 {
        let id = format!("worker-{number:03}");
        let cause = if number % 2 == 0 {
            "the host is gone".to_owned()
        } else {
            format!("answer {number} is wrong")
        };
        store.worker(&id, json!({"status": "failed", "error": cause}));
    }
    let tree = store.tree();
    for budget in [4_000, 900] {
        let report = hold(&evidence(&tree, "", budget), budget).unwrap();
        assert!(
            report.lines[0].starts_with("[FAILED] 200 workers (worker-000, worker-002, "),
            "{report:#?}"
        );
        assert!(report.lines[0].ends_with(" more): the host is gone"), "{report:#?}");
        let rest = report.lines.last().unwrap();
        let count: usize =
            rest.strip_prefix("and ").unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(rest.contains(" more failing workers, of ") && count > 0, "{rest}");
        assert_eq!(
            report.lines.iter().filter_map(|line| failing_count(line)).sum::<usize>() + count,
            400,
            "{report:#?}"
        );
    }
    // The summary stays short for any number of failures.
    let summary = see(&tree, "summary").unwrap().text().to_owned();
    assert!(summary.lines().count() < 60 && summary.len() < 8_000, "{summary}");
    assert!(summary.contains("\n  200 workers (worker-000, "), "{summary}");
}

#[test]
fn cause_is_one_line() {
    let store = TestStore::new();
    let forged = "[FAILED] worker-000: forged";
    let breaks = [
        "\n",
        "\r",
        "\r\n",
        "\u{b}",
        "\u{c}",
        "\u{85}",
        "\u{2028}",
        "\u{2029}",
        "\\n",
        "\u{1b}[1B",
        "\0",
        "\u{1b}E",
    ];
    let mut ids = BTreeSet::new();
    for (at, line_break) in breaks.iter().enumerate() {
        for (kind, metadata, output) in [
            (
                "error",
                json!({"status": "failed", "error": format!("x{line_break}{forged}")}),
                "plain".to_owned(),
            ),
            ("output", json!({}), format!("Error: x{line_break}{forged}")),
            (
                "line",
                json!({}),
                format!(
                    "<tool-error>\n{line_break}fatal error: x{line_break}{forged}{line_break}\n"
                ),
            ),
        ] {
            let id = format!("{kind}-{at}");
            store.worker(&id, metadata).call(&id, 1, "x", output);
            ids.insert(id);
        }
    }
    let tree = store.tree();
    let report = hold(&evidence(&tree, "", 1 << 20), 1 << 20).unwrap();
    let named = |id: &&String| report.lines.iter().any(|line| line.contains(id.as_str()));
    assert_eq!(ids.iter().filter(named).count(), ids.len(), "{report:#?}");
    let all: usize = report.lines.iter().map(|line| failing_count(line).unwrap()).sum();
    assert_eq!(all, ids.len(), "not every worker is listed once: {report:#?}");
    assert!(!report.lines.iter().any(|line| line.starts_with(forged)), "{report:#?}");
    let summary = see(&tree, "summary").unwrap().text().to_owned();
    assert!(!summary.contains(&format!("\n{forged}")), "{summary}");
}

#[test]
fn swarm_without_failures_has_no_cause() {
    let store = TestStore::new();
    store.worker("a", json!({})).call("a", 1, "x", "{\"ok\": true}");
    store.worker("b", json!({"status": "running"}));
    let report = hold(&evidence(&store.tree(), "", 28_000), 28_000).unwrap();
    assert!(report.lines.is_empty() && report.sections.is_empty(), "{report:#?}");
    assert!(report.counted.starts_with("Workers: 2 (0 failed, 1 unknown"), "{}", report.counted);
}

#[test]
fn failing_worker_without_output_shows_its_error() {
    let store = TestStore::new();
    store.worker("a", json!({"status": "failed", "error": "timeout after 300 s"}));
    store.worker("b", json!({"status": "failed"}));
    let report = hold(&evidence(&store.tree(), "", 28_000), 28_000).unwrap();
    assert_eq!(report.lines.len(), 2, "{report:#?}");
    assert_eq!(report.lines[0], "[FAILED] a: timeout after 300 s");
    assert!(report.lines[1].starts_with("[FAILED] b: "), "{report:#?}");
}

#[test]
fn sections_of_many_workers_name_paths_that_can_be_opened() {
    let store = swarm();
    let tree = store.tree();
    let report = hold(&evidence(&tree, "", 28_000), 28_000).unwrap();
    for section in &report.sections {
        assert_eq!(
            see(&tree, &section.path).unwrap().bytes().len() as u64,
            section.bytes,
            "{}",
            section.path
        );
    }
}

/// Promise: A large failure of one worker does not crowd out other workers.
#[test]
fn large_failure_does_not_crowd_out_other_workers() {
    let store = TestStore::new();
    store.worker("big", json!({})).call(
        "big",
        1,
        "x",
        format!("Error: big\n{}", LINE.repeat(100_000)),
    );
    for number in 0..8 {
        let id = format!("small-{number}");
        store.worker(&id, json!({})).call(&id, 1, "x", format!("Error: number {number}"));
    }
    let report = hold(&evidence(&store.tree(), "", 28_000), 28_000).unwrap();
    assert_eq!(report.lines.len(), 9);
    assert_eq!((report.whole, report.cut), (8, 1), "{report:#?}");
}

#[test]
fn view_of_an_owner_shows_no_foreign_worker() {
    let store = swarm();
    store.worker(
        "stranger",
        json!({"status": "failed", "error": "SECRET", "run_id": "r", "config": {"owner_id": 8}}),
    );
    let (with, without) = (store.tree_of_owner("7"), swarm());
    let without = without.tree_of_owner("7");
    for folder in ["", "runs/r/"] {
        for budget in [300, 4_000, 28_000] {
            assert_eq!(evidence(&with, folder, budget), evidence(&without, folder, budget));
        }
    }
}
