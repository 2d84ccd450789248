//! `search/<words>`: the passages that bear on the words, the best first, within a budget.
//!
//! What is ranked and how is the business of [`crate::search::ranked`]; here it is decided of which workers and files, and
//! how much of it is shown. What a name asks for is in `ask`, the text in `page`.

mod ask;
mod page;
mod sources;
mod wanted;

use std::ops::Range;
use std::sync::Arc;

use tracing::debug;

pub(super) use ask::FOLDER;
pub use ask::{Options, Query};
use page::Page;
pub use page::{Answer, Searched, Shown};
use sources::Sources;
use wanted::Wanted;

use super::fragments::{GoOn, Stamped};
use super::own::holds_everything;
use super::{Missing, Rendered, Renderer, Scope};
use crate::catalog::Fingerprint;
use crate::error::{Error, Result};
use crate::model::Outcome;
use crate::name::RelPath;
use crate::search::ranked::{self, Hit, Matched, Ranked, Room};
use crate::spread::spread;
use crate::view::{Member, Visible};

/// What is shown of one place takes such a part of the budget, within bounds, in bytes.
const HIT_PART: usize = 8;
const HIT: std::ops::RangeInclusive<usize> = 150..=480;
/// How often passages are chosen anew where they did not fit, or there was room for more: what stands around them is known
/// only when they are. What is taken away of the room then at least, and how much is worth another choice, in bytes.
const TRIES: usize = 12;
const LITTLE: usize = 40;
const WORTH: usize = 100;

impl Renderer {
    /// The passages that bear on `query` in the files of `scope`, as they are now. [`Error::NotFound`] where the scope is not
    /// in the view.
    pub fn search(&self, scope: &Scope, query: &Query) -> Result<Answer> {
        let visible = self.view.visible();
        let stamped = self.stamped(&visible, scope)?;
        let answer = self.search_in(scope, &visible, &stamped, query).0;
        self.note(answer.missing.as_ref());
        Ok(answer)
    }

    /// The file that answers `query`.
    pub(super) fn search_file(
        &self,
        scope: &Scope,
        visible: &Visible,
        stamped: &Stamped,
        query: &Query,
    ) -> Result<Rendered> {
        let (answer, complete) = self.search_in(scope, visible, stamped, query);
        self.answered(visible, stamped, (answer.text, complete, answer.missing))
    }

    /// The answer, and whether all was read that it is made of, of one moment.
    fn search_in(&self, scope: &Scope, visible: &Visible, stamped: &Stamped, query: &Query) -> (Answer, bool) {
        debug!("a search");
        let [reading, showing] = [7, 10].map(|tenths| self.settings.clock(tenths));
        let is_one = matches!(scope, Scope::Worker(_));
        let budget = self.settings.budget_of(scope, query.options.budget);
        let asked = ranked::Query::parse(&query.words);
        let wanted = match Wanted::of(query, &asked.filters) {
            Ok(_) if asked.terms.is_empty() => {
                Err("there is no word to search for beside filters: search/timeout".to_owned())
            }
            wanted => wanted,
        };
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(error) => return (Answer::refused(query, error, budget), true),
        };
        let (of, matched, searched) = self.matched(stamped, &asked, &|| reading.may_go_on());
        let admitted: Vec<_> = of.iter().map(|(member, _)| (&member.name, wanted.admits(member))).collect();
        let weigh = |worker: usize, path: &RelPath| match admitted.get(worker) {
            Some((name, true)) => wanted.weight(name, path),
            _ => 0,
        };
        let mut ranked = ranked::rank(matched, &asked, &weigh);
        let sources = Sources::new(self, of);
        let showing = self.settings.grant(showing);
        let go_on = || showing.may_go_on();
        let mut complete =
            ranked.retain_saying(&asked, &|worker, path, range| sources.read(worker, path, range), &go_on);
        ranked.favor_failures(&|worker, path| sources.outcome(worker, path, &go_on) == Some(Outcome::Failed));
        let (files, workers) = ranked.spread_over();
        let missing = || {
            let (late, sessions) = (searched.unread.late, Self::undiscovered(visible, scope));
            let missing = Missing { files: late, sessions, ..Missing::default() };
            missing.if_any(reading.ran_out() || showing.ran_out() || sources.is_late())
        };
        let passages = ranked.count();
        let page = Page { query, searched: &searched, passages, files, workers, budget, missing: &missing };
        let (answer, of_moment) = shown(&page, &ranked, &sources, is_one, &go_on);
        complete &= of_moment && answer.searched.is_whole() && go_on();
        (answer, complete)
    }

    /// The members that could be read, in the order of their names, which is that of paths; where the words of `asked` are
    /// among those of each; and what that is of. What there is of all other words is let go of, worker by worker.
    fn matched<'a>(
        &self,
        stamped: &'a Stamped,
        asked: &ranked::Query,
        go_on: GoOn<'_>,
    ) -> (Known<'a>, Vec<Matched>, Searched) {
        let mut members: Vec<&(Arc<Member>, Result<Arc<Fingerprint>>)> = stamped.iter().collect();
        members.sort_by_key(|(member, _)| &member.name);
        self.settings.expect(members.len());
        let found = spread(&members, |(member, stamp)| {
            let stamp = stamp.as_ref().map_err(Clone::clone)?;
            let words = self.words(member, stamp, go_on);
            self.settings.count_one();
            let words = words?;
            let matched = Matched::of(&words, asked, &|path| !holds_everything(path));
            Ok::<_, Error>((stamp, matched, Searched::of(&words)))
        });
        let mut searched = Searched::default();
        let (mut of, mut all) = (Vec::new(), Vec::new());
        for ((member, _), found) in members.into_iter().zip(found) {
            match found {
                Ok((stamp, matched, some)) => {
                    searched += some;
                    of.push((member, stamp));
                    all.push(matched);
                }
                Err(Error::NotFound) => {}
                Err(error) if error.is_late() => searched.unread.late += 1,
                Err(_) => searched.unread.unreadable += 1,
            }
        }
        (of, all, searched)
    }
}

/// Workers whose words are known, in the order of their names.
type Known<'a> = Vec<(&'a Arc<Member>, &'a Arc<Fingerprint>)>;

/// The answer that shows as much as there is room for, and whether all was read that it is made of, of one moment. `is_one`
/// worker is asked about: then the bytes are spread over its calls.
fn shown(page: &Page<'_>, ranked: &Ranked, sources: &Sources<'_>, is_one: bool, go_on: GoOn<'_>) -> (Answer, bool) {
    let budget = page.budget;
    let read = |worker: usize, path: &RelPath, range: Range<u64>| sources.read(worker, path, range);
    let frame = |worker: usize, path: &RelPath| Page::frame(&sources.shown_at(worker, path));
    let show = |hit: &Hit| {
        let text = |range: &Range<u64>| Some((range.clone(), read(hit.worker, &hit.path, range.clone())?));
        Some(Shown {
            worker: sources.member(hit.worker)?.name.clone(),
            path: sources.shown_at(hit.worker, &hit.path),
            outcome: sources.outcome(hit.worker, &hit.path, go_on),
            passages: hit.passages,
            text: hit.ranges.iter().filter_map(text).collect(),
        })
    };
    // A token is of several bytes, most often.
    let unit = budget.about().checked_div(budget.size()).unwrap_or(1).max(1);
    let hit = (budget.about() / HIT_PART).clamp(*HIT.start(), *HIT.end());
    let mut room = budget.about().saturating_sub(page.head_room());
    let (mut answer, mut fits, mut too_much, mut complete) = (page.empty(), false, usize::MAX, true);
    for _ in 0..TRIES {
        let chosen = ranked.choose(Room { bytes: room, hit, spread: is_one, frame: &frame }, &read, go_on);
        let written = page.written(chosen.hits.iter().filter_map(show).collect(), chosen.same);
        let used = budget.used(&written.text);
        if used > budget.size() {
            if fits || room == 0 {
                break;
            }
            too_much = room;
            room = room.saturating_sub(((used - budget.size()) * unit).max(LITTLE));
            continue;
        }
        if !fits || written.shown_bytes() > answer.shown_bytes() {
            complete = chosen.complete && chosen.hits.iter().all(|hit| sources.is_now(hit.worker));
            (answer, fits) = (written, true);
        }
        let left = (budget.size() - used) * unit;
        let more = room.saturating_add(left).min(too_much.saturating_sub(1));
        if left < WORTH || more <= room || answer.is_all() {
            break;
        }
        room = more;
    }
    (answer, complete)
}
