//! The evidence of many workers: a line for each cause with those that failed for it, then excerpts of what they failed in.

use std::cell::Cell;
use std::sync::Arc;

use super::frame::{Content, Cut, CutResult, Section};
use super::{Account, Written, decisive, open_call, section};
use crate::model::{Outcome, Record};
use crate::render::causes::{self, Failing, Grouping, Told};
use crate::render::settings::Deadline;
use crate::render::{Budget, Missing, name_collision};
use crate::store::File;
use crate::view::{Member, View};

/// Functions that read workers when their turn comes.
pub(in crate::render) struct Reading<'a> {
    /// Opens their outputs.
    pub(in crate::render) view: &'a View,
    /// Reads the record of one of them again.
    pub(in crate::render) record: &'a dyn Fn(&Account<'_>) -> Option<Arc<Record>>,
    /// Makes an excerpt of an output of one of them.
    pub(in crate::render) cut: &'a dyn Fn(&Member, Cut) -> CutResult,
    /// Returns true while there is time left.
    pub(in crate::render) go_on: Deadline<'a>,
    /// Returns what there was no time for, as far as that is known by now.
    pub(in crate::render) missing: &'a dyn Fn() -> Option<Missing>,
}

/// Returns the excerpt of the outputs of `accounts`.
pub(in crate::render) fn swarm(
    reading: &Reading<'_>,
    title: String,
    accounts: &[Account<'_>],
    budget: Budget,
) -> Written {
    let Reading { view, record, cut, go_on, missing } = *reading;
    let outcome = |account: &Account<'_>| account.end.map(|(outcome, _)| outcome);
    let failed: Vec<&Account<'_>> =
        accounts.iter().filter(|account| outcome(account) == Some(Outcome::Failed)).collect();
    let count = |wanted| accounts.iter().filter(|account| outcome(account) == wanted).count();
    let unread = count(None);
    let unread = if unread == 0 { String::new() } else { format!(", {unread} not read in time") };
    let failing: Vec<Failing<'_>> = failed
        .iter()
        .map(|account| Failing {
            member: account.member,
            cause: account.end.map(|(_, cause)| cause).unwrap_or_default(),
        })
        .collect();
    // Who failed is told already.
    let doubtful: Vec<Failing<'_>> = accounts
        .iter()
        .filter(|account| outcome(account) != Some(Outcome::Failed))
        .filter_map(|account| Some(Failing { member: account.member, cause: account.doubt.as_deref()? }))
        .collect();
    // The decisive call of one worker of each cause; more of a worker is in its own evidence.txt.
    let may_be_shown = budget.about() / 300 + 1;
    let told: Vec<(&Account<'_>, Arc<Record>)> = causes::groups(&failing, Grouping::Text)
        .iter()
        .take(may_be_shown)
        .filter_map(|group| group.members.first())
        .filter_map(|first| failed.iter().find(|account| std::ptr::eq(account.member, *first)))
        .filter_map(|account| record(account).map(|record| (*account, record)))
        .collect();
    let mut calls: Vec<_> =
        told.iter().filter_map(|(account, record)| decisive(&record.trace).map(|call| (*account, call))).collect();
    calls.sort_by_key(|(_, call)| call.outcome != Outcome::Failed);
    let sections: Vec<Section> = calls
        .iter()
        .enumerate()
        .map(|(turn, (account, call))| {
            let folder = name_collision::shown_name(&account.member.name, name_collision::is_index);
            section(call, &format!("workers/{}/", folder.display()), turn)
        })
        .collect();
    let open = |number: usize| -> Result<Box<dyn File>, String> {
        let (account, call) = calls.get(number).ok_or("not there")?;
        open_call(view, account.member, call)
    };
    let content = Content {
        title,
        counted: format!(
            "Workers: {} ({} failed, {} unknown{unread})",
            accounts.len(),
            failed.len(),
            count(Some(Outcome::Unknown)),
        ),
        lines: &|room, _| {
            let failed = causes::lines(Told::Failed, &failing, room);
            let left = room.saturating_sub(failed.len());
            failed + &causes::lines(Told::Doubtful, &doubtful, left / 2)
        },
        failure: &|room| causes::lines(Told::Failed, &failing, room),
        lines_tell_failures: true,
        sections,
        open: &open,
        cut: &|number, make| match calls.get(number) {
            Some((account, _)) => cut(account.member, make),
            None => Err("not there".into()),
        },
        go_on,
        missing,
        failed: Cell::new(false),
    };
    content.within(budget)
}
