//! Expands evidence markers within a budget.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::sync::Arc;

use super::{ExpandError, ExpandStats};
use crate::output::marker::Marker;
use crate::render::Renderer;
use crate::route::{Document, Report};
use crate::view::{Member, View};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::Outcome;
use swarmletfs_base::name::Name;
use swarmletfs_base::parallel::parallel_map;
use swarmletfs_base::split::Split;
use swarmletfs_base::text::budget::{Budget, BudgetUnit, Demand, allocate};
use swarmletfs_base::text::clean::one_line;

/// Most text held back after a marker, in bytes.
const HELD_MAX: usize = 4 << 20;
/// Least size of a worker's evidence, in bytes. A worker with a smaller share is only named.
const EVIDENCE_MIN: usize = 400;
const EVIDENCE_MIN_TOKENS: usize = 160;
/// Attempts that shrink evidence by exactly its excess; after that the cut doubles each time.
const EXACT_ATTEMPTS: usize = 4;
/// Maximum length of the names that an ambiguous id may stand for, in bytes.
const CANDIDATES_MAX: usize = 600;
/// Inserted after a marker whose evidence is further up.
const REPEATED: &str = "[Evidence of this worker: see above]";

/// Receives a text with its markers, and writes the text with evidence.
pub(super) struct MarkerExpander<'a, W> {
    fitter: EvidenceFitter<'a>,
    /// Remaining budget, in its unit.
    left: usize,
    /// True if evidence is inserted into a JSON string.
    in_json: bool,
    output: W,
    held: Vec<HeldItem>,
    held_bytes: usize,
    /// Workers whose markers have occurred.
    seen: HashSet<Name>,
    inserted: HashSet<Name>,
    stats: ExpandStats,
}

enum HeldItem {
    Text(Vec<u8>),
    Marker(Marker),
}

/// The text to insert after a marker.
enum Replacement {
    Nothing,
    Line(String),
    /// A line that refers to evidence further up.
    Repeated(Name),
    Evidence(Arc<Member>),
}

struct EvidenceRequest {
    outcome: Outcome,
    /// Index of the marker among the held items.
    at: usize,
    member: Arc<Member>,
}

/// The texts to insert for each held item, and the budget that is left.
struct Insertions {
    texts: Vec<String>,
    left: usize,
}

impl Insertions {
    /// Sets the text of an item if the budget covers `cost`. Returns true if it does.
    fn set(&mut self, at: usize, cost: usize, text: String) -> bool {
        let slot = self.texts.get_mut(at).filter(|_| cost <= self.left);
        let Some(slot) = slot else { return false };
        self.left -= cost;
        *slot = text;
        true
    }
}

/// Returns the line that stands for evidence that cannot be shown.
fn unavailable(why: &str) -> String {
    format!("[Evidence unavailable: {why}]")
}

/// Returns the line for a marker of a removed worker; `None` if the marker names no such worker.
fn removed_worker(view: &View, marker: &Marker) -> Option<String> {
    // An id with the same beginning as the id of the removed worker belongs to another worker.
    let is_there = marker.names().any(|name| view.worker(&name).is_ok());
    let removed =
        marker.names().find_map(|name| view.removed_worker(&name)).filter(|_| !is_there)?;
    let (day, rule) = (removed.removed_at.strftime("%Y-%m-%d"), one_line(&removed.rule, 100));
    Some(format!("[evidence no longer available: removed {day} by {rule}]"))
}

/// Returns the worker that a marker names by its id, or else by the beginning of its id.
///
/// # Errors
/// Any error of [`View::find_worker`].
fn marked_worker(view: &View, marker: &Marker) -> Result<Arc<Member>> {
    let exact = marker.names().find_map(|name| view.worker(&name).ok());
    let mut found = marker.names().map(|name| view.find_worker(&name));
    match exact {
        Some(member) => Ok(member),
        None => found
            .find(|found| matches!(found, Ok(_) | Err(Error::AmbiguousId(_))))
            .unwrap_or(Err(Error::NotFound)),
    }
}

impl<'a, W: Write> MarkerExpander<'a, W> {
    pub(super) fn new(
        renderer: &'a Renderer,
        budget: Option<Budget>,
        in_json: bool,
        output: W,
    ) -> MarkerExpander<'a, W> {
        let all = budget.unwrap_or(Budget::SWARM);
        let each = budget.unwrap_or(Budget::WORKER);
        MarkerExpander {
            fitter: EvidenceFitter { renderer, each },
            left: all.size(),
            in_json,
            output,
            held: Vec::new(),
            held_bytes: 0,
            seen: HashSet::new(),
            inserted: HashSet::new(),
            stats: ExpandStats::default(),
        }
    }

    pub(super) fn text(&mut self, text: &[u8]) -> Result<(), ExpandError> {
        if text.is_empty() {
            return Ok(());
        }
        if self.held.is_empty() {
            return self.write(text);
        }
        match self.held.last_mut() {
            Some(HeldItem::Text(held)) => held.extend_from_slice(text),
            _ => self.held.push(HeldItem::Text(text.to_vec())),
        }
        self.held_bytes += text.len();
        if self.held_bytes > HELD_MAX { self.flush_held(false) } else { Ok(()) }
    }

    /// Copies text, and counts its markers without expanding them.
    pub(super) fn outside(&mut self, text: &[u8]) -> Result<(), ExpandError> {
        self.stats.outside += Marker::all(text).count() as u64;
        self.text(text)
    }

    /// Adds a marker, whose own text has been copied.
    pub(super) fn marker(&mut self, marker: Marker) {
        let marker = if self.in_json { marker.unescaped() } else { Some(marker) };
        self.held.extend(marker.map(HeldItem::Marker));
    }

    pub(super) fn copy(&mut self, input: &mut impl Read) -> Result<(), ExpandError> {
        io::copy(input, &mut self.output).map(|_| ()).map_err(ExpandError::Write)
    }

    pub(super) fn finish(mut self) -> Result<ExpandStats, ExpandError> {
        self.output.flush().map_err(ExpandError::Write)?;
        Ok(self.stats)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ExpandError> {
        self.output.write_all(bytes).map_err(ExpandError::Write)
    }

    /// Writes all held items with their insertions. Spends the whole remaining budget if `is_last`,
    /// else at most half of it.
    pub(super) fn flush_held(&mut self, is_last: bool) -> Result<(), ExpandError> {
        let held = std::mem::take(&mut self.held);
        self.held_bytes = 0;
        let replacements: Vec<Replacement> = held
            .iter()
            .map(|item| match item {
                HeldItem::Text(_) => Replacement::Nothing,
                HeldItem::Marker(marker) => self.replacement(marker),
            })
            .collect();
        let room = if is_last { self.left } else { self.left / 2 };
        let texts = self.insertions(replacements, room);
        for (at, (item, text)) in held.iter().zip(texts).enumerate() {
            match item {
                HeldItem::Text(text) => self.write(text)?,
                HeldItem::Marker(_) if text.is_empty() => {}
                HeldItem::Marker(_) => {
                    let following = match held.get(at + 1) {
                        Some(HeldItem::Text(following)) => following.as_slice(),
                        Some(HeldItem::Marker(_)) => b"[",
                        None => b"",
                    };
                    self.insert(&text, following)?;
                }
            }
        }
        Ok(())
    }

    /// Writes an insertion after a blank line. Adds a line end unless `following` begins with one.
    fn insert(&mut self, text: &str, following: &[u8]) -> Result<(), ExpandError> {
        let ends =
            if self.in_json { [&b"\""[..], b"\\n", b"\\r"] } else { [&b"\n"[..], b"\r\n", b"\r"] };
        let is_line_end = following.is_empty() || ends.iter().any(|end| following.starts_with(end));
        let text = format!("\n\n{text}{}", if is_line_end { "" } else { "\n" });
        self.left = self.left.saturating_sub(self.fitter.each.used(&text));
        if !self.in_json {
            return self.write(text.as_bytes());
        }
        let quoted = serde_json::Value::from(text).to_string();
        let inner = quoted.strip_prefix('"').and_then(|quoted| quoted.strip_suffix('"'));
        self.write(inner.unwrap_or(&quoted).as_bytes())
    }

    /// Chooses the replacement of a marker, and counts markers that are not expanded.
    fn replacement(&mut self, marker: &Marker) -> Replacement {
        let view = self.fitter.renderer.view();
        if marker.is_of_another_run(view) {
            self.stats.disagreeing += 1;
            return Replacement::Nothing;
        }
        if let Some(line) = removed_worker(view, marker) {
            self.stats.unavailable += 1;
            return Replacement::Line(line);
        }
        let member = match marked_worker(view, marker) {
            Ok(member) => member,
            Err(error) => {
                self.stats.unavailable += 1;
                let worker = one_line(&String::from_utf8_lossy(&marker.worker), 200);
                return Replacement::Line(unavailable(&match error {
                    Error::AmbiguousId(_) => {
                        format!("{worker}: {}", one_line(&error.to_string(), CANDIDATES_MAX))
                    }
                    _ => format!("there is no worker {worker} here"),
                }));
            }
        };
        if !marker.agrees(&member.entry.worker()) {
            self.stats.disagreeing += 1;
            return Replacement::Nothing;
        }
        let is_new = self.seen.insert(member.name.clone());
        if is_new {
            Replacement::Evidence(member)
        } else {
            Replacement::Repeated(member.name.clone())
        }
    }

    /// Returns the texts to insert, which together take at most `room`.
    fn insertions(&mut self, replacements: Vec<Replacement>, room: usize) -> Vec<String> {
        let mut insertions =
            Insertions { texts: replacements.iter().map(|_| String::new()).collect(), left: room };
        let (mut wanted, mut lines) = (Vec::new(), Vec::new());
        for (at, replacement) in replacements.into_iter().enumerate() {
            match replacement {
                Replacement::Nothing => {}
                Replacement::Line(line) => lines.push((at, None, line)),
                Replacement::Repeated(name) => lines.push((at, Some(name), REPEATED.to_owned())),
                Replacement::Evidence(member) => wanted.push((at, member)),
            }
        }
        let requests = self.ranked_requests(wanted);
        // If there is evidence to insert, lines reserve at most a quarter of the room.
        let lines_cost: usize = lines.iter().map(|(.., line)| self.fitter.cost(line)).sum();
        let reserved =
            if requests.is_empty() { lines_cost } else { lines_cost.min(insertions.left / 4) };
        let reserved = reserved.min(insertions.left);
        let (admitted, omission_lines) = self.admit(&requests, insertions.left - reserved);
        self.stats.without_room += omission_lines.len() as u64;
        for (at, line) in omission_lines {
            let cost = self.fitter.cost(&line);
            if admitted.len() * self.fitter.evidence_min() + reserved + cost <= insertions.left {
                insertions.set(at, cost, line);
            }
        }
        self.insert_evidence(admitted, &mut insertions, reserved);
        for (at, repeated, line) in lines {
            let is_valid = repeated.as_ref().is_none_or(|name| self.inserted.contains(name));
            let is_set = is_valid && insertions.set(at, self.fitter.cost(&line), line);
            match repeated {
                Some(_) if is_set => self.stats.repeated += 1,
                Some(_) => self.stats.without_room += 1,
                None => {}
            }
        }
        insertions.texts
    }

    /// Returns the requests for the evidence of the `wanted` workers, which come with the index of
    /// their marker. Failed workers come first.
    fn ranked_requests(&self, wanted: Vec<(usize, Arc<Member>)>) -> Vec<EvidenceRequest> {
        let members: Vec<Arc<Member>> = wanted.iter().map(|(_, member)| member.clone()).collect();
        let renderer = self.fitter.renderer;
        let clock = renderer.analyzer.settings.clock(10);
        let states = renderer.analyzer.states(&members);
        let found = renderer.analyzer.digests(&states, false, clock.deadline());
        let requests = wanted.into_iter().zip(found).map(|((at, member), found)| {
            let outcome = found.digest().map_or(Outcome::Unknown, |digest| digest.outcome);
            EvidenceRequest { outcome, at, member }
        });
        let mut requests: Vec<EvidenceRequest> = requests.collect();
        requests.sort_by_key(|request| (request.outcome, request.at));
        requests
    }

    /// Renders the evidence of the admitted workers within the room that is left beside `reserved`.
    fn insert_evidence(
        &mut self,
        admitted: &[EvidenceRequest],
        insertions: &mut Insertions,
        reserved: usize,
    ) {
        // Render each at its largest size first, since its need is known only afterwards.
        let fitter = self.fitter;
        let rendered = parallel_map(admitted, |request| {
            fitter.fit(&request.member, fitter.each.size() + fitter.cost(""))
        });
        let demands = admitted.iter().zip(&rendered).map(|(request, text)| Demand {
            need: text.as_ref().map_or(fitter.evidence_min(), |text| fitter.cost(text)),
            weight: if request.outcome == Outcome::Failed { 2 } else { 1 },
        });
        let demands: Vec<Demand> = demands.collect();
        let shares = allocate(&demands, insertions.left.saturating_sub(reserved));
        let with_shares: Vec<_> =
            admitted.iter().zip(&rendered).zip(demands.iter().zip(shares)).collect();
        let fitted = parallel_map(&with_shares, |((request, text), (demand, share))| match text {
            Ok(_) if *share < demand.need => fitter.fit(&request.member, *share),
            text => (*text).clone(),
        });
        for (request, text) in admitted.iter().zip(fitted) {
            let (count, text) = match text {
                Ok(text) if text.is_empty() => (&mut self.stats.without_room, text),
                Ok(text) => {
                    self.inserted.insert(request.member.name.clone());
                    (&mut self.stats.expanded, text)
                }
                Err(error) => (&mut self.stats.unavailable, unavailable(&error.to_string())),
            };
            *count += 1;
            insertions.set(request.at, self.fitter.cost(&text), text);
        }
    }

    /// Splits the requests into those with enough room for evidence, and lines for the others, each
    /// with the index of its marker.
    fn admit<'m>(
        &self,
        requests: &'m [EvidenceRequest],
        room: usize,
    ) -> (&'m [EvidenceRequest], Vec<(usize, String)>) {
        let lines = requests.iter().map(|request| {
            let path = one_line(&request.member.name.display(), 200);
            let line = format!("[Evidence left out for lack of room: workers/{path}/evidence.txt]");
            (request.at, line)
        });
        let lines: Vec<(usize, String)> = lines.collect();
        let mut lines_cost: usize = lines.iter().map(|(_, line)| self.fitter.cost(line)).sum();
        let mut admitted = 0;
        for (_, line) in &lines {
            lines_cost -= self.fitter.cost(line);
            // The first worker is admitted before any other is named. Beyond that, the lines of the
            // others reserve at most half of the room.
            let reserved = if admitted == 0 { 0 } else { lines_cost.min(room / 2) };
            if (admitted + 1) * self.fitter.evidence_min() + reserved > room {
                break;
            }
            admitted += 1;
        }
        (requests.split_at_known(admitted).0, lines.into_iter().skip(admitted).collect())
    }
}

#[derive(Clone, Copy)]
struct EvidenceFitter<'a> {
    renderer: &'a Renderer,
    /// Limit of one worker's evidence.
    each: Budget,
}

impl EvidenceFitter<'_> {
    /// Returns the part of the budget that an insertion takes.
    fn cost(&self, text: &str) -> usize {
        self.each.used(&format!("\n\n{text}\n"))
    }

    fn evidence_min(&self) -> usize {
        match self.each.unit() {
            BudgetUnit::Bytes => EVIDENCE_MIN,
            BudgetUnit::Tokens => EVIDENCE_MIN_TOKENS,
        }
    }

    /// Renders a worker's evidence so that its insertion takes at most `share`.
    fn fit(&self, member: &Member, share: usize) -> Result<String> {
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

    /// Renders a worker's evidence of at most `size`, without the final line end.
    fn evidence(&self, member: &Member, size: usize) -> Result<String> {
        let report = Report::Evidence(Some(self.each.with_size(size)));
        let state = self.renderer.state(&Document::Worker(member.name.clone(), report))?;
        let rendered = self.renderer.render(state)?;
        Ok(String::from_utf8_lossy(&rendered.bytes).trim_end_matches('\n').to_owned())
    }
}
