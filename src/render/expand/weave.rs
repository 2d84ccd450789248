//! What is given on, and what is put in between: the budget dealt over markers.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::sync::Arc;

use super::super::clean::one_line;
use super::super::fragments::Found;
use super::super::marker::Marker;
use super::super::shares::{Demand, allocate};
use super::super::{Budget, Generated, Renderer, Scope, Unit};
use super::{ExpandError, Expanded};
use crate::error::Result;
use crate::model::Outcome;
use crate::name::Name;
use crate::spread::spread;
use crate::view::Member;

/// So much text is held back behind a marker, in bytes.
const HELD: usize = 4 << 20;
/// A worker's evidence has no less room than this, in bytes; who cannot have that is only named.
const LEAST: usize = 400;
/// The same in tokens.
const LEAST_TOKENS: usize = 160;
/// Number of attempts to make evidence smaller by no more than it is too large; after that the cut doubles each time.
const EXACT_ATTEMPTS: usize = 4;
/// What is said where the evidence stands further up.
const REPEATED: &str = "[Evidence of this worker: see above]";

/// Takes a text and its markers, and writes the text with evidence.
pub(super) struct Weaver<'a, W> {
    maker: Maker<'a>,
    /// How much of the budget is left, in its unit.
    left: usize,
    /// Whether it is put into a string of JSON.
    in_json: bool,
    output: W,
    held: Vec<Piece>,
    /// How much text is held, in bytes.
    size: usize,
    /// Whose markers were met.
    met: HashSet<Name>,
    /// Whose evidence was put in.
    told: HashSet<Name>,
    expanded: Expanded,
}

enum Piece {
    Text(Vec<u8>),
    Marker(Marker),
}

/// What becomes of a marker.
enum Fate {
    /// Nothing is put in.
    Nothing,
    /// A line of ours.
    Line(String),
    /// A line that says that the evidence is further up.
    Repeated(Name),
    /// The evidence of a worker.
    Evidence(Arc<Member>),
}

/// A worker whose evidence is wanted: how it ended, and where its marker is.
type Ranked = (Outcome, usize, Arc<Member>);

/// What is put in for each piece, and how much of the budget is left.
struct Put {
    texts: Vec<String>,
    left: usize,
}

impl Put {
    /// Puts in a text that takes so much, if there is room for it. Whether there was.
    fn take(&mut self, at: usize, cost: usize, text: String) -> bool {
        let slot = self.texts.get_mut(at).filter(|_| cost <= self.left);
        let Some(slot) = slot else { return false };
        self.left -= cost;
        *slot = text;
        true
    }
}

fn unavailable(why: &str) -> String {
    format!("[Evidence unavailable: {why}]")
}

impl<'a, W: Write> Weaver<'a, W> {
    pub(super) fn new(renderer: &'a Renderer, budget: Option<Budget>, in_json: bool, output: W) -> Weaver<'a, W> {
        let all = budget.unwrap_or(Budget::SWARM);
        let each = budget.unwrap_or(Budget::WORKER);
        Weaver {
            maker: Maker { renderer, each },
            left: all.size(),
            in_json,
            output,
            held: Vec::new(),
            size: 0,
            met: HashSet::new(),
            told: HashSet::new(),
            expanded: Expanded::default(),
        }
    }

    /// Text that is given on.
    pub(super) fn text(&mut self, text: &[u8]) -> Result<(), ExpandError> {
        if text.is_empty() {
            return Ok(());
        }
        if self.held.is_empty() {
            return self.write(text);
        }
        match self.held.last_mut() {
            Some(Piece::Text(held)) => held.extend_from_slice(text),
            _ => self.held.push(Piece::Text(text.to_vec())),
        }
        self.size += text.len();
        if self.size > HELD { self.settle(false) } else { Ok(()) }
    }

    /// Text that is given on, of which the markers are only counted.
    pub(super) fn outside(&mut self, text: &[u8]) -> Result<(), ExpandError> {
        self.expanded.outside += Marker::all(text).count() as u64;
        self.text(text)
    }

    /// A marker, whose text was given on.
    pub(super) fn marker(&mut self, marker: Marker) {
        let marker = if self.in_json { marker.unescaped() } else { Some(marker) };
        self.held.extend(marker.map(Piece::Marker));
    }

    /// Copies the rest of `input` as it is.
    pub(super) fn copy(&mut self, input: &mut impl Read) -> Result<(), ExpandError> {
        io::copy(input, &mut self.output).map(|_| ()).map_err(ExpandError::Write)
    }

    /// What came of all markers.
    pub(super) fn end(mut self) -> Result<Expanded, ExpandError> {
        self.output.flush().map_err(ExpandError::Write)?;
        Ok(self.expanded)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ExpandError> {
        self.output.write_all(bytes).map_err(ExpandError::Write)
    }

    /// Writes all that is held, with what is put in. `is_last`: nothing comes behind it.
    pub(super) fn settle(&mut self, is_last: bool) -> Result<(), ExpandError> {
        let held = std::mem::take(&mut self.held);
        self.size = 0;
        let fates: Vec<Fate> = held
            .iter()
            .map(|piece| match piece {
                Piece::Text(_) => Fate::Nothing,
                Piece::Marker(marker) => self.fate(marker),
            })
            .collect();
        let room = if is_last { self.left } else { self.left / 2 };
        let texts = self.texts(fates, room);
        for (at, (piece, text)) in held.iter().zip(texts).enumerate() {
            match piece {
                Piece::Text(text) => self.write(text)?,
                Piece::Marker(_) if text.is_empty() => {}
                Piece::Marker(_) => {
                    let behind = match held.get(at + 1) {
                        Some(Piece::Text(behind)) => behind.as_slice(),
                        Some(Piece::Marker(_)) => b"[",
                        None => b"",
                    };
                    self.put_in(&text, behind)?;
                }
            }
        }
        Ok(())
    }

    /// Puts in a text behind a marker, after an empty line; what is `behind` it begins on a line of its own.
    fn put_in(&mut self, text: &str, behind: &[u8]) -> Result<(), ExpandError> {
        let ends = if self.in_json { [&b"\""[..], b"\\n", b"\\r"] } else { [&b"\n"[..], b"\r\n", b"\r"] };
        let is_line = behind.is_empty() || ends.iter().any(|end| behind.starts_with(end));
        let text = format!("\n\n{text}{}", if is_line { "" } else { "\n" });
        self.left = self.left.saturating_sub(self.maker.each.used(&text));
        if !self.in_json {
            return self.write(text.as_bytes());
        }
        let quoted = serde_json::Value::from(text).to_string();
        let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default();
        self.write(inner.as_bytes())
    }

    fn fate(&mut self, marker: &Marker) -> Fate {
        let view = self.maker.renderer.view();
        if marker.is_of_another_run(view) {
            self.expanded.disagreeing += 1;
            return Fate::Nothing;
        }
        let Some(member) = marker.names().find_map(|name| view.worker(&name).ok()) else {
            self.expanded.unavailable += 1;
            let worker = one_line(&String::from_utf8_lossy(&marker.worker), 200);
            return Fate::Line(unavailable(&format!("there is no worker {worker} here")));
        };
        if !marker.agrees(&member.entry.worker()) {
            self.expanded.disagreeing += 1;
            return Fate::Nothing;
        }
        let is_new = self.met.insert(member.name.clone());
        if is_new { Fate::Evidence(member) } else { Fate::Repeated(member.name.clone()) }
    }

    /// What is put in for each: all of it within `room`.
    fn texts(&mut self, fates: Vec<Fate>, room: usize) -> Vec<String> {
        let mut put = Put { texts: fates.iter().map(|_| String::new()).collect(), left: room };
        let (mut wanted, mut lines) = (Vec::new(), Vec::new());
        for (at, fate) in fates.into_iter().enumerate() {
            match fate {
                Fate::Nothing => {}
                Fate::Line(line) => lines.push((at, None, line)),
                Fate::Repeated(name) => lines.push((at, Some(name), REPEATED.to_owned())),
                Fate::Evidence(member) => wanted.push((at, member)),
            }
        }
        let ranked = self.ranked(wanted);
        // Many lines must not take the room of all evidence.
        let of_lines: usize = lines.iter().map(|(.., line)| self.maker.cost(line)).sum();
        let kept = if ranked.is_empty() { of_lines } else { of_lines.min(put.left / 4) }.min(put.left);
        let (heard, unheard) = self.heard(&ranked, put.left - kept);
        self.expanded.without_room += unheard.len() as u64;
        for (at, line) in unheard {
            let cost = self.maker.cost(&line);
            if heard.len() * self.maker.least() + kept + cost <= put.left {
                put.take(at, cost, line);
            }
        }
        self.hear(heard, &mut put, kept);
        for (at, repeated, line) in lines {
            let is_told = repeated.as_ref().is_none_or(|name| self.told.contains(name));
            let is_put = is_told && put.take(at, self.maker.cost(&line), line);
            match repeated {
                Some(_) if is_put => self.expanded.repeated += 1,
                Some(_) => self.expanded.without_room += 1,
                None => {}
            }
        }
        put.texts
    }

    /// The workers whose evidence is wanted, those that failed first.
    fn ranked(&self, wanted: Vec<(usize, Arc<Member>)>) -> Vec<Ranked> {
        let members: Vec<Arc<Member>> = wanted.iter().map(|(_, member)| member.clone()).collect();
        let renderer = self.maker.renderer;
        let clock = renderer.settings.clock(10);
        let go_on = || clock.may_go_on();
        let stamped = renderer.stamps(&members);
        let found = renderer.fragments.of(&renderer.view, &stamped, false, &renderer.settings, &go_on);
        let outcome = |found: Found| found.fragment().map_or(Outcome::Unknown, |fragment| fragment.outcome);
        let ranked = wanted.into_iter().zip(found).map(|((at, member), found)| (outcome(found), at, member));
        let mut ranked: Vec<Ranked> = ranked.collect();
        ranked.sort_by_key(|(outcome, at, _)| (*outcome, *at));
        ranked
    }

    /// Puts in the evidence of these, within what is left less what is `kept` for others.
    fn hear(&mut self, heard: &[Ranked], put: &mut Put, kept: usize) {
        // Each is made as large as it may be: what it needs is known only then.
        let maker = self.maker;
        let made = spread(heard, |(.., member)| maker.within(member, maker.each.size() + maker.cost("")));
        let demand = |((outcome, ..), made): (&Ranked, &Result<String>)| Demand {
            need: made.as_ref().map_or(self.maker.least(), |text| self.maker.cost(text)),
            weight: if *outcome == Outcome::Failed { 2 } else { 1 },
        };
        let demands: Vec<Demand> = heard.iter().zip(&made).map(demand).collect();
        let shares = allocate(&demands, put.left.saturating_sub(kept));
        let wanted: Vec<_> = heard.iter().zip(&made).zip(demands.iter().zip(shares)).collect();
        let fitted = spread(&wanted, |(((.., member), made), (demand, share))| match made {
            Ok(_) if *share < demand.need => maker.within(member, *share),
            made => (*made).clone(),
        });
        for ((_, at, member), made) in heard.iter().zip(fitted) {
            let (count, text) = match made {
                Ok(text) if text.is_empty() => (&mut self.expanded.without_room, text),
                Ok(text) => {
                    self.told.insert(member.name.clone());
                    (&mut self.expanded.expanded, text)
                }
                Err(error) => (&mut self.expanded.unavailable, unavailable(&error.to_string())),
            };
            *count += 1;
            put.take(*at, self.maker.cost(&text), text);
        }
    }

    /// Whose evidence is put in, and the lines for all others, where there is not `room` for everybody.
    fn heard<'m>(&self, ranked: &'m [Ranked], room: usize) -> (&'m [Ranked], Vec<(usize, String)>) {
        let line = |(_, at, member): &Ranked| {
            let path = one_line(&member.name.display(), 200);
            (*at, format!("[Evidence left out for lack of room: workers/{path}/evidence.txt]"))
        };
        let lines: Vec<(usize, String)> = ranked.iter().map(line).collect();
        let mut of_lines: usize = lines.iter().map(|(_, line)| self.maker.cost(line)).sum();
        let mut heard = 0;
        for (_, line) in &lines {
            of_lines -= self.maker.cost(line);
            // Of so many that not even all lines have room some are heard, and one before anybody is only named.
            let named = if heard == 0 { 0 } else { of_lines.min(room / 2) };
            let is_room = (heard + 1) * self.maker.least() + named <= room;
            if !is_room {
                break;
            }
            heard += 1;
        }
        let (ranked, lines) = (ranked.get(..heard).unwrap_or_default(), lines.into_iter().skip(heard).collect());
        (ranked, lines)
    }
}

/// What is put in, made to measure.
#[derive(Clone, Copy)]
struct Maker<'a> {
    renderer: &'a Renderer,
    /// What one worker's evidence may take, of a budget that is not used up.
    each: Budget,
}

impl Maker<'_> {
    /// How much of the budget a text takes that is put in.
    fn cost(&self, text: &str) -> usize {
        self.each.used(&format!("\n\n{text}\n"))
    }

    fn least(&self) -> usize {
        match self.each.unit() {
            Unit::Bytes => LEAST,
            Unit::Tokens => LEAST_TOKENS,
        }
    }

    /// A worker's evidence that takes no more than `share` with what is around it.
    fn within(&self, member: &Member, share: usize) -> Result<String> {
        let mut size = share.saturating_sub(self.cost(""));
        let mut cut = 0;
        for attempt in 0.. {
            let text = self.evidence(member, size)?;
            let over = self.cost(&text).saturating_sub(share);
            if over == 0 || size == 0 {
                return Ok(text);
            }
            cut = if attempt < EXACT_ATTEMPTS { over } else { over.max(2 * cut) };
            size = size.saturating_sub(cut);
        }
        Ok(String::new())
    }

    /// A worker's evidence of at most `size`, without a line end behind it.
    fn evidence(&self, member: &Member, size: usize) -> Result<String> {
        let file = Generated::Evidence(Some(self.each.with_size(size)));
        let scope = Scope::Worker(member.name.clone());
        let rendered =
            self.renderer.state(&scope, &file).and_then(|state| self.renderer.render(&scope, &file, state))?;
        Ok(String::from_utf8_lossy(&rendered.bytes).trim_end_matches('\n').to_owned())
    }
}
