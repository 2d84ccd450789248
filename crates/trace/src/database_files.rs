//! The files of programs that keep all sessions as rows of one database of SQLite.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Candidates;
use super::lenient::{MaybeStr, object};
use super::probe::Probe;
use super::sqlite::MAGIC;
use super::transcript::{Container, DatabaseLayout, TranscriptLocation, has_tables};
use super::walk::walk;
use swarmletfs_base::error::Result;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, Store};

const SUFFIX: &[u8] = b".db";

/// The databases of a program.
pub(super) struct DatabaseFiles {
    /// The beginning of the names that the program gives them.
    pub(super) prefix: &'static [u8],
    pub(super) tables: &'static DatabaseLayout,
}

/// A row, decoded from its line.
pub(super) enum DatabaseRecord<C, M> {
    Conversation(C),
    Message(M),
}

/// A row on a line of its own.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct DatabaseLine<'a> {
    table: MaybeStr<'a>,
    row: Option<&'a RawValue>,
}

pub(super) fn is_database(path: &RelPath) -> bool {
    path.as_bytes().ends_with(SUFFIX)
}

impl DatabaseFiles {
    /// Returns the location of a database, or of a conversation in it.
    pub(super) fn locate(&self, path: &RelPath) -> Option<TranscriptLocation> {
        TranscriptLocation::in_container(path, is_database, Container::Database(self.tables))
    }

    /// Finds the files of a store that may be databases.
    ///
    /// # Errors
    ///
    /// Fails if a directory cannot be listed, except for lack of permission.
    pub(super) fn find_transcripts(&self, store: &dyn Store) -> Result<Candidates> {
        // The program's own directory may also hold copies of all files of its projects.
        let entries = store.list(&RelPath::root())?;
        let is_own = |name: &Name| self.is_own(name.as_bytes());
        let own =
            entries.into_iter().filter(|entry| entry.kind == Kind::File && is_own(&entry.name));
        let mut folders: Vec<RelPath> = own.map(|entry| entry.name.into()).collect();
        if folders.is_empty() {
            return walk(store, RelPath::root(), is_database);
        }
        folders.sort_unstable();
        Ok(Candidates { folders, ..Candidates::default() })
    }

    fn is_own(&self, name: &[u8]) -> bool {
        name.starts_with(self.prefix) && name.ends_with(SUFFIX)
    }

    /// Returns true if a file is a database with the program's tables. A database with the
    /// program's name that is damaged, or has no table yet, counts as well: it is not passed over
    /// in silence.
    pub(super) fn recognizes(&self, probe: &Probe<'_>) -> bool {
        if !probe.name().ends_with(SUFFIX) || !probe.head().starts_with(MAGIC) {
            return false;
        }
        match has_tables(probe.store(), probe.path(), self.tables) {
            Ok(Some(has_tables)) => has_tables,
            Ok(None) | Err(_) => self.is_own(probe.name()),
        }
    }

    /// Decodes a line as a conversation or a message.
    pub(super) fn decode<'a, C, M>(&self, line: &'a str) -> Option<DatabaseRecord<C, M>>
    where
        C: Deserialize<'a>,
        M: Deserialize<'a>,
    {
        let line = object::<DatabaseLine<'_>>(line)?;
        let (table, row) = (line.table.as_str(), line.row?.get());
        if self.tables.iter().any(|tables| tables.conversations.table == table) {
            return object(row).map(DatabaseRecord::Conversation);
        }
        object(row).map(DatabaseRecord::Message)
    }
}
