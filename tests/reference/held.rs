//! Files that are kept open: one version of a generated file, an own file as on disk, whatever becomes of their names.

use super::eyes::{Eyes, Held};
use super::ground::{Identity, Raw, What};
use super::view::Shown;

/// An open file and what must be read from it.
pub struct Open {
    /// Which view it was opened in.
    pub view: usize,
    path: String,
    held: Held,
    bytes: Vec<u8>,
    /// Of an own file, what it is on disk.
    identity: Option<Identity>,
}

impl Open {
    /// Opens what must be a file; nothing if it must be none.
    pub fn new(view: usize, eyes: &dyn Eyes, path: &str, must: Option<&Shown>) -> Result<Option<Open>, String> {
        let said = |errno| format!("{path}: opening it: {errno}");
        let identity = match must {
            Some(Shown::Own { identity, .. }) => Some(*identity),
            Some(Shown::Made { .. }) => None,
            Some(Shown::Folder(_) | Shown::Link(_)) | None => return Ok(None),
        };
        let held = eyes.open(path.as_bytes()).map_err(said)?;
        let (bytes, _) = eyes.read(&held).map_err(said)?;
        Ok(Some(Open { view, path: path.to_owned(), held, bytes, identity }))
    }

    /// Notes what lies in the store now: what an own file was when its last name went is what it stays.
    pub fn note(&mut self, raw: &Raw) {
        let mut lying = raw.0.values();
        if let Some(lying) = lying.find(|lying| Some(lying.identity) == self.identity)
            && let What::File(bytes) = &lying.what
        {
            self.bytes.clone_from(bytes);
        }
    }

    /// Reads it again.
    pub fn check(&self, eyes: &dyn Eyes) -> Result<(), String> {
        let path = &self.path;
        let (bytes, size) = eyes.read(&self.held).map_err(|errno| format!("{path}, held open: {errno}"))?;
        if bytes != self.bytes {
            let shown = |bytes: &[u8]| bytes[..bytes.len().min(300)].escape_ascii().to_string();
            return Err(format!("{path}, held open: {:?} and not {:?}", shown(&bytes), shown(&self.bytes)));
        }
        if size != bytes.len() as u64 {
            return Err(format!("{path}, held open: {} bytes, and stat tells {size}", bytes.len()));
        }
        Ok(())
    }

    pub fn close(self, eyes: &dyn Eyes) {
        eyes.close(self.held);
    }
}
