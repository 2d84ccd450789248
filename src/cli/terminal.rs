//! Messages on stderr, the option that silences those of commands that read, and text that is safe
//! to print.
//!
//! Names may hold any bytes, so control characters are escaped. Paths in commands are quoted for
//! the shell, so that they can be copied.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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
