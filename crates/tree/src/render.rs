//! Renders the generated files about a worker, a run or the swarm.
//!
//! A generated file is a function of its view: equal records give equal bytes. [`Renderer::state`]
//! detects cheaply whether its inputs have changed. A file about many workers is assembled from one
//! digest per worker, so a change of one worker recomputes one digest. This module knows nothing
//! about inodes or the kernel.

mod answers;
pub mod expand;
pub mod list;
pub mod overview;
pub mod prose;
mod worker;

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use crate::analysis::analyzer::Analyzer;
use crate::analysis::digest_cache::DigestResult;
use crate::analysis::missing::{Missing, prepend_notice};
use crate::analysis::retry::RetryBudget;
use crate::analysis::settings::{Clock, PART_GRACE, Settings, Subject};
use crate::analysis::worker_digest::WorkerRow;
use crate::analysis::worker_states::{WorkerStates, hash_states};
use crate::catalog::{Access, Fingerprint};
use crate::output::evidence::{self, SwarmReader};
use crate::output::{index, summary};
use crate::query::compare::{self, CompareQuery, ResolvedQuery};
use crate::query::since::ViewSnapshot;
use crate::query::{FileQuery, states_in};
use crate::route::cursor::Cursor;
use crate::route::{Document, Group, Report, Scope};
use crate::view::{Member, View, VisibleWorkers};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::digest::{Key, digest, hash_value};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{Prices, Record};
use swarmletfs_base::name::Name;
use swarmletfs_base::store::Time;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_base::text::clean;

/// Maximum length of the messages of a worker that are read, in bytes.
const THREAD_MAX: usize = 256 << 20;
/// Text of README.md at the root. It can also be part of a prompt.
const README: &str = include_str!("AGENTS.md");

#[derive(Debug, Clone)]
pub struct Rendered {
    pub bytes: Arc<[u8]>,
    /// The newest modification time of its inputs.
    pub newest: Time,
    /// The permission to read it: only readers of all inputs have it.
    pub access: Access,
    /// True if all inputs were read. If not, the content says so.
    pub complete: bool,
    /// The parts that are missing because time ran out. The first line or a JSON field lists them.
    pub missing: Option<Missing>,
}

/// A document with its inputs at one moment.
pub struct State {
    /// A hash of the document and its inputs. The content cannot change unless this does.
    pub key: Key,
    render: RenderTask,
}

type RenderTask = Box<dyn FnOnce(&Renderer, Subject, &Clock<'_>) -> Result<Rendered> + Send>;

struct CoveredWorkers {
    visible: Arc<VisibleWorkers>,
    states: WorkerStates,
    /// Number of removed workers, if the document shows it.
    removed: usize,
}

/// Renders the generated files of a view. Clones share all state.
#[derive(Clone)]
pub struct Renderer {
    analyzer: Analyzer,
}

impl Renderer {
    pub fn new(view: View, settings: Settings) -> Renderer {
        Renderer { analyzer: Analyzer::new(view, settings) }
    }

    /// Creates a renderer for another view with the same restriction. Known facts about workers of
    /// both views are not read again.
    pub fn with_view(&self, view: View) -> Renderer {
        Renderer { analyzer: self.analyzer.with_view(view) }
    }

    /// Returns this renderer with another deadline. Both share all that was read.
    pub fn with_deadline(&self, deadline: Duration) -> Renderer {
        let mut renderer = self.clone();
        renderer.analyzer.settings.deadline = deadline;
        renderer
    }

    pub fn settings(&self) -> &Settings {
        &self.analyzer.settings
    }

    fn prices(&self) -> Option<&Prices> {
        self.analyzer.settings.prices.as_deref()
    }

    pub fn view(&self) -> &View {
        &self.analyzer.view
    }

    pub fn analyzer(&self) -> &Analyzer {
        &self.analyzer
    }

    /// Returns a document with its current inputs.
    ///
    /// # Errors
    /// [`Error::NotFound`] if a worker or run of the document is not in the view; any error of
    /// reading the view.
    pub fn state(&self, document: &Document) -> Result<State> {
        let mut hash = blake3::Hasher::new();
        hash_value(&mut hash, document);
        let render: RenderTask = match document {
            Document::Readme => self.fixed_text(README.into(), &mut hash)?,
            Document::QueryReadme(kind) => self.fixed_text(kind.readme().into(), &mut hash)?,
            Document::Since(cursor) => {
                let (snapshot, cursor) = (ViewSnapshot::take(&self.analyzer.view), *cursor);
                hash_value(&mut hash, &self.root_access()?);
                snapshot.hash_into(&mut hash);
                Box::new(move |renderer, _, _| renderer.since_file(&snapshot, cursor))
            }
            Document::Compare(query) => self.comparison(query.clone(), &mut hash)?,
            Document::Group(group, report) => {
                let mut workers = self.covered_workers(&group.scope(), &mut hash)?;
                if (group, report) == (&Group::Swarm, &Report::Summary) {
                    workers.removed = self.analyzer.view.removed_count(&workers.visible);
                    hash_value(&mut hash, &workers.removed);
                }
                let (group, report) = (group.clone(), *report);
                Box::new(move |renderer, _, clock| {
                    renderer.group_report(workers, &group, report, clock)
                })
            }
            Document::Worker(name, report) => {
                let (member, fingerprint) = self.worker_state(name, &mut hash)?;
                let report = *report;
                Box::new(move |renderer, _, clock| {
                    renderer.worker_report(&member, &fingerprint, report, clock.deadline())
                })
            }
            Document::Changes(name, budget) => {
                let ((member, fingerprint), budget) =
                    (self.worker_state(name, &mut hash)?, *budget);
                isolated(Some(Subject::Worker(member.name.clone())), move |renderer| {
                    let clock = renderer.analyzer.settings.clock(10);
                    renderer.changes_file(&member, &fingerprint, budget, &clock)
                })
            }
            Document::Focus(name, query) => {
                let (member, fingerprint) = self.worker_state(name, &mut hash)?;
                hash_value(&mut hash, &self.root_access()?);
                let query = query.clone();
                isolated(None, move |renderer| renderer.focus_file(&member, &fingerprint, &query))
            }
            Document::Prose(name) => {
                let (member, fingerprint) = self.worker_state(name, &mut hash)?;
                isolated(None, move |renderer| renderer.prose_file(&member, &fingerprint))
            }
            Document::Grep(scope, query) => self.file_query(scope, query, &mut hash)?,
            Document::Search(scope, query) => self.file_query(scope, query, &mut hash)?,
        };
        Ok(State { key: digest(&hash), render })
    }

    fn root_access(&self) -> Result<Access> {
        Ok(Access::from_meta(&self.analyzer.view.root_meta()?))
    }

    fn fixed_text(&self, text: Cow<'static, str>, hash: &mut blake3::Hasher) -> Result<RenderTask> {
        let access = self.root_access()?;
        let newest = self.analyzer.view.newest(&self.analyzer.view.visible())?;
        hash_value(hash, &(newest, access));
        Ok(Box::new(move |_, _, _| {
            let bytes = text.as_bytes().into();
            Ok(Rendered { bytes, newest, access, complete: true, missing: None })
        }))
    }

    fn file_query<Q: FileQuery + Send + Sync + 'static>(
        &self,
        scope: &Scope,
        query: &Arc<Q>,
        hash: &mut blake3::Hasher,
    ) -> Result<RenderTask> {
        let workers = self.covered_workers(scope, hash)?;
        let (scope, query) = (scope.clone(), query.clone());
        Ok(isolated(None, move |renderer| renderer.file_answer(&scope, &workers, &*query)))
    }

    /// Returns the workers in `scope` and hashes everything that a document about them depends on.
    fn covered_workers(&self, scope: &Scope, hash: &mut blake3::Hasher) -> Result<CoveredWorkers> {
        let visible = self.analyzer.view.visible();
        let states = states_in(&self.analyzer, &visible, scope)?;
        hash_value(hash, &self.root_access()?);
        if states.is_empty() {
            hash_value(hash, &self.analyzer.view.newest(&visible)?);
        }
        if *scope == Scope::Swarm {
            hash_value(hash, &(visible.skipped, &visible.list_errors));
        }
        hash_value(hash, &scope.unread_sessions(&visible));
        if let Scope::Run(_) | Scope::Selected(_) = scope {
            // A new worker elsewhere in the view can make a short id longer.
            states.iter().for_each(|(member, _)| hash_value(hash, &visible.short_id(&member.name)));
        }
        hash_states(hash, &states);
        Ok(CoveredWorkers { visible, states, removed: 0 })
    }

    /// Returns the document that compares workers, or refuses to.
    fn comparison(
        &self,
        query: Arc<CompareQuery>,
        hash: &mut blake3::Hasher,
    ) -> Result<RenderTask> {
        let visible = self.analyzer.view.visible();
        hash_value(hash, &self.root_access()?);
        match compare::resolve(&self.analyzer, &query, &visible)? {
            ResolvedQuery::Workers(states) => {
                hash_states(hash, &states);
                let workers = CoveredWorkers { visible, states, removed: 0 };
                Ok(isolated(None, move |renderer| renderer.compare_file(workers, &query)))
            }
            ResolvedQuery::Refused(page) => {
                hash_value(hash, &page.text);
                self.fixed_text(page.text.into(), hash)
            }
        }
    }

    /// Renders a document.
    ///
    /// # Errors
    /// [`Error::NotFound`] if its workers vanished; any error of reading them.
    pub fn render(&self, state: State) -> Result<Rendered> {
        let clock = self.analyzer.settings.clock(10);
        self.analyzer.log_overdue();
        let rendered = (state.render)(self, Subject::Answer(state.key), &clock);
        rendered.inspect(|rendered| self.analyzer.settings.note_missing(rendered.missing.as_ref()))
    }

    pub fn since(&self, snapshot: &ViewSnapshot, cursor: Cursor) -> Result<Arc<[u8]>> {
        let rendered = self.since_file(snapshot, cursor)?;
        self.analyzer.settings.note_missing(rendered.missing.as_ref());
        Ok(rendered.bytes)
    }

    /// Renders a report on a group of workers, again if their files change meanwhile.
    fn group_report(
        &self,
        mut workers: CoveredWorkers,
        group: &Group,
        report: Report,
        clock: &Clock<'_>,
    ) -> Result<Rendered> {
        let mut attempts = RetryBudget::new(self.analyzer.settings.patience());
        loop {
            let (rendered, settled) = self.group_report_once(&workers, group, report, clock)?;
            let complete = rendered.complete && attempts.is_first();
            if settled || !clock.has_time() || !attempts.try_again() {
                return Ok(Rendered { complete, ..rendered });
            }
            workers.states = states_in(&self.analyzer, &workers.visible, &group.scope())?;
        }
    }

    /// Renders a report on a group of workers. Also returns true if all that it shows of each
    /// worker is from one state of the worker's files.
    fn group_report_once(
        &self,
        workers: &CoveredWorkers,
        group: &Group,
        report: Report,
        clock: &Clock<'_>,
    ) -> Result<(Rendered, bool)> {
        let CoveredWorkers { visible, states, removed } = workers;
        let deadline = clock.deadline();
        let (rows, mut whole) = self.worker_rows(states, *group == Group::Swarm, deadline);
        let fingerprints = rows.iter().filter_map(|row| row.fingerprint.as_deref());
        let (newest, access) = self.newest_and_access(workers, fingerprints)?;
        let sessions = group.scope().unread_sessions(visible);
        let reads = RecordReads::default();
        let states_late = any_late(states);
        let missing = || {
            let ran_out = clock.ran_out() || states_late || reads.any_late.get();
            let unread_workers = rows.iter().filter(|row| row.is_late(ran_out)).count();
            Missing { unread_workers, workers: rows.len(), sessions, ..Missing::default() }
                .if_any(ran_out)
        };
        let bytes = match report {
            Report::Index => index::swarm(visible, group, &rows, newest, missing(), self.prices())?,
            Report::Summary => {
                let text = summary::swarm(visible, group, &rows, *removed, newest, self.prices());
                prepend_notice(missing().as_ref(), text)
            }
            Report::Evidence(budget) => {
                let budget = self.analyzer.settings.budget_or(Budget::SWARM, budget);
                let title = match (group, group.run(visible)) {
                    (Group::Selected(_), _) => "Selection".into(),
                    (_, Some(run)) => format!("Run {}", clean::one_line(&run.id, 200)),
                    (_, None) => "Swarm".into(),
                };
                let reader = SwarmReader {
                    view: &self.analyzer.view,
                    record: &|row| reads.record(&self.analyzer, row, deadline),
                    run: &|member, cut| self.analyzer.run_cut(member, cut, deadline),
                    deadline,
                    missing: &missing,
                };
                let written = evidence::swarm(&reader, title, &rows, budget);
                whole &= written.complete && !reads.any_incomplete.get();
                written.bytes
            }
        };
        let missing = missing();
        let settled = reads.states.borrow().iter().all(|(member, key)| {
            self.analyzer.view.fingerprint_now(member).is_ok_and(|now| now.key == *key)
        });
        let complete = whole && settled && clock.has_time();
        Ok((Rendered { bytes: bytes.into(), newest, access, complete, missing }, settled))
    }

    /// Returns a row for each of the workers that still exist, and true if every worker was read
    /// whole in the requested state. `is_whole_view` is passed to [`Analyzer::digests`].
    fn worker_rows(
        &self,
        states: &WorkerStates,
        is_whole_view: bool,
        deadline: Deadline<'_>,
    ) -> (Vec<WorkerRow>, bool) {
        let digests = self.analyzer.digests(states, is_whole_view, deadline);
        let is_current =
            digests.iter().zip(states).all(|(result, (_, requested))| result.matches(requested));
        let rows = digests.into_iter().zip(states).filter_map(|(result, (member, requested))| {
            let (digest, fingerprint) = match result {
                DigestResult::Ready(digest, fingerprint) => (Some(digest), Some(fingerprint)),
                DigestResult::Unread => (None, requested.as_ref().ok().cloned()),
                DigestResult::Gone => return None,
            };
            Some(WorkerRow { member: member.clone(), digest, fingerprint })
        });
        let rows: Vec<WorkerRow> = rows.collect();
        let is_whole =
            rows.iter().all(|row| row.digest.as_ref().is_some_and(|digest| digest.whole));
        (rows, is_current && is_whole)
    }

    /// Returns a worker with the state of its files, and hashes both.
    fn worker_state(
        &self,
        name: &Name,
        hash: &mut blake3::Hasher,
    ) -> Result<(Arc<Member>, Arc<Fingerprint>)> {
        let member = self.analyzer.view.worker(name)?;
        let fingerprint = self.analyzer.view.fingerprint(&member, true)?;
        hash.update(&member.entry.key());
        hash.update(&fingerprint.version);
        Ok((member, fingerprint))
    }

    /// Returns the newest modification time of a file's inputs, and the permission to read it.
    /// `fingerprints` are the states of the workers' files that the file shows. Only the owner may
    /// read it while the permissions of some inputs are unknown.
    fn newest_and_access<'a>(
        &self,
        workers: &CoveredWorkers,
        fingerprints: impl Iterator<Item = &'a Fingerprint> + Clone,
    ) -> Result<(Time, Access)> {
        let root = self.analyzer.view.root_meta()?;
        let mtimes = fingerprints.clone().map(|fingerprint| fingerprint.newest_mtime);
        let newest = match mtimes.max() {
            Some(newest) => newest,
            None => self.analyzer.view.newest(&workers.visible)?,
        };
        let mut access = fingerprints.fold(Access::from_meta(&root), |access, fingerprint| {
            access.intersect(&fingerprint.access())
        });
        if any_late(&workers.states) {
            access.mode &= 0o400;
        }
        Ok((newest, access))
    }
}

/// Returns the task to run `render` on a thread that can be abandoned, for `subject` or else for
/// the answer.
fn isolated(
    subject: Option<Subject>,
    render: impl FnOnce(&Renderer) -> Result<Rendered> + Send + 'static,
) -> RenderTask {
    Box::new(move |renderer, answer, clock| {
        renderer.render_isolated(&subject.unwrap_or(answer), clock.deadline(), render)
    })
}

#[derive(Default)]
struct RecordReads {
    /// The workers that were read, each with the key of the state of its files.
    states: RefCell<Vec<(Arc<Member>, Key)>>,
    /// True if there was no time to read some record whole.
    any_late: Cell<bool>,
    /// True if some record is missing or lacks a part.
    any_incomplete: Cell<bool>,
}

impl RecordReads {
    /// Reads the record of a worker until `deadline`. Returns `None` if that fails or the worker
    /// vanished.
    fn record(
        &self,
        analyzer: &Analyzer,
        row: &WorkerRow,
        deadline: Deadline<'_>,
    ) -> Option<Arc<Record>> {
        let fingerprint = row.fingerprint.as_ref()?;
        self.states.borrow_mut().push((row.member.clone(), fingerprint.key));
        let record = analyzer.record(&row.member, fingerprint, PART_GRACE, deadline);
        let (is_late, is_complete) = match &record {
            Ok(record) => (record.timed_out(), record.is_complete()),
            Err(error) => (error.is_timeout(), false),
        };
        self.any_late.update(|any| any || is_late);
        self.any_incomplete.update(|any| any || !is_complete);
        record.ok()
    }
}

/// Returns true if there was no time to read the state of some worker's files.
fn any_late(states: &WorkerStates) -> bool {
    states.iter().any(|(_, fingerprint)| fingerprint.as_ref().err() == Some(&Error::Late))
}
