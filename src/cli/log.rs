//! The log, to a file, to stderr in the foreground, or nowhere, and the checks of the places where
//! a mount may write one.
//!
//! `$SWARMLETFS_LOG` sets the level or a filter such as `swarmletfs=debug,fuser=warn`. Lines
//! contain no color and no control characters. Panics are logged too. A log that cannot be written
//! does not stop the program.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, bail};
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, lstat};
use rustix::io::Errno;
use tracing_subscriber::EnvFilter;

use super::exit::UsageError;
use super::mountinfo::FolderIdentity;
use super::mountpoint::read_mount_table;
use super::terminal::{display_path, escape_controls};
use crate::name::printable;

const FILTER_VARIABLE: &str = "SWARMLETFS_LOG";

/// Default filter of a log file. A reply to a killed reader fails normally, so `fuser::reply` is
/// off.
const FILE_FILTER: &str = "info,fuser::reply=off";
const STDERR_FILTER: &str = "warn,fuser::reply=off";

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

pub(super) fn check() -> Result<(), UsageError> {
    filter(FILE_FILTER).map(drop)
}

/// Starts logging to `file`. Without a file, logs to stderr in the `foreground`, otherwise nowhere.
///
/// # Errors
///
/// Fails if the filter is invalid or the file cannot be opened.
pub(super) fn start(file: Option<&Path>, foreground: bool) -> anyhow::Result<()> {
    if let Some(path) = file {
        let file = open(path)?;
        init(filter(FILE_FILTER)?, file);
    } else if foreground {
        init(filter(STDERR_FILTER)?, io::stderr());
    }
    Ok(())
}

/// Opens the regular file `path` for appending, or creates it readable only by its owner.
///
/// # Errors
///
/// Fails if the file cannot be opened or is not a regular file. Opening or writing a FIFO or device
/// can block forever. A symlink could lead to a file that must not be appended to.
pub(super) fn open(path: &Path) -> anyhow::Result<File> {
    let cannot = || format!("cannot log to {}", display_path(path));
    // Some devices act when they are opened, so the type is checked first.
    match lstat(path) {
        Ok(stat) => require_regular(&stat).with_context(cannot)?,
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error).with_context(cannot),
    }
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    // The file may have been replaced since the check; opening the new one must not block either.
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
    bail!(
        "it is {kind}; use a regular file, or omit --log \
         (with --foreground, the log goes to stderr)"
    )
}

fn init(filter: EnvFilter, out: impl Write + Send + 'static) {
    // This fails only if a logger is installed already, which then stays in use.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        // By default, a failed write is reported on stderr, and a failure there panics.
        .log_internal_errors(false)
        .with_writer(Mutex::new(EscapingWriter(out)))
        .try_init();
    crate::fuse::log_panics();
}

fn filter(default: &str) -> Result<EnvFilter, UsageError> {
    let text = match std::env::var_os(FILTER_VARIABLE) {
        Some(text) if !text.is_empty() => text.to_string_lossy().into_owned(),
        _ => default.to_owned(),
    };
    parse(&text).map_err(|why| {
        UsageError(format!("${FILTER_VARIABLE} is invalid: {}", escape_controls(&why)))
    })
}

fn parse(text: &str) -> Result<EnvFilter, String> {
    for part in text.split(',').map(str::trim).filter(|part| !part.contains(['=', '['])) {
        // By default, the parser takes any word as a module name, so a mistyped level would log
        // nothing.
        if !LEVELS.contains(&part.to_lowercase().as_str()) {
            return Err(format!(
                "{part} is neither one of {} nor of the form MODULE=LEVEL",
                LEVELS.join(", ")
            ));
        }
    }
    EnvFilter::builder().parse(text).map_err(|error| error.to_string())
}

/// Writer that escapes control characters. Each write is one event that ends in its own newline.
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

/// Rejects a log inside a store, which must not be written to, or beneath the mountpoint, where the
/// mount would hide it.
pub(super) fn check_place(
    log: &Path,
    stores: &[FolderIdentity],
    point: &FolderIdentity,
) -> anyhow::Result<()> {
    let Some(Ok(folder)) = log.parent().map(|folder| {
        FolderIdentity::resolve(folder, &read_mount_table()?).map_err(anyhow::Error::from)
    }) else {
        bail!("cannot log to {}: its folder does not exist", display_path(log));
    };
    check_folder(log, &folder, stores, point)
}

pub(super) fn check_folder(
    log: &Path,
    folder: &FolderIdentity,
    stores: &[FolderIdentity],
    point: &FolderIdentity,
) -> anyhow::Result<()> {
    match stores.iter().chain([point]).find(|place| folder.is_within(place)) {
        Some(place) => {
            bail!(
                "cannot log to {}: it lies inside {}; choose another folder",
                display_path(log),
                display_path(&place.path)
            )
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_log_level_is_an_error() {
        for good in ["info", "WARN", "swarmletfs=debug,fuser=warn", "off", "info,fuser=trace"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in ["verbose", "swarmletfs=loud", "info,", "debug;"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn log_lines_cannot_be_forged() {
        let mut out = EscapingWriter(Vec::new());
        out.write_all(b"opened a\n2026 ERROR \x1b[31mforged\n").unwrap();
        assert_eq!(out.0, b"opened a\\u{a}2026 ERROR \\u{1b}[31mforged\n");
    }
}
