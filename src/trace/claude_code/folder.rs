//! A conversation as a worker's folder: files that are made out of its transcript, and the transcript itself.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::facts::{Call, Chain, Done, Facts, Said};
use super::layout::Place;
use super::lines::{Bytes, Lines, What, turn_at};
use super::read::key;
use super::transcripts::Transcripts;
use crate::digest::digest;
use crate::error::{Error, Result};
use crate::name::{Name, RelPath};
use crate::store::{DirEntry, File, Identity, Kind, Meta, Store, Time};

/// The folder of the calls' outputs.
pub(super) const CALLS: &str = "tool_calls";
/// The transcript, byte for byte; of a subagent told inside of one, its lines.
pub(super) const SOURCE: &str = "source.jsonl";
/// What the program says about a subagent beside its transcript.
const ABOUT: &str = "source.meta.json";
const THREAD: &str = "thread.jsonl";
const TASK: &str = "task.txt";
const RESULT: &str = "result.txt";
/// So many results in files of their own are looked at for changes.
const RESULTS_MAX: usize = 10_000;

/// The folder of a worker.
pub(super) struct Folder {
    project: Arc<dyn Store>,
    place: Place,
    /// The transcript, from the store's root.
    path: RelPath,
    transcripts: Arc<Transcripts>,
}

/// What a path in the folder is.
enum Node {
    Root,
    Source,
    About(RelPath),
    Thread,
    Text(Said),
    Calls,
    Call(usize),
}

impl Folder {
    /// The folder of the worker at `place`, whose project is entered already.
    pub(super) fn of(project: Arc<dyn Store>, place: Place, transcripts: Arc<Transcripts>) -> Folder {
        let path = place.project.join_path(&place.transcript);
        Folder { project, place, path, transcripts }
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// What stat tells of the transcript.
    pub(super) fn transcript(&self) -> Result<Meta> {
        self.project.stat(&self.place.transcript)
    }

    /// The transcript.
    pub(super) fn open_transcript(&self) -> Result<Box<dyn File>> {
        self.project.open(&self.place.transcript)
    }

    /// What the program says about the subagent, if it does.
    pub(super) fn about(&self) -> Option<RelPath> {
        let about = self.place.about().filter(|_| self.place.agent.is_none())?;
        let there = self.project.stat(&about).is_ok_and(|meta| meta.kind == Kind::File);
        there.then_some(about)
    }

    /// Opens something that lies in the project's folder.
    pub(super) fn beside(&self, path: &RelPath) -> Result<Box<dyn File>> {
        self.project.open(path)
    }

    /// What the transcript tells, until `go_on` says no. Whether that was all.
    pub(super) fn facts(&self, go_on: &dyn Fn() -> bool) -> Result<(Arc<Facts>, bool)> {
        self.facts_of(&*self.open_transcript()?, go_on)
    }

    fn facts_of(&self, transcript: &dyn File, go_on: &dyn Fn() -> bool) -> Result<(Arc<Facts>, bool)> {
        self.transcripts.facts(&self.path, transcript, self.place.whose, go_on)
    }

    /// The file of a result that is too large for the transcript, with its size; `None` if it is not there.
    pub(super) fn spilled(&self, facts: &Facts, call: &Call, done: &Done) -> Result<Option<(RelPath, Meta)>> {
        let Some(path) = self.place.spilled(facts.session.as_deref(), &call.id).filter(|_| done.spilled) else {
            return Ok(None);
        };
        match self.project.stat(&path) {
            Ok(meta) => Ok((meta.kind == Kind::File).then_some((path, meta))),
            Err(error) if is_out_of_reach(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The folder of the results that are too large for the transcript, where its place tells which that is.
    fn results(&self) -> Option<RelPath> {
        self.place.spilled(None, "x").map(|file| file.parent())
    }

    /// What stat tells of all that the worker is made of, but for each of its results.
    pub(super) fn sources(&self) -> Result<Vec<Meta>> {
        let mut metas = vec![self.transcript()?];
        for path in self.results().into_iter().chain(self.place.about()) {
            match self.project.stat(&path) {
                Ok(meta) => metas.push(meta),
                Err(error) if is_out_of_reach(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(metas)
    }

    fn all(&self) -> Result<Arc<Facts>> {
        self.facts(&|| true).map(|(facts, _)| facts)
    }

    fn chain<'a>(&self, facts: &'a Facts) -> Result<&'a Chain> {
        facts.chain(self.place.agent.as_ref()).ok_or(Error::NotFound)
    }

    fn node(&self, path: &RelPath, facts: &dyn Fn() -> Result<Arc<Facts>>) -> Result<Node> {
        let names: Vec<Name> = path.names().collect();
        let texts: Vec<&[u8]> = names.iter().map(Name::as_bytes).collect();
        let said = |which: fn(&Chain) -> Option<&Said>| {
            let facts = facts()?;
            which(self.chain(&facts)?).cloned().map(Node::Text).ok_or(Error::NotFound)
        };
        match texts.as_slice() {
            [] => Ok(Node::Root),
            [name] if *name == SOURCE.as_bytes() => Ok(Node::Source),
            [name] if *name == ABOUT.as_bytes() => self.about().map(Node::About).ok_or(Error::NotFound),
            [name] if *name == THREAD.as_bytes() => Ok(Node::Thread),
            [name] if *name == TASK.as_bytes() => said(Chain::task),
            [name] if *name == RESULT.as_bytes() => said(Chain::final_words),
            [name] if *name == CALLS.as_bytes() => Ok(Node::Calls),
            [folder, file] if *folder == CALLS.as_bytes() => {
                let facts = facts()?;
                let number = file.split(|byte| *byte == b'_').next().and_then(|text| std::str::from_utf8(text).ok());
                let at = number.and_then(|text| text.parse::<usize>().ok()?.checked_sub(1)).ok_or(Error::NotFound)?;
                let call = self.chain(&facts)?.calls.get(at).ok_or(Error::NotFound)?;
                if call.file_name(at).as_bytes() == *file { Ok(Node::Call(at)) } else { Err(Error::NotFound) }
            }
            [file, ..] if [SOURCE, THREAD, TASK, RESULT].iter().any(|known| known.as_bytes() == *file) => {
                Err(Error::NotADirectory)
            }
            _ => Err(Error::NotFound),
        }
    }

    /// A file of `size` bytes that is made of the transcript; another `version` is another file.
    fn made(&self, transcript: &Meta, name: &[u8], version: u64, size: u64, mtime: Option<i64>) -> Meta {
        let mut hash = blake3::Hasher::new();
        hash.update(&transcript.identity.ino.to_le_bytes());
        hash.update(&version.to_le_bytes());
        for part in [self.place.agent.as_ref().map(Name::as_bytes).unwrap_or_default(), name] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let mtime = mtime.map(|at| Time {
            secs: at.div_euclid(1_000),
            nanos: u32::try_from(at.rem_euclid(1_000)).unwrap_or_default() * 1_000_000,
        });
        Meta {
            kind: Kind::File,
            size,
            nlink: 1,
            identity: Identity { ino: u64::from_le_bytes(digest(&hash)), ..transcript.identity },
            mtime: mtime.unwrap_or(transcript.mtime),
            // A result is as old as it says, though the transcript it stands in grows.
            ctime: mtime.unwrap_or(transcript.ctime),
            ..*transcript
        }
    }

    fn folder(&self, transcript: &Meta, name: &[u8]) -> Meta {
        let meta = self.made(transcript, name, 0, 0, None);
        // Who may read the transcript may enter what is made of it.
        Meta { kind: Kind::Folder, mode: meta.mode | (meta.mode & 0o444) >> 2, ..meta }
    }

    fn meta_of_call(&self, transcript: &Meta, facts: &Facts, at: usize) -> Result<Meta> {
        let call = self.chain(facts)?.calls.get(at).ok_or(Error::NotFound)?;
        let name = call.file_name(at);
        let Some(done) = &call.done else { return Ok(self.made(transcript, name.as_bytes(), 0, 0, call.at)) };
        if let Some((_, meta)) = self.spilled(facts, call, done)? {
            return Ok(meta);
        }
        let mtime = done.at.or(call.at);
        Ok(self.made(transcript, name.as_bytes(), done.hash, done.bytes, mtime))
    }

    fn output(&self, call: &Call, done: &Done) -> Result<Vec<u8>> {
        let file = self.open_transcript()?;
        let text = turn_at(&*file, done.span, |turn| {
            let mut results = turn.message.content.blocks().iter().filter(|block| block.kind.as_str() == "tool_result");
            let result = results.find(|block| key(block.tool_use_id.as_str()) == call.id);
            result.map(|block| block.content.text().into_owned().into_bytes())
        })?;
        text.filter(|text| text.len() as u64 == done.bytes).ok_or(Error::Stale)
    }

    fn said(&self, said: &Said) -> Result<Vec<u8>> {
        let file = self.open_transcript()?;
        let text = turn_at(&*file, said.span, |turn| turn.message.content.text().into_owned().into_bytes())?;
        if text.len() as u64 == said.bytes { Ok(text) } else { Err(Error::Stale) }
    }
}

impl Store for Folder {
    fn describe(&self) -> String {
        format!("{}/{}", self.project.describe(), self.place.transcript.display())
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        self.project.root()
    }

    fn is_replaced(&self) -> bool {
        false
    }

    fn stat(&self, path: &RelPath) -> Result<Meta> {
        let transcript = self.transcript()?;
        if transcript.kind != Kind::File {
            return Err(Error::NotFound);
        }
        let name = path.as_bytes();
        match self.node(path, &|| self.all())? {
            // Another transcript under the name is another worker.
            Node::Root => Ok(Meta { identity: transcript.identity, ..self.folder(&transcript, b"") }),
            Node::Source if self.place.agent.is_none() => Ok(transcript),
            Node::Source => Ok(self.made(&transcript, name, 0, self.chain(&*self.all()?)?.source_bytes(), None)),
            Node::About(about) => self.project.stat(&about),
            Node::Thread => Ok(self.made(&transcript, name, 0, self.chain(&*self.all()?)?.thread_bytes(), None)),
            Node::Text(said) => Ok(self.made(&transcript, name, said.hash, said.bytes, None)),
            Node::Calls => Ok(self.folder(&transcript, name)),
            Node::Call(at) => self.meta_of_call(&transcript, &*self.all()?, at),
        }
    }

    fn list(&self, path: &RelPath) -> Result<Vec<DirEntry>> {
        let facts = self.all()?;
        let chain = self.chain(&facts)?;
        let file = |name: &str| Name::new(name).map(|name| DirEntry { name, kind: Kind::File });
        match self.node(path, &|| Ok(facts.clone()))? {
            Node::Root => {
                let mut entries = vec![file(SOURCE)?, file(THREAD)?];
                if self.about().is_some() {
                    entries.push(file(ABOUT)?);
                }
                if chain.task().is_some() {
                    entries.push(file(TASK)?);
                }
                if chain.final_words().is_some() {
                    entries.push(file(RESULT)?);
                }
                entries.push(DirEntry { name: Name::new(CALLS)?, kind: Kind::Folder });
                Ok(entries)
            }
            Node::Calls => {
                let names = chain.calls.iter().enumerate().map(|(at, call)| call.file_name(at));
                Ok(names.map(|name| DirEntry { name, kind: Kind::File }).collect())
            }
            _ => Err(Error::NotADirectory),
        }
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn File>> {
        match self.node(path, &|| self.all())? {
            Node::Root | Node::Calls => Err(Error::IsADirectory),
            Node::Source if self.place.agent.is_none() => self.open_transcript(),
            Node::About(about) => self.project.open(&about),
            node @ (Node::Source | Node::Thread) => {
                let file = self.open_transcript()?;
                // Of this very file, whatever takes its place meanwhile.
                let (facts, _) = self.facts_of(&*file, &|| true)?;
                let made = self.made(&file.meta()?, path.as_bytes(), 0, 0, None);
                let (place, what) =
                    (self.place.clone(), if matches!(node, Node::Source) { What::Source } else { What::Thread });
                Ok(Box::new(Lines::new(file, place, what, made, facts)))
            }
            Node::Text(said) => {
                let meta = self.made(&self.transcript()?, path.as_bytes(), said.hash, said.bytes, None);
                Ok(Box::new(Bytes::new(meta, self.said(&said)?)))
            }
            Node::Call(at) => {
                let facts = self.all()?;
                let call = self.chain(&facts)?.calls.get(at).ok_or(Error::NotFound)?;
                let spilled = call.done.as_ref().map_or(Ok(None), |done| self.spilled(&facts, call, done))?;
                if let Some((path, _)) = spilled {
                    return self.project.open(&path);
                }
                let meta = self.meta_of_call(&self.transcript()?, &facts, at)?;
                let output = call.done.as_ref().map_or(Ok(Vec::new()), |done| self.output(call, done))?;
                Ok(Box::new(Bytes::new(meta, output)))
            }
        }
    }

    fn enter(&self, path: &RelPath) -> Result<Box<dyn Store>> {
        // Nothing but tool_calls lies deeper, and nobody is let into a part of a worker.
        if !path.is_root() {
            return Err(Error::NotFound);
        }
        Ok(Box::new(Folder::of(self.project.clone(), self.place.clone(), self.transcripts.clone())))
    }

    fn source_files(&self) -> Option<Result<Vec<Meta>>> {
        let all = || {
            let mut metas = self.sources()?;
            let results = self.results().map(|folder| (self.project.list(&folder).unwrap_or_default(), folder));
            let (entries, folder) = results.unwrap_or_default();
            // What changes in one of them, and who may read it, its folder does not tell.
            let files = entries.iter().filter(|entry| entry.kind == Kind::File).take(RESULTS_MAX);
            metas.extend(files.filter_map(|entry| self.project.stat(&folder.join(&entry.name)).ok()));
            Ok(metas)
        };
        Some(all())
    }
}

/// Whether what lies beside a transcript is as good as not there. Its name may be made of anything that stands in the
/// transcript, and no such name may cost the rest.
fn is_out_of_reach(error: &Error) -> bool {
    error.is_nowhere() || matches!(error, Error::NameTooLong | Error::Io(Errno::ACCESS | Errno::PERM))
}
