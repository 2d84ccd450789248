//! The layout of runs over the instances of a benchmark: a directory for each run, and in it a
//! document for each instance, often in a directory of its own.

use super::transcript::{Container, Holds, Member, Shape, TranscriptLocation};
use swarmletfs_base::model::Worker;
use swarmletfs_base::name::{Name, RelPath};

/// Parses the path of an instance's document. Its name is the instance and one of `suffixes`; the
/// first that fits counts.
pub(super) fn locate(
    path: &RelPath,
    suffixes: &[&str],
    members: &'static [Member],
) -> Option<TranscriptLocation> {
    let file = path.file_name()?;
    let stem =
        suffixes.iter().find_map(|suffix| file.as_bytes().strip_suffix(suffix.as_bytes()))?;
    let (name, folder) = (Name::new(stem).ok()?, path.parent());
    // A directory of the instance's own belongs to the path, so that few directories are entered.
    let (folder, transcript) = match folder.file_name().filter(|own| *own == name) {
        Some(own) => (folder.parent(), RelPath::from(own).join(&file)),
        None => (folder, RelPath::from(file)),
    };
    Some(TranscriptLocation {
        folder,
        transcript,
        container: Container::File,
        shape: Shape::Documents(members),
        holds: Holds::One,
        session: None,
        agent: None,
        name,
        metadata: None,
    })
}

/// Sets the run of a worker: the directory of all instances.
pub(super) fn describe(worker: &mut Worker, location: &TranscriptLocation) {
    worker.run = location.folder.file_name().map(|run| run.to_text().into());
    worker.task_type = Some("instance".into());
}
