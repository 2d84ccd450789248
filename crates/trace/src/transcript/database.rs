//! Conversations in a database, each read as one file of lines.
//!
//! A line is a row as a JSON object: the row of the conversation first, then its messages in
//! order. Texts that hold JSON are in it as they are. The sizes of lines follow from the rows
//! without the long texts, so a listing of many conversations does not read them all.
//!
//! Rows change in place. A cached result holds the numbers of the pages that it came from, and is
//! taken again as long as none of them changed.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::super::sqlite::{
    DatabaseRow, DatabaseState, Query, Schema, Stamp, TableSchema, Value, Visited,
};
use super::super::value::unix_millis;
use super::location::{DatabaseLayout, RowLayout, TableLayout, TranscriptLocation};
use swarmletfs_base::cache::single_shard;
use swarmletfs_base::digest::digest;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{File, Identity, Kind, Meta, Store, Time, copy_from, earlier};

/// Maximum number of conversations in a database, and of rows in a conversation; further ones are
/// not read.
const CONVERSATIONS_MAX: usize = 100_000;
const ROWS_MAX: usize = 200_000;
/// Maximum size of a text that a line contains, in bytes. A longer one counts as absent.
const TEXT_MAX: u64 = 16 << 20;
/// Maximum size of a line, in bytes. Parts beyond it are left out.
const LINE_MAX: u64 = 16 << 20;
/// Maximum length of an ID, in bytes.
const WORD_MAX: u64 = 1_000;
const PARTS_BEGIN: &[u8] = b",\"parts\":[";
const PARTS_END: &[u8] = b"]";
/// Time after which a state is read again whose next change might not show in its files.
const UNSETTLED_MAX: Duration = Duration::from_millis(50);
/// Maximum difference of the kernel's clock for files, in nanoseconds.
const CLOCK_NANOS: u32 = 100_000_000;
const DATABASES_MAX: usize = 64;
const LISTINGS_BYTES: u64 = 64 << 20;
const EXPECTED_LISTINGS: usize = 1_000;
/// Maximum number of attempts to read rows that are not overwritten meanwhile.
const ATTEMPTS_MAX: usize = 4;

/// Databases, and the rows of their conversations, as far as they were read.
pub(super) struct Databases {
    open: Mutex<HashMap<RelPath, Arc<Database>>>,
    listings: Cache<RelPath, Arc<CachedQuery<Listing>>, RowsWeighter>,
}

impl Default for Databases {
    fn default() -> Databases {
        let listings = single_shard(EXPECTED_LISTINGS, LISTINGS_BYTES, RowsWeighter);
        Databases { open: Mutex::default(), listings }
    }
}

#[derive(Clone)]
struct RowsWeighter;

impl Weighter<RelPath, Arc<CachedQuery<Listing>>> for RowsWeighter {
    fn weight(&self, _: &RelPath, known: &Arc<CachedQuery<Listing>>) -> u64 {
        let lines = known.value.lines.len() * size_of::<RowLine>();
        (1_000 + lines + known.value.parts.len() * 8 + known.pages.len() * 4) as u64
    }
}

/// A result from a database, with the pages that it came from.
struct CachedQuery<T> {
    stamp: Stamp,
    pages: Visited,
    value: T,
}

impl<T> CachedQuery<T> {
    /// Runs a query.
    ///
    /// # Errors
    ///
    /// Fails if the query fails, or if a checkpoint has moved pages meanwhile.
    fn read(
        snapshot: &DatabaseState,
        read: impl FnOnce(&Query<'_>) -> Result<T>,
    ) -> Result<Arc<CachedQuery<T>>> {
        let query = Query::new(snapshot);
        let value = read(&query);
        // A damaged page may be one that was overwritten.
        let pages = query.finish()?;
        Ok(Arc::new(CachedQuery { stamp: snapshot.stamp(), pages, value: value? }))
    }

    fn is_valid(&self, now: &DatabaseState) -> bool {
        now.is_unchanged(&self.stamp, &self.pages)
    }
}

/// One state of a database.
struct Database {
    snapshot: DatabaseState,
    opened: Instant,
    /// True if pages of this state were overwritten.
    is_overwritten: AtomicBool,
    tables: Arc<CachedQuery<Vec<Tables>>>,
    /// The row of each conversation, by its ID.
    conversations: Arc<CachedQuery<HashMap<Name, ConversationRow>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct ConversationRow {
    /// The table that holds it.
    table: &'static str,
    row: i64,
}

struct Tables {
    conversations: Rows,
    messages: Rows,
    parts: Option<Rows>,
}

/// A table, with the places of the columns that are needed.
struct Rows {
    name: &'static str,
    table: TableSchema,
    conversation: usize,
    message: Option<usize>,
    order: Vec<usize>,
    updated: Option<usize>,
    json: Vec<usize>,
}

/// The lines of one conversation.
struct Listing {
    conversation: ConversationRow,
    lines: Vec<RowLine>,
    /// Numbers of the rows of parts.
    parts: Vec<i64>,
    /// Time of the last change, in milliseconds since 1970.
    updated: i64,
    /// Hash of the conversation's row, and of the numbers, sizes and times of all others.
    hash: u64,
}

struct RowLine {
    row: i64,
    parts: Range<usize>,
    begin: u64,
    end: u64,
}

/// A row without its long texts.
struct RowFacts {
    row: i64,
    order: Vec<RowOrder>,
    message: String,
    updated: i64,
    size: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum RowOrder {
    Number(i64),
    Text(String),
}

impl Databases {
    /// Returns the IDs of the conversations in the database at `path`, sorted. If it cannot be
    /// read, returns the error, and the IDs that were there before.
    pub(super) fn conversations(
        &self,
        store: &dyn Store,
        path: &RelPath,
        layout: &'static DatabaseLayout,
    ) -> (Vec<Name>, Option<Error>) {
        let (database, error) = match self.database(store, path, path, layout) {
            Ok(database) => (Some(database), None),
            // Its program may be writing so fast that no state can be read for a moment.
            Err(error) => (self.open.lock().get(path).cloned(), Some(error)),
        };
        let names = database.iter().flat_map(|database| database.conversations.value.keys());
        let mut names: Vec<Name> = names.cloned().collect();
        names.sort_unstable();
        (names, error)
    }

    /// Returns the current state of the database at `path` in `folder`. Its path from the store's
    /// root is `key`.
    fn database(
        &self,
        folder: &dyn Store,
        path: &RelPath,
        key: &RelPath,
        layout: &'static DatabaseLayout,
    ) -> Result<Arc<Database>> {
        // Others wait, because they need the same state.
        let mut open = self.open.lock();
        let known = open.get(key).cloned();
        if let Some(known) = &known
            && known.is_current(folder, path)?
        {
            return Ok(known.clone());
        }
        let database = Arc::new(Database::open(folder, path, layout, known.as_deref())?);
        if open.len() >= DATABASES_MAX && !open.contains_key(key) {
            open.clear();
        }
        open.insert(key.clone(), database.clone());
        Ok(database)
    }

    /// Calls `read` with the lines of the conversation at `location`. Calls it again if the rows
    /// were overwritten meanwhile.
    fn with_listing<T>(
        &self,
        folder: &dyn Store,
        location: &TranscriptLocation,
        layout: &'static DatabaseLayout,
        mut read: impl FnMut(&Database, &Arc<CachedQuery<Listing>>) -> Result<T>,
    ) -> Result<T> {
        let (key, path) = (location.path(), location.transcript.parent());
        let mut attempts = 1;
        loop {
            let database = self.database(folder, &path, &key.parent(), layout)?;
            let result =
                self.listing(&database, location).and_then(|listing| read(&database, &listing));
            match result {
                Err(Error::Stale) if attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                    database.is_overwritten.store(true, Ordering::Relaxed);
                }
                result => return result,
            }
        }
    }

    fn listing(
        &self,
        database: &Database,
        location: &TranscriptLocation,
    ) -> Result<Arc<CachedQuery<Listing>>> {
        let key = location.path();
        let row = database.conversations.value.get(&location.name).ok_or(Error::NotFound)?;
        let known = self
            .listings
            .get(&key)
            .filter(|known| known.value.conversation == *row && known.is_valid(&database.snapshot));
        if let Some(known) = known {
            return Ok(known);
        }
        let listing = CachedQuery::read(&database.snapshot, |query| {
            database.list(query, *row, &location.name.to_text())
        })?;
        self.listings.insert(key, listing.clone());
        Ok(listing)
    }

    pub(super) fn meta(
        &self,
        folder: &dyn Store,
        location: &TranscriptLocation,
        layout: &'static DatabaseLayout,
    ) -> Result<Meta> {
        self.with_listing(folder, location, layout, |database, listing| {
            Ok(database.meta(&location.name, &listing.value))
        })
    }
}

impl Database {
    fn open(
        folder: &dyn Store,
        path: &RelPath,
        layout: &'static DatabaseLayout,
        known: Option<&Database>,
    ) -> Result<Database> {
        let mut attempts = 1;
        loop {
            let snapshot = DatabaseState::open(folder, path, known.map(|known| &known.snapshot))?;
            match Database::read(snapshot, layout, known) {
                // A checkpoint has moved pages.
                Err(Error::Stale) if attempts < ATTEMPTS_MAX => attempts += 1,
                result => return result,
            }
        }
    }

    fn read(
        snapshot: DatabaseState,
        layout: &'static DatabaseLayout,
        known: Option<&Database>,
    ) -> Result<Database> {
        let opened = Instant::now();
        let known = known.filter(|known| known.tables.is_valid(&snapshot));
        let tables = match known {
            Some(known) => known.tables.clone(),
            None => CachedQuery::read(&snapshot, |query| {
                let schema = Schema::read(query)?;
                Ok(layout.iter().filter_map(|layout| Tables::new(&schema, layout)).collect())
            })?,
        };
        let conversations = match known.filter(|known| known.conversations.is_valid(&snapshot)) {
            Some(known) => known.conversations.clone(),
            None => CachedQuery::read(&snapshot, |query| find_conversations(query, &tables.value))?,
        };
        let is_overwritten = AtomicBool::new(false);
        Ok(Database { snapshot, opened, is_overwritten, tables, conversations })
    }

    /// Returns true if the database has not changed, as far as its files show.
    fn is_current(&self, folder: &dyn Store, path: &RelPath) -> Result<bool> {
        let shows_changes = self.snapshot.is_settled() || self.opened.elapsed() < UNSETTLED_MAX;
        let shows_changes = shows_changes && !self.is_overwritten.load(Ordering::Relaxed);
        Ok(shows_changes && self.snapshot.is_same(folder, path)?)
    }

    fn tables(&self, conversation: ConversationRow) -> Result<&Tables> {
        let mut tables = self.tables.value.iter();
        tables.find(|own| own.conversations.name == conversation.table).ok_or(Error::Stale)
    }

    fn list(&self, query: &Query<'_>, row: ConversationRow, id: &str) -> Result<Listing> {
        let tables = self.tables(row)?;
        let own = tables.conversations.row(query, row.row)?;
        let (text, _) = tables.conversations.render(query, &own, JsonTexts::Read)?;
        let mut hash = blake3::Hasher::new();
        hash.update(&text);
        let first = (wrapped(&tables.conversations, &text).len()) as u64;
        let mut listing = Listing {
            conversation: row,
            lines: vec![RowLine { row: row.row, parts: 0..0, begin: 0, end: first }],
            parts: Vec::new(),
            updated: tables.conversations.updated(query, &own)?,
            hash: 0,
        };
        let mut messages = tables.messages.facts_of(query, id)?;
        messages.sort_by(|a, b| a.order.cmp(&b.order));
        let mut parts: HashMap<String, Vec<RowFacts>> = HashMap::new();
        if let Some(rows) = &tables.parts {
            for part in rows.facts_of(query, id)? {
                parts.entry(part.message.clone()).or_default().push(part);
            }
        }
        for message in messages {
            let frame = wrapped(&tables.messages, b"").len() as u64;
            let (mut size, begin) = (frame + message.size, listing.parts.len());
            listing.note(&mut hash, &message);
            if tables.parts.is_some() {
                size += PARTS_BEGIN.len() as u64 + PARTS_END.len() as u64;
                let mut own = parts.remove(&message.message).unwrap_or_default();
                own.sort_by(|a, b| a.order.cmp(&b.order));
                for part in own {
                    listing.note(&mut hash, &part);
                    let comma = u64::from(listing.parts.len() > begin);
                    if size + comma + part.size <= LINE_MAX {
                        size += comma + part.size;
                        listing.parts.push(part.row);
                    }
                }
            }
            let start = listing.size();
            let parts = begin..listing.parts.len();
            listing.lines.push(RowLine {
                row: message.row,
                parts,
                begin: start,
                end: start + size,
            });
        }
        listing.hash = u64::from_le_bytes(digest(&hash));
        Ok(listing)
    }

    /// Returns a line with its line end.
    fn line(&self, listing: &Listing, at: usize) -> Result<Arc<[u8]>> {
        let line = listing.lines.get(at).ok_or(Error::Stale)?;
        let tables = self.tables(listing.conversation)?;
        let rows = if at == 0 { &tables.conversations } else { &tables.messages };
        let parts = listing.parts.get(line.parts.clone()).unwrap_or_default();
        let text = CachedQuery::read(&self.snapshot, |query| {
            let render = |rows: &Rows, row: i64| {
                let row = rows.row(query, row)?;
                Ok::<_, Error>(rows.render(query, &row, JsonTexts::Read)?.0)
            };
            let mut text = render(rows, line.row)?;
            if let Some(rows) = tables.parts.as_ref().filter(|_| at > 0) {
                text.extend_from_slice(PARTS_BEGIN);
                for (number, part) in parts.iter().enumerate() {
                    text.extend_from_slice(if number > 0 { b"," } else { b"" });
                    text.extend(render(rows, *part)?);
                }
                text.extend_from_slice(PARTS_END);
            }
            Ok(text)
        })?;
        let bytes = wrapped(rows, &text.value);
        let is_expected = bytes.len() as u64 == line.end - line.begin;
        if is_expected { Ok(bytes.into()) } else { Err(Error::Stale) }
    }

    /// Returns the metadata of a conversation as a file. Its times are those of its rows, so that
    /// they stay when others change.
    fn meta(&self, name: &Name, listing: &Listing) -> Meta {
        let (own, wal) = (self.snapshot.meta, self.snapshot.wal_meta());
        let wal_or_own = wal.unwrap_or(own);
        let mtime = own.mtime.max(wal_or_own.mtime);
        let ctime = own.ctime.max(wal_or_own.ctime);
        // The part below a millisecond tells states of the same size and time apart.
        let below = (listing.hash % 1_000_000) as u32;
        let stated = Time {
            secs: listing.updated.div_euclid(1_000),
            nanos: listing.updated.rem_euclid(1_000) as u32 * 1_000_000 + below,
        };
        // The kernel's clock for files runs behind.
        let is_past = listing.updated > 0 && stated <= ctime.plus_nanos(CLOCK_NANOS);
        let time = if is_past { stated } else { earlier(mtime, ctime) };
        let mut hash = blake3::Hasher::new();
        hash.update(&own.identity.ino.to_le_bytes()).update(name.as_bytes());
        Meta {
            kind: Kind::File,
            size: listing.size(),
            nlink: 1,
            mode: own.mode & (wal_or_own.mode | !0o444),
            identity: Identity { ino: u64::from_le_bytes(digest(&hash)), ..own.identity },
            mtime: time,
            ctime: if is_past { stated } else { ctime },
            ..own
        }
    }
}

impl Listing {
    fn size(&self) -> u64 {
        self.lines.last().map_or(0, |line| line.end)
    }

    fn note(&mut self, hash: &mut blake3::Hasher, row: &RowFacts) {
        self.updated = self.updated.max(row.updated);
        hash.update(&row.row.to_le_bytes()).update(&row.size.to_le_bytes());
        hash.update(&row.updated.to_le_bytes());
    }
}

fn find_conversations(
    query: &Query<'_>,
    tables: &[Tables],
) -> Result<HashMap<Name, ConversationRow>> {
    let mut found = HashMap::new();
    for rows in tables.iter().map(|tables| &tables.conversations) {
        query.scan(rows.table.root, &mut |row| {
            let id = rows.word(query, &row, rows.conversation)?;
            if let Ok(name) = Name::new(id) {
                found.entry(name).or_insert(ConversationRow { table: rows.name, row: row.id });
            }
            Ok(found.len() < CONVERSATIONS_MAX)
        })?;
    }
    Ok(found)
}

impl Tables {
    fn new(schema: &Schema, layout: &'static TableLayout) -> Option<Tables> {
        Some(Tables {
            conversations: Rows::new(schema, &layout.conversations)?,
            messages: Rows::new(schema, &layout.messages)?,
            parts: match &layout.parts {
                Some(parts) => Some(Rows::new(schema, parts)?),
                None => None,
            },
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum JsonTexts {
    Read,
    /// Texts that hold JSON are counted, not read.
    Count,
}

impl Rows {
    fn new(schema: &Schema, layout: &'static RowLayout) -> Option<Rows> {
        let table = schema.table(layout.table)?;
        if !layout.content.is_empty() {
            table.column(layout.content)?;
        }
        let columns = |names: &[&str]| names.iter().filter_map(|name| table.column(name)).collect();
        Some(Rows {
            name: layout.table,
            conversation: table.column(layout.conversation)?,
            message: table.column(layout.message),
            order: columns(layout.order),
            updated: table.column(layout.updated),
            json: columns(layout.json),
            table,
        })
    }

    fn row(&self, query: &Query<'_>, row: i64) -> Result<DatabaseRow> {
        query.row(self.table.root, row)?.ok_or(Error::Stale)
    }

    /// Returns a short text or a number as text; empty for other values.
    fn word(&self, query: &Query<'_>, row: &DatabaseRow, column: usize) -> Result<String> {
        if row.text_size(column).is_some_and(|size| size > WORD_MAX) {
            return Ok(String::new());
        }
        Ok(match self.table.value(query, row, column)? {
            Value::Text(text) => text,
            Value::Integer(number) => number.to_string(),
            _ => String::new(),
        })
    }

    fn updated(&self, query: &Query<'_>, row: &DatabaseRow) -> Result<i64> {
        let Some(column) = self.updated else { return Ok(0) };
        let time = self.table.value(query, row, column)?.as_integer();
        Ok(time.map_or(0, unix_millis))
    }

    /// Returns the rows of a conversation, in no particular order.
    fn facts_of(&self, query: &Query<'_>, conversation: &str) -> Result<Vec<RowFacts>> {
        let mut found = Vec::new();
        let mut add = |row: &DatabaseRow| {
            if self.word(query, row, self.conversation)? == conversation {
                found.push(self.facts(query, row)?);
            }
            Ok::<_, Error>(found.len() < ROWS_MAX)
        };
        match self.table.index(self.conversation) {
            Some(index) => {
                for row in query.find(index, conversation, ROWS_MAX)? {
                    let row = query.row(self.table.root, row)?.ok_or(Error::Malformed(
                        "the database is damaged: an index names a row that is missing",
                    ))?;
                    add(&row)?;
                }
            }
            None => query.scan(self.table.root, &mut |row| add(&row))?,
        }
        Ok(found)
    }

    fn facts(&self, query: &Query<'_>, row: &DatabaseRow) -> Result<RowFacts> {
        let key = |column: &usize| {
            Ok(match self.table.value(query, row, *column)? {
                Value::Integer(number) => RowOrder::Number(number),
                Value::Real(number) => RowOrder::Number(number as i64),
                _ => RowOrder::Text(self.word(query, row, *column)?),
            })
        };
        let (text, left_out) = self.render(query, row, JsonTexts::Count)?;
        Ok(RowFacts {
            row: row.id,
            order: self.order.iter().map(key).collect::<Result<_>>()?,
            message: match self.message {
                Some(column) => self.word(query, row, column)?,
                None => String::new(),
            },
            updated: self.updated(query, row)?,
            size: text.len() as u64 + left_out,
        })
    }

    /// Returns a row as a JSON object of the columns that are not null, and the number of bytes
    /// that were not read.
    fn render(
        &self,
        query: &Query<'_>,
        row: &DatabaseRow,
        texts: JsonTexts,
    ) -> Result<(Vec<u8>, u64)> {
        let (mut out, mut left_out) = (vec![b'{'], 0);
        for (column, name) in self.table.columns.iter().enumerate() {
            let size = row.text_size(column).unwrap_or_default();
            let is_json = size > 0 && self.json.contains(&column);
            if size > TEXT_MAX {
                continue;
            }
            let value = match is_json {
                true => Value::Null,
                false => self.table.value(query, row, column)?,
            };
            let json = match value {
                _ if is_json && texts == JsonTexts::Count => {
                    left_out += size;
                    Vec::new()
                }
                _ if is_json => {
                    let mut json = row.text_bytes(query, column)?;
                    // A line feed in JSON is white space.
                    let line_ends = json.iter_mut().filter(|byte| matches!(**byte, b'\n' | b'\r'));
                    line_ends.for_each(|byte| *byte = b' ');
                    json
                }
                Value::Null | Value::Blob => continue,
                Value::Integer(number) => number.to_string().into_bytes(),
                Value::Real(number) => as_json(&number),
                Value::Text(text) => as_json(&text),
            };
            out.extend_from_slice(if out.len() > 1 { b"," } else { b"" });
            out.extend(as_json(name));
            out.push(b':');
            out.extend(json);
        }
        out.push(b'}');
        Ok((out, left_out))
    }
}

fn as_json(value: &(impl serde::Serialize + ?Sized)) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// Returns a row in a line of its own.
fn wrapped(rows: &Rows, row: &[u8]) -> Vec<u8> {
    let begin = format!("{{\"table\":\"{}\",\"row\":", rows.name);
    [begin.as_bytes(), row, b"}\n"].concat()
}

/// Returns true if the database at `path` has the tables of one of the layouts. `None` if it has no
/// table at all.
///
/// # Errors
///
/// Fails if it cannot be read.
pub(crate) fn has_tables(
    store: &dyn Store,
    path: &RelPath,
    layout: &'static DatabaseLayout,
) -> Result<Option<bool>> {
    let snapshot = DatabaseState::open(store, path, None)?;
    let schema = CachedQuery::read(&snapshot, Schema::read)?;
    let has_tables = layout.iter().any(|layout| Tables::new(&schema.value, layout).is_some());
    Ok((!schema.value.is_empty()).then_some(has_tables))
}

/// A conversation in a database, read as a file of lines.
pub(super) struct DatabaseFile {
    folder: Box<dyn Store>,
    location: TranscriptLocation,
    layout: &'static DatabaseLayout,
    databases: Arc<Databases>,
    /// The line that was read last, because a long one is read in several calls.
    last: Mutex<Option<RenderedRow>>,
}

struct RenderedRow {
    listing: Arc<CachedQuery<Listing>>,
    at: usize,
    bytes: Arc<[u8]>,
}

impl DatabaseFile {
    /// Opens the conversation at `location` in the entered directory `folder`.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be read, or has no such conversation.
    pub(super) fn new(
        folder: &dyn Store,
        location: &TranscriptLocation,
        layout: &'static DatabaseLayout,
        databases: &Arc<Databases>,
    ) -> Result<DatabaseFile> {
        databases.meta(folder, location, layout)?;
        let (folder, databases) = (folder.enter(&RelPath::root())?, databases.clone());
        let location = location.clone();
        Ok(DatabaseFile { folder, location, layout, databases, last: Mutex::default() })
    }

    fn line(
        &self,
        database: &Database,
        known: &Arc<CachedQuery<Listing>>,
        at: usize,
    ) -> Result<Arc<[u8]>> {
        if let Some(last) = &*self.last.lock()
            && last.at == at
            && Arc::ptr_eq(&last.listing, known)
        {
            return Ok(last.bytes.clone());
        }
        let bytes = database.line(&known.value, at)?;
        *self.last.lock() = Some(RenderedRow { listing: known.clone(), at, bytes: bytes.clone() });
        Ok(bytes)
    }
}

impl File for DatabaseFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let (location, layout) = (&self.location, self.layout);
        self.databases.with_listing(&*self.folder, location, layout, |database, known| {
            let (lines, mut filled) = (&known.value.lines, 0);
            let first = lines.partition_point(|line| line.end <= offset);
            for (at, line) in lines.iter().enumerate().skip(first) {
                let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) else {
                    break;
                };
                let bytes = self.line(database, known, at)?;
                filled += copy_from(&bytes, offset.saturating_sub(line.begin), rest);
            }
            Ok(filled)
        })
    }

    fn meta(&self) -> Result<Meta> {
        self.databases.meta(&*self.folder, &self.location, self.layout)
    }
}
