//! Real transcripts of other programs, compared with a table of what they hold.
//!
//! The transcripts are not part of the project: some have no licence. They are read from the
//! directory that `SWARMLETFS_FORMATS` names, or from an archive beside the project. Each format
//! has a directory with `expected.tsv`, one row for each worker.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{Outcome, Output, Record};
use swarmletfs_base::store::{Disk, Store};
use swarmletfs_trace::{Format, RecordSource};

/// A value in which the project deviates from the table, with the reason.
pub struct Difference {
    /// The end of the name of the file.
    pub file: &'static str,
    /// The name of the column.
    pub column: &'static str,
    /// The value here.
    pub here: &'static str,
    /// The reason why that is right.
    pub reason: &'static str,
}

/// The columns that are compared. `hint` depends on how much a format tells.
const COLUMNS: [&str; 14] = [
    "parent",
    "status",
    "calls",
    "ok",
    "failed",
    "unknown",
    "noresult",
    "out_bytes",
    "model",
    "first",
    "last",
    "tokens_in",
    "tokens_out",
    "final80",
];

/// Returns the directory of the real transcripts, or `None` if there is none.
fn data() -> Option<&'static Path> {
    static DATA: OnceLock<Option<(PathBuf, Option<tempfile::TempDir>)>> = OnceLock::new();
    let data = DATA.get_or_init(|| {
        if let Some(named) = std::env::var_os("SWARMLETFS_FORMATS") {
            return Some((PathBuf::from(named), None));
        }
        let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/formats.tar.xz");
        if !archive.exists() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut tar = Command::new("tar");
        tar.arg("-xf").arg(&archive).arg("-C").arg(dir.path());
        assert!(tar.status().unwrap().success(), "cannot unpack {}", archive.display());
        let inner = dir.path().join("formats");
        let root = if inner.is_dir() { inner } else { dir.path().to_owned() };
        Some((root, Some(dir)))
    });
    data.as_ref().map(|(path, _)| path.as_path())
}

/// Reports a skipped test, even if skips are forbidden: the data is no part of the project.
pub fn report_skip(what: &str) {
    // The test harness captures `eprintln!` but not this.
    let _ = writeln!(std::io::stderr(), "SKIP {what}");
}

/// Returns the transcripts' files of a format, or `None` if the real transcripts are absent.
pub fn files(format: &str) -> Option<PathBuf> {
    let folder = data().map(|data| data.join(format)).filter(|folder| folder.is_dir());
    if folder.is_none() {
        report_skip(&format!(
            "{format}: no real transcripts; SWARMLETFS_FORMATS names their directory"
        ));
    }
    folder
}

/// Compares every row of a format's table with what `format` reads.
pub fn compare(name: &str, format: &dyn Format, differences: &[Difference]) {
    let Some(folder) = files(name) else { return };
    let store = Disk::open(&folder).unwrap();
    let records = records(format, &store);
    let table = fs::read_to_string(folder.join("expected.tsv")).unwrap();
    let mut lines = table.lines();
    let header: Vec<&str> = lines.next().unwrap().split('\t').collect();
    let (mut wrong, mut rows, mut used) = (Vec::new(), 0, Vec::new());
    for line in lines {
        let row: BTreeMap<&str, &str> = header.iter().copied().zip(line.split('\t')).collect();
        rows += 1;
        let file = row["file"];
        let of_file: Vec<&Record> = records
            .iter()
            .filter(|(path, _)| path == file || path.starts_with(&format!("{file}/")))
            .map(|(_, record)| record)
            .collect();
        let named = |record: &&Record| record.worker.id.to_text() == row["worker"];
        let found = of_file.iter().copied().find(named);
        let Some(record) =
            found.or_else(|| of_file.first().copied().filter(|_| of_file.len() == 1))
        else {
            wrong.push(format!("{file}: no worker {}", row["worker"]));
            continue;
        };
        if !row["worker"].is_empty() && !named(&record) {
            wrong.push(format!("{file}: worker {} is {:?}", row["worker"], record.worker.id));
        }
        for column in COLUMNS {
            let (here, there) = (value(record, column), expected(column, row[column]));
            if here == there {
                continue;
            }
            let is_known = |known: &&Difference| {
                file.ends_with(known.file) && known.column == column && known.here == here
            };
            match differences.iter().find(is_known) {
                Some(known) => used.push(known.reason),
                None => wrong.push(format!("{file}: {column} is {here:?}, not {there:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{rows} rows, {} wrong:\n{}", wrong.len(), wrong.join("\n"));
    for known in differences {
        assert!(used.contains(&known.reason), "{}: no such difference any more", known.file);
    }
}

/// Returns the records of all workers, with their paths.
fn records(format: &dyn Format, store: &dyn Store) -> Vec<(String, Record)> {
    let found = format.find_workers(store).unwrap();
    let record = |path: &swarmletfs_base::name::RelPath| {
        let folder = format.enter(store, path).unwrap();
        let worker = format.read_worker(&*folder, path, None);
        let source = RecordSource { folder: &*folder, outputs: None };
        let record = format.read_record(source, &worker, Deadline::never());
        let record = record.unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert_eq!(worker.status, record.worker.status, "{path:?}: its listing differs");
        (path.to_text().into_owned(), record)
    };
    found.folders.iter().map(record).collect()
}

/// Returns the value of a column as the table spells it.
fn value(record: &Record, column: &str) -> String {
    let (worker, trace) = (&record.worker, &record.trace);
    let is_pending = |output: &Output| matches!(output, Output::Pending);
    let count = |outcome: Outcome| {
        let calls = trace.calls.iter().filter(|call| !is_pending(&call.output));
        calls.filter(|call| call.outcome == outcome).count().to_string()
    };
    let millis =
        |time: Option<jiff::Timestamp>| time.map(|time| format!("{time:.3}")).unwrap_or_default();
    match column {
        "parent" => match (worker.parent.as_deref(), worker.continues.as_deref()) {
            (Some(parent), _) => parent.to_owned(),
            (None, Some(original)) => format!("fork:{original}"),
            (None, None) => String::new(),
        },
        "status" => worker.status.as_str().into(),
        "calls" => trace.calls.len().to_string(),
        "ok" => count(Outcome::Ok),
        "failed" => count(Outcome::Failed),
        "unknown" => count(Outcome::Unknown),
        "noresult" => {
            trace.calls.iter().filter(|call| is_pending(&call.output)).count().to_string()
        }
        "out_bytes" => trace.calls.iter().map(|call| call.bytes).sum::<u64>().to_string(),
        "model" => worker.model.as_deref().unwrap_or_default().into(),
        "first" => millis(worker.started_at.timestamp()),
        "last" => millis(worker.last_message),
        "tokens_in" => trace.tokens.map_or(String::new(), |tokens| {
            (tokens.input + tokens.cache_read + tokens.cache_creation).to_string()
        }),
        "tokens_out" => trace.tokens.map_or(String::new(), |tokens| tokens.output.to_string()),
        "final80" => {
            let words: String = trace.final_words.iter().flat_map(|w| w.chars()).take(80).collect();
            words.trim_end().to_owned()
        }
        other => panic!("unknown column {other}"),
    }
}

/// Returns a value of the table in the form of [`value`].
fn expected(column: &str, text: &str) -> String {
    match column {
        "final80" => {
            let words: String = serde_json::from_str(text).unwrap_or_else(|_| text.to_owned());
            words.trim().to_owned()
        }
        "first" | "last" => match text.parse::<jiff::Timestamp>() {
            Ok(time) => format!("{time:.3}"),
            Err(_) => text.to_owned(),
        },
        _ => text.to_owned(),
    }
}
