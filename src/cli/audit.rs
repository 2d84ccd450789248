//! `swarmletfs audit`: prints the log of changes to a store, and the log of reads of its mounts
//! with `--audit`, its entries or numbers about them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use super::pager::{AnswerKind, PagedStdout, PagerArgs};
use super::terminal::{QuietArg, display_path, escape_controls, print_message};
use super::{duration, exit, store_selection};
use crate::audit::{AuditEntry, AuditFilter, AuditSkips, read, read_folder};
use crate::catalog::Freshness;
use crate::cli::model_args::model_folder;
use crate::cli::plan;
use crate::cli::store_selection::StoreSelection;
use crate::cli::tree_commands::format::human_size;
use crate::deadline::Deadline;
use crate::model::Usd;
use crate::name::RelPath;
use crate::read_log::{ABSENT, LOST, OK, ReadEntry};
use crate::route::ContentKind;
use crate::store::{Disk, is_object_url};
use crate::text::count;
use crate::view::View;
use swarmletfs_prose::{ModelUse, read_uses};

pub(super) const HELP: &str = "\
One line per change, oldest first: the time, the user, the process, the action, the worker, the \
written files with their sizes, and the error of a change that failed. With --json, each line is \
an object, which also has the SHA-256 of the written files.

The log is in audit/ of the store, a file per day. It says what happened; whoever may write to the \
store may also change its log.

--reads prints what was opened in mounts of the store with --audit: one line per open of a file or \
folder, and per name that was looked up and is not there, with its kind (summary, evidence, index, \
changes, query, help, raw, note, folder) and the size of the file. The log is in \
$XDG_STATE_HOME/swarmletfs, or ~/.local/state/swarmletfs, of the user who mounted.

--model prints which workers a language model was asked about, for --model-budget. A use without \
an answer yet is marked asked, with the most that it may take.

--stats sums up both logs: changes by action; reads by program and by kind, the most read files, \
names that are not there, refused opens, and the context saved: how much less was opened of the \
workers that were read than they hold.

Examples:
  swarmletfs audit --since 1h
  swarmletfs audit --worker $id --json
  swarmletfs audit --stats --since 24h

Exit code: 0 if the log was read, 1 if it cannot be read, 2 for a usage error.";

/// Arguments of `audit`.
#[derive(Debug, Args)]
pub(super) struct AuditArgs {
    /// The store; can be given several times [default: found as for `mount`]
    #[arg(long = "store", value_name = "DIR")]
    stores: Vec<PathBuf>,

    /// Only changes since then: a day as 2026-01-20, a time as 2026-01-20T10:00:00Z, or an age
    /// such as 3d or 1h30m
    #[arg(long, value_name = "TIME", value_parser = duration::parse_since)]
    since: Option<Timestamp>,

    /// Only changes of this worker
    #[arg(long, value_name = "ID")]
    worker: Option<String>,

    /// Print the log of reads instead of that of changes
    #[arg(long, conflicts_with = "stats")]
    reads: bool,

    /// Print the uses of language models by this user instead, for all stores: which worker, which
    /// model, the tokens of the prompt and of the answer, the time and the cost
    #[arg(long, conflicts_with_all = ["stats", "reads", "stores"])]
    model: bool,

    /// Print numbers instead of entries
    #[arg(long)]
    stats: bool,

    /// Print each entry, or the numbers, as a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pager: PagerArgs,

    #[command(flatten)]
    quiet: QuietArg,
}

/// Ends the output. Returns `printed`, the result of writing.
fn close(mut out: io::BufWriter<PagedStdout>, printed: io::Result<()>) -> io::Result<()> {
    let printed = printed.and_then(|()| out.flush());
    out.get_mut().close(printed)
}

pub(super) fn run(arguments: &AuditArgs) -> anyhow::Result<ExitCode> {
    let filter = AuditFilter { since: arguments.since, worker: arguments.worker.clone() };
    let mut out = io::BufWriter::new(PagedStdout::new(arguments.pager, AnswerKind::Text));
    if arguments.model {
        let printed = print_model_uses(&mut out, &filter, arguments.json)?;
        return Ok(exit_code(close(out, printed.0), printed.1));
    }
    let mut stores = arguments.stores.clone();
    store_selection::choose(&mut stores, &[], None, arguments.quiet)?;
    if let Some(url) = stores.iter().find(|store| is_object_url(store) && !arguments.reads) {
        bail!(
            "cannot read the log of changes in {}: object stores have none; try --reads, or the \
             folder that was copied there",
            display_path(url)
        );
    }
    let (mut printed, mut is_whole) = (Ok(()), true);
    if arguments.stats || arguments.reads {
        for store in &stores {
            let (done, is_read) = if arguments.stats {
                print_stats(&mut out, store, &filter, arguments.json)?
            } else {
                print_reads(&mut out, store, &filter, arguments.json)?
            };
            is_whole &= is_read;
            if done.is_err() {
                printed = done;
                break;
            }
        }
        return Ok(exit_code(close(out, printed), is_whole));
    }
    for store in stores {
        let shown = display_path(&store);
        let disk = Disk::open(&store).with_context(|| format!("cannot read {shown}"))?;
        let skipped = read(&disk, &filter, Deadline::never(), |entry| {
            let line = match arguments.json {
                true => serde_json::to_string(&entry).unwrap_or_default(),
                false => text_line(&entry),
            };
            printed = writeln!(out, "{line}");
            printed.is_ok()
        })
        .with_context(|| format!("cannot read the log of changes of {shown}"))?;
        is_whole &= note_skips("changes", &store, &skipped);
        if printed.is_err() {
            break;
        }
    }
    Ok(exit_code(close(out, printed), is_whole))
}

/// Returns success if everything was read and printed.
fn exit_code(printed: io::Result<()>, is_whole: bool) -> ExitCode {
    match exit::from_write(printed) {
        ExitCode::SUCCESS if !is_whole => ExitCode::FAILURE,
        code => code,
    }
}

fn print_model_uses(
    out: &mut impl Write,
    filter: &AuditFilter,
    as_json: bool,
) -> anyhow::Result<(io::Result<()>, bool)> {
    let folder = model_folder()?;
    let mut printed = Ok(());
    let skipped = read_uses(&folder, filter.since, |used| {
        let is_wanted = filter.worker.as_ref().is_none_or(|worker| used.workers.contains(worker));
        if is_wanted && printed.is_ok() {
            let line = match as_json {
                true => serde_json::to_string(&used).unwrap_or_default(),
                false => use_text_line(&used),
            };
            printed = writeln!(out, "{line}");
        }
    })
    .with_context(|| format!("cannot read the log in {}", display_path(&folder)))?;
    Ok((printed, note_skips("uses of models", &folder, &skipped)))
}

fn use_text_line(used: &ModelUse) -> String {
    let mut line = format!(
        "{}  uid {} pid {}  {} {}  {}  {} + {} tokens, {} ms",
        used.time.strftime("%Y-%m-%d %H:%M:%S"),
        used.uid,
        used.pid,
        used.purpose,
        used.workers.join(" "),
        used.model,
        used.tokens_in,
        used.tokens_out,
        used.ms
    );
    if let Some(cost) = used.usd.and_then(Usd::from_dollars) {
        line.push_str(&format!(", {cost}"));
    }
    if used.result != OK {
        line.push_str(&format!("  {}", used.result));
    }
    escape_controls(&line).to_string()
}

fn print_reads(
    out: &mut impl Write,
    store: &Path,
    filter: &AuditFilter,
    as_json: bool,
) -> anyhow::Result<(io::Result<()>, bool)> {
    let mut printed = Ok(());
    let skipped = for_each_read(store, filter, |entry| {
        let line = if as_json {
            serde_json::to_string(&entry).unwrap_or_default()
        } else {
            read_text_line(&entry)
        };
        printed = writeln!(out, "{line}");
        printed.is_ok()
    })?;
    Ok((printed, note_skips("reads", store, &skipped)))
}

fn print_stats(
    out: &mut impl Write,
    store: &Path,
    filter: &AuditFilter,
    as_json: bool,
) -> anyhow::Result<(io::Result<()>, bool)> {
    let shown = display_path(store);
    let disk = Disk::open(store).with_context(|| format!("cannot read {shown}"))?;
    let (mut actions, mut failed) = (BTreeMap::<String, u64>::new(), 0_u64);
    let skipped = read(&disk, filter, Deadline::never(), |entry| {
        failed += u64::from(entry.result != "ok");
        *actions.entry(entry.action).or_default() += 1;
        true
    })
    .with_context(|| format!("cannot read the log of changes of {shown}"))?;
    let mut is_whole = note_skips("changes", store, &skipped);
    let mut summed = Summed::default();
    let skipped = for_each_read(store, filter, |entry| {
        summed.add(entry);
        true
    })?;
    is_whole &= note_skips("reads", store, &skipped);
    let stats = summed.stats(store)?;
    if as_json {
        let value = json!({"changes": actions, "failed_changes": failed, "reads": stats});
        return Ok((writeln!(out, "{value}"), is_whole));
    }
    let total: u64 = actions.values().sum();
    let mut text = format!("changes: {total}, of which {failed} failed\n");
    for (action, number) in &actions {
        text.push_str(&format!("  {}: {number}\n", escape_controls(action)));
    }
    Ok((writeln!(out, "{text}{}", stats.text()), is_whole))
}

/// Prints the numbers of entries left out of a log. Returns false if a part was not read.
fn note_skips(log: &str, store: &Path, skipped: &AuditSkips) -> bool {
    if let Some(skipped) = describe_skips(skipped) {
        print_message(&format!(
            "left out of the log of {log} of {}: {skipped}",
            display_path(store)
        ));
    }
    skipped.files == 0 && skipped.partial == 0
}

/// Returns the text about the skipped entries; `None` if there are none.
fn describe_skips(skipped: &AuditSkips) -> Option<String> {
    let no_entry = if skipped.lines == 1 { "is not an entry" } else { "are not entries" };
    let parts: Vec<String> = [
        (skipped.lines, count(skipped.lines, "line"), no_entry),
        (skipped.files, count(skipped.files, "file"), "cannot be read"),
        (skipped.partial, count(skipped.partial, "file"), "may have more entries than were read"),
    ]
    .into_iter()
    .filter(|(n, ..)| *n > 0)
    .map(|(_, what, why)| format!("{what} that {why}"))
    .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn text_line(entry: &AuditEntry) -> String {
    let role = entry.role.as_deref().map_or(String::new(), |role| format!(" ({role})"));
    let mut line = format!(
        "{}  uid {} pid {} {}{role}  {}",
        entry.time.strftime("%Y-%m-%d %H:%M:%S"),
        entry.uid,
        entry.pid,
        entry.program,
        entry.action
    );
    line.extend(entry.worker.iter().map(|worker| format!(" {worker}")));
    let files: Vec<String> =
        entry.paths.iter().map(|file| format!("{} {} B", file.path, file.bytes)).collect();
    if !files.is_empty() {
        line.push_str(&format!("  {}", files.join(", ")));
    }
    if entry.result != "ok" {
        line.push_str(&format!("  FAILED: {}", entry.result));
    }
    escape_controls(&line)
}

const ROWS_MAX: usize = 10;

/// Calls `each` with the entries of the log of reads of a store, until it returns false.
///
/// # Errors
///
/// The log cannot be listed.
fn for_each_read(
    store: &Path,
    filter: &AuditFilter,
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
            && filter.worker.as_deref().is_none_or(|worker| worker_of(&entry.path) == Some(worker))
    };
    let top = RelPath::root();
    read_folder(&disk, &top, filter.since, is_wanted, Deadline::never(), each)
        .with_context(|| format!("cannot read the log of reads in {shown}"))
}

/// Returns the worker in whose directory a path is.
fn worker_of(path: &str) -> Option<&str> {
    path.strip_prefix("workers/")?.split('/').next().filter(|worker| *worker != "index.json")
}

fn read_text_line(entry: &ReadEntry) -> String {
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
struct Summed {
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
struct ReadStats {
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
    fn add(&mut self, entry: ReadEntry) {
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
    fn stats(self, store: &Path) -> anyhow::Result<ReadStats> {
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
    fn text(&self) -> String {
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
