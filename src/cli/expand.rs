//! `swarmletfs expand`: a text from stdin to stdout, with evidence behind every marker in it.

use std::io;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::read_session::{ReadSession, TimeArgs};
use super::store_selection::StoreSelection;
use super::terminal::print_message;
use super::{ViewArgs, exit};
use crate::render::expand::{ExpandError, Form};
use crate::render::{Budget, Renderer};

/// What is said below the options.
pub(super) const HELP: &str = "\
Reads a text from stdin and writes it to stdout. Behind every marker, `[EVIDENCE:run_id=48,job_id=123,worker_id=abc-123]`, \
it puts an empty line and that worker's evidence; everything else stays as it is, byte for byte. A worker's `summary` ends \
with its marker. `-` as run or job agrees with any.

One budget is over all evidence together. It is dealt by need, those that failed first; who has no room is named in a line. \
A marker that was met before points upward. A worker that is not there gives one readable line; a marker whose run or job is \
not the one that is recorded is left as it is.

--format openai, anthropic or langchain: the text is a JSON list of messages (or a request with one under `messages` or \
`input`), and markers count in results of tools only. langchain is what messages_to_dict, dumpd or model_dump write.

Memory does not grow with the text. Behind the first marker up to 4 MiB are held back; of a longer text, each 4 MiB take at \
most half of what is left of the budget.

Examples:
  swarmletfs expand < prompt.txt
  swarmletfs expand --budget 8000tok --format anthropic < messages.json

Exit code: 0, also where a worker is not there; 1 if the text cannot be read, written or is no such JSON (it is given on as it \
is); 2 if it was typed wrongly. What was not expanded is counted on stderr.";

/// What can be said to `expand`.
#[derive(Debug, Args)]
pub(super) struct ExpandArgs {
    /// What stdin is
    #[arg(long, value_enum, default_value = "text")]
    format: Format,

    /// How large all evidence together may be: bytes, with k or M, or tokens, as in 8000tok [default: 28000, and 16000 of each worker]
    #[arg(long, short, value_name = "SIZE", value_parser = Budget::parse)]
    budget: Option<Budget>,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    time: TimeArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// Any text
    Text,
    /// Messages of OpenAI's chat and responses interfaces
    Openai,
    /// Messages of Anthropic's interface
    Anthropic,
    /// Messages of LangChain and LangGraph
    Langchain,
}

/// Copies stdin to stdout, expanded. Errors: a store that cannot be found or read, a text that cannot be expanded.
pub(super) fn run(arguments: &ExpandArgs) -> anyhow::Result<ExitCode> {
    let mut session = ReadSession::start(&arguments.time);
    let view = session.view(&StoreSelection::from_args(&arguments.view)?)?;
    // It prints while it reads.
    drop(session.take_progress());
    let form = match arguments.format {
        Format::Text => Form::Text,
        Format::Openai => Form::OpenAi,
        Format::Anthropic => Form::Anthropic,
        Format::Langchain => Form::LangChain,
    };
    let renderer = Renderer::new(view, session.settings(None));
    match renderer.expand(form, arguments.budget, io::stdin().lock(), io::stdout().lock()) {
        // A reader that has had enough is no failure to speak of.
        Err(ExpandError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(exit::from_write(Err(error))),
        expanded => {
            expanded?.left().iter().for_each(|left| print_message(left));
            Ok(session.exit_code(ExitCode::SUCCESS))
        }
    }
}
