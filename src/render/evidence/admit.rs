//! Which outputs an excerpt shows where there is not room for all: failed calls before any other.

use super::super::shares::{Claim, deal};
use super::excerpt::least_share;
use super::frame::{Content, Section};
use crate::model::Outcome;
use crate::render::clean::TAG;

/// The least excerpt of a section, in bytes; one that cannot have it is only listed. The first failed one may have less.
const LEAST: usize = 480;
/// The part of the budget that is kept for the list of what does not fit, in percent.
const LISTING_PERCENT: usize = 8;

/// The room that sections have.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// Its size in bytes.
    pub(super) bytes: usize,
    /// True if every section line may have to say how many invisible characters were removed.
    pub(super) says_hidden: bool,
    /// True if nothing but failed calls is shown.
    pub(super) only_failed: bool,
}

/// Which sections are shown.
#[derive(Default)]
pub(super) struct Admitted {
    /// Their numbers, in order.
    pub(super) numbers: Vec<usize>,
    /// The bytes that each section takes beside its excerpt, admitted or not.
    pub(super) overheads: Vec<usize>,
    /// The bytes kept for the list of the others.
    pub(super) listing: usize,
    /// True if there was no room for the input of the only one.
    pub(super) brief: bool,
}

impl Content<'_> {
    /// Returns how many bytes one line of the first section takes with its frame, if that failed; else 0.
    pub(super) fn least_of_first(&self, says_hidden: bool) -> usize {
        let Some(first) = self.sections.first().filter(|_| self.is_failed(0)) else { return 0 };
        self.overhead(first, false, says_hidden) + self.least_of(0)
    }

    /// Returns the least share, in bytes, in which a failed section shows its most telling line; 0 for any other.
    pub(super) fn least_of(&self, number: usize) -> usize {
        let section = self.sections.get(number).filter(|_| self.is_failed(number));
        section.map_or(0, |section| need_of(section).min(least_share(section.bytes)))
    }

    /// Chooses which sections are shown in `room`: in the order of their turns, each with its least excerpt. The
    /// first failed one is shown in whatever room there is for one line of it. Sections of calls that did not fail are
    /// shown only if all failed ones are.
    pub(super) fn admit(&self, needs: &[usize], room: Room) -> Admitted {
        let Room { bytes: room, says_hidden, only_failed } = room;
        let mut admitted = Admitted {
            overheads: self.sections.iter().map(|section| self.overhead(section, true, says_hidden)).collect(),
            ..Admitted::default()
        };
        let need = |at: usize| needs.get(at).copied().unwrap_or(0);
        let rooms: Vec<usize> = admitted
            .overheads
            .iter()
            .enumerate()
            .map(|(at, overhead)| overhead + need(at).min(LEAST).max(self.least_of(at)))
            .collect();
        let all = rooms.iter().copied().fold(0, usize::saturating_add);
        let listing = self.not_shown(&[], 0).len() + TAG;
        if all > room || only_failed {
            admitted.listing = (room * LISTING_PERCENT / 100).max(listing);
        }
        let mut left = room.saturating_sub(admitted.listing);
        let mut turns: Vec<usize> = (0..self.sections.len()).collect();
        turns.sort_by_key(|at| self.sections.get(*at).map(|section| section.turn));
        let mut failed_left_out = only_failed;
        for at in turns {
            let taken = rooms.get(at).copied().unwrap_or_default();
            if failed_left_out && !self.is_failed(at) {
                continue;
            }
            if taken <= left {
                left -= taken;
                admitted.numbers.push(at);
            } else if at == 0 && self.least_of_first(says_hidden) <= room.saturating_sub(listing) {
                (admitted.listing, left) = (listing.min(room), 0);
                let brief = self.sections.first().map_or(0, |section| self.overhead(section, false, says_hidden));
                let overhead = admitted.overheads.first_mut();
                if let Some(overhead) = overhead.filter(|full| room < listing + **full + need(0).min(LEAST / 2)) {
                    (*overhead, admitted.brief) = (brief, true);
                }
                admitted.numbers.push(at);
                failed_left_out = true;
            } else {
                failed_left_out |= self.is_failed(at);
            }
        }
        admitted.numbers.sort_unstable();
        admitted
    }

    /// Deals `pool` over the sections `numbers` so that every failed one has room for its most telling line.
    pub(super) fn shares(&self, numbers: &[usize], claims: &[Claim], pool: usize) -> Vec<usize> {
        let shares = deal(claims, pool);
        let leasts: Vec<usize> = numbers.iter().map(|number| self.least_of(*number)).collect();
        if shares.iter().zip(&leasts).all(|(share, least)| share >= least) {
            return shares;
        }
        let rest = |(claim, least): (&Claim, &usize)| Claim { need: claim.need.saturating_sub(*least), ..*claim };
        let rest: Vec<Claim> = claims.iter().zip(&leasts).map(rest).collect();
        let shares = deal(&rest, pool.saturating_sub(leasts.iter().sum()));
        shares.iter().zip(&leasts).map(|(share, least)| share + least).collect()
    }

    /// Returns how much a section weighs when a pool is dealt.
    pub(super) fn weight(&self, number: usize) -> usize {
        match self.sections.get(number).and_then(|section| section.outcome) {
            Some(Outcome::Failed) => 8,
            Some(Outcome::Unknown) | None => 3,
            Some(Outcome::Ok) => 1,
        }
    }
}

/// Returns how many bytes show a section whole: one more than the output, since one without a line end at its end is given
/// one.
pub(super) fn need_of(section: &Section) -> usize {
    match &section.unreadable {
        Some(reason) => reason.len() + "()\n".len(),
        None => usize::try_from(section.bytes).map_or(usize::MAX, |n| n.saturating_add(1)),
    }
}
