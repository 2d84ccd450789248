//! Renders the files about one worker.

use std::sync::Arc;

use super::{Rendered, Renderer};
use crate::analysis::isolation::Subject;
use crate::analysis::missing::{Missing, prepend_notice};
use crate::analysis::retry::RetryBudget;
use crate::analysis::settings::{Clock, Deadline};
use crate::catalog::Fingerprint;
use crate::error::{Error, Result};
use crate::model::{Record, Trace};
use crate::name::RelPath;
use crate::output::{evidence, index, summary};
use crate::route::Generated;
use crate::text::budget::Budget;
use crate::view::Member;
use crate::watchdog::OVERDUE;

impl Renderer {
    /// Renders a file about a worker. If reading the worker does not end, renders the file from its
    /// metadata alone, with a line that says so.
    pub(super) fn worker_file(
        &self,
        member: &Arc<Member>,
        stamp: &Arc<Fingerprint>,
        file: &Generated,
        has_time: Deadline<'_>,
    ) -> Result<Rendered> {
        let subject = Subject::Worker(member.name.clone());
        let whole = {
            let (renderer, member, stamp, file) = (self.clone(), member.clone(), stamp.clone(), file.clone());
            move |_: Deadline<'_>| renderer.render_worker(member, stamp, &file, &renderer.analyzer.settings.clock(10))
        };
        let unfinished = match self.analyzer.run_isolated(&subject, OVERDUE, has_time, whole) {
            Ok(rendered) => return rendered,
            Err(unfinished) => unfinished.into(),
        };
        // A subject of its own: this render reads no files of the worker, so it need not wait.
        let subject = Subject::Answer(stamp.key);
        let (renderer, member, stamp, file) = (self.clone(), member.clone(), stamp.clone(), file.clone());
        self.analyzer.run_isolated(&subject, OVERDUE, &|| false, move |_| {
            let (record, no_time) = (unread_record(&member, &unfinished), renderer.analyzer.settings.expired_clock());
            let (bytes, _, missing) = renderer.worker_bytes(&member, &stamp, &record, &file, &no_time)?;
            Ok(Rendered {
                bytes: bytes.into(),
                newest: stamp.newest_mtime,
                access: stamp.access,
                complete: false,
                missing,
            })
        })?
    }

    /// Renders a file about a worker from one state of its files, again if they change meanwhile.
    pub(super) fn render_worker(
        &self,
        mut member: Arc<Member>,
        mut stamp: Arc<Fingerprint>,
        file: &Generated,
        clock: &Clock<'_>,
    ) -> Result<Rendered> {
        let mut attempts = RetryBudget::new(self.analyzer.settings.patience());
        let has_time = || clock.has_time();
        loop {
            let record = self.analyzer.view.record(&member, &stamp, &has_time)?;
            let (bytes, read, missing) = self.worker_bytes(&member, &stamp, &record, file, clock)?;
            let whole = read && record.is_complete() && stamp.skipped.unreadable == 0;
            let now = self.analyzer.view.fingerprint_now(&member)?;
            let settled = now.key == stamp.key;
            // A file is complete only if it shows the requested state.
            let complete = attempts.is_first() && settled && whole && has_time();
            if settled || !has_time() || !attempts.try_again() {
                let (newest, access) = (stamp.newest_mtime, stamp.access);
                return Ok(Rendered { bytes: bytes.into(), newest, access, complete, missing });
            }
            member = self.analyzer.view.worker(&member.name)?;
            stamp = now;
        }
    }

    /// Renders a file about a worker from its record. Also returns true if all that it shows could
    /// be read, and the parts that are missing because time ran out.
    fn worker_bytes(
        &self,
        member: &Member,
        stamp: &Fingerprint,
        record: &Record,
        file: &Generated,
        clock: &Clock<'_>,
    ) -> Result<(Vec<u8>, bool, Option<Missing>)> {
        let missing = || {
            let missing = Missing { outputs: record.unread, ..Missing::default() };
            missing.if_any(record.timed_out() || clock.ran_out())
        };
        let (bytes, read) = match file {
            Generated::Index => index::worker(&self.analyzer.view, member, stamp, record, missing())?,
            Generated::Summary => {
                let (text, read) = summary::worker(&self.analyzer.view, member, stamp, record);
                (prepend_notice(missing().as_ref(), text), read)
            }
            Generated::Evidence(budget) => {
                let budget = self.analyzer.settings.budget_or(Budget::WORKER, *budget);
                let has_time = || clock.has_time();
                let written = evidence::worker(&self.analyzer.view, member, record, budget, &has_time, &missing);
                (written.bytes, written.complete)
            }
            Generated::Readme
            | Generated::Since(_)
            | Generated::QueryReadme(_)
            | Generated::Grep(_)
            | Generated::Search(_)
            | Generated::Focus(_)
            | Generated::Compare(_) => return Err(Error::NotFound),
        };
        Ok((bytes, read, missing()))
    }
}

/// Returns the record of a worker whose files could not be read.
fn unread_record(member: &Member, error: &Error) -> Record {
    let unreadable = vec![(RelPath::root(), error.to_string())];
    Record { worker: member.entry.worker(), trace: Trace { unreadable, ..Trace::default() }, unread: 0 }
}
