//! Finds files that a worker's final words name and that do not exist.

use crate::error::Error;
use crate::name::{Name, RelPath};
use crate::store::Kind;
use crate::text::clean::one_line;
use crate::view::{Member, View};

/// Maximum length of final words that is parsed, in bytes.
const WORDS_MAX: usize = 64 << 10;
/// Maximum number of paths that are looked up.
const PATHS_MAX: usize = 50;
/// Maximum number of missing files that are named.
const NAMED_MAX: usize = 5;
/// Maximum length of a named path, in bytes.
const NAME_MAX: usize = 120;

/// Returns the files that `words` name in a directory of the worker and that do not exist.
///
/// A directory counts as the worker's if it exists or is one of `own_folders`, where the worker's
/// layout keeps its files: a report that was never written leaves no directory either. Other paths,
/// such as those of a repository, cannot be looked up here.
pub(super) fn missing_files(
    view: &View,
    member: &Member,
    own_folders: &[&str],
    words: &str,
) -> Vec<String> {
    let words = words.get(..words.floor_char_boundary(WORDS_MAX)).unwrap_or(words);
    let mut missing: Vec<String> = Vec::new();
    for path in paths(words).take(PATHS_MAX) {
        let Some(first) = path.names().next() else { continue };
        let is_missing = is_own_directory(view, member, own_folders, &first)
            && matches!(view.stat(member, &path), Err(Error::NotFound | Error::NotADirectory));
        let name = one_line(&path.display(), NAME_MAX);
        if is_missing && missing.len() < NAMED_MAX && !missing.contains(&name) {
            missing.push(name);
        }
    }
    missing
}

/// Returns true if `name` is one of `own_folders` or an existing directory of the worker.
fn is_own_directory(view: &View, member: &Member, own_folders: &[&str], name: &Name) -> bool {
    own_folders.iter().any(|folder| folder.as_bytes() == name.as_bytes())
        || view
            .stat(member, &RelPath::root().join(name))
            .is_ok_and(|meta| meta.kind == Kind::Folder)
}

/// Finds words that look like relative paths: at least two names, without a pattern or placeholder.
fn paths(words: &str) -> impl Iterator<Item = RelPath> {
    words
        .split(|c: char| c.is_whitespace() || "`'\"()[],;:|=".contains(c))
        .map(|word| word.trim_start_matches("./").trim_matches(|c: char| ".!?_*…".contains(c)))
        .filter(|word| {
            word.contains('/')
                && !word.starts_with('/')
                && !word.contains(['*', '?', '<', '>', '{', '}', '$'])
        })
        .filter_map(|word| RelPath::parse(word.trim_end_matches('/')).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_distinguished_from_words() {
        let found = |words| paths(words).map(|path| path.display()).collect::<Vec<_>>();
        let words = "I wrote `outputs/report.md`, **logs/run.log**: see (./context/a b) and outputs/x.json. Done.";
        assert_eq!(
            found(words),
            ["outputs/report.md", "logs/run.log", "context/a", "outputs/x.json"]
        );
        assert!(
            found("see /etc/passwd, outputs/*.md, outputs/<name>.md, $HOME/x/y or ../up/there")
                .is_empty()
        );
        assert_eq!(found("https://example.org/a 1/2 and/or"), ["1/2", "and/or"]);
    }
}
