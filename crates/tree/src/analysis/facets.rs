//! The facets of `by/`, and selections of workers by the values of facets.
//!
//! The catalog has most facets. A worker's outcome, tools and files come from its digest, as in
//! files about many workers. If there was no time to compute it, the value is `FacetValue::Unread`.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::civil::Date;
use jiff::tz::TimeZone;
use parking_lot::Mutex;

use super::file_uses::FileUse;
use super::worker_digest::WorkerDigest;
use crate::catalog::Entry;
use crate::view::{Member, VisibleWorkers};
use swarmletfs_base::model::{SharedStr, TraceTime, Worker};
use swarmletfs_base::name::{Name, to_file_name};

pub(super) const UNREAD: &str = "unread";
const VALUES_MAX: usize = 32;
const FILES_MAX: usize = 1_000;
/// Time for which the files of a listing are known to exist. Programs that list files look up each.
const KNOWN_FILES_TTL: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Facet {
    /// The worker's status. A lookup also accepts the source's own word for it.
    Status,
    Outcome,
    /// How much a worker needs a person, by its own record.
    Attention,
    Type,
    Tag,
    Tool,
    Job,
    Run,
    /// The day in UTC on which the worker was created. If that is unknown, the day on which it
    /// started, or else finished. A lookup also accepts a range of days.
    Day,
    /// The name of the working directory.
    Project,
    Branch,
    Model,
    /// The format of the trace, which names the program that wrote it.
    Source,
    /// Each file that the worker edited, relative to its working directory if it lies in it.
    File,
    /// Each file that the worker read, relative to its working directory if it lies in it.
    FileRead,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum FacetValue {
    Text(Arc<str>),
    /// All days from the first to the second; of [`Facet::Day`] only.
    Days(Date, Date),
    Unread,
}

impl Facet {
    /// All facets, in the order in which they are listed.
    pub const ALL: [Facet; 15] = [
        Facet::Status,
        Facet::Outcome,
        Facet::Attention,
        Facet::Type,
        Facet::Tag,
        Facet::Tool,
        Facet::Job,
        Facet::Run,
        Facet::Day,
        Facet::Project,
        Facet::Branch,
        Facet::Model,
        Facet::Source,
        Facet::File,
        Facet::FileRead,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Facet::Status => "status",
            Facet::Outcome => "outcome",
            Facet::Attention => "attention",
            Facet::Type => "type",
            Facet::Tag => "tag",
            Facet::Tool => "tool",
            Facet::Job => "job",
            Facet::Run => "run",
            Facet::Day => "day",
            Facet::Project => "project",
            Facet::Branch => "branch",
            Facet::Model => "model",
            Facet::Source => "source",
            Facet::File => "file",
            Facet::FileRead => "file.read",
        }
    }

    pub fn from_name(name: &Name) -> Option<Facet> {
        Facet::ALL.into_iter().find(|facet| facet.as_str().as_bytes() == name.as_bytes())
    }

    pub fn needs_digest(self) -> bool {
        matches!(self, Facet::Outcome | Facet::Attention | Facet::Tool) || self.is_file()
    }

    pub(super) fn is_file(self) -> bool {
        matches!(self, Facet::File | Facet::FileRead)
    }

    /// Returns how often a worker used a file in the way that the facet is about.
    fn file_count(self, file: &FileUse) -> u64 {
        match self {
            Facet::File => file.edits,
            Facet::FileRead => file.reads,
            _ => 0,
        }
    }

    /// Returns the files that workers used most, in the way that the facet is about. Files used
    /// equally often are in the order of their paths.
    pub(super) fn top_files(self, workers: &[MemberDigest]) -> Vec<FacetValue> {
        let mut counts: HashMap<&str, u64> = HashMap::new();
        let digests = workers.iter().filter_map(|(_, digest)| digest.as_ref());
        for file in digests.flat_map(|digest| &digest.files) {
            let count = self.file_count(file);
            if count > 0 {
                let total = counts.entry(&file.path).or_default();
                *total = total.saturating_add(count);
            }
        }
        let mut files: Vec<(&str, u64)> = counts.into_iter().collect();
        files.sort_unstable_by_key(|(path, count)| (Reverse(*count), *path));
        files.truncate(FILES_MAX);
        files.into_iter().map(|(path, _)| FacetValue::Text(path.into())).collect()
    }

    /// Returns the values that exist even if no worker has them.
    pub fn preset_values(self) -> &'static [&'static str] {
        match self {
            Facet::Status => {
                &["waiting", "created", "running", "completed", "failed", "abandoned", "unknown"]
            }
            Facet::Outcome => &["failed", "unknown", "ok"],
            Facet::Attention => &["high", "low", "none"],
            _ => &[],
        }
    }

    /// Returns the values of a worker. Facets that need a digest have none without `digest`.
    pub(super) fn values<'a>(
        self,
        entry: &'a Entry,
        digest: Option<&'a WorkerDigest>,
    ) -> Vec<Cow<'a, str>> {
        let all =
            |words: &[SharedStr]| words.iter().map(|word| Cow::Owned(word.to_string())).collect();
        match self {
            Facet::Status => vec![Cow::Borrowed(entry.status.as_str())],
            Facet::Run => entry.run.iter().map(|run| Cow::Borrowed(&**run)).collect(),
            Facet::Type => all(entry.worker().task_type.as_slice()),
            Facet::Tag => all(&entry.worker().tags),
            Facet::Job => all(entry.worker().job.as_slice()),
            Facet::Day => {
                day(&entry.worker()).map(|day| Cow::Owned(day.to_string())).into_iter().collect()
            }
            Facet::Project => entry
                .worker()
                .project()
                .map(|name| Cow::Owned(name.to_owned()))
                .into_iter()
                .collect(),
            Facet::Branch => all(entry.worker().branch.as_slice()),
            Facet::Model => all(entry.worker().model.as_slice()),
            Facet::Source => vec![Cow::Borrowed(entry.format())],
            Facet::Outcome => {
                digest.iter().map(|digest| Cow::Borrowed(digest.outcome.as_str())).collect()
            }
            Facet::Attention => digest
                .iter()
                .map(|digest| Cow::Borrowed(digest.attention.level().as_str()))
                .collect(),
            Facet::Tool => {
                let tools = digest.into_iter().flat_map(|digest| &digest.tools);
                tools.map(|tool| Cow::Borrowed(&**tool)).collect()
            }
            Facet::File | Facet::FileRead => {
                let files = digest.into_iter().flat_map(|digest| &digest.files);
                let used = files.filter(|file| self.file_count(file) > 0);
                used.map(|file| Cow::Borrowed(&*file.path)).collect()
            }
        }
    }

    /// Returns the source's own word for the status. It works in lookups and is not listed.
    fn raw_status(self, entry: &Entry) -> Option<SharedStr> {
        if self == Facet::Status { entry.worker().status_source } else { None }
    }

    pub(super) fn matches(
        self,
        value: &FacetValue,
        entry: &Entry,
        digest: Option<&WorkerDigest>,
    ) -> bool {
        match value {
            FacetValue::Days(first, last) => {
                let day = day(&entry.worker()).filter(|_| self == Facet::Day);
                day.is_some_and(|day| (*first..=*last).contains(&day))
            }
            FacetValue::Unread => self.needs_digest() && digest.is_none(),
            FacetValue::Text(path) if self.is_file() => digest.is_some_and(|digest| {
                digest.files.iter().any(|file| *file.path == **path && self.file_count(file) > 0)
            }),
            FacetValue::Text(text) => {
                self.values(entry, digest).iter().any(|value| **value == **text)
                    || self.raw_status(entry).is_some_and(|word| word == *text)
            }
        }
    }

    /// Returns true if `text` is a value of a worker. Facets that need a digest have none without
    /// `digest`.
    ///
    /// A range of days (`2026-02-09..2026-02-15`) is a value of each worker of these days. Letter
    /// case does not matter in words that the program defines.
    pub fn has_value(self, text: &str, entry: &Entry, digest: Option<&WorkerDigest>) -> bool {
        let range = day_range(text).filter(|_| self == Facet::Day);
        self.matches(&range.unwrap_or_else(|| FacetValue::Text(text.into())), entry, digest)
            || matches!(self, Facet::Status | Facet::Outcome | Facet::Attention | Facet::Type)
                && self.values(entry, digest).iter().any(|own| own.eq_ignore_ascii_case(text))
    }

    pub(super) fn file_name(self, value: &FacetValue) -> Name {
        match value {
            // A tool or file may be called `unread` too, so its name is escaped.
            FacetValue::Text(text) => {
                to_file_name(text, if self.needs_digest() { &[UNREAD] } else { &[] })
            }
            FacetValue::Days(first, last) => to_file_name(&format!("{first}..{last}"), &[]),
            FacetValue::Unread => to_file_name(UNREAD, &[]),
        }
    }
}

/// Parses a range of days, as in `2026-02-09..2026-02-15`.
pub(super) fn day_range(text: &str) -> Option<FacetValue> {
    let (first, last) = text.split_once("..")?;
    let (first, last): (Date, Date) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some(FacetValue::Days(first, last))
}

/// Returns the day in UTC of the first known time of a worker.
pub fn day(worker: &Worker) -> Option<Date> {
    let times = [&worker.created_at, &worker.started_at, &worker.finished_at];
    let time = times.into_iter().find_map(TraceTime::timestamp)?;
    Some(time.to_zoned(TimeZone::UTC).date())
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Selection {
    pub(super) values: Arc<[(Facet, FacetValue)]>,
    /// Limits the selection to this number of latest workers.
    pub(super) latest: Option<usize>,
}

/// A worker with its digest, if one was needed and computed.
pub(super) type MemberDigest = (Arc<Member>, Option<Arc<WorkerDigest>>);

impl Selection {
    pub fn is_all(&self) -> bool {
        self.values.is_empty()
    }

    pub fn depth(&self) -> usize {
        self.values.len()
    }

    /// Limits the selection to its `most` latest workers. Returns `None` if it is limited already.
    pub fn latest(&self, most: usize) -> Option<Selection> {
        self.latest.is_none().then(|| Selection { latest: Some(most), ..self.clone() })
    }

    pub fn is_limited(&self) -> bool {
        self.latest.is_some()
    }

    /// Narrows the selection to workers with `value`. Returns `None` if it has too many values.
    pub(super) fn with(&self, facet: Facet, value: FacetValue) -> Option<Selection> {
        let values = self.values.iter().cloned().chain([(facet, value)]).collect();
        (self.values.len() < VALUES_MAX).then_some(Selection { values, latest: None })
    }

    pub fn needs_digest(&self) -> bool {
        self.values.iter().any(|(facet, _)| facet.needs_digest())
    }

    pub fn has_file(&self) -> bool {
        self.values.iter().any(|(facet, _)| facet.is_file())
    }

    /// Returns true if a worker has all values. Does not apply the limit of the selection.
    pub(super) fn matches(&self, (member, digest): &MemberDigest) -> bool {
        self.values
            .iter()
            .all(|(facet, value)| facet.matches(value, &member.entry, digest.as_deref()))
    }
}

pub(super) struct FacetIndex {
    generation: u64,
    pub(super) names: HashMap<Name, Arc<str>>,
    pub(super) members: HashMap<Arc<str>, Vec<Arc<Member>>>,
}

impl FacetIndex {
    fn new(facet: Facet, visible: &VisibleWorkers) -> FacetIndex {
        let mut members: HashMap<Arc<str>, Vec<Arc<Member>>> = HashMap::new();
        for member in &visible.members {
            let raw_status = facet.raw_status(&member.entry);
            let mut values: BTreeSet<Cow<'_, str>> =
                facet.values(&member.entry, None).into_iter().collect();
            values.extend(raw_status.as_deref().map(Cow::Borrowed));
            for value in values {
                match members.get_mut(&*value) {
                    Some(members) => members.push(member.clone()),
                    None => drop(members.insert(value.into(), vec![member.clone()])),
                }
            }
        }
        let preset = facet.preset_values().iter().map(|value| Arc::from(*value));
        let values = members.keys().cloned().chain(preset);
        let names = values
            .map(|value| (facet.file_name(&FacetValue::Text(value.clone())), value))
            .collect();
        FacetIndex { generation: visible.generation, names, members }
    }
}

#[derive(Default)]
pub struct FacetIndexes(Mutex<HashMap<Facet, Arc<FacetIndex>>>);

impl FacetIndexes {
    pub(super) fn cached(&self, facet: Facet, generation: u64) -> Option<Arc<FacetIndex>> {
        self.0.lock().get(&facet).filter(|index| index.generation == generation).cloned()
    }

    /// Returns the index of a facet, which is built again if the view has changed.
    pub(super) fn get(&self, facet: Facet, visible: &VisibleWorkers) -> Arc<FacetIndex> {
        self.cached(facet, visible.generation).unwrap_or_else(|| {
            let fresh = Arc::new(FacetIndex::new(facet, visible));
            self.0.lock().insert(facet, fresh.clone());
            fresh
        })
    }
}

/// The files in the latest listing of each facet. With them, the lookup of a listed file need not
/// search all workers.
#[derive(Default)]
pub struct KnownFiles(Mutex<HashMap<Facet, KnownListing>>);

struct KnownListing {
    generation: u64,
    listed_at: Instant,
    files: HashSet<FacetValue>,
}

impl KnownFiles {
    pub(super) fn store(&self, facet: Facet, generation: u64, files: &[FacetValue]) {
        let files = files.iter().cloned().collect();
        let listing = KnownListing { generation, listed_at: Instant::now(), files };
        self.0.lock().insert(facet, listing);
    }

    /// Returns true if a recent listing of the view's `generation` holds `file`.
    pub(super) fn contains(&self, facet: Facet, generation: u64, file: &FacetValue) -> bool {
        self.0.lock().get(&facet).is_some_and(|listing| {
            listing.generation == generation
                && listing.listed_at.elapsed() < KNOWN_FILES_TTL
                && listing.files.contains(file)
        })
    }
}
