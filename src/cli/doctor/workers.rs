//! The workers of one store as a view shows them: how many of which kind, what is wrong with some, and what lies
//! among them and is not shown.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::finding::Finding;
use crate::cli::refusal::Refusal;
use crate::cli::say::{typed, without_controls};
use crate::model::{EXAMPLES_MAX, Flaw, SkipReason, SkipReport, SkippedEntries};
use crate::name::RelPath;
use crate::render::count;
use crate::view::{Member, VisibleWorkers};

/// So many folders are named in which workers lie.
const PLACES: usize = 3;

/// What is known of the workers of a store.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Workers {
    /// How many there are.
    total: u64,
    /// How many lie in which folder of the store; `.` is the store itself.
    folders: BTreeMap<String, u64>,
    /// How many are of which status.
    status: BTreeMap<String, u64>,
    /// How many runs they belong to.
    runs: usize,
    /// How many owners they name.
    owners: usize,
    /// How many name an owner.
    with_owner: u64,
    /// How many name none.
    without_owner: u64,
    /// Those whose record is not as it should be, by what is wrong.
    flawed: BTreeMap<Wrong, Few>,
    /// What lies among them and is not shown, by reason; null with `--owner`, where it is nobody's business.
    not_shown: Option<BTreeMap<NotShown, Few>>,
}

/// How many, and the first of them by name.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Few {
    count: u64,
    examples: Vec<Example>,
}

/// One by name.
#[derive(Debug, Serialize, Deserialize)]
struct Example {
    /// A worker's name, or a path from the store's root.
    name: String,
    /// The path again, for a command.
    #[serde(skip)]
    path: RelPath,
    /// What was met, where that differs from one to the other.
    why: Option<String>,
}

/// What can be wrong with a worker's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Wrong {
    UnreadableMetadata,
    BadMetadata,
    NoMetadata,
    BadTranscript,
    NoMessage,
    OtherId,
    TwoOwners,
    IndexDisagrees,
    SameId,
}

/// Why something among the workers is not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NotShown {
    Unreadable,
    Links,
    ForeignMounts,
    Special,
    NotWorkers,
}

impl Few {
    fn add(&mut self, name: String, path: &RelPath, why: Option<String>) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(Example { name, path: path.clone(), why });
        }
    }

    fn of(several: &SkippedEntries) -> Few {
        let mut few = Few::default();
        for (path, error) in &several.examples {
            few.add(path.display(), path, error.as_ref().map(ToString::to_string));
        }
        few.count = several.count;
        few
    }

    /// The names, and how many there are besides.
    fn names(&self) -> String {
        let name = |example: &Example| match &example.why {
            Some(why) => format!("{} ({why})", example.name),
            None => example.name.clone(),
        };
        let mut names: Vec<String> = self.examples.iter().map(name).collect();
        let more = self.count.saturating_sub(names.len() as u64);
        if more > 0 {
            names.push(format!("and {more} more"));
        }
        names.join(", ")
    }

    /// The first one, for a command.
    fn first(&self, store: &Path) -> String {
        let path = self.examples.first().map(|example| example.path.clone()).unwrap_or_default();
        typed(&store.join(OsStr::from_bytes(path.as_bytes())))
    }
}

impl Workers {
    /// Those of a view that lie in the store of this number.
    pub(super) fn of(visible: &VisibleWorkers, number: usize) -> Workers {
        let mut workers = Workers::default();
        let (mut runs, mut owners) = (BTreeSet::new(), BTreeSet::new());
        for member in visible.members.iter().filter(|member| member.entry.source() == number) {
            let worker = &member.entry;
            workers.total += 1;
            *workers.folders.entry(folder(&worker.root.parent())).or_default() += 1;
            *workers.status.entry(worker.status.to_string()).or_default() += 1;
            runs.extend(worker.run.as_ref());
            owners.extend(worker.owner.as_ref());
            *if worker.owner.is_some() { &mut workers.with_owner } else { &mut workers.without_owner } += 1;
            workers.note_flaws(member);
        }
        (workers.runs, workers.owners) = (runs.len(), owners.len());
        let passed = visible.skip_reports.as_ref();
        workers.not_shown = passed.map(|all| all.get(number).map(not_shown).unwrap_or_default());
        workers
    }

    /// How many there are.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    fn note_flaws(&mut self, member: &Member) {
        let worker = &member.entry;
        let mut add = |wrong, why: Option<String>| {
            let few = self.flawed.entry(wrong).or_default();
            few.add(member.name.display(), &worker.root, why);
        };
        for flaw in &worker.flaws {
            match flaw {
                Flaw::NoMetadata => add(Wrong::NoMetadata, None),
                Flaw::BadMetadata { reason, .. } => {
                    let wrong = if worker.whole { Wrong::BadMetadata } else { Wrong::UnreadableMetadata };
                    add(wrong, Some(without_controls(reason)));
                }
                Flaw::IdMismatch(_) => add(Wrong::OtherId, None),
                Flaw::ConflictingOwners => add(Wrong::TwoOwners, None),
                Flaw::IndexDisagrees(_) => add(Wrong::IndexDisagrees, None),
                Flaw::BadTranscript(reason) => add(Wrong::BadTranscript, Some(without_controls(reason))),
                Flaw::NoMessages => add(Wrong::NoMessage, None),
            }
        }
        if member.name != worker.id.0 {
            add(Wrong::SameId, None);
        }
    }

    /// What is to be said of them. `described` is the store, `sign` what makes a folder a worker there, `owner` whom
    /// the view is narrowed to.
    pub(super) fn findings(&self, store: &Path, described: &str, sign: &str, owner: Option<&str>) -> Vec<Finding> {
        let mut findings = vec![self.counted(described, owner)];
        for (reason, few) in self.not_shown.iter().flatten() {
            findings.push(reason.finding(few, store, sign));
        }
        for (wrong, few) in &self.flawed {
            findings.push(wrong.finding(few, store));
        }
        findings
    }

    fn counted(&self, described: &str, owner: Option<&str>) -> Finding {
        let of_owner = owner.map(|owner| format!(" of owner {}", without_controls(owner))).unwrap_or_default();
        if self.total == 0 {
            return match owner {
                Some(_) => Finding::note("store", "workers", format!("{described}, no worker{of_owner}"))
                    .cured_by("without --owner, all workers are counted"),
                None => Finding::note("store", "workers", format!("{described}, no worker yet")),
            };
        }
        let place = |folder: &str| if folder == "." { "the folder itself".into() } else { format!("{folder}/") };
        // The fullest first: of transcripts each project is a folder.
        let mut folders: Vec<(&String, &u64)> = self.folders.iter().collect();
        folders.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let mut places: Vec<String> = match folders.as_slice() {
            [(folder, _)] => vec![place(folder)],
            several => {
                several.iter().take(PLACES).map(|(folder, count)| format!("{} ({count})", place(folder))).collect()
            }
        };
        let more = folders.len().saturating_sub(PLACES);
        if more > 0 {
            places.push(format!("{more} more"));
        }
        let status: Vec<String> = self.status.iter().map(|(status, count)| format!("{count} {status}")).collect();
        let runs = match self.runs {
            0 => String::new(),
            runs => format!("; {}", count(runs as u64, "run")),
        };
        let owners = match (owner, self.owners as u64, self.without_owner) {
            (Some(_), _, _) => String::new(),
            (None, 0, _) => "; no owner".into(),
            (None, owners, 0) => format!("; {}", count(owners, "owner")),
            (None, owners, without) => format!("; {}, {without} without one", count(owners, "owner")),
        };
        let (total, places, status) = (count(self.total, "worker"), places.join(" and "), status.join(", "));
        let says = format!("{described}, {total}{of_owner} in {places}: {status}{runs}{owners}");
        Finding::ok("store", "workers", says)
    }
}

fn folder(path: &RelPath) -> String {
    if path.is_root() { ".".into() } else { path.display() }
}

fn not_shown(passed: &SkipReport) -> BTreeMap<NotShown, Few> {
    let all = [
        (NotShown::Unreadable, SkipReason::Unreadable),
        (NotShown::Links, SkipReason::Link),
        (NotShown::ForeignMounts, SkipReason::ForeignMount),
        (NotShown::Special, SkipReason::Special),
        (NotShown::NotWorkers, SkipReason::NotAWorker),
    ];
    all.into_iter()
        .map(|(not_shown, reason)| (not_shown, Few::of(&passed.entries(reason))))
        .filter(|(_, few)| few.count > 0)
        .collect()
}

impl NotShown {
    fn finding(self, few: &Few, store: &Path, sign: &str) -> Finding {
        let (names, first) = (few.names(), few.first(store));
        let are = if few.count == 1 { "is" } else { "are" };
        let count = |what| count(few.count, what);
        match self {
            NotShown::Unreadable => {
                let says = format!("{} cannot be read: {names}", count("folder"));
                let cure = format!("`ls -ld {first}` tells who may read it: mount as one who may");
                Finding::problem("store", "unreadable", Refusal::new(says, cure))
            }
            NotShown::Links => {
                let says = format!("{} {are} not followed: {names}", count("link"));
                Finding::note("store", "links", says).cured_by(format!(
                    "`readlink -f {first}` tells where it leads: name the folder of workers there with --store, too"
                ))
            }
            NotShown::ForeignMounts => {
                let says = format!("{} {are} not entered: {names}", count("other file system"));
                Finding::note("store", "foreign_mounts", says)
                    .cured_by(format!("if it holds workers, name it, too: `--store {first}`"))
            }
            NotShown::Special => {
                let says = format!("{} {are} not opened: {names}", count("special file"));
                Finding::note("store", "special", says)
            }
            NotShown::NotWorkers => {
                let says = format!("{} {are} no worker (one holds {sign}): {names}", count("folder"));
                Finding::note("store", "not_workers", says)
            }
        }
    }
}

impl Wrong {
    fn finding(self, few: &Few, store: &Path) -> Finding {
        let (names, workers) = (few.names(), count(few.count, "worker"));
        let note = |check, what: &str| Finding::note("store", check, format!("{workers} {what}: {names}"));
        match self {
            Wrong::UnreadableMetadata => {
                let says = format!("the metadata of {workers} cannot be read: {names}");
                let cure = format!("`ls -la {}` tells who may read it: mount as one who may", few.first(store));
                Finding::problem("store", "unreadable_metadata", Refusal::new(says, cure))
            }
            Wrong::BadMetadata => note("bad_metadata", "with torn metadata, shown without what it says"),
            Wrong::NoMetadata => note("no_metadata", "without metadata, shown without owner and status"),
            Wrong::OtherId => note("other_id", "with metadata that claims another id, shown under its folder's name"),
            Wrong::TwoOwners => note("two_owners", "with two owners in its metadata, shown to neither"),
            Wrong::BadTranscript => {
                let says = format!("the transcript of {workers} cannot be read: {names}");
                let cure = format!("`ls -la {}` tells who may read it, and `head` what is in it", few.first(store));
                Finding::problem("store", "bad_transcript", Refusal::new(says, cure))
            }
            Wrong::NoMessage => note("no_message", "in whose transcript nothing was said"),
            Wrong::IndexDisagrees => note("index_disagrees", "of which the store's index gives another status"),
            Wrong::SameId => note("same_id", "with the id of another, shown under a name of its own"),
        }
    }
}
