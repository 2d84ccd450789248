//! Real files with known results, if they are at hand: in the directory `$SWARMLETFS_FORMATS`, or
//! in the archive `../shared/data/formats.tar.xz` beside the project.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use swarmletfs_base::store::Disk;

use super::*;
use crate::support::skip;

/// Rows with which the reader disagrees, by file and column, with the reason.
const DIFFERENCES: [(&str, &[&str], &str); 2] = [
    (
        "v1-export/letta-tool-calls.json",
        &["failed", "noresult", "out_bytes"],
        "the rejection of a call without a tool_call_id names the call by action_id",
    ),
    (
        "v1-export/letta-cleanup.json",
        &["status", "final80"],
        "the conversation ends with a message of the agent",
    ),
];

/// Returns the directory of the format's files, and the directory that keeps it.
fn formats() -> Option<(PathBuf, Option<tempfile::TempDir>)> {
    if let Some(folder) = std::env::var_os("SWARMLETFS_FORMATS") {
        return Some((PathBuf::from(folder).join("openhands"), None));
    }
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/formats.tar.xz");
    if !archive.exists() {
        skip("the expected results of real files: there is no ../shared/data/formats.tar.xz");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let status = Command::new("tar").arg("-xJf").arg(&archive).arg("-C").arg(dir.path()).status();
    assert!(status.unwrap().success());
    let folder = [dir.path().join("openhands"), dir.path().join("formats/openhands")];
    let folder = folder.into_iter().find(|folder| folder.exists()).unwrap();
    Some((folder, Some(dir)))
}

/// Returns what the reader shows, in the columns of `expected.tsv`.
fn columns(shown: &Shown) -> BTreeMap<&'static str, String> {
    let trace = &shown.record.trace;
    let count = |outcome: Outcome| {
        let calls = trace.calls.iter().filter(|call| has_result(call));
        calls.filter(|call| call.outcome == outcome).count()
    };
    let tokens =
        trace.tokens.map(|all| (all.input + all.cache_read + all.cache_creation, all.output));
    let time = |time: Option<jiff::Timestamp>| {
        time.map(|time| format!("{time:.3}").trim_end_matches('Z').to_owned()).unwrap_or_default()
    };
    let words: String = trace.final_words.as_deref().unwrap_or_default().chars().take(80).collect();
    BTreeMap::from([
        ("parent", shown.worker.parent.as_deref().unwrap_or_default().to_owned()),
        ("status", shown.worker.status.as_str().to_owned()),
        ("calls", trace.calls.len().to_string()),
        ("ok", count(Outcome::Ok).to_string()),
        ("failed", (count(Outcome::Failed) + count(Outcome::NotRun)).to_string()),
        ("unknown", count(Outcome::Unknown).to_string()),
        ("noresult", trace.calls.iter().filter(|call| !has_result(call)).count().to_string()),
        ("out_bytes", trace.calls.iter().map(|call| call.bytes).sum::<u64>().to_string()),
        ("model", shown.worker.model.as_deref().unwrap_or_default().to_owned()),
        ("first", time(shown.record.worker.created_at.timestamp())),
        ("last", time(shown.record.worker.last_message)),
        ("tokens_in", tokens.map(|(input, _)| input.to_string()).unwrap_or_default()),
        ("tokens_out", tokens.map(|(_, output)| output.to_string()).unwrap_or_default()),
        ("final80", json!(words).to_string()),
    ])
}

#[test]
fn real_files_have_the_expected_results() {
    let Some((folder, _dir)) = formats() else { return };
    let all = read(&Disk::open(&folder).unwrap());
    let table = fs::read_to_string(folder.join("expected.tsv")).unwrap();
    let mut rows = table.lines().map(|row| row.split('\t').collect::<Vec<_>>());
    let names = rows.next().unwrap();
    let mut wrong = Vec::new();
    for row in rows {
        let row: BTreeMap<&str, &str> = names.iter().copied().zip(row).collect();
        let (file, worker) = (row["file"], row["worker"]);
        let shown = all.get(file).or_else(|| all.get(&format!("{file}/{worker}")));
        let Some(shown) = shown else {
            wrong.push(format!("{file}: {worker} is not found in {:?}", all.keys()));
            continue;
        };
        let known = DIFFERENCES.iter().find(|(other, ..)| *other == file);
        for (name, got) in columns(shown) {
            // Times are kept in milliseconds.
            let wanted = match name {
                "first" | "last" => format!("{:.23}", format!("{}.000", row[name])),
                _ => row[name].to_owned(),
            };
            let differs = got != wanted;
            let is_known = known.is_some_and(|(_, columns, _)| columns.contains(&name));
            if differs != is_known {
                wrong.push(format!("{file}: {worker}: {name} is {got}, not {wanted}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
