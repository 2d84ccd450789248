//! Resources: files of the tree by URIs such as `swarm:///workers/<id>/summary`.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use rmcp::ErrorData;
use rmcp::model::{
    ListResourcesResult, ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
};

use super::slice::{MAX, OpenFile, SliceRequest, error_message};
use swarmletfs_base::name::printable;
use swarmletfs_tree::tree::{NodeKind, Symlinks, Tree};

const SCHEME: &str = "swarm:///";
/// ASCII characters that are percent-encoded in URIs.
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
const ROOT_FILES: [(&str, &str); 4] = [
    ("README.md", "how to read this tree"),
    ("summary", "the swarm on one screen"),
    ("evidence.txt", "why workers failed"),
    ("index.json", "every worker, one entry each"),
];
const PAGE: usize = 200;

fn uri_of(path: &str) -> String {
    format!("{SCHEME}{}", utf8_percent_encode(path, ESCAPED))
}

fn resource(path: &str, description: impl Into<String>) -> Resource {
    Resource::new(uri_of(path), printable(path.as_bytes()))
        .with_description(description)
        .with_mime_type(mime_type(path))
}

fn mime_type(path: &str) -> &'static str {
    if path.ends_with(".json") { "application/json" } else { "text/plain" }
}

/// Lists the files of the root and each worker's summary. A cursor is the number of workers listed
/// so far.
pub(super) fn list(tree: &Tree, cursor: Option<&str>) -> Result<ListResourcesResult, ErrorData> {
    let skip: usize = match cursor {
        None => 0,
        Some(cursor) => cursor.parse().map_err(|_| {
            ErrorData::invalid_params("invalid cursor; list again without it", None)
        })?,
    };
    let workers = tree.with_path(b"workers", Symlinks::Follow, |place| place.leaf().list_folder());
    let workers = workers
        .map_err(|error| ErrorData::internal_error(error_message("workers", &error), None))?;
    let mut resources = Vec::new();
    if cursor.is_none() {
        resources.extend(ROOT_FILES.iter().map(|(path, description)| resource(path, *description)));
    }
    let folders = workers.iter().filter(|item| item.kind == NodeKind::Folder);
    let mut names =
        folders.filter_map(|item| std::str::from_utf8(item.name.as_bytes()).ok()).skip(skip);
    for name in names.by_ref().take(PAGE) {
        resources.push(resource(
            &format!("workers/{name}/summary"),
            "a worker on one screen, its claims checked",
        ));
    }
    let mut listed = ListResourcesResult::with_all_items(resources);
    listed.next_cursor = names.next().map(|_| (skip + PAGE).to_string());
    Ok(listed)
}

pub(super) fn template() -> ResourceTemplate {
    ResourceTemplate::new(format!("{SCHEME}{{+path}}"), "file").with_description(
        "any file of the tree by its path, also by query paths such as search/<words> and \
         evidence.4k.txt",
    )
}

pub(super) fn read(tree: &Tree, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let Some(path) = uri.strip_prefix(SCHEME) else {
        return Err(ErrorData::resource_not_found(
            format!("cannot read this URI: it must begin with {SCHEME}"),
            None,
        ));
    };
    let path: Vec<u8> = percent_decode_str(path).collect();
    let path_text = String::from_utf8_lossy(&path).into_owned();
    let slice =
        OpenFile::at_path(tree, &path).and_then(|file| file.slice(SliceRequest::Bytes(0, MAX)));
    let slice = slice
        .map_err(|error| ErrorData::resource_not_found(error_message(&path_text, &error), None))?;
    let contents = slice
        .blocks()
        .map(|text| ResourceContents::text(text, uri).with_mime_type(mime_type(&path_text)))
        .collect();
    Ok(ReadResourceResult::new(contents))
}
