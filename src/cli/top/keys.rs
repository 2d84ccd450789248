//! The keys, and the commands that they give.

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::pane::WorkerPart;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopCommand {
    Move(isize),
    Page(isize),
    First,
    Last,
    NextGroup,
    Open,
    Search,
    FindNext,
    FindPrevious,
    FilterText,
    NextFilter,
    NextSort,
    Reverse,
    Compare,
    Apply,
    Copy,
    Part(WorkerPart),
    NextPart,
    Back,
    Help,
    Quit,
}

/// The screen on which a key acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyPlace {
    List,
    Pane,
    Both,
}

/// A key as users read about it.
pub(super) struct KeyHelp {
    pub(super) keys: &'static str,
    /// A word for the line at the bottom; empty for keys that are only in the help.
    pub(super) word: &'static str,
    pub(super) text: &'static str,
    pub(super) command: TopCommand,
    pub(super) place: KeyPlace,
}

const fn key(
    keys: &'static str,
    word: &'static str,
    text: &'static str,
    command: TopCommand,
    place: KeyPlace,
) -> KeyHelp {
    KeyHelp { keys, word, text, command, place }
}

/// All keys, the most important ones first.
pub(super) const KEYS: [KeyHelp; 21] = [
    key("?", "help", "this help, or back", TopCommand::Help, KeyPlace::Both),
    key("q", "quit", "quit; in a text, back to the list", TopCommand::Quit, KeyPlace::Both),
    key("Enter", "open", "open the worker, or list those found", TopCommand::Open, KeyPlace::Both),
    key("/", "search", "search all workers, or this text", TopCommand::Search, KeyPlace::Both),
    key("a", "apply", "apply its draft, after a question", TopCommand::Apply, KeyPlace::Both),
    key("c", "compare", "mark a worker; compare it with it", TopCommand::Compare, KeyPlace::List),
    key("Tab", "part", "summary, evidence, calls, diff", TopCommand::NextPart, KeyPlace::Pane),
    key("n", "next", "the next match", TopCommand::FindNext, KeyPlace::Pane),
    key("N", "", "the previous match", TopCommand::FindPrevious, KeyPlace::Pane),
    key("f", "show", "show only one group, or all", TopCommand::NextFilter, KeyPlace::List),
    key("t", "filter", "show only workers with a text", TopCommand::FilterText, KeyPlace::List),
    key("s", "sort", "sort by another column", TopCommand::NextSort, KeyPlace::List),
    key("y", "copy", "copy its path in the tree", TopCommand::Copy, KeyPlace::Both),
    key("r", "", "reverse the order", TopCommand::Reverse, KeyPlace::List),
    key("Tab", "", "to the next group", TopCommand::NextGroup, KeyPlace::List),
    key("1 2 3 4", "", "a part", TopCommand::Part(WorkerPart::Summary), KeyPlace::Pane),
    key("j k ↓ ↑", "", "down, up", TopCommand::Move(1), KeyPlace::Both),
    key("Space b", "", "a page down, up", TopCommand::Page(1), KeyPlace::Both),
    key("g Home", "", "to the beginning", TopCommand::First, KeyPlace::Both),
    key("G End", "", "to the end", TopCommand::Last, KeyPlace::Both),
    key("Esc", "back", "back; in the list, drop the filters", TopCommand::Back, KeyPlace::Both),
];

/// Returns the command of a key, whether it acts on this screen or not.
pub(super) fn command(event: KeyEvent, is_in_pane: bool) -> Option<TopCommand> {
    let is_control = event.modifiers.contains(KeyModifiers::CONTROL);
    Some(match event.code {
        KeyCode::Char('c') if is_control => TopCommand::Quit,
        KeyCode::Char('d' | 'f') if is_control => TopCommand::Page(1),
        KeyCode::Char('u' | 'b') if is_control => TopCommand::Page(-1),
        _ if is_control => return None,
        KeyCode::Char('j') | KeyCode::Down => TopCommand::Move(1),
        KeyCode::Char('k') | KeyCode::Up => TopCommand::Move(-1),
        KeyCode::Char(' ') | KeyCode::PageDown => TopCommand::Page(1),
        KeyCode::Char('b') | KeyCode::PageUp => TopCommand::Page(-1),
        KeyCode::Char('g') | KeyCode::Home => TopCommand::First,
        KeyCode::Char('G') | KeyCode::End => TopCommand::Last,
        KeyCode::Tab if is_in_pane => TopCommand::NextPart,
        KeyCode::Tab => TopCommand::NextGroup,
        KeyCode::Enter => TopCommand::Open,
        KeyCode::Char('/') => TopCommand::Search,
        KeyCode::Char('n') => TopCommand::FindNext,
        KeyCode::Char('N') => TopCommand::FindPrevious,
        KeyCode::Char('t') => TopCommand::FilterText,
        KeyCode::Char('f') => TopCommand::NextFilter,
        KeyCode::Char('s') => TopCommand::NextSort,
        KeyCode::Char('r') => TopCommand::Reverse,
        KeyCode::Char('c') => TopCommand::Compare,
        KeyCode::Char('a') => TopCommand::Apply,
        KeyCode::Char('y') => TopCommand::Copy,
        KeyCode::Char('1') => TopCommand::Part(WorkerPart::Summary),
        KeyCode::Char('2') => TopCommand::Part(WorkerPart::Evidence),
        KeyCode::Char('3') => TopCommand::Part(WorkerPart::Calls),
        KeyCode::Char('4') => TopCommand::Part(WorkerPart::Diff),
        KeyCode::Esc => TopCommand::Back,
        KeyCode::Char('?') => TopCommand::Help,
        KeyCode::Char('q') => TopCommand::Quit,
        _ => return None,
    })
}
