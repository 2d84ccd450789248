//! The text of an answer: a line of counts, facts about the workers, the differences, and lists of
//! the omitted parts.
//!
//! A generated line starts with `[`, `both`, `all`, `workers/`, `--- workers/`, `+++ workers/` or
//! `@@`. A line of a worker's text starts with a space, `-` or `+`.

use std::fmt::Write;

use super::CompareQuery;
use super::facts::WorkerFacts;
use super::files::{ComparedItem, ComparedItems, DiffKind, ItemRank};
use super::section::DiffSection;
use crate::analysis::missing::Missing;
use crate::query::AnswerPage;
use swarmletfs_base::name::Name;
use swarmletfs_base::split::Split;
use swarmletfs_base::text::budget::{Budget, Demand, allocate, count_fitting};
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::count;

/// Maximum length of a quoted query or file name, in bytes.
const QUERY_MAX: usize = 300;
/// Divisor of the room that lists of file names may take.
const NAMES_DIVISOR: usize = 8;
const FACTS_DIVISOR: usize = 3;
/// Maximum number of attempts to fit a budget of tokens.
const TRIES: usize = 12;
/// Maximum growth of the numbers in the first line, in bytes.
const DIGITS: usize = 24;

#[derive(Debug)]
pub struct FileDiff {
    /// Name of the item in a worker's directory.
    pub path: String,
    pub kind: DiffKind,
    pub workers: Vec<Name>,
    /// Difference as text; empty if it is not shown.
    pub text: String,
}

#[derive(Debug, Default)]
pub struct CompareAnswer {
    pub page: AnswerPage,
    pub workers: Vec<Name>,
    pub facts: WorkerFacts,
    /// Files and outputs of corresponding calls, without files that always differ.
    pub files: Vec<FileDiff>,
    pub calls: String,
    pub always: Vec<String>,
    /// Number of differences that are not shown.
    pub left_out: usize,
    /// True if anything differs, apart from files that always do.
    pub differs: bool,
}

pub(super) struct Page<'a> {
    pub query: &'a CompareQuery,
    pub paths: Vec<String>,
    pub facts: &'a WorkerFacts,
    pub items: &'a ComparedItems,
    pub sections: Vec<DiffSection>,
    /// Numbers of the differing items for which there is no room.
    pub omitted: Vec<usize>,
    /// Number of words of the aspect that shown blocks must contain.
    pub(super) min_matches: usize,
    /// True if nothing matches the aspect.
    pub(super) has_no_match: bool,
    pub missing: Option<Missing>,
}

type RenderedPage = (String, Vec<Option<String>>);

impl CompareAnswer {
    /// Renders the page within `budget` and stores its text and the text of each item.
    pub(super) fn show(&mut self, page: &Page<'_>, budget: Budget) {
        let (text, shown) = page.fitting(budget);
        self.page.text = text;
        for (section, shown) in page.sections.iter().zip(shown) {
            let text = match section.file.and_then(|file| self.files.get_mut(file)) {
                Some(diff) => &mut diff.text,
                None => &mut self.calls,
            };
            match shown {
                Some(shown) => text.push_str(&shown),
                None => self.left_out += 1,
            }
        }
        self.left_out += page.omitted.len();
    }
}

impl Page<'_> {
    fn fitting(&self, budget: Budget) -> RenderedPage {
        let mut limit = budget.approx_bytes();
        for _ in 0..TRIES {
            let page = self.within(limit);
            let used = budget.used(&page.0);
            if used <= budget.size() {
                return page;
            }
            let next = limit as u128 * budget.size() as u128 / used.max(1) as u128;
            limit = (next as usize * 98 / 100).min(limit.saturating_sub(1));
        }
        let short = match (&self.missing, self.sections.is_empty()) {
            (Some(_), _) => "[incomplete]\n",
            (None, true) => "[nothing differs]\n",
            (None, false) => "[they differ]\n",
        };
        (budget.first_fitting([short]).to_owned(), vec![None; self.sections.len()])
    }

    /// Returns the text in at most `limit` bytes, or only the counts if the limit is too small.
    fn within(&self, limit: usize) -> RenderedPage {
        let none = vec![None; self.sections.len()];
        let Some(room) = limit.checked_sub(self.head(0).len() + DIGITS) else {
            let brief = if self.missing.is_some() { "; incomplete" } else { "" };
            let short = format!("[{}{brief}]\n", self.counts());
            return (if short.len() <= limit { short } else { String::new() }, none);
        };
        let included: Vec<bool> =
            self.sections.iter().map(|section| self.is_shown(section)).collect();
        let is_any = included.contains(&true);
        let facts =
            self.facts.text(&self.paths, if is_any { room / FACTS_DIVISOR } else { room / 2 });
        let room = room.saturating_sub(facts.len());
        let tail_max = self.tail(&none, room / if is_any { NAMES_DIVISOR } else { 1 }).len();
        let room = room.saturating_sub(tail_max);
        let shown = self.render_sections(&included, room);
        let shown_count = shown.iter().flatten().count();
        let tail = self.tail(&shown, tail_max);
        let body: String = shown.iter().flatten().map(String::as_str).collect();
        (format!("{}{facts}{body}{tail}", self.head(shown_count)), shown)
    }

    fn is_shown(&self, section: &DiffSection) -> bool {
        !self.has_no_match && section.has_match(self.min_matches)
    }

    /// Renders the included sections in `room` bytes: each its minimum size while that fits, the
    /// rest by weight.
    fn render_sections(&self, included: &[bool], room: usize) -> Vec<Option<String>> {
        let mut left = room;
        let mut is_first = true;
        // Sections are admitted in order while their minimum size fits; the first is always tried.
        let shares = self.sections.iter().zip(included).map(|(section, included)| {
            let need = section.min_size();
            let fits = *included && (need <= left || is_first);
            is_first &= !*included;
            let share = if fits { need.min(left) } else { 0 };
            left -= share;
            fits.then_some(share)
        });
        let mut shares: Vec<Option<usize>> = shares.collect();
        // Sections of weight 0 share the bytes that the others leave.
        for is_light in [false, true] {
            let demands = self.sections.iter().zip(&shares).map(|(section, share)| {
                let need =
                    share.map_or(0, |share| section.need(self.min_matches).saturating_sub(share));
                Demand {
                    need: if is_light == (section.weight == 0) { need } else { 0 },
                    weight: section.weight.max(1),
                }
            });
            let demands: Vec<Demand> = demands.collect();
            for (share, more) in shares.iter_mut().zip(allocate(&demands, left)) {
                *share = share.map(|share| share + more);
                left -= more;
            }
        }
        let mut shown: Vec<Option<String>> = self
            .sections
            .iter()
            .zip(shares)
            .map(|(section, share)| section.within(share?, self.min_matches))
            .collect();
        // Unused bytes go in order to sections that were cut or not admitted.
        let mut spare = room.saturating_sub(shown.iter().flatten().map(String::len).sum());
        for ((section, shown), _) in
            self.sections.iter().zip(&mut shown).zip(included).filter(|(_, included)| **included)
        {
            let size = shown.as_ref().map_or(0, String::len);
            if size < section.need(self.min_matches)
                && let Some(more) =
                    section.within(size + spare, self.min_matches).filter(|more| more.len() > size)
            {
                spare = (size + spare).saturating_sub(more.len());
                *shown = Some(more);
            }
        }
        shown
    }

    fn head(&self, shown: usize) -> String {
        let mut head = format!(
            "[{}: {}; {}",
            query_text(self.query),
            count(self.paths.len(), "worker"),
            self.counts()
        );
        let all = self.sections.len() + self.omitted.len();
        if self.has_no_match {
            head.push_str("; nothing matches the words");
        } else if shown < all {
            let _ = write!(head, "; shown: {shown} of {}", count(all, "difference"));
        }
        if let (true, Some(first)) =
            (self.paths.len() > 2 && !self.sections.is_empty(), self.paths.first())
        {
            let _ = write!(head, ", each against {first} where possible");
        }
        if let Some(missing) = &self.missing {
            let _ = write!(head, "; {missing}");
        }
        head.push_str("]\n");
        head
    }

    fn counts(&self) -> String {
        let files = self.counts_of(&|item| item.rank < ItemRank::Calls);
        let is_output = |item: &ComparedItem| item.rank == ItemRank::Calls;
        let calls = self.counts_of(&|item| is_output(item) && item.kind() != DiffKind::OnlyIn);
        let unmatched = self.counts_of(&|item| is_output(item) && item.kind() == DiffKind::OnlyIn);
        let mut parts =
            vec![if files.is_empty() { "no files".into() } else { format!("files: {files}") }];
        if !calls.is_empty() {
            parts.push(format!("outputs of calls that correspond: {calls}"));
        }
        let steps = self.counts_of(&|item| item.rank == ItemRank::Steps);
        if !steps.is_empty() {
            parts.push(format!("steps: {steps}"));
        }
        if !unmatched.is_empty() {
            parts.push(format!("failed calls: {unmatched}"));
        }
        if self.items.unlisted > 0 {
            parts.push(format!("{} could not be listed", count(self.items.unlisted, "folder")));
        }
        parts.join("; ")
    }

    fn counts_of(&self, is_counted: &dyn Fn(&ComparedItem) -> bool) -> String {
        let items = || self.items.all.iter().filter(|item| is_counted(item));
        let kind = |kind: DiffKind| items().filter(|item| item.kind() == kind).count();
        let mut parts: Vec<String> = Vec::new();
        let mut add = |count: usize, label: &str| {
            parts.extend((count > 0).then(|| format!("{count} {label}")))
        };
        add(kind(DiffKind::Equal), "equal");
        add(kind(DiffKind::Differs), "differ");
        for (at, path) in self.paths.iter().enumerate() {
            let alone = items()
                .filter(|item| item.kind() == DiffKind::OnlyIn && item.holders().eq([at]))
                .count();
            add(alone, &format!("in {path} alone"));
        }
        let some = items()
            .filter(|item| item.kind() == DiffKind::OnlyIn && item.holders().count() > 1)
            .count();
        add(some, "only in some");
        add(kind(DiffKind::NotCompared), "not compared");
        parts.join(", ")
    }

    /// Returns lists of the differences not shown, the equal items and the items that always
    /// differ, in at most `room` bytes.
    fn tail(&self, shown: &[Option<String>], room: usize) -> String {
        let name = |at: &usize| self.items.all.get(*at).map(|item| one_line(&item.name, QUERY_MAX));
        let hidden = self.sections.iter().zip(shown).filter(|(_, shown)| shown.is_none());
        let (matching, others): (Vec<&DiffSection>, Vec<&DiffSection>) =
            hidden.map(|(section, _)| section).partition(|section| self.is_shown(section));
        let names = |sections: Vec<&DiffSection>| -> Vec<String> {
            let name = |section: &&DiffSection| {
                section.file.as_ref().and_then(name).unwrap_or_else(|| "calls".into())
            };
            sections.iter().map(name).collect()
        };
        let mut not_shown = names(matching);
        not_shown.extend(self.omitted.iter().filter_map(name));
        let is_equal =
            |item: &&ComparedItem| item.kind() == DiffKind::Equal && item.rank < ItemRank::Calls;
        let equal: Vec<String> = self
            .items
            .all
            .iter()
            .filter(is_equal)
            .map(|item| one_line(&item.name, QUERY_MAX))
            .collect();
        let omission = ("[... ", " ...]");
        let lists = [
            (omission, "not shown", not_shown),
            (omission, "without a match for the words", names(others)),
            (("[", "]"), "equal", equal),
            (("[", "]"), "not compared, since they always differ", self.items.always.clone()),
        ];
        let lists: Vec<NameList> = lists
            .into_iter()
            .filter(|(_, _, names)| !names.is_empty())
            .map(|(brackets, label, names)| NameList { brackets, label, names })
            .collect();
        let demands: Vec<Demand> =
            lists.iter().map(|list| Demand { need: list.whole().len(), weight: 1 }).collect();
        let shares = allocate(&demands, room);
        lists.iter().zip(shares).map(|(list, share)| list.within(share)).collect()
    }
}

struct NameList {
    brackets: (&'static str, &'static str),
    label: &'static str,
    names: Vec<String>,
}

impl NameList {
    fn head(&self) -> String {
        format!("{}{} {}", self.brackets.0, self.names.len(), self.label)
    }

    fn whole(&self) -> String {
        format!("{}: {}{}\n", self.head(), self.names.join(", "), self.brackets.1)
    }

    /// Returns the line with as many names as fit in `room` bytes and a count of the others; empty
    /// if nothing fits.
    fn within(&self, room: usize) -> String {
        let whole = self.whole();
        if whole.len() <= room {
            return whole;
        }
        let NameList { brackets: (_, end), names, .. } = self;
        let head = self.head();
        let more = |left: usize| format!(", {left} more");
        let frame = head.len() + 2 + more(names.len()).len() + end.len() + 1;
        let fitting =
            count_fitting(names.iter().map(|name| name.len() + 2), room.saturating_sub(frame));
        let named = names.split_at_known(fitting).0.join(", ");
        let line = match names.len() - fitting {
            _ if fitting == 0 => format!("{head}{end}\n"),
            0 => format!("{head}: {named}{end}\n"),
            rest => format!("{head}: {named}{}{end}\n", more(rest)),
        };
        if line.len() <= room { line } else { String::new() }
    }
}

pub(super) fn refusal(query: &CompareQuery, error: String, budget: Budget) -> AnswerPage {
    AnswerPage::refusal(&query_text(query), "cannot be compared", error, budget)
}

fn query_text(query: &CompareQuery) -> String {
    one_line(&query.to_string(), QUERY_MAX)
}
