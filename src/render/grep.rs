//! `grep/<regex>`: the lines that match, of the workers that failed first, within a budget.
//!
//! The files are searched twice. First the lines that match are counted in all of them ([`crate::search`]); then it is
//! known what there is, and the budget is dealt over the files, so that one with thousands of lines does not take the
//! place of all others; then the lines that have a place are read. So what is held is bounded by what is shown. What a
//! name asks for is in `ask`, the text in `page`.

mod ask;
mod page;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tracing::debug;

pub(super) use ask::FOLDER;
pub use ask::{Options, Query};
use page::NAMES_PART;
pub(super) use page::clip;
pub use page::{Answer, Searched, Shown, ShownLine};

use super::fragments::{self, GoOn, Stamped};
use super::isolate::GRACE_OF_PART;
use super::own::{at_in_text, holds_everything, place, shown_path};
use super::shares::{Claim, deal};
use super::{Budget, Missing, Rendered, Renderer, Scope};
use crate::catalog::Fingerprint;
use crate::error::{Error, Result};
use crate::model::{Outcome, Status};
use crate::name::{Name, RelPath};
use crate::search::regex::{self, Found, Hits, Line, Pattern};
use crate::spread::spread;
use crate::view::{Member, Visible};

/// What is shown of a line at most, in bytes.
const LINE_MAX: usize = 400;
/// The same of a line of context.
const CONTEXT_MAX: usize = 160;
/// What a line takes beside its path and its text, and a line of context its text, about, in bytes.
const FRAME: usize = 10;
/// What the first and the last line of an answer take beside what was asked and names, and one that says what was left out
/// beside its path, in bytes.
const HEAD: usize = 220;
const OMISSION: usize = 30;
const CONTEXT: usize = 80;
/// The files of a worker that failed have so many times the share of others.
const FAILED_WEIGHT: usize = 3;

/// A file with lines that match.
struct Candidate {
    member: Arc<Member>,
    outcome: Outcome,
    /// Of its worker.
    turn: usize,
    hits: Hits,
    /// Where it is shown.
    path: String,
}

impl Renderer {
    /// The lines that match `query` in the files of `scope`, as they are now. [`Error::NotFound`] where the scope is not in
    /// the view.
    pub fn grep(&self, scope: &Scope, query: &Query) -> Result<Answer> {
        let visible = self.view.visible();
        let stamped = self.stamped(&visible, scope)?;
        let answer = self.grep_in(scope, &visible, &stamped, query).0;
        self.note(answer.missing.as_ref());
        Ok(answer)
    }

    /// The file that answers `query`.
    pub(super) fn grep_file(
        &self,
        scope: &Scope,
        visible: &Visible,
        stamped: &Stamped,
        query: &Query,
    ) -> Result<Rendered> {
        let (answer, complete) = self.grep_in(scope, visible, stamped, query);
        self.answered(visible, stamped, (answer.text, complete, answer.missing))
    }

    /// The answer, and whether all was read that it is made of, of one moment.
    fn grep_in(&self, scope: &Scope, visible: &Visible, stamped: &Stamped, query: &Query) -> (Answer, bool) {
        debug!("a search");
        // What is found must still be put in order, and read.
        let [searching, ordering, showing] = [7, 8, 10].map(|tenths| self.settings.clock(tenths));
        let budget = self.settings.budget_of(scope, query.options.budget);
        let pattern = match Pattern::new(&query.regex, query.options.ignore_case, query.options.glob.as_deref()) {
            Ok(pattern) => pattern.under(query.under.clone()),
            Err(error) => return (Answer::refused(query, error, budget), true),
        };
        let mut members: Vec<(&Arc<Member>, &Result<Arc<Fingerprint>>)> = stamped.iter().map(|(m, s)| (m, s)).collect();
        // Where there is not time for all, those are searched of which it is known that they failed.
        members.sort_by_key(|(member, _)| member.entry.status != Status::Failed);
        self.settings.expect(members.len());
        let found = spread(&members, |(member, stamp)| {
            let found = self.found(member, stamp, &pattern, &|| searching.may_go_on());
            self.settings.count_one();
            found
        });
        let mut searched = Searched::default();
        let (mut with_hits, mut hits): (Stamped, Vec<Vec<Hits>>) = (Vec::new(), Vec::new());
        for ((member, stamp), found) in members.iter().zip(found) {
            let Some(found) = found else { continue };
            searched.add(&found);
            if !found.hits.is_empty() {
                with_hits.push(((*member).clone(), (*stamp).clone()));
                hits.push(found.hits);
            }
        }
        let in_time = || ordering.may_go_on();
        let known = self.fragments.of(&self.view, &with_hits, false, &self.settings, &in_time);
        let mut complete = searched.is_whole() && known.iter().all(|found| found.fragment().is_some());
        let files = candidates(&with_hits, &known, hits);
        let showing = self.settings.grant(showing);
        let go_on = || showing.may_go_on();
        let files = self.in_order(files, &with_hits, budget, &go_on);
        let shown = self.lines(&files, query, &pattern, budget, &go_on);
        let sessions = Self::undiscovered(visible, scope);
        let missing = Missing { files: searched.unsearched.late, sessions, ..Missing::default() };
        let is_late = known.iter().any(|found| found.fragment().is_some_and(|fragment| fragment.late));
        let missing = missing.if_any(is_late || [&searching, &ordering, &showing].iter().any(|clock| clock.ran_out()));
        let told: HashSet<&Name> = shown.iter().map(|file| &file.worker).collect();
        let is_now = |(member, stamp): &(Arc<Member>, Result<Arc<Fingerprint>>)| {
            stamp.as_ref().is_ok_and(|stamp| self.view.is_now(member, stamp))
        };
        complete &= go_on() && with_hits.iter().filter(|(member, _)| told.contains(&member.name)).all(is_now);
        let found = files.iter().map(|file| (&file.member.name, file.path.as_str(), file.hits.lines));
        (Answer::new(query, searched, found, shown, budget, missing), complete)
    }

    /// What is found in the files of a worker; none if it vanished.
    fn found(
        &self,
        member: &Member,
        stamp: &Result<Arc<Fingerprint>>,
        pattern: &Pattern,
        go_on: GoOn<'_>,
    ) -> Option<Found> {
        let mut found = Found::default();
        if !go_on() {
            found.unsearched.late = stamp.as_ref().map_or(1, |stamp| stamp.files.max(1));
            return Some(found);
        }
        let place = place(&member.name);
        let shown = |path: &RelPath| place.join_path(&shown_path(path));
        match regex::search(&self.view, member, &shown, pattern, LINE_MAX, go_on) {
            Ok(found) => Some(found),
            Err(Error::NotFound) => None,
            Err(_) => {
                found.unsearched.unreadable = 1;
                Some(found)
            }
        }
    }

    /// The files in the order in which they are shown, as far as there can be room for them: those of workers that failed
    /// first, and of each its failed calls; last of all what holds everything once more.
    fn in_order(&self, mut files: Vec<Candidate>, of: &Stamped, budget: Budget, go_on: GoOn<'_>) -> Vec<Candidate> {
        files.sort_by_cached_key(|file| {
            (holds_everything(&file.hits.path), file.outcome, file.turn, file.hits.path.clone())
        });
        let mut room = budget.about();
        let mut calls: HashMap<usize, HashMap<RelPath, Outcome>> = HashMap::new();
        for file in &files {
            if room == 0 || !go_on() {
                break;
            }
            room = room.saturating_sub(hearing(file, 0));
            calls.entry(file.turn).or_insert_with(|| {
                let record = of
                    .get(file.turn)
                    .and_then(|(member, stamp)| self.record(member, stamp.as_ref().ok()?, GRACE_OF_PART, go_on).ok());
                record.iter().flat_map(|record| record.trace.outcomes()).collect()
            });
        }
        files.sort_by_cached_key(|file| {
            let path = &file.hits.path;
            let failed = calls.get(&file.turn).and_then(|calls| calls.get(path)) == Some(&Outcome::Failed);
            (holds_everything(path), file.outcome, file.turn, !failed, path.clone())
        });
        files
    }

    /// The lines of the files that are given a share of the budget.
    fn lines(
        &self,
        files: &[Candidate],
        query: &Query,
        pattern: &Pattern,
        budget: Budget,
        go_on: GoOn<'_>,
    ) -> Vec<Shown> {
        let context = query.options.context;
        // Where there is little room, much of one line is not worth several others.
        let line_max = LINE_MAX.min(budget.about() / 4);
        let mut room = budget.about();
        let heard = files.iter().take_while(|file| {
            let there = room > 0;
            room = room.saturating_sub(hearing(file, context));
            there
        });
        let heard: Vec<&Candidate> = heard.collect();
        let claim = |file: &&Candidate| Claim {
            need: need(file, context),
            weight: if file.outcome == Outcome::Failed { FAILED_WEIGHT } else { 1 },
        };
        let claims: Vec<Claim> = heard.iter().map(claim).collect();
        let rest = if claims.len() < files.len() { budget.about() / NAMES_PART } else { 0 };
        let said = HEAD + query.regex.len() + rest;
        let shares = deal(&claims, budget.about().saturating_sub(said));
        let shown = heard.into_iter().zip(shares).map(|(file, share)| {
            let mut shown = Shown::new(file.member.name.clone(), file.path.clone(), file.hits.lines);
            // What is left out is said in a line, too. What a file needs is known about: if it can have that, it has all.
            let share = match share < need(file, context) {
                true => share.saturating_sub(file.path.len() + OMISSION),
                false => usize::MAX,
            };
            let take = |line: Line<'_>| {
                let begun = shown.matches() > 0;
                shown.add(ShownLine::of(&line, if line.is_match() { line_max } else { CONTEXT_MAX.min(line_max) }));
                // One that matches of each file, even if that is more than its share.
                !(begun && shown.size() > share)
            };
            // What cannot be read any more is counted among what is not shown.
            let _ = regex::lines(&self.view, &file.member, &file.hits.path, (pattern, context), go_on, take);
            shown
        });
        shown.filter(|shown| shown.matches() > 0).collect()
    }
}

/// The files of all workers.
fn candidates(of: &Stamped, known: &[fragments::Found], hits: Vec<Vec<Hits>>) -> Vec<Candidate> {
    let mut files = Vec::new();
    for (turn, (((member, _), known), hits)) in of.iter().zip(known).zip(hits).enumerate() {
        let says_failed = member.entry.status == Status::Failed;
        let unknown = if says_failed { Outcome::Failed } else { Outcome::Unknown };
        let outcome = known.fragment().map_or(unknown, |fragment| fragment.outcome);
        let place = place(&member.name);
        files.extend(hits.into_iter().map(|hits| {
            let path = at_in_text(&place, &hits.path);
            Candidate { member: member.clone(), outcome, turn, hits, path }
        }));
    }
    files
}

/// How much one line of a file takes with what is said of the others, about, in bytes.
fn hearing(file: &Candidate, context: usize) -> usize {
    let more = if file.hits.lines > 1 { file.path.len() + OMISSION } else { 0 };
    (file.path.len() + FRAME + CONTEXT).saturating_mul(1 + 2 * context).saturating_add(more)
}

/// How much all lines of a file take, about, in bytes.
fn need(file: &Candidate, context: usize) -> usize {
    let frame = file.path.len() + FRAME;
    let lines = usize::try_from(file.hits.lines).unwrap_or(usize::MAX);
    let each = frame.saturating_add(context.saturating_mul(2).saturating_mul(frame + CONTEXT));
    lines.saturating_mul(each).saturating_add(usize::try_from(file.hits.text).unwrap_or(usize::MAX))
}
