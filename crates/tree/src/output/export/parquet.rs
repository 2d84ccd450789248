//! Workers as tables of Parquet, for questions over many: workers, messages and calls. A row is a
//! line of the export as JSON lines.

use std::io::{self, Write};

use serde_json::Value;
use swarmletfs_table::ColumnKind::{Double, Flag, Number, Text, Time};
use swarmletfs_table::{ParquetTable, TableColumns};

use super::ExportedWorker;

/// The tables: the name of the file, the type of its lines, and its columns, to which later
/// versions only add.
const TABLES: [(&str, &str, TableColumns); 3] = [
    (
        "workers.parquet",
        "worker",
        &[
            ("id", Text),
            ("source", Text),
            ("parent", Text),
            ("run", Text),
            ("owner", Text),
            ("kind", Text),
            ("title", Text),
            ("task", Text),
            ("status", Text),
            ("outcome", Text),
            ("error", Text),
            ("model", Text),
            ("cwd", Text),
            ("branch", Text),
            ("started_at", Time),
            ("finished_at", Time),
            ("tokens_input", Number),
            ("tokens_output", Number),
            ("tokens_cache_read", Number),
            ("tokens_cache_creation", Number),
            ("cost_usd", Double),
            ("final_words", Text),
        ],
    ),
    (
        "messages.parquet",
        "message",
        &[
            ("worker", Text),
            ("role", Text),
            ("time", Time),
            ("model", Text),
            ("text", Text),
            ("thinking", Text),
        ],
    ),
    (
        "calls.parquet",
        "call",
        &[
            ("worker", Text),
            ("seq", Number),
            ("tool", Text),
            ("time", Time),
            ("arguments", Text),
            ("outcome", Text),
            ("exit_code", Number),
            ("duration_ms", Number),
            ("open", Flag),
            ("output", Text),
            ("output_is_cut", Flag),
        ],
    ),
];

/// Writes the tables, a group of rows at a time.
pub struct ParquetTables<W: Write + Send> {
    /// Each with the type of the lines that are its rows.
    tables: Vec<(&'static str, ParquetTable<W>)>,
}

impl<W: Write + Send> ParquetTables<W> {
    /// Begins the tables in the files that `create` makes by their names.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be made or written.
    pub fn new(create: impl Fn(&str) -> io::Result<W>) -> io::Result<ParquetTables<W>> {
        let tables = TABLES.into_iter().map(|(file, line, columns)| {
            Ok((line, ParquetTable::new(line, columns, create(file)?)?))
        });
        Ok(ParquetTables { tables: tables.collect::<io::Result<_>>()? })
    }

    /// Adds the rows of a worker.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be written.
    pub fn add(&mut self, worker: &ExportedWorker) -> io::Result<()> {
        for line in worker.lines() {
            let kind = line.get("type").and_then(Value::as_str).unwrap_or_default();
            if let Some((_, table)) = self.tables.iter_mut().find(|(line, _)| *line == kind) {
                table.add(&line)?;
            }
        }
        Ok(())
    }

    /// Writes the rest.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be written.
    pub fn finish(self) -> io::Result<()> {
        self.tables.into_iter().try_for_each(|(_, table)| table.finish().map(drop))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::File;

    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    use serde_json::json;

    use super::super::tests::worker;
    use super::*;
    use proptest::prelude::*;

    fn value(field: Field) -> Value {
        match field {
            Field::Str(text) => json!(text),
            Field::Long(number) => json!(number),
            Field::Double(number) => json!(number),
            _ => Value::Null,
        }
    }

    proptest! {
        #![proptest_config(crate::scale::cases(100))]

        /// Promise: Exported tables have a row for each worker, message and call.
        #[test]
        fn tables_hold_all_lines(worker in worker()) {
            let folder = tempfile::tempdir().unwrap();
            let mut tables =
                ParquetTables::new(|name| File::create(folder.path().join(name))).unwrap();
            tables.add(&worker).unwrap();
            tables.finish().unwrap();
            for (file, line, columns) in TABLES {
                let file = File::open(folder.path().join(file)).unwrap();
                let rows = SerializedFileReader::new(file).unwrap();
                let rows = rows.get_row_iter(None).unwrap().map(|row| row.unwrap());
                let rows: Vec<BTreeMap<String, Value>> = rows
                    .map(|row| row.into_columns().into_iter().map(|(name, field)| (name, value(field))).collect())
                    .collect();
                let mut lines = worker.lines();
                lines.retain(|own| own["type"] == line);
                prop_assert_eq!(rows.len(), lines.len());
                for (row, line) in rows.iter().zip(&lines) {
                    for (name, _) in columns.iter().filter(|(_, kind)| matches!(kind, Text)) {
                        let wanted = match &line[name] {
                            Value::Null => json!(null),
                            Value::String(text) => json!(text),
                            other => json!(other.to_string()),
                        };
                        prop_assert_eq!(&row[*name], &wanted);
                    }
                    if line["type"] == "worker" {
                        prop_assert_eq!(&row["tokens_input"], &line["tokens"]["input"]);
                        prop_assert_eq!(&row["cost_usd"], &line["cost_usd"]);
                    }
                }
            }
        }
    }
}
