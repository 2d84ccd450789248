//! The layers of a draft: made before the worker starts, and removed when nobody needs them.

use std::path::{Path, PathBuf};

use super::commits;
use super::copying::Copying;
use super::folder::Draft;
use super::manifest::{self, CopyFacts};
use super::record::{DraftState, Engine};
use super::view_rules;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::OpenFolder;
use swarmletfs_record::write::{During, Result as WriteResult};
use swarmletfs_trace::swarmlet::BASE;

/// The upper layer of the overlay, with the files that the worker wrote.
const UPPER: &str = "upper";
const WORK: &str = "work";
/// The upper layer over the common directory of git, if the workspace is a linked worktree.
const GIT_UPPER: &str = "git-upper";
const GIT_WORK: &str = "git-work";
const COPY: &str = "copy";
/// All layers, with their description and the contents that a search for changes needs.
const LAYERS: [&str; 7] = [UPPER, WORK, GIT_UPPER, GIT_WORK, COPY, manifest::FILE, BASE];
/// The file with the id of the boot at which the worker started.
const BOOT: &str = "boot_id";
/// Directory and name of the file in which the kernel states that id.
const KERNEL_BOOT: (&str, &str) = ("/proc/sys/kernel/random", "boot_id");
const BOOT_MAX: u64 = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerPaths {
    pub upper: PathBuf,
    pub work: PathBuf,
}

/// A part without which nobody can search for changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingPart {
    Layers,
    Workspace,
}

impl Draft {
    /// Makes the layers: empty ones of an overlay, or a copy of the workspace. The worker's view
    /// lacks the paths that the record hides.
    ///
    /// # Errors
    ///
    /// The workspace cannot be read, the draft cannot be written, or a path to hide leads through a
    /// link.
    pub fn prepare(&self) -> WriteResult<()> {
        let workspace = self.record().workspace();
        let lower = OpenFolder::open(&workspace).during("open", &workspace, b"")?;
        let prepare = || {
            if let Some(boot) = boot_id() {
                let temporary = self.folder().write_temporary(&mut boot.as_slice())?;
                temporary.replace(self.folder(), &Name::new(BOOT)?)?;
            }
            match self.record().engine {
                Engine::Overlay => {
                    for name in [WORK, GIT_UPPER, GIT_WORK] {
                        self.folder().create_dir(&Name::new(name)?)?;
                    }
                    let upper = self.folder().create_dir(&Name::new(UPPER)?)?;
                    // The root of the view has the attributes of the upper layer.
                    let stat = lower.stat_self()?;
                    upper.set_attributes(stat.mode, &stat)
                }
                Engine::Copy => {
                    let copy = self.folder().create_dir(&Name::new(COPY)?)?.without_sync()?;
                    let hidden = self.hidden_paths();
                    Copying::run(&lower, &copy, &hidden)?.save(self.folder())
                }
            }
        };
        prepare().during("prepare", self.folder().path(), b"")?;
        if self.record().engine == Engine::Overlay {
            for path in self.record().hidden() {
                let bytes = path.as_os_str().as_encoded_bytes();
                self.hide(&lower, bytes).during("hide", &workspace, bytes)?;
            }
        }
        Ok(())
    }

    pub(super) fn hidden_paths(&self) -> Vec<RelPath> {
        let hidden = self.record().hidden();
        let hidden = hidden.iter().map(|path| RelPath::parse(path.as_os_str().as_encoded_bytes()));
        hidden.flatten().filter(|path| !path.is_root()).collect()
    }

    pub fn overlay_dirs(&self) -> LayerPaths {
        LayerPaths { upper: self.path(UPPER), work: self.path(WORK) }
    }

    /// Returns the directories of the overlay over the common directory of git, for a workspace
    /// that is a linked worktree. Changes there are not searched for.
    pub fn git_overlay_dirs(&self) -> LayerPaths {
        LayerPaths { upper: self.path(GIT_UPPER), work: self.path(GIT_WORK) }
    }

    pub fn copy_dir(&self) -> PathBuf {
        self.path(COPY)
    }

    pub(super) fn layer(&self) -> PathBuf {
        match self.record().engine {
            Engine::Overlay => self.path(UPPER),
            Engine::Copy => self.copy_dir(),
        }
    }

    /// Returns why nobody can search for the changes; `None` if nothing is missing.
    pub fn missing_part(&self) -> Option<MissingPart> {
        // The last one that is made.
        let last = match self.record().engine {
            Engine::Overlay => UPPER,
            Engine::Copy => manifest::FILE,
        };
        if matches!(self.folder().kind(&RelPath::constant(last)), Ok(None)) {
            return Some(MissingPart::Layers);
        }
        let workspace = OpenFolder::open(&self.record().workspace());
        let is_missing = matches!(workspace, Err(Error::NotFound | Error::NotADirectory));
        is_missing.then_some(MissingPart::Workspace)
    }

    /// Removes the layers and the bases. Call it after [`super::ChangeSearch::finish`], when
    /// nothing runs in them: `apply` and `undo` need only the worker's directory.
    pub fn remove_layers(&self) -> WriteResult<()> {
        self.remove(&LAYERS)
    }

    /// Removes the layers and the bases, and marks the draft as discarded. Its record stays.
    ///
    /// # Errors
    ///
    /// The system refuses to remove a file. The draft is discarded already.
    pub fn discard(&mut self) -> WriteResult<()> {
        self.update(|record| record.state = DraftState::Discarded)?;
        self.remove_layers()
    }

    fn remove(&self, names: &[&str]) -> WriteResult<()> {
        for name in names {
            let remove = || self.folder().remove_all(&Name::new(name)?);
            remove().during("remove", self.folder().path(), name.as_bytes())?;
        }
        Ok(())
    }

    /// Hides the path `hidden` of the workspace `lower`, if it is there.
    fn hide(&self, lower: &OpenFolder, hidden: &[u8]) -> Result<()> {
        let hidden = RelPath::parse(hidden)?;
        let name = hidden.file_name().ok_or(Error::InvalidName)?;
        let mut upper = self.folder().enter(&RelPath::constant(UPPER))?;
        let mut folder: Option<OpenFolder> = None;
        for name in hidden.parent().names() {
            let entered = match folder.as_ref().unwrap_or(lower).enter(&name) {
                Err(Error::NotFound) => return Ok(()),
                entered => entered?,
            };
            upper = upper.enter_or_create(&name)?;
            let stat = entered.stat_self()?;
            upper.set_attributes(stat.mode, &stat)?;
            folder = Some(entered);
        }
        let stat = folder.as_ref().unwrap_or(lower).stat(&name)?;
        if stat.is_some() { upper.create_whiteout(&name) } else { Ok(()) }
    }

    /// Returns facts about the draft that a person must know.
    pub(super) fn notes(&self, copy: Option<CopyFacts>) -> Vec<String> {
        let mut notes = Vec::new();
        let facts = copy.unwrap_or_default();
        for (count, what) in [
            (facts.special, ["device, FIFO or socket", "devices, FIFOs and sockets"]),
            (
                facts.unreadable,
                ["file or folder that cannot be read", "files and folders that cannot be read"],
            ),
        ] {
            let [one, many] = what;
            let what = if count == 1 { one } else { many };
            if count > 0 {
                notes.push(format!("the copy of the workspace lacks {count} {what}"));
            }
        }
        let boot = Name::new(BOOT).and_then(|name| self.folder().read(&name, BOOT_MAX));
        let is_torn = !self.record().is_durable
            && matches!((boot, boot_id()), (Ok(Some(then)), Some(now)) if then != now);
        if is_torn {
            notes.push(
                "the machine stopped while the worker ran, so the last changes may be incomplete"
                    .to_owned(),
            );
        }
        notes.extend(commits::note(self));
        notes
    }
}

/// Returns the id of the current boot, or `None` if the kernel does not state it.
fn boot_id() -> Option<Vec<u8>> {
    let (folder, name) = KERNEL_BOOT;
    view_rules::read(&OpenFolder::open(Path::new(folder)).ok()?, name)
}
