//! Selects workers by the values of their facets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use percent_encoding::percent_decode;

use super::analyzer::Analyzer;
use super::digest_cache::DigestResult;
use super::facets::{self, Facet, FacetIndex, FacetValue, MemberDigest, Selection, UNREAD};
use crate::view::Member;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::Name;
use swarmletfs_base::store::Time;

/// Maximum number of workers whose files are read for the time of a directory.
const STAT_MAX: usize = 1_000;
/// Maximum number of workers of a directory that is as cheap as a stat.
const CHEAP_MAX: usize = 16;

impl Analyzer {
    /// Returns the workers of a selection, ordered by creation time, then id. A limited selection
    /// is ordered latest first.
    pub fn selected(&self, selection: &Selection) -> Vec<Arc<Member>> {
        self.matching(selection, None).into_iter().map(|(member, _)| member).collect()
    }

    pub fn is_selected(&self, selection: &Selection, name: &Name) -> bool {
        if selection.is_limited() {
            return self.selected(selection).iter().any(|member| member.name == *name);
        }
        let member = self.view.visible().get(name).into_iter().collect();
        self.with_digests(member, selection.needs_digest())
            .iter()
            .any(|worker| selection.matches(worker))
    }

    /// Returns the values of a facet that workers of a selection have: the names of their
    /// directories, with the narrowed selections. Returns only the most used files.
    pub fn facet_values(&self, selection: &Selection, facet: Facet) -> BTreeMap<Name, Selection> {
        let generation = self.view.visible().generation;
        let workers = self.matching(selection, Some(facet));
        let mut values = BTreeSet::new();
        if facet.needs_digest() && workers.iter().any(|(_, digest)| digest.is_none()) {
            values.insert(FacetValue::Unread);
        }
        if facet.is_file() {
            let files = facet.top_files(&workers);
            self.known_files.store(facet, generation, &files);
            values.extend(files);
        } else {
            if selection.is_all() && !facet.needs_digest() {
                // Programs that list values look up each, which then costs no more than a stat.
                self.facet_indexes.get(facet, &self.view.visible());
            }
            for (member, digest) in &workers {
                let texts = facet.values(&member.entry, digest.as_deref());
                values.extend(texts.into_iter().map(|value| FacetValue::Text(value.into())));
            }
        }
        let narrowed = values
            .into_iter()
            .filter_map(|value| Some((facet.file_name(&value), selection.with(facet, value)?)));
        narrowed.collect()
    }

    /// Narrows a selection to the value called `name`, as listed or with `%XX` for any byte.
    ///
    /// # Errors
    /// [`Error::NotFound`] if no worker of the view has the value.
    pub fn select(&self, selection: &Selection, facet: Facet, name: &Name) -> Result<Selection> {
        let value = self.value(facet, name).ok_or(Error::NotFound)?;
        selection.with(facet, value).ok_or(Error::NotFound)
    }

    fn value(&self, facet: Facet, name: &Name) -> Option<FacetValue> {
        if facet.needs_digest() && name.as_bytes() == UNREAD.as_bytes() {
            return Some(FacetValue::Unread);
        }
        let decoded = percent_decode(name.as_bytes()).decode_utf8().ok();
        let range = decoded.as_deref().filter(|_| facet == Facet::Day).and_then(facets::day_range);
        if range.is_some() {
            return range;
        }
        if !facet.needs_digest() {
            let index = self.facet_indexes.get(facet, &self.view.visible());
            let plain = decoded.and_then(|text| Some(index.members.get_key_value(&*text)?.0));
            return index.names.get(name).or(plain).cloned().map(FacetValue::Text);
        }
        for text in facet.preset_values() {
            let value = FacetValue::Text((*text).into());
            if decoded.as_deref() == Some(*text) || facet.file_name(&value) == *name {
                return Some(value);
            }
        }
        // If the decoded value is listed under exactly this name, no other value has the name.
        let listed = decoded
            .as_deref()
            .map(|text| FacetValue::Text(text.into()))
            .filter(|value| facet.file_name(value) == *name);
        let generation = self.view.visible().generation;
        if let Some(file) = listed.filter(|_| facet.is_file()) {
            let exists = self.known_files.contains(facet, generation, &file)
                || self
                    .matching(&Selection::default(), Some(facet))
                    .iter()
                    .any(|(member, digest)| facet.matches(&file, &member.entry, digest.as_deref()));
            return exists.then_some(file);
        }
        let mut decoded_match = None;
        for (member, digest) in self.matching(&Selection::default(), Some(facet)) {
            for text in facet.values(&member.entry, digest.as_deref()) {
                let value = FacetValue::Text(text.as_ref().into());
                // A value listed under this name takes precedence over a value that has another
                // encoding of it.
                if facet.file_name(&value) == *name {
                    return Some(value);
                }
                if decoded.as_deref() == Some(&*text) {
                    decoded_match = Some(value);
                }
            }
        }
        decoded_match
    }

    /// Returns the time of the last write of any worker of a selection. For more than `STAT_MAX`
    /// workers, the catalog supplies it: each stat of the directory would otherwise read all
    /// unfinished workers.
    pub fn last_write(&self, selection: &Selection) -> Time {
        let selected = self.selected(selection);
        let newest = if selected.len() > STAT_MAX {
            selected.iter().map(|member| member.entry.last_write()).max()
        } else {
            self.last_writes(&selected).into_iter().flatten().max()
        };
        newest.unwrap_or_default()
    }

    /// Returns true if listing a selection, or finding its last write, is as cheap as a stat: it
    /// has one catalog value and few workers, whose states are known. Reads nothing itself.
    pub fn is_cheap(&self, selection: &Selection) -> bool {
        let [(facet, FacetValue::Text(value))] = &*selection.values else { return false };
        let index = self.facet_indexes.cached(*facet, self.view.known_generation());
        !selection.is_limited() && index.is_some_and(|index| self.has_few_known(&index, value))
    }

    /// Returns true if the value of `facet` called `name` selects few of all workers, and their
    /// states are known; see [`Analyzer::is_cheap`].
    pub fn is_cheap_value(&self, facet: Facet, name: &Name) -> bool {
        let index = self.facet_indexes.cached(facet, self.view.known_generation());
        index.is_some_and(|index| {
            index.names.get(name).is_some_and(|value| self.has_few_known(&index, value))
        })
    }

    fn has_few_known(&self, index: &FacetIndex, value: &str) -> bool {
        let members = index.members.get(value).map(Vec::as_slice).unwrap_or_default();
        members.len() <= CHEAP_MAX
            && members.iter().all(|member| self.view.has_fresh_fingerprint(&member.name))
    }

    /// Returns the workers of a selection, with their digests if the selection or `facet` needs
    /// them.
    fn matching(&self, selection: &Selection, facet: Option<Facet>) -> Vec<MemberDigest> {
        let needs_digests = selection.needs_digest() || facet.is_some_and(Facet::needs_digest);
        let mut workers = self.with_digests(self.candidates(selection), needs_digests);
        workers.retain(|worker| selection.matches(worker));
        if let Some(most) = selection.latest {
            workers.sort_by_cached_key(|(member, _)| {
                Reverse((member.entry.created_at, member.entry.last_write(), member.name.clone()))
            });
            workers.truncate(most);
        }
        workers
    }

    /// Returns the workers that have the rarest catalog value of a selection.
    fn candidates(&self, selection: &Selection) -> Vec<Arc<Member>> {
        let visible = self.view.visible();
        let members = selection.values.iter().filter_map(|(facet, value)| match value {
            FacetValue::Text(text) if !facet.needs_digest() => {
                let index = self.facet_indexes.get(*facet, &visible);
                Some(index.members.get(text).cloned().unwrap_or_default())
            }
            FacetValue::Text(_) | FacetValue::Days(..) | FacetValue::Unread => None,
        });
        members.min_by_key(Vec::len).unwrap_or_else(|| visible.members.clone())
    }

    /// Pairs workers with their digests if `needs_digests` is true. Leaves out workers that
    /// vanished.
    fn with_digests(&self, members: Vec<Arc<Member>>, needs_digests: bool) -> Vec<MemberDigest> {
        if !needs_digests {
            return members.into_iter().map(|member| (member, None)).collect();
        }
        let clock = self.settings.clock(10);
        let is_whole_view = members.len() == self.view.visible().members.len();
        let states = self.states_without_acls(&members);
        let results = self.digests(&states, is_whole_view, clock.deadline());
        if clock.ran_out() {
            self.settings.note_incomplete();
        }
        let present = states
            .into_iter()
            .zip(results)
            .filter(|(_, result)| !matches!(result, DigestResult::Gone));
        present.map(|((member, _), result)| (member, result.digest().cloned())).collect()
    }
}
