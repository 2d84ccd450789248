//! The beginning of a file, by which formats recognize it.
//!
//! All formats look at one [`Probe`] of a file, which opens the file at most once and reads no byte
//! twice. A file whose name no format accepts is not opened.

use std::cell::{Cell, OnceCell};

use super::lenient::MaybeObject;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{File, Store, read_range};

/// Size of the beginning that most formats are recognized by, in bytes.
const HEAD: usize = 4 << 10;
/// Size of the long beginning, for files whose first lines are long, in bytes.
const LONG_HEAD: usize = 256 << 10;
/// Maximum number of files opened to recognize one store.
const FILES_MAX: usize = 20_000;
/// Maximum number of long beginnings read to recognize one store.
const LONG_HEADS_MAX: usize = 100;

/// The number of files that may still be read to recognize one store.
#[derive(Debug)]
pub struct ProbeBudget {
    files: Cell<usize>,
    long_heads: Cell<usize>,
    has_refused: Cell<bool>,
}

impl Default for ProbeBudget {
    fn default() -> ProbeBudget {
        ProbeBudget {
            files: Cell::new(FILES_MAX),
            long_heads: Cell::new(LONG_HEADS_MAX),
            has_refused: Cell::new(false),
        }
    }
}

impl ProbeBudget {
    /// Returns true if a file was not opened because too many were.
    pub fn is_spent(&self) -> bool {
        self.has_refused.get()
    }

    /// Opens a file, unless too many were opened already.
    fn open(&self, store: &dyn Store, path: &RelPath) -> Option<Box<dyn File>> {
        if take_one(&self.files) {
            return store.open(path).ok();
        }
        self.has_refused.set(true);
        None
    }
}

/// A file that may be a transcript. The read bytes are cached for all formats.
pub struct Probe<'a> {
    store: &'a dyn Store,
    path: &'a RelPath,
    name: Option<Name>,
    budget: &'a ProbeBudget,
    file: OnceCell<Option<Box<dyn File>>>,
    head: OnceCell<Vec<u8>>,
    long_head: OnceCell<Vec<u8>>,
}

impl<'a> Probe<'a> {
    /// Creates a probe of the file at `path`, which is not opened yet.
    pub fn new(store: &'a dyn Store, path: &'a RelPath, budget: &'a ProbeBudget) -> Probe<'a> {
        let (file, head, long_head) = Default::default();
        Probe { store, path, name: path.file_name(), budget, file, head, long_head }
    }

    pub fn path(&self) -> &RelPath {
        self.path
    }

    pub(crate) fn store(&self) -> &dyn Store {
        self.store
    }

    pub fn name(&self) -> &[u8] {
        self.name.as_ref().map(Name::as_bytes).unwrap_or_default()
    }

    /// Returns the first 4 KiB, or the whole file if it is shorter. Empty if the file
    /// cannot be read, or if too many files were opened already.
    pub fn head(&self) -> &[u8] {
        self.head.get_or_init(|| self.read(0, HEAD))
    }

    /// Returns the first 256 KiB, or the whole file if it is shorter. No longer than
    /// [`Probe::head`] if too many long beginnings were read already.
    pub fn long_head(&self) -> &[u8] {
        let head = self.head();
        if head.len() < HEAD {
            return head;
        }
        self.long_head.get_or_init(|| {
            let rest = if take_one(&self.budget.long_heads) {
                self.read(HEAD as u64, LONG_HEAD - HEAD)
            } else {
                Vec::new()
            };
            [head, &rest].concat()
        })
    }

    /// Decodes the first `count` lines. Lines that are no JSON objects are left out.
    pub(super) fn first_lines<'p, T: serde::Deserialize<'p>>(&'p self, count: usize) -> Vec<T> {
        let has_all = |head: &[u8]| memchr::memchr_iter(b'\n', head).count() >= count;
        let head = if has_all(self.head()) { self.head() } else { self.long_head() };
        let lines = head.split(|byte| *byte == b'\n').take(count);
        lines.filter_map(|line| serde_json::from_slice::<MaybeObject<T>>(line).ok()?.0).collect()
    }

    /// Returns true if the first line is too long to be decoded and begins with all `signs`.
    pub(super) fn has_long_line_with(&self, signs: &[&[u8]]) -> bool {
        let head = self.head();
        memchr::memchr(b'\n', self.long_head()).is_none()
            && signs.iter().all(|sign| memchr::memmem::find(head, sign).is_some())
    }

    /// Returns the last 4 KiB. Empty if the file cannot be read.
    pub fn tail(&self) -> Vec<u8> {
        let size = self.file().and_then(|file| Some(file.stat_without_acl().ok()?.size));
        self.read(size.unwrap_or_default().saturating_sub(HEAD as u64), HEAD)
    }

    fn file(&self) -> Option<&dyn File> {
        let file = self.file.get_or_init(|| self.budget.open(self.store, self.path));
        file.as_deref()
    }

    /// Returns the names in the directory at the path; empty if it is none.
    pub fn names(&self) -> Vec<Name> {
        let entries = self.store.list(self.path).unwrap_or_default();
        entries.into_iter().map(|entry| entry.name).collect()
    }

    pub fn long_head_inside(&self, name: &Name) -> Vec<u8> {
        let path = self.path.join(name);
        Probe::new(self.store, &path, self.budget).long_head().to_vec()
    }

    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let bytes = self.file().and_then(|file| read_range(file, offset, len).ok());
        bytes.unwrap_or_default()
    }
}

/// Takes one off the number `left`. Returns false if it is 0.
fn take_one(left: &Cell<usize>) -> bool {
    let has_one = left.get() > 0;
    left.set(left.get().saturating_sub(1));
    has_one
}
