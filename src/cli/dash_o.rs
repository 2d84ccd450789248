//! The comma-separated lists of `-o`, as written by mount(8) and fstab.
//!
//! They mix options of this file system with generic ones that have no effect here. Each option
//! `a_b=c` of this file system becomes `--a-b=c`, so that clap parses both. Unknown options are
//! rejected: a mistyped `owner=` must not show every worker.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::error::{ContextKind, ErrorKind};
use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::exit::UsageError;
use super::mount_options::MountOptions;
use crate::name::printable;

/// Options of mount(8) and fstab that have no effect: the mount is always read-only, nosuid and
/// nodev.
const IGNORED_OPTIONS: &str = "ro rw nosuid nodev atime noatime diratime nodiratime relatime \
    norelatime strictatime lazytime nolazytime iversion noiversion sync async dirsync \
    default_permissions defaults auto noauto user nouser users nofail _netdev";

/// Parses all lists together with the options that were `typed` beside them. `by_mount_helper` is
/// true if mount(8) may have written the lists.
///
/// # Errors
///
/// Fails for an unknown option, an invalid value, two different values of one option, or options
/// that contradict each other.
pub(super) fn parse(
    typed: Option<&ArgMatches>,
    lists: &[OsString],
    by_mount_helper: bool,
) -> Result<MountOptions, UsageError> {
    let command = MountOptions::augment_args(Command::new("mount").no_binary_name(true))
        .disable_help_flag(true);
    let mut arguments = typed.map(|typed| long_options(&command, typed)).unwrap_or_default();
    let mut no_exec = false;
    for item in lists.iter().flat_map(|list| split(list)) {
        match &*item {
            b"exec" | b"noexec" => no_exec = item == b"noexec",
            _ if has_no_effect(&item, by_mount_helper)? => {}
            _ => arguments.push(long_option(&item)),
        }
    }
    // An option may be given twice with the same value.
    let mut unique: Vec<OsString> = Vec::new();
    for argument in arguments {
        if !unique.contains(&argument) {
            unique.push(argument);
        }
    }
    let parse = |arguments: &[OsString]| {
        MountOptions::from_arg_matches(&command.clone().try_get_matches_from(arguments)?)
    };
    let mut options = parse(&unique).map_err(|error| {
        // A message about escaped arguments is safe to print.
        let escaped: Vec<OsString> =
            unique.iter().map(|argument| printable(argument.as_bytes()).into()).collect();
        let error = parse(&escaped).err().unwrap_or(error);
        if let (ErrorKind::UnknownArgument, Some(name)) =
            (error.kind(), error.get(ContextKind::InvalidArg))
        {
            let name = name.to_string();
            let is_unknown = |item: &Vec<u8>| {
                let option = printable(long_option(item).as_bytes());
                option.split('=').next() == Some(&name)
            };
            let item = lists.iter().flat_map(|list| split(list)).find(is_unknown);
            let item = item.map_or(name.clone(), |item| printable(&item));
            return UsageError(format!(
                "-o {item} is not an option of this file system; see `swarmletfs mount --help`"
            ));
        }
        let error = error.to_string();
        let why = error.split("\n\n").next().unwrap_or_default().trim_end();
        let why = why.trim_start_matches("error: ");
        let lists = lists.join(OsStr::new(","));
        UsageError(format!("-o {}: {why}", printable(lists.as_bytes())))
    })?;
    options.no_exec = no_exec;
    Ok(options)
}

fn long_options(command: &Command, typed: &ArgMatches) -> Vec<OsString> {
    let mut arguments = Vec::new();
    for option in command.get_arguments() {
        let id = option.get_id().as_str();
        let name = OsString::from(format!("--{}", option.get_long().unwrap_or(id)));
        if option.get_action().takes_values() {
            let values = typed.get_raw(id).into_iter().flatten();
            arguments.extend(values.map(|value| [&name, value].join(OsStr::new("="))));
        } else if typed.get_flag(id) {
            arguments.push(name);
        }
    }
    arguments
}

/// Returns the item `a_b=c` of a list as `--a-b=c`.
fn long_option(item: &[u8]) -> OsString {
    // mount(8) has an option `owner`, and since version 2.39 does not pass on `owner=ID`.
    let mut option = match item.strip_prefix(b"only_owner") {
        Some(rest) if rest.is_empty() || rest.starts_with(b"=") => [b"--owner", rest].concat(),
        _ => [b"--", item].concat(),
    };
    let name = option.iter_mut().take_while(|byte| **byte != b'=');
    name.filter(|byte| **byte == b'_').for_each(|byte| *byte = b'-');
    OsString::from_vec(option)
}

/// Returns true if an item is a generic option, which has no effect here.
///
/// # Errors
///
/// Fails for a generic option that cannot be ignored.
fn has_no_effect(item: &[u8], by_mount_helper: bool) -> Result<bool, UsageError> {
    let text = String::from_utf8_lossy(item);
    Ok(match text.split_once('=').map_or((&*text, false), |(name, _)| (name, true)) {
        ("", has_value) => !has_value,
        (name, _) if name.starts_with("x-") || name.starts_with("X-") => true,
        ("comment" | "fsname" | "subtype" | "user", true) => true,
        ("remount", false) => {
            return Err(UsageError(
                "-o remount is not supported: unmount, and mount again with the new options".into(),
            ));
        }
        // mount.fuse(8) adds these two unless their opposites are given, and uses the short form.
        ("dev" | "suid", false) if by_mount_helper => true,
        (name @ ("dev" | "suid"), false) => {
            return Err(UsageError(format!(
                "-o {name} is not supported: \
                 a mount always hides devices and ignores set-user-id bits"
            )));
        }
        (name, has_value) => !has_value && IGNORED_OPTIONS.split(' ').any(|known| known == name),
    })
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
