//! Command lines of mount(8): `mount.swarmletfs`, this program as mount(8) runs it for /etc/fstab
//! and `mount -t`, and the short forms `swarmletfs MOUNTPOINT` and `swarmletfs STORE MOUNTPOINT`.
//!
//! The name under which the program is run selects `mount.swarmletfs`. mount(8) has a command line
//! and exit codes of its own, and shows the source of a mount as it is written in /etc/fstab:
//! otherwise `mount -a` would mount it again.
//!
//! The short forms apply only if the first operand contains a `/`. A mistyped command contains
//! none, so it never mounts.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Parser};

use super::exit::{self, UsageError};
use super::probe;
use super::terminal::{QuietArg, display_path, print_message, shell_quote};
use super::{log, mount, mount_options, serve};
use crate::name::printable;

const NAMES: [&str; 2] = ["mount.swarmletfs", "mount.fuse.swarmletfs"];

/// Exit code of mount(8) for an incorrect invocation.
const INVOCATION: u8 = 1;

/// Exit code of mount(8) for a failed mount.
const FAILED: u8 = 32;

const HELP: &str = "\
mount(8) runs this program for lines of /etc/fstab with the type swarmletfs, and for `mount -t \
swarmletfs`. It returns when the mount answers. Root needs no other program for it, other users \
need fusermount3.

The options are those of swarmletfs-mount(1), with _ for -, such as allow_other and all_owners, and \
those of mount(8). One of only_owner=ID, owners=MAP and all_owners is needed. only_owner is \
--owner: newer versions of mount(8) take owner=ID for their own option owner. An option that is \
not known is an error, even with -s: a mistyped option must not show every worker.

Examples:
  mount -t swarmletfs -o only_owner=alice /srv/swarm /mnt/swarm
  umount /mnt/swarm

Lines of /etc/fstab, the second for two stores in one mount:
  /srv/swarm /mnt/swarm swarmletfs only_owner=alice,allow_other 0 0
  swarm /mnt/all swarmletfs store=/srv/a,store=/srv/b,all_owners 0 0

Exit code: 0 if it was mounted, 1 for a usage error, 32 if it could not be mounted.";

/// Arguments that mount(8) gives to a helper.
#[derive(Debug, Parser)]
#[command(
    name = "mount.swarmletfs",
    about = "Mount traces of agents, for mount(8)",
    version,
    after_help = HELP
)]
struct HelperArgs {
    /// The folder of traces; a name without / if store= names it
    source: PathBuf,

    /// The empty folder to mount it on
    mountpoint: PathBuf,

    /// Comma-separated mount options; write a comma inside a value as \,
    #[arg(short = 'o', value_name = "OPTIONS")]
    lists: Vec<OsString>,

    /// Check everything that does not read the store, and do not mount
    #[arg(short = 'f')]
    fake: bool,

    /// Print what was mounted
    #[arg(short = 'v')]
    verbose: bool,

    /// Has no effect: mounts are not written to /etc/mtab
    #[arg(short = 'n')]
    _no_mtab: bool,

    /// Has no effect: an unknown option is always an error
    #[arg(short = 's')]
    _sloppy: bool,

    /// The file system type
    #[arg(short = 't', value_name = "TYPE", value_parser = ["swarmletfs", "fuse.swarmletfs"])]
    _fs_type: Option<String>,
}

pub(super) fn is_named_by(arguments: &[OsString]) -> bool {
    let name = arguments.first().and_then(|program| Path::new(program).file_name());
    name.is_some_and(|name| NAMES.iter().any(|known| name == *known))
}

/// Mounts as mount(8) requests. Returns one of its exit codes.
pub(super) fn main(arguments: &[OsString]) -> ExitCode {
    let parsed = HelperArgs::try_parse_from(arguments).map_err(|error| {
        // A message about escaped arguments is safe to print.
        let escaped = arguments.iter().map(|argument| printable(argument.as_encoded_bytes()));
        HelperArgs::try_parse_from(escaped).err().unwrap_or(error)
    });
    let parsed = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            let code = exit::report_parse_error(&error);
            return if code == ExitCode::SUCCESS { code } else { ExitCode::from(INVOCATION) };
        }
    };
    let Err(error) = run(parsed) else { return ExitCode::SUCCESS };
    print_message(&format!("{error:#}"));
    ExitCode::from(if error.is::<UsageError>() { INVOCATION } else { FAILED })
}

pub(super) fn write_man_page(dir: &Path) -> std::io::Result<()> {
    clap_mangen::Man::new(HelperArgs::command()).section("8").generate_to(dir).map(drop)
}

fn run(arguments: HelperArgs) -> anyhow::Result<()> {
    serve::reexec_with_few_arenas();
    let mut options = mount_options::parse_dash_o(None, &arguments.lists, true)?.check()?;
    if !options.chooses_owners() {
        // mount(8) may have dropped owner=ID, which must not show every worker.
        return Err(UsageError(
            "cannot tell whose workers to show; try the option only_owner=ID, owners=MAP or \
             all_owners (newer versions of mount take owner=ID for their own option)"
                .into(),
        )
        .into());
    }
    options.source = listed_source(&arguments.source);
    log::check()?;
    let mut paths = vec![arguments.mountpoint];
    if is_path(&arguments.source) {
        paths.insert(0, arguments.source);
    } else if options.stores.is_empty() {
        // At boot, nobody sees which store a search would find.
        return Err(UsageError(format!(
            "cannot mount {}: it is no path; try the path of the folder of traces, or the option \
             store=PATH",
            display_path(&arguments.source)
        ))
        .into());
    }
    let quiet = QuietArg::new(!arguments.verbose);
    let (plan, claim) = mount::plan(paths, options, quiet)?;
    if arguments.fake { Ok(()) } else { mount::start(plan, claim, quiet) }
}

fn is_path(source: &Path) -> bool {
    source.as_os_str().as_bytes().contains(&b'/')
}

/// Returns the source as the kernel's mount table can show it, or `None`.
///
/// fusermount3 takes it in a list of options, where a comma or backslash would end or change it.
fn listed_source(source: &Path) -> Option<String> {
    let text = source.to_str()?;
    let is_plain = !text.contains([',', '\\']) && !text.contains(char::is_control);
    is_plain.then(|| text.to_owned())
}

/// Expands a short form to `mount`; returns other arguments unchanged.
pub(super) fn expand_short_form(mut arguments: Vec<OsString>, cli: &Command) -> Vec<OsString> {
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
pub(super) fn hint_at_short_form(error: &mut clap::Error, arguments: &[OsString]) {
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
pub(super) fn first_operand<'a>(arguments: &'a [OsString], mount: &Command) -> Option<&'a OsStr> {
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
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn program_name_selects_the_helper() {
        let is_helper = |name: &str| is_named_by(&[OsString::from(name)]);
        assert!(is_helper("mount.swarmletfs") && is_helper("/sbin/mount.fuse.swarmletfs"));
        assert!(!is_helper("swarmletfs") && !is_helper("mount.swarmletfs.sh"));
        assert!(!is_named_by(&[]));
    }

    #[test]
    fn clap_definition_is_valid() {
        HelperArgs::command().debug_assert();
    }

    #[test]
    fn source_that_could_add_an_option_is_not_listed() {
        let listed = |source: &str| listed_source(Path::new(source));
        assert_eq!(listed("/srv/my swarm").as_deref(), Some("/srv/my swarm"));
        for source in ["/srv/a,suid", "/srv/a\\,b", "/srv/a\n"] {
            assert_eq!(listed(source), None, "{source}");
        }
    }

    fn expanded(typed: &[&str]) -> bool {
        let typed = std::iter::once("swarmletfs")
            .chain(typed.iter().copied())
            .map(OsString::from)
            .collect();
        expand_short_form(typed, &crate::cli::help::command())
            .get(1)
            .is_some_and(|first| first == "mount")
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
