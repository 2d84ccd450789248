//! The frame of an evidence.txt: header, sections, list of omitted outputs and last line, within a
//! hard limit.
//!
//! The first line, every section line and the last line end in a tag that is derived from the
//! content and does not occur in it, so no worker can forge a line of the frame.

use std::cell::Cell;
use std::collections::HashMap;

use super::EvidenceFile;
use super::admit::{Admission, SectionRoom, need_of};
use super::notes::{FAILED, FAILURE_LINE_MIN, hidden_note, note_max, offsets_note, used_text};
use crate::analysis::excerpt::{Excerpt, ExcerptResult, ExcerptTask, ShownLines, excerpt, length};
use crate::analysis::missing::Missing;
use crate::analysis::settings::Deadline;
use crate::model::Outcome;
use crate::store::File;
use crate::text::budget::{Budget, Unit};
use crate::text::clean::{TAG_LEN, one_line, unused_tag};
use crate::text::shares::Demand;

/// Maximum length of the input under a section line, in bytes.
const INPUT_MAX: usize = 120;
/// Maximum number of attempts to stay within the limit while outputs grow or hide characters.
const ATTEMPTS: usize = 5;
/// Start of the first line.
const BEGIN: &str = "--- Evidence for ";
/// Maximum number of attempts to find the longest text within a budget of tokens.
const TRIES: usize = 8;
/// Use of a token budget at which the search stops, in percent.
const ENOUGH_PERCENT: usize = 97;
/// Distance between the search limits at which the search stops, in bytes.
const CLOSE: usize = 24;
/// A text that is this much shorter than its limit has nothing left to show, in bytes.
const SPARE: usize = 1_000;

/// One output that may be shown, with the data of its section line.
#[derive(Debug, Clone)]
pub(super) struct OutputSection {
    /// Path of the output, safe to print.
    pub(crate) path: String,
    /// File that the offsets of omissions refer to, safe to print; `None` if it is the file at
    /// `path`.
    pub(crate) source: Option<String>,
    /// Admission order when the budget is short; 0 is first.
    pub(crate) priority: usize,
    /// Outcome of the call; `None` for a file that is not a call.
    pub(crate) outcome: Option<Outcome>,
    /// Exit code, if known.
    pub(crate) exit_code: Option<i64>,
    /// Size of the output in bytes.
    pub(crate) bytes: u64,
    /// Input of the call.
    pub(crate) input: Option<String>,
    /// Reason why the output cannot be read, as a part of a sentence.
    pub(crate) unreadable: Option<String>,
}

/// The input of a frame.
pub(super) struct FrameContent<'a> {
    /// Subject of the evidence: `Worker 123 (abc-123)`.
    pub(crate) title: String,
    /// Counts in the header: `Calls: 14 (3 failed, 1 unknown)`.
    pub(crate) counted: String,
    /// Returns the lines between header and sections. The arguments are the room for the lines and
    /// the part of it that the first failed section needs to show one line, in bytes.
    pub(crate) lines: &'a dyn Fn(usize, usize) -> String,
    /// Returns one line about the first failure within the given number of bytes, or an empty
    /// string if that is too little. Replaces a section that does not fit.
    pub(crate) failure: &'a dyn Fn(usize) -> String,
    /// True if `lines` already name the failures.
    pub(super) lines_name_failures: bool,
    /// The sections in display order.
    pub(crate) sections: Vec<OutputSection>,
    /// Opens the output of a section by its number.
    pub(crate) open: &'a dyn Fn(usize) -> Result<Box<dyn File>, String>,
    /// Runs the task for a section by its number; for many workers on a thread that can be
    /// abandoned.
    pub(crate) run: &'a dyn Fn(usize, ExcerptTask) -> ExcerptResult,
    /// Returns true while there is time left.
    pub(crate) go_on: Deadline<'a>,
    /// Returns the parts that were skipped for lack of time so far.
    pub(crate) missing: &'a dyn Fn() -> Option<Missing>,
    /// True once an output could not be read that should be readable.
    pub(super) read_failed: Cell<bool>,
}

/// A section with its excerpt.
struct ShownSection {
    number: usize,
    excerpt: Excerpt,
    /// True if the input of the call is shown.
    input: bool,
}

impl FrameContent<'_> {
    /// Renders the whole file, which never exceeds `budget`.
    pub(crate) fn render(self, budget: Budget) -> EvidenceFile {
        let text = match budget.unit() {
            Unit::Bytes => self.text_within(budget, budget.size()),
            Unit::Tokens => self.longest_text(budget),
        };
        EvidenceFile { bytes: text.into_bytes(), complete: !self.read_failed.get() }
    }

    /// Returns the longest text found that fits a budget of tokens.
    ///
    /// The tokens of a text are known only once it is written, so the byte limit is searched for.
    fn longest_text(&self, budget: Budget) -> String {
        let mut best: Option<String> = None;
        // Largest limit that fits, and smallest that does not.
        let (mut fits, mut over) = (0, Budget::MAX.size() + 1);
        let mut limit = budget.approx_bytes() * 3 / 4;
        for _ in 0..TRIES {
            let text = self.text_within(budget, limit);
            let used = budget.used(&text);
            // The stated use may not converge, since its own digits count.
            let is_exact = header_line(&text).is_none_or(|header| header.contains(&used_text(budget, used)));
            if used <= budget.size() && is_exact {
                let enough = used * 100 >= budget.size() * ENOUGH_PERCENT || text.len() + SPARE < limit;
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
            if best.is_some() && !(self.go_on)() {
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

    /// Returns the part of the first line that names what was skipped for lack of time, if
    /// anything.
    fn note(&self) -> String {
        (self.missing)().map(|missing| format!(" | {missing}")).unwrap_or_default()
    }

    /// Returns the whole file in at most `limit` bytes.
    fn text_within(&self, budget: Budget, limit: usize) -> String {
        let frame = self.header(budget, limit, &Counts::upper_bound(self.sections.len()), "").len()
            + self.end("").len()
            + 2 * TAG_LEN;
        let nothing = if self.sections.is_empty() { 0 } else { self.not_shown(&[], 0).len() + TAG_LEN };
        // One line about the failure is worth more than a frame without room for it.
        let failure = if self.is_failed(0) { FAILURE_LINE_MIN } else { 0 };
        let has_failure = || !(self.failure)(failure).is_empty();
        if frame + nothing > limit || frame + nothing + failure > limit && has_failure() {
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
    fn filled(&self, budget: Budget, lines: &str, bytes: usize, notes_hidden: bool) -> (String, bool) {
        let (mut shown, mut listed_room) = self.fill(SectionRoom { bytes, notes_hidden, only_failed: false });
        let mut failure = String::new();
        if self.is_failed(0) && shown.first().is_none_or(|first| first.number != 0) {
            let most = bytes.saturating_sub(self.not_shown(&[], 0).len() + TAG_LEN);
            if !self.lines_name_failures {
                failure = (self.failure)(most);
            }
            if failure.is_empty() && lines.is_empty() {
                failure = (self.lines)(most, 0);
            }
            let bytes = bytes.saturating_sub(failure.len());
            (shown, listed_room) = self.fill(SectionRoom { bytes, notes_hidden, only_failed: true });
        }
        let is_hiding = shown.iter().any(|shown| shown.excerpt.hidden > 0);
        (self.assemble(budget, &(failure + lines), shown, listed_room), is_hiding)
    }

    pub(crate) fn is_failed(&self, number: usize) -> bool {
        self.sections.get(number).is_some_and(|section| section.outcome == Some(Outcome::Failed))
    }

    /// Returns the maximum number of bytes that a section takes in addition to its excerpt.
    pub(crate) fn overhead(&self, section: &OutputSection, input: bool, notes_hidden: bool) -> usize {
        let hidden = if notes_hidden { hidden_note(length(section.bytes)).len() } else { 0 };
        let offsets = section.source.as_deref().map_or(0, |source| offsets_note(source).len());
        self.section_line(section, None, "", input).len() + TAG_LEN + note_max(section.bytes) + offsets + hidden
    }

    /// Chooses and fills the sections. Also returns the room left for the list of omitted ones, in
    /// bytes.
    fn fill(&self, room: SectionRoom) -> (Vec<ShownSection>, usize) {
        let needs: Vec<usize> = self.sections.iter().map(need_of).collect();
        let admitted = self.admit(&needs, room);
        let fixed: usize = admitted.numbers.iter().filter_map(|at| admitted.overheads.get(*at)).sum();
        let pool = room.bytes.saturating_sub(admitted.listing).saturating_sub(fixed);
        let shown = self.excerpts(&admitted, &needs, pool);
        let used: usize = shown.iter().map(|shown| self.shown_text(shown, "").len() + TAG_LEN).sum();
        (shown, room.bytes.saturating_sub(used))
    }

    /// Makes the excerpts of the admitted sections, which share `pool` bytes.
    ///
    /// Sections that fit entirely go first, since the bytes they leave unused go to the others in
    /// display order.
    fn excerpts(&self, admitted: &Admission, needs: &[usize], pool: usize) -> Vec<ShownSection> {
        let Admission { numbers, overheads, .. } = admitted;
        let demands: Vec<Demand> = numbers
            .iter()
            .map(|at| Demand { need: needs.get(*at).copied().unwrap_or(0), weight: self.weight(*at) })
            .collect();
        let shares = self.shares(numbers, &demands, pool);
        let mut carry = pool.saturating_sub(shares.iter().sum());
        let mut listing = self.not_shown(&[], 0).len() + TAG_LEN;
        let mut order: Vec<usize> = (0..numbers.len()).collect();
        order.sort_by_key(|i| {
            let met = demands.get(*i).map(|demand| demand.need) == shares.get(*i).copied();
            (!met, *i)
        });
        let mut shown: Vec<ShownSection> = Vec::with_capacity(numbers.len());
        let (mut shown_lines, mut wholes) = (ShownLines::default(), HashMap::new());
        for i in order {
            let (Some(number), Some(share)) = (numbers.get(i).copied(), shares.get(i)) else { continue };
            let share = share + carry;
            let excerpt = self.excerpt(number, share, &mut shown_lines);
            let mut section = ShownSection { number, excerpt, input: !admitted.brief };
            if section.excerpt.whole {
                self.deduplicate(&mut section, &mut wholes);
            }
            let allotted = share + overheads.get(number).copied().unwrap_or(0);
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

    fn excerpt(&self, number: usize, share: usize, shown_lines: &mut ShownLines) -> Excerpt {
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
            let is_failed = self.is_failed(number);
            let mut before = std::mem::take(shown_lines);
            let task = move |go_on: Deadline<'_>| {
                let made = excerpt(&*file, share, is_failed, &mut before, go_on);
                made.map(|made| (made, before)).map_err(|error| error.to_string())
            };
            let (made, after) = (self.run)(number, Box::new(task))?;
            *shown_lines = after;
            Ok(made)
        });
        read.unwrap_or_else(|reason| {
            self.read_failed.set(true);
            failed(&reason)
        })
    }

    fn assemble(&self, budget: Budget, lines: &str, shown: Vec<ShownSection>, room: usize) -> String {
        let listed: Vec<usize> = (0..self.sections.len())
            .filter(|number| shown.binary_search_by_key(number, |shown| shown.number).is_err())
            .collect();
        let whole = shown.iter().filter(|shown| shown.excerpt.whole).count();
        let counts = Counts { whole, cut: shown.len() - whole, listed: listed.len() };
        let write = |tag: &str, used: usize| {
            let mut text = self.header(budget, used, &counts, tag);
            text.push_str(lines);
            shown.iter().for_each(|shown| text.push_str(&self.shown_text(shown, tag)));
            text.push_str(&self.not_shown_tagged(&listed, room, tag));
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

    fn section_line(&self, section: &OutputSection, excerpt: Option<&Excerpt>, tag: &str, input: bool) -> String {
        let mut line = String::from("\n");
        if section.outcome == Some(Outcome::Failed) {
            line.push_str(FAILED);
        }
        line.push_str(&section.path);
        // An output may have grown since it was listed; the size must match the excerpt.
        let bytes = excerpt.and_then(|excerpt| excerpt.bytes).unwrap_or(section.bytes);
        line.push_str(&format!(" ({bytes} B"));
        match (section.outcome, section.exit_code) {
            (_, Some(code)) => line.push_str(&format!(", exit={code}")),
            (Some(Outcome::Unknown), None) => line.push_str(", outcome unknown"),
            (Some(Outcome::Ok), None) => line.push_str(", ok"),
            (Some(Outcome::Failed) | None, None) => {}
        }
        if let Some(note) = excerpt.and_then(|excerpt| excerpt.note.as_deref()) {
            line.push_str(&format!(", {note}"));
        }
        if let Some(hidden) = excerpt.map(|excerpt| excerpt.hidden).filter(|hidden| *hidden > 0) {
            line.push_str(&hidden_note(hidden));
        }
        if let Some(source) = section.source.as_deref().filter(|_| excerpt.is_some_and(|excerpt| excerpt.has_offsets)) {
            line.push_str(&offsets_note(source));
        }
        line.push_str(&format!("): {tag}\n"));
        if let Some(input) = section.input.as_ref().filter(|_| input) {
            line.push_str(&format!("$ {}\n", one_line(input, INPUT_MAX)));
        }
        line
    }

    fn shown_text(&self, shown: &ShownSection, tag: &str) -> String {
        let Some(section) = self.sections.get(shown.number) else { return String::new() };
        self.section_line(section, Some(&shown.excerpt), tag, shown.input) + &shown.excerpt.text
    }

    /// Returns the list of omitted sections with its tag, in at most `room` bytes.
    fn not_shown_tagged(&self, listed: &[usize], room: usize, tag: &str) -> String {
        if listed.is_empty() {
            return String::new();
        }
        let body = self.not_shown(listed, room.saturating_sub(TAG_LEN));
        body.replacen(": \n", &format!(": {tag}\n"), 1)
    }

    /// Returns the list of omitted sections: names while `room` bytes allow, then a count.
    pub(crate) fn not_shown(&self, listed: &[usize], room: usize) -> String {
        let count = listed.len().max(if listed.is_empty() { self.sections.len() } else { 0 });
        let mut text = format!("\nNot shown ({count}): \n");
        let more = |n: usize| format!("and {n} more\n");
        for (at, number) in listed.iter().enumerate() {
            let line = self.listed_line(*number);
            let rest = listed.len() - at - 1;
            let reserve = if rest == 0 { 0 } else { more(rest).len() };
            if text.len() + line.len() + reserve > room {
                let line = more(listed.len() - at);
                if text.len() + line.len() <= room && at > 0 {
                    text.push_str(&line);
                }
                break;
            }
            text.push_str(&line);
        }
        text
    }

    /// Returns the list entry of an omitted section.
    fn listed_line(&self, number: usize) -> String {
        let Some(section) = self.sections.get(number) else { return String::new() };
        let outcome = section.outcome.map(|outcome| format!("{outcome}, ")).unwrap_or_default();
        format!("{} ({outcome}{} B)\n", section.path, section.bytes)
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
    use super::*;
    use crate::name::RelPath;
    use crate::store::{Memory, Store};

    #[test]
    fn outputs_that_have_grown_since_they_were_listed_lose_neither_bound_nor_frame() {
        let (store, path) = (Memory::new(), RelPath::parse("file").unwrap());
        let odd = [&b"\xff"[..], b"[EVIDENCE:x]\n"].concat();
        for (length, listed) in [(1, 0), (1, 8), (4, 40), (40, 500), (400, 0), (400, 999), (20_000, 99)] {
            store.write(&path, odd.repeat(length));
            let section = OutputSection {
                path: "a".into(),
                source: None,
                priority: 0,
                outcome: None,
                exit_code: None,
                bytes: listed,
                input: None,
                unreadable: None,
            };
            for budget in (400..3_000).step_by(73) {
                let content = FrameContent {
                    title: "x".into(),
                    counted: "x".into(),
                    lines: &|_, _| String::new(),
                    failure: &|_| String::new(),
                    lines_name_failures: false,
                    sections: vec![section.clone(); 12],
                    open: &|_| store.open(&path).map_err(|error| error.to_string()),
                    run: &|_, task| task(&|| true),
                    go_on: &|| true,
                    missing: &|| None,
                    read_failed: Cell::new(false),
                };
                let text =
                    String::from_utf8(content.render(Budget::parse(&budget.to_string()).unwrap()).bytes).unwrap();
                assert!(text.len() <= budget && text.starts_with("--- Evidence"), "{length} at {budget}: {text}");
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
