//! Outputs stored out of band: `<data>/tool_outputs/<owner>/<id>.txt`, named by a stub in the call's own file.

use super::super::Place;
use super::super::known;
use super::super::value::string;
use super::outcome::Stub;
use crate::error::Result;
use crate::model::Worker;
use crate::name::{Name, RelPath};
use crate::store::read_whole;

/// A larger description is not read, in bytes.
const DESCRIPTION_MAX: u64 = 1 << 20;

/// Where the output behind `stub` lies, and its size in bytes. `None` unless its description says that it belongs to
/// the worker's own owner, whatever else is the case. Errors: it is there and cannot be read.
pub(super) fn find(place: Place<'_>, worker: &Worker, stub: &Stub) -> Result<Option<(RelPath, u64)>> {
    let (Some(outputs), Some(owner)) = (place.outputs, &worker.owner) else { return Ok(None) };
    let file = |suffix: &str| -> Result<RelPath> {
        let folder = RelPath::from(Name::new(&*owner.0)?);
        Ok(folder.join(&Name::new(format!("{}.{suffix}", stub.artifact))?))
    };
    let (Ok(description), Ok(body)) = (file("json"), file("txt")) else { return Ok(None) };
    let Some(description) = read_whole(outputs, &description, DESCRIPTION_MAX)? else { return Ok(None) };
    let description = known::object(&description).unwrap_or_default();
    if string(description.get("owner_id")).as_deref() != Some(&*owner.0) {
        return Ok(None);
    }
    let bytes = outputs.open(&body)?.stat_without_acl()?.size;
    Ok(Some((body, bytes)))
}
