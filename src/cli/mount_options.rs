//! Options of `mount`, from the command line and from `-o`.
//!
//! mount(8) passes everything in `-o`, mixed with generic options that have no effect here. An
//! option given both ways must have one value. Paths stay bytes, and nothing on disk is accessed.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::{Deserialize, Serialize};

use super::cache_args::CacheArgs;
use super::duration;
use super::exit::UsageError;
use super::write_args::parse_size;
use crate::path_bytes;
use crate::text::budget::Budget;
use crate::trace::KnownFormat;
use crate::trace::known::FORMATS;

/// Options of a mount.
///
/// They are parsed from the command line and from `-o`, and handed to the background process.
#[derive(Debug, Default, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
pub(super) struct MountOptions {
    /// A folder of traces to show, or a single transcript; can be given several times
    #[serde(with = "path_bytes::list")]
    #[arg(long = "store", value_name = "PATH")]
    pub(super) stores: Vec<PathBuf>,

    /// The format of the stores [default: detected]
    #[arg(long, value_name = "NAME", value_parser = format_names())]
    pub(super) format: Option<String>,

    /// Show only the workers of this owner
    #[arg(long, value_name = "ID", conflicts_with = "all_owners", value_parser = parse_id)]
    pub(super) owner: Option<String>,

    /// Show only the workers of this run
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    pub(super) run: Option<String>,

    /// Show the workers of every owner, even to other users of this machine
    #[arg(long)]
    pub(super) all_owners: bool,

    /// With --owner, also show files that have several hard links, for stores kept as hard-linked
    /// backups
    #[arg(long)]
    pub(super) hard_links: bool,

    #[command(flatten)]
    pub(super) cache: CacheArgs,

    /// Let other users of this machine read the mount; needs --owner or --all-owners
    #[arg(long)]
    pub(super) allow_other: bool,

    /// Show several owners, each in a folder owners/ID that only the owner's user can enter: a JSON
    /// file of owners and users, such as {"7": "alice", "8": 1002}; self leads to the reader's own
    /// folder
    #[serde(
        serialize_with = "path_bytes::list::serialize",
        deserialize_with = "path_bytes::list::deserialize_one"
    )]
    #[arg(long, value_name = "MAP", conflicts_with_all = ["owner", "all_owners", "audit"])]
    pub(super) owners: Option<PathBuf>,

    /// Record which files are opened, by whom; `swarmletfs audit --stats` sums it up
    #[arg(long)]
    pub(super) audit: bool,

    /// Maximum size of the log of --audit; the oldest files are removed: bytes, optionally with k,
    /// M or G [default: 256M]
    #[arg(long, value_name = "SIZE", requires = "audit", value_parser = parse_size)]
    pub(super) audit_max: Option<u64>,

    /// Maximum size of evidence.txt: bytes, optionally with k or M, or tokens, as in 8000tok
    /// [default: 16000 per worker, 28000 for a run or the swarm]
    #[arg(long, value_name = "SIZE", value_parser = parse_budget)]
    pub(super) budget: Option<String>,

    /// Seconds until a change of a finished worker is noticed [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub(super) ttl: Option<u32>,

    /// Time without a write after which an unfinished session of Claude Code counts as abandoned:
    /// 30s, 5m, 1h30m, or whole seconds [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_duration)]
    pub(super) stale: Option<Duration>,

    /// Stay in the foreground; Ctrl-C unmounts
    #[arg(long, short)]
    pub(super) foreground: bool,

    /// Append a log to this regular file, created readable only by its owner; links, FIFOs and
    /// devices are rejected
    #[serde(
        serialize_with = "path_bytes::list::serialize",
        deserialize_with = "path_bytes::list::deserialize_one"
    )]
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,

    /// Let no file in the mount be executed. Only in `-o`.
    #[arg(skip)]
    pub(super) no_exec: bool,

    /// Source of the mount in the kernel's mount table. Only mount(8) chooses one.
    #[arg(skip)]
    pub(super) source: Option<String>,
}

impl MountOptions {
    /// Returns the format of the stores, or `None` to detect it.
    pub(super) fn format(&self) -> Option<&'static KnownFormat> {
        self.format.as_deref().and_then(KnownFormat::by_name)
    }

    /// Returns true if an option selects the workers to show by owner.
    pub(super) fn chooses_owners(&self) -> bool {
        self.owner.is_some() || self.all_owners || self.owners.is_some()
    }

    /// Checks the options and returns them.
    ///
    /// # Errors
    ///
    /// Fails if other users may read the mount but no option selects the workers to show.
    pub(super) fn check(self) -> Result<MountOptions, UsageError> {
        if self.allow_other && !self.chooses_owners() {
            return Err(UsageError(
                "--allow-other lets every user of this machine read the mount: choose the workers \
                 with --owner ID, --owners MAP or --all-owners"
                    .into(),
            ));
        }
        Ok(self)
    }
}

/// Parses the id of an owner or run: any nonempty text.
pub(super) fn parse_id(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("an id cannot be empty".into()) } else { Ok(text.to_owned()) }
}

pub(super) fn format_names() -> PossibleValuesParser {
    PossibleValuesParser::new(FORMATS.map(|format| format.name))
}

pub(super) fn parse_budget(text: &str) -> Result<String, String> {
    Budget::parse(text).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use clap::{CommandFactory, FromArgMatches};

    fn parse(typed: &[&str]) -> Result<MountOptions, UsageError> {
        let typed = ["swarmletfs", "mount"].iter().chain(typed);
        let matches = crate::cli::Cli::command().try_get_matches_from(typed).unwrap();
        let typed = matches.subcommand_matches("mount").unwrap();
        let arguments = crate::cli::mount::MountArgs::from_arg_matches(typed).unwrap();
        crate::cli::mount::options(&arguments, Some(typed))
    }

    #[test]
    fn dash_o_equals_long_options() {
        let listed = "store=/a,format=claude-code,owner=7,run=48,budget=4000,ttl=5,stale=2h,log=/l,foreground,allow_other,\
                      hard_links,no_cache,index=/i";
        let typed = [
            "--store=/a",
            "--format=claude-code",
            "--owner=7",
            "--run=48",
            "--budget=4000",
            "--ttl=5",
            "--stale=2h",
            "--log=/l",
            "-f",
            "--allow-other",
            "--hard-links",
            "--no-cache",
            "--index=/i",
        ];
        let options = parse(&["-o", listed]).unwrap();
        assert_eq!(options, parse(&typed).unwrap());
        assert_eq!(parse(&["-o", r"store=/a\,b"]).unwrap().stores, [PathBuf::from("/a,b")]);
        let mut both = typed.to_vec();
        both.extend(["-o", listed]);
        assert_eq!(options, parse(&both).unwrap());
        assert_eq!(options.owner.as_deref(), Some("7"));
        assert!(options.hard_links);
        // As in an fstab for older and newer versions of mount(8).
        let twice = parse(&["--owner", "7", "-o", "owner=7,only_owner=7"]).unwrap();
        assert_eq!(twice.owner.as_deref(), Some("7"));
    }

    #[test]
    fn contradictory_options_are_rejected() {
        for typed in [
            &["--owner", "7", "-o", "owner=8"][..],
            &["-o", "ttl=1,ttl=2"],
            &["-o", "run=1", "-o", "run=2"],
            &["-o", "owner=7,all_owners"],
            &["--owner", "7", "-o", "all_owners"],
            &["--index", "/a", "-o", "index=/b"],
            &["--index", "/a", "-o", "no_index"],
        ] {
            assert!(parse(typed).is_err(), "{typed:?}");
        }
    }

    #[test]
    fn generic_mount_options_have_no_effect() {
        let usual = "rw,,nosuid,nodev,noatime,relatime,default_permissions,auto,noauto,user,users,\
                     nofail,_netdev,x-systemd.automount,x-a=b,comment=c,fsname=f,subtype=s";
        assert_eq!(parse(&["-o", usual]).unwrap(), MountOptions::default());
        assert!(parse(&["-o", "user,noexec"]).unwrap().no_exec);
        assert!(!parse(&["-o", "user,noexec,exec"]).unwrap().no_exec);
        assert_eq!(parse(&["--__short", "-o", "rw,dev,suid"]).unwrap(), MountOptions::default());
    }

    #[test]
    fn invalid_items_are_named_in_the_error() {
        for (list, named) in [
            ("suid", "suid"),
            ("dev", "dev"),
            ("remount", "remount"),
            ("colour=red", "-o colour=red is not an option"),
            ("ownr=7", "-o ownr=7 is not an option"),
            ("ttl=soon", "ttl=soon"),
            ("stale=soon", "stale=soon"),
            (
                "format=odd",
                "invalid value 'odd' for '--format <NAME>'\n  [possible values: swarmlet, mini-swe-agent",
            ),
            ("budget=much", "budget=much"),
            ("store=", "store="),
            ("store", "-o store: a value is required for '--store <PATH>'"),
            ("owner=", "owner="),
            ("only_owner", "-o only_owner: a value is required for '--owner <ID>'"),
            ("only_owner=7,owner=8", "'--owner <ID>' cannot be used multiple times"),
            ("owner=7,only_owner=8", "'--owner <ID>' cannot be used multiple times"),
            ("audit_max=1k", "--audit"),
            ("foreground=1", "foreground=1"),
            ("\x1b[31m", "\\u{1b}"),
        ] {
            let UsageError(sentence) = parse(&["-o", list]).unwrap_err();
            assert!(sentence.contains(named) && !sentence.contains('\x1b'), "{sentence}");
        }
    }

    #[test]
    fn serialized_options_keep_every_value() {
        let mut options =
            parse(&["--store=/a", "--ttl=5", "--stale=90s", "--log=/l", "--no-cache"]).unwrap();
        options.stores.push(OsString::from_vec(b"/\xff".to_vec()).into());
        for options in [options, MountOptions::default()] {
            let bytes = postcard::to_stdvec(&options).unwrap();
            assert_eq!(postcard::from_bytes::<MountOptions>(&bytes).unwrap(), options);
        }
    }

    #[test]
    fn allow_other_requires_an_owner_choice() {
        assert!(parse(&["--allow-other"]).is_err());
        assert!(parse(&["--allow-other", "--owner", "7"]).is_ok());
        assert!(parse(&["--allow-other", "-o", "all_owners"]).is_ok());
    }
}
