//! `swarmletfs completions` and `swarmletfs man`: completion scripts of shells, and manual pages,
//! from the definition of the command line.
//!
//! A script calls the program while a line is typed, with a variable that names the shell. The
//! program may delay the shell only for a moment and prints no error.
//!
//! clap's own script for bash would insert names as they are, so that a name could hold a command.
//! Here, the program splits the line, and escapes the candidates.

mod values;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::engine::{self, CompletionCandidate};
use clap_complete::env::{Bash, CompleteEnv, EnvCompleter, Fish, Shells, Zsh};

use super::terminal::display_path;
use super::{mount_helper, pager};
use crate::name::is_unprintable;
use values::LineOptions;

const PROGRAM: &str = "swarmletfs";

const VARIABLE: &str = "SWARMLETFS_COMPLETE";

pub(super) const COMPLETIONS_HELP: &str = "\
Prints a script that completes commands, options and their values. It also completes workers, \
runs, paths of the tree and mountpoints, from the store that the command would read, within 300 ms \
or $SWARMLETFS_COMPLETION_TIME. Names with control or invisible characters are left out.

Examples:
  swarmletfs completions bash > ~/.local/share/bash-completion/completions/swarmletfs
  swarmletfs completions zsh > \"${fpath[1]}/_swarmletfs\"
  swarmletfs completions fish > ~/.config/fish/completions/swarmletfs.fish

Exit code: 0 if the script was printed, 1 if not, 2 for a usage error.";

pub(super) const MAN_HELP: &str = "\
Writes a page for each command into DIR, which is made if it is missing: swarmletfs.1, \
swarmletfs-mount.1, and so on, and mount.swarmletfs.8 about /etc/fstab. Without DIR, prints the \
page of swarmletfs itself.

Examples:
  swarmletfs man | man -l -
  swarmletfs man ~/.local/share/man/man1

Exit code: 0 if the pages were written, 1 if not, 2 for a usage error.";

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// The folder to write the pages of all commands to
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn run(arguments: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    arguments.shell.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    pager::print(&script)
}

/// Completes a line if the script of a shell runs the program. Returns `None` if not.
pub(super) fn complete(arguments: &[OsString], command: impl Fn() -> Command) -> Option<ExitCode> {
    if arguments.is_empty() {
        return None;
    }
    let shells = Shells(&[&Shell::Bash, &Shell::Zsh, &Shell::Fish]);
    let completion = CompleteEnv::with_factory(command).var(VARIABLE).shells(shells);
    let current_dir = std::env::current_dir().ok();
    match completion.try_complete(arguments, current_dir.as_deref()) {
        Ok(false) => None,
        Ok(true) => Some(ExitCode::SUCCESS),
        Err(_) => Some(ExitCode::FAILURE),
    }
}

/// Prints the manual page of `command`, or writes one page for each of its commands.
///
/// # Errors
///
/// The pages or stdout cannot be written.
pub(super) fn write_man(arguments: &ManArgs, command: Command) -> anyhow::Result<ExitCode> {
    let Some(dir) = &arguments.dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        return pager::print(&page);
    };
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(command, dir))
        .and_then(|()| mount_helper::write_man_page(dir))
        .with_context(|| format!("cannot write to {}", display_path(dir)))?;
    Ok(ExitCode::SUCCESS)
}

const BASH_SCRIPT: &str = include_str!("completions/swarmletfs.bash");

const ZSH_END: &str = include_str!("completions/swarmletfs.zsh");

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
        let mut found = engine::complete(&mut command, line.words.clone(), index, current_dir)?;
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
