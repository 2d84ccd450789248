//! Recognizes failed calls that never did their work, and calls that were refused.

use std::sync::LazyLock;

use regex::bytes::Regex;

use crate::text::clean::one_line;

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

#[cfg(test)]
mod tests {
    use super::*;

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
