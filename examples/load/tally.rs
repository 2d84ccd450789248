//! Counts of the clients' operations, with durations and errors.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Number of wrong answers that are reported in full.
const REPORTED_MAX: usize = 20;

/// Operation of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// lstat of a worker's directory or one of its files.
    Stat,
    /// open, fstat, read and close of a worker's own file.
    Own,
    /// opendir, readdir and closedir.
    List,
    /// open, fstat, read and close of a generated file.
    Generated,
}

/// Counts and durations of operations.
#[derive(Default)]
pub(crate) struct Tally {
    /// Durations of successful operations, in microseconds.
    times: BTreeMap<Kind, Histogram<u64>>,
    /// Number of allowed errors, by name.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Number of wrong answers and forbidden errors.
    pub(crate) wrong: u64,
    /// Descriptions of the first [`REPORTED_MAX`] wrong answers.
    reported: Vec<String>,
}

impl Tally {
    /// Counts a successful operation.
    pub(crate) fn ok(&mut self, kind: Kind, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        // Two significant digits suffice; the histogram resizes itself.
        let times = match self.times.entry(kind) {
            Entry::Occupied(times) => times.into_mut(),
            Entry::Vacant(entry) => match Histogram::new(2) {
                Ok(times) => entry.insert(times),
                Err(error) => return self.wrong(error.to_string()),
            },
        };
        if let Err(error) = times.record(micros) {
            self.wrong(error.to_string());
        }
    }

    /// Counts a wrong answer.
    pub(crate) fn wrong(&mut self, description: String) {
        self.wrong += 1;
        if self.reported.len() < REPORTED_MAX {
            self.reported.push(description);
        }
    }

    /// Adds the counts of another client.
    pub(crate) fn add(&mut self, other: Tally) -> anyhow::Result<()> {
        for (kind, times) in other.times {
            match self.times.get_mut(&kind) {
                Some(sum) => sum.add(times)?,
                None => drop(self.times.insert(kind, times)),
            }
        }
        for (name, count) in other.errors {
            *self.errors.entry(name).or_default() += count;
        }
        self.wrong += other.wrong;
        self.reported.extend(other.reported);
        Ok(())
    }

    /// Renders the counts and durations as a table.
    pub(crate) fn table(&self, took: Duration) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = writeln!(
            out,
            "{:<10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "", "ok", "per second", "p50 ms", "p99 ms", "p100 ms"
        );
        for (kind, times) in &self.times {
            let ms = |micros: u64| format!("{:.2}", micros as f64 / 1_000.0);
            let (kind, count) = (format!("{kind:?}"), times.len());
            let each = format!("{:.0}", count as f64 / took.as_secs_f64());
            let [half, most, all] = [0.5, 0.99, 1.0].map(|part| ms(times.value_at_quantile(part)));
            let _ =
                writeln!(out, "{kind:<10} {count:>10} {each:>10} {half:>10} {most:>10} {all:>10}");
        }
        let errors: Vec<String> =
            self.errors.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let errors = if errors.is_empty() { "none".into() } else { errors.join(", ") };
        let _ = writeln!(out, "errors: {errors}; wrong: {}", self.wrong);
        for wrong in self.reported.iter().take(REPORTED_MAX) {
            let _ = writeln!(out, "wrong: {wrong}");
        }
        out
    }
}
