//! A mount from its start to its end.

use std::io;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use fuser::{BackgroundSession, Config, Filesystem, MountOption, SessionACL};
use tracing::info;

use super::FuseAdapter;
use super::confine::confine;
use super::pool::Pool;
use super::search_threads::SearchThreads;
use super::watch::{self, WatchGuard};
use crate::tree::Tree;

/// At least so many threads read from the kernel, and as many answer what takes longer.
const THREADS: usize = 4;

/// Who may reach the mount, beside what the modes of its files say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountAccess {
    /// Only the user who mounted it.
    Mounter,
    /// Everyone.
    Everyone,
}

/// A mounted tree.
pub struct Session {
    /// Never dropped: fuser would then unmount whatever is mounted at the same path by that time.
    _threads: ManuallyDrop<BackgroundSession>,
    _watching: Option<WatchGuard>,
    tree: Arc<Tree>,
    ended: mpsc::Receiver<()>,
}

/// Mounts `tree` at `mountpoint`, read-only, and serves it from threads of its own, which may read its stores and
/// nothing else. Errors: those of the system.
pub fn mount(tree: impl Into<Arc<Tree>>, mountpoint: &Path, access: MountAccess) -> io::Result<Session> {
    let threads = thread::available_parallelism().map_or(THREADS, |cores| cores.get().max(THREADS));
    let (sender, ended) = mpsc::channel();
    let (tree, pool) = (tree.into(), Pool::new());
    if let Err(error) = tree.pass_through() {
        info!("files are read by this program, since the kernel would leave times of access: {error}");
    }
    let search_threads = SearchThreads::new(pool.clone());
    let adapter = FuseAdapter {
        tree: tree.clone(),
        search_threads,
        pool: pool.clone(),
        passthrough: Arc::default(),
        _ended: sender,
    };
    let session = create(adapter, mountpoint, access, threads)?;
    let watches = watch::enable(&tree);
    // A thread that is confined starts only confined ones; this one must unmount in the end.
    let served: io::Result<_> = thread::scope(|scope| {
        let start = || -> io::Result<_> {
            confine(&tree.roots());
            pool.start(threads)?;
            let watching = watches.then(|| watch::start(tree.clone(), session.notifier())).transpose()?;
            Ok((session.spawn()?, watching))
        };
        thread::Builder::new()
            .name("confine".into())
            .spawn_scoped(scope, start)?
            .join()
            .map_err(|_| io::Error::other("the threads that serve could not be started"))?
    });
    let (served, watching) = served?;
    Ok(Session { _threads: ManuallyDrop::new(served), _watching: watching, tree, ended })
}

/// Mounts `filesystem` at `mountpoint`, read-only, to be served by `threads` threads.
pub(super) fn create<F: Filesystem>(
    filesystem: F,
    mountpoint: &Path,
    access: MountAccess,
    threads: usize,
) -> io::Result<fuser::Session<F>> {
    // As root the file system's type comes from an option of the kernel, else from one of fusermount3.
    let subtype = if rustix::process::geteuid().is_root() {
        MountOption::CUSTOM("subtype=swarmletfs".into())
    } else {
        MountOption::Subtype("swarmletfs".into())
    };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
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
    /// Waits until the mount has ended, whoever unmounted it, but no longer than `limit`. Whether it has.
    pub fn has_ended(&self, limit: Duration) -> bool {
        // The sender lives in the file system and is dropped with it; nothing is ever sent.
        self.ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Disconnected)
    }

    /// Whether by now other folders stand in the places of the stores that are shown.
    pub fn is_replaced(&self) -> bool {
        self.tree.is_replaced()
    }
}
