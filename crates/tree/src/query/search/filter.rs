//! Selects the workers and files of a search.

use std::result::Result;
use std::sync::Arc;

use super::SearchQuery;
use crate::route::shown_path::{is_raw_record, shown_path, worker_path};
use crate::search::glob::Glob;
use crate::search::ranked::{FilterValues, Filters, tool_of};
use crate::view::{Member, find_by_prefix};
use swarmletfs_base::error::Error;
use swarmletfs_base::name::{Name, RelPath};

/// Weight of a file, in percent.
const FULL_WEIGHT: u32 = 100;
/// Weight of a file that only repeats other files, in percent.
const REPEATED_WEIGHT: u32 = 60;
/// Characters with a meaning in a glob. A value of `worker:` without them is an id.
const GLOB_CHARACTERS: [char; 8] = ['*', '?', '[', ']', '{', '}', '!', '\\'];

pub(super) struct SearchFilter<'a> {
    under: Option<&'a RelPath>,
    glob: Option<Glob>,
    filters: &'a Filters,
    workers: FilterGlobs,
    tools: FilterGlobs,
    paths: FilterGlobs,
}

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

    fn accepts(&self, matches: impl Fn(&Glob) -> bool) -> bool {
        (self.include.is_empty() || self.include.iter().any(&matches))
            && !self.exclude.iter().any(matches)
    }
}

impl<'a> SearchFilter<'a> {
    /// Creates the filter of a query that covers `members`.
    ///
    /// # Errors
    /// A message, if the glob of the query's options is invalid or an id of a worker is ambiguous.
    pub(super) fn new(
        query: &'a SearchQuery,
        filters: &'a Filters,
        members: &[&Arc<Member>],
    ) -> Result<SearchFilter<'a>, String> {
        let glob = query.options.glob.as_deref().map(Glob::new).transpose()?;
        let completed = |ids: &[String]| {
            ids.iter().map(|id| complete_id(members, id)).collect::<Result<Vec<_>, _>>()
        };
        let workers = FilterValues {
            include: completed(&filters.workers.include)?,
            exclude: completed(&filters.workers.exclude)?,
        };
        let [workers, tools, paths] =
            [&workers, &filters.tools, &filters.paths].map(FilterGlobs::new);
        Ok(SearchFilter { under: query.under.as_ref(), glob, filters, workers, tools, paths })
    }

    pub(super) fn admits(&self, member: &Member) -> bool {
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
    pub(super) fn weight(&self, worker: &Name, path: &RelPath) -> u32 {
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

/// Returns the glob of the only worker whose name begins with `id`. Returns `id` if it is a glob,
/// the name of a worker, or the beginning of no name.
fn complete_id(members: &[&Arc<Member>], id: &str) -> Result<String, String> {
    let is_name = || members.iter().any(|member| member.name.as_bytes() == id.as_bytes());
    if id.contains(GLOB_CHARACTERS) || is_name() {
        return Ok(id.to_owned());
    }
    match Name::new(id).and_then(|name| find_by_prefix(members.iter().copied(), &name)) {
        Ok(member) => Ok(globset::escape(&member.name.to_text())),
        Err(error @ Error::AmbiguousId(_)) => Err(format!("worker:{id}: {error}")),
        Err(_) => Ok(id.to_owned()),
    }
}
