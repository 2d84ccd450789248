//! The files of the workers compared: which of them are of one name, and which of those are the same.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use super::super::clean::defuse;
use super::super::own::{is_index, shown, shown_path};
use super::calls;
use crate::error::{Error, Result};
use crate::model::{Outcome, Output, Record, ToolCall};
use crate::name::{Name, RelPath};
use crate::store::{File, read_into, read_range};
use crate::view::{Folder, Member, View};

/// Of a larger file nothing is compared but its bytes, in bytes.
const FILE_MAX: u64 = 4 << 20;
/// And of one with more lines.
const LINES_MAX: usize = 200_000;
/// So much of all files is looked into for what differs in them, in bytes.
const READ_MAX: u64 = 64 << 20;
/// Files are read in pieces of so many bytes.
const PIECE: usize = 1 << 20;
/// A file with a NUL among so many first bytes is binary.
const BINARY: usize = 8_000;
/// The worker's final words, where they are a file.
const RESULT: &str = "result.txt";
/// The same where they are not.
const FINAL_WORDS: &str = "final words";

/// What matters more to who compares workers comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// The worker's final words.
    Words,
    /// What it was to make.
    Outputs,
    /// Its other files.
    Own,
    /// Its logs.
    Logs,
    /// What its tools put out.
    Calls,
    /// The steps of a transcript that only one of them has.
    Steps,
}

/// A worker that is compared.
pub(super) struct One {
    pub(super) member: Arc<Member>,
    /// Where it is in the tree.
    pub(super) place: String,
    /// What its record tells, or why it cannot be read.
    pub(super) record: std::result::Result<Arc<Record>, Error>,
    folder: Option<Folder>,
}

/// Where something of a worker is.
#[derive(Debug, Clone)]
enum Source {
    File(RelPath),
    Call(Box<ToolCall>),
    Words(String),
}

/// Something of a worker that others may have, too.
#[derive(Debug, Clone)]
pub(super) struct Place {
    source: Source,
    /// Where it is in the tree, safe to print.
    pub(super) path: String,
}

/// What some of the workers have under one name.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) rank: Rank,
    /// What it is called in each worker's folder, safe to print.
    pub(super) name: String,
    /// Where it is, by worker.
    pub(super) places: Vec<Option<Place>>,
    /// Whether the calls that it is of ended differently, or failed.
    pub(super) is_failure: bool,
    /// By worker, which version it has: those of one number have the same bytes.
    pub(super) versions: Vec<Option<usize>>,
    /// What could not be compared.
    pub(super) unread: Option<Unread>,
}

/// Why something cannot be compared, or not line by line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unread {
    Binary,
    TooLarge,
    Unreadable(String),
    Late,
}

/// How what several workers have under one name differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All have it, and it is the same.
    Equal,
    /// It is not the same in all that have it.
    Differs,
    /// Some do not have it; in the others it is the same.
    OnlyIn,
    /// It could not be found out.
    Unread,
}

impl Item {
    fn new(rank: Rank, name: String, places: Vec<Option<Place>>) -> Item {
        Item { rank, name, places, is_failure: false, versions: Vec::new(), unread: None }
    }

    pub(super) fn kind(&self) -> Kind {
        let mut versions = self.versions.iter().flatten();
        let first = versions.next();
        if self.unread.is_some() {
            Kind::Unread
        } else if versions.any(|version| Some(version) != first) {
            Kind::Differs
        } else if self.places.contains(&None) {
            Kind::OnlyIn
        } else {
            Kind::Equal
        }
    }

    /// Which of the workers have it.
    pub(super) fn holders(&self) -> impl Iterator<Item = usize> + '_ {
        self.places.iter().enumerate().filter_map(|(at, place)| place.as_ref().map(|_| at))
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Place) -> bool {
        self.path == other.path
    }
}

/// The workers compared, and how their files are read.
pub(super) struct Compared<'a> {
    pub(super) view: &'a View,
    pub(super) ones: Vec<One>,
    pub(super) go_on: &'a dyn Fn() -> bool,
    /// When it is no longer looked for all that two texts have in common.
    pub(super) deadline: Instant,
    /// How much may still be looked into, in bytes.
    left: std::cell::Cell<u64>,
    /// What failed that another time perhaps goes well.
    pub(super) is_whole: std::cell::Cell<bool>,
    /// True if something was left out for lack of time.
    pub(super) is_late: std::cell::Cell<bool>,
}

/// What workers have, and what is the same in none of them or is not told of here.
#[derive(Debug, Default)]
pub(super) struct Items {
    pub(super) all: Vec<Item>,
    /// Files that hold names, times and everything once more.
    pub(super) always: Vec<String>,
    /// Folders that could not be listed.
    pub(super) unlisted: u64,
}

impl<'a> Compared<'a> {
    pub(super) fn new(view: &'a View, ones: Vec<One>, go_on: &'a dyn Fn() -> bool, deadline: Instant) -> Compared<'a> {
        let (is_whole, is_late) = (true.into(), false.into());
        Compared { view, ones, go_on, deadline, left: READ_MAX.into(), is_whole, is_late }
    }

    /// All that the workers have.
    pub(super) fn items(&self) -> Items {
        let mut items = Items::default();
        let mut by_path: BTreeMap<RelPath, Vec<Option<Place>>> = BTreeMap::new();
        let mut always: HashSet<RelPath> = HashSet::new();
        for (at, one) in self.ones.iter().enumerate() {
            let listed = one.folder.as_ref().map(Folder::files);
            let Some(Ok((paths, unlisted))) = listed else {
                items.unlisted += 1;
                continue;
            };
            items.unlisted += unlisted;
            let calls: HashSet<&RelPath> = one.calls().iter().map(|call| &call.path).collect();
            for path in paths.into_iter().filter(|path| !calls.contains(path)) {
                if differs_always(&path) {
                    always.insert(path);
                    continue;
                }
                let places = by_path.entry(path.clone()).or_insert_with(|| vec![None; self.ones.len()]);
                if let Some(place) = places.get_mut(at) {
                    *place = Some(one.file(path));
                }
            }
        }
        self.add_words(&mut by_path, &mut items.all);
        for (path, places) in by_path {
            items.all.push(Item::new(rank(&path), name_of(&path), places));
        }
        items.all.extend(self.outputs());
        items.always = always.iter().map(name_of).collect();
        items.always.sort();
        items.all.sort_by_key(|item| (item.rank, !item.is_failure));
        for item in &mut items.all {
            self.tell_apart(item);
        }
        let first = |item: &Item| item.holders().next();
        items.all.sort_by_key(|item| (item.rank, !item.is_failure, item.kind() == Kind::OnlyIn, first(item)));
        self.is_whole.set(self.is_whole.get() && items.unlisted == 0);
        items
    }

    /// The final words, where they are in result.txt or nowhere but in a thread.
    fn add_words(&self, by_path: &mut BTreeMap<RelPath, Vec<Option<Place>>>, all: &mut Vec<Item>) {
        let files = RelPath::parse(RESULT).ok().and_then(|path| by_path.remove(&path));
        let mut places = files.unwrap_or_else(|| vec![None; self.ones.len()]);
        let has_file = places.iter().any(Option::is_some);
        for (one, place) in self.ones.iter().zip(&mut places).filter(|(_, place)| place.is_none()) {
            let words = one.record.as_ref().ok().and_then(|record| record.trace.final_words.clone());
            *place = words
                .map(|words| Place { source: Source::Words(words), path: format!("{} ({FINAL_WORDS})", one.place) });
        }
        if places.iter().any(Option::is_some) {
            all.push(Item::new(Rank::Words, if has_file { RESULT } else { FINAL_WORDS }.into(), places));
        }
    }

    /// The outputs of calls that correspond to each other, and those of calls that failed in one alone.
    fn outputs(&self) -> Vec<Item> {
        let of = |at: usize| self.ones.get(at).map(One::calls).unwrap_or_default();
        let mut items: Vec<Item> = Vec::new();
        let mut of_first: HashMap<usize, usize> = HashMap::new();
        let first = of(0);
        for at in 1..self.ones.len() {
            let pairs = calls::corresponding(first, of(at), self.deadline);
            for (a, b) in &pairs {
                let (Some(mine), Some(other)) = (first.get(*a), of(at).get(*b)) else { continue };
                let number = *of_first.entry(*a).or_insert(items.len());
                if number == items.len() {
                    items.push(self.output(0, mine));
                }
                let Some(item) = items.get_mut(number) else { continue };
                item.is_failure |= mine.outcome != other.outcome;
                if let (Some(place), Some(one)) = (item.places.get_mut(at), self.ones.get(at)) {
                    *place = Some(one.call(other));
                }
            }
            let paired: HashSet<usize> = pairs.iter().map(|(_, b)| *b).collect();
            let alone = of(at).iter().enumerate().filter(|(b, _)| !paired.contains(b)).map(|(_, call)| call);
            items.extend(alone.filter_map(|call| self.alone(at, call)));
        }
        let alone = first.iter().enumerate().filter(|(a, _)| !of_first.contains_key(a)).map(|(_, call)| call);
        items.extend(alone.filter_map(|call| self.alone(0, call)));
        items
    }

    /// The output of a call that corresponds to none, if it failed, or if nothing but it tells what was done.
    fn alone(&self, at: usize, call: &ToolCall) -> Option<Item> {
        let rank = match (call.outcome, &call.input) {
            (Outcome::Failed, _) => Rank::Calls,
            (Outcome::Unknown, None) => Rank::Steps,
            _ => return None,
        };
        Some(Item { rank, ..self.output(at, call) })
    }

    fn output(&self, at: usize, call: &ToolCall) -> Item {
        let mut places = vec![None; self.ones.len()];
        if let (Some(place), Some(one)) = (places.get_mut(at), self.ones.get(at)) {
            *place = Some(one.call(call));
        }
        let mut item = Item::new(Rank::Calls, name_of(&call.path), places);
        item.is_failure = calls::failed(call);
        item
    }

    /// Finds out which workers have the same bytes.
    fn tell_apart(&self, item: &mut Item) {
        item.versions = vec![None; item.places.len()];
        let mut sizes: Vec<Option<u64>> = Vec::new();
        for (one, place) in self.ones.iter().zip(&item.places) {
            let size = place.as_ref().map(|place| self.size(one, place)).transpose();
            match size {
                Ok(size) => sizes.push(size),
                Err(unread) => {
                    item.unread = Some(unread);
                    return;
                }
            }
        }
        let mut known: Vec<(u64, Option<[u8; 32]>)> = Vec::new();
        for (at, (one, place)) in self.ones.iter().zip(&item.places).enumerate() {
            let (Some(place), Some(Some(size))) = (place, sizes.get(at)) else { continue };
            let is_alone = sizes.iter().filter(|other| *other == &Some(*size)).count() == 1;
            let digest = match is_alone.then_some(None).map_or_else(|| self.digest(one, place).map(Some), Ok) {
                Ok(digest) => digest,
                Err(unread) => {
                    item.unread = Some(unread);
                    return;
                }
            };
            let version = known.iter().position(|known| *known == (*size, digest)).unwrap_or_else(|| {
                known.push((*size, digest));
                known.len() - 1
            });
            if let Some(slot) = item.versions.get_mut(at) {
                *slot = Some(version);
            }
        }
    }

    fn size(&self, one: &One, place: &Place) -> std::result::Result<u64, Unread> {
        if let Source::Words(words) = &place.source {
            return Ok(words.len() as u64);
        }
        self.read(one, place, |file| Ok(file.stat_without_acl()?.size))
    }

    fn digest(&self, one: &One, place: &Place) -> std::result::Result<[u8; 32], Unread> {
        if let Source::Words(words) = &place.source {
            return Ok(*blake3::hash(words.as_bytes()).as_bytes());
        }
        let mut is_late = false;
        let digest = self.read(one, place, |file| {
            let (mut hash, mut buffer, mut at) = (blake3::Hasher::new(), vec![0; PIECE], 0);
            loop {
                let read = read_into(file, at, &mut buffer)?;
                hash.update(buffer.get(..read).unwrap_or_default());
                at += read as u64;
                is_late = read == PIECE && !(self.go_on)();
                if read < PIECE || is_late {
                    return Ok(*hash.finalize().as_bytes());
                }
            }
        })?;
        if is_late { Err(self.late()) } else { Ok(digest) }
    }

    /// The text at a place, if it is text of which lines can be compared.
    pub(super) fn text(&self, one: &One, place: &Place) -> std::result::Result<Vec<u8>, Unread> {
        if let Source::Words(words) = &place.source {
            return Ok(words.clone().into_bytes());
        }
        let left = self.left.get();
        let text = self.read(one, place, |file| {
            let size = file.stat_without_acl()?.size;
            let fits = size <= FILE_MAX.min(left);
            if fits { read_range(file, 0, FILE_MAX as usize).map(Some) } else { Ok(None) }
        })?;
        let text = text.ok_or(Unread::TooLarge)?;
        self.left.set(left.saturating_sub(text.len() as u64));
        let is_binary = text.get(..BINARY.min(text.len())).is_some_and(|begin| begin.contains(&0));
        let is_long = || memchr::memchr_iter(b'\n', &text).count() > LINES_MAX;
        match is_binary {
            true => Err(Unread::Binary),
            false if is_long() => Err(Unread::TooLarge),
            false => Ok(text),
        }
    }

    fn read<T>(
        &self,
        one: &One,
        place: &Place,
        read: impl FnOnce(&dyn File) -> Result<T>,
    ) -> std::result::Result<T, Unread> {
        if !(self.go_on)() {
            return Err(self.late());
        }
        let opened = match (&place.source, &one.folder) {
            (Source::File(path), Some(folder)) => folder.open(path),
            (Source::Call(call), _) => match self.view.open_output(&one.member, call) {
                Ok(Some(file)) => Ok(file),
                Ok(None) => return Err(Unread::Unreadable(calls::unreadable(call))),
                Err(error) => Err(error),
            },
            (Source::Words(_) | Source::File(_), _) => Err(Error::NotFound),
        };
        opened.and_then(|file| read(&*file)).map_err(|error| {
            self.is_whole.set(false);
            Unread::Unreadable(error.to_string())
        })
    }

    fn late(&self) -> Unread {
        self.is_whole.set(false);
        self.is_late.set(true);
        Unread::Late
    }
}

impl One {
    pub(super) fn new(view: &View, member: Arc<Member>, record: std::result::Result<Arc<Record>, Error>) -> One {
        let place = defuse(&format!("workers/{}", shown(&member.name, is_index).display()));
        let folder = view.folder(&member).ok();
        One { place, record, folder, member }
    }

    pub(super) fn name(&self) -> &Name {
        &self.member.name
    }

    pub(super) fn calls(&self) -> &[ToolCall] {
        self.record.as_ref().map(|record| record.trace.calls.as_slice()).unwrap_or_default()
    }

    fn file(&self, path: RelPath) -> Place {
        Place { path: format!("{}/{}", self.place, name_of(&path)), source: Source::File(path) }
    }

    fn call(&self, call: &ToolCall) -> Place {
        let path = match &call.output {
            // Its call's own file holds only the stub.
            Output::StoredOut(file) => format!("{} (the store's tool_outputs/{})", self.place, defuse(&file.display())),
            _ => format!("{}/{}", self.place, name_of(&call.path)),
        };
        Place { path, source: Source::Call(Box::new(call.clone())) }
    }
}

/// What a file is called in a worker's folder, safe to print.
fn name_of(path: &RelPath) -> String {
    defuse(&shown_path(path).display())
}

/// What a path tells of how much a file matters.
fn rank(path: &RelPath) -> Rank {
    let first = path.names().next();
    match first.as_ref().map(Name::as_bytes) {
        Some(b"outputs") if path.depth() > 1 => Rank::Outputs,
        Some(b"logs") if path.depth() > 1 => Rank::Logs,
        Some(b"tool_calls") if path.depth() > 1 => Rank::Calls,
        _ => Rank::Own,
    }
}

/// Whether a file differs even where two workers did the same: metadata, indexes, transcripts, metrics.
fn differs_always(path: &RelPath) -> bool {
    let name = path.as_bytes();
    !name.contains(&b'/') && (name.ends_with(b".jsonl") || matches!(name, b"metadata.json" | b"index.json"))
}
