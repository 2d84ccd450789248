//! `swarmletfs gc`: removes old workers of a store.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use anyhow::bail;
use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;

use super::duration;
use super::exit::{self, UsageError};
use super::run::with_drafts;
use super::store_selection::StoreSelection;
use super::terminal::{ProgressLine, QuietArg, escape_controls, print_message};
use super::tree_commands::format::{human_size, utc_seconds};
use super::write_args::{WriteArgs, into_cli_error, parse_size};
use crate::catalog::Freshness;
use crate::model::Status;
use crate::name::Name;
use crate::retention::{AgeLimit, Archive, Candidate, Plan, Remover, Rules, SizeLimit};
use crate::text::{age, count};
use swarmletfs_record::write::{Removed, Store};

pub(super) const HELP: &str = "\
Lists the workers that the rules choose, the oldest first, with sizes and reasons. Only --yes \
removes them. At least one of --older-than, --max-size and --max-workers is needed.

Never removed are workers that run or whose status is unknown (unless --status names it), workers \
that a kept worker names as its parent, and workers whose changes are applied half. Only with \
--unreviewed: workers whose changes nobody applied or discarded. Only with --attention: workers \
that need a person, such as failed ones. With a worker go \
its folder, its draft and its entry in index.json. tombstones/ID.json of the store stays, and the id is \
never given again.

--archive DIR copies each worker into the store DIR, which can be mounted, and compares the copy by content. Only then is the worker removed.

--json prints one object: removes (true with --yes), workers (to remove: id, status, bytes, \
ended_at, rule, and with --yes removed, and reason if it was kept after all), kept (id, reason), \
bytes, left_workers and left_bytes.

Examples:
  swarmletfs gc --older-than 30d
  swarmletfs gc --older-than 30d --keep-failed --yes
  swarmletfs gc --max-size 10G --yes

Exit code: 0 if the workers were listed or removed, 1 if one could not be removed or a failure, 2 \
for a usage error.";

/// Arguments of `gc`.
#[derive(Debug, Args)]
pub(super) struct GcArgs {
    /// Remove workers that ended longer ago: 30d, 2w, 12h, 1h30m, or whole seconds
    #[arg(long, value_name = "TIME", value_parser = parse_age_limit)]
    older_than: Option<AgeLimit>,

    /// Remove the oldest workers until the rest has at most this size: bytes, optionally with k, M
    /// or G
    #[arg(long, value_name = "SIZE", value_parser = parse_size_limit)]
    max_size: Option<SizeLimit>,

    /// Remove the oldest workers until at most N are left
    #[arg(long, value_name = "N")]
    max_workers: Option<u64>,

    /// Remove only workers of this status
    #[arg(long, value_name = "STATUS", value_parser = statuses())]
    status: Option<String>,

    /// Keep workers that failed
    #[arg(long)]
    keep_failed: bool,

    /// Also remove workers whose changes nobody applied or discarded
    #[arg(long)]
    unreviewed: bool,

    /// Also remove workers that need a person: of attention high
    #[arg(long)]
    attention: bool,

    /// Copy each worker into the store DIR first, which is made if it is missing
    #[arg(long, value_name = "DIR")]
    archive: Option<PathBuf>,

    /// Remove the workers; without it they are only listed
    #[arg(long, short)]
    yes: bool,

    /// Print the list as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    write: WriteArgs,
}

/// Returns a parser for the statuses of workers that have ended or whose end is not known.
fn statuses() -> PossibleValuesParser {
    let removable = [Status::Completed, Status::Failed, Status::Abandoned, Status::Unknown];
    PossibleValuesParser::new(removable.map(Status::as_str))
}

fn parse_age_limit(text: &str) -> Result<AgeLimit, String> {
    Ok(AgeLimit { text: text.to_owned(), age: duration::parse_age(text)? })
}

fn parse_size_limit(text: &str) -> Result<SizeLimit, String> {
    Ok(SizeLimit { text: text.to_owned(), bytes: parse_size(text)? })
}

#[derive(Serialize)]
struct GcReport {
    removes: bool,
    workers: Vec<WorkerLine>,
    kept: Vec<KeptLine>,
    bytes: u64,
    left_workers: u64,
    left_bytes: u64,
}

#[derive(Serialize)]
struct WorkerLine {
    id: String,
    status: &'static str,
    bytes: u64,
    ended_at: String,
    rule: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Serialize)]
struct KeptLine {
    id: String,
    reason: String,
}

/// Lists the workers to remove, and removes them with `--yes`.
///
/// # Errors
///
/// No rule is given, or the store cannot be read or written.
pub(super) fn run(arguments: &GcArgs) -> anyhow::Result<ExitCode> {
    let rules = Rules {
        older_than: arguments.older_than.clone(),
        max_size: arguments.max_size.clone(),
        max_workers: arguments.max_workers,
        status: Status::ALL
            .into_iter()
            .find(|status| arguments.status.as_deref() == Some(status.as_str())),
        keep_failed: arguments.keep_failed,
        unreviewed: arguments.unreviewed,
        attention: arguments.attention,
    };
    if rules.older_than.is_none() && rules.max_size.is_none() && rules.max_workers.is_none() {
        let message = "no rule is given; try --older-than 30d, --max-size 10G or --max-workers N";
        return Err(UsageError(message.to_owned()).into());
    }
    if let Some(url) = arguments.write.object_url()? {
        bail!(
            "cannot remove workers of {url}: an object store is never deleted from; try a rule of \
             the provider that removes old objects"
        );
    }
    with_drafts(&arguments.write, |store| collect(store, &rules, arguments))
}

fn collect(store: &Store, rules: &Rules, arguments: &GcArgs) -> anyhow::Result<ExitCode> {
    let lock = if arguments.yes {
        let lock = store.lock_removals().map_err(into_cli_error)?;
        // Before the workers are read: an index of removed workers may be left.
        store.finish_removals(&lock).map_err(into_cli_error)?;
        Some(lock)
    } else {
        None
    };
    let quiet = QuietArg::new(arguments.write.quiet);
    let progress = ProgressLine::without_counts("reading", quiet);
    let selection = StoreSelection::only(store.root().path().to_path_buf());
    let view = selection.open(Freshness::default())?;
    let candidates = Candidate::read_all(store, &view, rules);
    let mut plan = Plan::new(candidates, rules, SystemTime::now());
    drop(progress);
    let mut results: BTreeMap<Name, Removed> = BTreeMap::new();
    let mut failures = 0;
    if let Some(lock) = lock {
        let open = |path: &PathBuf| Archive::open(path, store);
        let archive = arguments.archive.as_ref().map(open).transpose().map_err(into_cli_error)?;
        let mut remover = Remover::new(store, &view, lock, rules, archive);
        let done = Arc::new(AtomicU64::new(0));
        let (counted, total) = (done.clone(), plan.removals.len() as u64);
        let _progress = ProgressLine::start("removing", quiet, move || {
            (counted.load(Ordering::Relaxed), total)
        });
        for (candidate, rule) in &plan.removals {
            done.fetch_add(1, Ordering::Relaxed);
            let removed = remover.remove(candidate, rule);
            let result = removed.unwrap_or_else(|error| {
                failures += 1;
                Removed::No(error.to_string())
            });
            if matches!(result, Removed::No(_)) {
                plan.left += 1;
                plan.left_bytes = plan.left_bytes.saturating_add(candidate.bytes);
            }
            results.insert(candidate.id.clone(), result);
        }
    }
    let printed = if arguments.json {
        print_json(&plan, arguments.yes, &results)
    } else {
        print_text(&plan, arguments, &results)
    };
    let code = exit::from_write(printed);
    Ok(if failures > 0 { ExitCode::FAILURE } else { code })
}

fn print_json(plan: &Plan, removes: bool, results: &BTreeMap<Name, Removed>) -> io::Result<()> {
    let line = |(candidate, rule): &(Candidate, String)| {
        let result = results.get(&candidate.id);
        WorkerLine {
            id: candidate.id.to_text().into_owned(),
            status: candidate.status.as_str(),
            bytes: candidate.bytes,
            ended_at: utc_seconds(candidate.ended),
            rule: rule.clone(),
            removed: result.map(|result| *result == Removed::Yes),
            reason: result.and_then(reason_of).map(str::to_owned),
        }
    };
    let kept = plan.kept.iter();
    let report = GcReport {
        removes,
        workers: plan.removals.iter().map(line).collect(),
        kept: kept
            .map(|kept| KeptLine {
                id: kept.id.to_text().into_owned(),
                reason: kept.reason.clone(),
            })
            .collect(),
        bytes: plan.bytes(),
        left_workers: plan.left,
        left_bytes: plan.left_bytes,
    };
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, &report)?;
    writeln!(out)?;
    out.flush()
}

fn reason_of(result: &Removed) -> Option<&str> {
    match result {
        Removed::Yes => None,
        Removed::No(reason) => Some(reason),
    }
}

fn print_text(
    plan: &Plan,
    arguments: &GcArgs,
    results: &BTreeMap<Name, Removed>,
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let now = SystemTime::now();
    let (mut number, mut bytes) = (0_u64, 0_u64);
    for (candidate, rule) in &plan.removals {
        let result = results.get(&candidate.id);
        let ended = age(candidate.ended, now).unwrap_or_else(|| utc_seconds(candidate.ended));
        let size = human_size(candidate.bytes);
        let (id, status) = (candidate.id.display(), candidate.status);
        let line = match result.and_then(reason_of) {
            Some(reason) => format!("{id}  kept: {reason}"),
            None => format!("{id}  {size}  {status}, ended {ended}  {rule}"),
        };
        if result.and_then(reason_of).is_none() {
            number += 1;
            bytes += candidate.bytes;
        }
        writeln!(out, "{}", escape_controls(&line))?;
    }
    for kept in &plan.kept {
        let line = format!("{}  kept: {}", kept.id.display(), kept.reason);
        writeln!(out, "{}", escape_controls(&line))?;
    }
    out.flush()?;
    if !arguments.write.quiet {
        let (workers, size) = (count(number, "worker"), human_size(bytes));
        let left =
            format!("{} of {} left", count(plan.left, "worker"), human_size(plan.left_bytes));
        let over = if plan.is_over_limit { ", more than the rules allow" } else { "" };
        print_message(&if arguments.yes {
            format!("removed {workers} of {size}; {left}{over}")
        } else if number == 0 {
            format!("nothing to remove; {left}{over}")
        } else {
            format!("would remove {workers} of {size}, with {left}{over}; --yes removes them")
        });
    }
    Ok(())
}
