//! `swarmletfs grep`: prints the lines that match, in all workers, a run, a worker, or files of a
//! worker.
//!
//! For the root, a run or a worker, the output equals its `grep/REGEX`. Exit codes are as in
//! grep: 1 if no line matches and everything was searched, and also 3 if the time ran out.

use std::borrow::Cow;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::super::terminal::print_message;
use super::painted_answer;
use super::query::{self, AnswerHead, QueryArgs, TotalsJson};
use crate::cli::colors;
use crate::query::grep::{FileLines, GrepAnswer, GrepFound, GrepOptions, GrepQuery, ShownLine};

pub(crate) const HELP: &str = "\
No mount is needed. The answer starts with a line of counts, followed by `path:line:text`, \
failed workers first. The budget is divided among all files with a match, and omitted lines are \
counted. In a mounted tree, grep/REGEX has the same content. -l, -L and -c list every file, \
whatever the budget is, -l and -c in the order of the answer. Binary files and those that could \
not be searched to their end are in no list. The regex syntax is that of Rust \
and ripgrep.

--json prints an array with an object for each PATH: query, complete (false if the time ran out; \
incomplete then says what is missing), lines, files, workers (with matching lines), searched \
(workers, files, bytes), not_searched (binary, unreadable, long_line, late, and late_workers: up \
to five ids), shown (worker, path, lines with number, text and matches, and more: the number of \
omitted lines of the file), left_out (files that are not shown, and their lines), or error.

Examples:
  swarmletfs grep 'timeout|refused'              all files of all workers
  swarmletfs grep -i -C 3 error runs/latest      a run, ignoring case, with context
  swarmletfs grep -g '*.md' TODO workers/ID      files of a worker that match a glob
  swarmletfs grep -b 4k panicked                 within 4,096 bytes
  swarmletfs grep -lw fatal by/outcome/failed    paths of the files with this word
  swarmletfs grep -L -g result.md passed         paths of the results without it
  swarmletfs grep -v -g '*.log' '^DEBUG'         lines that do not match

Exit code: 0 if a line matches, 1 if none does, 2 for an error, or if no line matches and some \
files could not be read, 3 if --max-time ended before everything was searched.";

/// Arguments of `grep`.
#[derive(Debug, Args)]
pub(crate) struct GrepArgs {
    /// The regex to search for
    #[arg(value_name = "REGEX")]
    regex: String,

    /// Ignore case
    #[arg(long, short)]
    ignore_case: bool,

    /// Show this many lines before and after each match, up to 100
    #[arg(long, short = 'C', value_name = "LINES", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=100))]
    context: u8,

    /// Treat the regex as literal text
    #[arg(long, short = 'F')]
    fixed_strings: bool,

    /// Match whole words only
    #[arg(long, short)]
    word_regexp: bool,

    /// Find the lines that do not match
    #[arg(long, short = 'v')]
    invert_match: bool,

    /// Print the paths of all files with a match, one per line, and nothing else
    #[arg(long, short = 'l', conflicts_with_all = ["count", "files_without_match", "json"])]
    files_with_matches: bool,

    /// Print the paths of all files without a match, one per line, and nothing else
    #[arg(long, short = 'L', conflicts_with_all = ["count", "json"])]
    files_without_match: bool,

    /// Print the path of each file with a match and the number of its matching lines, and nothing
    /// else
    #[arg(long, short, conflicts_with = "json")]
    count: bool,

    /// No effect: line numbers are always printed
    #[arg(long, short = 'n')]
    line_number: bool,

    /// No effect: folders are always searched with all that is in them
    #[arg(long, short)]
    recursive: bool,

    #[command(flatten)]
    query: QueryArgs,
}

/// Prints the lines that match and returns the exit code of grep.
///
/// # Errors
///
/// Fails if a store cannot be found or read, or stdout cannot be written.
pub(crate) fn run(arguments: &GrepArgs) -> anyhow::Result<ExitCode> {
    let options = GrepOptions {
        ignore_case: arguments.ignore_case,
        invert_match: arguments.invert_match,
        lists_files: arguments.files_with_matches || arguments.count,
        lists_others: arguments.files_without_match,
        context: arguments.context.into(),
        budget: arguments.query.budget,
        glob: arguments.query.glob.clone(),
    };
    let query = GrepQuery { options, regex: regex(arguments), under: None };
    query::run(
        &arguments.query,
        &query,
        "",
        |answer, has_colors| text(arguments, &query, answer, has_colors),
        |answer| GrepJson::new(&query, answer),
    )
}

/// Returns the regex with the options that are part of it.
fn regex(arguments: &GrepArgs) -> String {
    let typed = &arguments.regex;
    let regex = if arguments.fixed_strings { regex::escape(typed) } else { typed.clone() };
    // In a group, an invalid regex such as `a)(b` could become valid. Its error must name it alone.
    if arguments.word_regexp && regex::bytes::Regex::new(&regex).is_ok() {
        return format!(r"\b{{start-half}}(?:{regex})\b{{end-half}}");
    }
    regex
}

/// Returns the answer as text: the page, or the paths of the files with or without a match.
fn text<'a>(
    arguments: &GrepArgs,
    query: &GrepQuery,
    answer: &'a GrepAnswer,
    has_colors: bool,
) -> Cow<'a, str> {
    let is_of_others = arguments.files_without_match;
    let has_list = arguments.files_with_matches || arguments.count || is_of_others;
    if answer.page.error.is_some() || (!has_list && !has_colors) {
        return answer.page.text.as_str().into();
    }
    if !has_list {
        return painted_answer::of_grep(query, answer).into();
    }
    if answer.page.missing.is_some() {
        print_message("not everything was searched; try a longer --max-time");
    }
    let painted = |path: &str| match has_colors {
        true => colors::painted(colors::PATH, path),
        false => path.to_owned(),
    };
    if is_of_others {
        return answer.found.others.iter().map(|path| painted(path) + "\n").collect();
    }
    let line = |(path, lines): &(String, u64)| match arguments.count {
        true => format!("{}:{lines}\n", painted(path)),
        false => painted(path) + "\n",
    };
    answer.found.files.iter().map(line).collect()
}

/// Returns the object that `--json` prints for an answer.
///
/// # Errors
///
/// The answer cannot be serialized.
pub fn grep_json(query: &GrepQuery, answer: &GrepAnswer) -> serde_json::Result<String> {
    serde_json::to_string(&GrepJson::new(query, answer))
}

#[derive(Debug, Serialize)]
struct GrepJson {
    #[serde(flatten)]
    head: AnswerHead,
    lines: u64,
    #[serde(flatten)]
    totals: TotalsJson,
    shown: Vec<GrepFileJson>,
    left_out: LeftOut,
}

#[derive(Debug, Serialize)]
struct LeftOut {
    files: u64,
    lines: u64,
}

#[derive(Debug, Serialize)]
struct GrepFileJson {
    worker: String,
    path: String,
    lines: Vec<GrepLineJson>,
    more: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    also_in: Vec<String>,
}

#[derive(Debug, Serialize)]
struct GrepLineJson {
    number: u64,
    text: String,
    matches: bool,
}

impl GrepJson {
    fn new(query: &GrepQuery, answer: &GrepAnswer) -> GrepJson {
        let GrepAnswer { page, totals, found: GrepFound { shown, .. } } = answer;
        GrepJson {
            head: AnswerHead::new(query, page),
            lines: totals.matches,
            totals: TotalsJson::new(totals, Some(totals.searched.unsearched.long_line)),
            shown: shown.iter().map(GrepFileJson::new).collect(),
            left_out: LeftOut {
                files: totals.files.saturating_sub(shown.len() as u64),
                lines: totals.matches.saturating_sub(shown.iter().map(|file| file.all).sum()),
            },
        }
    }
}

impl GrepFileJson {
    fn new(file: &FileLines) -> GrepFileJson {
        GrepFileJson {
            worker: file.worker.to_text().into_owned(),
            path: file.path.clone(),
            more: file.more(),
            also_in: file.also_in.clone(),
            lines: file.lines.iter().filter_map(GrepLineJson::new).collect(),
        }
    }
}

impl GrepLineJson {
    /// Returns the JSON form of a line, or `None` for a gap, which the line numbers show.
    fn new(line: &ShownLine) -> Option<GrepLineJson> {
        let (line, matches) = match line {
            ShownLine::Match(line) => (line, true),
            ShownLine::Context(line) => (line, false),
            ShownLine::Gap => return None,
        };
        Some(GrepLineJson { number: line.number, text: line.text.clone(), matches })
    }
}
