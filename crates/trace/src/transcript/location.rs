//! The location of a worker's transcript in its store.

use swarmletfs_base::name::{Name, RelPath};

/// The location of a worker: a transcript, or a conversation inside one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TranscriptLocation {
    /// Path of the directory that holds the transcript, from the store's root.
    pub(crate) folder: RelPath,
    /// Path of the transcript from that directory.
    pub(crate) transcript: RelPath,
    pub(crate) container: Container,
    pub(crate) shape: Shape,
    pub(crate) holds: Holds,
    pub(crate) session: Option<Name>,
    /// The conversation inside the transcript, or `None` for the transcript's own.
    pub(crate) agent: Option<Name>,
    pub(crate) name: Name,
    /// Path of a file beside the transcript that describes it, from `folder`. It need not exist.
    pub(crate) metadata: Option<RelPath>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Container {
    File,
    /// A file that may go on in others beside it, such as `run.cont-1.json` of `run.json`.
    Continued,
    Zstd,
    /// Spans of OpenTelemetry, regrouped by their agents.
    Spans,
    /// A directory with a file for each record, in the order of the first numbers in their names.
    Folder,
    /// A database of SQLite. The last name in the path of a transcript is the ID of a conversation
    /// in it; the database itself has the path before it.
    Database(&'static DatabaseLayout),
    /// A log with many samples. The last name in the path of a transcript is the name of a sample
    /// in it; the log itself has the path before it.
    Samples,
}

/// The tables of a program. If several hold a conversation with the same ID, the first counts.
pub(crate) type DatabaseLayout = [TableLayout];

/// The tables that hold conversations. A database that lacks one of them has none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TableLayout {
    pub(crate) conversations: RowLayout,
    pub(crate) messages: RowLayout,
    /// Rows that belong to a message, and are on its line.
    pub(crate) parts: Option<RowLayout>,
}

/// The columns of a table that are needed. Columns that the table lacks are empty.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RowLayout {
    pub(crate) table: &'static str,
    /// The ID of the conversation.
    pub(crate) conversation: &'static str,
    /// The ID by which parts name their message. Empty in tables of conversations.
    pub(crate) message: &'static str,
    /// A column that a table must have, because other programs have one with its name. Empty if
    /// there are none.
    pub(crate) content: &'static str,
    pub(crate) order: &'static [&'static str],
    /// Time of the last change of the row, in milliseconds or seconds since 1970.
    pub(crate) updated: &'static str,
    /// Columns of texts that hold JSON.
    pub(crate) json: &'static [&'static str],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Lines,
    /// One document or several, with records in these members.
    Documents(&'static [Member]),
    /// A document per line, with records in these members. Each document is a conversation of its
    /// own.
    DocumentLines(&'static [Member]),
}

/// A member of a document that holds records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Member {
    /// The elements of the list with this name are records. The elements of a document that is a
    /// list have the name `""`.
    List(&'static str),
    Value(&'static str),
    /// The elements of the list with this name are objects, whose members hold records. These
    /// members are numbered after the members of the document. It is the last member of a document.
    Nested(&'static str, &'static [Member]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    One,
    OneAndNested,
    /// The transcript is no worker, but each conversation in it is.
    Nested,
}

impl TranscriptLocation {
    /// Returns the path of the transcript from the store's root.
    pub(crate) fn path(&self) -> RelPath {
        self.folder.join_path(&self.transcript)
    }

    /// Returns the name of the file that describes the transcript in the worker's directory.
    pub(crate) fn metadata_name(&self) -> &'static str {
        match &self.metadata {
            Some(path) if !path.as_bytes().ends_with(b".json") => "source.meta.txt",
            _ => "source.meta.json",
        }
    }

    pub(crate) fn source_name(&self) -> &'static str {
        match (self.container, self.shape) {
            _ if self.agent.is_some() => "source.jsonl",
            (Container::Zstd, _) => "source.jsonl.zst",
            (Container::Folder | Container::Database(_) | Container::Samples, _)
            | (_, Shape::Lines | Shape::DocumentLines(_)) => "source.jsonl",
            (Container::File | Container::Continued | Container::Spans, Shape::Documents(_)) => {
                "source.json"
            }
        }
    }
}

impl TranscriptLocation {
    /// Creates the location of a file that is one worker, named by the file without `suffix`.
    /// Returns `None` if the file has another suffix.
    pub(crate) fn of_file(
        path: &RelPath,
        suffix: &str,
        shape: Shape,
    ) -> Option<TranscriptLocation> {
        let file = path.file_name()?;
        let name = Name::new(file.as_bytes().strip_suffix(suffix.as_bytes())?).ok()?;
        Some(TranscriptLocation {
            folder: path.parent(),
            transcript: RelPath::from(file),
            container: Container::File,
            shape,
            holds: Holds::One,
            session: None,
            agent: None,
            name,
            metadata: None,
        })
    }

    /// Creates the location of a file that holds many conversations, or of one of them: a name
    /// beneath the path of the file. `is_container` tells the files by their paths. Returns `None`
    /// for any other path.
    pub(crate) fn in_container(
        path: &RelPath,
        is_container: impl Fn(&RelPath) -> bool,
        container: Container,
    ) -> Option<TranscriptLocation> {
        let (name, parent) = (path.file_name()?, path.parent());
        let (folder, transcript, holds) = if is_container(path) {
            (parent, RelPath::from(name.clone()), Holds::Nested)
        } else if is_container(&parent) {
            let file = RelPath::from(parent.file_name()?);
            (parent.parent(), file.join(&name), Holds::One)
        } else {
            return None;
        };
        Some(TranscriptLocation {
            folder,
            transcript,
            container,
            shape: Shape::Lines,
            holds,
            session: None,
            agent: None,
            name,
            metadata: None,
        })
    }

    /// Returns the same location with the directory that holds it one name further up.
    pub(crate) fn above(self) -> Option<TranscriptLocation> {
        let below = RelPath::from(self.folder.file_name()?);
        Some(TranscriptLocation {
            folder: self.folder.parent(),
            transcript: below.join_path(&self.transcript),
            metadata: self.metadata.map(|path| below.join_path(&path)),
            ..self
        })
    }

    /// Returns the name of the directory that holds the transcript.
    pub(crate) fn folder_name(&self) -> Option<Name> {
        self.path().parent().file_name()
    }

    /// Sets the file that describes the transcript: beside it, with this suffix.
    pub(crate) fn with_metadata(self, suffix: &str) -> TranscriptLocation {
        let name = Name::new([self.name.as_bytes(), suffix.as_bytes()].concat()).ok();
        let metadata = name.map(|name| self.transcript.parent().join(&name));
        TranscriptLocation { metadata, ..self }
    }
}
