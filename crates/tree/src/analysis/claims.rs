//! Finds files that a worker's final words name although they do not exist or no call wrote them.

use std::sync::LazyLock;

use regex::Regex;

use super::checks::{CheckKind, FailedCheck};
use crate::view::{Member, View, WorkerFiles};
use swarmletfs_base::error::Error;
use swarmletfs_base::model::{Outcome, Record, ToolCall};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, read_range};
use swarmletfs_base::text::clean::one_line;
use swarmletfs_trace::{INPUT_MAX, INPUTS_TOTAL_MAX};

/// Maximum length of final words that is parsed, in bytes.
const WORDS_MAX: usize = 64 << 10;
const PATHS_MAX: usize = 50;
const NAMED_MAX: usize = 5;
/// Maximum length of a named path, in bytes.
const NAME_MAX: usize = 120;
/// Number of bytes of each output that are searched for the name of a claimed file.
const OUTPUT_MAX: usize = 256 << 10;
/// Number of outputs that are searched, latest first.
const OUTPUTS_MAX: usize = 200;

/// Returns a finding for each file that a worker's final words name and that does not exist. Also
/// returns one for each file that they claim was written although no call wrote it.
pub(super) fn missing_files(files: &WorkerFiles<'_>, record: &Record) -> Vec<FailedCheck> {
    let Some(words) = record.trace.final_words.as_deref() else { return Vec::new() };
    let words = words.get(..words.floor_char_boundary(WORDS_MAX)).unwrap_or(words);
    let absent = absent_files(files.view, files.member, record.trace.own_folders, words);
    let absent = absent.map(|path| (path, "its final words name this file, which does not exist"));
    let unwritten = unwritten_files(files, record, words)
        .into_iter()
        .map(|path| (path, "its final words say that it wrote this file, but no call wrote it"));
    let mut missing: Vec<FailedCheck> = Vec::new();
    for (path, message) in absent.chain(unwritten) {
        let name = one_line(&path.display(), NAME_MAX);
        if missing.len() < NAMED_MAX && !missing.iter().any(|check| check.file == name) {
            let check = FailedCheck::new("claimed_file_missing", message, name);
            missing.push(check.with_kind(CheckKind::Doubt));
        }
    }
    missing
}

/// Returns the files that `words` name in a directory of the worker and that do not exist.
///
/// A directory counts as the worker's if it exists or is one of `own_folders`, where the worker's
/// layout keeps its files: a report that was never written leaves no directory either. Other paths,
/// such as paths in a repository, cannot be looked up here.
fn absent_files<'a>(
    view: &'a View,
    member: &'a Member,
    own_folders: &'a [&str],
    words: &'a str,
) -> impl Iterator<Item = RelPath> + 'a {
    paths(words).take(PATHS_MAX).filter(move |path| {
        path.names().next().is_some_and(|first| is_own_directory(view, member, own_folders, &first))
            && matches!(view.stat(member, path), Err(Error::NotFound | Error::NotADirectory))
    })
}

/// Returns the files that `words` claim to have been written although nothing shows that. A call
/// that may have written a file shows it if its input or output names the file, and so does a file
/// of the worker with that name.
///
/// Returns nothing if the record does not hold the whole arguments of a call that might have
/// written the file.
fn unwritten_files(files: &WorkerFiles<'_>, record: &Record, words: &str) -> Vec<RelPath> {
    let mut claimed: Vec<(RelPath, Name)> = claimed_paths(words)
        .take(PATHS_MAX)
        .filter_map(|path| path.file_name().map(|name| (path, name)))
        .collect();
    let calls = || record.trace.calls.iter().filter(|call| may_have_written(call));
    if claimed.is_empty() || !record.trace.records_calls || !have_whole_inputs(calls()) {
        return Vec::new();
    }
    for call in calls() {
        claimed.retain(|(_, name)| {
            !call.input.as_deref().is_some_and(|input| input.contains(&*name.to_text()))
        });
    }
    if claimed.is_empty() {
        return Vec::new();
    }
    // The worker's own files, in any directory.
    let own = files.view.folder(files.member).and_then(|folder| folder.files());
    let Ok((own, 0)) = own else {
        return Vec::new();
    };
    claimed.retain(|(_, name)| !own.iter().any(|file| file.file_name().as_ref() == Some(name)));
    for call in calls().rev().take(OUTPUTS_MAX) {
        if claimed.is_empty() {
            break;
        }
        let output = files.open_output(call).ok().flatten();
        let output = output.and_then(|output| read_range(&*output, 0, OUTPUT_MAX).ok());
        let output = output.unwrap_or_default();
        claimed.retain(|(_, name)| memchr::memmem::find(&output, name.as_bytes()).is_none());
    }
    claimed.into_iter().map(|(path, _)| path).collect()
}

/// Returns true if the call may have written a file: a command can do so before it fails.
fn may_have_written(call: &ToolCall) -> bool {
    match call.outcome {
        Outcome::Ok | Outcome::Unknown => true,
        Outcome::Failed => call.is_command,
        Outcome::NotRun => false,
    }
}

/// Returns true if the record holds all arguments of these calls, or at least the files that they
/// accessed.
fn have_whole_inputs<'a>(calls: impl Iterator<Item = &'a ToolCall>) -> bool {
    let (mut total, mut are_whole) = (0, true);
    for call in calls {
        total += call.input.as_ref().map_or(0, String::len);
        // A cut at the boundary of a character leaves up to three bytes less.
        let is_whole = call.input.as_ref().is_some_and(|input| input.len() + 3 < INPUT_MAX);
        are_whole &= is_whole || !call.files.is_empty();
    }
    are_whole && total < INPUTS_TOTAL_MAX
}

/// Finds the files that a text claims to have been written: a sentence or a list item begins with
/// `I wrote`, `Created` or the like, and the file is all that follows but for a few words.
fn claimed_paths(words: &str) -> impl Iterator<Item = RelPath> + '_ {
    static CLAIM: LazyLock<Option<Regex>> = LazyLock::new(|| {
        let start = r"(?m)(?:^[\s*#>+-]*(?:\d+[.)] )?(?:✅ )?|[.!:;] +|, | and )\**";
        let verb = r"(?:I(?:'ve|’ve| have| also| then)? (?:wrote|written|created|saved)|Wrote|Created|Saved)";
        let object = r"(?: (?:it|them|the|a|an|new|results?|report|summary|findings|output|file|full|to|in|into|as))*";
        let file = r"\**:? [`*]*([\w./-]*[A-Za-z_][\w-]*\.(?:md|txt|json|jsonl|csv|tsv|ya?ml|toml|html|css|sh|py|rs|go|ts|tsx|jsx|sql|log|xml|svg|png|pdf|ipynb))[`*]*";
        let end =
            r"(?:[.,;:!)]*(?:\s*$|\s+[A-Z(–—-])|[,;]? (?:with|and|containing|in|at|for|that)\b)";
        Regex::new(&format!("{start}{verb}{object}{file}{end}")).ok()
    });
    let found = CLAIM.iter().flat_map(move |claim| claim.captures_iter(words));
    found.filter_map(|captures| {
        RelPath::parse(captures.get(1)?.as_str().trim_start_matches("./").trim_start_matches('/'))
            .ok()
    })
}

fn is_own_directory(view: &View, member: &Member, own_folders: &[&str], name: &Name) -> bool {
    own_folders.iter().any(|folder| folder.as_bytes() == name.as_bytes())
        || view
            .stat(member, &RelPath::root().join(name))
            .is_ok_and(|meta| meta.kind == Kind::Folder)
}

/// Finds words that look like relative paths: at least two names, without a pattern or placeholder.
fn paths(words: &str) -> impl Iterator<Item = RelPath> {
    words
        .split(|c: char| c.is_whitespace() || "`'\"()[],;:|=".contains(c))
        .map(|word| word.trim_start_matches("./").trim_matches(|c: char| ".!?_*…".contains(c)))
        .filter(|word| {
            word.contains('/')
                && !word.starts_with('/')
                && !word.contains(['*', '?', '<', '>', '{', '}', '$'])
        })
        .filter_map(|word| RelPath::parse(word.trim_end_matches('/')).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_distinguished_from_words() {
        let found = |words| paths(words).map(|path| path.display()).collect::<Vec<_>>();
        let words = "I wrote `outputs/report.md`, **logs/run.log**: see (./context/a b) and outputs/x.json. Done.";
        assert_eq!(
            found(words),
            ["outputs/report.md", "logs/run.log", "context/a", "outputs/x.json"]
        );
        assert!(
            found("see /etc/passwd, outputs/*.md, outputs/<name>.md, $HOME/x/y or ../up/there")
                .is_empty()
        );
        assert_eq!(found("https://example.org/a 1/2 and/or"), ["1/2", "and/or"]);
    }

    #[test]
    fn claims_of_writing_are_distinguished_from_other_mentions() {
        let found = |words| claimed_paths(words).map(|path| path.display()).collect::<Vec<_>>();
        for (words, file) in [
            ("All tests pass. I wrote report.md.", "report.md"),
            ("I've written the full report to `docs/report.md`", "docs/report.md"),
            ("Done:\n- Created **notes.txt** with the findings\n", "notes.txt"),
            ("I saved the results in ./out/result.json, and left.", "out/result.json"),
            ("The tests pass, and I have created a new file `a_b-c.py`.\nMore", "a_b-c.py"),
        ] {
            assert_eq!(found(words), [file], "{words}");
        }
        for words in [
            "I did not write report.md.",
            "I have not created report.md.",
            "If I wrote report.md, it would be wrong.",
            "The script created report.md.",
            "I read report.md.",
            "I wrote a Node.js script.",
            "I created a test for main.rs.",
            "I wrote tests that read config.json.",
            "report.md was created by somebody else.",
            "I will write report.md.",
            "I created 1.2.3.",
        ] {
            assert!(found(words).is_empty(), "{words}: {:?}", found(words));
        }
    }
}
