//! Files that are stored in parts.
//!
//! **A growing file** F is the object F, if there is one, and goes on in objects `F.parts/OFFSET`,
//! with the offset in 20 digits. A part continues the file if its offset is the end so far. The
//! first gap ends the file; other parts are ignored. So a part that is written again, longer, or
//! that is left over when F was written as a whole, changes nothing.
//!
//! **A transcript** of the Claude Agent SDK, as its S3 store of sessions writes it. Each append is
//! an object `PROJECT/SESSION/part-MILLISECONDS-HEX.jsonl`. The parts, in the order of their names,
//! are the transcript, and each ends with a line. They are shown as one file
//! `PROJECT/SESSION.jsonl`, the place that the program itself uses. The parts of a subagent are in
//! a directory whose name is the path of its file in the session, with `/` or with `%2F`. Beneath
//! [`WORKERS`] of the prefix are the files of recorded workers, and no transcript is joined.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;
use swarmletfs_base::digest::{digest, to_hex};
use swarmletfs_base::name::RelPath;

use crate::key_tree::ListedObject;

/// Beginning of the keys of recorded workers.
pub(crate) const WORKERS: &str = "workers/";
/// End of the name of the directory of a growing file's parts.
const GROWING: &str = ".parts";
/// Number of digits of an offset.
const OFFSET_DIGITS: usize = 20;
const PREFIX: &str = "part-";
const SUFFIX: &str = ".jsonl";
/// Number of digits of a time in milliseconds; all names have as many, so they sort by time.
const DIGITS: usize = 13;

/// Returns the key of the part of the growing file `key` that begins at `offset`.
pub fn part_key(key: &str, offset: u64) -> String {
    format!("{key}{GROWING}/{offset:0OFFSET_DIGITS$}")
}

/// Returns the beginning of the keys of the parts of the growing file `key`.
pub fn parts_prefix(key: &str) -> String {
    format!("{key}{GROWING}/")
}

/// Returns the key of the growing file and the offset of its part with the key `part`.
pub fn file_of_part(part: &str) -> Option<(&str, u64)> {
    let (folder, name) = part.rsplit_once('/')?;
    let file = folder.strip_suffix(GROWING).filter(|file| !file.is_empty())?;
    let is_offset = name.len() == OFFSET_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit());
    let offset = is_offset.then(|| name.parse().ok()).flatten()?;
    (!file.ends_with('/')).then_some((file, offset))
}

/// Joins growing files with their parts, and removes the parts, unless their directory holds
/// something else. `objects` are sorted by path, the result is not. Also returns the number of
/// parts that are ignored.
pub(crate) fn join_growing(objects: Vec<ListedObject>) -> (Vec<ListedObject>, usize) {
    if !objects.iter().any(|object| file_of_part(&object.path).is_some()) {
        return (objects, 0);
    }
    let mut files: BTreeMap<Box<str>, Vec<ListedObject>> = BTreeMap::new();
    let mut others = Vec::with_capacity(objects.len());
    let mut rest = objects.into_iter().peekable();
    while let Some(object) = rest.next() {
        let Some(file) = file_of_part(&object.path).map(|(file, _)| Box::from(file)) else {
            others.push(object);
            continue;
        };
        let beneath = parts_prefix(&file);
        let mut group = vec![object];
        group.extend(std::iter::from_fn(|| rest.next_if(|next| next.path.starts_with(&*beneath))));
        let is_part = |object: &ListedObject| {
            file_of_part(&object.path).is_some_and(|(found, _)| *found == *file)
        };
        // A first name that is no part was kept before.
        let is_mixed = others.last().is_some_and(|last| last.path.starts_with(&*beneath));
        if is_mixed || !group.iter().all(is_part) {
            others.extend(group);
        } else {
            files.insert(file, group);
        }
    }
    let mut ignored = 0;
    for object in &mut others {
        if let Some(parts) = files.remove(&*object.path) {
            ignored += extend(object, parts);
        }
    }
    for (path, parts) in files {
        let mut object = ListedObject { path: path.into(), ..ListedObject::default() };
        ignored += extend(&mut object, parts);
        if !object.parts.is_empty() {
            others.push(object);
        }
    }
    (others, ignored)
}

/// Extends `object` by the `parts` that continue it, which are sorted. Returns the number of the
/// others.
fn extend(object: &mut ListedObject, parts: Vec<ListedObject>) -> usize {
    let count = parts.len();
    let mut end = object.size;
    let mut chain = Vec::new();
    for part in parts {
        if file_of_part(&part.path).is_some_and(|(_, offset)| offset == end) && part.size > 0 {
            end = end.saturating_add(part.size);
            chain.push(part);
        }
    }
    let ignored = count - chain.len();
    if !chain.is_empty() {
        let path = object.path.clone();
        let is_object = object.etag.is_some() || object.size > 0;
        let first = is_object.then(|| std::mem::take(object));
        *object = combine(path.to_string(), first.into_iter().chain(chain).collect());
    }
    ignored
}

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
            Some(path) => joined.push(combine(path, parts)),
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

/// Returns one object with the bytes of `parts`. Its version is a hash of theirs.
fn combine(path: String, parts: Vec<ListedObject>) -> ListedObject {
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

    fn grown(objects: &[(&str, u64)]) -> (Vec<(String, usize, u64)>, usize) {
        let object = |(path, size): &(&str, u64)| ListedObject {
            path: (*path).into(),
            size: *size,
            etag: Some("e".into()),
            ..ListedObject::default()
        };
        let (all, ignored) = join_growing(objects.iter().map(object).collect());
        let shown = all.iter().map(|all| (all.path.to_string(), all.parts.len(), all.size));
        (shown.collect(), ignored)
    }

    #[test]
    fn a_growing_file_ends_at_the_first_gap() {
        let part = |offset| part_key("a/f", offset);
        let (zero, ten, twelve, thirty) = (part(0), part(10), part(12), part(30));
        let file = |size, parts| vec![("a/f".to_owned(), parts, size)];
        let parts = [(&*zero, 10), (&*ten, 5), (&*twelve, 9), (&*thirty, 1)];
        assert_eq!(grown(&parts), (file(15, 2), 2));
        let with = |size| grown(&[&[("a/f", size)], &parts[..]].concat());
        assert_eq!(with(0), (file(15, 3), 2));
        assert_eq!(with(10), (file(15, 2), 3));
        assert_eq!(with(12), (file(21, 2), 3));
        assert_eq!(with(15), (file(15, 0), 4));
        assert_eq!(with(31), (file(31, 0), 4));
        assert_eq!(grown(&parts[1..]), (vec![], 3));
    }

    #[test]
    fn a_directory_with_other_names_is_no_file_in_parts() {
        let part = part_key("f", 0);
        for other in ["f.parts/!", "f.parts/x", "f.parts/00000000000000000000/x", "f.parts/1"] {
            let mut objects = [(&*part, 1), (other, 1)];
            objects.sort();
            let (found, ignored) = grown(&objects);
            assert_eq!((found.len(), ignored), (2, 0), "{other}");
        }
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
