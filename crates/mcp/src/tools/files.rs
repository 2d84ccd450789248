//! Tools for paths: list, read, inspect and find; and tools that search, by regex and by words.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};

use super::{
    LIST_MAX, NotedText, ToolEntry, ToolError, ToolResult, budget, compile_glob, json, non_empty,
    page_output, path_component, path_or_root, tool, worker_id,
};
use crate::slice::{DEFAULT, LINES, OpenFile, SliceRequest, echo, joined_note};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, printable};
use swarmletfs_base::split::Split;
use swarmletfs_tree::analysis::settings::DEADLINE;
use swarmletfs_tree::query::grep::{GrepOptions, GrepQuery};
use swarmletfs_tree::query::search::{SearchMode, SearchOptions, SearchQuery};
use swarmletfs_tree::query::{FileAnswer, FileQuery};
use swarmletfs_tree::tree::{Attr, NodeKind, Symlinks, Tree};

/// Depth of directories that a walk enters.
const DEPTH_MAX: usize = 32;

pub(super) fn tools() -> Vec<ToolEntry> {
    vec![
        tool(
            "list_dir",
            "Lists a folder of the tree, one entry per line: name and kind; with details also \
            size, time and the target of a link. Good folders to start with: workers, runs, \
            by/status/failed, by/outcome/failed, by/type, by/tag, by/tool, by/job, by/day, \
            by/project, by/file (files that workers edited), by/file.read, supervisor. recursive does not follow links.",
            list_dir,
        ),
        tool(
            "read_file",
            "Reads a file of the tree, exactly. Beside a worker's own files, every worker, every \
            run and the root have summary, evidence.txt and index.json. Long files come in parts: \
            a note says what was omitted and how to continue. Binary files are described. Queries \
            are paths, too: search/<words>, grep/<regex>, evidence.4k.txt, \
            workers/<id>/summary@<words>, since/<cursor>.",
            read_file,
        ),
        tool(
            "info",
            "Describes a file or folder: kind, size in bytes, time of the last change, mode, and \
             the target of a link.",
            info,
        ),
        tool(
            "exists",
            "Checks whether a path exists. A file that may not be seen is reported like one that \
             does not exist.",
            exists,
        ),
        tool(
            "glob",
            "Finds files and folders by a pattern of paths from the root of the tree, one path per \
            line: * and ? match within a name, ** matches across folders, also {a,b} and [ab]. \
            Example: workers/*/tool_calls/*.txt, workers/**/report.md. Names that exist only on \
            request (search/, grep/) are not found.",
            glob,
        ),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListDirInput {
    /// The folder, from the root of the tree [default: the root]
    path: Option<String>,
    /// List the contents of its folders, too
    #[serde(default)]
    recursive: bool,
    /// Show sizes, times and link targets, too
    #[serde(default)]
    details: bool,
    /// next_cursor of the previous answer, to continue its list
    cursor: Option<String>,
}

#[derive(Serialize)]
struct ListEntry {
    path: String,
    kind: &'static str,
    #[serde(flatten)]
    details: Option<Details>,
}

#[derive(Serialize)]
struct Details {
    size: u64,
    mtime: String,
    mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl Details {
    fn new(attr: &Attr, target: Option<Vec<u8>>) -> Details {
        Details {
            size: attr.size,
            mtime: swarmletfs_base::text::utc(attr.mtime),
            mode: format!("{:04o}", attr.mode),
            target: target.map(|target| String::from_utf8_lossy(&target).into_owned()),
        }
    }
}

/// Returns the prefix of paths in the directory at `path`; empty for the root.
fn path_prefix(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !matches!(**part, [] | [b'.']));
    parts.collect::<Vec<_>>().join(&b'/')
}

struct WalkEntry {
    path: Vec<u8>,
    folder: Vec<u8>,
    name: Vec<u8>,
    kind: NodeKind,
}

impl WalkEntry {
    fn details(&self, tree: &Tree) -> Result<Details> {
        tree.with_path(&self.folder, Symlinks::Follow, |place| {
            tree.with_entry(place.leaf().ino, &self.name, |held| {
                Ok(Details::new(&held.attr, held.link_target()?))
            })
        })
    }
}

/// Walks the directory at `path` down to `depth`, directories before their contents. With `follow`,
/// links to directories are entered, too. Calls `visit` with each entry. Returns false if the
/// deadline cut the walk short.
fn walk(
    tree: &Tree,
    path: &[u8],
    depth: usize,
    follow: bool,
    mut visit: impl FnMut(WalkEntry),
) -> Result<bool> {
    let begun = Instant::now();
    // Directories to list, the next one last: path, path to show, and depth.
    let mut rest = vec![(path.to_vec(), path_prefix(path), 0)];
    let mut is_all = true;
    while let Some((folder, shown, level)) = rest.pop() {
        let items =
            match tree.with_path(&folder, Symlinks::Follow, |place| place.leaf().list_folder()) {
                Ok(items) => items,
                Err(error) if level == 0 => return Err(error),
                // The directory was removed after it was listed, or is a link to a file.
                Err(_) => continue,
            };
        let mut inner = Vec::new();
        for item in items.iter() {
            let name = item.name.as_bytes();
            let path =
                if shown.is_empty() { name.to_vec() } else { [shown.as_slice(), name].join(&b'/') };
            let is_folder = item.kind == NodeKind::Folder || follow && item.kind == NodeKind::Link;
            if is_folder && level + 1 < depth {
                inner.push(([folder.as_slice(), name].join(&b'/'), path.clone(), level + 1));
            }
            visit(WalkEntry { path, folder: folder.clone(), name: name.to_vec(), kind: item.kind });
        }
        if begun.elapsed() > DEADLINE && !(rest.is_empty() && inner.is_empty()) {
            is_all = false;
            break;
        }
        rest.extend(inner.into_iter().rev());
    }
    Ok(is_all)
}

fn list_dir(tree: &Tree, args: ListDirInput) -> ToolResult {
    let skip = match non_empty(args.cursor) {
        None => 0,
        Some(cursor) => {
            cursor.parse().map_err(|_| ToolError::new("invalid cursor; list again without it"))?
        }
    };
    let (path, depth) = (path_or_root(args.path), if args.recursive { DEPTH_MAX } else { 1 });
    let mut all = Vec::new();
    let is_all = walk(tree, path.as_bytes(), depth, false, |entry| all.push(entry))
        .map_err(ToolError::at(&path))?;
    let count = all.len().saturating_sub(skip);
    let text = super::list(
        "entries",
        all.iter().skip(skip).map(|entry| ListEntry {
            path: String::from_utf8_lossy(&entry.path).into_owned(),
            kind: entry.kind.as_str(),
            details: args.details.then(|| entry.details(tree).ok()).flatten(),
        }),
        |shown| count - shown,
        |shown| (skip + shown).to_string().into(),
    )?;
    let note = (!is_all)
        .then(|| "[... not all folders were read in time; list them one by one ...]".to_owned());
    Ok(NotedText { text, note })
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Unit {
    Lines,
    Bytes,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadFileInput {
    /// The file, from the root of the tree: summary, workers/ID/result.txt
    path: String,
    /// Number of lines (or bytes) to skip [default: 0]
    #[serde(default)]
    offset: u64,
    /// Number of lines (or bytes) to read [default: 2000 lines or 16000 bytes, whichever comes
    /// first; at most 1048576 bytes]
    limit: Option<u64>,
    /// Unit of offset and limit [default: lines]
    unit: Option<Unit>,
}

fn read_file(tree: &Tree, args: ReadFileInput) -> ToolResult {
    let request = match args.unit.unwrap_or(Unit::Lines) {
        Unit::Lines => SliceRequest::Lines(args.offset, args.limit.unwrap_or(LINES)),
        Unit::Bytes => SliceRequest::Bytes(args.offset, byte_limit(args.limit)),
    };
    let read = OpenFile::at_path(tree, args.path.as_bytes()).and_then(|file| file.slice(request));
    read.map_err(ToolError::at(&args.path))
}

pub(super) fn byte_limit(limit: Option<u64>) -> usize {
    limit.map_or(DEFAULT, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PathInput {
    /// The path, from the root of the tree
    path: String,
}

#[derive(Serialize)]
struct Info {
    path: String,
    kind: &'static str,
    #[serde(flatten)]
    details: Details,
}

fn info(tree: &Tree, args: PathInput) -> ToolResult {
    let info = tree.with_path(args.path.as_bytes(), Symlinks::NoFollow, |place| {
        let held = place.leaf();
        let path = String::from_utf8_lossy(&place.path()).into_owned();
        Ok(Info {
            path,
            kind: held.attr.kind.as_str(),
            details: Details::new(&held.attr, held.link_target()?),
        })
    });
    Ok(NotedText::new(json(&info.map_err(ToolError::at(&args.path))?)?))
}

#[derive(Serialize)]
struct Exists {
    exists: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
}

fn exists(tree: &Tree, args: PathInput) -> ToolResult {
    match tree.with_path(args.path.as_bytes(), Symlinks::NoFollow, |place| {
        Ok(place.leaf().attr.kind.as_str())
    }) {
        Ok(kind) => Ok(NotedText::new(json(&Exists { exists: true, kind: Some(kind) })?)),
        Err(error) if error.is_not_a_file() || error.is_miss() => {
            Ok(NotedText::new(json(&Exists { exists: false, kind: None })?))
        }
        Err(error) => Err(ToolError::at(&args.path)(error)),
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GlobInput {
    /// The pattern
    pattern: String,
    /// The folder in which the pattern begins [default: the root]
    path: Option<String>,
}

fn glob(tree: &Tree, args: GlobInput) -> ToolResult {
    let pattern = args.pattern.trim_start_matches("./").trim_start_matches('/');
    let matcher = compile_glob(pattern)?;
    // Start the walk below the leading components without wildcards.
    let parts: Vec<&str> = pattern.split('/').collect();
    let plain = parts
        .iter()
        .take_while(|part| !part.contains(['*', '?', '[', ']', '{', '}', '\\']))
        .count();
    let plain = plain.min(parts.len().saturating_sub(1));
    let (before, after) = parts.split_at_known(plain);
    let is_deep = after.iter().any(|part| part.contains("**") || part.contains('{'));
    let depth = if is_deep { DEPTH_MAX } else { after.len() };
    let path = path_or_root(args.path);
    let base = path_prefix(path.as_bytes());
    let begin =
        std::iter::once(path.as_str()).chain(before.iter().copied()).collect::<Vec<_>>().join("/");
    let (mut text, mut more) = (String::new(), 0_u64);
    // Follow links only if the pattern fixes the depth: otherwise a walk could enter them
    // repeatedly.
    let walked = walk(tree, begin.as_bytes(), depth, !is_deep, |entry| {
        let inner = entry.path.strip_prefix(base.as_slice()).unwrap_or(&entry.path);
        let inner = inner.strip_prefix(b"/").unwrap_or(inner);
        let line = printable(&entry.path) + "\n";
        match matcher.is_match(OsStr::from_bytes(inner)) {
            false => {}
            true if text.len() + line.len() > LIST_MAX => more += 1,
            true => text.push_str(&line),
        }
    });
    let is_all = match walked {
        Err(error) if error.is_not_a_file() && plain > 0 => true,
        done => done.map_err(ToolError::at(&path))?,
    };
    let mut notes = Vec::new();
    if text.is_empty() {
        notes.push("nothing matches".to_owned());
    }
    if more > 0 {
        notes.push(format!("{more} more paths match; narrow the pattern"));
    }
    if !is_all {
        notes.push(
            "not all folders were read in time; begin the pattern with folder names".to_owned(),
        );
    }
    Ok(NotedText { text, note: joined_note(&notes) })
}

/// Most workers in one call.
const WORKERS_MAX: usize = 32;

pub(super) fn search_tools() -> Vec<ToolEntry> {
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
enum Mode {
    #[default]
    Content,
    FilesWithMatches,
    Count,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
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
    let answer = search_answer(tree, scope, &query)?;
    match args.mode {
        Mode::FilesWithMatches | Mode::Count if answer.page.error.is_none() => {
            Ok(NotedText::new(answer.list_files(&query, args.mode == Mode::Count)))
        }
        _ => page_output(answer.page),
    }
}

#[derive(Deserialize, JsonSchema, Clone, Copy, Default)]
#[serde(rename_all = "snake_case")]
enum RankingMode {
    #[default]
    Words,
    Meaning,
    Both,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SearchInput {
    /// The words, phrases and filters
    query: String,
    /// Rank passages by words (for names and messages), by meaning (for ideas that nobody wrote in
    /// these words), or by both
    #[serde(default)]
    mode: RankingMode,
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
    let mode = match args.mode {
        RankingMode::Words => SearchMode::Words,
        RankingMode::Meaning => SearchMode::Meaning,
        RankingMode::Both => SearchMode::Both,
    };
    let (budget, glob) = (budget(args.bytes, args.tokens)?, non_empty(args.glob));
    let options = SearchOptions { budget, glob, mode };
    let query = SearchQuery { options, words: args.query, under: None };
    let scope = SearchScope { workers: args.workers, run: args.run, path: args.path };
    page_output(search_answer(tree, scope, &query)?.page)
}

/// The workers, the run or the path of a call, of which at most one is given.
struct SearchScope {
    workers: Option<Vec<String>>,
    run: Option<String>,
    path: Option<String>,
}

fn search_answer<Q: FileQuery>(
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
