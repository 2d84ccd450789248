//! Search in the files of workers, independent of how results are rendered, and the globs that
//! select files by name or by path.

pub mod ranked;
pub mod regex;

use globset::{GlobBuilder, GlobMatcher};

use swarmletfs_base::name::RelPath;

/// Number of leading bytes that decide whether a file is binary.
const BINARY_PREFIX: usize = 8_000;

/// Returns true if a file with this beginning is binary by git's rule: a NUL near the start.
pub fn is_binary(beginning: &[u8]) -> bool {
    memchr::memchr(0, beginning.get(..BINARY_PREFIX).unwrap_or(beginning)).is_some()
}

/// Returns true for metadata and transcripts at the top of a worker's directory, which repeat the
/// text of other files.
pub fn is_raw_record(path: &RelPath) -> bool {
    let name = path.as_bytes();
    !name.contains(&b'/') && (name.ends_with(b".jsonl") || name.ends_with(b".json"))
}

pub struct Glob {
    matcher: GlobMatcher,
    /// True if the glob began with `!`, which inverts it as in ripgrep.
    negated: bool,
    /// True if the glob has no `/` and so applies to file names in any directory.
    names_only: bool,
}

impl Glob {
    /// Parses a glob. Without a `/` it matches file names; otherwise it matches paths from the
    /// root of the tree or from the worker's directory.
    ///
    /// # Errors
    /// The parser's message, if `text` is not a valid glob.
    pub fn new(text: &str) -> Result<Glob, String> {
        let (negated, text) = text.strip_prefix('!').map_or((false, text), |text| (true, text));
        let glob = GlobBuilder::new(text)
            .literal_separator(true)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Glob { negated, matcher: glob.compile_matcher(), names_only: !text.contains('/') })
    }

    pub fn matches_name(&self, name: &str) -> bool {
        self.negated != self.matcher.is_match(name)
    }

    /// Returns true if the glob selects the file at `path` in a worker's directory. `shown` maps
    /// that path to its path in the tree.
    pub fn matches_path(&self, shown: &dyn Fn(&RelPath) -> RelPath, path: &RelPath) -> bool {
        let matches = |path: &RelPath| self.matcher.is_match(path.as_os_str());
        self.negated
            != if self.names_only {
                path.file_name().is_some_and(|name| matches(&name.into()))
            } else {
                matches(path) || matches(&shown(path))
            }
    }
}
