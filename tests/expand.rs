//! `expand`: every marker in a text is followed by its worker's evidence, and the rest is
//! unchanged.

mod messages;

use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_tree::analysis::settings::Settings;
use swarmletfs_tree::render::Renderer;
use swarmletfs_tree::render::expand::{ExpandStats, InputFormat};
use swarmletfs_tree::view::Filter;

use crate::support::{TestStore, cases, see};

/// Creates a store: `a` failed, `b` succeeded, `c` belongs to another run and another owner.
fn store() -> TestStore {
    let store = TestStore::new();
    store.worker(
        "a",
        json!({"run_id": 48, "job_id": 1, "status": "failed", "config": {"owner_id": 7}}),
    );
    store.call("a", 1, "sh", "{\"exit_code\": 1, \"stderr\": \"no space left on device\"}");
    store.worker("b", json!({"run_id": 48, "job_id": 2, "config": {"owner_id": 7}}));
    store.call("b", 1, "sh", "{\"ok\": true}");
    let lines: String =
        (0..5_000).map(|n| format!("{n} is a number whose square is {}\n", n * n)).collect();
    store.call("b", 2, "sh", lines);
    store
        .worker("c", json!({"run_id": 49, "job_id": 3, "config": {"owner_id": 8}}))
        .call("c", 1, "sh", "secret");
    store
}

fn marker(run: &str, job: &str, worker: &str) -> String {
    format!("[EVIDENCE:run_id={run},job_id={job},worker_id={worker}]")
}

fn budget(size: &str) -> Option<Budget> {
    Some(Budget::parse(size).unwrap())
}

fn renderer(store: &TestStore, filter: Filter) -> Renderer {
    Renderer::new(store.view(Duration::ZERO, filter), Settings::default())
}

fn expand(
    renderer: &Renderer,
    format: InputFormat,
    size: Option<Budget>,
    text: &str,
) -> (String, ExpandStats) {
    let mut out = Vec::new();
    let expanded = renderer.expand(format, size, text.as_bytes(), &mut out).unwrap();
    (String::from_utf8(out).unwrap(), expanded)
}

fn expand_text(store: &TestStore, size: Option<Budget>, text: &str) -> (String, ExpandStats) {
    expand(&renderer(store, Filter::default()), InputFormat::Text, size, text)
}

/// Returns a worker's evidence file as `expand` inserts it.
fn evidence(store: &TestStore, path: &str) -> String {
    see(&store.tree(), path).unwrap().text().trim_end().to_owned()
}

#[test]
fn every_marker_is_followed_by_its_evidence() {
    let store = store();
    let (a, b) = (marker("48", "1", "a"), marker("-", "-", "b").to_lowercase());
    let (text, expanded) =
        expand_text(&store, None, &format!("Job 1 ended. {a}\nJob 2: {b} ended.\n"));
    let (of_a, of_b) =
        (evidence(&store, "workers/a/evidence.txt"), evidence(&store, "workers/b/evidence.txt"));
    assert!(of_b.len() > 10_000);
    assert_eq!(text, format!("Job 1 ended. {a}\n\n{of_a}\nJob 2: {b}\n\n{of_b}\n ended.\n"));
    assert_eq!(expanded, ExpandStats { expanded: 2, ..ExpandStats::default() });
}

/// Promise: A repeated marker points to the first expansion.
#[test]
fn repeated_marker_points_to_the_first_expansion() {
    let store = store();
    let a = marker("48", "1", "a");
    let (text, expanded) = expand_text(&store, None, &format!("{a}{a}"));
    let of_a = evidence(&store, "workers/a/evidence.txt");
    assert_eq!(text, format!("{a}\n\n{of_a}\n{a}\n\n[Evidence of this worker: see above]"));
    assert_eq!((expanded.expanded, expanded.repeated), (1, 1));
}

/// Promise: A repeated marker without room is counted.
#[test]
fn repeated_marker_without_room_is_counted() {
    let store = store();
    let text = marker("48", "1", "a").repeat(400);
    let (_, stats) = expand_text(&store, budget("4000"), &text);
    assert!(stats.repeated > 10 && stats.repeated + stats.without_room == 399, "{stats:?}");
}

/// Promise: A marker's run and job must match the worker's.
#[test]
fn run_and_job_of_a_marker_must_match() {
    let store = store();
    for wrong in [marker("49", "1", "a"), marker("48", "2", "a"), marker("-", "2", "a")] {
        let (text, expanded) = expand_text(&store, None, &wrong);
        assert_eq!((text, expanded.disagreeing), (wrong, 1));
    }
    let of_run = renderer(&store, Filter { owner: None, run: Some("48".into()) });
    for (other, disagreeing) in
        [(marker("49", "3", "c"), 1), (marker("49", "3", "nobody"), 1), (marker("48", "1", "a"), 0)]
    {
        let (text, expanded) = expand(&of_run, InputFormat::Text, None, &other);
        assert_eq!(
            (text == other, expanded.disagreeing),
            (disagreeing == 1, disagreeing),
            "{other}"
        );
    }
}

/// Promise: The marker of a removed worker gives one readable line.
#[test]
fn marker_of_a_removed_worker_gives_one_line() {
    let store = store();
    let gone = marker("48", "9", "a b%20\u{202e}[EVIDENCE:x");
    let (text, expanded) = expand_text(&store, None, &format!("{gone} and on"));
    let line = "[Evidence unavailable: there is no worker a b%20[\\EVIDENCE:x here]";
    assert_eq!(text, format!("{gone}\n\n{line}\n and on"));
    assert_eq!(expanded.unavailable, 1);
}

#[test]
fn marker_may_hold_the_beginning_of_an_id() {
    let store = TestStore::new();
    for id in ["build-1", "build-2", "deploy-1"] {
        store.worker(id, json!({"run_id": 48})).call(id, 1, "sh", "{\"ok\": true}");
    }
    let (text, expanded) = expand_text(&store, None, &marker("48", "-", "depl"));
    assert!(text.contains("(deploy-1) --- #"), "{text}");
    assert_eq!(expanded.unavailable, 0);
    let (text, expanded) = expand_text(&store, None, &marker("48", "-", "buil"));
    let line =
        "[Evidence unavailable: buil: the id is ambiguous: build-1, build-2; give more of it]";
    assert!(text.ends_with(line), "{text}");
    assert_eq!(expanded.unavailable, 1);
}

/// Promise: The markers of an absent worker and of another owner's give the same line.
#[test]
fn absent_and_foreign_markers_give_the_same_line() {
    let store = store();
    let of_7 = renderer(&store, Filter { owner: Some("7".into()), run: None });
    for (run, job) in [("49", "3"), ("48", "1"), ("-", "-")] {
        let answer = |worker: &str| {
            let (text, expanded) =
                expand(&of_7, InputFormat::Text, None, &marker(run, job, worker));
            (
                text.replace(&format!("worker_id={worker}]"), "")
                    .replace(&format!("worker {worker} "), ""),
                expanded,
            )
        };
        assert_eq!(answer("c"), answer("d"), "{run} {job}");
    }
}

#[test]
fn text_that_is_no_marker_is_left_alone() {
    let store = store();
    for text in [
        "",
        "[EVIDENCE:invalid]",
        "[EVIDENCE:run_id=48,job_id=1,worker_id=a",
        "[\\EVIDENCE:run_id=48,job_id=1,worker_id=a]",
    ] {
        assert_eq!(expand_text(&store, None, text), (text.to_owned(), ExpandStats::default()));
    }
}

/// Promise: A name that a marker cannot contain is percent-encoded and found.
#[test]
fn percent_encoded_names_are_found() {
    let store = TestStore::new();
    store.worker("a b]", json!({})).call("a b]", 1, "sh", "well");
    let summary = evidence(&store, "workers/a b]/summary");
    let written = summary.lines().last().unwrap();
    assert_eq!(written, marker("-", "-", "a%20b%5D"));
    assert_eq!(expand_text(&store, None, written).1.expanded, 1);
}

/// Creates six workers, the last of which failed, each with more evidence than fits its share.
fn many() -> (TestStore, String) {
    let store = TestStore::new();
    let mut text = String::new();
    for n in 0..6 {
        let status = if n == 5 { "failed" } else { "success" };
        store.worker(&format!("w{n}"), json!({"status": status}));
        let line = format!(
            "{{\"ok\": {}, \"data\": \"{}\"}}",
            n != 5,
            "words and more of them, ".repeat(400)
        );
        store.call(&format!("w{n}"), 1, "sh", line);
        text += &format!("{} and then\n", marker("-", "-", &format!("w{n}")));
    }
    (store, text)
}

#[test]
fn one_budget_covers_all_inserted_text() {
    let (store, text) = many();
    for size in
        ["0", "1", "80", "500", "900", "2000", "10k", "1M", "0tok", "30tok", "500tok", "3000tok"]
    {
        let budget = budget(size);
        let (expanded, stats) = expand_text(&store, budget, &text);
        let added: String = text
            .split_inclusive(']')
            .fold((expanded.as_str(), String::new()), |(rest, added), part| {
                let (before, after) = rest.split_once(part).unwrap();
                (after, added + before)
            })
            .1;
        assert!(budget.unwrap().used(&added) <= budget.unwrap().size(), "{size}: {added}");
        assert_eq!(stats.expanded + stats.without_room, 6, "{size}: {stats:?}");
        assert_eq!(stats.expanded > 0, budget.unwrap().approx_bytes() >= 500, "{size}: {stats:?}");
        // Failed workers come before others.
        let failed = stats.expanded == 0 || expanded.contains("Evidence for Worker - (w5)");
        assert!(failed, "{size}: {expanded}");
        if size == "2000" {
            assert_eq!(
                expanded.matches("[Evidence left out for lack of room: workers/w").count(),
                stats.without_room as usize
            );
        }
    }
}

/// Promise: Markers late in a long text have room too.
#[test]
fn late_markers_in_a_long_text_have_room() {
    let (store, _) = many();
    let (first, last) = (marker("-", "-", "w0"), marker("-", "-", "w5"));
    let text = format!("{first}{}{last}", "so it goes on and on\n".repeat(300_000));
    let (expanded, stats) = expand_text(&store, budget("2000"), &text);
    assert_eq!((stats.expanded, stats.without_room), (2, 0));
    assert!(expanded.len() - text.len() <= 2_000);
    assert_eq!(expand_text(&store, budget("2000"), &text).0, expanded);
}

proptest! {
    #![proptest_config(cases(256))]

    /// Promise: All other text stays byte for byte the same.
    #[test]
    fn other_text_stays_byte_for_byte(
        parts in proptest::collection::vec((0_usize..70_000, "\\PC{0,40}", 0_usize..4), 0..12),
    ) {
        let store = store();
        let markers = [marker("48", "1", "a"), marker("48", "2", "b"), "[EVIDENCE:".into(), "]".into()];
        let mut bytes = Vec::new();
        for (length, text, which) in &parts {
            bytes.resize(bytes.len() + length, b'x');
            bytes.extend_from_slice(text.as_bytes());
            bytes.push(0xff);
            bytes.extend_from_slice(markers[*which].as_bytes());
        }
        let mut out = Vec::new();
        let stats = renderer(&store, Filter::default()).expand(InputFormat::Text, budget("300"), &bytes[..], &mut out).unwrap();
        // A budget too small for evidence inserts only single lines.
        let lines = regex::bytes::Regex::new(r"\n\n\[Evidence [^\]]*\]\n?").unwrap();
        let plain = lines.replace_all(&out, &b""[..]);
        prop_assert_eq!(plain.len(), bytes.len(), "{:?}", stats);
        prop_assert!(*plain == bytes);
        let wanted = parts.iter().filter(|(.., which)| *which < 2).count() as u64;
        prop_assert_eq!(stats.expanded + stats.repeated + stats.without_room, wanted);
    }
}

#[test]
fn inserted_evidence_shows_the_failure_before_successes() {
    let store = TestStore::new();
    store.worker("bad", json!({"run_id": 48, "job_id": 1}));
    store.call("bad", 1, "sh", json!({"ok": true, "stdout": "flawless ".repeat(20)}).to_string());
    let noise = "an ordinary line of output\n".repeat(40);
    store.call("bad", 2, "sh", format!("<tool-error>\n{noise}Error: the-cause of it all\n{noise}"));
    store.worker("good", json!({"run_id": 48, "job_id": 2}));
    store.call("good", 1, "sh", json!({"ok": true, "stdout": "flawless ".repeat(40)}).to_string());
    let (bad, good) = (marker("48", "1", "bad"), marker("48", "2", "good"));
    for text in [bad.clone(), format!("{bad}\n{good}\n"), format!("{good}\n{bad}\n")] {
        let is_before =
            |out: &str| text.starts_with(&good) || out.find("the-cause") < out.find("flawless");
        for size in (300..3_000).step_by(29) {
            let (out, _) = expand_text(&store, budget(&size.to_string()), &text);
            let is_fine = !out.contains("flawless") || out.contains("the-cause") && is_before(&out);
            assert!(is_fine, "{size}: {out}");
            assert!(size < 600 || out.contains("the-cause"), "{size}: {out}");
        }
    }
}
