//! Tools for paths: list, read, look, find.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use globset::{GlobBuilder, GlobMatcher};
use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answer, Called, Done, Fault, LIST_MAX, given, given_path, json, tool};
use crate::error::Result;
use crate::mcp::slice::{DEFAULT, LINES, Open, Wanted};
use crate::name::printable;
use crate::render::DEADLINE;
use crate::tree::{Attr, NodeKind, Symlinks, Tree};

/// Deeper folders are not walked into.
const DEPTH_MAX: usize = 32;

pub(super) fn tools() -> Vec<Called> {
    vec![
        tool(
            "list_dir",
            "Lists a folder of the tree, an entry a line: name and kind; with details also size, time and \
            where a link leads. Folders to begin with: workers, runs, by/status/failed, by/outcome/failed, by/type, by/tag, \
            by/tool, by/job, by/day, supervisor. Links are not followed by recursive.",
            list_dir,
        ),
        tool(
            "read_file",
            "Reads a file of the tree, exactly. Beside a worker's own files every worker, every run and the \
            root have summary, evidence.txt and index.json. Long files come in parts: a note says what was omitted and how to \
            go on. Binary files are described. Questions are paths, too: search/<words>, grep/<regex>, evidence.4k.txt, \
            workers/<id>/summary@<words>, since/<cursor>.",
            read_file,
        ),
        tool(
            "info",
            "Tells of a file or folder: kind, size in bytes, time of the last change, mode, and where a link leads.",
            info,
        ),
        tool(
            "exists",
            "Whether there is something at a path. What is absent and what may not be seen are the same.",
            exists,
        ),
        tool(
            "glob",
            "Finds files and folders by a pattern of paths from the root of the tree, a path a line: * and ? within \
            a name, ** over folders, {a,b}, [ab]. Example: workers/*/tool_calls/*.txt, workers/**/report.md. Names that are \
            asked and not listed (search/, grep/) are not found.",
            glob,
        ),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct ListDir {
    /// The folder, from the root of the tree [default: the root]
    path: Option<String>,
    /// Also what is in its folders
    #[serde(default)]
    recursive: bool,
    /// Also sizes, times, and where links lead
    #[serde(default)]
    details: bool,
    /// Where to go on: next_cursor of the last answer
    cursor: Option<String>,
}

#[derive(Serialize)]
struct Entry {
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
    fn of(attr: &Attr, target: Option<Vec<u8>>) -> Details {
        Details {
            size: attr.size,
            mtime: crate::render::utc(attr.mtime),
            mode: format!("{:04o}", attr.mode),
            target: target.map(|target| String::from_utf8_lossy(&target).into_owned()),
        }
    }
}

/// How paths begin that are in the folder at `path`: those of the root have nothing in front.
fn begun_at(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !matches!(**part, [] | [b'.']));
    parts.collect::<Vec<_>>().join(&b'/')
}

/// Something that was met on a walk: its path from the root, the folder that it is in, its name and kind.
struct Met {
    path: Vec<u8>,
    folder: Vec<u8>,
    name: Vec<u8>,
    kind: NodeKind,
}

/// What is in the folder at `path` and below it down to `depth`, folders before what is in them. Whether that is all.
/// Links to folders are folders where they are `followed`.
fn walk(tree: &Tree, path: &[u8], depth: usize, followed: bool, mut met: impl FnMut(Met)) -> Result<bool> {
    let begun = Instant::now();
    let mut rest: VecDeque<(Vec<u8>, Vec<u8>, usize)> = VecDeque::from([(path.to_vec(), begun_at(path), 0)]);
    let mut is_all = true;
    while let Some((folder, shown, level)) = rest.pop_front() {
        let items = match tree.with_path(&folder, Symlinks::Follow, |place| place.leaf().list_folder()) {
            Ok(items) => items,
            Err(error) if level == 0 => return Err(error),
            // It is gone since it was listed, or a link to a file.
            Err(_) => continue,
        };
        let mut inner = Vec::new();
        for item in items.iter() {
            let name = item.name.as_bytes();
            let path = if shown.is_empty() { name.to_vec() } else { [shown.as_slice(), name].join(&b'/') };
            let is_folder = item.kind == NodeKind::Folder || followed && item.kind == NodeKind::Link;
            if is_folder && level + 1 < depth {
                inner.push(([folder.as_slice(), name].join(&b'/'), path.clone(), level + 1));
            }
            met(Met { path, folder: folder.clone(), name: name.to_vec(), kind: item.kind });
        }
        if begun.elapsed() > DEADLINE && !(rest.is_empty() && inner.is_empty()) {
            is_all = false;
            break;
        }
        inner.into_iter().rev().for_each(|one| rest.push_front(one));
    }
    Ok(is_all)
}

fn list_dir(tree: &Tree, asked: ListDir) -> Done {
    let skip = match given(asked.cursor) {
        None => 0,
        Some(cursor) => cursor.parse().map_err(|_| Fault::new("this is no cursor: list again without it"))?,
    };
    let (path, depth) = (given_path(asked.path), if asked.recursive { DEPTH_MAX } else { 1 });
    let mut all = Vec::new();
    let is_all = walk(tree, path.as_bytes(), depth, false, |met| all.push(met)).map_err(Fault::at(&path))?;
    let entry = |met: &Met| {
        let folder = |name: &[u8], folder: &[u8]| {
            tree.with_path(folder, Symlinks::Follow, |place| {
                tree.with_entry(place.leaf().ino, name, |held| Ok(Details::of(&held.attr, held.link_target()?)))
            })
        };
        let details = asked.details.then(|| folder(&met.name, &met.folder).ok()).flatten();
        Entry { path: String::from_utf8_lossy(&met.path).into_owned(), kind: met.kind.as_str(), details }
    };
    let count = all.len().saturating_sub(skip);
    let text = super::list(
        "entries",
        all.iter().skip(skip).map(entry),
        |shown| count - shown,
        |shown| (skip + shown).to_string().into(),
    );
    let note = (!is_all).then(|| "[... not all folders were read in time: list them one by one ...]".to_owned());
    Ok(Answer { text, note })
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
struct ReadFile {
    /// The file, from the root of the tree: summary, workers/ID/result.txt
    path: String,
    /// How many lines (or bytes) to leave out at the beginning [default: 0]
    #[serde(default)]
    offset: u64,
    /// How many lines (or bytes) to read [default: 2000 lines or 16000 bytes, whichever comes first; at most 1048576 bytes]
    limit: Option<u64>,
    /// What offset and limit count [default: lines]
    unit: Option<Unit>,
}

fn read_file(tree: &Tree, asked: ReadFile) -> Done {
    let wanted = match asked.unit.unwrap_or(Unit::Lines) {
        Unit::Lines => Wanted::Lines(asked.offset, asked.limit.unwrap_or(LINES)),
        Unit::Bytes => Wanted::Bytes(asked.offset, bytes(asked.limit)),
    };
    let read = Open::at(tree, asked.path.as_bytes()).and_then(|file| file.slice(wanted));
    read.map(Answer::from).map_err(Fault::at(&asked.path))
}

/// How many bytes are read where so many are asked for.
pub(super) fn bytes(limit: Option<u64>) -> usize {
    limit.map_or(DEFAULT, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct AtPath {
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

fn info(tree: &Tree, asked: AtPath) -> Done {
    let look = tree.with_path(asked.path.as_bytes(), Symlinks::NoFollow, |place| {
        let held = place.leaf();
        let path = String::from_utf8_lossy(&place.path()).into_owned();
        Ok(Info { path, kind: held.attr.kind.as_str(), details: Details::of(&held.attr, held.link_target()?) })
    });
    Ok(Answer::of(json(&look.map_err(Fault::at(&asked.path))?)))
}

#[derive(Serialize)]
struct Exists {
    exists: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
}

fn exists(tree: &Tree, asked: AtPath) -> Done {
    match tree.with_path(asked.path.as_bytes(), Symlinks::NoFollow, |place| Ok(place.leaf().attr.kind.as_str())) {
        Ok(kind) => Ok(Answer::of(json(&Exists { exists: true, kind: Some(kind) }))),
        Err(error) if error.is_not_a_file() || error.is_miss() => {
            Ok(Answer::of(json(&Exists { exists: false, kind: None })))
        }
        Err(error) => Err(Fault::at(&asked.path)(error)),
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
struct Glob {
    /// The pattern
    pattern: String,
    /// The folder that the pattern begins in [default: the root]
    path: Option<String>,
}

fn glob(tree: &Tree, asked: Glob) -> Done {
    let pattern = asked.pattern.trim_start_matches("./").trim_start_matches('/');
    let matcher = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    let matcher = matcher.map_err(|error| Fault::new(error.to_string()))?.compile_matcher();
    // What of the pattern is plain names need not be searched for.
    let parts: Vec<&str> = pattern.split('/').collect();
    let is_plain = |part: &&&str| !part.contains(['*', '?', '[', ']', '{', '}', '\\']);
    let plain = parts.iter().take_while(is_plain).count().min(parts.len().saturating_sub(1));
    let (before, behind) = parts.split_at_checked(plain).unwrap_or_default();
    let is_deep = behind.iter().any(|part| part.contains("**") || part.contains('{'));
    let depth = if is_deep { DEPTH_MAX } else { behind.len() };
    let path = given_path(asked.path);
    let base = begun_at(path.as_bytes());
    let begin = std::iter::once(path.as_str()).chain(before.iter().copied()).collect::<Vec<_>>().join("/");
    let mut found = Found { text: String::new(), more: 0 };
    // A link is as good as a folder where the pattern says how deep to go; else it would be met again and again.
    let walked = walk(tree, begin.as_bytes(), depth, !is_deep, |met| {
        let inner = met.path.strip_prefix(base.as_slice()).unwrap_or(&met.path);
        found.add(&matcher, inner.strip_prefix(b"/").unwrap_or(inner), &met.path);
    });
    let is_all = match walked {
        Err(error) if error.is_not_a_file() && plain > 0 => true,
        done => done.map_err(Fault::at(&path))?,
    };
    let mut notes = Vec::new();
    if found.text.is_empty() {
        notes.push("nothing matches".to_owned());
    }
    if found.more > 0 {
        notes.push(format!("{} more paths match: narrow the pattern", found.more));
    }
    if !is_all {
        notes.push("not all folders were read in time: begin the pattern with the names of folders".to_owned());
    }
    let note = (!notes.is_empty()).then(|| format!("[... {} ...]", notes.join("; ")));
    Ok(Answer { text: found.text, note })
}

struct Found {
    text: String,
    more: u64,
}

impl Found {
    /// Notes the path of something, if what is `inner` of where the pattern begins fits it.
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
