//! `swarmletfs catalog`: brings the catalog of an object store up to date.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::object_stores;
use super::terminal::{QuietArg, display_path};
use super::write_args;
use crate::text::count;

pub(super) const HELP: &str = "\
A catalog has a row for each worker of an object store, in files of Parquet beneath catalog/v1/. With \
it, a reader of 100,000 workers needs tens of requests instead of 100,000. Commands that record \
announce their workers, so readers show them at once; this command moves them into the files, and \
finds workers that other programs put there. `swarmletfs flush` does so by itself when 1,000 \
announcements wait.

Any number of processes may run it at once, and it may be ended at any time. The objects stay the \
truth: without catalog/, readers list them.

Examples:
  swarmletfs catalog s3://traces/run-48
  swarmletfs catalog s3://traces/run-48 --announced
  duckdb -c \"SELECT model, count(*), sum(cost_usd) FROM 's3://traces/run-48/catalog/v1/workers/*/*.parquet' GROUP BY ALL\"

Exit code: 0 if the catalog is up to date, 1 if not, 2 for a usage error.";

/// Arguments of `catalog`.
#[derive(Debug, Args)]
pub(super) struct CatalogArgs {
    /// The object store, such as s3://BUCKET/PREFIX
    #[arg(value_name = "STORE")]
    store: PathBuf,

    /// Look only at announced workers, unless all were listed more than a day ago
    #[arg(long)]
    announced: bool,

    /// Print the numbers as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    quiet: QuietArg,
}

/// Brings the catalog up to date and prints the numbers.
///
/// # Errors
///
/// The store is no object store, or cannot be written.
pub(super) fn run(arguments: &CatalogArgs) -> anyhow::Result<ExitCode> {
    let outcome = object_stores::catalog(&arguments.store, arguments.announced, arguments.quiet)?;
    let text = format!(
        "{}: {} in {}; {} changed, {} removed, {} taken; {}, {}",
        display_path(&arguments.store),
        count(outcome.workers, "worker"),
        count(outcome.files, "file"),
        count(outcome.changed, "row"),
        outcome.removed,
        count(outcome.announcements, "announcement"),
        count(outcome.listings, "listing"),
        count(outcome.others, "other request"),
    );
    let value = json!({
        "store": display_path(&arguments.store),
        "workers": outcome.workers,
        "files": outcome.files,
        "changed": outcome.changed,
        "removed": outcome.removed,
        "announcements": outcome.announcements,
        "listings": outcome.listings,
        "other_requests": outcome.others,
    });
    Ok(write_args::print(arguments.json, &text, &value))
}
