//! Admission: selects the outputs that an evidence.txt shows when not all fit, failed calls first.

use super::frame::{FrameContent, OutputSection};
use crate::analysis::excerpt::min_share;
use crate::model::Outcome;
use crate::text::clean::TAG_LEN;
use crate::text::shares::{Demand, allocate};

/// Minimum excerpt of a section, in bytes. A section without room for it is only listed, except the
/// first failed one.
const MIN_EXCERPT: usize = 480;
/// Share of the room that is reserved for the list of omitted sections, in percent.
const LISTING_PERCENT: usize = 8;

/// The room for all sections.
#[derive(Clone, Copy)]
pub(super) struct SectionRoom {
    /// Size in bytes.
    pub(crate) bytes: usize,
    /// True if every section line reserves room for the note on invisible characters.
    pub(super) notes_hidden: bool,
    /// True if only failed calls are shown.
    pub(super) only_failed: bool,
}

/// The sections chosen to be shown.
#[derive(Default)]
pub(super) struct Admission {
    /// Numbers of the chosen sections, ascending.
    pub(crate) numbers: Vec<usize>,
    /// Bytes that each section takes in addition to its excerpt, chosen or not.
    pub(super) overheads: Vec<usize>,
    /// Bytes reserved for the list of omitted sections.
    pub(crate) listing: usize,
    /// True if the only chosen section has no room for its input.
    pub(crate) brief: bool,
}

impl FrameContent<'_> {
    /// Returns the bytes that one line of the first section takes with its frame, or 0 if that
    /// section did not fail.
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

    /// Chooses the sections to show in `room`, by priority and each with its minimum excerpt.
    ///
    /// The first failed section is shown if there is room for one line of it. Sections that did not
    /// fail are shown only if all failed ones are.
    pub(crate) fn admit(&self, needs: &[usize], room: SectionRoom) -> Admission {
        let SectionRoom { bytes: room, notes_hidden, only_failed } = room;
        let mut admitted = Admission {
            overheads: self.sections.iter().map(|section| self.overhead(section, true, notes_hidden)).collect(),
            ..Admission::default()
        };
        let need = |at: usize| needs.get(at).copied().unwrap_or(0);
        let rooms: Vec<usize> = admitted
            .overheads
            .iter()
            .enumerate()
            .map(|(at, overhead)| overhead + need(at).min(MIN_EXCERPT).max(self.section_min(at)))
            .collect();
        let all = rooms.iter().copied().fold(0, usize::saturating_add);
        let listing = self.not_shown(&[], 0).len() + TAG_LEN;
        if all > room || only_failed {
            admitted.listing = (room * LISTING_PERCENT / 100).max(listing);
        }
        let mut left = room.saturating_sub(admitted.listing);
        let mut priorities: Vec<usize> = (0..self.sections.len()).collect();
        priorities.sort_by_key(|at| self.sections.get(*at).map(|section| section.priority));
        let mut failed_left_out = only_failed;
        for at in priorities {
            let size = rooms.get(at).copied().unwrap_or_default();
            if failed_left_out && !self.is_failed(at) {
                continue;
            }
            if size <= left {
                left -= size;
                admitted.numbers.push(at);
            } else if at == 0 && self.first_section_min(notes_hidden) <= room.saturating_sub(listing) {
                (admitted.listing, left) = (listing.min(room), 0);
                let brief = self.sections.first().map_or(0, |section| self.overhead(section, false, notes_hidden));
                let overhead = admitted.overheads.first_mut();
                if let Some(overhead) = overhead.filter(|full| room < listing + **full + need(0).min(MIN_EXCERPT / 2)) {
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

    /// Allocates `pool` bytes to the sections `numbers`, so that every failed one has room for its
    /// most relevant line.
    pub(crate) fn shares(&self, numbers: &[usize], demands: &[Demand], pool: usize) -> Vec<usize> {
        let shares = allocate(demands, pool);
        let minima: Vec<usize> = numbers.iter().map(|number| self.section_min(*number)).collect();
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

    /// Returns the weight of a section in the allocation.
    pub(crate) fn weight(&self, number: usize) -> usize {
        match self.sections.get(number).and_then(|section| section.outcome) {
            Some(Outcome::Failed) => 8,
            Some(Outcome::Unknown) | None => 3,
            Some(Outcome::Ok) => 1,
        }
    }
}

/// Returns the bytes that show a section whole.
///
/// That is one more than the size of the output, since a missing final line end is added.
pub(super) fn need_of(section: &OutputSection) -> usize {
    match &section.unreadable {
        Some(reason) => reason.len() + "()\n".len(),
        None => usize::try_from(section.bytes).map_or(usize::MAX, |n| n.saturating_add(1)),
    }
}
