//! The form of a URL that names a part of an object store, as opposed to a path.

use std::path::Path;

/// Schemes of the object stores: S3 and its relatives, Google Cloud Storage, Azure Blob Storage.
const SCHEMES: [&[u8]; 3] = [b"s3://", b"gs://", b"az://"];

/// Returns true if `path` is the URL of an object store. Such a path exists on no disk, so it must
/// neither be resolved nor joined to a directory.
pub fn is_object_url(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    SCHEMES.iter().any(|scheme| bytes.starts_with(scheme))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_known_schemes_are_object_urls() {
        for (path, expected) in [
            ("s3://bucket/prefix", true),
            ("gs://bucket", true),
            ("az://container/a/b", true),
            ("s3://", true),
            ("s3:/bucket", false),
            ("S3://bucket", false),
            ("/data/s3://bucket", false),
            ("http://host", false),
            ("", false),
        ] {
            assert_eq!(is_object_url(Path::new(path)), expected, "{path}");
        }
    }
}
