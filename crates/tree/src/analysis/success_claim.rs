//! Recognizes claims of success in a worker's final words, and the calls that contradict them.
//!
//! Only general words count; no rule names a tool. Text that admits a failure claims nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;
use unicode_segmentation::UnicodeSegmentation;

use crate::search::ranked::WordStemmer;
use swarmletfs_base::model::{AccessKind, Outcome, ToolCall, Trace};

/// Maximum length of final words that is parsed, in bytes.
const WORDS_MAX: usize = 64 << 10;
/// Number of words at the start of a command that name its action.
const COMMAND_WORDS: usize = 4;
/// Minimum length of a word that a claim and a command share, in bytes.
const SHARED_MIN: usize = 4;
/// Ends of the stems of words for a check, such as `pytest`, `linting` and `rebuild`.
const CHECKS: [&str; 5] = ["test", "check", "lint", "build", "verifi"];
/// A frequent word that ends like a check but is not one.
const LATEST: &str = "latest";

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
    \btests?\b .{0,40} \b(?: pass(?:es|ed|ing)? | green | succeed(?:s|ed)? )\b
    | \b(?: pass(?:es|ed)? | green )\b .{0,20} \btests?\b";

struct Patterns {
    success: Regex,
    no_failure: Regex,
    hedge: Regex,
    admission: Regex,
    tests_passed: Regex,
}

static PATTERNS: LazyLock<Option<Patterns>> = LazyLock::new(|| {
    Some(Patterns {
        success: Regex::new(SUCCESS).ok()?,
        no_failure: Regex::new(NO_FAILURE).ok()?,
        hedge: Regex::new(HEDGE).ok()?,
        admission: Regex::new(ADMISSION).ok()?,
        tests_passed: Regex::new(TESTS_PASSED).ok()?,
    })
});

pub(super) struct SuccessClaim {
    stems: BTreeSet<String>,
    pub(super) tests_passed: bool,
}

impl SuccessClaim {
    /// Returns the claim that `words` make, or `None` if they claim no success or admit a failure.
    pub(super) fn find(words: &str) -> Option<SuccessClaim> {
        let patterns = PATTERNS.as_ref()?;
        let prose = prose(words.get(..words.floor_char_boundary(WORDS_MAX))?);
        let prose = patterns.no_failure.replace_all(&prose, "");
        if patterns.admission.is_match(&prose) {
            return None;
        }
        let stemmer = WordStemmer::default();
        let mut claim = SuccessClaim { stems: BTreeSet::new(), tests_passed: false };
        let mut is_claimed = false;
        let marks_count = !prose.contains(FAILURE_MARKS);
        for sentence in prose.lines().flat_map(str::unicode_sentences) {
            let is_marked = sentence.contains(SUCCESS_MARKS);
            let is_success = patterns.success.is_match(sentence) || is_marked && marks_count;
            let is_qualified =
                patterns.hedge.is_match(sentence) || sentence.contains(FAILURE_MARKS);
            if !is_success || is_qualified {
                continue;
            }
            is_claimed = true;
            claim.tests_passed |= patterns.tests_passed.is_match(sentence);
            claim.stems.extend(stemmer.stem_text(sentence));
        }
        is_claimed.then_some(claim)
    }

    /// Returns the calls that contradict the claim, in order: they failed or look failed, are about
    /// something that the claim covers, and nothing shows that it succeeded later.
    ///
    /// The claim covers changes of files, commands that check something, and commands about its own
    /// words. A failed look at something, such as a read of an absent file, contradicts nothing.
    pub(super) fn contradictions<'a>(&self, trace: &'a Trace) -> Vec<&'a ToolCall> {
        let editors: BTreeSet<&str> = trace
            .calls
            .iter()
            .filter(|call| call.files.iter().any(|file| file.kind != AccessKind::Read))
            .map(|call| call.tool.as_str())
            .collect();
        let stemmer = WordStemmer::default();
        let mut last_success: BTreeMap<&str, u64> = BTreeMap::new();
        for call in trace.calls.iter().filter(|call| call.outcome == Outcome::Ok) {
            if call.suspect.is_none() {
                let kinds = check_kinds(&call.commands(), &stemmer);
                last_success.extend(kinds.into_iter().map(|kind| (kind, call.seq)));
            }
        }
        let mut calls = trace.unresolved().into_calls();
        calls.retain(|call| {
            if !call.is_command {
                return editors.contains(call.tool.as_str());
            }
            // The last command decides whether the line fails.
            let mut commands = call.commands();
            let last = commands.split_off(commands.len().saturating_sub(1));
            let kinds = check_kinds(&last, &stemmer);
            if kinds.is_empty() {
                return self.covers(&last, &stemmer);
            }
            kinds.iter().any(|kind| last_success.get(kind).is_none_or(|last| *last < call.seq))
        });
        calls
    }

    /// Returns true if the claim covers the actions of `commands`.
    fn covers(&self, commands: &[Vec<String>], stemmer: &WordStemmer) -> bool {
        commands.iter().flat_map(|words| first_words(words)).any(|word| {
            word.len() >= SHARED_MIN && self.stems.contains(&*stemmer.stem(&word.to_lowercase()))
        })
    }
}

/// Returns true if `text` holds a general word for a check, in any form.
pub(super) fn mentions_check(text: &str) -> bool {
    let text = text.to_lowercase();
    CHECKS.iter().any(|check| text.contains(check.trim_end_matches('i')))
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

/// Returns the words at the start of a command that name its action, without options. A path counts
/// only in the place of the program or its script, by its last name.
fn first_words(words: &[String]) -> impl Iterator<Item = &str> {
    let words = words.iter().map(String::as_str).filter(|word| !word.starts_with('-'));
    words.take(COMMAND_WORDS).enumerate().filter_map(|(at, word)| {
        let is_path = word.contains(['/', '.']);
        // A project's own script is run by a relative path.
        let is_value = word.contains(['=', '$'])
            || word.contains(char::is_whitespace)
            || word.starts_with('/');
        let name = word.rsplit('/').next().filter(|_| !is_value)?;
        // A second word without an extension is more often a directory than a script.
        let is_named = match at {
            0 => true,
            1 => !is_path || name.contains('.'),
            _ => !is_path,
        };
        is_named.then_some(name)
    })
}

fn check_kinds(commands: &[Vec<String>], stemmer: &WordStemmer) -> BTreeSet<&'static str> {
    let words = commands.iter().flat_map(|words| first_words(words));
    let parts = words.flat_map(|word| word.split(|c: char| !c.is_alphanumeric()));
    let parts: Vec<String> = parts.map(|part| part.to_lowercase()).collect();
    let stems = parts.iter().filter(|part| *part != LATEST).map(|part| stemmer.stem(part));
    stems.filter_map(|stem| CHECKS.into_iter().find(|check| stem.ends_with(check))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(words: &str) -> bool {
        SuccessClaim::find(words).is_some()
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
