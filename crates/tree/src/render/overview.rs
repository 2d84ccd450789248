//! The data of a page for people: an overview of many workers, and a panel about each.

use std::sync::Arc;

use rustix::io::Errno;

use super::{Renderer, THREAD_MAX};
use crate::analysis::missing::Missing;
use crate::analysis::peers::among_peers;
use crate::analysis::settings::Subject;
use crate::analysis::worker_digest::WorkerRow;
use crate::output::chrome_trace::{self, TraceEvent, TracePlace};
use crate::output::export::ExportedWorker;
use crate::output::json::IndexRow;
use crate::output::overview::{self, OverviewJson};
use crate::output::panel::{self, CallMarks, EvidenceJson, PanelJson, TextJson};
use crate::output::summary::table;
use crate::output::verdict;
use crate::route::{Document, Report, Scope};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::Record;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::read_range;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_base::text::clean::cleaned;
use swarmletfs_base::watchdog::OVERDUE;

/// Budgets of evidence.txt in a panel, in bytes.
const EVIDENCE_SIZES: [usize; 3] = [1_000, 4_000, 16_000];
/// Largest part of requests.txt that is read, in bytes.
const REQUESTS_MAX: usize = 1 << 20;
/// Largest part of the output of a call that is exported, in bytes.
const OUTPUT_MAX: usize = 16 << 20;
/// Smallest size of changes.diff that is worth its place, in bytes.
const CHANGES_MIN: usize = 500;

/// The workers of a scope, with the data of a page about all of them.
pub struct Overview {
    pub json: OverviewJson,
    /// The workers in the order of the overview.
    pub rows: Vec<WorkerRow>,
}

impl Renderer {
    /// Returns the overview of the workers of a scope.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the scope is not in the view.
    pub fn overview(&self, scope: &Scope) -> Result<Overview> {
        let visible = self.analyzer.view.visible();
        let (rows, missing) = self.rows_in(scope, &visible)?;
        let needs = among_peers(&rows, self.prices());
        let mut newest: Vec<_> = rows.into_iter().zip(needs).collect();
        newest.sort_by_cached_key(|(row, _)| table::newest_key(row));
        let (rows, needs): (Vec<WorkerRow>, Vec<_>) = newest.into_iter().unzip();
        let missing = missing.map(|missing| missing.to_string());
        let json = overview::overview(&visible, &rows, &needs, missing, self.prices());
        Ok(Overview { json, rows })
    }

    /// Returns the calls of a worker in short, with at most `ticks` marks; none without a readable
    /// record.
    pub fn call_marks(&self, row: &WorkerRow, ticks: usize) -> CallMarks {
        self.record_of(row).map(|record| panel::marks(&record, ticks)).unwrap_or_default()
    }

    /// Returns the panel about a worker in about `room` bytes.
    pub fn panel(&self, row: &WorkerRow, room: usize) -> PanelJson {
        let (record, error) = match self.record_of(row) {
            Ok(record) => (Some(record), None),
            Err(error) => (None, Some(error)),
        };
        let missing = record.as_ref().and_then(|record| {
            let missing = Missing { outputs: record.unread, ..Missing::default() };
            missing.if_any(record.timed_out())
        });
        self.analyzer.settings.note_missing(missing.as_ref());
        let error = error.map(|error| format!("the record cannot be read: {error}"));
        let (calls, calls_not_listed) = match &record {
            Some(record) => self.panel_calls(row, record, room * 2 / 5),
            None => (Vec::new(), 0),
        };
        let digest = row.digest.as_deref();
        let (files, files_not_listed) = digest.map(panel::files).unwrap_or_default();
        let trace = record.as_deref().map(|record| &record.trace);
        let words = trace.and_then(|trace| trace.final_words.as_deref());
        PanelJson {
            verdict: record
                .as_deref()
                .and_then(|record| verdict::verdict(&self.analyzer.view, row, record)),
            requests: self.panel_requests(row, room / 10),
            evidence: self.panel_evidence(row, room * 2 / 5),
            changes: self.panel_changes(row, room / 5),
            calls,
            calls_not_listed,
            final_words: words
                .map(|words| panel::beginning(&cleaned(words.as_bytes()).text, room / 10)),
            files,
            files_not_listed,
            checks: digest.map(|digest| digest.checks.clone()).unwrap_or_default(),
            tokens_by_model: digest
                .iter()
                .flat_map(|digest| &digest.tokens_by_model)
                .map(|(model, tokens)| (model.clone(), (*tokens).into()))
                .collect(),
            context: trace
                .map(|trace| &trace.context)
                .filter(|context| context.requests.len() > 1)
                .map(|context| panel::ContextCurve {
                    requests: context.requests.clone(),
                    compactions: context.compacted_at.clone(),
                }),
            incomplete: error.or_else(|| missing.map(|missing| missing.to_string())),
        }
    }

    /// Returns the events of a worker for a timeline, and the number of its calls that have none.
    /// `place` says where it belongs among others.
    ///
    /// # Errors
    /// Its record cannot be read.
    pub fn chrome_trace(
        &self,
        row: &WorkerRow,
        place: &TracePlace<'_>,
    ) -> Result<(Vec<TraceEvent>, usize)> {
        Ok(chrome_trace::events(&*self.record_of(row)?, place))
    }

    /// Collects all that the record holds of a worker, and the first error of a part that is
    /// missing. `entry` is its row in the overview.
    ///
    /// # Errors
    /// Its record cannot be read.
    pub fn exported(
        &self,
        row: &WorkerRow,
        entry: &IndexRow,
    ) -> Result<(ExportedWorker, Option<Error>)> {
        let record = self.record_of(row)?;
        let view = &self.analyzer.view;
        let mut missing = None;
        let thread = match view.open(&row.member, &RelPath::parse("thread.jsonl")?) {
            Ok(file) => {
                let mut thread = read_range(&*file, 0, THREAD_MAX + 1)?;
                missing = (thread.len() > THREAD_MAX).then_some(Error::Io(Errno::FBIG));
                thread.truncate(THREAD_MAX);
                thread
            }
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error),
        };
        let exported = ExportedWorker::new(entry, &record, &thread, &mut |call| {
            let file = view.open_output(&row.member, call);
            let bytes = file.and_then(|file| match file {
                Some(file) => read_range(&*file, 0, OUTPUT_MAX + 1).map(Some),
                None => Ok(None),
            });
            let mut bytes = bytes.map_err(|error| missing.get_or_insert(error).clone()).ok()??;
            let is_cut = bytes.len() > OUTPUT_MAX;
            bytes.truncate(OUTPUT_MAX);
            Some((String::from_utf8_lossy(&bytes).into_owned(), is_cut))
        });
        Ok((exported, missing))
    }

    fn record_of(&self, row: &WorkerRow) -> Result<Arc<Record>> {
        let fingerprint = row.fingerprint.as_ref().ok_or(Error::NotFound)?;
        let clock = self.analyzer.settings.clock(10);
        self.analyzer.record(&row.member, fingerprint, OVERDUE, clock.deadline())
    }

    fn panel_calls(
        &self,
        row: &WorkerRow,
        record: &Arc<Record>,
        room: usize,
    ) -> (Vec<panel::PanelCall>, usize) {
        let (view, member, record) =
            (self.analyzer.view.clone(), row.member.clone(), record.clone());
        let number = record.trace.calls.len();
        let clock = self.analyzer.settings.clock(10);
        let subject = Subject::Worker(member.name.clone());
        let calls = self.analyzer.run_isolated(&subject, OVERDUE, clock.deadline(), {
            move |deadline| panel::calls(&view, &member, &record, room, deadline)
        });
        calls.unwrap_or((Vec::new(), number))
    }

    fn panel_requests(&self, row: &WorkerRow, room: usize) -> Option<TextJson> {
        let path = RelPath::parse("requests.txt").ok()?;
        let file = self.analyzer.view.open(&row.member, &path).ok()?;
        let size = usize::try_from(file.stat_without_acl().ok()?.size).unwrap_or(usize::MAX);
        let bytes = read_range(&*file, 0, REQUESTS_MAX).ok()?;
        let beginning = panel::beginning(&cleaned(&bytes).text, room);
        let unread = size.saturating_sub(bytes.len());
        Some(TextJson { left_out: beginning.left_out + unread, ..beginning })
    }

    fn panel_evidence(&self, row: &WorkerRow, room: usize) -> Vec<EvidenceJson> {
        let mut left = room;
        let mut found: Vec<EvidenceJson> = Vec::new();
        for size in EVIDENCE_SIZES {
            if size > left {
                break;
            }
            let budget = Budget::WORKER.with_size(size);
            let report = Report::Evidence(Some(budget));
            let Some(text) = self.text(&Document::Worker(row.member.name.clone(), report)) else {
                break;
            };
            if found.last().is_some_and(|smaller| smaller.text == text) {
                break;
            }
            left = left.saturating_sub(text.len());
            found.push(EvidenceJson { budget: budget.name(), text });
        }
        found
    }

    fn panel_changes(&self, row: &WorkerRow, room: usize) -> Option<String> {
        if room < CHANGES_MIN || row.digest.as_ref()?.files_changed() == 0 {
            return None;
        }
        self.text(&Document::Changes(row.member.name.clone(), Some(Budget::WORKER.with_size(room))))
    }

    fn text(&self, document: &Document) -> Option<String> {
        let rendered = self.render(self.state(document).ok()?).ok()?;
        Some(String::from_utf8_lossy(&rendered.bytes).into_owned())
    }
}
