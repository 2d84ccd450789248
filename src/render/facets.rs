//! What workers are told apart by: the facets of `by/`, and the workers that have some values of them.
//!
//! Most facets are in the catalog. How a worker ended and which tools it called is known once somebody has looked into
//! it, as files about many workers do, and kept; where there was no time for that, its value is `Value::Unread`.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::tz::TimeZone;
use parking_lot::Mutex;
use percent_encoding::percent_decode;

use super::Renderer;
use super::fragment::Fragment;
use super::fragments::Found;
use crate::catalog::Entry;
use crate::error::{Error, Result};
use crate::model::{When, Word, Worker};
use crate::name::{Name, to_file_name};
use crate::store::Time;
use crate::view::{Member, Visible};

/// The name of the folder of those that nobody looked into.
const UNREAD: &str = "unread";
/// So many values can be asked for together.
const PICKS_MAX: usize = 32;
/// The files of more workers are not looked at for the time of a folder.
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
enum Value {
    /// What the record says.
    Said(Arc<str>),
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
    pub fn named(name: &Name) -> Option<Facet> {
        Facet::ALL.into_iter().find(|facet| facet.as_str().as_bytes() == name.as_bytes())
    }

    /// Whether workers must be looked into for it.
    fn needs_a_look(self) -> bool {
        matches!(self, Facet::Outcome | Facet::Tool)
    }

    /// The values that are there even where no worker has them.
    fn always(self) -> &'static [&'static str] {
        match self {
            Facet::Status => &["created", "running", "completed", "failed", "unknown"],
            Facet::Outcome => &["failed", "unknown", "ok"],
            _ => &[],
        }
    }

    /// What a worker has of it. `fragment` is what is known of one that must be looked into.
    fn of<'a>(self, entry: &'a Entry, fragment: Option<&'a Fragment>) -> Vec<Cow<'a, str>> {
        let all = |words: &[Word]| words.iter().map(|word| Cow::Owned(word.to_string())).collect();
        match self {
            Facet::Status => vec![Cow::Borrowed(entry.status.as_str())],
            Facet::Run => entry.run.iter().map(|run| Cow::Borrowed(&**run)).collect(),
            Facet::Type => all(entry.worker().task_type.as_slice()),
            Facet::Tag => all(&entry.worker().tags),
            Facet::Job => all(entry.worker().job.as_slice()),
            Facet::Day => day(&entry.worker()).map(Cow::Owned).into_iter().collect(),
            Facet::Outcome => fragment.iter().map(|fragment| Cow::Borrowed(fragment.outcome.as_str())).collect(),
            Facet::Tool => {
                let tools = fragment.into_iter().flat_map(|fragment| &fragment.tools);
                tools.map(|tool| Cow::Borrowed(&**tool)).collect()
            }
        }
    }

    /// The word of its own for it, which answers and is not listed.
    fn word(self, entry: &Entry) -> Option<Word> {
        if self == Facet::Status { entry.worker().status_source } else { None }
    }

    /// Whether a worker has this value.
    fn has(self, value: &Value, entry: &Entry, fragment: Option<&Fragment>) -> bool {
        match value {
            Value::Unread => self.needs_a_look() && fragment.is_none(),
            Value::Said(text) => {
                self.of(entry, fragment).iter().any(|value| **value == **text)
                    || self.word(entry).is_some_and(|word| word == *text)
            }
        }
    }

    /// The name of the folder of a value.
    fn file_name(self, value: &Value) -> Name {
        match value {
            // A tool may be called like the folder of those that nobody looked into.
            Value::Said(text) => to_file_name(text, if self.needs_a_look() { &[UNREAD] } else { &[] }),
            Value::Unread => to_file_name(UNREAD, &[]),
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
    picks: Arc<[(Facet, Value)]>,
    /// Only so many of them: the latest.
    latest: Option<usize>,
}

/// A worker as a selection sees it.
type Seen = (Arc<Member>, Option<Arc<Fragment>>);

impl Selection {
    /// Whether it is all workers.
    pub fn is_all(&self) -> bool {
        self.picks.is_empty()
    }

    /// How many values it asks for.
    pub fn depth(&self) -> usize {
        self.picks.len()
    }

    /// The latest of these workers, at most `most`; `None` where that was asked for already.
    pub fn latest(&self, most: usize) -> Option<Selection> {
        self.latest.is_none().then(|| Selection { latest: Some(most), ..self.clone() })
    }

    /// Whether it asks for the latest alone.
    pub fn is_limited(&self) -> bool {
        self.latest.is_some()
    }

    fn with(&self, facet: Facet, value: Value) -> Option<Selection> {
        let picks = self.picks.iter().cloned().chain([(facet, value)]).collect();
        (self.picks.len() < PICKS_MAX).then_some(Selection { picks, latest: None })
    }

    fn needs_a_look(&self) -> bool {
        self.picks.iter().any(|(facet, _)| facet.needs_a_look())
    }

    fn admits(&self, (member, fragment): &Seen) -> bool {
        self.picks.iter().all(|(facet, value)| facet.has(value, &member.entry, fragment.as_deref()))
    }
}

/// The workers of a view by their values of a facet that is in the catalog.
struct Groups {
    /// That of the workers.
    generation: u64,
    names: HashMap<Name, Arc<str>>,
    members: HashMap<Arc<str>, Vec<Arc<Member>>>,
}

impl Groups {
    fn of(facet: Facet, visible: &Visible) -> Groups {
        let mut members: HashMap<Arc<str>, Vec<Arc<Member>>> = HashMap::new();
        for member in &visible.members {
            let word = facet.word(&member.entry);
            let mut values: BTreeSet<Cow<'_, str>> = facet.of(&member.entry, None).into_iter().collect();
            values.extend(word.as_deref().map(Cow::Borrowed));
            for value in values {
                match members.get_mut(&*value) {
                    Some(members) => members.push(member.clone()),
                    None => drop(members.insert(value.into(), vec![member.clone()])),
                }
            }
        }
        let always = facet.always().iter().map(|value| Arc::from(*value));
        let values = members.keys().cloned().chain(always);
        let names = values.map(|value| (facet.file_name(&Value::Said(value.clone())), value)).collect();
        Groups { generation: visible.generation, names, members }
    }
}

/// The groups that were asked for last, of each facet.
#[derive(Default)]
pub(super) struct Grouped(Mutex<HashMap<Facet, Arc<Groups>>>);

impl Grouped {
    fn get(&self, facet: Facet, visible: &Visible) -> Arc<Groups> {
        let held = self.0.lock().get(&facet).filter(|groups| groups.generation == visible.generation).cloned();
        held.unwrap_or_else(|| {
            let fresh = Arc::new(Groups::of(facet, visible));
            self.0.lock().insert(facet, fresh.clone());
            fresh
        })
    }
}

impl Renderer {
    /// The workers of a selection, by creation time, then id; if it is limited, the latest first.
    pub fn selected(&self, selection: &Selection) -> Vec<Arc<Member>> {
        self.seen(selection, None).into_iter().map(|(member, _)| member).collect()
    }

    /// Whether the worker under this name is of a selection.
    pub fn is_selected(&self, selection: &Selection, name: &Name) -> bool {
        if selection.is_limited() {
            return self.selected(selection).iter().any(|member| member.name == *name);
        }
        let member = self.view.visible().get(name).into_iter().collect();
        self.looked(member, selection.needs_a_look()).iter().any(|seen| selection.admits(seen))
    }

    /// What can be picked of a facet: the values that workers of a selection have, by the names of their folders.
    pub fn picks(&self, selection: &Selection, facet: Facet) -> BTreeMap<Name, Selection> {
        let mut values = BTreeSet::new();
        for (member, fragment) in self.seen(selection, Some(facet)) {
            if fragment.is_none() && facet.needs_a_look() {
                values.insert(Value::Unread);
            }
            let said = facet.of(&member.entry, fragment.as_deref());
            values.extend(said.into_iter().map(|value| Value::Said(value.into())));
        }
        let pick = |value: Value| Some((facet.file_name(&value), selection.with(facet, value)?));
        values.into_iter().filter_map(pick).collect()
    }

    /// The workers of a selection that have the value of this name, as it is listed or with `%XX` for any byte.
    /// [`Error::NotFound`] if no worker of the view has it.
    pub fn pick(&self, selection: &Selection, facet: Facet, name: &Name) -> Result<Selection> {
        let value = self.value(facet, name).ok_or(Error::NotFound)?;
        selection.with(facet, value).ok_or(Error::NotFound)
    }

    fn value(&self, facet: Facet, name: &Name) -> Option<Value> {
        if facet.needs_a_look() && name.as_bytes() == UNREAD.as_bytes() {
            return Some(Value::Unread);
        }
        let decoded = percent_decode(name.as_bytes()).decode_utf8().ok();
        if !facet.needs_a_look() {
            let groups = self.grouped.get(facet, &self.view.visible());
            let plain = decoded.and_then(|text| Some(groups.members.get_key_value(&*text)?.0));
            return groups.names.get(name).or(plain).cloned().map(Value::Said);
        }
        let is_named =
            |text: &str| decoded.as_deref() == Some(text) || facet.file_name(&Value::Said(text.into())) == *name;
        if let Some(text) = facet.always().iter().find(|text| is_named(text)) {
            return Some(Value::Said((*text).into()));
        }
        let mut decoded_alone = None;
        for (member, fragment) in self.seen(&Selection::default(), Some(facet)) {
            for text in facet.of(&member.entry, fragment.as_deref()) {
                let value = Value::Said(text.as_ref().into());
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
    /// unfinished would be looked at again each time that somebody asks for the folder.
    pub fn last_write_of(&self, selection: &Selection) -> Time {
        let selected = self.selected(selection);
        let newest = if selected.len() > MANY {
            selected.iter().map(|member| member.entry.last_write()).max()
        } else {
            self.last_writes(&selected).into_iter().flatten().max()
        };
        newest.unwrap_or_default()
    }

    /// The workers of a selection, looked into where it or `facet` needs that.
    fn seen(&self, selection: &Selection, facet: Option<Facet>) -> Vec<Seen> {
        let look = selection.needs_a_look() || facet.is_some_and(Facet::needs_a_look);
        let mut seen = self.looked(self.candidates(selection), look);
        seen.retain(|seen| selection.admits(seen));
        if let Some(most) = selection.latest {
            let place = |(member, _): &Seen| (member.entry.created_at, member.entry.last_write(), member.name.clone());
            seen.sort_by_cached_key(|seen| Reverse(place(seen)));
            seen.truncate(most);
        }
        seen
    }

    /// The workers that have the rarest value that a selection asks for, of those that the catalog knows.
    fn candidates(&self, selection: &Selection) -> Vec<Arc<Member>> {
        let visible = self.view.visible();
        let groups = |(facet, value): &(Facet, Value)| match value {
            Value::Said(text) if !facet.needs_a_look() => {
                Some(self.grouped.get(*facet, &visible).members.get(text).cloned().unwrap_or_default())
            }
            Value::Said(_) | Value::Unread => None,
        };
        let rarest = selection.picks.iter().filter_map(groups).min_by_key(Vec::len);
        rarest.unwrap_or_else(|| visible.members.clone())
    }

    /// What is known of these workers; those that vanished are left out.
    fn looked(&self, members: Vec<Arc<Member>>, look: bool) -> Vec<Seen> {
        if !look {
            return members.into_iter().map(|member| (member, None)).collect();
        }
        let clock = self.settings.clock(10);
        let all = members.len() == self.view.visible().members.len();
        let stamped = self.stamps(&members);
        let found = self.fragments.of(&self.view, &stamped, all, &self.settings, &|| clock.may_go_on());
        if clock.ran_out() {
            self.settings.note_incomplete();
        }
        let there = stamped.into_iter().zip(found).filter(|(_, found)| !matches!(found, Found::Gone));
        there.map(|((member, _), found)| (member, found.fragment().cloned())).collect()
    }
}
