//! The tools that search: glob and grep.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use globset::GlobMatcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkMatch};
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;

use super::files::failed;
use super::{ToolRun, WorkerTool};
use crate::slice::{NotedText, joined_note};
use crate::tools::{self, ToolError, ToolResult, non_empty, path_or_root};
use swarmletfs_base::model::EntryKind;
use swarmletfs_base::name::{RelPath, printable};
use swarmletfs_base::split::Split;
use swarmletfs_base::text::count;
use swarmletfs_record::write::{Dir, File};

/// Largest list of paths or lines, in bytes.
const FOUND_MAX: usize = 64 << 10;
/// Longest part of a line that is shown, in bytes.
const LINE_MAX: usize = 500;
/// Largest memory for one line of a searched file, in bytes.
const HEAP_MAX: usize = 16 << 20;
const SEARCH_LIMIT: Duration = Duration::from_secs(30);
/// The directory of git, which searches skip unless they begin in it.
const GIT: &[u8] = b".git";

pub(super) fn tools() -> Vec<WorkerTool> {
    vec![
        WorkerTool::recorded(
            "glob",
            "Finds files whose paths match a pattern such as **/*.rs or src/*.toml, one path per \
             line.",
            true,
            glob,
        ),
        WorkerTool::recorded(
            "grep",
            "Searches the lines of files for a regular expression. output_mode is \
             files_with_matches, content (file:line_number:line) or count (file:count).",
            true,
            grep,
        ),
    ]
}

#[derive(Default)]
struct FoundLines {
    text: String,
    more: u64,
    unread: u64,
}

impl FoundLines {
    fn add(&mut self, line: &str) {
        if self.text.len() + line.len() >= FOUND_MAX {
            self.more += 1;
            return;
        }
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Returns the lines, with a note on missing ones.
    fn into_result(self, is_whole: bool) -> NotedText {
        let mut notes = Vec::new();
        if self.text.is_empty() {
            notes.push("nothing matches".to_owned());
        }
        if self.more > 0 {
            notes.push(format!("{} omitted; narrow the pattern", count(self.more, "line")));
        }
        if self.unread > 0 {
            notes.push(format!("{} could not be searched", count(self.unread, "file")));
        }
        if !is_whole {
            notes.push("not everything was searched in time; try a path".to_owned());
        }
        NotedText { text: self.text, note: joined_note(&notes) }
    }
}

/// Calls `visit` with the path of each file and link beneath `base`, relative to `base` and sorted
/// by folder. Returns false if the time was over or the call was canceled.
fn walk(
    run: &ToolRun<'_>,
    base: &Dir,
    mut visit: impl FnMut(&RelPath, EntryKind),
) -> Result<bool, swarmletfs_base::error::Error> {
    let begun = Instant::now();
    let mut rest = vec![RelPath::root()];
    while let Some(folder) = rest.pop() {
        let entries = match base.enter(&folder).and_then(|folder| folder.view_entries()) {
            Ok(entries) => entries,
            Err(error) if folder.is_root() => return Err(error),
            // It was removed meanwhile, or may not be read.
            Err(_) => continue,
        };
        let mut inner = Vec::new();
        for entry in entries {
            if begun.elapsed() > SEARCH_LIMIT || (run.is_canceled)() {
                return Ok(false);
            }
            let path = folder.join(&entry.name);
            match entry.kind {
                EntryKind::Folder if entry.name.as_bytes() == GIT => {}
                EntryKind::Folder => inner.push(path),
                kind => visit(&path, kind),
            }
        }
        rest.extend(inner.into_iter().rev());
    }
    Ok(true)
}

/// Compiles a pattern of paths. Without a slash, `is_by_name` makes it match names in any folder.
fn compile_glob(pattern: &str, is_by_name: bool) -> Result<GlobMatcher, ToolError> {
    let pattern = pattern.trim_start_matches("./");
    let pattern = match is_by_name && !pattern.contains('/') {
        true => format!("**/{pattern}"),
        false => pattern.trim_start_matches('/').to_owned(),
    };
    tools::compile_glob(&pattern)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GlobInput {
    /// The pattern, such as **/*.rs
    pattern: String,
    /// The folder in which the pattern begins [default: .]
    path: Option<String>,
}

fn glob(run: &ToolRun<'_>, input: GlobInput) -> ToolResult {
    let matcher = compile_glob(&input.pattern, false)?;
    let path = run.session.parse_path(&path_or_root(input.path))?;
    let base = run.session.view.view_folder(&path).map_err(failed("search", &path))?;
    let mut found = FoundLines::default();
    let is_whole = walk(run, &base, |inner, _| {
        if matcher.is_match(OsStr::from_bytes(inner.as_bytes())) {
            found.add(&path.join_path(inner).display());
        }
    });
    Ok(found.into_result(is_whole.map_err(failed("search", &path))?))
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum OutputMode {
    #[default]
    FilesWithMatches,
    Content,
    Count,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GrepInput {
    /// The regular expression
    pattern: String,
    /// The folder or file to search [default: the workspace]
    path: Option<String>,
    /// Search only files that match this pattern, such as *.rs
    glob: Option<String>,
    /// What to return [default: files_with_matches]
    #[serde(default)]
    output_mode: OutputMode,
}

fn grep(run: &ToolRun<'_>, input: GrepInput) -> ToolResult {
    let matcher = RegexMatcherBuilder::new().line_terminator(Some(b'\n')).build(&input.pattern);
    let matcher = matcher.map_err(|error| ToolError::new(format!("cannot search: {error}")))?;
    let glob = non_empty(input.glob).map(|glob| compile_glob(&glob, true)).transpose()?;
    let path = run.session.parse_path(&path_or_root(input.path))?;
    let view = &run.session.view;
    let (kind, _) = view.view_kind(&path).map_err(failed("search", &path))?;
    let mut search = FileSearch {
        matcher,
        searcher: SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(HEAP_MAX))
            .build(),
        mode: input.output_mode,
        found: FoundLines::default(),
        until: Instant::now() + SEARCH_LIMIT,
        is_late: false,
    };
    if kind != EntryKind::Folder {
        search.file(run, view, &path, &path);
        return Ok(search.found.into_result(!search.is_late));
    }
    let base = view.view_folder(&path).map_err(failed("search", &path))?;
    let is_whole = walk(run, &base, |inner, kind| {
        let path_bytes = OsStr::from_bytes(inner.as_bytes());
        let is_wanted = glob.as_ref().is_none_or(|glob| glob.is_match(path_bytes));
        if kind == EntryKind::File && is_wanted {
            search.file(run, &base, inner, &path.join_path(inner));
        }
    });
    let is_whole = is_whole.map_err(failed("search", &path))?;
    Ok(search.found.into_result(is_whole && !search.is_late))
}

struct FileSearch {
    matcher: RegexMatcher,
    searcher: Searcher,
    mode: OutputMode,
    found: FoundLines,
    until: Instant,
    /// True once a file was not read to its end, because the time was over.
    is_late: bool,
}

/// A file that ends when the time of a search is over.
struct TimedFile<'a> {
    file: File,
    run: &'a ToolRun<'a>,
    until: Instant,
    is_late: &'a mut bool,
}

impl Read for TimedFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if Instant::now() >= self.until || (self.run.is_canceled)() {
            *self.is_late = true;
            return Ok(0);
        }
        self.file.read(buffer)
    }
}

impl FileSearch {
    /// Searches the file `path` of `folder`, and adds the matches under the name `shown`.
    fn file(&mut self, run: &ToolRun<'_>, folder: &Dir, path: &RelPath, shown: &RelPath) {
        let Ok(file) = folder.view_file(path) else {
            self.found.unread += 1;
            return;
        };
        let shown = shown.display();
        let mut lines =
            MatchedLines { run, shown: &shown, mode: &self.mode, count: 0, found: &mut self.found };
        let timed = TimedFile { file, run, until: self.until, is_late: &mut self.is_late };
        let searched = self.searcher.search_reader(&self.matcher, timed, &mut lines);
        let matches = lines.count;
        self.found.unread += u64::from(searched.is_err());
        match self.mode {
            OutputMode::FilesWithMatches if matches > 0 => self.found.add(&shown),
            OutputMode::Count if matches > 0 => self.found.add(&format!("{shown}:{matches}")),
            _ => {}
        }
    }
}

struct MatchedLines<'a> {
    run: &'a ToolRun<'a>,
    shown: &'a str,
    mode: &'a OutputMode,
    count: u64,
    found: &'a mut FoundLines,
}

impl Sink for MatchedLines<'_> {
    type Error = std::io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, Self::Error> {
        self.count += 1;
        if matches!(self.mode, OutputMode::FilesWithMatches) {
            return Ok(false);
        }
        if matches!(self.mode, OutputMode::Content) {
            let line = found.bytes().trim_ascii_end();
            let (kept, rest) = line.split_at_most(LINE_MAX);
            let mut text = format!("{}:{}:", self.shown, found.line_number().unwrap_or_default());
            // Tabs are ordinary in code; other control characters are escaped.
            let parts: Vec<String> = kept.split(|byte| *byte == b'\t').map(printable).collect();
            text.push_str(&parts.join("\t"));
            if !rest.is_empty() {
                let _ = write!(text, "[... {} B omitted ...]", rest.len());
            }
            self.found.add(&text);
        }
        Ok(!(self.run.is_canceled)())
    }
}
