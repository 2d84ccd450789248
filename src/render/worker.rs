//! Files about one worker.

use std::sync::Arc;

use super::attempts::Attempts;
use super::fragments::GoOn;
use super::isolate::Subject;
use super::missing::noted;
use super::settings::Clock;
use super::{Budget, Generated, Missing, Rendered, Renderer, evidence, index, summary};
use crate::catalog::Fingerprint;
use crate::error::{Error, Result};
use crate::model::{Record, Trace};
use crate::name::RelPath;
use crate::view::Member;
use crate::watchdog::OVERDUE;

impl Renderer {
    /// Renders `file` of a worker. If that does not end, renders it of the worker's metadata alone, with a line that says
    /// so.
    pub(super) fn worker_file(
        &self,
        member: &Arc<Member>,
        stamp: &Arc<Fingerprint>,
        file: &Generated,
        go_on: GoOn<'_>,
    ) -> Result<Rendered> {
        let subject = Subject::Worker(member.name.clone());
        let whole = {
            let (renderer, member, stamp, file) = (self.clone(), member.clone(), stamp.clone(), file.clone());
            move |_: GoOn<'_>| renderer.worker(member, stamp, &file, &renderer.settings.clock(10))
        };
        let unfinished = match self.run(&subject, OVERDUE, go_on, whole) {
            Ok(rendered) => return rendered,
            Err(unfinished) => unfinished.into(),
        };
        // Another subject: nothing that the worker's files hold takes part in it.
        let subject = Subject::Answer(stamp.key);
        let (renderer, member, stamp, file) = (self.clone(), member.clone(), stamp.clone(), file.clone());
        self.run(&subject, OVERDUE, &|| false, move |_| {
            let (record, no_time) = (unread_record(&member, &unfinished), renderer.settings.expired_clock());
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

    /// Makes a file of one worker, of one state of its files: if they changed meanwhile, it is made again.
    pub(super) fn worker(
        &self,
        mut member: Arc<Member>,
        mut stamp: Arc<Fingerprint>,
        file: &Generated,
        clock: &Clock<'_>,
    ) -> Result<Rendered> {
        let mut attempts = Attempts::new(self.settings.patience());
        let go_on = || clock.may_go_on();
        loop {
            let record = self.view.record(&member, &stamp, &go_on)?;
            let (bytes, read, missing) = self.worker_bytes(&member, &stamp, &record, file, clock)?;
            let whole = read && record.is_whole() && stamp.skipped.unreadable == 0;
            let now = self.view.fingerprint_now(&member)?;
            let settled = now.key == stamp.key;
            // Only what is of the state that was asked for is kept as that state's file.
            let complete = attempts.is_first() && settled && whole && go_on();
            if settled || !go_on() || !attempts.another() {
                let (newest, access) = (stamp.newest_mtime, stamp.access);
                return Ok(Rendered { bytes: bytes.into(), newest, access, complete, missing });
            }
            member = self.view.worker(&member.name)?;
            stamp = now;
        }
    }

    /// Renders a file of one worker from its record. Also returns false if something that it shows could not be read, and
    /// what is missing for lack of time.
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
            missing.if_any(record.is_late() || clock.ran_out())
        };
        let (bytes, read) = match file {
            Generated::Index => index::worker(&self.view, member, stamp, record, missing())?,
            Generated::Summary => {
                let (text, read) = summary::worker(&self.view, member, stamp, record);
                (noted(missing().as_ref(), text), read)
            }
            Generated::Evidence(budget) => {
                let budget = self.settings.budget_or(Budget::WORKER, *budget);
                let go_on = || clock.may_go_on();
                let written = evidence::worker(&self.view, member, record, budget, &go_on, &missing);
                (written.bytes, written.whole)
            }
            Generated::Readme
            | Generated::Since(_)
            | Generated::HowTo(_)
            | Generated::Grep(_)
            | Generated::Search(_)
            | Generated::Focus(_)
            | Generated::Compare(_) => return Err(Error::NotFound),
        };
        Ok((bytes, read, missing()))
    }
}

/// The record of a worker of whose files nothing could be read.
fn unread_record(member: &Member, error: &Error) -> Record {
    let unreadable = vec![(RelPath::root(), error.to_string())];
    Record { worker: member.entry.worker(), trace: Trace { unreadable, ..Trace::default() }, unread: 0 }
}
