//! The commits that a worker made in its view of a repository, kept as a bundle of git.
//!
//! Git is never run on the worker's own repository, whose settings name programs. Its new objects
//! and its refs, which are data, are copied into a new repository that borrows the other objects
//! from the user's.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::content;
use super::folder::{Draft, Engine};
use crate::git::{GitRepository, StartedRepository};
use swarmletfs_base::model::{CommitLine, KeptCommits};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, OpenFolder};
use swarmletfs_record::write::{Dir, HashingReader};
use swarmletfs_trace::swarmlet::COMMITS;

/// The repository that is made of the worker's commits, until its end.
pub(super) const SCRATCH: &str = "commits.git";
/// Maximum size of the new objects, in bytes.
const OBJECTS_MAX: u64 = 1 << 30;
const FILES_MAX: usize = 200_000;
/// Maximum size of a file with refs, in bytes.
const REFS_MAX: u64 = 16 << 20;
/// Deepest folder of objects and refs that is copied, in names.
const DEPTH_MAX: usize = 16;
/// Maximum number of commits that are listed. All are kept.
const LISTED_MAX: usize = 100;
/// Maximum number of branches that are kept, with HEAD.
const BRANCHES_MAX: usize = 100;

/// Keeps the new commits of the worker of `draft` in its directory `worker`. Returns `None` if
/// there are none. Call it when the worker has ended, before the layers are removed.
///
/// # Errors
///
/// They cannot be kept.
pub(super) fn keep(draft: &Draft, worker: &Dir) -> Result<Option<KeptCommits>, Reason> {
    // A file that the worker put there is no bundle of its runner.
    worker.remove_all(&Name::new(COMMITS)?)?;
    let Some(started) = &draft.record().repository else { return Ok(None) };
    match WorkerRepository::find(draft, started) {
        Some(view) => view.keep(draft, started, worker),
        None => Ok(None),
    }
}

/// Why commits cannot be kept.
#[derive(Debug)]
pub(super) struct Reason(pub(super) String);

impl<E: std::error::Error> From<E> for Reason {
    fn from(error: E) -> Reason {
        Reason(error.to_string())
    }
}

/// The place of the repository in the view of a worker. Paths are relative to the layer.
pub struct GitView {
    /// The layer of the workspace, or the one over the common folder of linked worktrees.
    pub layer: PathBuf,
    /// The folder that it covers.
    pub lower: PathBuf,
    /// The folder of the objects and the branches.
    pub common: RelPath,
    /// The folder of HEAD and the index.
    pub git_dir: RelPath,
}

/// Returns the place of the repository in the view of `draft`; `None` if the worker cannot write
/// one.
pub fn view_of_git(draft: &Draft) -> Option<GitView> {
    let started = draft.record().repository.as_ref()?;
    let (git_dir, common_dir) = (started.git_dir(), started.common_dir());
    let workspace = draft.record().workspace();
    let (layer, lower) = match draft.record().engine {
        _ if common_dir == workspace.join(".git") => (draft.layer(), workspace),
        Engine::Overlay => (draft.git_overlay_dirs().upper, common_dir.clone()),
        // The common folder of a linked worktree is read-only for a worker in a copy.
        Engine::Copy => return None,
    };
    let beneath = |path: &Path| {
        let path = path.strip_prefix(&lower).ok()?;
        RelPath::parse(path.as_os_str().as_encoded_bytes()).ok()
    };
    let (common, git_dir) = (beneath(&common_dir)?, beneath(&git_dir)?);
    Some(GitView { layer, lower, common, git_dir })
}

/// The repository as the worker left it. With an overlay, it has only the files that differ.
struct WorkerRepository {
    view: GitView,
    /// The folder of the objects and the branches.
    common: OpenFolder,
    outside: OpenFolder,
}

impl WorkerRepository {
    /// Returns `None` if the worker changed nothing in the repository.
    fn find(draft: &Draft, started: &StartedRepository) -> Option<WorkerRepository> {
        let view = view_of_git(draft)?;
        let common = enter(&view.layer, &view.common)?;
        let outside = OpenFolder::open(&started.common_dir()).ok()?;
        Some(WorkerRepository { view, common, outside })
    }

    fn keep(
        &self,
        draft: &Draft,
        started: &StartedRepository,
        worker: &Dir,
    ) -> Result<Option<KeptCommits>, Reason> {
        if self.common.stat(&Name::new("reftable")?)?.is_some() {
            return Err(Reason("its refs are in a reftable".to_owned()));
        }
        let name = Name::new(SCRATCH)?;
        draft.folder().remove_all(&name)?;
        let scratch = draft.folder().create_dir(&name)?;
        let git = GitRepository::new(scratch.path());
        let format = format!("--object-format={}", started.format);
        git.ask(&["init", "-q", "--bare", "--template=", &format])?;
        let objects = started.common_dir().join("objects");
        let mut objects = objects.into_os_string().into_encoded_bytes();
        objects.push(b'\n');
        let info = scratch.enter(&RelPath::constant("objects/info"))?;
        let alternates = Name::new("alternates")?;
        info.write_temporary(&mut objects.as_slice())?.replace(&info, &alternates)?;
        self.copy_into(&scratch)?;
        let kept = self.bundle(&git, started, &scratch, worker);
        draft.folder().remove_all(&name)?;
        kept
    }

    /// Copies the new objects and the refs to `scratch`.
    fn copy_into(&self, scratch: &Dir) -> Result<(), Reason> {
        let mut copying = ObjectCopy { files: 0, bytes: 0, bytes_max: OBJECTS_MAX };
        let objects = Name::new("objects")?;
        if let Ok(objects) = self.common.enter(&objects) {
            let outside = self.outside.enter(&Name::new("objects")?).ok();
            let to = scratch.enter(&RelPath::constant("objects"))?;
            copying.folder(&objects, outside.as_ref(), &to, 0)?;
        }
        let mut copying = ObjectCopy { files: 0, bytes: 0, bytes_max: REFS_MAX };
        let heads = Name::new("heads")?;
        let refs = self.common.enter(&Name::new("refs")?);
        if let Ok(branches) = refs.and_then(|refs| refs.enter(&heads)) {
            let to = scratch.enter(&RelPath::constant("refs"))?.enter_or_create(&heads)?;
            copying.folder(&branches, None, &to, 0)?;
        }
        copying.file(&self.common, &Name::new("packed-refs")?, scratch)?;
        for place in [&self.view.layer, &self.view.lower] {
            let Some(folder) = enter(place, &self.view.git_dir) else { continue };
            if copying.file(&folder, &Name::new("HEAD")?, scratch)? {
                break;
            }
        }
        Ok(())
    }

    fn bundle(
        &self,
        git: &GitRepository,
        started: &StartedRepository,
        scratch: &Dir,
        worker: &Dir,
    ) -> Result<Option<KeptCommits>, Reason> {
        let head = git.output(&["rev-parse", "-q", "--verify", "HEAD^{commit}"], b"")?;
        let head = (head.code == Some(0)).then(|| head.text());
        // Commits of the user's branches as they are now, and of HEAD as it was, are not new.
        let outside = GitRepository::new(started.common_dir());
        let mut known = outside.ask(&["for-each-ref", "--format=^%(objectname)"])?;
        known.extend(started.head.iter().map(|head| format!("\n^{head}")));
        let list = |tip: &str, options: &[&str]| {
            let arguments = [&["log", "--topo-order", "--stdin"], options].concat();
            git.text(&arguments, format!("{tip}\n{known}\n").as_bytes())
        };
        let (mut tips, mut commits, mut count) = (Vec::new(), Vec::new(), 0);
        let head = match head {
            Some(head) => {
                let listed = list(&head, &["--format=%H %s"])?;
                count = listed.lines().count() as u64;
                commits = listed.lines().take(LISTED_MAX).map(to_commit).collect();
                (count > 0).then_some(head)
            }
            None => None,
        };
        tips.extend(head.as_ref().map(|_| "HEAD".to_owned()));
        let branches = ["for-each-ref", "--format=%(objectname) %(refname)", "refs/heads"];
        let branches = git.ask(&branches)?;
        let mut names = Vec::new();
        for line in branches.lines().take(BRANCHES_MAX) {
            let Some((tip, name)) = line.split_once(' ') else { continue };
            let is_known = known.lines().any(|known| known.strip_prefix('^') == Some(tip));
            if is_known || list(tip, &["--format=%H", "--max-count=1"])?.is_empty() {
                continue;
            }
            tips.push(name.to_owned());
            if head.as_deref() != Some(tip) {
                names.push(name.strip_prefix("refs/heads/").unwrap_or(name).to_owned());
            }
        }
        if tips.is_empty() {
            return Ok(None);
        }
        let made = scratch.path().join(COMMITS);
        let made =
            made.to_str().ok_or_else(|| Reason("the store's path is not text".to_owned()))?;
        let input = format!("{}\n{known}\n", tips.join("\n"));
        git.text(&["bundle", "create", "-q", made, "--stdin"], input.as_bytes())?;
        let file = scratch.open_to_read(&Name::new(COMMITS)?)?;
        let file = file.ok_or_else(|| Reason("git made no bundle".to_owned()))?;
        let mut file = HashingReader::new(file);
        content::store_content(worker, &RelPath::constant(COMMITS), &mut file)?;
        let (_, sha256) = file.into_hash();
        let base = started.head.clone();
        Ok(Some(KeptCommits { sha256, base, head, count, commits, branches: names }))
    }
}

fn to_commit(line: &str) -> CommitLine {
    let (id, subject) = line.split_once(' ').unwrap_or((line, ""));
    CommitLine { id: id.to_owned(), subject: subject.to_owned() }
}

/// Opens the folder `path`, which may be the root.
fn enter(root: &Path, path: &RelPath) -> Option<OpenFolder> {
    let mut folder = OpenFolder::open(root).ok()?;
    for name in path.names() {
        folder = folder.enter(&name).ok()?;
    }
    Some(folder)
}

/// Returns true for a file that holds objects. Other files only make git faster.
fn is_of_objects(name: &Name) -> bool {
    let bytes = name.as_bytes();
    let is_pack = [&b".pack"[..], b".idx"].iter().any(|end| bytes.ends_with(end));
    is_pack || bytes.iter().all(u8::is_ascii_hexdigit)
}

/// Copies files of a worker. Links, devices and all else are left out.
struct ObjectCopy {
    files: usize,
    bytes: u64,
    bytes_max: u64,
}

impl ObjectCopy {
    /// Copies the files of `from` that `outside` does not have: a file of objects has the name of
    /// its content.
    fn folder(
        &mut self,
        from: &OpenFolder,
        outside: Option<&OpenFolder>,
        to: &Dir,
        depth: usize,
    ) -> Result<(), Reason> {
        for name in from.list()? {
            // It may name folders of objects anywhere on the machine.
            if depth == 0 && outside.is_some() && name.as_bytes() == b"info" {
                continue;
            }
            match from.stat(&name)?.map(|stat| stat.kind) {
                Some(Kind::Folder) if depth < DEPTH_MAX => {
                    let inner = from.enter(&name)?;
                    let outside = outside.and_then(|outside| outside.enter(&name).ok());
                    self.folder(&inner, outside.as_ref(), &to.enter_or_create(&name)?, depth + 1)?;
                }
                Some(Kind::File) if outside.is_none() || is_of_objects(&name) => {
                    let is_outside = outside.map(|outside| outside.stat(&name)).transpose()?;
                    if is_outside.flatten().is_none() {
                        self.file(from, &name, to)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Copies a file. Returns false if there is none.
    fn file(&mut self, from: &OpenFolder, name: &Name, to: &Dir) -> Result<bool, Reason> {
        if from.stat(name)?.is_none_or(|stat| stat.kind != Kind::File) {
            return Ok(false);
        }
        let (file, stat) = from.open_file(name)?;
        self.files += 1;
        self.bytes = self.bytes.saturating_add(stat.size);
        if self.files > FILES_MAX || self.bytes > self.bytes_max {
            let reason =
                format!("they are more than {FILES_MAX} files or {} bytes", self.bytes_max);
            return Err(Reason(reason));
        }
        let mut content = file.take(stat.size);
        to.without_sync()?.write_temporary(&mut content)?.replace(to, name)?;
        Ok(true)
    }
}
