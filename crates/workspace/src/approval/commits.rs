//! The commits of a worker, and their way into the repository of the workspace.
//!
//! The bundle is fetched into the user's repository, which checks every object. Then commits are
//! placed on the branch of HEAD, or on a new one. The files come by the changes of the worker; git
//! only moves the branch and the index.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::fchown;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::selection::has_changed;
use super::unasked::{ChangedEntry, PathRules, UnaskedPaths};
use crate::draft::Draft;
use crate::git::{GitRepository, failure};
use swarmletfs_base::model::{
    CHANGES_FILES_MAX, ChangedPath, EntryKind, EntryState, KeptCommits, WorkspaceChanges, encode,
};
use swarmletfs_base::name::{Name, RelPath, printable};
use swarmletfs_base::text::count;
use swarmletfs_record::write::{Dir, HashingReader};
use swarmletfs_trace::swarmlet::COMMITS;

/// Number of digits of a commit's id in a message.
const SHORT_ID: usize = 10;
/// Maximum number of links in the commits of a worker.
const LINKS_MAX: usize = 1_000;
/// Files and folders of a repository in which an operation of git is unfinished.
const UNFINISHED: [&str; 5] =
    ["MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply"];

/// The place of the commits of a worker in the user's repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitTarget {
    /// The branch of HEAD, or HEAD itself if that is detached.
    Head,
    /// A new branch. Neither HEAD nor files change.
    Branch(String),
}

/// The move of a branch by an application, by which it can be taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchMove {
    /// `HEAD`, or the full name of the branch.
    pub(super) reference: String,
    /// The commit before; absent if the branch is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    old: Option<String>,
    pub(super) new: String,
    pub count: u64,
    /// The files in the commits of a new branch, which counts as their application.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) paths: Vec<ChangedPath>,
}

impl BranchMove {
    /// Returns the short name of the branch.
    pub fn branch(&self) -> &str {
        self.reference.strip_prefix("refs/heads/").unwrap_or(&self.reference)
    }

    /// Returns the files of `changes` that are in no commit of the new branch.
    pub fn without_commit<'a>(&self, changes: &'a WorkspaceChanges) -> Vec<&'a ChangedPath> {
        let files = changes.files.iter().filter(|file| !file.is_folder()).map(|file| &file.path);
        files.filter(|path| !self.paths.contains(path)).collect()
    }

    /// Moves the branch, and the index if HEAD is on it.
    fn make(&self, git: &GitRepository, moves_index: bool) -> io::Result<()> {
        if moves_index {
            git.ask(&["read-tree", "-i", "-m", &self.new])?;
        }
        let old = self.old.clone().unwrap_or_else(|| "0".repeat(self.new.len()));
        let message = ["update-ref", "-m", "swarmletfs: commits of a worker"];
        git.ask(&[&message[..], &[&self.reference, &self.new, &old]].concat())?;
        if moves_index {
            // A stale index only costs the next command time.
            let _ = git.output(&["update-index", "-q", "--refresh"], b"");
        }
        Ok(())
    }
}

/// Why the commits cannot be placed, and a remedy.
#[derive(Debug)]
pub(super) struct CommitRefusal {
    pub(super) reason: String,
    pub(super) cure: &'static str,
}

impl CommitRefusal {
    fn new(reason: impl Into<String>, cure: &'static str) -> CommitRefusal {
        CommitRefusal { reason: reason.into(), cure }
    }
}

impl From<io::Error> for CommitRefusal {
    fn from(error: io::Error) -> CommitRefusal {
        let reason = match error.kind() {
            io::ErrorKind::NotFound => "git is not installed".to_owned(),
            _ => error.to_string(),
        };
        CommitRefusal::new(reason, "try without --commits and --branch, which applies the files")
    }
}

const BRANCH_CURE: &str = "try --branch NAME, and merge that with git";

/// The places of a worker's commits.
pub(super) struct CommitSource<'a> {
    /// The worker's directory.
    pub(super) worker: &'a Dir,
    pub(super) store: &'a Path,
    pub(super) draft: &'a Draft,
}

impl CommitSource<'_> {
    /// Fetches the commits from a copy of the bundle that is checked to be the runner's.
    fn fetch(&self, git: &GitRepository, kept: &KeptCommits) -> Result<(), CommitRefusal> {
        let mut copy = tempfile::NamedTempFile::new()?;
        let name = Name::new(COMMITS).map_err(io::Error::other)?;
        let bundle = self.worker.open_to_read(&name).ok().flatten();
        let bundle = bundle.ok_or_else(|| io::Error::other(format!("{COMMITS} is missing")))?;
        let mut bundle = HashingReader::new(bundle);
        io::copy(&mut bundle, &mut copy)?;
        if bundle.into_hash().1 != kept.sha256 {
            let reason = format!("{COMMITS} is not the one that its runner wrote");
            return Err(CommitRefusal::new(reason, "try without --commits and --branch"));
        }
        if let Some((uid, gid)) = git.other_owner() {
            fchown(copy.as_file(), Some(uid), Some(gid))?;
        }
        let path = copy.path().to_str().ok_or_else(|| io::Error::other("$TMPDIR is not text"))?;
        let options = ["fetch", "-q", "--no-tags", "--no-write-fetch-head"];
        let more = ["--no-auto-maintenance", "--no-recurse-submodules", path, "HEAD"];
        git.ask(&[&options[..], &more].concat())?;
        Ok(())
    }
}

/// Fetches the commits of a worker, and returns the move that places them; `None` if they are there
/// already. Only objects are added to the repository.
///
/// # Errors
///
/// There are none, or they cannot be placed.
pub(super) fn plan(
    workspace: &Dir,
    source: &CommitSource<'_>,
    changes: &WorkspaceChanges,
    target: &CommitTarget,
    rules: PathRules,
) -> Result<Option<BranchMove>, CommitRefusal> {
    let plain = "try without --commits and --branch";
    let Some(kept) = &changes.commits else {
        return Err(CommitRefusal::new("it made none", plain));
    };
    let Some(tip) = &kept.head else {
        let branches = kept.branches.join(", ");
        let reason = format!("HEAD has none in its view, and other branches have: {branches}");
        return Err(CommitRefusal::new(reason, "try `git fetch` of its commits.bundle"));
    };
    let Some(git) = GitRepository::of_workspace(workspace.path()) else {
        return Err(CommitRefusal::new("the workspace is no repository of git any more", plain));
    };
    source.fetch(&git, kept)?;
    let paths = changed_paths(&git, tip)?;
    refuse_unasked(workspace, source.store, &paths, rules)?;
    let hidden = source.draft.hidden_paths();
    let is_hidden = |path: &RelPath| hidden.iter().any(|hidden| path.is_within(hidden));
    if let Some(entry) = paths.iter().find(|entry| is_hidden(&entry.path)) {
        let reason = format!("they change {}, which it could not see", entry.path.display());
        return Err(CommitRefusal::new(reason, plain));
    }
    let branch_move = match target {
        CommitTarget::Branch(name) => {
            let checked = git.output(&["check-ref-format", "--branch", name], b"")?;
            if checked.code != Some(0) || name.starts_with('-') {
                let reason = format!("{} is no name of a branch", printable(name.as_bytes()));
                return Err(CommitRefusal::new(reason, "try another name"));
            }
            let reference = format!("refs/heads/{name}");
            if resolve(&git, &reference)?.is_some() {
                let reason = format!("there is a branch {name} already");
                return Err(CommitRefusal::new(reason, "try another name"));
            }
            let files: BTreeSet<&RelPath> = paths.iter().map(|entry| &entry.path).collect();
            let paths = files.into_iter().map(ChangedPath::new).collect();
            BranchMove { reference, old: None, new: tip.clone(), count: kept.count, paths }
        }
        CommitTarget::Head => {
            let ignored = paths.iter().find(|entry| {
                let is_listed = has_changed(changes, &entry.path);
                !is_listed && entry.state.is_some() && source.draft.ignores(&entry.path)
            });
            if let Some(entry) = ignored {
                let reason = format!("the file {} is ignored by git", entry.path.display());
                return Err(CommitRefusal::new(reason, BRANCH_CURE));
            }
            let Some(branch_move) = onto_head(&git, kept, tip)? else { return Ok(None) };
            branch_move
        }
    };
    Ok(Some(branch_move))
}

/// Makes a planned move.
///
/// # Errors
///
/// Git fails. The branch is not moved then.
pub(super) fn make(workspace: &Dir, planned: &BranchMove) -> io::Result<()> {
    let git = repository(workspace)?;
    let is_of_head = head_reference(&git)? == planned.reference;
    planned.make(&git, is_of_head)
}

/// Moves the branch of an application back; with `only_checks`, only says whether it can.
///
/// # Errors
///
/// The branch or the index has changed since.
pub(super) fn take_back(
    workspace: &Dir,
    made: &BranchMove,
    only_checks: bool,
) -> Result<(), CommitRefusal> {
    let git = repository(workspace)?;
    let now = resolve(&git, &made.reference)?;
    if now == made.old {
        return Ok(());
    }
    if now.as_ref() != Some(&made.new) {
        let reason = format!("{} has moved since", made.branch());
        return Err(CommitRefusal::new(reason, "try `git revert`"));
    }
    let is_of_head = head_reference(&git)? == made.reference;
    if is_of_head {
        must_be_quiet(&git, &made.new, None)?;
    }
    let (false, Some(old)) = (only_checks, &made.old) else {
        if !only_checks {
            git.ask(&["update-ref", "-d", &made.reference, &made.new])?;
            if is_of_head {
                git.ask(&["read-tree", "--empty"])?;
            }
        }
        return Ok(());
    };
    let back = BranchMove { old: Some(made.new.clone()), new: old.clone(), ..made.clone() };
    Ok(back.make(&git, is_of_head)?)
}

fn repository(workspace: &Dir) -> io::Result<GitRepository> {
    GitRepository::of_workspace(workspace.path())
        .ok_or_else(|| io::Error::other("the workspace is no repository of git any more"))
}

/// Returns the commit of a reference; `None` if there is none.
fn resolve(git: &GitRepository, reference: &str) -> io::Result<Option<String>> {
    let commit = format!("{reference}^{{commit}}");
    let found = git.output(&["rev-parse", "-q", "--verify", &commit], b"")?;
    Ok((found.code == Some(0)).then(|| found.text()))
}

/// Returns the full name of the branch of HEAD; `HEAD` if that is detached.
fn head_reference(git: &GitRepository) -> io::Result<String> {
    let found = git.output(&["symbolic-ref", "-q", "HEAD"], b"")?;
    Ok(if found.code == Some(0) { found.text() } else { "HEAD".to_owned() })
}

/// A path that a commit changes, as it is afterwards.
struct CommittedEntry {
    path: RelPath,
    state: Option<EntryState>,
}

/// Returns the changes of the commits of `tip` that are in no branch of the user.
fn changed_paths(git: &GitRepository, tip: &str) -> Result<Vec<CommittedEntry>, CommitRefusal> {
    let options = ["log", "-m", "--raw", "-r", "-z", "--no-abbrev", "--no-renames", "--format="];
    let arguments = [&options[..], &[tip, "--not", "--all"]].concat();
    let listed = git.output(&arguments, b"")?;
    if listed.code != Some(0) {
        return Err(failure(&arguments, &listed.error).into());
    }
    let mut entries = Vec::new();
    let mut links = 0;
    let mut fields = listed.out.split(|byte| *byte == 0).filter(|field| !field.is_empty());
    while let Some(states) = fields.next() {
        let path = fields.next().unwrap_or_default();
        let shown = printable(path);
        let states = String::from_utf8_lossy(states).into_owned();
        let mut states = states.trim_start_matches(['\n', ':']).split(' ');
        let (old, new) = (states.next().unwrap_or_default(), states.next().unwrap_or_default());
        let id = states.nth(1).unwrap_or_default();
        if [old, new].contains(&"160000") {
            let reason = format!("they move the submodule {shown}, whose commits are not here");
            return Err(CommitRefusal::new(reason, "try without --commits and --branch"));
        }
        let Ok(path) = RelPath::parse(path) else {
            return Err(CommitRefusal::new(
                format!("the path {shown} leads elsewhere"),
                BRANCH_CURE,
            ));
        };
        let (kind, target) = match new {
            "000000" => (None, None),
            "120000" => {
                links += 1;
                let target = git.output(&["cat-file", "blob", id], b"")?.out;
                (Some(EntryKind::Link), Some(encode(&target)))
            }
            _ => (Some(EntryKind::File), None),
        };
        let state = kind.map(|kind| EntryState {
            kind,
            mode: 0o644,
            size: 0,
            sha256: String::new(),
            target,
        });
        entries.push(CommittedEntry { path, state });
        if entries.len() > CHANGES_FILES_MAX || links > LINKS_MAX {
            let most = format!("they change more than {CHANGES_FILES_MAX} files");
            return Err(CommitRefusal::new(most, "try `git fetch` of its commits.bundle"));
        }
    }
    Ok(entries)
}

/// Refuses commits with files that programs run unasked: a commit comes whole or not at all.
fn refuse_unasked(
    workspace: &Dir,
    store: &Path,
    entries: &[CommittedEntry],
    rules: PathRules,
) -> Result<(), CommitRefusal> {
    let changed = || entries.iter().map(|it| ChangedEntry::new(&it.path, it.state.as_ref()));
    let unasked = UnaskedPaths::find(Some(workspace), store, changed());
    let refused = changed().find_map(|it| Some((it.path, unasked.refusal(it, rules)?)));
    let Some((path, reason)) = refused else { return Ok(()) };
    let reason = format!("they change {}: {reason}", path.display());
    Err(CommitRefusal::new(reason, "or without --commits and --branch"))
}

/// Returns the move of the branch of HEAD to the commits; `None` if it has them.
fn onto_head(
    git: &GitRepository,
    kept: &KeptCommits,
    tip: &str,
) -> Result<Option<BranchMove>, CommitRefusal> {
    let reference = head_reference(git)?;
    let old = resolve(git, "HEAD")?;
    let Some(head) = &old else {
        let (new, count) = (tip.to_owned(), kept.count);
        return Ok(Some(BranchMove { reference, old, new, count, paths: Vec::new() }));
    };
    if is_ancestor(git, tip, head)? {
        return Ok(None);
    }
    let (new, count) = if is_ancestor(git, head, tip)? {
        (tip.to_owned(), kept.count)
    } else {
        replay(git, kept, tip, head)?
    };
    if new == *head {
        return Ok(None);
    }
    must_be_quiet(git, head, Some(&new))?;
    Ok(Some(BranchMove { reference, old, new, count, paths: Vec::new() }))
}

fn is_ancestor(git: &GitRepository, one: &str, other: &str) -> io::Result<bool> {
    Ok(git.output(&["merge-base", "--is-ancestor", one, other], b"")?.code == Some(0))
}

/// Refuses a repository in which a merge is unfinished, or whose index is neither `head` nor `new`.
fn must_be_quiet(git: &GitRepository, head: &str, new: Option<&str>) -> Result<(), CommitRefusal> {
    let folder = git.ask(&["rev-parse", "--absolute-git-dir"])?;
    if let Some(name) = UNFINISHED.iter().find(|name| Path::new(&folder).join(name).exists()) {
        let reason = format!("git has not finished another operation here: {name}");
        return Err(CommitRefusal::new(reason, "finish it first, or try --branch NAME"));
    }
    let dirty =
        |_| CommitRefusal::new("the index has unmerged files", "`git commit` or `git reset` them");
    let index = git.ask(&["write-tree"]).map_err(dirty)?;
    for commit in [Some(head), new].into_iter().flatten() {
        if git.ask(&["rev-parse", &format!("{commit}^{{tree}}")])? == index {
            return Ok(());
        }
    }
    let reason = "the index has changes that are not committed";
    Err(CommitRefusal::new(reason, "`git commit` or `git stash` them first, or try --branch NAME"))
}

/// Makes the commits anew on top of `head`, with their authors, times and messages. Returns the
/// last one, and their number.
fn replay(
    git: &GitRepository,
    kept: &KeptCommits,
    tip: &str,
    head: &str,
) -> Result<(String, u64), CommitRefusal> {
    let mut arguments =
        vec!["rev-list", "--reverse", "--topo-order", "--parents", tip, "--not", head];
    arguments.extend(kept.base.as_deref());
    let listed = git.ask(&arguments)?;
    let mut new = head.to_owned();
    let mut made = 0;
    for line in listed.lines() {
        let ids: Vec<&str> = line.split(' ').collect();
        // A first commit that was amended changes the one with which the worker began.
        let parent = ids.get(1).copied().or(kept.base.as_deref());
        let (Some(commit), Some(parent), None) = (ids.first(), parent, ids.get(2)) else {
            let reason = "HEAD has moved, and they have merges or no common beginning with it";
            return Err(CommitRefusal::new(reason, BRANCH_CURE));
        };
        let base = format!("--merge-base={parent}");
        let merged =
            git.output(&["merge-tree", "--write-tree", "--name-only", &base, &new, commit], b"")?;
        let text = merged.text();
        let mut lines = text.lines();
        let tree = lines.next().unwrap_or_default();
        let short = commit.get(..SHORT_ID).unwrap_or(commit);
        match merged.code {
            Some(0) => {}
            Some(1) => {
                let files: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
                let files = printable(files.join(", ").as_bytes());
                let reason = format!("HEAD has moved, and {short} conflicts with it in {files}");
                return Err(CommitRefusal::new(reason, BRANCH_CURE));
            }
            _ => return Err(failure(&["merge-tree"], &merged.error).into()),
        }
        if git.ask(&["rev-parse", &format!("{new}^{{tree}}")])? == tree {
            continue;
        }
        new = recommit(git, commit, tree, &new)?;
        made += 1;
    }
    Ok((new, made))
}

/// Makes a commit of `tree` on `parent` with the author, the times and the message of `commit`.
fn recommit(git: &GitRepository, commit: &str, tree: &str, parent: &str) -> io::Result<String> {
    let raw = git.output(&["cat-file", "commit", commit], b"")?.out;
    let text = String::from_utf8_lossy(&raw);
    // The header ends at the first empty line. A signature would not match the new commit.
    let (header, _) = text.split_once("\n\n").unwrap_or((&text, ""));
    let mut made = format!("tree {tree}\nparent {parent}\n").into_bytes();
    for line in header.lines() {
        if ["author ", "committer ", "encoding "].iter().any(|key| line.starts_with(key)) {
            made.extend_from_slice(line.as_bytes());
            made.push(b'\n');
        }
    }
    let end = raw.windows(2).position(|two| two == b"\n\n").unwrap_or(raw.len());
    made.extend_from_slice(raw.get(end.saturating_add(1)..).unwrap_or_default());
    git.text(&["hash-object", "-t", "commit", "-w", "--stdin"], &made)
}

/// Returns a line about a move, such as `2 commits onto main`.
pub fn describe_move(planned: &BranchMove) -> String {
    let commits = count(planned.count, "commit");
    let branch = planned.branch();
    let place = if planned.old.is_some() { "onto" } else { "on the new branch" };
    format!("{commits} {place} {branch}")
}
