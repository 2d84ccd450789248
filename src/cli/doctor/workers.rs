//! Findings about the workers of one store: flawed records, and hidden entries.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{Finding, with_more};
use crate::cli::terminal::{escape_controls, shell_quote};
use crate::model::{EXAMPLES_MAX, Flaw, SkipReason, SkipReport, SkippedEntries};
use crate::name::RelPath;
use crate::text::count;
use crate::view::{Member, VisibleWorkers};

#[derive(Debug, Default)]
pub(super) struct Workers {
    pub(super) total: u64,
    flawed: BTreeMap<RecordProblem, Sample>,
    /// Entries that are not shown, by reason. Empty with `--owner`, to reveal nothing of other
    /// owners.
    not_shown: Vec<(SkipReason, Sample)>,
}

#[derive(Debug, Default)]
struct Sample {
    count: u64,
    examples: Vec<Example>,
}

#[derive(Debug)]
struct Example {
    /// Name of a worker, or path from the store's root.
    name: String,
    /// Path from the store's root, used in commands.
    path: RelPath,
    /// Details that differ between examples.
    why: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RecordProblem {
    UnreadableMetadata,
    BadMetadata,
    NoMetadata,
    BadTranscript,
    NoMessage,
    OtherId,
    TwoOwners,
    Claims,
    BadRegistration,
    IndexDisagrees,
    SameId,
}

impl Sample {
    fn add(&mut self, name: String, path: &RelPath, why: Option<String>) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(Example { name, path: path.clone(), why });
        }
    }

    fn new(several: &SkippedEntries) -> Sample {
        let mut sample = Sample::default();
        for (path, error) in &several.examples {
            sample.add(path.display(), path, error.as_ref().map(ToString::to_string));
        }
        sample.count = several.count;
        sample
    }

    fn names(&self) -> String {
        let examples = self.examples.iter().map(|example| match &example.why {
            Some(why) => format!("{} ({why})", example.name),
            None => example.name.clone(),
        });
        with_more(examples, self.count)
    }

    /// Returns the first path, quoted for a command.
    fn first(&self, store: &Path) -> String {
        let path = self.examples.first().map(|example| example.path.clone()).unwrap_or_default();
        shell_quote(&store.join(OsStr::from_bytes(path.as_bytes())))
    }
}

impl Workers {
    pub(super) fn new(visible: &VisibleWorkers, number: usize) -> Workers {
        let mut workers = Workers::default();
        for member in visible.members.iter().filter(|member| member.entry.source() == number) {
            workers.total += 1;
            workers.note_flaws(member);
        }
        let reports = visible.skip_reports.as_ref();
        let skipped = reports.and_then(|reports| reports.get(number));
        workers.not_shown = skipped.map(hidden_entries).unwrap_or_default();
        workers
    }

    fn note_flaws(&mut self, member: &Member) {
        let worker = &member.entry;
        let mut add = |problem, why: Option<String>| {
            let sample = self.flawed.entry(problem).or_default();
            sample.add(member.name.display(), &worker.root, why);
        };
        for flaw in &worker.flaws {
            match flaw {
                Flaw::NoMetadata => add(RecordProblem::NoMetadata, None),
                Flaw::BadMetadata { reason, .. } => {
                    let problem = if worker.whole {
                        RecordProblem::BadMetadata
                    } else {
                        RecordProblem::UnreadableMetadata
                    };
                    add(problem, Some(escape_controls(reason)));
                }
                Flaw::IdMismatch(_) => add(RecordProblem::OtherId, None),
                Flaw::ConflictingOwners => add(RecordProblem::TwoOwners, None),
                Flaw::Claim { field, .. } => add(RecordProblem::Claims, Some(field.clone())),
                Flaw::BadRegistration(reason) => {
                    add(RecordProblem::BadRegistration, Some(escape_controls(reason)))
                }
                Flaw::IndexDisagrees(_) => add(RecordProblem::IndexDisagrees, None),
                Flaw::BadTranscript(reason) => {
                    add(RecordProblem::BadTranscript, Some(escape_controls(reason)))
                }
                Flaw::NoMessages => add(RecordProblem::NoMessage, None),
            }
        }
        if member.name != worker.id.0 {
            add(RecordProblem::SameId, None);
        }
    }

    /// Returns the findings on the workers. `described` names the store, `sign` is the mark of a
    /// worker directory, and `owner` is the owner that the view is limited to.
    pub(super) fn findings(
        &self,
        store: &Path,
        described: &str,
        sign: &str,
        owner: Option<&str>,
    ) -> Vec<Finding> {
        let mut findings = vec![self.count_finding(store, described, owner)];
        for (reason, sample) in &self.not_shown {
            findings.push(hidden_finding(*reason, sample, store, sign));
        }
        for (problem, sample) in &self.flawed {
            findings.push(problem.finding(sample, store));
        }
        findings
    }

    fn count_finding(&self, store: &Path, described: &str, owner: Option<&str>) -> Finding {
        let owner_clause =
            owner.map(|owner| format!(" of owner {}", escape_controls(owner))).unwrap_or_default();
        if self.total == 0 {
            let note = |rest: &str| Finding::note("store", "workers", format!("{described}{rest}"));
            return match owner {
                Some(_) => note(&format!(", no worker{owner_clause}"))
                    .with_remedy("leave out --owner to count all workers"),
                None => note(", no worker yet"),
            };
        }
        let total = count(self.total, "worker");
        Finding::ok("store", "workers", format!("{described}, {total}{owner_clause}")).with_remedy(
            format!(
                "`swarmletfs validate {}` says what of it was not understood",
                shell_quote(store)
            ),
        )
    }
}

fn hidden_entries(skipped: &SkipReport) -> Vec<(SkipReason, Sample)> {
    let reasons = [
        SkipReason::Unreadable,
        SkipReason::Link,
        SkipReason::ForeignMount,
        SkipReason::Special,
        SkipReason::NotAWorker,
    ];
    reasons
        .map(|reason| (reason, Sample::new(&skipped.entries(reason))))
        .into_iter()
        .filter(|(_, sample)| sample.count > 0)
        .collect()
}

fn hidden_finding(reason: SkipReason, sample: &Sample, store: &Path, sign: &str) -> Finding {
    let (names, first) = (sample.names(), sample.first(store));
    let are = if sample.count == 1 { "is" } else { "are" };
    let count = |what| count(sample.count, what);
    match reason {
        SkipReason::Unreadable => {
            let message = format!("{} cannot be read: {names}", count("folder"));
            let remedy = format!("`ls -ld {first}` shows who may read it: mount as that user");
            Finding::problem("store", "unreadable", message).with_remedy(remedy)
        }
        SkipReason::Link => {
            let message = format!("{} {are} not followed: {names}", count("link"));
            Finding::note("store", "links", message).with_remedy(format!(
                "`readlink -f {first}` shows where it leads: add that folder with --store"
            ))
        }
        SkipReason::ForeignMount => {
            let message = format!("{} {are} not entered: {names}", count("other file system"));
            Finding::note("store", "foreign_mounts", message)
                .with_remedy(format!("if it contains workers, add it: `--store {first}`"))
        }
        SkipReason::Special => {
            let message = format!("{} {are} not opened: {names}", count("special file"));
            Finding::note("store", "special", message)
        }
        SkipReason::NotAWorker => {
            let message = format!(
                "{} {are} not a worker (a worker contains {sign}): {names}",
                count("folder")
            );
            Finding::note("store", "not_workers", message)
        }
    }
}

impl RecordProblem {
    fn finding(self, sample: &Sample, store: &Path) -> Finding {
        let (names, workers) = (sample.names(), count(sample.count, "worker"));
        let note =
            |check, what: &str| Finding::note("store", check, format!("{workers} {what}: {names}"));
        match self {
            RecordProblem::UnreadableMetadata => {
                let message = format!("the metadata of {workers} cannot be read: {names}");
                let remedy = format!(
                    "`ls -la {}` shows who may read it: mount as that user",
                    sample.first(store)
                );
                Finding::problem("store", "unreadable_metadata", message).with_remedy(remedy)
            }
            RecordProblem::BadMetadata => {
                note("bad_metadata", "with invalid metadata, shown without it")
            }
            RecordProblem::NoMetadata => {
                note("no_metadata", "without metadata, shown without owner and status")
            }
            RecordProblem::OtherId => note(
                "other_id",
                "with metadata that claims another id, shown under its folder's name",
            ),
            RecordProblem::TwoOwners => {
                note("two_owners", "with two owners in its metadata, hidden from both")
            }
            RecordProblem::Claims => note(
                "claims",
                "with metadata that claims something else than the registry, which counts",
            ),
            RecordProblem::BadRegistration => {
                note("bad_registration", "with a record in the registry that is not used")
            }
            RecordProblem::BadTranscript => {
                let message = format!("the transcript of {workers} cannot be read: {names}");
                let remedy = format!(
                    "`ls -la {}` shows who may read it, and `head` what it contains",
                    sample.first(store)
                );
                Finding::problem("store", "bad_transcript", message).with_remedy(remedy)
            }
            RecordProblem::NoMessage => note("no_message", "with a transcript without messages"),
            RecordProblem::IndexDisagrees => {
                note("index_disagrees", "with another status in the store's index")
            }
            RecordProblem::SameId => {
                note("same_id", "with the id of another worker, shown under a changed name")
            }
        }
    }
}
