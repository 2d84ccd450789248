//! The entries of a copied workspace, as they were when the worker began.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::EntryKind;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{EntryStat, Kind, Time};
use swarmletfs_record::write::Dir;

pub(super) const FILE: &str = "manifest";
const SIZE_MAX: u64 = 4 << 30;

#[derive(Debug, Default)]
pub(super) struct Manifest {
    entries: BTreeMap<RelPath, CopiedEntry>,
    children: BTreeMap<RelPath, Vec<Name>>,
    facts: CopyFacts,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CopyFacts {
    /// Time at which everything was copied.
    pub(super) copied_at: Time,
    /// Number of devices, FIFOs and sockets that were left out.
    pub(super) special: u64,
    pub(super) unreadable: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CopiedEntry {
    pub(super) kind: EntryKind,
    pub(super) mode: u32,
    pub(super) size: u64,
    pub(super) sha256: String,
    pub(super) target: Vec<u8>,
    /// Time of the last write of the copy.
    pub(super) mtime: Time,
    /// Time of the last change of the copy.
    pub(super) ctime: Time,
    /// True if the entry is on another mount than the workspace.
    pub(super) is_foreign: bool,
}

type SavedManifest<'a> = (CopyFacts, Vec<(&'a [u8], CopiedEntry)>);

impl Manifest {
    pub(super) fn insert(&mut self, path: &RelPath, entry: CopiedEntry) {
        if let Some(name) = path.file_name() {
            self.children.entry(path.parent()).or_default().push(name);
        }
        self.entries.insert(path.clone(), entry);
    }

    pub(super) fn set_facts(&mut self, facts: CopyFacts) {
        self.facts = facts;
    }

    pub(super) fn get(&self, path: &RelPath) -> Option<&CopiedEntry> {
        self.entries.get(path)
    }

    pub(super) fn children(&self, path: &RelPath) -> &[Name] {
        self.children.get(path).map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn facts(&self) -> CopyFacts {
        self.facts
    }

    /// Returns true if nobody has touched a copy since it was made.
    pub(super) fn is_untouched(&self, copied: &CopiedEntry, now: &EntryStat) -> bool {
        let is_kind = matches!(
            (copied.kind, now.kind),
            (EntryKind::File, Kind::File)
                | (EntryKind::Folder, Kind::Folder)
                | (EntryKind::Link, Kind::Link)
        );
        is_kind
            && (copied.kind != EntryKind::File || copied.size == now.size)
            && (copied.mode, copied.mtime, copied.ctime) == (now.mode, now.mtime, now.ctime)
            // A later stamp may stand for two changes.
            && now.ctime < self.facts.copied_at
    }

    pub(super) fn save(&self, draft: &Dir) -> Result<()> {
        let entries = self.entries.iter().map(|(path, entry)| (path.as_bytes(), entry.clone()));
        let stored: SavedManifest<'_> = (self.facts, entries.collect());
        let invalid = |_| Error::Io(rustix::io::Errno::INVAL);
        let bytes = postcard::to_stdvec(&stored).map_err(invalid)?;
        draft.write_temporary(&mut bytes.as_slice())?.replace(draft, &Name::new(FILE)?)
    }

    pub(super) fn load(draft: &Dir) -> Result<Manifest> {
        let bytes = draft.read(&Name::new(FILE)?, SIZE_MAX)?.ok_or(Error::NotFound)?;
        let invalid = |_| Error::Io(rustix::io::Errno::INVAL);
        let (facts, entries): SavedManifest<'_> = postcard::from_bytes(&bytes).map_err(invalid)?;
        let mut manifest = Manifest { facts, ..Manifest::default() };
        for (path, entry) in entries {
            manifest.insert(&RelPath::parse(path)?, entry);
        }
        Ok(manifest)
    }
}
