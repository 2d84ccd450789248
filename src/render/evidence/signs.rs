//! Which lines of an output matter, by general signs of failure: words, exit markers, places in a source, stack frames,
//! severity colours. Nothing here knows a command, a tool or a test runner.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use memchr::memmem::Finder;
use regex::bytes::{Regex, RegexSet};

/// Signs that something went wrong.
const STRONG: &str = r"(?xi-u)
    \b(?:fatal|panic(?:ked)?|traceback|segfault|segmentation\ fault|core\ dumped|stack\ trace)\b
    | \b(?:error|err|failed|failure|fail|failures)\b\ ?[:!\]\)=]
    | (?-i:[a-z](?:Error|Exception)\b)
    | \bexceptions?\ (?:in|at|was|were|occurred|thrown|raised|caught)\b | \b(?:un\w+|throw\w*|raised?|got|an)\ exception\b | \bexception[:!]
    | \b(?:failed|failing|failure|aborted|aborting|crashed|killed)\b
    | \bexit(?:ed)?\ (?:with\ )?(?:code|status)[:\ =]+-?[1-9]
    | \bnon-?zero\b
    ";
/// Words that often stand near one.
const WEAK: &str = r"(?xi-u)
    \b(?:errors?|fails?|invalid|unable\ to|cannot|can't|could\ not|couldn't|denied|refused|rejected|undefined
    |unexpected|unresolved|missing|not\ found|no\ such|timed?\ ?out|unreachable|mismatch|assert(?:ion)?|expected
    |abort|critical|severe|warning) | ✗ | ✘ | × | ●";
/// Words that make of such a word one of caution.
const CAUTION: &str = r"(?i-u)\bwarn(?:ing|ings)?\b|\bdeprecat";
/// Phrases in which such words mean the contrary.
const DENIAL: &str = r"(?xi-u) \b(?:0|no|without)\ (?:\w+\ )?(?:errors?|failures?|failed|fails?|warnings?|exceptions?)\b
    | \b(?:errors?|failures?|failed|fail)[:=\ ]+0\b";
/// A line that tells that something failed, and not why: `Build step failed`, `make: *** [all] Error 2`.
const WRAPPER: &str = r"(?xi-u)
    \b(?:action|build|command|job|phase|pipeline|process|program|run|script|stage|step|target|task)s?
        (?:\ \S+){0,4}?\ (?:has\ |have\ |was\ )?
        (?:failed|aborted|terminated|stopped|errored|exited\ with(?:\ (?:code|status))?)\b[\W\d]*$
    | \berror\ -?\d+\W*$
    | ^\W*(?:errors?|fail(?:ed|ures?)?|fatal|aborted)\W*$";
/// A program that ended with a code other than 0.
const EXIT: &str = r"(?i-u)\bexit(?:ed)?(?: with)?(?: code| status)?[: =]+-?[1-9]|\breturned (?:a )?non-?zero";
/// A line of a stack trace, or what names a line of a source in words.
const FRAME: &str = r#"(?-u)^\s*(?:at |from |in |File "|#\d+ |\.\.\. \d+ more|Caused by)|^\s+\S+\(.*\)\s*$|\bline \d"#;
/// A file and a line of it.
const PLACE: &str = r"(?-u)[\w/\\.-]\.\w{1,5}[:(]\d";
/// The longest extension of a file in [`PLACE`], in bytes.
const EXTENSION_MAX: usize = 5;
/// The colours of an error on a terminal.
const RED: &str = r"(?-u)\x1b\[(?:0?1;)?(?:31|91|38;5;(?:1|9|196))[;m]|\x1b\[41";

/// What every match of a word holds, in small letters: most lines hold none of it, and that is found out much faster.
const STEMS: [&str; 41] = [
    "fatal",
    "panic",
    "exception",
    "traceback",
    "segfault",
    "segmentation",
    "core dumped",
    "stack trace",
    "err",
    "fail",
    "abort",
    "crash",
    "killed",
    "exit",
    "zero",
    "invalid",
    "unable",
    "cannot",
    "can't",
    "could",
    "denied",
    "refused",
    "rejected",
    "undefined",
    "unexpected",
    "unresolved",
    "missing",
    "not found",
    "no such",
    "time",
    "unreachable",
    "mismatch",
    "assert",
    "expected",
    "critical",
    "severe",
    "warn",
    "deprecat",
    "✗",
    "✘",
    "●",
];

static HAS_WORDS: LazyLock<Option<AhoCorasick>> =
    LazyLock::new(|| AhoCorasick::builder().ascii_case_insensitive(true).build(STEMS.iter().chain(&["×"])).ok());
/// The words that are looked for, in the order of the bits of [`Signs`].
static WORDS: LazyLock<Option<RegexSet>> = LazyLock::new(|| RegexSet::new([STRONG, WEAK, CAUTION, DENIAL, EXIT]).ok());
/// The shapes that are looked for. By itself the second would be looked for from its full stop outwards, and in a line with
/// many of them by backtracking in the end.
static SHAPES: LazyLock<Option<RegexSet>> = LazyLock::new(|| RegexSet::new([FRAME, PLACE]).ok());
/// What a line names a line of a source with, in [`FRAME`].
static NUMBERED: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("line "));
static STRONG_ALONE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(STRONG).ok());
static WEAK_ALONE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(WEAK).ok());
static DENIAL_ALONE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(DENIAL).ok());
static WRAPPER_ALONE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(WRAPPER).ok());
static RED_ALONE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(RED).ok());

/// What a line bears.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Signs {
    /// A failure.
    pub(super) strong: bool,
    /// A word that often stands near one, and neither a failure nor a word of caution.
    pub(super) weak: bool,
    /// A word of caution.
    pub(super) caution: bool,
    /// A program ended with a code other than 0.
    pub(super) exit: bool,
    /// It is of a stack trace, or names a line of a source.
    pub(super) frame: bool,
    /// It names a file and a line of it.
    pub(super) place: bool,
}

impl Signs {
    /// What the line `text` bears, in which there are no terminal escapes.
    pub(super) fn of(text: &str) -> Signs {
        let shapes = SHAPES.as_ref().filter(|_| may_be_frame(text) || may_be_place(text.as_bytes()));
        let shapes = shapes.map(|set| set.matches(text.as_bytes()));
        let [frame, place] = std::array::from_fn(|bit| shapes.as_ref().is_some_and(|found| found.matched(bit)));
        let words = HAS_WORDS.as_ref().is_none_or(|words| words.is_match(text));
        let Some(set) = WORDS.as_ref().filter(|_| words) else { return Signs { frame, place, ..Signs::default() } };
        let found = set.matches(text.as_bytes());
        let [strong, weak, caution, denial, exit] = std::array::from_fn(|bit| found.matched(bit));
        let stays = |found: bool, alone: &LazyLock<Option<Regex>>| found && (!denial || is_not_denied(alone, text));
        let strong = stays(strong, &STRONG_ALONE);
        let weak = !strong && !caution && stays(weak, &WEAK_ALONE);
        Signs { strong, weak, caution: caution && !denial, exit, frame, place }
    }
}

/// Whether [`FRAME`] could match, found out faster.
fn may_be_frame(text: &str) -> bool {
    let begins = text.trim_ascii_start().bytes().next().is_some_and(|first| b"afiF#.C".contains(&first));
    begins || text.trim_ascii_end().ends_with(')') || NUMBERED.find(text.as_bytes()).is_some()
}

/// Whether [`PLACE`] could match, found out faster: a time of day has a colon before a digit too, but no full stop.
fn may_be_place(text: &[u8]) -> bool {
    let has_extension = |at: usize| {
        let near = text.get(at.saturating_sub(EXTENSION_MAX + 1)..at).unwrap_or_default();
        near.contains(&b'.')
    };
    let is_numbered = |at: usize| text.get(at + 1).is_some_and(u8::is_ascii_digit);
    memchr::memchr2_iter(b':', b'(', text).any(|at| is_numbered(at) && has_extension(at))
}

/// Where in `raw` lines tell of a failure, the first place of each.
pub(super) fn failures(raw: &[u8]) -> impl Iterator<Item = usize> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let hit = STRONG_ALONE.as_ref()?.find_at(raw, at)?.start();
        at = memchr::memchr(b'\n', raw.get(hit..)?).map_or(raw.len(), |end| hit + end + 1);
        Some(hit)
    })
}

/// Whether `raw` is in a colour of errors.
pub(super) fn is_red(raw: &[u8]) -> bool {
    memchr::memchr(0x1b, raw).is_some() && RED_ALONE.as_ref().is_some_and(|red| red.is_match(raw))
}

fn is_not_denied(sign: &LazyLock<Option<Regex>>, text: &str) -> bool {
    let denials: Vec<_> = spans(&DENIAL_ALONE, text.as_bytes());
    let inside = |(at, _): &(usize, usize)| denials.iter().any(|(from, to)| (from..to).contains(&at));
    spans(sign, text.as_bytes()).iter().any(|span| !inside(span))
}

fn spans(regex: &LazyLock<Option<Regex>>, raw: &[u8]) -> Vec<(usize, usize)> {
    let found = regex.as_ref().map(|regex| regex.find_iter(raw).map(|hit| (hit.start(), hit.end())));
    found.map(Iterator::collect).unwrap_or_default()
}

/// Returns true if the line `text` tells that something failed or ended, and not why.
pub(super) fn is_wrapper(text: &str) -> bool {
    WRAPPER_ALONE.as_ref().is_some_and(|wrapper| wrapper.is_match(text.as_bytes()))
}

/// How much a line matters; more is more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Sign {
    /// A word that often stands near a failure.
    Weak,
    /// A failure.
    Strong,
}

/// How much the line `text` matters, if at all.
pub(super) fn of_line(text: &str) -> Option<Sign> {
    let signs = Signs::of(text);
    match signs {
        Signs { strong: true, .. } => Some(Sign::Strong),
        Signs { weak: true, .. } | Signs { caution: true, .. } => Some(Sign::Weak),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_fast_is_what_is_there() {
        let parts = [
            "error",
            "Err:",
            "FAILED",
            "exit",
            " code ",
            "1",
            "0",
            "no ",
            "warning",
            "×",
            "●",
            "timed out",
            "time",
            "at ",
            "  at f(x)",
            "line 3",
            "a.rs:1",
            "a.c(2)",
            "File \"",
            "#1 ",
            "... 2 more",
            "Caused by",
            " ",
            "x",
            ")",
            "cannot",
            "non-zero",
            "returned non-zero",
            "expected",
            "deprecated",
            "\t",
            "core dumped",
            "could not",
            "in ",
        ];
        let is = |pattern: &str, text: &str| Regex::new(pattern).unwrap().is_match(text.as_bytes());
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..300 {
            let text: String = (0..rng.usize(1..5)).map(|_| parts[rng.usize(..parts.len())]).collect();
            let signs = Signs::of(&text);
            assert_eq!((signs.frame, signs.place), (is(FRAME, &text), is(PLACE, &text)), "{text:?}");
            assert_eq!(signs.exit, is(EXIT, &text), "{text:?}");
            let denied = is(DENIAL, &text);
            assert!(denied || signs.strong == is(STRONG, &text), "{text:?}");
            assert!(denied || signs.caution == is(CAUTION, &text), "{text:?}");
            let weak = is(WEAK, &text) && !signs.strong && !signs.caution;
            assert!(denied || signs.weak == weak, "{text:?}");
        }
    }

    #[test]
    fn lines_that_say_why_are_no_wrappers() {
        for line in [
            "Build step failed",
            "make: *** [all] Error 2",
            "The command \"make all\" exited with 1.",
            "*** Failed ***",
            "[ERROR]",
        ] {
            assert!(is_wrapper(line), "{line}");
        }
        for line in [
            "Build failed: no such field",
            "error: 2 targets are missing",
            "test a::b failed: 1 != 2",
            "assert x in y, \"the deploy test failed\"",
            "FAILED a::b - x == y",
            "fatal: no such ref",
        ] {
            assert!(!is_wrapper(line), "{line}");
        }
    }

    #[test]
    fn failures_are_strong_and_their_denial_is_nothing() {
        for line in [
            "fatal: no",
            "error: x",
            "ValueError raised",
            "Build FAILED",
            "exited with code 2",
            "An exception was thrown",
            "Exception: no",
        ] {
            assert_eq!(of_line(line), Some(Sign::Strong), "{line}");
        }
        for line in ["permission denied", "no such file", "warning: x"] {
            assert_eq!(of_line(line), Some(Sign::Weak), "{line}");
        }
        for line in [
            "0 errors",
            "License Exception TSU",
            "gcc -Werror=format -O2",
            "no failures",
            "all fine",
            "failed: 0",
            "exit code 0",
        ] {
            assert_eq!(of_line(line), None, "{line}");
        }
    }
}
