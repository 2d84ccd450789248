//! `swarmletfs compare`: prints the common parts and the differences of workers.
//!
//! The output equals `compare/A..B` in the tree. Exit codes are as in diff: 0 if nothing differs
//! and everything was compared, 1 if something differs, 2 for trouble, and also 3 if the time ran
//! out.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::super::exit;
use super::super::terminal::print_message;
use super::super::view_args::{self, ViewArgs};
use super::query::AnswerHead;
use super::{AskingArgs, TimeArgs, TreeReader, json};
use crate::cli::colors::ColorArgs;
use crate::cli::pager::{AnswerKind, PagerArgs};
use crate::query::AnswerPage;
use crate::query::compare::{
    CompareAnswer, CompareOptions, CompareQuery, DiffKind, Fact, FileDiff,
};
use crate::render::prose::ProseAnswer;
use crate::route::parsed_name::has_word;
use crate::text::budget::Budget;
use crate::text::unified;

pub(crate) const HELP: &str = "\
No mount is needed. The answer starts with a line of counts and the facts about the workers, \
with shared ones given once. Then come their final words, outputs, calls, files and logs. Files \
with the same path are shown as a unified diff, - for the first worker and + for the other. Of a \
file that only one worker has, it shows the passages that occur in no file of the others. \
Omitted parts are listed with their location. In a mounted tree, compare/A..B has the same \
content.

--json prints an array with one object: query, complete (false if the time ran out; incomplete \
then says what is missing), workers, shared (facts that hold for all, by name), differing (an \
array with the other facts of each worker), files (path, kind: equal, differs, only_in or \
not_compared, workers that have it, the shown text), calls (text), not_compared (files that \
always differ), left_out (number of differences not shown), or error.

--prose asks a language model for the differences in a few sentences, from this answer; see \
`swarmletfs summarize --help`. With --json, prose is its text.

Examples:
  swarmletfs compare worker-v1 worker-v2              two versions of a report
  swarmletfs compare --aspect 'section 3' v1 v2       only parts with most of these words
  swarmletfs compare -b 2000tok w1 w2 w3              three workers, within 2,000 tokens

Exit code: 0 if their own files and calls are equal, 1 if something differs, 2 for an error, or \
if nothing differs but some files could not be compared, 3 if --max-time ended before everything \
was compared. metadata.json and files ending in .jsonl always differ and do not count.";

/// Prefix that a worker's name may be typed with.
pub(super) const WORKERS: &[u8] = b"workers/";

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Names of two to eight workers, as in workers/
    #[arg(value_name = "WORKER", required = true, num_args = 2..)]
    workers: Vec<OsString>,

    /// Show only parts that contain most of these words
    #[arg(long, value_name = "WORDS", value_parser = words)]
    aspect: Option<String>,

    /// Maximum size of the answer: bytes, optionally with k or M, or tokens, as in 8000tok
    /// [default: 28000]
    #[arg(long, short, value_name = "SIZE", value_parser = view_args::parse_budget)]
    budget: Option<Budget>,

    /// Print JSON: an array of one object
    #[arg(long)]
    json: bool,

    /// Print the words of a language model on the comparison instead
    #[arg(long)]
    prose: bool,

    #[command(flatten)]
    asking: AskingArgs,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    time: TimeArgs,

    #[command(flatten)]
    color: ColorArgs,

    #[command(flatten)]
    pager: PagerArgs,
}

/// Prints the comparison and returns the exit code of diff.
///
/// # Errors
///
/// Fails if a store cannot be found or read, or stdout cannot be written.
pub(crate) fn run(arguments: &CompareArgs) -> anyhow::Result<ExitCode> {
    let asking = arguments.prose.then_some(&arguments.asking);
    let reader = TreeReader::open_asking(&arguments.view, &arguments.time, asking)?;
    let options = CompareOptions { budget: arguments.budget, aspect: arguments.aspect.clone() };
    let query = CompareQuery::new(options, arguments.workers.iter().map(|name| named(name)));
    let (answer, prose) = match arguments.prose {
        true => {
            let renderer = reader.tree.renderer();
            let compared = reader.in_time(|deadline| renderer.compare_prose(&query, deadline))?;
            (compared.0, Some(compared.1))
        }
        false => (reader.tree.compare(&query)?, None),
    };
    if answer.page.text.is_empty() && !arguments.json {
        print_message("the budget is too small for an answer");
    }
    let has_colors = !arguments.json && arguments.color.are_on();
    let mut out = reader.out(arguments.pager, AnswerKind::Diff, has_colors);
    let written = match arguments.json {
        true => json::array(&mut out.stdout, |add| {
            add(&CompareJson::new(&query, &answer, prose.as_ref()))
        }),
        false if has_colors && prose.is_none() => {
            out.text(&unified::paint_comparison(&answer.page.text))
        }
        false => out.text(prose.as_ref().map_or(answer.page.text.as_str(), |prose| &prose.text)),
    };
    match out.close(written) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(code(&answer)),
    }
}

fn code(answer: &CompareAnswer) -> ExitCode {
    match (&answer.page, answer.differs) {
        (AnswerPage { error: Some(_), .. }, _) => exit::trouble(),
        (AnswerPage { missing: Some(_), .. }, _) => exit::timed_out(),
        (_, true) => ExitCode::FAILURE,
        (AnswerPage { is_complete: true, .. }, false) => ExitCode::SUCCESS,
        (_, false) => exit::trouble(),
    }
}

/// Returns the name of a worker that may have been typed as a path.
pub(super) fn named(typed: &OsStr) -> &[u8] {
    let name = typed.as_bytes();
    let name = name.strip_prefix(WORKERS).unwrap_or(name);
    name.strip_suffix(b"/").unwrap_or(name)
}

pub(super) fn words(text: &str) -> Result<String, String> {
    if has_word(text) { Ok(text.to_owned()) } else { Err("it contains no word".into()) }
}

/// Returns the object that `--json` prints for an answer.
///
/// # Errors
///
/// The answer cannot be serialized.
pub fn compare_json(query: &CompareQuery, answer: &CompareAnswer) -> serde_json::Result<String> {
    serde_json::to_string(&CompareJson::new(query, answer, None))
}

#[derive(Debug, Serialize)]
struct CompareJson {
    #[serde(flatten)]
    head: AnswerHead,
    workers: Vec<String>,
    shared: Facts,
    differing: Vec<Facts>,
    files: Vec<CompareFileJson>,
    calls: String,
    not_compared: Vec<String>,
    left_out: usize,
    differs: bool,
    /// Words of a language model, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    prose: Option<String>,
}

type Facts = serde_json::Map<String, serde_json::Value>;

/// A file, or the outputs of corresponding calls.
#[derive(Debug, Serialize)]
struct CompareFileJson {
    path: String,
    kind: &'static str,
    workers: Vec<String>,
    text: String,
}

impl CompareJson {
    fn new(
        query: &CompareQuery,
        answer: &CompareAnswer,
        prose: Option<&ProseAnswer>,
    ) -> CompareJson {
        let CompareAnswer { page, workers, facts, files, calls, always, left_out, differs, .. } =
            answer;
        CompareJson {
            head: AnswerHead::new(query, page),
            workers: workers.iter().map(|name| name.to_text().into_owned()).collect(),
            shared: by_name(&facts.shared),
            differing: facts.per_worker.iter().map(|facts| by_name(facts)).collect(),
            files: files.iter().map(CompareFileJson::new).collect(),
            calls: calls.clone(),
            not_compared: always.clone(),
            left_out: *left_out,
            differs: *differs,
            prose: prose.map(|prose| prose.text.clone()),
        }
    }
}

impl CompareFileJson {
    fn new(file: &FileDiff) -> CompareFileJson {
        CompareFileJson {
            path: file.path.clone(),
            kind: match file.kind {
                DiffKind::Equal => "equal",
                DiffKind::Differs => "differs",
                DiffKind::OnlyIn => "only_in",
                DiffKind::NotCompared => "not_compared",
            },
            workers: file.workers.iter().map(|name| name.to_text().into_owned()).collect(),
            text: file.text.clone(),
        }
    }
}

fn by_name(facts: &[Fact]) -> Facts {
    facts.iter().map(|fact| (fact.label.to_owned(), fact.value.clone().into())).collect()
}
