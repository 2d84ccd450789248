//! Paths that git would not see: paths that `.gitignore` ignores, and the folders of git.
//!
//! Rules to ignore files do not hold for paths that git tracks. The files with the rules and the
//! index are read from the whole workspace.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use filetime::FileTime;
use gix_index::State;
use gix_index::decode::Options;
use gix_index::hash::Kind as HashKind;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use memchr::memchr_iter;

use super::folder::Draft;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, OpenFolder};

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
    fn set_tracked(&mut self, tracked: TrackedPaths) {
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
    fn push_above(&mut self, workspace: PathBuf, content: &[u8]) {
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

/// Limit of one allocation while an index is decoded, in bytes.
const ALLOCATION_MAX: usize = 1 << 30;

/// The paths in an index of git. They are parsed when they are first needed.
#[derive(Default)]
pub(super) struct TrackedPaths {
    index: Vec<u8>,
    paths: OnceCell<Vec<RelPath>>,
}

impl TrackedPaths {
    /// Returns the paths in `index`, which may hold any bytes.
    pub(super) fn new(index: Vec<u8>) -> TrackedPaths {
        TrackedPaths { index, paths: OnceCell::new() }
    }

    pub(super) fn has(&self, path: &RelPath) -> bool {
        self.paths().binary_search(path).is_ok()
    }

    fn has_beneath(&self, path: &RelPath) -> bool {
        // Names that continue the directory's, such as `a.b`, come before the entries in `a`.
        let begin = [path.as_bytes(), b"/"].concat();
        let at = self.paths().partition_point(|tracked| tracked.as_bytes() < begin.as_slice());
        self.paths().get(at).is_some_and(|tracked| tracked.is_within(path))
    }

    fn paths(&self) -> &[RelPath] {
        self.paths.get_or_init(|| {
            let parsed = [HashKind::Sha1, HashKind::Sha256]
                .into_iter()
                .find_map(|hash| parse_index(&self.index, hash));
            let mut paths = parsed.unwrap_or_default();
            paths.sort_unstable();
            paths
        })
    }
}

/// Decodes an index with hashes of this kind. Returns `None` if it is none.
fn parse_index(index: &[u8], hash: HashKind) -> Option<Vec<RelPath>> {
    let options = Options {
        thread_limit: Some(1),
        alloc_limit_bytes: Some(ALLOCATION_MAX),
        ..Options::default()
    };
    let (state, _) = State::from_bytes(index, FileTime::zero(), hash, options).ok()?;
    let paths = state.entries().iter().filter_map(|entry| {
        let path: &[u8] = entry.path(&state);
        // A directory, in a sparse index, ends with a slash.
        RelPath::parse(path.strip_suffix(b"/").unwrap_or(path)).ok()
    });
    Some(paths.filter(|path| !path.is_root()).collect())
}

/// Maximum size of a file with rules, in bytes. A larger one is not read.
const RULES_MAX: u64 = 1 << 20;
const INDEX_MAX: u64 = 256 << 20;
const INDEX: [&str; 2] = [".git", "index"];
/// The rules of a repository that it does not share.
const EXCLUDE: [&str; 3] = [".git", "info", "exclude"];

pub(super) fn read_rules(folder: &OpenFolder, name: &str) -> Option<Vec<u8>> {
    read_up_to(folder, name, RULES_MAX)
}

fn read_up_to(folder: &OpenFolder, name: &str, limit: u64) -> Option<Vec<u8>> {
    let (file, _) = folder.open_file(&Name::new(name).ok()?).ok()?;
    let mut content = Vec::new();
    file.take(limit + 1).read_to_end(&mut content).ok()?;
    (content.len() as u64 <= limit).then_some(content)
}

/// Returns the rules that hold in the whole of `workspace`. `layers` show it to the worker, the
/// upper one first; `start` is the workspace without the worker's changes.
pub(super) fn rules_of_workspace(
    workspace: &Path,
    layers: &[&OpenFolder],
    start: Option<&OpenFolder>,
    takes_all: bool,
) -> IgnoreRules {
    let mut rules = IgnoreRules::new(takes_all);
    if takes_all {
        return rules;
    }
    let view = layers.iter().find_map(|layer| excluded(layer));
    let start = start.and_then(excluded);
    rules.push_versions(&RelPath::root(), view.as_deref(), start.as_deref());
    for (content, path) in above(workspace) {
        rules.push_above(path, &content);
    }
    if let Some(index) = layers.iter().find_map(|layer| index(layer)) {
        rules.set_tracked(TrackedPaths::new(index));
    }
    rules
}

impl Draft {
    /// Returns true if a search leaves `path` out, by the rules that the workspace has now.
    pub fn ignores(&self, path: &RelPath) -> bool {
        let workspace = self.record().workspace();
        let Ok(root) = OpenFolder::open(&workspace) else { return false };
        let takes_all = self.record().all_changes;
        let mut rules = rules_of_workspace(&workspace, &[&root], Some(&root), takes_all);
        let (mut folder, mut at) = (Some(root), RelPath::root());
        for name in path.names() {
            let here = folder.as_ref().filter(|_| rules.reads_files());
            if let Some(content) = here.and_then(|folder| read_rules(folder, RULES_FILE)) {
                rules.push(&at, &content);
            }
            at = at.join(&name);
            let stat = folder.as_ref().and_then(|folder| folder.stat(&name).ok().flatten());
            // A path that only the worker has may be either.
            let kinds = match stat {
                Some(stat) if stat.kind != Kind::Folder => &[false][..],
                Some(_) => &[true],
                None => &[false, true],
            };
            if kinds.iter().any(|is_folder| rules.is_ignored(&at, *is_folder)) {
                return true;
            }
            folder = folder.and_then(|folder| folder.enter(&name).ok());
        }
        false
    }
}

fn index(root: &OpenFolder) -> Option<Vec<u8>> {
    let [git, file] = INDEX;
    read_up_to(&root.enter(&Name::new(git).ok()?).ok()?, file, INDEX_MAX)
}

fn excluded(root: &OpenFolder) -> Option<Vec<u8>> {
    let [git, info, file] = EXCLUDE;
    let info = root.enter(&Name::new(git).ok()?).ok()?.enter(&Name::new(info).ok()?).ok()?;
    read_rules(&info, file)
}

/// Returns the rules of the directories above a workspace that is a part of a repository, the
/// outermost first, with the path of the workspace from there.
fn above(workspace: &Path) -> Vec<(Vec<u8>, PathBuf)> {
    let mut found = Vec::new();
    for folder in workspace.ancestors() {
        let Ok(opened) = OpenFolder::open(folder) else { break };
        if let Some(path) = workspace.strip_prefix(folder).ok().filter(|_| folder != workspace) {
            found.extend(
                read_rules(&opened, RULES_FILE).map(|content| (content, path.to_path_buf())),
            );
        }
        let git = Name::new(EXCLUDE[0]).ok().and_then(|git| opened.stat(&git).ok().flatten());
        if git.is_some() {
            found.reverse();
            return found;
        }
    }
    // It is in no repository, so nothing above matters.
    Vec::new()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

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

    #[test]
    fn the_paths_of_each_kind_of_index_are_found() {
        let long = format!("deep/{}/x", "d".repeat(200));
        let names = ["a", "a.b", "a-c/d", "dist/x", "dist/é", "z z", &long];
        for (version, hash) in [("2", "sha1"), ("4", "sha1"), ("2", "sha256"), ("4", "sha256")] {
            let folder = tempfile::tempdir().unwrap();
            let git = |arguments: &[&str]| {
                let output = Command::new("git")
                    .args(arguments)
                    .current_dir(folder.path())
                    .env("GIT_CONFIG_GLOBAL", "/dev/null")
                    .output()
                    .unwrap();
                assert!(output.status.success(), "{output:?}");
            };
            git(&["init", "-q", "--object-format", hash]);
            for name in names {
                fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
                fs::write(folder.path().join(name), name).unwrap();
            }
            git(&["add", "-A"]);
            git(&["add", "-N", "a"]);
            git(&["update-index", "--index-version", version]);
            fs::write(folder.path().join("later"), "").unwrap();
            git(&["add", "-N", "later"]);
            let index = fs::read(folder.path().join(".git/index")).unwrap();
            let tracked = TrackedPaths::new(index.clone());
            assert_eq!(tracked.paths().len(), names.len() + 1, "{version} {hash}");
            for name in names.into_iter().chain(["later"]) {
                assert!(tracked.has(&RelPath::parse(name).unwrap()), "{version} {hash} {name}");
            }
            for (name, expected) in
                [("dist", true), ("a-c", true), ("a", false), ("di", false), ("deep", true)]
            {
                let path = RelPath::parse(name).unwrap();
                assert_eq!(tracked.has_beneath(&path), expected, "{version} {hash} {name}");
            }
            for length in 0..index.len() {
                let cut = TrackedPaths::new(index[..length].to_vec());
                assert!(cut.paths().len() <= names.len() + 1);
            }
        }
        assert!(TrackedPaths::new(b"DIRCxxxxxxxxxxxxxxx".to_vec()).paths().is_empty());
    }
}
