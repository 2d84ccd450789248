//! Pseudoterminals, and a command on one of its own, which a test types into.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::pty::OpenptFlags;
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

/// Time limit for what a test waits for.
const LIMIT: Duration = Duration::from_secs(20);

/// Size of the terminal: lines do not wrap.
const SIZE: Winsize = Winsize { ws_row: 24, ws_col: 400, ws_xpixel: 0, ws_ypixel: 0 };

/// Opens a pseudoterminal. Returns the test's end, and the end of the program.
pub fn open() -> (File, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags).unwrap();
    rustix::pty::grantpt(&master).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
    (File::from(master), slave)
}

/// A command that runs on a terminal.
pub struct Terminal {
    child: Child,
    master: File,
    device: u64,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
    /// Number of bytes of `shown` that [`Terminal::expect`] is done with.
    seen: usize,
}

impl Terminal {
    /// Starts a command with the terminal as its controlling one.
    pub fn start(command: &Command) -> Terminal {
        let (master, slave) = open();
        tcsetwinsize(&slave, SIZE).unwrap();
        let device = rustix::fs::fstat(&slave).unwrap().st_rdev;
        let fd = || slave.as_fd().try_clone_to_owned().unwrap();
        let mut session = Command::new("setsid");
        session.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args());
        session.current_dir(command.get_current_dir().unwrap());
        session.env("TERM", "xterm");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => session.env(name, value),
                None => session.env_remove(name),
            };
        }
        let child = session.stdin(fd()).stdout(fd()).stderr(fd()).spawn().unwrap();
        drop((session, slave));
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut source, sink) = (master.try_clone().unwrap(), shown.clone());
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4_096];
            // Reading a terminal without writers ends in an error.
            while let Ok(count) = source.read(&mut buffer)
                && count > 0
            {
                sink.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Terminal { child, master, device, shown, reader, seen: 0 }
    }

    /// Returns the number of the terminal, as stat(2) and /proc have it.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Returns the settings of the terminal.
    pub fn settings(&self) -> Termios {
        tcgetattr(&self.master).unwrap()
    }

    /// Types text.
    pub fn send(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until the terminal shows `text` after what was expected before.
    #[track_caller]
    pub fn expect(&mut self, text: &str) {
        let begun = Instant::now();
        loop {
            let shown = self.shown.lock().unwrap().clone();
            let rest = &shown[self.seen..];
            if let Some(at) = rest.windows(text.len()).position(|part| part == text.as_bytes()) {
                self.seen += at + text.len();
                return;
            }
            assert!(begun.elapsed() < LIMIT, "no {text:?} in {:?}", String::from_utf8_lossy(rest));
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the end of the command. Returns its exit code and all that was shown.
    #[track_caller]
    pub fn end(mut self) -> (Option<i32>, String) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > LIMIT {
                let _ = self.child.kill();
                let shown = self.shown.lock().unwrap();
                panic!("the command did not end: {:?}", String::from_utf8_lossy(&shown));
            }
            thread::sleep(Duration::from_millis(2));
        };
        self.reader.join().unwrap();
        let shown = String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned();
        (status.code(), shown.replace("\r\n", "\n"))
    }
}
