//! The arguments of the commands that read without a mount, and budgets among them.
//!
//! The first count of tokens unpacks a vocabulary. A command begins with it before it opens the
//! stores.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{duration, mount_options, object_args, terminal};
use crate::name::{Name, printable};
use crate::route::Report;
use crate::text::budget::Budget;

/// Selects what the commands without a mount read. The stores are found as for `mount`.
#[derive(Debug, Args)]
pub(super) struct ViewArgs {
    /// A folder of traces, a single transcript, or a part of an object store (s3://BUCKET/PREFIX);
    /// can be given several times [default: found as for `mount`]
    #[arg(long = "store", value_name = "PATH")]
    pub(super) stores: Vec<PathBuf>,

    /// The format of the stores [default: detected]
    #[arg(long = "format", value_name = "NAME", value_parser = mount_options::format_names())]
    pub(super) store_format: Option<String>,

    /// Only the workers of this owner
    #[arg(long, value_name = "ID", value_parser = mount_options::parse_id)]
    pub(super) owner: Option<String>,

    /// Only the workers of this run
    #[arg(long, value_name = "ID", value_parser = mount_options::parse_id)]
    pub(super) run: Option<String>,

    /// With --owner, include files that have several hard links, for stores kept as hard-linked
    /// backups
    #[arg(long)]
    pub(super) hard_links: bool,

    /// Time without a write after which an unfinished session of Claude Code counts as abandoned:
    /// 30s, 5m, 1h30m, or whole seconds [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_duration)]
    pub(super) stale: Option<Duration>,

    #[command(flatten)]
    pub(super) cache: mount_options::CacheArgs,

    #[command(flatten)]
    pub(super) objects: object_args::ObjectArgs,

    #[command(flatten)]
    pub(super) quiet: terminal::QuietArg,
}

impl ViewArgs {
    /// Names the workers of the view, or those at `path` in it.
    pub(super) fn title(&self, path: Option<&OsStr>) -> String {
        let path = path.map(|path| printable(path.as_bytes())).filter(|path| path != ".");
        let run = self.run.as_ref().map(|run| format!("run {run}"));
        let owner = self.owner.as_ref().map(|owner| format!("owner {owner}"));
        let parts: Vec<String> = [path, run, owner].into_iter().flatten().collect();
        if parts.is_empty() { "All workers".to_owned() } else { parts.join(" · ") }
    }

    /// Returns the options that make another command see the same workers, each after a space.
    pub(super) fn options(&self) -> String {
        let stores = self.stores.iter().map(|store| ("--store", store.to_string_lossy()));
        let named = [("--owner", &self.owner), ("--run", &self.run)];
        let named = named.into_iter().filter_map(|(name, id)| Some((name, id.as_ref()?.into())));
        let options = stores.chain(named).map(|(name, value)| {
            let quoted = shlex::try_quote(&value).unwrap_or_default();
            format!(" {name} {quoted}")
        });
        options.collect()
    }
}

/// Parses the value of an option.
///
/// # Errors
///
/// Returns a message for the user if `text` is not a size or is too large.
pub(super) fn parse_budget(text: &str) -> Result<Budget, String> {
    Budget::parse(text).inspect(|budget| budget.prepare())
}

pub(super) fn prepare_names(paths: &[impl AsRef<[u8]>]) {
    for path in paths {
        let name = path.as_ref().rsplit(|byte| *byte == b'/').next().map(Name::new);
        if let Some(Report::Evidence(Some(budget))) =
            name.and_then(Result::ok).as_ref().and_then(Report::from_name)
        {
            budget.prepare();
        }
    }
}
