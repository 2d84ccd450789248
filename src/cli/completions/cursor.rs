//! The argument at the cursor of an unfinished command line, as clap parses it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::{Arg, ArgMatches, Command};

use crate::trace::KnownFormat;
use crate::view::Filter;

/// Marks the word at the cursor. It is a noncharacter, which no shell enters.
const MARK: &str = "\u{10ffff}";

/// Kind of an argument whose values a store has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreValueKind {
    /// Name of a worker.
    Worker,
    /// Id of a run.
    Run,
    /// Path in the tree.
    Path,
    /// Path of a note in the tree's `supervisor/`.
    Note,
    /// Mountpoint of a swarmletfs mount.
    Mount,
}

impl StoreValueKind {
    /// Returns the kind of the argument `id` of a command, or `None` if no store has its values.
    pub(super) fn of_argument(command: &[&str], id: &str) -> Option<StoreValueKind> {
        match (command, id) {
            (_, "run") => Some(StoreValueKind::Run),
            (["ls" | "tree" | "stat" | "cat" | "grep" | "search"], "paths") => {
                Some(StoreValueKind::Path)
            }
            (["compare"], "workers")
            | (["changes" | "apply" | "undo" | "discard" | "audit" | "record"], "worker")
            | (["run"], "recover")
            | (["worker", "create"] | ["run"], "parent")
            | (["worker", "show" | "record" | "message" | "finish" | "annotate"], "id")
            | (["worker", "put"], "names") => Some(StoreValueKind::Worker),
            (["note", "read" | "write" | "append"], "path") => Some(StoreValueKind::Note),
            (["umount" | "attach" | "detach"], "mountpoint") => Some(StoreValueKind::Mount),
            _ => None,
        }
    }
}

/// The value at the cursor, and the options before it that select what it may be.
#[derive(Debug)]
pub(super) struct TypedArgument {
    pub(super) kind: StoreValueKind,
    /// The beginning of the value that was typed.
    pub(super) typed: String,
    /// Stores that the line names.
    pub(super) stores: Vec<PathBuf>,
    pub(super) format: Option<&'static KnownFormat>,
    pub(super) filter: Filter,
    pub(super) hard_links: bool,
    pub(super) no_cache: bool,
}

impl TypedArgument {
    /// Parses the words up to the cursor; the last one is the one at the cursor. Returns `None` if
    /// no store has the values of its argument, or if the words before it are wrong.
    pub(super) fn parse(command: Command, mut words: Vec<OsString>) -> Option<TypedArgument> {
        words.last_mut()?.push(MARK);
        let mut command = lenient(command);
        let parsed = command.try_get_matches_from_mut(words).ok()?;
        let (mut path, mut command, mut parsed) = (Vec::new(), &command, &parsed);
        while let Some((name, inner)) = parsed.subcommand() {
            path.push(name);
            (command, parsed) = (command.find_subcommand(name)?, inner);
        }
        let (argument, typed) = command.get_arguments().find_map(|argument| {
            let values = raw_values(parsed, argument.get_id().as_str());
            let marked = values.iter().find_map(|value| value.to_str()?.strip_suffix(MARK));
            // An id comes first, and what follows is no id.
            let is_second = argument.get_id() == "names" && values.len() > 1;
            Some((argument, marked.filter(|_| !is_second)?.to_owned()))
        })?;
        let value = |id: &str| {
            let values = raw_values(parsed, id);
            values.last()?.to_str().map(str::to_owned).filter(|value| !value.ends_with(MARK))
        };
        // In other commands, the options describe a new worker.
        let is_reader = has_argument(command, "hard_links");
        let filter = Filter {
            owner: value("owner").filter(|_| is_reader),
            run: value("run").filter(|_| is_reader),
        };
        let stores = ["store", "stores"].map(|id| raw_values(parsed, id)).concat();
        let format = match ["format", "store_format"].iter().find_map(|id| value(id)) {
            Some(name) => KnownFormat::by_name(&name),
            // Only readers show sessions of programs.
            None if is_reader || has_argument(command, "stores") => None,
            None => KnownFormat::by_name("swarmlet"),
        };
        Some(TypedArgument {
            kind: StoreValueKind::of_argument(&path, argument.get_id().as_str())?,
            typed,
            stores: stores.iter().map(|path| with_home(path)).collect(),
            format,
            filter,
            hard_links: has_flag(parsed, "hard_links"),
            no_cache: has_flag(parsed, "no_cache"),
        })
    }
}

/// Returns the command with all values accepted as they are, since they are not finished yet.
fn lenient(command: Command) -> Command {
    command.ignore_errors(true).mut_args(accepting_all).mut_subcommands(lenient)
}

fn accepting_all(argument: Arg) -> Arg {
    match argument.get_action().takes_values() {
        true => argument.value_parser(ValueParser::os_string()),
        false => argument,
    }
}

fn has_argument(command: &Command, id: &str) -> bool {
    command.get_arguments().any(|argument| argument.get_id() == id)
}

fn has_flag(parsed: &ArgMatches, id: &str) -> bool {
    matches!(parsed.try_get_one::<bool>(id), Ok(Some(true)))
}

fn raw_values(parsed: &ArgMatches, id: &str) -> Vec<OsString> {
    let values = parsed.try_get_raw(id).ok().flatten();
    values.into_iter().flatten().map(OsStr::to_owned).collect()
}

/// Returns a path with a leading `~/` replaced, which the shell has not done yet.
fn with_home(path: &OsStr) -> PathBuf {
    let below = path.as_bytes().strip_prefix(b"~/").map(OsStr::from_bytes);
    match (below, std::env::var_os("HOME")) {
        (Some(below), Some(home)) => PathBuf::from(home).join(below),
        _ => path.into(),
    }
}

/// Splits a line of a shell into words, up to the cursor at its end. Returns the quote that is open
/// there, too. Nothing is expanded.
pub(super) fn split(line: &OsStr) -> Option<(Vec<OsString>, Option<char>)> {
    [None, Some('\''), Some('"')].into_iter().find_map(|quote| {
        let mut marked = [line.as_bytes(), MARK.as_bytes()].concat();
        marked.extend(quote.map(|quote| quote as u8));
        let mut words = shlex::bytes::split(&marked)?;
        let last = words.pop()?;
        words.push(last.strip_suffix(MARK.as_bytes())?.to_vec());
        Some((words.into_iter().map(OsString::from_vec).collect(), quote))
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn parse(line: &str) -> Option<TypedArgument> {
        let (words, _) = split(OsStr::new(line))?;
        TypedArgument::parse(Cli::command(), words)
    }

    fn kind(line: &str) -> Option<(StoreValueKind, String)> {
        parse(line).map(|cursor| (cursor.kind, cursor.typed))
    }

    #[test]
    fn every_kind_of_value_is_found_at_the_cursor() {
        for (line, expected, typed) in [
            ("swarmletfs ls ", StoreValueKind::Path, ""),
            ("swarmletfs ls -l a workers/m", StoreValueKind::Path, "workers/m"),
            ("swarmletfs tree r", StoreValueKind::Path, "r"),
            ("swarmletfs stat r", StoreValueKind::Path, "r"),
            ("swarmletfs cat 'workers/a b", StoreValueKind::Path, "workers/a b"),
            ("swarmletfs cat workers/a\\ b", StoreValueKind::Path, "workers/a b"),
            ("swarmletfs grep -i x by/", StoreValueKind::Path, "by/"),
            ("swarmletfs search 'x y' by/", StoreValueKind::Path, "by/"),
            ("swarmletfs ls --run ", StoreValueKind::Run, ""),
            ("swarmletfs grep --run=4", StoreValueKind::Run, "4"),
            ("swarmletfs worker create --run 4", StoreValueKind::Run, "4"),
            ("swarmletfs compare a b", StoreValueKind::Worker, "b"),
            ("swarmletfs changes a", StoreValueKind::Worker, "a"),
            ("swarmletfs apply a", StoreValueKind::Worker, "a"),
            ("swarmletfs undo a", StoreValueKind::Worker, "a"),
            ("swarmletfs discard a", StoreValueKind::Worker, "a"),
            ("swarmletfs audit --worker a", StoreValueKind::Worker, "a"),
            ("swarmletfs record --worker a", StoreValueKind::Worker, "a"),
            ("swarmletfs run --recover a", StoreValueKind::Worker, "a"),
            ("swarmletfs run --parent a", StoreValueKind::Worker, "a"),
            ("swarmletfs worker create --parent a", StoreValueKind::Worker, "a"),
            ("swarmletfs worker show a", StoreValueKind::Worker, "a"),
            ("swarmletfs worker record a", StoreValueKind::Worker, "a"),
            ("swarmletfs worker message a", StoreValueKind::Worker, "a"),
            ("swarmletfs worker finish a", StoreValueKind::Worker, "a"),
            ("swarmletfs worker annotate a", StoreValueKind::Worker, "a"),
            ("swarmletfs worker put a", StoreValueKind::Worker, "a"),
            ("swarmletfs note read a", StoreValueKind::Note, "a"),
            ("swarmletfs note write a", StoreValueKind::Note, "a"),
            ("swarmletfs note append a", StoreValueKind::Note, "a"),
            ("swarmletfs umount /m", StoreValueKind::Mount, "/m"),
            ("swarmletfs unmount /m", StoreValueKind::Mount, "/m"),
            ("swarmletfs attach /m", StoreValueKind::Mount, "/m"),
            ("swarmletfs detach /m", StoreValueKind::Mount, "/m"),
        ] {
            assert_eq!(kind(line), Some((expected, typed.to_owned())), "{line}");
        }
    }

    #[test]
    fn other_words_are_left_to_the_shell() {
        for line in [
            "swarmletfs ",
            "swarmletfs l",
            "swarmletfs ls --so",
            "swarmletfs ls --sort ",
            "swarmletfs ls --store ",
            "swarmletfs grep ",
            "swarmletfs worker put a b",
            "swarmletfs worker sh",
            "swarmletfs changes a src",
            "swarmletfs record -- ls ",
            "swarmletfs ls --unknown x ",
            "swarmletfs ls --help ",
        ] {
            assert_eq!(kind(line), None, "{line}");
        }
    }

    #[test]
    fn options_before_the_cursor_select_the_view() {
        let cursor = parse(
            "swarmletfs cat --store /a --store '/b c' --owner=7 --run 48 --no-cache --hard-links w",
        )
        .unwrap();
        assert_eq!(cursor.stores, [PathBuf::from("/a"), "/b c".into()]);
        assert_eq!(cursor.filter, Filter { owner: Some("7".into()), run: Some("48".into()) });
        assert!(cursor.no_cache && cursor.hard_links && cursor.format.is_none());
        let cursor = parse("swarmletfs ls --format codex --run 4").unwrap();
        assert_eq!(cursor.filter, Filter::default());
        assert_eq!(cursor.format.map(|format| format.name), Some("codex"));
        let cursor = parse("swarmletfs worker create --owner 7 --store s --parent a").unwrap();
        assert_eq!((cursor.filter, cursor.stores), (Filter::default(), vec!["s".into()]));
        assert_eq!(cursor.format.map(|format| format.name), Some("swarmlet"));
    }

    #[test]
    fn split_keeps_an_open_quote() {
        let words = |line: &str| {
            split(OsStr::new(line)).map(|(words, quote)| {
                (
                    words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>(),
                    quote,
                )
            })
        };
        let of = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(words("a 'b c"), Some((of(&["a", "b c"]), Some('\''))));
        assert_eq!(words("a \"b c"), Some((of(&["a", "b c"]), Some('"'))));
        assert_eq!(words("a b\\"), Some((of(&["a", "b"]), None)));
        assert_eq!(words("a $(b) "), Some((of(&["a", "$(b)", ""]), None)));
    }
}
