//! The terminal: raw mode and the alternate screen, keys, and signals that end the view.
//!
//! Whatever ends the view restores the terminal: a key, an error, a signal or a panic. A terminal
//! that is gone ends it, too.

use std::io::{self, BufWriter, Stdout, Write};
use std::panic;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::TryRecvError;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::{Hide, Show};
use ratatui_crossterm::crossterm::event::{
    DisableMouseCapture, EnableMouseCapture, Event, KeyEventKind, MouseEventKind, poll, read,
};
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::Signal;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::draw::{ColorTheme, draw};
use super::keys::TopCommand;
use super::reader::{TopNews, TopReader};
use super::state::{TopAction, TopState};
use crate::cli::apply::{self, ApplyArgs};
use crate::cli::exit;
use crate::cli::terminal::Prompt;
use crate::name::Name;

/// Time between two looks for news, and so the time of a frame.
const FRAME: Duration = Duration::from_millis(100);
/// Size of the buffer of a screen, in bytes.
const SCREEN_SIZE: usize = 64 << 10;
/// Time for which the view may take to end after a signal.
const GRACE: Duration = Duration::from_secs(1);
const NOT_READABLE: &str = "cannot read from the terminal";
const ENDING_SIGNALS: [Signal; 3] = [Signal::TERM, Signal::HUP, Signal::INT];

/// Shows the view until it is quit.
///
/// # Errors
///
/// The terminal cannot be used, or a store cannot be read.
pub(super) fn run(
    reader: TopReader,
    theme: ColorTheme,
    has_mouse: bool,
) -> anyhow::Result<ExitCode> {
    let signals = EndingSignals::catch()?;
    let mut view = TopView {
        state: TopState::new(),
        has_workers: false,
        reader,
        theme,
        screen: Screen::enter(has_mouse).context("cannot use the terminal")?,
        shown: Buffer::default(),
        signals,
    };
    let ended = view.run();
    let TopView { signals, screen, .. } = view;
    drop(screen);
    signals.raise()?;
    ended
}

/// The terminal in the state that the view needs. Dropping it restores the terminal.
struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    has_mouse: bool,
}

impl Screen {
    fn enter(has_mouse: bool) -> io::Result<Screen> {
        let before = panic::take_hook();
        // The message of a panic must not vanish with the alternate screen.
        panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
        let backend = CrosstermBackend::new(BufWriter::with_capacity(SCREEN_SIZE, io::stdout()));
        let screen = Screen { terminal: Terminal::new(backend)?, has_mouse };
        screen.prepare()?;
        Ok(screen)
    }

    fn prepare(&self) -> io::Result<()> {
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        if self.has_mouse {
            execute!(io::stdout(), EnableMouseCapture)?;
        }
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal. One that is gone needs nothing.
fn restore() {
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), DisableMouseCapture, LeaveAlternateScreen, Show);
}

/// The signals that end the view. While a question is asked, they end the process at once.
struct EndingSignals {
    received: Arc<AtomicI32>,
    is_asking: Arc<AtomicBool>,
}

impl EndingSignals {
    fn catch() -> anyhow::Result<EndingSignals> {
        let signals = EndingSignals { received: Arc::default(), is_asking: Arc::default() };
        let (received, is_asking) = (signals.received.clone(), signals.is_asking.clone());
        let mut caught = Signals::new(ENDING_SIGNALS.map(Signal::as_raw))?;
        let watch = move || {
            for signal in caught.forever() {
                received.store(signal, Ordering::SeqCst);
                if !is_asking.load(Ordering::SeqCst) {
                    // The view ends the process, unless a terminal that is stuck holds it.
                    thread::sleep(GRACE);
                }
                let _ = emulate_default_handler(signal);
            }
        };
        let started = thread::Builder::new().name("signals".into()).spawn(watch);
        started.context("cannot start a thread")?;
        Ok(signals)
    }

    fn has_received(&self) -> bool {
        self.received.load(Ordering::SeqCst) != 0
    }

    /// Ends the process as the received signal does, if there is one.
    fn raise(&self) -> anyhow::Result<()> {
        match self.received.load(Ordering::SeqCst) {
            0 => Ok(()),
            signal => emulate_default_handler(signal).context("cannot end by a signal"),
        }
    }
}

struct TopView {
    state: TopState,
    /// True after the first list of workers.
    has_workers: bool,
    reader: TopReader,
    theme: ColorTheme,
    screen: Screen,
    /// The cells on the terminal.
    shown: Buffer,
    signals: EndingSignals,
}

impl TopView {
    fn run(&mut self) -> anyhow::Result<ExitCode> {
        loop {
            self.take_news()?;
            self.draw().context("cannot write to the terminal")?;
            if !wait_for_keys()? || self.signals.has_received() {
                return Ok(ExitCode::FAILURE);
            }
            while poll(Duration::ZERO).context(NOT_READABLE)? {
                let event = read().context(NOT_READABLE)?;
                if let Some(action) = self.handle(&event)
                    && let Some(code) = self.act(action)?
                {
                    return Ok(code);
                }
            }
        }
    }

    fn take_news(&mut self) -> anyhow::Result<()> {
        loop {
            match self.reader.news.try_recv() {
                Ok(TopNews::Workers(lines, notice)) => {
                    self.has_workers = true;
                    if let Some(action) = self.state.set_lines(lines, notice) {
                        self.act(action)?;
                    }
                }
                Ok(TopNews::Detail(request, read)) => self.state.set_detail(&request, read),
                Ok(TopNews::Failed(error)) => return Err(error),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => bail!("cannot read the store any more"),
            }
        }
        if !self.has_workers {
            self.state.reading = self.reader.progress();
        }
        Ok(())
    }

    /// Draws the state, unless the terminal shows it already.
    fn draw(&mut self) -> io::Result<()> {
        let size = self.screen.terminal.size()?;
        let mut next = Buffer::empty(Rect::new(0, 0, size.width, size.height));
        draw(&mut self.state, next.area, &mut next, self.theme, SystemTime::now());
        if next == self.shown {
            return Ok(());
        }
        self.screen.terminal.draw(|frame| {
            // A terminal that was resized meanwhile is drawn again with the next frame.
            if frame.area() == next.area {
                frame.buffer_mut().clone_from(&next);
            }
        })?;
        self.shown = next;
        Ok(())
    }

    fn handle(&mut self, event: &Event) -> Option<TopAction> {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.state.press(*key),
            Event::Mouse(mouse) => match mouse.kind {
                MouseEventKind::ScrollDown => self.state.act(TopCommand::Move(1)),
                MouseEventKind::ScrollUp => self.state.act(TopCommand::Move(-1)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Does the work for a key. Returns the exit code if it ends the view.
    fn act(&mut self, action: TopAction) -> anyhow::Result<Option<ExitCode>> {
        match action {
            TopAction::Quit => return Ok(Some(ExitCode::SUCCESS)),
            TopAction::Read(request) => self.reader.request(request),
            TopAction::Copy(path) => {
                // Cannot be lost on the way: terminals without OSC 52 ignore it, and the message
                // names the path.
                let copied = format!("\x1b]52;c;{}\x07", STANDARD.encode(&path));
                let mut out = io::stdout();
                let written = out.write_all(copied.as_bytes()).and_then(|()| out.flush());
                written.context("cannot write to the terminal")?;
            }
            TopAction::Apply(worker, store) => self.apply(worker, store)?,
        }
        Ok(None)
    }

    /// Applies the draft of a worker on the ordinary screen, where the command shows it and asks.
    fn apply(&mut self, worker: Name, store: usize) -> anyhow::Result<()> {
        let Some(path) = self.reader.selection.stores.get(store).cloned() else { return Ok(()) };
        restore();
        self.signals.is_asking.store(true, Ordering::SeqCst);
        exit::report(apply::run(&ApplyArgs::asking(worker.as_os_str().to_owned(), path)));
        let asked = Prompt::open("go back", "Enter")
            .and_then(|mut prompt| prompt.ask("Enter goes back to the workers. "));
        self.signals.is_asking.store(false, Ordering::SeqCst);
        asked?;
        self.screen.prepare().and_then(|()| self.screen.terminal.clear())?;
        self.shown = Buffer::default();
        self.reader.refresh(worker);
        Ok(())
    }
}

/// Waits for a key, at most for a frame. Returns false if the terminal is gone, whose end crossterm
/// would read again and again.
fn wait_for_keys() -> anyhow::Result<bool> {
    let stdin = rustix::stdio::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    let frame = Timespec { tv_sec: 0, tv_nsec: FRAME.subsec_nanos().into() };
    match rustix::event::poll(&mut polled, Some(&frame)) {
        Err(Errno::INTR) => return Ok(true),
        polled => drop(polled.context(NOT_READABLE)?),
    }
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    Ok(!polled.iter().any(|fd| fd.revents().intersects(gone)))
}
