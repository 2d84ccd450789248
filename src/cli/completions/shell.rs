//! The protocol between a shell and the program while a line is typed.
//!
//! clap's own script for bash would insert names as they are, so that a name could hold a command.
//! Here, the program splits the line, and escapes the candidates.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use clap::Command;
use clap_complete::engine::{CompletionCandidate, complete};
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};

use super::values::{self, LineOptions};
use crate::cli::mount_helper;
use crate::name::is_unprintable;

const BASH_SCRIPT: &str = include_str!("swarmletfs.bash");

const ZSH_END: &str = include_str!("swarmletfs.zsh");

/// Characters that mean nothing to a shell within a word.
const PLAIN: &str = "/._-+:@%,=";

/// Marks the end of a line while it is split. It is a noncharacter, which no shell enters.
const MARK: &str = "\u{10ffff}";

/// A shell with completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    fn clap(self) -> &'static dyn EnvCompleter {
        match self {
            Shell::Bash => &Bash,
            Shell::Zsh => &Zsh,
            Shell::Fish => &Fish,
        }
    }

    /// Returns the line that a shell passes: the words up to the cursor. The last one is as it was
    /// typed.
    fn line(self, mut arguments: Vec<OsString>) -> Option<Line> {
        if self == Shell::Zsh {
            let index: usize = std::env::var("_CLAP_COMPLETE_INDEX").ok()?.parse().ok()?;
            arguments.truncate(index.saturating_add(1));
            // zsh does not pass a word that is still empty.
            if arguments.len() == index {
                arguments.push(OsString::new());
            }
        }
        let typed = arguments.pop()?;
        let (words, quote) = match self {
            Shell::Bash => split(arguments.first()?)?,
            Shell::Zsh => {
                arguments.push(typed.clone());
                split(&arguments.join(OsStr::new(" ")))?
            }
            Shell::Fish => {
                let (last, quote) = split(&typed)?;
                ([arguments, last].concat(), quote)
            }
        };
        Some(Line { words, typed, quote })
    }

    /// Returns a candidate in the syntax of the shell, or `None` if it cannot be written in it.
    fn written(self, candidate: &CompletionCandidate, line: &Line) -> Option<String> {
        let value = candidate.get_value().to_str().filter(|it| !it.contains(is_unprintable))?;
        let help = candidate.get_help().map(|help| help.to_string());
        let help = help.as_deref().and_then(|help| help.lines().next());
        Some(match self {
            Shell::Bash => {
                let is_beginning = candidate.get_id().is_some_and(|id| id == values::BEGINNING);
                line.bash_word(value, is_beginning)?
            }
            Shell::Zsh => {
                let value = value.replace('\\', "\\\\").replace(':', "\\:");
                help.map_or(value.clone(), |help| format!("{value}:{}", help.replace('\\', "\\\\")))
            }
            Shell::Fish => help.map_or(value.into(), |help| format!("{value}\t{help}")),
        })
    }
}

impl EnvCompleter for Shell {
    fn name(&self) -> &'static str {
        self.clap().name()
    }

    fn is(&self, name: &str) -> bool {
        self.clap().is(name)
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        script: &mut dyn Write,
    ) -> io::Result<()> {
        if *self == Shell::Bash {
            return script.write_all(BASH_SCRIPT.as_bytes());
        }
        self.clap().write_registration(var, name, bin, completer, script)?;
        if *self == Shell::Zsh { script.write_all(ZSH_END.as_bytes()) } else { Ok(()) }
    }

    fn write_complete(
        &self,
        command: &mut Command,
        arguments: Vec<OsString>,
        current_dir: Option<&Path>,
        answer: &mut dyn Write,
    ) -> io::Result<()> {
        let Some(mut line) = self.line(arguments) else { return Ok(()) };
        line.words = mount_helper::expand_short_form(line.words, command);
        let index = line.words.len().saturating_sub(1);
        let before = line.words.iter().take(index).cloned().collect();
        let options = Arc::new(LineOptions::parse(command.clone(), before));
        let mut command = values::with_completers(command.clone(), &[], &options);
        let mut found = complete(&mut command, line.words.clone(), index, current_dir)?;
        let is_option = |word: &OsStr| word.as_bytes().starts_with(b"-");
        if !line.words.last().is_some_and(|word| is_option(word)) {
            found.retain(|candidate| !is_option(candidate.get_value()));
        }
        for word in found.iter().filter_map(|candidate| self.written(candidate, &line)) {
            writeln!(answer, "{word}")?;
        }
        Ok(())
    }
}

struct Line {
    words: Vec<OsString>,
    /// The word at the cursor as it was typed. In bash, the part of it that is replaced.
    typed: OsString,
    quote: Option<char>,
}

impl Line {
    /// Returns a value, or the beginning of several, as bash inserts it. Returns `None` if it
    /// cannot be written inside the open quote.
    fn bash_word(&self, value: &str, is_beginning: bool) -> Option<String> {
        let mut value = value.get(self.kept()..)?;
        let mut word = String::new();
        if let Some(below) = value.strip_prefix('~')
            && self.typed.as_bytes().starts_with(b"~/")
        {
            (word, value) = ("~".into(), below);
        }
        let is_plain = |c: char| c.is_alphanumeric() || PLAIN.contains(c);
        match self.quote {
            None => value.chars().for_each(|c| {
                word.extend((!is_plain(c)).then_some('\\').into_iter().chain([c]));
            }),
            Some(_) if value.chars().all(|c| is_plain(c) || c == ' ') => word += value,
            Some(_) => return None,
        }
        // More may follow a folder.
        let is_whole = self.quote.is_none() && !is_beginning && !value.ends_with('/');
        Some(word + if is_whole { " " } else { "" })
    }

    /// Returns the number of bytes of the last word that bash keeps: it replaces only the text
    /// after the last `:` or `=`.
    fn kept(&self) -> usize {
        let unquoted = split(&self.typed).and_then(|(words, _)| words.into_iter().last());
        let kept = [Some(self.typed.clone()), unquoted].into_iter().flatten().find_map(|part| {
            let word = self.words.last()?.as_bytes();
            word.strip_suffix(part.as_bytes()).map(<[u8]>::len)
        });
        kept.unwrap_or(0)
    }
}

/// Splits a line of a shell into words, up to the cursor at its end. Returns the quote that is open
/// there, too. Nothing is expanded.
fn split(line: &OsStr) -> Option<(Vec<OsString>, Option<char>)> {
    [None, Some('\''), Some('"')].into_iter().find_map(|quote| {
        let mut marked = [line.as_bytes(), MARK.as_bytes()].concat();
        marked.extend(quote.map(|quote| quote as u8));
        let mut words = shlex::bytes::split(&marked)?;
        let last = words.pop()?;
        words.push(last.strip_suffix(MARK.as_bytes())?.to_vec());
        Some((words.into_iter().map(OsString::from_vec).collect(), quote))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bash(line: &str, typed: &str, value: &str) -> Option<String> {
        let line = Shell::Bash.line([line, typed].map(OsString::from).to_vec()).unwrap();
        line.bash_word(value, false)
    }

    #[test]
    fn bash_words_are_escaped() {
        assert_eq!(bash("p m", "m", "m1").as_deref(), Some("m1 "));
        assert_eq!(bash("p a", "a", "a b/").as_deref(), Some("a\\ b/"));
        assert_eq!(bash("p ", "", "$(x)`'\"!~é").as_deref(), Some("\\$\\(x\\)\\`\\'\\\"\\!\\~é "));
        assert_eq!(bash("p ", "", "~/é").as_deref(), Some("\\~/é "));
        assert_eq!(bash("p ~/", "~/", "~/a b").as_deref(), Some("~/a\\ b "));
        assert_eq!(bash("p 'a", "'a", "a b").as_deref(), Some("a b"));
        assert_eq!(bash("p 'a", "'a", "a'$(x)"), None);
    }

    #[test]
    fn bash_keeps_the_part_before_a_word_break() {
        assert_eq!(bash("p a:b", "b", "a:bc").as_deref(), Some("bc "));
        assert_eq!(bash("p a:", "", "a:bc").as_deref(), Some("bc "));
        assert_eq!(bash("p a:x\\ y", "x\\ y", "a:x yz").as_deref(), Some("x\\ yz "));
        assert_eq!(bash("p 'work a", "work a", "work ab").as_deref(), Some("work ab"));
    }

    #[test]
    fn split_keeps_an_open_quote() {
        for (line, expected, quote) in [
            ("a 'b c", &["a", "b c"][..], Some('\'')),
            ("a \"b c", &["a", "b c"], Some('"')),
            ("a b\\", &["a", "b"], None),
            ("a $(b) ", &["a", "$(b)", ""], None),
        ] {
            let expected = expected.iter().map(OsString::from).collect();
            assert_eq!(split(OsStr::new(line)), Some((expected, quote)), "{line}");
        }
    }
}
