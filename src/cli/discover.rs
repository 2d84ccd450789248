//! Discovery of the stores to use, in the same order for every command, and of the places where
//! programs leave their sessions.
//!
//! The order is: paths on the command line, `$SWARMLET_STORE`, `$SWARMLET_DATA_PATH`, the nearest
//! store from the current directory upwards, the known paths, and the sessions of all programs
//! together. The store that `run` made for a directory counts as one in it. An explicit path is
//! taken without a check: opening it reports any problem. A discovered store of workers must look
//! like one, or be prepared for recording, and must be the only one at its level.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::diagnosis::Diagnosis;
use super::terminal::display_path;
use crate::catalog::{holds_workers, is_artifact_store, is_own_mount};
use crate::digest::{digest, to_hex};
use crate::store::is_object_url;
use crate::trace::KnownFormat;
use crate::trace::known::{FORMATS, Program, UNREAD_PROGRAMS};

/// Environment variables that name a store, in the order in which they count.
const STORE_VARIABLES: [&str; 2] = ["SWARMLET_STORE", "SWARMLET_DATA_PATH"];

/// Conventional paths of a store, searched last before the sessions of programs.
const KNOWN_PATHS: &[&str] = &["/data/swarmlet", "/data/workers", "/data/swarmlet/workers"];

/// Maximum length of a file's name, in bytes.
const NAME_MAX: usize = 255;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChosenStore {
    /// Absolute path.
    pub(super) path: PathBuf,
    /// Reason for the choice, printed in parentheses.
    pub(super) why: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChosenStores {
    /// At least one.
    pub(super) stores: Vec<ChosenStore>,
    /// True if the command line or a variable names them.
    pub(super) are_named: bool,
    /// True if they are the places of sessions, found because nothing named a store.
    are_sessions: bool,
    /// Clause about the mounts of this program that discovery skipped; may be empty.
    pub(super) skipped: String,
}

/// The inputs of discovery; tests replace them.
pub(super) struct Environment<'a> {
    pub(super) variables: [Option<OsString>; 2],
    pub(super) current: &'a Path,
    /// Conventional store paths; [`KNOWN_PATHS`] in production.
    pub(super) known: &'a [&'a str],
    /// Places where programs leave sessions that can be read.
    pub(super) places: Vec<SessionPlace>,
    pub(super) is_store: &'a dyn Fn(&Path) -> bool,
    /// Returns the place of the store of a workspace, which may not exist.
    pub(super) workspace_store: &'a dyn Fn(&Path) -> Option<PathBuf>,
    /// Returns true for a directory inside a mount of this program, which is never a store.
    pub(super) is_own_mount: &'a dyn Fn(&Path) -> bool,
    pub(super) has_sessions: &'a dyn Fn(&SessionPlace) -> bool,
}

impl<'a> Environment<'a> {
    /// Returns the environment of this process, with `current` as the current directory. Only
    /// stores of `format` are found if it is given.
    pub(super) fn new(current: &'a Path, format: Option<&'static KnownFormat>) -> Environment<'a> {
        let is_wanted = |found: Option<&'static KnownFormat>| {
            found.is_some_and(|found| format.is_none_or(|format| format.name == found.name))
        };
        // The current directory is not searched for files of other formats: it may be large.
        let has_shape = format.is_none_or(|format| !format.has_transcripts());
        Environment {
            variables: STORE_VARIABLES.map(std::env::var_os),
            current,
            known: KNOWN_PATHS,
            places: session_places().into_iter().filter(|place| is_wanted(place.format)).collect(),
            is_store: if has_shape { &is_artifact_store } else { &|_| false },
            workspace_store: &workspace_store,
            is_own_mount: &is_own_mount,
            has_sessions: &has_sessions,
        }
    }
}

/// Returns the path of the store that `run` makes for a workspace without one, in the state folder
/// of this user; `None` without such a folder.
pub(super) fn workspace_store(workspace: &Path) -> Option<PathBuf> {
    let stores = state_folder()?.join("workspaces");
    let mut hash = blake3::Hasher::new();
    let key: [u8; 8] = digest(hash.update(workspace.as_os_str().as_bytes()));
    // The name is for people, the hash tells workspaces of one name apart.
    let name = workspace.file_name().unwrap_or_default();
    let mut folder = name.to_os_string();
    folder.push(format!("-{}", to_hex(&key)));
    Some(stores.join(if folder.len() > NAME_MAX { to_hex(&key).into() } else { folder }))
}

/// Returns the folder for state of this program; `None` without a home directory.
pub(super) fn state_folder() -> Option<PathBuf> {
    Some(user_folder("XDG_STATE_HOME", ".local/state")?.join("swarmletfs"))
}

/// Returns the folder that an environment variable names, or else `in_home` in the home directory.
/// A relative path counts as none.
pub(super) fn user_folder(variable: &str, in_home: &str) -> Option<PathBuf> {
    let folder = |name: &str| {
        std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute())
    };
    folder(variable).or_else(|| Some(folder("HOME")?.join(in_home)))
}

pub(super) fn has_sessions(place: &SessionPlace) -> bool {
    place.format.is_some_and(|format| holds_workers(&place.path, format))
}

/// Chooses the stores. `options` are the values of `--store` and `-o store=`; each of `operands` is
/// a STORE.
///
/// # Errors
///
/// Fails if there are several stores at one level, or none at all.
pub(super) fn choose(
    options: &[PathBuf],
    operands: &[PathBuf],
    environment: &Environment<'_>,
) -> Result<ChosenStores, Diagnosis> {
    find(options, operands, environment)?.ok_or_else(|| no_store(environment))
}

/// Chooses the stores as [`choose`] does. Returns `None` if there are none.
///
/// # Errors
///
/// Fails if there are several stores at one level.
pub(super) fn find(
    options: &[PathBuf],
    operands: &[PathBuf],
    environment: &Environment<'_>,
) -> Result<Option<ChosenStores>, Diagnosis> {
    for (named, why) in [(options, "named by --store"), (operands, "named on the command line")] {
        if !named.is_empty() {
            let paths = named.iter().map(PathBuf::as_path);
            return Ok(Some(ChosenStores::named(environment, paths, why)));
        }
    }
    let mut variables = STORE_VARIABLES.iter().zip(&environment.variables);
    let named = variables.find_map(|(name, value)| {
        let value = value.as_deref().filter(|value| !value.is_empty())?;
        Some((name, value))
    });
    if let Some((name, value)) = named {
        let why = format!("named by ${name}");
        return Ok(Some(ChosenStores::named(environment, [Path::new(value)], &why)));
    }
    let skipped = describe_skipped(environment);
    if let Some(store) = nearest_store(environment) {
        let stores = vec![store];
        return Ok(Some(ChosenStores { stores, are_named: false, are_sessions: false, skipped }));
    }
    let mut stores: Vec<PathBuf> = Vec::new();
    for place in environment.known.iter().map(PathBuf::from) {
        if !stores.iter().any(|store| place.starts_with(store)) && (environment.is_store)(&place) {
            stores.push(place);
        }
    }
    match stores.as_slice() {
        [store] => {
            let stores = vec![ChosenStore { path: store.clone(), why: "a known path".into() }];
            Ok(Some(ChosenStores { stores, are_named: false, are_sessions: false, skipped }))
        }
        [] => {
            let stores = session_stores(environment);
            let is_any = !stores.is_empty();
            Ok(is_any.then_some(ChosenStores {
                stores,
                are_named: false,
                are_sessions: true,
                skipped,
            }))
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

/// Returns the places that hold sessions. If one place contains another, only the outer one is
/// used.
fn session_stores(environment: &Environment<'_>) -> Vec<ChosenStore> {
    let mut found: Vec<&SessionPlace> = Vec::new();
    for place in environment.places.iter().filter(|place| (environment.has_sessions)(place)) {
        if !found.iter().any(|other| place.path.starts_with(&other.path)) {
            found.retain(|other| !other.path.starts_with(&place.path));
            found.push(place);
        }
    }
    let stores = found.into_iter().map(|place| ChosenStore {
        path: place.path.clone(),
        why: format!("the sessions of {}", place.program),
    });
    stores.collect()
}

impl ChosenStores {
    fn named<'p>(
        environment: &Environment<'_>,
        paths: impl IntoIterator<Item = &'p Path>,
        why: &str,
    ) -> ChosenStores {
        let absolute = |path: &Path| match is_object_url(path) {
            true => path.to_path_buf(),
            false => environment.current.join(path),
        };
        let store = |path| ChosenStore { path: absolute(path), why: why.into() };
        ChosenStores {
            stores: paths.into_iter().map(store).collect(),
            are_named: true,
            are_sessions: false,
            skipped: String::new(),
        }
    }

    /// Returns the reason for the choice of `store`, which is one of these.
    pub(super) fn reason(&self, store: &ChosenStore) -> String {
        let fallback = if self.are_sessions { ", as no other store was found" } else { "" };
        format!("{}{fallback}{}", store.why, self.skipped)
    }

    pub(super) fn messages(&self) -> Vec<String> {
        match self.stores.as_slice() {
            [_, _, ..] if self.are_sessions => {
                let named: Vec<String> = self
                    .stores
                    .iter()
                    .map(|store| format!("{} ({})", display_path(&store.path), store.why))
                    .collect();
                vec![format!(
                    "the stores are {}, as no other store was found{}",
                    named.join(" and "),
                    self.skipped
                )]
            }
            stores => stores
                .iter()
                .map(|store| {
                    format!("the store is {} ({})", display_path(&store.path), self.reason(store))
                })
                .collect(),
        }
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

/// Returns the error that no store was found.
pub(super) fn no_store(environment: &Environment<'_>) -> Diagnosis {
    let skipped = describe_skipped(environment);
    let places: Vec<String> = environment
        .places
        .iter()
        .map(|place| format!("{} ({})", display_path(&place.path), place.program))
        .collect();
    let sessions = if places.is_empty() {
        String::new()
    } else {
        format!("; there are no sessions in {}", places.join(" or "))
    };
    Diagnosis::new(
        format!(
            "no store was found (${} are not set, no folder from {} upwards is a store, and \
             neither is any of {}{sessions}{skipped})",
            STORE_VARIABLES.join(" and $"),
            display_path(environment.current),
            environment.known.join(", "),
        ),
        "give one with `--store PATH`, or make one with `swarmletfs init DIR` or the first \
         `swarmletfs run` in a workspace",
    )
}

/// Returns the nearest store from the current directory upwards, or the one that was made for the
/// nearest directory.
///
/// A store's `workers` directory can look like a store too; its parent is returned then.
fn nearest_store(environment: &Environment<'_>) -> Option<ChosenStore> {
    let is_store = |folder: &&Path| (environment.is_store)(folder);
    environment.current.ancestors().find_map(|folder| {
        if !is_store(&folder) {
            let path = (environment.workspace_store)(folder)?;
            let why = format!("made for the workspace {}", display_path(folder));
            return is_store(&&*path).then_some(ChosenStore { path, why });
        }
        let parent = folder.parent().filter(|_| folder.ends_with("workers"));
        let path = parent.filter(is_store).unwrap_or(folder);
        let why = if path == environment.current {
            "the current folder"
        } else {
            "the current folder is inside it"
        };
        Some(ChosenStore { path: path.to_path_buf(), why: why.into() })
    })
}

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
pub(super) fn session_places() -> Vec<SessionPlace> {
    let readable = FORMATS.into_iter().map(|format| (&format.program, Some(format)));
    let others = UNREAD_PROGRAMS.iter().map(|program| (program, None));
    let places = readable.chain(others).flat_map(|(program, format)| {
        let paths = paths_of(program, &|name| std::env::var_os(name));
        paths.into_iter().map(move |path| SessionPlace { program: program.name, format, path })
    });
    places.collect()
}

pub(super) fn folders_of(format: &KnownFormat) -> Vec<PathBuf> {
    paths_of(&format.program, &|name| std::env::var_os(name))
}

/// Returns the paths of a program's places. `variable` returns the value of an environment
/// variable.
fn paths_of(program: &Program, variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
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

    const PLACES: &[&str] = &["/k/one", "/k/two", "/k/one/workers"];

    fn chosen(
        options: &[&str],
        operand: Option<&str>,
        variables: [&str; 2],
        current: &str,
        stores: &[&str],
    ) -> Result<Vec<PathBuf>, String> {
        let options: Vec<PathBuf> = options.iter().map(PathBuf::from).collect();
        let is_store = |path: &Path| stores.iter().any(|store| path == Path::new(store));
        let environment = Environment {
            variables: variables.map(|value| Some(value.into())),
            current: Path::new(current),
            known: PLACES,
            places: ["/home/.claude", "/home/.openhands/sub", "/home/.openhands", "/home/.codex"]
                .map(place)
                .into(),
            is_store: &is_store,
            workspace_store: &|folder| {
                Some(Path::new("/state").join(folder.strip_prefix("/").ok()?))
            },
            is_own_mount: &|path| path.starts_with("/mnt/swarm"),
            has_sessions: &|place| is_store(&place.path),
        };
        choose(&options, operand.map(PathBuf::from).as_slice(), &environment)
            .map(|chosen| chosen.stores.into_iter().map(|store| store.path).collect())
            .map_err(|error| error.to_string())
    }

    fn place(path: &str) -> SessionPlace {
        SessionPlace { program: "a program", format: None, path: path.into() }
    }

    fn one(path: &str) -> Result<Vec<PathBuf>, String> {
        Ok(vec![path.into()])
    }

    #[test]
    fn discovery_follows_its_order() {
        let all = &["/s", "/s/sub", "/k/one"];
        assert_eq!(
            chosen(&["/a", "b"], Some("/c"), ["/e", "/d"], "/s", all),
            Ok(vec!["/a".into(), "/s/b".into()])
        );
        assert_eq!(chosen(&[], Some("c"), ["/e", "/d"], "/s", all), one("/s/c"));
        assert_eq!(chosen(&[], None, ["e", "/d"], "/s", all), one("/s/e"));
        assert_eq!(chosen(&[], None, ["", "d"], "/s", all), one("/s/d"));
        assert_eq!(chosen(&[], None, ["", ""], "/s/sub/x/y", all), one("/s/sub"));
        assert_eq!(chosen(&[], None, ["", ""], "/elsewhere", all), one("/k/one"));
        assert_eq!(
            chosen(&[], None, ["", ""], "/elsewhere", &["/k/two", "/home/.claude"]),
            one("/k/two")
        );
        assert_eq!(
            chosen(&[], None, ["", ""], "/elsewhere", &["/home/.claude"]),
            one("/home/.claude")
        );
    }

    #[test]
    fn all_places_with_sessions_are_chosen_together() {
        let found = ["/home/.codex", "/home/.openhands", "/home/.openhands/sub", "/home/.claude"];
        let outer = ["/home/.claude", "/home/.openhands", "/home/.codex"];
        assert_eq!(
            chosen(&[], None, ["", ""], "/elsewhere", &found),
            Ok(outer.map(PathBuf::from).into())
        );
        assert_eq!(chosen(&[], None, ["", ""], "/s", &["/s", "/home/.codex"]), one("/s"));
        let store =
            |path: &str| ChosenStore { path: path.into(), why: format!("sessions of {path}") };
        let chosen = |paths: &[&str]| ChosenStores {
            stores: paths.iter().map(|path| store(path)).collect(),
            are_named: false,
            are_sessions: true,
            skipped: String::new(),
        };
        assert_eq!(
            chosen(&["/a", "/b"]).messages(),
            [
                "the stores are /a (sessions of /a) and /b (sessions of /b), as no other store was found"
            ]
        );
        assert_eq!(
            chosen(&["/a"]).messages(),
            ["the store is /a (sessions of /a, as no other store was found)"]
        );
    }

    #[test]
    fn workers_folder_resolves_to_its_store() {
        assert_eq!(chosen(&[], None, ["", ""], "/s/workers/w1", &["/s", "/s/workers"]), one("/s"));
        assert_eq!(chosen(&[], None, ["", ""], "/s/workers", &["/s/workers"]), one("/s/workers"));
        assert_eq!(chosen(&[], None, ["", ""], "/", &["/k/one", "/k/one/workers"]), one("/k/one"));
        assert_eq!(chosen(&[], None, ["", ""], "/", &["/k/one/workers"]), one("/k/one/workers"));
    }

    #[test]
    fn store_made_for_a_workspace_counts_as_one_in_it() {
        let stores = ["/state/p", "/p/sub/own", "/k/one"];
        assert_eq!(chosen(&[], None, ["", ""], "/p/src", &stores), one("/state/p"));
        assert_eq!(chosen(&[], None, ["", ""], "/p/sub/own", &stores), one("/p/sub/own"));
        assert_eq!(chosen(&[], None, ["", ""], "/q", &stores), one("/k/one"));
        let [one, other] = ["/a/p", "/b/p"].map(|path| workspace_store(Path::new(path)).unwrap());
        assert_ne!(one, other);
        assert!(one.file_name().unwrap().to_string_lossy().starts_with("p-"), "{one:?}");
    }

    #[test]
    fn own_mounts_are_skipped_and_named() {
        let is_store = |path: &Path| path == Path::new("/k/two");
        let environment = |current| Environment {
            variables: [None, None],
            current: Path::new(current),
            known: PLACES,
            places: Vec::new(),
            is_store: &is_store,
            workspace_store: &|folder| {
                Some(Path::new("/state").join(folder.strip_prefix("/").ok()?))
            },
            is_own_mount: &|path| path.starts_with("/mnt/swarm") || path == Path::new("/k/one"),
            has_sessions: &|_| false,
        };
        let chosen = choose(&[], &[], &environment("/mnt/swarm/workers/w")).unwrap();
        let why = "a known path; /mnt/swarm and /k/one were skipped: they are swarmletfs mounts";
        assert_eq!(chosen.messages(), [format!("the store is /k/two ({why})")]);
        let nowhere = Environment { known: &[], ..environment("/mnt/swarm/workers") };
        let none = choose(&[], &[], &nowhere).unwrap_err().to_string();
        assert!(none.contains("/mnt/swarm was skipped: it is a swarmletfs mount"), "{none}");
    }

    #[test]
    fn several_stores_or_none_is_an_error() {
        let two = chosen(&[], None, ["", ""], "/", &["/k/one", "/k/two"]).unwrap_err();
        assert!(two.contains("/k/one and /k/two") && two.contains("--store"), "{two}");
        let none = chosen(&[], None, ["", ""], "/here", &[]).unwrap_err();
        for looked in [
            "SWARMLET_STORE",
            "SWARMLET_DATA_PATH",
            "/here",
            "/k/one, /k/two",
            "/home/.claude",
            "--store",
        ] {
            assert!(none.contains(looked), "{none}");
        }
    }

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
            let paths = paths_of(&program, &value);
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
