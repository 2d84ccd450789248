//! Tools for paths: list, read, inspect and find.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use globset::GlobMatcher;
use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    LIST_MAX, NotedText, ToolEntry, ToolError, ToolResult, compile_glob, json, non_empty,
    path_or_root, tool,
};
use crate::slice::{DEFAULT, LINES, OpenFile, SliceRequest, joined_note};
use swarmletfs_base::error::Result;
use swarmletfs_base::name::printable;
use swarmletfs_base::split::Split;
use swarmletfs_tree::analysis::settings::DEADLINE;
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
#[schemars(crate = "rmcp::schemars")]
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
#[schemars(crate = "rmcp::schemars")]
enum Unit {
    Lines,
    Bytes,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
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
#[schemars(crate = "rmcp::schemars")]
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
#[schemars(crate = "rmcp::schemars")]
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
    let mut found = GlobMatches { text: String::new(), more: 0 };
    // Follow links only if the pattern fixes the depth: otherwise a walk could enter them
    // repeatedly.
    let walked = walk(tree, begin.as_bytes(), depth, !is_deep, |entry| {
        let inner = entry.path.strip_prefix(base.as_slice()).unwrap_or(&entry.path);
        found.add(&matcher, inner.strip_prefix(b"/").unwrap_or(inner), &entry.path);
    });
    let is_all = match walked {
        Err(error) if error.is_not_a_file() && plain > 0 => true,
        done => done.map_err(ToolError::at(&path))?,
    };
    let mut notes = Vec::new();
    if found.text.is_empty() {
        notes.push("nothing matches".to_owned());
    }
    if found.more > 0 {
        notes.push(format!("{} more paths match; narrow the pattern", found.more));
    }
    if !is_all {
        notes.push(
            "not all folders were read in time; begin the pattern with folder names".to_owned(),
        );
    }
    Ok(NotedText { text: found.text, note: joined_note(&notes) })
}

struct GlobMatches {
    text: String,
    /// Number of matches that did not fit.
    more: u64,
}

impl GlobMatches {
    /// Adds `path` if its part below the start of the pattern, `inner`, matches.
    fn add(&mut self, matcher: &GlobMatcher, inner: &[u8], path: &[u8]) {
        if !matcher.is_match(OsStr::from_bytes(inner)) {
            return;
        }
        let line = printable(path) + "\n";
        if self.text.len() + line.len() > LIST_MAX {
            self.more += 1;
        } else {
            self.text.push_str(&line);
        }
    }
}
