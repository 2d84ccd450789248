//! The log: to a file, to stderr in the foreground, or nowhere.
//!
//! `$SWARMLETFS_LOG` says how much: a level, or a list such as `swarmletfs=debug,fuser=warn`. Lines carry no colour
//! and no control character, whatever name is logged. Panics are told there too, and a log that cannot be written stops
//! nothing.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, bail};
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, lstat};
use rustix::io::Errno;
use tracing_subscriber::EnvFilter;

use super::exit::Usage;
use super::terminal::{display_path, escape_controls};
use crate::name::printable;

const FILTER_VARIABLE: &str = "SWARMLETFS_LOG";

/// What is logged if nothing is said. A reply that nobody waits for any more, since the reader was killed, is no error.
const FILE_FILTER: &str = "info,fuser::reply=off";
const STDERR_FILTER: &str = "warn,fuser::reply=off";

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Checks the filter without using it. Errors: it is wrong.
pub(super) fn check() -> Result<(), Usage> {
    filter(FILE_FILTER).map(drop)
}

/// Starts logging to `file`, or else to stderr if in the foreground.
///
/// # Errors
///
/// Returns an error if the filter is wrong or the file cannot be opened.
pub(super) fn start(file: Option<&Path>, foreground: bool) -> anyhow::Result<()> {
    if let Some(path) = file {
        let file = open(path)?;
        init(filter(FILE_FILTER)?, file);
    } else if foreground {
        init(filter(STDERR_FILTER)?, io::stderr());
    }
    Ok(())
}

/// Opens the regular file `path` to append to, or creates it for its owner alone.
///
/// # Errors
///
/// Returns an error if it cannot be opened or is anything but a regular file: opening or writing a FIFO or a device can
/// block for ever, and a symbolic link could lead to a file that should not be appended to.
pub(super) fn open(path: &Path) -> anyhow::Result<File> {
    let cannot = || format!("cannot log to {}", display_path(path));
    // Some devices act when they are opened.
    match lstat(path) {
        Ok(stat) => require_regular(&stat).with_context(cannot)?,
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error).with_context(cannot),
    }
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    // Another file may have come in its place: that must not block either.
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).with_context(cannot)?;
    require_regular(&fstat(&file)?).with_context(cannot)?;
    Ok(File::from(file))
}

fn require_regular(stat: &Stat) -> anyhow::Result<()> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Symlink => "a symbolic link",
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "of an unknown type",
    };
    bail!("it is {kind}; give a regular file, or leave out --log (with --foreground, stderr is the log)")
}

fn init(filter: EnvFilter, out: impl Write + Send + 'static) {
    // An error here means that something has set up logging already, which then goes on.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        // Left to itself, a log that cannot be written is told on stderr; if that cannot be written either, it panics.
        .log_internal_errors(false)
        .with_writer(Mutex::new(EscapingWriter(out)))
        .try_init();
    crate::fuse::log_panics();
}

fn filter(default: &str) -> Result<EnvFilter, Usage> {
    let text = match std::env::var_os(FILTER_VARIABLE) {
        Some(text) if !text.is_empty() => text.to_string_lossy().into_owned(),
        _ => default.to_owned(),
    };
    parse(&text).map_err(|why| Usage(format!("${FILTER_VARIABLE} is wrong: {}", escape_controls(&why))))
}

fn parse(text: &str) -> Result<EnvFilter, String> {
    for part in text.split(',').map(str::trim).filter(|part| !part.contains(['=', '['])) {
        // Left to itself, the parser takes any word for a module's name and a mistyped level for silence.
        if !LEVELS.contains(&part.to_lowercase().as_str()) {
            return Err(format!("{part} is not one of {} and names no level as MODULE=LEVEL does", LEVELS.join(", ")));
        }
    }
    EnvFilter::builder().parse(text).map_err(|error| error.to_string())
}

/// Escapes control characters. Each write is one event, which ends in a newline of its own.
struct EscapingWriter<W>(W);

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let mut line = printable(event.strip_suffix(b"\n").unwrap_or(event));
        line.push('\n');
        self.0.write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_level_is_an_error() {
        for good in ["info", "WARN", "swarmletfs=debug,fuser=warn", "off", "info,fuser=trace"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in ["verbose", "swarmletfs=loud", "info,", "debug;"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_name_can_forge_a_line() {
        let mut out = EscapingWriter(Vec::new());
        out.write_all(b"opened a\n2026 ERROR \x1b[31mforged\n").unwrap();
        assert_eq!(out.0, b"opened a\\u{a}2026 ERROR \\u{1b}[31mforged\n");
    }
}
