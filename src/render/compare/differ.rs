//! In what the files of one name differ, and what is found in one worker's files only.

use std::cell::OnceCell;
use std::ops::Range;
use std::time::Instant;

use super::aspect::Aspect;
use super::calls;
use super::files::{Compared, Item, Kind, Place, Rank, Unread};
use super::lines::{CONTEXT, Headings, Step, common, head, hunks, lines, telling};
use super::passages::{Known, Passage, passages};
use super::section::{Line, Piece, Section};

/// Heavier than others are what a worker was to make and said in the end, and calls that ended differently.
const WEIGHT: usize = 4;
const FAILURE_WEIGHT: usize = 3;

/// The part of the time that is left which one difference may take.
const TIME_PART: u32 = 4;

/// Makes the sections of what differs.
pub(super) struct Differ<'a> {
    of: &'a Compared<'a>,
    aspect: Option<&'a Aspect>,
    /// What is known of each worker's text, once it is asked for.
    known: Vec<OnceCell<(Known, bool)>>,
    items: &'a [Item],
}

/// A text and where its lines are.
struct Text {
    raw: Vec<u8>,
    lines: Vec<Range<usize>>,
    /// Its headings, if it is prose.
    headings: Headings,
}

impl Text {
    fn new(raw: Vec<u8>, is_prose: bool) -> Text {
        let lines = lines(&raw);
        let line = |range: &Range<usize>| raw.get(range.clone()).unwrap_or_default();
        let headings = Headings::of(lines.iter().map(line).filter(|_| is_prose));
        Text { headings, lines, raw }
    }

    fn start(&self, at: usize) -> usize {
        self.lines.get(at).map_or(self.raw.len(), |range| range.start)
    }

    fn line(&self, at: usize) -> &[u8] {
        self.lines.get(at).and_then(|range| self.raw.get(range.clone())).unwrap_or_default()
    }

    /// The lines without white space at their ends.
    fn trimmed(&self) -> Vec<&[u8]> {
        (0..self.lines.len()).map(|at| self.line(at).trim_ascii_end()).collect()
    }
}

impl<'a> Differ<'a> {
    pub(super) fn new(of: &'a Compared<'a>, items: &'a [Item], aspect: Option<&'a Aspect>) -> Differ<'a> {
        Differ { of, aspect, known: of.ones.iter().map(|_| OnceCell::new()).collect(), items }
    }

    /// In what the sequences of calls differ, those of the others from the first's.
    pub(super) fn calls(&self) -> Vec<Section> {
        let place = |at: usize| self.of.ones.get(at).map(|one| (one.place.as_str(), one.calls()));
        let first = place(0);
        let section = |at: usize| calls::section(first?, place(at)?, self.of.deadline);
        let mut sections: Vec<Section> = (1..self.of.ones.len()).filter_map(section).collect();
        for piece in sections.iter_mut().flat_map(|section| &mut section.pieces) {
            self.weigh(piece, "");
        }
        sections
    }

    /// In what the item of this number differs.
    pub(super) fn sections(&self, number: usize) -> Vec<Section> {
        let Some(item) = self.items.get(number) else { return Vec::new() };
        let mut sections = match item.kind() {
            Kind::Equal => Vec::new(),
            Kind::Unread => vec![unread(item)],
            Kind::OnlyIn => self.alone(item),
            Kind::Differs => self.versions(item),
        };
        for section in &mut sections {
            section.file = Some(number);
            section.weight = match item.rank {
                Rank::Words | Rank::Outputs => WEIGHT,
                _ if item.is_failure => FAILURE_WEIGHT,
                Rank::Own | Rank::Logs | Rank::Calls => 1,
                Rank::Steps => 0,
            };
        }
        sections
    }

    /// Each further version against that of the first that has it.
    fn versions(&self, item: &Item) -> Vec<Section> {
        let mut holders = item.holders();
        let Some(first) = holders.next() else { return Vec::new() };
        let version = |at: usize| item.versions.get(at).copied().flatten();
        let mut sections = Vec::new();
        let mut told = vec![version(first)];
        for at in holders {
            if told.contains(&version(at)) {
                continue;
            }
            told.push(version(at));
            let also: Vec<&str> = item
                .holders()
                .filter(|other| *other > at && version(*other) == version(at))
                .filter_map(|other| self.of.ones.get(other).map(|one| one.place.as_str()))
                .collect();
            let also = if also.is_empty() { String::new() } else { format!(" (the same: {})", also.join(", ")) };
            sections.extend(self.pair(item, first, at, &also));
        }
        sections
    }

    /// The difference between two versions.
    fn pair(&self, item: &Item, old: usize, new: usize, also: &str) -> Option<Section> {
        let text = |at: usize| {
            let (one, place) = (self.of.ones.get(at)?, item.places.get(at)?.as_ref()?);
            Some((place, self.of.text(one, place)))
        };
        let ((mine, from), (other, to)) = (text(old)?, text(new)?);
        let (from, to) = match (from, to) {
            (Ok(from), Ok(to)) => (Text::new(from, is_prose(mine)), Text::new(to, is_prose(other))),
            (Err(unread), _) | (_, Err(unread)) => {
                let said = format!("[{} and {}{also} differ: {}]\n", mine.path, other.path, reason(&unread));
                return Some(Section { head: said, ..Section::default() });
            }
        };
        let (old, new) = (from.trimmed(), to.trimmed());
        let ends = (old.len(), new.len());
        // One difference takes no more than a part of the time that is left, so that others are found, too.
        let now = Instant::now();
        let deadline = now + self.of.deadline.saturating_duration_since(now) / TIME_PART;
        let pairs = telling(&common(&old, &new, deadline), &old, &new);
        if Instant::now() > deadline {
            self.of.is_whole.set(false);
            self.of.is_late.set(true);
        }
        let pieces: Vec<Piece> = hunks(&pairs, ends)
            .iter()
            .flat_map(|hunk| self.parts(hunk, &from, &to))
            .map(|hunk| self.hunk(hunk, &from, &to))
            .collect();
        if pieces.is_empty() {
            let said =
                format!("[{} and {}{also} differ in white space at the ends of lines alone]\n", mine.path, other.path);
            return Some(Section { head: said, ..Section::default() });
        }
        Some(Section {
            head: format!("--- {}\n+++ {}{also}\n", mine.path, other.path),
            sources: vec![mine.path.clone(), other.path.clone()],
            what: "hunk",
            pieces,
            ..Section::default()
        })
    }

    /// A long hunk in parts that bear on the aspect and parts that do not; else the hunk.
    fn parts<'h>(&self, hunk: &'h [Step], from: &Text, to: &Text) -> Vec<&'h [Step]> {
        let Some(aspect) = self.aspect.filter(|_| hunk.len() > LONG) else { return vec![hunk] };
        let holds = |step: &Step| {
            let (line, under) = match step {
                Step::Same(at, _) | Step::Old(at) => (from.line(*at), from.headings.over(*at)),
                Step::New(at) => (to.line(*at), to.headings.over(*at)),
            };
            aspect.held(&under) + aspect.held(&String::from_utf8_lossy(line)) > 0
        };
        let held: Vec<bool> = hunk.iter().map(holds).collect();
        let is_near = |at: usize| {
            held.get(at.saturating_sub(CONTEXT)..(at + CONTEXT + 1).min(held.len()))
                .is_some_and(|near| near.contains(&true))
        };
        let mut at = 0;
        let alike = |_: &Step, _: &Step| {
            at += 1;
            is_near(at - 1) == is_near(at)
        };
        hunk.chunk_by(alike).collect()
    }

    fn hunk(&self, hunk: &[Step], from: &Text, to: &Text) -> Piece {
        let mut piece = Piece::default();
        for block in hunk.chunk_by(|a, b| matches!(a, Step::Same(..)) == matches!(b, Step::Same(..))) {
            let of = |number: fn(&Step) -> Option<usize>| block.iter().filter_map(number).collect::<Vec<usize>>();
            let old = of(|step| if let Step::Old(at) = step { Some(*at) } else { None });
            let new = of(|step| if let Step::New(at) = step { Some(*at) } else { None });
            // Lines that take each other's place are shown where they begin to differ.
            let is_paired = old.len() == new.len();
            let about = |a: Option<&usize>, b: Option<&usize>| match (a, b) {
                (Some(a), Some(b)) if is_paired => same_begin(from.line(*a), to.line(*b)),
                _ => 0,
            };
            let (mut olds, mut news) = (0, 0);
            for step in block {
                let line = match step {
                    Step::Same(at, _) => Line::of(' ', from.line(*at), (0, from.start(*at)), 0),
                    Step::Old(at) => {
                        olds += 1;
                        Line::of('-', from.line(*at), (0, from.start(*at)), about(Some(at), new.get(olds - 1)))
                    }
                    Step::New(at) => {
                        news += 1;
                        Line::of('+', to.line(*at), (1, to.start(*at)), about(old.get(news - 1), Some(at)))
                    }
                };
                piece.lines.push(line);
            }
        }
        let first = hunk.iter().find(|step| !matches!(step, Step::Same(..)));
        let under = match first {
            Some(Step::Old(at)) => from.headings.over(*at),
            Some(Step::New(at)) => to.headings.over(*at),
            _ => String::new(),
        };
        piece.head = titled(head(hunk), &under);
        self.weigh(&mut piece, &under);
        piece
    }

    /// What those have who have it: only passages that no file of the others has.
    fn alone(&self, item: &Item) -> Vec<Section> {
        let Some(at) = item.holders().next() else { return Vec::new() };
        let (Some(one), Some(Some(place))) = (self.of.ones.get(at), item.places.get(at)) else { return Vec::new() };
        let has = |other: usize| item.places.get(other).is_some_and(Option::is_some);
        let others: Vec<usize> = (0..self.of.ones.len()).filter(|other| !has(*other)).collect();
        let names = |of: &mut dyn Iterator<Item = usize>| {
            let places: Vec<&str> = of.filter_map(|at| self.of.ones.get(at).map(|one| one.place.as_str())).collect();
            places.join(", ")
        };
        let also: Vec<usize> = item.holders().skip(1).collect();
        let also = match names(&mut also.into_iter()) {
            empty if empty.is_empty() => String::new(),
            also => format!(" (the same: {also})"),
        };
        let lacking = names(&mut others.iter().copied());
        let note = |says: &str| Section {
            head: format!("[not in {lacking}: {}{also}: {says}]\n", place.path),
            ..Section::default()
        };
        let text = match self.of.text(one, place) {
            Ok(raw) => Text::new(raw, is_prose(place)),
            Err(unread) => return vec![note(reason(&unread))],
        };
        let known: Vec<&(Known, bool)> = others.iter().filter_map(|other| self.known_of(*other)).collect();
        let all_known: Vec<&Known> = known.iter().map(|(known, _)| known).collect();
        let (found, all) = passages(&text.raw, &all_known);
        if all == 0 {
            return vec![note("empty")];
        }
        if found.is_empty() {
            return vec![note("all that it says is in other files there")];
        }
        let sign = if at == 0 { '-' } else { '+' };
        let pieces = together(&found, &text).into_iter().map(|part| self.passage(sign, &text, part)).collect();
        let many = match found.len() {
            some if some == all => "nothing that it says is".into(),
            some => format!("{some} of its {all} passages are"),
        };
        let whole = known.iter().all(|(_, whole)| *whole);
        let looked = if whole { "" } else { " that could be looked into" };
        let verb = if found.len() == all { "in any file there" } else { "in no file there" };
        let head = format!("[not in {lacking}: {}{also}; {many} {verb}{looked}]\n", place.path);
        vec![Section { head, sources: vec![place.path.clone()], what: "passage", pieces, ..Section::default() }]
    }

    /// Passages that follow each other, with what stands between them.
    fn passage(&self, sign: char, text: &Text, part: &[Passage]) -> Piece {
        let lines = || part.iter().flat_map(|passage| &passage.lines);
        let from = lines().next().map_or(0, |range| range.start);
        let to = lines().next_back().map_or(0, |range| range.end);
        let first = text.lines.partition_point(|range| range.start < from);
        let all = text.lines.iter().enumerate().skip(first).take_while(|(_, range)| range.end <= to);
        let lines = all.map(|(at, range)| Line::of(sign, text.line(at), (0, range.start), 0)).collect();
        let under = text.headings.over(first);
        // A heading is not told twice.
        let is_heading = under.as_bytes().ends_with(text.line(first).trim_ascii());
        let title = if is_heading { "" } else { &under };
        let head = titled(format!("@@ bytes {from}-{} @@", to.saturating_sub(1)), title);
        let substance = part.iter().map(|passage| passage.substance).sum();
        let mut piece = Piece { head, lines, substance, ..Piece::default() };
        self.weigh(&mut piece, &under);
        piece
    }

    /// All that a worker's files say, and whether all of them could be looked into that are text.
    fn known_of(&self, at: usize) -> Option<&(Known, bool)> {
        let (cell, one) = (self.known.get(at)?, self.of.ones.get(at)?);
        let find = || {
            let (mut known, mut whole) = (Known::default(), true);
            for place in self.items.iter().filter_map(|item| item.places.get(at)?.as_ref()) {
                match self.of.text(one, place) {
                    Ok(text) => known.add(&text),
                    Err(unread) => whole &= unread == Unread::Binary,
                }
            }
            (known, whole)
        };
        Some(cell.get_or_init(find))
    }

    /// Notes how much a piece tells, and of the aspect.
    fn weigh(&self, piece: &mut Piece, under: &str) {
        if piece.substance == 0 {
            piece.substance = piece.changed();
        }
        if let Some(aspect) = self.aspect {
            let text: Vec<&str> = piece.texts().collect();
            piece.held = aspect.held(&format!("{under}\n{}", text.join("\n")));
        }
    }
}

fn titled(head: String, under: &str) -> String {
    let under = super::super::clean::one_line(under, HEAD_MAX);
    if under.is_empty() { head } else { format!("{head} {under}") }
}

/// Passages between which there are only empty lines stand together, up to so many bytes, but not with a heading.
fn together<'a>(found: &'a [Passage], text: &Text) -> Vec<&'a [Passage]> {
    let ends = |passage: &Passage| {
        (passage.lines.first().map(|range| range.start), passage.lines.last().map(|range| range.end))
    };
    let mut begun = 0;
    let follows = |a: &Passage, b: &Passage| {
        let ((first, Some(end)), (Some(start), Some(last))) = (ends(a), ends(b)) else { return false };
        begun = if begun == 0 { first.unwrap_or_default() + 1 } else { begun };
        let between = text.raw.get(end..start).unwrap_or_default();
        let follows = between.trim_ascii().is_empty()
            && last + 1 - begun <= TOGETHER_MAX
            && !text.raw.get(start..).is_some_and(|rest| rest.starts_with(b"#"));
        begun = if follows { begun } else { start + 1 };
        follows
    };
    found.chunk_by(follows).collect()
}

/// How much stands together of passages, in bytes.
const TOGETHER_MAX: usize = 1_000;
/// With an aspect, of a hunk of more lines only a part is shown.
const LONG: usize = 24;
/// The longest title of a piece, in bytes.
const HEAD_MAX: usize = 120;

/// How many bytes two lines have in common at their beginning.
fn same_begin(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn is_prose(place: &Place) -> bool {
    let path = place.path.to_ascii_lowercase();
    [".md", ".markdown", ".txt", ")"].iter().any(|end| path.ends_with(end))
}

/// That something could not be compared.
fn unread(item: &Item) -> Section {
    let why = item.unread.as_ref().map(reason).unwrap_or_default();
    let places: Vec<&str> = item.places.iter().flatten().map(|place| place.path.as_str()).collect();
    Section { head: format!("[{}: not compared: {why}]\n", places.join(", ")), ..Section::default() }
}

/// Why the lines of something are not compared, as a part of a sentence.
fn reason(unread: &Unread) -> &str {
    match unread {
        Unread::Binary => "binary",
        Unread::TooLarge => "too large for its lines to be compared",
        Unread::Unreadable(reason) => reason,
        Unread::Late => "no time was left",
    }
}
