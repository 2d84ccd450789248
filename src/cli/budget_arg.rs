//! Budgets on a command line: options, and names of files.
//!
//! The first count of tokens unpacks a vocabulary. A command begins with it before it opens the
//! stores.

use crate::name::Name;
use crate::route::Report;
use crate::text::budget::Budget;

/// Parses the value of an option.
///
/// # Errors
///
/// Returns a message for the user if `text` is not a size or is too large.
pub(super) fn parse(text: &str) -> Result<Budget, String> {
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
