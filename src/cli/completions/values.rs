//! The values that a store has for an argument.
//!
//! The view decides which workers there are, as for every reader. Nothing is written: neither a
//! cache nor an index. No other process is started. If the time is over, or a store cannot be read,
//! there are no values.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{ArgMatches, Command, ValueHint};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

use crate::analysis::settings::{Control, Settings};
use crate::cli::duration::parse_duration;
use crate::cli::mountinfo::MountTable;
use crate::cli::store_selection::StoreSelection;
use crate::name::is_unprintable;
use crate::trace::KnownFormat;
use crate::tree::{ListedEntry, NodeKind, Symlinks, Tree};
use crate::view::{Filter, View};

/// Time after which a store has no values.
const LIMIT: Duration = Duration::from_millis(300);

const LIMIT_VARIABLE: &str = "SWARMLETFS_COMPLETION_TIME";

const VALUES_MAX: usize = 1_000;

const WORKERS: &str = "workers/";

const NOTES: &str = "supervisor/";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueKind {
    Worker,
    Run,
    Path,
    Note,
    Mount,
}

impl ValueKind {
    /// Returns the kind of the argument `id` of a command, or `None` if no store has its values.
    fn of_argument(command: &[&str], id: &str) -> Option<ValueKind> {
        match (command, id) {
            (_, "run") => Some(ValueKind::Run),
            (["ls" | "tree" | "stat" | "cat" | "grep" | "search"], "paths") => {
                Some(ValueKind::Path)
            }
            (["compare"], "workers")
            | (["changes" | "apply" | "undo" | "discard" | "audit" | "record"], "worker")
            | (["show" | "log" | "diff"], "worker")
            | (["run"], "recover")
            | (["worker", "create"] | ["run"], "parent")
            | (["worker", "show" | "record" | "message" | "finish" | "annotate"], "id")
            | (["worker", "put"], "names") => Some(ValueKind::Worker),
            (["note", "read" | "write" | "append"], "path") => Some(ValueKind::Note),
            (["umount" | "attach" | "detach"], "mountpoint") => Some(ValueKind::Mount),
            _ => None,
        }
    }
}

pub(super) fn with_completers(
    command: Command,
    path: &[&str],
    options: &Arc<LineOptions>,
) -> Command {
    let command = command.mut_args(|argument| {
        let id = argument.get_id().as_str();
        match ValueKind::of_argument(path, id) {
            // An id comes first, and the text after it is no id.
            Some(_) if id == "names" && options.has_name => argument,
            Some(kind) => {
                let options = options.clone();
                argument
                    .add(ArgValueCompleter::new(move |typed: &OsStr| options.values(kind, typed)))
            }
            None if id == "command" => argument.value_hint(ValueHint::AnyPath),
            None => argument,
        }
    });
    command.mut_subcommands(|inner| {
        let name = inner.get_name().to_owned();
        with_completers(inner, &[path, &[&name]].concat(), options)
    })
}

/// The id of candidates that are only the shared beginnings of values.
pub(super) const BEGINNING: &str = "beginning";

#[derive(Debug, Default)]
struct FoundValues {
    values: Vec<String>,
    are_beginnings: bool,
}

/// Options before the cursor that restrict the values.
#[derive(Debug, Default)]
pub(super) struct LineOptions {
    stores: Vec<PathBuf>,
    format: Option<&'static KnownFormat>,
    filter: Filter,
    hard_links: bool,
    no_cache: bool,
    /// True if a name was typed where an id and a path may be.
    has_name: bool,
    /// True if no command has one of the options, so that others may not be understood, either.
    is_unclear: bool,
}

/// Returns the command with all values accepted as they are, since the line is not finished yet.
fn lenient(command: Command) -> Command {
    let command = command.mut_args(|argument| match argument.get_action().takes_values() {
        true => argument.value_parser(ValueParser::os_string()),
        false => argument,
    });
    command.mut_subcommands(lenient)
}

impl LineOptions {
    pub(super) fn parse(command: Command, words: Vec<OsString>) -> LineOptions {
        let command = lenient(command);
        let parsed = match command.clone().try_get_matches_from(&words) {
            Err(error) if error.kind() == ErrorKind::UnknownArgument => None,
            // The line may lack its end.
            Err(_) => command.clone().ignore_errors(true).try_get_matches_from(words).ok(),
            Ok(parsed) => Some(parsed),
        };
        let Some(parsed) = parsed else {
            return LineOptions { is_unclear: true, ..LineOptions::default() };
        };
        let (mut command, mut parsed) = (&command, &parsed);
        while let Some((name, inner)) = parsed.subcommand() {
            let Some(found) = command.find_subcommand(name) else { break };
            (command, parsed) = (found, inner);
        }
        let has = |id: &str| command.get_arguments().any(|argument| argument.get_id() == id);
        let is_set = |id: &str| matches!(parsed.try_get_one::<bool>(id), Ok(Some(true)));
        let value = |id: &str| raw_values(parsed, id).last()?.to_str().map(str::to_owned);
        // In other commands, the options describe a new worker.
        let is_reader = has("hard_links");
        LineOptions {
            stores: ["store", "stores"]
                .iter()
                .flat_map(|id| raw_values(parsed, id))
                .map(with_home)
                .collect(),
            format: match ["format", "store_format"].iter().find_map(|id| value(id)) {
                Some(name) => KnownFormat::by_name(&name),
                // Only readers show sessions of programs.
                None if is_reader || has("stores") => None,
                None => KnownFormat::by_name("swarmlet"),
            },
            filter: Filter {
                owner: value("owner").filter(|_| is_reader),
                run: value("run").filter(|_| is_reader),
            },
            hard_links: is_set("hard_links"),
            no_cache: is_set("no_cache"),
            has_name: !raw_values(parsed, "names").is_empty(),
            is_unclear: false,
        }
    }

    /// Returns the values that begin with `typed`, or none if they are not found in time.
    fn values(self: &Arc<Self>, kind: ValueKind, typed: &OsStr) -> Vec<CompletionCandidate> {
        let Some(typed) = typed.to_str().filter(|_| !self.is_unclear).map(str::to_owned) else {
            return Vec::new();
        };
        let limit = std::env::var(LIMIT_VARIABLE).ok().and_then(|time| parse_duration(&time).ok());
        let limit = limit.unwrap_or(LIMIT);
        let options = self.clone();
        let (sender, found) = mpsc::channel();
        // A store may not answer at all. Then the thread ends with the process.
        let spawned = thread::Builder::new().name("complete".into()).spawn(move || {
            let control = Arc::new(Control::until(Instant::now().checked_add(limit)));
            let found = options.find(kind, &typed, control.clone()).unwrap_or_default();
            // Values may be missing that renders leave out for lack of time.
            let _ =
                sender.send(if control.may_continue() { found } else { FoundValues::default() });
        });
        let found = spawned.ok().and_then(|_| found.recv_timeout(limit).ok()).unwrap_or_default();
        let id = found.are_beginnings.then(|| BEGINNING.to_owned());
        // An id that looks like an option would be taken for one.
        let values = found.values.into_iter().filter(|value| !value.starts_with('-'));
        values.map(|value| CompletionCandidate::new(value).id(id.clone())).collect()
    }

    /// Returns the values that begin with `typed`, sorted. `control` stops renders.
    ///
    /// # Errors
    ///
    /// There is no store, or it cannot be read.
    fn find(
        &self,
        kind: ValueKind,
        typed: &str,
        control: Arc<Control>,
    ) -> anyhow::Result<FoundValues> {
        let mut found: Vec<String> = match kind {
            ValueKind::Mount => {
                let mounts = MountTable::read()?;
                mounts.ours().filter_map(|mount| mount.point.to_str().map(str::to_owned)).collect()
            }
            ValueKind::Worker => {
                let visible = self.open(typed)?.visible();
                let names = visible.members.iter().map(|member| member.name.as_bytes());
                names.filter_map(text).map(str::to_owned).collect()
            }
            ValueKind::Run => {
                self.open("")?.visible().runs.values().map(|run| run.id.clone()).collect()
            }
            ValueKind::Path => self.paths(typed, "", control)?,
            ValueKind::Note => self.paths(typed, NOTES, control)?,
        };
        found.retain(|value| value.starts_with(typed));
        Ok(limited(found))
    }

    /// Opens the view of the command: at least the workers whose names begin with `name`. In a
    /// large store, reading all of them would take too long.
    fn open(&self, name: &str) -> anyhow::Result<View> {
        let mut selection =
            StoreSelection::without_probes(&self.stores, self.format, self.filter.clone())?;
        selection.hard_links = self.hard_links;
        selection.cache.no_cache = self.no_cache;
        // The number of a name that another store has, too, is no part of the id.
        let id_prefix = name.split_once('~').map_or(name, |(id, _)| id);
        selection.open_without_writing(id_prefix.as_bytes())
    }

    /// Returns the entries of the directory in `typed` below `base`. Directories end with `/`.
    fn paths(&self, typed: &str, base: &str, control: Arc<Control>) -> anyhow::Result<Vec<String>> {
        let folder =
            typed.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned() + "/");
        let below = typed.strip_prefix(WORKERS).filter(|_| base.is_empty());
        let worker = below.and_then(|below| below.split('/').next()).unwrap_or_default();
        let tree = Tree::new(self.open(worker)?, Settings::without_deadline(control));
        let path = format!("{base}{folder}");
        let path = if path.is_empty() { "." } else { &path };
        let entries = tree.with_path(path.as_bytes(), Symlinks::Follow, |place| {
            tree.list_folder(place.leaf().ino)
        })?;
        let is_folder = |entry: &ListedEntry| match entry.kind {
            NodeKind::Folder => true,
            NodeKind::File => false,
            NodeKind::Link => {
                let target = [path.as_bytes(), b"/", entry.name.as_bytes()].concat();
                let found =
                    tree.with_path(&target, Symlinks::Follow, |place| Ok(place.leaf().attr));
                found.is_ok_and(|attr| attr.kind == NodeKind::Folder)
            }
        };
        let named = entries.iter().filter_map(|entry| {
            let value = format!("{folder}{}", text(entry.name.as_bytes())?);
            let is_possible = value.starts_with(typed);
            is_possible.then(|| if is_folder(entry) { value + "/" } else { value })
        });
        Ok(named.collect())
    }
}

fn text(name: &[u8]) -> Option<&str> {
    std::str::from_utf8(name).ok()
}

fn raw_values<'a>(parsed: &'a ArgMatches, id: &str) -> Vec<&'a OsStr> {
    parsed.try_get_raw(id).ok().flatten().into_iter().flatten().collect()
}

/// Expands a leading `~/` of a path, since the shell has not done so yet.
fn with_home(path: &OsStr) -> PathBuf {
    let below = path.as_bytes().strip_prefix(b"~/").map(OsStr::from_bytes);
    match (below, std::env::var_os("HOME")) {
        (Some(below), Some(home)) => PathBuf::from(home).join(below),
        _ => path.into(),
    }
}

/// Sorts the values, and drops those that a terminal cannot show as they are. If there are too
/// many, keeps only their different beginnings.
fn limited(mut found: Vec<String>) -> FoundValues {
    found.retain(|value| !value.contains(is_unprintable));
    found.sort_unstable();
    found.dedup();
    let [Some(first), Some(last)] = [found.first(), found.last()] else {
        return FoundValues::default();
    };
    if found.len() <= VALUES_MAX {
        return FoundValues { values: found, are_beginnings: false };
    }
    let shared = first.chars().zip(last.chars()).take_while(|(a, b)| a == b).count();
    found.iter_mut().for_each(|value| *value = value.chars().take(shared + 1).collect());
    found.dedup();
    found.truncate(VALUES_MAX);
    FoundValues { values: found, are_beginnings: true }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::cli::help;

    fn parse(line: &str) -> LineOptions {
        let words = shlex::split(line).unwrap().into_iter().map(OsString::from).collect();
        LineOptions::parse(help::command(), words)
    }

    #[test]
    fn options_before_the_cursor_select_the_view() {
        let options = parse(
            "swarmletfs cat --store /a --store '/b c' --owner=7 --run 48 --no-cache --hard-links",
        );
        assert_eq!(options.stores, [PathBuf::from("/a"), "/b c".into()]);
        assert_eq!(options.filter, Filter { owner: Some("7".into()), run: Some("48".into()) });
        assert!(options.no_cache && options.hard_links && options.format.is_none());
        let options = parse("swarmletfs ls --format codex --run");
        assert_eq!(options.filter, Filter::default());
        assert_eq!(options.format.map(|format| format.name), Some("codex"));
        let options = parse("swarmletfs worker create --owner 7 --store s --parent");
        assert_eq!((options.filter, options.stores), (Filter::default(), vec!["s".into()]));
        assert_eq!(options.format.map(|format| format.name), Some("swarmlet"));
    }

    #[test]
    fn unfinished_values_hide_no_option_and_unknown_options_all() {
        let options = parse("swarmletfs ls --sort bogus --budget 1x --owner 1");
        assert_eq!(options.filter.owner.as_deref(), Some("1"));
        assert_eq!(parse("swarmletfs changes --audit-max $M --store /a").stores.len(), 1);
        let options = parse("swarmletfs changes --no-such-option --store /a");
        assert!(options.is_unclear && options.stores.is_empty());
    }

    #[test]
    fn values_are_sorted_and_printable() {
        let found = ["b", "a", "b", "c\u{1b}[31m", "d\n", "e\u{202e}", "f $(x) 'é"];
        assert_eq!(limited(found.map(String::from).to_vec()).values, ["a", "b", "f $(x) 'é"]);
    }

    #[test]
    fn too_many_values_become_their_beginnings() {
        let names = |count: usize| (0..count).map(|at| format!("w{at:05}")).collect();
        assert_eq!(limited(names(VALUES_MAX)).values.len(), VALUES_MAX);
        let many = limited(names(20_001));
        assert_eq!((many.values.len(), many.are_beginnings), (3, true));
        assert_eq!(many.values, ["w0", "w1", "w2"]);
    }
}
