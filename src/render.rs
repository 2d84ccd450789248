//! Generated files: what a view says about a worker, a run or the swarm, as bytes.
//!
//! A generated file is a function of what its view shows: the same record gives the same bytes, and [`Renderer::key`]
//! tells cheaply whether anything it is made of has changed. Files about many workers are put together from a
//! fragment per worker, so a change of one worker costs one fragment. Nothing here knows inodes or a kernel.

mod budget;
mod checks;
mod clean;
mod evidence;
mod fragment;
mod index;
mod json;
mod summary;
mod text;

use std::sync::Arc;
use std::time::{Duration, Instant};

use quick_cache::sync::Cache;

pub use budget::Budget;

use crate::catalog::{Access, Stamp};
use crate::error::{Error, Result};
use crate::model::Record;
use crate::name::Name;
use crate::store::Time;
use crate::view::{Member, View, Visible};
use evidence::Account;
use fragment::{Fragment, Row};

/// How long one render may look into outputs before the file says what was not read.
const DEADLINE: Duration = Duration::from_secs(2);
/// How often a file of a worker whose files change meanwhile is made before it is given as it is.
const ATTEMPTS: u32 = 5;
/// How many workers' fragments are kept.
const FRAGMENTS: usize = 200_000;
/// What the root's README.md says.
const README: &str = include_str!("render/README.md");

/// What a generated file is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All workers of the view.
    Swarm,
    /// The run under this name in `runs/`.
    Run(Name),
    /// The worker under this name in `workers/`.
    Worker(Name),
}

/// The generated files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Generated {
    /// README.md: how to read the tree. Of the swarm only.
    Readme,
    /// index.json, for programs.
    Index,
    /// summary, for a quick look.
    Summary,
    /// evidence.txt, for the proof; `None` is the default budget.
    Evidence(Option<Budget>),
}

/// The names of the generated files that are listed, beside README.md.
pub const LISTED: [(&str, Generated); 3] =
    [("evidence.txt", Generated::Evidence(None)), ("index.json", Generated::Index), ("summary", Generated::Summary)];

impl Generated {
    /// The generated file that a name asks for in a folder that stands for something: one that is listed, or
    /// `evidence.<size>.txt`.
    pub fn asked(name: &Name) -> Option<Generated> {
        let name = std::str::from_utf8(name.as_bytes()).ok()?;
        if let Some((_, file)) = LISTED.iter().find(|(listed, _)| *listed == name) {
            return Some(*file);
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
}

/// Makes the generated files of a view.
pub struct Renderer {
    view: View,
    budget: Option<Budget>,
    deadline: Duration,
    fragments: Cache<(Key, Key), Arc<Fragment>>,
}

/// The members of a scope, each with the state of its files; `None` for one that vanished meanwhile.
type Stamped = Vec<(Arc<Member>, Option<Arc<Stamp>>)>;

impl Renderer {
    /// A renderer for `view`; `budget` is the default of every evidence.txt instead of 16,000 and 28,000 bytes.
    pub fn new(view: View, budget: Option<Budget>) -> Renderer {
        Renderer { view, budget, deadline: DEADLINE, fragments: Cache::new(FRAGMENTS) }
    }

    /// The view.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Changes whenever the file could; [`Error::NotFound`] where its scope is not in the view.
    pub fn key(&self, scope: &Scope, file: Generated) -> Result<Key> {
        let mut hash = blake3::Hasher::new();
        hash.update(format!("{file:?}\0{scope:?}\0").as_bytes());
        match (scope, file) {
            (_, Generated::Readme) => {
                let root = self.view.root_meta()?;
                let newest = self.view.newest(&self.view.visible())?;
                hash.update(format!("{:?}", (newest, root.mode, root.uid, root.gid)).as_bytes());
            }
            (Scope::Worker(name), _) => {
                let member = self.view.worker(name)?;
                hash.update(&member.entry.key());
                hash.update(&self.view.stamp(&member, true)?.key);
            }
            (Scope::Swarm | Scope::Run(_), _) => {
                let visible = self.view.visible();
                if *scope == Scope::Swarm {
                    hash.update(format!("{:?}", (visible.skipped, &visible.troubles)).as_bytes());
                }
                for (member, stamp) in self.stamped(&visible, scope)? {
                    hash.update(member.name.as_bytes());
                    hash.update(&[0]);
                    hash.update(&member.entry.key());
                    hash.update(&stamp.map(|stamp| stamp.key).unwrap_or_default());
                }
            }
        }
        let mut key = Key::default();
        hash.finalize_xof().fill(&mut key);
        Ok(key)
    }

    /// Makes the file.
    pub fn render(&self, scope: &Scope, file: Generated) -> Result<Rendered> {
        let begun = Instant::now();
        let go_on = || begun.elapsed() < self.deadline;
        match (scope, file) {
            (_, Generated::Readme) => {
                let root = self.view.root_meta()?;
                let access = Access::of_folder(&root);
                let newest = self.view.newest(&self.view.visible())?;
                Ok(Rendered { bytes: README.as_bytes().into(), newest, access, complete: true })
            }
            (Scope::Worker(name), _) => self.worker(name, file, &go_on),
            (Scope::Swarm | Scope::Run(_), _) => self.swarm(scope, file, &go_on),
        }
    }

    /// Makes a file of one worker, of one state of its files: if they changed meanwhile, it is made again.
    fn worker(&self, name: &Name, file: Generated, go_on: &dyn Fn() -> bool) -> Result<Rendered> {
        let mut member = self.view.worker(name)?;
        let mut stamp = self.view.stamp(&member, true)?;
        for attempt in 1.. {
            let record = self.view.record(&member, &stamp, go_on)?;
            let mut whole = record.is_whole();
            let bytes = match file {
                Generated::Index => index::worker(&self.view, &member, &stamp, &record)?,
                Generated::Summary => summary::worker(&member, &stamp, &record).into_bytes(),
                Generated::Evidence(budget) => {
                    let budget = budget.or(self.budget).unwrap_or(Budget::WORKER);
                    let written = evidence::worker(&self.view, &member, &record, budget, go_on);
                    whole &= written.whole;
                    written.bytes
                }
                Generated::Readme => break,
            };
            let now = self.view.stamp_now(&member)?;
            let settled = now.key == stamp.key;
            if settled || attempt == ATTEMPTS || !go_on() {
                let complete = settled && whole && go_on();
                return Ok(Rendered { bytes: bytes.into(), newest: stamp.newest, access: stamp.access, complete });
            }
            member = self.view.worker(name)?;
            stamp = now;
        }
        Err(Error::NotFound)
    }

    fn swarm(&self, scope: &Scope, file: Generated, go_on: &dyn Fn() -> bool) -> Result<Rendered> {
        let visible = self.view.visible();
        let stamped = self.stamped(&visible, scope)?;
        let row = |(member, stamp): &'_ (Arc<Member>, Option<Arc<Stamp>>)| {
            stamp.as_ref().and_then(|stamp| self.fragment(member, stamp, go_on))
        };
        let rows: Vec<Row<'_>> =
            stamped.iter().map(|both| Row { member: &both.0, fragment: row(both), stamp: both.1.as_deref() }).collect();
        let root = self.view.root_meta()?;
        let stamps = || rows.iter().filter_map(|row| row.stamp);
        let newest = match stamps().map(|stamp| stamp.newest).max() {
            Some(newest) => newest,
            None => self.view.newest(&visible)?,
        };
        let access = stamps().fold(Access::of_folder(&root), |access, stamp| access.within(&stamp.access));
        let run = match scope {
            Scope::Run(name) => visible.runs.get(name),
            Scope::Swarm | Scope::Worker(_) => None,
        };
        let mut whole = rows.iter().all(|row| row.stamp.is_none() || row.fragment.as_ref().is_some_and(|f| f.whole));
        let bytes = match file {
            Generated::Index => index::swarm(&visible, run, &rows, newest),
            Generated::Summary => summary::swarm(&visible, run, &rows, newest).into_bytes(),
            Generated::Evidence(budget) => {
                let budget = budget.or(self.budget).unwrap_or(Budget::SWARM);
                let title = run.map_or("Swarm".into(), |run| format!("Run {}", text::one_line(&run.id, 200)));
                let record = |account: &Account<'_>| self.record(account.member, go_on);
                let accounts: Vec<Account<'_>> = rows.iter().map(Row::account).collect();
                let written = evidence::swarm(&self.view, title, &accounts, &record, budget, go_on);
                whole &= written.whole;
                written.bytes
            }
            Generated::Readme => return Err(Error::NotFound),
        };
        Ok(Rendered { bytes: bytes.into(), newest, access, complete: whole && go_on() })
    }

    /// The members of a scope with the state of their files.
    fn stamped(&self, visible: &Visible, scope: &Scope) -> Result<Stamped> {
        let members = match scope {
            Scope::Swarm => &visible.members,
            Scope::Run(name) => &visible.runs.get(name).ok_or(Error::NotFound)?.members,
            Scope::Worker(_) => return Err(Error::NotFound),
        };
        Ok(members.iter().map(|member| (member.clone(), self.view.stamp(member, false).ok())).collect())
    }

    fn fragment(&self, member: &Member, stamp: &Stamp, go_on: &dyn Fn() -> bool) -> Option<Arc<Fragment>> {
        let key = (stamp.key, member.entry.key());
        if let Some(fragment) = self.fragments.get(&key) {
            return Some(fragment);
        }
        if !go_on() {
            return None;
        }
        // A record that cannot be read is told as such; only what there was no time for is left out.
        let fragment = match self.view.record(member, stamp, go_on) {
            Ok(record) if record.unread > 0 => return None,
            Ok(record) => Fragment::of(&self.view, member, stamp, &record),
            Err(Error::NotFound) => return None,
            Err(error) => Fragment::unreadable(&error),
        };
        let fragment = Arc::new(fragment);
        if fragment.whole {
            self.fragments.insert(key, fragment.clone());
        }
        Some(fragment)
    }

    fn record(&self, member: &Member, go_on: &dyn Fn() -> bool) -> Option<Arc<Record>> {
        let stamp = self.view.stamp(member, false).ok()?;
        self.view.record(member, &stamp, go_on).ok()
    }
}
