//! The format of goose since version 1.10: all sessions are rows of one database. Its columns vary
//! by version; those that are missing count as empty.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::Candidates;
use super::blocks::{MessageBlock, join_lines};
use super::database_files::{DatabaseFiles, DatabaseRecord, is_database};
use super::file_tools::{self, FileTool, FileTools};
use super::lenient::{
    MaybeBool, MaybeI64, MaybeList, MaybeNumber, MaybeObject, MaybeStr, MaybeU64, object,
};
use super::probe::Probe;
use super::transcript::{
    Arguments, CallPart, CallRecord, IndexBuilder, RawRecord, ResultPart, Role, RowLayout,
    TableLayout, TitleSource, TranscriptFormat, TranscriptLocation, Turn, TurnEvent, Verdict,
};
use super::value::{parse_timestamp, parse_utc, unix_millis};
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{FileAccess, FileEdit, Outcome, Status, Tokens};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Store;

static FILES: DatabaseFiles = DatabaseFiles { prefix: b"sessions", tables: &TABLES };
static TABLES: [TableLayout; 1] = [TableLayout {
    conversations: RowLayout {
        table: "sessions",
        conversation: "id",
        message: "",
        content: "working_dir",
        order: &[],
        updated: "",
        json: &["model_config_json"],
    },
    messages: RowLayout {
        table: "messages",
        conversation: "session_id",
        message: "",
        content: "content_json",
        order: &["created_timestamp", "id"],
        updated: "created_timestamp",
        json: &["content_json", "metadata_json"],
    },
    parts: None,
}];
/// The beginnings of results of calls that were not carried out. Older versions flag no error.
const SKIPPED: [&str; 2] = [
    "The user has declined to run this tool.",
    "Let the user know the tool call was skipped in goose chat mode.",
];
/// The answers of a person who does not let a call run.
const DENIALS: [&str; 3] = ["deny_once", "always_deny", "cancel"];
/// The tools of the extension `developer`, as [`file_tool`] names them.
const TOOLS: &FileTools = &[
    ("read", FileTool::Read),
    ("view", FileTool::Read),
    ("write", FileTool::Write),
    ("edit", FileTool::Replace),
    ("str_replace", FileTool::Replace),
    ("insert", FileTool::Replace),
];

/// The row of a session.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct GooseSession<'a> {
    id: MaybeStr<'a>,
    name: MaybeStr<'a>,
    /// The name in older versions.
    description: MaybeStr<'a>,
    user_set_name: MaybeU64,
    session_type: MaybeStr<'a>,
    working_dir: MaybeStr<'a>,
    created_at: MaybeStr<'a>,
    parent_session_id: MaybeStr<'a>,
    model_config_json: MaybeObject<Map<String, Value>>,
    /// Tokens of all prompts, with those that were cached.
    accumulated_input_tokens: MaybeU64,
    accumulated_output_tokens: MaybeU64,
    accumulated_cache_read_tokens: MaybeU64,
    accumulated_cache_write_tokens: MaybeU64,
    accumulated_cost: MaybeNumber,
}

/// The row of a message.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct GooseMessage<'a> {
    role: MaybeStr<'a>,
    created_timestamp: MaybeI64,
    content_json: MaybeList<MaybeObject<GooseBlock<'a>>>,
    metadata_json: MaybeObject<Map<String, Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct GooseBlock<'a> {
    #[serde(rename = "type")]
    kind: MaybeStr<'a>,
    id: MaybeStr<'a>,
    text: MaybeStr<'a>,
    thinking: MaybeStr<'a>,
    /// The text of an error of the API.
    message: MaybeStr<'a>,
    tool_call: MaybeObject<GooseEnvelope<'a>>,
    tool_result: MaybeObject<GooseEnvelope<'a>>,
    /// A question to a person, or the answer.
    data: MaybeObject<Map<String, Value>>,
}

/// A value, or an error.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct GooseEnvelope<'a> {
    status: MaybeStr<'a>,
    value: Option<&'a RawValue>,
    error: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct GooseOutput<'a> {
    content: MaybeList<MaybeObject<GooseContent<'a>>>,
    is_error: MaybeBool,
    structured_content: MaybeObject<GooseCommand>,
}

/// The end of a command.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
struct GooseCommand {
    exit_code: MaybeI64,
    timed_out: MaybeBool,
    output_truncated: MaybeBool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct GooseContent<'a> {
    text: MaybeStr<'a>,
    annotations: MaybeObject<GooseAudience<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct GooseAudience<'a> {
    audience: MaybeList<MaybeStr<'a>>,
}

pub struct Goose;

impl TranscriptFormat for Goose {
    fn name(&self) -> &'static str {
        "goose"
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

    fn states_calls_once(&self) -> bool {
        true
    }

    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool {
        // Rows change in place, and a compaction may replace all of them.
        index.index.restarts = true;
        let message = match FILES.decode::<GooseSession<'_>, GooseMessage<'_>>(record.text) {
            Some(DatabaseRecord::Message(message)) => message,
            Some(DatabaseRecord::Conversation(session)) => {
                add_session(index, &session);
                return true;
            }
            None => return false,
        };
        if !matches!(message.role.as_str(), "user" | "assistant") {
            index.count_unknown_type(message.role.as_str());
        }
        index.add_turns(0, record.span, &[message.turn()]);
        let usage = message.metadata("usage").and_then(|usage| usage.get("inputTokens")?.as_u64());
        if let Some(tokens) = usage {
            let main = &mut index.index.main;
            main.context.add_request(main.last_ms, tokens);
        }
        // A question that another message follows was answered.
        index.clear_status(0);
        for block in message.blocks() {
            match block.action("actionType") {
                "toolConfirmation" | "elicitation" => index.set_status(0, Status::Waiting, None),
                _ if DENIALS.contains(&block.action("permission")) => {
                    let verdict = Verdict::from_outcome(Outcome::NotRun);
                    index.set_verdict(0, block.action("id"), verdict);
                }
                _ => {}
            }
        }
        true
    }

    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>])) {
        let decoded = FILES.decode::<GooseSession<'_>, GooseMessage<'_>>(record.text);
        if let Some(DatabaseRecord::Message(message)) = decoded {
            use_turns(&[message.turn()]);
        }
    }

    fn accessed_files(&self, tool: &str, arguments: &Value) -> Vec<FileAccess> {
        file_tools::accessed_files(TOOLS, file_tool(tool, arguments), arguments)
    }

    fn read_edits(&self, call: &CallRecord<'_>, _result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
        file_tools::asked_edits(self, call, &|tool, arguments| {
            file_tools::edits(TOOLS, file_tool(tool, arguments), arguments)
        })
    }
}

/// Returns the name of a tool in the list of tools for files. An editor with several commands is
/// named by the command.
fn file_tool<'a>(tool: &'a str, arguments: &'a Value) -> &'a str {
    let name = tool.strip_prefix("developer__").unwrap_or(tool);
    let command = arguments.get("command").and_then(Value::as_str);
    if name == "text_editor" { command.unwrap_or_default() } else { name }
}

fn add_session(index: &mut IndexBuilder<'_>, session: &GooseSession<'_>) {
    let facts = &mut index.index.facts;
    IndexBuilder::set_fact(&mut facts.id, session.id.as_str());
    IndexBuilder::set_fact(&mut facts.parent, session.parent_session_id.as_str());
    IndexBuilder::set_fact(&mut facts.cwd, session.working_dir.as_str());
    if session.session_type.as_str() == "sub_agent" {
        IndexBuilder::set_fact(&mut facts.agent_type, "sub_agent");
    }
    let source = match session.user_set_name.0 {
        Some(1) => TitleSource::User,
        _ => TitleSource::Generated,
    };
    index.set_title(source, session.name.non_empty().or_else(|| session.description.non_empty()));
    let created = session.created_at.as_str();
    let created = parse_timestamp(created).or_else(|| parse_utc(created));
    index.index.main.first_ms = created.map(|time| time.as_millisecond());
    let model = session.model_config_json.0.as_ref();
    let model = model.and_then(|model| model.get("model_name")?.as_str());
    index.set_default_model(0, model.unwrap_or_default());
    let cached = [&session.accumulated_cache_read_tokens, &session.accumulated_cache_write_tokens];
    let tokens = Tokens::of_prompt(
        session.accumulated_input_tokens.or_zero(),
        session.accumulated_output_tokens.or_zero(),
        cached.map(|tokens| tokens.or_zero()),
    );
    if tokens != Tokens::default() {
        index.set_total_tokens(0, tokens);
    }
    if let Some(cost) = session.accumulated_cost.as_stated_cost() {
        index.index.main.cost.replace(cost);
    }
}

impl<'a> GooseMessage<'a> {
    fn blocks(&self) -> impl Iterator<Item = &GooseBlock<'a>> {
        self.content_json.0.iter().filter_map(|block| block.0.as_ref())
    }

    fn metadata(&self, name: &str) -> Option<&Value> {
        self.metadata_json.0.as_ref()?.get(name)
    }

    /// Returns the model that wrote the message; empty if the message states none.
    fn model(&self) -> &str {
        let inference = self.metadata("inference");
        let model = |name| inference.and_then(|inference| inference.get(name)?.as_str());
        model("resolvedModel").or_else(|| model("requestedModel")).unwrap_or_default()
    }

    /// Joins the texts of the blocks of a type.
    fn texts<'m>(&'m self, kind: &str, text: fn(&'m GooseBlock<'a>) -> &'m str) -> Cow<'m, str> {
        join_lines(self.blocks().filter(|block| block.kind.as_str() == kind).map(text))
    }

    fn turn(&self) -> Turn<'_> {
        let is_hidden = |name| self.metadata(name).and_then(Value::as_bool) == Some(false);
        let turn = Turn {
            at_ms: self.created_timestamp.0.map(unix_millis),
            thinking: join_lines(self.blocks().map(GooseBlock::thought)),
            results: self.blocks().filter_map(GooseBlock::result_part).collect(),
            calls: self.blocks().filter_map(GooseBlock::call_part).collect(),
            ..Turn::default()
        };
        let text = self.texts("text", |block| block.text.as_str());
        let error = self.texts("error", |block| block.message.as_str());
        let (role, event) = match self.role.as_str() {
            _ if !error.is_empty() => (Role::Assistant, TurnEvent::ApiError),
            "assistant" if !is_hidden("userVisible") || !turn.calls.is_empty() => {
                (Role::Assistant, TurnEvent::Message)
            }
            // The program tells the model that the message before sums up all others.
            "assistant" if !is_hidden("agentVisible") => (Role::System, TurnEvent::Compaction),
            "user" if !is_hidden("userVisible") => (Role::User, TurnEvent::Message),
            _ => (Role::System, TurnEvent::ProgramText),
        };
        Turn {
            role,
            model: if role == Role::Assistant { self.model().into() } else { "".into() },
            is_synthetic: event == TurnEvent::ApiError,
            request: (role == Role::User).then(|| text.clone()),
            text: if error.is_empty() { text } else { error },
            event,
            ..turn
        }
    }
}

impl GooseBlock<'_> {
    fn thought(&self) -> &str {
        if self.kind.as_str() == "reasoning" { self.text.as_str() } else { self.thinking.as_str() }
    }

    /// Returns a field of a question to a person, or of the answer.
    fn action(&self, name: &str) -> &str {
        let field = self.data.0.as_ref().and_then(|data| data.get(name)?.as_str());
        field.unwrap_or_default()
    }

    fn call_part(&self) -> Option<CallPart<'_>> {
        let call = self.tool_call.0.as_ref()?;
        // A call that could not be parsed has no value.
        let request = call.value.and_then(|value| object::<MessageBlock<'_>>(value.get()));
        let request = request.unwrap_or_default();
        let arguments = request.arguments;
        Some(CallPart {
            id: self.id.as_str().into(),
            name: request.name.0.unwrap_or_default(),
            arguments: arguments.map(Arguments::Json).unwrap_or_default(),
        })
    }

    fn result_part(&self) -> Option<ResultPart<'_>> {
        let result = self.tool_result.0.as_ref()?;
        let output = result.value.map(GooseOutput::decode).unwrap_or_default();
        let (text, verdict): (Cow<'_, str>, Verdict) = match result.status.as_str() {
            "success" => (output.text().into_owned().into(), output.verdict()),
            "error" => (result.error.as_str().into(), Verdict::from_outcome(Outcome::Failed)),
            _ => (output.text().into_owned().into(), Verdict::default()),
        };
        let is_skipped = SKIPPED.iter().any(|skipped| text.starts_with(skipped));
        let hint = text.lines().next().filter(|_| is_skipped).map(str::to_owned);
        Some(ResultPart {
            call: self.id.as_str().into(),
            hint: hint.filter(|_| verdict.outcome == Outcome::Ok).map(Cow::Owned),
            verdict,
            truncated: output.command().output_truncated.is_set(),
            text,
            ..ResultPart::default()
        })
    }
}

impl<'a> GooseOutput<'a> {
    /// Decodes an output. In older versions it is only a list of contents.
    fn decode(value: &'a RawValue) -> GooseOutput<'a> {
        object(value.get()).unwrap_or_else(|| GooseOutput {
            content: serde_json::from_str(value.get()).unwrap_or_default(),
            ..GooseOutput::default()
        })
    }

    fn command(&self) -> GooseCommand {
        self.structured_content.0.unwrap_or_default()
    }

    fn verdict(&self) -> Verdict {
        let exit = self.command().exit_code.0.map(Verdict::from_exit_code);
        match self.is_error.is_set() || self.command().timed_out.is_set() {
            true => Verdict { outcome: Outcome::Failed, ..exit.unwrap_or_default() },
            false => exit.unwrap_or_else(|| Verdict::from_outcome(Outcome::Ok)),
        }
    }

    /// Returns the text for the model. Some tools write one for the user beside it.
    fn text(&self) -> Cow<'_, str> {
        let parts = || self.content.0.iter().filter_map(|part| part.0.as_ref());
        let has_own = parts().any(|part| part.is_for_model() && !part.text.as_str().is_empty());
        let wanted = parts().filter(|part| !has_own || part.is_for_model());
        join_lines(wanted.map(|part| part.text.as_str()))
    }
}

impl GooseContent<'_> {
    fn is_for_model(&self) -> bool {
        let audience = self.annotations.0.as_ref().map(|own| own.audience.0.as_slice());
        let audience = audience.unwrap_or_default();
        audience.is_empty() || audience.iter().any(|role| role.as_str() == "assistant")
    }
}
