//! Parses `summary@<words>`: the summary of a worker with the passages relevant to the words.

use super::parsed_name::{ParsedName, has_word};
use super::search::{SearchOptions, SearchQuery};
use swarmletfs_base::name::Name;
use swarmletfs_base::text::budget::Budget;

/// Name of the listed file that this one extends.
const SUMMARY: &str = "summary";

/// Parses `summary@<words>`. A size as in `summary.8k@` bounds the passages.
pub(super) fn parse_name(name: &Name) -> Option<SearchQuery> {
    let name = ParsedName::parse(name).filter(|name| name.word == SUMMARY)?;
    let (budget, others) = name.budget()?;
    let words = name.target.filter(|words| others.is_empty() && has_word(words))?;
    let budget = Some(budget.unwrap_or(Budget::FOCUS));
    let options = SearchOptions { budget, ..SearchOptions::default() };
    Some(SearchQuery { options, words, under: None })
}
