//! `swarmletfs export`: writes workers and their calls in a format of other programs.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::Value;

use super::super::duration;
use super::super::output_file::{OutputFile, OutputFolder};
use super::super::store_selection::StoreSelection;
use super::super::terminal::print_message;
use super::{TimeArgs, TreeReader, ViewArgs};
use crate::analysis::spending::Spending;
use crate::model::Outcome;
use crate::name::to_file_name;
use crate::output::chrome_trace::TracePlace;
use crate::output::export::{self, ExportedWorker, Redaction, StoreFile};
use crate::output::overview::OverviewRow;
use crate::render::overview::Overview;
use crate::text::json::printable;
use crate::text::{count, parse_time};

pub(crate) const HELP: &str = "\
Formats:
  atif          a trajectory per worker, in the Agent Trajectory Interchange Format (v1.7)
  otlp          a line per worker with its spans: OTLP/JSON with attributes of GenAI
  jsonl         a line per worker, message and call
  swarmlet      a worker artifact store
  parquet       tables for DuckDB, pandas and others: workers.parquet, messages.parquet, calls.parquet
  chrome-trace  JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open: a process for each
                worker with those that it started, and an event for each call with a time

What a format cannot hold is in its fields or attributes under the name swarmletfs: a store of \
exported trajectories shows the same calls, outcomes and texts. Outputs are cut after 16 MiB, which \
is marked. Nothing is sent anywhere.

--redact replaces home folders, names of users, addresses and what looks like a key, each text by \
the same word everywhere, and counts them on stderr. It knows names from home folders only.

Examples:
  swarmletfs export --format atif runs/latest -o trajectories
  swarmletfs export --format otlp --since 1d --redact -o traces.jsonl
  swarmletfs export --format chrome-trace runs/latest | gzip > run.json.gz

Exit code: 0 if everything was written, 1 if not, 2 for a usage error, 3 if --max-time ended before \
everything was read.";

/// Arguments of `export`.
#[derive(Debug, Args)]
#[command(mut_arg("store_format", |arg| arg.long("store-format")))]
pub(crate) struct ExportArgs {
    /// The workers: a worker's id, a run, or a folder such as by/outcome/failed [default: all]
    #[arg(value_name = "PATH")]
    path: Option<OsString>,

    /// The format to write
    #[arg(long, value_name = "FORMAT")]
    format: ExportFormat,

    /// The file to write, - for stdout; for atif, swarmlet and parquet a new folder
    #[arg(long, short, value_name = "OUT", default_value = "-")]
    output: PathBuf,

    /// Only workers that began since then, as in `list`
    #[arg(long, value_name = "TIME", value_parser = duration::parse_since)]
    since: Option<Timestamp>,

    /// Replace home folders, names of users, addresses and keys
    #[arg(long)]
    redact: bool,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    time: TimeArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    Atif,
    Otlp,
    Jsonl,
    Swarmlet,
    Parquet,
    ChromeTrace,
}

/// Writes the file or the folder.
///
/// # Errors
///
/// Fails if a store cannot be read, PATH stands for no workers, or something cannot be written.
pub(crate) fn run(arguments: &ExportArgs) -> anyhow::Result<ExitCode> {
    let is_stdout = arguments.output == Path::new("-");
    let target = match arguments.format {
        ExportFormat::Parquet if cfg!(not(feature = "parquet")) => bail!(
            "cannot write parquet: this program is built without it; \
             try cargo install --features parquet, or --format jsonl"
        ),
        ExportFormat::Swarmlet if is_stdout => {
            bail!("cannot write a store to stdout; try -o FOLDER")
        }
        ExportFormat::Parquet if is_stdout => {
            bail!("cannot write tables to stdout; try -o FOLDER")
        }
        ExportFormat::ChromeTrace if arguments.redact => {
            bail!("cannot redact chrome-trace; try --format otlp")
        }
        ExportFormat::Swarmlet | ExportFormat::Parquet | ExportFormat::Atif if !is_stdout => {
            ExportTarget::Folder(OutputFolder::find(&arguments.output)?)
        }
        _ => ExportTarget::File(OutputFile::find(&arguments.output)?),
    };
    let selection = StoreSelection::from_args(&arguments.view)?;
    let reader = TreeReader::open_with(selection, &arguments.time, |settings| settings)?;
    let scope = match arguments.path.as_deref() {
        Some(path) => reader.scope(Some(path)).or_else(|error| {
            let id = Path::new("workers").join(path);
            reader.scope(Some(id.as_os_str())).map_err(|_| error)
        })?,
        None => reader.scope(None)?,
    };
    let mut overview = reader.tree.renderer().overview(&scope)?;
    if let Some(since) = arguments.since {
        keep_since(&mut overview, since);
    }
    let mut workers = ExportedWorkers::new(&reader, &overview, arguments.redact);
    let end = |output: &dyn fmt::Display, written| {
        drop(reader.session.borrow_mut().take_progress());
        reader.note_unread();
        reader.end_output(output, written)
    };
    match &target {
        ExportTarget::Folder(folder) => {
            let written = match arguments.format {
                ExportFormat::Parquet => write_tables(folder, &mut workers),
                format => workers.for_each(&mut |worker| write_files(folder, format, &worker)),
            };
            end(folder, written)
        }
        ExportTarget::File(file) if arguments.format == ExportFormat::ChromeTrace => {
            let text = chrome_trace(&reader, &overview)?;
            end(file, file.write(text.as_bytes()))
        }
        ExportTarget::File(file) => {
            let written = file.write_by(&mut |file| {
                workers.for_each(&mut |worker| {
                    file.write_all(lines(arguments.format, &worker).as_bytes())
                })
            });
            end(file, written)
        }
    }
}

enum ExportTarget {
    File(OutputFile),
    Folder(OutputFolder),
}

fn keep_since(overview: &mut Overview, since: Timestamp) {
    let since = since.as_millisecond();
    let mut kept = overview
        .json
        .workers
        .iter()
        .map(|worker| worker.begun.is_some_and(|begun| begun >= since))
        .collect::<Vec<bool>>()
        .into_iter();
    overview.rows.retain(|_| kept.next().unwrap_or(true));
    overview.json.workers.retain(|worker| worker.begun.is_some_and(|begun| begun >= since));
}

/// The workers of an export, read one after the other.
struct ExportedWorkers<'a> {
    reader: &'a TreeReader,
    overview: &'a Overview,
    redaction: Option<Redaction>,
    /// The IDs that were given out. Two workers can have the same one, as after a redaction.
    known: HashSet<String>,
}

impl<'a> ExportedWorkers<'a> {
    fn new(
        reader: &'a TreeReader,
        overview: &'a Overview,
        is_redacted: bool,
    ) -> ExportedWorkers<'a> {
        let redaction = is_redacted.then(Redaction::default);
        ExportedWorkers { reader, overview, redaction, known: HashSet::new() }
    }

    /// Calls `use_worker` with each worker. A worker that cannot be read is named on stderr.
    fn for_each(
        &mut self,
        use_worker: &mut dyn FnMut(ExportedWorker) -> io::Result<()>,
    ) -> io::Result<()> {
        let workers = &self.overview.json.workers;
        let families = Spending::new(&self.overview.rows, None);
        if let Some(redaction) = &mut self.redaction {
            // All names must be known before one is replaced.
            for (worker, row) in workers.iter().zip(&self.overview.rows) {
                let exported = self.reader.tree.renderer().exported(row, &worker.row);
                exported.into_iter().for_each(|(mut worker, _)| redaction.learn(&mut worker));
            }
        }
        for (at, (worker, row)) in workers.iter().zip(&self.overview.rows).enumerate() {
            let mut exported = match self.reader.tree.renderer().exported(row, &worker.row) {
                Ok((exported, None)) => exported,
                Ok((exported, Some(error))) => {
                    let id = &worker.row.id;
                    print_message(&format!("cannot read all of worker {id}: {error}"));
                    self.reader.note_failure();
                    exported
                }
                Err(error) => {
                    print_message(&format!("cannot read worker {}: {error}", worker.row.id));
                    self.reader.note_failure();
                    continue;
                }
            };
            // A worker above that is not exported is named by its child.
            let top = families.above(at).last().unwrap_or(at);
            if let Some(OverviewRow { row, .. }) = workers.get(top) {
                let parent = row.parent_id.as_ref().filter(|parent| ***parent != row.id);
                exported.root = parent.map_or_else(|| row.id.clone(), ToString::to_string);
            }
            if let Some(redaction) = &mut self.redaction {
                redaction.redact(&mut exported);
            }
            let id = exported.id.clone();
            let mut number = 1;
            while !self.known.insert(exported.id.clone()) {
                number += 1;
                exported.id = format!("{id}-{number}");
            }
            use_worker(exported)?;
        }
        if let Some(redaction) = &self.redaction {
            let counts = redaction.counts().iter();
            let counts: Vec<String> = counts.map(|(kind, number)| count(*number, kind)).collect();
            let all = if counts.is_empty() { "nothing".to_owned() } else { counts.join(", ") };
            print_message(&format!("replaced {all}"));
        }
        Ok(())
    }
}

fn line(value: &Value) -> String {
    printable(&value.to_string()) + "\n"
}

fn write_files(
    folder: &OutputFolder,
    format: ExportFormat,
    worker: &ExportedWorker,
) -> io::Result<()> {
    let files = match format {
        ExportFormat::Atif => vec![StoreFile {
            path: vec![to_file_name(&format!("{}.json", worker.id), &[])],
            content: line(&export::atif::atif(worker)),
        }],
        _ => export::store(worker),
    };
    for StoreFile { path, content } in files {
        let path: Vec<&OsStr> = path.iter().map(|name| name.as_os_str()).collect();
        folder.write(&path, content.as_bytes())?;
    }
    Ok(())
}

#[cfg(feature = "parquet")]
fn write_tables(folder: &OutputFolder, workers: &mut ExportedWorkers<'_>) -> io::Result<()> {
    let mut tables = export::ParquetTables::new(|name| folder.create(&[OsStr::new(name)]))?;
    workers.for_each(&mut |worker| tables.add(&worker))?;
    tables.finish()
}

/// Returns an error: the format is refused before.
#[cfg(not(feature = "parquet"))]
fn write_tables(_: &OutputFolder, _: &mut ExportedWorkers<'_>) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns a worker as lines of JSON.
fn lines(format: ExportFormat, worker: &ExportedWorker) -> String {
    match format {
        ExportFormat::Atif => line(&export::atif::atif(worker)),
        ExportFormat::Otlp => line(&export::otlp(worker)),
        _ => worker.lines().iter().map(line).collect(),
    }
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
