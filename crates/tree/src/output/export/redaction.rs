//! Replaces the words that tell who worked where: home folders, names of users, addresses, and
//! texts that look like keys. The same text is always replaced by the same word.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};
use regex::{Captures, Regex};

use super::ExportedWorker;

/// Names in home folders that tell nobody.
const COMMON_NAMES: [&str; 10] =
    ["user", "users", "home", "root", "test", "shared", "public", "default", "runner", "..."];
/// Minimum length of a name that is replaced outside of paths, in bytes.
const NAME_MIN: usize = 3;
/// Minimum length of a name that is replaced inside of words, too, in bytes.
const LONG_NAME_MIN: usize = 5;
/// The word for a name.
const USER: &str = "user";
/// Beginnings of addresses that every machine has.
const LOCAL: [&str; 3] = ["127.", "0.0.0.0", "255."];

/// A home folder.
static HOME: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"(?i)(/home/|/Users/|[A-Z]:\\+Users\\+)([\p{L}\p{N}_.][\p{L}\p{N}_.-]*)").ok()
});
/// A home folder in the name that programs make of a path.
static NAMED_HOME: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?i)([-/](?:Users|home)-)([\p{L}\p{N}_.]+)").ok());
/// Kinds of text, each with the word that replaces it.
static KINDS: LazyLock<Vec<(&str, Regex)>> = LazyLock::new(|| {
    [
        // A block of a private key.
        ("key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"),
        ("email", r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}"),
        (
            "key",
            r"\b(?:(?:sk|pk|rk|gh[opsur]|github_pat|glpat|xox[abpr]|npm|pypi|hf)[-_]|AKIA|ASIA|AIza|ya29\.)[-_A-Za-z0-9.]{16,}",
        ),
        ("key", r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*)?"),
        (
            "key",
            r#"(?i)(?:api[_-]?key|secret|token|passw(?:or)?d|authorization|bearer)["']?\s*[:=]?\s*["']?(?:bearer\s+)?[A-Za-z0-9+/_.~-]{20,}=*"#,
        ),
        ("address", r"\b(?:\d{1,3}\.){3}\d{1,3}\b"),
        ("address", r"(?i)\b(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{1,4}\b"),
    ]
    .into_iter()
    .filter_map(|(kind, pattern)| Some((kind, Regex::new(pattern).ok()?)))
    .collect()
});

/// The replacements that were made, so that further ones are the same.
#[derive(Debug, Default)]
pub struct Redaction {
    names: BTreeSet<String>,
    words: BTreeMap<(&'static str, String), usize>,
    /// Number of different texts of each kind.
    numbers: BTreeMap<&'static str, usize>,
    counts: BTreeMap<&'static str, usize>,
    /// Finds the known names; `None` until all are known.
    finder: Option<NameFinder>,
}

impl Redaction {
    /// Notes the names of users in a worker. All workers must be seen before one is redacted.
    pub fn learn(&mut self, worker: &mut ExportedWorker) {
        worker.for_each_text(&mut |text| {
            for found in
                HOME.iter().chain(NAMED_HOME.iter()).flat_map(|home| home.captures_iter(text))
            {
                let name = group(&found, 2).trim_end_matches(['.', '-']).to_lowercase();
                if !is_common(&name) {
                    self.names.insert(name);
                }
            }
        });
        self.finder = None;
    }

    /// Redacts all texts of a worker.
    pub fn redact(&mut self, worker: &mut ExportedWorker) {
        if self.finder.is_none() {
            self.finder = Some(NameFinder::new(&self.names));
        }
        worker.for_each_text(&mut |text| {
            let new = self.redacted(text);
            if new != *text {
                *text = new;
            }
        });
    }

    /// Returns the number of replacements of each kind.
    pub fn counts(&self) -> &BTreeMap<&'static str, usize> {
        &self.counts
    }

    fn redacted(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for (kind, pattern) in KINDS.iter() {
            let replaced = pattern.replace_all(&text, |found: &Captures<'_>| {
                let found = group(found, 0);
                // The addresses of a machine for itself tell nobody.
                match *kind == "address" && LOCAL.iter().any(|local| found.starts_with(local)) {
                    true => found.to_owned(),
                    false => self.word(kind, found),
                }
            });
            text = replaced.into_owned();
        }
        text = self.without_homes(&text, HOME.as_ref());
        if let Some(finder) = self.finder.take() {
            text = finder.replace(&text, &mut |name| self.word(USER, &name.to_lowercase()));
            self.finder = Some(finder);
        }
        self.without_homes(&text, NAMED_HOME.as_ref())
    }

    /// Replaces the names in home folders that `pattern` finds.
    fn without_homes(&mut self, text: &str, pattern: Option<&Regex>) -> String {
        let Some(pattern) = pattern else { return text.to_owned() };
        let replaced = pattern.replace_all(text, |found: &Captures<'_>| {
            let name = group(found, 2).trim_end_matches(['.', '-']);
            let rest = group(found, 2).get(name.len()..).unwrap_or_default();
            match is_common(name) {
                true => group(found, 0).to_owned(),
                false => {
                    format!("{}{}{rest}", group(found, 1), self.word(USER, &name.to_lowercase()))
                }
            }
        });
        replaced.into_owned()
    }

    fn word(&mut self, kind: &'static str, text: &str) -> String {
        *self.counts.entry(kind).or_default() += 1;
        let numbers = &mut self.numbers;
        let number = *self.words.entry((kind, text.to_owned())).or_insert_with(|| {
            let last = numbers.entry(kind).or_default();
            *last += 1;
            *last
        });
        format!("{kind}-{number}")
    }
}

/// Finds names: long ones anywhere, shorter ones as whole words.
#[derive(Debug)]
struct NameFinder {
    long: Option<AhoCorasick>,
    short: Option<AhoCorasick>,
}

impl NameFinder {
    fn new(names: &BTreeSet<String>) -> NameFinder {
        let finder = |is_long: bool| {
            // A name was replaced by `user-1`.
            let names = names.iter().filter(|name| name.len() >= NAME_MIN && *name != USER);
            let mut builder = AhoCorasick::builder();
            builder.match_kind(MatchKind::LeftmostLongest).ascii_case_insensitive(true);
            builder.build(names.filter(|name| (name.len() >= LONG_NAME_MIN) == is_long)).ok()
        };
        NameFinder { long: finder(true), short: finder(false) }
    }

    /// Replaces each name in `text` by what `word` returns for it.
    fn replace(&self, text: &str, word: &mut dyn FnMut(&str) -> String) -> String {
        let mut new = text.to_owned();
        for (finder, is_word) in [(&self.long, false), (&self.short, true)] {
            let Some(finder) = finder.as_ref().filter(|finder| finder.patterns_len() > 0) else {
                continue;
            };
            let text = std::mem::take(&mut new);
            finder.replace_all_with(&text, &mut new, |found, name, new| {
                let before = text.get(..found.start()).and_then(|text| text.chars().next_back());
                let after = text.get(found.end()..).and_then(|text| text.chars().next());
                let is_inside = [before, after].into_iter().flatten().any(char::is_alphanumeric);
                match is_word && is_inside {
                    true => new.push_str(name),
                    false => new.push_str(&word(name)),
                }
                true
            });
        }
        new
    }
}

fn is_common(name: &str) -> bool {
    name.is_empty() || COMMON_NAMES.contains(&name.to_lowercase().as_str())
}

fn group<'t>(found: &Captures<'t>, number: usize) -> &'t str {
    found.get(number).map(|found| found.as_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redaction(names: &[&str]) -> Redaction {
        Redaction {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Redaction::default()
        }
    }

    #[test]
    fn same_text_is_replaced_by_the_same_word() {
        let mut redaction = redaction(&[]);
        for (text, redacted) in [
            ("ls /Users/ann/x /home/bob/y", "ls /Users/user-1/x /home/user-2/y"),
            ("/Users/ann. /home/root/x", "/Users/user-1. /home/root/x"),
            (r"C:\Users\Ann\x", r"C:\Users\user-1\x"),
            ("~/.claude/projects/-Users-ann-x", "~/.claude/projects/-Users-user-1-x"),
            ("ann@lab.example and bob@lab.example", "email-1 and email-2"),
            ("ann@lab.example", "email-1"),
            ("10.0.0.7:80 v1.2.3", "address-1:80 v1.2.3"),
            ("sk-0123456789abcdef0123", "key-1"),
            ("export API_KEY=0123456789abcdef0123", "export key-2"),
            ("the token count is 12", "the token count is 12"),
            ("skip_serializing_if_none npm_config_x", "skip_serializing_if_none npm_config_x"),
            ("/home/zoë/x", "/home/user-3/x"),
        ] {
            assert_eq!(redaction.redacted(text), redacted, "{text}");
        }
        assert_eq!(redaction.counts()["user"], 6);
    }

    #[test]
    fn names_of_home_folders_are_replaced_everywhere() {
        let mut redaction = redaction(&["ann-lee", "al", "dip", "bob"]);
        redaction.finder = Some(NameFinder::new(&redaction.names));
        for (text, redacted) in [
            ("git clone github.com/Ann-Lee/al", "git clone github.com/user-1/al"),
            ("-Users-ann-lee-x", "-Users-user-1-x"),
            ("dip bob,Bob", "user-2 user-3,user-3"),
            ("by Dip, dip/dip_x, not serendipity", "by user-2, user-2/user-2_x, not serendipity"),
        ] {
            assert_eq!(redaction.redacted(text), redacted, "{text}");
        }
    }
}
