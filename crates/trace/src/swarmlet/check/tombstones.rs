//! Checks the records of removed workers.

use super::super::super::check::note;
use super::super::layout::{TOMBSTONES, path};
use super::super::tombstone::{self, SIZE_MAX, Tombstone};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{RemarkSubject, Remarks};
use swarmletfs_base::name::Name;
use swarmletfs_base::store::{Store, read_whole};

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
