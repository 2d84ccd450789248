//! Tools that search: for a pattern, and for words.

use std::collections::BTreeSet;
use std::sync::Arc;

use rmcp::schemars::JsonSchema;
use serde::Deserialize;

use super::{Answer, Called, Done, Fault, budget, given, given_path, part, tool, worker_id};
use crate::error::{Error, Result};
use crate::mcp::slice::cut;
use crate::name::Name;
use crate::render::{grep, search};
use crate::tree::{Ino, Symlinks, Tree};

/// So many workers can be named at once.
const WORKERS_MAX: usize = 32;

pub(super) fn tools() -> Vec<Called> {
    vec![
        tool(
            "grep",
            "Finds lines that match a regex in the files of workers, failures first, within a budget. mode content \
            gives path:line:text, files_with_matches the paths, count path:count. The first line tells how much there is.",
            run_grep,
        ),
        tool(
            "search",
            "Finds the passages that bear on words in the files of workers, best first, within a budget: stems \
            match, \"quoted phrases\" as they are, -word excludes, worker:ID status:failed tool:NAME path:GLOB narrow.",
            run_search,
        ),
    ]
}

#[derive(Deserialize, JsonSchema, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "snake_case")]
#[schemars(crate = "rmcp::schemars")]
enum Mode {
    #[default]
    Content,
    FilesWithMatches,
    Count,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct Grep {
    /// The regex (Rust's syntax, which has no look-around)
    pattern: String,
    /// What is told [default: content]
    #[serde(default)]
    mode: Mode,
    /// Only of these workers, by their ids; at most 32
    workers: Option<Vec<String>>,
    /// Where to search, instead of workers: a run, worker, folder or file, as runs/latest or by/status/failed [default: all]
    path: Option<String>,
    /// Only in files of this name, or of this path if there is a / in it: *.md, tool_calls/*
    glob: Option<String>,
    /// Letters match in either case
    #[serde(default)]
    ignore_case: bool,
    /// Show so many lines before and behind each that matches
    #[serde(default)]
    context: u8,
    /// At most so many bytes [default: 16000 of one worker, 28000 of more]
    bytes: Option<u32>,
    /// At most so many tokens
    tokens: Option<u32>,
}

fn run_grep(tree: &Tree, asked: Grep) -> Done {
    let options = grep::Options {
        ignore_case: asked.ignore_case,
        context: asked.context.min(100).into(),
        budget: budget(asked.bytes, asked.tokens)?,
        glob: given(asked.glob),
    };
    let query = grep::Query { options, regex: asked.pattern, under: None };
    let answer = match place(asked.workers, asked.path)? {
        Place::Workers(workers) => tree.grep_workers(workers, &query).map_err(nobody)?,
        Place::Path(path) => asked_at(tree, &path, |ino| tree.grep(ino, &query))?,
    };
    match (&answer.error, asked.mode) {
        (Some(_), _) => Err(Fault::new(answer.text)),
        (None, Mode::Content) => Ok(Answer::of(answer.text)),
        (None, mode) => Ok(Answer::of(answer.listed(&query, mode == Mode::Count))),
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct Search {
    /// The words
    query: String,
    /// Only of these workers, by their ids; at most 32
    workers: Option<Vec<String>>,
    /// Where to search, instead of workers: a run, worker, folder or file, as runs/latest or by/status/failed [default: all]
    path: Option<String>,
    /// Only in files of this name, or of this path if there is a / in it: *.md, tool_calls/*
    glob: Option<String>,
    /// At most so many bytes [default: 16000 of one worker, 28000 of more]
    bytes: Option<u32>,
    /// At most so many tokens
    tokens: Option<u32>,
}

fn run_search(tree: &Tree, asked: Search) -> Done {
    let options = search::Options { budget: budget(asked.bytes, asked.tokens)?, glob: given(asked.glob) };
    let query = search::Query { options, words: asked.query, under: None };
    let answer = match place(asked.workers, asked.path)? {
        Place::Workers(workers) => tree.search_workers(workers, &query).map_err(nobody)?,
        Place::Path(path) => asked_at(tree, &path, |ino| tree.search(ino, &query))?,
    };
    if answer.error.is_some() { Err(Fault::new(answer.text)) } else { Ok(Answer::of(answer.text)) }
}

/// Where something is searched for.
enum Place {
    Path(String),
    Workers(Arc<[Name]>),
}

fn place(workers: Option<Vec<String>>, path: Option<String>) -> std::result::Result<Place, Fault> {
    match (workers.filter(|workers| !workers.is_empty()), given(path)) {
        (Some(_), Some(_)) => Err(Fault::new("name either workers or a path, not both")),
        (None, path) => Ok(Place::Path(given_path(path))),
        (Some(workers), None) if workers.len() > WORKERS_MAX => {
            Err(Fault::new(format!("name at most {WORKERS_MAX} workers, or none for all")))
        }
        (Some(workers), None) => {
            // Each once, however often it is named.
            let names: BTreeSet<Name> =
                workers.iter().map(|worker| Name::new(worker_id(worker))).collect::<Result<_>>().map_err(nobody)?;
            let names: Vec<Name> = names.into_iter().collect();
            match names.as_slice() {
                [one] => Ok(Place::Path(format!("workers/{}", part(&one.to_text())))),
                _ => Ok(Place::Workers(names.into())),
            }
        }
    }
}

fn nobody(error: Error) -> Fault {
    Fault::new(format!("one of the workers: {error}: list_workers shows who there is"))
}

/// The answer at a path.
fn asked_at<A>(tree: &Tree, path: &str, ask: impl Fn(Ino) -> Result<Option<A>>) -> std::result::Result<A, Fault> {
    let nowhere =
        "is nothing that can be searched: name a run, a worker, a file or folder of a worker's, or by/<facet>/<value>";
    let answer =
        tree.with_path(path.as_bytes(), Symlinks::Follow, |place| ask(place.leaf().ino)).map_err(Fault::at(path))?;
    answer.ok_or_else(|| Fault::new(format!("{} {nowhere}", cut(path))))
}
