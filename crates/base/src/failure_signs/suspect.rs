//! Finds the line that shows a failure in the output of a command whose record says success.
//!
//! A pipe or a later command loses the exit code of a test, a build or a lint, but the output still
//! shows the verdict. Its position in the line distinguishes a verdict from a quotation: a verdict
//! opens the line, perhaps after blanks, dashes or a `[label]`; a quotation follows a line number,
//! a file name, a mark of a diff or code.

use std::borrow::Cow;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};
use memchr::memmem::Finder;
use regex::bytes::{Regex, RegexBuilder};

use super::{LineSigns, is_wrapper, may_be_location};
use crate::split::Split;
use crate::text::clean::cleaned;

/// Number of bytes at each end of an output that are searched for a failure.
const END_BYTES: usize = 32 << 10;
/// Maximum length of a line that can show a failure, in bytes. A longer line is data.
const READ_MAX: usize = 1_000;
/// Maximum length of the returned line, in bytes.
const LINE_MAX: usize = 300;
/// Number of non-empty lines at the end of an output that are searched for an exit code.
const EXIT_LINES: usize = 3;
/// Number of lines after a failure that are searched for a remark that it was expected.
const REMARK_LINES: usize = 2;
/// Minimum number of findings that count without a verdict.
const FINDINGS_MIN: usize = 2;

// The patterns match bytes, since classes of Unicode compile to many times the size. `\x80-\xff`
// stands for all letters beyond ASCII.

/// Matches the text before a verdict: blanks, rules, bullets, and labels in brackets. The length of
/// a label counts in characters: bytes from `\x80` to `\xbf` continue one.
const LEAD: &str = r"^(?:(?-u:\[(?:[^\[\]\x80-\xbf][\x80-\xbf]*){1,60}\])\s+|[\s=_*•·─━│├└╰╭|-]+)*";

/// Matches a verdict on a test that names it.
const TEST: &str = r"(?x-u)
    ^(?:FAIL|FAILED|FAILURE):\s*\S
    | ^(?:FAIL|FAILED)\s.*::
    | ^(?:✗|✘|✖|❌)\s*[\w\x80-\xff]
    | ^not\ ok\ \d+\b
    | ::\S+\s(?:FAILED|ERROR)\b
    | ^[\w\x80-\xff].*(?:\.{2,}\s*(?:FAIL|FAILED|ERROR)|\s(?:FAIL|FAILED))$";
/// Matches an error of a compiler or a linter with its source location.
const ERROR_AT: &str = r"(?xi-u)
    ^(?:[^\s:]*[/\\])?[\w.@+\x80-\xff-]+\.\w{1,8}(?::\d+(?::\d+)?:?|\(\d+(?:,\d+)?\):?)\s(?:-\s)?
        (?:fatal\s)?error(?:\s\w+|\[\w+\])?:\s\S";
/// Matches a message after a source location with a column.
const FINDING: &str = r"(?-u)^(?:[\w.~@+\x80-\xff-]*/)*[\w.@+\x80-\xff-]+\.[A-Za-z]\w{0,7}(?::\d+:\d+:?|\(\d+,\d+\):?)\s+(?:-\s+)?\S";
/// Matches the head of the stack trace of an exception that ended a program.
const TRACE: &str = r"(?-u)^(?:Traceback \(|(?:thread .*)?panic(?:ked at|:)|(?:Unhandled|Uncaught)\b|Exception in thread\b)";
/// Matches an exception that is named by its type.
const EXCEPTION: &str =
    r"(?-u)^(?:[\w$]+(?:[.]|::))*\w*(?:Error|Exception)(?::\s|$)|^\(\w+(?:Error|Exception)\)\s";
/// Matches the count of failures or findings that closes a run.
const COUNT: &str = r"(?x-u)
    ^(?:[A-Za-z]+:\s+|Found\s)?[1-9]\d*\s(?:[A-Za-z]+\s){0,2}?(?:failed|failures?|failing|errors?|issues?|problems?|violations?)(?:[:.,;!)]|\sin\s|\sfound|\s\(|$)
    | ^[^\x22'`]*[,;]\s+[1-9]\d*\s(?:[A-Za-z]+\s)?(?:failed|failures?|errors?)(?:[,;.)\s]|$)
    | ^(?:[^\x22'`]*[\s(,;])?(?i:failed|failures|errors)\s?[:=]\s*[1-9]\d*(?:[),;.\s]|$)";
/// Matches counts of failures that do not fail a run.
const HARMLESS: &str = r"(?i-u)\b(?:expected|allowed|ignored|known|retried|fixed)\s+(?:failures?|errors?|failed)\b|\bfixed\b";
/// Matches a verdict in capitals without the name of a test: `test result: FAILED.`
const VERDICT: &str =
    r"(?-u)^(?:[A-Za-z][\w ]{0,40}: )?(?:FAIL|FAILED|FAILURE|FAILURES)(?:[!.\s]|$)";
/// Matches a statement that something failed, at the beginning of a line.
const STATED: &str = r"(?x-u)
    ^(?:(?i:caught|got|unexpected|unhandled|raised)\s+)(?:an?\s+)?(?i:\w*exception|\w*error)\b
    | ^(?i:error|fatal|fatal\ error)(?:\[\w+\])?:\s
    | ^Error\s(?:in|at|while|during)\s
    | ^(?:[\w\s\x80-\xff]{1,40}:\s+)?(?:Failed|Unable)\sto\s[\w\x80-\xff]
    | ^Could\snot\s[\w\x80-\xff]
    | ^(?:[\w\x80-\xff]+\s){1,4}(?:failed|aborted)[;:!.](?:\s|$)";
/// Matches a label in brackets that says that the line is an error.
const LABELED: &str = r"(?-u)^\[(?i:error|fatal)\]\s+\S";
/// Matches the complaint of a shell or a program that names itself: `name: path: reason`.
const COMPLAINT: &str = r"(?x-u)
    ^[\w./+\x80-\xff-]{1,80}:\s(?:.{1,300}:\s)?
        (?i:no\ such\ file\ or\ directory|(?:command\ )?not\ found|permission\ denied
        |(?:is|not)\ a\ directory|(?:syntax|parse)\ error\b.*)\.?$
    | ^\(\w+\):\d+:\s\S";

const SUCCESS: &str = r"(?x-u)
    ^(?:PASS|PASSED|OK|SUCCESS|SUCCEEDED)(?:[:!.\s(]|$)
    | ^ok\s
    | ^(?:✓|✔|✅)\s*[\w\x80-\xff]
    | ^[1-9]\d*\s(?:[\w\x80-\xff]+\s)?(?:passed|passing|succeeded)\b
    | ^(?:[\w\x80-\xff]+\s){1,3}(?:succeeded|passed|successful|successfully)\b";
/// Matches a remark that a failure was expected or handled.
const EXPECTED: &str = r"(?xi-u)
    \bexpected\s(?:\w+\s){0,2}(?:\w*error|\w*exception|failure|rejection|to\sfail)\b
    | \b(?:as|is|was|were)\s(?:expected|intended|planned)\b
    | \b(?:should|must|supposed\sto)\s(?:\w+\s)?(?:fail|raise|be\srejected)\b
    | \b(?:correctly|properly)\s(?:\w+\s)?(?:raised|rejected|failed|refused|denied)\b
    | \b(?:raised|rejected|failed|refused|denied)\s?(?:correctly|properly|✓|✔|✅)";

/// Matches the marks of a line that another text quotes: a line number, a mark of a diff, a file
/// name with a line number, a hash, the mode of a file, a comment, a quotation.
const QUOTED: &str = r"(?x-u)
    ^(?u:\s*)\d+(?:\t|→|(?u:\s*[│|:]))
    | ^[+-](?:[^\s+=-]|\t|\s\s)
    | ^(?:[\w.@+\x80-\xff-]*/)*[\w.@+\x80-\xff-]+\.\w{1,8}[:-]\d+[:-](?:\D|$)
    | ^\s*(?://|\#|/\*|<!--)
    | ^[0-9a-f]{7,40}\s
    | ^[bcdlps-][rwxsStT-]{9}
    | ^\s*>\s
    | ^@@\s";
/// Matches code: the end of a statement, an arrow, a placeholder.
const CODE: &str = r#"(?-u)[{};\\]\s*$|[\w"'`)>],\s*$|=>|%[svdq]\b|\$\{|\{\w*(?:![rs])?\}"#;

/// Lowercase substrings; every line that a pattern of failure matches contains one, except
/// locations and lines with [`END_OF_NAME`]. Short ones would slow down the search.
const STEMS: [&str; 19] = [
    "abort",
    "fail",
    "error",
    "exception",
    "traceback",
    "panic",
    "fatal",
    "exit",
    "uncaught",
    "unhandled",
    "not ok",
    "issue",
    "problem",
    "violation",
    "unable",
    "no such",
    "not found",
    "denied",
    "a directory",
];
/// End of the name of a program in brackets, which the complaint of a shell may open with.
const END_OF_NAME: &str = "):";
/// Prefix of the lines around a block of code in a document.
const FENCE: &str = "```";
/// Prefixes of a line that an example of a session enters.
const PROMPTS: [&str; 2] = [">>> ", "... "];
/// Marks of an item of a list, which describes an exception instead of reporting it.
const BULLETS: [char; 2] = ['-', '•'];
const SYMBOLS: [&str; 4] = ["✗", "✘", "✖", "❌"];

/// Maximum size of a compiled pattern, in bytes. A class of Unicode that is counted exceeds it, and
/// takes long to compile and to match.
const COMPILED_MAX: usize = 64 << 10;

type LazyRegex = LazyLock<Option<Regex>>;

macro_rules! pattern {
    ($source:expr) => {
        LazyLock::new(|| RegexBuilder::new($source).size_limit(COMPILED_MAX).build().ok())
    };
}

/// Finds a stem in lowercase text. Without regard to case, and for other than leftmost matches, the
/// library has no vectorized search.
static HAS_STEM: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    let words = STEMS.iter().chain(&SYMBOLS);
    AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(words).ok()
});
static NAME_ENDS: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(END_OF_NAME));
static LEADS: LazyRegex = pattern!(LEAD);
static TESTS: LazyRegex = pattern!(TEST);
static ERRORS_AT: LazyRegex = pattern!(ERROR_AT);
static FINDINGS: LazyRegex = pattern!(FINDING);
static TRACES: LazyRegex = pattern!(TRACE);
static EXCEPTIONS: LazyRegex = pattern!(EXCEPTION);
static COUNTS: LazyRegex = pattern!(COUNT);
static HARMLESS_COUNTS: LazyRegex = pattern!(HARMLESS);
static VERDICTS: LazyRegex = pattern!(VERDICT);
static STATEMENTS: LazyRegex = pattern!(STATED);
static LABELS: LazyRegex = pattern!(LABELED);
static COMPLAINTS: LazyRegex = pattern!(COMPLAINT);
static SUCCESSES: LazyRegex = pattern!(SUCCESS);
static EXPECTATIONS: LazyRegex = pattern!(EXPECTED);
static QUOTATIONS: LazyRegex = pattern!(QUOTED);
static CODES: LazyRegex = pattern!(CODE);

/// Forms in which a line shows a failure, from the least to the most informative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Trace,
    Exit,
    /// Report of a failure without its reason.
    Wrapper,
    Complaint,
    Statement,
    Verdict,
    Count,
    Exception,
    Finding,
    LocatedError,
    Test,
}

/// Returns the line of `output` that shows best that a part of the `command` failed, or `None`
/// without one.
pub fn suspect_line(command: &str, output: &str) -> Option<String> {
    let text = ends(output);
    if !may_fail(&text) && !may_be_location(text.as_bytes()) {
        return None;
    }
    let cleaned = cleaned(text.as_bytes());
    let lines: Vec<&str> =
        cleaned.text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let mut shown = shown(&lines);
    remove_cleared(command, &lines, &mut shown);
    let best = shown.iter().map(|(form, _)| *form).max()?;
    let mut of_best = shown.iter().filter(|(form, _)| *form == best);
    // The last of chained exceptions ended the program.
    let (_, at) = if best == Form::Exception { of_best.next_back() } else { of_best.next() }?;
    let line = lines.get(*at)?.trim();
    Some(line.split_at_most(LINE_MAX).0.to_owned())
}

/// Returns true if a line of `text` may match a pattern of failure other than of a location.
fn may_fail(text: &str) -> bool {
    HAS_STEM.as_ref().is_some_and(|stems| stems.is_match(&text.to_ascii_lowercase()))
        || NAME_ENDS.find(text.as_bytes()).is_some()
}

fn ends(output: &str) -> Cow<'_, str> {
    if output.len() <= 2 * END_BYTES {
        return Cow::Borrowed(output);
    }
    let (head, _) = output.split_at_most(END_BYTES);
    let (_, tail) = output.split_at_known(output.ceil_char_boundary(output.len() - END_BYTES));
    Cow::Owned(format!("{head}\n{tail}"))
}

/// Returns the lines that show a failure, except in blocks of code of a document and in examples of
/// a session.
fn shown(lines: &[&str]) -> Vec<(Form, usize)> {
    let (mut is_fenced, mut is_example) = (false, false);
    let mut shown = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        is_fenced ^= line.trim_start().starts_with(FENCE);
        if !is_fenced && !is_example {
            shown.extend(form_at(lines, at).map(|form| (form, at)));
        }
        is_example = PROMPTS.iter().any(|prompt| line.trim_start().starts_with(prompt));
    }
    shown
}

fn form_at(lines: &[&str], at: usize) -> Option<Form> {
    let line = *lines.get(at)?;
    let may_fail = may_fail(line);
    if line.len() > READ_MAX || (!may_fail && !may_be_location(line.as_bytes())) {
        return None;
    }
    let (lead, verdict) = split_lead(line);
    let is_indented = lead.starts_with([' ', '\t']);
    if !is_indented && is(&ERRORS_AT, verdict) && !is(&CODES, line) {
        return Some(Form::LocatedError);
    }
    let signs = LineSigns::detect(verdict);
    let may_find = !is_indented && signs.location && !LineSigns::detect(line).caution;
    if may_find && is(&FINDINGS, verdict) {
        return Some(Form::Finding);
    }
    if !may_fail || signs.denied || is(&QUOTATIONS, line) || is(&CODES, line) {
        return None;
    }
    let is_bullet = !lead.trim().is_empty();
    let is_last = at + EXIT_LINES >= lines.len();
    if is(&TESTS, verdict) {
        Some(Form::Test)
    } else if is(&COUNTS, verdict) && !is(&HARMLESS_COUNTS, verdict) {
        Some(Form::Count)
    } else if is(&VERDICTS, verdict) {
        Some(if is_wrapper(verdict) { Form::Wrapper } else { Form::Verdict })
    } else if !is_indented && lead.is_empty() && is(&TRACES, line) {
        Some(Form::Trace)
    } else if !lead.contains(BULLETS)
        && (!is_indented || is_traced(lines, at))
        && is(&EXCEPTIONS, verdict)
    {
        Some(Form::Exception)
    } else if lead.is_empty() && is(&COMPLAINTS, line) {
        Some(Form::Complaint)
    } else if signs.strong && is_last && is_wrapper(verdict) {
        Some(Form::Wrapper)
    } else if (!is_indented || is_bullet) && (is(&STATEMENTS, verdict) || is(&LABELS, line)) {
        Some(Form::Statement)
    } else if !is_indented && signs.exit && is_last {
        Some(Form::Exit)
    } else {
        None
    }
}

/// Splits a line into the text before a verdict and the rest.
fn split_lead(line: &str) -> (&str, &str) {
    let lead = LEADS.as_ref().and_then(|lead| lead.find(line.as_bytes()));
    line.split_at_known(lead.map_or(0, |lead| lead.end()))
}

/// Returns true if a line of a stack trace follows the line at `at`.
fn is_traced(lines: &[&str], at: usize) -> bool {
    lines.get(at + 1).is_some_and(|line| LineSigns::detect(line).frame)
}

/// Removes failures that a remark, a fallback of the `command` or a later success explains, and
/// findings that nothing confirms.
fn remove_cleared(command: &str, lines: &[&str], shown: &mut Vec<(Form, usize)>) {
    shown.retain(|(_, at)| {
        !lines.iter().skip(*at).take(REMARK_LINES + 1).any(|line| is(&EXPECTATIONS, line))
    });
    let findings = shown.iter().filter(|(form, _)| *form == Form::Finding).count();
    let is_confirmed = findings >= FINDINGS_MIN || findings < shown.len();
    let last_success = lines.iter().rposition(|line| is(&SUCCESSES, split_lead(line).1));
    let has_verdict = shown
        .iter()
        .any(|(form, _)| matches!(form, Form::Test | Form::Verdict | Form::Count | Form::Wrapper));
    let cleared_before = last_success.filter(|_| !has_verdict).unwrap_or(0);
    let has_fallback = has_fallback(command);
    shown.retain(|(form, at)| match form {
        Form::Finding => is_confirmed,
        Form::Test | Form::Verdict | Form::Count | Form::Wrapper => true,
        Form::Complaint | Form::Statement if has_fallback => false,
        _ => *at >= cleared_before,
    });
}

/// Returns true if the `command` answers a failure with a command of its own.
fn has_fallback(command: &str) -> bool {
    command.split("||").skip(1).any(|fallback| {
        let first = fallback.split_whitespace().next().unwrap_or_default();
        fallback.trim_start().len() > first.len() && !first.ends_with([';', ')'])
    })
}

fn is(pattern: &LazyRegex, text: &str) -> bool {
    pattern.as_ref().is_some_and(|pattern| pattern.is_match(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_patterns_compile() {
        for pattern in [
            &LEADS,
            &TESTS,
            &ERRORS_AT,
            &FINDINGS,
            &TRACES,
            &EXCEPTIONS,
            &COUNTS,
            &HARMLESS_COUNTS,
            &VERDICTS,
            &STATEMENTS,
            &LABELS,
            &COMPLAINTS,
            &SUCCESSES,
            &EXPECTATIONS,
            &QUOTATIONS,
            &CODES,
        ] {
            assert!(pattern.is_some());
        }
        assert!(HAS_STEM.is_some());
    }

    fn found(output: &str) -> Option<String> {
        suspect_line("build | last", output)
    }

    #[test]
    fn each_form_of_a_failure_is_found() {
        for line in [
            "--- FAIL: TestTide (0.02s)",
            "    --- FAIL: TestTide/neap (0.00s)",
            "FAILED tests/tide.x::test_neap - 3 != 4",
            "tests/tide.x::test_neap FAILED   [ 40%]",
            "test tide::neap ... FAILED",
            "TideSuite > neap tide is low FAILED",
            "FAILURE: the tide came early",
            "  ✗ neap tide is low",
            "not ok 3 - neap tide is low",
            "FAIL\texample/tide\t0.3s",
            "[check] FAIL",
            "test result: FAILED. 3 of them",
            "[潮の満ち引きを調べるための長い長い検査の名前です] FAIL",
            "Tests: 1 failed, 8 passed",
            "==== 2 failed, 7 passed in 0.12s ====",
            "FAILED (failures=1, errors=2)",
            "[lint] 3 issues:",
            "Found 2 errors in 1 file (checked 9 source files)",
            "✖ 3 problems (2 errors, 1 warning)",
            "Tests run: 8, Failures: 1, Errors: 0",
            "src/tide.x:3:9: error: no moon",
            "src/tide.x(3,9): error TX12: no moon",
            "tide.x:3: fatal error: no moon",
            "error[E9]: no moon",
            "error: no moon in scope",
            "[ERROR] no moon in scope",
            "rake of moons aborted!",
            "panic: no moon",
            "thread 'main' panicked at src/tide.x:3:9:",
            "tide.MoonError: no moon",
            "Caught exception: MoonError: no moon",
            "  • Moon: Failed to rise",
            "moon: tide.txt: No such file or directory",
            "sh: line 1: moonrise: command not found",
            "(script):1: unknown tide",
            "fatal: not a tide",
            "<moon 3 completed with exit code 4>",
            "Exit Code: 4",
            "[tide] ERROR task failed",
        ] {
            let output = format!("begin\n{line}\n");
            assert_eq!(found(&output).as_deref(), Some(line.trim()), "{line}");
        }
    }

    #[test]
    fn what_another_text_quotes_is_no_failure() {
        for line in [
            "+    fail(\"error: no moon\")",
            "+\tFAIL: no moon",
            "   116\t\tFAIL: no moon",
            "116→error: no moon",
            "src/tide.x:12:FAIL: no moon",
            "src/tide.x:12:    error: None,",
            "src/tide.x:12: error(\"no moon\")",
            "src/tide.x-12-error: no moon",
            "    error: None,",
            "    raise MoonError(\"no moon\")",
            "        # Traceback (most recent call last):",
            "    Traceback (most recent call last):",
            "// FAIL: no moon",
            "# error: no moon",
            "> error: no moon",
            "8b466a2 FAIL: show the moon",
            "-rw-r--r-- 1 moon moon 6744 Apr 30 08:32 error.x",
            "errors.x",
            "FAILED => 3,",
            "    print(f\"FAIL: {moon}\")",
            "- MoonError: raised without a moon",
        ] {
            assert_eq!(found(&format!("begin\n{line}\nend\n")), None, "{line}");
        }
        assert_eq!(found("Example:\n```\nerror: no moon\n```\n"), None);
        assert_eq!(found(">>> rise()\nTraceback (most recent call last):\n"), None);
    }

    #[test]
    fn runs_that_went_well_are_not_suspect() {
        for output in [
            "0 issues.\n",
            "12 passed, 0 failed\n",
            "Tests run: 8, Failures: 0, Errors: 0\n",
            "OK (skipped=14, expected failures=2)\n",
            "Fixed 3 errors\n3 errors fixed\n",
            "=== RUN   TestFailsWithoutMoon\n--- PASS: TestFailsWithoutMoon (0.00s)\nPASS\n",
            "tide.x:3:9: warning: low moon\nmoon.x:4:2: warning: low tide\n",
            "MoonWarning: comparison failed; returning a scalar\n12 passed in 0.2s\n",
            "Failed to reach the moon: trying again\nok  \texample/tide\t0.3s\n",
            "tide exited with code 1\nSUCCESS: no tide came.\n",
            "exit code: 0\n",
            "Output: built\nError: (none)\nExit Code: 0\nSignal: (none)\n",
            "a line of 3 failed attempts in the middle of prose\n",
            "",
        ] {
            assert_eq!(found(output), None, "{output}");
        }
    }

    #[test]
    fn expected_failures_are_not_suspect() {
        for output in [
            "Caught expected MoonError: no moon\n",
            "fatal: '../moon' is no tide\nrejected ✓\n",
            "MoonError: no moon\nThis was expected.\n",
            "error: no moon\n(the call should fail here)\n",
        ] {
            assert_eq!(found(output), None, "{output}");
        }
    }

    #[test]
    fn fallback_of_the_command_answers_its_complaint() {
        let complaint = "moon: tide.txt: No such file or directory\n";
        assert_eq!(suspect_line("moon tide.txt || echo none", complaint), None);
        assert!(suspect_line("moon tide.txt || true", complaint).is_some());
        assert!(suspect_line("moon tide.txt || true; echo done", complaint).is_some());
        assert!(suspect_line("moon tide.txt | head", complaint).is_some());
    }

    #[test]
    fn passing_parts_do_not_excuse_a_failing_one() {
        let output = "ok  \ta\t0.1s\nFAIL\tb\t0.2s\nok  \tc\t0.1s\nPASS\n";
        assert_eq!(found(output).as_deref(), Some("FAIL\tb\t0.2s"));
        assert_eq!(found("0 issues.\n--- FAIL: TestTide\n").as_deref(), Some("--- FAIL: TestTide"));
    }

    #[test]
    fn one_message_with_a_location_needs_a_confirmation() {
        let finding = "src/tide.x:3:9: moon is not used";
        assert_eq!(found(&format!("{finding}\n")), None);
        let twice = format!("{finding}\nsrc/tide.x:4:2: sun is not used\n");
        assert_eq!(found(&twice).as_deref(), Some(finding));
        assert_eq!(found(&format!("{finding}\n1 issues:\n* moon: 1\n")).as_deref(), Some(finding));
    }

    #[test]
    fn shown_line_says_most() {
        let output = "src/tide.x:3:9: error: no moon\n--- FAIL: TestTide (0.1s)\n\
            FAIL\texample/tide\t0.3s\nFAIL\n[test] ERROR task failed\n";
        assert_eq!(found(output).as_deref(), Some("--- FAIL: TestTide (0.1s)"));
        let chained = "Traceback (most recent call last):\n  File \"a\", line 1\nSunError: dark\n\
            Traceback (most recent call last):\n  File \"b\", line 2\nMoonError: no moon\nExit Code: 1\n";
        assert_eq!(found(chained).as_deref(), Some("MoonError: no moon"));
        let framed = "Output: ok - neap\n2 tests, 1 failed\nError: (none)\nExit Code: 0\n";
        assert_eq!(found(framed).as_deref(), Some("2 tests, 1 failed"));
    }

    #[test]
    fn escapes_are_removed_from_the_shown_line() {
        assert_eq!(found("\x1b[31mFAIL\x1b[0m: tide\u{200b}\n").as_deref(), Some("FAIL: tide"));
        let long = format!("FAIL: {}\n", "é".repeat(450));
        assert!(found(&long).is_some_and(|line| line.len() <= LINE_MAX));
    }

    #[test]
    fn long_outputs_are_searched_at_both_ends() {
        let filler = "all is well\n".repeat(4 * END_BYTES / 10);
        assert!(found(&format!("--- FAIL: TestTide\n{filler}")).is_some());
        assert!(found(&format!("{filler}--- FAIL: TestTide\n")).is_some());
        assert_eq!(found(&format!("{filler}--- FAIL: TestTide\n{filler}")), None);
    }
}
