//! Words for the person at the terminal: stderr, and paths made safe to print.
//!
//! What is printed may hold names from anywhere, so no raw control character goes out, and a path inside a command
//! that is to be copied is quoted for the shell.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::name::printable;

/// Prints `swarmletfs: <text>` on stderr. A stderr that is gone is no reason to fail.
pub(super) fn print_message(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "swarmletfs: {text}");
}

/// `text` with control characters escaped.
pub(super) fn escape_controls(text: &str) -> String {
    printable(text.as_bytes())
}

/// A path for a sentence.
pub(super) fn display_path(path: &Path) -> String {
    printable(path.as_os_str().as_bytes())
}

/// A path for a command that the reader may copy into a shell.
pub(super) fn shell_quote(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let text = display_path(path);
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@%,=".contains(c);
    if text.as_bytes() != bytes {
        // `$'…'` says any byte, in every shell but the plainest.
        return format!("$'{}'", bytes.iter().map(|byte| ansi_c(*byte)).collect::<String>());
    }
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

fn ansi_c(byte: u8) -> String {
    match byte {
        b'\'' | b'\\' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_quoted_for_the_shell() {
        assert_eq!(shell_quote(Path::new("/mnt/swarm")), "/mnt/swarm");
        assert_eq!(shell_quote(Path::new("/mnt/a b")), "'/mnt/a b'");
        assert_eq!(shell_quote(Path::new("/mnt/it's")), r"'/mnt/it'\''s'");
        assert_eq!(shell_quote(Path::new("/mnt/\x1b'\n")), r"$'/mnt/\x1b\'\x0a'");
    }
}
