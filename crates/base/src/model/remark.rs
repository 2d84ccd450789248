//! Remarks on the content of a store: what was not understood, and what was read in spite of its
//! form.

use std::collections::BTreeMap;

use crate::name::RelPath;

/// The weight of a remark.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RemarkLevel {
    /// Something was not understood, so a part of the content counts for nothing.
    NotUnderstood,
    /// Everything was understood, but a reader may want to know.
    Note,
}

/// The part of an entry that a remark is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RemarkSubject {
    /// The entry itself: the text continues its name.
    Entry,
    /// The content of the file.
    Content,
    /// The content of the file at this line, counted from 1.
    Line(u64),
}

/// One remark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remark {
    /// Path of the file, from the worker's directory or from the store's root. Empty for the worker
    /// or store itself.
    pub path: RelPath,
    /// The part of the entry that the text is about.
    pub subject: RemarkSubject,
    /// The remark, as a part of a sentence. It may quote the content and is not cleaned.
    pub text: String,
}

/// Remarks of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RemarkGroup {
    /// Number of remarks.
    pub count: u64,
    /// The first of them.
    pub first: Vec<Remark>,
}

/// Remarks on a worker or a store, by kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remarks {
    /// Maximum number of remarks that are kept of each kind.
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

    /// Counts remarks of a kind that are not kept.
    pub fn add_unkept(&mut self, (level, kind): (RemarkLevel, &'static str), count: u64) {
        if count > 0 {
            self.groups.entry((level, kind)).or_default().count += count;
        }
    }

    /// Returns the remarks by level and kind.
    pub fn groups(&self) -> impl Iterator<Item = (RemarkLevel, &'static str, &RemarkGroup)> {
        self.groups.iter().map(|((level, kind), group)| (*level, *kind, group))
    }

    /// Returns the number of remarks of a level.
    pub fn count(&self, level: RemarkLevel) -> u64 {
        self.groups().filter(|(other, ..)| *other == level).map(|(.., group)| group.count).sum()
    }

    /// Returns true if there are no remarks.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

/// The result of checking a worker for content that is not understood.
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
    /// Creates a check without remarks that keeps `limit` of each kind.
    pub fn new(limit: usize) -> WorkerCheck {
        WorkerCheck { messages: None, remarks: Remarks::new(limit), is_complete: true }
    }
}
