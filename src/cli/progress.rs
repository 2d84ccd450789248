//! A line on stderr that shows how a command goes on, while it takes over a second.
//!
//! It is shown only on a terminal, and erased at the end or before the command prints. Ctrl-C ends
//! the process as usual.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::terminal::QuietArg;
use crate::text::count;

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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use indicatif::TermLike;
    use parking_lot::{Condvar, Mutex};

    use super::*;

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
