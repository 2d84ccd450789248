//! Rows of the catalog: a worker, its objects, and the small files that a list of workers needs.
//!
//! A row is a statement about objects. It names the version of each, so a reader that opens one of
//! them gets this version or an error. Paths are from the directory of the worker, so no row can
//! speak about other objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::Time;
use swarmletfs_table::ColumnKind::{Double, Flag, Number, Text, Time as Moment};
use swarmletfs_table::{ParquetFile, ParquetTable, TableColumns};

use super::layout::split_worker;
use super::problem::CatalogProblem;
use crate::key_tree::ListedObject;
use crate::parts::WORKERS;

const TABLE: &str = "worker";
/// The columns for programs have the names of fields in the index.json of the swarm. Later versions
/// only add columns.
pub(super) const COLUMNS: TableColumns = &[
    (ID, Text),
    (OPEN, Flag),
    ("format", Text),
    ("title", Text),
    ("task", Text),
    ("status", Text),
    ("outcome", Text),
    ("cause", Text),
    ("attention_level", Text),
    ("run_id", Text),
    ("owner_id", Text),
    ("job_id", Text),
    ("parent_id", Text),
    ("task_type", Text),
    ("tags", Text),
    ("model", Text),
    ("cwd", Text),
    ("project", Text),
    ("branch", Text),
    ("created_at", Moment),
    ("started_at", Moment),
    ("finished_at", Moment),
    ("last_message", Moment),
    ("last_write", Moment),
    ("duration_ms", Number),
    ("calls_total", Number),
    ("calls_failed", Number),
    ("calls_suspect", Number),
    ("calls_bytes", Number),
    ("files_changed", Number),
    ("tokens_input", Number),
    ("tokens_output", Number),
    ("tokens_cache_read", Number),
    ("tokens_cache_creation", Number),
    ("cost_usd", Double),
    ("check_names", Text),
    (OBJECTS, Text),
    (CONTENTS, Text),
];
const ID: &str = "id";
/// True if the worker may change without an announcement.
const OPEN: &str = "open";
/// The objects as JSON: their paths, sizes, ETags and times.
const OBJECTS: &str = "objects";
/// The contents of small files as JSON, by path.
const CONTENTS: &str = "contents";
/// The files that a list of workers needs of each.
pub(super) const LISTED_FILES: [&str; 2] = ["metadata.json", "task.txt"];
/// Maximum size of the contents in a row, in bytes.
pub(super) const CONTENTS_MAX: u64 = 64 << 10;
/// Maximum size of the unpacked columns of a file, in bytes.
const UNPACKED_MAX: u64 = 1 << 30;

/// A row as it is written.
#[derive(Debug, Clone, Default)]
pub(super) struct CatalogRow {
    pub(super) worker: String,
    pub(super) is_open: bool,
    /// Its objects with their paths from the prefix, sorted.
    pub(super) objects: Vec<ListedObject>,
    /// Texts of small files by their paths from its directory.
    pub(super) contents: BTreeMap<String, String>,
    /// Its entry in the swarm's index.json.
    pub(super) entry: Map<String, Value>,
}

/// A row as readers use it.
#[derive(Debug, Clone)]
pub(crate) struct CatalogedWorker {
    pub(crate) is_open: bool,
    pub(crate) objects: Arc<[ListedObject]>,
}

/// The rows of a file.
#[derive(Default)]
pub(super) struct ParsedRows {
    pub(super) workers: Vec<(Arc<str>, CatalogedWorker)>,
    /// Contents of objects.
    pub(super) contents: Vec<(ListedObject, Bytes)>,
}

#[derive(Serialize, Deserialize)]
struct ObjectJson<'a> {
    #[serde(borrow)]
    path: std::borrow::Cow<'a, str>,
    size: u64,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    etag: Option<std::borrow::Cow<'a, str>>,
    modified: Timestamp,
}

impl CatalogRow {
    /// Returns the row as an object of JSON. Returns `None` if an object has no valid time.
    fn to_line(&self) -> Option<Value> {
        let objects = self.objects.iter().map(|object| {
            let (_, path) = split_worker(&object.path)?;
            Some(ObjectJson {
                path: path.into(),
                size: object.size,
                etag: object.etag.as_deref().map(Into::into),
                modified: timestamp(object.modified)?,
            })
        });
        let objects: Vec<ObjectJson<'_>> = objects.collect::<Option<_>>()?;
        let mut line = self.entry.clone();
        line.insert(ID.into(), self.worker.clone().into());
        line.insert(OPEN.into(), self.is_open.into());
        line.insert(OBJECTS.into(), serde_json::to_string(&objects).ok()?.into());
        line.insert(CONTENTS.into(), serde_json::to_string(&self.contents).ok()?.into());
        Some(Value::Object(line))
    }

    /// Returns the approximate size of the row in a file, in bytes.
    pub(super) fn size(&self) -> usize {
        let objects = self.objects.iter().map(|object| object.path.len() + 120);
        let contents = self.contents.values().map(String::len);
        1_000 + objects.sum::<usize>() + contents.sum::<usize>()
    }
}

/// Returns a file with these rows.
///
/// # Errors
///
/// A row has no form in the table.
pub(super) fn encode(rows: &[CatalogRow]) -> std::io::Result<Bytes> {
    let mut table = ParquetTable::new(TABLE, COLUMNS, Vec::new())?;
    for row in rows {
        let Some(line) = row.to_line() else {
            return Err(std::io::Error::other(format!("worker {} has no row", row.worker)));
        };
        table.add(&line)?;
    }
    table.finish().map(Bytes::from)
}

/// Parses a file for readers.
///
/// # Errors
///
/// It is damaged, or a row speaks about objects of another worker.
pub(super) fn parse(file: Bytes, rows_max: usize) -> Result<ParsedRows, CatalogProblem> {
    let file = open(file, rows_max)?;
    let text = |name| file.texts(name).map_err(|error| damaged(&error));
    let open = file.flags(OPEN).map_err(|error| damaged(&error))?;
    let (ids, objects, contents) = (text(ID)?, text(OBJECTS)?, text(CONTENTS)?);
    let mut parsed = ParsedRows { workers: Vec::with_capacity(ids.len()), ..Default::default() };
    for (((id, objects), contents), is_open) in ids.iter().zip(&objects).zip(&contents).zip(open) {
        let (Some(id), Some(objects)) = (id, objects) else {
            return Err(damaged(&"a row has no worker"));
        };
        let id = std::str::from_utf8(id.data()).map_err(|error| damaged(&error))?;
        let objects = parse_objects(id, objects.data())?;
        if let Some(contents) = contents {
            add_contents(&objects, contents.data(), &mut parsed.contents);
        }
        let worker = CatalogedWorker { is_open: is_open == Some(true), objects: objects.into() };
        parsed.workers.push((id.into(), worker));
    }
    Ok(parsed)
}

/// Parses a file to write its rows again.
///
/// # Errors
///
/// The errors of [`parse`].
pub(super) fn parse_whole(file: Bytes, rows_max: usize) -> Result<Vec<CatalogRow>, CatalogProblem> {
    let lines = open(file, rows_max)?.lines(COLUMNS).map_err(|error| damaged(&error))?;
    let rows = lines.into_iter().map(|mut entry| {
        let mut take = |name| match entry.remove(name) {
            Some(Value::String(text)) => Ok(text),
            _ => Err(damaged(&format!("a row has no {name}"))),
        };
        let (worker, objects, contents) = (take(ID)?, take(OBJECTS)?, take(CONTENTS)?);
        let is_open = entry.remove(OPEN) == Some(Value::Bool(true));
        let objects = parse_objects(&worker, objects.as_bytes())?;
        let contents = serde_json::from_str(&contents).map_err(|error| damaged(&error))?;
        Ok(CatalogRow { worker, is_open, objects, contents, entry: nested(entry) })
    });
    rows.collect()
}

/// Returns the fields of a row in objects, where the table has a column for a field in a field.
fn nested(flat: Map<String, Value>) -> Map<String, Value> {
    const OUTER: [&str; 4] = ["attention", "calls", "tokens", "cost"];
    let mut entry = Map::new();
    for (name, value) in flat {
        let split = name.split_once('_').filter(|(outer, _)| OUTER.contains(outer));
        let Some((outer, inner)) = split else {
            entry.insert(name, value);
            continue;
        };
        let fields = entry.entry(outer.to_owned()).or_insert_with(|| Map::new().into());
        fields.as_object_mut().and_then(|fields| fields.insert(inner.to_owned(), value));
    }
    entry
}

fn open(file: Bytes, rows_max: usize) -> Result<ParquetFile, CatalogProblem> {
    ParquetFile::new(file, rows_max, UNPACKED_MAX).map_err(|error| damaged(&error))
}

fn parse_objects(worker: &str, json: &[u8]) -> Result<Vec<ListedObject>, CatalogProblem> {
    Name::new(worker.as_bytes()).map_err(|_| damaged(&"the name of a worker is no name"))?;
    let objects: Vec<ObjectJson<'_>> =
        serde_json::from_slice(json).map_err(|error| damaged(&error))?;
    let objects = objects.into_iter().map(|object| {
        let path = RelPath::parse(&*object.path).map_err(|_| damaged(&"a path is no path"))?;
        if path.is_root() {
            return Err(damaged(&"an object has no path"));
        }
        Ok(ListedObject {
            path: format!("{WORKERS}{worker}/{}", object.path).into(),
            size: object.size,
            modified: Time::from(object.modified),
            etag: object.etag.map(Into::into),
            parts: Box::default(),
        })
    });
    let objects: Vec<ListedObject> = objects.collect::<Result<_, _>>()?;
    if objects.windows(2).all(|pair| matches!(pair, [a, b] if a.path < b.path)) {
        Ok(objects)
    } else {
        Err(damaged(&"the objects of a worker are in no order"))
    }
}

/// Adds the contents that have the size of their objects. Others are read when they are needed.
fn add_contents(objects: &[ListedObject], json: &[u8], all: &mut Vec<(ListedObject, Bytes)>) {
    let Ok(contents) = serde_json::from_slice::<BTreeMap<&str, String>>(json) else { return };
    for (path, content) in contents {
        let object = objects.iter().find(|object| {
            object.size == content.len() as u64
                && split_worker(&object.path).is_some_and(|(_, inner)| inner == path)
        });
        all.extend(object.map(|object| (object.clone(), content.into())));
    }
}

fn timestamp(time: Time) -> Option<Timestamp> {
    Timestamp::new(time.secs, i32::try_from(time.nanos).ok()?).ok()
}

fn damaged(reason: &dyn std::fmt::Display) -> CatalogProblem {
    CatalogProblem::Damaged(format!("a file of rows: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(worker: &str) -> CatalogRow {
        let object = |name: &str, size| ListedObject {
            path: format!("workers/{worker}/{name}").into(),
            size,
            modified: Time { secs: 1_700_000_000, nanos: 123_456_789 },
            etag: Some(format!("\"{name}\"").into()),
            parts: Box::default(),
        };
        let Value::Object(entry) = json!({"status": "failed", "calls": {"total": 3, "failed": 1},
            "tokens": {"input": 7}, "cost": {"usd": 0.5}, "attention": {"level": "high"},
            "started_at": "2026-11-30T00:00:00Z", "tags": ["a", "b"], "duration_ms": 12})
        else {
            unreachable!()
        };
        CatalogRow {
            worker: worker.into(),
            is_open: true,
            objects: vec![object("metadata.json", 2), object("x/a name ü.txt", u64::MAX)],
            contents: [("metadata.json".into(), "{}".into())].into(),
            entry,
        }
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let rows = ["a", "b c", "ü"].map(row);
        let file = encode(&rows).unwrap();
        let parsed = parse(file.clone(), 10).unwrap();
        for ((id, worker), row) in parsed.workers.iter().zip(&rows) {
            assert_eq!(
                (&**id, worker.is_open, &*worker.objects),
                (&*row.worker, true, &*row.objects)
            );
        }
        assert_eq!(parsed.contents.len(), 3);
        let whole = parse_whole(file, 10).unwrap();
        for (read, row) in whole.iter().zip(&rows) {
            assert_eq!(read.objects, row.objects);
            assert_eq!(read.contents, row.contents);
            let mut entry = read.entry.clone();
            entry.insert("tags".into(), json!(["a", "b"]));
            assert_eq!(Value::Object(entry), Value::Object(row.entry.clone()));
        }
        assert_eq!(
            encode(&whole).unwrap(),
            encode(&parse_whole(encode(&whole).unwrap(), 10).unwrap()).unwrap()
        );
    }

    #[test]
    fn a_row_that_speaks_about_other_objects_is_refused() {
        let changes: [&dyn Fn(&mut CatalogRow); 5] = [
            &|row| row.objects[0].path = "workers/a/../b/metadata.json".into(),
            &|row| row.objects[0].path = "workers/a//x".into(),
            &|row| row.objects.reverse(),
            &|row| row.worker = "..".into(),
            &|row| row.worker = "a/b".into(),
        ];
        for (at, change) in changes.iter().enumerate() {
            let mut row = row("a");
            change(&mut row);
            let file = encode(&[row]).unwrap();
            assert!(matches!(parse(file.clone(), 10), Err(CatalogProblem::Damaged(_))), "{at}");
            assert!(matches!(parse_whole(file, 10), Err(CatalogProblem::Damaged(_))), "{at}");
        }
    }

    #[test]
    fn a_damaged_file_is_refused_or_has_the_same_rows() {
        let file = encode(&["a", "b"].map(row)).unwrap();
        for at in 0..file.len() {
            let mut bytes = file.to_vec();
            bytes[at] ^= 1 << (at % 8);
            // The hash in the manifest finds damage that the format does not.
            let _ = parse(bytes.into(), 10);
            assert!(parse(file.slice(..at), 10).is_err());
        }
        assert!(parse(file, 1).is_err());
    }
}
