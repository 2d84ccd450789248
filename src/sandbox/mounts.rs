//! The tree of mounts that the command sees.
//!
//! Everything is read-only but for private directories for temporary files, the view of the
//! workspace, the folder of the worker, and the paths that the caller names. All of these are
//! prepared while the real tree is visible, and then put into place shallow paths first, so that
//! none covers another that lies deeper.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change,
    move_mount, open_tree,
};
use rustix::process::geteuid;

use super::cause::{FailedStep, StageFailure};
use super::files;
use super::mount_table::{AttachedMounts, make_all_read_only, remount_read_only};
use super::overlay::open_overlay;
use super::spec::{SandboxSpec, WorkspaceView};
use super::{devices, sockets};

/// Private directories for temporary files.
const TEMPORARY_DIRS: [&str; 2] = ["/tmp", "/dev/shm"];

/// Options of private directories for temporary files.
const TEMPORARY: &CStr = c"mode=1777";

/// Options of the directory that covers a store: it holds mountpoints only.
const COVER: &CStr = c"mode=755,size=64k,nr_inodes=64";

/// Flags of file systems that the sandbox makes.
const PRIVATE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Something to put over a path. The order of the variants is that of mounts on one path.
enum Layer {
    /// A new, empty directory.
    Empty(&'static CStr),
    /// A new directory of devices.
    Devices,
    /// New terminals.
    Terminals,
    /// The real file or directory.
    Real(OwnedFd),
    /// The view of the workspace, or of what belongs to it.
    View(OwnedFd),
    /// A new, empty directory that holds mountpoints and is read-only in the end.
    Cover,
    /// A device in place of a socket: nothing can connect to it.
    Closed(OwnedFd),
    /// The folder of the worker.
    WorkerFolder(OwnedFd),
    /// A socket that the command may connect to.
    Socket(OwnedFd),
}

/// A layer and its path.
struct Planned {
    target: PathBuf,
    layer: Layer,
}

/// Builds the tree of mounts of `spec` in this mount namespace. `sockets` are those to hide.
pub(super) fn build(spec: &SandboxSpec, sockets: &BTreeSet<PathBuf>) -> Result<(), StageFailure> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step("separate the mounts")?;
    let mut planned = plan(spec, sockets)?;
    // Modes keep an ordinary user from the devices, but not root.
    let no_devices = if geteuid().is_root() { MountFlags::NODEV } else { MountFlags::empty() };
    make_all_read_only(no_devices)?;
    planned.sort_by_key(|planned| (planned.target.components().count(), planned.layer.rank()));
    // What was put into place, and whether mountpoints can be made in it: in directories of the
    // sandbox. What is beneath a real directory exists, or must not be made.
    let mut placed: Vec<(&Path, bool)> = Vec::new();
    for Planned { target, layer } in &planned {
        let holder = placed.iter().rfind(|(path, _)| target.starts_with(path));
        if holder.is_some_and(|(_, is_own)| *is_own) {
            if matches!(layer, Layer::Closed(_)) {
                continue;
            }
            make_mountpoint(target, layer).step_at("make a mountpoint at", target)?;
        }
        layer.put(target)?;
        let is_own = matches!(layer, Layer::Empty(_) | Layer::Devices | Layer::Cover);
        placed.push((target, is_own));
    }
    for Planned { target, .. } in planned.iter().filter(|planned| planned.layer.is_closed_last()) {
        remount_read_only(target, PRIVATE).step_at("close", target)?;
    }
    Ok(())
}

/// Prepares all layers, while the real tree is visible.
fn plan(spec: &SandboxSpec, sockets: &BTreeSet<PathBuf>) -> Result<Vec<Planned>, StageFailure> {
    let mut planned = Vec::new();
    let mut add = |target: &Path, layer| planned.push(Planned { target: target.into(), layer });
    for path in TEMPORARY_DIRS.map(Path::new).into_iter().filter(|path| exists(path)) {
        add(path, Layer::Empty(TEMPORARY));
    }
    if geteuid().is_root() {
        add(Path::new("/dev"), Layer::Devices);
        for path in devices::devices() {
            add(&path, Layer::Real(clone_tree(&path)?));
        }
        if let Some(terminal) = devices::terminal() {
            add(Path::new(devices::CONSOLE), Layer::Real(clone_tree(&terminal)?));
        }
    } else if exists(Path::new(devices::TERMINALS)) {
        add(Path::new(devices::TERMINALS), Layer::Terminals);
    }
    add(&spec.store, Layer::Cover);
    let table = AttachedMounts::read().step("read the table of mounts")?;
    for alias in table.aliases(&spec.store).iter().filter(|path| exists(path)) {
        add(alias, Layer::Cover);
    }
    add(&spec.worker_folder, Layer::WorkerFolder(clone_tree(&spec.worker_folder)?));
    for path in &spec.write {
        add(path, Layer::Real(clone_tree(path)?));
    }
    add(
        &spec.workspace,
        Layer::View(match &spec.view {
            WorkspaceView::Overlay(dirs) => open_overlay(&spec.workspace, dirs)?,
            WorkspaceView::Copy(copy) => clone_tree(copy)?,
        }),
    );
    if let Some((path, dirs)) = &spec.git_common {
        add(path, Layer::View(open_overlay(path, dirs)?));
    }
    for path in sockets::directories() {
        add(path, Layer::Cover);
    }
    for path in sockets.iter().filter(|path| !spec.sockets.contains(path) && exists(path)) {
        add(path, Layer::Closed(clone_tree(Path::new("/dev/null"))?));
    }
    for path in &spec.sockets {
        add(path, Layer::Socket(clone_tree(path)?));
    }
    Ok(planned)
}

/// Returns a detached copy of the mounts at and beneath a path.
fn clone_tree(path: &Path) -> Result<OwnedFd, StageFailure> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags).step_at("open", path)
}

fn exists(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok()
}

fn make_mountpoint(target: &Path, layer: &Layer) -> io::Result<()> {
    let is_file = match layer {
        Layer::Real(file) | Layer::Socket(file) => {
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
            Layer::Empty(_) | Layer::Devices | Layer::Terminals => 0,
            Layer::Real(_) => 1,
            Layer::View(_) => 2,
            Layer::Cover | Layer::Closed(_) => 3,
            Layer::WorkerFolder(_) | Layer::Socket(_) => 4,
        }
    }

    /// Returns true if the layer is made read-only once all mountpoints in it are made.
    fn is_closed_last(&self) -> bool {
        matches!(self, Layer::Cover | Layer::Devices)
    }

    /// Mounts the layer over `target`.
    fn put(&self, target: &Path) -> Result<(), StageFailure> {
        let new = |flags, options: &CStr| mount("tmpfs", target, "tmpfs", flags, options);
        match self {
            Layer::Empty(options) => new(PRIVATE, options).step_at("cover", target),
            Layer::Cover => new(PRIVATE, COVER).step_at("hide", target),
            Layer::Devices => {
                new(PRIVATE, COVER).step_at("cover", target)?;
                devices::complete()
            }
            Layer::Terminals => devices::cover_terminals(),
            Layer::Closed(tree) => match attach(tree, target) {
                // Its process ended meanwhile, and took the socket along.
                Err(Errno::NOENT) => Ok(()),
                closed => closed.step_at("mount at", target),
            },
            Layer::Real(tree)
            | Layer::View(tree)
            | Layer::WorkerFolder(tree)
            | Layer::Socket(tree) => attach(tree, target).step_at("mount at", target),
        }
    }
}

/// Puts a detached mount over `target`.
fn attach(tree: &OwnedFd, target: &Path) -> rustix::io::Result<()> {
    move_mount(tree.as_fd(), "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Names the path of a step that failed.
trait StepAt<T> {
    fn step_at(self, step: &str, path: &Path) -> Result<T, StageFailure>;
}

impl<T, E: Into<io::Error>> StepAt<T> for Result<T, E> {
    fn step_at(self, step: &str, path: &Path) -> Result<T, StageFailure> {
        let path = crate::name::printable(path.as_os_str().as_encoded_bytes());
        self.step(&format!("{step} {path}"))
    }
}
