//! Admission: selects the outputs that an evidence.txt shows when not all fit, failed calls first.

use super::content::{FrameContent, OutputSection, need_of};
use super::short_steps::{ShortStep, block_len};
use crate::analysis::excerpt::min_share;
use swarmletfs_base::model::Outcome;
use swarmletfs_base::text::budget::{Demand, allocate};

/// Minimum excerpt of a section, in bytes. A section without room for it is only listed, except the
/// first failed one.
const MIN_EXCERPT: usize = 460;
/// Share of the room that is reserved for the list of omitted sections, in percent.
const LISTING_PERCENT: usize = 4;

#[derive(Clone, Copy)]
pub(super) struct SectionRoom {
    pub bytes: usize,
    /// True if every section line reserves room for the note on invisible characters.
    pub(super) notes_hidden: bool,
    pub(super) only_failed: bool,
}

#[derive(Default)]
pub(super) struct Admission {
    /// The chosen sections, in display order.
    pub sections: Vec<AdmittedSection>,
    /// The steps to show on one line each, in display order.
    pub(super) short: Vec<ShortStep>,
    /// Bytes reserved for the list of omitted sections.
    pub listing: usize,
    /// True if the only chosen section has no room for its input.
    pub brief: bool,
}

pub(super) struct AdmittedSection {
    pub(super) number: usize,
    /// Bytes that show it whole.
    pub(super) need: usize,
    /// Bytes that it takes in addition to its excerpt.
    pub(super) overhead: usize,
}

impl FrameContent<'_> {
    /// Returns the bytes that one line of the first section takes with its frame, or 0 if that
    /// section did not fail. `notes_hidden` is as in [`SectionRoom`].
    pub(super) fn first_section_min(&self, notes_hidden: bool) -> usize {
        let Some(first) = self.sections.first().filter(|_| self.is_failed(0)) else { return 0 };
        self.overhead(first, false, notes_hidden) + self.section_min(0)
    }

    /// Returns the minimum share in which a failed section shows its most relevant line, in bytes;
    /// 0 for any other section.
    pub(super) fn section_min(&self, number: usize) -> usize {
        let section = self.sections.get(number).filter(|_| self.is_failed(number));
        section.map_or(0, |section| need_of(section).min(min_share(section.bytes)))
    }

    /// Chooses the sections to show in `room`, by priority and each with its minimum excerpt, and
    /// the steps to show on one line.
    ///
    /// The first failed section is shown if there is room for one line of it. A section is shown
    /// only if all of lower ranks are.
    pub(super) fn admit(&self, room: SectionRoom) -> Admission {
        let SectionRoom { bytes: room, notes_hidden, only_failed } = room;
        let mut admitted = Admission::default();
        let size = |section: &AdmittedSection| {
            section.overhead + section.need.min(MIN_EXCERPT).max(self.section_min(section.number))
        };
        let mut candidates: Vec<(&OutputSection, AdmittedSection)> = self
            .sections
            .iter()
            .enumerate()
            .map(|(number, section)| {
                let (need, overhead) =
                    (need_of(section), self.overhead(section, true, notes_hidden));
                (section, AdmittedSection { number, need, overhead })
            })
            .collect();
        let all =
            candidates.iter().map(|(_, candidate)| size(candidate)).fold(0, usize::saturating_add);
        let steps_from = candidates
            .iter()
            .position(|(section, _)| section.outcome == Some(Outcome::Unknown))
            .unwrap_or(candidates.len());
        let before_steps = candidates
            .iter()
            .take(steps_from)
            .map(|(_, candidate)| size(candidate))
            .fold(0, usize::saturating_add);
        let listing = self.listing_min();
        if all > room || only_failed {
            admitted.listing = (room * LISTING_PERCENT / 100).max(listing);
        }
        let mut left = room.saturating_sub(admitted.listing);
        if all > room && !only_failed {
            admitted.short = self.short_steps(room, left.saturating_sub(before_steps));
            left = left.saturating_sub(block_len(&admitted.short));
        }
        let is_short = |number| {
            admitted.short.binary_search_by_key(&number, |step: &ShortStep| step.number).is_ok()
        };
        candidates.retain(|(_, candidate)| !is_short(candidate.number));
        candidates.sort_by_key(|(section, _)| section.priority);
        let mut rank_left_out = if only_failed { 0 } else { usize::MAX };
        for (section, mut candidate) in candidates {
            let (number, size) = (candidate.number, size(&candidate));
            if section.rank > rank_left_out {
                continue;
            }
            if size <= left {
                left -= size;
                admitted.sections.push(candidate);
            } else if number == 0
                && self.first_section_min(notes_hidden) <= room.saturating_sub(listing)
            {
                (admitted.listing, left) = (listing.min(room), 0);
                if room < listing + candidate.overhead + candidate.need.min(MIN_EXCERPT / 2) {
                    candidate.overhead = self.overhead(section, false, notes_hidden);
                    admitted.brief = true;
                }
                admitted.sections.push(candidate);
                rank_left_out = 0;
            } else {
                rank_left_out = rank_left_out.min(section.rank);
            }
        }
        admitted.sections.sort_unstable_by_key(|section| section.number);
        admitted
    }

    /// Allocates `pool` bytes to `sections`, so that every failed one has room for its most
    /// relevant line.
    pub(super) fn shares(&self, sections: &[AdmittedSection], pool: usize) -> Vec<usize> {
        let demands: Vec<Demand> = sections
            .iter()
            .map(|section| Demand { need: section.need, weight: self.weight(section.number) })
            .collect();
        let shares = allocate(&demands, pool);
        let minima: Vec<usize> =
            sections.iter().map(|section| self.section_min(section.number)).collect();
        if shares.iter().zip(&minima).all(|(share, min)| share >= min) {
            return shares;
        }
        let rest: Vec<Demand> = demands
            .iter()
            .zip(&minima)
            .map(|(demand, min)| Demand { need: demand.need.saturating_sub(*min), ..*demand })
            .collect();
        let shares = allocate(&rest, pool.saturating_sub(minima.iter().sum()));
        shares.iter().zip(&minima).map(|(share, min)| share + min).collect()
    }

    fn weight(&self, number: usize) -> usize {
        match self.sections.get(number).and_then(|section| section.outcome) {
            _ if self.looks_failed(number) => 8,
            Some(Outcome::Unknown) | None => 3,
            Some(_) => 1,
        }
    }
}
