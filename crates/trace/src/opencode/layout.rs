//! The tables of opencode's database, and where it lies.

use super::super::Candidates;
use super::super::probe::Probe;
use super::super::sqlite::MAGIC;
use super::super::transcript::{
    Container, Holds, RowLayout, Shape, TableLayout, TranscriptLocation, has_tables,
};
use super::super::walk::walk;
use swarmletfs_base::error::Result;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, Store};

const SUFFIX: &[u8] = b".db";
/// The beginning of the names that the program gives its database, by channel.
const OWN_PREFIX: &[u8] = b"opencode";
const SESSION_JSON: [&str; 6] =
    ["fork_boundary", "metadata", "model", "permission", "revert", "summary_diffs"];

/// The tables of version 2, and of version 1.
pub(super) static TABLES: [TableLayout; 2] = [
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
        order: &["id"],
        updated: "time_updated",
        json: &["data"],
    }
}

pub(super) fn is_database(path: &RelPath) -> bool {
    path.as_bytes().ends_with(SUFFIX)
}

pub(super) fn locate(path: &RelPath) -> Option<TranscriptLocation> {
    let (name, parent) = (path.file_name()?, path.parent());
    let (folder, transcript, holds) = if is_database(path) {
        (parent, RelPath::from(name.clone()), Holds::Nested)
    } else if is_database(&parent) {
        let database = RelPath::from(parent.file_name()?);
        (parent.parent(), database.join(&name), Holds::One)
    } else {
        return None;
    };
    Some(TranscriptLocation {
        folder,
        transcript,
        container: Container::Database(&TABLES),
        shape: Shape::Lines,
        holds,
        session: None,
        agent: None,
        name,
        metadata: None,
    })
}

/// Finds the files of a store that may be databases.
///
/// # Errors
///
/// Fails if a directory cannot be listed, except for lack of permission.
pub(super) fn find_transcripts(store: &dyn Store) -> Result<Candidates> {
    // The program's own directory also holds copies of all files of its projects.
    let entries = store.list(&RelPath::root())?;
    let own = entries.into_iter().filter(|entry| entry.kind == Kind::File && is_own(&entry.name));
    let mut folders: Vec<RelPath> = own.map(|entry| entry.name.into()).collect();
    if folders.is_empty() {
        return walk(store, RelPath::root(), is_database);
    }
    folders.sort_unstable();
    Ok(Candidates { folders, ..Candidates::default() })
}

fn is_own(name: &Name) -> bool {
    name.as_bytes().starts_with(OWN_PREFIX) && name.as_bytes().ends_with(SUFFIX)
}

/// Returns true if a file is a database with the program's tables. A database with the program's
/// name that is damaged, or has no table yet, counts as well: it is not passed over in silence.
pub(super) fn recognizes(probe: &Probe<'_>) -> bool {
    if !probe.name().ends_with(SUFFIX) || !probe.head().starts_with(MAGIC) {
        return false;
    }
    match has_tables(probe.store(), probe.path(), &TABLES) {
        Ok(Some(has_tables)) => has_tables,
        Ok(None) | Err(_) => probe.name().starts_with(OWN_PREFIX),
    }
}
