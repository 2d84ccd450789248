//! What must be known of a whole store: which folders are workers, what was last read of each, what is not shown.
//!
//! Worked out anew from all that lies in the store after each change. Only what a torn file said before it was torn is
//! remembered.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::ground::{Identity, Raw, What};
use super::worker::{Entry, Record, Worker};

/// Where a store may have an index of the workers in the same folder.
pub const INDEXES: [&str; 2] = ["workers/index.json", "index.json"];

/// What is remembered from one look to the next.
#[derive(Debug, Default)]
pub struct Model {
    /// The last good record of each folder, as long as the folder is the same.
    good: BTreeMap<Vec<u8>, (Identity, Record)>,
    /// The last good entries of each index, of the folders that were there then.
    indexes: [Vec<Entry>; 2],
}

/// Everything that is known at one moment.
#[derive(Debug, Default)]
pub struct Swarm {
    pub workers: Vec<Worker>,
    /// Links, special files and folders that are no workers among the workers.
    pub skipped: [u64; 3],
}

impl Model {
    /// Looks at what lies in the store now.
    pub fn look(&mut self, raw: &Raw) -> Swarm {
        let mut swarm = Swarm::default();
        let places = places(raw, &mut swarm.skipped);
        for (number, (path, entries)) in INDEXES.iter().zip(&mut self.indexes).enumerate() {
            let is_there = |entry: &Entry| {
                let id = entry.id.as_bytes();
                places.iter().any(|(folder, index)| *index == number && name_of(folder) == id)
            };
            match raw.file(path.as_bytes()).map(read_index) {
                Some(Some(read)) => *entries = read.into_iter().filter(is_there).collect(),
                // Torn: what it said before.
                Some(None) => {}
                None => entries.clear(),
            }
        }
        let mut good = BTreeMap::new();
        for (path, index) in places {
            let at = |inner: &str| [path.as_slice(), b"/", inner.as_bytes()].concat();
            let id = name_of(&path);
            let task = raw.file(&at("task.txt"));
            let read = |value: &Value| Record::of(value, id, &self.indexes[index], task);
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
            swarm.workers.push(Worker::of(raw, &path, record));
        }
        self.good = good;
        swarm
    }

    /// Whether something is known of a file that is torn by now; `whole` tells which are not.
    pub fn is_from_before(&self, whole: impl Fn(&[u8]) -> bool) -> bool {
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

fn object(what: &What) -> Option<Value> {
    match what {
        What::File(text) => serde_json::from_slice(text).ok().filter(Value::is_object),
        _ => None,
    }
}

/// The folders that may be workers, each with the number of the index that speaks of it.
fn places(raw: &Raw, skipped: &mut [u64; 3]) -> Vec<(Vec<u8>, usize)> {
    let mut found = Vec::new();
    for (number, folder) in [(0, &b"workers"[..]), (1, b"")] {
        for (name, lying) in raw.inside(folder).filter(|_| raw.is_folder(folder)) {
            match (&lying.what, name) {
                (What::Link, _) => skipped[0] += 1,
                (What::Special, _) => skipped[1] += 1,
                (What::Folder, b"supervisor") => skipped[2] += u64::from(number == 0),
                (What::Folder, b"workers") if number == 1 => {}
                (What::Folder, _) if number == 0 => found.push(([b"workers/", name].concat(), 0)),
                (What::Folder, _) => found.push((name.to_vec(), 1)),
                (What::File(_), _) => {}
            }
        }
    }
    found
}

/// What an index lists; nothing if it is torn.
fn read_index(text: &[u8]) -> Option<Vec<Entry>> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let items = match &value {
        Value::Object(index) => index.get("workers").map_or(Some(&[][..]), |list| Some(list.as_array()?.as_slice()))?,
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
