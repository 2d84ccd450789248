//! What is looked for: words, phrases, words that must not be there, and filters.

use std::sync::LazyLock;

use regex::Regex;

use super::words::{Stems, is_stop_word, words};
use crate::search::glob::Glob;

/// The most words that are looked for; further ones would say little more and take long.
const WORDS_MAX: usize = 120;

/// A question, part by part: what is in quotes or between spaces, perhaps with a minus or a filter's name before it.
static PART: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let part = r#"(?P<not>-)?(?:(?P<filter>worker|status|tool|path):)?(?:"(?P<phrase>[^"]*)"|(?P<word>\S+))"#;
    Regex::new(part).ok()
});

/// What is looked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Query {
    /// The stems that are looked for, each once.
    pub terms: Vec<String>,
    /// What has to be there word for word: each a list of words in lower case.
    pub phrases: Vec<Vec<String>>,
    /// The stems that may not be there.
    pub without: Vec<String>,
    /// What is searched.
    pub filters: Filters,
}

/// Which workers and files are searched. Of several values of one filter one has to fit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filters {
    /// `worker:`, globs.
    pub workers: Values,
    /// `status:`, words.
    pub statuses: Values,
    /// `tool:`, globs.
    pub tools: Values,
    /// `path:`, globs.
    pub paths: Values,
}

/// The values of a filter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Values {
    /// One of these has to fit, if there are any.
    pub any: Vec<String>,
    /// None of these may.
    pub none: Vec<String>,
}

impl Values {
    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        self.any.is_empty() && self.none.is_empty()
    }

    /// Whether `fits` says that one fits, and none that may not.
    pub fn admit(&self, fits: impl Fn(&str) -> bool) -> bool {
        (self.any.is_empty() || self.any.iter().any(|value| fits(value))) && !self.none.iter().any(|value| fits(value))
    }
}

impl Query {
    /// Reads a question. Whatever is written is one: a quote without a second one is none, and a filter that is not known
    /// is a word.
    pub fn parse(text: &str) -> Query {
        let mut query = Query::default();
        let stems = Stems::default();
        let mut all: Vec<String> = Vec::new();
        for part in PART.iter().flat_map(|part| part.captures_iter(text)) {
            let group = |name| part.name(name).map(|found| found.as_str());
            let is_not = group("not").is_some();
            let value = group("phrase").or(group("word")).unwrap_or_default();
            let values = match group("filter") {
                Some("worker") => Some(&mut query.filters.workers),
                Some("status") => Some(&mut query.filters.statuses),
                Some("tool") => Some(&mut query.filters.tools),
                Some("path") => Some(&mut query.filters.paths),
                _ => None,
            };
            match values {
                Some(values) if Glob::new(value).is_ok() && !value.is_empty() => {
                    if is_not { &mut values.none } else { &mut values.any }.push(value.to_owned());
                    continue;
                }
                _ => {}
            }
            // What is no glob is words like any other.
            let plain = part.get(0).map(|all| all.as_str()).filter(|_| group("filter").is_some());
            let mut said = Vec::new();
            words(plain.unwrap_or(value), |word| said.push(word.to_owned()));
            if is_not {
                query.without.extend(said.iter().map(|word| stems.of(word).into_owned()));
                continue;
            }
            if group("phrase").is_some() && !said.is_empty() {
                query.phrases.push(said.clone());
            }
            all.append(&mut said);
        }
        let telling: Vec<&String> = all.iter().filter(|word| !is_stop_word(word)).collect();
        for word in if telling.is_empty() { all.iter().collect() } else { telling } {
            let stem = stems.of(word).into_owned();
            if !query.terms.contains(&stem) && query.terms.len() < WORDS_MAX {
                query.terms.push(stem);
            }
        }
        query
    }

    /// Whether all phrases are in `text`.
    pub(super) fn says(&self, text: &str) -> bool {
        let mut said = Vec::new();
        if !self.phrases.is_empty() {
            words(text, |word| said.push(word.to_owned()));
        }
        self.phrases.iter().all(|phrase| said.windows(phrase.len().max(1)).any(|some| some == phrase))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stems(query: &Query) -> Vec<&str> {
        query.terms.iter().map(String::as_str).collect()
    }

    #[test]
    fn words_phrases_and_filters_are_told_apart() {
        let query = Query::parse(r#"Connections "exit code" -retry worker:a-* status:failed -path:*.json "path:x y""#);
        assert_eq!(stems(&query), ["connect", "exit", "code", "path", "x", "y"]);
        assert_eq!(query.phrases, [vec!["exit", "code"], vec!["path", "x", "y"]]);
        assert_eq!(query.without, ["retri"]);
        assert_eq!(query.filters.workers.any, ["a-*"]);
        assert_eq!(query.filters.statuses.any, ["failed"]);
        assert_eq!(query.filters.paths.none, ["*.json"]);
        assert_eq!(Query::parse(r#"path:"a b.txt""#).filters.paths.any, ["a b.txt"]);
    }

    #[test]
    fn whatever_is_odd_is_plain_text() {
        for (text, terms) in [
            (r#"a "timeout error"#, &["timeout", "error"][..]),
            ("owner:alice", &["owner", "alic"]),
            ("path:[z-a]", &["path", "z"]),
            ("--x", &["x"]),
            ("worker:", &["worker"]),
            ("the who", &["the", "who"]),
            ("what is the timeout", &["timeout"]),
            ("\"", &[]),
            ("", &[]),
        ] {
            let query = Query::parse(text);
            assert!(query.phrases.is_empty() && query.filters == Filters::default(), "{text}");
            let found: Vec<&str> = stems(&query).into_iter().chain(query.without.iter().map(String::as_str)).collect();
            assert_eq!(found, terms, "{text}");
        }
    }

    #[test]
    fn a_phrase_is_found_word_for_word() {
        let query = Query::parse("\"exit code\"");
        assert!(query.says("the Exit-code is 1") && query.says("exit\n code"));
        assert!(!query.says("exit codes") && !query.says("code exit") && !query.says("exit the code"));
    }
}
