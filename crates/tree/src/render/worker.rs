//! Renders the files about one worker.

use std::sync::Arc;

use super::{Rendered, Renderer, THREAD_MAX};
use crate::analysis::changes;
use crate::analysis::missing::{Missing, prepend_notice};
use crate::analysis::retry::RetryBudget;
use crate::analysis::settings::{Clock, PART_GRACE, Subject};
use crate::catalog::Fingerprint;
use crate::output::{self, Body, evidence, index, summary};
use crate::route::Report;
use crate::view::Member;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{Record, Trace};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::read_range;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_base::watchdog::OVERDUE;

impl Renderer {
    /// Renders a report on a worker. If reading the worker does not end, renders it from the
    /// metadata alone, with a line that says so.
    pub(super) fn worker_report(
        &self,
        member: &Arc<Member>,
        fingerprint: &Arc<Fingerprint>,
        report: Report,
        deadline: Deadline<'_>,
    ) -> Result<Rendered> {
        let subject = Subject::Worker(member.name.clone());
        let rendered = {
            let (renderer, member, fingerprint) =
                (self.clone(), member.clone(), fingerprint.clone());
            self.analyzer.run_isolated(&subject, OVERDUE, deadline, move |_| {
                let clock = renderer.analyzer.settings.clock(10);
                renderer.render_worker(member, fingerprint, report, &clock)
            })
        };
        let unfinished = match rendered {
            Ok(rendered) => return rendered,
            Err(unfinished) => unfinished.into(),
        };
        // A subject of its own: this render reads no files of the worker, so it need not wait.
        let subject = Subject::Answer(fingerprint.key);
        let (member, fingerprint) = (member.clone(), fingerprint.clone());
        self.render_isolated(&subject, Deadline::passed(), move |renderer| {
            let (record, no_time) =
                (unread_record(&member, &unfinished), renderer.analyzer.settings.expired_clock());
            let (body, missing) =
                renderer.worker_body(&member, &fingerprint, &record, report, &no_time)?;
            Ok(Rendered {
                bytes: body.bytes.into(),
                newest: fingerprint.newest_mtime,
                access: fingerprint.access(),
                complete: false,
                missing,
            })
        })
    }

    /// Renders the messages and calls of a worker, in their order. `id` may be the beginning of an
    /// id.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such worker in the view, [`Error::AmbiguousId`] if there
    /// are several; any error of reading it.
    pub fn worker_log(&self, id: &Name) -> Result<String> {
        let clock = self.analyzer.settings.clock(10);
        let view = &self.analyzer.view;
        let member = view.find_worker(id)?;
        let fingerprint = view.fingerprint(&member, true)?;
        let record = self.analyzer.record(&member, &fingerprint, PART_GRACE, clock.deadline())?;
        let thread = match view.open(&member, &RelPath::parse("thread.jsonl")?) {
            Ok(file) => read_range(&*file, 0, THREAD_MAX)?,
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error),
        };
        let missing = Missing { outputs: record.unread, ..Missing::default() };
        let missing = missing.if_any(record.timed_out() || clock.ran_out());
        self.analyzer.settings.note_missing(missing.as_ref());
        let notice = missing.map(|missing| format!("{missing}\n")).unwrap_or_default();
        let cut = if thread.len() == THREAD_MAX { "\n[the rest is left out]\n" } else { "" };
        Ok(notice + &output::log::log(&record, &thread) + cut)
    }

    /// Renders a report on a worker from one state of its files, again if they change meanwhile.
    pub(super) fn render_worker(
        &self,
        mut member: Arc<Member>,
        mut fingerprint: Arc<Fingerprint>,
        report: Report,
        clock: &Clock<'_>,
    ) -> Result<Rendered> {
        let mut attempts = RetryBudget::new(self.analyzer.settings.patience());
        loop {
            let record = self.analyzer.view.record(&member, &fingerprint, clock.deadline())?;
            let (body, missing) =
                self.worker_body(&member, &fingerprint, &record, report, clock)?;
            let whole =
                body.complete && record.is_complete() && fingerprint.skipped.unreadable == 0;
            let now = self.analyzer.view.fingerprint_now(&member)?;
            let settled = now.key == fingerprint.key;
            // A file is complete only if it shows the requested state.
            let complete = attempts.is_first() && settled && whole && clock.has_time();
            if settled || !clock.has_time() || !attempts.try_again() {
                let (newest, access) = (fingerprint.newest_mtime, fingerprint.access());
                return Ok(Rendered {
                    bytes: body.bytes.into(),
                    newest,
                    access,
                    complete,
                    missing,
                });
            }
            member = self.analyzer.view.worker(&member.name)?;
            fingerprint = now;
        }
    }

    /// Renders changes.diff of a worker.
    ///
    /// # Errors
    /// [`Error::NotFound`] if its record holds no changes of files; any error of reading it.
    pub(super) fn changes_file(
        &self,
        member: &Member,
        fingerprint: &Fingerprint,
        budget: Option<Budget>,
        clock: &Clock<'_>,
    ) -> Result<Rendered> {
        let view = &self.analyzer.view;
        let changes = changes::read_changes(view, member, clock.deadline())?;
        let changes = changes.ok_or(Error::NotFound)?;
        let missing = Missing::default().if_any(clock.ran_out());
        let notice = missing.as_ref().map(Missing::to_string);
        let text = output::changes::text(
            &member.name.display(),
            &changes,
            notice.as_deref(),
            budget.unwrap_or(Budget::CHANGES),
        );
        let is_settled = view.fingerprint_now(member)?.key == fingerprint.key;
        Ok(Rendered {
            bytes: text.into_bytes().into(),
            newest: fingerprint.newest_mtime,
            access: fingerprint.access(),
            complete: missing.is_none() && is_settled,
            missing,
        })
    }

    /// Renders a report on a worker from its record. Also returns the parts that are missing
    /// because time ran out.
    fn worker_body(
        &self,
        member: &Member,
        fingerprint: &Fingerprint,
        record: &Record,
        report: Report,
        clock: &Clock<'_>,
    ) -> Result<(Body, Option<Missing>)> {
        let missing = || {
            let missing = Missing { outputs: record.unread, ..Missing::default() };
            missing.if_any(record.timed_out() || clock.ran_out())
        };
        let body = match report {
            Report::Index => {
                let view = &self.analyzer.view;
                index::worker(view, member, fingerprint, record, missing(), self.prices())?
            }
            Report::Summary => {
                let view = &self.analyzer.view;
                let (text, complete) = summary::worker(
                    view,
                    member,
                    fingerprint,
                    record,
                    self.prices(),
                    clock.deadline(),
                );
                Body { bytes: prepend_notice(missing().as_ref(), text), complete }
            }
            Report::Evidence(budget) => {
                let budget = self.analyzer.settings.budget_or(Budget::WORKER, budget);
                evidence::worker(
                    &self.analyzer.view,
                    member,
                    record,
                    budget,
                    clock.deadline(),
                    &missing,
                )
            }
        };
        Ok((body, missing()))
    }
}

fn unread_record(member: &Member, error: &Error) -> Record {
    let unreadable = vec![(RelPath::root(), error.to_string())];
    Record {
        worker: member.entry.worker(),
        trace: Trace { unreadable, ..Trace::default() },
        unread: 0,
    }
}
