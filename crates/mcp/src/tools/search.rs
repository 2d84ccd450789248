//! Tools that search, by regex and by words.

use std::collections::BTreeSet;

use rmcp::schemars::JsonSchema;
use serde::Deserialize;

use super::{
    NotedText, ToolEntry, ToolError, ToolResult, budget, non_empty, page_output, path_component,
    path_or_root, tool, worker_id,
};
use crate::slice::echo;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::Name;
use swarmletfs_tree::query::grep::{GrepOptions, GrepQuery};
use swarmletfs_tree::query::search::{SearchOptions, SearchQuery};
use swarmletfs_tree::query::{FileAnswer, FileQuery};
use swarmletfs_tree::tree::{Symlinks, Tree};

/// Most workers in one call.
const WORKERS_MAX: usize = 32;

pub(super) fn tools() -> Vec<ToolEntry> {
    vec![
        tool(
            "grep",
            "Finds lines that match a regex in the files of workers, failures first, within a budget. mode content \
            returns path:line:text, files_with_matches returns paths, count returns path:count. The first line has the totals.",
            run_grep,
        ),
        tool(
            "search",
            "Finds passages that match words in the files of workers, best first, within a budget: words match by stem, \
            \"quoted phrases\" literally, -word excludes; worker:ID status:failed tool:NAME path:GLOB filter.",
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
struct GrepInput {
    /// The regex (Rust syntax, without look-around)
    pattern: String,
    /// The kind of output [default: content]
    #[serde(default)]
    mode: Mode,
    /// Search only these workers, by their ids or unique beginnings of them; at most 32
    #[serde(alias = "worker_ids")]
    workers: Option<Vec<String>>,
    /// Search only the workers of this run; latest is the run with the newest change
    #[serde(alias = "run_id")]
    run: Option<String>,
    /// Path to search instead of workers: a run, worker, folder or file, such as runs/latest or
    /// by/status/failed [default: all]
    path: Option<String>,
    /// Search only files whose name matches, or whose path matches if the glob has a /: *.md,
    /// tool_calls/*
    glob: Option<String>,
    /// Ignore case
    #[serde(default)]
    ignore_case: bool,
    /// Number of lines to show before and after each match
    #[serde(default)]
    context: u8,
    /// Most bytes of output [default: 16000 for one worker, 28000 for several]
    #[serde(alias = "budget_bytes")]
    bytes: Option<u32>,
    /// Most tokens of output
    #[serde(alias = "budget_tokens")]
    tokens: Option<u32>,
}

fn run_grep(tree: &Tree, args: GrepInput) -> ToolResult {
    let options = GrepOptions {
        ignore_case: args.ignore_case,
        lists_files: matches!(args.mode, Mode::FilesWithMatches | Mode::Count),
        context: args.context.min(100).into(),
        budget: budget(args.bytes, args.tokens)?,
        glob: non_empty(args.glob),
        ..GrepOptions::default()
    };
    let query = GrepQuery { options, regex: args.pattern, under: None };
    let scope = SearchScope { workers: args.workers, run: args.run, path: args.path };
    let answer = answer(tree, scope, &query)?;
    match args.mode {
        Mode::FilesWithMatches | Mode::Count if answer.page.error.is_none() => {
            Ok(NotedText::new(answer.list_files(&query, args.mode == Mode::Count)))
        }
        _ => page_output(answer.page),
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct SearchInput {
    /// The words, phrases and filters
    query: String,
    /// Search only these workers, by their ids or unique beginnings of them; at most 32
    #[serde(alias = "worker_ids")]
    workers: Option<Vec<String>>,
    /// Search only the workers of this run; latest is the run with the newest change
    #[serde(alias = "run_id")]
    run: Option<String>,
    /// Path to search instead of workers: a run, worker, folder or file, such as runs/latest or
    /// by/status/failed [default: all]
    path: Option<String>,
    /// Search only files whose name matches, or whose path matches if the glob has a /: *.md,
    /// tool_calls/*
    glob: Option<String>,
    /// Most bytes of output [default: 16000 for one worker, 28000 for several]
    #[serde(alias = "budget_bytes")]
    bytes: Option<u32>,
    /// Most tokens of output
    #[serde(alias = "budget_tokens")]
    tokens: Option<u32>,
}

fn run_search(tree: &Tree, args: SearchInput) -> ToolResult {
    let options =
        SearchOptions { budget: budget(args.bytes, args.tokens)?, glob: non_empty(args.glob) };
    let query = SearchQuery { options, words: args.query, under: None };
    let scope = SearchScope { workers: args.workers, run: args.run, path: args.path };
    page_output(answer(tree, scope, &query)?.page)
}

/// The workers, the run or the path of a call, of which at most one is given.
struct SearchScope {
    workers: Option<Vec<String>>,
    run: Option<String>,
    path: Option<String>,
}

fn answer<Q: FileQuery>(
    tree: &Tree,
    SearchScope { workers, run, path }: SearchScope,
    query: &Q,
) -> std::result::Result<FileAnswer<Q::Found>, ToolError> {
    let workers = workers.filter(|workers| !workers.is_empty());
    let path = match (workers, non_empty(run), non_empty(path)) {
        (None, None, path) => path_or_root(path),
        (None, Some(run), None) => format!("runs/{}", path_component(&run)),
        (Some(workers), None, None) => match worker_names(&workers)?.as_slice() {
            [one] => format!("workers/{}", path_component(&one.to_text())),
            names => return tree.search_workers(names.into(), query).map_err(unknown_worker),
        },
        _ => return Err(ToolError::new("name only one of workers, run and path")),
    };
    let answer = tree
        .with_path(path.as_bytes(), Symlinks::Follow, |place| tree.search(place.leaf().ino, query))
        .map_err(ToolError::at(&path))?;
    answer.ok_or_else(|| {
        ToolError::new(format!(
            "cannot search {}: it has no files of workers; try a run, a worker, a worker's file or folder, or \
             by/<facet>/<value>",
            echo(&path)
        ))
    })
}

/// Returns the names of workers, without duplicates.
fn worker_names(workers: &[String]) -> std::result::Result<Vec<Name>, ToolError> {
    if workers.len() > WORKERS_MAX {
        return Err(ToolError::new(format!("name at most {WORKERS_MAX} workers, or none for all")));
    }
    let names: Result<BTreeSet<Name>> =
        workers.iter().map(|worker| Name::new(worker_id(worker).as_bytes())).collect();
    Ok(names.map_err(unknown_worker)?.into_iter().collect())
}

fn unknown_worker(error: Error) -> ToolError {
    ToolError::new(format!("one of the workers: {error}; try list_workers"))
}
