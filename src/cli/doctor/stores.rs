//! The stores: which were found and why, and whether they can be read.
//!
//! All of it is asked of another process, because a store's disk or server may never answer. What is told of workers
//! comes from a [`View`] of who asks: with `--owner`, nothing that is another's is in it, not even as a number.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::changes;
use super::finding::Finding;
use super::transcripts::Transcripts;
use super::workers::Workers;
use crate::catalog::{Freshness, Source, SourceError, is_own_mount, looks_like_store};
use crate::cli::refusal::Refusal;
use crate::cli::say::{shown, typed, without_controls};
use crate::cli::{DoctorArgs, discover, mountpoint, probe};
use crate::model::SkipReason;
use crate::name::RelPath;
use crate::render::count;
use crate::view::{Filter, Member, View, VisibleWorkers};

/// How long all stores together may take to be read.
const LIMIT: Duration = Duration::from_secs(60);
/// What is seen at first is what is told: nothing is looked at twice.
const NEVER_AGAIN: Duration = Duration::from_secs(86_400);
/// How many runs are named where the one that was asked for is not there.
const RUNS: usize = 5;

/// What is known of the stores, with the findings.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Stores {
    pub(super) stores: Vec<StoreFacts>,
    pub(super) view: Option<Shown>,
    pub(super) findings: Vec<Finding>,
}

/// One store.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoreFacts {
    path: String,
    /// Who named it, or why it was taken.
    why: String,
    /// The name of its format; null where it cannot be read.
    format: Option<String>,
    /// What is known of its workers; null where it cannot be read.
    workers: Option<Workers>,
    /// What came of reading the transcripts that the workers' folders are made of; null where they are as on disk.
    transcripts: Option<Transcripts>,
}

/// What a mount with the same options would show.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Shown {
    owner: Option<String>,
    run: Option<String>,
    workers: usize,
}

/// Has another process look at the stores.
pub(super) fn ask(arguments: &DoctorArgs) -> Stores {
    let answer = std::env::current_exe().and_then(|program| probe::answer_of(command(&program, arguments), LIMIT));
    let read = answer.and_then(|answer| serde_json::from_slice(&answer).map_err(io::Error::from));
    read.unwrap_or_else(|error| {
        let says = match error.kind() {
            io::ErrorKind::TimedOut => {
                format!("the stores could not be read within {} seconds: does their disk answer?", LIMIT.as_secs())
            }
            _ => format!("the process that was to look at the stores failed: {error}"),
        };
        Stores::refused(Refusal::new(says, "`swarmletfs doctor STORE` looks at one store alone"))
    })
}

fn command(program: &Path, arguments: &DoctorArgs) -> Command {
    let mut command = Command::new(program);
    command.arg("__stores");
    let mut add = |name: &str, value: &OsStr| {
        let mut argument = OsString::from(name);
        argument.push(value);
        command.arg(argument);
    };
    arguments.owner.iter().for_each(|owner| add("--owner=", owner.as_ref()));
    arguments.run.iter().for_each(|run| add("--run=", run.as_ref()));
    arguments.stores.iter().for_each(|store| add("--store=", store.as_os_str()));
    command.arg("--").args(&arguments.paths);
    command
}

/// The other process.
pub(in crate::cli) fn answer(arguments: &DoctorArgs) -> ExitCode {
    probe::reply(serde_json::to_vec(&look(arguments)).map_err(io::Error::from))
}

impl Stores {
    fn refused(refusal: Refusal) -> Stores {
        Stores { findings: vec![Finding::problem("store", "found", refusal)], ..Stores::default() }
    }
}

fn look(arguments: &DoctorArgs) -> Stores {
    let (chosen, mounts) = match choose(arguments).and_then(|chosen| Ok((chosen, table()?))) {
        Ok(all) => all,
        Err(refusal) => return Stores::refused(refusal),
    };
    let (mut grounds, mut findings, mut stores, mut sources) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for path in chosen.stores {
        let named = shown(&path);
        let opened = match mountpoint::settle(path, &mut grounds, &mounts) {
            Ok(Some(path)) => Source::open(&path).map(|source| (path, source)).map_err(|error| refusal(&error)),
            // The same folder as one before.
            Ok(None) => continue,
            Err(refusal) => Err(refusal),
        };
        let path = match opened {
            Ok((path, source)) => {
                let here = shown(&path);
                sources.push((stores.len(), path, source));
                here
            }
            Err(refusal) => {
                findings.push(Finding::problem("store", "open", refusal).about(&named));
                named
            }
        };
        stores.push(StoreFacts { path, why: chosen.why.clone(), format: None, workers: None, transcripts: None });
    }
    let mut all = Stores { stores, view: None, findings };
    if !sources.is_empty() {
        all.read(sources, arguments);
    }
    all
}

fn choose(arguments: &DoctorArgs) -> Result<discover::Chosen, Refusal> {
    let current = std::env::current_dir()
        .map_err(|_| Refusal::new("the current folder is gone", "change to another one with `cd`"))?;
    // A folder that does not answer is no store that could be taken.
    let is_store = |path: &Path| probe::alive(path).is_ok() && looks_like_store(path);
    let is_own_mount = |path: &Path| probe::alive(path).is_ok() && is_own_mount(path);
    let around =
        discover::Surroundings { is_own_mount: &is_own_mount, ..discover::Surroundings::here(&current, &is_store) };
    if arguments.stores.is_empty() {
        return discover::choose(&[], &arguments.paths, &around);
    }
    let all: Vec<PathBuf> = arguments.stores.iter().chain(&arguments.paths).cloned().collect();
    discover::choose(&all, &[], &around)
}

fn table() -> Result<crate::cli::mountinfo::Mounts, Refusal> {
    mountpoint::table().map_err(|error| Refusal::without_cure(format!("{error:#}")))
}

/// Why a store cannot be read, and what to type instead.
fn refusal(error: &SourceError) -> Refusal {
    let cure = match error {
        SourceError::OneWorker(path) => {
            let whole = path.parent().unwrap_or(path);
            format!("`swarmletfs doctor {}` looks at the folder that holds it", typed(whole))
        }
        SourceError::OwnMount(_) => "`swarmletfs doctor STORE` looks at the store behind it".into(),
        SourceError::Open { path, .. } => format!("`ls -ld {}` tells what is there and who may read it", typed(path)),
        SourceError::NoWorkers { path, skipped: passed } => {
            let first = |reason| passed.entries(reason).examples.into_keys().next();
            let inside = |path_inside: RelPath| typed(&path.join(path_inside.as_os_str()));
            match (first(SkipReason::Link), first(SkipReason::ForeignMount)) {
                (Some(link), _) => format!("`readlink -f {}` tells where it leads: name that folder", inside(link)),
                (None, Some(mount)) => format!("`swarmletfs doctor {}` looks at the other", inside(mount)),
                (None, None) => format!("`find {} -maxdepth 3` tells what is there instead", typed(path)),
            }
        }
    };
    Refusal::new(error.to_string(), cure)
}

impl Stores {
    /// Reads the stores that could be opened, each with its place in the list.
    fn read(&mut self, sources: Vec<(usize, PathBuf, Source)>, arguments: &DoctorArgs) {
        let of_format = |source: &Source| {
            (source.format().name(), source.format().worker_description(), source.format().has_virtual_folders())
        };
        let of_source = |source: &Source| (of_format(source), source.max_watches());
        let (places, sources): (Vec<_>, Vec<Source>) =
            sources.into_iter().map(|(place, path, source)| ((place, path, of_source(&source)), source)).unzip();
        let freshness = Freshness { unfinished: NEVER_AGAIN, finished: NEVER_AGAIN };
        let (owner, run) = (arguments.owner.clone(), arguments.run.as_deref());
        // A run is narrowed out of all that the one who asks may see.
        let view = match View::new(sources, freshness, Filter { owner: owner.clone(), run: None }) {
            Ok(view) => view,
            Err(error) => {
                let says = format!("a store cannot be listed: {error}");
                self.findings.push(Finding::problem("store", "open", Refusal::without_cure(says)));
                return;
            }
        };
        let visible = view.visible();
        for (number, (place, path, ((format, sign, made), watchable))) in places.into_iter().enumerate() {
            let workers = Workers::of(&visible, number);
            let transcripts = made.then(|| Transcripts::of(&view, &visible, number));
            if let Some(facts) = self.stores.get_mut(place) {
                let described = format!("{} ({}): {format}", facts.path, facts.why);
                let found = workers.findings(&path, &described, sign, owner.as_deref());
                self.findings.extend(found.into_iter().map(|finding| finding.about(&facts.path)));
                // What is made of transcripts is looked at each second in any case.
                let changes = (!made).then(|| changes::finding(watchable, workers.total()).about(&facts.path));
                self.findings.extend(changes);
                let found = transcripts.iter().map(|transcripts| transcripts.finding().about(&facts.path));
                self.findings.extend(found);
                (facts.format, facts.workers, facts.transcripts) = (Some(format.into()), Some(workers), transcripts);
            }
        }
        let trouble = |says: &String| Finding::problem("store", "trouble", Refusal::without_cure(says));
        self.findings.extend(visible.list_errors.iter().map(trouble));
        if !visible.unread.is_empty() {
            let sessions = count(visible.unread.len(), "session");
            let says = format!("{sessions} not read yet for workers inside: a mount reads on by itself");
            self.findings.push(Finding::note("store", "unread", says));
        }
        let is_shown = |member: &&Arc<Member>| run.is_none_or(|run| member.entry.run.as_deref() == Some(run));
        let shown = visible.members.iter().filter(is_shown).count();
        if let Some(run) = run.filter(|_| !visible.members.is_empty()) {
            self.findings.push(narrowed(run, shown, &visible));
        }
        let (owner, run) = (owner.as_deref().map(without_controls), run.map(without_controls));
        self.view = Some(Shown { owner, run, workers: shown });
    }
}

/// How many workers a run leaves of those that are in view without it.
fn narrowed(run: &str, some: usize, all: &VisibleWorkers) -> Finding {
    let run = without_controls(run);
    let of = all.members.len();
    if some > 0 {
        return Finding::ok("view", "run", format!("run {run}: {some} of {of} workers are shown"));
    }
    let note = Finding::note("view", "run", format!("run {run}: none of {of} workers says that it is of this run"));
    let runs: Vec<String> = all.runs.values().take(RUNS).map(|run| without_controls(&run.id)).collect();
    match all.runs.len() {
        0 => note,
        more if more > RUNS => note.cured_by(format!("there are {more} runs, among them {}", runs.join(", "))),
        _ => note.cured_by(format!("the runs are {}", runs.join(", "))),
    }
}
