//! Discovery of the stores to use, in the same order for every command.
//!
//! The order is: paths on the command line, `$SWARMLET_DATA_PATH`, the nearest store from the
//! current directory upwards, the known paths, and the sessions of Claude Code. An explicit path is
//! taken without a check: opening it reports what is wrong. A discovered one must look like a store
//! and be the only one at its level.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::diagnosis::Diagnosis;
use super::terminal::display_path;
use crate::catalog::{is_own_mount, looks_like_sessions};

/// Environment variable that names a store.
const STORE_VARIABLE: &str = "SWARMLET_DATA_PATH";

/// Conventional paths of a store, searched last before the sessions of Claude Code.
const KNOWN_PATHS: &[&str] = &["/data/swarmlet", "/data/workers", "/data/swarmlet/workers"];

/// Environment variable that names Claude Code's directory.
const CLAUDE_VARIABLE: &str = "CLAUDE_CONFIG_DIR";
const CLAUDE_FOLDER: &str = ".claude";

/// The stores to use, and the reason for the choice.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChosenStores {
    /// Absolute paths; at least one.
    pub(super) stores: Vec<PathBuf>,
    /// Reason for the choice, printed in parentheses.
    pub(super) why: String,
}

/// The inputs of discovery; tests replace them.
pub(super) struct Environment<'a> {
    /// Value of [`STORE_VARIABLE`].
    pub(super) variable: Option<OsString>,
    /// Current directory.
    pub(super) current: &'a Path,
    /// Conventional store paths; [`KNOWN_PATHS`] in production.
    pub(super) known: &'a [&'a str],
    /// Claude Code's directory; only sessions are looked for in it.
    pub(super) sessions: Option<PathBuf>,
    /// Returns true if a directory looks like a store.
    pub(super) is_store: &'a dyn Fn(&Path) -> bool,
    /// Returns true for a directory inside a mount of this program, which is never a store.
    pub(super) is_own_mount: &'a dyn Fn(&Path) -> bool,
    /// Returns true if a directory holds sessions.
    pub(super) has_sessions: &'a dyn Fn(&Path) -> bool,
}

impl<'a> Environment<'a> {
    /// Returns the environment of this process, with `current` as the current directory. `is_store`
    /// returns true if a directory looks like a store.
    pub(super) fn new(current: &'a Path, is_store: &'a dyn Fn(&Path) -> bool) -> Environment<'a> {
        let (has_sessions, is_own_mount) = (&looks_like_sessions, &is_own_mount);
        let (variable, sessions) = (std::env::var_os(STORE_VARIABLE), claude_folder());
        Environment {
            variable,
            current,
            known: KNOWN_PATHS,
            sessions,
            is_store,
            is_own_mount,
            has_sessions,
        }
    }
}

/// Chooses the stores. `options` are those of `--store` and `-o store=`; each of `operands` is a
/// STORE.
///
/// # Errors
///
/// Fails if there are several stores at one level, or none at all.
pub(super) fn choose(
    options: &[PathBuf],
    operands: &[PathBuf],
    environment: &Environment<'_>,
) -> Result<ChosenStores, Diagnosis> {
    let absolute = |path: &Path| environment.current.join(path);
    for (named, why) in [(options, "named by --store"), (operands, "named on the command line")] {
        if !named.is_empty() {
            return Ok(ChosenStores {
                stores: named.iter().map(|path| absolute(path)).collect(),
                why: why.into(),
            });
        }
    }
    if let Some(value) = environment.variable.as_deref().filter(|value| !value.is_empty()) {
        return Ok(ChosenStores {
            stores: vec![absolute(Path::new(value))],
            why: format!("named by ${STORE_VARIABLE}"),
        });
    }
    let skipped = describe_skipped(environment);
    let with_skipped = |why: &str| format!("{why}{skipped}");
    if let Some(store) = nearest_store(environment) {
        let why = if store == environment.current {
            "the current folder"
        } else {
            "the current folder is inside it"
        };
        return Ok(ChosenStores { stores: vec![store], why: with_skipped(why) });
    }
    let mut stores: Vec<PathBuf> = Vec::new();
    for place in environment.known.iter().map(PathBuf::from) {
        if !stores.iter().any(|store| place.starts_with(store)) && (environment.is_store)(&place) {
            stores.push(place);
        }
    }
    match stores.as_slice() {
        [store] => {
            Ok(ChosenStores { stores: vec![store.clone()], why: with_skipped("a known path") })
        }
        [] => {
            match environment.sessions.as_ref().filter(|folder| (environment.has_sessions)(folder))
            {
                Some(sessions) => {
                    let why = "the sessions of Claude Code, as no other store was found";
                    Ok(ChosenStores { stores: vec![sessions.clone()], why: with_skipped(why) })
                }
                None => Err(no_store(environment, &skipped)),
            }
        }
        several => Err(Diagnosis::new(
            format!(
                "several stores were found: {}",
                several.iter().map(|store| display_path(store)).collect::<Vec<_>>().join(" and "),
            ),
            "choose one or more with `--store PATH`",
        )),
    }
}

/// Returns a clause that names the mounts of this program that discovery skipped, or an empty
/// string.
fn describe_skipped(environment: &Environment<'_>) -> String {
    // The current directory and its ancestors up to the root of the mount belong to one mount.
    let inside = environment
        .current
        .ancestors()
        .take_while(|folder| (environment.is_own_mount)(folder))
        .last();
    let known =
        environment.known.iter().map(Path::new).filter(|place| (environment.is_own_mount)(place));
    let mut mounts: Vec<String> = inside.into_iter().chain(known).map(display_path).collect();
    mounts.dedup();
    match mounts.as_slice() {
        [] => String::new(),
        [mount] => format!("; {mount} was skipped: it is a swarmletfs mount"),
        several => format!("; {} were skipped: they are swarmletfs mounts", several.join(" and ")),
    }
}

fn no_store(environment: &Environment<'_>, skipped: &str) -> Diagnosis {
    let sessions = environment
        .sessions
        .as_ref()
        .map(|folder| format!("; {} contains no sessions", display_path(folder)));
    Diagnosis::new(
        format!(
            "no store was found (${STORE_VARIABLE} is not set, no folder from {} upwards is a \
             store, and neither is any of {}{}{skipped})",
            display_path(environment.current),
            environment.known.join(", "),
            sessions.unwrap_or_default(),
        ),
        "give one with `--store PATH`",
    )
}

/// Returns Claude Code's directory, located as Claude Code does it.
pub(super) fn claude_folder() -> Option<PathBuf> {
    let named =
        std::env::var_os(CLAUDE_VARIABLE).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let home = || {
        std::env::var_os("HOME")
            .filter(|home| !home.is_empty())
            .map(|home| Path::new(&home).join(CLAUDE_FOLDER))
    };
    named.or_else(home).filter(|folder| folder.is_absolute())
}

/// Returns the nearest store from the current directory upwards.
///
/// A store's `workers` directory can look like a store too; its parent is returned then.
fn nearest_store(environment: &Environment<'_>) -> Option<PathBuf> {
    let store = environment.current.ancestors().find(|folder| (environment.is_store)(folder))?;
    let whole = store
        .parent()
        .filter(|parent| store.ends_with("workers") && (environment.is_store)(parent));
    Some(whole.unwrap_or(store).to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: &[&str] = &["/k/one", "/k/two", "/k/one/workers"];

    fn chosen(
        options: &[&str],
        operand: Option<&str>,
        variable: &str,
        current: &str,
        stores: &[&str],
    ) -> Result<Vec<PathBuf>, String> {
        let options: Vec<PathBuf> = options.iter().map(PathBuf::from).collect();
        let is_store = |path: &Path| stores.iter().any(|store| path == Path::new(store));
        let environment = Environment {
            variable: Some(variable.into()),
            current: Path::new(current),
            known: PLACES,
            sessions: Some("/home/.claude".into()),
            is_store: &is_store,
            is_own_mount: &|path| path.starts_with("/mnt/swarm"),
            has_sessions: &is_store,
        };
        choose(&options, operand.map(PathBuf::from).as_slice(), &environment)
            .map(|chosen| chosen.stores)
            .map_err(|error| error.to_string())
    }

    fn one(path: &str) -> Result<Vec<PathBuf>, String> {
        Ok(vec![path.into()])
    }

    #[test]
    fn discovery_follows_its_order() {
        let all = &["/s", "/s/sub", "/k/one"];
        assert_eq!(
            chosen(&["/a", "b"], Some("/c"), "/d", "/s", all),
            Ok(vec!["/a".into(), "/s/b".into()])
        );
        assert_eq!(chosen(&[], Some("c"), "/d", "/s", all), one("/s/c"));
        assert_eq!(chosen(&[], None, "d", "/s", all), one("/s/d"));
        assert_eq!(chosen(&[], None, "", "/s/sub/x/y", all), one("/s/sub"));
        assert_eq!(chosen(&[], None, "", "/elsewhere", all), one("/k/one"));
        assert_eq!(
            chosen(&[], None, "", "/elsewhere", &["/k/two", "/home/.claude"]),
            one("/k/two")
        );
        assert_eq!(chosen(&[], None, "", "/elsewhere", &["/home/.claude"]), one("/home/.claude"));
    }

    #[test]
    fn workers_folder_resolves_to_its_store() {
        assert_eq!(chosen(&[], None, "", "/s/workers/w1", &["/s", "/s/workers"]), one("/s"));
        assert_eq!(chosen(&[], None, "", "/s/workers", &["/s/workers"]), one("/s/workers"));
        assert_eq!(chosen(&[], None, "", "/", &["/k/one", "/k/one/workers"]), one("/k/one"));
        assert_eq!(chosen(&[], None, "", "/", &["/k/one/workers"]), one("/k/one/workers"));
    }

    #[test]
    fn own_mounts_are_skipped_and_named() {
        let is_store = |path: &Path| path == Path::new("/k/two");
        let environment = |current| Environment {
            variable: None,
            current: Path::new(current),
            known: PLACES,
            sessions: None,
            is_store: &is_store,
            is_own_mount: &|path| path.starts_with("/mnt/swarm") || path == Path::new("/k/one"),
            has_sessions: &|_| false,
        };
        let chosen = choose(&[], &[], &environment("/mnt/swarm/workers/w")).unwrap();
        let why = "a known path; /mnt/swarm and /k/one were skipped: they are swarmletfs mounts";
        assert_eq!(chosen, ChosenStores { stores: vec!["/k/two".into()], why: why.into() });
        let nowhere = Environment { known: &[], ..environment("/mnt/swarm/workers") };
        let none = choose(&[], &[], &nowhere).unwrap_err().to_string();
        assert!(none.contains("/mnt/swarm was skipped: it is a swarmletfs mount"), "{none}");
    }

    #[test]
    fn several_stores_or_none_is_an_error() {
        let two = chosen(&[], None, "", "/", &["/k/one", "/k/two"]).unwrap_err();
        assert!(two.contains("/k/one and /k/two") && two.contains("--store"), "{two}");
        let none = chosen(&[], None, "", "/here", &[]).unwrap_err();
        for looked in ["SWARMLET_DATA_PATH", "/here", "/k/one, /k/two", "/home/.claude", "--store"]
        {
            assert!(none.contains(looked), "{none}");
        }
    }
}
