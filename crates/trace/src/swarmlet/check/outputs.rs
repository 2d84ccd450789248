//! Checks the outputs stored out of band, and the markers that stand for them.

use super::super::super::bounded;
use super::super::super::check::{note, problem, quote};
use super::super::super::value::scalar_text;
use crate::swarmlet::outcome::DESCRIPTION_MAX;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{Outcome, Output, Record, RemarkSubject, Remarks, WorkerCheck};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{DirEntry, Kind, Store, read_range, read_whole};

const MARKER: &[u8] = b"[TOOL_OUTPUT:";
/// Maximum size of a file that may be a marker, in bytes.
const MARKER_FILE_MAX: u64 = 4_096;
const ID_DIGITS: usize = 32;

pub(super) fn check_markers(
    folder: &dyn Store,
    record: &Record,
    check: &mut WorkerCheck,
    deadline: Deadline<'_>,
) {
    let subject = RemarkSubject::Content;
    for call in record.trace.calls.iter().filter(|call| call.outcome == Outcome::Unknown) {
        if !deadline.has_time() {
            check.is_complete = false;
            return;
        }
        match &call.output {
            Output::Unreadable(_) if starts_with_marker(folder, &call.path) => {
                let owner = record.worker.owner.as_ref();
                check.remarks.add(problem("no_output"), &call.path, subject, || match owner {
                    Some(owner) => format!(
                        "the output is not found in tool_outputs/ as <id>.txt and <id>.json of \
                         owner {}",
                        quote(&owner.0)
                    ),
                    None => "the output is not read from tool_outputs/; the worker's metadata \
                             needs an owner_id"
                        .into(),
                });
            }
            Output::InPlace
                if call.bytes <= MARKER_FILE_MAX && starts_with_marker(folder, &call.path) =>
            {
                check.remarks.add(problem("marker"), &call.path, subject, || {
                    "not a marker; expected [TOOL_OUTPUT:artifact_id=<32 hexadecimal \
                     digits>,tool=<tool>,bytes=<number>]"
                        .into()
                });
            }
            _ => {}
        }
    }
}

fn starts_with_marker(folder: &dyn Store, path: &RelPath) -> bool {
    let head = folder.open(path).and_then(|file| read_range(&*file, 0, MARKER_FILE_MAX as usize));
    head.is_ok_and(|head| head.trim_ascii_start().starts_with(MARKER))
}

pub(super) fn check_store(outputs: &dyn Store, remarks: &mut Remarks, deadline: Deadline<'_>) {
    for owner in sorted(outputs, &RelPath::root()) {
        if owner.kind == Kind::Folder && deadline.has_time() {
            check_owner(outputs, &owner.name, remarks, deadline);
        }
    }
}

fn check_owner(outputs: &dyn Store, owner: &Name, remarks: &mut Remarks, deadline: Deadline<'_>) {
    let folder = RelPath::from(owner.clone());
    let entries = sorted(outputs, &folder);
    let has = |name: String| {
        entries.binary_search_by(|entry| entry.name.as_bytes().cmp(name.as_bytes())).is_ok()
    };
    for entry in entries.iter().take_while(|_| deadline.has_time()) {
        let name = entry.name.to_text();
        let shown = shown_path(&folder.join(&entry.name));
        let Some((id, kind)) = name.rsplit_once('.').filter(|(id, _)| !id.is_empty()) else {
            continue;
        };
        let is_id = id.len() == ID_DIGITS && id.bytes().all(|b| b.is_ascii_hexdigit());
        match kind {
            "txt" | "json" if !is_id => {
                remarks.add(problem("output_name"), &shown, RemarkSubject::Entry, || {
                    format!("is not read; the name is <{ID_DIGITS} hexadecimal digits>.{kind}")
                });
            }
            "txt" if !has(format!("{id}.json")) => {
                remarks.add(problem("no_description"), &shown, RemarkSubject::Entry, || {
                    format!("is not read; {id}.json is missing")
                });
            }
            "json" => {
                if !has(format!("{id}.txt")) {
                    remarks.add(note("no_text"), &shown, RemarkSubject::Entry, || {
                        format!("describes no output; {id}.txt is missing")
                    });
                }
                check_description(outputs, &folder.join(&entry.name), owner, remarks);
            }
            _ => {}
        }
    }
}

fn check_description(outputs: &dyn Store, path: &RelPath, owner: &Name, remarks: &mut Remarks) {
    let read = read_whole(outputs, path, DESCRIPTION_MAX);
    let shown = shown_path(path);
    let mut add = |text: String| {
        remarks.add(problem("description"), &shown, RemarkSubject::Content, || text);
    };
    let bytes = match read {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return add(format!("larger than {DESCRIPTION_MAX} bytes, so it is not read")),
        Err(error) => return add(format!("cannot be read: {error}")),
    };
    match bounded::parse_object(&bytes) {
        Err(error) => add(error.to_string()),
        Ok(fields) => {
            let stated = scalar_text(fields.get("owner_id")).unwrap_or_default();
            if stated.as_bytes() != owner.as_bytes() {
                let owner = quote(&owner.to_text());
                add(format!("owner_id is {}; expected {owner}, as the folder", quote(&stated)));
            }
        }
    }
}

/// Returns the path of an output as the store's reader knows it.
fn shown_path(path: &RelPath) -> RelPath {
    RelPath::constant("tool_outputs").join_path(path)
}

fn sorted(store: &dyn Store, folder: &RelPath) -> Vec<DirEntry> {
    let mut entries = store.list(folder).unwrap_or_default();
    entries.sort_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
    entries
}
