//! Generated files: what a view says about a worker, a run or the swarm, as bytes.
//!
//! A generated file is a function of what its view shows: the same record gives the same bytes, and [`Renderer::state`]
//! tells cheaply whether anything it is made of has changed. Files about many workers are put together from a
//! fragment per worker, so a change of one worker costs one fragment. Nothing here knows inodes or a kernel.

pub mod ask;
mod attempts;
mod behind;
mod budget;
mod causes;
mod checks;
mod claims;
mod clean;
pub mod compare;
mod evidence;
pub mod expand;
pub mod facets;
mod focus;
mod fragment;
mod fragments;
pub mod grep;
mod index;
mod isolate;
mod json;
mod marker;
mod missing;
pub mod output;
pub mod own;
pub mod search;
mod settings;
mod shares;
mod shelf;
pub mod since;
mod stamps;
mod summary;
mod text;
mod times;
mod tokens;
pub mod until;
mod worker;

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use budget::{Budget, Unit};
pub(crate) use json::hex;
#[cfg(feature = "mcp")]
pub(crate) use json::printable as printable_json;
pub use missing::Missing;
pub use settings::{Control, DEADLINE, Settings};
pub(crate) use text::count;
pub use text::utc;

use crate::catalog::{Access, Fingerprint};
use crate::digest::digest;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::search::ranked::Index;
use crate::store::Time;
use crate::view::{Member, View, Visible};
use crate::watchdog::Watchdog;
use attempts::Attempts;
use compare::Asked;
use evidence::{Account, Cut, Reading};
use facets::{Grouped, Selection};
use fragment::Row;
use fragments::{Found, Fragments, Stamped};
use isolate::{GRACE_OF_PART, Subject};
use missing::noted;
use settings::Clock;
use shelf::Shelf;
use since::{Cursor, Look};
use stamps::hash_all;

/// What the root's README.md says, and a prompt may.
const README: &str = include_str!("../docs/AGENTS.md");

/// What a generated file is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All workers of the view.
    Swarm,
    /// The run under this name in `runs/`.
    Run(Name),
    /// The worker under this name in `workers/`.
    Worker(Name),
    /// The workers of a folder in `by/`: they are only searched.
    Selected(Selection),
    /// The workers under these names in `workers/`: likewise.
    Workers(Arc<[Name]>),
}

/// The generated files.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Generated {
    /// README.md: how to read the tree. Of the swarm only.
    Readme,
    /// index.json, for programs.
    Index,
    /// summary, for a quick look.
    Summary,
    /// evidence.txt, for the proof; `None` is the default budget.
    Evidence(Option<Budget>),
    /// `since/CURSOR`: what changed, and the next cursor. Of the swarm only.
    Since(Cursor),
    /// README.md in a folder in which something is asked: how to ask. Of the swarm only.
    HowTo(ask::Kind),
    /// `grep/<regex>`: the lines that match.
    Grep(Arc<grep::Query>),
    /// `search/<words>`: the passages that bear on the words.
    Search(Arc<search::Query>),
    /// `summary@<words>`: the summary with the passages that bear on the words. Of a worker only.
    Focus(Arc<search::Query>),
    /// `compare/<a>..<b>`: what workers share and where they differ. Of the swarm only.
    Compare(Arc<compare::Query>),
}

/// The names of the generated files that are listed, beside README.md.
pub const LISTED: [(&str, Generated); 3] =
    [("evidence.txt", Generated::Evidence(None)), ("index.json", Generated::Index), ("summary", Generated::Summary)];

impl Generated {
    /// The generated file that a name asks for in a folder that stands for something: one that is listed,
    /// `evidence.<size>.txt`, or of a worker `summary@<words>`.
    pub fn asked(asked: &Name) -> Option<Generated> {
        let name = std::str::from_utf8(asked.as_bytes()).ok()?;
        if let Some((_, file)) = LISTED.iter().find(|(listed, _)| *listed == name) {
            return Some(file.clone());
        }
        if let Some(query) = focus::asked(asked) {
            return Some(Generated::Focus(Arc::new(query)));
        }
        let size = name.strip_prefix("evidence.")?.strip_suffix(".txt")?;
        Budget::parse(size).ok().map(|budget| Generated::Evidence(Some(budget)))
    }
}

/// Changes whenever a generated file could.
pub type Key = [u8; 16];

/// A generated file.
#[derive(Debug, Clone)]
pub struct Rendered {
    /// Its bytes.
    pub bytes: Arc<[u8]>,
    /// The newest change of what it is made of.
    pub newest: Time,
    /// Who may read it: nobody who may not read all that it is made of.
    pub access: Access,
    /// Whether everything was read that it is made of; if not, the file says so.
    pub complete: bool,
    /// The parts that there was no time for; the first line says so, or a field of JSON.
    pub missing: Option<Missing>,
}

/// What a generated file is made from, at one moment.
pub struct State {
    /// Changes whenever the file could.
    pub key: Key,
    of: Of,
}

enum Of {
    Text { text: Cow<'static, str>, newest: Time, access: Access },
    Worker { member: Arc<Member>, stamp: Arc<Fingerprint> },
    Members { visible: Arc<Visible>, stamped: Stamped },
    Look { look: Look, cursor: Cursor },
}

/// Makes the generated files of a view. Clones share everything.
#[derive(Clone)]
pub struct Renderer {
    view: Arc<View>,
    settings: Settings,
    fragments: Arc<Fragments>,
    grouped: Arc<Grouped>,
    index: Arc<Index>,
    /// Whether somebody reads on for these two.
    catching_up: Arc<AtomicBool>,
    watchdog: Watchdog<Subject>,
}

impl Renderer {
    /// A renderer for `view`.
    pub fn new(view: View, settings: Settings) -> Renderer {
        let watchdog = Watchdog::new();
        let shelf = view.shelf().map(|(cache, scope)| Shelf::new(cache, &scope));
        let fragments = Arc::new(Fragments::new(settings.patience(), shelf, watchdog.clone()));
        let index = Arc::new(Index::new(view.index()));
        let (view, grouped, catching_up) = (Arc::new(view), Arc::default(), Arc::default());
        Renderer { view, settings, fragments, grouped, index, catching_up, watchdog }
    }

    /// What is set of its files.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The view.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// What a file would be made from now; [`Error::NotFound`] where its scope is not in the view.
    pub fn state(&self, scope: &Scope, file: &Generated) -> Result<State> {
        let mut hash = blake3::Hasher::new();
        hash.update(format!("{file:?}\0{scope:?}\0").as_bytes());
        let of = match (scope, file) {
            (_, Generated::Readme | Generated::HowTo(_)) => {
                let text = if let Generated::HowTo(kind) = file { kind.readme() } else { README };
                let root = self.view.root_meta()?;
                let newest = self.view.newest(&self.view.visible())?;
                hash.update(format!("{:?}", (newest, root.mode, root.uid, root.gid)).as_bytes());
                Of::Text { text: text.into(), newest, access: Access::from_meta(&root) }
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
                let (look, root) = (Look::at(&self.view), self.view.root_meta()?);
                hash.update(format!("{:?}", (root.mode, root.uid, root.gid)).as_bytes());
                look.hash(&mut hash);
                Of::Look { look, cursor: *cursor }
            }
            (Scope::Worker(name), Generated::Index | Generated::Summary | Generated::Evidence(_)) => {
                let member = self.view.worker(name)?;
                let stamp = self.view.fingerprint(&member, true)?;
                hash.update(&member.entry.key());
                hash.update(&stamp.version);
                Of::Worker { member, stamp }
            }
            (Scope::Swarm, Generated::Compare(query)) => self.state_of_compared(query, &mut hash)?,
            (_, Generated::Grep(_) | Generated::Search(_) | Generated::Focus(_))
            | (Scope::Swarm | Scope::Run(_) | Scope::Selected(_) | Scope::Workers(_), _) => {
                let visible = self.view.visible();
                let stamped = self.stamped(&visible, scope)?;
                let root = self.view.root_meta()?;
                hash.update(format!("{:?}", (root.mode, root.uid, root.gid)).as_bytes());
                if stamped.is_empty() {
                    hash.update(format!("{:?}", self.view.newest(&visible)?).as_bytes());
                }
                if *scope == Scope::Swarm {
                    hash.update(format!("{:?}", (visible.skipped, &visible.troubles)).as_bytes());
                }
                hash.update(&Self::undiscovered(&visible, scope).to_le_bytes());
                hash_all(&mut hash, &stamped);
                Of::Members { visible, stamped }
            }
        };
        Ok(State { key: digest(&hash), of })
    }

    /// What a comparison would be made from: the workers compared alone, or a sentence on why there are none.
    fn state_of_compared(&self, query: &compare::Query, hash: &mut blake3::Hasher) -> Result<Of> {
        let (visible, root) = (self.view.visible(), self.view.root_meta()?);
        hash.update(format!("{:?}", (root.mode, root.uid, root.gid)).as_bytes());
        match self.compared(query, &visible)? {
            Asked::Workers(stamped) => {
                hash_all(hash, &stamped);
                Ok(Of::Members { visible, stamped })
            }
            Asked::Refused(answer) => {
                let newest = self.view.newest(&visible)?;
                hash.update(format!("{newest:?}{}", answer.text).as_bytes());
                Ok(Of::Text { text: answer.text.into(), newest, access: Access::from_meta(&root) })
            }
        }
    }

    /// Makes the file from `state`.
    pub fn render(&self, scope: &Scope, file: &Generated, state: State) -> Result<Rendered> {
        let clock = self.settings.clock(10);
        let go_on = || clock.may_go_on();
        self.log_overdue();
        let key = state.key;
        let rendered = match state.of {
            Of::Text { text, newest, access } => {
                Ok(Rendered { bytes: text.as_bytes().into(), newest, access, complete: true, missing: None })
            }
            Of::Worker { member, stamp } => self.worker_file(&member, &stamp, file, &go_on),
            Of::Members { visible, stamped } => match file.clone() {
                Generated::Grep(query) => self.answer(key, scope, &go_on, move |renderer, scope| {
                    renderer.grep_file(scope, &visible, &stamped, &query)
                }),
                Generated::Search(query) => self.answer(key, scope, &go_on, move |renderer, scope| {
                    renderer.search_file(scope, &visible, &stamped, &query)
                }),
                Generated::Focus(query) => self.answer(key, scope, &go_on, move |renderer, scope| {
                    renderer.focus_file(scope, &visible, &stamped, &query, &renderer.settings.clock(10))
                }),
                Generated::Compare(query) => {
                    self.answer(key, scope, &go_on, move |renderer, _| renderer.compare_file(&visible, stamped, &query))
                }
                _ => self.members(scope, &visible, stamped, file, &clock),
            },
            Of::Look { look, cursor } => since::answer(&self.view, &look, cursor),
        };
        rendered.inspect(|rendered| self.note(rendered.missing.as_ref()))
    }

    /// The answer to `cursor`, of what `look` saw: the bytes of `since/CURSOR`.
    pub fn since(&self, look: &Look, cursor: Cursor) -> Result<Arc<[u8]>> {
        let rendered = since::answer(&self.view, look, cursor)?;
        self.note(rendered.missing.as_ref());
        Ok(rendered.bytes)
    }

    /// Makes a file of many workers, and again if what it shows of them changed meanwhile.
    fn members(
        &self,
        scope: &Scope,
        visible: &Visible,
        mut stamped: Stamped,
        file: &Generated,
        clock: &Clock<'_>,
    ) -> Result<Rendered> {
        let mut attempts = Attempts::new(self.settings.patience());
        let go_on = || clock.may_go_on();
        loop {
            let (rendered, settled) = self.swarm(scope, visible, &stamped, file, clock)?;
            let complete = rendered.complete && attempts.is_first();
            if settled || !go_on() || !attempts.another() {
                return Ok(Rendered { complete, ..rendered });
            }
            stamped = self.stamped(visible, scope)?;
        }
    }

    /// Makes a file of many workers. Says whether all that it shows of one of them is of one moment.
    fn swarm(
        &self,
        scope: &Scope,
        visible: &Visible,
        stamped: &Stamped,
        file: &Generated,
        clock: &Clock<'_>,
    ) -> Result<(Rendered, bool)> {
        let go_on = || clock.may_go_on();
        let found = self.fragments.of(&self.view, stamped, *scope == Scope::Swarm, &self.settings, &go_on);
        // Only what is of the state that was asked for is kept as that state's file.
        let mut whole = found.iter().zip(stamped).all(|(found, (_, asked))| found.is_of(asked));
        let mut rows: Vec<Row<'_>> = Vec::with_capacity(stamped.len());
        for (found, (member, asked)) in found.into_iter().zip(stamped) {
            rows.push(match found {
                Found::Made(fragment, stamp) => Row { member, fragment: Some(fragment), stamp: Some(stamp) },
                Found::Unread => Row { member, fragment: None, stamp: asked.as_ref().ok().cloned() },
                Found::Gone => continue,
            });
        }
        whole &= rows.iter().all(|row| row.fragment.as_ref().is_some_and(|fragment| fragment.whole));
        let stamps = || rows.iter().filter_map(|row| row.stamp.as_deref());
        let (newest, access) = self.made_of(visible, stamped, stamps)?;
        let run = match scope {
            Scope::Run(name) => visible.runs.get(name).map(|run| &**run),
            Scope::Swarm | Scope::Worker(_) | Scope::Selected(_) | Scope::Workers(_) => None,
        };
        let told = RefCell::new(Vec::new());
        let records_late = Cell::new(false);
        let is_late = |(_, stamp): &(Arc<Member>, Result<Arc<Fingerprint>>)| stamp.as_ref().err() == Some(&Error::Late);
        let stamps_late = stamped.iter().any(is_late);
        let missing = || {
            let ran_out = clock.ran_out() || stamps_late || records_late.get();
            let late = rows.iter().filter(|row| row.is_late(ran_out)).count();
            let sessions = Self::undiscovered(visible, scope);
            Missing { workers: (late, rows.len()), sessions, ..Missing::default() }.if_any(ran_out)
        };
        let bytes = match file {
            Generated::Index => index::swarm(visible, run, &rows, newest, missing()),
            Generated::Summary => noted(missing().as_ref(), summary::swarm(visible, run, &rows, newest)),
            Generated::Evidence(budget) => {
                let budget = self.settings.budget_of(scope, *budget);
                let title = run.map_or("Swarm".into(), |run| format!("Run {}", text::one_line(&run.id, 200)));
                let read = Cell::new(true);
                let record = |account: &Account<'_>| {
                    let row = rows.iter().find(|row| std::ptr::eq(row.member, account.member))?;
                    let stamp = row.stamp.as_ref()?;
                    told.borrow_mut().push((row.member, stamp.key));
                    let (member, _) = stamped.iter().find(|(member, _)| std::ptr::eq(&**member, account.member))?;
                    let record = self.record(member, stamp, GRACE_OF_PART, &go_on);
                    let is_late = record.as_ref().map_or_else(Error::is_late, |record| record.is_late());
                    records_late.set(records_late.get() || is_late);
                    let record = record.ok();
                    read.set(read.get() && record.as_ref().is_some_and(|record| record.is_whole()));
                    record
                };
                let cut = |member: &Member, cut: Cut| self.cut(member, cut, &go_on);
                let accounts: Vec<Account<'_>> = rows.iter().map(Row::account).collect();
                let reading =
                    Reading { view: &self.view, record: &record, cut: &cut, go_on: &go_on, missing: &missing };
                let written = evidence::swarm(&reading, title, &accounts, budget);
                whole &= written.whole && read.get();
                written.bytes
            }
            Generated::Readme
            | Generated::Since(_)
            | Generated::HowTo(_)
            | Generated::Grep(_)
            | Generated::Search(_)
            | Generated::Focus(_)
            | Generated::Compare(_) => {
                return Err(Error::NotFound);
            }
        };
        let missing = missing();
        let is_now =
            |(member, key): &(&Member, Key)| self.view.fingerprint_now(member).is_ok_and(|now| now.key == *key);
        let settled = told.borrow().iter().all(is_now);
        let complete = whole && settled && go_on();
        Ok((Rendered { bytes: bytes.into(), newest, access, complete, missing }, settled))
    }

    /// The members of a scope with the state of their files.
    fn stamped(&self, visible: &Visible, scope: &Scope) -> Result<Stamped> {
        let members = match scope {
            Scope::Swarm => &visible.members,
            Scope::Run(name) => &visible.runs.get(name).ok_or(Error::NotFound)?.members,
            Scope::Selected(selection) => return Ok(self.stamps(&self.selected(selection))),
            Scope::Workers(names) => {
                let members = names.iter().map(|name| self.view.worker(name)).collect::<Result<Vec<_>>>()?;
                return Ok(self.stamps(&members));
            }
            Scope::Worker(name) => {
                let member = self.view.worker(name)?;
                let stamp = self.view.fingerprint(&member, true)?;
                return Ok(vec![(member, Ok(stamp))]);
            }
        };
        Ok(self.stamps(members))
    }

    /// The newest change of what a file is made of, and who may read it: only the owner until that is known of all.
    fn made_of<'a, I: Iterator<Item = &'a Fingerprint>>(
        &self,
        visible: &Visible,
        stamped: &Stamped,
        stamps: impl Fn() -> I,
    ) -> Result<(Time, Access)> {
        let root = self.view.root_meta()?;
        let newest = match stamps().map(|stamp| stamp.newest_mtime).max() {
            Some(newest) => newest,
            None => self.view.newest(visible)?,
        };
        let mut access = stamps().fold(Access::from_meta(&root), |access, stamp| access.intersect(&stamp.access));
        if stamped.iter().any(|(_, stamp)| stamp.as_ref().err() == Some(&Error::Late)) {
            access.mode &= 0o400;
        }
        Ok((newest, access))
    }

    /// The file whose text answers a question about `stamped`.
    fn answered(
        &self,
        visible: &Visible,
        stamped: &Stamped,
        (text, complete, missing): (String, bool, Option<Missing>),
    ) -> Result<Rendered> {
        let stamps = || stamped.iter().filter_map(|(_, stamp)| stamp.as_deref().ok());
        let (newest, access) = self.made_of(visible, stamped, stamps)?;
        Ok(Rendered { bytes: text.into_bytes().into(), newest, access, complete, missing })
    }
}
