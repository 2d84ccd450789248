//! `swarmletfs top`: a live view of all workers on a terminal.
//!
//! `reader` reads in threads of its own, so that no key waits for a disk. `state` holds the
//! workers, the selection and the open text, and turns keys into actions; `lines` and `pane` are
//! its parts, and `keys` names the keys. `draw` puts it on a grid of cells. None of them needs a
//! terminal. `screen` owns the terminal and runs the loop.
//!
//! Nothing is written to the terminal unless a cell changed. Texts of workers are cleaned in
//! `lines` and `pane`; nothing else brings them onto the screen.

mod draw;
mod keys;
mod lines;
mod pane;
mod reader;
mod screen;
mod state;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, bail};
use clap::Args;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use self::draw::{ColorTheme, as_text, draw};
use self::lines::TopWorker;
use self::reader::TopReader;
use self::state::TopState;
use super::colors::ColorArgs;
use super::pager;
use super::read_session::{ReadSession, TimeArgs};
use super::store_selection::StoreSelection;
use super::terminal;
use super::tree_commands::json;
use super::tree_commands::list::WorkerFilterArgs;
use super::view_args::ViewArgs;
use crate::output::board::{BoardGroup, BoardRow};
use crate::render::Renderer;

pub(super) const HELP: &str = "\
Shows who needs you on top, with the question and since when; then who runs, with the age of the \
last write, the running call and repeats; then who ended, newest first. Each has its failed (f) \
and suspect (s) calls, and, where there are any, cost, tokens, a draft that waits, project and \
branch. Narrow screens leave out columns; the lines at the bottom describe the selected worker.

? lists the keys, and says why one is off. Enter shows the summary, evidence, calls and diff of a \
worker, / searches all workers or the open text, c compares two, and a applies a draft, after \
showing it and asking. y copies a path of the tree through the terminal (OSC 52). The store is \
read about once a second, less often if it is large.

--json prints one object: needs_you, running and ended, arrays with one worker per line. Its keys \
are those of the workers in index.json, and state, since, open_call, tokens and draft_waits.

Examples:
  swarmletfs top
  swarmletfs top --since 1d --project cli
  swarmletfs top --once
  swarmletfs top --json | jq -r '.needs_you[].id'

Exit code: 0 if the view was quit or printed, 1 if a store cannot be read or there is no terminal, \
2 for a usage error.";

/// Size of a screen that is printed without a terminal, in rows.
const ROWS: u16 = 24;

/// Arguments of `top`.
#[derive(Debug, Args)]
pub(super) struct TopArgs {
    #[command(flatten)]
    filter: WorkerFilterArgs,

    /// Print one screen as text, and end
    #[arg(long, conflicts_with = "json")]
    once: bool,

    /// Print the groups as JSON, and end
    #[arg(long)]
    json: bool,

    /// The colors
    #[arg(long, value_enum, value_name = "THEME", default_value = "default")]
    theme: ColorTheme,

    /// Scroll with the mouse; selecting text then needs Shift
    #[arg(long)]
    mouse: bool,

    #[command(flatten)]
    view: ViewArgs,
}

/// Shows the view until it is quit, or prints it once.
///
/// # Errors
///
/// A store cannot be found or read, or there is no terminal.
pub(super) fn run(arguments: &TopArgs) -> anyhow::Result<ExitCode> {
    let is_printed = arguments.once || arguments.json;
    let has_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !is_printed && !has_terminal {
        bail!("cannot show a view: this is no terminal; try `swarmletfs top --once` or --json");
    }
    let selection = StoreSelection::from_args(&arguments.view)?;
    let query = arguments.filter.query();
    if is_printed {
        let mut session = ReadSession::start(&TimeArgs::default());
        let view = session.view(&selection)?;
        let (rows, _) = Renderer::new(view, session.settings())
            .board(&query)
            .context("cannot read the store")?;
        drop(session.take_progress());
        let text = if arguments.json { as_json(rows)? } else { one_screen(&rows) };
        return pager::print(&text);
    }
    let has_colors = ColorArgs::default().are_on();
    let theme = if has_colors { arguments.theme } else { ColorTheme::None };
    screen::run(TopReader::start(selection, query)?, theme, arguments.mouse)
}

fn one_screen(rows: &[BoardRow]) -> Vec<u8> {
    let mut state = TopState::new();
    state.set_lines(rows.iter().map(TopWorker::new).collect(), String::new());
    let columns = u16::try_from(terminal::width()).unwrap_or(u16::MAX);
    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, terminal::height().unwrap_or(ROWS)));
    draw(&mut state, buffer.area, &mut buffer, ColorTheme::None, SystemTime::now());
    (as_text(&buffer).trim_end().to_owned() + "\n").into_bytes()
}

fn as_json(rows: Vec<BoardRow>) -> io::Result<Vec<u8>> {
    let groups = [
        (BoardGroup::NeedsYou, "{\"needs_you\":"),
        (BoardGroup::Running, ",\"running\":"),
        (BoardGroup::Ended, ",\"ended\":"),
    ];
    let mut out = Vec::new();
    for (group, name) in groups {
        out.write_all(name.as_bytes())?;
        let mut of_group = rows.iter().filter(|row| row.group == group);
        json::array(&mut out, |add| of_group.try_for_each(add))?;
    }
    out.write_all(b"}\n")?;
    Ok(out)
}

#[cfg(test)]
mod tests;
