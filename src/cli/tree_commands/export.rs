//! `swarmletfs export`: writes workers and their calls in a format of other programs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};

use super::super::output_file::OutputFile;
use super::super::store_selection::StoreSelection;
use super::super::terminal::print_message;
use super::{TimeArgs, TreeReader, ViewArgs};
use crate::analysis::spending::Spending;
use crate::model::Outcome;
use crate::output::chrome_trace::TracePlace;
use crate::output::overview::OverviewRow;
use crate::render::overview::Overview;
use crate::text::json::printable;
use crate::text::{count, parse_time};

pub(crate) const HELP: &str = "\
chrome-trace is JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open: a process for each \
worker with those that it started, a thread for each of them, and an event for each call, with \
outcome, exit code, size and the beginning of its input. Nothing is sent anywhere. Calls at one \
time are in threads of their own; a call without a time has no event, and is counted on stderr.

Examples:
  swarmletfs export --format chrome-trace -o swarm.json
  swarmletfs export --format chrome-trace runs/latest | gzip > run.json.gz

Exit code: 0 if everything was written, 1 if not, 2 for a usage error, 3 if --max-time ended before \
everything was read.";

/// Arguments of `export`.
#[derive(Debug, Args)]
#[command(mut_arg("store_format", |arg| arg.long("store-format")))]
pub(crate) struct ExportArgs {
    /// The workers: a run, or a folder such as by/outcome/failed [default: all]
    #[arg(value_name = "PATH")]
    path: Option<OsString>,

    /// The format to write
    #[arg(long, value_name = "FORMAT")]
    format: ExportFormat,

    /// The file to write; - for stdout
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    time: TimeArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    ChromeTrace,
}

/// Writes the file.
///
/// # Errors
///
/// Fails if a store cannot be read, PATH stands for no workers, or the file cannot be written.
pub(crate) fn run(arguments: &ExportArgs) -> anyhow::Result<ExitCode> {
    let file = OutputFile::find(&arguments.output)?;
    let selection = StoreSelection::from_args(&arguments.view)?;
    let reader = TreeReader::open_with(selection, &arguments.time, |settings| settings)?;
    let scope = reader.scope(arguments.path.as_deref())?;
    let text = match arguments.format {
        ExportFormat::ChromeTrace => {
            chrome_trace(&reader, &reader.tree.renderer().overview(&scope)?)?
        }
    };
    drop(reader.session.borrow_mut().take_progress());
    reader.note_unread();
    reader.end(file.write(text.as_bytes()))
}

fn chrome_trace(reader: &TreeReader, overview: &Overview) -> anyhow::Result<String> {
    let workers = &overview.json.workers;
    let families = Spending::new(&overview.rows, None);
    let (mut lines, mut untimed) = (Vec::new(), 0);
    for (at, (worker, row)) in workers.iter().zip(&overview.rows).enumerate() {
        // Perfetto takes 0 for a process or thread that has no name.
        let place = TracePlace {
            family: families.above(at).last().unwrap_or(at) + 1,
            worker: at + 1,
            name: worker.row.short_id.as_deref().unwrap_or(&worker.row.id),
            outcome: row.outcome().unwrap_or(Outcome::Unknown),
            span: span(worker),
        };
        match reader.tree.renderer().chrome_trace(row, &place) {
            Ok((events, without)) => {
                untimed += without;
                for event in events {
                    let line = serde_json::to_string(&event).context("cannot write JSON")?;
                    lines.push(printable(&line));
                }
            }
            Err(error) => {
                print_message(&format!("cannot read worker {}: {error}", worker.row.id));
                reader.note_failure();
            }
        }
    }
    if untimed > 0 {
        print_message(&format!("{} without a time left out", count(untimed, "call")));
    }
    Ok(format!("{{\"traceEvents\":[\n{}\n]}}\n", lines.join(",\n")))
}

/// Returns the start and the end of a worker, or its last sign of life, in milliseconds since 1970.
fn span(worker: &OverviewRow) -> Option<(i64, i64)> {
    let row = &worker.row;
    let times = [&row.finished_at, &row.last_message, &row.last_write];
    let end = times.into_iter().flatten().find_map(|time| parse_time(time));
    let begun = worker.begun?;
    Some((begun, end.map_or(begun, |end| end.as_millisecond())))
}
