//! Rows: the columns of a record, and the pages on which a long record goes on.

use std::borrow::Cow;
use std::sync::Arc;

use super::query::Query;
use super::u32_at;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::split::Split;

/// Maximum size of a record, in bytes.
const RECORD_MAX: u64 = 1 << 30;
/// Maximum number of columns of a table.
const COLUMNS_MAX: usize = 2_000;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    Blob,
}

impl Value {
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn as_integer(&self) -> Option<i64> {
        match self {
            Value::Integer(number) => Some(*number),
            // The conversion saturates.
            Value::Real(number) => Some(*number as i64),
            _ => None,
        }
    }
}

/// A record in a page, and the columns it states.
pub(crate) struct DatabaseRow {
    /// The number of the row in its table; 0 in an index.
    pub(crate) id: i64,
    /// The part of the record that is in its page.
    local: Local,
    /// Size of the whole record, in bytes.
    size: u64,
    /// The first page with the rest, or 0.
    overflow: u32,
    columns: Vec<StoredValue>,
}

struct Local {
    page: Arc<[u8]>,
    begin: usize,
    end: usize,
}

impl Local {
    fn bytes(&self) -> &[u8] {
        self.page.split_at_most(self.end).0.split_at_known(self.begin).1
    }
}

#[derive(Clone, Copy)]
struct StoredValue {
    serial_type: u64,
    offset: u64,
}

impl StoredValue {
    /// Returns the size of the value, in bytes.
    fn size(self) -> u64 {
        match self.serial_type {
            number @ 1..=4 => number,
            5 => 6,
            6 | 7 => 8,
            0..=11 => 0,
            other => (other - 12) / 2,
        }
    }

    fn is_text(self) -> bool {
        self.serial_type >= 13 && self.serial_type % 2 == 1
    }
}

impl DatabaseRow {
    /// Parses the record of `size` bytes that begins at `begin` of `page`. `max_local` is the size
    /// up to which the whole record is in the page.
    pub(super) fn parse(
        query: &Query<'_>,
        page: &Arc<[u8]>,
        begin: usize,
        size: u64,
        max_local: usize,
        id: i64,
    ) -> Result<DatabaseRow> {
        let malformed = || Error::Malformed("the database is damaged: a row is cut off");
        if size > RECORD_MAX.min(query.size()) {
            return Err(Error::Malformed("a row of the database is too large"));
        }
        let whole = usize::try_from(size).map_err(|_| malformed())?;
        let usable = query.usable();
        let local = if whole <= max_local {
            whole
        } else {
            let min_local = (usable - 12) * 32 / 255 - 23;
            let wanted = min_local + (whole - min_local) % (usable - 4);
            if wanted <= max_local { wanted } else { min_local }
        };
        let end = begin.checked_add(local).filter(|end| *end <= usable).ok_or_else(malformed)?;
        let overflow = match whole > local {
            true => u32_at(page, end).filter(|page| *page > 0).ok_or_else(malformed)?,
            false => 0,
        };
        let local = Local { page: page.clone(), begin, end };
        let mut row = DatabaseRow { id, local, size, overflow, columns: Vec::new() };
        row.columns = row.read_columns(query)?;
        Ok(row)
    }

    fn read_columns(&self, query: &Query<'_>) -> Result<Vec<StoredValue>> {
        let malformed = || Error::Malformed("the database is damaged: a row has no valid header");
        let (header_size, first) = varint(self.local.bytes()).ok_or_else(malformed)?;
        let header = self.prefix(query, header_size.min(self.size))?;
        let mut rest = header.get(first..).ok_or_else(malformed)?;
        let (mut columns, mut offset) = (Vec::new(), header_size);
        while !rest.is_empty() && columns.len() < COLUMNS_MAX {
            let (serial_type, length) = varint(rest).ok_or_else(malformed)?;
            let column = StoredValue { serial_type, offset };
            offset = offset.saturating_add(column.size());
            columns.push(column);
            rest = rest.split_at_known(length).1;
        }
        if offset > self.size { Err(malformed()) } else { Ok(columns) }
    }

    /// Returns the first `length` bytes of the record.
    fn prefix(&self, query: &Query<'_>, length: u64) -> Result<Cow<'_, [u8]>> {
        let cut = Error::Malformed("the database is damaged: the rest of a row is missing");
        let length = usize::try_from(length).map_err(|_| cut.clone())?;
        let local = self.local.bytes();
        if let Some(bytes) = local.get(..length) {
            return Ok(Cow::Borrowed(bytes));
        }
        let mut bytes = local.to_vec();
        let mut next = self.overflow;
        while bytes.len() < length {
            let page = query.page(next)?;
            let (_, part) = page.split_at_most(query.usable()).0.split_at_known(4);
            bytes.extend_from_slice(part.split_at_most(length - bytes.len()).0);
            next = u32_at(&page, 0).unwrap_or_default();
        }
        Ok(Cow::Owned(bytes))
    }

    /// Returns the size of a text, in bytes, without reading it. `None` for other values.
    pub(crate) fn text_size(&self, column: usize) -> Option<u64> {
        self.columns.get(column).filter(|column| column.is_text()).map(|column| column.size())
    }

    /// Returns the bytes of a value.
    fn bytes(&self, query: &Query<'_>, column: StoredValue) -> Result<Vec<u8>> {
        let end = column.offset.saturating_add(column.size());
        let bytes = self.prefix(query, end)?;
        let begin = usize::try_from(column.offset).unwrap_or(usize::MAX);
        Ok(bytes.split_at_most(begin).1.to_vec())
    }

    /// Returns the bytes of a text as they are; empty for other values.
    pub(crate) fn text_bytes(&self, query: &Query<'_>, column: usize) -> Result<Vec<u8>> {
        match self.columns.get(column).filter(|column| column.is_text()) {
            Some(column) => self.bytes(query, *column),
            None => Ok(Vec::new()),
        }
    }

    /// Returns a value. A column that was added after the row is null.
    pub(crate) fn value(&self, query: &Query<'_>, column: usize) -> Result<Value> {
        let Some(column) = self.columns.get(column).copied() else { return Ok(Value::Null) };
        let integer = |bytes: &[u8]| {
            let negative = bytes.first().is_some_and(|byte| *byte >= 0x80);
            let start = if negative { -1 } else { 0 };
            bytes.iter().fold(start, |number: i64, byte| number << 8 | i64::from(*byte))
        };
        Ok(match column.serial_type {
            0 | 10 | 11 => Value::Null,
            1..=6 => Value::Integer(integer(&self.bytes(query, column)?)),
            7 => {
                let bytes = self.bytes(query, column)?;
                bytes
                    .first_chunk()
                    .map_or(Value::Null, |bytes| Value::Real(f64::from_be_bytes(*bytes)))
            }
            8 => Value::Integer(0),
            9 => Value::Integer(1),
            _ if column.is_text() => {
                Value::Text(String::from_utf8_lossy(&self.bytes(query, column)?).into_owned())
            }
            _ => Value::Blob,
        })
    }

    /// Returns the last value if it is a number: in an index, the number of the row.
    pub(super) fn last_integer(&self, query: &Query<'_>) -> Result<Option<i64>> {
        let last = self.columns.len().checked_sub(1);
        last.map_or(Ok(None), |last| Ok(self.value(query, last)?.as_integer()))
    }
}

/// Returns a number of variable length and its size in bytes.
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0_u64;
    for (at, byte) in bytes.iter().take(9).enumerate() {
        if at == 8 {
            return Some((number << 8 | u64::from(*byte), 9));
        }
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((number, at + 1));
        }
    }
    None
}
