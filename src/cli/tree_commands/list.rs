//! `swarmletfs list`: prints a table of workers, newest first.

use std::process::ExitCode;

use clap::Args;
use clap::builder::PossibleValuesParser;
use jiff::Timestamp;
use jiff::civil::Date;

use super::super::{duration, terminal};
use super::{TreeReader, WorkersArgs, json};
use crate::analysis::facets::Facet;
use crate::cli::pager::AnswerKind;
use crate::render::list::{WorkerList, WorkerQuery};

pub(crate) const HELP: &str = "\
No mount is needed. Each row has the shortest id that names the worker here, the time when it \
began (UTC), its title, project and branch, the lines that it added and removed, and how it ended. \
A worker must match all filters. A column that is empty in all rows is left out. The table is as \
wide as the terminal, or 80 columns.

The values of --day, --project, --branch, --file, --status, --outcome and --tool are those of \
by/FILTER in the tree: `swarmletfs ls by/branch` lists them.

--json prints an array with one worker per line, newest first; the keys are those of the workers in \
the index.json of the swarm.

Examples:
  swarmletfs list --since 3d
  swarmletfs list --attention high --project cli
  swarmletfs list --file src/main.rs --json | jq -r '.[].id'

Exit code: 0 if the workers were listed, also if there are none, 1 if not, 2 for a usage error, 3 \
if --max-time ended before everything was read.";

/// Options that select workers. A worker must match all of them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filters")]
pub(crate) struct WorkerFilterArgs {
    /// Only workers of this day in UTC, as in 2026-02-15, or of these, as in
    /// 2026-02-09..2026-02-15
    #[arg(long, value_name = "DAY", value_parser = parse_days)]
    day: Option<String>,

    /// Only workers that began since then: a day as 2026-01-20, a time as 2026-01-20T10:00:00Z, or
    /// an age such as 3d or 1h30m
    #[arg(long, value_name = "TIME", value_parser = duration::parse_since)]
    since: Option<Timestamp>,

    /// Only workers in a folder of this name
    #[arg(long, value_name = "NAME")]
    project: Option<String>,

    /// Only workers on this branch of git
    #[arg(long, value_name = "NAME")]
    branch: Option<String>,

    /// Only workers that edited this file: its path from their working folder
    #[arg(long, value_name = "PATH")]
    file: Option<String>,

    /// Only workers of this status, as in completed
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,

    /// Only workers of this outcome
    #[arg(long, value_name = "OUTCOME", value_parser = presets(Facet::Outcome))]
    outcome: Option<String>,

    /// Only workers that need a person that much
    #[arg(long, value_name = "LEVEL", value_parser = presets(Facet::Attention))]
    attention: Option<String>,

    /// Only workers that called this tool
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,

    /// Only workers with this text in their title or task, in any letter case
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
}

impl WorkerFilterArgs {
    pub(crate) fn query(&self) -> WorkerQuery {
        let values = [
            (Facet::Day, &self.day),
            (Facet::Project, &self.project),
            (Facet::Branch, &self.branch),
            (Facet::File, &self.file),
            (Facet::Status, &self.status),
            (Facet::Outcome, &self.outcome),
            (Facet::Attention, &self.attention),
            (Facet::Tool, &self.tool),
        ];
        let values = values.into_iter().filter_map(|(facet, value)| Some((facet, value.clone()?)));
        WorkerQuery {
            values: values.collect(),
            since: self.since,
            text: self.text.clone(),
            ..WorkerQuery::default()
        }
    }
}

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(crate) struct WorkerListArgs {
    #[command(flatten)]
    filter: WorkerFilterArgs,

    /// Print JSON: an array of objects
    #[arg(long)]
    json: bool,

    /// Cut nothing, however wide the table is
    #[arg(long, short, conflicts_with = "json")]
    wide: bool,

    #[command(flatten)]
    reader: WorkersArgs,
}

/// Prints the table.
///
/// # Errors
///
/// Fails if a store cannot be found or read, or stdout cannot be written.
pub(crate) fn run(arguments: &WorkerListArgs) -> anyhow::Result<ExitCode> {
    let reader = TreeReader::open_workers(&arguments.reader, None)?;
    let width = || if arguments.wide { usize::MAX } else { terminal::width() };
    let table = (!arguments.json).then(width);
    let query = WorkerQuery { table, ..arguments.filter.query() };
    let listed = reader.tree.list_workers(reader.tree.root(), &query)?;
    let WorkerList { table, workers, missing, .. } = listed.unwrap_or_default();
    let mut out = reader.out(arguments.reader.pager, AnswerKind::Text, false);
    let written = if arguments.json {
        json::array(&mut out.stdout, |add| workers.iter().try_for_each(add))
    } else {
        let notice = missing.as_ref().map(|missing| format!("{missing}\n")).unwrap_or_default();
        out.text(&(notice + &table))
    };
    let written = out.close(written);
    if workers.is_empty() {
        arguments.reader.view.quiet.inform(
            "no worker matches; try fewer filters, or `swarmletfs ls by/status` and the like for \
             the values that there are",
        );
    }
    if arguments.json {
        missing.iter().for_each(|missing| terminal::print_message(&missing.to_string()));
    }
    reader.end(written)
}

fn parse_days(text: &str) -> Result<String, String> {
    let days = text.split("..").map(str::parse).collect::<Result<Vec<Date>, _>>();
    match days.as_deref() {
        Ok([day]) => Ok(day.to_string()),
        Ok([first, last]) if first <= last => Ok(format!("{first}..{last}")),
        _ => Err("give a day as 2026-02-15, or days as 2026-02-09..2026-02-15".into()),
    }
}

fn presets(facet: Facet) -> PossibleValuesParser {
    PossibleValuesParser::new(facet.preset_values())
}
