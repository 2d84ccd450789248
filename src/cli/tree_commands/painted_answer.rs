//! The answers of `grep` and `search` with colors.
//!
//! A line gets colors only if it is the next one that the answer shows of a file. All others are
//! the program's own. The text equals the answer, which has no control characters.

use regex::{Captures, Regex, RegexBuilder};

use crate::cli::colors::{FAILED, MATCH, NUMBER, PATH, SEPARATOR, painted};
use crate::model::Outcome;
use crate::query::grep::{GrepAnswer, GrepQuery, LineText, ShownLine};
use crate::query::search::SearchAnswer;

/// Returns the page of a grep answer, with paths, numbers and matches in the colors of GNU grep.
pub(super) fn of_grep(query: &GrepQuery, answer: &GrepAnswer) -> String {
    let regex = RegexBuilder::new(&query.regex).case_insensitive(query.options.ignore_case).build();
    // A line that does not match has no match to show.
    let regex = regex.ok().filter(|_| !query.options.invert_match);
    let mut shown = answer.found.shown.iter().flat_map(|file| {
        file.lines.iter().filter_map(|line| grep_line(&file.path, line, regex.as_ref()))
    });
    let mut next = shown.next();
    let lines = answer.page.text.split_inclusive('\n').map(|line| match &next {
        Some((plain, colored)) if *plain == line => {
            let colored = colored.clone();
            next = shown.next();
            colored
        }
        _ => line.to_owned(),
    });
    lines.collect()
}

/// Returns a line of the page, without and with colors. Returns `None` for a gap.
fn grep_line(path: &str, line: &ShownLine, regex: Option<&Regex>) -> Option<(String, String)> {
    let mut plain = String::new();
    line.write(&mut plain, path);
    let (LineText { number, text, .. }, separator, regex) = match line {
        ShownLine::Match(line) => (line, ":", regex),
        ShownLine::Context(line) => (line, "-", None),
        ShownLine::Gap => return None,
    };
    let colored = match regex {
        Some(regex) => with_matches(regex, text),
        None => text.clone(),
    };
    let (path, number) = (painted(PATH, path), painted(NUMBER, number));
    let separator = painted(SEPARATOR, separator);
    Some((plain, format!("{path}{separator}{number}{separator}{colored}\n")))
}

fn with_matches(regex: &Regex, text: &str) -> String {
    let paint = |found: &Captures<'_>| match found.get_match().as_str() {
        "" => String::new(),
        text => painted(MATCH, text),
    };
    regex.replace_all(text, paint).into_owned()
}

/// Returns the page of a search answer, with paths in color, and the outcomes of failed calls.
pub(super) fn of_search(answer: &SearchAnswer) -> String {
    let mut files = answer.found.shown.iter().peekable();
    let lines = answer.page.text.split_inclusive('\n').map(|line| {
        let head = files.next_if(|file| {
            line.strip_prefix(file.path.as_str()).is_some_and(|rest| rest.starts_with(", bytes "))
        });
        let Some(file) = head else { return line.to_owned() };
        let rest = line.strip_prefix(file.path.as_str()).unwrap_or(line);
        let word = Outcome::Failed.as_str();
        let rest = match file.outcome {
            Some(Outcome::Failed) => rest.replacen(word, &painted(FAILED, word), 1),
            _ => rest.to_owned(),
        };
        painted(PATH, &file.path) + &rest
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_are_painted_and_the_rest_is_kept() {
        let regex = Regex::new("(?i)é+|x*").unwrap();
        assert_eq!(with_matches(&regex, "aÉéb"), "a\u{1b}[1m\u{1b}[31mÉé\u{1b}[0mb");
        assert_eq!(with_matches(&regex, "ab"), "ab");
    }
}
