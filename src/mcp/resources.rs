//! Files of the tree as resources: `swarm:///workers/<id>/summary`.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use rmcp::ErrorData;
use rmcp::model::{ListResourcesResult, ReadResourceResult, Resource, ResourceContents, ResourceTemplate};

use super::slice::{MAX, Open, Wanted, sentence};
use crate::name::printable;
use crate::tree::{Symlinks, Tree};

/// What an address begins with.
const SCHEME: &str = "swarm:///";
/// What a path's letters are not written as themselves in an address, beside controls and what is not ASCII.
const ESCAPED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'|');
/// The files of the root that are listed, and what they are.
const OF_ROOT: [(&str, &str); 4] = [
    ("README.md", "how to read this tree"),
    ("summary", "the swarm on one screen"),
    ("evidence.txt", "why workers failed"),
    ("index.json", "every worker, one entry each"),
];
/// So many workers are listed at once.
const PAGE: usize = 200;

/// The address of a path.
fn address(path: &str) -> String {
    format!("{SCHEME}{}", utf8_percent_encode(path, ESCAPED))
}

fn resource(path: &str, description: impl Into<String>) -> Resource {
    Resource::new(address(path), printable(path.as_bytes())).with_description(description).with_mime_type(kind(path))
}

fn kind(path: &str) -> &'static str {
    if path.ends_with(".json") { "application/json" } else { "text/plain" }
}

/// The files of the root, and each worker's summary. A cursor is the number of workers that were listed.
pub(super) fn list(tree: &Tree, cursor: Option<&str>) -> Result<ListResourcesResult, ErrorData> {
    let skip: usize = match cursor {
        None => 0,
        Some(cursor) => {
            cursor.parse().map_err(|_| ErrorData::invalid_params("this is no cursor: list without one", None))?
        }
    };
    let workers = tree.with_path(b"workers", Symlinks::Follow, |place| place.leaf().list_folder());
    let workers = workers.map_err(|error| ErrorData::internal_error(sentence("workers", &error), None))?;
    let mut resources = Vec::new();
    if cursor.is_none() {
        resources.extend(OF_ROOT.iter().map(|(path, what)| resource(path, *what)));
    }
    let folders = workers.iter().filter(|item| item.kind == crate::tree::NodeKind::Folder);
    let mut names = folders.filter_map(|item| std::str::from_utf8(item.name.as_bytes()).ok()).skip(skip);
    for name in names.by_ref().take(PAGE) {
        resources.push(resource(&format!("workers/{name}/summary"), "a worker on one screen, its claims checked"));
    }
    let mut listed = ListResourcesResult::with_all_items(resources);
    listed.next_cursor = names.next().map(|_| (skip + PAGE).to_string());
    Ok(listed)
}

/// How any file is addressed.
pub(super) fn template() -> ResourceTemplate {
    ResourceTemplate::new(format!("{SCHEME}{{+path}}"), "file").with_description(
        "any file of the tree by its path, also names that are asked: search/<words>, evidence.4k.txt",
    )
}

/// The file at an address.
pub(super) fn read(tree: &Tree, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let Some(path) = uri.strip_prefix(SCHEME) else {
        return Err(ErrorData::resource_not_found(format!("an address begins with {SCHEME}"), None));
    };
    let path: Vec<u8> = percent_decode_str(path).collect();
    let said = String::from_utf8_lossy(&path).into_owned();
    let slice = Open::at(tree, &path).and_then(|file| file.slice(Wanted::Bytes(0, MAX)));
    let slice = slice.map_err(|error| ErrorData::resource_not_found(sentence(&said, &error), None))?;
    let contents = [Some(slice.text).filter(|text| !text.is_empty() || slice.note.is_none()), slice.note];
    let contents = contents
        .into_iter()
        .flatten()
        .map(|text| ResourceContents::text(text, uri).with_mime_type(kind(&said)))
        .collect();
    Ok(ReadResourceResult::new(contents))
}
