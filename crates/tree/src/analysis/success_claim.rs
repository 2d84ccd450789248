//! Recognizes claims of success in a worker's final words, and the lack of their checks.
//!
//! Only general words count; no rule names a tool. Text that admits a failure claims nothing.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
use unicode_segmentation::UnicodeSegmentation;

use swarmletfs_base::model::{TestScope, WorkStep};

/// Maximum length of final words that is parsed, in bytes.
const WORDS_MAX: usize = 64 << 10;

// Most patterns are without classes of Unicode, which compile to many times the size.

const SUCCESS: &str = r"(?xi-u)
    \b(?: done | fixed | finished | completed? | resolved | succeed(?:s|ed)? | success(?:ful|fully)?
      | pass(?:es|ed|ing)? | green | works?\ (?:now|again|correctly|as\ expected)
      | working\ (?:now|again|correctly) | all\ (?:clean|good) )\b";

/// Marks of success. Beside marks of failure they belong to a list of findings.
const SUCCESS_MARKS: [char; 4] = ['✅', '✓', '✔', '☑'];
const FAILURE_MARKS: [char; 3] = ['❌', '✗', '✘'];

/// Matches the absence of failures, which does not qualify a claim.
const NO_FAILURE: &str = r"(?xi-u)
    \b(?: no | 0 | zero | without(?:\ any)? )\ (?:\w+\ ){0,2}(?:fail\w*|errors?|issues?|warnings?|problems?)";

/// Matches a sentence that qualifies its claim or speaks of something else.
const HEDGE: &str = r"(?xi-u)
    \b(?: fail(?:s|ed|ing|ures?)? | errors? | not | cannot | unable | still | yet | remain(?:s|ing)?
      | skip(?:s|ped)? | except | partial(?:ly)? | broken | if | once | when | until | unless | should
      | would | will | needs? | let\ me | todo | pending | almost | mostly )\b
    | n(?:'|’)t\b | \?\s*$";

/// Matches the admission that something is left undone or fails, wherever it stands.
const ADMISSION: &str = r"(?xi-u)
    \b(?: could(?:\ not|n(?:'|’)t) | unable\ to | not\ able\ to | not\ yet | still\ fail\w* | still\ broken
      | did(?:\ not|n(?:'|’)t)\ (?:run|work|pass|finish|complete|succeed)
      | (?:do|does)(?:\ not|n(?:'|’)t)\ (?:work|pass) | pre-?existing | unrelated\ (?:fail|error|issue)\w*
      | unresolved | unfinished | incomplete | remain(?:s|ing)\ (?:to|work|issue|fail|error)\w*
      | [1-9]\d*\ (?:\w+\ ){0,2}(?:fail\w*|errors?) | skipped )\b";

const TESTS_PASSED: &str = r"(?xi)
    \btests?\b .{0,60} \b(?: pass(?:es|ed|ing)? | green | succeed(?:s|ed)? | clean )\b
    | \b(?: pass(?:es|ed|ing)? | green )\b .{0,40} \btests?\b";
const LINT_PASSED: &str = r"(?xi)
    \b(?:lint(?:er|ing|s)?|linted|clippy|type-?check(?:s|ing)?)\b .{0,60} \b(?: pass(?:es|ed|ing)? | green | clean(?:ly)? | succeed(?:s|ed)? | linted )\b
    | \b(?: pass(?:es|ed)? | green | clean )\b .{0,30} \b(?:lint(?:er|ing)?|clippy)\b
    | \blint\w*\ (?:errors?|issues?) .{0,30} \b(?:fixed|resolved|corrected)\b | \bproperly\ .{0,20}linted\b";

struct Patterns {
    success: Regex,
    no_failure: Regex,
    hedge: Regex,
    admission: Regex,
    tests_passed: Regex,
    lint_passed: Regex,
}

static PATTERNS: LazyLock<Option<Patterns>> = LazyLock::new(|| {
    Some(Patterns {
        success: Regex::new(SUCCESS).ok()?,
        no_failure: Regex::new(NO_FAILURE).ok()?,
        hedge: Regex::new(HEDGE).ok()?,
        admission: Regex::new(ADMISSION).ok()?,
        tests_passed: Regex::new(TESTS_PASSED).ok()?,
        lint_passed: Regex::new(LINT_PASSED).ok()?,
    })
});

#[derive(Default)]
pub(super) struct SuccessClaim {
    /// True if the words claim success and admit no failure anywhere.
    pub(super) is_whole: bool,
    pub(super) tests_passed: bool,
    pub(super) lint_passed: bool,
}

impl SuccessClaim {
    /// Returns the claim that `words` make, or `None` if they claim nothing. A claim of checks
    /// holds even where another sentence admits a failure.
    pub(super) fn find(words: &str) -> Option<SuccessClaim> {
        let patterns = PATTERNS.as_ref()?;
        let prose = prose(words.get(..words.floor_char_boundary(WORDS_MAX))?);
        let prose = patterns.no_failure.replace_all(&prose, "");
        let admits = patterns.admission.is_match(&prose);
        let mut claim = SuccessClaim::default();
        let mut is_claimed = false;
        let marks_count = !prose.contains(FAILURE_MARKS);
        for sentence in prose.lines().flat_map(str::unicode_sentences) {
            let is_marked = sentence.contains(SUCCESS_MARKS);
            let tests_passed = patterns.tests_passed.is_match(sentence);
            let lint_passed = patterns.lint_passed.is_match(sentence);
            let is_success = patterns.success.is_match(sentence)
                || is_marked && marks_count
                || tests_passed
                || lint_passed;
            let is_qualified =
                patterns.hedge.is_match(sentence) || sentence.contains(FAILURE_MARKS);
            if !is_success || is_qualified {
                continue;
            }
            is_claimed = true;
            claim.tests_passed |= tests_passed;
            claim.lint_passed |= lint_passed;
        }
        claim.is_whole = is_claimed && !admits;
        (claim.is_whole || claim.tests_passed || claim.lint_passed).then_some(claim)
    }

    /// Returns true if the claim is about a check or a delivery that takes `steps`.
    pub(super) fn covers(&self, steps: &BTreeSet<WorkStep>) -> bool {
        self.is_whole
            || self.tests_passed && steps.iter().any(|step| matches!(step, WorkStep::Test(_)))
            || self.lint_passed && steps.contains(&WorkStep::Lint)
    }

    /// Returns the name and the message of the check on each claim for which `steps` hold no check.
    pub(super) fn without_check(
        &self,
        steps: &BTreeSet<WorkStep>,
    ) -> impl Iterator<Item = (&'static str, &'static str)> {
        use WorkStep::{Check, CiState, Lint, Test};
        let is_general =
            steps.iter().any(|step| matches!(step, Check | CiState | Test(TestScope::All)));
        let is_tested = is_general || steps.iter().any(|step| matches!(step, Test(_)));
        let is_linted = is_general || steps.contains(&Lint);
        let tests = (
            "claimed_tests_never_ran",
            "its final words say that tests passed, but no call ran any",
        );
        let lint = (
            "claimed_lint_never_ran",
            "its final words say that a linter passed, but no call ran one",
        );
        let tests = (self.tests_passed && !is_tested).then_some(tests);
        tests.into_iter().chain((self.lint_passed && !is_linted).then_some(lint))
    }
}

/// Matches a line by which a check states its success.
const CHECK_RESULT: &str = r"(?xm-u)
    ^(?:ok\s+\S+|PASS\b|---\ PASS|\s*0\ (?:issues|errors|problems|warnings)\b|test\ result:\ ok|OK\s\(\d+)
    | ^[=\s]*[1-9]\d*\ (?:passed|passing|tests?\ passed) | \bTests?:\s+[1-9]\d*\ passed | ^(?:✓|✔|✅)\s
    | \bAll\ (?:checks|tests)\ passed\b | \bno\ (?:issues|problems)\ found\b";

static CHECK_RESULTS: LazyLock<Option<regex::bytes::Regex>> =
    LazyLock::new(|| regex::bytes::Regex::new(CHECK_RESULT).ok());

/// Returns true if an output states the success of a check.
pub(super) fn shows_check(output: &str) -> bool {
    CHECK_RESULTS.as_ref().is_some_and(|found| found.is_match(output.as_bytes()))
}

/// Returns the text without code blocks, which quote other texts.
fn prose(words: &str) -> String {
    let mut is_code = false;
    let mut kept = String::new();
    for line in words.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(words: &str) -> bool {
        SuccessClaim::find(words).is_some_and(|claim| claim.is_whole)
    }

    #[test]
    fn success_is_claimed_in_general_words() {
        for words in [
            "Done.",
            "All tests pass and lint is clean.",
            "Fixed. The comment is accurate now.",
            "## Results\n- Unit tests: ✓ All pass",
            "The upload completed successfully, with no errors.",
            "Everything works as expected.",
            "All 12 tests passed with 0 failures.",
        ] {
            assert!(claims(words), "{words}");
        }
    }

    #[test]
    fn a_qualified_or_absent_claim_is_none() {
        for words in [
            "",
            "Here is what I found about the parser.",
            "The tests do not pass.",
            "Done, but 2 tests still fail.",
            "I fixed the parser. I couldn't run the tests.",
            "All tests should pass once the server runs.",
            "Let me finish this when it is done.",
            "Most of it is done. The remaining work is the docs.",
            "```\nall tests passed\n```",
            "Is it done?",
            "✅ one example\n❌ no other",
        ] {
            assert!(!claims(words), "{words}");
        }
    }

    #[test]
    fn a_claim_of_passed_tests_is_distinguished() {
        let tests = |words| SuccessClaim::find(words).is_some_and(|claim| claim.tests_passed);
        assert!(tests("All tests pass."));
        assert!(tests("The fix passes all tests."));
        assert!(!tests("Done."));
        assert!(!tests("The linter passes."));
    }
}
