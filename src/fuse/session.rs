//! Mounts a tree and serves it until it is unmounted.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use fuser::{BackgroundSession, Config, Filesystem, MountOption, SessionACL};
use tracing::info;

use super::FuseAdapter;
use super::confine::confine;
use super::notes_adapter::NotesAdapter;
use super::open_trail::OpenTrail;
use super::pool::Pool;
use super::search_threads::SearchThreads;
use super::watch::{self, WatchGuard};
use crate::notes::Notes;
use crate::read_log::ReadLog;
use crate::tree::Tree;

/// Fewest threads that read from the kernel, and fewest threads in the pool.
const THREADS_MIN: usize = 4;

/// Users who may access the mount, in addition to the permissions of its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountAccess {
    /// Only the user who mounted it.
    Mounter,
    /// All users.
    Everyone,
}

/// A mounted tree.
pub struct Session {
    /// Never dropped: fuser would unmount whatever is mounted at this path by then.
    _threads: ManuallyDrop<BackgroundSession>,
    _watch_guard: Option<WatchGuard>,
    tree: Arc<Tree>,
    ended: mpsc::Receiver<()>,
}

/// Mounts `tree` read-only at `mountpoint` and serves it on new threads. Where the kernel has
/// Landlock, these threads can read the stores and the cache directory, nothing else.
///
/// # Errors
///
/// The system refuses the mount or the threads.
pub fn mount(
    tree: impl Into<Arc<Tree>>,
    mountpoint: &Path,
    access: MountAccess,
) -> io::Result<Session> {
    mount_with(tree, mountpoint, access, MountExtras::default())
}

/// Extras of a mount, besides reading.
#[derive(Default)]
pub(crate) struct MountExtras {
    /// The notes, if the directory `supervisor/` can be written, and nothing else.
    pub(crate) notes: Option<Notes>,
    /// The log of what is opened, if there is one.
    pub(crate) log: Option<ReadLog>,
}

/// Mounts `tree` as [`mount`] does.
///
/// # Errors
///
/// Those of [`mount`].
pub(crate) fn mount_with(
    tree: impl Into<Arc<Tree>>,
    mountpoint: &Path,
    access: MountAccess,
    extras: MountExtras,
) -> io::Result<Session> {
    let threads =
        thread::available_parallelism().map_or(THREADS_MIN, |cores| cores.get().max(THREADS_MIN));
    let (sender, ended) = mpsc::channel();
    let (tree, pool) = (tree.into(), Pool::new());
    if let Err(error) = tree.pass_through() {
        info!("no FUSE passthrough, since the kernel would update access times: {error}");
    }
    let search_threads = SearchThreads::new(pool.clone());
    let reader = FuseAdapter {
        tree: tree.clone(),
        search_threads,
        pool: pool.clone(),
        passthrough: Arc::default(),
        trail: extras.log.map(|log| Arc::new(OpenTrail::new(log))),
        _ended: sender,
    };
    let start = SessionStart { tree: tree.clone(), pool, threads };
    let started = match extras.notes.map(Arc::new) {
        None => {
            start.run(create(reader, mountpoint, access, threads, ChangePolicy::Refused)?, None)
        }
        Some(notes) => {
            let adapter = NotesAdapter { reader, notes: notes.clone() };
            let session = create(adapter, mountpoint, access, threads, ChangePolicy::Served)?;
            start.run(session, Some(notes.root()))
        }
    };
    let (threads, watch_guard) = started?;
    Ok(Session { _threads: ManuallyDrop::new(threads), _watch_guard: watch_guard, tree, ended })
}

/// Threads to start for a session, and the tree that they serve.
struct SessionStart {
    tree: Arc<Tree>,
    pool: Pool,
    /// Number of threads that read from the kernel, and of those in the pool.
    threads: usize,
}

impl SessionStart {
    /// Starts the threads. They can read what the tree reads, and change files beneath `writable`.
    fn run<F: Filesystem + Send + Sync + 'static>(
        self,
        session: fuser::Session<F>,
        writable: Option<BorrowedFd<'_>>,
    ) -> io::Result<(BackgroundSession, Option<WatchGuard>)> {
        let SessionStart { tree, pool, threads } = self;
        let can_watch = watch::enable(&tree);
        // A confined thread starts only confined ones, but this thread must unmount at the end.
        thread::scope(|scope| {
            let start = || -> io::Result<_> {
                confine(&tree.roots(), writable);
                pool.start(threads)?;
                let watch_guard = can_watch
                    .then(|| watch::start(tree.clone(), session.notifier()))
                    .transpose()?;
                Ok((session.spawn()?, watch_guard))
            };
            thread::Builder::new()
                .name("confine".into())
                .spawn_scoped(scope, start)?
                .join()
                .map_err(|_| io::Error::other("cannot start the serving threads"))?
        })
    }
}

/// Policy for requests that change something in a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangePolicy {
    /// The kernel refuses every change.
    Refused,
    /// The file system is asked.
    Served,
}

/// Mounts `filesystem` at `mountpoint`, for `threads` serving threads.
pub(super) fn create<F: Filesystem>(
    filesystem: F,
    mountpoint: &Path,
    access: MountAccess,
    threads: usize,
    changes: ChangePolicy,
) -> io::Result<fuser::Session<F>> {
    // For root the kernel parses the subtype option, for other users fusermount3 does.
    let subtype = if rustix::process::geteuid().is_root() {
        MountOption::CUSTOM("subtype=swarmletfs".into())
    } else {
        MountOption::Subtype("swarmletfs".into())
    };
    let mut config = Config::default();
    config.mount_options = vec![
        match changes {
            ChangePolicy::Refused => MountOption::RO,
            ChangePolicy::Served => MountOption::RW,
        },
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoAtime,
        MountOption::DefaultPermissions,
        MountOption::FSName("swarmletfs".into()),
        subtype,
    ];
    config.acl = if access == MountAccess::Everyone { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(threads);
    fuser::Session::new(filesystem, mountpoint, &config)
}

impl Session {
    /// Waits up to `limit` for the mount to end, however it is unmounted. Returns true if it has
    /// ended.
    pub fn has_ended(&self, limit: Duration) -> bool {
        // The sender is dropped with the file system; nothing is ever sent.
        self.ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Disconnected)
    }

    /// Returns true if the path of a store leads to another directory by now.
    pub fn is_replaced(&self) -> bool {
        self.tree.is_replaced()
    }
}
