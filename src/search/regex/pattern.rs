//! A regex, and the files it is for.

use std::time::Duration;

use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use crate::name::RelPath;
use crate::search::glob::{Glob, is_under};

/// The most that a compiled regex takes, in bytes: what is larger takes too long for every byte that it is held against.
const SIZE_MAX: usize = 1 << 20;
/// What its automaton may take while it is used, in bytes.
const CACHE_MAX: usize = 4 << 20;
/// The longest line that is searched, in bytes.
const LINE_MAX: usize = 4 << 20;
/// How much is searched at a time between two looks at the clock, in bytes.
const PIECE_MAX: usize = 256 << 10;
const PIECE_MIN: usize = 1 << 10;
/// How long a piece, and a line, should take at the most.
const PIECE_TIME: Duration = Duration::from_millis(20);
const LINE_TIME: Duration = Duration::from_millis(200);
/// How much a regex is tried on, in bytes, and how often.
const TRIAL: usize = 4 << 10;
const TRIALS: usize = 3;

/// A regex that is ready to be searched for.
pub struct Pattern {
    pub(super) matcher: RegexMatcher,
    glob: Option<Glob>,
    under: Option<RelPath>,
    /// Room for pieces, of whoever searched before: each with so many bytes.
    rooms: Mutex<Vec<Vec<u8>>>,
    /// The longest line that is searched with it, in bytes.
    pub(super) line_max: usize,
    /// How much is searched at a time, in bytes.
    pub(super) piece: usize,
}

impl Pattern {
    /// A `regex` in the syntax of Rust's, for the files that `glob` matches: a name, where there is no `/` in it, else a
    /// path from the root of the tree or from the worker's folder. The error is what is wrong, in several lines.
    pub fn new(regex: &str, ignore_case: bool, glob: Option<&str>) -> Result<Pattern, String> {
        // Its words for what is wrong are of the regex as it was typed.
        let checked = regex::bytes::RegexBuilder::new(regex).size_limit(SIZE_MAX).build();
        checked.map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => {
                format!("{error}\nfewer repetitions take less, and so does (?-u:…), for ASCII alone")
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
        let within =
            |time: Duration| usize::try_from(speed.saturating_mul(time.as_millis() as u64)).unwrap_or(usize::MAX);
        let piece = within(PIECE_TIME).clamp(PIECE_MIN, PIECE_MAX);
        Ok(Pattern {
            matcher,
            glob,
            under: None,
            rooms: Mutex::default(),
            piece,
            line_max: within(LINE_TIME).clamp(piece, LINE_MAX),
        })
    }

    /// Room for a piece, to be given back.
    pub(super) fn room(&self) -> Vec<u8> {
        let room = self.rooms.lock().pop();
        room.unwrap_or_else(|| vec![0; self.piece])
    }

    pub(super) fn give_back(&self, room: Vec<u8>) {
        self.rooms.lock().push(room);
    }

    /// The same for what is at `path` in a worker's folder, or below it, alone.
    pub fn under(self, path: Option<RelPath>) -> Pattern {
        Pattern { under: path, ..self }
    }

    /// Whether the file at `path` in a worker's folder is searched; `shown` says where it is shown in the tree.
    pub(super) fn is_for(&self, shown: &dyn Fn(&RelPath) -> RelPath, path: &RelPath) -> bool {
        self.under.as_ref().is_none_or(|under| is_under(path, under))
            && self.glob.as_ref().is_none_or(|glob| glob.is_for(shown, path))
    }
}

/// How fast a regex is at its slowest, in bytes a millisecond of work: tried on the letters that it is made of, in no
/// order, which is what a regex that can be slow is slow on.
fn speed(matcher: &RegexMatcher, regex: &str) -> u64 {
    let letters: Vec<u8> = regex.bytes().filter(|byte| byte.is_ascii_alphanumeric()).collect();
    let mut state = 1_u32;
    let mut letter = || {
        // Numerical Recipes' generator: the same letters every time.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        letters.get((state >> 16) as usize % letters.len().max(1)).copied().unwrap_or(b'a')
    };
    let text: Vec<u8> = (0..TRIAL).map(|_| letter()).collect();
    let trial = || {
        let begun = worked();
        // Only the time counts.
        let _ = matcher.find(&text);
        worked().saturating_sub(begun)
    };
    let took = (0..TRIALS).map(|_| trial()).min().unwrap_or_default();
    TRIAL as u64 * 1_000_000 / u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// How long this thread has worked: others that do so at the same time do not count.
fn worked() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    #[test]
    fn what_is_wrong_is_said() {
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
    fn globs_are_for_names_or_for_paths() {
        let is_for = |glob: &str, inner: &str| {
            let pattern = Pattern::new("x", false, Some(glob)).unwrap();
            pattern.is_for(&|inner| path("workers/w").join_path(inner), &path(inner))
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
    fn only_slow_ones_are_kept_to_short_lines() {
        let of = |regex| Pattern::new(regex, false, None).unwrap();
        assert_eq!((of("timeout").line_max, of("timeout").piece), (LINE_MAX, PIECE_MAX));
        let slow = of("(x*y*){1,60}[xy]{300}z");
        assert!(slow.line_max <= LINE_MAX && slow.piece >= PIECE_MIN);
    }
}
