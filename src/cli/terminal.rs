//! Messages on stderr, the option that silences those of commands that read, text that is safe to
//! print, and questions to the person at the terminal.
//!
//! Names may hold any bytes, so control characters are escaped. Paths in commands are quoted for
//! the shell, so that they can be copied.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;
use rustix::termios::tcgetwinsize;

use crate::name::printable;

/// Prints `swarmletfs: <text>` on stderr. A closed stderr is ignored.
pub(super) fn print_message(text: &str) {
    // One write, so that lines of programs that share a terminal are not mixed.
    let line = format!("swarmletfs: {text}\n");
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

pub(super) fn escape_controls(text: &str) -> String {
    printable(text.as_bytes())
}

pub(super) fn display_path(path: &Path) -> String {
    printable(path.as_os_str().as_bytes())
}

/// Returns the width of the terminal on stdout, or else 80, in columns.
pub(super) fn width() -> usize {
    let size = tcgetwinsize(rustix::stdio::stdout()).ok();
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(80)
}

/// Renders a path for a command that the reader may paste into a shell.
pub(super) fn shell_quote(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let text = display_path(path);
    if text.as_bytes() != bytes {
        // `$'…'` can express any byte, in all but the simplest shells.
        return format!("$'{}'", bytes.iter().map(|byte| ansi_c(*byte)).collect::<String>());
    }
    let is_plain = text.chars().all(|c| c.is_alphanumeric() || "/._-+:@%,=".contains(c));
    if is_plain { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

fn ansi_c(byte: u8) -> String {
    match byte {
        b'\'' | b'\\' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    }
}

/// Silences messages that only inform. Errors, warnings and answers are printed in any case.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(super) struct QuietArg {
    /// Print no messages that only inform, as the one that names the store
    #[arg(long, short)]
    quiet: bool,
}

impl QuietArg {
    /// Returns the argument of a command that decides by another option.
    pub(super) fn new(quiet: bool) -> QuietArg {
        QuietArg { quiet }
    }

    pub(super) fn is_set(self) -> bool {
        self.quiet
    }

    /// Prints a message on stderr that only informs, unless the user wants none.
    pub(super) fn inform(self, text: &str) {
        if !self.quiet {
            print_message(text);
        }
    }
}

/// The terminal of the process, wherever stdin comes from.
const TERMINAL: &str = "/dev/tty";

pub(super) struct Prompt {
    answers: Box<dyn BufRead>,
    questions: Box<dyn Write>,
}

impl Prompt {
    /// Opens stdin if it is a terminal, or else the terminal of the process.
    ///
    /// # Errors
    ///
    /// There is no terminal for a question; `action` is then not done.
    pub(super) fn open(action: &str) -> anyhow::Result<Prompt> {
        if io::stdin().is_terminal() {
            let answers = Box::new(io::stdin().lock());
            return Ok(Prompt { answers, questions: Box::new(io::stderr()) });
        }
        let opened = File::options().read(true).write(true).open(TERMINAL);
        let Some(terminal) = opened.ok().filter(|file| file.is_terminal()) else {
            bail!("cannot {action}: there is no terminal to ask on; try --yes");
        };
        let questions = Box::new(terminal.try_clone().context("cannot use the terminal")?);
        Ok(Prompt { answers: Box::new(BufReader::new(terminal)), questions })
    }

    /// Asks a question that is answered by yes or no. Anything but yes is no.
    ///
    /// # Errors
    ///
    /// The terminal cannot be read or written.
    pub(super) fn confirm(&mut self, question: &str) -> anyhow::Result<bool> {
        let answer = self.ask(&format!("{question} [y/N] "))?;
        Ok(matches!(answer.to_lowercase().as_str(), "y" | "yes"))
    }

    /// Asks a question and returns the line that answers it. The end of the input is an empty one.
    ///
    /// # Errors
    ///
    /// The terminal cannot be read or written.
    pub(super) fn ask(&mut self, question: &str) -> anyhow::Result<String> {
        let asked = write!(self.questions, "{question}").and_then(|()| self.questions.flush());
        asked.context("cannot write to the terminal")?;
        let mut line = String::new();
        self.answers.read_line(&mut line).context("cannot read from the terminal")?;
        Ok(line.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_quote_quotes_special_characters() {
        assert_eq!(shell_quote(Path::new("/mnt/swarm")), "/mnt/swarm");
        assert_eq!(shell_quote(Path::new("/mnt/a b")), "'/mnt/a b'");
        assert_eq!(shell_quote(Path::new("/mnt/it's")), r"'/mnt/it'\''s'");
        assert_eq!(shell_quote(Path::new("/mnt/\x1b'\n")), r"$'/mnt/\x1b\'\x0a'");
    }
}
