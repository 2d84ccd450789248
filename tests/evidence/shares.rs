//! Allocation of a budget: every failed call gets its minimum before any gets all it needs, and no
//! call starves another.

use super::*;

/// Checks that each of `numbers` has some text in its section.
fn assert_all_shown(report: &Report, numbers: std::ops::RangeInclusive<usize>, case: &str) {
    for number in numbers {
        let path = format!("tool_calls/{number:03}_x.txt");
        let found = report.sections.iter().find(|section| section.path == path);
        let own: String = found.map(|section| section.own_text()).unwrap_or_default();
        let own = own.lines().filter(|line| !line.starts_with("$ ")).collect::<String>();
        assert!(
            own.trim().len() >= 20,
            "{case}: call {number} has no excerpt: {:?} in {report:#?}",
            own
        );
    }
}

/// Outputs of 50 KB in several shapes, each of a failed call.
fn shapes() -> Vec<(&'static str, String)> {
    let line = "2026-01-20 10:00:00 INFO worker is going on with what it does\n";
    vec![
        ("lines", format!("Error: it broke\n{}", line.repeat(50_000 / line.len()))),
        ("one line", format!("Error: it broke {}", "x".repeat(50_000))),
        ("words", format!("Error: it broke {}", "word and word ".repeat(3_600))),
        ("wide characters", format!("Error: 漢 {}", "漢字".repeat(8_300))),
        (
            "JSON",
            format!(
                "{{\"ok\": false, \"stdout\": \"{}\"}}",
                line.replace('\n', "\\n").repeat(50_000 / line.len())
            ),
        ),
        (
            "long lines",
            format!("Error: it broke\n{}", format!("{}\n", "y".repeat(450)).repeat(110)),
        ),
    ]
}

#[test]
fn twenty_failed_calls_of_50_kb_each_get_an_excerpt() {
    for (case, output) in shapes() {
        let store = worker_with(vec![output; 20]);
        let report = hold(&evidence(&store.tree(), "workers/w/", 16_000), 16_000).unwrap();
        assert_eq!((report.cut, report.listed), (20, 0), "{case}: {report:#?}");
        assert_all_shown(&report, 1..=20, case);
    }
}

#[test]
fn twenty_failed_calls_get_excerpts_before_thirty_others() {
    for (case, output) in shapes() {
        let ok = format!("{{\"ok\": true, \"stdout\": \"{}\"}}", "fine\\n".repeat(9_000));
        let store = worker_with(std::iter::repeat_n(output, 20).chain(std::iter::repeat_n(ok, 30)));
        let report = hold(&evidence(&store.tree(), "workers/w/", 16_000), 16_000).unwrap();
        assert_all_shown(&report, 1..=20, case);
    }
}

#[test]
fn failed_calls_with_long_inputs_get_an_excerpt() {
    for (case, output) in shapes() {
        let store = worker_with(vec![output; 20]);
        let one = json!({"name": "x", "args": {"command": "some long command ".repeat(30)}});
        let line = json!({"role": "assistant", "content": "x", "tool_calls": vec![one; 20]});
        store.write("workers/w/thread.jsonl", format!("{line}\n"));
        let report = hold(&evidence(&store.tree(), "workers/w/", 16_000), 16_000).unwrap();
        assert_all_shown(&report, 1..=20, case);
    }
}

#[test]
fn failed_call_of_5_mb_leaves_room_for_five_small_ones() {
    let large = format!("Error: large\n{}", "noise and more noise\n".repeat(250_000));
    for small in [
        "Error: small and telling\n",
        "Error: small and telling",
        "plain and small",
        "{\"ok\": true, \"a\": 1}",
    ] {
        for first in [true, false] {
            let mut outputs = vec![small; 5];
            outputs.insert(if first { 0 } else { 5 }, &large);
            let store = worker_with(&outputs);
            let tree = store.tree();
            for budget in [2_000, 4_000, 16_000] {
                let report = hold(&evidence(&tree, "workers/w/", budget), budget).unwrap();
                let whole = report
                    .sections
                    .iter()
                    .filter(|section| section.body.trim_end() == small.trim_end());
                assert_eq!(whole.count(), 5, "{small:?} at {budget}: {report:#?}");
                assert_eq!(
                    (report.whole, report.cut, report.listed),
                    (5, 1, 0),
                    "{small:?} at {budget}"
                );
            }
        }
    }
}

#[test]
fn small_failed_call_is_whole_beside_a_huge_one() {
    for small in [
        "Error: boom",
        "Error: boom\n",
        "Error: [EVIDENCE:run_id=1,job_id=2,worker_id=3] [TOOL_OUTPUT:x",
        "Error: two\n[... lines",
        "{\"ok\": false, \"error\": \"no such host\"}",
        "<tool-error>gone</tool-error>",
    ] {
        let store = worker_with([
            small.to_owned(),
            "a line of a huge output\nand another\n".repeat(60_000),
        ]);
        let report = hold(&evidence(&store.tree(), "workers/w/", 16_000), 16_000).unwrap();
        let section = report.section("tool_calls/001_x.txt");
        assert!(section.failed && section.is_whole(), "{small:?}: {section:?}");
        assert!(!section.body.is_empty(), "{small:?} is not shown");
        assert_eq!((report.whole, report.cut), (1, 1), "{small:?}: {report:#?}");
    }
}

#[test]
fn needed_budget_is_used() {
    let store = worker_with([
        "Error: x\n".to_owned(),
        "a line of a huge output\nand another\n".repeat(60_000),
    ]);
    let text = evidence(&store.tree(), "workers/w/", 16_000);
    assert!(text.len() > 15_000, "{} B of 16,000", text.len());
    let store = worker_with(vec!["a line of a large output\nand another\n".repeat(3_000); 10]);
    let text = evidence(&store.tree(), "workers/w/", 16_000);
    assert!(text.len() > 14_000, "{} B of 16,000", text.len());
}

#[test]
fn text_that_fits_is_shown_whole() {
    let store = worker_with((0..20).map(|number| format!("output number {number}\n").repeat(30)));
    let tree = store.tree();
    let report = hold(&evidence(&tree, "workers/w/", 16_000), 16_000).unwrap();
    assert_eq!((report.whole, report.cut, report.listed), (20, 0, 0));
}

#[test]
fn one_failure_among_hundreds_of_large_calls_is_shown() {
    let mut outputs = vec!["{\"ok\": true, \"stdout\": \"fine\"}".repeat(800); 300];
    outputs[17] = format!("{}Error: the one that matters\n", "before it\n".repeat(3_000));
    let store = worker_with(&outputs);
    store.write(
        "workers/w/metrics.jsonl",
        (0..300)
            .map(|n| {
                format!("{}\n", json!({"event": "tool_call", "tool": "x", "success": n != 17}))
            })
            .collect::<String>(),
    );
    let report = hold(&evidence(&store.tree(), "workers/w/", 4_096), 4_096).unwrap();
    assert_eq!(report.sections[0].path, "tool_calls/018_x.txt");
    assert!(report.sections[0].body.contains("Error: the one that matters"), "{report:#?}");
}

#[test]
fn unreadable_output_takes_no_share() {
    let store = worker_with(["a line of a huge output\nand another\n".repeat(60_000)]);
    for number in 2..=6 {
        std::fs::create_dir(store.at(format!("workers/w/tool_calls/{number:03}_x.txt"))).unwrap();
    }
    let text = evidence(&store.tree(), "workers/w/", 16_000);
    let report = hold(&text, 16_000).unwrap();
    assert_eq!(report.sections.len(), 6);
    for number in 2..=6 {
        let section = report.section(&format!("tool_calls/{number:03}_x.txt"));
        assert!(section.body.contains("folder"), "the reason is missing: {section:?}");
    }
    assert!(text.len() > 15_000, "{} B of 16,000", text.len());
}

#[test]
fn output_whose_omission_does_not_fit_is_listed() {
    let store = TestStore::new();
    store.worker("w", json!({}));
    for number in 1..=8 {
        // Failed calls have a higher weight, so they take from the share of successful calls.
        let output = if number % 2 == 0 {
            format!("Error: it broke\n{}", "and again\n".repeat(600))
        } else {
            format!("{{\"ok\": true, \"text\": \"{}\"}}", "fine ".repeat(60 + 10 * number as usize))
        };
        store.call("w", number, &"n".repeat(240), output);
    }
    let tree = store.tree();
    for budget in (300..16_000).step_by(37) {
        hold(&evidence(&tree, "workers/w/", budget), budget);
    }
}
