//! The places of conversations beneath a store's root.
//!
//! A directory called `events` is a conversation, named after the directory that holds it. Any
//! other JSON file may be an export. A file called `output*.jsonl` holds the instances of an
//! evaluation.

use super::super::Candidates;
use super::super::transcript::{Container, Holds, Member, Shape, TranscriptLocation};
use super::super::walk::{Walk, WalkEntry};
use swarmletfs_base::error::Result;
use swarmletfs_base::model::SkipReason;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{DirEntry, Kind, Store};

pub(super) const EVENTS: &str = "events";
/// Directories that are not entered: they hold events, or copies of them.
const LEAVES: [&str; 2] = [EVENTS, "event_cache"];
/// The directory of the conversations that a conversation started.
const SUBAGENTS: &str = "subagents";
/// Directories of version 0 conversations. `users` holds those of several users.
const VERSION_0: [&str; 2] = ["sessions", "users"];
const CONVERSATIONS: &str = "conversations";
const METADATA: &str = "metadata.json";
const BASE_STATE: &str = "base_state.json";
/// Files of the program that are no conversations.
const IGNORED: [&str; 3] = [METADATA, BASE_STATE, "meta.json"];
/// The beginning of the name of a file with the instances of an evaluation.
const INSTANCES_PREFIX: &[u8] = b"output";

/// The members of an export that hold events: all elements, or those of `items`.
pub(super) const EXPORT_MEMBERS: [Member; 2] = [Member::List(""), Member::List("items")];
pub(super) const INSTANCE_MEMBERS: [Member; 6] = [
    Member::Value("instance_id"),
    Member::Value("instruction"),
    Member::Value("metadata"),
    Member::List("history"),
    Member::Value("metrics"),
    Member::Value("error"),
];

/// Parses the path of a worker: a directory of events, a file, or an instance in a file.
pub(super) fn locate(path: &RelPath) -> Option<TranscriptLocation> {
    let names: Vec<Name> = path.names().collect();
    let at = names.iter().position(|name| is_leaf(name) || is_json(name))?;
    let (before, rest) = names.split_at_checked(at)?;
    let (name, inside) = rest.split_first()?;
    if is_called(name, EVENTS) && inside.is_empty() {
        return Some(locate_folder(before));
    }
    if is_leaf(name) || IGNORED.iter().any(|ignored| is_called(name, ignored)) {
        return None;
    }
    let holds_instances = is_instances(name);
    let agent = inside.first().cloned();
    if inside.len() > 1 || agent.is_some() && !holds_instances {
        return None;
    }
    let is_lines = name.as_bytes().ends_with(b".jsonl");
    Some(TranscriptLocation {
        folder: join(before),
        transcript: RelPath::from(name.clone()),
        container: Container::File,
        shape: match (holds_instances, is_lines) {
            (true, _) => Shape::DocumentLines(&INSTANCE_MEMBERS),
            (false, true) => Shape::Lines,
            (false, false) => Shape::Documents(&EXPORT_MEMBERS),
        },
        holds: if holds_instances { Holds::Nested } else { Holds::One },
        session: None,
        name: agent.clone().unwrap_or_else(|| stem(name)),
        agent,
        metadata: None,
    })
}

fn locate_folder(names: &[Name]) -> TranscriptLocation {
    let last = names.len().saturating_sub(1);
    let is_version_0 = names.iter().zip(0..last).any(|(name, at)| {
        let is_direct = at + 1 == last;
        VERSION_0.iter().any(|folder| is_called(name, folder))
            && (is_direct || is_called(name, "users"))
    });
    let own = names.last().cloned().unwrap_or_else(|| constant(EVENTS));
    let ancestor = names.iter().position(|name| is_called(name, SUBAGENTS));
    let ancestor = ancestor.and_then(|at| names.get(at.checked_sub(1)?)).cloned();
    TranscriptLocation {
        folder: join(names),
        transcript: RelPath::constant(EVENTS),
        container: Container::Folder,
        shape: Shape::Lines,
        holds: Holds::One,
        session: Some(ancestor.unwrap_or_else(|| own.clone())),
        agent: None,
        name: own,
        metadata: Some(RelPath::constant(if is_version_0 { METADATA } else { BASE_STATE })),
    }
}

/// Returns the name of the conversation that started the one at `location`.
pub(super) fn parent(location: &TranscriptLocation) -> Option<Name> {
    let folder = location.folder.parent();
    let is_subagent = folder.file_name().is_some_and(|name| is_called(&name, SUBAGENTS));
    folder.parent().file_name().filter(|_| is_subagent)
}

/// Returns the name of the evaluation to which the instance at `location` belongs: the name of the
/// directory, else of the file.
pub(super) fn run_of_instances(location: &TranscriptLocation) -> Name {
    let file = location.transcript.file_name();
    let file = file.map_or_else(|| location.name.clone(), |file| stem(&file));
    location.folder.file_name().unwrap_or(file)
}

/// Returns true if a file with this name holds the instances of an evaluation.
pub(super) fn is_instances(name: &Name) -> bool {
    name.as_bytes().starts_with(INSTANCES_PREFIX) && name.as_bytes().ends_with(b".jsonl")
}

fn is_leaf(name: &Name) -> bool {
    LEAVES.iter().any(|leaf| is_called(name, leaf))
}

fn is_called(name: &Name, text: &str) -> bool {
    name.as_bytes() == text.as_bytes()
}

fn is_json(name: &Name) -> bool {
    let stem = [&b".json"[..], b".jsonl"]
        .into_iter()
        .find_map(|suffix| name.as_bytes().strip_suffix(suffix));
    stem.is_some_and(|stem| !stem.is_empty())
}

fn stem(name: &Name) -> Name {
    let bytes = name.as_bytes();
    let stem = bytes.strip_suffix(b".json").or_else(|| bytes.strip_suffix(b".jsonl"));
    stem.and_then(|stem| Name::new(stem).ok()).unwrap_or_else(|| name.clone())
}

fn constant(text: &str) -> Name {
    swarmletfs_base::name::to_file_name(text, &[])
}

fn join(names: &[Name]) -> RelPath {
    names.iter().fold(RelPath::root(), |path, name| path.join(name))
}

/// Finds the directories and files that may be conversations.
///
/// # Errors
///
/// Fails if a directory cannot be listed, except for lack of permission.
pub(super) fn find_transcripts(store: &dyn Store) -> Result<Candidates> {
    let mut walk = Walk::new(store, RelPath::root()).not_entering(LEAVES);
    let (mut folders, mut skipped) = (Vec::new(), Vec::new());
    for entry in walk.by_ref() {
        let WalkEntry { path, kind } = entry?;
        let Some(location) = locate(&path) else { continue };
        let is_folder = location.container == Container::Folder;
        match kind {
            Kind::Folder if is_folder => folders.push(path),
            Kind::File if !is_folder => folders.push(path),
            Kind::File | Kind::Folder => {}
            Kind::Link => skipped.push((path, SkipReason::Link)),
            Kind::Special => skipped.push((path, SkipReason::Special)),
        }
    }
    let mut found = Candidates { folders, skipped: walk.into_skipped(), ..Candidates::default() };
    skipped.into_iter().for_each(|(path, reason)| found.skipped.add(path, reason, None));
    Ok(found)
}

/// Returns true if the directory of conversations exists and is empty.
pub(super) fn is_prepared(store: &dyn Store) -> bool {
    let is_conversations =
        |entry: &DirEntry| entry.kind == Kind::Folder && is_called(&entry.name, CONVERSATIONS);
    let entries = store.list(&RelPath::root()).unwrap_or_default();
    let conversations = RelPath::constant(CONVERSATIONS);
    entries.iter().any(is_conversations)
        && store.list(&conversations).is_ok_and(|entries| entries.is_empty())
}
