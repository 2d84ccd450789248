//! Tests with the sessions of a data set that is not part of this repository: what is known about
//! each worker must be what its record shows.
//!
//! The data is the directory that `SWARMLETFS_FORMATS` names, or an archive beside the project.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::Timestamp;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{Outcome, Record, ToolCall};
use swarmletfs_trace::{Format, RecordSource};

use super::*;
use crate::support::skip;

/// The archive of the data set, from the directory of the project.
const ARCHIVE: &str = "../shared/data/formats.tar.xz";

/// The directory of the data set, which is removed at the end if it was unpacked.
struct Data(PathBuf, Option<tempfile::TempDir>);

/// Returns the data of all formats, if it is here.
fn data() -> Option<Data> {
    if let Some(folder) = std::env::var_os("SWARMLETFS_FORMATS") {
        return Some(Data(folder.into(), None));
    }
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join(ARCHIVE);
    if !archive.exists() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let status = Command::new("tar").arg("-xJf").arg(archive).arg("-C").arg(dir.path()).status();
    assert!(status.unwrap().success(), "cannot unpack {ARCHIVE}");
    let folder = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let folder = folder.into_iter().find(|path| path.join("gemini-cli").is_dir());
    Some(Data(folder.unwrap_or_else(|| dir.path().to_path_buf()), Some(dir)))
}

/// Reads the workers of a store.
fn records(store: &dyn Store) -> Vec<Record> {
    let format = GeminiCli::transcripts();
    let paths = format.find_workers(store).unwrap().folders;
    let record = |path: &RelPath| {
        let folder = format.enter(store, path).unwrap();
        let worker = format.read_worker(&*folder, path, None);
        let source = RecordSource { folder: &*folder, outputs: None };
        let record = format.read_record(source, &worker, Deadline::never()).unwrap();
        assert_eq!(record.worker.id, worker.id, "{path:?}");
        record
    };
    paths.iter().map(record).collect()
}

fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// Every worker of the data set shows what is known about it.
#[test]
fn known_sessions_show_what_is_known_about_them() {
    let Some(Data(folder, _dir)) = data() else { return skip("no data of other formats") };
    let folder = folder.join("gemini-cli");
    let table = fs::read_to_string(folder.join("expected.tsv")).unwrap();
    let mut lines = table.lines();
    let names: Vec<&str> = lines.next().unwrap().split('\t').collect();
    let mut differences = Vec::new();
    for line in lines {
        let row: HashMap<&str, &str> = names.iter().copied().zip(line.split('\t')).collect();
        let store = store();
        store.write(&path(row["file"]), fs::read(folder.join(row["file"])).unwrap());
        let records = records(&*store);
        let [Record { worker, trace, .. }] = records.as_slice() else {
            panic!("{}: {} workers", row["file"], records.len());
        };
        let count = |outcomes: &[Outcome]| {
            let calls = trace.calls.iter().filter(|call| outcomes.contains(&call.outcome));
            calls.count()
        };
        let is_pending =
            |call: &&ToolCall| matches!(call.output, swarmletfs_base::model::Output::Pending);
        let pending = trace.calls.iter().filter(is_pending).count();
        let bytes: u64 = trace.calls.iter().map(|call| call.bytes).sum();
        let tokens = trace.tokens.unwrap_or_default();
        // A worker that runs has no final words yet.
        let is_running = row["status"] == "running" && trace.final_words.is_none();
        let words = trace.final_words.clone().unwrap_or_default();
        let words: String = words.chars().take(80).collect();
        let shown = [
            ("worker", worker.id.to_text().into_owned()),
            ("parent", worker.parent.as_deref().unwrap_or_default().to_owned()),
            ("status", worker.status.as_str().to_owned()),
            ("calls", trace.calls.len().to_string()),
            ("ok", count(&[Outcome::Ok]).to_string()),
            ("failed", count(&[Outcome::Failed, Outcome::NotRun]).to_string()),
            ("unknown", (count(&[Outcome::Unknown]) - pending).to_string()),
            ("noresult", pending.to_string()),
            ("hint", trace.calls.iter().filter(|call| call.suspect.is_some()).count().to_string()),
            ("out_bytes", bytes.to_string()),
            ("model", worker.model.as_deref().unwrap_or_default().to_owned()),
            ("tokens_in", (tokens.input + tokens.cache_read + tokens.cache_creation).to_string()),
            ("tokens_out", tokens.output.to_string()),
            ("final80", serde_json::to_string(&words).unwrap()),
        ];
        for (column, shown) in shown {
            if row[column] != shown && !(column == "final80" && is_running) {
                differences.push(format!("{}: {column}: {} != {shown}", row["file"], row[column]));
            }
        }
        for (column, time) in
            [("first", worker.created_at.timestamp()), ("last", worker.last_message)]
        {
            if parse_time(row[column]) != time {
                differences.push(format!("{}: {column}: {} != {time:?}", row["file"], row[column]));
            }
        }
    }
    assert!(differences.is_empty(), "{differences:#?}");
}
