//! `swarmletfs cost`: sums the costs of workers.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::super::terminal;
use super::list::WorkerFilterArgs;
use super::{TreeReader, WorkersArgs};
use crate::cli::pager::AnswerKind;
use crate::cli::plan::read_prices;
use crate::output::cost::CostGroup;
use crate::render::list::WorkerQuery;

pub(crate) const HELP: &str = "\
No mount is needed. Costs are those that the records state: Claude Code (since 2.1), OpenHands, \
SWE-agent and mini-swe-agent write them. With --prices, the cost of other workers is computed from \
their tokens, and marked by ~ in the table. Nothing is guessed: a worker whose model has no price \
counts as unknown, and a sum that leaves something out is marked by >.

The cost of a Claude Code session includes its subagents; nothing is counted twice. By worker, each \
row is a worker with all workers that it started.

--prices reads a JSON object: dollars per million tokens, by model and kind of token. A name that \
ends in * stands for all models that begin so.
  {\"claude-opus-4*\": {\"input\": 5, \"output\": 25, \"cache_read\": 0.5,
    \"cache_creation\": 6.25, \"cache_creation_1h\": 10}}
The numbers are an example. cache_creation_1h is for what the cache keeps for an hour; without it, \
cache_creation counts.

--json prints an object: total, failed, by, and groups, each with workers, usd (null if unknown), \
stated_usd, computed_usd, complete, unknown_workers, tokens, peak_context_tokens and compactions.

Examples:
  swarmletfs cost
  swarmletfs cost --by day --since 7d --prices prices.json
  swarmletfs cost --by project --json | jq .total.usd

Exit code: 0 if the costs were printed, also if none is known, 1 if not, 2 for a usage error, 3 if \
--max-time ended before everything was read.";

/// Arguments of `cost`.
#[derive(Debug, Args)]
pub(crate) struct CostArgs {
    /// Sum up by this
    #[arg(long, value_name = "GROUP", default_value = "worker", value_parser = groups())]
    by: CostGroup,

    /// Compute costs that records do not state, from the prices in this JSON file
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,

    /// Print JSON: an object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    filter: WorkerFilterArgs,

    #[command(flatten)]
    reader: WorkersArgs,
}

/// Prints the costs.
///
/// # Errors
///
/// Fails if the prices or a store cannot be read, or stdout cannot be written.
pub(crate) fn run(arguments: &CostArgs) -> anyhow::Result<ExitCode> {
    let prices = read_prices(arguments.prices.as_deref())?;
    let reader = TreeReader::open_workers(&arguments.reader, prices)?;
    let query = WorkerQuery { table: Some(terminal::width()), ..arguments.filter.query() };
    let (page, missing) = reader.tree.renderer().costs(&query, arguments.by)?;
    let mut out = reader.out(arguments.reader.pager, AnswerKind::Text, false);
    let missing = missing.map(|missing| missing.to_string());
    let written = if arguments.json {
        missing.iter().for_each(|missing| terminal::print_message(missing));
        let json = serde_json::to_string(&page.json).context("cannot write JSON")?;
        out.text(&(crate::text::json::printable(&json) + "\n"))
    } else {
        out.text(&missing.map(|missing| missing + "\n").unwrap_or_default())
            .and_then(|()| out.text(&page.text))
    };
    let written = out.close(written);
    if page.json.total.workers == 0 {
        arguments.reader.view.quiet.inform("no worker matches; try fewer filters");
    } else if page.json.total.usd.is_none() {
        arguments.reader.view.quiet.inform(
            "no record states a cost; try --prices FILE, of which `swarmletfs cost --help` shows \
             the form",
        );
    }
    reader.end(written)
}

fn groups() -> impl TypedValueParser<Value = CostGroup> {
    let names = PossibleValuesParser::new(CostGroup::ALL.map(CostGroup::as_str));
    names.map(|name| {
        CostGroup::ALL.into_iter().find(|group| group.as_str() == name).unwrap_or_default()
    })
}
