//! Operations: the work that the program did for a call, as an event reports it.
//!
//! The event names the call. In a script, the operations have IDs of their own, and each is a call.

use std::borrow::Cow;

use super::super::transcript::{Arguments, CallPart, ResultPart, Role, Turn, Verdict};
use super::outcome::is_truncated;
use super::schema::{Content, Payload, StatedChange, StatedChanges};
use swarmletfs_base::model::{AccessKind, FileAccess, Outcome};

/// The prefix of the IDs of operations in a script.
const OWN_PREFIX: &str = "exec-";
pub(super) const PATCH_TOOL: &str = "apply_patch";

pub(super) struct Operation<'a> {
    kind: OperationKind,
    /// The ID of the operation, or of its call.
    pub(super) id: &'a str,
    /// The session that reports it; empty if unknown.
    pub(super) session: &'a str,
    fields: &'a Payload<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperationKind {
    Command,
    Patch,
    Mcp,
    /// A message to another agent.
    Agent,
    /// An operation without an outcome.
    Other,
}

impl<'a> Operation<'a> {
    pub(super) fn new(event: &'a Payload<'a>) -> Option<Operation<'a>> {
        let call = event.call_id.as_str();
        let (kind, fields, id) = match event.kind.as_str() {
            "item_completed" => {
                let item = event.item.0.as_deref()?;
                let kind = match item.kind.as_str() {
                    "CommandExecution" => OperationKind::Command,
                    "FileChange" => OperationKind::Patch,
                    "McpToolCall" => OperationKind::Mcp,
                    "CollabAgentToolCall" => OperationKind::Agent,
                    "UserMessage" | "AgentMessage" | "Reasoning" | "Plan" => return None,
                    _ => OperationKind::Other,
                };
                (kind, item, item.id.as_str())
            }
            "exec_command_end" => (OperationKind::Command, event, call),
            "patch_apply_end" => (OperationKind::Patch, event, call),
            "mcp_tool_call_end" => (OperationKind::Mcp, event, call),
            _ => return None,
        };
        let session = event.thread_id.as_str();
        (!id.is_empty()).then_some(Operation { kind, id, session, fields })
    }

    pub(super) fn is_own_id(id: &str) -> bool {
        id.starts_with(OWN_PREFIX)
    }

    pub(super) fn verdict(&self) -> Option<Verdict> {
        let fields = self.fields;
        let status = match fields.status.as_str() {
            "completed" => Some(Outcome::Ok),
            "failed" | "declined" => Some(Outcome::Failed),
            _ => None,
        };
        let flag = |is_ok: bool| if is_ok { Outcome::Ok } else { Outcome::Failed };
        let outcome = match self.kind {
            OperationKind::Command => {
                if let Some(exit_code) = fields.exit_code.0 {
                    let duration_ms = self.duration_ms();
                    return Some(Verdict { duration_ms, ..Verdict::from_exit_code(exit_code) });
                }
                status
            }
            OperationKind::Patch => fields.success.0.map(flag).or(status),
            OperationKind::Mcp => self.mcp_failed().map(|failed| flag(!failed)).or(status),
            OperationKind::Agent => status,
            OperationKind::Other => None,
        };
        let duration_ms = self.duration_ms();
        outcome.map(|outcome| Verdict { duration_ms, ..Verdict::from_outcome(outcome) })
    }

    fn duration_ms(&self) -> Option<u64> {
        self.fields.duration.0.as_ref().and_then(|duration| duration.millis())
    }

    /// Returns true if the call of an MCP server's tool failed, and `None` if the record does not
    /// state it.
    fn mcp_failed(&self) -> Option<bool> {
        if self.fields.error.0.is_some() {
            return Some(true);
        }
        let result = self.fields.result.0.as_ref()?;
        if result.err.0.is_some() {
            return Some(true);
        }
        let flag = result.is_error.0.or(result.ok.0.as_ref().and_then(|ok| ok.is_error.0));
        flag.or_else(|| result.ok.0.as_ref().map(|_| false))
    }

    fn text(&self) -> Cow<'a, str> {
        let fields = self.fields;
        if self.kind == OperationKind::Mcp {
            let result = fields.result.0.as_ref();
            let content = |content: &'a Content<'a>| content.text("");
            let ok = result.and_then(|result| result.ok.0.as_ref());
            return match (fields.error.0.as_ref(), result, ok) {
                (Some(message), _, _) => Cow::Borrowed(message),
                (None, _, Some(ok)) => content(&ok.content),
                (None, Some(result), None) => match &result.err.0 {
                    Some(message) => Cow::Borrowed(message),
                    None => content(&result.content),
                },
                (None, None, None) => Cow::Borrowed(""),
            };
        }
        let both = [fields.stdout.as_str(), fields.stderr.as_str()];
        match fields.aggregated_output.as_str() {
            "" if both.iter().all(|text| !text.is_empty()) => Cow::Owned(both.concat()),
            "" => both.into_iter().find(|text| !text.is_empty()).unwrap_or_default().into(),
            text => text.into(),
        }
    }

    pub(super) fn result(&self) -> ResultPart<'a> {
        let text = self.text();
        ResultPart {
            call: self.id.into(),
            verdict: self.verdict().unwrap_or_default(),
            truncated: is_truncated(&text),
            text,
            ..ResultPart::default()
        }
    }

    pub(super) fn turns(&self, at_ms: Option<i64>) -> Vec<Turn<'a>> {
        let call = CallPart { id: self.id.into(), name: self.tool(), arguments: self.arguments() };
        let calls = vec![call];
        let call = Turn { role: Role::Assistant, at_ms, calls, ..Turn::default() };
        let result = Turn { at_ms, results: vec![self.result()], ..Turn::default() };
        vec![call, result]
    }

    fn tool(&self) -> Cow<'a, str> {
        let fields = self.fields;
        match self.kind {
            OperationKind::Command => "exec_command".into(),
            OperationKind::Patch => PATCH_TOOL.into(),
            OperationKind::Mcp => {
                let invocation = fields.invocation.0.as_ref();
                let word = |own: &'a str, inner: Option<&'a str>| match own {
                    "" => inner.unwrap_or_default(),
                    own => own,
                };
                let server = word(fields.server.as_str(), invocation.map(|of| of.server.as_str()));
                let tool = word(fields.tool.as_str(), invocation.map(|of| of.tool.as_str()));
                format!("mcp__{server}__{tool}").into()
            }
            OperationKind::Agent | OperationKind::Other => match fields.tool.as_str() {
                "" => fields.kind.as_str().into(),
                tool => tool.into(),
            },
        }
    }

    fn arguments(&self) -> Arguments<'a> {
        let fields = self.fields;
        let inner = fields.invocation.0.as_ref().and_then(|invocation| invocation.arguments);
        let named = match self.kind {
            OperationKind::Command => ("command", fields.command),
            OperationKind::Patch => ("changes", fields.changes),
            OperationKind::Mcp | OperationKind::Agent | OperationKind::Other => {
                return fields.arguments.or(inner).map_or(Arguments::None, Arguments::Json);
            }
        };
        match named {
            (name, Some(value)) => Arguments::Text(format!("{{\"{name}\":{value}}}").into()),
            (_, None) => Arguments::None,
        }
    }

    pub(super) fn changes(&self) -> Option<StatedChanges<'a>> {
        let changes = self.fields.changes.filter(|_| self.kind == OperationKind::Patch)?;
        serde_json::from_str(changes.get()).ok()
    }
}

pub(super) fn changed_files(changes: &StatedChanges<'_>) -> Vec<FileAccess> {
    changes.0.iter().map(|(path, change)| changed_file(path, change)).collect()
}

fn changed_file(path: &str, change: &StatedChange<'_>) -> FileAccess {
    let content_lines = change.content.as_str().lines().count() as u64;
    let signed = |sign: char| {
        let lines = change.unified_diff.as_str().lines();
        lines.filter(|line| line.starts_with(sign)).count() as u64
    };
    let path = match change.move_path.as_str() {
        "" => path,
        moved => moved,
    };
    let (kind, added, removed) = match change.kind.as_str() {
        "add" => (AccessKind::Created, content_lines, 0),
        "delete" => (AccessKind::Edited, 0, content_lines),
        _ => (AccessKind::Edited, signed('+'), signed('-')),
    };
    FileAccess { path: path.to_owned(), kind, added, removed }
}
