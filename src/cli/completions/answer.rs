//! `swarmletfs __complete`: answers the completion script of a shell while a line is typed.
//!
//! It may delay the shell only for a moment and prints no error: if the time is over, or a store
//! cannot be read, there are no candidates. Exit code 1 leaves the word to the script itself.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Command};

use super::Shell;
use super::candidates::{self, StoreValue};
use super::cursor::{self, TypedArgument};
use crate::analysis::settings::Control;
use crate::cli::duration::parse_duration;

/// Time after which a store has no candidates.
const LIMIT: Duration = Duration::from_millis(300);

/// Variable that sets another time limit.
const LIMIT_VARIABLE: &str = "SWARMLETFS_COMPLETION_TIME";

/// Characters that mean nothing to a shell within a word.
const PLAIN: &str = "/._-+:@%,=";

/// Arguments of `__complete`.
#[derive(Debug, Args)]
pub(in crate::cli) struct CompleteArgs {
    /// The shell of the script
    #[arg(value_enum)]
    shell: Shell,

    /// For bash, the line up to the cursor, and the part of the last word that is replaced; for
    /// nushell, the line; for the others, the words, of which the last one is quoted as typed
    #[arg(last = true)]
    line: Vec<OsString>,
}

/// Prints the candidates for the word at the cursor.
pub(in crate::cli) fn complete(arguments: &CompleteArgs, command: Command) -> ExitCode {
    let Some((words, quote)) = words(arguments) else { return ExitCode::FAILURE };
    let Some(cursor) = TypedArgument::parse(command, words) else { return ExitCode::FAILURE };
    let replaced = replaced_part(arguments, &cursor.typed);
    let found = within_limit(cursor);
    let lines = found.iter().filter_map(|candidate| match arguments.shell {
        Shell::Bash => bash_line(candidate, replaced, quote),
        Shell::Zsh => {
            Some(format!("{}{}", if candidate.is_whole { '=' } else { '+' }, candidate.value))
        }
        Shell::Fish => Some(candidate.value.clone()),
        // It inserts words as they are, and only if they begin as what was typed.
        Shell::Nushell => Some(candidate.value.clone()).filter(|value| value.chars().all(is_plain)),
    });
    let text: String = lines.map(|line| line + "\n").collect();
    // The script may be gone.
    let _ = io::stdout().lock().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Returns the words up to the cursor, and the quote that is open there.
fn words(arguments: &CompleteArgs) -> Option<(Vec<OsString>, Option<char>)> {
    match (arguments.shell, arguments.line.as_slice()) {
        (Shell::Bash | Shell::Nushell, [line, ..]) => cursor::split(line),
        (Shell::Zsh | Shell::Fish, [words @ .., last]) => {
            let (last, quote) = cursor::split(last)?;
            Some(([words, &last].concat(), quote))
        }
        (_, []) => None,
    }
}

/// Returns the number of bytes of a typed value that bash keeps: it replaces only what follows the
/// last `:` or `=`.
fn replaced_part(arguments: &CompleteArgs, typed: &str) -> usize {
    let (Shell::Bash, [_, part]) = (arguments.shell, arguments.line.as_slice()) else { return 0 };
    let unquoted = cursor::split(part).and_then(|(words, _)| words.into_iter().last());
    let parts = [Some(part.clone()), unquoted];
    let kept = parts.iter().flatten().find_map(|part: &OsString| {
        typed.as_bytes().strip_suffix(part.as_bytes()).map(<[u8]>::len)
    });
    kept.unwrap_or(0)
}

/// Returns the candidates, or none if they are not found in time.
fn within_limit(argument: TypedArgument) -> Vec<StoreValue> {
    let limit = std::env::var(LIMIT_VARIABLE).ok().and_then(|time| parse_duration(&time).ok());
    let limit = limit.unwrap_or(LIMIT);
    let (sender, found) = mpsc::channel();
    // A store may not answer at all. Then the thread ends with the process.
    let spawned = thread::Builder::new().name("complete".into()).spawn(move || {
        let control = Arc::new(Control::until(Instant::now().checked_add(limit)));
        let found = candidates::find(&argument, control.clone()).unwrap_or_default();
        // What renders leave out for lack of time may be missing.
        let _ = sender.send(if control.may_continue() { found } else { Vec::new() });
    });
    spawned.ok().and_then(|_| found.recv_timeout(limit).ok()).unwrap_or_default()
}

/// Returns true if a character means itself in a word of any shell.
fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || PLAIN.contains(c)
}

/// Returns a character after the backslash that it may need.
fn escaped(c: char) -> impl Iterator<Item = char> {
    (!is_plain(c)).then_some('\\').into_iter().chain([c])
}

/// Returns a candidate as bash inserts it, without the first `kept` bytes. Returns `None` if it
/// cannot be written inside the open quote.
fn bash_line(candidate: &StoreValue, kept: usize, quote: Option<char>) -> Option<String> {
    let value = candidate.value.get(kept..)?;
    let word: String = match quote {
        None => value.chars().flat_map(escaped).collect(),
        Some(_) if value.chars().all(|c| is_plain(c) || c == ' ') => value.to_owned(),
        Some(_) => return None,
    };
    let space = if candidate.is_whole && quote.is_none() { " " } else { "" };
    Some(format!("{word}{space}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bash(value: &str, kept: usize, quote: Option<char>) -> Option<String> {
        bash_line(&StoreValue { value: value.into(), is_whole: true }, kept, quote)
    }

    #[test]
    fn bash_words_are_escaped() {
        assert_eq!(bash("m1", 0, None).as_deref(), Some("m1 "));
        assert_eq!(bash("a b", 0, None).as_deref(), Some("a\\ b "));
        assert_eq!(bash("$(x)`'\"!~é", 0, None).as_deref(), Some("\\$\\(x\\)\\`\\'\\\"\\!\\~é "));
        assert_eq!(bash("a:bc", 2, None).as_deref(), Some("bc "));
        assert_eq!(bash("a b", 0, Some('\'')).as_deref(), Some("a b"));
        assert_eq!(bash("a'$(x)", 0, Some('\'')), None);
    }

    #[test]
    fn bash_keeps_the_part_before_a_word_break() {
        let kept = |part: &str, typed: &str| {
            let line = ["line", part].map(OsString::from).to_vec();
            replaced_part(&CompleteArgs { shell: Shell::Bash, line }, typed)
        };
        assert_eq!(kept("b", "a:b"), 2);
        assert_eq!(kept("", "a:"), 2);
        assert_eq!(kept("work a", "work a"), 0);
        assert_eq!(kept("x\\ y", "a:x y"), 2);
        assert_eq!(kept("other", "a:b"), 0);
    }
}
