//! The layout of transcripts beneath a store's root.
//!
//! A store is the program's own directory, its `projects` directory, or the directory of one
//! project. Other files in them are ignored.

use super::super::Candidates;
use super::super::json_text::json_text;
use super::super::probe::Probe;
use super::super::transcript::{Container, Holds, Member, Shape, TranscriptLocation};
use super::schema::decode;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::SkipReason;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{DirEntry, Kind, Store};

const PROJECTS: &str = "projects";
const JOBS: &str = "jobs";
/// The file in the directory of a job that states how it stands.
pub(super) const JOB_STATE: &str = "state.json";
const JOB_ID_LEN: usize = 8;
const SUBAGENTS: &str = "subagents";
/// The directory of workflows, in [`SUBAGENTS`]. Each run is a directory of transcripts. The
/// directory of that name in the session's directory has a file for each run that has ended.
const WORKFLOWS: &str = "workflows";
/// The file beside the transcripts of a run that reports the results of its agents.
const JOURNAL: &str = "journal.jsonl";
const STATE_SUFFIX: &str = ".json";
/// The members of the state of a run that are read.
pub(super) const STATE: [Member; 4] = [
    Member::Value("taskId"),
    Member::Value("error"),
    Member::Value("status"),
    Member::List("workflowProgress"),
];
/// The directory of results too large for the transcript, in a session's directory.
const RESULTS: &str = "tool-results";
const TRANSCRIPT_SUFFIX: &[u8] = b".jsonl";
const AGENT_PREFIX: &[u8] = b"agent-";
/// Line types by which a transcript is recognized.
const KNOWN_LINE_TYPES: [&str; 6] =
    ["user", "assistant", "summary", "system", "file-history-snapshot", "progress"];

pub(super) fn locate(path: &RelPath) -> Option<TranscriptLocation> {
    let names: Vec<Name> = path.names().collect();
    let Some(at) = names.iter().position(is_transcript) else { return locate_state(&names) };
    let (before, rest) = names.split_at_checked(at)?;
    let (file, inside) = rest.split_first()?;
    let is_agent = file.as_bytes().starts_with(AGENT_PREFIX);
    let is_journal = is_journal(before, file);
    // Beneath the project: <session>/subagents/… for a subagent, else only the transcript.
    let below = match before.iter().rposition(|name| name.as_bytes() == SUBAGENTS.as_bytes()) {
        Some(subagents) if (is_agent || is_journal) && subagents > 0 => subagents - 1,
        _ => before.len(),
    };
    let (project, beneath) = before.split_at_checked(below)?;
    let join = |names: &[Name]| names.iter().fold(RelPath::root(), |path, name| path.join(name));
    let transcript = join(beneath).join(file);
    let stem = stem(file)?;
    let agent = inside.first().cloned();
    let own_name = match stem.as_bytes().strip_prefix(AGENT_PREFIX) {
        Some(id) if is_agent => Name::new(id).unwrap_or_else(|_| stem.clone()),
        _ => stem.clone(),
    };
    Some(TranscriptLocation {
        folder: join(project),
        container: Container::File,
        shape: Shape::Lines,
        holds: match file {
            _ if is_journal => Holds::Nested,
            _ if is_agent => Holds::One,
            _ => Holds::OneAndNested,
        },
        session: beneath.first().cloned().or_else(|| (!is_agent).then(|| stem.clone())),
        name: agent.clone().unwrap_or(own_name),
        metadata: is_agent.then(|| agent_metadata(&transcript, &stem)).flatten(),
        agent,
        transcript,
    })
}

/// Parses the path of the state of a workflow's run, in a session's directory.
fn locate_state(names: &[Name]) -> Option<TranscriptLocation> {
    let [project @ .., session, workflows, file] = names else { return None };
    let stem = file.as_bytes().strip_suffix(STATE_SUFFIX.as_bytes())?;
    let is_state = workflows.as_bytes() == WORKFLOWS.as_bytes();
    is_state.then(|| TranscriptLocation {
        folder: project.iter().fold(RelPath::root(), |path, name| path.join(name)),
        transcript: RelPath::from(session.clone()).join(workflows).join(file),
        container: Container::File,
        shape: Shape::Documents(&STATE),
        holds: Holds::Nested,
        session: Some(session.clone()),
        agent: None,
        name: Name::new(stem).unwrap_or_else(|_| file.clone()),
        metadata: None,
    })
}

fn is_journal(before: &[Name], file: &Name) -> bool {
    let folders = before.iter().rev().map(Name::as_bytes).skip(1);
    file.as_bytes() == JOURNAL.as_bytes()
        && folders.take(2).eq([WORKFLOWS.as_bytes(), SUBAGENTS.as_bytes()])
}

pub(super) fn is_session(location: &TranscriptLocation) -> bool {
    location.holds == Holds::OneAndNested && location.agent.is_none()
}

/// Returns the paths of the state and the journal of the workflow's run that started the agent at
/// `location`, from the store's root.
pub(super) fn run_records(location: &TranscriptLocation) -> Option<[RelPath; 2]> {
    let names: Vec<Name> = location.transcript.names().collect();
    let [session, subagents, workflows, run, _] = names.as_slice() else { return None };
    let is_run = (subagents.as_bytes(), workflows.as_bytes())
        == (SUBAGENTS.as_bytes(), WORKFLOWS.as_bytes());
    let state = Name::new([run.as_bytes(), STATE_SUFFIX.as_bytes()].concat()).ok()?;
    let session = location.folder.join(session);
    let journal = session.join(subagents).join(workflows).join(run).join_path(&path(JOURNAL));
    is_run.then(|| [session.join(workflows).join(&state), journal])
}

/// Returns the directory of the states of a session's workflows, from the project's directory.
pub(super) fn states_folder(location: &TranscriptLocation) -> Option<RelPath> {
    let session = location.session.clone().filter(|_| is_session(location))?;
    Some(RelPath::from(session).join_path(&path(WORKFLOWS)))
}

/// Returns the directory of the process that runs a session in the background, from the store's
/// root. It is named after the beginning of the session's ID.
pub(super) fn job_folder(location: &TranscriptLocation) -> Option<RelPath> {
    let is_below_root = location.folder.names().next()?.as_bytes() == PROJECTS.as_bytes();
    let session = location.name.as_bytes().get(..JOB_ID_LEN)?;
    let is_job = is_below_root && is_session(location);
    is_job.then_some(())?;
    Some(path(JOBS).join(&Name::new(session).ok()?))
}

/// Returns the path of the transcript that started a subagent: the transcript of the subagent
/// `agent`, or else of the session.
pub(super) fn starter(location: &TranscriptLocation, agent: Option<&str>) -> Option<RelPath> {
    let session = location.session.as_ref().filter(|_| location.holds == Holds::One)?;
    let transcript = |name: Name| Name::new([name.as_bytes(), TRANSCRIPT_SUFFIX].concat()).ok();
    let Some(agent) = agent else {
        return Some(location.folder.join(&transcript(session.clone())?));
    };
    let agent = Name::new([AGENT_PREFIX, agent.as_bytes()].concat()).ok()?;
    Some(location.folder.join_path(&location.transcript.parent()).join(&transcript(agent)?))
}

/// Returns the path of a result too large for the transcript, from the project's directory.
/// `session` is the session that the transcript states, for a path that names none.
pub(super) fn spilled_result(
    location: &TranscriptLocation,
    session: Option<&str>,
    call: &str,
    name: Option<&str>,
) -> Option<RelPath> {
    let named = session.and_then(|session| Name::new(session).ok());
    let session = location.session.clone().or(named)?;
    let file = name.map_or_else(|| Name::new(format!("{call}.txt")), Name::new).ok()?;
    Some(RelPath::from(session).join(&Name::new(RESULTS).ok()?).join(&file))
}

fn agent_metadata(transcript: &RelPath, stem: &Name) -> Option<RelPath> {
    let file = Name::new([stem.as_bytes(), b".meta.json"].concat()).ok()?;
    Some(transcript.parent().join(&file))
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
pub(super) fn find_transcripts(store: &dyn Store) -> Result<Candidates> {
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
        let states = project.join(&entry.name).join_path(&path(WORKFLOWS));
        let entries = list_if_present(store, &states, found)?.unwrap_or_default();
        let files = entries.iter().filter(|entry| entry.kind == Kind::File);
        let states = files.map(|file| states.join(&file.name));
        found.folders.extend(states.filter(|path| locate(path).is_some()));
    }
    Ok(())
}

/// Adds the transcripts of one directory. In subagent directories, only the files of agents and the
/// journals of workflows count.
fn add_transcripts(folder: &RelPath, entries: &[DirEntry], found: &mut Candidates) {
    let folders: Vec<Name> = folder.names().collect();
    let only_agents = folders.iter().any(|name| name.as_bytes() == SUBAGENTS.as_bytes());
    for DirEntry { name, kind } in entries {
        let is_agent = name.as_bytes().starts_with(AGENT_PREFIX);
        if !is_transcript(name) || only_agents && !is_agent && !is_journal(&folders, name) {
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

/// Returns true if the program's directory exists and has no project yet.
pub(super) fn is_prepared(store: &dyn Store) -> bool {
    let has_projects = store.list(&RelPath::root()).is_ok_and(|entries| has_projects(&entries));
    has_projects && store.list(&path(PROJECTS)).is_ok_and(|projects| projects.is_empty())
}

/// Returns true if the beginning of a file looks like a transcript. One of its lines must have a
/// known type and name a session, agent or line ID. The first decodable line need not name an ID
/// unless its type is `user`. Lines of unknown types may come first.
pub(super) fn recognizes(probe: &Probe<'_>) -> bool {
    is_where_sessions_lie(probe.path())
        && (is_transcript_head(probe.head())
            || probe.head().len() < probe.long_head().len()
                && is_transcript_head(probe.long_head()))
}

fn is_where_sessions_lie(path: &RelPath) -> bool {
    let Some(location) = locate(path) else { return false };
    let folders: Vec<Name> = location.folder.names().collect();
    match folders.as_slice() {
        [] | [_] => true,
        [projects, _] => projects.as_bytes() == PROJECTS.as_bytes(),
        _ => false,
    }
}

fn is_transcript_head(head: &[u8]) -> bool {
    let (mut is_transcript_line, mut first) = (false, true);
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        decode(&json_text(line), |line| {
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
    is_transcript_line
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
