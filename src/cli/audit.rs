//! `swarmletfs audit`: prints the log of changes to a store, and the log of reads of its mounts.

mod reads;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use jiff::{Timestamp, ToSpan};
use serde_json::json;

use self::reads::{ReadFilter, Summed};
use super::pager::{AnswerKind, PagedStdout, PagerArgs};

use super::terminal::{QuietArg, display_path, escape_controls, print_message};
use super::{duration, exit, store_selection};
use crate::audit::{AuditEntry, AuditFilter, AuditSkips, read};
use crate::deadline::Deadline;
use crate::store::Disk;
use crate::text::count;

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

    /// Only changes since then: a time as 2026-01-20T10:00:00Z, or 30s, 5m, 1h30m ago
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<Timestamp>,

    /// Only changes of this worker
    #[arg(long, value_name = "ID")]
    worker: Option<String>,

    /// Print the log of reads instead of that of changes
    #[arg(long, conflicts_with = "stats")]
    reads: bool,

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
    let mut stores = arguments.stores.clone();
    store_selection::choose(&mut stores, &[], None, arguments.quiet)?;
    let filter = AuditFilter { since: arguments.since, worker: arguments.worker.clone() };
    let mut out = io::BufWriter::new(PagedStdout::new(arguments.pager, AnswerKind::Text));
    let mut printed = Ok(());
    if arguments.stats || arguments.reads {
        for store in &stores {
            let wanted = ReadFilter { since: filter.since, worker: filter.worker.as_deref() };
            let done = if arguments.stats {
                print_stats(&mut out, store, (&filter, &wanted), arguments.json)?
            } else {
                print_reads(&mut out, store, &wanted, arguments.json)?
            };
            if done.is_err() {
                printed = done;
                break;
            }
        }
        return Ok(exit::from_write(close(out, printed)));
    }
    for store in stores {
        let shown = display_path(&store);
        let disk = Disk::open(&store).with_context(|| format!("cannot read {shown}"))?;
        let skipped = read(&disk, &filter, Deadline::never(), |entry| {
            let line = if arguments.json { json_line(&entry) } else { text_line(&entry) };
            printed = writeln!(out, "{line}");
            printed.is_ok()
        })
        .with_context(|| format!("cannot read the log of changes of {shown}"))?;
        note_skips("changes", &store, &skipped);
        if printed.is_err() {
            break;
        }
    }
    Ok(exit::from_write(close(out, printed)))
}

fn print_reads(
    out: &mut impl Write,
    store: &Path,
    filter: &ReadFilter<'_>,
    as_json: bool,
) -> anyhow::Result<io::Result<()>> {
    let mut printed = Ok(());
    let skipped = reads::for_each(store, filter, |entry| {
        let line = if as_json {
            serde_json::to_string(&entry).unwrap_or_default()
        } else {
            reads::text_line(&entry)
        };
        printed = writeln!(out, "{line}");
        printed.is_ok()
    })?;
    note_skips("reads", store, &skipped);
    Ok(printed)
}

fn print_stats(
    out: &mut impl Write,
    store: &Path,
    (changes, filter): (&AuditFilter, &ReadFilter<'_>),
    as_json: bool,
) -> anyhow::Result<io::Result<()>> {
    let shown = display_path(store);
    let disk = Disk::open(store).with_context(|| format!("cannot read {shown}"))?;
    let (mut actions, mut failed) = (BTreeMap::<String, u64>::new(), 0_u64);
    let skipped = read(&disk, changes, Deadline::never(), |entry| {
        failed += u64::from(entry.result != "ok");
        *actions.entry(entry.action).or_default() += 1;
        true
    })
    .with_context(|| format!("cannot read the log of changes of {shown}"))?;
    note_skips("changes", store, &skipped);
    let mut summed = Summed::default();
    let skipped = reads::for_each(store, filter, |entry| {
        summed.add(entry);
        true
    })?;
    note_skips("reads", store, &skipped);
    let stats = summed.stats(store)?;
    if as_json {
        let value = json!({"changes": actions, "failed_changes": failed, "reads": stats});
        return Ok(writeln!(out, "{value}"));
    }
    let total: u64 = actions.values().sum();
    let mut text = format!("changes: {total}, of which {failed} failed\n");
    for (action, number) in &actions {
        text.push_str(&format!("  {}: {number}\n", escape_controls(action)));
    }
    Ok(writeln!(out, "{text}{}", stats.text()))
}

fn note_skips(log: &str, store: &Path, skipped: &AuditSkips) {
    if let Some(skipped) = describe_skips(skipped) {
        print_message(&format!(
            "left out of the log of {log} of {}: {skipped}",
            display_path(store)
        ));
    }
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

fn json_line(entry: &AuditEntry) -> String {
    serde_json::to_string(entry).unwrap_or_default()
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

/// Parses a time, or a duration before now.
fn parse_since(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let ago = duration::parse_duration(text)
        .map_err(|_| "expected a time as 2026-01-20T10:00:00Z, or a duration as 1h30m")?;
    let seconds = i64::try_from(ago.as_secs()).unwrap_or(i64::MAX);
    Timestamp::now().checked_sub(seconds.seconds()).map_err(|error| error.to_string())
}
