//! Where transcripts lie beneath a store's root, and what each of them is.
//!
//! A store is the program's own folder, its `projects`, or the folder of one project. What is not a transcript there is
//! no business of this format and not mentioned.

use super::super::{Fit, Found};
use super::line::decode;
use super::read::Whose;
use crate::error::{Error, Result};
use crate::model::Reason;
use crate::name::{Name, RelPath};
use crate::store::{DirEntry, Kind, Store, read_range};

/// In the program's own folder: the projects.
const PROJECTS: &str = "projects";
/// In a session's folder: the transcripts of its subagents.
const SUBAGENTS: &str = "subagents";
/// In there: those of workflows, a folder for each.
const WORKFLOWS: &str = "workflows";
/// In a session's folder: results too large for the transcript.
const RESULTS: &str = "tool-results";
const TRANSCRIPT: &[u8] = b".jsonl";
const AGENT: &[u8] = b"agent-";
/// Of how many transcripts the beginning is looked at before a store is said to hold none, and how much of it in bytes.
const LOOKED_AT: usize = 100;
const LOOKED_IN: usize = 256 << 10;
/// Types of lines by which a transcript is recognised.
const SIGNS: [&str; 6] = ["user", "assistant", "summary", "system", "file-history-snapshot", "progress"];

/// A worker: a transcript, or a conversation in one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The folder of the project, from the store's root.
    pub(super) project: RelPath,
    /// The transcript, from there.
    pub(super) transcript: RelPath,
    /// Whose the transcript is.
    pub(super) whose: Whose,
    /// The session that its place names, as it is written there.
    pub(super) session: Option<Name>,
    /// The subagent told inside of the transcript whose conversation this is; none for the transcript's own.
    pub(super) agent: Option<Name>,
}

impl Place {
    /// The place that stands for the worker `path`: that of a transcript, or of something beneath one.
    pub(super) fn of(path: &RelPath) -> Option<Place> {
        let names: Vec<Name> = path.names().collect();
        let at = names.iter().position(is_transcript)?;
        let (before, rest) = names.split_at(at);
        let (file, inside) = rest.split_first()?;
        let is_agent = file.as_bytes().starts_with(AGENT);
        // Beneath the project: <session>/subagents/… for a subagent, else the transcript alone.
        let below = match before.iter().rposition(|name| name.as_bytes() == SUBAGENTS.as_bytes()) {
            Some(subagents) if is_agent && subagents > 0 => subagents - 1,
            _ => before.len(),
        };
        let (project, beneath) = before.split_at(below);
        let join = |names: &[Name]| names.iter().fold(RelPath::root(), |path, name| path.join(name));
        Some(Place {
            project: join(project),
            transcript: join(beneath).join(file),
            whose: if is_agent { Whose::Agent } else { Whose::Session },
            session: beneath.first().cloned().or_else(|| (!is_agent).then(|| stem(file)).flatten()),
            agent: inside.first().cloned(),
        })
    }

    /// The name that its worker has by its place.
    pub(super) fn name(&self) -> Option<Name> {
        let stem = || {
            let stem = stem(&self.transcript.file_name()?)?;
            match (self.whose, stem.as_bytes().strip_prefix(AGENT)) {
                (Whose::Agent, Some(id)) => Name::new(id).ok().or(Some(stem)),
                _ => Some(stem),
            }
        };
        self.agent.clone().or_else(stem)
    }

    /// Where the whole of a result lies that is too large for the transcript, from the project's folder.
    pub(super) fn spilled(&self, session: Option<&str>, call: &str) -> Option<RelPath> {
        let named = session.and_then(|session| Name::new(session).ok());
        let session = self.session.clone().or(named)?;
        let file = Name::new(format!("{call}.txt")).ok()?;
        Some(RelPath::from(session).join(&Name::new(RESULTS).ok()?).join(&file))
    }

    /// What its program says about a subagent beside its transcript, from the project's folder.
    pub(super) fn about(&self) -> Option<RelPath> {
        let stem = stem(&self.transcript.file_name()?).filter(|_| self.whose == Whose::Agent)?;
        let file = Name::new([stem.as_bytes(), b".meta.json"].concat()).ok()?;
        Some(self.transcript.parent().join(&file))
    }
}

fn is_transcript(name: &Name) -> bool {
    name.as_bytes().ends_with(TRANSCRIPT) && name.as_bytes().len() > TRANSCRIPT.len()
}

fn stem(file: &Name) -> Option<Name> {
    Name::new(file.as_bytes().strip_suffix(TRANSCRIPT)?).ok()
}

/// The transcripts of a store.
pub(super) fn find(store: &dyn Store) -> Result<Found> {
    let mut found = Found::default();
    let entries = store.list(&RelPath::root())?;
    let has = |name: &str| entries.iter().any(|entry| is_folder(entry, name));
    if has(PROJECTS) {
        let projects = path(PROJECTS);
        in_projects(store, &projects, store.list(&projects)?, &mut found)?;
    } else {
        in_project(store, &RelPath::root(), &entries, &mut found)?;
        in_projects(store, &RelPath::root(), entries, &mut found)?;
    }
    Ok(found)
}

fn in_projects(store: &dyn Store, folder: &RelPath, entries: Vec<DirEntry>, found: &mut Found) -> Result<()> {
    for DirEntry { name, kind } in entries {
        let project = folder.join(&name);
        match kind {
            Kind::Folder => {
                if let Some(entries) = listed(store, &project, found)? {
                    in_project(store, &project, &entries, found)?;
                }
            }
            Kind::Link => found.passed.add(project, Reason::Link, None),
            Kind::File | Kind::Special => {}
        }
    }
    Ok(())
}

fn in_project(store: &dyn Store, project: &RelPath, entries: &[DirEntry], found: &mut Found) -> Result<()> {
    transcripts(project, entries, found);
    for entry in entries.iter().filter(|entry| entry.kind == Kind::Folder) {
        // Few sessions have subagents; the others cost one stat.
        let subagents = project.join(&entry.name).join_path(&path(SUBAGENTS));
        let Some(entries) = listed(store, &subagents, found)? else { continue };
        transcripts(&subagents, &entries, found);
        if !entries.iter().any(|entry| is_folder(entry, WORKFLOWS)) {
            continue;
        }
        let workflows = subagents.join_path(&path(WORKFLOWS));
        for run in listed(store, &workflows, found)?.unwrap_or_default() {
            let folder = workflows.join(&run.name);
            if let Some(entries) = listed(store, &folder, found)? {
                transcripts(&folder, &entries, found);
            }
        }
    }
    Ok(())
}

/// Those in one folder. Beneath subagents only those of agents are any: a journal tells nothing new.
fn transcripts(folder: &RelPath, entries: &[DirEntry], found: &mut Found) {
    let only_agents = folder.names().any(|name| name.as_bytes() == SUBAGENTS.as_bytes());
    for DirEntry { name, kind } in entries {
        if !is_transcript(name) || only_agents && !name.as_bytes().starts_with(AGENT) {
            continue;
        }
        match kind {
            Kind::File => found.folders.push(folder.join(name)),
            Kind::Link => found.passed.add(folder.join(name), Reason::Link, None),
            Kind::Special => found.passed.add(folder.join(name), Reason::Special, None),
            Kind::Folder => found.passed.add(folder.join(name), Reason::NotAWorker, None),
        }
    }
}

/// The entries of a folder; `None` if it is not there, or cannot be read, which is told.
fn listed(store: &dyn Store, folder: &RelPath, found: &mut Found) -> Result<Option<Vec<DirEntry>>> {
    match store.list(folder) {
        Ok(entries) => Ok(Some(entries)),
        Err(Error::NotFound | Error::NotADirectory) => Ok(None),
        Err(Error::Escape | Error::Special) => {
            found.passed.add(folder.clone(), Reason::Link, None);
            Ok(None)
        }
        Err(error @ Error::Io(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM)) => {
            found.passed.add(folder.clone(), Reason::Unreadable, Some(error));
            Ok(None)
        }
        // What cannot be listed for a moment has not lost its transcripts.
        Err(error) => Err(error),
    }
}

/// Looks whether `store` holds transcripts.
pub(super) fn fit(store: &dyn Store) -> Result<Fit> {
    let found = find(store)?;
    if found.folders.iter().take(LOOKED_AT).any(|path| is_ours(store, path).unwrap_or(false)) {
        return Ok(Fit::Workers);
    }
    let entries = store.list(&RelPath::root())?;
    let empty = |folder: &RelPath| store.list(folder).is_ok_and(|entries| entries.is_empty());
    let prepared = entries.iter().any(|entry| is_folder(entry, PROJECTS)) && empty(&path(PROJECTS));
    Ok(if prepared { Fit::Empty } else { Fit::No })
}

/// Whether the beginning of a file is that of a transcript: its first line that can be decoded is of a type by which one
/// is recognised, or a later one, which must also say whose it is. Types that are not known may come first.
fn is_ours(store: &dyn Store, path: &RelPath) -> Result<bool> {
    let file = store.open(path)?;
    let head = read_range(&*file, 0, LOOKED_IN)?;
    let (mut ours, mut first) = (false, true);
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        decode(line, |line| {
            let named = [&line.uuid, &line.session_id, &line.agent_id].iter().any(|id| id.0.is_some());
            ours = SIGNS.contains(&line.kind.as_str()) && (named || first && line.kind.as_str() != "user");
            first = false;
        });
        if ours {
            break;
        }
    }
    Ok(ours)
}

fn is_folder(entry: &DirEntry, name: &str) -> bool {
    entry.kind == Kind::Folder && entry.name.as_bytes() == name.as_bytes()
}

fn path(text: &str) -> RelPath {
    // Constants of this format.
    RelPath::parse(text).unwrap_or_default()
}
