//! The layout of rollouts beneath a store's root, and how they are recognized.
//!
//! A store is the program's own directory, or any directory with rollouts in it. The names of
//! rollouts state the time and the ID of the session.

use std::collections::HashSet;

use super::super::Candidates;
use super::super::json_text::json_text;
use super::super::lenient::MaybeObject;
use super::super::probe::Probe;
use super::super::transcript::{Container, Holds, Shape, TranscriptLocation, zstd_beginning};
use super::super::walk::walk;
use super::schema::{BARE_TYPES, Line, Payload, decode};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, Store};

const SESSIONS: [&str; 2] = ["sessions", "archived_sessions"];
/// Names by which the program's own directory is recognized.
const HOME_FILES: [&str; 6] = [
    "config.toml",
    "auth.json",
    "history.jsonl",
    "installation_id",
    "session_index.jsonl",
    "version.json",
];
/// Files of the program that look like rollouts.
const OTHER_FILES: [&[u8]; 2] = [b"history.jsonl", b"session_index.jsonl"];
const PREFIX: &[u8] = b"rollout-";
const SUFFIX: &[u8] = b".jsonl";
const ZSTD_SUFFIX: &[u8] = b".zst";
/// Length of the time in a rollout's name and the dash after it, as in `2026-01-31T23-59-59-`.
const TIME_LEN: usize = 20;
const UUID_LEN: usize = 36;
/// Types of lines by which a rollout is recognized.
const LINE_TYPES: [&str; 7] = [
    "session_meta",
    "response_item",
    "event_msg",
    "turn_context",
    "compacted",
    "world_state",
    "inter_agent_communication",
];
/// Number of lines in which a rollout of the oldest versions is recognized.
const BARE_LINES: usize = 20;
/// Maximum number of decompressed bytes by which a rollout is recognized.
const HEAD_MAX: usize = 64 << 10;

pub(super) fn locate(path: &RelPath) -> Option<TranscriptLocation> {
    let file = path.file_name()?;
    let (plain, container) = match file.as_bytes().strip_suffix(ZSTD_SUFFIX) {
        Some(plain) => (plain, Container::Zstd),
        None => (file.as_bytes(), Container::File),
    };
    let stem = plain.strip_suffix(SUFFIX).filter(|stem| !stem.is_empty())?;
    if OTHER_FILES.contains(&plain) {
        return None;
    }
    Some(TranscriptLocation {
        folder: RelPath::root(),
        transcript: path.clone(),
        container,
        shape: Shape::Lines,
        holds: Holds::One,
        session: None,
        agent: None,
        name: Name::new(named_id(stem).unwrap_or(stem)).ok()?,
        metadata: None,
    })
}

/// Returns the location of the other form of a rollout: the program compresses it after a time, and
/// decompresses it when the session is resumed.
pub(super) fn sibling(location: &TranscriptLocation) -> Option<TranscriptLocation> {
    let bytes = location.transcript.as_bytes();
    let (path, container) = match bytes.strip_suffix(ZSTD_SUFFIX) {
        Some(plain) => (plain.to_vec(), Container::File),
        None => ([bytes, ZSTD_SUFFIX].concat(), Container::Zstd),
    };
    let transcript = RelPath::parse(path).ok()?;
    Some(TranscriptLocation { transcript, container, ..location.clone() })
}

fn named_id(stem: &[u8]) -> Option<&[u8]> {
    let (_, id) = stem.strip_prefix(PREFIX)?.split_at_checked(TIME_LEN)?;
    let (id, rest) = id.split_at_checked(UUID_LEN)?;
    let is_id = id.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-');
    (is_id && (rest.is_empty() || rest.starts_with(b"-"))).then_some(id)
}

/// Returns the ID in the name of a rollout.
pub(super) fn rollout_id(path: &RelPath) -> Option<String> {
    let name = path.file_name()?;
    let plain = name.as_bytes().strip_suffix(ZSTD_SUFFIX).unwrap_or(name.as_bytes());
    let id = plain.strip_suffix(SUFFIX).and_then(named_id)?;
    String::from_utf8(id.to_vec()).ok()
}

pub(super) fn is_rollout_name(path: &RelPath) -> bool {
    rollout_id(path).is_some()
}

/// Finds the rollouts of a store. A compressed one is left out if it is also there uncompressed.
///
/// # Errors
///
/// Fails if a directory cannot be listed, except for lack of permission.
pub(super) fn find_transcripts(store: &dyn Store) -> Result<Candidates> {
    let accepts = |path: &RelPath| locate(path).is_some();
    let mut found = if is_home(store)? {
        let mut all = Candidates::default();
        for folder in SESSIONS {
            match walk(store, RelPath::constant(folder), accepts) {
                Ok(found) => {
                    all.folders.extend(found.folders);
                    all.skipped.extend(found.skipped);
                }
                Err(Error::NotFound | Error::NotADirectory) => {}
                Err(error) => return Err(error),
            }
        }
        all
    } else {
        walk(store, RelPath::root(), accepts)?
    };
    let plain: HashSet<RelPath> = found.folders.iter().cloned().collect();
    found.folders.retain(|path| {
        let is_plain = |bytes: &[u8]| RelPath::parse(bytes).is_ok_and(|path| plain.contains(&path));
        !path.as_bytes().strip_suffix(ZSTD_SUFFIX).is_some_and(is_plain)
    });
    Ok(found)
}

/// Returns true if the store is the program's own directory. Only its rollouts are searched: it may
/// hold whole working trees.
fn is_home(store: &dyn Store) -> Result<bool> {
    let entries = store.list(&RelPath::root())?;
    let has = |names: &[&str], kind| {
        entries.iter().any(|entry| {
            entry.kind == kind && names.iter().any(|name| entry.name.as_bytes() == name.as_bytes())
        })
    };
    Ok(has(&SESSIONS, Kind::Folder) && has(&HOME_FILES, Kind::File))
}

/// Returns true if the program's directory exists and has no session yet.
pub(super) fn is_prepared(store: &dyn Store) -> bool {
    is_home(store).unwrap_or(false)
        && find_transcripts(store).is_ok_and(|found| found.folders.is_empty())
}

/// Returns true if a file is a rollout: by its name, or by its first lines.
pub(super) fn recognizes(probe: &Probe<'_>) -> bool {
    if is_rollout_name(probe.path()) {
        return true;
    }
    if locate(probe.path()).is_none() {
        return false;
    }
    if probe.name().ends_with(ZSTD_SUFFIX) {
        return is_rollout_head(&zstd_beginning(probe.head(), HEAD_MAX))
            || is_rollout_head(&zstd_beginning(probe.long_head(), HEAD_MAX));
    }
    is_rollout_head(probe.head())
        || probe.head().len() < probe.long_head().len() && is_rollout_head(probe.long_head())
}

fn is_rollout_head(head: &[u8]) -> bool {
    let mut lines = head.split_inclusive(|byte| *byte == b'\n').map(json_text);
    // A line that is no JSON may come first.
    let mut first = None;
    let found = lines.by_ref().take(BARE_LINES).any(|line| {
        decode(&line, |line, payload| {
            first = Some((is_enveloped(line), is_bare_meta(line, payload)));
        })
    });
    match first.filter(|_| found) {
        Some((true, _)) => true,
        Some((false, true)) => lines.take(BARE_LINES).any(|line| is_bare(&line)),
        Some((false, false)) | None => false,
    }
}

fn is_enveloped(line: &Line<'_>) -> bool {
    line.payload.0.is_some() && LINE_TYPES.contains(&line.kind.as_str())
}

/// Returns true if a line is the first line of a rollout of the oldest versions.
fn is_bare_meta(line: &Line<'_>, payload: &Payload<'_>) -> bool {
    line.payload.0.is_none()
        && line.kind.0.is_none()
        && payload.id.0.is_some()
        && line.timestamp.0.is_some()
}

fn is_bare(line: &str) -> bool {
    let line = serde_json::from_str::<MaybeObject<Line<'_>>>(line);
    line.ok().and_then(|line| line.0).is_some_and(|line| {
        line.payload.0.is_none()
            && (line.record_type.as_str() == "state" || BARE_TYPES.contains(&line.kind.as_str()))
    })
}
