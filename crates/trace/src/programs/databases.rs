//! Sessions that are rows of a database, and the rules that all of their readers keep.

use rusqlite::Connection;
use rusqlite::types::Value as Column;
use swarmletfs_base::store::Disk;
use tempfile::TempDir;

use super::*;

/// The rows that a program writes, in order. Columns that hold objects and lists are JSON.
pub(super) struct DatabaseSample {
    pub(super) format: &'static str,
    pub(super) file: &'static str,
    pub(super) schema: &'static str,
    pub(super) rows: Vec<(&'static str, Value)>,
}

/// A database that a program has open.
pub(super) struct ProgramDatabase {
    format: &'static str,
    dir: TempDir,
    pub(super) connection: Connection,
}

fn samples() -> [DatabaseSample; 2] {
    [crush::sample(), goose::sample()]
}

fn column(value: &Value) -> Column {
    match value {
        Value::Null => Column::Null,
        Value::Bool(flag) => Column::Integer((*flag).into()),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Column::Integer(whole),
            None => Column::Real(number.as_f64().unwrap()),
        },
        Value::String(text) => Column::Text(text.clone()),
        Value::Array(_) | Value::Object(_) => Column::Text(value.to_string()),
    }
}

impl DatabaseSample {
    /// Makes the database without its rows.
    fn open(&self) -> ProgramDatabase {
        let dir = TempDir::new().unwrap();
        let connection = Connection::open(dir.path().join(self.file)).unwrap();
        connection.execute_batch("PRAGMA journal_mode = wal").unwrap();
        connection.execute_batch(self.schema).unwrap();
        ProgramDatabase { format: self.format, dir, connection }
    }

    pub(super) fn filled(&self) -> ProgramDatabase {
        let database = self.open();
        self.rows.iter().for_each(|(table, row)| database.insert(table, row));
        database
    }

    pub(super) fn read(&self) -> BTreeMap<String, Seen> {
        self.filled().read()
    }

    pub(super) fn read_one(&self, id: &str) -> Seen {
        self.read().remove(id).unwrap()
    }
}

impl ProgramDatabase {
    /// Inserts a row, or replaces the one with its ID.
    pub(super) fn insert(&self, table: &str, row: &Value) {
        let fields = row.as_object().unwrap();
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        let marks = vec!["?"; names.len()].join(", ");
        let names = names.join(", ");
        let sql = format!("INSERT OR REPLACE INTO {table}({names}) VALUES ({marks})");
        let columns = rusqlite::params_from_iter(fields.values().map(column));
        self.connection.execute(&sql, columns).unwrap();
    }

    fn store(&self) -> Disk {
        Disk::open(self.dir.path()).unwrap()
    }

    pub(super) fn read(&self) -> BTreeMap<String, Seen> {
        self.read_with(&*format(self.format))
    }

    pub(super) fn read_with(&self, format: &dyn Format) -> BTreeMap<String, Seen> {
        read_all(format, &self.store())
    }

    fn files(&self) -> BTreeMap<RelPath, Vec<u8>> {
        let mut files = BTreeMap::new();
        see(&self.store(), &RelPath::root(), &mut files);
        files
    }
}

#[test]
fn each_database_is_recognized_by_its_own_format_only() {
    for sample in samples() {
        for rows in [sample.open(), sample.filled()] {
            let store = rows.store();
            let Detected::Format(found) = detect(&store).unwrap() else {
                panic!("{} is not detected", sample.format)
            };
            assert_eq!(found.name, sample.format);
            let (path, budget) = (RelPath::constant(sample.file), ProbeBudget::default());
            for other in super::super::known::FORMATS {
                let recognizes = other.recognizes(&Probe::new(&store, &path, &budget));
                assert_eq!(recognizes, other.name == sample.format, "{}", other.name);
            }
        }
    }
}

/// Other programs have databases with the same names, and tables with the same names.
#[test]
fn databases_of_other_programs_are_not_recognized() {
    for sample in samples() {
        let others = "CREATE TABLE sessions (id TEXT, working_dir TEXT, prompt_tokens INTEGER);
            CREATE TABLE messages (id TEXT, session_id TEXT, text TEXT);";
        let other = DatabaseSample { schema: others, rows: Vec::new(), ..sample };
        let detected = detect(&other.open().store()).unwrap();
        assert!(matches!(detected, Detected::Unknown { .. }), "{detected:?}");
    }
}

/// Promise: A growing transcript shows the same as one that is parsed from the start.
#[test]
fn calls_of_growing_databases_only_grow() {
    for sample in samples() {
        let (database, live) = (sample.open(), format(sample.format));
        let mut before: BTreeMap<String, Seen> = BTreeMap::new();
        for (table, row) in &sample.rows {
            database.insert(table, row);
            let files = database.files();
            let fresh = database.read();
            assert!(database.read_with(&*live) == fresh, "{}: {row}", sample.format);
            assert!(database.files() == files, "{} was written", sample.format);
            for (id, old) in &before {
                let (new, old) = (&fresh[id].record.trace.calls, &old.record.trace.calls);
                assert!(new.len() >= old.len(), "{id}: {row}");
                for (new, old) in new.iter().zip(old) {
                    assert_eq!((&new.tool, &new.path), (&old.tool, &old.path), "{id}: {row}");
                    let is_settled = old.output != Output::Pending && !old.is_open;
                    assert!(!is_settled || new.outcome == old.outcome, "{id}: {row}");
                }
            }
            before = fresh;
        }
        let ended = database.read();
        database.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        assert!(database.read() == ended, "{}", sample.format);
    }
}

#[test]
fn odd_values_in_rows_are_survived() {
    let mut random = rng();
    for sample in samples() {
        for _ in 0..scale(60) {
            let database = sample.open();
            for (table, row) in &sample.rows {
                let mut row = row.clone();
                let fields = row.as_object_mut().unwrap();
                // SQLite refuses some IDs.
                let values = fields.iter_mut().filter(|(name, _)| *name != "id");
                values.for_each(|(_, value)| spoil(value, &mut random));
                database.insert(table, &row);
            }
            database.read();
        }
    }
}

#[test]
fn long_rows_are_read_in_linear_time() {
    let texts = ["<cwd>\n\n".repeat(10_000), "Exit code 1\n".repeat(10_000), "[".repeat(10_000)];
    for text in &texts {
        for sample in samples() {
            let database = sample.open();
            for (table, row) in &sample.rows {
                let word = serde_json::to_string(text).unwrap();
                let row = row.to_string().replace("I look.", word.trim_matches('"'));
                database.insert(table, &serde_json::from_str(&row).unwrap());
            }
            assert_eq!(database.read().len(), sample.read().len(), "{}", sample.format);
        }
    }
}

#[test]
fn missing_columns_count_as_empty() {
    for sample in samples() {
        let whole = sample.read();
        for (table, column) in [
            ("sessions", "parent_session_id"),
            ("messages", "metadata_json"),
            ("messages", "is_summary_message"),
            ("sessions", "accumulated_cost"),
            ("sessions", "cost"),
        ] {
            let database = sample.filled();
            let sql = format!("ALTER TABLE {table} DROP COLUMN {column}");
            if database.connection.execute_batch(&sql).is_err() {
                continue;
            }
            let seen = database.read();
            assert_eq!(seen.len(), whole.len(), "{column}");
            for (id, seen) in seen {
                assert_eq!(seen.calls(), whole[&id].calls(), "{} without {column}", sample.format);
                assert!(!column.contains("parent") || seen.worker.parent.is_none());
                assert!(!column.contains("cost") || seen.record.trace.cost.is_none());
            }
        }
    }
}
