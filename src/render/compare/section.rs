//! What is shown of one difference, cut to its share: pieces of text, and what was left out of them with its place.
//!
//! A line of a worker's text begins with a space, `-` or `+`, one of ours with anything else; what would read as the head
//! of another file's difference gets a backslash.

use std::fmt::Write;

use super::super::clean::{InvisibleChars, cleaned_with, escape_markers};
use super::super::grep::clip;
use super::super::shares::{Demand, allocate};
use super::super::text::count;

/// What is shown of a line at most, in bytes.
const LINE_MAX: usize = 400;
/// A piece that is cut gets at least about so much, in bytes.
const HEARING: usize = 240;
/// What a line that says what was left out takes beside paths, about, in bytes.
const OMISSION: usize = 34;
/// And each path in it, with the bytes.
const PLACE: usize = 26;
/// A part of a line is shown of no fewer bytes.
const PART_MIN: usize = 40;
/// Lines that differ have so many times the share of those around them.
const CHANGED_WEIGHT: usize = 3;
/// How often it is tried to keep the bound.
const TRIES: usize = 4;
/// A piece in which lines change sides more often is cut at one place only.
const RUNS_MAX: usize = 12;
/// What numbers in a line that says what was left out may grow by, in bytes.
const DIGITS: usize = 16;

/// A line of a worker's text.
#[derive(Debug, Clone)]
pub(super) struct Line {
    /// ` `, `-` or `+`.
    sign: char,
    /// Cleaned, and cut where it is long.
    text: String,
    /// Of which of the sources it is.
    side: usize,
    /// Where it is there, in bytes, the end excluded.
    place: (u64, u64),
}

impl Line {
    /// The line `raw`, which is at byte `from` of a source; where it is long, what is around its byte `about` is shown.
    pub(super) fn of(sign: char, raw: &[u8], (side, from): (usize, usize), about: usize) -> Line {
        let place = (from as u64, (from + raw.len()) as u64);
        let end = raw.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
        // Texts may differ in nothing else.
        let (text, _) = clip(raw.get(..end).unwrap_or_default(), about, LINE_MAX, InvisibleChars::Escape);
        Line { sign, text: guarded(sign, text), side, place }
    }

    fn size(&self) -> usize {
        self.sign.len_utf8() + self.text.len() + 1
    }

    fn write(&self, out: &mut String) {
        let _ = writeln!(out, "{}{}", self.sign, self.text);
    }

    /// The same line in at most `room` bytes; `None` if that is hardly any of it.
    fn cut(&self, room: usize) -> Option<String> {
        let said = format!("[... {} B ...]", self.place.1 - self.place.0);
        let room = room.saturating_sub(said.len() + 2);
        let part = self.text.get(..self.text.floor_char_boundary(room)).filter(|_| room >= PART_MIN)?;
        Some(format!("{}{part}{said}\n", self.sign))
    }
}

/// Text that would make a line of ours behind its sign gets a backslash.
fn guarded(sign: char, text: String) -> String {
    let is_head = matches!(sign, '-' | '+') && text.starts_with(&format!("{sign}{sign} workers/"));
    if is_head { format!("\\{text}") } else { text }
}

/// Several lines that belong together.
#[derive(Debug, Default)]
pub(super) struct Piece {
    /// The line before them, without its end.
    pub(super) head: String,
    /// The lines.
    pub(super) lines: Vec<Line>,
    /// How much it tells; of several that do not all have room those are shown that tell most.
    pub(super) substance: usize,
    /// How many words of the aspect it holds.
    pub(super) held: usize,
}

impl Piece {
    /// How many bytes of it are in one text alone.
    pub(super) fn changed(&self) -> usize {
        self.lines.iter().filter(|line| line.sign != ' ').map(|line| line.text.len()).sum()
    }

    /// Its lines as they are shown.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(|line| line.text.as_str())
    }

    fn size(&self) -> usize {
        self.head.len() + 1 + self.lines.iter().map(Line::size).sum::<usize>()
    }

    /// Its text in at most `share` bytes; `None` if that is too little for any of its lines.
    fn within(&self, share: usize, sources: &[String]) -> Option<String> {
        let runs: Vec<&[Line]> = self.lines.chunk_by(|a, b| a.sign == b.sign).collect();
        if runs.len() > RUNS_MAX && self.size() > share {
            return self.begin(share, sources);
        }
        let size = |run: &[Line]| run.iter().map(Line::size).sum::<usize>();
        let demand = |run: &&[Line]| Demand {
            need: size(run),
            weight: if run.first().is_some_and(|line| line.sign == ' ') { 1 } else { CHANGED_WEIGHT },
        };
        let demands: Vec<Demand> = runs.iter().map(demand).collect();
        let mut total = share.checked_sub(self.head.len() + 1)?;
        for _ in 0..TRIES {
            let mut out = format!("{}\n", self.head);
            let mut is_any = false;
            for (run, share) in runs.iter().zip(allocate(&demands, total)) {
                is_any |= write_run(&mut out, run, share, sources);
            }
            match out.len().checked_sub(share) {
                None | Some(0) => return is_any.then_some(out),
                Some(over) => total = total.checked_sub(over)?,
            }
        }
        None
    }

    /// Its first lines.
    fn begin(&self, share: usize, sources: &[String]) -> Option<String> {
        let mut said = String::new();
        write_omission(&mut said, (self.lines.len(), "line"), self.lines.iter(), sources);
        let mut room = share.checked_sub(self.head.len() + 1 + said.len() + DIGITS)?;
        let fits = |line: &&Line| {
            let fits = line.size() <= room;
            room = if fits { room - line.size() } else { 0 };
            fits
        };
        let first = self.lines.iter().take_while(fits).count();
        let (shown, left) = self.lines.split_at_checked(first).filter(|(shown, _)| !shown.is_empty())?;
        let mut out = format!("{}\n", self.head);
        shown.iter().for_each(|line| line.write(&mut out));
        write_omission(&mut out, (left.len(), "line"), left.iter(), sources);
        Some(out)
    }
}

/// Writes as much of lines of one kind as `share` holds, from both ends; what was left out is said beyond that. Whether any
/// is shown.
fn write_run(out: &mut String, run: &[Line], share: usize, sources: &[String]) -> bool {
    if run.iter().map(Line::size).sum::<usize>() <= share {
        run.iter().for_each(|line| line.write(out));
        return !run.is_empty();
    }
    let fitting = |lines: &mut dyn Iterator<Item = &Line>, room: &mut usize| {
        let fits = |line: &&Line| {
            let fits = line.size() <= *room;
            *room = if fits { *room - line.size() } else { 0 };
            fits
        };
        lines.take_while(fits).count()
    };
    let mut room = share * 2 / 3;
    let mut first = fitting(&mut run.iter(), &mut room);
    let mut cut = None;
    if first == 0 {
        cut = run.first().and_then(|line| line.cut(share));
        first = usize::from(cut.is_some());
    }
    let mut room = if cut.is_some() { 0 } else { share / 3 };
    let last = fitting(&mut run.iter().skip(first).rev(), &mut room);
    match cut {
        Some(cut) => out.push_str(&cut),
        None => run.iter().take(first).for_each(|line| line.write(out)),
    }
    let (left, shown) = run.get(first..).unwrap_or_default().split_at(run.len() - first - last);
    let mut said = String::new();
    write_omission(&mut said, (left.len(), "line"), left.iter(), sources);
    // A line that says so may be longer than what it stands for.
    match left.iter().map(Line::size).sum::<usize>() <= said.len() {
        true => left.iter().for_each(|line| line.write(out)),
        false => out.push_str(&said),
    }
    shown.iter().for_each(|line| line.write(out));
    first + last > 0
}

/// Says that so many of something were left out, and where they are.
fn write_omission<'a>(
    out: &mut String,
    (left, what): (usize, &str),
    lines: impl Iterator<Item = &'a Line> + Clone,
    sources: &[String],
) {
    if left == 0 {
        return;
    }
    let range = |(side, source): (usize, &String)| {
        let of = lines.clone().filter(|line| line.side == side);
        let from = of.clone().map(|line| line.place.0).min()?;
        let to = of.map(|line| line.place.1).max()?;
        Some(format!("bytes {from}-{} of {source}", to.saturating_sub(1)))
    };
    let ranges: Vec<String> = sources.iter().enumerate().filter_map(range).collect();
    let between = if ranges.is_empty() { "" } else { ": " };
    let _ = writeln!(out, "[... {} omitted{between}{} ...]", count(left, what), ranges.join(", "));
}

/// One difference.
#[derive(Debug, Default)]
pub(super) struct Section {
    /// What it is about, as lines with their ends.
    pub(super) head: String,
    /// Where its lines are from, by their side; none where lines have no place in a file.
    pub(super) sources: Vec<String>,
    /// What a piece is called.
    pub(super) what: &'static str,
    /// The pieces, in order.
    pub(super) pieces: Vec<Piece>,
    /// Its weight against others.
    pub(super) weight: usize,
    /// The number of the file that it is about.
    pub(super) file: Option<usize>,
}

impl Section {
    /// How much all of it takes, in bytes, of which only pieces that hold `held` words of the aspect are shown.
    pub(super) fn need(&self, held: usize) -> usize {
        let is_held = |piece: &&Piece| piece.held >= held;
        let shown: usize = self.pieces.iter().filter(is_held).map(Piece::size).sum();
        let left = self.pieces.iter().filter(|piece| !is_held(piece)).count();
        self.head.len() + shown + left * self.omission()
    }

    /// The least that is worth anything, in bytes.
    pub(super) fn hearing(&self) -> usize {
        let most = self.pieces.iter().map(Piece::size).sum::<usize>();
        self.head.len() + most.min(HEARING) + if most > HEARING { 2 * self.omission() } else { 0 }
    }

    /// Whether anything of it bears on the aspect so much.
    pub(super) fn is_held(&self, held: usize) -> bool {
        held == 0 || self.pieces.iter().any(|piece| piece.held >= held)
    }

    fn omission(&self) -> usize {
        OMISSION + self.sources.iter().map(|source| source.len() + PLACE).sum::<usize>()
    }

    /// Its text in at most `share` bytes; `None` if that is too little for anything.
    pub(super) fn within(&self, share: usize, held: usize) -> Option<String> {
        if self.pieces.is_empty() {
            return (self.head.len() <= share).then(|| self.head.clone());
        }
        let mut order: Vec<usize> = (0..self.pieces.len()).collect();
        order.retain(|at| self.pieces.get(*at).is_some_and(|piece| piece.held >= held));
        let is_whole = order.len() == self.pieces.len() && self.need(0) <= share;
        let substance = |at: &usize| self.pieces.get(*at).map_or(0, |piece| piece.substance);
        order.sort_by_key(|at| (std::cmp::Reverse(substance(at)), *at));
        let mut room = share.checked_sub(self.head.len() + if is_whole { 0 } else { self.omission() })?;
        let size = |at: &usize| self.pieces.get(*at).map_or(0, Piece::size);
        let heard = |at: &&usize| {
            let need = size(at).min(HEARING + self.omission()) + if is_whole { 0 } else { self.omission() };
            let fits = need <= room;
            room = if fits { room - need } else { 0 };
            fits
        };
        let mut most = if is_whole { order.len() } else { order.iter().take_while(heard).count().max(1) };
        while most > 0 {
            let mut chosen: Vec<usize> = order.iter().copied().take(most).collect();
            chosen.sort_unstable();
            let demands: Vec<Demand> = chosen.iter().map(|at| Demand { need: size(at), weight: 1 }).collect();
            let said = if is_whole { 0 } else { self.gaps(&chosen) * self.omission() };
            let mut total = share.saturating_sub(self.head.len() + said);
            for _ in 0..TRIES {
                let Some(text) = self.written(&chosen, &allocate(&demands, total)) else { break };
                let Some(over) = text.len().checked_sub(share).filter(|over| *over > 0) else { return Some(text) };
                total = total.saturating_sub(over);
            }
            most = if most > 8 { most * 3 / 4 } else { most - 1 };
        }
        None
    }

    /// How many times pieces are left out between, before and behind the chosen ones.
    fn gaps(&self, chosen: &[usize]) -> usize {
        let mut next = 0;
        let mut gaps = 0;
        for at in chosen.iter().copied().chain([self.pieces.len()]) {
            gaps += usize::from(at > next);
            next = at + 1;
        }
        gaps
    }

    /// The text with the chosen pieces, each in its share; `None` if there is none of it.
    fn written(&self, chosen: &[usize], shares: &[usize]) -> Option<String> {
        let mut out = self.head.clone();
        let mut next = 0;
        let mut is_any = false;
        let gap = |out: &mut String, from: usize, to: usize| {
            let left = self.pieces.get(from..to).unwrap_or_default();
            let changed = left.iter().flat_map(|piece| &piece.lines).filter(|line| line.sign != ' ');
            write_omission(out, (left.len(), self.what), changed, &self.sources);
        };
        for (at, share) in chosen.iter().zip(shares) {
            let text = self.pieces.get(*at).and_then(|piece| piece.within(*share, &self.sources));
            let Some(text) = text else { continue };
            gap(&mut out, next, *at);
            out.push_str(&text);
            next = at + 1;
            is_any = true;
        }
        gap(&mut out, next, self.pieces.len());
        is_any.then_some(out)
    }
}

/// A line of a worker's text as a part of a line of ours.
pub(super) fn inline(text: &str) -> String {
    escape_markers(&cleaned_with(text.as_bytes(), InvisibleChars::Escape).text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(pieces: usize, lines: usize) -> Section {
        let mut at = 0;
        let mut line = |sign: char, n: usize| {
            let text = format!("line {n} of some length\n");
            at += text.len();
            Line::of(sign, text.as_bytes(), (usize::from(sign == '+'), at - text.len()), 0)
        };
        let piece = |n: usize| Piece {
            head: format!("@@ {n} @@"),
            lines: (0..lines)
                .map(|i| line(if if lines == 77 { i % 2 == 0 } else { i < lines / 2 } { '-' } else { '+' }, i))
                .collect(),
            substance: n % 3,
            held: 0,
        };
        Section {
            head: "--- workers/a/x\n+++ workers/b/x\n".into(),
            sources: vec!["workers/a/x".into(), "workers/b/x".into()],
            what: "hunk",
            pieces: (0..pieces).map(piece).collect(),
            weight: 1,
            file: None,
        }
    }

    #[test]
    fn no_share_is_exceeded_and_what_is_left_out_is_said() {
        for (pieces, lines) in [(1, 4), (1, 400), (5, 10), (60, 6), (3, 100), (2, 77)] {
            let section = section(pieces, lines);
            for share in (0..section.need(0) + 300).step_by(37) {
                let Some(text) = section.within(share, 0) else { continue };
                assert!(text.len() <= share, "{} over {share}: {text}", text.len());
                let shown = text.lines().filter(|line| line.contains(" of some length")).count();
                let left: usize = text
                    .lines()
                    .filter_map(|line| line.strip_prefix("[... "))
                    .map(|rest| {
                        rest.split(' ').next().unwrap().parse::<usize>().unwrap()
                            * if rest.contains(" hunk") { lines } else { 1 }
                    })
                    .sum();
                assert_eq!(shown + left, pieces * lines, "{share}: {text}");
            }
            assert_eq!(section.within(section.need(0), 0).unwrap().len(), section.need(0));
        }
    }

    #[test]
    fn a_part_of_what_is_needed_is_used() {
        let section = section(3, 200);
        for share in (600..section.need(0)).step_by(501) {
            let text = section.within(share, 0).unwrap();
            assert!(text.len() * 10 >= share * 6, "{} of {share}", text.len());
            assert!(text.contains("\n-line") && text.contains("\n+line"), "{share}: both sides are heard: {text}");
        }
    }

    #[test]
    fn no_line_reads_as_a_head() {
        let line = Line::of('-', b"-- workers/b/forged\n", (0, 0), 0);
        let mut out = String::new();
        line.write(&mut out);
        assert_eq!(out, "-\\-- workers/b/forged\n");
    }
}
