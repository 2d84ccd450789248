//! Model of a store: the workers, their last good records, and the skipped entries.
//!
//! It is computed from the whole store after each change. Only the last good version of a torn file
//! is remembered.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::mutable_store::{Identity, RawEntries, RawKind};
use super::worker::{Entry, Record, Worker};

/// Paths of a store's index of the workers in the same directory.
pub const INDEXES: [&str; 2] = ["workers/index.json", "index.json"];

/// Last good versions of torn files.
#[derive(Debug, Default)]
pub struct Model {
    /// Last good record of each directory, while its identity is unchanged.
    good: BTreeMap<Vec<u8>, (Identity, Record)>,
    /// Last good entries of each index, limited to directories that existed then.
    indexes: [Vec<Entry>; 2],
}

/// State of the store at one time.
#[derive(Debug, Default)]
pub struct Swarm {
    pub workers: Vec<Worker>,
    /// Numbers of skipped symlinks, special files and directories that are not workers.
    pub skipped: [u64; 3],
}

impl Model {
    /// Computes the state of the store.
    pub fn read(&mut self, raw: &RawEntries) -> Swarm {
        let mut swarm = Swarm::default();
        let places = places(raw, &mut swarm.skipped);
        for (number, (path, entries)) in INDEXES.iter().zip(&mut self.indexes).enumerate() {
            let is_there = |entry: &Entry| {
                let id = entry.id.as_bytes();
                places.iter().any(|(folder, index)| *index == number && name_of(folder) == id)
            };
            match raw.file(path.as_bytes()).map(read_index) {
                Some(Some(read)) => *entries = read.into_iter().filter(is_there).collect(),
                // Torn, so the last good entries stay while their directories do.
                Some(None) => entries.retain(is_there),
                None => entries.clear(),
            }
        }
        let mut good = BTreeMap::new();
        for (path, index) in places {
            let at = |inner: &str| [path.as_slice(), b"/", inner.as_bytes()].concat();
            let id = name_of(&path);
            let task = raw.file(&at("task.txt"));
            let read = |value: &Value| Record::new(value, id, &self.indexes[index], task);
            let identity = raw.0[&path].identity;
            let record = match raw.get(&at("metadata.json")) {
                None if raw.is_folder(&at("tool_calls")) => flawed(read(&json!({})), "no_metadata"),
                None => {
                    swarm.skipped[2] += 1;
                    continue;
                }
                Some(what) => match object(what) {
                    Some(value) => {
                        good.insert(path.clone(), (identity, read(&value)));
                        read(&value)
                    }
                    None => match self.good.get(&path).filter(|(same, _)| *same == identity) {
                        Some((_, last)) => {
                            good.insert(path.clone(), (identity, last.clone()));
                            flawed(last.clone(), "bad_metadata")
                        }
                        None => flawed(read(&json!({})), "bad_metadata"),
                    },
                },
            };
            swarm.workers.push(Worker::new(raw, &path, record));
        }
        self.good = good;
        swarm
    }

    /// Returns true if a file with a last good version is torn now; `whole` returns true for files
    /// that are not.
    pub fn uses_last_good(&self, whole: impl Fn(&[u8]) -> bool) -> bool {
        let metadata = |folder: &Vec<u8>| [folder, &b"/metadata.json"[..]].concat();
        let indexes = INDEXES.iter().zip(&self.indexes).filter(|(_, entries)| !entries.is_empty());
        !self.good.keys().all(|folder| whole(&metadata(folder)))
            || !indexes.into_iter().all(|(path, _)| whole(path.as_bytes()))
    }
}

fn name_of(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap()
}

fn flawed(mut record: Record, flaw: &'static str) -> Record {
    record.flaws.push(flaw);
    record
}

fn object(what: &RawKind) -> Option<Value> {
    match what {
        RawKind::File(text) => serde_json::from_slice(text).ok().filter(Value::is_object),
        _ => None,
    }
}

/// The directories that may be workers, each with the number of the index that speaks of it.
fn places(raw: &RawEntries, skipped: &mut [u64; 3]) -> Vec<(Vec<u8>, usize)> {
    let mut found = Vec::new();
    for (number, folder) in [(0, &b"workers"[..]), (1, b"")] {
        for (name, entry) in raw.inside(folder).filter(|_| raw.is_folder(folder)) {
            match (&entry.kind, name) {
                (RawKind::Link, _) => skipped[0] += 1,
                (RawKind::Special, _) => skipped[1] += 1,
                (RawKind::Folder, b"supervisor") => skipped[2] += u64::from(number == 0),
                (RawKind::Folder, b"workers") if number == 1 => {}
                (RawKind::Folder, _) if number == 0 => {
                    found.push(([b"workers/", name].concat(), 0))
                }
                (RawKind::Folder, _) => found.push((name.to_vec(), 1)),
                (RawKind::File(_), _) => {}
            }
        }
    }
    found
}

/// Parses the entries of an index; `None` if it is torn.
fn read_index(text: &[u8]) -> Option<Vec<Entry>> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let items = match &value {
        Value::Object(index) => {
            index.get("workers").map_or(Some(&[][..]), |list| Some(list.as_array()?.as_slice()))?
        }
        list => list.as_array()?,
    };
    let text = |item: &Value, key: &str| item[key].as_str().map(str::to_owned);
    let entry = |item: &Value| {
        let tags = item["tags"].as_array().map(Vec::as_slice).unwrap_or_default();
        Some(Entry {
            id: text(item, "id")?,
            owner: text(item, "owner_id"),
            word: text(item, "status"),
            task: text(item, "task"),
            tags: tags.iter().filter_map(|tag| tag.as_str().map(str::to_owned)).collect(),
        })
    };
    Some(items.iter().filter_map(entry).collect())
}
