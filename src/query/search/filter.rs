//! Selects the workers and files of a search.

use std::result::Result;

use super::SearchQuery;
use crate::name::{Name, RelPath};
use crate::route::shown_path::{is_raw_record, shown_path, worker_path};
use crate::search::glob::Glob;
use crate::search::ranked::{FilterValues, Filters, tool_of};
use crate::view::Member;

/// Weight of a file, in percent.
const FULL_WEIGHT: u32 = 100;
/// Weight of a file that only repeats other files, in percent.
const REPEATED_WEIGHT: u32 = 60;

/// The options and filters of a query.
pub(super) struct SearchFilter<'a> {
    under: Option<&'a RelPath>,
    glob: Option<Glob>,
    filters: &'a Filters,
    workers: FilterGlobs,
    tools: FilterGlobs,
    paths: FilterGlobs,
}

/// The compiled globs of one filter.
struct FilterGlobs {
    include: Vec<Glob>,
    exclude: Vec<Glob>,
}

impl FilterGlobs {
    /// Compiles the values of a filter. The query parser accepts only valid globs as values.
    fn new(values: &FilterValues) -> FilterGlobs {
        let globs =
            |texts: &[String]| texts.iter().filter_map(|text| Glob::new(text).ok()).collect();
        FilterGlobs { include: globs(&values.include), exclude: globs(&values.exclude) }
    }

    /// Returns true if `matches` accepts one of the included globs and none of the excluded.
    fn accepts(&self, matches: impl Fn(&Glob) -> bool) -> bool {
        (self.include.is_empty() || self.include.iter().any(&matches))
            && !self.exclude.iter().any(matches)
    }
}

impl<'a> SearchFilter<'a> {
    /// Creates the filter of a query.
    ///
    /// # Errors
    /// A message, if the glob of the query's options is invalid.
    pub(crate) fn new(
        query: &'a SearchQuery,
        filters: &'a Filters,
    ) -> Result<SearchFilter<'a>, String> {
        let glob = query.options.glob.as_deref().map(Glob::new).transpose()?;
        let [workers, tools, paths] =
            [&filters.workers, &filters.tools, &filters.paths].map(FilterGlobs::new);
        Ok(SearchFilter { under: query.under.as_ref(), glob, filters, workers, tools, paths })
    }

    /// Returns true if files of this worker may be shown.
    pub(crate) fn admits(&self, member: &Member) -> bool {
        let name = member.name.to_text();
        let status = member.entry.status.as_str();
        let worker = member.entry.worker();
        let source = worker.status_source.as_deref();
        self.workers.accepts(|glob| glob.matches_name(&name))
            && self.filters.statuses.accepts(|wanted| {
                status.eq_ignore_ascii_case(wanted)
                    || source.is_some_and(|status| status.eq_ignore_ascii_case(wanted))
            })
    }

    /// Returns the weight of a worker's file in percent; 0 if the file is not searched.
    pub(crate) fn weight(&self, worker: &Name, path: &RelPath) -> u32 {
        match self.applies_to(worker, path) {
            true if is_raw_record(path) => REPEATED_WEIGHT,
            true => FULL_WEIGHT,
            false => 0,
        }
    }

    fn applies_to(&self, worker: &Name, path: &RelPath) -> bool {
        let tool = tool_of(path).map(String::from_utf8_lossy);
        let shown = |path: &RelPath| worker_path(worker).join_path(&shown_path(path));
        self.under.is_none_or(|under| path.is_within(under))
            && self.glob.as_ref().is_none_or(|glob| glob.matches_path(&shown, path))
            && self
                .tools
                .accepts(|glob| tool.as_deref().is_some_and(|tool| glob.matches_name(tool)))
            && self.paths.accepts(|glob| glob.matches_path(&shown, path))
    }
}
