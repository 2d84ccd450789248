//! Messages on stderr, the option that silences those of commands that read, text that is safe to
//! print, questions to the person at the terminal, and progress.
//!
//! Names may hold any bytes, so control characters are escaped. Paths in commands are quoted for
//! the shell, so that they can be copied.
//!
//! While a command takes over a second, a line on stderr shows how it goes on. The line is shown
//! only on a terminal, and erased at the end or before the command prints. Ctrl-C ends the process
//! as usual.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::termios::tcgetwinsize;

use crate::name::printable;
use crate::text::count;

/// Prints `swarmletfs: <text>` on stderr. A closed stderr is ignored.
pub(super) fn print_message(text: &str) {
    // One write, so that lines of programs that share a terminal are not mixed.
    let line = format!("swarmletfs: {text}\n");
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Renders a size in at most four characters, rounded up as by ls(1): `977`, `4.0K`, `66K`.
pub(crate) fn human_size(bytes: u64) -> String {
    if bytes < 1_024 {
        return bytes.to_string();
    }
    let mut unit = 1_u128;
    let bytes = u128::from(bytes);
    for letter in ['K', 'M', 'G', 'T', 'P', 'E'] {
        unit <<= 10;
        let tenths = (bytes * 10).div_ceil(unit);
        let whole = bytes.div_ceil(unit);
        if tenths < 100 {
            return format!("{}.{}{letter}", tenths / 10, tenths % 10);
        }
        if whole < 1_024 || letter == 'E' {
            return format!("{whole}{letter}");
        }
    }
    bytes.to_string()
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

/// Returns the height of the terminal on stdout in rows, if it is one.
pub(super) fn height() -> Option<u16> {
    let size = tcgetwinsize(rustix::stdio::stdout()).ok();
    size.map(|size| size.ws_row).filter(|rows| *rows > 0)
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
    /// There is no terminal for a question; `action` is then not done, and `cure` helps.
    pub(super) fn open(action: &str, cure: &str) -> anyhow::Result<Prompt> {
        if io::stdin().is_terminal() {
            let answers = Box::new(io::stdin().lock());
            return Ok(Prompt { answers, questions: Box::new(io::stderr()) });
        }
        let opened = File::options().read(true).write(true).open(TERMINAL);
        let Some(terminal) = opened.ok().filter(|file| file.is_terminal()) else {
            bail!("cannot {action}: there is no terminal to ask on; try {cure}");
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

const DELAY: Duration = Duration::from_secs(1);

const TICK: Duration = Duration::from_millis(200);

const TEMPLATE: &str = "{spinner} {wide_msg}";

/// A progress line; dropping it erases the line.
pub(super) struct ProgressLine {
    /// Dropped to stop the thread.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLine {
    /// Shows `verb`, and the done and total numbers of workers, as `counts` returns them. The total
    /// is 0 until the workers are counted. Returns `None` if stderr is no terminal, or if the user
    /// wants no messages.
    pub(super) fn start(
        verb: &'static str,
        quiet: QuietArg,
        counts: impl Fn() -> (u64, u64) + Send + 'static,
    ) -> Option<ProgressLine> {
        let is_shown = !quiet.is_set() && io::stderr().is_terminal();
        is_shown.then(|| ProgressLine::draw(verb, counts, DELAY, ProgressDrawTarget::stderr))
    }

    /// Shows `verb` and the time for work that is not counted.
    pub(super) fn without_counts(verb: &'static str, quiet: QuietArg) -> Option<ProgressLine> {
        ProgressLine::start(verb, quiet, || (0, 0))
    }

    fn draw(
        verb: &'static str,
        counts: impl Fn() -> (u64, u64) + Send + 'static,
        delay: Duration,
        target: impl FnOnce() -> ProgressDrawTarget + Send + 'static,
    ) -> ProgressLine {
        let (running, ended) = mpsc::channel();
        let show = move || {
            let start = Instant::now();
            if is_running(&ended, delay) {
                let bar = ProgressBar::with_draw_target(None, target());
                if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
                    bar.set_style(style);
                }
                loop {
                    bar.set_message(line(verb, counts(), start.elapsed()));
                    bar.tick();
                    if !is_running(&ended, TICK) {
                        break;
                    }
                }
                bar.finish_and_clear();
            }
        };
        // If the thread cannot be started, there is no progress line.
        let thread = thread::Builder::new().name("progress".into()).spawn(show).ok();
        ProgressLine { running: Some(running), thread }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for `time`. Returns false as soon as the work has ended.
fn is_running(ended: &Receiver<()>, time: Duration) -> bool {
    ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
}

fn line(verb: &str, (done, total): (u64, u64), time: Duration) -> String {
    let seconds = time.as_secs();
    match total {
        0 => format!("{verb}, {seconds} s"),
        _ => format!("{verb}: {done} of {}, {seconds} s", count(total, "worker")),
    }
}

/// Returns a table whose columns are as wide as their longest cell.
pub(super) fn table<const N: usize>(
    heading: [String; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let lines: Vec<[String; N]> = std::iter::once(heading).chain(rows).collect();
    let mut widths = [0; N];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut out = String::new();
    for line in &lines {
        let cells = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;
    use parking_lot::{Condvar, Mutex};
    use std::sync::Arc;

    #[test]
    fn shell_quote_quotes_special_characters() {
        assert_eq!(shell_quote(Path::new("/mnt/swarm")), "/mnt/swarm");
        assert_eq!(shell_quote(Path::new("/mnt/a b")), "'/mnt/a b'");
        assert_eq!(shell_quote(Path::new("/mnt/it's")), r"'/mnt/it'\''s'");
        assert_eq!(shell_quote(Path::new("/mnt/\x1b'\n")), r"$'/mnt/\x1b\'\x0a'");
    }

    /// A terminal that stores the bytes that are written to it.
    #[derive(Debug, Default, Clone)]
    struct Screen(Arc<(Mutex<String>, Condvar)>);

    impl Screen {
        fn add(&self, text: &str) {
            self.0.0.lock().push_str(text);
            self.0.1.notify_all();
        }

        fn text(&self) -> String {
            self.0.0.lock().clone()
        }

        fn wait_for(&self, text: &str) {
            let mut shown = self.0.0.lock();
            while !shown.contains(text) {
                let late = self.0.1.wait_for(&mut shown, Duration::from_secs(60)).timed_out();
                assert!(!late, "no {text:?} in {shown:?}");
            }
        }
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            80
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.add(text);
            Ok(())
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.add(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            self.add("<clear>");
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn draw(delay: Duration, screen: &Screen) -> ProgressLine {
        let screen = screen.clone();
        ProgressLine::draw(
            "reading",
            || (12, 552),
            delay,
            move || ProgressDrawTarget::term_like(Box::new(screen)),
        )
    }

    #[test]
    fn progress_line_shows_count_and_time() {
        let time = Duration::from_millis(4_900);
        assert_eq!(line("reading", (0, 0), time), "reading, 4 s");
        assert_eq!(line("reading", (12, 552), time), "reading: 12 of 552 workers, 4 s");
    }

    #[test]
    fn progress_line_is_erased_at_the_end() {
        let screen = Screen::default();
        let progress = draw(Duration::ZERO, &screen);
        screen.wait_for("reading: 12 of 552 workers");
        drop(progress);
        assert!(screen.text().trim_end().ends_with("<clear>"), "{:?}", screen.text());
    }

    #[test]
    fn progress_line_of_short_work_is_never_shown() {
        let screen = Screen::default();
        drop(draw(Duration::from_secs(3_600), &screen));
        assert_eq!(screen.text(), "");
    }
}
