//! `swarmletfs flush`: uploads the files that wait in the spools of object stores.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::object_facts::FlushedSpool;
use super::spool;
use super::terminal::print_message;
use super::tree_commands::format::human_size;
use super::write_args;
use crate::text::count;

pub(super) const HELP: &str = "\
Commands that record into an object store write to a spool on this machine, and upload it while they \
run and at their end. What they could not upload, because there was no connection or they were \
killed, waits there; this command uploads it. A worker that has ended and was uploaded as a whole is \
removed from the spool.

Examples:
  swarmletfs flush
  swarmletfs flush --store s3://traces/run-48 --json

Exit code: 0 if nothing of a worker that has ended waits, 1 if something does, 2 for a usage error.";

/// Arguments of `flush`.
#[derive(Debug, Args)]
pub(super) struct FlushArgs {
    /// The object store whose spool is uploaded [default: all of this user]
    #[arg(long, value_name = "URL")]
    store: Option<PathBuf>,

    /// Print the numbers as JSON
    #[arg(long)]
    json: bool,

    /// Print nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

/// Uploads the files that wait.
///
/// # Errors
///
/// A spool cannot be read, or its URL is wrong.
pub(super) fn run(arguments: &FlushArgs) -> anyhow::Result<ExitCode> {
    let flushed = spool::flush(arguments.store.as_deref())?;
    for spool in &flushed {
        if let Some(failure) = &spool.failure {
            print_message(&format!("cannot upload to {}: {failure}", spool.url));
        }
    }
    let text = flushed.iter().map(describe).collect::<Vec<_>>().join("\n");
    let text = if text.is_empty() { "nothing waits".to_owned() } else { text };
    let rows: Vec<_> = flushed.iter().map(to_json).collect();
    let code = match arguments.quiet && !arguments.json {
        true => ExitCode::SUCCESS,
        false => write_args::print(arguments.json, &text, &rows),
    };
    let mut waiting = flushed.iter().map(|spool| &spool.waiting);
    let all_ended_are_there = waiting.all(|it| it.ended == 0 && it.uncounted == 0);
    Ok(if all_ended_are_there { code } else { ExitCode::FAILURE })
}

fn describe(spool: &FlushedSpool) -> String {
    let mut text = format!(
        "{}: uploaded {} ({}); {} new, {} complete ({})",
        spool.url,
        count(spool.files, "file"),
        human_size(spool.bytes),
        count(spool.opened, "worker"),
        count(spool.closed, "worker"),
        human_size(spool.closed_bytes)
    );
    let waiting = &spool.waiting;
    match waiting.is_none() {
        true => text.push_str("; nothing waits"),
        false => text.push_str(&format!(
            "; {} ({}) of {} wait, {} of them ended",
            count(waiting.files, "file"),
            human_size(waiting.bytes),
            count(waiting.workers, "worker"),
            waiting.ended
        )),
    }
    if waiting.uncounted > 0 {
        text.push_str(&format!("; {} could not be counted", count(waiting.uncounted, "worker")));
    }
    text
}

fn to_json(spool: &FlushedSpool) -> serde_json::Value {
    let waiting = &spool.waiting;
    json!({
        "store": spool.url,
        "files": spool.files,
        "bytes": spool.bytes,
        "opened": spool.opened,
        "closed": spool.closed,
        "closed_bytes": spool.closed_bytes,
        "waiting": {
            "files": waiting.files,
            "bytes": waiting.bytes,
            "workers": waiting.workers,
            "ended": waiting.ended,
            "uncounted": waiting.uncounted,
        },
        "failure": spool.failure,
    })
}
