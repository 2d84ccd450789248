//! What the commands have in common that ask something of the files of workers: `grep` and `search`.
//!
//! Exit codes are those of grep: 0 if something was found, 1 if nothing was, 2 if something went wrong; and 3 if not all was
//! searched for lack of time.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use serde::Serialize;

use super::super::say::say;
use super::super::{ViewArgs, exit};
use super::{Look, TimeArgs, json, paths};
use crate::error::Result;
use crate::name::printable;
use crate::tree::{Ino, Symlinks, Tree};

/// What went wrong, as grep says it.
const TROUBLE: u8 = 2;

/// An answer, as far as all kinds are the same.
pub(super) trait Answered {
    /// The bytes of the file in the tree that answers the same.
    fn text(&self) -> &str;

    /// Whether anything was found.
    fn has_found(&self) -> bool;

    /// Returns true if it was no question, or if nothing was found where not all could be read.
    fn is_trouble(&self) -> bool;
}

/// Asks at each of `typed`, or at the root, and prints the answers: their text, or with `as_json` what `object` makes of
/// them. `nowhere` is said of a path that holds no workers' files. The exit code is grep's.
pub(super) fn run<A: Answered, O: Serialize>(
    (view, time): (&ViewArgs, &TimeArgs),
    typed: &[OsString],
    as_json: bool,
    nowhere: &str,
    ask: impl Fn(&Tree, Ino) -> Result<Option<A>>,
    object: impl Fn(&A) -> O,
) -> ExitCode {
    let code = || -> anyhow::Result<ExitCode> {
        let look = Look::over(view, time, None)?;
        let (mut found, mut trouble) = (false, false);
        let mut answers = paths(typed).into_iter().filter_map(|path| {
            match look.tree.with_path(path, Symlinks::Follow, |place| ask(&look.tree, place.leaf().ino)) {
                Ok(Some(answer)) => {
                    if answer.text().is_empty() {
                        say(&format!("{}: the budget is too small for any answer", printable(path)));
                    }
                    found |= answer.has_found();
                    trouble |= answer.is_trouble();
                    return Some(answer);
                }
                Ok(None) => say(&format!("{}: {nowhere}", printable(path))),
                Err(error) => look.fail(path, &error),
            }
            trouble = true;
            None
        });
        let mut out = look.out();
        let written = if as_json {
            json::array(&mut out.stdout, |add| answers.try_for_each(|answer| add(&object(&answer))))
        } else {
            answers.try_for_each(|answer| out.text(answer.text()))
        };
        drop(answers);
        match written.and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(match (trouble, found) {
                (true, _) => ExitCode::from(TROUBLE),
                _ if look.is_incomplete() => exit::timed_out(),
                (false, true) => ExitCode::SUCCESS,
                (false, false) => ExitCode::FAILURE,
            }),
        }
    };
    code().unwrap_or_else(|error| {
        exit::code(Err(error));
        ExitCode::from(TROUBLE)
    })
}
