//! Serializes paths as bytes: serde's own form requires UTF-8.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(super) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_os_str().serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(source: D) -> Result<PathBuf, D::Error> {
    OsString::deserialize(source).map(PathBuf::from)
}

/// Serializes a list of paths.
pub(super) mod list {
    use super::*;

    pub(in crate::sandbox) fn serialize<S: Serializer>(
        paths: &[PathBuf],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| path.as_os_str()))
    }

    pub(in crate::sandbox) fn deserialize<'de, D: Deserializer<'de>>(
        source: D,
    ) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<OsString>::deserialize(source)?.into_iter().map(PathBuf::from).collect())
    }
}

/// Serializes a path with the layers of an overlay on it.
pub(super) mod with_layers {
    use super::*;

    pub(in crate::sandbox) fn serialize<T: Serialize, S: Serializer>(
        value: &Option<(PathBuf, T)>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().map(|(path, layers)| (path.as_os_str(), layers)).serialize(serializer)
    }

    pub(in crate::sandbox) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        source: D,
    ) -> Result<Option<(PathBuf, T)>, D::Error> {
        let value = Option::<(OsString, T)>::deserialize(source)?;
        Ok(value.map(|(path, layers)| (PathBuf::from(path), layers)))
    }
}
