//! Options of commands that read an object store.

use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::duration;

/// How object stores are listed. Folders are not affected.
#[derive(Debug, Default, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
pub(super) struct ObjectArgs {
    /// Maximum age of the list of objects of an object store, unless that needs more than 120
    /// requests a minute: 30s, 5m, or whole seconds [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_duration)]
    pub(super) poll: Option<Duration>,

    /// List all objects of an object store, also if it has a catalog
    #[arg(long)]
    pub(super) no_catalog: bool,
}
