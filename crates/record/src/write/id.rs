//! Ids of new workers.

use jiff::Timestamp;
use unicode_normalization::UnicodeNormalization;

use super::error::{During, Error, Result};
use super::temporary::random_hex;
use std::path::Path;
use swarmletfs_base::name::Name;
use swarmletfs_trace::swarmlet::{
    APPLIED, AUDIT, DRAFTS, REGISTRY, SUPERVISOR, TOMBSTONES, WORKERS,
};

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
pub(super) fn parse(id: &str) -> Result<Name> {
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
pub(super) fn generate(task: &str, now: Timestamp) -> Result<Name> {
    let time = now.strftime("%Y-%m-%dT%H-%M-%S");
    let digits = random_hex::<3>().during("read random bytes for", Path::new("a new id"), b"")?;
    let slug = slug(task);
    let id = if slug.is_empty() {
        format!("{time}_{digits}")
    } else {
        format!("{time}_{slug}_{digits}")
    };
    parse(&id)
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
            let id = generate(task, now).unwrap().to_text().into_owned();
            let digits = id.strip_prefix(start).unwrap_or_else(|| panic!("{id}"));
            assert!(digits.len() == 6 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
        }
        assert_ne!(generate("a", now).unwrap(), generate("a", now).unwrap());
    }

    #[test]
    fn ids_with_other_characters_are_refused() {
        for good in ["w1", "cloud-12-1a2b", "a.b:c_d", "_x", ":x", "9", &"x".repeat(200)] {
            assert_eq!(parse(good).unwrap().as_bytes(), good.as_bytes());
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
            assert!(matches!(parse(bad), Err(Error::Invalid { .. })), "{bad:?}");
        }
    }
}
