//! Out-of-band outputs: `<data>/tool_outputs/<owner>/<id>.txt`, named by a stub in the call's own
//! file.

use super::super::value::scalar_text;
use super::super::{RecordSource, bounded};
use super::outcome::Stub;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::Worker;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::read_whole;

/// Maximum size of a description that is read, in bytes.
pub(super) const DESCRIPTION_MAX: u64 = 1 << 20;

/// Returns the path of the output behind `stub`, and its size in bytes. Returns `None` unless its
/// description names the worker's own owner.
///
/// # Errors
///
/// Fails if the output exists but cannot be read.
pub(super) fn find_output(
    source: RecordSource<'_>,
    worker: &Worker,
    stub: &Stub,
) -> Result<Option<(RelPath, u64)>> {
    let (Some(outputs), Some(owner)) = (source.outputs, &worker.owner) else { return Ok(None) };
    let file = |suffix: &str| -> Result<RelPath> {
        let folder = RelPath::from(Name::new(&*owner.0)?);
        Ok(folder.join(&Name::new(format!("{}.{suffix}", stub.artifact))?))
    };
    let (Ok(description), Ok(body)) = (file("json"), file("txt")) else { return Ok(None) };
    let Some(description) = read_whole(outputs, &description, DESCRIPTION_MAX)? else {
        return Ok(None);
    };
    let description = bounded::parse_object(&description).unwrap_or_default();
    if scalar_text(description.get("owner_id")).as_deref() != Some(&*owner.0) {
        return Ok(None);
    }
    let bytes = outputs.open(&body)?.stat_without_acl()?.size;
    Ok(Some((body, bytes)))
}
