//! The frame of an excerpt: header, sections, list of what did not fit, end; and its hard bound.
//!
//! The first line, every section line and the last line end in a tag that is derived from the content and does not
//! occur in it, so that no worker can write a line that passes for one of ours.

use std::cell::Cell;
use std::collections::HashMap;

use super::super::shares::Claim;
use super::Written;
use super::admit::{Admitted, Room, need_of};
use super::excerpt::{Excerpt, LINE_LEAST, NOT_UTF8, Seen, WHOLE_MAX, excerpt, length};
use crate::model::Outcome;
use crate::render::clean::{TAG, one_line, removed, tag_of};
use crate::render::settings::Deadline;
use crate::render::{Budget, Missing, Unit};
use crate::store::File;

/// The longest input that stands under a section line, in bytes.
const INPUT_MAX: usize = 120;
/// How often it is tried to keep the bound with outputs that change meanwhile, or hide characters.
const ATTEMPTS: usize = 5;
/// How a frame begins.
const BEGIN: &str = "--- Evidence for ";
/// How often it is tried to find the longest text that fits a budget of tokens; that so much of it is used, in percent, is
/// enough, or that limits differ by so many bytes.
const TRIES: usize = 8;
const ENOUGH_PERCENT: usize = 97;
const CLOSE: usize = 24;
/// A text that is so many bytes shorter than it may be shows all that there is.
const SPARE: usize = 1_000;

/// One output that may be shown.
#[derive(Debug, Clone)]
pub(super) struct Section {
    /// Its path, safe to print.
    pub(super) path: String,
    /// The file that the offsets of its omissions are for, safe to print; `None` if that is the file at `path`.
    pub(super) source: Option<String>,
    /// Where there is not room for all, this one is heard as the so manieth.
    pub(super) turn: usize,
    /// How the call ended; `None` for a file that is no call.
    pub(super) outcome: Option<Outcome>,
    /// Its exit code, where one is known.
    pub(super) exit_code: Option<i64>,
    /// Its size in bytes.
    pub(super) bytes: u64,
    /// What the call was made with.
    pub(super) input: Option<String>,
    /// Why it cannot be read, as a part of a sentence.
    pub(super) unreadable: Option<String>,
}

/// Makes an excerpt while its argument returns true. Returns it with the lines that were shown by then.
pub(in crate::render) type Cut = Box<dyn FnOnce(Deadline<'_>) -> CutResult + Send>;
/// The excerpt and the lines that were shown, or a sentence on why the output cannot be read.
pub(in crate::render) type CutResult = Result<(Excerpt, Seen), String>;

/// Everything a frame is made of. Sections are in the order they are shown in.
pub(super) struct Content<'a> {
    /// What the evidence is for: `Worker 123 (abc-123)`.
    pub(super) title: String,
    /// What the header says is being counted: `Calls: 14 (3 failed, 1 unknown)`.
    pub(super) counted: String,
    /// Returns the lines between header and sections, in at most so many bytes. The second number is how many of these
    /// bytes the first failed section needs to show one line.
    pub(super) lines: &'a dyn Fn(usize, usize) -> String,
    /// Returns a line that tells of the first failure, in at most so many bytes, for where its section has no room; empty
    /// if even that is too little.
    pub(super) failure: &'a dyn Fn(usize) -> String,
    /// True if the lines tell of the failures already.
    pub(super) lines_tell_failures: bool,
    /// The sections.
    pub(super) sections: Vec<Section>,
    /// Opens the output of a section by its number.
    pub(super) open: &'a dyn Fn(usize) -> Result<Box<dyn File>, String>,
    /// Makes the excerpt of a section by its number, on a thread that can be given up where many workers are shown.
    pub(super) cut: &'a dyn Fn(usize, Cut) -> CutResult,
    /// Whether there is time left to look into more.
    pub(super) go_on: Deadline<'a>,
    /// Returns what there was no time for, as far as that is known by now.
    pub(super) missing: &'a dyn Fn() -> Option<Missing>,
    /// Whether an output that should be readable was not.
    pub(super) failed: Cell<bool>,
}

/// A section as far as it is shown.
struct Shown {
    number: usize,
    excerpt: Excerpt,
    /// True if its input is shown, too.
    input: bool,
}

impl Content<'_> {
    /// The whole file: at most `budget`, whatever the content.
    pub(super) fn within(self, budget: Budget) -> Written {
        let text = match budget.unit() {
            Unit::Bytes => self.text(budget, budget.size()),
            Unit::Tokens => self.fitting(budget),
        };
        Written { bytes: text.into_bytes(), whole: !self.failed.get() }
    }

    /// The longest text found that fits a budget of tokens: what bytes take is known only when they are there.
    fn fitting(&self, budget: Budget) -> String {
        let mut best: Option<String> = None;
        // It fits with so many bytes, and does not with so many.
        let (mut fits, mut over) = (0, Budget::MAX.size() + 1);
        let mut limit = budget.about() * 3 / 4;
        for _ in 0..TRIES {
            let text = self.text(budget, limit);
            let used = budget.used(&text);
            // What it says of itself may not settle, since its own digits count.
            let is_true = header_line(&text).is_none_or(|header| header.contains(&used_text(budget, used)));
            if used <= budget.size() && is_true {
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
                // The text that fits says nothing of the time that ran out; another one does.
                let note = self.note().len();
                return Some(self.text(budget, fits.saturating_sub(note)))
                    .filter(|text| budget.used(text) <= budget.size())
                    .unwrap_or_else(|| self.smallest(budget));
            }
            let next = (limit as u128 * budget.size() as u128 / used.max(1) as u128) as usize;
            limit = (next - next / 100).clamp(fits + 1, over - 1);
        }
        best.unwrap_or_else(|| self.smallest(budget))
    }

    /// Returns the counts alone, cut to a budget of tokens.
    fn smallest(&self, budget: Budget) -> String {
        let mut text = self.tiny(budget, budget.about());
        while budget.used(&text) > budget.size() {
            text.truncate(text.floor_char_boundary(text.len() - 1 - text.len() / 8));
        }
        text
    }

    /// Returns the part of the first line that says what there was no time for, or nothing.
    fn note(&self) -> String {
        (self.missing)().map(|missing| format!(" | {missing}")).unwrap_or_default()
    }

    /// The whole file in at most `limit` bytes.
    fn text(&self, budget: Budget, limit: usize) -> String {
        let frame =
            self.header(budget, limit, &Counts::most(self.sections.len()), "").len() + self.end("").len() + 2 * TAG;
        let nothing = if self.sections.is_empty() { 0 } else { self.not_shown(&[], 0).len() + TAG };
        // A frame that leaves no room for the failure would say less than the failure alone.
        let failure = if self.is_failed(0) { FAILURE_LEAST } else { 0 };
        let has_failure = || !(self.failure)(failure).is_empty();
        if frame + nothing > limit || frame + nothing + failure > limit && has_failure() {
            return self.tiny(budget, limit);
        }
        let mut room = limit - frame;
        let lines = (self.lines)(room - nothing, self.least_of_first(false));
        room = room.saturating_sub(lines.len());
        // Few outputs hide anything, so room to say so is kept only once one does.
        let mut says_hidden = false;
        for _ in 0..ATTEMPTS {
            let (text, is_hiding) = self.filled(budget, &lines, room, says_hidden);
            if text.len() <= limit {
                return text;
            }
            if is_hiding && !says_hidden {
                says_hidden = true;
                continue;
            }
            // An output is larger by now than it was listed, and so is what is said of it.
            room = room.saturating_sub(text.len() - limit);
        }
        self.tiny(budget, limit)
    }

    /// Where not even the frame fits: a line of the first failure and the counts, cut to `limit` bytes.
    fn tiny(&self, budget: Budget, limit: usize) -> String {
        let brief = if (self.missing)().is_some() { "incomplete; " } else { "" };
        let counts = format!("{}; budget {budget} is too small for more\n", self.counted);
        let room = limit.saturating_sub(brief.len() + counts.len());
        let mut text = brief.to_owned() + &(self.failure)(room) + &counts;
        text.truncate(text.floor_char_boundary(limit));
        text
    }

    /// The whole file with sections in `room` bytes, and whether any of them hides characters. Where the first failed
    /// section has no room among them, a line tells of the failure, and nothing is shown of what went well. If
    /// `says_hidden`, every section line has room to say how many invisible characters were removed.
    fn filled(&self, budget: Budget, lines: &str, bytes: usize, says_hidden: bool) -> (String, bool) {
        let (mut shown, mut listed_room) = self.fill(Room { bytes, says_hidden, only_failed: false });
        let mut told = String::new();
        if self.is_failed(0) && shown.first().is_none_or(|first| first.number != 0) {
            let most = bytes.saturating_sub(self.not_shown(&[], 0).len() + TAG);
            if !self.lines_tell_failures {
                told = (self.failure)(most);
            }
            if told.is_empty() && lines.is_empty() {
                told = (self.lines)(most, 0);
            }
            let bytes = bytes.saturating_sub(told.len());
            (shown, listed_room) = self.fill(Room { bytes, says_hidden, only_failed: true });
        }
        let is_hiding = shown.iter().any(|shown| shown.excerpt.hidden > 0);
        (self.assemble(budget, &(told + lines), shown, listed_room), is_hiding)
    }

    pub(super) fn is_failed(&self, number: usize) -> bool {
        self.sections.get(number).is_some_and(|section| section.outcome == Some(Outcome::Failed))
    }

    /// Returns the most bytes that a section takes beside its excerpt.
    pub(super) fn overhead(&self, section: &Section, input: bool, says_hidden: bool) -> usize {
        let hidden = if says_hidden { hidden_note(length(section.bytes)).len() } else { 0 };
        let offsets = section.source.as_deref().map_or(0, |source| offsets_note(source).len());
        self.section_line(section, None, "", input).len() + TAG + note_max(section.bytes) + offsets + hidden
    }

    /// Chooses which sections are shown and fills them. The second value is the room left for the list of others.
    fn fill(&self, room: Room) -> (Vec<Shown>, usize) {
        let needs: Vec<usize> = self.sections.iter().map(need_of).collect();
        let admitted = self.admit(&needs, room);
        let fixed: usize = admitted.numbers.iter().filter_map(|at| admitted.overheads.get(*at)).sum();
        let pool = room.bytes.saturating_sub(admitted.listing).saturating_sub(fixed);
        let shown = self.cut(&admitted, &needs, pool);
        let used: usize = shown.iter().map(|shown| self.shown_text(shown, "").len() + TAG).sum();
        (shown, room.bytes.saturating_sub(used))
    }

    /// Deals `pool` over the admitted sections. Those that need least go first: what they leave goes to the others,
    /// and among the others to the more important ones first.
    fn cut(&self, admitted: &Admitted, needs: &[usize], pool: usize) -> Vec<Shown> {
        let Admitted { numbers, overheads, .. } = admitted;
        let claims: Vec<Claim> = numbers
            .iter()
            .map(|at| Claim { need: needs.get(*at).copied().unwrap_or(0), weight: self.weight(*at) })
            .collect();
        let shares = self.shares(numbers, &claims, pool);
        let mut carry = pool.saturating_sub(shares.iter().sum());
        let mut listing = self.not_shown(&[], 0).len() + TAG;
        let mut order: Vec<usize> = (0..numbers.len()).collect();
        order.sort_by_key(|i| {
            let met = claims.get(*i).map(|claim| claim.need) == shares.get(*i).copied();
            (!met, *i)
        });
        let mut shown: Vec<Shown> = Vec::with_capacity(numbers.len());
        let (mut seen, mut wholes) = (Seen::default(), HashMap::new());
        for i in order {
            let (Some(number), Some(share)) = (numbers.get(i).copied(), shares.get(i)) else { continue };
            let share = share + carry;
            let excerpt = self.excerpt(number, share, &mut seen);
            let mut one = Shown { number, excerpt, input: !admitted.brief };
            if one.excerpt.whole {
                self.refer(&mut one, &mut wholes);
            }
            let allotted = share + overheads.get(number).copied().unwrap_or(0);
            if !one.excerpt.whole && one.excerpt.text.is_empty() {
                // Nothing of it fits its share: it is listed, and the rest of what it was dealt goes on.
                carry = allotted.saturating_sub(listing + self.listed_line(number).len());
                listing = 0;
                continue;
            }
            carry = allotted.saturating_sub(self.shown_text(&one, "").len() + TAG);
            shown.push(one);
        }
        shown.sort_by_key(|shown| shown.number);
        shown
    }

    /// Of a whole output that is shown of another section already, among `wholes`, says that instead.
    fn refer(&self, one: &mut Shown, wholes: &mut HashMap<String, usize>) {
        let excerpt = &mut one.excerpt;
        let same = wholes.get(&excerpt.text).and_then(|number| self.sections.get(*number));
        match same.map(|section| format!("the same as {}", section.path)) {
            Some(same) if same.len() + 2 < excerpt.text.len() => {
                (excerpt.note, excerpt.text) = (Some(same), String::new());
            }
            Some(_) => {}
            None => drop(wholes.insert(excerpt.text.clone(), one.number)),
        }
    }

    fn excerpt(&self, number: usize, share: usize, seen: &mut Seen) -> Excerpt {
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
            let mut before = std::mem::take(seen);
            let cut = move |go_on: Deadline<'_>| {
                let made = excerpt(&*file, share, is_failed, &mut before, go_on);
                made.map(|made| (made, before)).map_err(|error| error.to_string())
            };
            let (made, after) = (self.cut)(number, Box::new(cut))?;
            *seen = after;
            Ok(made)
        });
        read.unwrap_or_else(|reason| {
            self.failed.set(true);
            failed(&reason)
        })
    }

    fn assemble(&self, budget: Budget, lines: &str, shown: Vec<Shown>, room: usize) -> String {
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
        let tag = tag_of(&write("", 0));
        // How much is used stands in the file itself; a second pass settles its own digits.
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

    fn section_line(&self, section: &Section, excerpt: Option<&Excerpt>, tag: &str, input: bool) -> String {
        let mut line = String::from("\n");
        if section.outcome == Some(Outcome::Failed) {
            line.push_str(FAILED);
        }
        line.push_str(&section.path);
        // An output may have grown since it was listed; what is said goes with what is shown.
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

    fn shown_text(&self, shown: &Shown, tag: &str) -> String {
        let Some(section) = self.sections.get(shown.number) else { return String::new() };
        self.section_line(section, Some(&shown.excerpt), tag, shown.input) + &shown.excerpt.text
    }

    /// The list of what is not shown: by name as far as `room` allows, the rest counted.
    fn not_shown_tagged(&self, listed: &[usize], room: usize, tag: &str) -> String {
        if listed.is_empty() {
            return String::new();
        }
        let body = self.not_shown(listed, room.saturating_sub(TAG));
        body.replacen(": \n", &format!(": {tag}\n"), 1)
    }

    pub(super) fn not_shown(&self, listed: &[usize], room: usize) -> String {
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

    /// How a section that is not shown is listed.
    fn listed_line(&self, number: usize) -> String {
        let Some(section) = self.sections.get(number) else { return String::new() };
        let outcome = section.outcome.map(|outcome| format!("{outcome}, ")).unwrap_or_default();
        format!("{} ({outcome}{} B)\n", section.path, section.bytes)
    }
}

/// How a line begins that tells of a failure.
const FAILED: &str = "[FAILED] ";
/// The least that such a line takes, in bytes.
const FAILURE_LEAST: usize = FAILED.len() + LINE_LEAST + 1;

/// Returns a line that tells of a failed call, cut to `room` bytes; empty if that is too little to tell anything.
pub(super) fn failure_line(path: &str, message: &str, room: usize) -> String {
    let starts = [format!("{FAILED}{path}: "), FAILED.to_owned()];
    let line = |start: String| {
        let left = room.saturating_sub(start.len() + 1);
        let fits = left >= message.len().min(LINE_LEAST) && !message.is_empty();
        fits.then(|| format!("{start}{}\n", one_line(message, left)))
    };
    starts.into_iter().find_map(line).unwrap_or_default()
}

/// How it is said how much of a budget is used.
fn used_text(budget: Budget, used: usize) -> String {
    format!(" | Used: {} | ", budget.amount(used))
}

/// The second line of a text that has a frame.
fn header_line(text: &str) -> Option<&str> {
    text.strip_prefix(BEGIN)?.lines().nth(1)
}

/// Returns the length of the longest note on the section line of an output of `bytes` bytes that is not known before that
/// is read.
fn note_max(bytes: u64) -> usize {
    let note = if bytes > WHOLE_MAX { "searched to byte 18446744073709551615" } else { NOT_UTF8 };
    ", ".len() + note.len()
}

/// Returns what a section line says of the file that offsets are for.
fn offsets_note(source: &str) -> String {
    format!(", offsets in {source}")
}

/// Returns what a section line says of invisible characters that were removed.
fn hidden_note(hidden: usize) -> String {
    format!(", {}", removed(hidden))
}

struct Counts {
    whole: usize,
    cut: usize,
    listed: usize,
}

impl Counts {
    /// As many digits as any counts of `n` sections can take.
    fn most(n: usize) -> Counts {
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
            let section = Section {
                path: "a".into(),
                source: None,
                turn: 0,
                outcome: None,
                exit_code: None,
                bytes: listed,
                input: None,
                unreadable: None,
            };
            for budget in (400..3_000).step_by(73) {
                let content = Content {
                    title: "x".into(),
                    counted: "x".into(),
                    lines: &|_, _| String::new(),
                    failure: &|_| String::new(),
                    lines_tell_failures: false,
                    sections: vec![section.clone(); 12],
                    open: &|_| store.open(&path).map_err(|error| error.to_string()),
                    cut: &|_, cut| cut(&|| true),
                    go_on: &|| true,
                    missing: &|| None,
                    failed: Cell::new(false),
                };
                let text =
                    String::from_utf8(content.within(Budget::parse(&budget.to_string()).unwrap()).bytes).unwrap();
                assert!(text.len() <= budget && text.starts_with("--- Evidence"), "{length} at {budget}: {text}");
            }
        }
    }

    #[test]
    fn a_tag_does_not_occur_in_the_content() {
        let first = tag_of("x");
        assert_eq!(first.len(), TAG);
        assert_eq!(tag_of("x"), first);
        let forged = format!("x{first}");
        assert!(!forged.contains(&tag_of(&forged)));
    }
}
