//! The evidence of many workers: a line of cause for each that failed, then excerpts of what they failed in.

use std::cell::Cell;
use std::sync::Arc;

use super::frame::{Content, Section};
use super::{Account, Written, decisive, open_call, section};
use crate::model::{Outcome, Record};
use crate::render::clean::one_line;
use crate::render::{Budget, own};
use crate::store::File;
use crate::view::View;

/// The excerpt of the outputs of `accounts`. `record` reads the record of one worker again when its turn comes.
pub(in crate::render) fn swarm(
    view: &View,
    title: String,
    accounts: &[Account<'_>],
    record: &dyn Fn(&Account<'_>) -> Option<Arc<Record>>,
    budget: Budget,
    go_on: &dyn Fn() -> bool,
) -> Written {
    let outcome = |account: &Account<'_>| account.end.map(|(outcome, _)| outcome);
    let failed: Vec<&Account<'_>> =
        accounts.iter().filter(|account| outcome(account) == Some(Outcome::Failed)).collect();
    let count = |wanted| accounts.iter().filter(|account| outcome(account) == wanted).count();
    let unread = count(None);
    let unread = if unread == 0 { String::new() } else { format!(", {unread} not read in time") };
    // Every failing worker has a line, so no line may take more than its part of half the budget.
    let line_max = (budget.bytes() / 2 / failed.len().max(1)).clamp(60, 360);
    let lines = failed.iter().map(|account| cause_line(account, line_max)).collect();
    // The decisive call of each failing worker; more of a worker is in its own evidence.txt.
    let may_be_shown = budget.bytes() / 300 + 1;
    let told: Vec<(&Account<'_>, Arc<Record>)> = failed
        .iter()
        .take(may_be_shown)
        .filter_map(|account| record(account).map(|record| (*account, record)))
        .collect();
    let calls: Vec<_> =
        told.iter().filter_map(|(account, record)| decisive(&record.trace).map(|call| (*account, call))).collect();
    let sections: Vec<Section> = calls
        .iter()
        .enumerate()
        .map(|(turn, (account, call))| {
            let folder = own::shown(&account.member.name, own::is_index);
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
        lines,
        more: &|n| format!("and {n} more failing workers: index.json names them, workers/<id>/evidence.txt shows each"),
        sections,
        open: &open,
        go_on,
        failed: Cell::new(false),
    };
    content.within(budget)
}

fn cause_line(account: &Account<'_>, max: usize) -> String {
    let name = account.member.name.display();
    let cause = account.end.map(|(_, cause)| cause).unwrap_or_default();
    one_line(&format!("[FAILED] {name}: {cause}"), max)
}
