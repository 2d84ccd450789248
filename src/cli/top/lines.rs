//! The workers of the view as they are shown: cleaned texts, and the numbers that order them.

use std::cmp::Ordering;
use std::time::SystemTime;

use crate::name::Name;
use crate::output::board::{BoardGroup, BoardRow};
use crate::store::Time;
use crate::text::clean::one_line;
use crate::text::{age, count, rounded};

/// Maximum length of a text, in bytes: more than a wide screen shows.
const TEXT_MAX: usize = 300;

/// State of a worker that asks a person something. Such workers are the first of their group.
const ASKS: &str = "asks";

/// A worker. Its texts are of one line, without control characters.
#[derive(Debug, Clone)]
pub(super) struct TopWorker {
    pub(super) name: Name,
    /// Number of its store.
    pub(super) store: usize,
    pub(super) group: BoardGroup,
    pub(super) id: String,
    pub(super) state: String,
    /// The time that its age is about: of its request, its last write or its end.
    pub(super) at: Option<Time>,
    pub(super) written: Option<Time>,
    pub(super) failed: usize,
    pub(super) suspect: usize,
    pub(super) calls: String,
    pub(super) tokens: u64,
    pub(super) dollars: f64,
    /// State of its draft; empty without one.
    pub(super) draft: &'static str,
    pub(super) draft_waits: bool,
    pub(super) project: String,
    pub(super) branch: String,
    pub(super) title: String,
    /// The reason why it needs a person, the call that runs, or the cause of its failure.
    pub(super) note: String,
    /// Start of the call in `note`.
    pub(super) call_start: Option<Time>,
    /// Path of its directory in the tree.
    pub(super) path: String,
}

impl TopWorker {
    pub(super) fn new(row: &BoardRow) -> TopWorker {
        let index = &row.index;
        let clean = |text: &str| one_line(text, TEXT_MAX);
        let cleaned = |text: Option<&str>| text.map(clean).unwrap_or_default();
        let (failed, suspect) =
            index.calls.as_ref().map_or((0, 0), |calls| (calls.failed, calls.suspect));
        let call = row.open_call.as_deref().map(RunningCall::parse);
        let reason = || row.reason().or(index.cause.as_deref()).map(str::to_owned);
        let draft = || {
            let draft = index.draft.as_ref().filter(|_| row.draft_waits.is_some())?;
            let files = count(draft.files? as u64, "changed file");
            Some(format!("{files}, +{} -{}", draft.added?, draft.removed?))
        };
        let note = match row.group {
            BoardGroup::Running => {
                let repeats = row.repeats().map(|times| format!("repeats {times}"));
                let call = call.as_ref().map(|call| call.text.clone());
                repeats.into_iter().chain(call).collect::<Vec<_>>().join(" | ")
            }
            _ => reason().or_else(draft).unwrap_or_default(),
        };
        TopWorker {
            name: row.member.name.clone(),
            store: row.member.entry.source(),
            group: row.group,
            id: clean(index.short_id.as_deref().unwrap_or(&index.id)),
            state: clean(&row.state),
            at: match row.group {
                BoardGroup::Running => row.written,
                _ => row.since.map(Time::from).or(row.written),
            },
            written: row.written,
            failed,
            suspect,
            calls: index.calls.as_ref().map_or_else(String::new, |calls| {
                let part = |number: usize, sign| match number {
                    0 => String::new(),
                    number => format!(" {number}{sign}"),
                };
                format!("{}{}{}", calls.total, part(failed, "f"), part(suspect, "s"))
            }),
            tokens: row.total_tokens,
            dollars: index.cost.as_ref().map_or(0.0, |cost| cost.usd),
            draft: index.draft.as_ref().map_or("", |draft| draft.state.as_str()),
            draft_waits: row.draft_waits.is_some(),
            project: cleaned(index.project.as_deref()),
            branch: cleaned(index.branch.as_deref()),
            title: clean(&index.title),
            note: clean(&note),
            call_start: call.and_then(|call| call.start),
            path: clean(&index.path),
        }
    }

    /// Returns true if the worker has `text`, in lower case, in something that is shown.
    pub(super) fn contains(&self, text: &str) -> bool {
        let shown = [&self.id, &self.state, &self.project, &self.branch, &self.title, &self.note];
        shown.iter().any(|words| words.to_lowercase().contains(text))
            || self.draft_waits && "draft".contains(text)
    }

    pub(super) fn tokens_text(&self) -> String {
        if self.tokens == 0 { String::new() } else { rounded(self.tokens) }
    }

    pub(super) fn cost_text(&self) -> String {
        if self.dollars > 0.0 { format!("${:.2}", self.dollars) } else { String::new() }
    }

    pub(super) fn draft_text(&self) -> &'static str {
        if self.draft_waits { self.draft } else { "" }
    }

    /// Returns the note, with the time for which its call runs.
    pub(super) fn note_at(&self, now: SystemTime) -> String {
        match self.call_start.and_then(|start| short_age(start, now)) {
            Some(age) => format!("{age} {}", self.note),
            None => self.note.clone(),
        }
    }
}

/// A call that has begun, as the digest of a worker describes it: `FILE since TIME $ INPUT`.
struct RunningCall {
    start: Option<Time>,
    text: String,
}

impl RunningCall {
    fn parse(text: &str) -> RunningCall {
        let parsed = text.split_once(" since ").and_then(|(file, rest)| {
            let (time, input) = rest.split_once(' ').unwrap_or((rest, ""));
            let start = time.parse::<jiff::Timestamp>().ok()?;
            Some((start, format!("{file} {input}")))
        });
        match parsed {
            Some((start, text)) => RunningCall { start: Some(start.into()), text },
            None => RunningCall { start: None, text: text.to_owned() },
        }
    }
}

/// Returns the time since `time` in a column: `3m`.
pub(super) fn short_age(time: Time, now: SystemTime) -> Option<String> {
    let age = age(time, now)?;
    Some(match age.strip_suffix(" ago") {
        Some(age) => age.to_owned(),
        None => "now".to_owned(),
    })
}

/// Order of the workers in each group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerOrder {
    Newest,
    Failures,
    Cost,
    Tokens,
    Project,
    Title,
}

impl WorkerOrder {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            WorkerOrder::Newest => "newest",
            WorkerOrder::Failures => "failures",
            WorkerOrder::Cost => "cost",
            WorkerOrder::Tokens => "tokens",
            WorkerOrder::Project => "project",
            WorkerOrder::Title => "title",
        }
    }

    pub(super) fn next(self) -> WorkerOrder {
        match self {
            WorkerOrder::Newest => WorkerOrder::Failures,
            WorkerOrder::Failures => WorkerOrder::Cost,
            WorkerOrder::Cost => WorkerOrder::Tokens,
            WorkerOrder::Tokens => WorkerOrder::Project,
            WorkerOrder::Project => WorkerOrder::Title,
            WorkerOrder::Title => WorkerOrder::Newest,
        }
    }

    pub(super) fn compare(self, a: &TopWorker, b: &TopWorker) -> Ordering {
        let asks = |line: &TopWorker| line.state.starts_with(ASKS);
        let newest = || asks(b).cmp(&asks(a)).then(b.at.cmp(&a.at));
        match self {
            WorkerOrder::Newest => newest(),
            WorkerOrder::Failures => {
                (b.failed, b.suspect).cmp(&(a.failed, a.suspect)).then_with(newest)
            }
            WorkerOrder::Cost => b.dollars.total_cmp(&a.dollars).then_with(newest),
            WorkerOrder::Tokens => b.tokens.cmp(&a.tokens).then_with(newest),
            WorkerOrder::Project => {
                (&a.project, &a.branch).cmp(&(&b.project, &b.branch)).then_with(newest)
            }
            WorkerOrder::Title => a.title.cmp(&b.title).then_with(newest),
        }
    }
}
