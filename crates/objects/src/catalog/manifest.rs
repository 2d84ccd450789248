//! The manifest: the files that make up the catalog.
//!
//! It is replaced as a whole, and only if nobody replaced it meanwhile. So a compaction that dies
//! or loses leaves nothing but files that no manifest names.

use std::collections::HashSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::layout::{FILES, PARQUET};
use super::problem::CatalogProblem;

pub(super) const VERSION: u32 = 1;
/// Maximum size of the manifest, in bytes.
pub(super) const SIZE_MAX: u64 = 8 << 20;
/// Maximum size of a file of rows, in bytes.
pub(super) const FILE_MAX: u64 = 60 << 20;
const FILES_MAX: usize = 10_000;
/// Length of a hash in hexadecimal.
const HASH_LENGTH: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CatalogManifest {
    pub(super) version: u32,
    /// Name of the compaction that wrote it.
    pub(super) id: String,
    pub(super) written_at: Timestamp,
    /// Time at which all workers were listed last.
    pub(super) listed_at: Timestamp,
    pub(super) rows: usize,
    pub(super) files: Vec<RowFile>,
    /// Files that a reader with an older manifest may still need.
    #[serde(default)]
    pub(super) replaced: Vec<ReplacedFile>,
}

/// A file of rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RowFile {
    /// Key from the prefix of the store.
    pub(super) key: String,
    pub(super) rows: usize,
    /// Size in bytes.
    pub(super) bytes: u64,
    pub(super) etag: String,
    /// Hash of its bytes, in hexadecimal.
    pub(super) blake3: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReplacedFile {
    pub(super) key: String,
    pub(super) at: Timestamp,
}

#[derive(Deserialize)]
struct AnyVersion {
    version: u32,
}

impl CatalogManifest {
    /// Parses a manifest and checks it.
    ///
    /// # Errors
    ///
    /// It is damaged or of another version, or names files outside of the catalog.
    pub(super) fn parse(json: &[u8], rows_max: usize) -> Result<CatalogManifest, CatalogProblem> {
        let damaged = |reason: &str| CatalogProblem::Damaged(format!("its manifest {reason}"));
        let found: AnyVersion =
            serde_json::from_slice(json).map_err(|_| damaged("is no manifest"))?;
        if found.version != VERSION {
            return Err(CatalogProblem::Version(found.version));
        }
        let manifest: CatalogManifest =
            serde_json::from_slice(json).map_err(|_| damaged("is no manifest"))?;
        let is_file = |file: &RowFile| {
            is_row_file(&file.key) && file.bytes <= FILE_MAX && file.blake3.len() == HASH_LENGTH
        };
        let distinct: HashSet<&str> = manifest.files.iter().map(|file| &*file.key).collect();
        let rows = manifest.files.iter().fold(0, |all: usize, file| all.saturating_add(file.rows));
        if manifest.files.len() > FILES_MAX || rows > rows_max {
            return Err(damaged("names too much"));
        }
        if distinct.len() < manifest.files.len()
            || rows != manifest.rows
            || !manifest.files.iter().all(is_file)
            || !manifest.replaced.iter().all(|file| is_row_file(&file.key))
        {
            return Err(damaged("contradicts itself"));
        }
        Ok(manifest)
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        // Texts and numbers always have a form in JSON.
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// Returns the keys of all files that a reader may need.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        let replaced = self.replaced.iter().map(|file| &*file.key);
        self.files.iter().map(|file| &*file.key).chain(replaced)
    }
}

/// Returns true if `key` is the key of a file of rows.
pub(super) fn is_row_file(key: &str) -> bool {
    let Some((day, name)) = key.strip_prefix(FILES).and_then(|rest| rest.split_once('/')) else {
        return false;
    };
    let is_plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    is_plain(day) && name.strip_suffix(PARQUET).is_some_and(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> CatalogManifest {
        let file = |name: &str| RowFile {
            key: format!("{FILES}2026-11-30/{name}.parquet"),
            rows: 3,
            bytes: 100,
            etag: "\"e\"".into(),
            blake3: "0".repeat(HASH_LENGTH),
        };
        CatalogManifest {
            version: VERSION,
            id: "i".into(),
            written_at: Timestamp::UNIX_EPOCH,
            listed_at: Timestamp::UNIX_EPOCH,
            rows: 6,
            files: vec![file("a"), file("b")],
            replaced: Vec::new(),
        }
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        assert_eq!(CatalogManifest::parse(&manifest().to_json(), 10).unwrap(), manifest());
    }

    #[test]
    fn a_manifest_that_is_damaged_or_names_other_objects_is_refused() {
        let change = |change: &dyn Fn(&mut CatalogManifest)| {
            let mut changed = manifest();
            change(&mut changed);
            CatalogManifest::parse(&changed.to_json(), 10).unwrap_err()
        };
        for (changed, expected) in [
            (change(&|all| all.rows = 5), "contradicts itself"),
            (change(&|all| all.files[0].rows = usize::MAX), "names too much"),
            (change(&|all| all.files[1].key = all.files[0].key.clone()), "contradicts itself"),
            (change(&|all| all.files[0].bytes = FILE_MAX + 1), "contradicts itself"),
            (change(&|all| all.files[0].blake3.clear()), "contradicts itself"),
            (change(&|all| all.version = 2), "version 2"),
        ] {
            assert!(changed.to_string().contains(expected), "{changed}");
        }
        for key in ["workers/a/metadata.json", "catalog/v1/workers/../../x.parquet", "", "a"] {
            let error = change(&|all| all.files[0].key = key.into());
            assert!(matches!(error, CatalogProblem::Damaged(_)), "{key}");
        }
        for json in ["", "{", "[]", "{\"version\":1}", "{\"version\":1,\"files\":3}"] {
            assert!(CatalogManifest::parse(json.as_bytes(), 10).is_err(), "{json}");
        }
    }
}
