//! Draws the state on a grid of cells. A state is always a word or a sign, so that no color is
//! needed. Only the rows on the screen are made.

use std::time::SystemTime;

use clap::ValueEnum;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};

use super::lines::{TopWorker, short_age};
use super::pane::{DetailRequest, WorkerPart, clipped, width};
use super::state::{GROUPS, PromptKind, TopState, TypedText};
use crate::name::printable;
use crate::output::board::BoardGroup;
use crate::text::budget::{Demand, allocate};
use crate::text::{count, rounded};

/// Colors of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum ColorTheme {
    #[default]
    Default,
    /// Blue and orange, in place of green and red
    #[value(alias = "colour-blind")]
    ColorBlind,
    /// No colors, as with $NO_COLOR
    None,
}

/// Meaning of a text that may have a color.
#[derive(Debug, Clone, Copy)]
enum Tone {
    Plain,
    Heading,
    Asks,
    Bad,
    Good,
    Dim,
}

impl ColorTheme {
    fn style(self, tone: Tone) -> Style {
        let color = match (self, tone) {
            (ColorTheme::None, _) | (_, Tone::Plain | Tone::Heading | Tone::Dim) => None,
            (_, Tone::Asks) => Some(Color::Yellow),
            (ColorTheme::Default, Tone::Bad) => Some(Color::Red),
            (ColorTheme::Default, Tone::Good) => Some(Color::Green),
            // Of the 256 colors; most people who cannot tell red from green can tell these.
            (ColorTheme::ColorBlind, Tone::Bad) => Some(Color::Indexed(208)),
            (ColorTheme::ColorBlind, Tone::Good) => Some(Color::Indexed(39)),
        };
        let style = color.map_or_else(Style::new, |color| Style::new().fg(color));
        match tone {
            Tone::Heading | Tone::Asks => style.add_modifier(Modifier::BOLD),
            // Not a gray, which is the background in some palettes.
            Tone::Dim => style.add_modifier(Modifier::DIM),
            Tone::Plain | Tone::Bad | Tone::Good => style,
        }
    }
}

/// Height from which the selected worker is described at the bottom, in rows.
const DETAIL_MIN: u16 = 14;
/// Minimum number of rows for three groups.
const GROUPS_MIN: usize = 6;
/// Maximum width of an id, in columns.
const ID_MAX: usize = 12;
const STATE_WIDTH: usize = 12;
const AGE_WIDTH: usize = 5;
/// Minimum width of the title and the note, in columns. Other columns are left out for it.
const TEXT_MIN: usize = 24;
/// Sign of the selected worker, and of the one that is marked for a comparison.
const SELECTED: &str = ">";
const MARKED: &str = "*";

/// Part of the screen that is drawn on.
struct Canvas<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    theme: ColorTheme,
}

impl Canvas<'_> {
    /// Writes a text that is cut at `max` columns. Returns the column after it.
    fn put(&mut self, x: u16, y: u16, text: &str, max: usize, style: Style) -> u16 {
        let Rect { width: columns, height, .. } = self.area;
        if y >= height || x >= columns {
            return x;
        }
        let text = clipped(text, max.min(usize::from(columns - x)));
        self.buffer.set_stringn(x, y, &text, usize::from(columns - x), style).0
    }

    fn line(&mut self, y: u16, text: &str, tone: Tone) {
        self.put(0, y, text, usize::MAX, self.theme.style(tone));
    }

    fn reverse(&mut self, y: u16) {
        let row = Rect { y, height: 1, ..self.area };
        self.buffer.set_style(row, Style::new().add_modifier(Modifier::REVERSED));
    }
}

/// Draws the whole screen.
pub(super) fn draw(
    state: &mut TopState,
    area: Rect,
    buffer: &mut Buffer,
    theme: ColorTheme,
    now: SystemTime,
) {
    let mut canvas = Canvas { buffer, area, theme };
    let Some(bottom) = area.height.checked_sub(1) else { return };
    if state.is_help {
        help(state, &mut canvas);
    } else if state.pane.is_some() {
        pane(state, &mut canvas);
    } else {
        list(state, &mut canvas, now);
    }
    bottom_line(state, &mut canvas, bottom);
}

/// Draws the typed text, a message, or else the keys that act now.
fn bottom_line(state: &TopState, canvas: &mut Canvas<'_>, y: u16) {
    if let Some(TypedText { kind, text }) = &state.typed {
        let sign = match kind {
            PromptKind::SearchSwarm => "search all workers: ",
            PromptKind::SearchText => "search this text: ",
            PromptKind::Filter => "show workers with: ",
        };
        canvas.line(y, &format!("{sign}{}_", printable(text.as_bytes())), Tone::Plain);
        return;
    }
    if !state.message.is_empty() {
        canvas.line(y, &state.message, Tone::Asks);
        return;
    }
    if state.is_help {
        canvas.line(y, "any key goes back", Tone::Dim);
        return;
    }
    let keys = state.keys().filter(|key| !key.word.is_empty());
    let keys = keys.filter(|key| state.why_off(key.command).is_none());
    let mut x = 0;
    for words in keys.map(|key| format!("{} {}", key.keys, key.word)) {
        // A key is shown whole or not at all.
        if usize::from(x) + width(&words) <= usize::from(canvas.area.width) {
            x = canvas.put(x, y, &words, usize::MAX, canvas.theme.style(Tone::Dim)) + 2;
        }
    }
}

fn help(state: &TopState, canvas: &mut Canvas<'_>) {
    let place = if state.pane.is_some() { "this text" } else { "the list" };
    canvas.line(0, &format!("Keys of {place}"), Tone::Heading);
    for (y, key) in (1..canvas.area.height.saturating_sub(1)).zip(state.keys()) {
        let off = state.why_off(key.command).map(|why| format!(" (off: {why})"));
        let tone = if off.is_some() { Tone::Dim } else { Tone::Plain };
        let text = format!("{:<10} {}{}", key.keys, key.text, off.unwrap_or_default());
        canvas.line(y, &text, tone);
    }
}

fn pane(state: &mut TopState, canvas: &mut Canvas<'_>) {
    let Some(pane) = &mut state.pane else { return };
    let body = usize::from(canvas.area.height.saturating_sub(2));
    pane.fit(usize::from(canvas.area.width), body);
    let place = pane.place();
    let part = match &pane.request {
        DetailRequest::Worker(_, shown) => {
            let parts = WorkerPart::ALL.map(|part| match part == *shown {
                true => format!("[{}]", part.as_str()),
                false => part.as_str().to_owned(),
            });
            parts.join(" ")
        }
        _ => String::new(),
    };
    canvas.line(0, &format!("{}  {place}  {part}", pane.title), Tone::Heading);
    let (is_diff, matched) = (pane.is_diff(), pane.matched);
    for (y, row) in (1..).zip(pane.rows()) {
        let tone = match row.text.as_bytes().first() {
            Some(b'+') if is_diff => Tone::Good,
            Some(b'-') if is_diff => Tone::Bad,
            Some(b'@') if is_diff => Tone::Dim,
            _ => Tone::Plain,
        };
        canvas.line(y, &row.text, tone);
        if matched == Some(row.line) {
            canvas.reverse(y);
        }
    }
}

fn list(state: &mut TopState, canvas: &mut Canvas<'_>, now: SystemTime) {
    let height = canvas.area.height;
    canvas.line(0, &heading(state), Tone::Heading);
    let has_detail = height >= DETAIL_MIN;
    let body = usize::from(height.saturating_sub(if has_detail { 4 } else { 2 }));
    let selected = state.selected().map(|line| line.group);
    let mut groups: Vec<(usize, BoardGroup, &str, usize)> = Vec::new();
    for (number, (group, name)) in GROUPS.into_iter().enumerate() {
        let all = state.places(group).len();
        // A small screen shows one group.
        if all > 0 && (body >= GROUPS_MIN || Some(group) == selected) {
            groups.push((number, group, name, all));
        }
    }
    let demands: Vec<Demand> =
        groups.iter().map(|(.., all)| Demand { need: all + 1, weight: 1 }).collect();
    let shares = allocate(&demands, body);
    let mut y = 1;
    for ((number, group, name, all), share) in groups.into_iter().zip(shares) {
        let marked = state.marked.clone();
        let lines = state.on_screen(number, group, share.saturating_sub(1));
        let rows = lines.len();
        let columns = Columns::choose(&lines, usize::from(canvas.area.width));
        columns.heading(canvas, y, &format!("{name} {all}"), group);
        for (y, (is_selected, line)) in (y + 1..).zip(&lines) {
            let sign = match (is_selected, marked.as_ref() == Some(&line.name)) {
                (true, _) => SELECTED,
                (false, true) => MARKED,
                (false, false) => " ",
            };
            columns.line(canvas, y, sign, line, now);
            if *is_selected {
                canvas.reverse(y);
            }
        }
        if Some(group) == selected {
            state.set_page(rows);
        }
        y = y.saturating_add(u16::try_from(rows).unwrap_or(u16::MAX)).saturating_add(1);
    }
    if state.counts().1 == 0 && state.reading.is_empty() {
        let text = match state.counts().0 {
            0 => "no worker in this view yet",
            _ => "no worker matches; Esc drops the filters",
        };
        canvas.line(1, text, Tone::Plain);
    }
    if let (true, Some(line)) = (has_detail, state.selected()) {
        let place = [&line.project, &line.branch].map(|place| place.as_str());
        let place = place.into_iter().filter(|place| !place.is_empty());
        let place: Vec<&str> = [line.id.as_str()].into_iter().chain(place).collect();
        let title = format!("{} | {}", place.join(" | "), line.title);
        canvas.line(height.saturating_sub(3), &title, Tone::Plain);
        canvas.line(height.saturating_sub(2), &line.note_at(now), Tone::Plain);
    }
}

fn heading(state: &TopState) -> String {
    let (all, shown) = state.counts();
    let mut parts = vec!["swarmletfs top".to_owned()];
    if all > 0 || state.reading.is_empty() {
        parts.push(count(all, "worker"));
    }
    if !state.reading.is_empty() {
        parts.push(state.reading.clone());
    }
    let reversed = if state.is_reversed { ", reversed" } else { "" };
    parts.push(format!("by {}{reversed}", state.sort.as_str()));
    let only = GROUPS.iter().find(|(group, _)| Some(*group) == state.only);
    parts.extend(only.map(|(_, name)| format!("only {}", name.to_lowercase())));
    if !state.filter.is_empty() {
        parts.push(format!("with {}", printable(state.filter.as_bytes())));
    }
    if let Some((words, _)) = &state.found {
        parts.push(format!("found by {}", printable(words.as_bytes())));
    }
    if shown < all {
        parts.push(format!("{} shown", rounded(shown as u64)));
    }
    parts.join("  ")
}

/// Returns the text of a worker in a column.
type CellText = fn(&TopWorker) -> String;

/// The columns between the age and the title.
const OPTIONAL: [(&str, CellText); 6] = [
    ("calls", |line| line.calls.clone()),
    ("cost", TopWorker::cost_text),
    ("tokens", TopWorker::tokens_text),
    ("draft", |line| line.draft_text().to_owned()),
    ("project", |line| clipped(&line.project, 14)),
    ("branch", |line| clipped(&line.branch, 18)),
];

/// Columns of a group: those that are not empty in all of its rows, and fit the screen.
struct Columns {
    id: usize,
    /// The widths of the columns of [`OPTIONAL`] that are shown.
    optional: Vec<(usize, &'static str, CellText)>,
    /// Width of the title.
    title: usize,
}

impl Columns {
    fn choose(lines: &[(bool, &TopWorker)], columns: usize) -> Columns {
        let lines = || lines.iter().map(|(_, line)| *line);
        let widest = |cell: &dyn Fn(&TopWorker) -> String| {
            lines().map(|line| width(&cell(line))).max().unwrap_or(0)
        };
        let id = widest(&|line| line.id.clone()).clamp(4, ID_MAX);
        let mut used = SELECTED.len() + id + 1 + STATE_WIDTH + 1 + AGE_WIDTH + 1;
        let mut optional = Vec::new();
        for (name, cell) in OPTIONAL {
            let width = widest(&cell);
            let needed = width.max(name.len()) + 1;
            if width > 0 && used + needed + TEXT_MIN <= columns {
                used += needed;
                optional.push((needed - 1, name, cell));
            }
        }
        let text = columns.saturating_sub(used);
        let has_notes = lines().any(|line| !line.note.is_empty());
        Columns { id, optional, title: if has_notes { text * 2 / 5 } else { text } }
    }

    fn heading(&self, canvas: &mut Canvas<'_>, y: u16, name: &str, group: BoardGroup) {
        let (age, note) = match group {
            BoardGroup::NeedsYou => ("since", "needs"),
            BoardGroup::Running => ("write", "call"),
            BoardGroup::Ended => ("end", "cause"),
        };
        let style = canvas.theme.style(match group {
            BoardGroup::NeedsYou => Tone::Asks,
            _ => Tone::Heading,
        });
        let first = SELECTED.len() + self.id + 1 + STATE_WIDTH;
        let mut cells = vec![(first, name), (AGE_WIDTH, age)];
        cells.extend(self.optional.iter().map(|(width, name, _)| (*width, *name)));
        cells.extend([(self.title, "title"), (usize::MAX, note)]);
        let mut x = 0_usize;
        for (width, text) in cells {
            canvas.put(u16::try_from(x).unwrap_or(u16::MAX), y, text, width, style);
            x = x.saturating_add(width).saturating_add(1);
        }
    }

    fn line(&self, canvas: &mut Canvas<'_>, y: u16, sign: &str, line: &TopWorker, now: SystemTime) {
        let theme = canvas.theme;
        let tone = match line.state.as_str() {
            "failed" | "red" | "contradicted" => Tone::Bad,
            "green" | "ok" => Tone::Good,
            _ if line.group == BoardGroup::NeedsYou => Tone::Asks,
            _ => Tone::Plain,
        };
        let plain = theme.style(Tone::Plain);
        let age = line.at.and_then(|at| short_age(at, now)).unwrap_or_default();
        let mut cells = vec![
            (SELECTED.len(), 0, sign.to_owned(), plain),
            (self.id, 1, line.id.clone(), plain),
            (STATE_WIDTH, 1, line.state.clone(), theme.style(tone)),
            (AGE_WIDTH, 1, age, plain),
        ];
        let optional = self.optional.iter();
        cells.extend(optional.map(|(width, _, cell)| (*width, 1, cell(line), plain)));
        let note = line.note_at(now);
        let title = if note.is_empty() { usize::MAX } else { self.title };
        cells.push((title, 1, line.title.clone(), plain));
        cells.push((usize::MAX, 1, note, plain));
        let mut x = 0_usize;
        for (width, gap, text, style) in cells {
            canvas.put(u16::try_from(x).unwrap_or(u16::MAX), y, &text, width, style);
            x = x.saturating_add(width).saturating_add(gap);
        }
    }
}

/// Returns the screen as lines of text.
pub(super) fn as_text(buffer: &Buffer) -> String {
    let mut out = String::new();
    for y in 0..buffer.area.height {
        let mut line = String::new();
        let mut x = 0;
        while let Some(cell) = buffer.cell((x, y)).filter(|_| x < buffer.area.width) {
            line.push_str(cell.symbol());
            // A wide character covers the cells after it.
            x += u16::try_from(width(cell.symbol())).unwrap_or(1).max(1);
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
