//! Paths that git would not see: paths that `.gitignore` ignores, and the folders of git.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use memchr::memchr_iter;

use super::tracked::TrackedPaths;
use swarmletfs_base::name::RelPath;

pub(super) const RULES_FILE: &str = ".gitignore";
const GIT: &[u8] = b".git";

/// Maximum number of lines with rules that one search parses.
const LINES_MAX: usize = 200_000;

/// The rules that hold in a directory of the workspace, from its own file and from the directories
/// above it.
#[derive(Default)]
pub(super) struct IgnoreRules {
    /// The outermost first.
    levels: Vec<FolderRules>,
    takes_all: bool,
    tracked: TrackedPaths,
    /// Ignored directories in which git tracks files.
    entered: Vec<RelPath>,
    /// Number of lines of all files with rules so far.
    lines: usize,
}

struct FolderRules {
    origin: RulesFolder,
    rules: Gitignore,
    /// The only version of the workspace that has them; `None` if both have.
    version: Option<RulesVersion>,
}

/// A version of the workspace. The rules of both versions apply: a worker that removes rules has
/// not changed the files that they ignored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RulesVersion {
    /// The workspace without the worker's changes.
    Start,
    /// The workspace as the worker sees it.
    View,
}

enum RulesFolder {
    Inside(RelPath),
    /// A directory above the workspace, and the workspace's path from there.
    Above(PathBuf),
}

impl IgnoreRules {
    /// Returns rules that ignore nothing if `takes_all` is true, and else the folders of git.
    pub(super) fn new(takes_all: bool) -> IgnoreRules {
        IgnoreRules { takes_all, ..IgnoreRules::default() }
    }

    /// Sets the paths that git tracks, which are never ignored.
    pub(super) fn set_tracked(&mut self, tracked: TrackedPaths) {
        self.tracked = tracked;
    }

    /// Returns true if the content of files with rules matters.
    pub(super) fn reads_files(&self) -> bool {
        !self.takes_all
    }

    pub(super) fn push(&mut self, folder: &RelPath, content: &[u8]) {
        self.push_version(folder, content, None);
    }

    /// Adds the rules of a directory of the workspace, from the file as the worker sees it and from
    /// the one without its changes.
    pub(super) fn push_versions(
        &mut self,
        folder: &RelPath,
        view: Option<&[u8]>,
        start: Option<&[u8]>,
    ) {
        if view == start {
            view.into_iter().for_each(|content| self.push(folder, content));
            return;
        }
        for (content, version) in [(view, RulesVersion::View), (start, RulesVersion::Start)] {
            if let Some(content) = content {
                self.push_version(folder, content, Some(version));
            }
        }
    }

    fn push_version(&mut self, folder: &RelPath, content: &[u8], version: Option<RulesVersion>) {
        let origin = RulesFolder::Inside(folder.clone());
        let rules = self.parse(content);
        self.levels.push(FolderRules { origin, rules, version });
    }

    /// Adds the rules of a file in a directory above the workspace, which has the path `workspace`
    /// from there.
    pub(super) fn push_above(&mut self, workspace: PathBuf, content: &[u8]) {
        let origin = RulesFolder::Above(workspace);
        let rules = self.parse(content);
        self.levels.push(FolderRules { origin, rules, version: None });
    }

    /// Parses the rules of a file. Returns no rules if the files before it had too many.
    fn parse(&mut self, content: &[u8]) -> Gitignore {
        self.lines = self.lines.saturating_add(memchr_iter(b'\n', content).count());
        if self.is_incomplete() { Gitignore::empty() } else { parse(content) }
    }

    /// Returns true if the rules of some files were left out, because there are too many.
    pub(super) fn is_incomplete(&self) -> bool {
        self.lines > LINES_MAX
    }

    pub(super) fn len(&self) -> usize {
        self.levels.len()
    }

    /// Takes back the rules that were added since there were `len` files.
    pub(super) fn truncate(&mut self, len: usize) {
        self.levels.truncate(len);
    }

    /// Returns true if `path` is ignored. Its parents must not be.
    pub(super) fn is_ignored(&mut self, path: &RelPath, is_folder: bool) -> bool {
        if self.takes_all {
            return false;
        }
        if path.file_name().is_some_and(|name| name.as_bytes() == GIT) {
            return true;
        }
        let is_beneath = self.entered.iter().any(|folder| path.is_within(folder) && path != folder);
        if !is_beneath && !self.matches(path, is_folder) {
            return false;
        }
        if is_folder && self.tracked.has_beneath(path) {
            self.entered.push(path.clone());
            return false;
        }
        !self.tracked.has(path)
    }

    /// Returns true if the rules ignore `path`, whether git tracks it or not.
    fn matches(&self, path: &RelPath, is_folder: bool) -> bool {
        let versions = [RulesVersion::View, RulesVersion::Start];
        versions.into_iter().any(|version| self.matches_version(path, is_folder, version))
    }

    fn matches_version(&self, path: &RelPath, is_folder: bool, version: RulesVersion) -> bool {
        let has_version = |level: &&FolderRules| level.version.is_none_or(|only| only == version);
        for level in self.levels.iter().rev().filter(has_version) {
            let Some(path) = level.origin.relative(path) else { continue };
            match level.rules.matched(path, is_folder) {
                Match::None => {}
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
            }
        }
        false
    }
}

impl RulesFolder {
    fn relative(&self, path: &RelPath) -> Option<PathBuf> {
        let path = Path::new(path.as_os_str());
        match self {
            RulesFolder::Inside(folder) if folder.is_root() => Some(path.to_path_buf()),
            RulesFolder::Inside(folder) => {
                path.strip_prefix(folder.as_os_str()).ok().map(Path::to_path_buf)
            }
            RulesFolder::Above(workspace) => Some(workspace.join(path)),
        }
    }
}

/// Parses a file. As in git, a line that is no pattern is skipped.
fn parse(content: &[u8]) -> Gitignore {
    let mut builder = GitignoreBuilder::new("");
    for line in content.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let _ = builder.add_line(None, &OsStr::from_bytes(line).to_string_lossy());
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    #[test]
    fn rules_of_inner_folders_come_first() {
        let mut rules = IgnoreRules::new(false);
        rules.push_above("sub/w".into(), b"/sub/w/above\nw2\n");
        rules.push(&RelPath::root(), b"*.log\n/target/\n# x\n\\#y\r\n");
        rules.push(&path("logs"), b"!kept.log\n/deep/z\n");
        for (text, is_folder, expected) in [
            ("a.log", false, true),
            ("logs/a.log", false, true),
            ("logs/kept.log", false, false),
            ("logs/deep/z", false, true),
            ("deep/z", false, false),
            ("target", true, true),
            ("target", false, false),
            ("x/target", true, false),
            ("#y", false, true),
            ("above", false, true),
            ("x/above", false, false),
            ("w2", false, true),
            (".git", true, true),
            ("x/.git", false, true),
            (".gitignore", false, false),
        ] {
            assert_eq!(rules.is_ignored(&path(text), is_folder), expected, "{text}");
        }
        rules.truncate(2);
        assert!(rules.is_ignored(&path("logs/kept.log"), false));
        let mut all = IgnoreRules::new(true);
        all.push(&RelPath::root(), b"*\n");
        assert!(!all.is_ignored(&path(".git"), true));
    }

    #[test]
    fn tracked_files_are_not_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| {
            let git =
                std::process::Command::new("git").args(arguments).current_dir(&folder).output();
            assert!(git.unwrap().status.success());
        };
        git(&["init", "-q"]);
        std::fs::create_dir_all(folder.path().join("dist/in")).unwrap();
        for name in ["dist/in/x", "a.log"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        git(&["add", "-f", "."]);
        let mut rules = IgnoreRules::new(false);
        rules.push(&RelPath::root(), b"dist/\n*.log\n");
        rules.set_tracked(TrackedPaths::new(
            std::fs::read(folder.path().join(".git/index")).unwrap(),
        ));
        for (text, is_folder, expected) in [
            ("dist", true, false),
            ("dist/in", true, false),
            ("dist/in/x", false, false),
            ("dist/in/y", false, true),
            ("dist/other", true, true),
            ("a.log", false, false),
            ("b.log", false, true),
            ("b", false, false),
        ] {
            assert_eq!(rules.is_ignored(&path(text), is_folder), expected, "{text}");
        }
    }

    #[test]
    fn odd_lines_and_paths_are_no_error() {
        let mut rules = IgnoreRules::new(false);
        rules.push(&RelPath::root(), b"[\n\xff\n{a\n**/\n!\nb\n");
        assert!(rules.is_ignored(&path("b"), false));
        assert!(!rules.is_ignored(&RelPath::parse(b"\xfe/c").unwrap(), false));
    }

    #[test]
    fn rules_are_parsed_up_to_a_limit() {
        let mut rules = IgnoreRules::new(false);
        rules.push(&RelPath::root(), b"*.log\n");
        rules.push(&path("a"), &b"*.x\n".repeat(LINES_MAX - 1));
        assert!(!rules.is_incomplete() && rules.is_ignored(&path("a/1.x"), false));
        rules.push(&path("b"), b"*.x\n");
        assert!(rules.is_incomplete());
        assert!(
            !rules.is_ignored(&path("b/1.x"), false) && rules.is_ignored(&path("a.log"), false)
        );
    }
}
