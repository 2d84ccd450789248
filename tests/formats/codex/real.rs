//! Real rollouts of many versions; see [`expected`](crate::formats::expected). Those of the
//! directory `SWARMLETFS_CLIENTS` were made by the program with a scripted model, so that the
//! outcome of each call is known.

use std::path::PathBuf;

use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{Outcome, Output};
use swarmletfs_base::store::Disk;
use swarmletfs_trace::{Codex, Format, RecordSource};

use crate::formats::expected::{Difference, compare, report_skip};

#[test]
fn real_rollouts_hold_what_the_table_says() {
    compare("codex", &Codex::transcripts(), &DIFFERENCES);
}

/// Without events of turns, the table has no status. It is derived from the last message.
const DERIVED: &str = "no record states a status, so it is derived from the last message";

const fn derived(file: &'static str, here: &'static str) -> Difference {
    Difference { file, column: "status", here, reason: DERIVED }
}

/// The table counts what a fork repeats, which counts in its original alone.
const OWN: &str = "a fork begins with its own first record, and has its own tokens";

const fn own(column: &'static str, here: &'static str) -> Difference {
    Difference { file: "019e5615-9632-7740-b2cf-3061e4ff06e2.jsonl", column, here, reason: OWN }
}

const DIFFERENCES: [Difference; 18] = [
    own("first", "2026-05-23T18:25:23.174Z"),
    own("tokens_in", "30295"),
    own("tokens_out", "5"),
    derived("031d3ab5-1e7f-4e55-8e54-10ebd73d1a8d.jsonl", "completed"),
    derived("letta-tool-calls.jsonl", "completed"),
    derived("letta-cleanup.jsonl", "completed"),
    derived("phnx-codex-custom-tools.jsonl", "running"),
    derived("phnx-codex-fixture.jsonl", "running"),
    derived("000000000010.jsonl", "running"),
    derived("000000000016.jsonl", "running"),
    derived("000000000050.jsonl.zst", "running"),
    derived("000000000051.jsonl.zst", "created"),
    derived("019f6249-055d-76d3-b381-cd9d3eb99189.jsonl", "created"),
    derived("1db381270b73.jsonl", "created"),
    derived("1db381270b74.jsonl", "created"),
    derived("1db381270b75.jsonl", "created"),
    Difference {
        file: "01a011e2-21e4-71f2-a354-0495db06869c.jsonl",
        column: "final80",
        here: "",
        reason: "a call follows the last message, so it is not the session's last word",
    },
    Difference {
        file: "000000000051.jsonl.zst",
        column: "first",
        here: "2026-07-24T20:00:02.000Z",
        reason: "the second line has a time",
    },
];

/// A rollout of the scripted program.
struct Scripted {
    /// A part of the file's name.
    name: &'static str,
    /// The outcomes of its calls: ok, failed, unknown or pending.
    outcomes: &'static str,
    status: &'static str,
    /// The beginning of its last words.
    words: &'static str,
}

const fn scripted(
    name: &'static str,
    outcomes: &'static str,
    status: &'static str,
    words: &'static str,
) -> Scripted {
    Scripted { name, outcomes, status, words }
}

const SCRIPTED: [Scripted; 16] = [
    scripted("-3fe6-", "ofooouoofoffoffuofuuuoouuf", "completed", "After the resume: still well."),
    scripted("17-00-51", "f", "completed", "The fork is done."),
    scripted("17-00-52", "fpo", "completed", "Done after the kill."),
    scripted("17-08-12", "fpo", "running", ""),
    scripted("17-00-53", "ffo", "unknown", ""),
    scripted("8a-9451-", "oooooo", "completed", "The helper says all tests pass."),
    scripted("8a-94f2-", "fo", "completed", "All tests pass."),
    scripted("8a-958b-", "f", "completed", "Reviewed."),
    scripted("8d-e991-", "ouo", "completed", ""),
    scripted("8d-ea70-", "f", "completed", "All tests pass."),
    scripted("17-11-34", "ofoofoofuof", "completed", "The scripts are done."),
    scripted("17-15-12", "f", "completed", "SUMMARY: one call failed."),
    scripted("8c-0858-", "", "completed", "fine"),
    scripted("8c-088e-", "f", "completed", ""),
    scripted("17-13-08", "fuf", "completed", ""),
    scripted("17-13-09", "o", "failed", ""),
];

#[test]
fn rollouts_of_the_scripted_program_hold_what_the_script_did() {
    let Some(clients) = std::env::var_os("SWARMLETFS_CLIENTS").map(PathBuf::from) else {
        report_skip("codex: no rollouts of the scripted program; set SWARMLETFS_CLIENTS");
        return;
    };
    let mut seen = 0;
    for home in ["codex/home", "codex/home-zst"] {
        let Ok(store) = Disk::open(&clients.join(home)) else { continue };
        let format = Codex::transcripts();
        for path in format.find_workers(&store).unwrap().folders {
            let name = path.to_text().into_owned();
            let Some(known) = SCRIPTED.iter().find(|known| name.contains(known.name)) else {
                continue;
            };
            let folder = format.enter(&store, &path).unwrap();
            let worker = format.read_worker(&*folder, &path, None);
            let source = RecordSource { folder: &*folder, outputs: None };
            let record = format.read_record(source, &worker, Deadline::never()).unwrap();
            let letter =
                |call: &swarmletfs_base::model::ToolCall| match (call.outcome, &call.output) {
                    (_, Output::Pending) => 'p',
                    (Outcome::Ok, _) => 'o',
                    (Outcome::Failed, _) => 'f',
                    (Outcome::Unknown | Outcome::NotRun, _) => 'u',
                };
            let outcomes: String = record.trace.calls.iter().map(letter).collect();
            let words = record.trace.final_words.clone().unwrap_or_default();
            assert_eq!(
                (outcomes.as_str(), record.worker.status.as_str()),
                (known.outcomes, known.status),
                "{home}/{name}: {:#?}",
                record.trace.calls
            );
            assert!(words.starts_with(known.words), "{home}/{name}: {words}");
            assert!(
                record.trace.unused.kinds.is_empty(),
                "{name}: {:?}",
                record.trace.unused.kinds
            );
            format.read_changes(source, Deadline::never()).unwrap();
            seen += 1;
        }
    }
    assert!(seen >= SCRIPTED.len(), "only {seen} rollouts");
}
