//! Contents of small transcripts beside the workers, so that nobody needs a request for each.
//!
//! Nobody announces a transcript, so readers list them all in any case. A row is the content of one
//! version of an object. Where the ETag of the object is a hash of its content, as in most stores,
//! the content must have it.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use swarmletfs_base::name::RelPath;
use swarmletfs_table::ColumnKind::Text;
use swarmletfs_table::{ParquetFile, ParquetTable, TableColumns};

use super::layout::CATALOG;
use super::problem::CatalogProblem;
use super::rows::{CONTENTS_MAX, KnownContents};
use crate::key_tree::ListedObject;
use crate::parts::WORKERS;
use crate::writer::content_etag;

const TABLE: &str = "transcript";
const COLUMNS: TableColumns = &[(PATH, Text), (ETAG, Text), (CONTENT, Text)];
/// Path of the object from the prefix.
const PATH: &str = "path";
const ETAG: &str = "etag";
const CONTENT: &str = "content";
/// Ends of the names of transcripts, and of parts of them.
const ENDS: [&str; 2] = [".jsonl", ".json"];
/// Maximum size of the unpacked columns of a file, in bytes.
const UNPACKED_MAX: u64 = 256 << 20;
/// Number of digits of an ETag that is a hash of the content.
const HASH_LENGTH: usize = 32;

/// Returns true if the catalog may have the content of an object.
pub(crate) fn is_small_transcript(object: &ListedObject) -> bool {
    object.parts.is_empty()
        && object.etag.is_some()
        && (1..=CONTENTS_MAX).contains(&object.size)
        && ENDS.iter().any(|end| object.path.ends_with(end))
        && ![WORKERS, CATALOG].iter().any(|folder| object.path.starts_with(folder))
}

/// Returns true if an object may have this content: it has its size and, where the ETag is a hash
/// of the content, the hash.
pub(super) fn may_have_content(object: &ListedObject, content: &[u8]) -> bool {
    let etag = object.etag.as_deref().unwrap_or_default().trim_matches('"');
    let is_hash = etag.len() == HASH_LENGTH && etag.bytes().all(|byte| byte.is_ascii_hexdigit());
    let has_hash = |mut content| {
        content_etag(&mut content)
            .is_ok_and(|found| found.trim_matches('"').eq_ignore_ascii_case(etag))
    };
    object.size == content.len() as u64 && (!is_hash || has_hash(content))
}

/// Returns a file with these contents.
///
/// # Errors
///
/// A content has no form in the table.
pub(super) fn encode(rows: &[(ListedObject, Bytes)]) -> io::Result<Bytes> {
    let mut table = ParquetTable::new(TABLE, COLUMNS, Vec::new())?;
    for (object, content) in rows {
        let content = std::str::from_utf8(content).map_err(io::Error::other)?;
        table.add(&json!({PATH: &*object.path, ETAG: object.etag, CONTENT: content}))?;
    }
    table.finish().map(Bytes::from)
}

/// Parses a file. Rows that no object can have are left out.
///
/// # Errors
///
/// It is damaged.
pub(super) fn parse(file: Bytes, rows_max: usize) -> Result<KnownContents, CatalogProblem> {
    let damaged = |error: swarmletfs_table::TableError| {
        CatalogProblem::Damaged(format!("a file of transcripts: {error}"))
    };
    let file = ParquetFile::new(file, rows_max, UNPACKED_MAX).map_err(damaged)?;
    let text = |name| file.texts(name).map_err(damaged);
    let (paths, etags, contents) = (text(PATH)?, text(ETAG)?, text(CONTENT)?);
    let rows = paths.iter().zip(&etags).zip(contents).filter_map(|((path, etag), content)| {
        let shared = |text: &[u8]| Some(Arc::from(std::str::from_utf8(text).ok()?));
        let content = content?;
        let object = ListedObject {
            path: shared(path.as_ref()?.data())?,
            size: content.data().len() as u64,
            etag: Some(shared(etag.as_ref()?.data())?),
            ..ListedObject::default()
        };
        let is_valid = RelPath::parse(&*object.path).is_ok()
            && is_small_transcript(&object)
            && may_have_content(&object, content.data());
        is_valid.then(|| (object, Bytes::copy_from_slice(content.data())))
    });
    Ok(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(path: &str, etag: Option<&str>, content: &str) -> (ListedObject, Bytes) {
        let hash = content_etag(&mut content.as_bytes()).unwrap();
        let object = ListedObject {
            path: path.into(),
            size: content.len() as u64,
            etag: Some(etag.unwrap_or(&hash).into()),
            ..ListedObject::default()
        };
        (object, Bytes::copy_from_slice(content.as_bytes()))
    }

    #[test]
    fn contents_are_read_as_they_were_written() {
        let rows = [row("a/b.jsonl", None, "{}\n"), row("ü.json", Some("0x8D"), "ü")];
        assert_eq!(parse(encode(&rows).unwrap(), 2).unwrap(), rows);
        assert!(parse(encode(&rows).unwrap(), 1).is_err());
    }

    #[test]
    fn contents_that_no_object_has_are_left_out() {
        let other = content_etag(&mut &b"other"[..]).unwrap();
        let large = "x".repeat(CONTENTS_MAX as usize + 1);
        for (path, etag, content) in [
            ("a.jsonl", Some(&*other), "{}"),
            ("a.jsonl", Some(other.trim_matches('"')), "{}"),
            ("workers/a/metadata.json", None, "{}"),
            ("catalog/v1/manifest.json", None, "{}"),
            ("../a.json", None, "{}"),
            ("a//b.json", None, "{}"),
            ("a.txt", None, "{}"),
            ("a.json", None, ""),
            ("a.json", None, &large),
        ] {
            let rows = [row(path, etag, content), row("b.json", None, "{}")];
            assert_eq!(parse(encode(&rows).unwrap(), 9).unwrap(), rows[1..], "{path}");
        }
    }

    #[test]
    fn a_damaged_file_of_transcripts_is_refused_or_has_valid_contents() {
        let rows = [row("a.jsonl", None, "{\"a\":1}\n"), row("b.jsonl", None, "{\"b\":2}\n")];
        let file = encode(&rows).unwrap();
        for at in 0..file.len() {
            let mut bytes = file.to_vec();
            bytes[at] ^= 1 << (at % 8);
            for (object, content) in parse(bytes.into(), 9).unwrap_or_default() {
                assert!(may_have_content(&object, &content));
            }
        }
    }
}
