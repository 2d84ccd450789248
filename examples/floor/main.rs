//! Minimal FUSE file system as a lower bound for benchmarks. It reads a directory into memory once
//! and serves it with the library, thread count and cache lifetimes of a swarmletfs mount.
//!
//! It never reads the disk again, checks no permissions and sees no change. scripts/bench compares
//! it with swarmletfs: the time of this program is the cost of the kernel and the library, and the
//! difference is the cost of swarmletfs.
//!
//! Usage: `floor FOLDER MOUNTPOINT`. It ends when it is unmounted.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, Request, Session,
};

/// Lifetime of entries and attributes in the kernel's cache.
const TTL: Duration = Duration::from_secs(1);
/// Number of threads that serve requests.
const THREADS: usize = 4;

/// File or directory. Its inode number is its index in [`Floor`] plus 1.
struct Node {
    attr: FileAttr,
    children: BTreeMap<OsString, u64>,
    bytes: Vec<u8>,
}

/// All files and directories, the root first.
struct Floor(Vec<Node>);

fn main() -> anyhow::Result<()> {
    let [_, folder, mountpoint] = std::env::args_os()
        .collect::<Vec<_>>()
        .try_into()
        .or_else(|_| bail!("give a folder and a mountpoint: floor FOLDER MOUNTPOINT"))?;
    let mut floor = Floor(Vec::new());
    floor
        .read_tree(Path::new(&folder))
        .with_context(|| format!("cannot read {}", folder.display()))?;
    let mut config = Config::default();
    config.mount_options =
        vec![MountOption::RO, MountOption::DefaultPermissions, MountOption::FSName("floor".into())];
    config.n_threads = Some(THREADS);
    let session = Session::new(floor, Path::new(&mountpoint), &config);
    Ok(session.with_context(|| format!("cannot mount at {}", mountpoint.display()))?.run()?)
}

impl Floor {
    /// Reads the file or directory tree at `path` and returns its inode number.
    fn read_tree(&mut self, path: &Path) -> anyhow::Result<u64> {
        let meta = fs::symlink_metadata(path)?;
        let index = self.0.len();
        let number = index as u64 + 1;
        let bytes = if meta.is_file() { fs::read(path)? } else { Vec::new() };
        self.0.push(Node { attr: attr(number, &meta)?, children: BTreeMap::new(), bytes });
        if meta.is_dir() {
            let mut children = BTreeMap::new();
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                children.insert(entry.file_name(), self.read_tree(&entry.path())?);
            }
            if let Some(node) = self.0.get_mut(index) {
                node.children = children;
            }
        }
        Ok(number)
    }

    /// Returns the node with an inode number.
    fn node(&self, ino: INodeNo) -> Option<&Node> {
        self.0.get(usize::try_from(ino.0).ok()?.checked_sub(1)?)
    }
}

/// Converts the metadata of a file on disk.
fn attr(number: u64, meta: &fs::Metadata) -> anyhow::Result<FileAttr> {
    let modified = meta.modified()?;
    Ok(FileAttr {
        ino: INodeNo(number),
        size: meta.len(),
        blocks: meta.blocks(),
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind: if meta.is_dir() { FileType::Directory } else { FileType::RegularFile },
        perm: u16::try_from(meta.permissions().mode() & 0o777)?,
        nlink: 1,
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: 0,
        blksize: 4_096,
        flags: 0,
    })
}

impl Filesystem for Floor {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // All kernels on which scripts/bench runs support it.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.node(parent).and_then(|parent| parent.children.get(name));
        match found.and_then(|number| self.node(INodeNo(*number))) {
            Some(node) => reply.entry(&TTL, &node.attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.node(ino) {
            Some(node) => reply.attr(&TTL, &node.attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = self.node(ino).map(|node| node.bytes.as_slice()).unwrap_or_default();
        let rest = usize::try_from(offset).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
        reply.data(rest.get(..size as usize).unwrap_or(rest));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(dir) = self.node(ino) else { return reply.error(Errno::ENOENT) };
        let dots = [".", ".."].map(|name| (ino, FileType::Directory, OsStr::new(name)));
        let children = dir.children.iter().filter_map(|(name, number)| {
            let node = self.node(INodeNo(*number))?;
            Some((node.attr.ino, node.attr.kind, name.as_os_str()))
        });
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (next, (number, kind, name)) in (1..).zip(dots.into_iter().chain(children)).skip(start)
        {
            if reply.add(number, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
