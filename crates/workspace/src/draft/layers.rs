//! The layers of a draft: made before the worker starts, and removed when nobody needs them.
//!
//! A worker that cannot have an overlay gets a copy of the workspace.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::candidates::{self, CopiedEntry, CopyFacts, Manifest, is_gone};
use super::commits;
use super::content::{ContentHash, Extent};
use super::folder::{Draft, DraftState, Engine, next_tick};
use super::ignore_rules;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::EntryKind;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{EntryStat, Kind, OpenFile, OpenFolder};
use swarmletfs_record::write::{Dir, During, Result as WriteResult, from_io, set_file_attributes};
use swarmletfs_trace::swarmlet::BASE;

/// The upper layer of the overlay, with the files that the worker wrote.
const UPPER: &str = "upper";
const WORK: &str = "work";
/// The upper layer over the common directory of git, if the workspace is a linked worktree.
const GIT_UPPER: &str = "git-upper";
const GIT_WORK: &str = "git-work";
const COPY: &str = "copy";
/// All layers, with their description and the contents that a search for changes needs.
const LAYERS: [&str; 8] =
    [UPPER, WORK, GIT_UPPER, GIT_WORK, COPY, candidates::MANIFEST_FILE, commits::SCRATCH, BASE];
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
    /// Makes the layers: empty ones of an overlay, but for copies of the paths `foreign`, or a copy
    /// of the workspace. The worker's view lacks the paths that the record hides.
    ///
    /// # Errors
    ///
    /// The workspace cannot be read, the draft cannot be written, or a path to hide leads through a
    /// link.
    pub fn prepare(&mut self, foreign: &[PathBuf]) -> WriteResult<()> {
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
            for siblings in foreign.chunk_by(|one, other| one.parent() == other.parent()) {
                self.copy_foreign(&lower, siblings).during("copy", &workspace, b"")?;
            }
            if !foreign.is_empty() {
                self.update(|record| record.copied_at = Some(next_tick()))?;
            }
            for path in self.record().hidden() {
                let bytes = path.as_os_str().as_encoded_bytes();
                self.hide(&lower, bytes).during("hide", &workspace, bytes)?;
            }
        }
        Ok(())
    }

    pub(crate) fn hidden_paths(&self) -> Vec<RelPath> {
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

    pub(crate) fn layer(&self) -> PathBuf {
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
            Engine::Copy => candidates::MANIFEST_FILE,
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
        let opened = self.enter_both(lower, &hidden.parent())?;
        let Some((upper, folder)) = opened else { return Ok(()) };
        let stat = folder.as_ref().unwrap_or(lower).stat(&name)?;
        if stat.is_some() { upper.create_whiteout(&name) } else { Ok(()) }
    }

    /// Copies the paths `foreign` of one folder of the workspace `lower` into the upper layer,
    /// where they belong to the worker. A file that cannot be read stays as it is.
    fn copy_foreign(&self, lower: &OpenFolder, foreign: &[PathBuf]) -> Result<()> {
        let hidden = self.hidden_paths();
        let parse = |path: &PathBuf| RelPath::parse(path.as_os_str().as_encoded_bytes());
        let paths = foreign.iter().map(parse).collect::<Result<Vec<_>>>()?;
        let Some(parent) = paths.first().map(RelPath::parent) else { return Ok(()) };
        let Some((upper, folder)) = self.enter_both(lower, &parent)? else { return Ok(()) };
        let folder = folder.as_ref().unwrap_or(lower);
        for path in paths.iter().filter(|path| !hidden.iter().any(|it| path.is_within(it))) {
            let name = path.file_name().ok_or(Error::InvalidName)?;
            let Some(stat) = folder.stat(&name)? else { continue };
            let copied = match stat.kind {
                Kind::File => copy_content(folder, &name, &upper, stat.mode & MODE),
                Kind::Link => upper.create_link(&name, &folder.read_link(&name)?, &stat),
                Kind::Folder => folder.enter(&name)?.list().and_then(|_| {
                    upper.enter_or_create(&name)?.set_attributes(stat.mode & MODE, &stat)
                }),
                Kind::Special => Ok(()),
            };
            match copied {
                Err(Error::Io(Errno::ACCESS)) => {}
                Err(error) if is_gone(&error) => {}
                copied => copied?,
            }
        }
        Ok(())
    }

    /// Opens the folder `path` in the upper layer, with the attributes that it has in the workspace
    /// `lower`, and in the workspace, where `None` is the root. Returns `None` if it is not there.
    fn enter_both(
        &self,
        lower: &OpenFolder,
        path: &RelPath,
    ) -> Result<Option<(Dir, Option<OpenFolder>)>> {
        let mut upper = self.folder().enter(&RelPath::constant(UPPER))?;
        if !self.record().is_durable {
            upper = upper.without_sync()?;
        }
        let mut folder: Option<OpenFolder> = None;
        for name in path.names() {
            let entered = match folder.as_ref().unwrap_or(lower).enter(&name) {
                Err(Error::NotFound) => return Ok(None),
                entered => entered?,
            };
            upper = upper.enter_or_create(&name)?;
            let stat = entered.stat_self()?;
            upper.set_attributes(stat.mode, &stat)?;
            folder = Some(entered);
        }
        Ok(Some((upper, folder)))
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
        notes
    }
}

/// Returns the id of the current boot, or `None` if the kernel does not state it.
fn boot_id() -> Option<Vec<u8>> {
    let (folder, name) = KERNEL_BOOT;
    ignore_rules::read_rules(&OpenFolder::open(Path::new(folder)).ok()?, name)
}

/// Deepest directory that is copied, in names. Each level holds two descriptors.
const DEPTH_MAX: usize = 200;
/// Maximum number of attempts to copy a file that changes meanwhile.
const ATTEMPTS: usize = 3;
/// Permissions that are copied. A copy belongs to another user, so the setuid and setgid bits would
/// mean something else.
const MODE: u32 = 0o1777;

pub(super) struct Copying<'a> {
    hidden: &'a [RelPath],
    mount: Option<u64>,
    manifest: Manifest,
    facts: CopyFacts,
}

impl Copying<'_> {
    /// Copies the directory `from` into the empty directory `to`, without the paths in `hidden`.
    /// Links are copied and not followed; files with several names become separate files. Returns
    /// the copied entries.
    ///
    /// # Errors
    ///
    /// The copy cannot be written. An entry that cannot be read is left out.
    pub(super) fn run(from: &OpenFolder, to: &Dir, hidden: &[RelPath]) -> Result<Manifest> {
        let stat = from.stat_self()?;
        let mut copying = Copying {
            hidden,
            mount: stat.mount,
            manifest: Manifest::default(),
            facts: CopyFacts::default(),
        };
        copying.folder(&RelPath::root(), from, to)?;
        to.set_attributes(stat.mode & MODE, &stat)?;
        copying.facts.copied_at = next_tick().into();
        copying.manifest.set_facts(copying.facts);
        Ok(copying.manifest)
    }

    fn folder(&mut self, path: &RelPath, from: &OpenFolder, to: &Dir) -> Result<()> {
        if path.depth() > DEPTH_MAX {
            return Err(Error::Io(Errno::LOOP));
        }
        for name in from.list()? {
            let path = path.join(&name);
            if self.hidden.contains(&path) {
                continue;
            }
            match self.entry(&path, from, &name, to) {
                Err(Error::Io(Errno::ACCESS)) => self.facts.unreadable += 1,
                // Others may remove it at any moment.
                Err(error) if is_gone(&error) => {}
                copied => copied?,
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &RelPath, from: &OpenFolder, name: &Name, to: &Dir) -> Result<()> {
        let stat = from.stat(name)?.ok_or(Error::NotFound)?;
        let mut entry = CopiedEntry {
            kind: EntryKind::File,
            mode: stat.mode & MODE,
            size: 0,
            sha256: String::new(),
            target: Vec::new(),
            mtime: stat.mtime,
            ctime: stat.ctime,
            is_foreign: stat.mount != self.mount,
        };
        match stat.kind {
            Kind::File => {
                let id = copy_file(from, name, to, entry.mode)?;
                (entry.size, entry.sha256) = (id.size, id.sha256);
            }
            Kind::Link => {
                entry.kind = EntryKind::Link;
                entry.target = from.read_link(name)?;
                to.create_link(name, &entry.target, &stat)?;
            }
            Kind::Folder => {
                entry.kind = EntryKind::Folder;
                let inner = from.enter(name)?;
                // Opened before the directory is made: one that cannot be listed is left out.
                inner.list()?;
                let made = to.create_dir(name)?;
                self.folder(path, &inner, &made)?;
                made.set_attributes(entry.mode, &stat)?;
            }
            Kind::Special => {
                self.facts.special += 1;
                return Ok(());
            }
        }
        let copied = to.entry_stat(name)?;
        (entry.mode, entry.mtime, entry.ctime) = (copied.mode, copied.mtime, copied.ctime);
        self.manifest.insert(path, entry);
        Ok(())
    }
}

/// Copies a file. Returns the size and the hash of the copy.
fn copy_file(from: &OpenFolder, name: &Name, to: &Dir, mode: u32) -> Result<ContentHash> {
    copy_content(from, name, to, mode)?;
    ContentHash::of(to.open_to_read(name)?.ok_or(Error::NotFound)?)
}

fn copy_content(from: &OpenFolder, name: &Name, to: &Dir, mode: u32) -> Result<()> {
    let (source, mut before) = from.open_file(name)?;
    let copy = to.create_file(name)?;
    for _ in 0..ATTEMPTS {
        copy_data(&source, &copy, before.size)?;
        let after = EntryStat::of_open(&source)?;
        if after == before {
            break;
        }
        before = after;
    }
    set_file_attributes(&copy, mode, &before)
}

/// Copies `size` bytes, or as many as there are. Holes stay holes.
fn copy_data(from: &OpenFile, to: &OpenFile, size: u64) -> Result<()> {
    to.set_len(0).and_then(|()| to.set_len(size)).map_err(from_io)?;
    let mut at = 0;
    while at < size
        && let Some(extent) = Extent::find(from, at)?
    {
        copy_part(from, to, extent.start, extent.end.min(size)).map_err(from_io)?;
        at = extent.end;
    }
    Ok(())
}

fn copy_part(mut from: &OpenFile, mut to: &OpenFile, start: u64, end: u64) -> io::Result<()> {
    from.seek(SeekFrom::Start(start))?;
    to.seek(SeekFrom::Start(start))?;
    io::copy(&mut from.take(end.saturating_sub(start)), &mut to)?;
    Ok(())
}
