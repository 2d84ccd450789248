//! Directories whose files are answers to queries: `grep/<regex>`, `search/<words>`,
//! `semantic/<words>`, `compare/<a>..<b>`.
//!
//! The directory's name holds the options, and the name of a file in it holds the query. Options
//! follow dots and a target follows `@`, in any order: `grep.i.4k@*.md`. Each kind of query
//! interprets its own options.

use super::compare::{self, CompareOptions};
use super::grep::{self, GrepOptions};
use super::parsed_name::ParsedName;
use super::search::{SearchMode, SearchOptions};
use super::{Document, Scope};
use swarmletfs_base::name::Name;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueryKind {
    Grep,
    Search,
    Semantic,
    /// At the root only.
    Compare,
}

impl QueryKind {
    /// All kinds, in the order in which they are listed.
    pub const ALL: [QueryKind; 4] =
        [QueryKind::Grep, QueryKind::Search, QueryKind::Semantic, QueryKind::Compare];

    /// Returns the directory's name, without options.
    pub fn name(self) -> &'static str {
        match self {
            QueryKind::Grep => grep::DIR_NAME,
            QueryKind::Search => SearchMode::default().dir_name(),
            QueryKind::Semantic => SearchMode::Meaning.dir_name(),
            QueryKind::Compare => compare::DIR_NAME,
        }
    }

    pub fn readme(self) -> &'static str {
        match self {
            QueryKind::Grep => include_str!("grep/README.md"),
            QueryKind::Search => include_str!("search/README.md"),
            QueryKind::Semantic => include_str!("search/semantic.md"),
            QueryKind::Compare => include_str!("compare/README.md"),
        }
    }

    pub fn default_dir(self) -> QueryDir {
        match self {
            QueryKind::Grep => QueryDir::Grep(GrepOptions::default()),
            QueryKind::Search => QueryDir::Search(SearchOptions::default()),
            QueryKind::Semantic => {
                let mode = SearchMode::Meaning;
                QueryDir::Search(SearchOptions { mode, ..SearchOptions::default() })
            }
            QueryKind::Compare => QueryDir::Compare(CompareOptions::default()),
        }
    }

    fn is_root_only(self) -> bool {
        self == QueryKind::Compare
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum QueryDir {
    Grep(GrepOptions),
    Search(SearchOptions),
    Compare(CompareOptions),
}

impl QueryDir {
    /// Parses the name of a query directory outside the root. Returns `None` for any other name.
    pub fn parse(name: &Name) -> Option<QueryDir> {
        QueryDir::parse_at_root(name).filter(|dir| !dir.kind().is_root_only())
    }

    /// Parses the name of a query directory at the root. Returns `None` for any other name.
    pub fn parse_at_root(name: &Name) -> Option<QueryDir> {
        let parsed = ParsedName::parse(name)?;
        match QueryKind::ALL.into_iter().find(|kind| kind.name() == parsed.word)? {
            QueryKind::Grep => GrepOptions::from_dir_name(&parsed).map(QueryDir::Grep),
            QueryKind::Search | QueryKind::Semantic => {
                SearchOptions::from_dir_name(&parsed).map(QueryDir::Search)
            }
            QueryKind::Compare => CompareOptions::from_dir_name(&parsed).map(QueryDir::Compare),
        }
    }

    pub fn kind(&self) -> QueryKind {
        match self {
            QueryDir::Grep(_) => QueryKind::Grep,
            QueryDir::Search(options) if options.mode == SearchMode::Meaning => QueryKind::Semantic,
            QueryDir::Search(_) => QueryKind::Search,
            QueryDir::Compare(_) => QueryKind::Compare,
        }
    }

    pub fn document(&self, scope: &Scope, name: &Name) -> Option<Document> {
        if name.as_bytes() == b"README.md" {
            return Some(Document::QueryReadme(self.kind()));
        }
        match self {
            QueryDir::Grep(options) => {
                options.query(name).map(|query| Document::Grep(scope.clone(), query.into()))
            }
            QueryDir::Search(options) => {
                options.query(name).map(|query| Document::Search(scope.clone(), query.into()))
            }
            QueryDir::Compare(options) => {
                options.query(name).map(|query| Document::Compare(query.into()))
            }
        }
    }
}
