//! What workers are told apart by: the facets of `by/`, and the workers that have some values of them.
//!
//! Most facets are in the catalog. How a worker ended and which tools it called is known once somebody has with_digests into
//! it, as files about many workers do, and kept; where there was no time for that, its value is `FacetValue::Unread`.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::tz::TimeZone;
use parking_lot::Mutex;
use percent_encoding::percent_decode;

use super::Renderer;
use super::digest_cache::DigestResult;
use super::worker_digest::WorkerDigest;
use crate::catalog::Entry;
use crate::error::{Error, Result};
use crate::model::{When, Word, Worker};
use crate::name::{Name, to_file_name};
use crate::store::Time;
use crate::view::{Member, Visible};

/// The name of the folder of those that nobody with_digests into.
const UNREAD: &str = "unread";
/// So many values can be asked for together.
const PICKS_MAX: usize = 32;
/// The files of more workers are not with_digests at for the time of a folder.
const MANY: usize = 1_000;

/// What workers are told apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Facet {
    /// How far a worker says it is; asked for, also its source's own word.
    Status,
    /// How it ended, as far as the record shows.
    Outcome,
    /// The kind of its task.
    Type,
    /// Each of its tags.
    Tag,
    /// Each tool that it called.
    Tool,
    /// Its job.
    Job,
    /// Its run.
    Run,
    /// The day it was set up, in UTC; where that is not said, the day it began, or else ended.
    Day,
}

/// A value of a facet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum FacetValue {
    /// What the record says.
    Text(Arc<str>),
    /// There was no time to find out.
    Unread,
}

impl Facet {
    /// All of them.
    pub const ALL: [Facet; 8] =
        [Facet::Status, Facet::Outcome, Facet::Type, Facet::Tag, Facet::Tool, Facet::Job, Facet::Run, Facet::Day];

    /// Its name in the tree.
    pub fn as_str(self) -> &'static str {
        match self {
            Facet::Status => "status",
            Facet::Outcome => "outcome",
            Facet::Type => "type",
            Facet::Tag => "tag",
            Facet::Tool => "tool",
            Facet::Job => "job",
            Facet::Run => "run",
            Facet::Day => "day",
        }
    }

    /// The facet of that name.
    pub fn from_name(name: &Name) -> Option<Facet> {
        Facet::ALL.into_iter().find(|facet| facet.as_str().as_bytes() == name.as_bytes())
    }

    /// Whether workers must be with_digests into for it.
    fn needs_digest(self) -> bool {
        matches!(self, Facet::Outcome | Facet::Tool)
    }

    /// The values that are there even where no worker has them.
    fn preset_values(self) -> &'static [&'static str] {
        match self {
            Facet::Status => &["created", "running", "completed", "failed", "unknown"],
            Facet::Outcome => &["failed", "unknown", "ok"],
            _ => &[],
        }
    }

    /// What a worker has of it. `digest` is what is known of one that must be with_digests into.
    fn values<'a>(self, entry: &'a Entry, digest: Option<&'a WorkerDigest>) -> Vec<Cow<'a, str>> {
        let all = |words: &[Word]| words.iter().map(|word| Cow::Owned(word.to_string())).collect();
        match self {
            Facet::Status => vec![Cow::Borrowed(entry.status.as_str())],
            Facet::Run => entry.run.iter().map(|run| Cow::Borrowed(&**run)).collect(),
            Facet::Type => all(entry.worker().task_type.as_slice()),
            Facet::Tag => all(&entry.worker().tags),
            Facet::Job => all(entry.worker().job.as_slice()),
            Facet::Day => day(&entry.worker()).map(Cow::Owned).into_iter().collect(),
            Facet::Outcome => digest.iter().map(|digest| Cow::Borrowed(digest.outcome.as_str())).collect(),
            Facet::Tool => {
                let tools = digest.into_iter().flat_map(|digest| &digest.tools);
                tools.map(|tool| Cow::Borrowed(&**tool)).collect()
            }
        }
    }

    /// The word of its own for it, which answers and is not listed.
    fn raw_status(self, entry: &Entry) -> Option<Word> {
        if self == Facet::Status { entry.worker().status_source } else { None }
    }

    /// Whether a worker has this value.
    fn matches(self, value: &FacetValue, entry: &Entry, digest: Option<&WorkerDigest>) -> bool {
        match value {
            FacetValue::Unread => self.needs_digest() && digest.is_none(),
            FacetValue::Text(text) => {
                self.values(entry, digest).iter().any(|value| **value == **text)
                    || self.raw_status(entry).is_some_and(|word| word == *text)
            }
        }
    }

    /// The name of the folder of a value.
    fn file_name(self, value: &FacetValue) -> Name {
        match value {
            // A tool may be called like the folder of those that nobody with_digests into.
            FacetValue::Text(text) => to_file_name(text, if self.needs_digest() { &[UNREAD] } else { &[] }),
            FacetValue::Unread => to_file_name(UNREAD, &[]),
        }
    }
}

fn day(worker: &Worker) -> Option<String> {
    let times = [&worker.created_at, &worker.started_at, &worker.finished_at];
    let time = times.into_iter().find_map(When::timestamp)?;
    Some(time.to_zoned(TimeZone::UTC).date().to_string())
}

/// Workers that have some values, all of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Selection {
    values: Arc<[(Facet, FacetValue)]>,
    /// Only so many of them: the latest.
    latest: Option<usize>,
}

/// A worker as a selection sees it.
type MemberDigest = (Arc<Member>, Option<Arc<WorkerDigest>>);

impl Selection {
    /// Whether it is all workers.
    pub fn is_all(&self) -> bool {
        self.values.is_empty()
    }

    /// How many values it asks for.
    pub fn depth(&self) -> usize {
        self.values.len()
    }

    /// The latest of these workers, at most `most`; `None` where that was asked for already.
    pub fn latest(&self, most: usize) -> Option<Selection> {
        self.latest.is_none().then(|| Selection { latest: Some(most), ..self.clone() })
    }

    /// Whether it asks for the latest alone.
    pub fn is_limited(&self) -> bool {
        self.latest.is_some()
    }

    fn with(&self, facet: Facet, value: FacetValue) -> Option<Selection> {
        let values = self.values.iter().cloned().chain([(facet, value)]).collect();
        (self.values.len() < PICKS_MAX).then_some(Selection { values, latest: None })
    }

    fn needs_digest(&self) -> bool {
        self.values.iter().any(|(facet, _)| facet.needs_digest())
    }

    fn matches(&self, (member, digest): &MemberDigest) -> bool {
        self.values.iter().all(|(facet, value)| facet.matches(value, &member.entry, digest.as_deref()))
    }
}

/// The workers of a view by their values of a facet that is in the catalog.
struct FacetIndex {
    /// That of the workers.
    generation: u64,
    names: HashMap<Name, Arc<str>>,
    members: HashMap<Arc<str>, Vec<Arc<Member>>>,
}

impl FacetIndex {
    fn new(facet: Facet, visible: &Visible) -> FacetIndex {
        let mut members: HashMap<Arc<str>, Vec<Arc<Member>>> = HashMap::new();
        for member in &visible.members {
            let word = facet.raw_status(&member.entry);
            let mut values: BTreeSet<Cow<'_, str>> = facet.values(&member.entry, None).into_iter().collect();
            values.extend(word.as_deref().map(Cow::Borrowed));
            for value in values {
                match members.get_mut(&*value) {
                    Some(members) => members.push(member.clone()),
                    None => drop(members.insert(value.into(), vec![member.clone()])),
                }
            }
        }
        let preset_values = facet.preset_values().iter().map(|value| Arc::from(*value));
        let values = members.keys().cloned().chain(preset_values);
        let names = values.map(|value| (facet.file_name(&FacetValue::Text(value.clone())), value)).collect();
        FacetIndex { generation: visible.generation, names, members }
    }
}

/// The groups that were asked for last, of each facet.
#[derive(Default)]
pub(super) struct FacetIndexes(Mutex<HashMap<Facet, Arc<FacetIndex>>>);

impl FacetIndexes {
    fn get(&self, facet: Facet, visible: &Visible) -> Arc<FacetIndex> {
        let held = self.0.lock().get(&facet).filter(|groups| groups.generation == visible.generation).cloned();
        held.unwrap_or_else(|| {
            let fresh = Arc::new(FacetIndex::new(facet, visible));
            self.0.lock().insert(facet, fresh.clone());
            fresh
        })
    }
}

impl Renderer {
    /// The workers of a selection, by creation time, then id; if it is limited, the latest first.
    pub fn selected(&self, selection: &Selection) -> Vec<Arc<Member>> {
        self.matching(selection, None).into_iter().map(|(member, _)| member).collect()
    }

    /// Whether the worker under this name is of a selection.
    pub fn is_selected(&self, selection: &Selection, name: &Name) -> bool {
        if selection.is_limited() {
            return self.selected(selection).iter().any(|member| member.name == *name);
        }
        let member = self.view.visible().get(name).into_iter().collect();
        self.with_digests(member, selection.needs_digest()).iter().any(|seen| selection.matches(seen))
    }

    /// What can be picked of a facet: the values that workers of a selection have, by the names of their folders.
    pub fn facet_values(&self, selection: &Selection, facet: Facet) -> BTreeMap<Name, Selection> {
        let mut values = BTreeSet::new();
        for (member, digest) in self.matching(selection, Some(facet)) {
            if digest.is_none() && facet.needs_digest() {
                values.insert(FacetValue::Unread);
            }
            let said = facet.values(&member.entry, digest.as_deref());
            values.extend(said.into_iter().map(|value| FacetValue::Text(value.into())));
        }
        let pick = |value: FacetValue| Some((facet.file_name(&value), selection.with(facet, value)?));
        values.into_iter().filter_map(pick).collect()
    }

    /// The workers of a selection that have the value of this name, as it is listed or with `%XX` for any byte.
    /// [`Error::NotFound`] if no worker of the view has it.
    pub fn select(&self, selection: &Selection, facet: Facet, name: &Name) -> Result<Selection> {
        let value = self.value(facet, name).ok_or(Error::NotFound)?;
        selection.with(facet, value).ok_or(Error::NotFound)
    }

    fn value(&self, facet: Facet, name: &Name) -> Option<FacetValue> {
        if facet.needs_digest() && name.as_bytes() == UNREAD.as_bytes() {
            return Some(FacetValue::Unread);
        }
        let decoded = percent_decode(name.as_bytes()).decode_utf8().ok();
        if !facet.needs_digest() {
            let groups = self.facet_indexes.get(facet, &self.view.visible());
            let plain = decoded.and_then(|text| Some(groups.members.get_key_value(&*text)?.0));
            return groups.names.get(name).or(plain).cloned().map(FacetValue::Text);
        }
        let is_named =
            |text: &str| decoded.as_deref() == Some(text) || facet.file_name(&FacetValue::Text(text.into())) == *name;
        if let Some(text) = facet.preset_values().iter().find(|text| is_named(text)) {
            return Some(FacetValue::Text((*text).into()));
        }
        let mut decoded_alone = None;
        for (member, digest) in self.matching(&Selection::default(), Some(facet)) {
            for text in facet.values(&member.entry, digest.as_deref()) {
                let value = FacetValue::Text(text.as_ref().into());
                // The value that is listed under the name comes before one that the name spells in another way.
                if facet.file_name(&value) == *name {
                    return Some(value);
                }
                if decoded.as_deref() == Some(&*text) {
                    decoded_alone = Some(value);
                }
            }
        }
        decoded_alone
    }

    /// Returns the last write of any worker of a selection. Of more than `MANY` it is what listing tells: all that are
    /// unfinished would be with_digests at again each time that somebody asks for the folder.
    pub fn last_write(&self, selection: &Selection) -> Time {
        let selected = self.selected(selection);
        let newest = if selected.len() > MANY {
            selected.iter().map(|member| member.entry.newest()).max()
        } else {
            self.last_writes(&selected).into_iter().flatten().max()
        };
        newest.unwrap_or_default()
    }

    /// The workers of a selection, with_digests into where it or `facet` needs that.
    fn matching(&self, selection: &Selection, facet: Option<Facet>) -> Vec<MemberDigest> {
        let look = selection.needs_digest() || facet.is_some_and(Facet::needs_digest);
        let mut seen = self.with_digests(self.candidates(selection), look);
        seen.retain(|seen| selection.matches(seen));
        if let Some(most) = selection.latest {
            let place =
                |(member, _): &MemberDigest| (member.entry.created_at, member.entry.newest(), member.name.clone());
            seen.sort_by_cached_key(|seen| Reverse(place(seen)));
            seen.truncate(most);
        }
        seen
    }

    /// The workers that have the rarest value that a selection asks for, of those that the catalog knows.
    fn candidates(&self, selection: &Selection) -> Vec<Arc<Member>> {
        let visible = self.view.visible();
        let groups = |(facet, value): &(Facet, FacetValue)| match value {
            FacetValue::Text(text) if !facet.needs_digest() => {
                Some(self.facet_indexes.get(*facet, &visible).members.get(text).cloned().unwrap_or_default())
            }
            FacetValue::Text(_) | FacetValue::Unread => None,
        };
        let rarest = selection.values.iter().filter_map(groups).min_by_key(Vec::len);
        rarest.unwrap_or_else(|| visible.members.clone())
    }

    /// What is known of these workers; those that vanished are left out.
    fn with_digests(&self, members: Vec<Arc<Member>>, look: bool) -> Vec<MemberDigest> {
        if !look {
            return members.into_iter().map(|member| (member, None)).collect();
        }
        let clock = self.settings.clock(10);
        let all = members.len() == self.view.visible().members.len();
        let states = self.states(&members);
        let found = self.digests.get_all(&self.view, &states, all, &self.settings, &|| clock.has_time());
        if clock.ran_out() {
            self.settings.note_incomplete();
        }
        let there = states.into_iter().zip(found).filter(|(_, found)| !matches!(found, DigestResult::Gone));
        there.map(|((member, _), found)| (member, found.digest().cloned())).collect()
    }
}
