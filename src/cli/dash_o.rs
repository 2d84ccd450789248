//! Parser for the comma-separated lists of `-o`, as written by mount(8) and fstab.
//!
//! They mix options of this file system with generic ones that have no effect here. Unknown options
//! are rejected by name: a mistyped `owner=` must not show every worker.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::duration::parse_duration;
use super::exit::UsageError;
use super::mount_options::{MountOptions, merge_value, parse_budget, parse_format, parse_id};
use super::terminal::escape_controls;
use super::write_args::parse_size;

/// Options of mount(8) and fstab that have no effect: the mount is always read-only, nosuid and
/// nodev.
const IGNORED_OPTIONS: &[&str] = &[
    "ro",
    "rw",
    "nosuid",
    "nodev",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "lazytime",
    "nolazytime",
    "iversion",
    "noiversion",
    "sync",
    "async",
    "dirsync",
    "default_permissions",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nofail",
    "_netdev",
];

/// Parses all lists. `by_mount_helper` is true if mount(8) may have written them.
///
/// # Errors
///
/// Fails for an unknown option, an invalid value, or two different values of one option.
pub(super) fn parse(lists: &[OsString], by_mount_helper: bool) -> Result<MountOptions, UsageError> {
    let mut options = MountOptions::default();
    for item in lists.iter().flat_map(|list| split(list)) {
        apply_item(&mut options, &item, by_mount_helper)?;
    }
    Ok(options)
}

/// Adds one item of an `-o` list to `options`. `by_mount_helper` is true if mount(8) may have
/// written it.
fn apply_item(
    options: &mut MountOptions,
    item: &[u8],
    by_mount_helper: bool,
) -> Result<(), UsageError> {
    let mut parts = item.splitn(2, |byte| *byte == b'=');
    let (key, value) = (String::from_utf8_lossy(parts.next().unwrap_or(item)), parts.next());
    match (&*key, value) {
        ("", None) => {}
        ("store", Some(value)) => {
            let store = path("store", value)?;
            if !options.stores.contains(&store) {
                options.stores.push(store);
            }
        }
        ("format", Some(value)) => set("format", &mut options.format, value, parse_format)?,
        // mount(8) has an option `owner`, and since version 2.39 does not pass on `owner=ID`.
        ("owner" | "only_owner", Some(value)) => set(&key, &mut options.owner, value, parse_id)?,
        ("owners", Some(value)) => {
            merge_value("owners", &mut options.owners, Some(path("owners", value)?))?
        }
        ("run", Some(value)) => set("run", &mut options.run, value, parse_id)?,
        ("budget", Some(value)) => set("budget", &mut options.budget, value, parse_budget)?,
        ("stale", Some(value)) => set("stale", &mut options.stale, value, parse_duration)?,
        ("ttl", Some(value)) => set("ttl", &mut options.ttl, value, seconds)?,
        ("log", Some(value)) => merge_value("log", &mut options.log, Some(path("log", value)?))?,
        ("all_owners", None) => options.all_owners = true,
        ("audit", None) => options.audit = true,
        ("audit_max", Some(value)) => set("audit_max", &mut options.audit_max, value, parse_size)?,
        ("hard_links", None) => options.hard_links = true,
        ("no_cache", None) => options.cache.no_cache = true,
        ("index", Some(value)) => {
            merge_value("index", &mut options.cache.index, Some(path("index", value)?))?
        }
        ("no_index", None) => options.cache.no_index = true,
        ("allow_other", None) => options.allow_other = true,
        ("foreground", None) => options.foreground = true,
        ("noexec", None) => options.no_exec = true,
        ("exec", None) => options.no_exec = false,
        ("remount", None) => {
            return Err(UsageError(
                "-o remount is not supported: unmount, and mount again with the new options".into(),
            ));
        }
        // mount.fuse(8) adds these two unless their opposites are given, and uses the short form.
        ("dev" | "suid", None) if by_mount_helper => {}
        ("dev" | "suid", None) => {
            return Err(UsageError(format!(
                "-o {key} is not supported: \
                 a mount always hides devices and ignores set-user-id bits"
            )));
        }
        ("comment" | "fsname" | "subtype" | "user", Some(_)) => {}
        (key, _) if key.starts_with("x-") || key.starts_with("X-") => {}
        (key, None) if IGNORED_OPTIONS.contains(&key) => {}
        (
            "store" | "format" | "owner" | "only_owner" | "owners" | "run" | "budget" | "ttl"
            | "stale" | "log" | "index" | "audit_max",
            None,
        ) => {
            return Err(UsageError(format!("-o {key} needs a value: {key}=…")));
        }
        _ => {
            let item = escape_controls(&String::from_utf8_lossy(item));
            return Err(UsageError(format!(
                "-o {item} is not an option of this file system; see `swarmletfs mount --help`"
            )));
        }
    }
    Ok(())
}

fn seconds(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "not a whole number of seconds".into())
}

/// Splits an `-o` list at its commas; `\,` is a comma inside a value, `\\` a backslash.
fn split(list: &OsStr) -> Vec<Vec<u8>> {
    let mut items = vec![Vec::new()];
    let mut bytes = list.as_bytes().iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        let escaped =
            if byte == b'\\' { bytes.next_if(|next| matches!(next, b',' | b'\\')) } else { None };
        match (byte, escaped) {
            (b',', _) => items.push(Vec::new()),
            (byte, escaped) => {
                items.last_mut().into_iter().for_each(|item| item.push(escaped.unwrap_or(byte)))
            }
        }
    }
    items
}

fn path(key: &str, value: &[u8]) -> Result<PathBuf, UsageError> {
    if value.is_empty() {
        return Err(UsageError(format!("-o {key}= needs a path")));
    }
    Ok(PathBuf::from(OsString::from_vec(value.to_vec())))
}

/// Parses `value` and sets `option` to it, which must not have a different value already.
fn set<T: PartialEq>(
    key: &str,
    option: &mut Option<T>,
    value: &[u8],
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<(), UsageError> {
    let wrong = |why: &str| {
        let value = escape_controls(&String::from_utf8_lossy(value));
        UsageError(format!("-o {key}={value} is invalid: {}", escape_controls(why)))
    };
    let text = std::str::from_utf8(value).map_err(|_| wrong("not valid UTF-8"))?;
    merge_value(key, option, Some(parse(text).map_err(|why| wrong(&why))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_unescapes_commas_and_backslashes() {
        assert_eq!(
            split(OsStr::new(r"a\,b,c\\d\e,")),
            [b"a,b".to_vec(), br"c\d\e".to_vec(), Vec::new()]
        );
    }
}
