//! The layout of sessions beneath a store's root.
//!
//! A store is the program's own directory, its `tmp`, the directory of one project, or any
//! directory with sessions.

use std::collections::HashSet;

use struson::reader::{JsonReader, JsonStreamReader, ReaderError, ReaderSettings, ValueType};

use super::super::Candidates;
use super::super::probe::Probe;
use super::super::transcript::{Container, Holds, Shape, TranscriptLocation};
use super::super::walk::walk;
use super::decode::MEMBERS;
use swarmletfs_base::error::Result;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{DirEntry, Kind, Store};

/// The directory of projects, in the program's own directory.
const PROJECTS: &str = "tmp";
const OWN_FILES: [&str; 3] = ["projects.json", "settings.json", "installation_id"];
/// The directory of sessions, in a project's directory.
const CHATS: &str = "chats";
/// The file with the path of the project, in a project's directory.
const PROJECT_ROOT: &str = ".project_root";
/// The directory of outputs too large for the session, in a project's directory.
const OUTPUTS: &str = "tool-outputs";
const SESSION_PREFIX: &[u8] = b"session-";
/// The suffix of a log, and of a document in older versions.
const SUFFIXES: [&[u8]; 2] = [b".jsonl", b".json"];
const UUID_LEN: usize = 36;

pub(super) fn locate(path: &RelPath) -> Option<TranscriptLocation> {
    let names: Vec<Name> = path.names().collect();
    let (file, before) = names.split_last()?;
    let (stem, shape) = parse_name(file)?;
    let chats = before.iter().rposition(|name| name.as_bytes() == CHATS.as_bytes());
    // The names from `chats` on, or the name of the session which started a subagent.
    let below = chats.unwrap_or_else(|| match before.last() {
        Some(parent) if is_uuid(parent) && !is_session(file) => before.len() - 1,
        _ => before.len(),
    });
    let (project, beneath) = before.split_at_checked(below)?;
    let join = |names: &[Name]| names.iter().fold(RelPath::root(), |path, name| path.join(name));
    let session = match (chats, beneath) {
        (Some(_), [_, parent]) | (None, [parent]) => Some(parent.clone()),
        _ => None,
    };
    Some(TranscriptLocation {
        folder: join(project),
        transcript: join(beneath).join(file),
        container: Container::File,
        shape,
        holds: Holds::One,
        session,
        agent: None,
        name: stem,
        metadata: chats.map(|_| RelPath::constant(PROJECT_ROOT)),
    })
}

fn parse_name(file: &Name) -> Option<(Name, Shape)> {
    let name = file.as_bytes();
    let (stem, shape) = match name.strip_suffix(b".jsonl") {
        Some(stem) => (stem, Shape::Lines),
        None => (name.strip_suffix(b".json")?, Shape::Documents(&MEMBERS)),
    };
    Some((Name::new(stem).ok()?, shape))
}

fn is_session(file: &Name) -> bool {
    file.as_bytes().starts_with(SESSION_PREFIX)
}

fn is_uuid(name: &Name) -> bool {
    let is_digit = |byte: &u8| byte.is_ascii_hexdigit() || *byte == b'-';
    name.as_bytes().len() == UUID_LEN && name.as_bytes().iter().all(is_digit)
}

/// Returns the path of an output too large for its session, from the project's directory.
pub(super) fn spilled_result(
    location: &TranscriptLocation,
    session: Option<&str>,
    call: &str,
) -> Option<RelPath> {
    location.metadata.as_ref()?;
    let folder = Name::new(format!("session-{}", sanitize(session?))).ok()?;
    let file = Name::new(format!("{}.txt", sanitize(call).to_ascii_lowercase())).ok()?;
    Some(RelPath::constant(OUTPUTS).join(&folder).join(&file))
}

/// Replaces the characters that the program does not write in the names of files.
fn sanitize(id: &str) -> String {
    let keep = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    id.chars().map(|c| if keep(c) { c } else { '_' }).collect()
}

/// Finds the files of a store that may be sessions.
///
/// # Errors
///
/// Fails if a directory cannot be listed, except for lack of permission.
pub(super) fn find_transcripts(store: &dyn Store) -> Result<Candidates> {
    let entries = store.list(&RelPath::root())?;
    let is_here = |name: &str, kind: Kind| {
        let mut entries = entries.iter();
        entries
            .any(|entry: &DirEntry| entry.kind == kind && entry.name.as_bytes() == name.as_bytes())
    };
    // The program's own directory also holds extensions and copies of repositories.
    let is_own = OWN_FILES.iter().any(|name| is_here(name, Kind::File));
    let start = if is_own && is_here(PROJECTS, Kind::Folder) {
        RelPath::constant(PROJECTS)
    } else {
        RelPath::root()
    };
    let mut found = walk(store, start, |path| locate(path).is_some())?;
    // A document that was continued as a log stays beside it.
    let all: HashSet<RelPath> = found.folders.iter().cloned().collect();
    found.folders.retain(|path| !log_beside(path).is_some_and(|log| all.contains(&log)));
    Ok(found)
}

/// Returns the path of the log that continues a document.
fn log_beside(path: &RelPath) -> Option<RelPath> {
    let name = path.file_name()?;
    name.as_bytes().strip_suffix(b".json")?;
    let log = Name::new([name.as_bytes(), b"l"].concat()).ok()?;
    Some(path.parent().join(&log))
}

/// Returns true if the first value of a file is an object with the ID of a session and the hash of
/// its project.
pub(super) fn recognizes(probe: &Probe<'_>) -> bool {
    if !SUFFIXES.iter().any(|suffix| probe.name().ends_with(suffix)) {
        return false;
    }
    let mut keys = Keys::default();
    match keys.read(probe.head()) {
        Ok(()) => keys.is_session(),
        // One of the two keys is there, or the name is a session's.
        Err(_) if keys.session_id || keys.project_hash || is_named(probe) => {
            // The end of the read bytes need not be the end of the file.
            let _ = keys.read(probe.long_head());
            keys.is_session()
        }
        Err(_) => false,
    }
}

fn is_named(probe: &Probe<'_>) -> bool {
    probe.name().starts_with(SESSION_PREFIX)
}

#[derive(Default)]
struct Keys {
    session_id: bool,
    project_hash: bool,
}

impl Keys {
    fn is_session(&self) -> bool {
        self.session_id && self.project_hash
    }

    /// Reads the keys of the first object in `head`, until both are found.
    ///
    /// # Errors
    ///
    /// Fails if the object does not end, or is no JSON.
    fn read(&mut self, head: &[u8]) -> std::result::Result<(), ReaderError> {
        let settings = ReaderSettings { track_path: false, ..ReaderSettings::default() };
        let mut json = JsonStreamReader::new_custom(head, settings);
        json.begin_object()?;
        while !self.is_session() && json.has_next()? {
            let name = json.next_name_owned()?;
            let is_text = json.peek()? == ValueType::String;
            match name.as_str() {
                "sessionId" => self.session_id = is_text,
                "projectHash" => self.project_hash = is_text,
                _ => {}
            }
            json.skip_value()?;
        }
        Ok(())
    }
}
