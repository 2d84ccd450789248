//! The event loop of one command.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::Signal;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal as RawSignal, WaitOptions, WaitStatus, kill_process};

use super::descendants::{Descendants, names};
use super::spawn::{ChildStreams, ReceivedSignal, SignalQueue, spawn};
use super::streams::{
    OutputSource, OutputTarget, Pty, ReadProgress, Recording, StandardStream, TerminalInput,
    is_input_ready,
};
use super::{CANNOT_RUN, CommandSpec, Ended, NOT_FOUND, Sink, StreamMode, TIMED_OUT};
use crate::cli::terminal::escape_controls;
use swarmletfs_base::split::Split;

const BUFFER_SIZE: usize = 256 << 10;

/// Time from SIGTERM to SIGKILL after the time limit.
const GRACE: Duration = Duration::from_secs(5);

/// Time from the first SIGKILL until processes count as impossible to end, such as one that waits
/// for a dead disk.
const KILL_LIMIT: Duration = Duration::from_secs(5);

const KILL_INTERVAL: Duration = Duration::from_millis(20);

/// Time after the end of the command until a hint names the processes that hold its output open.
const HOLDERS_HINT: Duration = Duration::from_secs(2);

/// Maximum time to read the output that is left after a stop. A process that writes without a pause
/// would be read forever.
const STOP_LIMIT: Duration = Duration::from_secs(1);

/// Maximum time of one wait. Older kernels take no longer time than 24 days.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

const EVENTS_MAX: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventToken {
    Signals,
    Stdout,
    Stderr,
    Stdin,
    Master,
    Source(usize),
}

impl EventToken {
    fn data(self) -> EventData {
        EventData::new_u64(match self {
            EventToken::Signals => 0,
            EventToken::Stdout => 1,
            EventToken::Stderr => 2,
            EventToken::Stdin => 3,
            EventToken::Master => 4,
            EventToken::Source(index) => 5 + index as u64,
        })
    }

    fn from_data(data: EventData) -> EventToken {
        match data.u64() {
            0 => EventToken::Signals,
            1 => EventToken::Stdout,
            2 => EventToken::Stderr,
            3 => EventToken::Stdin,
            4 => EventToken::Master,
            number => EventToken::Source(usize::try_from(number - 5).unwrap_or(usize::MAX)),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum TimeLimitPhase {
    None,
    /// Nothing has happened yet.
    Running(Instant),
    /// All processes received SIGTERM. At this time, the remaining ones receive SIGKILL.
    Terminating(Instant),
    /// All processes receive SIGKILL, the next time at `next`.
    Killing {
        next: Instant,
        give_up: Instant,
    },
    /// All processes have ended. A reader that pauses has time until then.
    Draining(Instant),
    /// Processes that have not ended are given up.
    Over,
}

/// The end of the command itself, without the processes that it started.
struct CommandEnd {
    status: WaitStatus,
    at: Instant,
}

struct CommandSession<'a> {
    epoll: OwnedFd,
    signals: SignalQueue,
    descendants: Descendants,
    recording: Recording<'a>,
    stdout: StandardStream,
    stderr: StandardStream,
    sources: Vec<Option<OutputSource>>,
    /// Sources to read, in the order of their events.
    ready: VecDeque<usize>,
    buffer: Vec<u8>,
    has_session: bool,
    input: Option<TerminalInput>,
    polls_stdin: bool,
    child: Pid,
    command_end: Option<CommandEnd>,
    limit: TimeLimitPhase,
    /// Time of the hint about processes that hold the output open.
    hint_at: Option<Instant>,
    /// True if only the present output is read, without waiting for its end.
    stops: bool,
    /// Time when reading ends, even if there is more.
    stop_at: Option<Instant>,
    /// False if a reader that pauses is given up.
    waits_for_readers: bool,
    /// Processes that could not be ended, for a message.
    left: String,
    lost_output: bool,
}

pub(super) fn run(spec: &CommandSpec, sink: &mut dyn Sink) -> anyhow::Result<Ended> {
    let mut recording = Recording::new(sink, spec.max_bytes);
    let mut stderr = StandardStream::new(rustix::stdio::stderr());
    let signals = SignalQueue::new(spec.streams != StreamMode::Recorded)?;
    let descendants = Descendants::new().context("cannot follow the processes of the command")?;
    let epoll = epoll::create(CreateFlags::CLOEXEC).context("cannot wait for output")?;

    let Streams { sources, stdout, child: streams, input, slave } = Streams::open(spec.streams)?;
    let stdout = StandardStream::new(stdout);
    // Before the command starts, so that an error leaves none behind.
    register(&epoll, &signals, &sources, input.as_ref()).context("cannot wait for output")?;
    let started = Instant::now();
    let child = match spawn(spec, &streams, &signals.original_mask) {
        Ok(child) => child,
        Err(error) => {
            drop(input);
            let message = format!("swarmletfs: {}", describe_spawn_error(spec, &error));
            recording.write_line(&message);
            print(&mut stderr, &message);
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            return Ok(Ended {
                exit_code: if is_missing { NOT_FOUND } else { CANNOT_RUN },
                signal: None,
                timed_out: false,
                spawn_error: Some(error),
                duration: started.elapsed(),
                lost_output: false,
                sink_error: recording.into_error(),
            });
        }
    };
    // Only the command holds the write ends now, so that their end can be seen.
    drop(streams);
    drop(slave);

    let deadline = spec.timeout.and_then(|timeout| started.checked_add(timeout));
    let mut session = CommandSession {
        epoll,
        signals,
        descendants,
        recording,
        stdout,
        stderr,
        ready: VecDeque::new(),
        sources: sources.into_iter().map(Some).collect(),
        buffer: vec![0; BUFFER_SIZE],
        has_session: spec.streams != StreamMode::Recorded,
        input,
        polls_stdin: false,
        child,
        command_end: None,
        limit: deadline.map_or(TimeLimitPhase::None, TimeLimitPhase::Running),
        hint_at: None,
        stops: false,
        stop_at: None,
        waits_for_readers: true,
        left: String::new(),
        lost_output: false,
    };
    session.run(spec)?;
    Ok(session.finish(spec, started))
}

/// Registers the descriptors that the session polls from its start.
///
/// # Errors
///
/// Fails if the user has too many descriptors in epoll, or no memory is left.
fn register(
    epoll: &OwnedFd,
    signals: &SignalQueue,
    sources: &[OutputSource],
    input: Option<&TerminalInput>,
) -> io::Result<()> {
    epoll::add(epoll, signals.as_fd(), EventToken::Signals.data(), EventFlags::IN)?;
    for (index, source) in sources.iter().enumerate() {
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(epoll, source, EventToken::Source(index).data(), flags)?;
    }
    if let Some(input) = input {
        let flags = EventFlags::OUT | EventFlags::ET;
        epoll::add(epoll, input, EventToken::Master.data(), flags)?;
    }
    Ok(())
}

/// Both ends of the pipes or of the terminal that the command writes to.
struct Streams {
    sources: Vec<OutputSource>,
    /// Receives the output of the sources that are for stdout.
    stdout: BorrowedFd<'static>,
    child: ChildStreams,
    /// Set for a terminal.
    input: Option<TerminalInput>,
    /// Keeps a terminal open until the command has it.
    slave: Option<OwnedFd>,
}

impl Streams {
    /// Creates the pipes or the terminal for the command.
    ///
    /// # Errors
    ///
    /// Fails if no descriptor or no terminal is left.
    fn open(mode: StreamMode) -> anyhow::Result<Streams> {
        let stdout = rustix::stdio::stdout();
        if mode == StreamMode::Recorded {
            let (sources, child) = open_pipes().context("cannot create a pipe for the output")?;
            return Ok(Streams { sources, stdout, child, input: None, slave: None });
        }
        let pty = Pty::open(mode).context("cannot open a terminal for the command")?;
        let Some(pty) = pty else {
            let child = ChildStreams::Session { terminal: None, replaced: Vec::new() };
            return Ok(Streams { sources: Vec::new(), stdout, child, input: None, slave: None });
        };
        let replaced: Vec<i32> = pty.replaced.iter().map(AsRawFd::as_raw_fd).collect();
        // The output of a terminal goes to a terminal, to stdin if there is no other.
        let streams = [stdout, rustix::stdio::stderr(), rustix::stdio::stdin()];
        let shown = streams.into_iter().find(|fd| replaced.contains(&fd.as_raw_fd()));
        Ok(Streams {
            sources: vec![OutputSource::terminal(pty.master)?],
            stdout: shown.unwrap_or(stdout),
            child: ChildStreams::Session { terminal: Some(pty.slave_path), replaced },
            input: Some(pty.input),
            slave: Some(pty.slave),
        })
    }
}

/// Creates one pipe if our stdout and stderr are the same file, else two.
fn open_pipes() -> io::Result<(Vec<OutputSource>, ChildStreams)> {
    if is_same_file(rustix::stdio::stdout(), rustix::stdio::stderr()) {
        let (source, stdout) = OutputSource::shared_pipe()?;
        let stderr = stdout.try_clone()?;
        return Ok((vec![source], ChildStreams::Pipes { stdout, stderr }));
    }
    let (out, stdout) = OutputSource::packet_pipe(OutputTarget::Stdout)?;
    let (err, stderr) = OutputSource::packet_pipe(OutputTarget::Stderr)?;
    Ok((vec![out, err], ChildStreams::Pipes { stdout, stderr }))
}

fn is_same_file(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    match (rustix::fs::fstat(a), rustix::fs::fstat(b)) {
        (Ok(a), Ok(b)) => (a.st_dev, a.st_ino, a.st_rdev) == (b.st_dev, b.st_ino, b.st_rdev),
        _ => false,
    }
}

fn describe_spawn_error(spec: &CommandSpec, error: &io::Error) -> String {
    let program = spec.command.first().map(|program| program.to_string_lossy());
    let program = escape_controls(&program.unwrap_or_default());
    let is_path = program.contains('/');
    match error.kind() {
        io::ErrorKind::NotFound if is_path => format!(
            "cannot run {program}: the file or its interpreter does not exist; check the path \
             and the first line of a script"
        ),
        io::ErrorKind::NotFound => {
            format!(
                "cannot run {program}: no such command in $PATH; check the name, or give a path"
            )
        }
        io::ErrorKind::PermissionDenied => format!(
            "cannot run {program}: permission denied; try `chmod +x`, or name its interpreter"
        ),
        _ => format!("cannot run {program}: {error}"),
    }
}

/// Prints a line on stderr, unless it is closed.
fn print(stderr: &mut StandardStream, line: &str) {
    // There is no other place for a message about stderr.
    let _ = stderr.write(format!("{line}\n").as_bytes());
}

impl CommandSession<'_> {
    /// Runs until the command has ended and its output was read, or until both are given up.
    fn run(&mut self, spec: &CommandSpec) -> anyhow::Result<()> {
        loop {
            self.read_ready()?;
            self.poll_stdin();
            // A command that cannot be ended is given up with its time limit.
            let is_over = self.command_end.is_some() || matches!(self.limit, TimeLimitPhase::Over);
            if is_over && !self.has_sources() && !self.is_stalled() {
                return Ok(());
            }
            let has_work = !self.ready.is_empty() && !self.is_stalled();
            let event_count = self.wait(has_work || (self.stops && !self.is_stalled()))?;
            self.check_time(spec);
            let is_late = self.stop_at.is_some_and(|at| at <= Instant::now());
            if is_late || (self.stops && event_count == 0 && self.ready.is_empty()) {
                self.sources.clear();
            }
        }
    }

    /// Returns true if output waits for room in our stdout or stderr.
    fn is_stalled(&self) -> bool {
        self.stdout.is_stalled() || self.stderr.is_stalled()
    }

    fn has_sources(&self) -> bool {
        self.sources.iter().any(Option::is_some)
    }

    fn wait(&mut self, has_work: bool) -> anyhow::Result<usize> {
        let timeout = if has_work { Duration::ZERO } else { self.time_to_next_deadline() };
        let timeout = Timespec::try_from(timeout).context("cannot wait for output")?;
        let mut events = Vec::with_capacity(EVENTS_MAX);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for output"),
        }
        for event in &events {
            self.handle(EventToken::from_data(event.data), event.flags);
        }
        Ok(events.len())
    }

    /// Returns the time until the next deadline, which no event reports.
    fn time_to_next_deadline(&self) -> Duration {
        let limit = match self.limit {
            TimeLimitPhase::Running(at)
            | TimeLimitPhase::Terminating(at)
            | TimeLimitPhase::Draining(at) => Some(at),
            TimeLimitPhase::Killing { next, .. } => Some(next),
            TimeLimitPhase::None | TimeLimitPhase::Over => None,
        };
        // The hint is not printed while output waits for room; then the room is an event.
        let hint = self.hint_at.filter(|_| !self.is_stalled());
        let next = limit.into_iter().chain(hint).min();
        let wait = next.map_or(WAIT_MAX, |at| at.saturating_duration_since(Instant::now()));
        // Whole milliseconds are waited for, so a rest is rounded up.
        wait.min(WAIT_MAX) + Duration::from_millis(1)
    }

    fn handle(&mut self, token: EventToken, flags: EventFlags) {
        match token {
            EventToken::Signals => {
                while let Some(received) = self.signals.next() {
                    self.receive(received);
                }
            }
            EventToken::Stdout => self.flush(OutputTarget::Stdout),
            EventToken::Stderr => self.flush(OutputTarget::Stderr),
            EventToken::Stdin => self.read_stdin(),
            EventToken::Master => self.input.iter_mut().for_each(TerminalInput::flush),
            EventToken::Source(index) => {
                if let Some(Some(source)) = self.sources.get_mut(index) {
                    source.is_hung_up |= flags.contains(EventFlags::HUP);
                    if !self.ready.contains(&index) {
                        self.ready.push_back(index);
                    }
                }
            }
        }
    }

    /// Reads each source that is ready once, in order, until our stdout or stderr has no room.
    fn read_ready(&mut self) -> anyhow::Result<()> {
        for _ in 0..self.ready.len() {
            if self.is_stalled() {
                break;
            }
            let Some(index) = self.ready.pop_front() else { break };
            self.read_source(index)?;
        }
        Ok(())
    }

    fn read_source(&mut self, index: usize) -> anyhow::Result<()> {
        let mut available = 0;
        if let Some(Some(source)) = self.sources.get(index)
            && source.is_bulk()
        {
            available = source.available();
            // Before the source is taken, so that it gets an event about its own end.
            self.wait(true)?;
        }
        let mut slot = self.sources.get_mut(index).and_then(Option::take);
        let Some(source) = &mut slot else { return Ok(()) };
        let is_other_ready = self.ready.iter().any(|other| *other != index);
        let mut buffer = std::mem::take(&mut self.buffer);
        let progress = source.read(&mut buffer, available, is_other_ready);
        let target = source.target;
        let count = match progress {
            ReadProgress::Read(count)
            | ReadProgress::MayHaveMore(count)
            | ReadProgress::MustReadOn(count) => count,
            ReadProgress::End => 0,
        };
        let (bytes, _) = buffer.split_at_known(count);
        if count > 0 {
            self.sources.iter_mut().flatten().for_each(OutputSource::interrupt);
            self.recording.write(bytes);
        }
        if progress != ReadProgress::End && self.write(target, bytes) {
            if let Some(place) = self.sources.get_mut(index) {
                *place = slot;
            }
            if !matches!(progress, ReadProgress::Read(_)) {
                // An event may have added it meanwhile.
                self.ready.retain(|ready| *ready != index);
            }
            match progress {
                ReadProgress::MustReadOn(_) => self.ready.push_front(index),
                ReadProgress::MayHaveMore(_) => self.ready.push_back(index),
                ReadProgress::Read(_) | ReadProgress::End => {}
            }
        } else if !self.has_sources() {
            // A terminal is closed with its last descriptor.
            self.input = None;
        }
        self.buffer = buffer;
        Ok(())
    }

    /// Writes to our stdout or stderr. Returns false if nobody reads it any longer.
    fn write(&mut self, target: OutputTarget, bytes: &[u8]) -> bool {
        let stream = match target {
            OutputTarget::Stdout => &mut self.stdout,
            OutputTarget::Stderr => &mut self.stderr,
        };
        let result = stream.write(bytes);
        if stream.is_stalled() {
            if self.waits_for_readers {
                self.poll_stream(target);
            } else {
                stream.close();
            }
        }
        self.check_write(target, result)
    }

    fn flush(&mut self, target: OutputTarget) {
        let stream = match target {
            OutputTarget::Stdout => &mut self.stdout,
            OutputTarget::Stderr => &mut self.stderr,
        };
        let result = stream.flush();
        if !stream.is_stalled() {
            // It was added when it stalled.
            let _ = epoll::delete(&self.epoll, stream.fd);
        }
        if !self.check_write(target, result) {
            self.close_sources_of(target);
        }
    }

    fn poll_stream(&mut self, target: OutputTarget) {
        let (stream, token) = match target {
            OutputTarget::Stdout => (&mut self.stdout, EventToken::Stdout),
            OutputTarget::Stderr => (&mut self.stderr, EventToken::Stderr),
        };
        match epoll::add(&self.epoll, stream.fd, token.data(), EventFlags::OUT) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(_) => {
                stream.set_blocking();
                let result = stream.flush();
                if !self.check_write(target, result) {
                    self.close_sources_of(target);
                }
            }
        }
    }

    /// Returns false if nobody reads a stream any longer. Reports any other error of a write; the
    /// recording goes on.
    fn check_write(&mut self, target: OutputTarget, result: io::Result<()>) -> bool {
        let Err(error) = result else { return true };
        if error.kind() == io::ErrorKind::BrokenPipe {
            return false;
        }
        self.lost_output = true;
        let name = if target == OutputTarget::Stdout { "stdout" } else { "stderr" };
        let message = format!("cannot write to {name}: {error}; the command is still recorded");
        print(&mut self.stderr, &format!("swarmletfs: {message}"));
        true
    }

    /// Closes the pipe behind a stream that nobody reads, so that SIGPIPE ends the command as it
    /// would without us.
    fn close_sources_of(&mut self, target: OutputTarget) {
        for source in &mut self.sources {
            source.take_if(|source| source.target == target);
        }
        if !self.has_sources() {
            self.input = None;
        }
    }

    /// Polls stdin while the terminal of the command has room.
    fn poll_stdin(&mut self) {
        let wants_input = self.input.as_ref().is_some_and(TerminalInput::wants_input);
        if wants_input == self.polls_stdin {
            return;
        }
        let stdin = rustix::stdio::stdin();
        if !wants_input {
            self.polls_stdin = false;
            let _ = epoll::delete(&self.epoll, stdin);
            return;
        }
        match epoll::add(&self.epoll, stdin, EventToken::Stdin.data(), EventFlags::IN) {
            Ok(()) => self.polls_stdin = true,
            // A file cannot be polled and is always ready. It is read until the terminal is full;
            // then the event of the master continues.
            Err(_) => {
                while let Some(input) = self.input.as_mut().filter(|input| input.wants_input()) {
                    input.read(self.child);
                }
            }
        }
    }

    fn read_stdin(&mut self) {
        // Another reader of stdin may have been faster.
        if let Some(input) = self.input.as_mut().filter(|input| input.wants_input())
            && is_input_ready()
        {
            input.read(self.child);
        }
    }

    fn receive(&mut self, received: ReceivedSignal) {
        match received.signal {
            Signal::SIGCHLD => self.reap(),
            Signal::SIGWINCH => self.input.iter().for_each(TerminalInput::copy_size),
            Signal::SIGCONT => self.input.iter().for_each(TerminalInput::resume),
            signal if self.command_end.is_none() => {
                // In a session of its own, the command is in another process group.
                if !received.is_from_kernel || self.has_session {
                    self.send(signal);
                }
            }
            Signal::SIGUSR1 | Signal::SIGUSR2 => {}
            // There is no command to pass it to. Processes that still write are not waited for.
            _ => self.stop(),
        }
    }

    /// Sends a signal to the command, which has not been waited for, so that its id is its own.
    fn send(&self, signal: Signal) {
        if let Some(signal) = RawSignal::from_named_raw(signal as i32) {
            // Not permitted for a program with the rights of another user.
            let _ = kill_process(self.child, signal);
        }
    }

    /// Waits for all children that have ended, including adopted ones.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.descendants.forget(pid);
            if pid == self.child {
                let at = Instant::now();
                self.command_end = Some(CommandEnd { status, at });
                self.hint_at = at.checked_add(HOLDERS_HINT);
                if self.has_session {
                    // Its terminal ends with it, also for processes in the background. Everything
                    // that it wrote can be read now.
                    self.stop_reading();
                }
            }
        }
        if matches!(self.limit, TimeLimitPhase::Terminating(_) | TimeLimitPhase::Killing { .. })
            && self.command_end.is_some()
            && self.descendants.list().is_ok_and(|left| left.is_empty())
        {
            self.limit = TimeLimitPhase::Draining(Instant::now() + GRACE);
        }
    }

    /// Stops waiting for more output than is there.
    fn stop_reading(&mut self) {
        self.stops = true;
        self.ready.extend(0..self.sources.len());
    }

    /// Stops waiting for more output than is there, and for a reader that pauses. Ends reading
    /// after [`STOP_LIMIT`].
    fn stop(&mut self) {
        self.stop_reading();
        self.stop_at.get_or_insert_with(|| Instant::now() + STOP_LIMIT);
        self.close_stalled();
    }

    /// Gives up a reader that pauses.
    fn close_stalled(&mut self) {
        self.waits_for_readers = false;
        for stream in [&mut self.stdout, &mut self.stderr] {
            if stream.is_stalled() {
                stream.close();
                let _ = epoll::delete(&self.epoll, stream.fd);
            }
        }
    }

    /// Acts on the deadlines that have passed.
    fn check_time(&mut self, spec: &CommandSpec) {
        let now = Instant::now();
        if self.hint_at.is_some_and(|at| at <= now) && !self.is_stalled() {
            self.hint_at = None;
            if !spec.quiet {
                self.print_holders();
            }
        }
        match self.limit {
            TimeLimitPhase::Running(at) if at <= now => {
                // A stopped process receives SIGTERM only after SIGCONT.
                self.signal_all(&[RawSignal::TERM, RawSignal::CONT]);
                self.limit = TimeLimitPhase::Terminating(now + GRACE);
                self.reap();
            }
            TimeLimitPhase::Terminating(at) if at <= now => {
                self.limit = TimeLimitPhase::Killing { next: now, give_up: now + KILL_LIMIT };
                self.kill(now, now + KILL_LIMIT);
            }
            TimeLimitPhase::Killing { next, give_up } if next <= now => self.kill(now, give_up),
            TimeLimitPhase::Draining(at) if at <= now => {
                self.limit = TimeLimitPhase::Over;
                self.stop();
            }
            _ => {}
        }
    }

    /// Kills the remaining processes, or gives up.
    fn kill(&mut self, now: Instant, give_up: Instant) {
        if now < give_up {
            self.signal_all(&[RawSignal::KILL]);
            self.limit = TimeLimitPhase::Killing { next: now + KILL_INTERVAL, give_up };
            self.reap();
            return;
        }
        self.left = match self.descendants.list() {
            Ok(left) => names(&left),
            Err(error) => format!("unknown, because /proc cannot be read: {error}"),
        };
        self.limit = TimeLimitPhase::Over;
        self.stop();
        // Nothing will report its end.
        self.sources.clear();
    }

    /// Sends signals once to the command and to each of its descendants.
    fn signal_all(&mut self, signals: &[RawSignal]) {
        // Without /proc no process is known. With its option hidepid, those that cannot be traced
        // are not, as the stages of a sandbox.
        let signaled = self.descendants.signal_all(signals);
        if self.command_end.is_none() && !signaled.contains(&self.child) {
            for signal in signals {
                let _ = kill_process(self.child, *signal);
            }
        }
    }

    fn print_holders(&mut self) {
        let links = self.sources.iter().flatten().filter_map(|source| source.link().ok());
        let holders = match self.descendants.holders(&links.collect::<Vec<String>>()) {
            Ok(holders) if !holders.is_empty() => names(&holders),
            _ => "a process that it did not start".to_owned(),
        };
        let message = format!(
            "swarmletfs: the command has ended, but its output is still open in {holders}; \
             waiting until it is closed (press Ctrl-C to stop waiting)"
        );
        print(&mut self.stderr, &message);
    }

    fn finish(mut self, spec: &CommandSpec, started: Instant) -> Ended {
        // Messages come after our terminal has its settings back.
        drop(self.input.take());
        self.recording.write_tail();
        let timed_out = matches!(
            self.limit,
            TimeLimitPhase::Terminating(_)
                | TimeLimitPhase::Killing { .. }
                | TimeLimitPhase::Draining(_)
                | TimeLimitPhase::Over
        );
        if timed_out {
            let limit = spec.timeout.unwrap_or_default();
            let outcome = if self.left.is_empty() {
                "the command and all its processes were ended".to_owned()
            } else {
                format!("these processes could not be ended: {}", self.left)
            };
            let text = format!("timed out after {limit:?}: {outcome}");
            self.recording.write_line(&format!("[{text}]"));
            print(&mut self.stderr, &format!("swarmletfs: {text}"));
        }
        let status = self.command_end.as_ref().map(|end| end.status);
        let signal = status.and_then(WaitStatus::terminating_signal);
        let code = status.and_then(WaitStatus::exit_status).or(signal.map(|number| 128 + number));
        // The time limit also ends processes that outlive the command.
        let end = self.command_end.filter(|_| !timed_out);
        let duration = end.map_or_else(|| started.elapsed(), |end| end.at - started);
        Ended {
            exit_code: if timed_out {
                TIMED_OUT
            } else {
                code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
            },
            signal,
            timed_out,
            spawn_error: None,
            duration,
            lost_output: self.lost_output,
            sink_error: self.recording.into_error(),
        }
    }
}
