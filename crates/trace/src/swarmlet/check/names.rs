//! Names of files that nothing reads, and the names that were probably meant.

use super::super::super::check::{note, problem};
use super::super::layout::{CALLS, METADATA, TASK, path};
use super::super::{metrics, record, thread};
use super::similar::most_similar;
use swarmletfs_base::model::{RemarkSubject, Remarks, SkipReason, SkipReport};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{DirEntry, Kind, Store};

const WORKER_ENTRIES: [(&str, Kind); 10] = [
    (METADATA, Kind::File),
    (TASK, Kind::File),
    (record::RESULT, Kind::File),
    (thread::FILE, Kind::File),
    (metrics::FILE, Kind::File),
    (record::TOOLS_USED, Kind::File),
    (CALLS, Kind::Folder),
    ("outputs", Kind::Folder),
    (record::LOGS, Kind::Folder),
    ("context", Kind::Folder),
];
/// Number of digits of a call's number, if it has no more.
const NUMBER_DIGITS: usize = 3;

pub(super) fn check_worker(folder: &dyn Store, remarks: &mut Remarks) {
    let entries = folder.list(&RelPath::root()).unwrap_or_default();
    let is_present =
        |name: &str| entries.iter().any(|entry| entry.name.as_bytes() == name.as_bytes());
    for DirEntry { name, kind } in &entries {
        let text = name.to_text();
        let path = RelPath::from(name.clone());
        if let Some((_, expected)) = WORKER_ENTRIES.iter().find(|(known, _)| *known == text) {
            if kind != expected {
                remarks.add(problem("wrong_kind"), &path, RemarkSubject::Entry, || {
                    format!("is {}; {} is expected", describe(*kind), describe(*expected))
                });
            }
        } else if let Some(meant) = meant_entry(name).filter(|meant| !is_present(meant)) {
            remarks.add(problem("unread_entry"), &path, RemarkSubject::Entry, || {
                format!("is not read; {meant} was probably meant")
            });
        }
    }
    let mut calls = folder.list(&path(CALLS)).unwrap_or_default();
    calls.sort_by(|a, b| a.name.cmp(&b.name));
    for entry in calls {
        check_call(&entry, remarks);
    }
}

fn check_call(entry: &DirEntry, remarks: &mut Remarks) {
    let path = path(CALLS).join(&entry.name);
    let name = entry.name.to_text();
    if name.starts_with('.') {
        return;
    }
    match record::split_call_name(&name) {
        Some(_) if entry.kind != Kind::File => {
            remarks.add(problem("wrong_kind"), &path, RemarkSubject::Entry, || {
                format!("is {}, so the output of this call is not read", describe(entry.kind))
            });
        }
        Some((number, tool)) if number.len() < NUMBER_DIGITS => {
            remarks.add(note("accepted_name"), &path, RemarkSubject::Entry, || {
                format!("is read as {number:0>NUMBER_DIGITS$}_{tool}.txt")
            });
        }
        Some(_) => {}
        None => remarks.add(problem("call_name"), &path, RemarkSubject::Entry, || {
            "is not counted as a call; calls are NNN_<tool>.txt".into()
        }),
    }
}

/// Checks the folders that are not workers: one may hold a misspelled file of a worker.
pub(super) fn check_store(store: &dyn Store, skipped: &SkipReport, remarks: &mut Remarks) {
    for folder in skipped.entries(SkipReason::NotAWorker).examples.into_keys() {
        for entry in store.list(&folder).unwrap_or_default() {
            let path = folder.join(&entry.name);
            if let Some(meant) = meant_entry(&entry.name) {
                remarks.add(problem("unread_entry"), &path, RemarkSubject::Entry, || {
                    format!("is not read; {meant} was probably meant")
                });
            }
        }
    }
}

/// Returns the name that an entry of a worker's folder was probably meant to have. Returns `None`
/// for a name that is read, and for one that resembles none.
fn meant_entry(name: &Name) -> Option<&'static str> {
    let text = name.to_text();
    let known = || WORKER_ENTRIES.iter().map(|(known, _)| *known);
    if text.starts_with('.') || known().any(|known| known == text) {
        return None;
    }
    most_similar(&text, known())
}

fn describe(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "a file",
        Kind::Folder => "a folder",
        Kind::Link => "a link",
        Kind::Special => "a special file",
    }
}
