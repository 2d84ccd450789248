//! Counts the operations of the clients, with their durations and results.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;

/// So many wrong answers are told in full.
const TOLD: usize = 20;

/// What a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// lstat of a worker's folder or of one of its files.
    Stat,
    /// open, fstat, read and close of a worker's own file.
    Own,
    /// opendir, readdir and closedir.
    List,
    /// open, fstat, read and close of a generated file.
    Generated,
}

/// Counts and times.
#[derive(Default)]
pub(crate) struct Tally {
    /// How long what went well took, in microseconds.
    times: BTreeMap<Kind, Histogram<u64>>,
    /// What failed as it may, by the error's name.
    pub(crate) errors: BTreeMap<String, u64>,
    /// How much was wrong; the first few are told.
    pub(crate) wrong: u64,
    told: Vec<String>,
}

impl Tally {
    /// Counts what went well.
    pub(crate) fn well(&mut self, kind: Kind, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        // Two digits are enough; such a histogram grows as it has to.
        let times = match self.times.entry(kind) {
            Entry::Occupied(times) => times.into_mut(),
            Entry::Vacant(place) => match Histogram::new(2) {
                Ok(times) => place.insert(times),
                Err(error) => return self.wrong(error.to_string()),
            },
        };
        if let Err(error) = times.record(micros) {
            self.wrong(error.to_string());
        }
    }

    /// Counts what was wrong.
    pub(crate) fn wrong(&mut self, what: String) {
        self.wrong += 1;
        if self.told.len() < TOLD {
            self.told.push(what);
        }
    }

    /// Adds another client's.
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
        self.told.extend(other.told);
        Ok(())
    }

    /// All of it, for people.
    pub(crate) fn table(&self, took: Duration) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = writeln!(
            out,
            "{:<10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "", "well", "a second", "p50 ms", "p99 ms", "p100 ms"
        );
        for (kind, times) in &self.times {
            let ms = |micros: u64| format!("{:.2}", micros as f64 / 1_000.0);
            let (kind, count) = (format!("{kind:?}"), times.len());
            let each = format!("{:.0}", count as f64 / took.as_secs_f64());
            let [half, most, all] = [0.5, 0.99, 1.0].map(|part| ms(times.value_at_quantile(part)));
            let _ = writeln!(out, "{kind:<10} {count:>10} {each:>10} {half:>10} {most:>10} {all:>10}");
        }
        let errors: Vec<String> = self.errors.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let errors = if errors.is_empty() { "none".into() } else { errors.join(", ") };
        let _ = writeln!(out, "errors: {errors}; wrong: {}", self.wrong);
        for wrong in self.told.iter().take(TOLD) {
            let _ = writeln!(out, "wrong: {wrong}");
        }
        out
    }
}
