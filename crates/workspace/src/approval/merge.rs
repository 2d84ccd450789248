//! Merges a file that both the worker and others changed, with `git merge-file`.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use swarmletfs_record::write::{Error, Result};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Merged {
    Clean(Vec<u8>),
    /// The changes contradict each other, or the files are not text.
    Conflict,
}

/// Merges the changes from `base` to `current` and from `base` to `new`.
///
/// # Errors
///
/// Git cannot be run, or temporary files cannot be written.
pub(super) fn merge(base: &[u8], current: &[u8], new: &[u8], action: &str) -> Result<Merged> {
    let folder = tempfile::tempdir().map_err(|error| failed(action, "write", &error))?;
    let mut git = Command::new("git");
    git.args(["merge-file", "-p", "-q"]).stdin(Stdio::null()).stderr(Stdio::null());
    for (label, bytes) in [("workspace", current), ("base", base), ("worker", new)] {
        let mut file = tempfile::Builder::new()
            .prefix(label)
            .tempfile_in(folder.path())
            .map_err(|error| failed(action, "write", &error))?;
        file.write_all(bytes).map_err(|error| failed(action, "write", &error))?;
        // The directory removes it.
        let (_, path) = file.keep().map_err(|error| failed(action, "write", &error.error))?;
        git.arg(path);
    }
    match git.output() {
        Ok(output) => Ok(match output.status.code() {
            Some(0) => Merged::Clean(output.stdout),
            // Another code is the number of conflicts, or git refuses a binary file.
            _ => Merged::Conflict,
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::Approval {
            action: action.to_owned(),
            reason: "git is not installed, and merges".to_owned(),
            cure: "try again with git, or without --merge".to_owned(),
        }),
        Err(error) => Err(failed(action, "run git on", &error)),
    }
}

fn failed(action: &str, verb: &str, error: &io::Error) -> Error {
    Error::Approval {
        action: action.to_owned(),
        reason: format!("cannot {verb} temporary files: {error}"),
        cure: "try another $TMPDIR, or without --merge".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_other_lines_are_merged() {
        let base = b"1\n2\n3\n4\n5\n6\n7\n";
        let merged = merge(base, b"one\n2\n3\n4\n5\n6\n7\n", b"1\n2\n3\n4\n5\n6\nseven\n", "x");
        assert_eq!(merged.unwrap(), Merged::Clean(b"one\n2\n3\n4\n5\n6\nseven\n".to_vec()));
    }

    #[test]
    fn changes_of_one_line_and_binary_files_conflict() {
        assert_eq!(merge(b"1\n", b"2\n", b"3\n", "x").unwrap(), Merged::Conflict);
        assert_eq!(merge(b"\0\n1\n", b"\0\n2\n", b"\x003\n1\n", "x").unwrap(), Merged::Conflict);
    }
}
