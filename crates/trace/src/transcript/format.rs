//! The interface of a transcript format: it locates the transcripts and decodes their records.

use std::collections::BTreeMap;

use super::super::Candidates;
use super::super::probe::Probe;
use super::super::value::truncate;
use super::super::walk::walk;
use super::builder::IndexBuilder;
use super::index::{Family, ReportedEnd, StatedStatus, TranscriptIndex};
use super::location::TranscriptLocation;
use super::turn::{RawRecord, Turn};
use serde_json::Value;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{
    FileAccess, FileEdit, SharedStr, StatedCost, TASK_MAX, Tokens, Worker, WorkerId,
};
use swarmletfs_base::name::{RelPath, to_file_name};
use swarmletfs_base::store::Store;

pub(crate) trait TranscriptFormat: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// Finds the files that may be transcripts, by their paths.
    ///
    /// # Errors
    ///
    /// Fails if a directory cannot be listed, except for lack of permission.
    fn find_transcripts(&self, store: &dyn Store) -> Result<Candidates> {
        walk(store, RelPath::root(), |path| self.locate(path).is_some())
    }

    /// Returns true if the beginning of a file looks like a transcript of this format. Must check
    /// the file's name before its content.
    fn recognizes(&self, probe: &Probe<'_>) -> bool;

    /// Returns true if the file at `path` is a transcript only if its content is recognized. Files
    /// at other paths are always transcripts, even while they are empty.
    fn must_be_recognized(&self, _path: &RelPath) -> bool {
        true
    }

    /// Returns true if `store` is prepared for sessions but has none yet.
    fn is_prepared(&self, _store: &dyn Store) -> bool {
        false
    }

    /// Parses the path of a worker: a transcript, or a name beneath one. Depends on nothing but the
    /// path.
    fn locate(&self, path: &RelPath) -> Option<TranscriptLocation>;

    /// Returns the location of another form of the transcript, which the program may write in place
    /// of the transcript at `location`.
    fn sibling(&self, _location: &TranscriptLocation) -> Option<TranscriptLocation> {
        None
    }

    /// Returns true if records state the status of a session. A listing reads its transcript
    /// backwards until one of them is found.
    fn states_status(&self) -> bool {
        false
    }

    /// Decodes a record and adds it to the index. Returns false if it cannot be decoded.
    fn add_record(&self, index: &mut IndexBuilder<'_>, record: RawRecord<'_>) -> bool;

    /// Decodes a record that is in the index again, and calls `use_turns` with its turns. They
    /// equal the turns that [`TranscriptFormat::add_record`] added.
    fn with_turns(&self, record: RawRecord<'_>, use_turns: &mut dyn FnMut(&[Turn<'_>]));

    fn accessed_files(&self, _tool: &str, _arguments: &Value) -> Vec<FileAccess> {
        Vec::new()
    }

    /// Returns the path of the file that holds the whole result of a call, from the directory of
    /// `location`. `session` is the session that the transcript states, `name` the name of the file
    /// if the result states it.
    fn spilled_result(
        &self,
        _location: &TranscriptLocation,
        _session: Option<&str>,
        _call: &str,
        _name: Option<&str>,
    ) -> Option<RelPath> {
        None
    }

    /// Returns the paths of the records that may report the end of the worker at `location`, from
    /// the store's root: the transcript that started it, and others. The first that does counts.
    /// `metadata` reads the file beside its transcript.
    fn reporters(
        &self,
        _location: &TranscriptLocation,
        _metadata: &dyn Fn() -> Option<Vec<u8>>,
    ) -> Vec<RelPath> {
        Vec::new()
    }

    /// Returns the directory of records that report the ends of work that the worker at `location`
    /// started in the background, from the directory of `location`.
    fn work_folder(&self, _location: &TranscriptLocation) -> Option<RelPath> {
        None
    }

    /// Returns true if no record states a call again. A call with the ID of an earlier one that has
    /// a result is another call then: some models number the calls of each answer.
    fn states_calls_once(&self) -> bool {
        false
    }

    /// Returns false if the program records no results. A call without one is not open then: its
    /// outcome is unknown.
    fn records_results(&self) -> bool {
        true
    }

    /// Returns the kind of request that a call without a result makes to a person, such as
    /// `question`. `None` if it needs nobody.
    fn asks_person_for(&self, _tool: &str) -> Option<&'static str> {
        None
    }

    /// Returns true if transcripts may begin with records of another session.
    fn may_begin_with_copies(&self) -> bool {
        false
    }

    /// Returns the path of the transcript whose records the one at `location` repeats without a
    /// mark, from the store's root. `metadata` reads the file beside the transcript.
    fn copied_from(
        &self,
        _location: &TranscriptLocation,
        _metadata: &dyn Fn() -> Option<Vec<u8>>,
    ) -> Option<RelPath> {
        None
    }

    /// Returns the directory of the process that runs the session in the background, from the
    /// store's root.
    fn job_folder(&self, _location: &TranscriptLocation) -> Option<RelPath> {
        None
    }

    /// Reads the end of a session from the directory of its process.
    fn read_job(&self, _job: &dyn Store) -> Option<ReportedEnd> {
        None
    }

    /// Returns true if the first record of a transcript says what the file beside it would say. A
    /// store of sessions without files has such records.
    fn is_metadata(&self, _record: &[u8]) -> bool {
        false
    }

    /// Decodes the file beside a transcript that describes its session.
    fn read_metadata(&self, _metadata: &[u8]) -> SessionMetadata {
        SessionMetadata::default()
    }

    /// Completes a worker whose task, model, times and status are set from its conversation.
    fn describe(&self, worker: &mut Worker, session: &Session<'_>) {
        let [index, _] = session.indexes;
        session.describe(worker, index.facts.parent.as_deref());
    }

    /// Decodes the changes of files that a call made, without their numbers. `result` is the record
    /// of its result; it may be the record of the call itself. There are none where it is not known
    /// which tools change files.
    ///
    /// # Errors
    ///
    /// Fails if the records do not hold the call any more.
    fn read_edits(&self, _call: &CallRecord<'_>, _result: RawRecord<'_>) -> Result<Vec<FileEdit>> {
        Ok(Vec::new())
    }
}

/// Facts from the file beside a transcript, used where the transcript states none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SessionMetadata {
    /// The status of the session, unless its last messages state one.
    pub(crate) status: Option<StatedStatus>,
    pub(crate) model: Option<String>,
    pub(crate) tokens_by_model: BTreeMap<String, Tokens>,
    pub(crate) cost: Option<StatedCost>,
    pub(crate) cwd: Option<String>,
    pub(crate) branch: Option<String>,
    pub(crate) title: Option<String>,
    /// The last words of the assistant, if its messages end before them.
    pub(crate) final_words: Option<String>,
}

/// A worker's transcript, as far as it was read. If only both ends were read, the first index
/// describes the beginning and the last one the end. Otherwise they are the same.
pub(crate) struct Session<'a> {
    pub(crate) location: &'a TranscriptLocation,
    pub(crate) indexes: [&'a TranscriptIndex; 2],
    pub(crate) metadata: Option<&'a [u8]>,
    pub(crate) stated: &'a SessionMetadata,
}

impl Session<'_> {
    /// Returns the relations of the conversation, if its records state them.
    pub(crate) fn family(&self) -> Option<&Family> {
        let [index, _] = self.indexes;
        index.conversation(self.location.agent.as_ref()).map(|own| &own.family)
    }

    /// Completes a worker from the facts of its session. `parent` is the session that started it.
    pub(crate) fn describe(&self, worker: &mut Worker, parent: Option<&str>) {
        // A later record replaces the facts of an earlier one.
        let facts = || self.indexes.into_iter().rev().map(|index| &index.facts);
        let id = facts().find_map(|facts| facts.id.as_deref());
        if let Some(id) = id.filter(|_| self.location.agent.is_none()) {
            worker.id = WorkerId(to_file_name(id, &[]));
        }
        worker.parent = parent.filter(|parent| !parent.is_empty()).map(SharedStr::from);
        let own_id = || SharedStr::from(&*worker.id.to_text());
        worker.run = Some(worker.parent.clone().unwrap_or_else(own_id));
        let is_agent = worker.parent.is_some() || facts().any(|facts| facts.agent_type.is_some());
        worker.task_type = Some(if is_agent { "agent" } else { "session" }.into());
        let title = facts().find_map(|facts| facts.title.as_ref()).map(|title| title.text.clone());
        let title = title.filter(|_| self.location.agent.is_none()).or(self.stated.title.clone());
        worker.summary = title.map(|title| truncate(title, TASK_MAX));
    }
}

pub(crate) struct CallRecord<'a> {
    pub(crate) id: &'a str,
    pub(crate) record: RawRecord<'a>,
}
