//! Remarks on the content of a store: content that was not understood, or was read in spite of its
//! form.

use std::collections::BTreeMap;

use crate::name::RelPath;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
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
