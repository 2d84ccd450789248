//! The URL of a part of an object store: `s3://bucket/prefix`, `gs://…` or `az://container/…`.
//!
//! Nothing in it is decoded: a key is spelled as the provider's own tools spell it.

use std::path::Path;

use swarmletfs_base::name::RelPath;

use crate::failure::{FailureKind, RequestFailure};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Provider {
    S3,
    Google,
    Azure,
}

#[derive(Debug, Clone)]
pub(crate) struct BucketUrl {
    pub(crate) provider: Provider,
    pub(crate) bucket: String,
    /// Beginning of the keys, with the `/` at its end; empty for the whole bucket.
    pub(crate) prefix: String,
    /// The URL in one spelling, without a `/` at its end.
    pub(crate) text: String,
}

impl BucketUrl {
    /// Parses a URL.
    ///
    /// # Errors
    ///
    /// The scheme is unknown, the bucket is missing, or the prefix is no path.
    pub(crate) fn parse(url: &Path) -> Result<BucketUrl, RequestFailure> {
        let wrong = |reason: &str| RequestFailure::new(FailureKind::Url, reason);
        let text = url.to_str().ok_or_else(|| wrong("it is not UTF-8"))?;
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        let provider = match scheme {
            "s3" => Provider::S3,
            "gs" => Provider::Google,
            "az" => Provider::Azure,
            _ => return Err(wrong("its scheme is unknown")),
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(wrong("it names no bucket"));
        }
        let prefix = prefix.trim_end_matches('/');
        RelPath::parse(prefix).map_err(|error| wrong(&format!("its prefix: {error}")))?;
        let slash = if prefix.is_empty() { "" } else { "/" };
        Ok(BucketUrl {
            provider,
            bucket: bucket.to_owned(),
            prefix: format!("{prefix}{slash}"),
            text: format!("{scheme}://{bucket}{slash}{prefix}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_ends_in_a_slash_unless_it_is_empty() {
        for (url, bucket, prefix, text) in [
            ("s3://b", "b", "", "s3://b"),
            ("s3://b/", "b", "", "s3://b"),
            ("s3://b/a/c", "b", "a/c/", "s3://b/a/c"),
            ("gs://b/a//", "b", "a/", "gs://b/a"),
            ("az://b/a b%20", "b", "a b%20/", "az://b/a b%20"),
        ] {
            let parsed = BucketUrl::parse(Path::new(url)).unwrap();
            assert_eq!((&*parsed.bucket, &*parsed.prefix, &*parsed.text), (bucket, prefix, text));
        }
    }

    #[test]
    fn urls_without_a_bucket_or_with_a_wrong_prefix_are_refused() {
        for url in ["s3://", "s3:///a", "s3://b/a//c", "s3://b/../c", "http://b", "b/c"] {
            assert!(BucketUrl::parse(Path::new(url)).is_err(), "{url}");
        }
    }
}
