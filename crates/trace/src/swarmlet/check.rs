//! Finds the parts of the files of a worker and its store that were not understood, and suggests
//! their probable meaning.

mod document;
mod index;
mod lines;
mod metadata;
mod names;
mod outputs;
mod workspace;

use super::layout::{TOMBSTONES, path};
use super::tombstone::{self, SIZE_MAX, Tombstone};
use crate::RecordSource;
use crate::check::{add_record_remarks, check_skipped, note};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{Record, RemarkSubject, Remarks, SkipReport, WorkerCheck};
use swarmletfs_base::name::Name;
use swarmletfs_base::store::{Store, read_whole};

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
    check(store, &mut remarks, deadline);
    if let Some(outputs) = outputs {
        outputs::check_store(outputs, &mut remarks, deadline);
    }
    remarks
}

/// Finds records that are damaged. `expand` cannot say when these workers were removed.
pub(super) fn check(store: &dyn Store, remarks: &mut Remarks, deadline: Deadline<'_>) {
    for id in tombstone::list(store) {
        if !deadline.has_time() {
            return;
        }
        let Ok(file) = Tombstone::file_name(&id) else { continue };
        let path = path(TOMBSTONES).join(&file);
        let json = match read_whole(store, &path, SIZE_MAX) {
            Err(error) if error.is_not_found() => continue,
            read => read.ok().flatten(),
        };
        let tombstone = json.and_then(|json| Tombstone::parse(&json));
        if !tombstone.is_some_and(|tombstone| is_about(&tombstone, &id)) {
            remarks.add(note("damaged_tombstone"), &path, RemarkSubject::Entry, || {
                "is damaged: only the id of the removed worker is known".into()
            });
        }
    }
}

fn is_about(tombstone: &Tombstone, id: &Name) -> bool {
    tombstone.id == id.to_text()
}
