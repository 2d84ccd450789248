//! The frame of an evidence.txt: header, sections, list of omitted outputs and last line, within a
//! hard limit.
//!
//! The first line, every section line and the last line end in a tag. The tag is derived from the
//! content and does not occur in it, so no worker can forge a line of the frame.

use std::collections::HashMap;

use super::admit::{Admission, AdmittedSection, SectionRoom};
use super::content::FrameContent;
use super::notes::{FAILURE_LINE_MIN, used_text};
use super::short_steps::{ShortStep, block, block_len};
use crate::analysis::excerpt::{Excerpt, ExcerptTask, Focus, ShownLines, excerpt};
use crate::output::Body;
use swarmletfs_base::model::Outcome;
use swarmletfs_base::text::budget::{Budget, BudgetUnit};
use swarmletfs_base::text::clean::{TAG_LEN, one_line, unused_tag};

/// Maximum number of attempts to stay within the limit while outputs grow or hide characters.
const ATTEMPTS: usize = 5;
const BEGIN: &str = "--- Evidence for ";
/// Maximum number of attempts to find the longest text within a budget of tokens.
const TRIES: usize = 8;
/// Use of a token budget at which the search stops, in percent.
const ENOUGH_PERCENT: usize = 97;
/// Distance between the search limits at which the search stops, in bytes.
const CLOSE: usize = 24;
/// A text that is this much shorter than its limit has nothing left to show, in bytes.
const SPARE: usize = 1_000;

struct ShownSection {
    number: usize,
    excerpt: Excerpt,
    input: bool,
}

struct FilledRoom {
    shown: Vec<ShownSection>,
    short: Vec<ShortStep>,
    /// Room left for the list of omitted sections, in bytes.
    listing: usize,
}

impl FrameContent<'_> {
    /// Renders the whole file, which never exceeds `budget`.
    pub(super) fn render(self, budget: Budget) -> Body {
        let text = match budget.unit() {
            BudgetUnit::Bytes => self.text_within(budget, budget.size()),
            BudgetUnit::Tokens => self.longest_text(budget),
        };
        Body { bytes: text.into_bytes(), complete: !self.read_failed.get() }
    }

    /// Returns the longest text found that fits a budget of tokens.
    ///
    /// The tokens of a text are known only once it is written, so a search finds the byte limit.
    fn longest_text(&self, budget: Budget) -> String {
        let mut best: Option<String> = None;
        // Largest limit that fits, and smallest that does not.
        let (mut fits, mut over) = (0, Budget::MAX.size() + 1);
        let mut limit = budget.approx_bytes() * 3 / 4;
        for _ in 0..TRIES {
            let text = self.text_within(budget, limit);
            let used = budget.used(&text);
            // The stated use may not converge, since its own digits count.
            let is_exact =
                header_line(&text).is_none_or(|header| header.contains(&used_text(budget, used)));
            if used <= budget.size() && is_exact {
                let enough =
                    used * 100 >= budget.size() * ENOUGH_PERCENT || text.len() + SPARE < limit;
                (fits, best) = (limit, Some(text));
                if enough {
                    break;
                }
            } else {
                over = limit;
            }
            if over - fits <= CLOSE {
                break;
            }
            if best.is_some() && !self.deadline.has_time() {
                // The best text does not note that time ran out, so a shorter one is written.
                let note = self.note().len();
                return Some(self.text_within(budget, fits.saturating_sub(note)))
                    .filter(|text| budget.used(text) <= budget.size())
                    .unwrap_or_else(|| self.smallest(budget));
            }
            let next = (limit as u128 * budget.size() as u128 / used.max(1) as u128) as usize;
            limit = (next - next / 100).clamp(fits + 1, over - 1);
        }
        best.unwrap_or_else(|| self.smallest(budget))
    }

    /// Returns only the counts, cut to a budget of tokens.
    fn smallest(&self, budget: Budget) -> String {
        let mut text = self.tiny(budget, budget.approx_bytes());
        while budget.used(&text) > budget.size() {
            text.truncate(text.floor_char_boundary(text.len() - 1 - text.len() / 8));
        }
        text
    }

    /// Returns the part of the first line that names the parts skipped for lack of time; empty if
    /// there are none.
    fn note(&self) -> String {
        (self.missing)().map(|missing| format!(" | {missing}")).unwrap_or_default()
    }

    fn text_within(&self, budget: Budget, limit: usize) -> String {
        let frame = self.header(budget, limit, &Counts::upper_bound(self.sections.len()), "").len()
            + self.end("").len()
            + 2 * TAG_LEN;
        let nothing = if self.sections.is_empty() { 0 } else { self.listing_min() };
        // One line about the failure is worth more than a frame without room for it.
        let failure = if self.is_failed(0) { FAILURE_LINE_MIN } else { 0 };
        if frame + nothing > limit
            || frame + nothing + failure > limit && !(self.failure)(failure).is_empty()
        {
            return self.tiny(budget, limit);
        }
        let mut room = limit - frame;
        let lines = (self.lines)(room - nothing, self.first_section_min(false));
        room = room.saturating_sub(lines.len());
        // Few outputs hide characters, so room for the note is reserved only once one does.
        let mut notes_hidden = false;
        for _ in 0..ATTEMPTS {
            let (text, is_hiding) = self.filled(budget, &lines, room, notes_hidden);
            if text.len() <= limit {
                return text;
            }
            if is_hiding && !notes_hidden {
                notes_hidden = true;
                continue;
            }
            // An output grew since it was listed, so its section line is longer.
            room = room.saturating_sub(text.len() - limit);
        }
        self.tiny(budget, limit)
    }

    /// Returns one line about the first failure and the counts, cut to `limit` bytes, for a limit
    /// that is too small for the frame.
    fn tiny(&self, budget: Budget, limit: usize) -> String {
        let brief = if (self.missing)().is_some() { "incomplete; " } else { "" };
        let counts = format!("{}; budget {budget} is too small for more\n", self.counted);
        let room = limit.saturating_sub(brief.len() + counts.len());
        let mut text = brief.to_owned() + &(self.failure)(room) + &counts;
        text.truncate(text.floor_char_boundary(limit));
        text
    }

    /// Returns the whole file with sections in `bytes` bytes, and true if any of them hides
    /// characters.
    ///
    /// If the first failed section does not fit, one line describes the failure and no successful
    /// call is shown. With `notes_hidden`, every section line reserves room for the note on
    /// invisible characters.
    fn filled(
        &self,
        budget: Budget,
        lines: &str,
        bytes: usize,
        notes_hidden: bool,
    ) -> (String, bool) {
        let mut filled = self.fill(SectionRoom { bytes, notes_hidden, only_failed: false });
        let mut failure = String::new();
        if self.is_failed(0) && filled.shown.first().is_none_or(|first| first.number != 0) {
            let most = bytes.saturating_sub(self.listing_min());
            if !self.lines_name_failures {
                failure = (self.failure)(most);
            }
            if failure.is_empty() && lines.is_empty() {
                failure = (self.lines)(most, 0);
            }
            let bytes = bytes.saturating_sub(failure.len());
            filled = self.fill(SectionRoom { bytes, notes_hidden, only_failed: true });
        }
        let is_hiding = filled.shown.iter().any(|shown| shown.excerpt.hidden > 0);
        (self.assemble(budget, &(failure + lines), &filled), is_hiding)
    }

    fn fill(&self, room: SectionRoom) -> FilledRoom {
        let admitted = self.admit(room);
        let fixed: usize = admitted.sections.iter().map(|section| section.overhead).sum();
        let short = block_len(&admitted.short);
        let pool = room.bytes.saturating_sub(admitted.listing + short).saturating_sub(fixed);
        let shown = self.excerpts(&admitted, pool);
        let used: usize =
            shown.iter().map(|shown| self.shown_text(shown, "").len() + TAG_LEN).sum();
        let listing = room.bytes.saturating_sub(used + short);
        FilledRoom { shown, short: admitted.short, listing }
    }

    /// Makes the excerpts of the admitted sections, which share `pool` bytes.
    ///
    /// Sections that fit entirely go first, since the bytes they leave unused go to the others in
    /// display order.
    fn excerpts(&self, admitted: &Admission, pool: usize) -> Vec<ShownSection> {
        let shares = self.shares(&admitted.sections, pool);
        let mut carry = pool.saturating_sub(shares.iter().sum());
        let mut listing = self.listing_min();
        let mut order: Vec<(&AdmittedSection, usize)> =
            admitted.sections.iter().zip(shares).collect();
        order.sort_by_key(|(section, share)| section.need != *share);
        let mut shown: Vec<ShownSection> = Vec::with_capacity(order.len());
        let (mut shown_lines, mut wholes) = (ShownLines::default(), HashMap::new());
        for (&AdmittedSection { number, overhead, .. }, share) in order {
            let share = share + carry;
            let excerpt = self.excerpt(number, share, &mut shown_lines);
            let mut section = ShownSection { number, excerpt, input: !admitted.brief };
            if section.excerpt.whole {
                self.deduplicate(&mut section, &mut wholes);
            }
            let allotted = share + overhead;
            if !section.excerpt.whole && section.excerpt.text.is_empty() {
                // Nothing fits its share: the section is only listed, and the next one gets the
                // rest.
                carry = allotted.saturating_sub(listing + self.listed_line(number).len());
                listing = 0;
                continue;
            }
            carry = allotted.saturating_sub(self.shown_text(&section, "").len() + TAG_LEN);
            shown.push(section);
        }
        shown.sort_by_key(|shown| shown.number);
        shown
    }

    /// Replaces a whole output by a reference if another section in `wholes` shows equal text.
    fn deduplicate(&self, section: &mut ShownSection, wholes: &mut HashMap<String, usize>) {
        let excerpt = &mut section.excerpt;
        let same = wholes.get(&excerpt.text).and_then(|number| self.sections.get(*number));
        match same.map(|section| format!("the same as {}", section.path)) {
            Some(same) if same.len() + 2 < excerpt.text.len() => {
                (excerpt.note, excerpt.text) = (Some(same), String::new());
            }
            Some(_) => {}
            None => drop(wholes.insert(excerpt.text.clone(), section.number)),
        }
    }

    /// Returns the excerpt of a section in at most `share` bytes, or the reason why it has none.
    pub(super) fn excerpt(
        &self,
        number: usize,
        share: usize,
        shown_lines: &mut ShownLines,
    ) -> Excerpt {
        let Some(section) = self.sections.get(number) else { return Excerpt::default() };
        let failed = |reason: &str| {
            let text = format!("({})\n", one_line(reason, 160));
            let text = if text.len() <= share { text } else { String::new() };
            Excerpt { text, note: Some("not read".into()), ..Excerpt::default() }
        };
        if let Some(reason) = &section.unreadable {
            return failed(reason);
        }
        let read = (self.open)(number).and_then(|file| {
            let focus = match section.outcome {
                _ if self.looks_failed(number) => Focus::Failure,
                Some(Outcome::Unknown) => Focus::Ends,
                _ => Focus::Scores,
            };
            let mut before = std::mem::take(shown_lines);
            let task: ExcerptTask = Box::new(move |deadline| {
                let made = excerpt(&*file, share, focus, &mut before, deadline);
                made.map(|made| (made, before)).map_err(|error| error.to_string())
            });
            let (made, after) = (self.run)(number, task)?;
            *shown_lines = after;
            Ok(made)
        });
        read.unwrap_or_else(|reason| {
            self.read_failed.set(true);
            failed(&reason)
        })
    }

    /// Puts the whole file together. `lines` follow the header, and the list of omitted sections
    /// takes at most `room` bytes.
    fn assemble(&self, budget: Budget, lines: &str, filled: &FilledRoom) -> String {
        let FilledRoom { shown, short, listing } = filled;
        let listed: Vec<usize> = (0..self.sections.len())
            .filter(|number| {
                shown.binary_search_by_key(number, |shown| shown.number).is_err()
                    && short.binary_search_by_key(number, |step| step.number).is_err()
            })
            .collect();
        let whole = shown.iter().filter(|shown| shown.excerpt.whole).count();
        let cut = shown.len() - whole;
        let counts = Counts { whole: whole + short.len(), cut, listed: listed.len() };
        let write = |tag: &str, used: usize| {
            let mut text = self.header(budget, used, &counts, tag);
            text.push_str(lines);
            shown.iter().for_each(|shown| text.push_str(&self.shown_text(shown, tag)));
            text.push_str(&block(short, tag));
            text.push_str(&self.not_shown(&listed, *listing, tag));
            text.push_str(&self.end(tag));
            text
        };
        let tag = unused_tag(&write("", 0));
        // The file states its own size, so its digits need a second pass.
        let mut used = budget.used(&write(&tag, 0));
        for _ in 0..4 {
            let text = write(&tag, used);
            let now = budget.used(&text);
            if now == used {
                return text;
            }
            used = now;
        }
        write(&tag, used)
    }

    /// Returns the first two lines. `used` is the size of the whole file in the unit of the budget.
    fn header(&self, budget: Budget, used: usize, counts: &Counts, tag: &str) -> String {
        let Counts { whole, cut, listed } = counts;
        format!(
            "{BEGIN}{}{} --- {tag}\nBudget: {budget}{}{} | Whole: {whole} | Cut: {cut} | Listed: {listed}\n",
            self.title,
            self.note(),
            used_text(budget, used),
            self.counted,
        )
    }

    fn end(&self, tag: &str) -> String {
        format!("\n--- End Evidence --- {tag}\n")
    }

    fn shown_text(&self, shown: &ShownSection, tag: &str) -> String {
        let Some(section) = self.sections.get(shown.number) else { return String::new() };
        self.section_line(section, Some(&shown.excerpt), tag, shown.input) + &shown.excerpt.text
    }
}

/// Returns the second line of `text`, or `None` if it has no frame.
fn header_line(text: &str) -> Option<&str> {
    text.strip_prefix(BEGIN)?.lines().nth(1)
}

struct Counts {
    whole: usize,
    cut: usize,
    listed: usize,
}

impl Counts {
    /// Returns counts with as many digits as any counts of `n` sections can have.
    fn upper_bound(n: usize) -> Counts {
        Counts { whole: n, cut: n, listed: n }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::super::content::OutputSection;
    use super::*;
    use swarmletfs_base::deadline::Deadline;
    use swarmletfs_base::name::RelPath;
    use swarmletfs_base::store::{Memory, Store};

    #[test]
    fn outputs_that_have_grown_since_they_were_listed_lose_neither_bound_nor_frame() {
        let (store, path) = (Memory::new(), RelPath::parse("file").unwrap());
        let odd = [&b"\xff"[..], b"[EVIDENCE:x]\n"].concat();
        for (length, listed) in
            [(1, 0), (1, 8), (4, 40), (40, 500), (400, 0), (400, 999), (20_000, 99)]
        {
            store.write(&path, odd.repeat(length));
            let section =
                OutputSection { path: "a".into(), bytes: listed, ..OutputSection::default() };
            for budget in (400..3_000).step_by(73) {
                let content = FrameContent {
                    title: "x".into(),
                    counted: "x".into(),
                    lines: &|_, _| String::new(),
                    failure: &|_| String::new(),
                    lines_name_failures: false,
                    sections: vec![section.clone(); 12],
                    open: &|_| store.open(&path).map_err(|error| error.to_string()),
                    run: &|_, task| task(Deadline::never()),
                    deadline: Deadline::never(),
                    missing: &|| None,
                    read_failed: Cell::new(false),
                    short_lines: RefCell::default(),
                };
                let text = String::from_utf8(
                    content.render(Budget::parse(&budget.to_string()).unwrap()).bytes,
                )
                .unwrap();
                assert!(
                    text.len() <= budget && text.starts_with("--- Evidence"),
                    "{length} at {budget}: {text}"
                );
            }
        }
    }

    #[test]
    fn a_tag_does_not_occur_in_the_content() {
        let first = unused_tag("x");
        assert_eq!(first.len(), TAG_LEN);
        assert_eq!(unused_tag("x"), first);
        let forged = format!("x{first}");
        assert!(!forged.contains(&unused_tag(&forged)));
    }
}
