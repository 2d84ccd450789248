//! Remarks on the content of a store: content that was not understood, or was read in spite of its
//! form; and entries that are not shown, with the reasons.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::error::Error;
use crate::name::RelPath;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RemarkLevel {
    /// Something was not understood, so a part of the content counts for nothing.
    NotUnderstood,
    /// Everything was understood, but a reader may want to know.
    Note,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RemarkSubject {
    /// The entry itself: the text continues its name.
    Entry,
    Content,
    /// The content of the file at this line, counted from 1.
    Line(u64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remark {
    /// Path of the file, from the worker's directory or from the store's root. Empty for the worker
    /// or store itself.
    pub path: RelPath,
    pub subject: RemarkSubject,
    /// The remark, as a part of a sentence. It may quote the content and is not cleaned.
    pub text: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RemarkGroup {
    pub count: u64,
    pub first: Vec<Remark>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remarks {
    limit: usize,
    groups: BTreeMap<(RemarkLevel, &'static str), RemarkGroup>,
}

impl Remarks {
    /// Creates an empty list that keeps `limit` remarks of each kind and counts the others.
    pub fn new(limit: usize) -> Remarks {
        Remarks { limit, groups: BTreeMap::new() }
    }

    /// Adds a remark. `kind` identifies remarks with the same cause. `text` is called only if the
    /// remark is kept.
    pub fn add(
        &mut self,
        (level, kind): (RemarkLevel, &'static str),
        path: &RelPath,
        subject: RemarkSubject,
        text: impl FnOnce() -> String,
    ) {
        let group = self.groups.entry((level, kind)).or_default();
        group.count += 1;
        if group.first.len() < self.limit {
            group.first.push(Remark { path: path.clone(), subject, text: text() });
        }
    }

    pub fn add_unkept(&mut self, (level, kind): (RemarkLevel, &'static str), count: u64) {
        if count > 0 {
            self.groups.entry((level, kind)).or_default().count += count;
        }
    }

    pub fn groups(&self) -> impl Iterator<Item = (RemarkLevel, &'static str, &RemarkGroup)> {
        self.groups.iter().map(|((level, kind), group)| (*level, *kind, group))
    }

    pub fn count(&self, level: RemarkLevel) -> u64 {
        self.groups().filter(|(other, ..)| *other == level).map(|(.., group)| group.count).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerCheck {
    /// Number of messages, if the record has any file of messages.
    pub messages: Option<u64>,
    /// The remarks, with paths from the worker's directory.
    pub remarks: Remarks,
    /// False if time ran out.
    pub is_complete: bool,
}

impl WorkerCheck {
    pub fn new(limit: usize) -> WorkerCheck {
        WorkerCheck { messages: None, remarks: Remarks::new(limit), is_complete: true }
    }
}

/// Number of entries of a store that are not shown, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize)]
pub struct Skipped {
    /// Symbolic links, which are never followed. In a view limited to one owner, also files with
    /// more than one hard link.
    pub links: u64,
    /// FIFOs, sockets and devices, which are never opened, and foreign mounts.
    pub special: u64,
    pub not_workers: u64,
    pub unreadable: u64,
}

impl Skipped {
    pub fn is_empty(&self) -> bool {
        *self == Skipped::default()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SkipReason {
    Link,
    /// A FIFO, socket or device, which is never opened.
    Special,
    /// A directory with another file system mounted on it, which is never entered.
    ForeignMount,
    NotAWorker,
    Unreadable,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SkipReport(BTreeMap<SkipReason, SkippedEntries>);

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SkippedEntries {
    pub count: u64,
    /// The first [`EXAMPLES_MAX`] entries by path from the store's root, each with its error, if
    /// any.
    pub examples: BTreeMap<RelPath, Option<Error>>,
}

/// Maximum number of skipped entries kept by path, for each reason.
pub const EXAMPLES_MAX: usize = 3;

impl SkipReport {
    pub fn add(&mut self, path: RelPath, reason: SkipReason, error: Option<Error>) {
        let skipped = self.0.entry(reason).or_default();
        skipped.count += 1;
        skipped.examples.insert(path, error);
        if skipped.examples.len() > EXAMPLES_MAX {
            skipped.examples.pop_last();
        }
    }

    pub fn extend(&mut self, other: SkipReport) {
        for (reason, more) in other.0 {
            let skipped = self.0.entry(reason).or_default();
            skipped.count += more.count;
            skipped.examples.extend(more.examples);
            while skipped.examples.len() > EXAMPLES_MAX {
                skipped.examples.pop_last();
            }
        }
    }

    pub fn entries(&self, reason: SkipReason) -> SkippedEntries {
        self.0.get(&reason).cloned().unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::ops::AddAssign<&SkipReport> for Skipped {
    fn add_assign(&mut self, report: &SkipReport) {
        let count = |reason| report.0.get(&reason).map_or(0, |skipped| skipped.count);
        self.links += count(SkipReason::Link);
        self.special += count(SkipReason::Special) + count(SkipReason::ForeignMount);
        self.not_workers += count(SkipReason::NotAWorker);
        self.unreadable += count(SkipReason::Unreadable);
    }
}
