//! The tree of mounts that the command sees.
//!
//! Everything is read-only but for private directories for temporary files, the view of the
//! workspace, the folder of the worker, and the paths that the caller names. All of these are
//! prepared while the real tree is visible, and then put into place shallow paths first, so that
//! none covers another that lies deeper.

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

use super::cause::{Failure, Step};
use super::files;
use super::mount_table::{make_all_read_only, remount_read_only};
use super::overlay::{mount_overlay, open_overlay};
use super::spec::{OverlayDirs, SandboxSpec, WorkspaceView};

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
    /// The real file or directory, writable.
    Writable(OwnedFd),
    /// An overlay that is mounted already, but nowhere.
    Overlay(OwnedFd),
    /// An overlay that must be mounted in place.
    OldOverlay(OverlayDirs),
    /// A new, empty directory that holds mountpoints and is read-only in the end.
    Cover,
    /// The folder of the worker, writable.
    WorkerFolder(OwnedFd),
}

/// A layer and its path.
struct Planned {
    target: PathBuf,
    layer: Layer,
}

/// Builds the tree of mounts of `spec` in this mount namespace.
pub(super) fn build(spec: &SandboxSpec) -> Result<(), Failure> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step("separate the mounts")?;
    let mut planned = plan(spec)?;
    make_all_read_only()?;
    planned.sort_by_key(|planned| (planned.target.components().count(), planned.layer.rank()));
    let mut made: Vec<PathBuf> = Vec::new();
    for Planned { target, layer } in &planned {
        if made.iter().any(|own| target.starts_with(own) && target != own) {
            make_mountpoint(target, layer).step_at("make a mountpoint at", target)?;
        }
        layer.put(target)?;
        match layer {
            Layer::Empty(_) | Layer::Cover => made.push(target.clone()),
            // What is beneath a real directory exists or must not be made.
            _ => made.retain(|own| !own.starts_with(target)),
        }
    }
    for Planned { target, .. } in planned.iter().filter(|planned| planned.layer.is_cover()) {
        remount_read_only(target, PRIVATE).step_at("close", target)?;
    }
    Ok(())
}

/// Prepares all layers, while the real tree is visible.
fn plan(spec: &SandboxSpec) -> Result<Vec<Planned>, Failure> {
    let mut planned = vec![
        Planned { target: "/tmp".into(), layer: Layer::Empty(TEMPORARY) },
        Planned { target: "/dev/shm".into(), layer: Layer::Empty(TEMPORARY) },
        Planned { target: spec.store.clone(), layer: Layer::Cover },
        Planned {
            target: spec.worker_folder.clone(),
            layer: Layer::WorkerFolder(clone_tree(&spec.worker_folder)?),
        },
    ];
    planned.retain(|planned| exists(&planned.target));
    for path in &spec.write {
        let layer = Layer::Writable(clone_tree(path)?);
        planned.push(Planned { target: path.clone(), layer });
    }
    let layer = match &spec.view {
        WorkspaceView::Overlay(dirs) => overlay_layer(&spec.workspace, dirs)?,
        WorkspaceView::Copy(copy) => Layer::Overlay(clone_tree(copy)?),
    };
    planned.push(Planned { target: spec.workspace.clone(), layer });
    if let Some((path, dirs)) = &spec.git_common {
        planned.push(Planned { target: path.clone(), layer: overlay_layer(path, dirs)? });
    }
    Ok(planned)
}

fn overlay_layer(lower: &Path, dirs: &OverlayDirs) -> Result<Layer, Failure> {
    Ok(match open_overlay(lower, dirs)? {
        Some(mount) => Layer::Overlay(mount),
        None => Layer::OldOverlay(dirs.clone()),
    })
}

/// Returns a detached copy of the mounts at and beneath a path.
fn clone_tree(path: &Path) -> Result<OwnedFd, Failure> {
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
        Layer::Writable(file) | Layer::WorkerFolder(file) => {
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
            Layer::Empty(_) => 0,
            Layer::Writable(_) => 1,
            Layer::Overlay(_) | Layer::OldOverlay(_) => 2,
            Layer::Cover => 3,
            Layer::WorkerFolder(_) => 4,
        }
    }

    fn is_cover(&self) -> bool {
        matches!(self, Layer::Cover)
    }

    /// Mounts the layer over `target`.
    fn put(&self, target: &Path) -> Result<(), Failure> {
        match self {
            Layer::Empty(options) => {
                mount("tmpfs", target, "tmpfs", PRIVATE, *options).step_at("cover", target)
            }
            Layer::Cover => mount("tmpfs", target, "tmpfs", PRIVATE, COVER).step_at("hide", target),
            Layer::Writable(tree) | Layer::Overlay(tree) | Layer::WorkerFolder(tree) => {
                attach(tree, target).step_at("mount at", target)
            }
            Layer::OldOverlay(dirs) => mount_overlay(target, dirs, target),
        }
    }
}

/// Puts a detached mount over `target`.
fn attach(tree: &OwnedFd, target: &Path) -> rustix::io::Result<()> {
    move_mount(tree.as_fd(), "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Names the path of a step that failed.
trait StepAt<T> {
    fn step_at(self, step: &str, path: &Path) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> StepAt<T> for Result<T, E> {
    fn step_at(self, step: &str, path: &Path) -> Result<T, Failure> {
        let path = crate::name::printable(path.as_os_str().as_encoded_bytes());
        self.step(&format!("{step} {path}"))
    }
}
