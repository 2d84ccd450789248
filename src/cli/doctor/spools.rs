//! Counts what waits in the spools of this user to be uploaded, also in a build that cannot upload.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Finding;
use crate::cli::object_facts::Waiting;
use crate::cli::spools::Spool;
use crate::cli::terminal::{display_path, escape_controls, shell_quote};
use crate::cli::tree_commands::format::human_size;
use crate::deadline::Deadline;
use crate::text::{count, utc};

const TOPIC: &str = "recording";
const CHECK: &str = "waiting";
/// Time limit to count all spools.
const COUNT_TIME: Duration = Duration::from_secs(5);
const CAN_UPLOAD: bool = cfg!(feature = "object-store");

/// A spool in which something waits.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SpoolFacts {
    url: String,
    /// The provider and endpoint for which it was recorded, if they are known.
    recorded_for: Option<String>,
    path: String,
    workers: u64,
    ended: u64,
    files: u64,
    bytes: u64,
    /// Time of the oldest file.
    since: Option<String>,
    /// Number of workers that could not be read, or that no time was left for.
    uncounted: u64,
}

/// Counts the files that wait in all spools.
pub(super) fn inspect_spools() -> (Vec<SpoolFacts>, Vec<Finding>) {
    let spools = match Spool::list() {
        Ok(spools) => spools,
        // Without a state folder, nothing can wait there.
        Err(_) if crate::cli::discover::state_folder().is_none() => return Default::default(),
        Err(error) => return (Vec::new(), vec![unknown(&format!("{error:#}"))]),
    };
    let end = Instant::now() + COUNT_TIME;
    let (mut all, mut findings) = (Vec::new(), Vec::new());
    for spool in &spools {
        match spool.waiting(Deadline::new(&end)) {
            Ok(waiting) if waiting.is_none() => {}
            Ok(waiting) => {
                findings.push(finding(spool, &waiting, CAN_UPLOAD));
                all.push(SpoolFacts::new(spool, &waiting));
            }
            Err(error) => findings.push(unknown(&format!("{error:#}")).about(&spool.shown_url())),
        }
    }
    if findings.is_empty() && !spools.is_empty() {
        let spools = count(spools.len(), "spool");
        let message = format!("nothing waits in {spools} to be uploaded to object stores");
        findings.push(Finding::ok(TOPIC, CHECK, message));
    }
    (all, findings)
}

fn unknown(reason: &str) -> Finding {
    let message = format!("it is unknown whether something waits to be uploaded: {reason}");
    Finding::note(TOPIC, CHECK, message)
}

impl Spool {
    fn shown_url(&self) -> String {
        escape_controls(&self.url)
    }
}

impl SpoolFacts {
    fn new(spool: &Spool, waiting: &Waiting) -> SpoolFacts {
        SpoolFacts {
            url: spool.shown_url(),
            recorded_for: spool.scope.as_deref().map(escape_controls),
            path: display_path(&spool.path),
            workers: waiting.workers,
            ended: waiting.ended,
            files: waiting.files,
            bytes: waiting.bytes,
            since: waiting.since.map(utc),
            uncounted: waiting.uncounted,
        }
    }
}

fn finding(spool: &Spool, waiting: &Waiting, can_upload: bool) -> Finding {
    let url = spool.shown_url();
    let since = waiting.since.map(|since| format!(", since {}", utc(since)));
    let uncounted = match waiting.uncounted {
        0 => String::new(),
        workers => format!("; {} could not be counted", count(workers, "worker")),
    };
    let message = format!(
        "{} ({}) of {}, {} of them ended, wait to be uploaded to {url}{}{uncounted}",
        count(waiting.files, "file"),
        human_size(waiting.bytes),
        count(waiting.workers, "worker"),
        waiting.ended,
        since.unwrap_or_default()
    );
    let flush = format!("`swarmletfs flush --store {}`", shell_quote(spool.url.as_ref()));
    let remedy = match can_upload {
        true => format!("{flush} uploads them"),
        false => format!(
            "this build has no object stores: {flush} of a build with --features object-store \
             uploads them"
        ),
    };
    Finding::note(TOPIC, CHECK, message).about(&url).with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::store::Time;

    #[test]
    fn a_build_without_object_stores_names_spools_and_says_so() {
        let path = PathBuf::from("/state/spool/1");
        let spool = Spool { url: "s3://traces/run 48".into(), scope: None, path };
        let since = Some(Time { secs: 1_767_225_600, nanos: 5 });
        let waiting = Waiting { files: 3, bytes: 2_048, workers: 2, ended: 1, since, uncounted: 0 };
        let told = |can_upload| {
            let found = finding(&spool, &waiting, can_upload);
            assert_eq!(
                found.message,
                "3 files (2.0K) of 2 workers, 1 of them ended, wait to be uploaded to \
                 s3://traces/run 48, since 2026-01-01T00:00:00Z"
            );
            found.remedy.unwrap()
        };
        let flush = "`swarmletfs flush --store 's3://traces/run 48'`";
        assert_eq!(told(true), format!("{flush} uploads them"));
        assert!(told(false).starts_with("this build has no object stores: "), "{}", told(false));
        assert!(told(false).contains(flush));
        let uncounted = finding(&spool, &Waiting { uncounted: 7, ..waiting }, true);
        assert!(uncounted.message.ends_with("7 workers could not be counted"));
    }
}
