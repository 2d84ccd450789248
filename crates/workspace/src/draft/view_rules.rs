//! Reads the files with the rules of git that hold in a whole workspace.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::folder::Draft;
use super::ignore_rules::{IgnoreRules, RULES_FILE};
use super::tracked::TrackedPaths;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, OpenFolder};

/// Maximum size of a file with rules, in bytes. A larger one is not read.
const RULES_MAX: u64 = 1 << 20;
const INDEX_MAX: u64 = 256 << 20;
const INDEX: [&str; 2] = [".git", "index"];
/// The rules of a repository that it does not share.
const EXCLUDE: [&str; 3] = [".git", "info", "exclude"];

pub(super) fn read(folder: &OpenFolder, name: &str) -> Option<Vec<u8>> {
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
pub(super) fn of_workspace(
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
        let mut rules = of_workspace(&workspace, &[&root], Some(&root), takes_all);
        let (mut folder, mut at) = (Some(root), RelPath::root());
        for name in path.names() {
            let here = folder.as_ref().filter(|_| rules.reads_files());
            if let Some(content) = here.and_then(|folder| read(folder, RULES_FILE)) {
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
    read(&info, file)
}

/// Returns the rules of the directories above a workspace that is a part of a repository, the
/// outermost first, with the path of the workspace from there.
fn above(workspace: &Path) -> Vec<(Vec<u8>, PathBuf)> {
    let mut found = Vec::new();
    for folder in workspace.ancestors() {
        let Ok(opened) = OpenFolder::open(folder) else { break };
        if let Some(path) = workspace.strip_prefix(folder).ok().filter(|_| folder != workspace) {
            found.extend(read(&opened, RULES_FILE).map(|content| (content, path.to_path_buf())));
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
