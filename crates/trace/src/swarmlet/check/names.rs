//! Names of files that nothing reads, and the known name or word that was probably meant.

use crate::check::{note, problem};
use crate::swarmlet::layout::{CALLS, METADATA, TASK, path};
use crate::swarmlet::{metrics, record, thread};
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

/// Minimum similarity of two words, from 0 to 1.
const SIMILARITY_MIN: f64 = 0.65;
/// Maximum length of a word that is compared, in bytes.
const WORD_MAX: usize = 100;

/// Returns the member of `known` that is most similar to `word`, if any is similar.
pub(super) fn most_similar<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    if word.len() > WORD_MAX {
        return None;
    }
    let word = folded(word);
    known
        .into_iter()
        .map(|known| (strsim::normalized_damerau_levenshtein(&word, &folded(known)), known))
        .filter(|(similarity, _)| *similarity >= SIMILARITY_MIN)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, known)| known)
}

/// Returns a word without the differences between `startedAt`, `started-at` and `started_at`.
fn folded(word: &str) -> String {
    word.to_ascii_lowercase().replace(['_', '-', ' '], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_words_are_similar_and_other_words_are_not() {
        let known = ["status", "started_at", "owner_id", "exit_code", "success", "tags"];
        for (word, meant) in [
            ("stauts", Some("status")),
            ("state", Some("status")),
            ("startedAt", Some("started_at")),
            ("owner", Some("owner_id")),
            ("exitcode", Some("exit_code")),
            ("sucess", Some("success")),
            ("hostname", None),
            ("", None),
        ] {
            assert_eq!(most_similar(word, known), meant, "{word}");
        }
        assert_eq!(most_similar(&"status".repeat(100_000), known), None);
    }
}
