//! Files held open: one version of a generated file, or an own file as on disk, even after its name
//! is gone.

use super::mutable_store::{Identity, RawEntries, RawKind};
use super::observer::{Observer, OpenHandle};
use super::view::ExpectedNode;

/// An open file and its expected content.
pub struct OpenFile {
    /// Number of the view.
    pub view: usize,
    path: String,
    handle: OpenHandle,
    bytes: Vec<u8>,
    /// Identity of an own file on disk.
    identity: Option<Identity>,
}

impl OpenFile {
    /// Opens `path` if it is expected to be a file.
    pub fn new(
        view: usize,
        observer: &dyn Observer,
        path: &str,
        expected: Option<&ExpectedNode>,
    ) -> Result<Option<OpenFile>, String> {
        let failed = |errno| format!("{path}: cannot open: {errno}");
        let identity = match expected {
            Some(ExpectedNode::Own { identity, .. }) => Some(*identity),
            Some(ExpectedNode::Made { .. }) => None,
            Some(ExpectedNode::Folder(_) | ExpectedNode::Link(_)) | None => return Ok(None),
        };
        let handle = observer.open(path.as_bytes()).map_err(failed)?;
        let (bytes, _) = observer.read(&handle).map_err(failed)?;
        Ok(Some(OpenFile { view, path: path.to_owned(), handle, bytes, identity }))
    }

    /// Updates the expected content from the store. A file without a name keeps its last content.
    pub fn update(&mut self, raw: &RawEntries) {
        let mut entries = raw.0.values();
        if let Some(entry) = entries.find(|entry| Some(entry.identity) == self.identity)
            && let RawKind::File(bytes) = &entry.kind
        {
            self.bytes.clone_from(bytes);
        }
    }

    /// Reads the file again and compares.
    pub fn check(&self, observer: &dyn Observer) -> Result<(), String> {
        let path = &self.path;
        let (bytes, size) =
            observer.read(&self.handle).map_err(|errno| format!("{path}, held open: {errno}"))?;
        if bytes != self.bytes {
            let shown = |bytes: &[u8]| bytes[..bytes.len().min(300)].escape_ascii().to_string();
            return Err(format!(
                "{path}, held open: {:?} and not {:?}",
                shown(&bytes),
                shown(&self.bytes)
            ));
        }
        if size != bytes.len() as u64 {
            return Err(format!(
                "{path}, held open: {} bytes, and stat reports {size}",
                bytes.len()
            ));
        }
        Ok(())
    }

    pub fn close(self, observer: &dyn Observer) {
        observer.close(self.handle);
    }
}
