//! The tables and indexes of a database, from the statements that made them.

use super::query::Query;
use super::record::{DatabaseRow, Value};
use swarmletfs_base::error::{Error, Result};

/// The page with the table of all tables and indexes.
const ROOT: u32 = 1;
/// Maximum number of tables and indexes.
const ITEMS_MAX: usize = 10_000;
/// Maximum length of a statement, in bytes.
const STATEMENT_MAX: u64 = 1 << 20;
/// Maximum length of all names and statements, in bytes.
const STATEMENTS_MAX: usize = 16 << 20;

/// All tables and indexes of a database.
pub(crate) struct Schema(Vec<Item>);

struct Item {
    is_index: bool,
    name: String,
    table: String,
    root: u32,
    statement: String,
}

/// A table, with the columns that it has in this database.
pub(crate) struct TableSchema {
    pub(crate) root: u32,
    pub(crate) columns: Vec<String>,
    /// The column that is the number of the row, and is not in its record.
    row_id: Option<usize>,
    /// The first columns and root pages of its indexes.
    indexes: Vec<(usize, u32)>,
}

impl Schema {
    pub(crate) fn read(query: &Query<'_>) -> Result<Schema> {
        let (mut items, mut size) = (Vec::new(), 0);
        query.scan(ROOT, &mut |row| {
            let text = |column| match row.text_size(column) {
                Some(..=STATEMENT_MAX) => row.value(query, column),
                _ => Ok(Value::Null),
            };
            let text = |column| Ok::<_, Error>(text(column)?.as_text().unwrap_or("").to_owned());
            let root = row.value(query, 3)?.as_integer().and_then(|root| u32::try_from(root).ok());
            let kind = text(0)?;
            if let Some(root) = root.filter(|root| *root > 0)
                && matches!(&*kind, "table" | "index")
            {
                let (name, table, statement) = (text(1)?, text(2)?, text(4)?);
                // Many entries of a damaged page can lead to one row.
                size += name.len() + table.len() + statement.len();
                if size > STATEMENTS_MAX {
                    return Err(Error::Malformed("the schema of the database is too large"));
                }
                items.push(Item { is_index: kind == "index", name, table, root, statement });
            }
            Ok(items.len() < ITEMS_MAX)
        })?;
        Ok(Schema(items))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the table with a name. `None` if there is none, or none with ordinary rows.
    pub(crate) fn table(&self, name: &str) -> Option<TableSchema> {
        let is_named = |other: &str| other.eq_ignore_ascii_case(name);
        let item = self.0.iter().find(|item| !item.is_index && is_named(&item.name))?;
        let (definitions, rest) = definitions(&item.statement)?;
        if rest.iter().any(|token| token.is_word("WITHOUT")) {
            return None;
        }
        let columns = definitions.iter().take_while(|tokens| is_column(tokens));
        let columns: Vec<&Vec<SqlToken>> = columns.filter(|tokens| !is_computed(tokens)).collect();
        let names: Vec<String> = columns
            .iter()
            .map(|tokens| tokens.first().map_or_else(String::new, |token| token.text.clone()))
            .collect();
        let row_id = columns.iter().position(|tokens| is_row_id(tokens));
        let indexes = self.0.iter().filter(|item| item.is_index && is_named(&item.table));
        let indexes = indexes.filter_map(|item| {
            let column = first_column(&item.statement)?;
            let at = names.iter().position(|name| name.eq_ignore_ascii_case(&column))?;
            let is_plain = !columns.get(at)?.iter().any(|token| token.is_word("COLLATE"));
            is_plain.then_some((at, item.root))
        });
        let indexes = indexes.collect();
        Some(TableSchema { root: item.root, columns: names, row_id, indexes })
    }
}

impl TableSchema {
    pub(crate) fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.eq_ignore_ascii_case(name))
    }

    /// Returns a value of a row of this table.
    pub(crate) fn value(
        &self,
        query: &Query<'_>,
        row: &DatabaseRow,
        column: usize,
    ) -> Result<Value> {
        match row.value(query, column)? {
            Value::Null if self.row_id == Some(column) => Ok(Value::Integer(row.id)),
            value => Ok(value),
        }
    }

    /// Returns the root page of an index that begins with a column.
    pub(crate) fn index(&self, column: usize) -> Option<u32> {
        self.indexes.iter().find(|(first, _)| *first == column).map(|(_, root)| *root)
    }
}

/// Returns the definitions in the parentheses of a statement, and the words after them.
fn definitions(statement: &str) -> Option<(Vec<Vec<SqlToken>>, Vec<SqlToken>)> {
    let mut tokens = tokens(statement).into_iter().skip_while(|token| !token.is_sign("("));
    tokens.next()?;
    let (mut all, mut definition, mut depth) = (Vec::new(), Vec::new(), 0_usize);
    for token in tokens.by_ref() {
        match &*token.text {
            "(" if !token.is_quoted => depth += 1,
            ")" if !token.is_quoted && depth == 0 => {
                all.push(definition);
                return Some((all, tokens.collect()));
            }
            ")" if !token.is_quoted => depth -= 1,
            "," if !token.is_quoted && depth == 0 => {
                all.push(std::mem::take(&mut definition));
                continue;
            }
            _ => {}
        }
        definition.push(token);
    }
    None
}

fn is_column(tokens: &[SqlToken]) -> bool {
    let constraints = ["CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN"];
    tokens.first().is_some_and(|first| !constraints.iter().any(|word| first.is_word(word)))
}

/// Returns true if a column is computed when it is read, and not in the record.
fn is_computed(tokens: &[SqlToken]) -> bool {
    let mut words = tokens.windows(2);
    words.any(|two| matches!(two, [word, sign] if word.is_word("AS") && sign.is_sign("(")))
        && !tokens.iter().any(|token| token.is_word("STORED"))
}

fn is_row_id(tokens: &[SqlToken]) -> bool {
    tokens.get(1).is_some_and(|token| token.is_word("INTEGER"))
        && tokens
            .windows(2)
            .any(|two| matches!(two, [one, two] if one.is_word("PRIMARY") && two.is_word("KEY")))
}

/// Returns the first column of an index with all rows in the usual order.
fn first_column(statement: &str) -> Option<String> {
    let (definitions, rest) = definitions(statement)?;
    let [column, order @ ..] = definitions.first()?.as_slice() else { return None };
    let is_usual = match order {
        [] => true,
        [order] => order.is_word("ASC"),
        _ => false,
    };
    (is_usual && rest.is_empty()).then(|| column.text.clone())
}

/// A word, a quoted text or a sign of a statement.
struct SqlToken {
    text: String,
    is_quoted: bool,
}

impl SqlToken {
    fn is_word(&self, word: &str) -> bool {
        !self.is_quoted && self.text.eq_ignore_ascii_case(word)
    }

    fn is_sign(&self, sign: &str) -> bool {
        !self.is_quoted && self.text == sign
    }
}

fn tokens(statement: &str) -> Vec<SqlToken> {
    let mut tokens = Vec::new();
    let mut chars = statement.chars().peekable();
    while let Some(first) = chars.next() {
        let close = match first {
            '\'' | '"' | '`' => Some(first),
            '[' => Some(']'),
            _ => None,
        };
        if first == '-' && chars.peek() == Some(&'-') {
            chars.by_ref().take_while(|c| *c != '\n').for_each(drop);
        } else if first == '/' && chars.next_if_eq(&'*').is_some() {
            let mut last = ' ';
            let mut is_inside = |c: char| !(std::mem::replace(&mut last, c) == '*' && c == '/');
            chars.by_ref().take_while(|c| is_inside(*c)).for_each(drop);
        } else if let Some(close) = close {
            let mut text = String::new();
            while let Some(c) = chars.next() {
                // A doubled quote stands for itself.
                if c == close && (close == ']' || chars.next_if_eq(&close).is_none()) {
                    break;
                }
                text.push(c);
            }
            tokens.push(SqlToken { text, is_quoted: true });
        } else if is_word_char(first) {
            let mut text = String::from(first);
            while let Some(c) = chars.next_if(|c| is_word_char(*c)) {
                text.push(c);
            }
            tokens.push(SqlToken { text, is_quoted: false });
        } else if !first.is_whitespace() {
            tokens.push(SqlToken { text: first.into(), is_quoted: false });
        }
    }
    tokens
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '$') || !c.is_ascii()
}
