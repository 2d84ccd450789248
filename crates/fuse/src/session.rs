//! Mounts a tree and serves it until it is unmounted.
//!
//! The threads that answer requests are confined to reading the stores and the cache directory, if
//! the kernel has Landlock. This is the second line of defense: the store already opens nothing
//! outside its roots. If a bug or a hostile file gets past that, the kernel still refuses every
//! other open and write, the execution of programs and TCP connections.
//!
//! Only the serving threads are confined. The thread that starts them must unmount at the end,
//! which a confined thread may not; it reads nothing that a worker wrote.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use fuser::{BackgroundSession, Config, MountOption, Notifier, SessionACL};
use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope,
};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::FuseAdapter;
use super::owner_dirs::OwnerDirs;
use super::readers::OpenTrail;
use super::service::{self, Service, Trees, WatchGuard};
use swarmletfs_record::read_log::ReadLog;
use swarmletfs_tree::tree::{Tree, warm_up};

/// Fewest threads that read from the kernel, and fewest threads in the pool.
const THREADS_MIN: usize = 4;

/// Users who may access the mount, in addition to the permissions of its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountAccess {
    Mounter,
    Everyone,
}

pub struct Session {
    /// Never dropped: fuser would unmount any file system that is mounted at this path by then.
    threads: ManuallyDrop<BackgroundSession>,
    service: Arc<ArcSwap<Service>>,
    watch_guard: Mutex<Option<WatchGuard>>,
    ended: Mutex<mpsc::Receiver<()>>,
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
    mount_with(Trees::One(tree.into()), mountpoint, access, MountExtras::default())
}

#[derive(Default)]
pub struct MountExtras {
    pub log: Option<ReadLog>,
    pub owner_dirs: Option<OwnerDirs>,
    pub listing: MountListing,
}

#[derive(Debug, Clone, Default)]
pub struct MountListing {
    /// The source; `swarmletfs` if it is `None`.
    pub source: Option<String>,
    /// True if no file in the mount can be executed.
    pub no_exec: bool,
}

/// Mounts `trees` as [`mount`] does.
///
/// # Errors
///
/// The errors of [`mount`].
pub fn mount_with(
    trees: Trees,
    mountpoint: &Path,
    access: MountAccess,
    extras: MountExtras,
) -> io::Result<Session> {
    let (sender, ended) = mpsc::channel();
    prepare_passthrough(&trees);
    let service = Arc::new(ArcSwap::from_pointee(Service::new(trees, true)));
    let opens_directories = extras.log.is_some();
    let lists_attrs = !opens_directories && extras.owner_dirs.is_none();
    let reader = FuseAdapter {
        service: service.clone(),
        owner_dirs: extras.owner_dirs,
        passthrough: Arc::default(),
        may_bypass_cache: false,
        opens_directories,
        attr_readers: lists_attrs.then(Arc::default),
        trail: extras.log.map(|log| Arc::new(OpenTrail::new(log))),
        _ended: sender,
    };
    let config = config(access, thread_count(), extras.listing);
    let session = fuser::Session::new(reader, mountpoint, &config)?;
    let (threads, watch_guard) = spawn_serving(session, &service.load_full())?;
    Ok(Session {
        threads: ManuallyDrop::new(threads),
        service,
        watch_guard: Mutex::new(watch_guard),
        ended: Mutex::new(ended),
    })
}

/// Returns the number of threads that read from the kernel, which is also the number in each pool.
fn thread_count() -> usize {
    thread::available_parallelism().map_or(THREADS_MIN, |cores| cores.get().max(THREADS_MIN))
}

fn prepare_passthrough(trees: &Trees) {
    if let Some(Err(error)) = trees.first().map(|tree| tree.view().pass_through()) {
        info!("no FUSE passthrough, since the kernel would update access times: {error}");
    }
}

/// Starts the threads of `service` and the threads that read from the kernel. They can read the
/// stores of the trees, and nothing else.
fn spawn_serving(
    session: fuser::Session<FuseAdapter>,
    service: &Arc<Service>,
) -> io::Result<(BackgroundSession, Option<WatchGuard>)> {
    service.pool.run(Box::new(|| {
        if let Err(error) = warm_up() {
            warn!("cannot render the reports of a made-up worker: {error}");
        }
    }));
    let notifier = session.notifier();
    start_confined(service, notifier, || session.spawn())
}

/// Starts the threads of `service`, and calls `spawn` to start further ones. They can read the
/// stores of the trees, and nothing else.
fn start_confined<T: Send>(
    service: &Arc<Service>,
    notifier: Notifier,
    spawn: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<(T, Option<WatchGuard>)> {
    let trees = &service.trees;
    let can_watch = trees.first().is_some_and(|tree| service::enable_watches(tree));
    // A confined thread starts only confined ones, but this thread must unmount at the end.
    thread::scope(|scope| {
        let start = || -> io::Result<_> {
            let roots = trees.first().map(|tree| tree.view().roots()).unwrap_or_default();
            confine(&roots);
            service.start(thread_count())?;
            let watch_guard =
                can_watch.then(|| service::start_watching(trees.clone(), notifier)).transpose()?;
            Ok((spawn()?, watch_guard))
        };
        thread::Builder::new()
            .name("confine".into())
            .spawn_scoped(scope, start)?
            .join()
            .map_err(|_| io::Error::other("cannot start the serving threads"))?
    })
}

pub(super) fn config(access: MountAccess, threads: usize, listing: MountListing) -> Config {
    // For root the kernel parses the subtype option, for other users fusermount3 does.
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
        MountOption::FSName(listing.source.unwrap_or_else(|| "swarmletfs".into())),
        subtype,
    ];
    if listing.no_exec {
        config.mount_options.push(MountOption::NoExec);
    }
    config.acl = if access == MountAccess::Everyone { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(threads);
    config
}

impl Session {
    /// Waits up to `limit` for the mount to end, however it is unmounted. Returns true if it has
    /// ended.
    pub fn has_ended(&self, limit: Duration) -> bool {
        // The sender is dropped with the file system; nothing is ever sent.
        self.ended.lock().recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Disconnected)
    }

    /// Returns true if the path of a store now leads to another directory.
    pub fn is_replaced(&self) -> bool {
        self.service.load().trees.first().is_some_and(|tree| tree.view().is_replaced())
    }

    /// Replaces the trees of the mount. For each tree, `replace` returns its successor by
    /// [`Tree::with_view`], or `None` if the tree stays.
    ///
    /// The old or the new trees answer a request, and open files stay open. Returns after the
    /// kernel has dropped its caches of the old trees.
    ///
    /// # Errors
    ///
    /// The system refuses the threads. The old trees stay.
    pub fn show(&self, replace: impl FnMut(&Tree) -> Option<Tree>) -> io::Result<()> {
        let trees = self.service.load().trees.replaced(replace);
        prepare_passthrough(&trees);
        let service = Arc::new(Service::new(trees, false));
        let notifier = self.threads.notifier();
        let ((), watch_guard) = start_confined(&service, notifier.clone(), || Ok(()))?;
        self.service.store(service);
        *self.watch_guard.lock() = watch_guard;
        self.forget_attrs(&notifier);
        // A reply that was under way may have arrived after the first time.
        thread::sleep(service::REPEAT_DELAY);
        self.forget_attrs(&notifier);
        Ok(())
    }

    fn forget_attrs(&self, notifier: &Notifier) {
        let service = self.service.load_full();
        let inodes = service.trees.all().iter().flat_map(|tree| tree.inodes());
        service::invalidate_attrs(notifier, inodes);
    }
}

/// Newest Landlock ABI that this program supports. An older kernel enforces the rules that it has.
const LANDLOCK_ABI: ABI = ABI::V7;

/// Confines this thread, and the threads that it starts later, to reading beneath `roots`. Logs
/// whether that succeeded.
fn confine(roots: &[BorrowedFd<'_>]) {
    match restrict(roots) {
        Ok(RulesetStatus::FullyEnforced) => info!("confined to reading the stores"),
        Ok(RulesetStatus::PartiallyEnforced) => {
            info!("confined to the stores as far as this kernel's Landlock allows")
        }
        Ok(RulesetStatus::NotEnforced) => {
            info!("not confined to the stores: this kernel has no Landlock")
        }
        Err(error) => warn!("not confined to the stores: {error}"),
    }
}

fn restrict(roots: &[BorrowedFd<'_>]) -> Result<RulesetStatus, RulesetError> {
    let reads = AccessFs::ReadFile | AccessFs::ReadDir;
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK_ABI))?
        .handle_access(AccessNet::from_all(LANDLOCK_ABI))?
        .scope(Scope::from_all(LANDLOCK_ABI))?
        .create()?;
    for root in roots {
        rules = rules.add_rule(PathBeneath::new(root, reads))?;
    }
    Ok(rules.restrict_self()?.ruleset)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;
    use std::os::fd::AsFd;
    use std::thread;

    use super::*;

    #[test]
    fn roots_can_be_read_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("store");
        fs::create_dir_all(root.join("workers")).unwrap();
        fs::write(root.join("file"), "text").unwrap();
        let opened = fs::File::open(&root).unwrap();
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    let status = restrict(&[opened.as_fd()]).unwrap();
                    // Without Landlock, there is nothing to test.
                    if status == RulesetStatus::NotEnforced {
                        return;
                    }
                    assert_eq!(fs::read(root.join("file")).unwrap(), b"text");
                    for refused in [
                        fs::write(root.join("new"), ""),
                        fs::write(root.join("file"), ""),
                        fs::create_dir(root.join("folder")),
                        fs::remove_dir(root.join("workers")),
                        fs::remove_file(root.join("file")),
                        fs::rename(root.join("file"), root.join("moved")),
                        fs::hard_link(root.join("file"), root.join("link")),
                        std::os::unix::fs::symlink("/", root.join("link")),
                        fs::read_dir(folder.path()).map(drop),
                    ] {
                        assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
                    }
                })
                .join()
                .unwrap();
        });
    }
}
