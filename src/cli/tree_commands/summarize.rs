//! `swarmletfs summarize`: prints the words of a language model about workers, or their summaries.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::compare::{WORKERS, named, words};
use super::{AskingArgs, CommandOutput, TreeReader, WorkersArgs, json, path_hint, sentence};
use crate::analysis::prose::NoProse;
use crate::cli::exit::UsageError;
use crate::cli::pager::AnswerKind;
use crate::cli::terminal::print_message;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::name::{Name, printable};
use crate::render::prose::{ProseAnswer, WorkerProse};

pub(crate) const HELP: &str = "\
Asks a language model, if --model-command or --model-url names one, for two or three sentences on \
each worker: what it did, how it ended, and what its record does not show. The model gets the \
worker's summary and evidence.txt. Its words are marked as such; a citation of a call that does \
not exist is struck out. Answers are kept, so that an unchanged worker is asked about once. Every \
use is logged (`swarmletfs audit --model`). Without a model, or if it fails, prints the summary.

In a mount with these options, workers/ID/summary.model.txt has the same. No listing has that \
file, so nothing that walks the tree asks a model.

--json prints an array with an object for each worker: worker, model, given (name and bytes of \
the texts that the model got), text, struck_out (number of citations), and error if the model \
gave no answer.

The model is a program with your rights. Give it none of its own tools, since texts of workers may \
try to command it:
  --model-command 'claude -p --safe-mode --no-session-persistence --tools \"\"'
  --model-command 'codex exec --ephemeral --skip-git-repo-check -s read-only -'

Examples:
  swarmletfs summarize w1 --focus 'memory use' --model-url http://127.0.0.1:8080/v1
  swarmletfs summarize --line --run latest --model-command ./model.sh

Exit code: 0 if all workers were summarized, 1 if not, 2 for a usage error.";

/// Number of questions that wait for the model at a time.
const WINDOW: usize = 64;

/// Arguments of `summarize`.
#[derive(Debug, Args)]
pub(crate) struct SummarizeArgs {
    /// The workers; with --line, all workers of the view if none is named
    #[arg(value_name = "WORKER", required_unless_present = "line")]
    workers: Vec<OsString>,

    /// Summarize only as to these words, and give the model the passages that match them
    #[arg(long, value_name = "WORDS", value_parser = words, conflicts_with = "line")]
    focus: Option<String>,

    /// Print one line for each worker: its id, a tab, and the words of the model
    #[arg(long)]
    line: bool,

    /// Print JSON: an array with an object for each worker
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    asking: AskingArgs,

    #[command(flatten)]
    reader: WorkersArgs,
}

#[derive(Debug, Serialize)]
struct ProseJson {
    worker: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    given: Vec<GivenJson>,
    text: String,
    struck_out: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct GivenJson {
    name: String,
    bytes: usize,
}

/// Prints the prose, and returns the exit code.
///
/// # Errors
///
/// Fails if a store cannot be found or read, the model cannot be started, or stdout cannot be
/// written.
pub(crate) fn run(arguments: &SummarizeArgs) -> anyhow::Result<ExitCode> {
    if arguments.line && !arguments.asking.model.is_given() {
        return Err(UsageError(
            "--line needs a language model: try --model-command or --model-url, or `swarmletfs \
             list`"
                .into(),
        )
        .into());
    }
    let WorkersArgs { view, time, .. } = &arguments.reader;
    let reader = TreeReader::open_asking(view, time, Some(&arguments.asking))?;
    let mut out = reader.out(arguments.reader.pager, AnswerKind::Text, false);
    let names = match arguments.workers.as_slice() {
        [] => reader.tree.view().visible().members.iter().map(|it| it.name.clone()).collect(),
        typed => typed.iter().filter_map(|typed| parse(&reader, named(typed))).collect::<Vec<_>>(),
    };
    let form = match arguments.line {
        true => WorkerProse::Line,
        false => WorkerProse::about(arguments.focus.as_deref()),
    };
    let written = match arguments.json {
        true => json::array(&mut out.stdout, |add| {
            answer_each(&reader, &names, &form, |name, answer| add(&ProseJson::new(name, &answer)))
        }),
        false => answer_each(&reader, &names, &form, |name, answer| {
            print(&mut out, arguments.line, names.len() > 1, name, &answer)
        }),
    };
    reader.end(out.close(written))
}

fn parse(reader: &TreeReader, id: &[u8]) -> Option<Name> {
    Name::new(id).inspect_err(|error| fail(reader, id, error)).ok()
}

fn fail(reader: &TreeReader, id: &[u8], error: &Error) {
    let hint = path_hint::suggest(reader, &[WORKERS, id].concat());
    let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
    let (id, reason) = (printable(id), sentence(error));
    print_message(&format!("cannot summarize worker {id}: {reason}{hint}"));
    reader.note_failure();
}

/// Calls `each` with the answer about each worker. The model is asked about several at once.
fn answer_each(
    reader: &TreeReader,
    names: &[Name],
    form: &WorkerProse,
    mut each: impl FnMut(&Name, ProseAnswer) -> io::Result<()>,
) -> io::Result<()> {
    let renderer = reader.tree.renderer();
    for window in names.chunks(WINDOW) {
        let ask = |name: &Name| {
            let question = renderer.worker_question(name, form)?;
            // Only asks: the answer is awaited below.
            renderer.answer(&question, Deadline::passed());
            Ok(question)
        };
        let questions: Vec<_> = window.iter().map(ask).collect();
        for (name, question) in window.iter().zip(questions) {
            match question {
                Ok(question) => {
                    let answer = reader.in_time(|deadline| renderer.answer(&question, deadline));
                    if let Some(why) = problem(&answer) {
                        print_message(&format!("no words of a model on {}: {why}", name.display()));
                        reader.note_failure();
                    }
                    each(name, answer)?;
                }
                Err(error) => fail(reader, name.as_bytes(), &error),
            }
        }
    }
    Ok(())
}

/// Returns the reason why a model that was asked gave no answer.
fn problem(answer: &ProseAnswer) -> Option<String> {
    match &answer.words {
        Ok(_) | Err(NoProse::Unconfigured) => None,
        Err(why) => Some(why.to_string()),
    }
}

fn print(
    out: &mut CommandOutput,
    is_line: bool,
    is_one_of_many: bool,
    name: &Name,
    answer: &ProseAnswer,
) -> io::Result<()> {
    match &answer.words {
        Ok(words) if is_line => {
            let line: Vec<&str> = words.text.split_whitespace().collect();
            writeln!(out.stdout, "{}\t{}", name.display(), line.join(" "))
        }
        Err(_) if is_line => Ok(()),
        _ => {
            if is_one_of_many {
                writeln!(out.stdout, "== {}", name.display())?;
            }
            out.text(&answer.text)
        }
    }
}

impl ProseJson {
    fn new(name: &Name, answer: &ProseAnswer) -> ProseJson {
        let words = answer.words.as_ref().ok();
        let given = words.map(|words| words.given.as_slice()).unwrap_or_default();
        let given =
            given.iter().map(|(name, bytes)| GivenJson { name: name.clone(), bytes: *bytes });
        ProseJson {
            worker: name.to_text().into_owned(),
            model: words.map(|words| words.model.clone()),
            given: given.collect(),
            text: words.map_or_else(|| answer.text.clone(), |words| words.text.clone()),
            struck_out: words.map(|words| words.struck_out).unwrap_or_default(),
            error: answer.words.as_ref().err().map(NoProse::to_string),
        }
    }
}
