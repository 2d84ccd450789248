//! Parses queries: words, phrases, excluded words and filters.

use std::sync::LazyLock;

use regex::Regex;

use super::words::{WordStemmer, is_stop_word, words};
use crate::search::Glob;

/// Highest number of distinct stems in a query. Further ones add cost and little meaning.
const WORDS_MAX: usize = 120;

/// One token of a query: a quoted phrase or a word, with an optional minus and filter name.
static TOKEN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let token = r#"(?P<not>-)?(?:(?P<filter>worker|status|tool|path):)?(?:"(?P<phrase>[^"]*)"|(?P<word>\S+))"#;
    Regex::new(token).ok()
});

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RankedQuery {
    /// The stems to search for, without duplicates.
    pub terms: Vec<String>,
    /// Phrases that a passage must contain, each as lower-case words.
    pub phrases: Vec<Vec<String>>,
    /// Stems that a passage must not contain.
    pub excluded: Vec<String>,
    /// The excluded words as they were typed.
    pub without: Vec<String>,
    /// Names of several words, such as `exit_code` and `src/main.rs`, in lower case.
    pub identifiers: Vec<String>,
    /// The words and phrases as they were typed, without what is excluded and without filters.
    pub text: String,
    pub filters: Filters,
}

/// Filters on workers and files. One value of each filter has to match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filters {
    /// Globs of `worker:`.
    pub workers: FilterValues,
    /// Words of `status:`.
    pub statuses: FilterValues,
    /// Globs of `tool:`.
    pub tools: FilterValues,
    /// Globs of `path:`.
    pub paths: FilterValues,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FilterValues<T = String> {
    /// At least one of these has to match, unless the list is empty.
    pub include: Vec<T>,
    /// None of these may match.
    pub exclude: Vec<T>,
}

impl<T> FilterValues<T> {
    pub fn is_empty(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// Returns true if `matches` accepts one of the included values and none of the excluded.
    pub fn accepts(&self, matches: impl Fn(&T) -> bool) -> bool {
        (self.include.is_empty() || self.include.iter().any(&matches))
            && !self.exclude.iter().any(matches)
    }
}

impl RankedQuery {
    /// Parses a query. Every text is valid: an unclosed quote is ignored, and an unknown filter
    /// is a word.
    pub fn parse(text: &str) -> RankedQuery {
        let mut query = RankedQuery::default();
        let stems = WordStemmer::default();
        let mut all: Vec<String> = Vec::new();
        for token in TOKEN.iter().flat_map(|token| token.captures_iter(text)) {
            let group = |name| token.name(name).map(|found| found.as_str());
            let value = group("phrase").or(group("word")).unwrap_or_default();
            // `--force`, `-f` and `-no-verify` are options that somebody looks for.
            let is_word = |word: &str| word.len() > 1 && word.chars().all(char::is_alphanumeric);
            let negated = group("not").is_some()
                && (group("filter").is_some() || group("phrase").is_some() || is_word(value));
            let values = match group("filter") {
                Some("worker") => Some(&mut query.filters.workers),
                Some("status") => Some(&mut query.filters.statuses),
                Some("tool") => Some(&mut query.filters.tools),
                Some("path") => Some(&mut query.filters.paths),
                _ => None,
            };
            match values {
                Some(values) if Glob::new(value).is_ok() && !value.is_empty() => {
                    if negated { &mut values.exclude } else { &mut values.include }
                        .push(value.to_owned());
                    continue;
                }
                _ => {}
            }
            // A filter whose value is not a glob is read as plain words.
            let plain = token.get(0).map(|all| all.as_str()).filter(|_| group("filter").is_some());
            let mut token_words = Vec::new();
            words(plain.unwrap_or(value), |word| token_words.push(word.to_owned()));
            if negated {
                query.excluded.extend(token_words.iter().map(|word| stems.stem(word).into_owned()));
                query.without.push(value.to_owned());
                continue;
            }
            for part in [if query.text.is_empty() { "" } else { " " }, plain.unwrap_or(value)] {
                query.text.push_str(part);
            }
            if group("word").is_some() && token_words.len() > 1 {
                let name = plain.unwrap_or(value).trim_matches(|c: char| !c.is_alphanumeric());
                query.identifiers.push(name.to_lowercase());
            }
            if group("phrase").is_some() && !token_words.is_empty() {
                query.phrases.push(token_words.clone());
            }
            all.append(&mut token_words);
        }
        let content_words: Vec<&String> = all.iter().filter(|word| !is_stop_word(word)).collect();
        for word in if content_words.is_empty() { all.iter().collect() } else { content_words } {
            let stem = stems.stem(word).into_owned();
            if !query.terms.contains(&stem) && query.terms.len() < WORDS_MAX {
                query.terms.push(stem);
            }
        }
        query
    }

    pub(super) fn contains_phrases(&self, text: &str) -> bool {
        let mut text_words = Vec::new();
        if !self.phrases.is_empty() {
            words(text, |word| text_words.push(word.to_owned()));
        }
        self.phrases
            .iter()
            .all(|phrase| text_words.windows(phrase.len().max(1)).any(|window| window == phrase))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stems(query: &RankedQuery) -> Vec<&str> {
        query.terms.iter().map(String::as_str).collect()
    }

    #[test]
    fn words_phrases_and_filters_are_distinguished() {
        let query = RankedQuery::parse(
            r#"Connections "exit code" -retry worker:a-* status:failed -path:*.json "path:x y""#,
        );
        assert_eq!(stems(&query), ["connect", "exit", "code", "path", "x", "y"]);
        assert_eq!(query.phrases, [vec!["exit", "code"], vec!["path", "x", "y"]]);
        assert_eq!(query.excluded, ["retri"]);
        assert_eq!(query.filters.workers.include, ["a-*"]);
        assert_eq!(query.filters.statuses.include, ["failed"]);
        assert_eq!(query.filters.paths.exclude, ["*.json"]);
        assert_eq!(RankedQuery::parse(r#"path:"a b.txt""#).filters.paths.include, ["a b.txt"]);
    }

    #[test]
    fn malformed_syntax_is_read_as_plain_words() {
        for (text, terms) in [
            (r#"a "timeout error"#, &["timeout", "error"][..]),
            ("owner:alice", &["owner", "alic"]),
            ("path:[z-a]", &["path", "z"]),
            ("--x", &["x"]),
            ("-f --no-verify -no-edit", &["f", "verifi", "edit"]),
            ("worker:", &["worker"]),
            ("the who", &["the", "who"]),
            ("what is the timeout", &["timeout"]),
            ("\"", &[]),
            ("", &[]),
        ] {
            let query = RankedQuery::parse(text);
            assert!(query.phrases.is_empty() && query.filters == Filters::default(), "{text}");
            let found: Vec<&str> = stems(&query)
                .into_iter()
                .chain(query.excluded.iter().map(String::as_str))
                .collect();
            assert_eq!(found, terms, "{text}");
        }
    }

    #[test]
    fn a_phrase_is_found_word_for_word() {
        let query = RankedQuery::parse("\"exit code\"");
        assert!(
            query.contains_phrases("the Exit-code is 1") && query.contains_phrases("exit\n code")
        );
        assert!(!query.contains_phrases("exit codes") && !query.contains_phrases("code exit"));
        assert!(!query.contains_phrases("exit the code"));
    }
}
