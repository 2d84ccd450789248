//! Tools that search: for a pattern, and for words.

use rmcp::schemars::JsonSchema;
use serde::Deserialize;

use super::{Answer, Called, Done, Fault, LIST_MAX, budget, part, tool};
use crate::error::Result;
use crate::render::{Budget, grep, search};
use crate::tree::{Links, Tree};

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
    let places = places(asked.workers, asked.path)?;
    let options = grep::Options {
        ignore_case: asked.ignore_case,
        context: asked.context.min(100).into(),
        budget: share(budget(asked.bytes, asked.tokens)?, places.len()),
        glob: asked.glob,
    };
    let query = grep::Query { options, regex: asked.pattern, under: None };
    let answers = answers(&places, |path| {
        tree.at(path.as_bytes(), Links::Followed, |place| tree.grep(place.last().ino, &query))
    })?;
    if let Some(answer) = answers.iter().find(|answer| answer.error.is_some()) {
        return Err(Fault::new(answer.text.clone()));
    }
    if asked.mode == Mode::Content {
        return Ok(Answer::of(answers.into_iter().map(|answer| answer.text).collect::<String>()));
    }
    let mut text = String::new();
    let mut more = 0;
    for (path, lines) in answers.iter().flat_map(|answer| &answer.found) {
        let line = if asked.mode == Mode::Count { format!("{path}:{lines}\n") } else { format!("{path}\n") };
        if text.len() + line.len() > LIST_MAX {
            more += 1;
        } else {
            text.push_str(&line);
        }
    }
    // What was not searched is in the first line of an answer.
    let firsts = answers.iter().filter_map(|answer| answer.text.lines().next());
    let mut note = firsts.collect::<Vec<_>>().join("\n");
    if more > 0 {
        note += &format!("\n[... {more} more files match: narrow it with glob, path or workers ...]");
    }
    Ok(Answer { text, note: Some(note) })
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
    let places = places(asked.workers, asked.path)?;
    let options = search::Options { budget: share(budget(asked.bytes, asked.tokens)?, places.len()), glob: asked.glob };
    let query = search::Query { options, words: asked.query, under: None };
    let answers = answers(&places, |path| {
        tree.at(path.as_bytes(), Links::Followed, |place| tree.search(place.last().ino, &query))
    })?;
    if let Some(answer) = answers.iter().find(|answer| answer.error.is_some()) {
        return Err(Fault::new(answer.text.clone()));
    }
    Ok(Answer::of(answers.into_iter().map(|answer| answer.text).collect::<String>()))
}

/// The paths that are searched.
fn places(workers: Option<Vec<String>>, path: Option<String>) -> std::result::Result<Vec<String>, Fault> {
    match (workers, path) {
        (Some(_), Some(_)) => Err(Fault::new("name either workers or a path, not both")),
        (None, path) => Ok(vec![path.unwrap_or_else(|| ".".into())]),
        (Some(workers), None) if workers.is_empty() || workers.len() > WORKERS_MAX => {
            Err(Fault::new(format!("name 1 to {WORKERS_MAX} workers, or none for all")))
        }
        (Some(workers), None) => Ok(workers.iter().map(|worker| format!("workers/{}", part(worker))).collect()),
    }
}

/// A budget dealt over so many answers.
fn share(budget: Option<Budget>, over: usize) -> Option<Budget> {
    let all = budget.or_else(|| (over > 1).then_some(Budget::SWARM));
    all.map(|budget| budget.of_size(budget.size() / over.max(1)))
}

/// The answers at these paths.
fn answers<A>(places: &[String], ask: impl Fn(&str) -> Result<Option<A>>) -> std::result::Result<Vec<A>, Fault> {
    let nowhere =
        "is nothing that can be searched: name a run, a worker, a file or folder of a worker's, or by/<facet>/<value>";
    let answer =
        |path: &String| ask(path).map_err(Fault::at(path))?.ok_or_else(|| Fault::new(format!("{path} {nowhere}")));
    places.iter().map(answer).collect()
}
