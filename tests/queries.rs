//! Queries by path: `by/` selects workers, `grep/` and `search/` search their files, and
//! `compare/` compares workers.

mod commands;
mod compare;
mod copies;
mod facets;
mod files;
mod grep;
mod index;
mod scenario;
mod search;
mod search_dos;

use std::collections::BTreeSet;

use crate::support::{see, seen};
use swarmletfs_tree::tree::Tree;

/// Returns the names in a directory.
pub fn names(tree: &Tree, path: &str) -> Vec<String> {
    let text = |name: Vec<u8>| String::from_utf8(name).unwrap();
    seen::names(tree, path)
        .unwrap_or_else(|error| panic!("{path}: {error}"))
        .into_iter()
        .map(text)
        .collect()
}

/// Returns the text of a file.
pub fn text(tree: &Tree, path: &str) -> String {
    see(tree, path).unwrap_or_else(|error| panic!("{path}: {error}")).text().to_owned()
}

/// Returns the distinct lines of an answer that come from files.
pub fn lines_of(answer: &str) -> BTreeSet<String> {
    answer.lines().filter(|line| !line.starts_with('[')).map(str::to_owned).collect()
}
