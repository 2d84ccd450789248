//! Transcripts in parts, as the S3 store of sessions of the Claude Agent SDK writes them.
//!
//! Each append is an object `PROJECT/SESSION/part-MILLISECONDS-HEX.jsonl`. The parts in the order
//! of their names are the transcript, and each ends with a line. They are shown as one file
//! `PROJECT/SESSION.jsonl`, the place that the program itself uses. The parts of a subagent are in
//! a directory whose name is the path of its file in the session, with `/` or with `%2F`. Beneath
//! [`WORKERS`] of the prefix are the files of recorded workers, and nothing is joined.

use percent_encoding::percent_decode_str;
use swarmletfs_base::digest::{digest, to_hex};
use swarmletfs_base::name::RelPath;

use crate::key_tree::ListedObject;

/// Beginning of the keys of recorded workers.
const WORKERS: &str = "workers/";
const PREFIX: &str = "part-";
const SUFFIX: &str = ".jsonl";
/// Number of digits of a time in milliseconds; all names have as many, so they sort by time.
const DIGITS: usize = 13;

/// Replaces parts by their transcripts. `objects` are sorted by path, the result is not.
pub(crate) fn join(objects: Vec<ListedObject>) -> Vec<ListedObject> {
    let mut joined = Vec::with_capacity(objects.len());
    let mut rest = objects.into_iter().peekable();
    while let Some(object) = rest.next() {
        let Some(folder) = folder_of_part(&object.path).map(str::to_owned) else {
            joined.push(object);
            continue;
        };
        let is_next = |next: &ListedObject| folder_of_part(&next.path) == Some(&*folder);
        let mut parts = vec![object];
        parts.extend(std::iter::from_fn(|| rest.next_if(is_next)));
        match transcript_path(&folder) {
            Some(path) => joined.push(transcript(path, parts)),
            None => joined.extend(parts),
        }
    }
    joined
}

/// Returns the directory of the part at `path`; `None` if it has another name.
fn folder_of_part(path: &str) -> Option<&str> {
    let (folder, name) = path.rsplit_once('/').filter(|_| !path.starts_with(WORKERS))?;
    let (time, rest) = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.split_once('-')?;
    let is_time = time.len() == DIGITS && time.bytes().all(|byte| byte.is_ascii_digit());
    (is_time && !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .then_some(folder)
}

/// Returns the path of the transcript whose parts are in `folder`.
fn transcript_path(folder: &str) -> Option<String> {
    let (parent, name) =
        folder.rsplit_once('/').map_or(("", folder), |(parent, name)| (parent, name));
    let slash = if parent.is_empty() { "" } else { "/" };
    let name = percent_decode_str(name).decode_utf8().ok()?;
    let path = format!("{parent}{slash}{name}{SUFFIX}");
    RelPath::parse(&path).is_ok().then_some(path)
}

fn transcript(path: String, parts: Vec<ListedObject>) -> ListedObject {
    let mut hash = blake3::Hasher::new();
    for part in &parts {
        let (path, etag) = (part.path.as_bytes(), part.etag.as_deref().unwrap_or_default());
        for field in [path, etag.as_bytes(), &part.size.to_le_bytes()] {
            hash.update(&(field.len() as u64).to_le_bytes()).update(field);
        }
    }
    let version: [u8; 16] = digest(&hash);
    ListedObject {
        path: path.into(),
        size: parts.iter().fold(0, |size, part| size.saturating_add(part.size)),
        modified: parts.iter().map(|part| part.modified).max().unwrap_or_default(),
        etag: Some(to_hex(&version).into()),
        parts: parts.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarmletfs_base::store::Time;

    fn joined(paths: &[&str]) -> Vec<(String, usize, u64)> {
        let object = |path: &&str| ListedObject {
            path: (*path).into(),
            size: 10,
            modified: Time::default(),
            etag: None,
            parts: Box::default(),
        };
        let all = join(paths.iter().map(object).collect());
        all.iter().map(|all| (all.path.to_string(), all.parts.len(), all.size)).collect()
    }

    #[test]
    fn parts_are_one_transcript_in_the_place_of_the_program() {
        let found = joined(&[
            "p/s1/part-1700000000001-00af01.jsonl",
            "p/s1/part-1700000000002-00af01.jsonl",
            "p/s1/subagents%2Fagent-1/part-1700000000003-0.jsonl",
            "p/s2/part-1700000000004-ff.jsonl",
            "p/s2/subagents/agent-2/part-1700000000005-ff.jsonl",
        ]);
        let expected = [
            ("p/s1.jsonl", 2, 20),
            ("p/s1/subagents/agent-1.jsonl", 1, 10),
            ("p/s2.jsonl", 1, 10),
            ("p/s2/subagents/agent-2.jsonl", 1, 10),
        ];
        assert_eq!(found, expected.map(|(path, parts, size)| (path.to_owned(), parts, size)));
    }

    #[test]
    fn other_names_stay_as_they_are() {
        let paths = [
            "part-1700000000001-00af01.jsonl",
            "p/part-170000000000-00af01.jsonl",
            "p/part-1700000000001-.jsonl",
            "p/part-1700000000001-xyz.jsonl",
            "p/..%2Fa%2F../part-1700000000001-00.jsonl",
            "p/%FF/part-1700000000001-00.jsonl",
            "workers/w1/outputs/part-1700000000001-00.jsonl",
            "workers/w1/part-1700000000001-00.jsonl",
        ];
        assert_eq!(joined(&paths), paths.map(|path| (path.to_owned(), 0, 10)));
    }
}
