//! The format of Crush: the sessions of a project are rows of one database.

use std::borrow::Cow;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::Candidates;
use super::blocks::join_lines;
use super::codex::diff_edit;
use super::database_files::{DatabaseFiles, DatabaseRecord, is_database};
use super::file_tools::{self, FileTool, FileTools};
use super::lenient::{
    MaybeBool, MaybeI64, MaybeList, MaybeNumber, MaybeObject, MaybeStr, MaybeU64, object,
};
use super::probe::Probe;
use super::transcript::{
    Arguments, CallPart, CallRecord, IndexBuilder, RawRecord, ResultPart, Role, RowLayout, Stage,
    TableLayout, TitleSource, TranscriptFormat, TranscriptLocation, Turn, TurnEvent, Verdict,
    shorten_id,
};
use super::value::unix_millis;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{FileAccess, FileEdit, Outcome, Status, Tokens};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Store;

static FILES: DatabaseFiles = DatabaseFiles { prefix: b"crush", tables: &TABLES };
static TABLES: [TableLayout; 1] = [TableLayout {
    conversations: RowLayout {
        table: "sessions",
        conversation: "id",
        message: "",
        content: "prompt_tokens",
        order: &[],
        updated: "updated_at",
        json: &[],
    },
    messages: RowLayout {
        table: "messages",
        conversation: "session_id",
        message: "",
        content: "parts",
        // IDs are random. Rows of the same second are in the order in which they were added.
        order: &["created_at"],
        updated: "updated_at",
        json: &["parts"],
    },
    parts: None,
}];
/// The beginning of the prompt with which the program goes on after a summary.
const CONTINUED: &str = "The previous session was interrupted because it got too long, ";
/// The beginnings of the line after the output of a command that failed. No field says so.
const FAILURES: [&str; 2] = ["Exit code ", "Command was aborted before completion"];
/// The mark between that line and the directory of the command.
const DIRECTORY: &str = "\n\n<cwd>";
const JOB_KILL: &str = "job_kill";
const TOOLS: &FileTools = &[
    ("view", FileTool::Read),
    ("edit", FileTool::Replace),
    ("multiedit", FileTool::Replace),
    ("write", FileTool::Write),
];

/// The row of a session.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct CrushSession<'a> {
    id: MaybeStr<'a>,
    parent_session_id: MaybeStr<'a>,
    title: MaybeStr<'a>,
    /// The tokens of the last request.
    prompt_tokens: MaybeU64,
    completion_tokens: MaybeU64,
    /// The cost of all requests, also by agents that the session started.
    cost: MaybeNumber,
    created_at: MaybeI64,
}

/// The row of a message.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct CrushMessage<'a> {
    role: MaybeStr<'a>,
    model: MaybeStr<'a>,
    created_at: MaybeI64,
    is_summary_message: MaybeU64,
    parts: MaybeList<MaybeObject<CrushPart<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct CrushPart<'a> {
    #[serde(rename = "type")]
    kind: MaybeStr<'a>,
    data: MaybeObject<CrushData<'a>>,
}

/// The fields of parts of all types.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct CrushData<'a> {
    text: MaybeStr<'a>,
    thinking: MaybeStr<'a>,
    /// A command that the user ran.
    command: MaybeStr<'a>,
    id: MaybeStr<'a>,
    name: MaybeStr<'a>,
    /// The arguments of a call, as JSON.
    input: MaybeStr<'a>,
    /// False while the arguments are being written.
    finished: MaybeBool,
    tool_call_id: MaybeStr<'a>,
    content: MaybeStr<'a>,
    /// The metadata of a result, as JSON.
    metadata: MaybeStr<'a>,
    is_error: MaybeBool,
    reason: MaybeStr<'a>,
    message: MaybeStr<'a>,
    details: MaybeStr<'a>,
    time: MaybeI64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct CrushMetadata<'a> {
    start_time: MaybeI64,
    end_time: MaybeI64,
    working_directory: MaybeStr<'a>,
    background: MaybeBool,
    shell_id: MaybeStr<'a>,
    /// True if work in the background has ended.
    done: MaybeBool,
    hook: MaybeObject<CrushHook<'a>>,
    diff: MaybeStr<'a>,
    /// The whole file before and after a change. An empty one is left out.
    old_content: MaybeStr<'a>,
    new_content: MaybeStr<'a>,
}

/// The decision of the user's hooks on a call.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct CrushHook<'a> {
    decision: MaybeStr<'a>,
    halt: MaybeBool,
}

pub struct Crush;

impl TranscriptFormat for Crush {
    fn name(&self) -> &'static str {
        "crush"
    }

    fn find_transcripts(&self, store: &dyn Store) -> Result<Candidates> {
        FILES.find_transcripts(store)
    }

    fn recognizes(&self, probe: &Probe<'_>) -> bool {
        FILES.recognizes(probe)
    }

    fn must_be_recognized(&self, path: &RelPath) -> bool {
        is_database(path)
    }

    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        FILES.locate(path)
    }

    fn states_status(&self) -> bool {
        true
    }

    fn states_calls_once(&self) -> bool {
        true
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        // Rows change in place while an answer is written.
        index.index.restarts = true;
        let message = match FILES.decode::<CrushSession<'_>, CrushMessage<'_>>(record.text) {
            Some(DatabaseRecord::Message(message)) => message,
            Some(DatabaseRecord::Conversation(session)) => {
                add_session(index, &session);
                return true;
            }
            None => return false,
        };
        let turns = message.turns();
        let is_request = turns.iter().any(|turn| turn.role == Role::User && !turn.text.is_empty());
        index.add_turns(0, record.span, &turns);
        match message.role.as_str() {
            "assistant" => note_end(index, &message),
            // Only a prompt begins the next answer, as a result may follow the end.
            "user" if is_request => index.set_status(0, Status::Running, None),
            "user" | "tool" | "system" => {}
            other => index.count_unknown_type(other),
        }
        message.data("tool_result").for_each(|result| note_result(index, result));
        true
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        let decoded = FILES.decode::<CrushSession<'_>, CrushMessage<'_>>(record.text);
        if let Some(DatabaseRecord::Message(message)) = decoded {
            use_turns(&message.turns());
        }
    }

    fn accessed_files(&self, tool: &str, arguments: &Value) -> Vec<FileAccess> {
        file_tools::accessed_files(TOOLS, tool, arguments)
    }

    fn asks_person_for(&self, tool: &str) -> Option<&'static str> {
        (tool == "question").then_some("an answer")
    }

    fn read_edits(&self, call: &CallRecord<'_>, result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
        let mut edits = file_tools::read_edits(self, TOOLS, call)?;
        let decoded = FILES.decode::<CrushSession<'_>, CrushMessage<'_>>(result.text);
        let Some(DatabaseRecord::Message(message)) = decoded else { return Ok(edits) };
        let mut results = message.data("tool_result");
        let own = results.find(|own| shorten_id(own.tool_call_id.as_str()) == call.id);
        if let (Some(own), [edit]) = (own, edits.as_mut_slice()) {
            own.metadata().state(edit);
        }
        Ok(edits)
    }
}

fn add_session(index: &mut IndexBuilder<'_>, session: &CrushSession<'_>) {
    let facts = &mut index.index.facts;
    IndexBuilder::set_fact(&mut facts.id, session.id.as_str());
    IndexBuilder::set_fact(&mut facts.parent, session.parent_session_id.as_str());
    let is_agent = facts.parent.is_some();
    index.set_title(TitleSource::Generated, session.title.non_empty());
    index.index.main.first_ms = session.created_at.0.map(unix_millis);
    let tokens = Tokens {
        input: session.prompt_tokens.or_zero(),
        output: session.completion_tokens.or_zero(),
        ..Tokens::default()
    };
    if tokens != Tokens::default() {
        index.set_total_tokens(0, tokens);
    }
    // The session that started an agent also states the agent's cost.
    if let Some(cost) = session.cost.as_stated_cost().filter(|_| !is_agent) {
        index.index.main.cost.replace(cost);
    }
}

/// Sets the status that an answer states. One without an end is being written, or was left so.
fn note_end(index: &mut IndexBuilder<'_>, message: &CrushMessage<'_>) {
    if message.is_summary() {
        return;
    }
    let end = message.data("finish").next();
    let reason = end.map(|end| end.reason.as_str()).unwrap_or_default();
    match reason {
        "" | "tool_use" => index.set_status(0, Status::Running, None),
        "end_turn" => index.set_status(0, Status::Completed, None),
        "error" | "content_filter" => index.set_status(0, Status::Failed, Some(reason)),
        _ => index.set_status(0, Status::Unknown, Some(reason)),
    }
    let time = end.and_then(|end| end.time.0).filter(|time| *time > 0).map(unix_millis);
    let main = &mut index.index.main;
    main.last_ms = main.last_ms.max(time);
}

fn note_result(index: &mut IndexBuilder<'_>, result: &CrushData<'_>) {
    let metadata = result.metadata();
    if metadata.done.is_set() || result.name.as_str() == JOB_KILL && !result.is_error.is_set() {
        index.stop_task(0, metadata.shell_id.as_str());
    }
    // The database does not name its project. Commands run in its directory, or in one inside.
    let Some(directory) = metadata.working_directory.non_empty() else { return };
    let known = &mut index.index.facts.cwd;
    if known.as_ref().is_some_and(|known| Path::new(known).starts_with(&directory)) {
        *known = None;
    }
    IndexBuilder::set_fact(known, &directory);
}

impl<'a> CrushMessage<'a> {
    /// Returns the parts of a type.
    fn data(&self, kind: &str) -> impl Iterator<Item = &CrushData<'a>> {
        let parts = self.parts.0.iter().filter_map(|part| part.0.as_ref());
        parts.filter(move |part| part.kind.as_str() == kind).filter_map(|part| part.data.0.as_ref())
    }

    fn is_summary(&self) -> bool {
        self.is_summary_message.0 == Some(1)
    }

    fn turns(&self) -> Vec<Turn<'_>> {
        let at_ms = self.created_at.0.map(unix_millis);
        let turn = Turn { at_ms, ..Turn::default() };
        let text = join_lines(self.data("text").map(|data| data.text.as_str()));
        let turn = match self.role.as_str() {
            "assistant" if self.is_summary() => {
                Turn { role: Role::System, text, event: TurnEvent::Compaction, ..turn }
            }
            "assistant" => Turn {
                role: Role::Assistant,
                model: self.model.as_str().into(),
                text,
                thinking: join_lines(self.data("reasoning").map(|data| data.thinking.as_str())),
                calls: self.data("tool_call").map(CrushData::call_part).collect(),
                ..turn
            },
            "user" if !text.trim().is_empty() && !text.starts_with(CONTINUED) => {
                Turn { request: Some(text.clone()), text, ..turn }
            }
            "user" if text.is_empty() => {
                let text = join_lines(self.data("shell_command").map(|data| data.command.as_str()));
                Turn { role: Role::System, text, event: TurnEvent::ProgramText, ..turn }
            }
            "tool" => {
                let results = self.data("tool_result").map(|result| Turn {
                    at_ms: result.metadata().end_time.0.map(unix_millis).or(at_ms),
                    results: vec![result.result_part()],
                    ..Turn::default()
                });
                return results.collect();
            }
            _ => Turn { event: TurnEvent::ProgramText, text, ..turn },
        };
        let end = self.data("finish").next().filter(|_| !self.is_summary());
        std::iter::once(turn).chain(end.and_then(|end| end.end_turn(at_ms))).collect()
    }
}

impl CrushData<'_> {
    fn metadata(&self) -> CrushMetadata<'_> {
        object(self.metadata.as_str()).unwrap_or_default()
    }

    fn call_part(&self) -> CallPart<'_> {
        CallPart {
            id: self.id.as_str().into(),
            name: self.name.as_str().into(),
            arguments: match self.finished.0 {
                Some(false) => Arguments::None,
                _ => Arguments::Text(self.input.as_str().into()),
            },
        }
    }

    fn result_part(&self) -> ResultPart<'_> {
        let metadata = self.metadata();
        let took = metadata.start_time.0.zip(metadata.end_time.0);
        let took = took.and_then(|(from, to)| u64::try_from(to.checked_sub(from)?).ok());
        let job = metadata.shell_id.as_str();
        let is_receipt = metadata.background.is_set() && !job.is_empty();
        let outcome = match self.is_error.0 {
            Some(true) if metadata.is_denied() => Outcome::NotRun,
            Some(true) => Outcome::Failed,
            Some(false) if !is_receipt => Outcome::Ok,
            _ => Outcome::Unknown,
        };
        let text = self.content.as_str();
        let output = text.rsplit_once(DIRECTORY).map_or(text, |(output, _)| output);
        let last = output.lines().next_back().unwrap_or_default();
        let is_failure = !metadata.working_directory.as_str().is_empty()
            && FAILURES.iter().any(|failure| last.starts_with(failure));
        ResultPart {
            call: self.tool_call_id.as_str().into(),
            text: text.into(),
            verdict: Verdict {
                duration_ms: took.filter(|_| !is_receipt),
                ..Verdict::from_outcome(outcome)
            },
            stage: match is_receipt {
                true => Stage::Started(Cow::Owned(job.to_owned())),
                false => Stage::Done,
            },
            hint: (is_failure && outcome == Outcome::Ok).then(|| Cow::Owned(last.to_owned())),
            ..ResultPart::default()
        }
    }

    /// Returns the turn for the error or the stop with which an answer ended.
    fn end_turn(&self, at_ms: Option<i64>) -> Option<Turn<'_>> {
        let text = join_lines([&self.message, &self.details].into_iter().map(|text| text.as_str()));
        let text = if text.is_empty() { self.reason.as_str().into() } else { text };
        let at_ms = self.time.0.filter(|time| *time > 0).map(unix_millis).or(at_ms);
        let turn = Turn { role: Role::System, at_ms, text, ..Turn::default() };
        match self.reason.as_str() {
            "canceled" => Some(Turn { event: TurnEvent::Interruption, ..turn }),
            "error" | "content_filter" => Some(Turn {
                role: Role::Assistant,
                is_synthetic: true,
                event: TurnEvent::ApiError,
                ..turn
            }),
            _ => None,
        }
    }
}

impl CrushMetadata<'_> {
    fn is_denied(&self) -> bool {
        let hook = self.hook.0.as_ref();
        hook.is_some_and(|hook| hook.halt.is_set() || hook.decision.as_str() == "deny")
    }

    /// Replaces a change that a call asked for by the one that was made, if it is stated.
    fn state(&self, edit: &mut FileEdit) {
        let path = std::mem::take(&mut edit.path);
        let (before, after) = (self.old_content.non_empty(), self.new_content.non_empty());
        if before.is_some() || after.is_some() {
            let created = before.is_none();
            let after = Some(after.unwrap_or_default());
            *edit = FileEdit { before, after, created, ..FileEdit::default() };
        } else if !self.diff.as_str().is_empty() {
            *edit = diff_edit(self.diff.as_str());
        }
        edit.path = path;
    }
}
