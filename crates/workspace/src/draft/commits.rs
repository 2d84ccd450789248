//! Commits that a worker made in its view of a repository. They are no change of the workspace, so
//! they end with the view.

use super::folder::Draft;
use super::record::Engine;
use swarmletfs_base::name::Name;
use swarmletfs_base::store::OpenFolder;

/// The log of HEAD in a repository. Each commit, checkout and reset extends it.
const HEAD_LOG: [&str; 2] = ["logs", "HEAD"];
const GIT: &str = ".git";
const WORKTREES: &str = "worktrees";
const WORKTREES_MAX: usize = 1_000;

/// Returns the note on commits that the worker made, if any of them is not kept.
pub(super) fn note(draft: &Draft) -> Option<String> {
    let has_commits = in_linked_worktree(draft)
        || !draft.record().all_changes && in_workspace(draft).unwrap_or_default();
    has_commits.then(|| {
        "the command moved HEAD of git in its view, as commits do: its commits are not kept, the \
         changed files are"
            .to_owned()
    })
}

/// Returns true if the log of the workspace's own repository is longer in the view; `None` if the
/// view has no log of its own.
fn in_workspace(draft: &Draft) -> Option<bool> {
    let size = |root: &OpenFolder| log_size(&enter(root, GIT)?);
    let in_view = size(&OpenFolder::open(&draft.layer()).ok()?)?;
    let outside = OpenFolder::open(&draft.record().workspace()).ok();
    Some(outside.as_ref().and_then(size).is_none_or(|outside| outside < in_view))
}

/// Returns true if the layer over the common directory of git has a log of HEAD. Only changed files
/// are in that layer.
fn in_linked_worktree(draft: &Draft) -> bool {
    if draft.record().engine != Engine::Overlay {
        return false;
    }
    let Ok(upper) = OpenFolder::open(&draft.git_overlay_dirs().upper) else { return false };
    let worktrees = enter(&upper, WORKTREES);
    let names = worktrees.as_ref().and_then(|folder| folder.list().ok()).unwrap_or_default();
    let linked = names.iter().take(WORKTREES_MAX);
    let mut linked = linked.filter_map(|name| worktrees.as_ref()?.enter(name).ok());
    log_size(&upper).is_some() || linked.any(|folder| log_size(&folder).is_some())
}

fn enter(folder: &OpenFolder, name: &str) -> Option<OpenFolder> {
    folder.enter(&Name::new(name).ok()?).ok()
}

fn log_size(repository: &OpenFolder) -> Option<u64> {
    let [folder, file] = HEAD_LOG;
    let stat = enter(repository, folder)?.stat(&Name::new(file).ok()?).ok()??;
    Some(stat.size)
}
