//! `swarmletfs report`: writes a page about workers into one file.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::super::output_file::OutputFile;
use super::super::store_selection::StoreSelection;
use super::format::human_size;
use super::{TimeArgs, TreeReader, ViewArgs};
use crate::cli::plan::read_prices;
use crate::page::{BuiltPage, PageRequest, page};
use crate::text::count;
use crate::tree::Settings;

pub(crate) const HELP: &str = "\
Writes one HTML file that holds all of its data and makes no request: open it from the disk, or put \
it on any web server. It shows who needs you, what went wrong and why, then all workers on a \
timeline and in a table, and beside them one worker with its requests, evidence, calls and changes. \
The filter, the order and the selection are in its address, so a link shows what you see.

PATH is the root, a run (runs/ID) or a folder such as by/outcome/failed. Excerpts are cut so that \
the file stays below 2 MB for 200 workers, and 40 MB for 10,000; the page says what it leaves out, \
and which path or command has it. A new file is readable by you only; one that is replaced keeps its \
mode.

Examples:
  swarmletfs report
  swarmletfs report --run 48 -o run48.html
  swarmletfs report by/attention/high -o - | ssh host 'cat > report.html'

Exit code: 0 if the page was written, also without workers, 1 if not, 2 for a usage error, 3 if \
--max-time ended before everything was read.";

/// Arguments of `report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The workers: a run, or a folder such as by/outcome/failed [default: all]
    #[arg(value_name = "PATH")]
    path: Option<OsString>,

    /// The file to write; - for stdout
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,

    /// Compute costs that records do not state, from the prices in this JSON file; see
    /// `swarmletfs cost --help`
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    time: TimeArgs,
}

/// Writes the page.
///
/// # Errors
///
/// Fails if the prices or a store cannot be read, PATH stands for no workers, or the file cannot be
/// written.
pub(crate) fn run(arguments: &ReportArgs) -> anyhow::Result<ExitCode> {
    let file = OutputFile::find(&arguments.output)?;
    let prices = read_prices(arguments.prices.as_deref())?;
    let selection = StoreSelection::from_args(&arguments.view)?;
    let reader = TreeReader::open_with(selection, &arguments.time, |settings| Settings {
        prices,
        ..settings
    })?;
    let scope = reader.scope(arguments.path.as_deref())?;
    let title = arguments.view.title(arguments.path.as_deref());
    let request = PageRequest { scope: &scope, title: &title, options: &arguments.view.options() };
    let BuiltPage { html, workers, panels_left_out } =
        page(reader.tree.renderer(), &request).context("cannot make the report")?;
    drop(reader.session.borrow_mut().take_progress());
    reader.note_unread();
    let quiet = arguments.view.quiet;
    let written = file.write(&html);
    if written.is_ok() {
        let (workers, size) = (count(workers, "worker"), human_size(html.len() as u64));
        quiet.inform(&format!("{file}: {workers}, {size}"));
    }
    if panels_left_out > 0 {
        let panels = count(panels_left_out, "worker");
        quiet.inform(&format!("only the rows of {panels} fit; try fewer, as by/attention/high"));
    }
    reader.end_output(file, written)
}
