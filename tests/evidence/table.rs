//! The table in the summary of a run and the swarm, and the token counts below it.

use serde_json::Value;

use super::*;
use crate::support::transcript::{self, Transcript, place};

/// Returns the table of a summary, and the text below it.
fn table_of(tree: &Tree, path: &str) -> (Vec<String>, String) {
    let summary = see(tree, path).unwrap().text().to_owned();
    let from = summary.find("\n\nid ").unwrap() + 2;
    let (table, rest) = summary[from..].split_once("\n\n").unwrap();
    (table.lines().map(str::to_owned).collect(), rest.to_owned())
}

fn row(tree: &Tree, path: &str, id: &str) -> Value {
    let index: Value = serde_json::from_slice(see(tree, path).unwrap().bytes()).unwrap();
    let mut rows = index["workers"].as_array().unwrap().iter();
    rows.find(|row| row["id"] == id).unwrap().clone()
}

/// Promise: A summary has a table of the newest workers, newest first.
#[test]
fn the_table_has_what_a_person_recognizes() {
    let store = transcript::store();
    let mut session = Transcript::new("0123456789-first");
    session.user("Make the total right").call("a", "Read", json!({"file_path": "/absent"}));
    session.result("a", json!({"content": "no such file", "is_error": true}));
    session.bash("b", "run tests | tail", "1 failed").bash("c", "run tests", "ok");
    session.says("Here it is.").line(json!({"type": "summary", "summary": "Price totals"}));
    store.write(&place("0123456789-first"), session.bytes());
    let mut other = Transcript::new("0123456789-second");
    other.user("Look\naround").bash("a", "ls", "a").says("I see.");
    let later = String::from_utf8(other.bytes()).unwrap().replace("2026-02-01", "2026-02-03");
    store.write(&place("0123456789-second"), later);
    let tree = transcript::tree(&store);
    let (table, rest) = table_of(&tree, "summary");
    assert_eq!(
        table,
        [
            "id            when (UTC)        title         project  branch  end",
            "0123456789-s  2026-02-03 10:00  Look around   app      main    ok",
            "0123456789-f  2026-02-01 10:00  Price totals  app      main    green",
        ]
    );
    assert!(rest.starts_with("by day:\n  2026-02-03  1 worker"), "{rest}");
    let row = row(&tree, "index.json", "0123456789-first");
    for (key, value) in [
        ("short_id", json!("0123456789-f")),
        ("title", json!("Price totals")),
        ("project", json!("app")),
        ("branch", json!("main")),
        ("files_changed", json!(0)),
        ("duration_ms", json!(7_000)),
        ("outcome", json!("ok")),
    ] {
        assert_eq!(row[key], value, "{key}: {row:#}");
    }
    assert_eq!((&row["calls"]["failed"], &row["calls"]["suspect"]), (&json!(1), &json!(1)));
}

/// Promise: The table shows the newest 15 workers, and counts the others.
#[test]
fn the_table_counts_the_workers_beyond_its_end() {
    let store = TestStore::new();
    for at in 0..35 {
        let time = format!("2026-01-01T10:{at:02}:00Z");
        store.worker(&format!("w{at}"), json!({"created_at": time, "status": "completed"}));
    }
    let (table, _) = table_of(&store.tree(), "summary");
    assert_eq!(table.len(), 17, "{table:#?}");
    assert!(table[1].starts_with("w34  2026-01-01 10:34"), "{table:#?}");
    assert!(table[15].starts_with("w20  2026-01-01 10:20"), "{table:#?}");
    assert_eq!(table[16], "and 20 more in index.json");
}

#[test]
fn the_table_fits_on_80_columns_with_long_titles_and_branches() {
    let store = transcript::store();
    for id in ["aaaaaaaa-1", "bbbbbbbb-2"] {
        let mut session = Transcript::new(id);
        let place_of_work = json!({"cwd": "/x/a-project-with-a-long-name", "gitBranch": "people/a/long/branch",
            "type": "user", "message": {"role": "user", "content": "ä [EVIDENCE:x] \u{1b}[31m".repeat(40)}});
        session.line(place_of_work).bash("a", "run | tail", "3 failed");
        session.says("Here it is.");
        store.write(&place(id), session.bytes());
    }
    let (table, _) = table_of(&transcript::tree(&store), "summary");
    let widths: Vec<usize> = table[..3].iter().map(|line| line.chars().count()).collect();
    assert!(widths.iter().all(|width| *width <= 80) && widths[1] > 60, "{table:#?}");
    let title = table[0].find("title").unwrap();
    assert!(table[0].find("project").unwrap() - title >= 20 + 2, "{table:#?}");
    assert!(!table[1].contains("[EVIDENCE:") && !table[1].contains('\u{1b}'), "{table:#?}");
}

/// Promise: A short id is unique in the view.
#[test]
fn a_short_id_grows_with_the_workers_of_the_view() {
    let store = TestStore::new();
    store.worker("nightly-backup-hero", json!({"run_id": "r"}));
    let tree = store.tree();
    assert!(table_of(&tree, "runs/r/summary").0[1].starts_with("nightly-  "));
    // A worker of another run shares the beginning.
    store.worker("nightly-backup-villain", json!({"run_id": "s"}));
    let (table, _) = table_of(&tree, "runs/r/summary");
    assert!(table[1].starts_with("nightly-backup-h  "), "{table:#?}");
    let row = row(&tree, "runs/r/index.json", "nightly-backup-hero");
    assert_eq!(row["short_id"], "nightly-backup-h");
}

/// Promise: A worker whose metadata is torn appears in the table.
#[test]
fn a_worker_with_torn_metadata_appears_in_the_table() {
    let store = TestStore::new();
    store.write("workers/torn/metadata.json", "{\"worker_id\": ");
    let (table, rest) = table_of(&store.tree(), "summary");
    assert!(table[1].starts_with("torn  ") && table[1].ends_with("  unknown"), "{table:#?}");
    let quality = "\ndata quality, by number of workers: bad_metadata 1\n";
    assert!(rest.contains(quality), "{rest}");
}

/// Promise: Tokens are rounded, by model, and marked if the record counts only some.
#[test]
fn tokens_are_rounded_by_model_and_marked_if_partial() {
    let store = transcript::store();
    let mut session = Transcript::new("s");
    session.user("talk");
    let usage = |input, output| {
        json!({"input_tokens": input, "output_tokens": output,
        "cache_read_input_tokens": 3_400_000})
    };
    session.message("m1", json!([{"type": "text", "text": "a"}]), usage(1_234_567, 45_300));
    store.write(&place("s"), session.bytes());
    let tokens = |store: &std::sync::Arc<swarmletfs_base::store::Memory>| {
        let tree = transcript::tree(store);
        let line = |path| {
            let text = see(&tree, path).unwrap().text().to_owned();
            let from = text.find("\ntokens   ").unwrap() + 10;
            text[from..].lines().take(3).map(str::to_owned).collect::<Vec<_>>()
        };
        let index: Value =
            serde_json::from_slice(see(&tree, "workers/s/index.json").unwrap().bytes()).unwrap();
        (line("workers/s/summary"), line("summary"), index)
    };
    let (worker, swarm, index) = tokens(&store);
    let counts = "1.2M in, 45k out, 3.4M read from cache";
    assert_eq!(worker[0], format!("{counts} of claude-large"));
    assert_eq!(swarm[0], format!("{counts}, of 1 worker"));
    assert_eq!(index["tokens_by_model"]["claude-large"]["input"], 1_234_567);
    assert_eq!(index.get("tokens_complete"), None);
    // Far fewer tokens than were written, by another model.
    let text = "many words ".repeat(200_000);
    session.line(json!({"type": "assistant", "message": {"model": "claude-small", "id": "m2",
        "role": "assistant", "content": [{"type": "text", "text": text}],
        "usage": {"input_tokens": 3, "output_tokens": 1}}}));
    store.write(&place("s"), session.bytes());
    let (worker, swarm, index) = tokens(&store);
    assert_eq!(
        worker,
        [
            format!("{counts}, incomplete in the record"),
            format!("         claude-large: {counts}"),
            "         claude-small: 3 in, 1 out".into()
        ]
    );
    assert_eq!(swarm[0], format!("{counts}, of 1 worker, incomplete in the record of 1"));
    assert_eq!(index["tokens_complete"], false);
}
