//! The virtual directory of a conversation: files generated from its transcript, and the transcript
//! itself.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::cache::{Texts, TranscriptCache};
use super::cached_transcript::TranscriptVersion;
use super::commands;
use super::container;
use super::format::TranscriptFormat;
use super::index::{
    CallEntry, CallResult, Conversation, CopiedHistory, LineFile, ReportedEnd, TextRef,
    TranscriptIndex,
};
use super::location::{Container, Holds, TranscriptLocation};
use super::messages::text_hash;
use super::open_file::{GrowingFile, OwnPart, StaticFile, with_turns_at};
use super::requests::request_text;
use super::thread::CALLS;
use super::turn::Span;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::digest::digest;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::Status;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{DirEntry, File, Identity, Kind, Meta, Store, Time, read_range};

const THREAD: &str = "thread.jsonl";
const TASK: &str = "task.txt";
const RESULT: &str = "result.txt";
const REQUESTS: &str = "requests.txt";
const COMMANDS: &str = "commands.txt";
/// Maximum length of the metadata file beside a transcript, in bytes.
const METADATA_MAX: usize = 8 << 20;
/// Maximum length of a first record that takes the place of this file, in bytes.
const METADATA_RECORD_MAX: usize = 16 << 10;
/// Maximum number of result files that are checked for changes.
const RESULTS_MAX: usize = 10_000;

pub(super) struct VirtualDir {
    folder: Arc<dyn Store>,
    pub(super) location: TranscriptLocation,
    /// Path of the transcript from the store's root.
    path: RelPath,
    pub(super) format: &'static dyn TranscriptFormat,
    transcripts: Arc<TranscriptCache>,
    /// True if reports in the transcripts of other workers count, too.
    reads_others: bool,
    /// The directory of the process that runs the session in the background.
    job: Option<Arc<dyn Store>>,
    held: Mutex<Option<(TranscriptVersion, Arc<TranscriptIndex>)>>,
}

enum VirtualNode {
    Root,
    Lines(LineFile),
    Metadata(RelPath),
    Text(TextRef),
    /// A text in the record of another worker.
    TextBeside(Box<VirtualDir>, TextRef),
    Requests,
    Commands,
    Calls,
    Call(usize),
}

impl VirtualDir {
    pub(super) fn new(
        folder: Arc<dyn Store>,
        location: TranscriptLocation,
        format: &'static dyn TranscriptFormat,
        transcripts: Arc<TranscriptCache>,
        reads_others: bool,
    ) -> VirtualDir {
        let (path, held) = (location.path(), Mutex::default());
        VirtualDir { path, folder, location, format, transcripts, reads_others, job: None, held }
    }

    pub(super) fn with_job(self, job: Option<Arc<dyn Store>>) -> VirtualDir {
        VirtualDir { job, ..self }
    }

    /// Returns the end of the session as its process in the background states it.
    pub(super) fn job_end(&self) -> Option<ReportedEnd> {
        self.job.as_deref().and_then(|job| self.format.read_job(job))
    }

    pub(super) fn transcript_meta(&self) -> Result<Meta> {
        self.at_location(|location| {
            container::meta(&*self.folder, location, &self.transcripts.containers)
        })
    }

    pub(super) fn open_transcript(&self) -> Result<Box<dyn File>> {
        self.open_container().map(|(file, _)| file)
    }

    /// Opens the transcript. Returns it with the form in which it is stored now.
    pub(super) fn open_container(&self) -> Result<(Box<dyn File>, Container)> {
        self.at_location(|location| {
            let file = container::open(&*self.folder, location, &self.transcripts.containers)?;
            Ok((file, location.container))
        })
    }

    /// Calls `read` with the location of the transcript. If the transcript is missing there, the
    /// program may have replaced it by its sibling, or be about to replace it by the original.
    fn at_location<T>(&self, read: impl Fn(&TranscriptLocation) -> Result<T>) -> Result<T> {
        match read(&self.location) {
            Err(error) if error.is_not_found() => {
                let Some(sibling) = self.format.sibling(&self.location) else { return Err(error) };
                match read(&sibling) {
                    Err(error) if error.is_not_found() => read(&self.location),
                    result => result,
                }
            }
            result => result,
        }
    }

    pub(super) fn metadata_path(&self) -> Option<RelPath> {
        let metadata = self.location.metadata.clone().filter(|_| self.location.agent.is_none())?;
        let exists = self.folder.stat(&metadata).is_ok_and(|meta| meta.kind == Kind::File);
        exists.then_some(metadata)
    }

    /// Returns the beginning of the metadata file beside the transcript, or the record that takes
    /// its place.
    pub(super) fn read_metadata(&self) -> Option<Vec<u8>> {
        let path = self.location.metadata.as_ref().filter(|_| self.location.agent.is_none())?;
        match self.folder.open(path) {
            Ok(file) => read_range(&*file, 0, METADATA_MAX).ok(),
            Err(error) if error.is_not_found() => self.read_metadata_record(),
            Err(_) => None,
        }
    }

    fn read_metadata_record(&self) -> Option<Vec<u8>> {
        let file = self.open_transcript().ok()?;
        let mut record = read_range(&*file, 0, METADATA_RECORD_MAX).ok()?;
        record.truncate(memchr::memchr(b'\n', &record)?);
        self.format.is_metadata(&record).then_some(record)
    }

    /// Returns the end of the worker that another record reports, such as the transcript of its
    /// starter. Reads these until `deadline` passes. For `None`, uses only the parts that were read
    /// before.
    pub(super) fn reported_end(&self, deadline: Option<Deadline<'_>>) -> Option<ReportedEnd> {
        self.reporters().find_map(|reporter| self.end_in(&reporter, deadline))
    }

    /// Returns the text that the worker returned by a record that is no worker's transcript, and
    /// that record. Reads it until `deadline` passes.
    pub(super) fn returned(&self, deadline: Deadline<'_>) -> Option<(VirtualDir, TextRef)> {
        let mut reporters =
            self.reporters().filter(|reporter| reporter.location.holds == Holds::Nested);
        reporters.find_map(|reporter| {
            let text = self.end_in(&reporter, Some(deadline))?.result?;
            Some((reporter, text))
        })
    }

    fn reporters(&self) -> impl Iterator<Item = VirtualDir> {
        let paths = match self.reads_others {
            true => self.format.reporters(&self.location, &|| self.read_metadata()),
            false => Vec::new(),
        };
        paths.into_iter().filter_map(|path| self.beside(&path))
    }

    fn end_in(&self, reporter: &VirtualDir, deadline: Option<Deadline<'_>>) -> Option<ReportedEnd> {
        if let Some(deadline) = deadline {
            // Without it, the worker's own record counts.
            let _ = reporter.index(deadline);
        }
        let end = self.transcripts.end(&reporter.path, &self.location.name.to_text());
        end.filter(|end| end.status != Status::Unknown)
    }

    /// Returns the ends of work in the background that other records report, by the ID of the
    /// work. Reads these until `deadline` passes.
    pub(super) fn ended_work(
        &self,
        tasks: &[&str],
        deadline: Deadline<'_>,
    ) -> HashMap<String, ReportedEnd> {
        let mut ends = HashMap::new();
        for (path, _) in if tasks.is_empty() { Vec::new() } else { self.work_records() } {
            let path = self.location.folder.join_path(&path);
            let Some(record) = self.beside(&path) else { continue };
            let _ = record.index(deadline);
            let found = tasks
                .iter()
                .filter_map(|task| Some(((*task).to_owned(), self.transcripts.end(&path, task)?)));
            ends.extend(found);
        }
        ends
    }

    /// Returns the files that report the ends of work in the background, with their metadata.
    fn work_records(&self) -> Vec<(RelPath, Meta)> {
        let folder = self.format.work_folder(&self.location).filter(|_| self.reads_others);
        let Some(folder) = folder else { return Vec::new() };
        let entries = self.folder.list(&folder).unwrap_or_default();
        let files = entries.iter().filter(|entry| entry.kind == Kind::File).take(RESULTS_MAX);
        let files = files.map(|file| folder.join(&file.name));
        files.filter_map(|file| Some((file.clone(), self.folder.stat(&file).ok()?))).collect()
    }

    /// Returns the transcript at `path`, from the store's root, if it lies in the same directory.
    fn beside(&self, path: &RelPath) -> Option<VirtualDir> {
        let location = self.format.locate(path)?;
        let (format, transcripts) = (self.format, self.transcripts.clone());
        Some(VirtualDir::new(self.folder.clone(), location, format, transcripts, true))
    }

    /// Returns the path of the transcript whose records this one repeats without a mark. `metadata`
    /// returns the file beside this one.
    pub(super) fn copied_from(&self, metadata: &dyn Fn() -> Option<Vec<u8>>) -> Option<RelPath> {
        if !self.reads_others || self.location.agent.is_some() {
            return None;
        }
        let source = self.format.copied_from(&self.location, metadata);
        source.filter(|source| *source != self.path)
    }

    /// Returns the records of the transcript that this one may repeat, unless they cannot be read.
    ///
    /// # Errors
    ///
    /// [`Error::Late`] if `deadline` passes.
    fn history(&self, deadline: Deadline<'_>) -> Result<Option<Arc<CopiedHistory>>> {
        let source = self.copied_from(&|| self.read_metadata());
        let Some(source) = source.and_then(|source| self.beside(&source)) else { return Ok(None) };
        let session = source.location.name.clone();
        let Ok((index, is_complete)) = source.index(deadline) else { return Ok(None) };
        if !is_complete {
            return Err(Error::Late);
        }
        Ok(Some(self.transcripts.history(&session, index)))
    }

    /// Returns the index of the transcript, read until `deadline` passes, and true if it is
    /// complete.
    pub(super) fn index(&self, deadline: Deadline<'_>) -> Result<(Arc<TranscriptIndex>, bool)> {
        self.read_index(&*self.open_transcript()?, deadline)
    }

    fn read_index(
        &self,
        transcript: &dyn File,
        deadline: Deadline<'_>,
    ) -> Result<(Arc<TranscriptIndex>, bool)> {
        let version = TranscriptVersion::new(transcript.meta()?);
        let held = self.held.lock().clone();
        if let Some((_, index)) = held.filter(|(of, _)| *of == version) {
            return Ok((index, true));
        }
        let is_cached = self.transcripts.is_cached(&self.path, version);
        let history = if is_cached { Ok(None) } else { self.history(deadline) };
        let Ok(history) = history else { return Ok((Arc::default(), false)) };
        let (format, location) = (self.format, &self.location);
        let read =
            self.transcripts.index(&self.path, transcript, format, location, history, deadline)?;
        if read.1 {
            *self.held.lock() = Some((version, read.0.clone()));
        }
        Ok(read)
    }

    /// Returns the file of a result that is too large for the transcript, with its metadata.
    /// Returns `None` if it does not exist.
    pub(super) fn spilled_result(
        &self,
        index: &TranscriptIndex,
        call: &CallEntry,
        result: &CallResult,
    ) -> Result<Option<(RelPath, Meta)>> {
        let Some(name) = &result.spilled else { return Ok(None) };
        let (session, name) = (index.facts.id.as_deref(), Some(&**name).filter(|n| !n.is_empty()));
        let path = self.format.spilled_result(&self.location, session, &call.id, name);
        let Some(path) = path else { return Ok(None) };
        match self.folder.stat(&path) {
            Ok(meta) => Ok((meta.kind == Kind::File).then_some((path, meta))),
            Err(error) if is_unreachable(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the end of a file in the directory of the transcript, at most `length` bytes.
    pub(super) fn read_end(&self, path: &RelPath, length: u64) -> Result<Vec<u8>> {
        let file = self.folder.open(path)?;
        let size = file.stat_without_acl()?.size;
        let length = length.min(size);
        read_range(&*file, size - length, usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn results_folder(&self) -> Option<RelPath> {
        self.format.spilled_result(&self.location, None, "x", None).map(|file| file.parent())
    }

    /// Returns the metadata of all files that the worker is generated from, except individual
    /// results.
    pub(super) fn source_metas(&self) -> Result<Vec<Meta>> {
        let mut metas = vec![self.transcript_meta()?];
        for path in self.results_folder().into_iter().chain(self.location.metadata.clone()) {
            match self.folder.stat(&path) {
                Ok(meta) => metas.push(meta),
                Err(error) if is_unreachable(&error) => {}
                Err(error) => return Err(error),
            }
        }
        metas.extend(self.work_records().into_iter().map(|(_, meta)| meta));
        Ok(metas)
    }

    fn source_and_result_metas(&self) -> Result<Vec<Meta>> {
        let mut metas = self.source_metas()?;
        if let Some(folder) = self.results_folder() {
            let entries = self.folder.list(&folder).unwrap_or_default();
            // The directory's metadata does not reveal changes to the contents or permissions of a
            // file in it.
            let files = entries.iter().filter(|entry| entry.kind == Kind::File).take(RESULTS_MAX);
            metas
                .extend(files.filter_map(|entry| self.folder.stat(&folder.join(&entry.name)).ok()));
        }
        Ok(metas)
    }

    /// Returns the size of the beginning of the transcript that repeats another one and is not
    /// shown, in bytes.
    fn copied_bytes(&self) -> Result<u64> {
        let is_shown_whole = self.location.container != Container::File;
        if is_shown_whole || !self.format.may_begin_with_copies() {
            return Ok(0);
        }
        Ok(self.full_index()?.facts.copied_bytes)
    }

    fn full_index(&self) -> Result<Arc<TranscriptIndex>> {
        self.index(Deadline::never()).map(|(index, _)| index)
    }

    pub(super) fn conversation<'a>(&self, index: &'a TranscriptIndex) -> Result<&'a Conversation> {
        index.conversation(self.location.agent.as_ref()).ok_or(Error::NotFound)
    }

    /// Returns the worker's conversation in an index. If the index `is_complete`, an absent
    /// conversation does not exist; otherwise there was no time to find it.
    pub(super) fn found_conversation<'a>(
        &self,
        index: &'a TranscriptIndex,
        is_complete: bool,
    ) -> Result<&'a Conversation> {
        let found = self.conversation(index);
        if is_complete { found } else { found.map_err(|_| Error::Late) }
    }

    /// Returns the file or directory at `path`. Calls `index` only if that depends on the index.
    fn resolve(
        &self,
        path: &RelPath,
        index: &dyn Fn() -> Result<Arc<TranscriptIndex>>,
    ) -> Result<VirtualNode> {
        let text = path.to_text();
        let (first, rest) = match text.split_once('/') {
            Some((first, rest)) => (first, Some(rest)),
            None => (&*text, None),
        };
        let text_node = |text: fn(&Conversation) -> Option<&TextRef>| {
            let index = index()?;
            text(self.conversation(&index)?).cloned().map(VirtualNode::Text).ok_or(Error::NotFound)
        };
        match (first, rest) {
            ("", _) => Ok(VirtualNode::Root),
            (name, None) if name == self.location.source_name() => {
                Ok(VirtualNode::Lines(LineFile::Source))
            }
            (name, None) if name == self.location.metadata_name() => {
                self.metadata_path().map(VirtualNode::Metadata).ok_or(Error::NotFound)
            }
            (THREAD, None) => Ok(VirtualNode::Lines(LineFile::Thread)),
            (TASK, None) => text_node(Conversation::task),
            (RESULT, None) => match text_node(Conversation::result) {
                Err(Error::NotFound) => {
                    let (record, text) = self.returned(Deadline::never()).ok_or(Error::NotFound)?;
                    Ok(VirtualNode::TextBeside(Box::new(record), text))
                }
                node => node,
            },
            (REQUESTS, None) => {
                let has_requests = !self.conversation(&*index()?)?.requests.is_empty();
                has_requests.then_some(VirtualNode::Requests).ok_or(Error::NotFound)
            }
            (COMMANDS, None) => {
                let has_commands = self.conversation(&*index()?)?.commands_size() > 0;
                has_commands.then_some(VirtualNode::Commands).ok_or(Error::NotFound)
            }
            (CALLS, None) => Ok(VirtualNode::Calls),
            (CALLS, Some(file)) if !file.contains('/') => {
                let index = index()?;
                let number = file.split('_').next().and_then(|number| number.parse::<usize>().ok());
                let at = number.and_then(|number| number.checked_sub(1)).ok_or(Error::NotFound)?;
                let call = self.conversation(&index)?.calls.get(at).ok_or(Error::NotFound)?;
                if path.file_name() == Some(call.file_name(at)) {
                    Ok(VirtualNode::Call(at))
                } else {
                    Err(Error::NotFound)
                }
            }
            (name, Some(_)) if name == self.location.source_name() => Err(Error::NotADirectory),
            (THREAD | TASK | RESULT | REQUESTS | COMMANDS, Some(_)) => Err(Error::NotADirectory),
            _ => Err(Error::NotFound),
        }
    }

    /// Returns the metadata of a generated file of `size` bytes. Another `version` gets another
    /// inode number. `mtime`, in milliseconds since 1970, replaces the times of the transcript.
    fn file_meta(
        &self,
        transcript: &Meta,
        name: &[u8],
        version: u64,
        size: u64,
        mtime: Option<i64>,
    ) -> Meta {
        let mut hash = blake3::Hasher::new();
        hash.update(&transcript.identity.ino.to_le_bytes());
        hash.update(&version.to_le_bytes());
        for part in [self.location.agent.as_ref().map(Name::as_bytes).unwrap_or_default(), name] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let mtime = mtime.map(|at| Time {
            secs: at.div_euclid(1_000),
            nanos: at.rem_euclid(1_000) as u32 * 1_000_000,
        });
        Meta {
            kind: Kind::File,
            size,
            nlink: 1,
            identity: Identity { ino: u64::from_le_bytes(digest(&hash)), ..transcript.identity },
            mtime: mtime.unwrap_or(transcript.mtime),
            // The time of a result stays, though its transcript grows.
            ctime: mtime.unwrap_or(transcript.ctime),
            ..*transcript
        }
    }

    fn folder_meta(&self, transcript: &Meta, name: &[u8]) -> Meta {
        let meta = self.file_meta(transcript, name, 0, 0, None);
        // Read permission on the transcript grants permission to enter generated directories.
        Meta { kind: Kind::Folder, mode: meta.mode | (meta.mode & 0o444) >> 2, ..meta }
    }

    fn call_meta(&self, transcript: &Meta, index: &TranscriptIndex, at: usize) -> Result<Meta> {
        let call = self.conversation(index)?.calls.get(at).ok_or(Error::NotFound)?;
        let name = call.file_name(at);
        let Some(result) = &call.result else {
            return Ok(self.file_meta(transcript, name.as_bytes(), 0, 0, call.at_ms));
        };
        if let Some((_, meta)) = self.spilled_result(index, call, result)? {
            return Ok(meta);
        }
        let mtime = result.at_ms.or(call.at_ms);
        Ok(self.file_meta(transcript, name.as_bytes(), result.hash, result.bytes, mtime))
    }

    fn requests_meta(&self, transcript: &Meta, index: &TranscriptIndex) -> Result<Meta> {
        let requests = &self.conversation(index)?.requests;
        let (version, size) = (requests.version(), requests.file_size());
        Ok(self.file_meta(transcript, REQUESTS.as_bytes(), version, size, None))
    }

    fn commands_meta(&self, transcript: &Meta, index: &TranscriptIndex) -> Result<Meta> {
        let conversation = self.conversation(index)?;
        let (version, size) = (conversation.commands_version(), conversation.commands_size());
        Ok(self.file_meta(transcript, COMMANDS.as_bytes(), version, size, None))
    }

    fn read_output(&self, result: &CallResult) -> Result<Vec<u8>> {
        let texts = self.results_at(result.span)?;
        let text = texts.get(result.part).filter(|text| text.len() as u64 == result.bytes);
        text.cloned().ok_or(Error::Stale)
    }

    fn results_at(&self, span: Span) -> Result<Texts> {
        let file = self.open_transcript()?;
        let version = TranscriptVersion::new(file.meta()?);
        if let Some(texts) = self.transcripts.results(&self.path, version, span) {
            return Ok(texts);
        }
        let texts: Texts = with_turns_at(&*file, self.format, span, |turns| {
            let results = turns.iter().flat_map(|turn| &turn.results);
            results.map(|result| result.text.as_bytes().to_vec()).collect()
        })?;
        // Other records hold one output, which is read as quickly.
        if texts.len() > 1 {
            self.transcripts.set_results(&self.path, version, span, texts.clone());
        }
        Ok(texts)
    }

    fn text_file(
        &self,
        path: &RelPath,
        text: &TextRef,
        record: &VirtualDir,
    ) -> Result<Box<dyn File>> {
        let transcript = self.transcript_meta()?;
        let meta = self.file_meta(&transcript, path.as_bytes(), text.hash, text.bytes, None);
        Ok(Box::new(StaticFile::new(meta, record.read_text(text)?)))
    }

    pub(super) fn read_text(&self, text_ref: &TextRef) -> Result<Vec<u8>> {
        let file = self.open_transcript()?;
        with_turns_at(&*file, self.format, text_ref.span, |turns| {
            let texts = turns.iter().map(|turn| &turn.text);
            let requests = turns.iter().filter_map(|turn| turn.request.as_ref());
            let mut texts = texts.chain(requests);
            let text = texts.find(|text| {
                text.len() as u64 == text_ref.bytes && text_hash(text) == text_ref.hash
            });
            text.map(|text| text.as_bytes().to_vec())
        })?
        .ok_or(Error::Stale)
    }
}

impl Store for VirtualDir {
    fn describe(&self) -> String {
        format!("{}/{}", self.folder.describe(), self.location.transcript.display())
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        self.folder.root()
    }

    fn is_replaced(&self) -> bool {
        false
    }

    fn stat(&self, path: &RelPath) -> Result<Meta> {
        let transcript = self.transcript_meta()?;
        if transcript.kind != Kind::File {
            return Err(Error::NotFound);
        }
        let name = path.as_bytes();
        match self.resolve(path, &|| self.full_index())? {
            // A replaced transcript is another worker.
            VirtualNode::Root => {
                Ok(Meta { identity: transcript.identity, ..self.folder_meta(&transcript, b"") })
            }
            VirtualNode::Lines(LineFile::Source) if self.location.agent.is_none() => {
                let copied = self.copied_bytes()?;
                Ok(Meta { size: transcript.size.saturating_sub(copied), ..transcript })
            }
            VirtualNode::Lines(kind) => {
                let size = self.conversation(&*self.full_index()?)?.file_bytes(kind);
                Ok(self.file_meta(&transcript, name, 0, size, None))
            }
            VirtualNode::Metadata(path) => self.folder.stat(&path),
            VirtualNode::Text(text) | VirtualNode::TextBeside(_, text) => {
                Ok(self.file_meta(&transcript, name, text.hash, text.bytes, None))
            }
            VirtualNode::Requests => self.requests_meta(&transcript, &*self.full_index()?),
            VirtualNode::Commands => self.commands_meta(&transcript, &*self.full_index()?),
            VirtualNode::Calls => Ok(self.folder_meta(&transcript, name)),
            VirtualNode::Call(at) => self.call_meta(&transcript, &*self.full_index()?, at),
        }
    }

    fn list(&self, path: &RelPath) -> Result<Vec<DirEntry>> {
        let index = self.full_index()?;
        let conversation = self.conversation(&index)?;
        let file = |name: &str| Name::new(name).map(|name| DirEntry { name, kind: Kind::File });
        match self.resolve(path, &|| Ok(index.clone()))? {
            VirtualNode::Root => {
                let mut entries = vec![file(self.location.source_name())?, file(THREAD)?];
                if self.metadata_path().is_some() {
                    entries.push(file(self.location.metadata_name())?);
                }
                if conversation.task().is_some() {
                    entries.push(file(TASK)?);
                }
                if !conversation.requests.is_empty() {
                    entries.push(file(REQUESTS)?);
                }
                if conversation.commands_size() > 0 {
                    entries.push(file(COMMANDS)?);
                }
                if conversation.result().is_some() || self.returned(Deadline::never()).is_some() {
                    entries.push(file(RESULT)?);
                }
                entries.push(DirEntry { name: Name::new(CALLS)?, kind: Kind::Folder });
                Ok(entries)
            }
            VirtualNode::Calls => {
                let names =
                    conversation.calls.iter().enumerate().map(|(at, call)| call.file_name(at));
                Ok(names.map(|name| DirEntry { name, kind: Kind::File }).collect())
            }
            _ => Err(Error::NotADirectory),
        }
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        match self.resolve(path, &|| self.full_index())? {
            VirtualNode::Root | VirtualNode::Calls => Err(Error::IsADirectory),
            VirtualNode::Lines(LineFile::Source) if self.location.agent.is_none() => {
                let file = match self.location.container {
                    Container::File | Container::Zstd | Container::Spans => {
                        self.folder.open(&self.location.transcript)?
                    }
                    Container::Continued
                    | Container::Folder
                    | Container::Database(_)
                    | Container::Samples => self.open_transcript()?,
                };
                Ok(match self.copied_bytes()? {
                    0 => file,
                    copied => Box::new(OwnPart { file, copied }),
                })
            }
            VirtualNode::Metadata(path) => self.folder.open(&path),
            VirtualNode::Lines(kind) => {
                let file = self.open_transcript()?;
                // The index must describe this open file, even if another one replaces it
                // meanwhile.
                let transcript = file.meta()?;
                let (index, _) = self.read_index(&*file, Deadline::never())?;
                let meta = self.file_meta(&transcript, path.as_bytes(), 0, 0, None);
                let (format, location) = (self.format, self.location.clone());
                let history = self.history(Deadline::never())?;
                let index = (index, history);
                let file = GrowingFile::new(file, format, location, kind, meta, transcript, index);
                Ok(Box::new(file))
            }
            VirtualNode::Text(text) => self.text_file(path, &text, self),
            VirtualNode::TextBeside(record, text) => self.text_file(path, &text, &record),
            VirtualNode::Requests => {
                let index = self.full_index()?;
                let meta = self.requests_meta(&self.transcript_meta()?, &index)?;
                let file = self.open_transcript()?;
                let bytes = self.conversation(&index)?.requests.render(|span, parts| {
                    with_turns_at(&*file, self.format, span, |turns| {
                        parts.iter().map(|part| request_text(turns, *part)).collect()
                    })
                })?;
                whole_file(meta, bytes)
            }
            VirtualNode::Commands => {
                let index = self.full_index()?;
                let meta = self.commands_meta(&self.transcript_meta()?, &index)?;
                let file = self.open_transcript()?;
                let bytes = self.conversation(&index)?.render_commands(|span| {
                    with_turns_at(&*file, self.format, span, commands::called_with)
                })?;
                whole_file(meta, bytes)
            }
            VirtualNode::Call(at) => {
                let index = self.full_index()?;
                let call = self.conversation(&index)?.calls.get(at).ok_or(Error::NotFound)?;
                let spilled = call
                    .result
                    .as_ref()
                    .map_or(Ok(None), |result| self.spilled_result(&index, call, result))?;
                if let Some((path, _)) = spilled {
                    return self.folder.open(&path);
                }
                let meta = self.call_meta(&self.transcript_meta()?, &index, at)?;
                let output = call
                    .result
                    .as_ref()
                    .map_or(Ok(Vec::new()), |result| self.read_output(result))?;
                Ok(Box::new(StaticFile::new(meta, output)))
            }
        }
    }

    fn prepare(&self, deadline: Deadline<'_>) -> Result<()> {
        let (_, is_complete) = self.index(deadline)?;
        if is_complete { Ok(()) } else { Err(Error::Late) }
    }

    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
        // The only directory inside is tool_calls, and parts of a worker cannot be entered.
        if !path.is_root() {
            return Err(Error::NotFound);
        }
        let own = VirtualDir::new(
            self.folder.clone(),
            self.location.clone(),
            self.format,
            self.transcripts.clone(),
            self.reads_others,
        );
        Ok(Box::new(own.with_job(self.job.clone())))
    }

    fn source_files(&self) -> Option<Result<Vec<Meta>>> {
        Some(self.source_and_result_metas())
    }
}

/// Returns the file with the metadata `meta`, unless its size shows that the transcript changed.
fn whole_file(meta: Meta, bytes: Vec<u8>) -> Result<Box<dyn File>> {
    if bytes.len() as u64 != meta.size {
        return Err(Error::Stale);
    }
    Ok(Box::new(StaticFile::new(meta, bytes)))
}

/// Returns true if a file beside a transcript counts as missing. Its name may come from the
/// transcript, and a bad name must not make the rest unreadable.
fn is_unreachable(error: &Error) -> bool {
    error.is_not_found()
        || matches!(error, Error::NameTooLong | Error::Io(Errno::ACCESS | Errno::PERM))
}
