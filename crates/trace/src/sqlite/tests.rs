//! What this reads equals what SQLite reads, also while SQLite writes, and from damaged files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::types::Value as SqlValue;
use swarmletfs_base::store::{Disk, Memory};
use tempfile::TempDir;

use super::*;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::RelPath;

const NAME: &str = "a.db";

fn path() -> RelPath {
    RelPath::constant(NAME)
}

fn connect(folder: &Path) -> Connection {
    Connection::open(folder.join(NAME)).unwrap()
}

fn snapshot(folder: &Path) -> Result<DatabaseState> {
    DatabaseState::open(&Disk::open(folder).unwrap(), &path(), None)
}

/// All rows of the table `t`, by their numbers.
type Rows = BTreeMap<i64, Vec<Value>>;

fn read(folder: &Path) -> Result<Rows> {
    read_from(&snapshot(folder)?)
}

fn read_from(snapshot: &DatabaseState) -> Result<Rows> {
    let query = Query::new(snapshot);
    let table = Schema::read(&query)?.table("t").ok_or(Error::NotFound)?;
    let mut rows = Rows::new();
    query.scan(table.root, &mut |row| {
        let columns = 0..table.columns.len();
        let values = columns.map(|column| table.value(&query, &row, column));
        rows.insert(row.id, values.collect::<Result<_>>()?);
        Ok(true)
    })?;
    query.finish()?;
    Ok(rows)
}

fn expected(connection: &Connection) -> Rows {
    let mut statement = connection.prepare("SELECT rowid, * FROM t").unwrap();
    let columns = statement.column_count();
    let mut rows = statement.query([]).unwrap();
    let mut all = Rows::new();
    while let Some(row) = rows.next().unwrap() {
        let values = (1..columns).map(|column| match row.get_unwrap(column) {
            SqlValue::Null => Value::Null,
            SqlValue::Integer(number) => Value::Integer(number),
            SqlValue::Real(number) => Value::Real(number),
            SqlValue::Text(text) => Value::Text(text),
            SqlValue::Blob(_) => Value::Blob,
        });
        all.insert(row.get_unwrap(0), values.collect());
    }
    all
}

fn random_value() -> SqlValue {
    let length = match fastrand::u8(..10) {
        0 => fastrand::usize(..100_000),
        1..=3 => fastrand::usize(..3_000),
        _ => fastrand::usize(..40),
    };
    match fastrand::u8(..8) {
        0 => SqlValue::Null,
        1 => SqlValue::Integer(fastrand::i64(-2..3)),
        2 => SqlValue::Integer(fastrand::i64(..) >> fastrand::u32(..64)),
        3 => SqlValue::Real(fastrand::f64()),
        4 => SqlValue::Blob(vec![7; length]),
        _ => SqlValue::Text("aé€".chars().cycle().skip(length % 3).take(length).collect()),
    }
}

fn change_randomly(connection: &Connection, changes: usize) {
    for _ in 0..changes {
        let id = fastrand::i64(-5..400);
        let values = [random_value(), random_value(), random_value()];
        let [a, b, c] = &values;
        match fastrand::u8(..6) {
            0 => drop(connection.execute("DELETE FROM t WHERE rowid = ?1", [id]).unwrap()),
            1 => drop(connection.execute("UPDATE t SET b = ?1 WHERE rowid = ?2", (a, id)).unwrap()),
            _ => {
                let sql = "INSERT OR REPLACE INTO t(rowid, a, b, c) VALUES (?1, ?2, ?3, ?4)";
                connection.execute(sql, (id, a, b, c)).unwrap();
            }
        }
    }
}

/// Returns the names and contents of all files of a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let name = |entry: &fs::DirEntry| entry.file_name().into_string().unwrap();
    entries.map(|entry| (name(&entry), fs::read(entry.path()).unwrap())).collect()
}

#[test]
fn rows_equal_those_that_sqlite_reads() {
    for page_size in [512, 1_024, 4_096, 65_536] {
        let dir = TempDir::new().unwrap();
        let connection = connect(dir.path());
        connection.pragma_update(None, "page_size", page_size).unwrap();
        if fastrand::bool() {
            connection.pragma_update(None, "journal_mode", "wal").unwrap();
        }
        connection
            .execute_batch("CREATE TABLE other(x); CREATE TABLE t(a, `b` text, [c] blob)")
            .unwrap();
        for round in 0..6 {
            connection.execute_batch("BEGIN").unwrap();
            change_randomly(&connection, 60);
            connection.execute_batch("COMMIT").unwrap();
            if round == 3 {
                connection.execute_batch("ALTER TABLE t ADD COLUMN d").unwrap();
            }
            let before = files(dir.path());
            let rows = read(dir.path()).unwrap();
            assert!(files(dir.path()) == before, "nothing is written");
            assert!(rows == expected(&connection), "{page_size} {round}");
        }
    }
}

#[test]
fn an_index_finds_all_rows_with_a_text() {
    let dir = TempDir::new().unwrap();
    let connection = connect(dir.path());
    connection
        .execute_batch(
            "PRAGMA page_size = 512; CREATE TABLE t(id INTEGER PRIMARY KEY, k text, v text);
             CREATE INDEX odd ON t(lower(k)); CREATE INDEX some ON t(k) WHERE v > 'm';
             CREATE INDEX down ON t(k DESC); CREATE UNIQUE INDEX i ON t(`k`, id)",
        )
        .unwrap();
    let keys = ["", "a", "b", "key", &"long".repeat(300), "z"];
    connection.execute_batch("BEGIN").unwrap();
    for id in 0..3_000 {
        let key = keys[fastrand::usize(..keys.len())];
        connection.execute("INSERT INTO t VALUES (?1, ?2, ?2)", (id, key)).unwrap();
    }
    connection.execute_batch("COMMIT").unwrap();
    let snapshot = snapshot(dir.path()).unwrap();
    let query = Query::new(&snapshot);
    let table = Schema::read(&query).unwrap().table("T").unwrap();
    let root = table.index(table.column("k").unwrap()).unwrap();
    for key in keys.into_iter().chain(["none", "zz"]) {
        let mut statement =
            connection.prepare("SELECT id FROM t WHERE k = ?1 ORDER BY id").unwrap();
        let expected: Vec<i64> =
            statement.query_map([key], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        assert_eq!(query.find(root, key, 10_000).unwrap(), expected, "{key}");
        assert_eq!(query.find(root, key, 10).unwrap().len(), expected.len().min(10));
        for id in expected {
            let row = query.row(table.root, id).unwrap().unwrap();
            assert_eq!(table.value(&query, &row, 0).unwrap(), Value::Integer(id));
            assert_eq!(table.value(&query, &row, 1).unwrap().as_text(), Some(key));
        }
    }
    assert!(query.row(table.root, 3_000).unwrap().is_none());
    assert!(query.row(table.root, -1).unwrap().is_none());
}

#[test]
fn a_log_is_followed_and_a_checkpoint_is_noticed() {
    let dir = TempDir::new().unwrap();
    let connection = connect(dir.path());
    connection
        .execute_batch(
            "PRAGMA journal_mode = wal; PRAGMA wal_autocheckpoint = 0; CREATE TABLE t(a, b, c)",
        )
        .unwrap();
    let store = Disk::open(dir.path()).unwrap();
    let mut known = None;
    for round in 0..40 {
        change_randomly(&connection, 5);
        if round % 7 == 6 {
            connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        }
        let current = DatabaseState::open(&store, &path(), known.as_ref()).unwrap();
        assert!(read_from(&current).unwrap() == expected(&connection), "{round}");
        known = Some(current);
    }
    let known = known.unwrap();
    // A transaction that is not committed does not count.
    let before = expected(&connection);
    connection.execute_batch("PRAGMA cache_size = 1; BEGIN").unwrap();
    change_randomly(&connection, 200);
    assert!(read_from(&known).unwrap() == before);
    assert!(read(dir.path()).unwrap() == before);
    connection.execute_batch("ROLLBACK").unwrap();
    assert!(read(dir.path()).unwrap() == before);
    // The state stays readable until its pages are overwritten, and then fails.
    change_randomly(&connection, 50);
    assert!(read_from(&known).unwrap() == before);
    std::thread::sleep(Duration::from_millis(20));
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    assert!(!known.is_intact().unwrap());
    assert!(read(dir.path()).unwrap() == expected(&connection));
}

/// Promise: A reader of a database sees whole transactions.
///
/// Each transaction sets all rows to one number, and the log is checkpointed all the time. A reader
/// never sees two numbers.
#[test]
fn a_reader_beside_a_writer_sees_whole_transactions() {
    let dir = TempDir::new().unwrap();
    let connection = connect(dir.path());
    connection
        .execute_batch(
            "PRAGMA journal_mode = wal; PRAGMA wal_autocheckpoint = 30; PRAGMA synchronous = off;
             CREATE TABLE t(a, b, c)",
        )
        .unwrap();
    for _ in 0..60 {
        connection.execute("INSERT INTO t VALUES (0, ?1, 0)", ["x".repeat(900)]).unwrap();
    }
    let is_done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let write = move || {
            for number in 1..=600 {
                std::thread::sleep(Duration::from_micros(fastrand::u64(..2_000)));
                connection.execute("UPDATE t SET a = ?1, c = ?1", [number]).unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
        };
        std::thread::Builder::new().spawn_scoped(scope, write).unwrap();
        let store = Disk::open(dir.path()).unwrap();
        let (mut known, mut seen, mut stale) = (None, 0, 0);
        while !is_done.load(Ordering::Relaxed) {
            let Ok(current) = DatabaseState::open(&store, &path(), known.as_ref()) else {
                continue;
            };
            match read_from(&current) {
                Ok(rows) => {
                    let numbers: BTreeSet<Option<i64>> = rows
                        .values()
                        .flat_map(|row| [row[0].as_integer(), row[2].as_integer()])
                        .collect();
                    assert_eq!((rows.len(), numbers.len()), (60, 1), "{numbers:?}");
                    seen += 1;
                }
                Err(Error::Stale | Error::Malformed(_)) => stale += 1,
                Err(error) => panic!("{error}"),
            }
            known = Some(current);
        }
        assert!(seen > 20, "{seen} whole, {stale} overwritten");
    });
}

#[test]
fn results_stay_valid_until_their_pages_change() {
    let dir = TempDir::new().unwrap();
    let connection = connect(dir.path());
    connection
        .execute_batch(
            "PRAGMA journal_mode = wal; CREATE TABLE t(a, b, c); CREATE TABLE other(x);
             INSERT INTO t VALUES (1, 2, 3)",
        )
        .unwrap();
    let store = Disk::open(dir.path()).unwrap();
    let first = DatabaseState::open(&store, &path(), None).unwrap();
    let query = Query::new(&first);
    let table = Schema::read(&query).unwrap().table("t").unwrap();
    let query = Query::new(&first);
    query.scan(table.root, &mut |_| Ok(true)).unwrap();
    let (stamp, pages) = (first.stamp(), query.finish().unwrap());
    assert!(first.is_same(&store, &path()).unwrap());
    connection.execute_batch("INSERT INTO other VALUES (1)").unwrap();
    let second = DatabaseState::open(&store, &path(), Some(&first)).unwrap();
    assert!(!first.is_same(&store, &path()).unwrap());
    assert!(second.is_unchanged(&stamp, &pages));
    connection.execute_batch("UPDATE t SET a = 2").unwrap();
    let third = DatabaseState::open(&store, &path(), Some(&second)).unwrap();
    assert!(!third.is_unchanged(&stamp, &pages));
}

#[test]
fn a_torn_log_shows_a_state_that_was_committed() {
    let dir = TempDir::new().unwrap();
    let connection = connect(dir.path());
    connection
        .execute_batch("PRAGMA page_size = 512; PRAGMA journal_mode = wal; CREATE TABLE t(a, b, c)")
        .unwrap();
    let mut states = vec![expected(&connection)];
    for _ in 0..6 {
        change_randomly(&connection, 2);
        states.push(expected(&connection));
    }
    let all = files(dir.path());
    let wal = &all["a.db-wal"];
    let copy = TempDir::new().unwrap();
    fs::write(copy.path().join(NAME), &all[NAME]).unwrap();
    let mut last = 0;
    for cut in (0..=wal.len()).step_by(wal.len() / 300 + 1).chain([wal.len()]) {
        fs::write(copy.path().join("a.db-wal"), &wal[..cut]).unwrap();
        match read(copy.path()) {
            Ok(rows) => {
                // Some statements are transactions of their own between two states.
                last = states.iter().rposition(|state| *state == rows).unwrap_or(last).max(last);
            }
            Err(error) => assert!(last == 0, "{cut}: {error}"),
        }
    }
    assert_eq!(last, states.len() - 1);
    // A damaged frame ends the log before its transaction.
    for _ in 0..200 {
        let mut wal = wal.clone();
        let at = fastrand::usize(..wal.len());
        wal[at] ^= 1 << fastrand::u8(..8);
        fs::write(copy.path().join("a.db-wal"), &wal).unwrap();
        let _ = read(copy.path());
    }
}

/// A database of all kinds of pages, small enough to be damaged in each byte.
fn sample() -> Vec<u8> {
    let dir = TempDir::new().unwrap();
    let connection = connect(dir.path());
    connection
        .execute_batch(
            "PRAGMA page_size = 512; CREATE TABLE t(a text PRIMARY KEY, b, c); CREATE INDEX i ON t(b)",
        )
        .unwrap();
    for id in 0..25 {
        let row = (format!("{id}"), "k", "x".repeat(if id % 12 == 0 { 1_200 } else { 20 }));
        connection.execute("INSERT INTO t VALUES (?1, ?2, ?3)", row).unwrap();
    }
    drop(connection);
    fs::read(dir.path().join(NAME)).unwrap()
}

/// Reads everything in a database. Damage gives an error or wrong rows, and ends soon.
fn read_all(bytes: &[u8]) {
    let (started, store) = (Instant::now(), Memory::new());
    store.write(&path(), bytes);
    let Ok(snapshot) = DatabaseState::open(&store, &path(), None) else { return };
    let query = Query::new(&snapshot);
    let table = Schema::read(&query).ok().and_then(|schema| schema.table("t"));
    if let Some(table) = table {
        let _ = read_from(&snapshot);
        if let Some(root) = table.column("b").and_then(|column| table.index(column)) {
            for id in query.find(root, "k", 1_000).unwrap_or_default() {
                let _ = query
                    .row(table.root, id)
                    .map(|row| row.map(|row| table.value(&query, &row, 2)));
            }
        }
    }
    let _ = query.finish();
    assert!(started.elapsed() < Duration::from_secs(5));
}

/// Promise: Damage to a database costs no more than an error.
#[test]
fn a_damaged_database_costs_no_more_than_an_error() {
    let whole = sample();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] = match at % 3 {
            0 => !bytes[at],
            1 => 0xff,
            _ => bytes[at] ^ 1 << (at / 3 % 8),
        };
        read_all(&bytes);
    }
    for cut in (0..whole.len()).step_by(37) {
        read_all(&whole[..cut]);
    }
}

/// Many entries of the schema that lead to one long statement take no memory each.
#[test]
fn a_schema_of_many_equal_entries_is_refused() {
    let dir = TempDir::new().unwrap();
    let statement = format!("CREATE TABLE t(a text /* {} */)", "x".repeat(500_000));
    connect(dir.path())
        .execute_batch(&format!("PRAGMA page_size = 65536; VACUUM; {statement}"))
        .unwrap();
    let file = dir.path().join(NAME);
    let mut bytes = fs::read(&file).unwrap();
    assert!(Schema::read(&Query::new(&snapshot(dir.path()).unwrap())).is_ok());
    // The number of cells and their pointers follow the header of the first page.
    let pointer: [u8; 2] = bytes[108..110].try_into().unwrap();
    bytes[103..105].copy_from_slice(&1_000_u16.to_be_bytes());
    bytes[108..2_108].chunks_exact_mut(2).for_each(|own| own.copy_from_slice(&pointer));
    fs::write(&file, bytes).unwrap();
    let read = Schema::read(&Query::new(&snapshot(dir.path()).unwrap())).map(drop);
    assert!(matches!(read, Err(Error::Malformed(_))), "{read:?}");
}

#[test]
fn other_files_are_no_databases() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join(NAME);
    for bytes in [&b""[..], b"SQLite format 3\0", b"something else", &[0; 5_000]] {
        fs::write(&file, bytes).unwrap();
        assert!(matches!(snapshot(dir.path()), Err(Error::Malformed(_))));
    }
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
    assert!(matches!(snapshot(dir.path()), Err(error) if error.is_not_a_file()));
}

#[test]
fn a_transaction_without_a_log_is_an_error() {
    let dir = TempDir::new().unwrap();
    let connection = connect(dir.path());
    connection.execute_batch("CREATE TABLE t(a, b, c)").unwrap();
    assert_eq!(read(dir.path()).unwrap(), Rows::new());
    connection.execute_batch("PRAGMA cache_size = 1; BEGIN").unwrap();
    change_randomly(&connection, 200);
    assert!(matches!(read(dir.path()), Err(Error::Malformed(why)) if why.contains("transaction")));
    connection.execute_batch("COMMIT").unwrap();
    assert!(read(dir.path()).unwrap() == expected(&connection));
}

#[test]
fn columns_are_found_in_any_statement() {
    let dir = TempDir::new().unwrap();
    let connection = connect(dir.path());
    connection
        .execute_batch(
            "CREATE TABLE t(/* ( , */ \"a b\" text DEFAULT ',(', -- one )
               `c``d` numeric(3, 4) CHECK (1 IN (1, 2)), [e] AS (1 + 1), f AS ('x') STORED,
               id INTEGER PRIMARY KEY, 'g' COLLATE NOCASE, CONSTRAINT x UNIQUE (f));
             CREATE INDEX nocase ON t(g); CREATE TABLE w(a PRIMARY KEY) WITHOUT ROWID;
             CREATE VIEW v AS SELECT 1 AS t; INSERT INTO t(\"a b\", id, g) VALUES ('x', 7, 'y')",
        )
        .unwrap();
    let snapshot = snapshot(dir.path()).unwrap();
    let query = Query::new(&snapshot);
    let schema = Schema::read(&query).unwrap();
    let table = schema.table("t").unwrap();
    assert_eq!(table.columns, ["a b", "c`d", "f", "id", "g"]);
    assert!(table.index(table.column("g").unwrap()).is_none());
    assert!(schema.table("w").is_none());
    assert!(schema.table("v").is_none());
    let rows = read(dir.path()).unwrap();
    let text = |text: &str| Value::Text(text.into());
    let values = vec![text("x"), Value::Null, text("x"), Value::Integer(7), text("y")];
    assert_eq!(rows, Rows::from([(7, values)]));
}
