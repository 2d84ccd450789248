//! Where transcripts lie beneath a store's root, and what each of them is.
//!
//! A store is the program's own folder, its `projects`, or the folder of one project. What is not a transcript there is
//! no business of this format and not mentioned.

use super::super::{Candidates, Detection};
use super::parser::TranscriptKind;
use super::schema::decode;
use crate::error::{Error, Result};
use crate::model::SkipReason;
use crate::name::{Name, RelPath};
use crate::store::{Entry, Kind, Store, read_range};

/// In the program's own folder: the projects.
const PROJECTS: &str = "projects";
/// In a session's folder: the transcripts of its subagents.
const SUBAGENTS: &str = "subagents";
/// In there: those of workflows, a folder for each.
const WORKFLOWS: &str = "workflows";
/// In a session's folder: results too large for the transcript.
const RESULTS: &str = "tool-results";
const TRANSCRIPT_SUFFIX: &[u8] = b".jsonl";
const AGENT_PREFIX: &[u8] = b"agent-";
/// Of how many transcripts the beginning is looked at before a store is said to hold none, and how much of it in bytes.
const PROBED_TRANSCRIPTS_MAX: usize = 100;
const PROBED_BYTES: usize = 256 << 10;
/// Types of lines by which a transcript is recognised.
const KNOWN_LINE_TYPES: [&str; 6] = ["user", "assistant", "summary", "system", "file-history-snapshot", "progress"];

/// A worker: a transcript, or a conversation in one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WorkerLocation {
    /// The folder of the project, from the store's root.
    pub(super) project: RelPath,
    /// The transcript, from there.
    pub(super) transcript: RelPath,
    /// Whose the transcript is.
    pub(super) kind: TranscriptKind,
    /// The session that its place names, as it is written there.
    pub(super) session: Option<Name>,
    /// The subagent told inside of the transcript whose conversation this is; none for the transcript's own.
    pub(super) agent: Option<Name>,
}

impl WorkerLocation {
    /// The place that stands for the worker `path`: that of a transcript, or of something beneath one.
    pub(super) fn from_path(path: &RelPath) -> Option<WorkerLocation> {
        let names: Vec<Name> = path.names().collect();
        let at = names.iter().position(is_transcript)?;
        let (before, rest) = names.split_at(at);
        let (file, inside) = rest.split_first()?;
        let is_agent = file.as_bytes().starts_with(AGENT_PREFIX);
        // Beneath the project: <session>/subagents/… for a subagent, else the transcript alone.
        let below = match before.iter().rposition(|name| name.as_bytes() == SUBAGENTS.as_bytes()) {
            Some(subagents) if is_agent && subagents > 0 => subagents - 1,
            _ => before.len(),
        };
        let (project, beneath) = before.split_at(below);
        let join = |names: &[Name]| names.iter().fold(RelPath::root(), |path, name| path.join(name));
        Some(WorkerLocation {
            project: join(project),
            transcript: join(beneath).join(file),
            kind: if is_agent { TranscriptKind::Agent } else { TranscriptKind::Session },
            session: beneath.first().cloned().or_else(|| (!is_agent).then(|| stem(file)).flatten()),
            agent: inside.first().cloned(),
        })
    }

    /// The name that its worker has by its place.
    pub(super) fn worker_name(&self) -> Option<Name> {
        let stem = || {
            let stem = stem(&self.transcript.file_name()?)?;
            match (self.kind, stem.as_bytes().strip_prefix(AGENT_PREFIX)) {
                (TranscriptKind::Agent, Some(id)) => Name::new(id).ok().or(Some(stem)),
                _ => Some(stem),
            }
        };
        self.agent.clone().or_else(stem)
    }

    /// Where the whole of a result lies that is too large for the transcript, from the project's folder.
    pub(super) fn spilled_result(&self, session: Option<&str>, call: &str) -> Option<RelPath> {
        let named = session.and_then(|session| Name::new(session).ok());
        let session = self.session.clone().or(named)?;
        let file = Name::new(format!("{call}.txt")).ok()?;
        Some(RelPath::from(session).join(&Name::new(RESULTS).ok()?).join(&file))
    }

    /// What its program says about a subagent beside its transcript, from the project's folder.
    pub(super) fn agent_metadata(&self) -> Option<RelPath> {
        let stem = stem(&self.transcript.file_name()?).filter(|_| self.kind == TranscriptKind::Agent)?;
        let file = Name::new([stem.as_bytes(), b".meta.json"].concat()).ok()?;
        Some(self.transcript.parent().join(&file))
    }
}

fn is_transcript(name: &Name) -> bool {
    name.as_bytes().ends_with(TRANSCRIPT_SUFFIX) && name.as_bytes().len() > TRANSCRIPT_SUFFIX.len()
}

fn stem(file: &Name) -> Option<Name> {
    Name::new(file.as_bytes().strip_suffix(TRANSCRIPT_SUFFIX)?).ok()
}

/// The transcripts of a store.
pub(super) fn find_workers(store: &dyn Store) -> Result<Candidates> {
    let mut found = Candidates::default();
    let entries = store.list(&RelPath::root())?;
    let has = |name: &str| entries.iter().any(|entry| is_folder(entry, name));
    if has(PROJECTS) {
        let projects = path(PROJECTS);
        add_projects(store, &projects, store.list(&projects)?, &mut found)?;
    } else {
        add_project(store, &RelPath::root(), &entries, &mut found)?;
        add_projects(store, &RelPath::root(), entries, &mut found)?;
    }
    Ok(found)
}

fn add_projects(store: &dyn Store, folder: &RelPath, entries: Vec<Entry>, found: &mut Candidates) -> Result<()> {
    for Entry { name, kind } in entries {
        let project = folder.join(&name);
        match kind {
            Kind::Folder => {
                if let Some(entries) = list_if_present(store, &project, found)? {
                    add_project(store, &project, &entries, found)?;
                }
            }
            Kind::Link => found.skipped.add(project, SkipReason::Link, None),
            Kind::File | Kind::Special => {}
        }
    }
    Ok(())
}

fn add_project(store: &dyn Store, project: &RelPath, entries: &[Entry], found: &mut Candidates) -> Result<()> {
    add_transcripts(project, entries, found);
    for entry in entries.iter().filter(|entry| entry.kind == Kind::Folder) {
        // Few sessions have subagents; the others cost one stat.
        let subagents = project.join(&entry.name).join_path(&path(SUBAGENTS));
        let Some(entries) = list_if_present(store, &subagents, found)? else { continue };
        add_transcripts(&subagents, &entries, found);
        if !entries.iter().any(|entry| is_folder(entry, WORKFLOWS)) {
            continue;
        }
        let workflows = subagents.join_path(&path(WORKFLOWS));
        for run in list_if_present(store, &workflows, found)?.unwrap_or_default() {
            let folder = workflows.join(&run.name);
            if let Some(entries) = list_if_present(store, &folder, found)? {
                add_transcripts(&folder, &entries, found);
            }
        }
    }
    Ok(())
}

/// Those in one folder. Beneath subagents only those of agents are any: a journal tells nothing new.
fn add_transcripts(folder: &RelPath, entries: &[Entry], found: &mut Candidates) {
    let only_agents = folder.names().any(|name| name.as_bytes() == SUBAGENTS.as_bytes());
    for Entry { name, kind } in entries {
        if !is_transcript(name) || only_agents && !name.as_bytes().starts_with(AGENT_PREFIX) {
            continue;
        }
        match kind {
            Kind::File => found.folders.push(folder.join(name)),
            Kind::Link => found.skipped.add(folder.join(name), SkipReason::Link, None),
            Kind::Special => found.skipped.add(folder.join(name), SkipReason::Special, None),
            Kind::Folder => found.skipped.add(folder.join(name), SkipReason::NotAWorker, None),
        }
    }
}

/// The entries of a folder; `None` if it is not there, or cannot be read, which is told.
fn list_if_present(store: &dyn Store, folder: &RelPath, found: &mut Candidates) -> Result<Option<Vec<Entry>>> {
    match store.list(folder) {
        Ok(entries) => Ok(Some(entries)),
        Err(Error::NotFound | Error::NotADirectory) => Ok(None),
        Err(Error::Escape | Error::Special) => {
            found.skipped.add(folder.clone(), SkipReason::Link, None);
            Ok(None)
        }
        Err(error @ Error::Io(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM)) => {
            found.skipped.add(folder.clone(), SkipReason::Unreadable, Some(error));
            Ok(None)
        }
        // What cannot be listed for a moment has not lost its transcripts.
        Err(error) => Err(error),
    }
}

/// Looks whether `store` holds transcripts.
pub(super) fn detect(store: &dyn Store) -> Result<Detection> {
    let found = find_workers(store)?;
    if found.folders.iter().take(PROBED_TRANSCRIPTS_MAX).any(|path| looks_like_transcript(store, path).unwrap_or(false))
    {
        return Ok(Detection::Workers);
    }
    let entries = store.list(&RelPath::root())?;
    let empty = |folder: &RelPath| store.list(folder).is_ok_and(|entries| entries.is_empty());
    let prepared = entries.iter().any(|entry| is_folder(entry, PROJECTS)) && empty(&path(PROJECTS));
    Ok(if prepared { Detection::Empty } else { Detection::Other })
}

/// Whether the beginning of a file is that of a transcript: its first line that can be decoded is of a type by which one
/// is recognised, or a later one, which must also say whose it is. Types that are not known may come first.
fn looks_like_transcript(store: &dyn Store, path: &RelPath) -> Result<bool> {
    let file = store.open(path)?;
    let head = read_range(&*file, 0, PROBED_BYTES)?;
    let (mut is_transcript_line, mut first) = (false, true);
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        decode(line, |line| {
            let named = [&line.uuid, &line.session_id, &line.agent_id].iter().any(|id| id.0.is_some());
            is_transcript_line =
                KNOWN_LINE_TYPES.contains(&line.kind.as_str()) && (named || first && line.kind.as_str() != "user");
            first = false;
        });
        if is_transcript_line {
            break;
        }
    }
    Ok(is_transcript_line)
}

fn is_folder(entry: &Entry, name: &str) -> bool {
    entry.kind == Kind::Folder && entry.name.as_bytes() == name.as_bytes()
}

fn path(text: &str) -> RelPath {
    // Constants of this format.
    RelPath::parse(text).unwrap_or_default()
}
