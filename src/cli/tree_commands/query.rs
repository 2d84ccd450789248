//! Shared parts of `grep`, `search` and `compare`, which query the files of workers.
//!
//! `grep` and `search` have the exit codes of grep: 0 if something was found, 1 if nothing was, 2
//! for trouble, and also 3 if the time ran out.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::super::exit;
use super::super::terminal::print_message;
use super::super::view_args::{self, ViewArgs};
use super::{TimeArgs, TreeReader, json, paths};
use crate::cli::colors::ColorArgs;
use crate::cli::pager::{AnswerKind, PagerArgs};
use crate::name::{Name, printable};
use crate::query::{AnswerPage, Coverage, FileAnswer, FileQuery, Totals};
use crate::search::regex::Unsearched;
use crate::text::budget::Budget;
use crate::tree::Symlinks;

pub(crate) const NOT_SEARCHABLE: &str = "\
contains no files of workers: give the root, a run (`runs/ID`), a worker (`workers/ID`), a file or \
folder of a worker, or a facet value (`by/outcome/failed`)";

/// The options that `grep` and `search` share.
#[derive(Debug, Args)]
pub(crate) struct QueryArgs {
    /// The root, a run, a worker, a file or folder of a worker, or a folder such as
    /// by/outcome/failed [default: the root]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,

    /// Search only files with this name, or with this path if it contains a /: '*.md',
    /// 'outputs/**'; with a leading !, all others
    #[arg(long, short, value_name = "GLOB", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(super) glob: Option<String>,

    /// Maximum size of the answer: bytes, optionally with k or M, or tokens, as in 8000tok
    /// [default: 16000 for one worker, otherwise 28000]
    #[arg(long, short, value_name = "SIZE", value_parser = view_args::parse_budget)]
    pub(super) budget: Option<Budget>,

    /// Print JSON: an array of objects
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    pub(super) view: ViewArgs,

    #[command(flatten)]
    pub(super) time: TimeArgs,

    #[command(flatten)]
    color: ColorArgs,

    #[command(flatten)]
    pager: PagerArgs,
}

#[derive(Debug, Serialize)]
pub(super) struct AnswerHead {
    query: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// False if the time ran out before everything was read; `incomplete` names the rest.
    complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    incomplete: Option<String>,
}

impl AnswerHead {
    pub(super) fn new(query: &impl Display, page: &AnswerPage) -> AnswerHead {
        AnswerHead {
            query: query.to_string(),
            error: page.error.clone(),
            complete: page.missing.is_none(),
            incomplete: page.missing.as_ref().map(ToString::to_string),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct TotalsJson {
    files: u64,
    workers: u64,
    searched: SearchedJson,
    not_searched: NotSearchedJson,
}

#[derive(Debug, Serialize)]
struct SearchedJson {
    workers: u64,
    files: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct NotSearchedJson {
    binary: u64,
    unreadable: u64,
    /// Only `grep` stops at long lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    long_line: Option<u64>,
    late: u64,
    late_workers: Vec<String>,
}

impl TotalsJson {
    pub(super) fn new(totals: &Totals, long_line: Option<u64>) -> TotalsJson {
        let Coverage { workers, files, bytes, unsearched, ref late_workers } = totals.searched;
        let late_workers = late_workers.iter().map(Name::display).collect();
        let Unsearched { binary, unreadable, late, .. } = unsearched;
        TotalsJson {
            files: totals.files,
            workers: totals.workers,
            searched: SearchedJson { workers, files, bytes },
            not_searched: NotSearchedJson { binary, unreadable, long_line, late, late_workers },
        }
    }
}

/// Runs a query at each of the paths, or at the root, and prints the answers as the text that
/// `text` returns, given true for one with colors, or as the JSON that `object` returns.
///
/// `hint` ends the message for a path without files of workers. Returns the exit code of grep.
///
/// # Errors
///
/// Fails if a store cannot be found or read, or stdout cannot be written.
pub(super) fn run<Q: FileQuery, O: Serialize>(
    arguments: &QueryArgs,
    query: &Q,
    hint: &str,
    text: impl Fn(&FileAnswer<Q::Found>, bool) -> Cow<'_, str>,
    object: impl Fn(&FileAnswer<Q::Found>) -> O,
) -> anyhow::Result<ExitCode> {
    let reader = TreeReader::open_view(&arguments.view, &arguments.time, None)?;
    let (mut found, mut trouble) = (false, false);
    let mut answers = paths(&arguments.paths).into_iter().filter_map(|path| {
        match reader
            .tree
            .with_path(path, Symlinks::Follow, |place| reader.tree.search(place.leaf().ino, query))
        {
            Ok(Some(answer)) => {
                let FileAnswer { page, totals, .. } = &answer;
                if page.text.is_empty() {
                    print_message(&format!(
                        "{}: the budget is too small for an answer",
                        printable(path)
                    ));
                }
                let has_unreadable = totals.searched.unsearched.unreadable > 0;
                found |= totals.matches > 0;
                trouble |= page.error.is_some() || (totals.matches == 0 && has_unreadable);
                return Some(answer);
            }
            Ok(None) => print_message(&format!("{}: {NOT_SEARCHABLE}{hint}", printable(path))),
            Err(error) => reader.fail(path, &error),
        }
        trouble = true;
        None
    });
    let has_colors = !arguments.json && arguments.color.are_on();
    let mut out = reader.out(arguments.pager, AnswerKind::Text, has_colors);
    let written = if arguments.json {
        json::array(&mut out.stdout, |add| answers.try_for_each(|answer| add(&object(&answer))))
    } else {
        answers.try_for_each(|answer| out.text(&text(&answer, has_colors)))
    };
    drop(answers);
    match out.close(written) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(match (trouble, found) {
            (true, _) => exit::trouble(),
            _ if reader.is_incomplete() => exit::timed_out(),
            (false, true) => ExitCode::SUCCESS,
            (false, false) => ExitCode::FAILURE,
        }),
    }
}
