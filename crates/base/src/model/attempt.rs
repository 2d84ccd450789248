//! Decides whether a later call resolves a failed one: both make the same attempt, and the later
//! one succeeds.
//!
//! Two commands make the same attempt if their first two words are equal and the operands of one
//! include the operands of the other. Other calls make the same attempt if their tools and main
//! arguments are equal. If the failed call has no main argument, any success of its tool resolves
//! it.

use std::collections::{BTreeSet, HashMap, HashSet};

use shlex::Shlex;

use super::ToolCall;

/// Maximum number of different sets of operands that are kept for one command.
const VARIANTS_MAX: usize = 50;
/// Words that end a command inside a line of commands.
const SEPARATORS: [&str; 4] = ["&&", "||", ";", "&"];

#[derive(Default)]
pub(super) struct Successes<'a> {
    /// Operands of the succeeded commands, by their first two words.
    commands: HashMap<[String; 2], Vec<BTreeSet<String>>>,
    subjects: HashSet<(&'a str, &'a str)>,
    tools: HashSet<&'a str>,
}

impl<'a> Successes<'a> {
    pub(super) fn add(&mut self, call: &'a ToolCall) {
        self.tools.insert(&call.tool);
        let Some(subject) = call.subject() else { return };
        // Equal lines need no parser, which matters for a line that begins with a comment.
        self.subjects.insert((&call.tool, subject));
        if !call.is_command {
            return;
        }
        for command in commands(subject) {
            let variants = self.commands.entry(command.name).or_default();
            if variants.len() < VARIANTS_MAX && !variants.contains(&command.operands) {
                variants.push(command.operands);
            }
        }
    }

    /// Returns true if a success of the same attempt as `failed` was added.
    pub(super) fn resolve(&self, failed: &ToolCall) -> bool {
        match failed.subject() {
            None => self.tools.contains(failed.tool.as_str()),
            Some(subject) if self.subjects.contains(&(failed.tool.as_str(), subject)) => true,
            Some(_) if !failed.is_command => false,
            // The last command decides the exit code of the line.
            Some(subject) => commands(subject).pop().is_some_and(|failed| {
                self.commands.get(&failed.name).into_iter().flatten().any(|operands| {
                    operands.is_subset(&failed.operands) || operands.is_superset(&failed.operands)
                })
            }),
        }
    }
}

struct ShellCommand {
    name: [String; 2],
    /// The words after the name that are neither an option nor follow one.
    operands: BTreeSet<String>,
}

fn commands(line: &str) -> Vec<ShellCommand> {
    split(line).into_iter().filter_map(command).collect()
}

/// Splits a line into the words of its commands. Of a pipeline only the first one counts, since the
/// others process its output.
pub(super) fn split(line: &str) -> Vec<Vec<String>> {
    let mut words = Shlex::new(line);
    let mut split: Vec<String> = words.by_ref().collect();
    if words.had_error {
        split = line.split_whitespace().map(str::to_owned).collect();
    }
    let mut found: Vec<Vec<String>> = vec![Vec::new()];
    let mut in_pipe = false;
    for word in split {
        if SEPARATORS.contains(&word.as_str()) {
            found.push(Vec::new());
            in_pipe = false;
        } else if word == "|" {
            in_pipe = true;
        } else if let Some(current) = found.last_mut().filter(|_| !in_pipe) {
            let ends = word.ends_with(';');
            current.push(word.trim_end_matches(';').to_owned());
            if ends {
                found.push(Vec::new());
            }
        } else if word.ends_with(';') {
            found.push(Vec::new());
            in_pipe = false;
        }
    }
    found.retain(|words| !words.is_empty());
    found
}

fn command(words: Vec<String>) -> Option<ShellCommand> {
    let mut words = words.into_iter().skip_while(|word| is_assignment(word)).peekable();
    let name = [words.next()?, words.next().unwrap_or_default()];
    let mut operands = BTreeSet::new();
    let mut follows_option = name.iter().any(|word| word.starts_with('-'));
    for word in words {
        let is_option = word.starts_with('-') || word.contains('>');
        if !is_option && !follows_option {
            operands.insert(word);
        }
        follows_option = is_option;
    }
    Some(ShellCommand { name, operands })
}

/// Returns true if a word sets a variable for the command that follows.
pub(super) fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;
    use crate::name::RelPath;

    fn call(input: &str, is_command: bool) -> ToolCall {
        ToolCall {
            outcome: Outcome::Ok,
            input: Some(input.into()),
            subject: 0..input.len(),
            is_command,
            ..ToolCall::new(1, "t", RelPath::root())
        }
    }

    fn resolves(later: &str, failed: &str) -> bool {
        let later = call(later, true);
        let mut successes = Successes::default();
        successes.add(&later);
        successes.resolve(&call(failed, true))
    }

    #[test]
    fn the_same_command_with_other_options_resolves_a_failure() {
        for (later, failed) in [
            ("run tests", "run tests"),
            ("run tests", "cd /a && run tests --all 2>&1 | tail -5"),
            ("A=1 run tests; echo done", "run tests -k name"),
            ("cd /b && run tests one two", "run tests one"),
            ("# a comment run tests", "# a comment run tests"),
            ("run 'tests", "run 'tests"),
        ] {
            assert!(resolves(later, failed), "{later}: {failed}");
        }
    }

    #[test]
    fn another_command_resolves_no_failure() {
        for (later, failed) in [
            ("run build", "run tests"),
            ("npm run build", "npm run tests"),
            ("ls", "cd /a && run tests"),
            ("echo run tests", "run tests"),
            ("run tests one", "run tests two"),
            ("cat a | run tests", "run tests"),
            ("# a comment", "# a comment run tests"),
            ("run", "run tests"),
        ] {
            assert!(!resolves(later, failed), "{later}: {failed}");
        }
    }

    #[test]
    fn other_calls_are_resolved_by_their_main_argument() {
        let later = call("/a", false);
        let mut successes = Successes::default();
        successes.add(&later);
        assert!(successes.resolve(&call("/a", false)));
        assert!(!successes.resolve(&call("/b", false)));
    }
}
