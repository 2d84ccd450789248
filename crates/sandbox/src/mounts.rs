//! The tree of mounts that the command sees.
//!
//! The machine is shown as it is, but read-only and without anything that answers. On it lie
//! private directories for temporary files, devices, the view of the workspace, the folder of the
//! worker, and the paths that the caller names. All of these are prepared while the real tree is
//! visible. Then a new root takes the place of the real one, and they are put into it, shallow
//! paths first, so that none covers another that lies deeper. The new root contains nothing else.
//!
//! The mounts outside are followed, so that a sandbox does not keep a file system in use that was
//! unmounted there.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, mkdirat, readlinkat, symlink};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags, mount, mount_change,
    move_mount, unmount,
};
use rustix::process::{Resource, Rlimit, chdir, getrlimit, pivot_root, setrlimit};

use super::files;
use super::machine::{self, MachinePart, Shown, clone_tree};
use super::mount_table::{self, AttachedMounts, TABLE_MAX, aliases, remount_read_only, restrict};
use super::overlay::open_overlay;
use super::stage::{FailedStep, PROGRAM, SandboxSpec, StageFailure, WorkspaceView};

/// Place where the new root is made: a directory in which nobody has a workspace.
const NEW_ROOT: &str = "/sys";

/// Place of the real root until the new one is complete.
const OLD_ROOT: &str = "/.swarmletfs-old";

/// Path of this program in the sandbox, also if it is in a directory that is not shown.
pub(super) const OWN_PROGRAM: &str = "/.swarmletfs";

/// Options of the new root, which holds mountpoints and links only.
const ROOT_OPTIONS: &CStr = c"mode=755,size=16m,nr_inodes=64k";

const KERNEL: [&str; 2] = ["/proc", "/sys"];

const SESSIONS: &str = "/run/user";

/// Private directories for temporary files, each with a divisor: the directory can take this part
/// of the memory. Several sandboxes together do not exceed the memory.
pub(super) const TEMPORARY: [(&str, u64); 2] = [("/tmp", 8), ("/dev/shm", 16)];

/// Minimum size of a directory for temporary files, in bytes.
const TEMPORARY_MIN: u64 = 64 << 20;

/// Maximum size of /proc/meminfo, in bytes.
const MEMORY_TABLE_MAX: u64 = 64 << 10;

/// Options of the directory that covers a store: it holds mountpoints only.
const COVER: &CStr = c"mode=755,size=64k,nr_inodes=64";

/// Flags of file systems that the sandbox makes.
const PRIVATE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// A layer to mount over a path. Mounts on one path follow the order of the variants.
enum Layer {
    Machine(Shown),
    Temporary(CString),
    Devices,
    Device(OwnedFd),
    Writable(OwnedFd),
    /// The view of the workspace, or of its common .git directory.
    View(OwnedFd),
    /// A new, empty directory that holds mountpoints and is read-only in the end.
    Cover,
    /// A device in place of a file that is hidden, or of a socket: nothing can connect to it.
    Closed(OwnedFd),
    WorkerFolder(OwnedFd),
    Socket(OwnedFd),
}

struct Planned {
    target: PathBuf,
    layer: Layer,
}

#[derive(Debug)]
pub(super) struct ShownPart {
    pub(super) path: PathBuf,
    pub(super) mountpoint: PathBuf,
}

/// Builds the tree of mounts of `spec` in this mount namespace. Returns the parts of the machine
/// that hold file systems in use.
pub(super) fn build(spec: &SandboxSpec) -> Result<Vec<ShownPart>, StageFailure> {
    with_descriptors(|| build_tree(spec))
}

fn build_tree(spec: &SandboxSpec) -> Result<Vec<ShownPart>, StageFailure> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step("separate the mounts")?;
    let (mut planned, shown) = plan(spec)?;
    planned.sort_by_key(|planned| (planned.target.components().count(), planned.layer.rank()));
    enter_new_root().step("change the root")?;
    // The layers in place, each with true if the sandbox can make mountpoints in it, as in its own
    // directories. A path beneath a real directory exists, or must not be made.
    let mut placed: Vec<(&Path, bool)> = vec![(Path::new("/"), true)];
    for Planned { target, layer } in &planned {
        let holder = placed.iter().rfind(|(path, _)| target.starts_with(path));
        if holder.is_some_and(|(_, is_own)| *is_own) {
            if matches!(layer, Layer::Closed(_)) {
                continue;
            }
            make_mountpoint(target, layer).step_at("make a mountpoint at", target)?;
        }
        layer.put(target)?;
        let is_own = matches!(
            layer,
            Layer::Machine(Shown::Folder(_)) | Layer::Temporary(_) | Layer::Devices | Layer::Cover
        );
        placed.push((target, is_own));
    }
    let restricted: Vec<(&Path, MountFlags)> = planned
        .iter()
        .filter_map(|planned| Some((planned.target.as_path(), planned.layer.restriction(planned)?)))
        .collect();
    restrict(&restricted)?;
    for Planned { target, .. } in planned.iter().filter(|planned| planned.layer.is_closed_last()) {
        remount_read_only(target, PRIVATE).step_at("close", target)?;
    }
    unmount(OLD_ROOT, UnmountFlags::DETACH).step("leave the old root")?;
    rustix::fs::rmdir(OLD_ROOT).step("leave the old root")?;
    remount_read_only(Path::new("/"), PRIVATE).step("close the new root")?;
    // Copies that the command makes of this tree, in namespaces of its own, follow it: a mount that
    // is unmounted here is unmounted there, too.
    mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC)
        .step("share the mounts")?;
    Ok(shown)
}

fn enter_new_root() -> rustix::io::Result<()> {
    mount("tmpfs", NEW_ROOT, "tmpfs", PRIVATE, ROOT_OPTIONS)?;
    chdir(NEW_ROOT)?;
    let old = Path::new(OLD_ROOT).strip_prefix("/").unwrap_or(Path::new(OLD_ROOT));
    mkdirat(CWD, old, Mode::RWXU)?;
    pivot_root(".", old)?;
    chdir("/")
}

/// Prepares all layers, while the real tree is visible.
fn plan(spec: &SandboxSpec) -> Result<(Vec<Planned>, Vec<ShownPart>), StageFailure> {
    let mut planned = Vec::new();
    let mut add = |target: &Path, layer| planned.push(Planned { target: target.into(), layer });
    let clone = |path: &Path| clone_real(path).step_at("open", path);
    let table = AttachedMounts::read().step("read the table of mounts")?;
    let new_root = Path::new(NEW_ROOT);
    add(Path::new("/dev"), Layer::Devices);
    for path in machine::devices() {
        add(&path, Layer::Device(clone(&path)?));
    }
    if let Some(terminal) = machine::terminal() {
        add(Path::new(machine::CONSOLE), Layer::Device(clone(&terminal)?));
    }
    let memory = available_memory();
    for (path, share) in TEMPORARY {
        let options = format!("mode=1777,size={}", (memory / share).max(TEMPORARY_MIN));
        let options = CString::new(options).unwrap_or_default();
        add(Path::new(path), Layer::Temporary(options));
    }
    if files::is_dir(Path::new(SESSIONS)) {
        add(Path::new(SESSIONS), Layer::Cover);
    }
    let silent = mount_table::silent_mounts(&table);
    let mut covered = BTreeSet::new();
    for (path, witness) in hidden(spec) {
        covered.extend(aliases(&table, &path, &witness, &silent));
        covered.insert(path);
    }
    // A cover hides everything beneath it.
    for path in &covered {
        if path.ancestors().skip(1).any(|above| covered.contains(above)) {
            continue;
        }
        let cover = match files::is_dir(path) {
            true => Layer::Cover,
            false => Layer::Closed(clone(Path::new("/dev/null"))?),
        };
        add(path, cover);
    }
    for path in KERNEL.map(Path::new).into_iter().filter(|path| files::is_dir(path)) {
        add(path, Layer::Machine(Shown::Real(clone(path)?)));
    }
    // An empty directory, which the new root covers later.
    mount("tmpfs", new_root, "tmpfs", PRIVATE, COVER).step("mount a temporary file system")?;
    add(&spec.worker_folder, Layer::WorkerFolder(clone(&spec.worker_folder)?));
    for path in &spec.write {
        add(path, Layer::Writable(clone(path)?));
        for socket in
            machine::sockets_beneath(path)?.iter().filter(|path| !spec.sockets.contains(path))
        {
            add(socket, Layer::Closed(clone(Path::new("/dev/null"))?));
        }
    }
    add(
        &spec.workspace,
        Layer::View(match &spec.view {
            WorkspaceView::Overlay(dirs) => open_overlay(&spec.workspace, dirs, new_root)?,
            WorkspaceView::Copy(copy) => clone(copy)?,
        }),
    );
    if let Some((path, dirs)) = &spec.git_common {
        add(path, Layer::View(open_overlay(path, dirs, new_root)?));
    }
    for path in &spec.sockets {
        add(path, Layer::Socket(clone(path)?));
    }
    // Landlock admits no program of the old root.
    let program = readlinkat(CWD, PROGRAM, Vec::new()).step("find this program")?;
    let program = clone(Path::new(OsStr::from_bytes(program.to_bytes())))?;
    add(Path::new(OWN_PROGRAM), Layer::Machine(Shown::Real(program)));
    let mut shown = Vec::new();
    let parts = machine::parts(&table, new_root, &silent)?;
    for MachinePart { path, shown: how, mountpoint } in parts {
        if matches!(how, Shown::Overlay(_) | Shown::Real(_)) && mountpoint != Path::new("/") {
            shown.push(ShownPart { path: path.clone(), mountpoint });
        }
        add(&path, Layer::Machine(how));
    }
    let others = planned.iter().filter(|planned| !matches!(planned.layer, Layer::Machine(_)));
    let others: Vec<PathBuf> = others.map(|planned| planned.target.clone()).collect();
    // A part that the sandbox itself needs stays in use.
    shown.retain(|part| !others.iter().any(|target| target.starts_with(&part.path)));
    // A mount in one of the other layers belongs to it, or is hidden with it.
    let is_beneath = |path: &Path, target: &Path| path != target && path.starts_with(target);
    planned.retain(|planned| {
        !matches!(planned.layer, Layer::Machine(_))
            || !others.iter().any(|target| is_beneath(&planned.target, target))
    });
    Ok((planned, shown))
}

/// Returns the directories to hide, each with an entry by which it is recognized elsewhere: the
/// store, the directories in it, which another file system could show alone, and the hidden
/// directories of `spec`.
fn hidden(spec: &SandboxSpec) -> Vec<(PathBuf, PathBuf)> {
    let witness = spec.worker_folder.strip_prefix(&spec.store).unwrap_or(Path::new(""));
    let mut hidden = vec![(spec.store.clone(), witness.to_owned())];
    let listed = files::list(&spec.store).unwrap_or_default();
    let inner = listed.iter().map(|name| spec.store.join(OsStr::from_bytes(name)));
    hidden.extend(inner.chain(spec.hidden.iter().cloned()).map(|path| (path, PathBuf::new())));
    hidden.retain(|(path, _)| files::is_dir(path));
    hidden
}

/// Returns the size of the memory that programs can take, in bytes.
fn available_memory() -> u64 {
    let table = files::read(Path::new("/proc/meminfo"), MEMORY_TABLE_MAX).unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0).saturating_mul(1024)
}

/// Runs `work` with as many descriptors as this process may have. The layers are descriptors.
fn with_descriptors<T>(work: impl FnOnce() -> T) -> T {
    let before = getrlimit(Resource::Nofile);
    // With fewer, `work` fails where they do not suffice.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before });
    let result = work();
    let _ = setrlimit(Resource::Nofile, before);
    result
}

fn make_mountpoint(target: &Path, layer: &Layer) -> io::Result<()> {
    let is_file = match layer {
        // These make themselves.
        Layer::Machine(Shown::Link(_) | Shown::Folder(_)) => return Ok(()),
        Layer::Machine(Shown::Real(file))
        | Layer::Device(file)
        | Layer::Writable(file)
        | Layer::Socket(file) => {
            let mode = rustix::fs::fstat(file)?.st_mode;
            !rustix::fs::FileType::from_raw_mode(mode).is_dir()
        }
        _ => false,
    };
    if !is_file {
        return files::make_dirs(target);
    }
    files::make_dirs(target.parent().ok_or(Errno::INVAL)?)?;
    files::make_file(target)
}

impl Layer {
    /// Returns the place in the order of mounts on one path.
    fn rank(&self) -> u8 {
        match self {
            Layer::Machine(Shown::Folder(_)) => 0,
            Layer::Machine(Shown::Link(_) | Shown::Overlay(_)) => 1,
            Layer::Machine(Shown::Real(_)) => 2,
            Layer::Temporary(_) | Layer::Devices => 3,
            Layer::Device(_) | Layer::Writable(_) => 4,
            Layer::View(_) => 5,
            Layer::Cover | Layer::Closed(_) => 6,
            Layer::WorkerFolder(_) | Layer::Socket(_) => 7,
        }
    }

    /// Returns the flags of the mounts of a layer that is real; `None` for one that has them.
    fn restriction(&self, planned: &Planned) -> Option<MountFlags> {
        match self {
            Layer::Machine(Shown::Real(_)) => Some(PRIVATE | MountFlags::RDONLY),
            // A device that may be written must work.
            Layer::Writable(_) if planned.target.starts_with("/dev") => Some(MountFlags::NOSUID),
            Layer::Writable(_) | Layer::WorkerFolder(_) => Some(PRIVATE),
            Layer::View(_) => Some(PRIVATE),
            _ => None,
        }
    }

    /// Returns true if the layer is made read-only once all mountpoints in it are made.
    fn is_closed_last(&self) -> bool {
        matches!(self, Layer::Cover | Layer::Devices)
    }

    fn put(&self, target: &Path) -> Result<(), StageFailure> {
        let new = |options: &CStr| mount("tmpfs", target, "tmpfs", PRIVATE, options);
        match self {
            Layer::Machine(Shown::Folder(mode)) => {
                files::make_dir(target, *mode).step_at("make", target)
            }
            Layer::Machine(Shown::Link(to)) => symlink(to, target).step_at("make", target),
            Layer::Temporary(options) => new(options).step_at("cover", target),
            Layer::Cover => match new(COVER) {
                // It is in a file system that is not shown.
                Err(Errno::NOENT) => Ok(()),
                hidden => hidden.step_at("hide", target),
            },
            Layer::Devices => {
                new(COVER).step_at("cover", target)?;
                machine::complete_devices()
            }
            Layer::Closed(tree) => match attach(tree, target) {
                // Its process ended meanwhile, and took the socket along.
                Err(Errno::NOENT) => Ok(()),
                closed => closed.step_at("mount at", target),
            },
            Layer::Machine(Shown::Overlay(tree) | Shown::Real(tree))
            | Layer::Device(tree)
            | Layer::Writable(tree)
            | Layer::View(tree)
            | Layer::WorkerFolder(tree)
            | Layer::Socket(tree) => attach(tree, target).step_at("mount at", target),
        }
    }
}

/// Returns a detached copy of the mounts at and beneath a path without links. A link that someone
/// puts there while the sandbox starts is not followed.
fn clone_real(path: &Path) -> rustix::io::Result<OwnedFd> {
    clone_tree(&files::own_descriptor(files::open_real(path)?.as_raw_fd()))
}

fn attach(tree: &OwnedFd, target: &Path) -> rustix::io::Result<()> {
    move_mount(tree.as_fd(), "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

trait StepAt<T> {
    fn step_at(self, step: &str, path: &Path) -> Result<T, StageFailure>;
}

impl<T, E: Into<io::Error>> StepAt<T> for Result<T, E> {
    fn step_at(self, step: &str, path: &Path) -> Result<T, StageFailure> {
        let path = swarmletfs_base::name::printable(path.as_os_str().as_encoded_bytes());
        self.step(&format!("{step} {path}"))
    }
}

/// The table of the namespace outside.
pub(super) struct OutsideMounts {
    /// Shows that namespace for as long as it is open, and polls as ready when a mount changed.
    table: OwnedFd,
    at_start: AttachedMounts,
}

impl OutsideMounts {
    /// Opens the table of the present namespace, before another one is entered.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    pub(super) fn open() -> io::Result<OutsideMounts> {
        let table = files::open(Path::new("/proc/self/mountinfo"))?;
        let at_start = AttachedMounts::parse(&files::read_again(&table, TABLE_MAX)?);
        Ok(OutsideMounts { table, at_start })
    }

    /// Unmounts the parts of the sandbox whose file systems are not mounted outside anymore. A
    /// process that has a file open there keeps it.
    pub(super) fn release(&self, shown: &[ShownPart]) {
        // Without a table, all parts stay.
        let Ok(bytes) = files::read_again(&self.table, TABLE_MAX) else { return };
        let now = AttachedMounts::parse(&bytes);
        for part in shown.iter().filter(|part| !now.agrees(&self.at_start, &part.mountpoint)) {
            // It may be gone already.
            let _ = unmount(&part.path, UnmountFlags::DETACH);
        }
    }
}

impl AsFd for OutsideMounts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.table.as_fd()
    }
}
