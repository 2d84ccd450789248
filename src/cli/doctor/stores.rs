//! Inspects the stores: which ones were found, why, whether they can be read, and whether the
//! kernel notifies of late changes in them.
//!
//! It runs in a subprocess, since a store's disk or server may hang. Facts about workers come from
//! a [`View`]: with `--owner`, it contains nothing of other owners, not even counts.
//!
//! The places where programs leave their sessions are inspected, too, apart from the stores of the
//! view: their contents, and whether they can be read.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Finding;
use super::recording::{RecordingFacts, RecordingInspection};
use super::spools::{SpoolFacts, inspect_spools};
use super::workers::Workers;
use crate::catalog::{Freshness, Source, SourceError, is_own_mount};
use crate::cli::diagnosis::Diagnosis;
use crate::cli::discover::{self, SessionPlace};
use crate::cli::doctor::DoctorArgs;
use crate::cli::mountinfo::MountTable;
use crate::cli::terminal::{display_path, escape_controls, shell_quote};
use crate::cli::tree_commands::format::human_size;
use crate::cli::{mountpoint, object_stores, probe};
use crate::error::Result;
use crate::model::SkipReason;
use crate::name::RelPath;
use crate::store::{is_object_url, read_range};
use crate::text::count;
use crate::trace::KnownFormat;
use crate::view::{Filter, View, VisibleWorkers, WorkerFiles};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Refresh interval that is never reached: the report uses the first state that was read.
const NO_REFRESH: Duration = Duration::from_secs(86_400);
const MAX_NAMED_RUNS: usize = 5;
/// Number of bytes of a transcript in which the version of its program is searched.
const HEAD_MAX: usize = 256 << 10;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Stores {
    pub(super) stores: Vec<StoreFacts>,
    pub(super) places: Vec<PlaceFacts>,
    pub(super) spools: Vec<SpoolFacts>,
    pub(super) view: Option<ViewFacts>,
    pub(super) findings: Vec<Finding>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoreFacts {
    path: String,
    why: String,
    format: Option<String>,
    /// Number of its workers; null if it cannot be read.
    workers: Option<u64>,
    /// Leftovers of recorders; null for a format that is not recorded, with `--owner`, or if
    /// the store cannot be searched.
    recording: Option<RecordingFacts>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ViewFacts {
    owner: Option<String>,
    run: Option<String>,
    workers: usize,
}

/// Finds and reads the stores in a subprocess. If that fails or takes too long, the only finding
/// says so.
pub(super) fn inspect_in_subprocess(arguments: &DoctorArgs) -> Stores {
    let answer = std::env::current_exe()
        .and_then(|program| probe::run_with_timeout(command(&program, arguments), TIMEOUT));
    let read = answer.and_then(|answer| serde_json::from_slice(&answer).map_err(io::Error::from));
    read.unwrap_or_else(|error| {
        let message = match error.kind() {
            io::ErrorKind::TimedOut => format!(
                "the stores could not be read within {} seconds; a disk may not answer",
                TIMEOUT.as_secs()
            ),
            _ => format!("the process that inspects the stores failed: {error}"),
        };
        Stores::with_problem(Diagnosis::new(
            message,
            "`swarmletfs doctor STORE` checks a single store",
        ))
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
    arguments.format.iter().for_each(|format| add("--format=", format.as_ref()));
    if arguments.repair {
        command.arg("--repair");
    }
    command.arg("--").args(&arguments.paths);
    command
}

pub(crate) fn answer(arguments: &DoctorArgs) -> ExitCode {
    probe::reply(serde_json::to_vec(&inspect(arguments)).map_err(io::Error::from))
}

impl Stores {
    fn with_problem(diagnosis: Diagnosis) -> Stores {
        Stores {
            findings: vec![Finding::diagnosed("store", "found", diagnosis)],
            ..Stores::default()
        }
    }
}

fn inspect(arguments: &DoctorArgs) -> Stores {
    let mut result = match choose(arguments).and_then(|chosen| Ok((chosen, read_mount_table()?))) {
        Ok((chosen, mounts)) => Stores::inspect(chosen, &mounts, arguments),
        Err(diagnosis) => Stores::with_problem(diagnosis),
    };
    if arguments.stores.is_empty() && arguments.paths.is_empty() {
        let used: Vec<&str> = result.stores.iter().map(|store| store.path.as_str()).collect();
        let (places, findings) = inspect_places(&used, arguments);
        result.places = places;
        result.findings.extend(findings);
    }
    // With an owner, nothing of other owners is revealed.
    if arguments.owner.is_none() {
        let (spools, findings) = inspect_spools();
        result.spools = spools;
        result.findings.extend(findings);
    }
    result
}

impl Stores {
    fn inspect(
        chosen: discover::ChosenStores,
        mounts: &MountTable,
        arguments: &DoctorArgs,
    ) -> Stores {
        let format = format(arguments);
        let mut result = Stores::default();
        let (mut identities, mut opened, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        for store in &chosen.stores {
            let mut shown_path = display_path(&store.path);
            let found = mountpoint::identify_store(store.path.clone(), &mut identities, mounts);
            let source = match found {
                Ok(Some(path)) if is_object_url(&path) => object_stores::inspect(&path, format)
                    .map(|(source, listing)| {
                        let shown = display_path(&path);
                        let found = listing.findings(&path).into_iter();
                        result.findings.extend(found.map(|finding| finding.about(&shown)));
                        (path, source)
                    })
                    .map_err(|error| Diagnosis::without_remedy(format!("{error:#}"))),
                Ok(Some(path)) => Source::open_as(&path, format)
                    .map(|source| (path, source))
                    .map_err(|error| diagnose_source(&error)),
                // A duplicate of a previous store.
                Ok(None) => continue,
                Err(diagnosis) => Err(diagnosis),
            };
            match source {
                Ok((path, source)) => {
                    shown_path = display_path(&path);
                    opened.push(OpenedStore::new(result.stores.len(), path, &source));
                    sources.push(source);
                }
                Err(diagnosis) => {
                    let finding = Finding::diagnosed("store", "open", diagnosis).about(&shown_path);
                    result.findings.push(finding);
                }
            }
            result.stores.push(StoreFacts {
                path: shown_path,
                why: chosen.reason(store),
                format: None,
                workers: None,
                recording: None,
            });
        }
        if !sources.is_empty() {
            result.read(opened, sources, arguments);
        }
        result.findings.extend(requests_finding());
        result
    }
}

fn format(arguments: &DoctorArgs) -> Option<&'static KnownFormat> {
    arguments.format.as_deref().and_then(KnownFormat::by_name)
}

/// An opened store, with the properties of its source, which the view then owns.
struct OpenedStore {
    /// Index of its facts in [`Stores::stores`].
    facts_index: usize,
    path: PathBuf,
    format: &'static str,
    worker_description: &'static str,
    has_virtual_folders: bool,
    max_watches: Result<Option<usize>>,
}

impl OpenedStore {
    fn new(facts_index: usize, path: PathBuf, source: &Source) -> OpenedStore {
        let format = source.format();
        OpenedStore {
            facts_index,
            path,
            format: format.name(),
            worker_description: format.worker_description(),
            has_virtual_folders: format.has_virtual_folders(),
            max_watches: source.max_watches(),
        }
    }
}

fn choose(arguments: &DoctorArgs) -> Result<discover::ChosenStores, Diagnosis> {
    let current = std::env::current_dir().map_err(|_| {
        Diagnosis::new(
            "the current folder does not exist any more",
            "change to another one with `cd`",
        )
    })?;
    let environment = discover::Environment::new(&current, format(arguments));
    // A directory that hangs cannot be used as a store.
    let environment = discover::Environment {
        is_own_mount: &|path| probe::check_alive(path).is_ok() && is_own_mount(path),
        is_store: &|path| probe::check_alive(path).is_ok() && (environment.is_store)(path),
        has_sessions: &has_sessions,
        ..environment
    };
    if arguments.stores.is_empty() {
        return discover::choose(&[], &arguments.paths, &environment);
    }
    let all: Vec<PathBuf> = arguments.stores.iter().chain(&arguments.paths).cloned().collect();
    discover::choose(&all, &[], &environment)
}

fn read_mount_table() -> Result<MountTable, Diagnosis> {
    mountpoint::read_mount_table().map_err(|error| Diagnosis::without_remedy(format!("{error:#}")))
}

fn diagnose_source(error: &SourceError) -> Diagnosis {
    let remedy = match error {
        SourceError::OneWorker(path) => {
            let parent = path.parent().unwrap_or(path);
            format!(
                "`swarmletfs doctor {}` checks the folder that contains it",
                shell_quote(parent)
            )
        }
        SourceError::OwnMount(_) => "`swarmletfs doctor STORE` checks the store behind it".into(),
        SourceError::Open { path, .. } => {
            format!("`ls -ld {}` shows what it is and who may read it", shell_quote(path))
        }
        SourceError::NotATranscript { path, .. } => {
            format!("`head -c 300 {}` shows how it begins", shell_quote(path))
        }
        SourceError::NoWorkers { path, skipped: passed, .. } => {
            let first = |reason| passed.entries(reason).examples.into_keys().next();
            let inside = |path_inside: RelPath| shell_quote(&path.join(path_inside.as_os_str()));
            match (first(SkipReason::Link), first(SkipReason::ForeignMount)) {
                (Some(link), _) => {
                    format!("`readlink -f {}` shows where it leads: use that folder", inside(link))
                }
                (None, Some(mount)) => {
                    format!("`swarmletfs doctor {}` checks the other file system", inside(mount))
                }
                (None, None) => {
                    format!("`find {} -maxdepth 3` shows what it contains", shell_quote(path))
                }
            }
        }
    };
    Diagnosis::new(error.to_string(), remedy)
}

impl Stores {
    /// Reads the opened stores, in the order of their sources.
    fn read(&mut self, opened: Vec<OpenedStore>, sources: Vec<Source>, arguments: &DoctorArgs) {
        let freshness = Freshness { unfinished: NO_REFRESH, finished: NO_REFRESH };
        let (owner, run) = (arguments.owner.clone(), arguments.run.as_deref());
        // The view is not filtered by run, so that the other runs can be named.
        let view = match View::new(sources, freshness, Filter { owner: owner.clone(), run: None }) {
            Ok(view) => view,
            Err(error) => {
                let message = format!("cannot list a store: {error}");
                self.findings.push(Finding::problem("store", "open", message));
                return;
            }
        };
        let visible = view.visible();
        // With an owner, nothing of other owners is revealed.
        let recorded: Vec<(usize, PathBuf)> = opened
            .iter()
            .filter(|store| !store.has_virtual_folders && owner.is_none())
            .filter(|store| !is_object_url(&store.path))
            .map(|store| (store.facts_index, store.path.clone()))
            .collect();
        for (number, store) in opened.into_iter().enumerate() {
            let newer = newer_version(&view, &visible, number, &store);
            self.add_store(store, number, &visible, owner.as_deref());
            self.findings.extend(newer);
        }
        self.inspect_recordings(&recorded, arguments.repair);
        for message in &visible.list_errors {
            self.findings.push(Finding::problem("store", "trouble", message.as_str()));
        }
        if !visible.unread.is_empty() {
            let sessions = count(visible.unread.len(), "session");
            let message = format!(
                "{sessions} not yet searched for workers; a mount continues in the background"
            );
            self.findings.push(Finding::note("store", "unread", message));
        }
        let members = visible.members.iter();
        let shown = members
            .filter(|member| run.is_none_or(|run| member.entry.run.as_deref() == Some(run)))
            .count();
        if let Some(run) = run.filter(|_| !visible.members.is_empty()) {
            self.findings.push(run_finding(run, shown, &visible));
        }
        let (owner, run) = (owner.as_deref().map(escape_controls), run.map(escape_controls));
        self.view = Some(ViewFacts { owner, run, workers: shown });
    }

    /// Adds the leftovers of recorders in stores, given by the index of their facts and their path.
    fn inspect_recordings(&mut self, stores: &[(usize, PathBuf)], repair: bool) {
        let inspection = RecordingInspection::start(repair);
        for (facts_index, path) in stores {
            let Some(facts) = self.stores.get_mut(*facts_index) else { continue };
            let (recording, findings) = inspection.inspect(path);
            facts.recording = recording;
            self.findings.extend(findings.into_iter().map(|finding| finding.about(&facts.path)));
        }
    }

    /// Adds the facts and findings about a store. `number` is its index in the view, which is
    /// limited to `owner`.
    fn add_store(
        &mut self,
        store: OpenedStore,
        number: usize,
        visible: &VisibleWorkers,
        owner: Option<&str>,
    ) {
        let Some(facts) = self.stores.get_mut(store.facts_index) else { return };
        let workers = Workers::new(visible, number);
        let described = format!("{} ({}): {}", facts.path, facts.why, store.format);
        let mut findings =
            workers.findings(&store.path, &described, store.worker_description, owner);
        // Generated directories are polled every second in any case.
        if !store.has_virtual_folders {
            findings.push(change_detection_finding(store.max_watches, workers.total));
        }
        facts.format = Some(store.format.into());
        facts.workers = Some(workers.total);
        self.findings.extend(findings.into_iter().map(|finding| finding.about(&facts.path)));
    }
}

/// Returns the finding on the version of the program that wrote the latest session of a store, if
/// it is newer than the tested one. `number` is the index of the store in the view.
fn newer_version(
    view: &View,
    visible: &VisibleWorkers,
    number: usize,
    store: &OpenedStore,
) -> Option<Finding> {
    let format = KnownFormat::by_name(store.format)?;
    let tested = format.tested_version?;
    let members = visible.members.iter().filter(|member| member.entry.source() == number);
    let latest = members.max_by_key(|member| member.entry.created_at)?;
    let transcript =
        WorkerFiles::new(view, latest).open(&RelPath::constant("source.jsonl")).ok()?;
    let version = format.newer_version(&read_range(&*transcript, 0, HEAD_MAX).ok()?)?;
    let message = format!(
        "sessions of {} {version}, which is newer than {tested}, the last one tested",
        format.program.name
    );
    let remedy = format!(
        "`swarmletfs validate {}` says what of them was not understood",
        shell_quote(&store.path)
    );
    let finding = Finding::note("store", "newer_version", message).with_remedy(remedy);
    Some(finding.about(&display_path(&store.path)))
}

/// Returns the finding on the requests to object stores, if there were any.
fn requests_finding() -> Option<Finding> {
    let [listings, reads, bytes] = object_stores::requests();
    let (listings, reads) = (count(listings, "listing"), count(reads, "read"));
    let message = format!("object stores: {listings} and {reads}, {}", human_size(bytes));
    (bytes > 0).then(|| Finding::ok("store", "requests", message))
}

/// Returns the finding on `run`, to which `shown` of all workers belong.
fn run_finding(run: &str, shown: usize, all: &VisibleWorkers) -> Finding {
    let run = escape_controls(run);
    let of = all.members.len();
    if shown > 0 {
        return Finding::ok("view", "run", format!("run {run}: {shown} of {of} workers are shown"));
    }
    let message = format!("run {run}: none of {of} workers belongs to this run");
    let note = Finding::note("view", "run", message);
    let runs: Vec<String> =
        all.runs.values().take(MAX_NAMED_RUNS).map(|run| escape_controls(&run.id)).collect();
    match all.runs.len() {
        0 => note,
        more if more > MAX_NAMED_RUNS => {
            note.with_remedy(format!("there are {more} runs, among them {}", runs.join(", ")))
        }
        _ => note.with_remedy(format!("the runs are {}", runs.join(", "))),
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PlaceFacts {
    program: String,
    path: String,
    /// Name of the format of its sessions; null if they cannot be read yet.
    format: Option<String>,
    is_store: bool,
    /// Number of workers; null if the place is one of the stores or cannot be read.
    workers: Option<usize>,
}

/// Returns true if a place answers and holds sessions that can be read.
fn has_sessions(place: &SessionPlace) -> bool {
    answers(&place.path) && discover::has_sessions(place)
}

/// Inspects the places that exist. `stores` are the paths of the stores, as the report shows them.
fn inspect_places(stores: &[&str], arguments: &DoctorArgs) -> (Vec<PlaceFacts>, Vec<Finding>) {
    let (mut facts, mut findings) = (Vec::new(), Vec::new());
    for place in discover::session_places() {
        // A directory that does not answer could not be used as a store either.
        if !answers(&place.path) || !place.path.is_dir() {
            continue;
        }
        let (found, more) = inspect_place(&place, stores, arguments);
        let path = found.path.clone();
        facts.push(found);
        findings.extend(more.into_iter().map(|finding| finding.about(&path)));
    }
    (facts, findings)
}

fn answers(path: &Path) -> bool {
    probe::check_alive(path).is_ok()
}

fn inspect_place(
    place: &SessionPlace,
    stores: &[&str],
    arguments: &DoctorArgs,
) -> (PlaceFacts, Vec<Finding>) {
    let SessionPlace { program, format, path } = place;
    let resolved = path.canonicalize().unwrap_or_else(|_| path.clone());
    let shown = display_path(&resolved);
    let mut facts = PlaceFacts {
        program: (*program).into(),
        format: format.map(|format| format.name.into()),
        is_store: stores.contains(&shown.as_str()),
        workers: None,
        path: shown,
    };
    let Some(format) = *format else {
        let note = format!("{program}: found {}, not read yet", facts.path);
        return (facts, vec![Finding::note("places", "unread_program", note)]);
    };
    // The findings about the stores cover this place.
    if facts.is_store {
        return (facts, Vec::new());
    }
    if !discover::has_sessions(place) {
        let none = format!("{program}: no sessions in {}", facts.path);
        return (facts, vec![Finding::ok("places", "no_sessions", none)]);
    }
    let filter = Filter { owner: arguments.owner.clone(), run: None };
    let view = Source::open_as(&resolved, Some(format))
        .ok()
        .and_then(|source| View::new(vec![source], Freshness::default(), filter).ok());
    let Some(view) = view else {
        let note = format!("{program}: cannot read {}", facts.path);
        return (facts, vec![Finding::note("places", "unreadable_sessions", note)]);
    };
    let workers = view.visible().members.len();
    let message = format!(
        "{program}: {} in {}, not shown beside the store",
        count(workers, "worker"),
        facts.path
    );
    let remedy = format!("`--store {}` shows them", shell_quote(&resolved));
    facts.workers = Some(workers);
    (facts, vec![Finding::ok("places", "sessions", message).with_remedy(remedy)])
}

/// Number of watched directories of a typical worker: its own and its `tool_calls`.
const FOLDERS_PER_WORKER: u64 = 2;

/// Returns the finding for a store of `workers` workers; `watchable` is the number of directories
/// that can be watched.
fn change_detection_finding(watchable: Result<Option<usize>>, workers: u64) -> Finding {
    const LATE: &str = "late changes of finished workers";
    let (message, remedy) = match watchable {
        Ok(Some(folders)) if folders as u64 > workers.saturating_mul(FOLDERS_PER_WORKER) => {
            let message = format!("{LATE} are reported by the kernel, for up to {folders} folders");
            return Finding::ok("store", "changes", message);
        }
        Ok(Some(folders)) => (
            format!(
                "{LATE} are reported by the kernel for up to {folders} folders, \
                 and polled for every 60 seconds in the others"
            ),
            "`sysctl fs.inotify.max_user_watches` is the limit; \
             a mount uses a quarter of it, up to 32768",
        ),
        Ok(None) => (
            format!(
                "{LATE} are polled for every 60 seconds, \
                 since other machines may write to the store's file system"
            ),
            "`swarmletfs mount --ttl SECONDS` polls more often",
        ),
        Err(error) => (
            format!(
                "{LATE} are polled for every 60 seconds, since nothing can be watched: {error}"
            ),
            "`sysctl fs.inotify.max_user_instances` \
             limits the number of watching programs per user",
        ),
    };
    Finding::note("store", "changes", message).with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::super::Level;
    use super::*;
    use crate::error::Error;

    #[test]
    fn polling_notes_give_reason_and_remedy() {
        assert_eq!(change_detection_finding(Ok(Some(200)), 99).level, Level::Ok);
        for (watchable, why) in [
            (Ok(Some(100)), "100 folders"),
            (Ok(None), "other machines"),
            (Err(Error::Io(Errno::MFILE)), "files"),
        ] {
            let found = change_detection_finding(watchable, 100);
            assert!(
                found.level == Level::Note && found.message.contains(why) && found.remedy.is_some(),
                "{found:?}"
            );
        }
    }
}
