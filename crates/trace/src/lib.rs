//! Trace formats: how tools record the work of their agents, and how to read it.
//!
//! A [`Format`] turns the bytes of a [`Store`] into [`Worker`]s and [`Record`]s. It is detected
//! from the contents of the store. Input may be torn, half-written, from another version, or
//! hostile. A format knows nothing of views: it reports a worker's owner but enforces nothing.
//!
//! # Modules
//!
//! A `Format` turns a store into workers. `swarmlet` reads the worker artifact store; its
//! `registry` replaces the claims of a worker in a sandbox by the facts that a supervisor set. All
//! other formats are transcripts: a program records a session in JSON, as lines, as a document or
//! as a directory of events.
//!
//! `transcript` reads them. It builds a virtual directory out of each transcript and presents it as
//! a `Store`, so that the layers above cannot tell the difference. A `TranscriptFormat` defines
//! only the differences between programs:
//!
//! - where transcripts lie (`locate`), and how they are recognized (`recognizes`)
//! - the meaning of a record: it decodes a record into `Turn`s, which are messages, calls and
//!   results in neutral terms
//! - the facts that records state about a session, and the changes of files in a call's record
//!
//! `builder` adds turns to an `index`, which holds the positions of texts but not the texts. To
//! read a text, the record is decoded again (`with_turns`), so a turn depends on nothing but its
//! record. `reader` feeds lines (`jsonl`) or the values of a document (`document`, which never
//! holds a whole document) to the format, and `container` opens compressed files, directories of
//! events and sessions in a `database` as one file. `sqlite` reads pages and rows of databases, and
//! knows no format. `requests` collects the messages of the user, `thread` writes the
//! conversation, and `edits` reads the changes of files. `docs/FORMATS.md` describes the formats
//! and how to add one.
//!
//! `check` finds the parts of a trace that were not understood: for every format from the record,
//! and in `swarmlet` also in the files. `known` lists the formats with the tests that recognize
//! them, and the places where their programs leave sessions. `probe` reads the beginning of a file
//! once for all formats, and `walk` finds the files of a store within bounds. `database_files`
//! finds the databases of programs that keep all sessions in one.
//!
//! # Virtual directories
//!
//! `Format::enter` returns a worker's directory. For a transcript, that directory is virtual. The
//! index holds facts from records: the position of each long text rather than the text itself,
//! apart from messages that wait in a queue. A memory cache holds the facts and continues from them
//! when the transcript grows. The virtual directory answers stat, list and open from the facts.
//!
//! The cache directory keeps the facts for the next start. Their key is the path, inode number,
//! size, times, a hash of both ends of the read bytes, and `CACHE_FORMAT`. `Store::sources` names
//! the files that a virtual directory is made from, so a scan for changes builds nothing. Workers
//! inside sessions are found by a background thread. A serving thread starts it, so it has no more
//! privileges than those threads.
//!
//! # Torn input
//!
//! Programs rewrite metadata in place. If metadata is not valid JSON, the last good record stays in
//! place, with a flaw that every generated file shows. A record and the outputs that it names are
//! read between two fingerprints. If these differ, both are read again.

mod atif;
mod blocks;
mod bounded;
mod check;
mod claude_code;
mod cline;
mod codex;
mod copilot_cli;
mod crush;
mod cursor;
mod database_files;
mod droid;
mod file_tools;
mod gemini_cli;
mod goose;
mod input;
mod inspect_ai;
mod instances;
mod json_text;
pub mod jsonl;
pub mod known;
mod lenient;
mod meta;
mod mini_swe_agent;
mod opencode;
mod openhands;
mod otlp;
mod pi;
mod probe;
#[cfg(test)]
mod programs;
mod qwen_code;
#[cfg(test)]
#[path = "../../../tests/support/scale.rs"]
#[allow(dead_code, unreachable_pub)]
mod scale;
mod sqlite;
pub mod swarmlet;
mod swe_agent;
mod transcript;
mod value;
mod walk;

pub use atif::Atif;
pub use claude_code::ClaudeCode;
pub use claude_code::ended_task;
pub use cline::Cline;
pub use codex::{Codex, UnreportedSubagent, unreported_subagents};
pub use copilot_cli::{CopilotCli, ended_copilot_agent};
pub use crush::Crush;
pub use cursor::CursorCli;
pub use droid::Droid;
pub use gemini_cli::GeminiCli;
pub use goose::Goose;
pub use input::{INPUT_MAX, INPUTS_TOTAL_MAX};
pub use inspect_ai::InspectAi;
pub use known::KnownFormat;
pub use mini_swe_agent::MiniSweAgent;
pub use opencode::OpenCode;
pub use openhands::OpenHands;
pub use otlp::Otlp;
pub use pi::Pi;
pub use probe::{Probe, ProbeBudget};
pub use qwen_code::QwenCode;
pub use swarmlet::Swarmlet;
pub use swarmlet::python_to_json;
pub use swe_agent::SweAgent;
pub use transcript::ReportedEnd;
pub use transcript::Transcripts;
pub use walk::{Walk, WalkEntry, walk};

use std::sync::Arc;

use swarmletfs_base::cache::{DiskCache, Key};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{
    Record, RecordedChanges, RecordedEdits, Remarks, RemovedWorker, SkipReport, Worker, WorkerCheck,
};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{DirEntry, Identity, Store, Time};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detection {
    /// The store holds at least one worker.
    Workers,
    /// The store may become one: an empty directory, or one prepared for workers.
    Empty,
    /// The directory is a single worker, not a store.
    OneWorker,
    /// The store holds something else.
    Other,
}

/// The state of a worker's directory, cheap enough to compute for every worker repeatedly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FolderState {
    pub identity: Identity,
    /// Changes whenever the result of [`Format::read_worker`] may change.
    pub key: Key,
    /// The newest write to the checked files; see
    /// [`Meta::last_write`](swarmletfs_base::store::Meta::last_write).
    pub newest_write: Time,
    /// The newest ctime of the checked files.
    pub newest_change: Time,
}

#[derive(Debug, Default, Clone)]
pub struct Candidates {
    pub folders: Vec<RelPath>,
    pub skipped: SkipReport,
    /// Members of `folders` that were not read to the end; they may contain more workers.
    pub incomplete: Vec<RelPath>,
}

#[derive(Clone, Copy)]
pub struct RecordSource<'a> {
    /// The worker's own directory, entered.
    pub folder: &'a dyn Store,
    pub outputs: Option<&'a dyn Store>,
}

/// A trace format. An instance belongs to one store and may cache what it read there.
pub trait Format: Send + Sync {
    fn name(&self) -> &'static str;

    /// Describes the contents that make a directory a worker, for error messages.
    fn worker_description(&self) -> &'static str;

    /// Detects whether `store` has this format.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be listed.
    fn detect(&self, store: &dyn Store) -> Result<Detection>;

    /// Finds the directories that may be workers.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be listed.
    fn find_workers(&self, store: &dyn Store) -> Result<Candidates>;

    /// Enters a worker's directory: as it is on disk, or a virtual directory generated from other
    /// files.
    fn enter(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn Store>> {
        store.enter(path)
    }

    /// Returns the state of the directory at `path`, entered as `folder`. Returns `None` if it is
    /// not a worker.
    fn folder_state(&self, folder: &dyn Store, path: &RelPath) -> Result<Option<FolderState>>;

    /// Reads the worker from its listing and metadata. `last_good` is the previous value for this
    /// directory, which is kept while the metadata is torn. Never fails: defects are in
    /// [`Worker::flaws`].
    fn read_worker(&self, folder: &dyn Store, path: &RelPath, last_good: Option<&Worker>)
    -> Worker;

    /// Reads the worker again, and its files. `last_good` is the previous value, which is kept
    /// while the metadata is torn. Skips the remaining outputs once `deadline` passes.
    fn read_record(
        &self,
        source: RecordSource<'_>,
        last_good: &Worker,
        deadline: Deadline<'_>,
    ) -> Result<Record>;

    /// Returns true if records of this format can hold changes of files.
    fn records_edits(&self) -> bool {
        false
    }

    /// Returns true if the record of a worker can hold changes of files, by the entries `_listed`
    /// of its directory.
    fn may_have_edits(&self, _listed: &[DirEntry]) -> bool {
        self.records_edits()
    }

    /// Returns true if [`Format::has_edits`] costs no more than an open.
    fn finds_edits_at_once(&self) -> bool {
        !self.records_edits()
    }

    /// Returns true if the record of the worker in `_folder` holds changes of files, or if there
    /// was no time to find out.
    ///
    /// # Errors
    ///
    /// Fails if the record cannot be read.
    fn has_edits(&self, _folder: &dyn Store, _deadline: Deadline<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Reads the changes of files that a worker's record holds. Skips the remaining ones once
    /// `deadline` passes.
    ///
    /// # Errors
    ///
    /// Fails if the record cannot be read, or changed since it was indexed.
    fn read_changes(
        &self,
        _source: RecordSource<'_>,
        _deadline: Deadline<'_>,
    ) -> Result<RecordedChanges> {
        Ok(RecordedChanges::Edits(RecordedEdits::default()))
    }

    /// Returns the directories in the worker's directory `_folder` that only hold copies of files
    /// from before the worker changed them. Queries leave them out.
    fn folders_of_originals(&self, _folder: &dyn Store) -> &'static [&'static str] {
        &[]
    }

    /// Finds the parts of a worker's files that were not understood. The record of the worker is
    /// `record`. Keeps `limit` remarks of each kind, and stops when `deadline` passes.
    fn check_worker(
        &self,
        source: RecordSource<'_>,
        record: &Record,
        limit: usize,
        deadline: Deadline<'_>,
    ) -> WorkerCheck {
        check::check_worker(source.folder, record, limit, deadline)
    }

    /// Finds the parts of `store` outside of its workers that were not understood; `skipped` are
    /// the entries that are no workers. Keeps `limit` remarks of each kind, with paths from the
    /// store's root, and stops when `deadline` passes.
    fn check_store(
        &self,
        _store: &dyn Store,
        _outputs: Option<&dyn Store>,
        skipped: &SkipReport,
        limit: usize,
        _deadline: Deadline<'_>,
    ) -> Remarks {
        check::check_skipped(skipped, self.worker_description(), limit)
    }

    /// Reads the file at `path`, a member of [`Candidates::incomplete`], to find the workers inside
    /// it. Stops when `deadline` passes.
    fn find_nested_workers(&self, _store: &dyn Store, _path: &RelPath, _deadline: Deadline<'_>) {}

    /// Returns true if the id of a worker is always the name of its directory.
    fn ids_are_folder_names(&self) -> bool {
        false
    }

    /// Returns true if a worker that reports to be finished does not change any more.
    fn finished_is_final(&self) -> bool {
        true
    }

    /// Returns true if [`Format::folder_state`] or [`Format::read_worker`] reads the file `_name`
    /// in a worker's directory.
    fn affects_listing(&self, _name: &Name) -> bool {
        true
    }

    /// Returns true if worker directories are generated when they are read, which takes time.
    fn has_virtual_folders(&self) -> bool {
        false
    }

    /// Sets a disk cache for results that are expensive to compute. Must be called before anything
    /// is read.
    fn set_disk_cache(&mut self, _cache: Arc<DiskCache>) {}

    fn supervisor_folder(&self) -> Option<RelPath> {
        None
    }

    /// Returns the known facts about the worker `_id` if it was removed.
    fn removed_worker(&self, _store: &dyn Store, _id: &Name) -> Option<RemovedWorker> {
        None
    }

    fn removed_ids(&self, _store: &dyn Store) -> Vec<Name> {
        Vec::new()
    }

    /// Returns the files that list all workers. Only an unrestricted view may show them.
    fn index_files(&self) -> Vec<RelPath> {
        Vec::new()
    }
}
