//! General signs of failure in a line: words, exit markers, source locations, stack frames, colors
//! of errors. No sign is specific to a command, a tool or a test runner. Also recognizes failed
//! calls that never did their work, and calls that were refused.

mod suspect;

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use memchr::memmem::Finder;
use regex::bytes::{Regex, RegexSet};

pub use suspect::suspect_line;

use crate::text::clean::one_line;

const STRONG: &str = r"(?xi-u)
    \b(?:fatal|panic(?:ked)?|traceback|segfault|segmentation\ fault|core\ dumped|stack\ trace)\b
    | \b(?:error|err|failed|failure|fail|failures)\b\ ?[:!\]\)=]
    | (?-i:[a-z](?:Error|Exception)\b)
    | \bexceptions?\ (?:in|at|was|were|occurred|thrown|raised|caught)\b | \b(?:un\w+|throw\w*|raised?|got|an)\ exception\b | \bexception[:!]
    | \b(?:failed|failing|failure|aborted|aborting|crashed|killed)\b
    | \bexit(?:ed)?\ (?:with\ )?(?:code|status)[:\ =]+-?[1-9]
    | \bnon-?zero\b
    ";
/// Matches words that often occur near a failure.
const WEAK: &str = r"(?xi-u)
    \b(?:errors?|fails?|invalid|unable\ to|cannot|can't|could\ not|couldn't|denied|refused|rejected|undefined
    |unexpected|unresolved|missing|not\ found|no\ such|timed?\ ?out|unreachable|mismatch|assert(?:ion)?|expected
    |abort|critical|severe|warning) | ✗ | ✘ | × | ●";
/// Matches words that turn a weak sign into a caution.
const CAUTION: &str = r"(?i-u)\bwarn(?:ing|ings)?\b|\bdeprecat";
/// Matches phrases that negate a sign: `0 errors`, `no failures`, `Error: (none)`.
const DENIAL: &str = r"(?xi-u) \b(?:0|no|without)\ (?:\w+\ )?(?:errors?|failures?|failed|fails?|warnings?|exceptions?)\b
    | \b(?:errors?|failures?|failed|fail)[:=\ ]+(?:0\b|\(?none\)?\s*$)";
/// Matches a line that reports a failure without its reason: `Build step failed`,
/// `make: *** [all] Error 2`.
const WRAPPER: &str = r"(?xi-u)
    \b(?:action|build|command|job|phase|pipeline|process|program|run|script|stage|step|target|task)s?
        (?:\ \S+){0,4}?\ (?:has\ |have\ |was\ )?
        (?:failed|aborted|terminated|stopped|errored|exited\ with(?:\ (?:code|status))?)\b[\W\d]*$
    | \berror\ -?\d+\W*$
    | ^\W*(?:errors?|fail(?:ed|ures?)?|fatal|aborted)\W*$";
/// Matches the exit marker of a program with a code other than 0.
const EXIT: &str =
    r"(?i-u)\bexit(?:ed)?(?: with)?(?: code| status)?[: =]+-?[1-9]|\breturned (?:a )?non-?zero";
/// Matches a line of a stack trace, or a source line named in words.
const FRAME: &str = r#"(?-u)^\s*(?:at |from |in |File "|#\d+ |\.\.\. \d+ more|Caused by)|^\s+\S+\(.*\)\s*$|\bline \d"#;
const LOCATION: &str = r"(?-u)[\w/\\.-]\.\w{1,5}[:(]\d";
/// Maximum length of a file extension in [`LOCATION`], in bytes.
const EXTENSION_MAX: usize = 5;
/// Matches the terminal colors of an error.
const RED: &str = r"(?-u)\x1b\[(?:0?1;)?(?:31|91|38;5;(?:1|9|196))[;m]|\x1b\[41";

/// Lowercase substrings; every match of a word pattern contains one. Testing them first is faster,
/// since most lines contain none.
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

static HAS_WORDS: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    AhoCorasick::builder().ascii_case_insensitive(true).build(STEMS.iter().chain(&["×"])).ok()
});
/// Word patterns, in the order in which [`LineSigns::detect`] reads the matches.
static WORDS: LazyLock<Option<RegexSet>> =
    LazyLock::new(|| RegexSet::new([STRONG, WEAK, CAUTION, DENIAL, EXIT]).ok());
/// Shape patterns. Searched alone, [`LOCATION`] would start at each full stop, and a line with many
/// of them would fall back to backtracking.
static SHAPES: LazyLock<Option<RegexSet>> = LazyLock::new(|| RegexSet::new([FRAME, LOCATION]).ok());
/// Finds the word before a line number in [`FRAME`].
static NUMBERED: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("line "));
static STRONG_ALONE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(STRONG).ok());
static WEAK_ALONE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(WEAK).ok());
static DENIAL_ALONE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(DENIAL).ok());
static WRAPPER_ALONE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(WRAPPER).ok());
static RED_ALONE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(RED).ok());

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineSigns {
    pub strong: bool,
    /// Word that often occurs near a failure, without `strong` and `caution`.
    pub weak: bool,
    /// Word of caution: a warning or a deprecation.
    caution: bool,
    /// Phrase that negates every sign of the line.
    pub denied: bool,
    pub exit: bool,
    pub frame: bool,
    pub location: bool,
}

impl LineSigns {
    /// Detects the signs in the line `text`, which must not contain terminal escapes.
    pub fn detect(text: &str) -> LineSigns {
        let shapes =
            SHAPES.as_ref().filter(|_| may_be_frame(text) || may_be_location(text.as_bytes()));
        let shapes = shapes.map(|set| set.matches(text.as_bytes()));
        let [frame, location] =
            std::array::from_fn(|bit| shapes.as_ref().is_some_and(|found| found.matched(bit)));
        let words = HAS_WORDS.as_ref().is_none_or(|words| words.is_match(text));
        let Some(set) = WORDS.as_ref().filter(|_| words) else {
            return LineSigns { frame, location, ..LineSigns::default() };
        };
        let found = set.matches(text.as_bytes());
        let [strong, weak, caution, denial, exit] = std::array::from_fn(|bit| found.matched(bit));
        let stays = |found: bool, alone: &LazyLock<Option<Regex>>| {
            found && (!denial || has_undenied(alone, text))
        };
        let strong = stays(strong, &STRONG_ALONE);
        let weak = !strong && !caution && stays(weak, &WEAK_ALONE);
        let denied = denial && !strong && !weak;
        LineSigns { strong, weak, caution: caution && !denial, denied, exit, frame, location }
    }
}

/// Returns true if [`FRAME`] may match; a cheap test that avoids most regex searches.
fn may_be_frame(text: &str) -> bool {
    let begins =
        text.trim_ascii_start().bytes().next().is_some_and(|first| b"afiF#.C".contains(&first));
    begins || text.trim_ascii_end().ends_with(')') || NUMBERED.find(text.as_bytes()).is_some()
}

/// Returns true if [`LOCATION`] may match; a cheap test that avoids most regex searches. A time of
/// day also has a colon before a digit, but no full stop.
fn may_be_location(text: &[u8]) -> bool {
    memchr::memchr2_iter(b':', b'(', text).any(|at| {
        let before = text.get(at.saturating_sub(EXTENSION_MAX + 1)..at);
        text.get(at + 1).is_some_and(u8::is_ascii_digit)
            && before.is_some_and(|before| before.contains(&b'.'))
    })
}

/// Returns the offset of the first sign of failure in each line of `raw` that has one.
pub fn failures(raw: &[u8]) -> impl Iterator<Item = usize> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let hit = STRONG_ALONE.as_ref()?.find_at(raw, at)?.start();
        at = memchr::memchr(b'\n', raw.get(hit..)?).map_or(raw.len(), |end| hit + end + 1);
        Some(hit)
    })
}

/// Returns true if `raw` sets a terminal color of errors.
pub fn is_red(raw: &[u8]) -> bool {
    memchr::memchr(0x1b, raw).is_some() && RED_ALONE.as_ref().is_some_and(|red| red.is_match(raw))
}

/// Returns true if `text` has the `sign` outside of every denial.
fn has_undenied(sign: &LazyLock<Option<Regex>>, text: &str) -> bool {
    let denials: Vec<_> = spans(&DENIAL_ALONE, text.as_bytes());
    let spans = spans(sign, text.as_bytes());
    spans.iter().any(|(at, _)| !denials.iter().any(|(from, to)| (from..to).contains(&at)))
}

fn spans(regex: &LazyLock<Option<Regex>>, raw: &[u8]) -> Vec<(usize, usize)> {
    regex
        .iter()
        .flat_map(|regex| regex.find_iter(raw))
        .map(|hit| (hit.start(), hit.end()))
        .collect()
}

/// Returns true if the line `text` reports a failure or an exit without its reason.
pub fn is_wrapper(text: &str) -> bool {
    WRAPPER_ALONE.as_ref().is_some_and(|wrapper| wrapper.is_match(text.as_bytes()))
}

/// Strength of the signs in a line, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SignStrength {
    /// Word of caution, or a word that often occurs near a failure.
    Weak,
    Strong,
}

/// Returns the strength of the signs in the line `text`, or `None` without any.
pub fn strength_of_line(text: &str) -> Option<SignStrength> {
    let signs = LineSigns::detect(text);
    match signs {
        LineSigns { strong: true, .. } => Some(SignStrength::Strong),
        LineSigns { weak: true, .. } | LineSigns { caution: true, .. } => Some(SignStrength::Weak),
        _ => None,
    }
}

/// Maximum number of lines of an output that only complains about how a program was called. The
/// help that follows a complaint is longer.
const LINES_MAX: usize = 12;
/// Exit codes of a shell for a program that it cannot run or find.
const SHELL_CODES: [i64; 2] = [126, 127];
/// Maximum length of the reason of a refusal, in bytes.
const DENIAL_MAX: usize = 200;

const MISUSE: &str = r"(?xi-u)
    ^(?:[^\s:]+:\s)*(?:error:\s)?(?:the\s)?
        (?:unknown|unrecognized|unrecognised|unsupported|invalid|illegal|unexpected|ambiguous|no\ such)\s
        (?:\w+\s)?(?:flag|option|options|argument|arguments|subcommand|command|switch|task|target|script|recipe)\b
    | \bcommand\ not\ found | ^(?:\S+:\s)+not\ found$
    | ^(?:\S+:\s)*(?:no\ such\ file\ or\ directory|cannot\ find\ the\ (?:path|file))
    | :\sno\ such\ file\ or\ directory\s*$
    | ^flag\ provided\ but\ not\ defined | ^usage:(?:\s|$) | ^missing\ script: | \bmissing\ script:
    | ^fatal:\ not\ a\ git\ repository | ^(?:error:\s)?unexpected\ argument
    | ^(?:error:\s)?(?:can't|cannot|could\ not|unable\ to)\ (?:load|read|find|open)\ (?:the\ )?config
    | ^make:\s.*no\ rule\ to\ make\ target | \bno\ tasks?\s.*\bfound\b
    | ^error:\ could\ not\ find\ `Cargo\.toml` | ^go:\ (?:cannot\ find\ main\ module|go\.mod\ file\ not\ found)";
/// Matches the result of a call that was stopped with other calls of its message.
const CANCELLED: &str = r"(?i-u)\bcancel|\bsibling tool call|\binterrupted by\b";

static MISUSES: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(MISUSE).ok());
static CANCELLATIONS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(CANCELLED).ok());

/// Returns true if a failed command did not do its work, by its exit code or its `output`: a wrong
/// option, an absent program, a wrong directory.
pub fn is_misuse(exit_code: Option<i64>, output: &str) -> bool {
    if exit_code.is_some_and(|code| SHELL_CODES.contains(&code)) {
        return true;
    }
    let lines = || output.lines().map(str::trim).filter(|line| !line.is_empty());
    // The first line may name the exit code.
    let mut first = lines().filter(|line| !line.starts_with("Exit code")).take(2);
    let is_usage = lines().any(|line| line.to_lowercase().starts_with("usage:"));
    (lines().nth(LINES_MAX).is_none() || is_usage)
        && first.any(|line| MISUSES.as_ref().is_some_and(|found| found.is_match(line.as_bytes())))
}

/// Returns the reason in the result of a call that never ran, in one line, or `None` if it was
/// cancelled with other calls and not refused.
pub fn denial_line(result: &str) -> Option<String> {
    let is_cancelled =
        CANCELLATIONS.as_ref().is_some_and(|found| found.is_match(result.as_bytes()));
    let line = one_line(result.trim().lines().next().unwrap_or_default(), DENIAL_MAX);
    (!is_cancelled).then_some(line)
}

/// Texts in the reason of a refused call, by who refused it.
const DENIERS: [(&str, &str); 16] = [
    ("PreToolUse:", "hook"),
    ("PreToolUse hook", "hook"),
    // A command may follow, with any words in it.
    ("Permission to use ", "rule"),
    ("Permission for this tool use was denied", "user"),
    ("auto mode", "classifier"),
    ("auto-mode", "classifier"),
    ("classifier", "classifier"),
    ("user doesn't want", "user"),
    ("user did not allow", "user"),
    ("user declined", "user"),
    ("user rejected", "user"),
    ("rejected by user", "user"),
    ("haven't granted", "nobody"),
    ("requires approval", "nobody"),
    ("denied by your permission settings", "rule"),
    ("Blocked: ", "program"),
];

/// Returns who refused a call by the reason in its result: `user`, `rule`, `hook`, `classifier`,
/// `program`, or `nobody` if no person could be asked. `None` if the reason does not say it.
pub fn denier(reason: &str) -> Option<&'static str> {
    DENIERS.into_iter().find(|(text, _)| reason.contains(text)).map(|(_, by)| by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_says_who_refused() {
        for (reason, by) in [
            ("The user doesn't want to proceed with this tool use.", Some("user")),
            ("Permission to use Bash with command rm has been denied.", Some("rule")),
            ("File is in a directory that is denied by your permission settings.", Some("rule")),
            ("Permission to use Bash with command vi PreToolUse has been denied.", Some("rule")),
            ("PreToolUse:Bash hook error: no pushes; permission denied", Some("hook")),
            (
                "Permission for this action was denied by the Claude Code auto mode classifier. \
                 Reason: it deletes data",
                Some("classifier"),
            ),
            (
                "Claude requested permissions to use Write, but you haven't granted it yet.",
                Some("nobody"),
            ),
            ("Blocked: standalone sleep 60.", Some("program")),
            ("no", None),
        ] {
            assert_eq!(denier(reason), by, "{reason}");
        }
    }

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
        let mut rng = crate::scale::rng();
        for _ in 0..crate::scale::scale(300) {
            let text: String =
                (0..rng.usize(1..5)).map(|_| parts[rng.usize(..parts.len())]).collect();
            let signs = LineSigns::detect(&text);
            assert_eq!(
                (signs.frame, signs.location),
                (is(FRAME, &text), is(LOCATION, &text)),
                "{text:?}"
            );
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
            "error: none of the files fits",
        ] {
            assert_eq!(strength_of_line(line), Some(SignStrength::Strong), "{line}");
        }
        for line in ["permission denied", "no such file", "warning: x"] {
            assert_eq!(strength_of_line(line), Some(SignStrength::Weak), "{line}");
        }
        for line in [
            "0 errors",
            "License Exception TSU",
            "gcc -Werror=format -O2",
            "no failures",
            "all fine",
            "failed: 0",
            "Error: (none)",
            "errors: None",
            "exit code 0",
        ] {
            assert_eq!(strength_of_line(line), None, "{line}");
        }
    }

    #[test]
    fn a_command_that_was_called_wrongly_is_told_from_one_that_failed() {
        for output in [
            "Exit code 127\nbash: foo: command not found",
            "error: unexpected argument '--foo' found\n\nUsage: x [OPTIONS]",
            "flag provided but not defined: -foo",
            "pytest: error: unrecognized arguments: --foo",
            "ls: cannot access 'x': No such file or directory",
            "npm error Missing script: \"lint\"",
        ] {
            assert!(is_misuse(Some(1), output), "{output}");
        }
        for output in [
            "FAIL: TestX\n  open /a: no such file or directory here",
            "src/a.rs:3:5: error: unknown type name",
            "1 failed, 3 passed",
            "",
        ] {
            assert!(!is_misuse(Some(1), output), "{output}");
        }
        assert!(is_misuse(Some(127), ""));
    }

    #[test]
    fn cancelled_calls_were_not_refused() {
        assert_eq!(
            denial_line("Permission to use Bash\nhas been denied."),
            Some("Permission to use Bash".into())
        );
        assert_eq!(denial_line("<tool_use_error>Cancelled: parallel tool call Bash errored"), None);
    }
}
