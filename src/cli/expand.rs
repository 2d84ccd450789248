//! `swarmletfs expand`: copies a text and inserts evidence after each marker.

use std::io;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::exit;
use super::read_session::{ReadSession, TimeArgs};
use super::store_selection::StoreSelection;
use super::terminal::print_message;
use super::view_args::{self, ViewArgs};
use crate::render::Renderer;
use crate::render::expand::{ExpandError, InputFormat};
use crate::text::budget::Budget;

pub(super) const HELP: &str = "\
Reads a text from stdin and writes it to stdout. After each marker, \
`[EVIDENCE:run_id=48,job_id=123,worker_id=abc-123]`, it inserts an empty line and the evidence \
of that worker; everything else is copied byte for byte. The `summary` of a worker ends with its \
marker. The run or job `-` matches any.

One budget covers all evidence. It is divided by need, failed workers first; a worker that gets \
no room is named in one line. A repeated marker refers to the first one. An unknown worker gives \
one readable line; a marker whose run or job does not match the recorded one is copied \
unchanged.

--format openai, anthropic or langchain: the text is a JSON list of messages (or a request with \
one under `messages` or `input`), and only markers in tool results count. langchain is the \
output of messages_to_dict, dumpd or model_dump.

Memory use does not grow with the text. After the first marker, up to 4 MiB are buffered; in a \
longer text, each 4 MiB use at most half of the remaining budget.

Examples:
  swarmletfs expand < prompt.txt
  swarmletfs expand --budget 8000tok --format anthropic < messages.json

Exit code: 0, also for an unknown worker; 1 if the text cannot be read or written, or is not \
such JSON (it is then copied unchanged); 2 for a usage error. Markers that were not expanded are \
counted on stderr.";

/// Arguments of `expand`.
#[derive(Debug, Args)]
// `--format` is the format of the text here.
#[command(mut_arg("store_format", |arg| arg.long("store-format")))]
pub(super) struct ExpandArgs {
    /// Format of the input
    #[arg(long, value_enum, default_value = "text")]
    format: MessageFormat,

    /// Maximum size of all evidence together: bytes, optionally with k or M, or tokens, as in
    /// 8000tok [default: 28000, and at most 16000 per worker]
    #[arg(long, short, value_name = "SIZE", value_parser = view_args::parse_budget)]
    budget: Option<Budget>,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    time: TimeArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum MessageFormat {
    /// Any text
    Text,
    /// Messages of OpenAI's chat and responses APIs
    Openai,
    /// Messages of Anthropic's API
    Anthropic,
    /// Messages of LangChain and LangGraph
    Langchain,
}

/// Copies stdin to stdout with evidence inserted.
///
/// # Errors
///
/// Fails if a store cannot be found or read, or if the input cannot be expanded.
pub(super) fn run(arguments: &ExpandArgs) -> anyhow::Result<ExitCode> {
    let mut session = ReadSession::start(&arguments.time);
    let view = session.view(&StoreSelection::from_args(&arguments.view)?)?;
    // Expansion prints while it reads, so the progress line would mix with its output.
    drop(session.take_progress());
    let form = match arguments.format {
        MessageFormat::Text => InputFormat::Text,
        MessageFormat::Openai => InputFormat::OpenAi,
        MessageFormat::Anthropic => InputFormat::Anthropic,
        MessageFormat::Langchain => InputFormat::LangChain,
    };
    let renderer = Renderer::new(view, session.settings());
    match renderer.expand(form, arguments.budget, io::stdin().lock(), io::stdout().lock()) {
        // A closed pipe needs no message.
        Err(ExpandError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(exit::from_write(Err(error)))
        }
        expanded => {
            expanded?.not_expanded().iter().for_each(|left| print_message(left));
            Ok(session.exit_code(ExitCode::SUCCESS))
        }
    }
}
