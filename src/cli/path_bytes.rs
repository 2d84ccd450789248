//! Serializes paths as bytes: serde's own form requires UTF-8.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<'a, P, S: Serializer>(
    paths: &'a P,
    serializer: S,
) -> Result<S::Ok, S::Error>
where
    &'a P: IntoIterator<Item = &'a PathBuf>,
{
    serializer.collect_seq(paths.into_iter().map(|path| path.as_os_str()))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<PathBuf>, D::Error> {
    Ok(Vec::<OsString>::deserialize(deserializer)?.into_iter().map(PathBuf::from).collect())
}

pub(super) fn deserialize_one<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PathBuf>, D::Error> {
    Ok(deserialize(deserializer)?.pop())
}
