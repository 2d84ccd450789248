//! The shape of rows as JSON.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::MapAccess;
use serde::de::value::MapAccessDeserializer;
use serde_json::value::RawValue;

use super::super::lenient::{
    Lenient, MaybeBool, MaybeI64, MaybeList, MaybeNumber, MaybeObject, MaybeStr, MaybeU64,
    deserialize_lenient,
};

/// A row on a line of its own.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct RowRecord<'a> {
    pub(super) table: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) row: Option<&'a RawValue>,
    pub(super) parts: MaybeList<MaybeObject<PartRow<'a>>>,
}

/// The row of a session.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct SessionRow<'a> {
    pub(super) id: MaybeStr<'a>,
    pub(super) parent_id: MaybeStr<'a>,
    pub(super) fork_session_id: MaybeStr<'a>,
    pub(super) directory: MaybeStr<'a>,
    pub(super) title: MaybeStr<'a>,
    pub(super) agent: MaybeStr<'a>,
    pub(super) model: MaybeObject<ModelRecord<'a>>,
    pub(super) cost: MaybeNumber,
    pub(super) tokens_input: MaybeU64,
    pub(super) tokens_output: MaybeU64,
    pub(super) tokens_reasoning: MaybeU64,
    pub(super) tokens_cache_read: MaybeU64,
    pub(super) tokens_cache_write: MaybeU64,
    pub(super) time_created: MaybeI64,
}

/// The row of a message.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct MessageRow<'a> {
    pub(super) id: MaybeStr<'a>,
    /// In version 2 only.
    #[serde(rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    pub(super) seq: MaybeI64,
    pub(super) time_created: MaybeI64,
    pub(super) data: MaybeObject<MessageRecord<'a>>,
}

/// The row of a part, in version 1.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct PartRow<'a> {
    #[serde(borrow)]
    pub(super) data: MaybeObject<OpencodeBlock<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct MessageRecord<'a> {
    /// In version 1 only.
    pub(super) role: MaybeStr<'a>,
    pub(super) text: MaybeStr<'a>,
    pub(super) content: MaybeList<MaybeObject<OpencodeBlock<'a>>>,
    pub(super) metadata: MaybeObject<Notice<'a>>,
    pub(super) model: MaybeObject<ModelRecord<'a>>,
    #[serde(rename = "modelID")]
    pub(super) model_id: MaybeStr<'a>,
    pub(super) tokens: MaybeObject<TokenRecord>,
    pub(super) cost: MaybeNumber,
    pub(super) finish: MaybeStr<'a>,
    pub(super) error: ErrorRecord<'a>,
    pub(super) time: MaybeObject<MessageTime>,
    /// The outcome of a run.
    pub(super) outcome: MaybeStr<'a>,
    /// Of a compaction.
    pub(super) status: MaybeStr<'a>,
    /// The text of a compaction in version 2. True for the message that holds it in version 1.
    pub(super) summary: TextOrFlag<'a>,
    /// The command that the user ran.
    pub(super) command: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ModelRecord<'a> {
    pub(super) id: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TokenRecord {
    pub(super) input: MaybeU64,
    pub(super) output: MaybeU64,
    pub(super) reasoning: MaybeU64,
    pub(super) cache: MaybeObject<CacheTokens>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct CacheTokens {
    pub(super) read: MaybeU64,
    pub(super) write: MaybeU64,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct MessageTime {
    pub(super) created: MaybeI64,
    pub(super) completed: MaybeI64,
}

/// The report of the end of work in the background.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Notice<'a> {
    #[serde(rename = "shellID")]
    pub(super) shell_id: MaybeStr<'a>,
    #[serde(rename = "childID")]
    pub(super) child_id: MaybeStr<'a>,
    pub(super) state: MaybeStr<'a>,
    pub(super) exit: MaybeI64,
    pub(super) timeout: MaybeBool,
}

/// A text, a thought or a call: an element of `content` in version 2, a part in version 1.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct OpencodeBlock<'a> {
    #[serde(rename = "type")]
    pub(super) kind: MaybeStr<'a>,
    pub(super) text: MaybeStr<'a>,
    /// True if the program wrote the text of a part.
    pub(super) synthetic: MaybeBool,
    id: MaybeStr<'a>,
    name: MaybeStr<'a>,
    /// The ID of a call in version 1.
    #[serde(rename = "callID")]
    call_id: MaybeStr<'a>,
    /// The name of a tool in version 1.
    tool: MaybeStr<'a>,
    pub(super) state: MaybeObject<ToolState<'a>>,
    pub(super) time: MaybeObject<CallTime>,
}

impl OpencodeBlock<'_> {
    /// Returns the ID of a call.
    pub(super) fn id(&self) -> &str {
        if self.id.as_str().is_empty() { self.call_id.as_str() } else { self.id.as_str() }
    }

    /// Returns the name of a tool.
    pub(super) fn tool(&self) -> &str {
        if self.name.as_str().is_empty() { self.tool.as_str() } else { self.name.as_str() }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ToolState<'a> {
    pub(super) status: MaybeStr<'a>,
    #[serde(borrow)]
    pub(super) input: Option<&'a RawValue>,
    pub(super) content: MaybeList<MaybeObject<ResultText<'a>>>,
    pub(super) output: MaybeStr<'a>,
    pub(super) error: ErrorRecord<'a>,
    pub(super) metadata: MaybeObject<CallMetadata<'a>>,
    pub(super) time: MaybeObject<CallTime>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct CallTime {
    created: MaybeI64,
    /// The time at which the call was allowed to run.
    ran: MaybeI64,
    completed: MaybeI64,
    /// The times in version 1.
    start: MaybeI64,
    end: MaybeI64,
}

impl CallTime {
    pub(super) fn begin_ms(self) -> Option<i64> {
        self.ran.0.or(self.created.0).or(self.start.0)
    }

    pub(super) fn end_ms(self) -> Option<i64> {
        self.completed.0.or(self.end.0)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ResultText<'a> {
    pub(super) text: MaybeStr<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct CallMetadata<'a> {
    pub(super) exit: MaybeI64,
    pub(super) timeout: MaybeBool,
    pub(super) error: MaybeBool,
    pub(super) status: MaybeStr<'a>,
    #[serde(rename = "shellID")]
    pub(super) shell_id: MaybeStr<'a>,
    #[serde(rename = "sessionID")]
    pub(super) session_id: MaybeStr<'a>,
    pub(super) truncated: MaybeBool,
    pub(super) files: MaybeList<MaybeObject<OpencodeEditedFile<'a>>>,
    pub(super) filediff: MaybeObject<OpencodeEditedFile<'a>>,
    /// True if the written file was there before.
    pub(super) exists: MaybeBool,
}

/// The change of a file. The names of its fields differ between tools and versions.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct OpencodeEditedFile<'a> {
    file: MaybeStr<'a>,
    #[serde(rename = "filePath")]
    file_path: MaybeStr<'a>,
    patch: MaybeStr<'a>,
    diff: MaybeStr<'a>,
    status: MaybeStr<'a>,
    #[serde(rename = "type")]
    kind: MaybeStr<'a>,
    pub(super) before: MaybeStr<'a>,
    pub(super) after: MaybeStr<'a>,
    #[serde(rename = "movePath")]
    pub(super) move_path: MaybeStr<'a>,
    pub(super) additions: MaybeU64,
    pub(super) deletions: MaybeU64,
}

impl OpencodeEditedFile<'_> {
    pub(super) fn path(&self) -> Option<String> {
        self.file.non_empty().or_else(|| self.file_path.non_empty())
    }

    pub(super) fn diff(&self) -> Option<String> {
        self.patch.non_empty().or_else(|| self.diff.non_empty())
    }

    pub(super) fn is_created(&self) -> bool {
        [&self.status, &self.kind].iter().any(|word| matches!(word.as_str(), "add" | "added"))
    }

    pub(super) fn is_deleted(&self) -> bool {
        [&self.status, &self.kind].iter().any(|word| matches!(word.as_str(), "delete" | "deleted"))
    }
}

/// An error: a text in version 1, else a type and a message.
#[derive(Debug, Default)]
pub(super) struct ErrorRecord<'a> {
    pub(super) kind: Cow<'a, str>,
    pub(super) message: Cow<'a, str>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct OpencodeErrorFields<'a> {
    #[serde(rename = "type", alias = "name")]
    kind: MaybeStr<'a>,
    message: MaybeStr<'a>,
    data: MaybeObject<ErrorData<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ErrorData<'a> {
    message: MaybeStr<'a>,
}

impl ErrorRecord<'_> {
    pub(super) fn is_set(&self) -> bool {
        !self.kind.is_empty() || !self.message.is_empty()
    }
}

impl<'de: 'a, 'a> Lenient<'de> for ErrorRecord<'a> {
    fn from_text(text: Cow<'de, str>) -> Self {
        ErrorRecord { message: text, ..ErrorRecord::default() }
    }

    fn from_object<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        let fields = OpencodeErrorFields::deserialize(MapAccessDeserializer::new(map))?;
        let inner = fields.data.0.and_then(|data| data.message.0);
        Ok(ErrorRecord {
            kind: fields.kind.0.unwrap_or_default(),
            message: fields.message.0.or(inner).unwrap_or_default(),
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct TextOrFlag<'a> {
    pub(super) text: Cow<'a, str>,
    pub(super) is_set: bool,
}

impl<'de: 'a, 'a> Lenient<'de> for TextOrFlag<'a> {
    fn from_text(text: Cow<'de, str>) -> Self {
        TextOrFlag { text, is_set: false }
    }

    fn from_bool(is_set: bool) -> Self {
        TextOrFlag { is_set, ..TextOrFlag::default() }
    }
}

deserialize_lenient! {
    [: 'a, 'a] ErrorRecord<'a>;
    [: 'a, 'a] TextOrFlag<'a>;
}
