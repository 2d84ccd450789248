//! A transcript that goes on in further files beside the first: `run.json`, `run.cont-1.json`,
//! `run.cont-2.json`. They are read as one file.

use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{File, Meta, Store};

/// Maximum number of files after the first; further ones are not read.
const PARTS_MAX: usize = 1_000;
const MARK: &str = ".cont-";
const SUFFIX: &str = ".json";

pub(super) struct ContinuedFile {
    first: Box<dyn File>,
    others: Vec<Box<dyn File>>,
}

impl ContinuedFile {
    /// Opens the transcript that begins at `path`.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be opened.
    pub(super) fn new(folder: &dyn Store, path: &RelPath) -> Result<ContinuedFile> {
        let first = folder.open(path)?;
        let mut others = Vec::new();
        for part in parts(path) {
            match folder.open(&part) {
                Ok(file) => others.push(file),
                Err(Error::NotFound) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(ContinuedFile { first, others })
    }
}

impl File for ContinuedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let (mut begin, mut filled) = (0, 0);
        for file in [&self.first].into_iter().chain(&self.others) {
            let end = begin + file.meta()?.size;
            let at = offset + filled as u64;
            if at < end
                && let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty())
            {
                let len = rest.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
                let (part, _) = rest.split_at_mut_checked(len).ok_or(Error::Stale)?;
                let read = file.read_at(part, at - begin)?;
                filled += read;
                if read < len {
                    break;
                }
            }
            begin = end;
        }
        Ok(filled)
    }

    fn meta(&self) -> Result<Meta> {
        let mut meta = self.first.meta()?;
        for file in &self.others {
            add(&mut meta, file.meta()?);
        }
        Ok(meta)
    }
}

/// Returns the metadata of the transcript that begins at `path`, in the form of one file.
///
/// # Errors
///
/// Fails if the metadata of a file cannot be read.
pub(super) fn meta(folder: &dyn Store, path: &RelPath) -> Result<Meta> {
    let mut meta = folder.stat(path)?;
    for part in parts(path) {
        match folder.stat(&part) {
            Ok(part) => add(&mut meta, part),
            Err(Error::NotFound) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(meta)
}

/// Returns true if a file goes on with another one, by its name.
pub(crate) fn continues(name: &Name) -> bool {
    let text = name.to_text();
    let number = text.strip_suffix(SUFFIX).and_then(|stem| Some(stem.rsplit_once(MARK)?.1));
    number.is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Returns the paths of the files after the one at `path`, as far as they may exist.
fn parts(path: &RelPath) -> impl Iterator<Item = RelPath> {
    let name = path.file_name().map(|name| name.to_text().into_owned()).unwrap_or_default();
    let stem = name.strip_suffix(SUFFIX).unwrap_or(&name).to_owned();
    let parent = path.parent();
    (1..=PARTS_MAX).map_while(move |number| {
        let name = Name::new(format!("{stem}{MARK}{number}{SUFFIX}")).ok()?;
        Some(parent.join(&name))
    })
}

/// Adds the metadata of a further file. Whoever reads the whole must be allowed to read each part.
fn add(meta: &mut Meta, part: Meta) {
    meta.size = meta.size.saturating_add(part.size);
    meta.mtime = meta.mtime.max(part.mtime);
    meta.ctime = meta.ctime.max(part.ctime);
    meta.mode &= part.mode | !0o444;
}
