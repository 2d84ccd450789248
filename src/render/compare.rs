//! `compare/<a>..<b>`: what two or more workers share and where they differ, within a budget.
//!
//! First what is known of each, then their files: those of one path as unified diffs of the first's with each other's, what
//! the workers were to make before all else; of files that only one has, the passages that no file of the others has; and
//! in what their sequences of calls differ. What a name asks for is in `ask`, which files there are in `files`, in what
//! they differ in `differ` (over `lines` and `passages`), how much of it is shown in `section`, the text in `page`.

mod ask;
mod aspect;
mod calls;
mod differ;
mod facts;
mod files;
mod lines;
mod page;
mod passages;
mod section;

use std::sync::Arc;

use tracing::debug;

pub(super) use ask::FOLDER;
pub use ask::{Options, Query};
use aspect::Aspect;
use differ::Differ;
pub use facts::{Fact, Facts};
pub use files::Kind;
use files::{Compared, Item, Items, One, Rank};
use page::Page;
pub use page::{Answer, Told};
use section::Section;

use super::attempts::Attempts;
use super::fragments::{Found, Stamped};
use super::isolate::GRACE_OF_PART;
use super::settings::Clock;
use super::{Budget, Missing, Rendered, Renderer};
use crate::catalog::Fingerprint;
use crate::error::{Error, Result};
use crate::view::{Member, Visible};

/// How often the workers of a question are looked up that vanish meanwhile.
const LOOKS: usize = 3;

/// What a question leads to.
pub(super) enum Asked {
    /// To workers, each with the state of its files.
    Workers(Stamped),
    /// To nothing but a sentence that says why.
    Refused(Box<Answer>),
}

impl Renderer {
    /// The comparison of the workers that `query` names, as they are now.
    pub fn compare(&self, query: &Query) -> Result<Answer> {
        match self.compared(query, &self.view.visible())? {
            Asked::Refused(answer) => Ok(*answer),
            Asked::Workers(stamped) => {
                let answer = self.comparison(query, stamped)?.0;
                self.note(answer.missing.as_ref());
                Ok(answer)
            }
        }
    }

    /// The workers that are to be compared.
    pub(super) fn compared(&self, query: &Query, visible: &Visible) -> Result<Asked> {
        let mut workers = query.workers(visible);
        for _ in 0..LOOKS {
            let members = match workers {
                Ok(members) => members,
                Err(error) => {
                    let answer = Answer::refused(query, error, self.compare_budget(query));
                    return Ok(Asked::Refused(Box::new(answer)));
                }
            };
            match members.iter().map(|member| self.as_now(member)).collect() {
                Ok(stamped) => return Ok(Asked::Workers(stamped)),
                // One of them vanished: that is an answer, too.
                Err(_) => workers = query.workers(&self.view.visible()),
            }
        }
        Err(Error::NotFound)
    }

    /// The worker, and the state of its files, if it is still there.
    fn as_now(&self, member: &Member) -> Result<(Arc<Member>, Result<Arc<Fingerprint>>)> {
        let member = self.view.worker(&member.name)?;
        match self.view.fingerprint(&member, true) {
            Err(Error::NotFound) => Err(Error::NotFound),
            stamp => Ok((member, stamp)),
        }
    }

    fn compare_budget(&self, query: &Query) -> Budget {
        self.settings.budget_or(Budget::SWARM, query.options.budget)
    }

    /// The file that answers `query`.
    pub(super) fn compare_file(&self, visible: &Visible, stamped: Stamped, query: &Query) -> Result<Rendered> {
        let (answer, stamped, complete) = self.comparison(query, stamped)?;
        self.answered(visible, &stamped, (answer.text, complete, answer.missing))
    }

    /// The answer, of one moment as far as that can be had; the state that it is of; and whether that is the one given, and
    /// all was read that it is made of.
    fn comparison(&self, query: &Query, mut stamped: Stamped) -> Result<(Answer, Stamped, bool)> {
        debug!("a comparison");
        let clock = self.settings.clock(10);
        let go_on = || clock.may_go_on();
        let mut attempts = Attempts::new(self.settings.patience());
        loop {
            let answer = self.compare_once(query, &stamped, &clock)?;
            let is_now = |(member, stamp): &(Arc<Member>, Result<Arc<Fingerprint>>)| {
                stamp.as_ref().is_ok_and(|stamp| self.view.is_now(member, stamp))
            };
            let settled = stamped.iter().all(is_now);
            if settled || !go_on() || !attempts.another() {
                let complete = answer.is_whole && settled && attempts.is_first() && go_on();
                return Ok((answer, stamped, complete));
            }
            stamped = stamped.iter().map(|(member, _)| self.as_now(member)).collect::<Result<Stamped>>()?;
        }
    }

    fn compare_once(&self, query: &Query, stamped: &Stamped, clock: &Clock<'_>) -> Result<Answer> {
        let budget = self.compare_budget(query);
        let go_on = || clock.may_go_on();
        let fragments = self.fragments.of(&self.view, stamped, false, &self.settings, &go_on);
        let mut ones = Vec::with_capacity(stamped.len());
        for (member, stamp) in stamped {
            let record = stamp.as_ref().map_err(|error| error.clone());
            let record = record.and_then(|stamp| self.record(member, stamp, GRACE_OF_PART, &go_on));
            // It says by now that it is another's.
            if record.as_ref().err() == Some(&Error::NotFound) {
                return Err(Error::NotFound);
            }
            ones.push(One::new(&self.view, member.clone(), record));
        }
        let compared = Compared::new(&self.view, ones, &go_on, clock.end());
        let told = compared.ones.iter().zip(&fragments).map(|(one, made)| match &one.record {
            Ok(record) => facts::facts(record, made.fragment().map(|fragment| &**fragment)),
            Err(error) => facts::unreadable(&error.to_string()),
        });
        let facts = Facts::of(told.collect());
        let aspect = query.options.aspect.as_deref().map(Aspect::of);
        let items = compared.items();
        let (sections, unheard) = sections(&compared, &items, aspect.as_ref(), budget.about());
        let held = sections.iter().flat_map(|section| &section.pieces).map(|piece| piece.held).max().unwrap_or(0);
        let is_beside = aspect.is_some() && held == 0;
        let differs = !sections.is_empty() || !unheard.is_empty();
        let places = compared.ones.iter().map(|one| one.place.clone()).collect();
        let is_late = |(one, made): &(&One, &Found)| {
            let late = one.record.as_ref().map_or_else(Error::is_late, |record| record.is_late());
            late || made.fragment().is_some_and(|fragment| fragment.late)
        };
        let late = compared.ones.iter().zip(&fragments).filter(is_late).count();
        let missing = Missing { workers: (late, compared.ones.len()), ..Missing::default() };
        let missing = missing.if_any(compared.is_late.get() || clock.ran_out());
        let page = Page { query, places, facts: &facts, items: &items, sections, unheard, held, is_beside, missing };
        let records = compared.ones.iter().all(|one| one.record.as_ref().is_ok_and(|record| record.is_whole()));
        let known = fragments.iter().all(|made| made.fragment().is_some_and(|fragment| fragment.whole));
        let mut answer = Answer {
            workers: compared.ones.iter().map(|one| one.name().clone()).collect(),
            files: items.all.iter().map(|item| told_of(item, &compared)).collect(),
            always: items.always.clone(),
            differs,
            is_whole: compared.is_whole.get() && records && known && go_on(),
            ..Answer::default()
        };
        answer.show(&page, budget);
        answer.missing = page.missing;
        answer.facts = facts;
        Ok(answer)
    }
}

/// What differs, in the order in which it is shown, as far as there can be `room` for it; and the items for which there
/// cannot. With an aspect all of it is looked into, since what bears on it may come last.
fn sections(
    compared: &Compared<'_>,
    items: &Items,
    aspect: Option<&Aspect>,
    mut room: usize,
) -> (Vec<Section>, Vec<usize>) {
    let differ = Differ::new(compared, &items.all, aspect);
    let mut calls = Some(differ.calls());
    let (mut sections, mut unheard) = (Vec::new(), Vec::new());
    for (number, item) in items.all.iter().enumerate() {
        if item.rank > Rank::Outputs {
            sections.extend(calls.take().into_iter().flatten());
        }
        if item.kind() == Kind::Equal {
            continue;
        }
        if room == 0 || !(compared.go_on)() {
            compared.is_whole.set(compared.is_whole.get() && room == 0);
            unheard.push(number);
            continue;
        }
        let found = differ.sections(number);
        if aspect.is_none() {
            room = found.iter().map(Section::hearing).fold(room, usize::saturating_sub);
        }
        sections.extend(found);
    }
    sections.extend(calls.take().into_iter().flatten());
    (sections, unheard)
}

fn told_of(item: &Item, compared: &Compared<'_>) -> Told {
    let workers = item.holders().filter_map(|at| compared.ones.get(at).map(|one| one.name().clone())).collect();
    Told { path: item.name.clone(), kind: item.kind(), workers, text: String::new() }
}
