//! Options of `mount`, from the command line and from `-o`, and the cache and the search index that
//! some of them are about.
//!
//! mount(8) and fstab pass everything in lists of `-o`, mixed with generic options that have no
//! effect here. Each option `a_b=c` of this file system becomes `--a-b=c`, so that clap parses
//! both. An option given both ways must have one value. Unknown options are rejected: a mistyped
//! `owner=` must not show every worker. Paths stay bytes, and parsing accesses nothing on disk.
//!
//! Later runs reuse the cache and the index. They are stored in `$XDG_CACHE_HOME/swarmletfs` or
//! `~/.cache/swarmletfs`, readable only by this user. Without them everything works, but more
//! slowly.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::error::{ContextKind, ErrorKind};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::exit::UsageError;
use super::model_args::ModelArgs;
use super::object_args::ObjectArgs;
use super::sizes::parse_size;
use super::terminal::display_path;
use super::{discover, duration};
use crate::cache::DiskCache;
use crate::name::printable;
use crate::path_bytes;
use crate::text::budget::Budget;
use crate::trace::KnownFormat;
use crate::trace::known::FORMATS;

/// Options of a mount.
///
/// They are parsed from the command line and from `-o`, and handed to the background process.
#[derive(Debug, Default, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
pub(super) struct MountOptions {
    /// A folder of traces to show, a single transcript, or a part of an object store
    /// (s3://BUCKET/PREFIX); can be given several times
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

    /// Compute costs that records do not state, from the prices in this JSON file; see
    /// `swarmletfs cost --help`
    #[serde(
        serialize_with = "path_bytes::list::serialize",
        deserialize_with = "path_bytes::list::deserialize_one"
    )]
    #[arg(long, value_name = "FILE")]
    pub(super) prices: Option<PathBuf>,

    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// Seconds until a change of a finished worker is noticed [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub(super) ttl: Option<u32>,

    /// Time without a write after which an unfinished session of Claude Code counts as abandoned:
    /// 30s, 5m, 1h30m, or whole seconds [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_duration)]
    pub(super) stale: Option<Duration>,

    #[command(flatten)]
    pub(super) objects: ObjectArgs,

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

fn parse_budget(text: &str) -> Result<String, String> {
    Budget::parse(text).map(|_| text.to_owned())
}

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
pub(super) fn parse_dash_o(
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

pub(super) const CACHE_LIMIT: u64 = 512 << 20;
pub(super) const INDEX_LIMIT: u64 = 4 << 30;
pub(super) const INDEX: &str = "index";

/// Options for what is kept between runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
pub(super) struct CacheArgs {
    /// Do not cache parsed data for later runs
    #[arg(long)]
    pub(super) no_cache: bool,

    /// Store the search index in this folder, which is created if it is missing [default: inside
    /// the cache folder]
    #[serde(
        serialize_with = "path_bytes::list::serialize",
        deserialize_with = "path_bytes::list::deserialize_one"
    )]
    #[arg(long, value_name = "DIR", conflicts_with = "no_index")]
    pub(super) index: Option<PathBuf>,

    /// Store no search index: each process that searches reads every file
    #[arg(long)]
    pub(super) no_index: bool,
}

const FOLDER: &str = "swarmletfs";

impl CacheArgs {
    /// Opens the default cache directory, unless there shall be none.
    pub(super) fn open(&self, stores: &[PathBuf]) -> Option<Arc<DiskCache>> {
        if self.no_cache { None } else { open_cache(stores) }
    }
}

/// Opens the default cache directory, creating it if needed.
///
/// Returns `None` if there is no such directory, if it cannot be used, or if it lies inside one of
/// `stores`, where nothing may be written. The log then gives the reason.
fn open_cache(stores: &[PathBuf]) -> Option<Arc<DiskCache>> {
    let folder_path = default_cache_dir()?;
    open_outside_stores(&folder_path, stores, CACHE_LIMIT)
        .inspect_err(|why| {
            warn!("cannot cache parsed data in {}: {why}", display_path(&folder_path))
        })
        .ok()
        .map(Arc::new)
}

/// Opens the default cache directory to read it only. Returns `None` if it does not exist, or if it
/// cannot be used.
pub(super) fn open_cache_to_read(stores: &[PathBuf]) -> Option<Arc<DiskCache>> {
    let folder_path = default_cache_dir()?;
    let is_outside = !stores.iter().any(|store| is_within(&folder_path, store));
    is_outside.then(|| DiskCache::open_to_read(&folder_path).ok().map(Arc::new)).flatten()
}

/// Opens the index directory: the one given by `--index`, or the default one inside the directory
/// of `cache`. Returns `None` without either, and with `--no-index`.
///
/// # Errors
///
/// Fails if the directory given by `--index` cannot be used. A default one that cannot be used is
/// logged and skipped.
pub(super) fn open_index(
    stores: &[PathBuf],
    arguments: &CacheArgs,
    cache: Option<&DiskCache>,
) -> anyhow::Result<Option<Arc<DiskCache>>> {
    if arguments.no_index {
        return Ok(None);
    }
    let explicit = arguments.index.clone();
    let Some(folder_path) = explicit.or_else(|| Some(cache.and(default_cache_dir())?.join(INDEX)))
    else {
        return Ok(None);
    };
    let why = || format!("cannot keep the index in {}", display_path(&folder_path));
    match open_outside_stores(&folder_path, stores, INDEX_LIMIT) {
        Ok(index) => Ok(Some(Arc::new(index))),
        Err(error) if arguments.index.is_some() => Err(error).with_context(why),
        Err(error) => {
            warn!("{}: {error}", why());
            Ok(None)
        }
    }
}

/// Opens the cache in the directory `folder_path`, with at most `limit` bytes.
///
/// # Errors
///
/// Fails if the directory cannot be used or lies inside one of `stores`, where nothing may be
/// written.
fn open_outside_stores(
    folder_path: &Path,
    stores: &[PathBuf],
    limit: u64,
) -> anyhow::Result<DiskCache> {
    match stores.iter().find(|store| is_within(folder_path, store)) {
        Some(store) => anyhow::bail!("it lies inside the store {}", display_path(store)),
        None => Ok(DiskCache::open(folder_path, limit)?),
    }
}

/// Returns the path of the cache directory, which may not exist; `None` without a home directory.
pub(crate) fn default_cache_dir() -> Option<PathBuf> {
    Some(discover::user_folder("XDG_CACHE_HOME", ".cache")?.join(FOLDER))
}

/// Returns true if `folder_path` lies inside `store`. `folder_path` need not exist; `store` must be
/// resolved.
fn is_within(folder_path: &Path, store: &Path) -> bool {
    let existing = folder_path.ancestors().find_map(|folder| fs::canonicalize(folder).ok());
    existing.is_some_and(|existing| existing.starts_with(store))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    fn parse(typed: &[&str]) -> Result<MountOptions, UsageError> {
        let typed = ["swarmletfs", "mount"].iter().chain(typed);
        let matches = crate::cli::help::command().try_get_matches_from(typed).unwrap();
        let typed = matches.subcommand_matches("mount").unwrap();
        let arguments = crate::cli::mount::MountArgs::from_arg_matches(typed).unwrap();
        crate::cli::mount::options(&arguments, Some(typed))
    }

    #[test]
    fn dash_o_equals_long_options() {
        let listed = "store=/a,format=claude-code,owner=7,run=48,budget=4000,ttl=5,stale=2h,log=/l,foreground,allow_other,\
                      hard_links,no_cache,index=/i,prices=/p,model_command=m";
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
            "--prices=/p",
            "--model-command=m",
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
                "invalid value 'odd' for '--format <NAME>'\n  [possible values: swarmlet, atif, inspect-ai",
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

    #[test]
    fn split_unescapes_commas_and_backslashes() {
        assert_eq!(
            split(OsStr::new(r"a\,b,c\\d\e,")),
            [b"a,b".to_vec(), br"c\d\e".to_vec(), Vec::new()]
        );
    }
}
