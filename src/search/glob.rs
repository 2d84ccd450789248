//! Which files are meant by a glob.

use globset::{GlobBuilder, GlobMatcher};

use crate::name::RelPath;

/// A glob of names or of paths.
pub struct Glob {
    matcher: GlobMatcher,
    /// Whether it is for all others, as ripgrep has it with a `!` before.
    is_not: bool,
    /// Whether it is for names, wherever they are.
    of_names: bool,
}

impl Glob {
    /// A name, where there is no `/` in it, else a path from the root of the tree or from the worker's folder. The error is
    /// what is wrong with it.
    pub fn new(text: &str) -> Result<Glob, String> {
        let (is_not, text) = text.strip_prefix('!').map_or((false, text), |text| (true, text));
        let glob = GlobBuilder::new(text).literal_separator(true).build().map_err(|error| error.to_string())?;
        Ok(Glob { is_not, matcher: glob.compile_matcher(), of_names: !text.contains('/') })
    }

    /// Whether something of this name is meant.
    pub fn is_of(&self, name: &str) -> bool {
        self.is_not != self.matcher.is_match(name)
    }

    /// Whether the file at `path` in a worker's folder is meant; `shown` says where it is shown in the tree.
    pub fn is_for(&self, shown: &dyn Fn(&RelPath) -> RelPath, path: &RelPath) -> bool {
        let matches = |path: &RelPath| self.matcher.is_match(path.as_os_str());
        self.is_not
            != if self.of_names {
                path.file_name().is_some_and(|name| matches(&name.into()))
            } else {
                matches(path) || matches(&shown(path))
            }
    }
}

/// Whether the file at `path` in a worker's folder is the one at `under`, or below it.
pub fn is_under(path: &RelPath, under: &RelPath) -> bool {
    let rest = path.as_bytes().strip_prefix(under.as_bytes());
    rest.is_some_and(|rest| under.is_root() || rest.is_empty() || rest.starts_with(b"/"))
}
