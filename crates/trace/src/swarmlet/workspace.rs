//! Reads changes.json: the changes that a worker made in its own view of a workspace.

use serde::Deserialize;

use super::layout::{APPLIED, BASE, CHANGES_FILE, path};
use super::registry::Registration;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{
    CHANGES_VERSION, ChangedFile, CommandExit, EntryKind, RecordedChanges, WorkspaceChanges,
    WorkspaceFile,
};
use swarmletfs_base::store::{Store, read_range, read_whole};

/// Maximum size of changes.json, in bytes.
pub(super) const SIZE_MAX: u64 = 64 << 20;
/// Length of the beginning of changes.json that tells it from other files, in bytes.
const HEAD_BYTES: usize = 64;
const FILES_MAX: usize = 2_000;
/// The directories that hold the files from before a change by the worker or a person.
const ORIGINALS: &[&str] = &[BASE, APPLIED];

enum ChangesFile {
    /// A file that does not state a version first, or none.
    OfWorker,
    /// A file that looks like a list of changes, and that the runner of the worker did not write.
    Forged,
    /// A list of changes that is not forged; `None` if it is too large to be read.
    Trusted(Option<Vec<u8>>),
}

impl ChangesFile {
    fn read(folder: &dyn Store, registration: &Registration) -> Result<ChangesFile> {
        if !may_be_changes(folder)? {
            return Ok(ChangesFile::OfWorker);
        }
        Ok(match read_whole(folder, &path(CHANGES_FILE), SIZE_MAX)? {
            Some(bytes) if !registration.vouches_for(&bytes) => ChangesFile::Forged,
            // Nothing vouches for a list that is not read.
            None if registration.is_binding() => ChangesFile::Forged,
            read => ChangesFile::Trusted(read),
        })
    }
}

/// Returns true if the worker has a changes.json that states a version first. Other files of this
/// name are the worker's own.
///
/// # Errors
///
/// Fails if the file cannot be read.
fn may_be_changes(folder: &dyn Store) -> Result<bool> {
    let head = folder.open(&path(CHANGES_FILE)).and_then(|file| read_range(&*file, 0, HEAD_BYTES));
    match head {
        Ok(head) => Ok(states_version(&head)),
        Err(error) if error.is_not_a_file() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns true if the worker has a list of changes, which its runner wrote if it has one.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub(super) fn has_changes(folder: &dyn Store) -> Result<bool> {
    let registration = Registration::read(folder);
    if !registration.is_binding() {
        return may_be_changes(folder);
    }
    Ok(matches!(ChangesFile::read(folder, &registration)?, ChangesFile::Trusted(_)))
}

/// Returns true if `head` begins an object whose first key is the version.
fn states_version(head: &[u8]) -> bool {
    let rest = head.trim_ascii_start().strip_prefix(b"{");
    rest.is_some_and(|rest| rest.trim_ascii_start().starts_with(b"\"version\""))
}

/// Returns the directories that only hold copies of files from before a change.
pub(super) fn folders_of_originals(folder: &dyn Store) -> &'static [&'static str] {
    if has_changes(folder).unwrap_or(false) { ORIGINALS } else { &[] }
}

/// Reads changes.json, or the reason why it cannot be parsed. Returns `None` if there is no list of
/// changes, or if the runner of the worker did not write it.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub(super) fn read_changes(folder: &dyn Store) -> Result<Option<RecordedChanges>> {
    Ok(match ChangesFile::read(folder, &Registration::read(folder))? {
        ChangesFile::Trusted(bytes) => {
            Some(RecordedChanges::Workspace(Box::new(parse_whole(bytes.as_deref()))))
        }
        ChangesFile::OfWorker | ChangesFile::Forged => None,
    })
}

/// Parses changes.json, or fails if it is too large to be read.
fn parse_whole(bytes: Option<&[u8]>) -> std::result::Result<WorkspaceChanges, String> {
    bytes.map_or_else(|| Err(format!("larger than {SIZE_MAX} bytes, so it is not read")), parse)
}

/// Parses changes.json.
///
/// # Errors
///
/// Returns the reason if it is not understood.
pub(super) fn parse(bytes: &[u8]) -> std::result::Result<WorkspaceChanges, String> {
    /// The version, which decides the meaning of the other fields.
    #[derive(Deserialize)]
    struct Versioned {
        version: u64,
    }
    let Versioned { version } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if version != u64::from(CHANGES_VERSION) {
        return Err(format!("version {version} is not known; expected {CHANGES_VERSION}"));
    }
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

/// The facts of changes.json about a run: the changed files without folders, and the end of its
/// command.
#[derive(Default)]
pub(super) struct RecordedRun {
    /// True if there is a list of changes that is not forged, understood or not.
    pub(super) has_changes: bool,
    /// True if there is one that the runner of the worker did not write.
    pub(super) is_forged: bool,
    pub(super) files: Vec<WorkspaceFile>,
    pub(super) command: Option<CommandExit>,
}

/// Reads the facts of changes.json about a run; none if it is not understood, or if the worker has
/// a `registration` that does not vouch for it.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub(super) fn run_facts(folder: &dyn Store, registration: &Registration) -> Result<RecordedRun> {
    let bytes = match ChangesFile::read(folder, registration)? {
        ChangesFile::OfWorker => return Ok(RecordedRun::default()),
        ChangesFile::Forged => {
            return Ok(RecordedRun { is_forged: true, ..RecordedRun::default() });
        }
        ChangesFile::Trusted(bytes) => bytes,
    };
    let Ok(changes) = parse_whole(bytes.as_deref()) else {
        return Ok(RecordedRun { has_changes: true, ..RecordedRun::default() });
    };
    // Before the end, the worker itself may have written it.
    let command = changes.command.filter(|_| changes.is_final);
    let files = changes.files.into_iter();
    let files = files.filter(|file| is_no_folder(file) && file.path.parse().is_ok());
    let files = files.take(FILES_MAX).map(|file| WorkspaceFile {
        path: file.path.as_text().to_owned(),
        kind: file.kind,
        added: file.added,
        removed: file.removed,
    });
    Ok(RecordedRun { has_changes: true, is_forged: false, files: files.collect(), command })
}

fn is_no_folder(file: &ChangedFile) -> bool {
    let mut states = [&file.old, &file.new].into_iter().flatten();
    states.any(|state| state.kind != EntryKind::Folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarmletfs_base::store::Memory;

    const HEAD: &str = r#""workspace": "/w", "engine": "overlay", "is_final": true,
        "started_at": "2026-11-24T10:00:00Z", "scanned_at": "2026-11-24T10:00:05Z""#;

    fn reason(json: &str) -> String {
        parse(json.as_bytes()).unwrap_err()
    }

    #[test]
    fn only_version_1_is_read() {
        assert!(parse(format!(r#"{{"version": 1, {HEAD}, "files": []}}"#).as_bytes()).is_ok());
        assert_eq!(reason(r#"{"version": 2}"#), "version 2 is not known; expected 1");
        assert!(reason(r#"{"files": []}"#).starts_with("missing field `version`"));
        assert!(reason(r#"{"version": 1}"#).starts_with("missing field `workspace`"));
    }

    #[test]
    fn no_registration_vouches_for_a_list_that_is_too_large() {
        let store = Memory::new();
        let large = format!("{{\"version\": 1, \"x\": \"{}\"}}", " ".repeat(SIZE_MAX as usize));
        store.write(&path(CHANGES_FILE), large);
        let trusted = |registration: &Registration| {
            matches!(ChangesFile::read(&store, registration), Ok(ChangesFile::Trusted(None)))
        };
        assert!(trusted(&Registration::None));
        assert!(!trusted(&Registration::Bad { reason: "damaged".into(), is_permanent: true }));
    }

    #[test]
    fn other_files_of_the_name_are_the_workers_own() {
        let store = Memory::new();
        assert_eq!(has_changes(&store), Ok(false));
        for (text, is_ours) in [
            ("[]", false),
            ("", false),
            (r#"{"files": [], "version": 1}"#, false),
            (r#"{"version": 1}"#, true),
            ("\n{\n  \"version\" : 2", true),
        ] {
            store.write(&path(CHANGES_FILE), text);
            assert_eq!(has_changes(&store), Ok(is_ours), "{text}");
        }
    }

    #[test]
    fn hostile_documents_are_refused_in_bounded_memory() {
        let (open, close) = ("[".repeat(1 << 20), "]".repeat(1 << 20));
        let deep = format!(r#"{{"version": 1, "files": [{{"x": {open}{close}}}]}}"#);
        assert!(reason(&deep).starts_with("recursion limit exceeded"), "{}", reason(&deep));
        let one = r#"{"path": "a", "kind": "added", "base": "none"},"#;
        let many =
            one.repeat(swarmletfs_base::model::CHANGES_FILES_MAX) + one.trim_end_matches(',');
        let many = format!(r#"{{"version": 1, {HEAD}, "files": [{many}]}}"#);
        assert!(reason(&many).starts_with("more than 200000 changes"), "{}", reason(&many));
        let store = Memory::new();
        let long = [&b"{\"version\": 1"[..], &vec![b' '; SIZE_MAX as usize]].concat();
        store.write(&path(CHANGES_FILE), long);
        let Some(RecordedChanges::Workspace(read)) = read_changes(&store).unwrap() else {
            panic!("not read");
        };
        assert_eq!(read.unwrap_err(), "larger than 67108864 bytes, so it is not read");
    }

    #[test]
    fn folders_and_paths_that_lead_elsewhere_are_no_files() {
        let store = Memory::new();
        let state = |kind: &str| format!(r#"{{"type": "{kind}", "mode": "0755"}}"#);
        let file = |path: &str, kind: &str| {
            let state = state(kind);
            format!(r#"{{"path": "{path}", "kind": "added", "base": "none", "new": {state}}}"#)
        };
        let files = [file("d", "folder"), file("../x", "file"), file("a", "file")].join(",");
        let json = format!(r#"{{"version": 1, {HEAD}, "files": [{files}]}}"#);
        store.write(&path(CHANGES_FILE), json);
        let files = run_facts(&store, &Registration::None).unwrap().files;
        assert_eq!(files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["a"]);
        assert_eq!(folders_of_originals(&store), ORIGINALS);
        assert!(folders_of_originals(&Memory::new()).is_empty());
    }
}
