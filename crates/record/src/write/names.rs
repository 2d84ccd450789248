//! Names that this program gives to entries of a store, and names that it accepts: temporary ones,
//! ids of new workers, and paths of the files that a worker may put into its directory.
//!
//! A change that is not complete has a name that readers do not show ([`TEMPORARY_PREFIX`]). Only a
//! crash leaves one behind; [`super::leftovers`] finds it.

use std::path::Path;

use jiff::Timestamp;
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;
use unicode_normalization::UnicodeNormalization;

use super::error::{During, Error, Result};
use swarmletfs_base::digest::to_hex;
use swarmletfs_base::error::{Error as PathError, Result as PathResult};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{TEMPORARY_PREFIX, is_temporary};
use swarmletfs_trace::swarmlet::{
    APPLIED, AUDIT, BASE, CALLS, CHANGES, CHANGES_FILE, DRAFTS, METADATA, METRICS, REGISTRY,
    RESULT, SUPERVISOR, TASK, THREAD, TOMBSTONES, TOOLS_USED, WORKERS,
};
use swarmletfs_tree::route::shown_path::is_generated;

pub(super) fn temporary_name() -> PathResult<Name> {
    Name::new(format!("{TEMPORARY_PREFIX}tmp-{}", random_hex::<8>()?))
}

pub(super) fn worker_name() -> PathResult<Name> {
    Name::new(format!("{TEMPORARY_PREFIX}new-{}", random_hex::<8>()?))
}

const REMOVED_PREFIX: &str = "gone-";

pub(super) fn removed_name() -> PathResult<Name> {
    Name::new(format!("{TEMPORARY_PREFIX}{REMOVED_PREFIX}{}", random_hex::<8>()?))
}

/// Returns true if `name` is the name of a directory whose removal began.
pub(super) fn is_removed_name(name: &Name) -> bool {
    let rest = name.as_bytes().strip_prefix(TEMPORARY_PREFIX.as_bytes());
    rest.is_some_and(|rest| rest.starts_with(REMOVED_PREFIX.as_bytes()))
}

fn random_hex<const N: usize>() -> PathResult<String> {
    let mut bytes = [0; N];
    match rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(filled) if filled == N => Ok(to_hex(&bytes)),
        Ok(_) => Err(PathError::Io(Errno::IO)),
        Err(error) => Err(error.into()),
    }
}

/// Maximum length of an id, in bytes.
const ID_MAX: usize = 200;
/// Maximum length of the part of an id that is made from the task, in bytes.
const SLUG_MAX: usize = 30;
/// Names that are no worker's, in either layout of a store.
const RESERVED: [&str; 9] = [
    WORKERS,
    SUPERVISOR,
    "tool_outputs",
    AUDIT,
    DRAFTS,
    TOMBSTONES,
    REGISTRY,
    APPLIED,
    "lost+found",
];

/// Checks an id that the user gave to a new worker. Ids are parts of paths, markers and commands,
/// so they have only letters, digits and `._:-`.
///
/// # Errors
///
/// [`Error::Invalid`] names the rule that the id does not follow.
pub(super) fn parse_id(id: &str) -> Result<Name> {
    let invalid = |reason: &str| Err(Error::invalid(id.as_bytes(), "the id of a worker", reason));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    if id.is_empty() || id.len() > ID_MAX {
        return invalid("an id has 1 to 200 characters");
    }
    if !id.bytes().all(is_plain) {
        return invalid("an id has only letters a-z and A-Z, digits, and the characters . _ : -");
    }
    if id.starts_with(['.', '-']) {
        return invalid("an id begins with a letter, a digit, _ or :");
    }
    if RESERVED.contains(&id) || id.ends_with(".json") || id.ends_with(".own") {
        return invalid("this name has another meaning in a store; try another id");
    }
    Name::new(id).during("use the id", Path::new(id), b"")
}

/// Returns a new id: the time, the first words of the task, and six random digits, as in
/// `2026-01-20T10-00-00_check-the-backups_a1b2c3`.
pub(super) fn generate_id(task: &str, now: Timestamp) -> Result<Name> {
    let time = now.strftime("%Y-%m-%dT%H-%M-%S");
    let digits = random_hex::<3>().during("read random bytes for", Path::new("a new id"), b"")?;
    let slug = slug(task);
    let id = if slug.is_empty() {
        format!("{time}_{digits}")
    } else {
        format!("{time}_{slug}_{digits}")
    };
    parse_id(&id)
}

/// Returns the first words of `task` in lower case, joined by `-`. Accents are removed; other
/// characters that an id cannot have separate words.
fn slug(task: &str) -> String {
    let mut slug = String::new();
    for c in task.nfkd().filter(|c| !unicode_normalization::char::is_combining_mark(*c)) {
        if slug.len() >= SLUG_MAX {
            break;
        }
        if c.is_ascii_alphanumeric() {
            slug.push(c.to_ascii_lowercase());
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    slug.trim_end_matches('-').to_owned()
}

/// Deepest path that readers show, in components.
pub(super) const DEPTH_MAX: usize = 60;
/// Longest name on disk, in bytes.
const NAME_MAX: usize = 255;
/// Files that have a command of their own, and the command.
const MANAGED: [(&str, &str); 11] = [
    (METADATA, "`worker finish`"),
    (TASK, "`worker create --task`"),
    (RESULT, "`worker finish --result`"),
    (THREAD, "`worker message`"),
    (METRICS, "`worker record`"),
    (TOOLS_USED, "`worker record`"),
    (CALLS, "`worker record`"),
    (CHANGES_FILE, "`run`"),
    (CHANGES, "`run`"),
    (BASE, "`run`"),
    (APPLIED, "`apply`"),
];

/// Folders in which a worker keeps files of its own.
const FOLDERS: [&str; 3] = ["outputs", "logs", "context"];

/// Parses the path of a file to write.
///
/// # Errors
///
/// [`Error::Invalid`], which calls the path `role` and gives `example`: it leads elsewhere, or
/// readers do not show it.
pub(super) fn parse_path(path: &[u8], role: &'static str, example: &str) -> Result<RelPath> {
    let invalid = |reason: String| Err(Error::invalid(path, role, reason));
    let Ok(parsed) = RelPath::parse(path) else {
        return invalid(format!(
            "a path is relative, without `..`, `.` or empty names, as {example}"
        ));
    };
    if parsed.is_root() {
        return invalid(format!("the path is empty; try {example}"));
    }
    if parsed.depth() > DEPTH_MAX || parsed.names().any(|name| name.as_bytes().len() > NAME_MAX) {
        return invalid(format!(
            "a path has at most {DEPTH_MAX} names of at most {NAME_MAX} bytes"
        ));
    }
    if parsed.names().any(|name| is_temporary(&name)) {
        return invalid("this beginning of a name marks files that are being written".into());
    }
    Ok(parsed)
}

/// Parses the path of a file, relative to the worker's directory.
///
/// # Errors
///
/// [`Error::Invalid`] if the path leads elsewhere, or to a file that has a meaning of its own.
pub(super) fn parse_put_path(path: &[u8]) -> Result<RelPath> {
    let role = "a path in a worker's folder";
    let parsed = parse_path(path, role, "outputs/report.md")?;
    let invalid = |reason: String| Err(Error::invalid(path, role, reason));
    let Some(first) = parsed.names().next() else { return Ok(parsed) };
    if let Some((_, command)) = MANAGED.iter().find(|(name, _)| is_called(&first, name)) {
        return invalid(format!("this name is part of the record; {command} writes it"));
    }
    if parsed.depth() == 1 && FOLDERS.iter().any(|name| is_called(&first, name)) {
        return invalid(
            "this is the name of a folder; try a path in it, as outputs/report.md".into(),
        );
    }
    if is_generated(&first) {
        return invalid("readers see a generated file of this name; try outputs/NAME".into());
    }
    Ok(parsed)
}

fn is_called(name: &Name, text: &str) -> bool {
    name.as_bytes() == text.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_id_has_the_time_and_the_first_words() {
        let now: Timestamp = "2026-01-20T10:00:00Z".parse().unwrap();
        for (task, start) in [
            ("Check the backups!", "2026-01-20T10-00-00_check-the-backups_"),
            ("Prüfe  Café №5", "2026-01-20T10-00-00_prufe-cafe-no5_"),
            ("検査", "2026-01-20T10-00-00_"),
            ("", "2026-01-20T10-00-00_"),
            (
                "a task of many, many words that go on",
                "2026-01-20T10-00-00_a-task-of-many-many-words-that_",
            ),
        ] {
            let id = generate_id(task, now).unwrap().to_text().into_owned();
            let digits = id.strip_prefix(start).unwrap_or_else(|| panic!("{id}"));
            assert!(digits.len() == 6 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
        }
        assert_ne!(generate_id("a", now).unwrap(), generate_id("a", now).unwrap());
    }

    #[test]
    fn ids_with_other_characters_are_refused() {
        for good in ["w1", "cloud-12-1a2b", "a.b:c_d", "_x", ":x", "9", &"x".repeat(200)] {
            assert_eq!(parse_id(good).unwrap().as_bytes(), good.as_bytes());
        }
        let long = "x".repeat(201);
        for bad in [
            "",
            ".",
            "..",
            ".hidden",
            "-rf",
            "a/b",
            "a b",
            "a\nb",
            "é",
            "\u{202e}x",
            "a\0",
            "workers",
            "audit",
            "index.json",
            "x.own",
            &long,
        ] {
            assert!(matches!(parse_id(bad), Err(Error::Invalid { .. })), "{bad:?}");
        }
    }

    #[test]
    fn paths_that_lead_elsewhere_or_mean_something_are_refused() {
        for good in [&b"outputs/report.md"[..], b"x", b"a/b/c", b"notes.txt", b"outputs/\xff\n"] {
            assert_eq!(parse_put_path(good).unwrap().as_bytes(), good);
        }
        let (long, deep) = ("x".repeat(256), "a/".repeat(60) + "a");
        for bad in [
            "",
            "/",
            "outputs",
            "logs",
            "context",
            "/etc/passwd",
            "..",
            "../w2/metadata.json",
            "outputs/../../w2",
            "a//b",
            "a/",
            "./a",
            "a\0",
            "metadata.json",
            "metadata.json/x",
            "metrics.jsonl",
            "thread.jsonl",
            "result.txt",
            "task.txt",
            "tool_calls/001_x.txt",
            "tools_used.json",
            "summary",
            "index.json",
            "evidence.txt",
            "evidence.4k.txt",
            "changes.diff",
            "children",
            "grep",
            ".swarmletfs-tmp-1",
            "outputs/.swarmletfs-x",
            &long,
            &deep,
        ] {
            assert!(
                matches!(parse_put_path(bad.as_bytes()), Err(Error::Invalid { .. })),
                "{bad:?}"
            );
        }
    }
}
