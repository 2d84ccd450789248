//! The layout of transcripts beneath a store's root.
//!
//! A store is the program's own directory, its `projects` directory, or the directory of one
//! project. Other files in them are ignored.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::super::{Candidates, Detection};
use super::schema::decode;
use crate::error::{Error, Result};
use crate::model::SkipReason;
use crate::name::{Name, RelPath};
use crate::store::{DirEntry, Kind, Store, read_range};

/// The directory of the calls' outputs, in a worker's virtual directory.
pub(super) const CALLS: &str = "tool_calls";
/// The transcript in a worker's virtual directory, byte for byte; for a subagent inside a session,
/// its lines.
pub(super) const SOURCE: &str = "source.jsonl";
/// The directory of projects, in the program's own directory.
const PROJECTS: &str = "projects";
/// The directory of subagents' transcripts, in a session's directory.
const SUBAGENTS: &str = "subagents";
/// The directory of workflows, in [`SUBAGENTS`]. Each workflow is a directory of transcripts.
const WORKFLOWS: &str = "workflows";
/// The directory of results too large for the transcript, in a session's directory.
const RESULTS: &str = "tool-results";
const TRANSCRIPT_SUFFIX: &[u8] = b".jsonl";
const AGENT_PREFIX: &[u8] = b"agent-";
/// Maximum number of transcripts that are probed to detect a store.
const PROBED_TRANSCRIPTS_MAX: usize = 100;
/// Number of bytes read from a probed transcript.
const PROBED_BYTES: usize = 256 << 10;
/// Line types by which a transcript is recognized.
const KNOWN_LINE_TYPES: [&str; 6] =
    ["user", "assistant", "summary", "system", "file-history-snapshot", "progress"];

/// The owner of a transcript file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TranscriptKind {
    /// A session, which may contain the side chains of subagents.
    Session,
    /// A single subagent.
    Agent,
}

/// The location of a worker: a transcript, or a conversation inside one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TranscriptLocation {
    /// Path of the project's directory from the store's root.
    pub(super) project: RelPath,
    /// Path of the transcript from the project's directory.
    pub(super) transcript: RelPath,
    /// Kind of the transcript.
    pub(super) kind: TranscriptKind,
    /// The session named by the path.
    pub(super) session: Option<Name>,
    /// The subagent inside the transcript, or `None` for the transcript's own conversation.
    pub(super) agent: Option<Name>,
}

impl TranscriptLocation {
    /// Parses the path of a worker: a transcript, or a name beneath one.
    pub(super) fn from_path(path: &RelPath) -> Option<TranscriptLocation> {
        let names: Vec<Name> = path.names().collect();
        let at = names.iter().position(is_transcript)?;
        let (before, rest) = names.split_at(at);
        let (file, inside) = rest.split_first()?;
        let is_agent = file.as_bytes().starts_with(AGENT_PREFIX);
        // Beneath the project: <session>/subagents/… for a subagent, else only the transcript.
        let below = match before.iter().rposition(|name| name.as_bytes() == SUBAGENTS.as_bytes()) {
            Some(subagents) if is_agent && subagents > 0 => subagents - 1,
            _ => before.len(),
        };
        let (project, beneath) = before.split_at(below);
        let join =
            |names: &[Name]| names.iter().fold(RelPath::root(), |path, name| path.join(name));
        Some(TranscriptLocation {
            project: join(project),
            transcript: join(beneath).join(file),
            kind: if is_agent { TranscriptKind::Agent } else { TranscriptKind::Session },
            session: beneath.first().cloned().or_else(|| (!is_agent).then(|| stem(file)).flatten()),
            agent: inside.first().cloned(),
        })
    }

    /// Returns the name of the worker, derived from its path.
    pub(super) fn worker_name(&self) -> Option<Name> {
        if self.agent.is_some() {
            return self.agent.clone();
        }
        let stem = stem(&self.transcript.file_name()?)?;
        match (self.kind, stem.as_bytes().strip_prefix(AGENT_PREFIX)) {
            (TranscriptKind::Agent, Some(id)) => Name::new(id).ok().or(Some(stem)),
            _ => Some(stem),
        }
    }

    /// Returns the path of a result too large for the transcript, from the project's directory.
    /// `session` is the session that the transcript states, for a path that names none.
    pub(super) fn spilled_result(&self, session: Option<&str>, call: &str) -> Option<RelPath> {
        let named = session.and_then(|session| Name::new(session).ok());
        let session = self.session.clone().or(named)?;
        let file = Name::new(format!("{call}.txt")).ok()?;
        Some(RelPath::from(session).join(&Name::new(RESULTS).ok()?).join(&file))
    }

    /// Returns the path of a subagent's metadata file, from the project's directory.
    pub(super) fn agent_metadata(&self) -> Option<RelPath> {
        let stem =
            stem(&self.transcript.file_name()?).filter(|_| self.kind == TranscriptKind::Agent)?;
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

/// Finds the transcripts of a store.
///
/// # Errors
///
/// Fails if a directory cannot be listed, except for lack of permission.
pub(super) fn find_workers(store: &dyn Store) -> Result<Candidates> {
    let mut found = Candidates::default();
    let entries = store.list(&RelPath::root())?;
    if has_projects(&entries) {
        let projects = path(PROJECTS);
        add_projects(store, &projects, store.list(&projects)?, &mut found)?;
    } else {
        add_project(store, &RelPath::root(), &entries, &mut found)?;
        add_projects(store, &RelPath::root(), entries, &mut found)?;
    }
    Ok(found)
}

fn add_projects(
    store: &dyn Store,
    folder: &RelPath,
    entries: Vec<DirEntry>,
    found: &mut Candidates,
) -> Result<()> {
    for DirEntry { name, kind } in entries {
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

fn add_project(
    store: &dyn Store,
    project: &RelPath,
    entries: &[DirEntry],
    found: &mut Candidates,
) -> Result<()> {
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

/// Adds the transcripts of one directory. In subagent directories only agents' files count, because
/// a journal adds nothing.
fn add_transcripts(folder: &RelPath, entries: &[DirEntry], found: &mut Candidates) {
    let only_agents = folder.names().any(|name| name.as_bytes() == SUBAGENTS.as_bytes());
    for DirEntry { name, kind } in entries {
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

/// Lists a directory. Returns `None` if it is missing, or skipped because it is unreadable or a
/// link.
fn list_if_present(
    store: &dyn Store,
    folder: &RelPath,
    found: &mut Candidates,
) -> Result<Option<Vec<DirEntry>>> {
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
        // A store that cannot be listed for a moment has not lost its transcripts.
        Err(error) => Err(error),
    }
}

/// Detects whether `store` holds transcripts.
///
/// # Errors
///
/// Fails if a directory cannot be listed.
pub(super) fn detect(store: &dyn Store) -> Result<Detection> {
    let found = find_workers(store)?;
    if found
        .folders
        .iter()
        .take(PROBED_TRANSCRIPTS_MAX)
        .any(|path| looks_like_transcript(store, path).unwrap_or(false))
    {
        return Ok(Detection::Workers);
    }
    let entries = store.list(&RelPath::root())?;
    let is_empty = has_projects(&entries)
        && store.list(&path(PROJECTS)).is_ok_and(|projects| projects.is_empty());
    Ok(if is_empty { Detection::Empty } else { Detection::Other })
}

/// Detects whether the file at `path` is a transcript.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub(super) fn detect_transcript(store: &dyn Store, path: &RelPath) -> Result<Detection> {
    let is_transcript = looks_like_transcript(store, path)?;
    Ok(if is_transcript { Detection::Workers } else { Detection::Other })
}

/// Splits the path of a transcript into the directory of its project and its path from there.
/// Returns `None` if the name is not that of a transcript.
pub(super) fn locate(path: &Path) -> Option<(&Path, RelPath)> {
    let is_subagents = |folder: &&Path| folder.file_name().is_some_and(|name| name == SUBAGENTS);
    // A subagent's transcript is in <project>/<session>/subagents/.
    let session = path.ancestors().skip(1).find(is_subagents).and_then(Path::parent);
    let project = session.unwrap_or(path).parent()?;
    let transcript =
        RelPath::parse(path.strip_prefix(project).ok()?.as_os_str().as_bytes()).ok()?;
    is_transcript(&transcript.file_name()?).then_some((project, transcript))
}

/// Returns true if the beginning of a file looks like a transcript. One of its lines must have a
/// known type and name a session, agent or line ID. The first decodable line need not name an ID
/// unless its type is `user`. Lines of unknown types may come first.
fn looks_like_transcript(store: &dyn Store, path: &RelPath) -> Result<bool> {
    let file = store.open(path)?;
    let head = read_range(&*file, 0, PROBED_BYTES)?;
    let (mut is_transcript_line, mut first) = (false, true);
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        decode(line, |line| {
            let named =
                [&line.uuid, &line.session_id, &line.agent_id].iter().any(|id| id.0.is_some());
            is_transcript_line = KNOWN_LINE_TYPES.contains(&line.kind.as_str())
                && (named || first && line.kind.as_str() != "user");
            first = false;
        });
        if is_transcript_line {
            break;
        }
    }
    Ok(is_transcript_line)
}

fn has_projects(entries: &[DirEntry]) -> bool {
    entries.iter().any(|entry| is_folder(entry, PROJECTS))
}

fn is_folder(entry: &DirEntry, name: &str) -> bool {
    entry.kind == Kind::Folder && entry.name.as_bytes() == name.as_bytes()
}

fn path(text: &str) -> RelPath {
    RelPath::constant(text)
}
