//! The places on this machine where programs leave their sessions.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::trace::KnownFormat;
use crate::trace::known::{FORMATS, Program, UNREAD_PROGRAMS};

/// A directory where a program leaves sessions. It may not exist.
#[derive(Debug, Clone)]
pub(super) struct SessionPlace {
    /// The program, as people call it.
    pub(super) program: &'static str,
    /// Format of the sessions; `None` if they cannot be read yet.
    pub(super) format: Option<&'static KnownFormat>,
    /// Absolute path.
    pub(super) path: PathBuf,
}

/// Returns the places of all programs, located as the programs do it.
pub(super) fn all() -> Vec<SessionPlace> {
    let readable = FORMATS.into_iter().map(|format| (&format.program, Some(format)));
    let others = UNREAD_PROGRAMS.iter().map(|program| (program, None));
    let places = readable.chain(others).flat_map(|(program, format)| {
        let paths = paths(program, &|name| std::env::var_os(name));
        paths.into_iter().map(move |path| SessionPlace { program: program.name, format, path })
    });
    places.collect()
}

pub(super) fn folders_of(format: &KnownFormat) -> Vec<PathBuf> {
    paths(&format.program, &|name| std::env::var_os(name))
}

/// Returns the paths of a program's places. `variable` returns the value of an environment
/// variable.
fn paths(program: &Program, variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let value = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = value("HOME");
    let places = program.places.iter().flat_map(|place| {
        let named = place.variable.and_then(|(name, below)| Some(join(&value(name)?, below)));
        match (named, &home) {
            (Some(named), _) => vec![named],
            (None, Some(home)) => place.home.iter().map(|path| join(home, path)).collect(),
            (None, None) => Vec::new(),
        }
    });
    places.filter(|path| path.is_absolute()).collect()
}

/// Joins paths without a trailing `/` if the second one is empty.
fn join(folder: &Path, below: &str) -> PathBuf {
    if below.is_empty() { folder.to_path_buf() } else { folder.join(below) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::known::Place;

    #[test]
    fn variable_replaces_the_home_folders_of_its_place() {
        let program = Program {
            name: "p",
            places: &[
                Place { variable: Some(("P_HOME", "")), home: &[".p", ".config/p"] },
                Place { variable: Some(("P_DATA", "sessions")), home: &[] },
            ],
        };
        let found = |variables: &[(&str, &str)]| {
            let value = |name: &str| {
                let found = variables.iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| OsString::from(value))
            };
            let paths = paths(&program, &value);
            paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(found(&[("HOME", "/h")]), ["/h/.p", "/h/.config/p"]);
        assert_eq!(
            found(&[("HOME", "/h"), ("P_HOME", "/q"), ("P_DATA", "/d")]),
            ["/q", "/d/sessions"]
        );
        assert_eq!(found(&[("HOME", "/h"), ("P_HOME", "")]), ["/h/.p", "/h/.config/p"]);
        assert_eq!(found(&[("P_HOME", "relative")]), [""; 0]);
        assert_eq!(found(&[]), [""; 0]);
    }
}
