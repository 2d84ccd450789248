//! The grammar of names: parses the name of a generated file into a request, and shows a worker's own
//! file whose name collides with one.

pub mod compare;
pub mod cursor;
mod focus;
pub mod grep;
pub mod name_collision;
pub mod parsed_name;
pub mod query_dir;
pub mod search;
pub mod shown_path;

use std::sync::Arc;

use crate::analysis::facets::Selection;
use crate::name::Name;
use crate::text::budget::Budget;
use crate::view::VisibleWorkers;
use cursor::Cursor;
use query_dir::QueryKind;

/// The subject of a generated file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All workers of the view.
    Swarm,
    /// The run under this name in `runs/`.
    Run(Name),
    /// The worker under this name in `workers/`.
    Worker(Name),
    /// The workers of a directory in `by/`. Only `grep` and `search` apply to them.
    Selected(Selection),
    /// The workers under these names in `workers/`. Only `grep` and `search` apply to them.
    Workers(Arc<[Name]>),
}

impl Scope {
    /// Returns the size of a file about the scope if neither its name nor the settings have one.
    pub(crate) fn default_budget(&self) -> Budget {
        if matches!(self, Scope::Worker(_)) { Budget::WORKER } else { Budget::SWARM }
    }

    /// Returns the number of sessions not yet read for workers inside them that may belong to the
    /// scope.
    pub(crate) fn unread_sessions(&self, visible: &VisibleWorkers) -> usize {
        match self {
            Scope::Swarm | Scope::Selected(_) => visible.unread.len(),
            Scope::Run(name) => visible
                .runs
                .get(name)
                .map_or(0, |run| run.members.iter().filter(|member| visible.unread.contains(&member.name)).count()),
            Scope::Worker(_) | Scope::Workers(_) => 0,
        }
    }
}

/// A kind of generated file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Generated {
    /// README.md: how to read the tree. Swarm only.
    Readme,
    /// index.json: the facts, for programs.
    Index,
    /// summary: an overview on one screen.
    Summary,
    /// evidence.txt: excerpts of outputs. `None` selects the default budget.
    Evidence(Option<Budget>),
    /// `since/CURSOR`: the changes since a cursor, and the next cursor. Swarm only.
    Since(Cursor),
    /// README.md in a query directory: how to write queries. Swarm only.
    QueryReadme(QueryKind),
    /// `grep/<regex>`: the lines that match.
    Grep(Arc<grep::Query>),
    /// `search/<words>`: the passages relevant to the words.
    Search(Arc<search::Query>),
    /// `summary@<words>`: the summary with the passages relevant to the words. Worker only.
    Focus(Arc<search::Query>),
    /// `compare/<a>..<b>`: what workers share and where they differ. Swarm only.
    Compare(Arc<compare::Query>),
}

/// Generated files that appear in listings, with their names. README.md is not among them.
pub const LISTED: [(&str, Generated); 3] =
    [("evidence.txt", Generated::Evidence(None)), ("index.json", Generated::Index), ("summary", Generated::Summary)];

impl Generated {
    /// Returns the generated file called `name`: a listed one, `evidence.<size>.txt` or
    /// `summary@<words>`.
    pub fn from_name(name: &Name) -> Option<Generated> {
        let text = std::str::from_utf8(name.as_bytes()).ok()?;
        if let Some((_, file)) = LISTED.iter().find(|(listed, _)| *listed == text) {
            return Some(file.clone());
        }
        if let Some(query) = focus::parse_name(name) {
            return Some(Generated::Focus(Arc::new(query)));
        }
        let size = text.strip_prefix("evidence.")?.strip_suffix(".txt")?;
        Budget::parse(size).ok().map(|budget| Generated::Evidence(Some(budget)))
    }
}
