//! Walks over the trees of a database: tables by the numbers of their rows, and indexes by the
//! values of their first column.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use super::query::Query;
use super::record::{DatabaseRow, Value, varint};
use super::{u16_at, u32_at};
use swarmletfs_base::error::{Error, Result};

/// Maximum depth of a tree.
const DEPTH_MAX: usize = 40;
const INDEX_INNER: u8 = 2;
const TABLE_INNER: u8 = 5;
const INDEX_LEAF: u8 = 10;
const TABLE_LEAF: u8 = 13;

impl Query<'_> {
    /// Calls `use_row` with the rows of a table in the order of their numbers, until it returns
    /// false.
    pub(crate) fn scan(
        &self,
        root: u32,
        use_row: &mut dyn FnMut(DatabaseRow) -> Result<bool>,
    ) -> Result<()> {
        self.scan_table(&mut BtreeWalk::default(), root, 0, use_row).map(drop)
    }

    fn scan_table(
        &self,
        walk: &mut BtreeWalk,
        number: u32,
        depth: usize,
        use_row: &mut dyn FnMut(DatabaseRow) -> Result<bool>,
    ) -> Result<bool> {
        let page = self.enter(walk, number, depth)?;
        match page.kind {
            TABLE_LEAF => {
                for at in 0..page.cells {
                    if !use_row(page.table_row(self, at)?)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            TABLE_INNER => {
                for at in 0..=page.cells {
                    if !self.scan_table(walk, page.child(at)?, depth + 1, use_row)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            _ => Err(damaged()),
        }
    }

    /// Returns the row of a table with a number.
    pub(crate) fn row(&self, root: u32, id: i64) -> Result<Option<DatabaseRow>> {
        let (mut walk, mut number, mut depth) = (BtreeWalk::default(), root, 0);
        loop {
            let page = self.enter(&mut walk, number, depth)?;
            let (mut low, mut high) = (0, page.cells);
            while low < high {
                let middle = usize::midpoint(low, high);
                if page.table_key(middle)? < id {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            match page.kind {
                TABLE_INNER => (number, depth) = (page.child(low)?, depth + 1),
                TABLE_LEAF if low < page.cells && page.table_key(low)? == id => {
                    return page.table_row(self, low).map(Some);
                }
                TABLE_LEAF => return Ok(None),
                _ => return Err(damaged()),
            }
        }
    }

    /// Returns the numbers of the rows whose first value in an index is `text`, at most `limit`.
    pub(crate) fn find(&self, root: u32, text: &str, limit: usize) -> Result<Vec<i64>> {
        let mut found = Vec::new();
        self.find_in(&mut BtreeWalk::default(), (root, 0), text, limit, &mut found)?;
        Ok(found)
    }

    /// Adds the entries beneath a page, which has a number and a depth. Returns false if an entry
    /// is greater than the wanted ones, or if there are too many.
    fn find_in(
        &self,
        walk: &mut BtreeWalk,
        (number, depth): (u32, usize),
        text: &str,
        limit: usize,
        found: &mut Vec<i64>,
    ) -> Result<bool> {
        let page = self.enter(walk, number, depth)?;
        let is_inner = page.kind == INDEX_INNER;
        if !is_inner && page.kind != INDEX_LEAF {
            return Err(damaged());
        }
        let order = |row: &DatabaseRow| Ok::<_, Error>(compare(&row.value(self, 0)?, text));
        let (mut low, mut high) = (0, page.cells);
        while low < high {
            let middle = usize::midpoint(low, high);
            if order(&page.index_row(self, middle)?)? == Ordering::Less {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        for at in low..page.cells {
            // The entries below the child are before this one.
            let child = (page.child(at)?, depth + 1);
            if is_inner && !self.find_in(walk, child, text, limit, found)? {
                return Ok(false);
            }
            let row = page.index_row(self, at)?;
            if order(&row)? != Ordering::Equal || found.len() >= limit {
                return Ok(false);
            }
            found.extend(row.last_integer(self)?);
        }
        match is_inner {
            true => self.find_in(walk, (page.child(page.cells)?, depth + 1), text, limit, found),
            false => Ok(true),
        }
    }

    fn enter(&self, walk: &mut BtreeWalk, number: u32, depth: usize) -> Result<TreePage> {
        if depth > DEPTH_MAX || !walk.0.insert(number) {
            return Err(damaged());
        }
        TreePage::new(number, self.page(number)?)
    }
}

/// The pages that a walk over one tree has entered. A page is in a tree once.
#[derive(Default)]
struct BtreeWalk(HashSet<u32>);

/// A page of a tree.
struct TreePage {
    kind: u8,
    cells: usize,
    bytes: Arc<[u8]>,
    /// Offset of the page's header, in bytes: the first page begins with the database's.
    header: usize,
}

impl TreePage {
    fn new(number: u32, bytes: Arc<[u8]>) -> Result<TreePage> {
        let header = if number == 1 { 100 } else { 0 };
        let kind = bytes.get(header).copied().ok_or_else(damaged)?;
        let cells = u16_at(&bytes, header + 3).map(usize::from).ok_or_else(damaged)?;
        Ok(TreePage { kind, cells, bytes, header })
    }

    fn is_inner(&self) -> bool {
        matches!(self.kind, INDEX_INNER | TABLE_INNER)
    }

    /// Returns the offset of a cell in the page.
    fn cell(&self, at: usize) -> Result<usize> {
        let pointers = self.header + if self.is_inner() { 12 } else { 8 };
        u16_at(&self.bytes, pointers + at * 2).map(usize::from).ok_or_else(damaged)
    }

    /// Returns the page below a cell of an inner page, or below its end.
    fn child(&self, at: usize) -> Result<u32> {
        if !self.is_inner() {
            return Ok(0);
        }
        let offset = if at < self.cells { self.cell(at)? } else { self.header + 8 };
        u32_at(&self.bytes, offset).ok_or_else(damaged)
    }

    fn varint(&self, offset: usize) -> Result<(u64, usize)> {
        let number = self.bytes.get(offset..).and_then(varint);
        let (number, length) = number.ok_or_else(damaged)?;
        Ok((number, offset + length))
    }

    /// Returns the number of the row of a table in a cell.
    fn table_key(&self, at: usize) -> Result<i64> {
        let offset = match self.kind {
            TABLE_INNER => self.cell(at)? + 4,
            _ => self.varint(self.cell(at)?)?.1,
        };
        Ok(self.varint(offset)?.0.cast_signed())
    }

    fn table_row(&self, query: &Query<'_>, at: usize) -> Result<DatabaseRow> {
        let (size, offset) = self.varint(self.cell(at)?)?;
        let (id, begin) = self.varint(offset)?;
        let max_local = query.usable() - 35;
        DatabaseRow::parse(query, &self.bytes, begin, size, max_local, id.cast_signed())
    }

    fn index_row(&self, query: &Query<'_>, at: usize) -> Result<DatabaseRow> {
        let offset = self.cell(at)? + if self.is_inner() { 4 } else { 0 };
        let (size, begin) = self.varint(offset)?;
        let max_local = (query.usable() - 12) * 64 / 255 - 23;
        DatabaseRow::parse(query, &self.bytes, begin, size, max_local, 0)
    }
}

/// Compares a value with a text as an index orders them.
fn compare(value: &Value, text: &str) -> Ordering {
    match value {
        Value::Null | Value::Integer(_) | Value::Real(_) => Ordering::Less,
        Value::Text(own) => own.as_bytes().cmp(text.as_bytes()),
        Value::Blob => Ordering::Greater,
    }
}

fn damaged() -> Error {
    Error::Malformed("the database is damaged: a tree of pages is broken")
}
