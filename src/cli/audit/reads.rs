//! The log of reads of mounts with `--audit`: its entries, and numbers about them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context;
use jiff::Timestamp;
use serde::Serialize;

use crate::audit::{AuditSkips, read_folder};
use crate::catalog::Freshness;
use crate::cli::plan;
use crate::cli::store_selection::StoreSelection;
use crate::cli::terminal::{display_path, escape_controls};
use crate::cli::tree_commands::format::human_size;
use crate::deadline::Deadline;
use crate::name::RelPath;
use crate::read_log::{ABSENT, LOST, OK, ReadEntry};
use crate::route::ContentKind;
use crate::store::Disk;
use crate::text::count;
use crate::view::View;

const ROWS_MAX: usize = 10;
pub(super) struct ReadFilter<'a> {
    pub(super) since: Option<Timestamp>,
    pub(super) worker: Option<&'a str>,
}

/// Calls `each` with the entries of the log of reads of a store, until it returns false.
///
/// # Errors
///
/// The log cannot be listed.
pub(super) fn for_each(
    store: &Path,
    filter: &ReadFilter<'_>,
    each: impl FnMut(ReadEntry) -> bool,
) -> anyhow::Result<AuditSkips> {
    let folder = plan::reads_folder(&[store.to_path_buf()])?;
    let shown = display_path(&folder);
    if !folder.exists() {
        return Ok(AuditSkips::default());
    }
    let disk = Disk::open(&folder).with_context(|| format!("cannot read {shown}"))?;
    let is_wanted = |entry: &ReadEntry| {
        filter.since.is_none_or(|since| entry.time >= since)
            && filter.worker.is_none_or(|worker| worker_of(&entry.path) == Some(worker))
    };
    let top = RelPath::root();
    read_folder(&disk, &top, filter.since, is_wanted, Deadline::never(), each)
        .with_context(|| format!("cannot read the log of reads in {shown}"))
}

/// Returns the worker in whose directory a path is.
fn worker_of(path: &str) -> Option<&str> {
    path.strip_prefix("workers/")?.split('/').next().filter(|worker| *worker != "index.json")
}

pub(super) fn text_line(entry: &ReadEntry) -> String {
    let program = entry.program.as_deref().unwrap_or("?");
    let mut line = format!(
        "{}  uid {} pid {} {program}  read {}",
        entry.time.strftime("%Y-%m-%d %H:%M:%S"),
        entry.uid,
        entry.pid,
        if entry.path.is_empty() { "." } else { &entry.path }
    );
    if let Some(kind) = entry.kind {
        line.push_str(&format!("  {}", kind.as_str()));
    }
    if let Some(bytes) = entry.bytes {
        line.push_str(&format!(" {bytes} B"));
    }
    if entry.result != OK {
        line.push_str(&format!("  {}", entry.result));
    }
    if entry.lost > 0 {
        line.push_str(&format!("  ({} before it were lost)", count(entry.lost, "entry")));
    }
    if entry.removed > 0 {
        let removed = count(entry.removed, "old entry");
        line.push_str(&format!("  ({removed} were removed: the log is full)"));
    }
    escape_controls(&line).to_string()
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Opens {
    opens: u64,
    bytes: u64,
}

impl Opens {
    fn add(&mut self, bytes: u64) {
        self.opens += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

#[derive(Default)]
pub(super) struct Summed {
    all: Opens,
    readers: BTreeMap<(String, u32), Opens>,
    kinds: BTreeMap<ContentKind, Opens>,
    files: BTreeMap<String, Opens>,
    misses: BTreeMap<String, Opens>,
    refused: BTreeMap<String, Opens>,
    workers: BTreeSet<String>,
    /// Bytes of the opened files in the directories of workers.
    worker_bytes: u64,
    lost: u64,
    removed: u64,
}

#[derive(Serialize)]
pub(super) struct ReadStats {
    #[serde(flatten)]
    all: Opens,
    readers: Vec<ReaderRow>,
    kinds: BTreeMap<&'static str, Opens>,
    files: Vec<PathRow>,
    misses: u64,
    most_missed: Vec<PathRow>,
    refused: u64,
    most_refused: Vec<PathRow>,
    /// Entries that were lost because readers were faster than the log.
    lost: u64,
    /// Entries that were removed because the log was full.
    removed: u64,
    workers_read: u64,
    workers_bytes: u64,
    /// Size of the opened files of these workers.
    opened_bytes: u64,
    /// Share of the bytes of these workers that was not opened; absent if no file was opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    saved: Option<f64>,
}

#[derive(Serialize)]
struct ReaderRow {
    program: String,
    uid: u32,
    #[serde(flatten)]
    opens: Opens,
}

#[derive(Serialize)]
struct PathRow {
    path: String,
    #[serde(flatten)]
    opens: Opens,
}

impl Summed {
    pub(super) fn add(&mut self, entry: ReadEntry) {
        self.lost = self.lost.saturating_add(entry.lost);
        self.removed = self.removed.saturating_add(entry.removed);
        let bytes = entry.bytes.unwrap_or_default();
        match &*entry.result {
            OK => {}
            LOST => return,
            ABSENT => return self.misses.entry(entry.path).or_default().add(0),
            _ => return self.refused.entry(entry.path).or_default().add(0),
        }
        let Some(kind) = entry.kind else { return };
        self.all.add(bytes);
        self.kinds.entry(kind).or_default().add(bytes);
        let program = entry.program.unwrap_or_else(|| "?".to_owned());
        self.readers.entry((program, entry.uid)).or_default().add(bytes);
        if kind == ContentKind::Folder {
            return;
        }
        if let Some(worker) = worker_of(&entry.path) {
            self.workers.insert(worker.to_owned());
            self.worker_bytes = self.worker_bytes.saturating_add(bytes);
        }
        self.files.entry(entry.path).or_default().add(bytes);
    }

    /// Adds up the entries, with the sizes that the workers in `store` have now.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub(super) fn stats(self, store: &Path) -> anyhow::Result<ReadStats> {
        let view = StoreSelection::only(store.to_path_buf()).open(Freshness::default())?;
        let sizes = self.workers.iter().filter_map(|worker| worker_size(&view, worker));
        let workers_bytes = sizes.fold(0, u64::saturating_add);
        let opened = self.worker_bytes;
        let saved = (workers_bytes > 0 && opened > 0)
            .then(|| 1.0 - opened.min(workers_bytes) as f64 / workers_bytes as f64);
        let mut readers: Vec<ReaderRow> = self
            .readers
            .into_iter()
            .map(|((program, uid), opens)| ReaderRow { program, uid, opens })
            .collect();
        readers.sort_by_key(|row| std::cmp::Reverse(row.opens.opens));
        readers.truncate(ROWS_MAX);
        let total = |rows: &BTreeMap<String, Opens>| rows.values().map(|row| row.opens).sum();
        Ok(ReadStats {
            all: self.all,
            readers,
            kinds: self.kinds.into_iter().map(|(kind, opens)| (kind.as_str(), opens)).collect(),
            misses: total(&self.misses),
            refused: total(&self.refused),
            files: most(self.files),
            most_missed: most(self.misses),
            most_refused: most(self.refused),
            lost: self.lost,
            removed: self.removed,
            workers_read: self.workers.len() as u64,
            workers_bytes,
            opened_bytes: opened,
            saved,
        })
    }
}

fn worker_size(view: &View, worker: &str) -> Option<u64> {
    let member = view.visible().get(&crate::name::Name::new(worker).ok()?)?;
    // The files of a transcript have no size until they are made.
    let (_, all) = view.files(&member, 0).ok()?;
    Some(all.bytes)
}

fn most(rows: BTreeMap<String, Opens>) -> Vec<PathRow> {
    let mut rows: Vec<PathRow> =
        rows.into_iter().map(|(path, opens)| PathRow { path, opens }).collect();
    // Stable, so that equal numbers stay in the order of their paths.
    rows.sort_by_key(|row| std::cmp::Reverse(row.opens.opens));
    rows.truncate(ROWS_MAX);
    rows
}

impl ReadStats {
    pub(super) fn text(&self) -> String {
        let opens = |opens: &Opens| {
            format!("{} of {}", count(opens.opens, "open"), human_size(opens.bytes))
        };
        let mut lines = vec![format!("reads: {}", opens(&self.all))];
        for row in &self.readers {
            lines.push(format!("  by {} (uid {}): {}", row.program, row.uid, opens(&row.opens)));
        }
        lines.extend(self.kinds.iter().map(|(kind, row)| format!("  of {kind}: {}", opens(row))));
        let list = |lines: &mut Vec<String>, title: String, rows: &[PathRow]| {
            lines.push(title);
            lines.extend(rows.iter().map(|row| format!("  {}: {}", row.path, row.opens.opens)));
        };
        list(&mut lines, "files with the most opens:".to_owned(), &self.files);
        list(&mut lines, format!("names that are not there: {}", self.misses), &self.most_missed);
        list(&mut lines, format!("refused: {}", self.refused), &self.most_refused);
        if self.lost > 0 {
            lines.push(format!("lost: {}; readers were faster than the log", self.lost));
        }
        if self.removed > 0 {
            lines.push(format!("removed: {}; the log was full", self.removed));
        }
        if let Some(saved) = self.saved {
            lines.push(format!(
                "context saved: {} opened of the {} of {}: {:.1} % less",
                human_size(self.opened_bytes),
                human_size(self.workers_bytes),
                count(self.workers_read, "worker"),
                saved * 100.0
            ));
        }
        let lines: Vec<String> =
            lines.iter().map(|line| escape_controls(line).to_string()).collect();
        lines.join("\n")
    }
}
