//! Serializes paths as bytes: serde's own form requires UTF-8.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_os_str().serialize(serializer)
}

pub fn deserialize<'de, D: Deserializer<'de>>(source: D) -> Result<PathBuf, D::Error> {
    OsString::deserialize(source).map(PathBuf::from)
}

/// Serializes a list of paths, or an optional one as a list.
pub mod list {
    use super::*;

    pub fn serialize<'a, P, S: Serializer>(paths: &'a P, serializer: S) -> Result<S::Ok, S::Error>
    where
        &'a P: IntoIterator<Item = &'a PathBuf>,
    {
        serializer.collect_seq(paths.into_iter().map(|path| path.as_os_str()))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(source: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<OsString>::deserialize(source)?.into_iter().map(PathBuf::from).collect())
    }

    pub fn deserialize_one<'de, D: Deserializer<'de>>(
        source: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        Ok(deserialize(source)?.pop())
    }
}

/// Serializes a path with a value that belongs to it.
pub mod with_value {
    use super::*;

    pub fn serialize<T: Serialize, S: Serializer>(
        pair: &Option<(PathBuf, T)>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        pair.as_ref().map(|(path, value)| (path.as_os_str(), value)).serialize(serializer)
    }

    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        source: D,
    ) -> Result<Option<(PathBuf, T)>, D::Error> {
        let pair = Option::<(OsString, T)>::deserialize(source)?;
        Ok(pair.map(|(path, value)| (PathBuf::from(path), value)))
    }
}
