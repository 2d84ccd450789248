//! Regex search in the files of workers.
//!
//! ripgrep's own crates find the lines (`lines`), so a regex means the same as in ripgrep. It
//! matches within a line, `^` and `$` are the ends of the line, and Unicode is on. [`Pattern`]
//! and `corpus` decide which files are searched, how much of them, and when to stop.

mod corpus;
mod lines;

use std::time::Duration;

use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

pub use corpus::{FileMatchCount, FileTraits, Unsearched, WorkerMatchCounts, lines, search};
pub use lines::{CopiedLines, FoundLine, LineKind, RecordFormat, SearchEnd, StopReason};

use super::Glob;
use swarmletfs_base::name::RelPath;

/// Largest compiled regex, in bytes. Larger ones take too long for every byte of input.
const SIZE_MAX: usize = 1 << 20;
/// Largest cache of the lazy DFA, in bytes.
const CACHE_MAX: usize = 4 << 20;
/// Longest line that is searched, in bytes.
const LINE_MAX: usize = 4 << 20;
/// Most data searched between two checks of the deadline, in bytes.
const CHUNK_MAX: usize = 256 << 10;
/// Least data searched between two checks of the deadline, in bytes.
const CHUNK_MIN: usize = 1 << 10;
const CHUNK_TIME: Duration = Duration::from_millis(20);
const LINE_TIME: Duration = Duration::from_millis(200);
/// Length of the text on which a regex is timed, in bytes.
const TRIAL: usize = 4 << 10;
const TRIALS: usize = 3;

pub struct Pattern {
    pub(super) matcher: RegexMatcher,
    glob: Option<Glob>,
    under: Option<RelPath>,
    /// True to find the lines that do not match.
    pub(super) inverted: bool,
    /// Idle buffers of `chunk` bytes each.
    buffers: Mutex<Vec<Vec<u8>>>,
    pub(super) line_max: usize,
    pub(super) chunk: usize,
}

impl Pattern {
    /// Compiles `regex`, in the syntax of the `regex` crate, for the files that `glob` selects.
    /// If `ignore_case`, a letter also matches its other case.
    ///
    /// # Errors
    /// A message of several lines, if the regex or the glob is invalid or the regex is too large.
    pub fn new(regex: &str, ignore_case: bool, glob: Option<&str>) -> Result<Pattern, String> {
        // The errors of `regex` quote the regex as typed.
        let checked = regex::bytes::RegexBuilder::new(regex).size_limit(SIZE_MAX).build();
        checked.map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => {
                format!("{error}\ntry fewer repetitions, or (?-u:…) for ASCII only")
            }
            _ => error.to_string(),
        })?;
        let matcher = RegexMatcherBuilder::new()
            .case_insensitive(ignore_case)
            .line_terminator(Some(b'\n'))
            .size_limit(SIZE_MAX)
            .dfa_size_limit(CACHE_MAX)
            .build(regex)
            .map_err(|error| error.to_string())?;
        let glob = glob.map(Glob::new).transpose()?;
        let speed = speed(&matcher, regex);
        let within = |time: Duration| {
            usize::try_from(speed.saturating_mul(time.as_millis() as u64)).unwrap_or(usize::MAX)
        };
        let chunk = within(CHUNK_TIME).clamp(CHUNK_MIN, CHUNK_MAX);
        Ok(Pattern {
            matcher,
            glob,
            under: None,
            inverted: false,
            buffers: Mutex::default(),
            chunk,
            line_max: within(LINE_TIME).clamp(chunk, LINE_MAX),
        })
    }

    fn take_buffer(&self) -> Vec<u8> {
        let buffer = self.buffers.lock().pop();
        buffer.unwrap_or_else(|| vec![0; self.chunk])
    }

    fn return_buffer(&self, buffer: Vec<u8>) {
        self.buffers.lock().push(buffer);
    }

    pub fn inverted(self, inverted: bool) -> Pattern {
        Pattern { inverted, ..self }
    }

    /// Restricts the pattern to the file at `path` in a worker's directory, or to the files below
    /// it.
    pub fn under(self, path: Option<RelPath>) -> Pattern {
        Pattern { under: path, ..self }
    }

    /// Returns true if the file at `path` in a worker's directory is to be searched. `shown` maps
    /// that path to its path in the tree.
    pub(super) fn applies_to(&self, shown: &dyn Fn(&RelPath) -> RelPath, path: &RelPath) -> bool {
        self.under.as_ref().is_none_or(|under| path.is_within(under))
            && self.glob.as_ref().is_none_or(|glob| glob.matches_path(shown, path))
    }
}

/// Returns the worst-case speed of a regex, in bytes per millisecond of CPU time.
///
/// Times the regex on its own letters in random order, on which slow regexes are slow.
fn speed(matcher: &RegexMatcher, regex: &str) -> u64 {
    let letters: Vec<u8> = regex.bytes().filter(|byte| byte.is_ascii_alphanumeric()).collect();
    // The generator of Numerical Recipes, seeded with a constant for equal results.
    let random = std::iter::successors(Some(1_u32), |state| {
        Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
    });
    let text: Vec<u8> = random
        .skip(1)
        .map(|state| (state >> 16) as usize % letters.len().max(1))
        .map(|at| letters.get(at).copied().unwrap_or(b'a'))
        .take(TRIAL)
        .collect();
    let took = (0..TRIALS).map(|_| time_to_find(matcher, &text)).min().unwrap_or_default();
    TRIAL as u64 * 1_000_000 / u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1)
}

fn time_to_find(matcher: &RegexMatcher, text: &[u8]) -> Duration {
    let begun = thread_time();
    // Only the time counts.
    let _ = matcher.find(text);
    thread_time().saturating_sub(begun)
}

fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (regex, glob, says) in [
            ("a(b", None, "unclosed group"),
            ("a{2000}{2000}", None, "size limit"),
            ("a", Some("[z-a]"), "invalid range"),
            ("a\\nb", None, "not allowed in a regex"),
        ] {
            let error = Pattern::new(regex, false, glob).err().unwrap();
            assert!(error.contains(says), "{regex} {glob:?}: {error}");
        }
    }

    #[test]
    fn globs_match_names_or_paths() {
        let is_for = |glob: &str, inner: &str| {
            let pattern = Pattern::new("x", false, Some(glob)).unwrap();
            pattern.applies_to(&|inner| path("workers/w").join_path(inner), &path(inner))
        };
        for glob in ["*.md", "**/*.md", "outputs/*.md", "workers/*/outputs/*.md", "*.{md,json}"] {
            assert!(is_for(glob, "outputs/report.md"), "{glob}");
            assert!(!is_for(glob, "outputs/report.txt"), "{glob}");
        }
        assert!(!is_for("workers/*.md", "outputs/report.md"));
        assert!(is_for("outputs/**", "outputs/a/b.txt"));
        assert!(is_for("!*.md", "outputs/a.txt") && !is_for("!*.md", "outputs/a.md"));
    }

    #[test]
    fn only_slow_regexes_are_limited_to_short_lines() {
        let compile = |regex| Pattern::new(regex, false, None).unwrap();
        assert_eq!((compile("timeout").line_max, compile("timeout").chunk), (LINE_MAX, CHUNK_MAX));
        let slow = compile("(x*y*){1,60}[xy]{300}z");
        assert!(slow.line_max <= LINE_MAX && slow.chunk >= CHUNK_MIN);
    }
}
