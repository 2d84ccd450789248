//! Questions to the person at the terminal.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};

use anyhow::{Context, bail};

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
