//! Renders the generated files about a worker, a run or the swarm.
//!
//! A generated file is a function of its view: equal records give equal bytes. [`Renderer::state`]
//! detects cheaply whether its inputs have changed. A file about many workers is assembled from one
//! digest per worker, so a change of one worker recomputes one digest. This module knows nothing
//! about inodes or the kernel.

mod answers;
pub mod expand;
mod worker;

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::analysis::analyzer::Analyzer;
use crate::analysis::digest_cache::DigestResult;
use crate::analysis::excerpt::ExcerptTask;
use crate::analysis::isolation::PART_GRACE;
use crate::analysis::missing::{Missing, prepend_notice};
use crate::analysis::retry::RetryBudget;
use crate::analysis::settings::{Clock, Settings};
use crate::analysis::worker_digest::{WorkerOutcome, WorkerRow};
use crate::analysis::worker_states::{WorkerStates, hash_all};
use crate::catalog::{Access, Fingerprint};
use crate::digest::{Key, digest};
use crate::error::{Error, Result};
use crate::output::evidence::{self, SwarmReader};
use crate::output::{index, summary};
use crate::query::compare::{self, ResolvedQuery};
use crate::query::since::ViewSnapshot;
use crate::query::states_in;
use crate::route::cursor::Cursor;
use crate::route::{Generated, Scope};
use crate::store::Time;
use crate::text::clean;
use crate::view::{Member, View, VisibleWorkers};

/// Text of README.md at the root. It can also be part of a prompt.
const README: &str = include_str!("../docs/AGENTS.md");

/// A generated file.
#[derive(Debug, Clone)]
pub struct Rendered {
    /// The content.
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

/// The inputs of a generated file at one moment.
pub struct State {
    /// A hash of the inputs. The file cannot change unless this does.
    pub key: Key,
    input: RenderInput,
}

enum RenderInput {
    Text { text: Cow<'static, str>, newest: Time, access: Access },
    Worker { member: Arc<Member>, stamp: Arc<Fingerprint> },
    Workers { visible: Arc<VisibleWorkers>, states: WorkerStates },
    Snapshot { look: ViewSnapshot, cursor: Cursor },
}

/// Renders the generated files of a view. Clones share all state.
#[derive(Clone)]
pub struct Renderer {
    analyzer: Analyzer,
}

impl Renderer {
    /// Creates a renderer for `view`.
    pub fn new(view: View, settings: Settings) -> Renderer {
        Renderer { analyzer: Analyzer::new(view, settings) }
    }

    /// Returns the settings of the renderer.
    pub fn settings(&self) -> &Settings {
        &self.analyzer.settings
    }

    /// Returns the view whose files are rendered.
    pub fn view(&self) -> &View {
        &self.analyzer.view
    }

    /// Returns the analyzer of the workers of the view.
    pub fn analyzer(&self) -> &Analyzer {
        &self.analyzer
    }

    /// Returns the current inputs of a file.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the scope is not in the view or has no such file; those of reading
    /// the view.
    pub fn state(&self, scope: &Scope, file: &Generated) -> Result<State> {
        let mut hash = blake3::Hasher::new();
        hash.update(format!("{file:?}\0{scope:?}\0").as_bytes());
        let input = match (scope, file) {
            (_, Generated::Readme | Generated::QueryReadme(_)) => {
                let text = if let Generated::QueryReadme(kind) = file { kind.readme() } else { README };
                let root = self.analyzer.view.root_meta()?;
                let newest = self.analyzer.view.newest(&self.analyzer.view.visible())?;
                hash.update(format!("{:?}", (newest, root.mode, root.uid, root.gid)).as_bytes());
                RenderInput::Text { text: text.into(), newest, access: Access::from_meta(&root) }
            }
            (Scope::Run(_) | Scope::Worker(_), Generated::Since(_) | Generated::Compare(_)) => {
                return Err(Error::NotFound);
            }
            (Scope::Selected(_) | Scope::Workers(_), _)
                if !matches!(file, Generated::Grep(_) | Generated::Search(_)) =>
            {
                return Err(Error::NotFound);
            }
            (Scope::Swarm | Scope::Run(_), Generated::Focus(_)) => return Err(Error::NotFound),
            (Scope::Swarm, Generated::Since(cursor)) => {
                let (look, root) = (ViewSnapshot::take(&self.analyzer.view), self.analyzer.view.root_meta()?);
                hash.update(format!("{:?}", (root.mode, root.uid, root.gid)).as_bytes());
                look.hash(&mut hash);
                RenderInput::Snapshot { look, cursor: *cursor }
            }
            (Scope::Worker(name), Generated::Index | Generated::Summary | Generated::Evidence(_)) => {
                let member = self.analyzer.view.worker(name)?;
                let stamp = self.analyzer.view.fingerprint(&member, true)?;
                hash.update(&member.entry.key());
                hash.update(&stamp.version);
                RenderInput::Worker { member, stamp }
            }
            (Scope::Swarm, Generated::Compare(query)) => self.state_of_compared(query, &mut hash)?,
            (_, Generated::Grep(_) | Generated::Search(_) | Generated::Focus(_))
            | (Scope::Swarm | Scope::Run(_) | Scope::Selected(_) | Scope::Workers(_), _) => {
                let visible = self.analyzer.view.visible();
                let states = states_in(&self.analyzer, &visible, scope)?;
                let root = self.analyzer.view.root_meta()?;
                hash.update(format!("{:?}", (root.mode, root.uid, root.gid)).as_bytes());
                if states.is_empty() {
                    hash.update(format!("{:?}", self.analyzer.view.newest(&visible)?).as_bytes());
                }
                if *scope == Scope::Swarm {
                    hash.update(format!("{:?}", (visible.skipped, &visible.list_errors)).as_bytes());
                }
                hash.update(&scope.unread_sessions(&visible).to_le_bytes());
                hash_all(&mut hash, &states);
                RenderInput::Workers { visible, states }
            }
        };
        Ok(State { key: digest(&hash), input })
    }

    /// Returns the inputs of a comparison: the compared workers, or the text of a refusal.
    fn state_of_compared(&self, query: &compare::Query, hash: &mut blake3::Hasher) -> Result<RenderInput> {
        let (visible, root) = (self.analyzer.view.visible(), self.analyzer.view.root_meta()?);
        hash.update(format!("{:?}", (root.mode, root.uid, root.gid)).as_bytes());
        match compare::resolve(&self.analyzer, query, &visible)? {
            ResolvedQuery::Workers(states) => {
                hash_all(hash, &states);
                Ok(RenderInput::Workers { visible, states })
            }
            ResolvedQuery::Refused(answer) => {
                let newest = self.analyzer.view.newest(&visible)?;
                hash.update(format!("{newest:?}{}", answer.text).as_bytes());
                Ok(RenderInput::Text { text: answer.text.into(), newest, access: Access::from_meta(&root) })
            }
        }
    }

    /// Renders a file from `state`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the scope has no such file or its workers vanished; those of reading
    /// them.
    pub fn render(&self, scope: &Scope, file: &Generated, state: State) -> Result<Rendered> {
        let clock = self.analyzer.settings.clock(10);
        let has_time = || clock.has_time();
        self.analyzer.log_overdue();
        let key = state.key;
        let rendered = match state.input {
            RenderInput::Text { text, newest, access } => {
                Ok(Rendered { bytes: text.as_bytes().into(), newest, access, complete: true, missing: None })
            }
            RenderInput::Worker { member, stamp } => self.worker_file(&member, &stamp, file, &has_time),
            RenderInput::Workers { visible, states } => match file.clone() {
                Generated::Grep(query) => self.render_isolated(key, scope, &has_time, move |renderer, scope| {
                    renderer.grep_file(scope, &visible, &states, &query)
                }),
                Generated::Search(query) => self.render_isolated(key, scope, &has_time, move |renderer, scope| {
                    renderer.search_file(scope, &visible, &states, &query)
                }),
                Generated::Focus(query) => self.render_isolated(key, scope, &has_time, move |renderer, scope| {
                    renderer.focus_file(scope, &visible, &states, &query, &renderer.analyzer.settings.clock(10))
                }),
                Generated::Compare(query) => self.render_isolated(key, scope, &has_time, move |renderer, _| {
                    renderer.compare_file(&visible, states, &query)
                }),
                _ => self.render_workers(scope, &visible, states, file, &clock),
            },
            RenderInput::Snapshot { look, cursor } => self.since_file(&look, cursor),
        };
        rendered.inspect(|rendered| self.analyzer.settings.note_missing(rendered.missing.as_ref()))
    }

    /// Renders `since/CURSOR` from `look`.
    pub fn since(&self, look: &ViewSnapshot, cursor: Cursor) -> Result<Arc<[u8]>> {
        let rendered = self.since_file(look, cursor)?;
        self.analyzer.settings.note_missing(rendered.missing.as_ref());
        Ok(rendered.bytes)
    }

    /// Renders a file about many workers, again if their files change meanwhile.
    fn render_workers(
        &self,
        scope: &Scope,
        visible: &VisibleWorkers,
        mut states: WorkerStates,
        file: &Generated,
        clock: &Clock<'_>,
    ) -> Result<Rendered> {
        let mut attempts = RetryBudget::new(self.analyzer.settings.patience());
        let has_time = || clock.has_time();
        loop {
            let (rendered, settled) = self.render_workers_once(scope, visible, &states, file, clock)?;
            let complete = rendered.complete && attempts.is_first();
            if settled || !has_time() || !attempts.try_again() {
                return Ok(Rendered { complete, ..rendered });
            }
            states = states_in(&self.analyzer, visible, scope)?;
        }
    }

    /// Renders a file about many workers. Also returns true if all that it shows of each worker is
    /// from one state of the worker's files.
    fn render_workers_once(
        &self,
        scope: &Scope,
        visible: &VisibleWorkers,
        states: &WorkerStates,
        file: &Generated,
        clock: &Clock<'_>,
    ) -> Result<(Rendered, bool)> {
        let has_time = || clock.has_time();
        let digests = self.analyzer.digests(states, *scope == Scope::Swarm, &has_time);
        // A file is complete only if all digests match the requested states.
        let mut whole = digests.iter().zip(states).all(|(result, (_, requested))| result.matches(requested));
        let mut rows: Vec<WorkerRow<'_>> = Vec::with_capacity(states.len());
        for (result, (member, requested)) in digests.into_iter().zip(states) {
            rows.push(match result {
                DigestResult::Ready(digest, stamp) => WorkerRow { member, digest: Some(digest), stamp: Some(stamp) },
                DigestResult::Unread => WorkerRow { member, digest: None, stamp: requested.as_ref().ok().cloned() },
                DigestResult::Gone => continue,
            });
        }
        whole &= rows.iter().all(|row| row.digest.as_ref().is_some_and(|digest| digest.whole));
        let stamps = || rows.iter().filter_map(|row| row.stamp.as_deref());
        let (newest, access) = self.newest_and_access(visible, states, stamps)?;
        let run = match scope {
            Scope::Run(name) => visible.runs.get(name).map(|run| &**run),
            Scope::Swarm | Scope::Worker(_) | Scope::Selected(_) | Scope::Workers(_) => None,
        };
        let shown = RefCell::new(Vec::new());
        let records_late = Cell::new(false);
        let stamps_late = any_late(states);
        let missing = || {
            let ran_out = clock.ran_out() || stamps_late || records_late.get();
            let late = rows.iter().filter(|row| row.is_late(ran_out)).count();
            let sessions = scope.unread_sessions(visible);
            Missing { workers: (late, rows.len()), sessions, ..Missing::default() }.if_any(ran_out)
        };
        let bytes = match file {
            Generated::Index => index::swarm(visible, run, &rows, newest, missing()),
            Generated::Summary => prepend_notice(missing().as_ref(), summary::swarm(visible, run, &rows, newest)),
            Generated::Evidence(budget) => {
                let budget = self.analyzer.settings.budget_or(scope.default_budget(), *budget);
                let title = run.map_or("Swarm".into(), |run| format!("Run {}", clean::one_line(&run.id, 200)));
                let read = Cell::new(true);
                let record = |account: &WorkerOutcome<'_>| {
                    let row = rows.iter().find(|row| std::ptr::eq(row.member, account.member))?;
                    let stamp = row.stamp.as_ref()?;
                    shown.borrow_mut().push((row.member, stamp.key));
                    let (member, _) = states.iter().find(|(member, _)| std::ptr::eq(&**member, account.member))?;
                    let record = self.analyzer.record(member, stamp, PART_GRACE, &has_time);
                    let is_late = record.as_ref().map_or_else(Error::is_timeout, |record| record.timed_out());
                    records_late.set(records_late.get() || is_late);
                    let record = record.ok();
                    read.set(read.get() && record.as_ref().is_some_and(|record| record.is_complete()));
                    record
                };
                let cut = |member: &Member, cut: ExcerptTask| self.analyzer.run_cut(member, cut, &has_time);
                let accounts: Vec<WorkerOutcome<'_>> = rows.iter().map(WorkerRow::worker_outcome).collect();
                let reading = SwarmReader {
                    view: &self.analyzer.view,
                    record: &record,
                    run: &cut,
                    go_on: &has_time,
                    missing: &missing,
                };
                let written = evidence::swarm(&reading, title, &accounts, budget);
                whole &= written.complete && read.get();
                written.bytes
            }
            Generated::Readme
            | Generated::Since(_)
            | Generated::QueryReadme(_)
            | Generated::Grep(_)
            | Generated::Search(_)
            | Generated::Focus(_)
            | Generated::Compare(_) => {
                return Err(Error::NotFound);
            }
        };
        let missing = missing();
        let is_unchanged = |(member, key): &(&Member, Key)| {
            self.analyzer.view.fingerprint_now(member).is_ok_and(|now| now.key == *key)
        };
        let settled = shown.borrow().iter().all(is_unchanged);
        let complete = whole && settled && has_time();
        Ok((Rendered { bytes: bytes.into(), newest, access, complete, missing }, settled))
    }

    /// Returns the newest modification time of a file's inputs, and the permission to read it. Only
    /// the owner may read it while the permissions of some inputs are unknown.
    fn newest_and_access<'a, I: Iterator<Item = &'a Fingerprint>>(
        &self,
        visible: &VisibleWorkers,
        states: &WorkerStates,
        stamps: impl Fn() -> I,
    ) -> Result<(Time, Access)> {
        let root = self.analyzer.view.root_meta()?;
        let newest = match stamps().map(|stamp| stamp.newest_mtime).max() {
            Some(newest) => newest,
            None => self.analyzer.view.newest(visible)?,
        };
        let mut access = stamps().fold(Access::from_meta(&root), |access, stamp| access.intersect(&stamp.access));
        if any_late(states) {
            access.mode &= 0o400;
        }
        Ok((newest, access))
    }
}

/// Returns true if there was no time to read the state of some worker's files.
fn any_late(states: &WorkerStates) -> bool {
    states.iter().any(|(_, stamp)| stamp.as_ref().err() == Some(&Error::Late))
}
