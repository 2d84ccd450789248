//! What is found in the files of workers. It knows of views and files, not of what is shown to anybody.

pub mod glob;
pub mod ranked;
pub mod regex;

/// So many bytes tell whether a file is text.
const BEGINNING: usize = 8_000;

/// Whether what begins so is no text: git's rule, a NUL among its first bytes.
fn is_binary(beginning: &[u8]) -> bool {
    memchr::memchr(0, beginning.get(..BEGINNING).unwrap_or(beginning)).is_some()
}
