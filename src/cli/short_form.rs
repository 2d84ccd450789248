//! The short forms `swarmletfs MOUNTPOINT` and `swarmletfs STORE MOUNTPOINT`, as used by mount(8).
//!
//! They apply only if the first operand contains a `/`. A mistyped command contains none, so it
//! never mounts.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::probe;
use super::terminal::shell_quote;

/// Expands a short form to `mount`; returns other arguments unchanged.
pub(super) fn expand(mut arguments: Vec<OsString>, cli: &Command) -> Vec<OsString> {
    let mount = cli.find_subcommand("mount");
    let first = mount
        .zip(arguments.split_first())
        .and_then(|(mount, (_, rest))| first_operand(rest, mount));
    if first.is_some_and(|first| first.as_bytes().contains(&b'/')) {
        arguments.splice(1..1, ["mount", "--__short"].map(OsString::from));
    }
    arguments
}

/// Adds a hint to the error for an unknown command that is the name of a directory: how to mount on
/// it.
pub(super) fn hint(error: &mut clap::Error, arguments: &[OsString]) {
    let word = match arguments.get(1) {
        Some(word) if error.kind() == ErrorKind::InvalidSubcommand && !word.is_empty() => {
            Path::new(word)
        }
        _ => return,
    };
    let is_folder =
        std::path::absolute(word).is_ok_and(|folder| probe::first_entry(&folder).is_ok());
    if is_folder {
        let written = shell_quote(&Path::new(".").join(word));
        let tip = format!("to mount on the folder, write it with a slash: `swarmletfs {written}`");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

/// Returns the first argument that is neither an option nor an option's value.
fn first_operand<'a>(arguments: &'a [OsString], mount: &Command) -> Option<&'a OsStr> {
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let bytes = argument.as_bytes();
        if bytes == b"--" {
            return arguments.next().map(OsString::as_os_str);
        }
        let value_follows = match bytes {
            [b'-', b'-', long @ ..] => {
                takes_value(mount, |arg| arg.get_long().is_some_and(|l| l.as_bytes() == long))
            }
            // In a cluster such as -fo, only the last option can take the next argument as its
            // value.
            [b'-', cluster @ .., last] => {
                let is =
                    |byte: u8| move |arg: &clap::Arg| arg.get_short() == Some(char::from(byte));
                !cluster.iter().any(|byte| takes_value(mount, is(*byte)))
                    && takes_value(mount, is(*last))
            }
            _ => return Some(argument),
        };
        if value_follows {
            arguments.next();
        }
    }
    None
}

fn takes_value(mount: &Command, is: impl Fn(&clap::Arg) -> bool) -> bool {
    mount.get_arguments().any(|arg| is(arg) && arg.get_action().takes_values())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn expanded(typed: &[&str]) -> bool {
        let typed = std::iter::once("swarmletfs")
            .chain(typed.iter().copied())
            .map(OsString::from)
            .collect();
        expand(typed, &crate::cli::Cli::command()).get(1).is_some_and(|first| first == "mount")
    }

    #[test]
    fn operand_with_a_slash_expands_to_mount() {
        for typed in [
            &["/mnt/swarm"][..],
            &["./swarm"],
            &["/store", "/mnt/swarm", "-o", "rw,allow_other"],
            &["-o", "ro", "/store", "/mnt/swarm"],
            &["-fo", "ro", "/mnt/swarm"],
            &["-oro", "/mnt/swarm"],
            &["--owner", "7", "/mnt/swarm"],
            &["--owner=7", "/mnt/swarm"],
            &["--", "/mnt/swarm"],
        ] {
            assert!(expanded(typed), "{typed:?}");
        }
    }

    #[test]
    fn other_arguments_are_unchanged() {
        for typed in [
            &[][..],
            &["mout", "/mnt/swarm"],
            &["swarm"],
            &["umount", "/mnt/swarm"],
            &["--store", "/store"],
            &["-o", "store=/store"],
            &["--help"],
            &["-", "/mnt/swarm"],
            &["", "/mnt/swarm"],
        ] {
            assert!(!expanded(typed), "{typed:?}");
        }
    }
}
