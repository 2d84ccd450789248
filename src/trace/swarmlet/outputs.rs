//! Outputs stored out of band: `<data>/tool_outputs/<owner>/<id>.txt`, named by a stub in the call's own file.

use serde_json::Value;

use super::super::Place;
use super::outcome::Stub;
use super::value::string;
use crate::model::{Output, Worker};
use crate::name::RelPath;
use crate::store::read_whole;

/// A larger description is not read, in bytes.
const DESCRIPTION_MAX: u64 = 1 << 20;

/// Where the output behind `stub` lies, and its size in bytes. Only what its description says belongs to the
/// worker's own owner is reached; all else is said to be stored out of band, without telling why.
pub(super) fn find(place: Place<'_>, worker: &Worker, stub: &Stub) -> (Output, u64) {
    match reach(place, worker, stub) {
        Some((path, bytes)) => (Output::StoredOut(path), bytes),
        None => (Output::Unreadable("stored out of band".into()), stub.bytes),
    }
}

fn reach(place: Place<'_>, worker: &Worker, stub: &Stub) -> Option<(RelPath, u64)> {
    let outputs = place.outputs?;
    let owner = worker.owner.as_ref()?;
    let path = |suffix: &str| {
        let name = crate::name::Name::new(&owner.0).ok()?;
        let file = crate::name::Name::new(format!("{}.{suffix}", stub.artifact)).ok()?;
        Some(RelPath::from(name).join(&file))
    };
    let description = read_whole(outputs, &path("json")?, DESCRIPTION_MAX).ok()??;
    let description: Value = serde_json::from_slice(&description).ok()?;
    if string(description.get("owner_id")).as_ref() != Some(&owner.0) {
        return None;
    }
    let body = path("txt")?;
    let bytes = outputs.open(&body).ok()?.meta().ok()?.size;
    Some((body, bytes))
}
