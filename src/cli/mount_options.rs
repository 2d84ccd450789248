//! Options of `mount`, from the command line and from `-o`.
//!
//! mount(8) passes everything in `-o`, mixed with generic options that have no effect here. An
//! option given both ways must have one value. Paths stay bytes, and nothing on disk is accessed.

use std::path::PathBuf;

use super::cache_args::CacheArgs;
use super::exit::Usage;
use super::{MountArgs, dash_o};

/// Mount options, merged from the command line and `-o`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Options {
    /// Folders of traces; empty to discover one.
    pub(super) stores: Vec<PathBuf>,
    /// Show only this owner's workers.
    pub(super) owner: Option<String>,
    /// Show only this run's workers.
    pub(super) run: Option<String>,
    /// Show every owner's workers.
    pub(super) all_owners: bool,
    /// Show an owner's files even if they have several hard links.
    pub(super) hard_links: bool,
    /// What is kept between runs.
    pub(super) cache: CacheArgs,
    /// Let other users read the mount.
    pub(super) allow_other: bool,
    /// A size that [`crate::render::Budget`] parses.
    pub(super) budget: Option<String>,
    /// Seconds until a change of a finished worker is noticed.
    pub(super) ttl: Option<u32>,
    /// Path of the log file.
    pub(super) log: Option<PathBuf>,
    /// Stay in the foreground.
    pub(super) foreground: bool,
}

impl Options {
    /// Merges the arguments with the `-o` lists.
    ///
    /// # Errors
    ///
    /// Fails for an unknown option, an invalid value, or contradictory values. Also fails if other
    /// users may read the mount but neither `--owner` nor `--all-owners` is given.
    pub(super) fn from_args(arguments: &MountArgs) -> Result<Options, Usage> {
        let listed = dash_o::parse(&arguments.options, arguments.short)?;
        let mut stores = arguments.stores.clone();
        stores.extend(listed.stores.into_iter().filter(|store| !arguments.stores.contains(store)));
        let options = Options {
            stores,
            owner: merge("owner", arguments.owner.clone(), listed.owner)?,
            run: merge("run", arguments.run.clone(), listed.run)?,
            all_owners: arguments.all_owners || listed.all_owners,
            hard_links: arguments.hard_links || listed.hard_links,
            cache: CacheArgs {
                no_cache: arguments.cache.no_cache || listed.cache.no_cache,
                index: merge("index", arguments.cache.index.clone(), listed.cache.index)?,
                no_index: arguments.cache.no_index || listed.cache.no_index,
            },
            allow_other: arguments.allow_other || listed.allow_other,
            budget: merge("budget", arguments.budget.clone(), listed.budget)?,
            ttl: merge("ttl", arguments.ttl, listed.ttl)?,
            log: merge("log", arguments.log.clone(), listed.log)?,
            foreground: arguments.foreground || listed.foreground,
        };
        if options.owner.is_some() && options.all_owners {
            return Err(Usage("owner and all_owners contradict each other: give only one".into()));
        }
        if options.cache.index.is_some() && options.cache.no_index {
            return Err(Usage("index and no_index contradict each other: give only one".into()));
        }
        if options.allow_other && options.owner.is_none() && !options.all_owners {
            return Err(Usage(
                "--allow-other lets every user of this machine read the mount: choose the workers with --owner ID, \
                 or with --all-owners"
                    .into(),
            ));
        }
        Ok(options)
    }
}

/// Parses the id of an owner or run: any nonempty text.
pub(super) fn parse_id(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("an id cannot be empty".into()) } else { Ok(text.to_owned()) }
}

/// Merges the two values of an option, if they do not differ.
pub(super) fn merge<T: PartialEq>(key: &str, first: Option<T>, second: Option<T>) -> Result<Option<T>, Usage> {
    match (first, second) {
        (Some(first), Some(second)) if first != second => {
            Err(Usage(format!("{key} is given twice with different values: give it once")))
        }
        (first, second) => Ok(first.or(second)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn gather(typed: &[&str]) -> Result<Options, Usage> {
        let typed = ["swarmletfs", "mount"].iter().chain(typed);
        let crate::cli::Command::Mount(arguments) = crate::cli::Cli::try_parse_from(typed).unwrap().command else {
            panic!("not a mount");
        };
        Options::from_args(&arguments)
    }

    #[test]
    fn dash_o_equals_long_options() {
        let listed =
            "store=/a,owner=7,run=48,budget=4000,ttl=5,log=/l,foreground,allow_other,hard_links,no_cache,index=/i";
        let typed = [
            "--store=/a",
            "--owner=7",
            "--run=48",
            "--budget=4000",
            "--ttl=5",
            "--log=/l",
            "-f",
            "--allow-other",
            "--hard-links",
            "--no-cache",
            "--index=/i",
        ];
        let options = gather(&["-o", listed]).unwrap();
        assert_eq!(options, gather(&typed).unwrap());
        assert_eq!(gather(&["-o", r"store=/a\,b"]).unwrap().stores, [PathBuf::from("/a,b")]);
        let mut both = typed.to_vec();
        both.extend(["-o", listed]);
        assert_eq!(options, gather(&both).unwrap());
        assert_eq!(options.owner.as_deref(), Some("7"));
        assert!(options.hard_links);
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
            assert!(gather(typed).is_err(), "{typed:?}");
        }
    }

    #[test]
    fn generic_mount_options_have_no_effect() {
        let usual = "rw,,nosuid,nodev,noexec,noatime,relatime,default_permissions,auto,noauto,user,users,nofail,\
                     _netdev,x-systemd.automount,x-a=b,comment=c,fsname=f,subtype=s";
        assert_eq!(gather(&["-o", usual]).unwrap(), Options::default());
        assert_eq!(gather(&["--__short", "-o", "rw,dev,suid"]).unwrap(), Options::default());
    }

    #[test]
    fn invalid_items_are_named_in_the_error() {
        for (list, named) in [
            ("suid", "suid"),
            ("dev", "dev"),
            ("colour=red", "colour=red"),
            ("ownr=7", "ownr=7"),
            ("ttl=soon", "ttl=soon"),
            ("budget=much", "budget=much"),
            ("store=", "store="),
            ("store", "store=…"),
            ("owner=", "owner="),
            ("foreground=1", "foreground=1"),
            ("\x1b[31m", "\\u{1b}"),
        ] {
            let Usage(sentence) = gather(&["-o", list]).unwrap_err();
            assert!(sentence.contains(named) && !sentence.contains('\x1b'), "{sentence}");
        }
    }

    #[test]
    fn allow_other_requires_an_owner_choice() {
        assert!(gather(&["--allow-other"]).is_err());
        assert!(gather(&["--allow-other", "--owner", "7"]).is_ok());
        assert!(gather(&["--allow-other", "-o", "all_owners"]).is_ok());
    }
}
