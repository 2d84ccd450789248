//! Which workers and files a question is about.

use std::result::Result;

use super::super::name_collision::{is_raw_record, shown_path, worker_path};
use super::Query;
use crate::name::{Name, RelPath};
use crate::search::glob::{Glob, is_under};
use crate::search::ranked::{Filters, Values, tool_of};
use crate::view::Member;

/// What a file counts, in hundredths: one that tells of everything once more counts less than what it tells of.
const WHOLE: u32 = 100;
const AGAIN: u32 = 60;

/// What a question's options and filters say.
pub(super) struct Wanted<'a> {
    under: Option<&'a RelPath>,
    glob: Option<Glob>,
    filters: &'a Filters,
    workers: Globs,
    tools: Globs,
    paths: Globs,
}

/// The globs of a filter, ready to be held against names.
struct Globs {
    any: Vec<Glob>,
    none: Vec<Glob>,
}

impl Globs {
    /// What is no glob was taken for a word when the question was read.
    fn of(values: &Values) -> Globs {
        let globs = |texts: &[String]| texts.iter().filter_map(|text| Glob::new(text).ok()).collect();
        Globs { any: globs(&values.any), none: globs(&values.none) }
    }

    /// Whether one of those fits of which one has to, and none of the others.
    fn admit(&self, fits: impl Fn(&Glob) -> bool) -> bool {
        (self.any.is_empty() || self.any.iter().any(&fits)) && !self.none.iter().any(fits)
    }
}

impl<'a> Wanted<'a> {
    /// The error is what is wrong with a glob.
    pub(super) fn of(query: &'a Query, filters: &'a Filters) -> Result<Wanted<'a>, String> {
        let glob = query.options.glob.as_deref().map(Glob::new).transpose()?;
        let [workers, tools, paths] = [&filters.workers, &filters.tools, &filters.paths].map(Globs::of);
        Ok(Wanted { under: query.under.as_ref(), glob, filters, workers, tools, paths })
    }

    /// Whether files of this worker may be shown.
    pub(super) fn admits(&self, member: &Member) -> bool {
        let name = member.name.to_text();
        let is_status = |word: &str| {
            let is_it = |said: &str| said.eq_ignore_ascii_case(word);
            is_it(member.entry.status.as_str()) || member.entry.worker().status_source.as_deref().is_some_and(is_it)
        };
        self.workers.admit(|glob| glob.is_of(&name)) && self.filters.statuses.admit(is_status)
    }

    /// How much the file at `path` of a worker counts, in hundredths.
    pub(super) fn weight(&self, worker: &Name, path: &RelPath) -> u32 {
        match self.is_for(worker, path) {
            true if is_raw_record(path) => AGAIN,
            true => WHOLE,
            false => 0,
        }
    }

    fn is_for(&self, worker: &Name, path: &RelPath) -> bool {
        let tool = tool_of(path).map(String::from_utf8_lossy);
        let at = |path: &RelPath| worker_path(worker).join_path(&shown_path(path));
        self.under.is_none_or(|under| is_under(path, under))
            && self.glob.as_ref().is_none_or(|glob| glob.is_for(&at, path))
            && self.tools.admit(|glob| tool.as_deref().is_some_and(|tool| glob.is_of(tool)))
            && self.paths.admit(|glob| glob.is_for(&at, path))
    }
}
