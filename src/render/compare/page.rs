//! The text of an answer: a line of counts, what is known of the workers, what differs, and what was left out.
//!
//! A line of ours begins with `[`, `both`, `all`, `workers/`, `--- workers/`, `+++ workers/` or `@@`; one of a worker's text
//! with a space, `-` or `+`.

use std::fmt::Write;

use super::super::clean::one_line;
use super::super::shares::{Demand, allocate};
use super::super::text::count;
use super::super::{Budget, Missing};
use super::Query;
use super::facts::Facts;
use super::files::{Item, Items, Kind, Rank};
use super::section::Section;
use crate::name::Name;

/// The longest question that is repeated, in bytes.
const QUERY_MAX: usize = 300;
/// The part of the budget in which names of files are listed, and that in which is told what is known of workers.
const NAMES_PART: usize = 8;
const FACTS_PART: usize = 3;
/// How often a text is made anew that is too long, or shorter than it may be.
const TRIES: usize = 12;
/// What numbers in the first line may grow by, in bytes.
const DIGITS: usize = 24;

/// One difference as it is told.
#[derive(Debug)]
pub struct Told {
    /// What it is called in the worker's folder.
    pub path: String,
    /// How it differs.
    pub kind: Kind,
    /// The workers that have it.
    pub workers: Vec<Name>,
    /// What is shown of it; empty where nothing is.
    pub text: String,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Answer {
    /// What is wrong with the question.
    pub error: Option<String>,
    /// The workers.
    pub workers: Vec<Name>,
    /// What is known of them.
    pub facts: Facts,
    /// Their files, and the outputs of calls that correspond; none of those that always differ.
    pub files: Vec<Told>,
    /// In what their sequences of calls differ, as it is shown.
    pub calls: String,
    /// Files that always differ.
    pub always: Vec<String>,
    /// How many differences are not shown.
    pub left_out: usize,
    /// Whether anything differs but what always does.
    pub differs: bool,
    /// Whether all was compared.
    pub is_whole: bool,
    /// The parts that there was no time for, as the first line says it.
    pub missing: Option<Missing>,
    /// All of it as text.
    pub text: String,
}

/// What an answer is made of.
pub(super) struct Page<'a> {
    pub(super) query: &'a Query,
    pub(super) places: Vec<String>,
    pub(super) facts: &'a Facts,
    pub(super) items: &'a Items,
    /// What differs, in the order in which it is shown.
    pub(super) sections: Vec<Section>,
    /// The items that differ, for which there can be no room.
    pub(super) unheard: Vec<usize>,
    /// How many words of the aspect is what is shown to hold.
    pub(super) held: usize,
    /// Whether nothing bears on the aspect.
    pub(super) is_beside: bool,
    /// The parts that there was no time for.
    pub(super) missing: Option<Missing>,
}

/// A text, and what is shown in it of each section.
struct Made {
    text: String,
    shown: Vec<Option<String>>,
}

impl Answer {
    /// That a question cannot be answered, since it is none.
    pub(super) fn refused(query: &Query, error: String, budget: Budget) -> Answer {
        let long = format!("[{}: cannot be compared]\n{error}\n", asked(query));
        let texts = [long.as_str(), "[cannot be compared]\n", ""];
        let text = texts.into_iter().find(|text| budget.used(text) <= budget.size());
        let text = text.unwrap_or_default().to_owned();
        Answer { error: Some(error), text, is_whole: true, ..Answer::default() }
    }

    /// Takes what is shown of the page within `budget`.
    pub(super) fn show(&mut self, page: &Page<'_>, budget: Budget) {
        let made = page.fitting(budget);
        for (section, shown) in page.sections.iter().zip(made.shown) {
            let text = match section.file.and_then(|file| self.files.get_mut(file)) {
                Some(told) => &mut told.text,
                None => &mut self.calls,
            };
            match shown {
                Some(shown) => text.push_str(&shown),
                None => self.left_out += 1,
            }
        }
        self.left_out += page.unheard.len();
        self.text = made.text;
    }
}

impl Page<'_> {
    /// The text as it fits the budget.
    fn fitting(&self, budget: Budget) -> Made {
        let mut limit = budget.approx_bytes();
        for _ in 0..TRIES {
            let made = self.within(limit);
            let used = budget.used(&made.text);
            if used <= budget.size() {
                return made;
            }
            let next = limit as u128 * budget.size() as u128 / used.max(1) as u128;
            limit = (next as usize * 98 / 100).min(limit.saturating_sub(1));
        }
        let short = match (&self.missing, self.sections.is_empty()) {
            (Some(_), _) => "[incomplete]\n",
            (None, true) => "[nothing differs]\n",
            (None, false) => "[they differ]\n",
        };
        let text = if budget.used(short) <= budget.size() { short } else { "" };
        Made { text: text.into(), shown: self.sections.iter().map(|_| None).collect() }
    }

    /// The text in at most `limit` bytes; where that is next to nothing, what is said of it alone.
    fn within(&self, limit: usize) -> Made {
        let none = || self.sections.iter().map(|_| None).collect::<Vec<Option<String>>>();
        let Some(room) = limit.checked_sub(self.head(0).len() + DIGITS) else {
            let brief = if self.missing.is_some() { "; incomplete" } else { "" };
            let short = format!("[{}{brief}]\n", self.counts());
            let text = if short.len() <= limit { short } else { String::new() };
            return Made { text, shown: none() };
        };
        let heard: Vec<bool> = self.sections.iter().map(|section| self.is_heard(section)).collect();
        let is_any = heard.contains(&true);
        let facts = self.facts.text(&self.places, if is_any { room / FACTS_PART } else { room / 2 });
        let room = room.saturating_sub(facts.len());
        let tail_max = self.tail(&none(), room / if is_any { NAMES_PART } else { 1 }).len();
        let room = room.saturating_sub(tail_max);
        let shown = self.shares(&heard, room);
        let told = shown.iter().flatten().count();
        let tail = self.tail(&shown, tail_max);
        let body: String = shown.iter().flatten().map(String::as_str).collect();
        Made { text: format!("{}{facts}{body}{tail}", self.head(told)), shown }
    }

    fn is_heard(&self, section: &Section) -> bool {
        !self.is_beside && section.is_held(self.held)
    }

    /// What is shown of each section in `room` bytes of all: each that has a place a little, and the rest by weight.
    fn shares(&self, heard: &[bool], room: usize) -> Vec<Option<String>> {
        let mut left = room;
        let mut is_first = true;
        // Those that come first are heard; the others are counted. The first is tried with whatever there is.
        let mut hearing = |(section, heard): (&Section, &bool)| {
            let need = section.hearing();
            let fits = *heard && (need <= left || is_first);
            is_first &= !*heard;
            let share = if fits { need.min(left) } else { 0 };
            left -= share;
            fits.then_some(share)
        };
        let mut shares: Vec<Option<usize>> = self.sections.iter().zip(heard).map(&mut hearing).collect();
        // What others leave goes to those of no weight.
        for is_light in [false, true] {
            let demand = |(section, share): (&Section, &Option<usize>)| {
                let need = share.map_or(0, |share| section.need(self.held).saturating_sub(share));
                Demand { need: if is_light == (section.weight == 0) { need } else { 0 }, weight: section.weight.max(1) }
            };
            let demands: Vec<Demand> = self.sections.iter().zip(&shares).map(demand).collect();
            for (share, more) in shares.iter_mut().zip(allocate(&demands, left)) {
                *share = share.map(|share| share + more);
                left -= more;
            }
        }
        let write = |(section, share): (&Section, &Option<usize>)| section.within((*share)?, self.held);
        let mut shown: Vec<Option<String>> = self.sections.iter().zip(&shares).map(write).collect();
        // What was not filled goes to those that were cut, and to those that were not heard, in their order.
        let mut spare = room.saturating_sub(shown.iter().flatten().map(String::len).sum());
        for ((section, shown), _) in self.sections.iter().zip(&mut shown).zip(heard).filter(|(_, heard)| **heard) {
            let has = shown.as_ref().map_or(0, String::len);
            if has < section.need(self.held)
                && let Some(more) = section.within(has + spare, self.held).filter(|more| more.len() > has)
            {
                spare = (has + spare).saturating_sub(more.len());
                *shown = Some(more);
            }
        }
        shown
    }

    /// The first line.
    fn head(&self, shown: usize) -> String {
        let mut head = format!("[{}: {}; {}", asked(self.query), count(self.places.len(), "worker"), self.counts());
        let all = self.sections.len() + self.unheard.len();
        if self.is_beside {
            head.push_str("; nothing of it holds any of the words");
        } else if shown < all {
            let _ = write!(head, "; shown: {shown} of {}", count(all, "difference"));
        }
        if let (true, Some(first)) = (self.places.len() > 2 && !self.sections.is_empty(), self.places.first()) {
            let _ = write!(head, ", each against {first} where it has that");
        }
        if let Some(missing) = &self.missing {
            let _ = write!(head, "; {missing}");
        }
        head.push_str("]\n");
        head
    }

    /// How much is equal and how much is not.
    fn counts(&self) -> String {
        let files = self.counts_of(&|item| item.rank < Rank::Calls);
        let is_output = |item: &Item| item.rank == Rank::Calls;
        let calls = self.counts_of(&|item| is_output(item) && item.kind() != Kind::OnlyIn);
        let alone = self.counts_of(&|item| is_output(item) && item.kind() == Kind::OnlyIn);
        let mut parts = vec![if files.is_empty() { "no files".into() } else { format!("files: {files}") }];
        if !calls.is_empty() {
            parts.push(format!("outputs of calls that correspond: {calls}"));
        }
        let steps = self.counts_of(&|item| item.rank == Rank::Steps);
        if !steps.is_empty() {
            parts.push(format!("steps: {steps}"));
        }
        if !alone.is_empty() {
            parts.push(format!("failed calls: {alone}"));
        }
        if self.items.unlisted > 0 {
            parts.push(format!("{} could not be listed", count(self.items.unlisted, "folder")));
        }
        parts.join("; ")
    }

    fn counts_of(&self, of: &dyn Fn(&Item) -> bool) -> String {
        let items = || self.items.all.iter().filter(|item| of(item));
        let kind = |kind: Kind| items().filter(|item| item.kind() == kind).count();
        let mut parts: Vec<String> = Vec::new();
        let mut add = |many: usize, what: &str| parts.extend((many > 0).then(|| format!("{many} {what}")));
        add(kind(Kind::Equal), "equal");
        add(kind(Kind::Differs), "differ");
        for (at, place) in self.places.iter().enumerate() {
            let alone = items().filter(|item| item.kind() == Kind::OnlyIn && item.holders().eq([at])).count();
            add(alone, &format!("in {place} alone"));
        }
        let some = items().filter(|item| item.kind() == Kind::OnlyIn && item.holders().count() > 1).count();
        add(some, "the same in some");
        add(kind(Kind::Unread), "not compared");
        parts.join(", ")
    }

    /// What is equal, what always differs, and what differs and is not shown, in at most `room` bytes.
    fn tail(&self, shown: &[Option<String>], room: usize) -> String {
        let name = |at: &usize| self.items.all.get(*at).map(|item| one_line(&item.name, QUERY_MAX));
        let hidden = self.sections.iter().zip(shown).filter(|(_, shown)| shown.is_none());
        let (heard, beside): (Vec<&Section>, Vec<&Section>) =
            hidden.map(|(section, _)| section).partition(|section| self.is_heard(section));
        let names = |sections: Vec<&Section>| -> Vec<String> {
            let name = |section: &&Section| section.file.as_ref().and_then(name).unwrap_or_else(|| "calls".into());
            sections.iter().map(name).collect()
        };
        let mut more = names(heard);
        more.extend(self.unheard.iter().filter_map(name));
        let is_equal = |item: &&Item| item.kind() == Kind::Equal && item.rank < Rank::Calls;
        let equal: Vec<String> =
            self.items.all.iter().filter(is_equal).map(|item| one_line(&item.name, QUERY_MAX)).collect();
        let lists = [
            ("[... ", "not shown", more, " ...]"),
            ("[... ", "in what does not hold the words", names(beside), " ...]"),
            ("[", "equal", equal, "]"),
            ("[", "not compared, since they always differ", self.items.always.clone(), "]"),
        ];
        let lists: Vec<_> = lists.into_iter().filter(|(_, _, names, _)| !names.is_empty()).collect();
        let need = |(begin, what, names, end): &(&str, &str, Vec<String>, &str)| Demand {
            need: list(begin, what, names, end, usize::MAX).len(),
            weight: 1,
        };
        let demands: Vec<Demand> = lists.iter().map(need).collect();
        let each = lists.iter().zip(allocate(&demands, room));
        each.map(|((begin, what, names, end), share)| list(begin, what, names, end, share)).collect()
    }
}

/// Names as far as there is room, the others counted; nothing if there is no room for that.
fn list(begin: &str, what: &str, names: &[String], end: &str, room: usize) -> String {
    let head = format!("{begin}{} {what}", names.len());
    let whole = format!("{head}: {}{end}\n", names.join(", "));
    if whole.len() <= room {
        return whole;
    }
    let more = |left: usize| format!(", {left} more");
    let mut left = room.saturating_sub(head.len() + 2 + more(names.len()).len() + end.len() + 1);
    let fits = |name: &&String| {
        let fits = name.len() + 2 <= left;
        left = if fits { left - name.len() - 2 } else { 0 };
        fits
    };
    let named: Vec<&str> = names.iter().take_while(fits).map(String::as_str).collect();
    let rest = names.len() - named.len();
    let named = if named.is_empty() {
        String::new()
    } else {
        format!(": {}{}", named.join(", "), if rest > 0 { more(rest) } else { String::new() })
    };
    let line = format!("{head}{named}{end}\n");
    if line.len() <= room { line } else { String::new() }
}

fn asked(query: &Query) -> String {
    one_line(&query.to_string(), QUERY_MAX)
}
