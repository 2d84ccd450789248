//! Puts the changes of a worker into the new view of another one, which goes on with them.
//!
//! The view is of the workspace as it is now, so files that others changed meanwhile are merged.
//! The draft that was continued stays as it was until it is discarded: its record, its contents and
//! the parts that were applied.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Uid};

use super::check::{ApplyPlan, ChangeStep, StoredContents};
use super::commits::{BranchMove, CommitTarget};
use super::session::{ApplyOptions, Approval, Locked, Merging};
use super::unasked::PathRules;
use crate::draft::{Draft, Engine, view_of_git};
use crate::git::GitRepository;
use swarmletfs_base::error::{Error as PathError, Result as PathResult};
use swarmletfs_base::model::EntryKind;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::OpenFolder;
use swarmletfs_base::text::count;
use swarmletfs_record::write::{Dir, Durability, During, File, Result, from_io, set_mode};
use swarmletfs_trace::swarmlet::CHANGES;

const ACTION: &str = "continue the work of";
/// Maximum size of git's index, in bytes.
const INDEX_MAX: u64 = 1 << 30;

/// The changes of a worker, as they are on the workspace of now. Holds the locks of both.
pub struct Continuation {
    locked: Locked,
    plan: ApplyPlan,
    commits: Option<BranchMove>,
    /// Facts for a person.
    pub notes: Vec<String>,
}

impl Approval<'_> {
    /// Plans the view of a worker that goes on with the changes of this one. Call it after the
    /// record of the new draft was made: later changes by others show there.
    ///
    /// # Errors
    ///
    /// The worker runs, its changes were discarded, or they conflict with the workspace: the error
    /// names the files.
    pub fn plan_continuation(&self, merging: Merging) -> Result<Continuation> {
        let locked = self.lock(ACTION, false)?;
        let changes = self.changes()?;
        let rules = PathRules { allows_git: true, allows_programs: true };
        let has_commits = changes.commits.as_ref().is_some_and(|kept| kept.head.is_some());
        let selection = self.select(changes, &[], rules)?;
        let left_out = selection.left_out().iter();
        let left_out =
            left_out.map(|left| format!("left out: {}: {}", left.path.display(), left.reason));
        let mut notes: Vec<String> = left_out.collect();
        let commits = has_commits.then_some(CommitTarget::Head);
        let options = ApplyOptions { merging, commits };
        let planned = match self.plan(&locked, &selection, &options) {
            // Their changes are merged as files.
            Err(error) if merging == Merging::Markers && options.commits.is_some() => {
                notes.push(format!("its commits are not in the new view: {error}"));
                self.plan(&locked, &selection, &ApplyOptions { commits: None, ..options })
            }
            planned => planned,
        };
        let (plan, checked) = planned?;
        if !plan.conflicts.is_empty() {
            let named = plan.conflicts.iter();
            let named = named.map(|it| format!("{}: {}", it.path.display(), it.reason));
            let reason = named.collect::<Vec<_>>().join("; ");
            let cure = "try --merge=markers, which keeps both sides, or change the workspace back";
            return Err(self.error(ACTION, &reason, cure));
        }
        let merged = checked.files.iter().filter(|file| file.is_merged);
        notes.extend(merged.map(|file| match file.conflicts {
            0 => format!("merged {} with the workspace", file.path.display()),
            conflicts => {
                let conflicts = count(conflicts, "conflict");
                format!("merged {}, with {conflicts} between markers", file.path.display())
            }
        }));
        Ok(Continuation { locked, plan, commits: checked.commits, notes })
    }

    /// Puts the planned changes into the layers of `draft`, which no process uses yet, and marks
    /// the draft of this worker as continued in it.
    ///
    /// # Errors
    ///
    /// The draft cannot be written. This worker's own draft is as it was then.
    pub fn continue_in(&self, continuation: Continuation, draft: &Draft) -> Result<()> {
        let Continuation { mut locked, plan, commits, .. } = continuation;
        let is_copy = draft.record().engine == Engine::Copy;
        let (layer, lower) = (draft.layer(), locked.workspace.path().to_owned());
        let view = NewView::open(&layer, lower, is_copy).during("open", &layer, b"")?;
        let contents = StoredContents::new(self.worker().folder(), CHANGES);
        let mut hidden: Option<&RelPath> = None;
        for (path, step) in &plan.steps {
            // Nothing is left beneath a folder that was replaced or removed.
            if hidden.is_some_and(|above| path.is_within(above) && step.after.is_none()) {
                continue;
            }
            let made = view.make(path, step, || contents.open(path));
            made.during("write the view of", draft.folder().path(), path.as_bytes())?;
            if step.after.as_ref().is_none_or(|after| after.kind != EntryKind::Folder) {
                hidden = Some(path);
            }
        }
        if let Some(planned) = &commits {
            place_commits(draft, planned, &locked.workspace)
                .map_err(|error| self.error(ACTION, &error.to_string(), "try again"))?;
        }
        let id = draft.worker().display();
        locked.draft.update(|record| record.continued_by = Some(id))?;
        let _ = self.keep_review_state();
        Ok(())
    }
}

/// The view of a worker before it begins: the upper layer of an overlay, or a copy.
struct NewView {
    layer: Dir,
    /// The folder that the layer covers.
    lower: PathBuf,
    is_copy: bool,
}

impl NewView {
    fn open(layer: &Path, lower: PathBuf, is_copy: bool) -> PathResult<NewView> {
        Ok(NewView { layer: Dir::open(layer, Durability::None)?, lower, is_copy })
    }

    fn make(
        &self,
        path: &RelPath,
        step: &ChangeStep,
        content: impl FnOnce() -> PathResult<File>,
    ) -> PathResult<()> {
        let name = path.file_name().ok_or(PathError::InvalidName)?;
        let (folder, beneath) = self.open_folder(&path.parent())?;
        let is_below = beneath.as_ref().map(|lower| lower.stat(&name)).transpose()?.flatten();
        let own = folder.entry_stat(&name);
        let Some(after) = &step.after else {
            if own.is_ok() {
                folder.remove_all(&name)?;
            }
            return match is_below {
                Some(_) if !self.is_copy => folder.create_whiteout(&name),
                _ => Ok(()),
            };
        };
        let stays = after.kind == EntryKind::Folder
            && own.as_ref().is_ok_and(|own| EntryKind::from(own.kind) == EntryKind::Folder);
        if own.is_ok() && !stays {
            folder.remove_all(&name)?;
        }
        match after.kind {
            EntryKind::Folder => folder.enter_or_create(&name)?.set_own_mode(after.mode),
            EntryKind::Link => {
                let like = OpenFolder::open(&self.lower)?.stat_self()?;
                folder.create_link(&name, &after.target_bytes().unwrap_or_default(), &like)
            }
            EntryKind::File => {
                let source: Box<dyn io::Read> = match &step.merged {
                    Some(merged) => Box::new(&*merged.bytes),
                    // Only the permissions differ.
                    None if step.before.as_ref().is_some_and(|now| now.is_content_of(after)) => {
                        let lower = beneath.as_ref().ok_or(PathError::NotFound)?;
                        Box::new(lower.open_file(&name)?.0)
                    }
                    None => Box::new(content()?),
                };
                let file = folder.create_file(&name)?;
                io::copy(&mut { source }, &mut &file).map_err(from_io)?;
                set_mode(&file, after.mode)
            }
            EntryKind::Special => Err(PathError::Special),
        }
    }

    fn write(&self, path: &RelPath, content: &[u8]) -> PathResult<()> {
        let name = path.file_name().ok_or(PathError::InvalidName)?;
        let (folder, _) = self.open_folder(&path.parent())?;
        folder.write_temporary(&mut { content })?.replace(&folder, &name)
    }

    /// Opens a folder of the layer, and the same folder of the workspace. Creates the missing ones
    /// with the attributes that they have there.
    fn open_folder(&self, path: &RelPath) -> PathResult<(Dir, Option<OpenFolder>)> {
        let mut folder = self.layer.enter(&RelPath::root())?;
        let mut lower = OpenFolder::open(&self.lower).ok();
        for name in path.names() {
            lower = lower.and_then(|lower| lower.enter(&name).ok());
            if folder.kind(&RelPath::from(name.clone()))?.is_none() {
                let made = folder.create_dir(&name)?;
                if let Some(lower) = &lower {
                    let stat = lower.stat_self()?;
                    made.set_attributes(stat.mode, &stat)?;
                }
            }
            folder = folder.enter(&RelPath::from(name))?;
        }
        Ok((folder, lower))
    }
}

/// Moves the branch and the index in the view of `draft` alone. The commits themselves are in the
/// workspace's repository, where no branch has them.
fn place_commits(draft: &Draft, planned: &BranchMove, workspace: &Dir) -> io::Result<()> {
    let other = |error: PathError| io::Error::other(error.to_string());
    let Some(view) = view_of_git(draft) else { return Ok(()) };
    let Some(git) = GitRepository::of_workspace(workspace.path()) else { return Ok(()) };
    let made = tempfile::tempdir()?;
    let index = made.path().join("index");
    if let Some((uid, gid)) = git.other_owner() {
        let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chown(made.path(), owner.0, owner.1)?;
    }
    let open = |path: &Path| Dir::open(path, Durability::None).map_err(other);
    let name = Name::new("index").map_err(other)?;
    let git_dir = git.ask(&["rev-parse", "--absolute-git-dir"])?;
    let outside = open(Path::new(&git_dir))?.read(&name, INDEX_MAX).map_err(other)?;
    let folder = open(made.path())?;
    if let Some(index) = outside {
        let copied = folder.write_temporary(&mut index.as_slice());
        copied.and_then(|copy| copy.replace(&folder, &name)).map_err(other)?;
    }
    git.with_index(&index).ask(&["read-tree", "-i", "-m", &planned.new])?;
    let index = folder.read(&name, INDEX_MAX).map_err(other)?.unwrap_or_default();
    let reference = match planned.reference.as_str() {
        "HEAD" => view.git_dir.join(&Name::new("HEAD").map_err(other)?),
        name => view.common.join_path(&RelPath::parse(name.as_bytes()).map_err(other)?),
    };
    let line = format!("{}\n", &planned.new);
    let index_path = view.git_dir.join(&Name::new("index").map_err(other)?);
    let is_copy = draft.record().engine == Engine::Copy;
    let layer = NewView::open(&view.layer, view.lower, is_copy).map_err(other)?;
    for (path, content) in [(reference, line.as_bytes()), (index_path, &index)] {
        layer.write(&path, content).map_err(other)?;
    }
    Ok(())
}
