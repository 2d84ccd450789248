//! The state of the view, and how keys change it, without a terminal.

use std::collections::HashSet;
use std::ops::Range;

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::keys::{self, KEYS, KeyHelp, KeyPlace, TopCommand};
use super::lines::{TopWorker, WorkerOrder};
use super::pane::{Detail, DetailRequest, Pane, WorkerPart};
use crate::name::{Name, printable};
use crate::output::board::BoardGroup;
use crate::text::clean::one_line;

/// The groups from top to bottom, with their headings.
pub(super) const GROUPS: [(BoardGroup, &str); 3] = [
    (BoardGroup::NeedsYou, "NEEDS YOU"),
    (BoardGroup::Running, "RUNNING"),
    (BoardGroup::Ended, "NEWLY ENDED"),
];

/// Maximum length of typed text, in bytes.
const TYPED_MAX: usize = 200;

/// Work for the owner of the state.
#[derive(Debug, PartialEq)]
pub(super) enum TopAction {
    Quit,
    Read(DetailRequest),
    /// Applies the draft of this worker of the store of this number.
    Apply(Name, usize),
    Copy(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PromptKind {
    SearchSwarm,
    SearchText,
    Filter,
}

/// A text that is being typed.
#[derive(Debug)]
pub(super) struct TypedText {
    pub(super) kind: PromptKind,
    pub(super) text: String,
}

#[derive(Debug)]
pub(super) struct TopState {
    lines: Vec<TopWorker>,
    /// Notice on reading: its progress, or the missing parts; empty if all was read.
    pub(super) reading: String,
    /// Places of the shown workers in `lines`, by group.
    shown: Vec<usize>,
    /// Place of the selected worker in `shown`.
    selected: usize,
    /// False until the first key: the first worker stays selected while the workers are read.
    has_keys: bool,
    /// The first worker of each group on the screen, counted within the group.
    tops: [usize; GROUPS.len()],
    /// Number of workers on the screen.
    page: usize,
    pub(super) sort: WorkerOrder,
    pub(super) is_reversed: bool,
    pub(super) only: Option<BoardGroup>,
    /// Text that shown workers contain.
    pub(super) filter: String,
    /// The words of a search, and the workers that it found.
    pub(super) found: Option<(String, HashSet<Name>)>,
    pub(super) marked: Option<Name>,
    pub(super) typed: Option<TypedText>,
    pub(super) pane: Option<Pane>,
    pub(super) is_help: bool,
    pub(super) message: String,
}

impl TopState {
    pub(super) fn new() -> TopState {
        TopState {
            lines: Vec::new(),
            reading: "reading…".into(),
            shown: Vec::new(),
            selected: 0,
            has_keys: false,
            tops: [0; GROUPS.len()],
            page: 1,
            sort: WorkerOrder::Newest,
            is_reversed: false,
            only: None,
            filter: String::new(),
            found: None,
            marked: None,
            typed: None,
            pane: None,
            is_help: false,
            message: String::new(),
        }
    }

    /// Replaces the workers. `missing` names those not read. Reads the text of the pane
    /// again if its worker has written since.
    pub(super) fn set_lines(
        &mut self,
        lines: Vec<TopWorker>,
        missing: String,
    ) -> Option<TopAction> {
        let written = |lines: &[TopWorker], name: &Name| {
            lines.iter().find(|line| line.name == *name).map(|line| line.written)
        };
        let reread = self.pane.as_ref().filter(|pane| pane.is_read()).and_then(|pane| {
            let DetailRequest::Worker(name, _) = &pane.request else { return None };
            let (before, now) = (written(&self.lines, name), written(&lines, name));
            (before != now).then(|| TopAction::Read(pane.request.clone()))
        });
        let selected = self.selected().filter(|_| self.has_keys).map(|line| line.name.clone());
        self.lines = lines;
        self.reading = missing;
        self.arrange(selected);
        reread
    }

    pub(super) fn set_detail(&mut self, request: &DetailRequest, read: Result<Detail, String>) {
        let Some(pane) = self.pane.as_mut().filter(|pane| pane.request == *request) else { return };
        match read {
            Ok(detail) => pane.set(detail),
            Err(error) => pane.set(Detail { bytes: error.into_bytes(), ..Detail::default() }),
        }
    }

    /// Chooses and orders the shown workers. Selects `selected` if it is among them, or else the
    /// worker that takes its place.
    fn arrange(&mut self, selected: Option<Name>) {
        let TopState { lines, shown, only, filter, found, sort, is_reversed, .. } = self;
        let filter = filter.to_lowercase();
        let admits = |line: &TopWorker| {
            only.is_none_or(|only| only == line.group)
                && (filter.is_empty() || line.contains(&filter))
                && found.as_ref().is_none_or(|(_, found)| found.contains(&line.name))
        };
        let mut order: Vec<(usize, &TopWorker)> =
            lines.iter().enumerate().filter(|(_, line)| admits(line)).collect();
        order.sort_by(|(_, a), (_, b)| {
            let by_key = sort.compare(a, b);
            let by_key = if *is_reversed { by_key.reverse() } else { by_key };
            a.group.cmp(&b.group).then(by_key).then_with(|| a.name.cmp(&b.name))
        });
        let found = selected.and_then(|name| order.iter().position(|(_, line)| line.name == name));
        *shown = order.into_iter().map(|(at, _)| at).collect();
        self.selected = found.unwrap_or(self.selected).min(self.shown.len().saturating_sub(1));
    }

    fn rearrange(&mut self) {
        self.arrange(self.selected().map(|line| line.name.clone()));
    }

    pub(super) fn selected(&self) -> Option<&TopWorker> {
        self.lines.get(*self.shown.get(self.selected)?)
    }

    /// Returns the numbers of all workers and of those that are shown.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.lines.len(), self.shown.len())
    }

    /// Returns the places of the workers of a group in `shown`.
    pub(super) fn places(&self, group: BoardGroup) -> Range<usize> {
        let end = |is_in: fn(BoardGroup, BoardGroup) -> bool| {
            let is_before =
                |at: &usize| self.lines.get(*at).is_some_and(|line| is_in(line.group, group));
            self.shown.partition_point(is_before)
        };
        end(|other, group| other < group)..end(|other, group| other <= group)
    }

    /// Returns the workers of a group for `rows` rows of the screen, each with true if it is
    /// selected. Scrolls so that the selected one is among them.
    pub(super) fn on_screen(
        &mut self,
        number: usize,
        group: BoardGroup,
        rows: usize,
    ) -> Vec<(bool, &TopWorker)> {
        let places = self.places(group);
        let at = Some(self.selected).filter(|at| places.contains(at));
        if let Some(top) = self.tops.get_mut(number) {
            if let Some(at) = at.map(|at| at - places.start) {
                *top = (*top).max((at + 1).saturating_sub(rows)).min(at);
            }
            *top = (*top).min(places.len().saturating_sub(rows));
        }
        let top = self.tops.get(number).map_or(0, |top| *top);
        let on_screen = places.skip(top).take(rows);
        let line = |place: usize| {
            let line = self.lines.get(*self.shown.get(place)?)?;
            Some((at == Some(place), line))
        };
        on_screen.filter_map(line).collect()
    }

    pub(super) fn set_page(&mut self, rows: usize) {
        self.page = rows.max(1);
    }

    /// Returns the keys that are for this screen, whether they act now or not.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static KeyHelp> {
        let place = if self.pane.is_some() { KeyPlace::Pane } else { KeyPlace::List };
        KEYS.iter().filter(move |key| key.place == KeyPlace::Both || key.place == place)
    }

    /// Returns the reason why a command does nothing now; `None` if it acts.
    pub(super) fn why_off(&self, command: TopCommand) -> Option<String> {
        use TopCommand::{
            Apply, Compare, Copy, FilterText, FindNext, FindPrevious, NextFilter, NextGroup,
            NextPart, NextSort, Open, Part, Reverse,
        };
        let (pane, line) = (self.pane.as_ref(), self.line());
        let is_of_worker =
            pane.is_none_or(|pane| matches!(pane.request, DetailRequest::Worker(..)));
        let why = match command {
            NextGroup | NextFilter | FilterText | NextSort | Reverse | Compare
                if pane.is_some() =>
            {
                "it acts in the list; Esc goes back"
            }
            NextPart | Part(_) if pane.is_none() => "it acts in a worker; Enter opens one",
            FindNext | FindPrevious if pane.is_none() => "it acts in a text; Enter opens one",
            FindNext | FindPrevious if pane.is_some_and(|pane| pane.searched.is_empty()) => {
                "nothing was searched here; / searches"
            }
            NextPart | Part(_) | Copy | Apply if !is_of_worker => "this text is not of one worker",
            Open if pane.is_some_and(|pane| !pane.is_read()) => "the text is not read yet",
            Open if pane.is_some_and(|pane| pane.found.is_empty()) => {
                "it lists the workers that a search found; this is no such answer"
            }
            Open | Compare | Apply | Copy if line.is_none() => "no worker is selected",
            Apply => {
                let line = line.filter(|line| !line.draft_waits)?;
                return Some(match line.draft {
                    "" => format!("{} has no draft; `swarmletfs run` makes one", line.id),
                    state => format!("the draft of {} is {state}, so nothing waits", line.id),
                });
            }
            _ => return None,
        };
        Some(why.to_owned())
    }

    /// Acts on a key.
    pub(super) fn press(&mut self, event: KeyEvent) -> Option<TopAction> {
        self.message.clear();
        self.has_keys = true;
        let is_interrupt =
            event.code == KeyCode::Char('c') && event.modifiers.contains(KeyModifiers::CONTROL);
        if is_interrupt {
            return Some(TopAction::Quit);
        }
        if self.typed.is_some() {
            return self.type_key(event);
        }
        if std::mem::take(&mut self.is_help) {
            return None;
        }
        let Some(command) = keys::command(event, self.pane.is_some()) else {
            self.message = format!("{} does nothing; ? lists the keys", key_name(event));
            return None;
        };
        if let Some(why) = self.why_off(command) {
            self.message = format!("{} is off: {why}", key_name(event));
            return None;
        }
        self.act(command)
    }

    pub(super) fn act(&mut self, command: TopCommand) -> Option<TopAction> {
        match command {
            TopCommand::Help => self.is_help = true,
            TopCommand::Search => {
                let is_in_text = self.pane.is_some();
                self.ask(if is_in_text { PromptKind::SearchText } else { PromptKind::SearchSwarm });
            }
            TopCommand::Apply => {
                return self.line().map(|line| TopAction::Apply(line.name.clone(), line.store));
            }
            TopCommand::Copy => {
                let part = match self.pane.as_ref().map(|pane| &pane.request) {
                    Some(DetailRequest::Worker(_, part)) => format!("/{}", part.path()),
                    _ => String::new(),
                };
                let path = self.line()?.path.clone() + &part;
                self.message = format!("copied {path}");
                return Some(TopAction::Copy(path));
            }
            _ if self.pane.is_some() => return self.act_in_pane(command),
            _ => return self.act_in_list(command),
        }
        None
    }

    /// Returns the worker of the pane, or else the selected one.
    fn line(&self) -> Option<&TopWorker> {
        match self.pane.as_ref().map(|pane| &pane.request) {
            Some(DetailRequest::Worker(name, _)) => {
                self.lines.iter().find(|line| line.name == *name)
            }
            _ => self.selected(),
        }
    }

    fn act_in_list(&mut self, command: TopCommand) -> Option<TopAction> {
        let page = isize::try_from(self.page).unwrap_or(isize::MAX);
        match command {
            TopCommand::Quit => return Some(TopAction::Quit),
            TopCommand::Move(rows) => self.move_by(rows),
            TopCommand::Page(pages) => self.move_by(pages.saturating_mul(page)),
            TopCommand::First => self.move_by(isize::MIN),
            TopCommand::Last => self.move_by(isize::MAX),
            TopCommand::NextGroup => {
                let end = self.places(self.selected()?.group).end;
                self.selected = if end < self.shown.len() { end } else { 0 };
            }
            TopCommand::Open => {
                let name = self.selected()?.name.clone();
                return self.open(DetailRequest::Worker(name, WorkerPart::Summary));
            }
            TopCommand::NextFilter => {
                self.only = match self.only {
                    None => Some(BoardGroup::NeedsYou),
                    Some(BoardGroup::NeedsYou) => Some(BoardGroup::Running),
                    Some(BoardGroup::Running) => Some(BoardGroup::Ended),
                    Some(BoardGroup::Ended) => None,
                };
                self.rearrange();
            }
            TopCommand::FilterText => self.ask(PromptKind::Filter),
            TopCommand::NextSort => {
                self.sort = self.sort.next();
                self.rearrange();
            }
            TopCommand::Reverse => {
                self.is_reversed = !self.is_reversed;
                self.rearrange();
            }
            TopCommand::Compare => {
                let (name, id) =
                    self.selected().map(|line| (line.name.clone(), line.id.clone()))?;
                match self.marked.take() {
                    Some(marked) if marked == name => self.message = format!("{id} is not marked"),
                    Some(marked) => return self.open(DetailRequest::Compare(marked, name)),
                    None => {
                        self.message = format!("marked {id}; c on another one compares them");
                        self.marked = Some(name);
                    }
                }
            }
            TopCommand::Back => {
                (self.only, self.found, self.marked) = (None, None, None);
                self.filter.clear();
                self.rearrange();
            }
            _ => {}
        }
        None
    }

    fn act_in_pane(&mut self, command: TopCommand) -> Option<TopAction> {
        let pane = self.pane.as_mut()?;
        match command {
            TopCommand::Quit | TopCommand::Back => self.pane = None,
            TopCommand::Move(rows) => pane.scroll(rows),
            TopCommand::Page(pages) => pane.scroll(pages.saturating_mul(pane.page())),
            TopCommand::First => pane.scroll(isize::MIN),
            TopCommand::Last => pane.scroll(isize::MAX),
            TopCommand::FindNext | TopCommand::FindPrevious => {
                let is_found = pane.find(command == TopCommand::FindPrevious);
                if !is_found {
                    let text = printable(pane.searched.as_bytes());
                    self.message = format!("{text} is not in this text");
                }
            }
            TopCommand::Part(part) => {
                let DetailRequest::Worker(name, _) = &pane.request else { return None };
                let name = name.clone();
                return self.open(DetailRequest::Worker(name, part));
            }
            TopCommand::NextPart => {
                let DetailRequest::Worker(name, part) = &pane.request else { return None };
                let after = WorkerPart::ALL.iter().skip_while(|other| *other != part).nth(1);
                let next = after.copied().unwrap_or(WorkerPart::Summary);
                let name = name.clone();
                return self.open(DetailRequest::Worker(name, next));
            }
            TopCommand::Open => {
                let found = pane.found.iter().cloned().collect();
                if let DetailRequest::Search(words) = &pane.request {
                    self.found = Some((words.clone(), found));
                }
                self.pane = None;
                self.rearrange();
            }
            _ => {}
        }
        None
    }

    fn open(&mut self, request: DetailRequest) -> Option<TopAction> {
        let id = |name: &Name| {
            let line = self.lines.iter().find(|line| line.name == *name);
            line.map_or_else(|| name.display(), |line| line.id.clone())
        };
        let title = match &request {
            DetailRequest::Worker(name, _) => id(name),
            DetailRequest::Compare(a, b) => format!("compare {} {}", id(a), id(b)),
            DetailRequest::Search(words) => format!("search {}", one_line(words, TYPED_MAX)),
        };
        self.pane = Some(Pane::new(request.clone(), title));
        Some(TopAction::Read(request))
    }

    fn move_by(&mut self, rows: isize) {
        let last = self.shown.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(rows).min(last);
    }

    fn ask(&mut self, kind: PromptKind) {
        let text = if kind == PromptKind::Filter { self.filter.clone() } else { String::new() };
        self.typed = Some(TypedText { kind, text });
    }

    fn type_key(&mut self, event: KeyEvent) -> Option<TopAction> {
        let typed = self.typed.as_mut()?;
        let is_plain = !event.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
        match event.code {
            KeyCode::Char(c) if is_plain && typed.text.len() < TYPED_MAX => typed.text.push(c),
            KeyCode::Char('u') if !is_plain => typed.text.clear(),
            KeyCode::Backspace => drop(typed.text.pop()),
            KeyCode::Esc => self.typed = None,
            KeyCode::Enter => {
                let TypedText { kind, text } = self.typed.take()?;
                return self.enter(kind, text);
            }
            _ => {}
        }
        if let Some(typed) = self.typed.as_ref().filter(|typed| typed.kind == PromptKind::Filter) {
            self.filter.clone_from(&typed.text);
            self.rearrange();
        }
        None
    }

    fn enter(&mut self, kind: PromptKind, text: String) -> Option<TopAction> {
        match kind {
            PromptKind::SearchSwarm if !text.trim().is_empty() => {
                return self.open(DetailRequest::Search(text));
            }
            PromptKind::SearchText => {
                let pane = self.pane.as_mut()?;
                pane.searched = text.to_lowercase();
                pane.matched = None;
                if !text.is_empty() && !pane.find(false) {
                    self.message = format!("{} is not in this text", printable(text.as_bytes()));
                }
            }
            PromptKind::SearchSwarm | PromptKind::Filter => {}
        }
        None
    }
}

fn key_name(event: KeyEvent) -> String {
    let name = match event.code {
        KeyCode::Char(' ') => "Space".to_owned(),
        KeyCode::Char(c) => printable(c.to_string().as_bytes()),
        code => format!("{code:?}"),
    };
    let is_control = event.modifiers.contains(KeyModifiers::CONTROL);
    if is_control { format!("Ctrl-{name}") } else { name }
}
