//! Real documents, compared with what others read from them. They are not part of the project.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use swarmletfs_base::model::{Outcome, Output};
use swarmletfs_base::store::Memory;

use super::*;

/// A directory of samples, removed afterwards if it was unpacked.
struct Samples {
    root: PathBuf,
    _unpacked: Option<tempfile::TempDir>,
}

/// Returns the samples in `$SWARMLETFS_FORMATS`, or those of the archive beside the project.
fn samples() -> Option<Samples> {
    if let Some(root) = std::env::var_os("SWARMLETFS_FORMATS") {
        return Some(Samples { root: root.into(), _unpacked: None });
    }
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/formats.tar.xz");
    let dir = tempfile::tempdir().unwrap();
    let unpacked = archive.exists()
        && Command::new("tar")
            .arg("-xJf")
            .arg(&archive)
            .arg("-C")
            .arg(dir.path())
            .status()
            .unwrap()
            .success();
    if !unpacked {
        // The test harness captures `eprintln!` but not this.
        let _ =
            writeln!(std::io::stderr(), "SKIP samples of formats: {} is absent", archive.display());
        return None;
    }
    let root = ["formats", ""]
        .map(|folder| dir.path().join(folder))
        .into_iter()
        .find(|root| root.exists());
    Some(Samples { root: root.unwrap(), _unpacked: Some(dir) })
}

/// Columns that differ on purpose, with the reason.
const DIFFERENCES: [(&str, &str); 2] = [
    // Workers are named by instance; the column holds the name of the environment.
    ("swe-agent", "worker"),
    // A demonstration without steps is no worker, and has no row.
    ("swe-agent/function_calling_simple.traj", "*"),
];

fn compare(program: Program, folder: &str) {
    let Some(samples) = samples() else { return };
    let root = samples.root.join(folder);
    let rows = fs::read_to_string(root.join("expected.tsv")).unwrap();
    let mut lines = rows.lines();
    let columns: Vec<&str> = lines.next().unwrap().split('\t').collect();
    let (mut compared, mut wrong) = (0, Vec::new());
    for line in lines {
        let row: BTreeMap<&str, &str> = columns.iter().copied().zip(line.split('\t')).collect();
        let bytes = fs::read(root.join(row["file"])).unwrap();
        let store = Memory::new();
        store.write(&path(row["file"]), bytes);
        let all = read_all(&program.format(), &store);
        let is_known = |name: &str| {
            DIFFERENCES.iter().any(|(place, column)| {
                format!("{folder}/{}", row["file"]).starts_with(place)
                    && [name, "*"].contains(column)
            })
        };
        let Some(seen) = all.values().next() else {
            assert!(
                is_known("*") && DIFFERENCES.iter().any(|(_, column)| *column == "*"),
                "{line}"
            );
            continue;
        };
        for (column, read) in read_row(seen) {
            let expected = row[column];
            if read != expected && !is_known(column) {
                wrong.push(format!("{}: {column}: {read} instead of {expected}", row["file"]));
            }
        }
        compared += 1;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(compared > 10, "{compared}");
}

/// Returns the columns that are read of a worker.
fn read_row(seen: &Seen) -> Vec<(&'static str, String)> {
    let trace = &seen.record.trace;
    let has_result = |call: &&ToolCall| call.output != Output::Pending;
    let count = |outcome: Outcome| {
        let calls = seen.calls().iter().filter(has_result);
        calls.filter(|call| call.outcome == outcome).count().to_string()
    };
    let time = |at: Option<jiff::Timestamp>| {
        at.map(|at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()).unwrap_or_default()
    };
    let final80: String =
        trace.final_words.iter().flat_map(|words| words.chars()).take(80).collect();
    vec![
        ("worker", seen.worker.id.to_text().into_owned()),
        ("parent", seen.worker.parent.as_deref().unwrap_or_default().to_owned()),
        ("status", seen.worker.status.as_str().to_owned()),
        ("calls", seen.calls().len().to_string()),
        ("ok", count(Outcome::Ok)),
        ("failed", count(Outcome::Failed)),
        ("unknown", count(Outcome::Unknown)),
        (
            "noresult",
            (seen.calls().len() - seen.calls().iter().filter(has_result).count()).to_string(),
        ),
        ("out_bytes", seen.calls().iter().map(|call| call.bytes).sum::<u64>().to_string()),
        ("model", seen.worker.model.as_deref().unwrap_or_default().to_owned()),
        ("first", time(seen.worker.started_at.timestamp())),
        ("last", time(seen.worker.last_message)),
        ("final80", serde_json::to_string(&final80).unwrap()),
    ]
}

#[test]
fn documents_of_mini_swe_agent_are_read_as_expected() {
    compare(Program::Mini, "mini-swe-agent");
}

#[test]
fn documents_of_swe_agent_are_read_as_expected() {
    compare(Program::Swe, "swe-agent");
}

/// Every prefix of a real document is read without an error, and shows a part of its calls.
#[test]
fn real_documents_cut_anywhere_show_a_part() {
    let Some(samples) = samples() else { return };
    for (program, folder) in [(Program::Mini, "mini-swe-agent"), (Program::Swe, "swe-agent")] {
        let rows = fs::read_to_string(samples.root.join(folder).join("expected.tsv")).unwrap();
        for file in rows.lines().skip(1).filter_map(|row| row.split('\t').next()) {
            let bytes = fs::read(samples.root.join(folder).join(file)).unwrap();
            super::growth::cut(program, &bytes, bytes.len() / 20 + 1);
        }
    }
}
