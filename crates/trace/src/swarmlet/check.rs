//! Finds the parts of the files of a worker and its store that were not understood, and suggests
//! their probable meaning.

mod document;
mod index;
mod lines;
mod metadata;
mod names;
mod outputs;
mod similar;
mod tombstones;
mod workspace;

use super::super::RecordSource;
use super::super::check::{add_record_remarks, check_skipped};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{Record, Remarks, SkipReport, WorkerCheck};
use swarmletfs_base::store::Store;

/// Checks the files of a worker. Keeps `limit` remarks of each kind.
pub(super) fn check_worker(
    source: RecordSource<'_>,
    record: &Record,
    limit: usize,
    deadline: Deadline<'_>,
) -> WorkerCheck {
    let mut check = WorkerCheck::new(limit);
    add_record_remarks(record, &mut check.remarks);
    names::check_worker(source.folder, &mut check.remarks);
    metadata::check(source.folder, &record.worker, &mut check.remarks);
    metadata::check_tools_used(source.folder, &mut check.remarks);
    lines::check_metrics(source.folder, record, &mut check, deadline);
    lines::check_thread(source.folder, &mut check, deadline);
    outputs::check_markers(source.folder, record, &mut check, deadline);
    workspace::check(source.folder, &mut check, deadline);
    check
}

/// Checks a store outside of its workers. Keeps `limit` remarks of each kind.
pub(super) fn check_store(
    store: &dyn Store,
    outputs: Option<&dyn Store>,
    skipped: &SkipReport,
    description: &str,
    limit: usize,
    deadline: Deadline<'_>,
) -> Remarks {
    let mut remarks = check_skipped(skipped, description, limit);
    names::check_store(store, skipped, &mut remarks);
    index::check(store, &mut remarks, deadline);
    tombstones::check(store, &mut remarks, deadline);
    if let Some(outputs) = outputs {
        outputs::check_store(outputs, &mut remarks, deadline);
    }
    remarks
}
