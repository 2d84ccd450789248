//! The tables of opencode's database, and its name.

use super::super::database_files::DatabaseFiles;
use super::super::transcript::{RowLayout, TableLayout};

const SESSION_JSON: [&str; 6] =
    ["fork_boundary", "metadata", "model", "permission", "revert", "summary_diffs"];

/// The databases. Their names end in the name of a channel. The tables of version 2 come first, and
/// then those that version 1 has.
pub(super) static FILES: DatabaseFiles = DatabaseFiles { prefix: b"opencode", tables: &TABLES };

static TABLES: [TableLayout; 2] = [
    TableLayout {
        conversations: sessions("session_v2"),
        messages: RowLayout { order: &["seq"], ..messages("session_message") },
        parts: None,
    },
    TableLayout {
        conversations: sessions("session"),
        messages: RowLayout { order: &["time_created", "id"], ..messages("message") },
        parts: Some(RowLayout { message: "message_id", ..messages("part") }),
    },
];

const fn sessions(table: &'static str) -> RowLayout {
    RowLayout {
        table,
        conversation: "id",
        message: "",
        content: "",
        order: &[],
        updated: "time_updated",
        json: &SESSION_JSON,
    }
}

const fn messages(table: &'static str) -> RowLayout {
    RowLayout {
        table,
        conversation: "session_id",
        message: "id",
        content: "data",
        order: &["id"],
        updated: "time_updated",
        json: &["data"],
    }
}
