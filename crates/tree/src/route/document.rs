//! The documents that can be rendered, and the names of documents in a directory of workers.

use std::sync::Arc;

use super::compare::CompareQuery;
use super::cursor::Cursor;
use super::focus;
use super::grep::GrepQuery;
use super::query_dir::QueryKind;
use super::search::SearchQuery;
use crate::analysis::facets::Selection;
use crate::view::{RunMembers, VisibleWorkers};
use swarmletfs_base::name::Name;
use swarmletfs_base::text::budget::Budget;

pub const CHANGES: &str = "changes.diff";
/// Name of the summary in the words of a language model. No listing has it.
const PROSE: &str = "summary.model.txt";

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Document {
    Readme,
    /// README.md in a query directory: how to write queries.
    QueryReadme(QueryKind),
    /// `since/CURSOR`: the changes since a cursor, and the next cursor.
    Since(Cursor),
    /// `compare/<a>..<b>`: the common parts of workers, and their differences.
    Compare(Arc<CompareQuery>),
    Group(Group, Report),
    /// A report on the worker under this name in `workers/`.
    Worker(Name, Report),
    /// changes.diff: a worker's changes to files. `None` selects the default budget.
    Changes(Name, Option<Budget>),
    /// `summary@<words>`: the summary of a worker with the passages relevant to the words.
    Focus(Name, Arc<SearchQuery>),
    /// `summary.model.txt`: the summary of a worker in the words of a language model.
    Prose(Name),
    /// `grep/<regex>`: the lines that match.
    Grep(Scope, Arc<GrepQuery>),
    /// `search/<words>`: the passages relevant to the words.
    Search(Scope, Arc<SearchQuery>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Group {
    Swarm,
    /// The run under this name in `runs/`.
    Run(Name),
    /// The workers of a directory in `by/`.
    Selected(Selection),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Report {
    /// index.json: the facts, for programs.
    Index,
    Summary,
    /// evidence.txt: excerpts of outputs. `None` selects the default budget.
    Evidence(Option<Budget>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    Swarm,
    /// The run under this name in `runs/`.
    Run(Name),
    /// The worker under this name in `workers/`.
    Worker(Name),
    Selected(Selection),
    /// The workers under these names in `workers/`.
    Workers(Arc<[Name]>),
}

impl Document {
    pub fn in_group(group: Group, name: &Name) -> Option<Document> {
        Report::from_name(name).map(|report| Document::Group(group, report))
    }

    pub fn in_worker(worker: &Name, name: &Name) -> Option<Document> {
        let report = Report::from_name(name).map(|report| Document::Worker(worker.clone(), report));
        let changes =
            || changes_budget(name).map(|budget| Document::Changes(worker.clone(), budget));
        let prose = || is_prose(name).then(|| Document::Prose(worker.clone()));
        report.or_else(changes).or_else(prose).or_else(|| {
            focus::parse_name(name).map(|query| Document::Focus(worker.clone(), Arc::new(query)))
        })
    }

    pub fn is_about_one_worker(&self) -> bool {
        match self {
            Document::Worker(..)
            | Document::Changes(..)
            | Document::Focus(..)
            | Document::Prose(_) => true,
            Document::Grep(scope, _) | Document::Search(scope, _) => {
                matches!(scope, Scope::Worker(_))
            }
            Document::Readme
            | Document::QueryReadme(_)
            | Document::Since(_)
            | Document::Compare(_)
            | Document::Group(..) => false,
        }
    }
}

impl Group {
    /// Returns the run that the group is, if it is one that exists.
    pub fn run<'a>(&self, visible: &'a VisibleWorkers) -> Option<&'a RunMembers> {
        match self {
            Group::Run(name) => visible.runs.get(name).map(|run| &**run),
            Group::Swarm | Group::Selected(_) => None,
        }
    }

    pub fn scope(&self) -> Scope {
        match self {
            Group::Swarm => Scope::Swarm,
            Group::Run(name) => Scope::Run(name.clone()),
            Group::Selected(selection) => Scope::Selected(selection.clone()),
        }
    }
}

impl Scope {
    /// Returns the size of a file about the scope if neither its name nor the settings have one.
    pub fn default_budget(&self) -> Budget {
        if matches!(self, Scope::Worker(_)) { Budget::WORKER } else { Budget::SWARM }
    }

    /// Returns the number of sessions not yet read for workers inside them that may belong to the
    /// scope.
    pub fn unread_sessions(&self, visible: &VisibleWorkers) -> usize {
        match self {
            Scope::Swarm | Scope::Selected(_) => visible.unread.len(),
            Scope::Run(name) => visible.runs.get(name).map_or(0, |run| {
                run.members.iter().filter(|member| visible.unread.contains(&member.name)).count()
            }),
            Scope::Worker(_) | Scope::Workers(_) => 0,
        }
    }
}

pub(super) fn is_prose(name: &Name) -> bool {
    name.as_bytes() == PROSE.as_bytes()
}

/// Returns the budget in the name of a file with changes: `None` in `changes.diff`, the size in
/// `changes.<size>.diff`. Returns `None` for any other name.
pub(super) fn changes_budget(name: &Name) -> Option<Option<Budget>> {
    let text = std::str::from_utf8(name.as_bytes()).ok()?;
    if text == CHANGES {
        return Some(None);
    }
    let size = text.strip_prefix("changes.")?.strip_suffix(".diff")?;
    Budget::parse(size).ok().map(Some)
}

impl Report {
    /// The reports that appear in listings, with their names.
    pub const LISTED: [(&str, Report); 3] = [
        ("evidence.txt", Report::Evidence(None)),
        ("index.json", Report::Index),
        ("summary", Report::Summary),
    ];

    /// Returns the report called `name`: a listed one or `evidence.<size>.txt`.
    pub fn from_name(name: &Name) -> Option<Report> {
        let text = std::str::from_utf8(name.as_bytes()).ok()?;
        if let Some((_, report)) = Report::LISTED.iter().find(|(listed, _)| *listed == text) {
            return Some(*report);
        }
        let size = text.strip_prefix("evidence.")?.strip_suffix(".txt")?;
        Budget::parse(size).ok().map(|budget| Report::Evidence(Some(budget)))
    }
}
