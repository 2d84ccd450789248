//! `swarmletfs search`: prints the passages that match words best, in all workers, a run, a worker,
//! or files of a worker.
//!
//! For the root, a run or a worker, the output equals its `search/WORDS`. Exit codes are as in
//! grep: 1 if nothing matches and everything was searched, and also 3 if the time ran out.

use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;

use super::painted_answer;
use super::query::{self, AnswerHead, QueryArgs, TotalsJson};
use crate::model::Outcome;
use crate::query::search::{FilePassages, SearchAnswer, SearchMode, SearchOptions, SearchQuery};

pub(crate) const HELP: &str = "\
No mount is needed. The answer starts with a line of counts, followed by the passages, best \
match first: for each file, the shown byte ranges, counted from 0, how its call ended, and the day \
and title of its worker. In a mounted tree, search/WORDS has the same content.

Words are matched by their stems, and a passage need not contain all of them: passages with more \
words, and rarer ones, come first. In WORDS, \"quotes\" enclose a phrase, -word excludes a word \
(--option and -o are words), and worker:GLOB, status:WORD, tool:GLOB, path:GLOB limit the search.

--json prints an array with an object for each PATH: query, complete (false if the time ran out; \
incomplete then says what is missing), passages, files, workers (with one of the words), \
searched (workers, files, bytes), not_searched (binary, unreadable, late, and late_workers: up to \
five ids), same (passages omitted as near duplicates of shown ones), shown (worker, path, \
outcome, day, title, passages, text: first and end in bytes, and text), or error.

Examples:
  swarmletfs search 'connection pool timeout'                all files of all workers
  swarmletfs search 'why the migration failed' runs/latest   a run
  swarmletfs search -b 4k '\"exit code\" tool:bash' workers/ID

Exit code: 0 if something matches, 1 if nothing does, 2 for an error, or if nothing was found \
and some files could not be read, 3 if --max-time ended before everything was searched.";

/// Hint after the message for a path that cannot be searched.
const WORDS_HINT: &str = "; several words are one argument (`search 'connection timeout'`)";

/// Arguments of `search`.
#[derive(Debug, Args)]
pub(crate) struct SearchArgs {
    /// Words, "phrases", -words and filters, as one argument
    #[arg(value_name = "WORDS")]
    words: String,

    /// Ranks passages by their meaning, as semantic/WORDS does: for words that nobody wrote
    #[arg(long)]
    semantic: bool,

    /// Ranks passages by words, by meaning, or by both together
    #[arg(long, value_name = "MODE", value_parser = modes(), conflicts_with = "semantic")]
    mode: Option<SearchMode>,

    #[command(flatten)]
    query: QueryArgs,
}

fn modes() -> impl TypedValueParser<Value = SearchMode> {
    PossibleValuesParser::new(SearchMode::ALL.map(SearchMode::as_str))
        .map(|name| SearchMode::from_name(&name).unwrap_or_default())
}

/// Prints the passages and returns the exit code of grep.
///
/// # Errors
///
/// Fails if a store cannot be found or read, or stdout cannot be written.
pub(crate) fn run(arguments: &SearchArgs) -> anyhow::Result<ExitCode> {
    let mode = match arguments.mode {
        _ if arguments.semantic => SearchMode::Meaning,
        mode => mode.unwrap_or_default(),
    };
    let (budget, glob) = (arguments.query.budget, arguments.query.glob.clone());
    let options = SearchOptions { budget, glob, mode };
    let query = SearchQuery { options, words: arguments.words.clone(), under: None };
    query::run(
        &arguments.query,
        &query,
        WORDS_HINT,
        |answer, has_colors| match has_colors {
            true => painted_answer::of_search(answer).into(),
            false => answer.page.text.as_str().into(),
        },
        |answer| SearchJson::new(&query, answer),
    )
}

/// Returns the object that `--json` prints for an answer.
///
/// # Errors
///
/// The answer cannot be serialized.
pub fn search_json(query: &SearchQuery, answer: &SearchAnswer) -> serde_json::Result<String> {
    serde_json::to_string(&SearchJson::new(query, answer))
}

#[derive(Debug, Serialize)]
struct SearchJson {
    #[serde(flatten)]
    head: AnswerHead,
    passages: u64,
    #[serde(flatten)]
    totals: TotalsJson,
    same: u64,
    shown: Vec<SearchFileJson>,
}

#[derive(Debug, Serialize)]
struct SearchFileJson {
    worker: String,
    path: String,
    outcome: Option<&'static str>,
    /// The day on which the worker began.
    day: Option<String>,
    title: String,
    passages: u64,
    text: Vec<SearchExcerptJson>,
}

/// An excerpt, with its range in bytes.
#[derive(Debug, Serialize)]
struct SearchExcerptJson {
    first: u64,
    end: u64,
    text: String,
}

impl SearchJson {
    fn new(query: &SearchQuery, answer: &SearchAnswer) -> SearchJson {
        SearchJson {
            head: AnswerHead::new(query, &answer.page),
            passages: answer.totals.matches,
            totals: TotalsJson::new(&answer.totals, None),
            same: answer.found.duplicates,
            shown: answer.found.shown.iter().map(SearchFileJson::new).collect(),
        }
    }
}

impl SearchFileJson {
    fn new(file: &FilePassages) -> SearchFileJson {
        let text = file.text.iter().map(|(range, text)| SearchExcerptJson {
            first: range.start,
            end: range.end,
            text: text.to_string(),
        });
        SearchFileJson {
            worker: file.worker.to_text().into_owned(),
            path: file.path.clone(),
            outcome: file.outcome.map(Outcome::as_str),
            day: file.day.clone(),
            title: file.title.clone(),
            passages: file.passages,
            text: text.collect(),
        }
    }
}
