//! R7: serving threads can read the stores and do nothing else, whatever code runs in them.
//!
//! A malicious store stands for such code: a stat makes it try what an intruder would.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use swarmletfs_base::error::Result;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Disk, Meta, Store};
use swarmletfs_fuse::MountAccess;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use crate::needs_fuse;
use crate::support::TestStore;
use crate::support::intercept::{InterceptedStore, Interceptor};

/// The result of each attempt, by the names of the thread and the attempt.
type Attempts = Arc<Mutex<BTreeMap<(String, &'static str), Option<io::ErrorKind>>>>;

/// A directory in which an intruder tries things, and a port to connect to.
struct Intruder {
    folder: PathBuf,
    port: u16,
    attempts: Attempts,
}

impl Intruder {
    fn try_everything(&self) {
        let thread = thread::current().name().unwrap_or("unnamed").to_owned();
        let inside = |name: &str| self.folder.join("data/workers/w1").join(name);
        let note = |what, result: io::Result<()>| {
            self.attempts
                .lock()
                .insert((thread.clone(), what), result.err().map(|error| error.kind()));
        };
        note("read in the store", fs::read(inside("task.txt")).map(drop));
        note("list in the store", fs::read_dir(inside("")).map(drop));
        note("read beside the store", fs::read(self.folder.join("secret")).map(drop));
        note("list beside the store", fs::read_dir(&self.folder).map(drop));
        note("read a file of the system", fs::read("/etc/passwd").map(drop));
        note("write", fs::OpenOptions::new().write(true).open(inside("task.txt")).map(drop));
        note(
            "truncate",
            fs::OpenOptions::new().write(true).truncate(true).open(inside("victim")).map(drop),
        );
        note("create", fs::File::create(inside("new")).map(drop));
        note("make a folder", fs::create_dir(inside("folder")));
        note("make a link", std::os::unix::fs::symlink("/", inside("link")));
        note("rename", fs::rename(inside("victim"), inside("victim2")));
        note("remove", fs::remove_file(inside("victim")));
        note("run a program", Command::new("/bin/true").status().map(drop));
        note("connect", TcpStream::connect(("127.0.0.1", self.port)).map(drop));
        note("listen", TcpListener::bind("127.0.0.1:0").map(drop));
    }
}

impl Interceptor for Arc<Intruder> {
    fn stat(&self, store: &dyn Store, path: &RelPath) -> Result<Meta> {
        if path.as_bytes().ends_with(b"task.txt") {
            self.try_everything();
        }
        store.stat(path)
    }
}

/// A store that an intruder watches, and a directory around it.
struct Trap {
    store: TestStore,
    intruder: Arc<Intruder>,
    _listener: TcpListener,
}

impl Trap {
    /// Creates the store, and checks that all attempts succeed on a thread that is not confined.
    fn new() -> Trap {
        let store = TestStore::new();
        store.worker("w1", json!({}));
        store.write("workers/w1/task.txt", "the task\n");
        let folder = store.path().parent().unwrap().to_path_buf();
        fs::write(folder.join("secret"), "not of the store").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let intruder = Arc::new(Intruder { folder, port, attempts: Attempts::default() });
        let trap = Trap { store, intruder, _listener: listener };
        trap.refill();
        trap.intruder.try_everything();
        for ((_, what), came_to) in std::mem::take(&mut *trap.intruder.attempts.lock()) {
            let expected = (what == "remove").then_some(io::ErrorKind::NotFound);
            assert_eq!(came_to, expected, "unconfined: {what}");
        }
        trap.refill();
        trap
    }

    /// Restores what the attempts change.
    fn refill(&self) {
        self.store.write("workers/w1/victim", "victim");
        for made in ["new", "link", "victim2"] {
            let _ = fs::remove_file(self.store.at(format!("workers/w1/{made}")));
        }
        let _ = fs::remove_dir(self.store.at("workers/w1/folder"));
    }

    fn view(&self) -> View {
        let disk = Arc::new(Disk::open(&self.store.path()).unwrap());
        let disk = InterceptedStore::new(self.intruder.clone(), disk);
        let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
        View::new(vec![Source::from_store(Arc::new(disk), None)], fresh, Filter::default()).unwrap()
    }

    /// Reads the store through the mount that `mount` makes, and fails if a thread of one of
    /// `kinds` did not try everything, or if an attempt came to more than a read of the store.
    fn check(&self, kinds: &[&str], mount: impl FnOnce(&Path) -> swarmletfs_fuse::Session) {
        let point = tempfile::tempdir().unwrap();
        let session = mount(point.path());
        // Opening the view has tried everything on a thread that is not confined.
        self.refill();
        self.intruder.attempts.lock().clear();
        let before = super::walk(&self.store.path());
        // A thread that stats files answers the first, a thread that renders answers the second.
        let own = fs::read(point.path().join("workers/w1/task.txt"));
        let generated = fs::read(point.path().join("workers/w1/index.json"));
        rustix::mount::unmount(point.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
        assert!(
            session.has_ended(Duration::from_secs(30)),
            "the session goes on after the mount is gone"
        );

        assert_eq!(own.unwrap(), b"the task\n");
        assert!(!generated.unwrap().is_empty());
        let attempts = self.intruder.attempts.lock();
        for kind in kinds {
            assert!(
                attempts.keys().any(|(thread, _)| thread.starts_with(kind)),
                "no thread {kind} was tried"
            );
        }
        for ((thread, what), came_to) in &*attempts {
            let expected =
                (!what.ends_with("in the store")).then_some(io::ErrorKind::PermissionDenied);
            assert_eq!(*came_to, expected, "{thread}: {what}");
        }
        assert_eq!(super::walk(&self.store.path()), before, "the store was changed");
    }
}

fn mount(view: View, point: &Path) -> swarmletfs_fuse::Session {
    swarmletfs_fuse::mount(Tree::new(view, Settings::default()), point, MountAccess::Mounter)
        .unwrap()
}

/// Promise: The threads that serve requests can only read the stores.
#[test]
fn serving_threads_can_only_read_the_stores() {
    needs_fuse!();
    let trap = Trap::new();
    trap.check(&["fuser-", "render-"], |point| mount(trap.view(), point));
}

/// Promise: The threads that serve requests can only read the stores, also those that were attached
/// later.
#[test]
fn threads_of_an_attached_store_can_only_read_the_stores() {
    needs_fuse!();
    let (trap, first) = (Trap::new(), TestStore::new());
    first.worker("w0", json!({}));
    trap.check(&["render-"], |point| {
        let session = mount(first.view(Duration::ZERO, Filter::default()), point);
        fs::read(point.join("workers/w0/metadata.json")).unwrap();
        session.show(|tree| Some(tree.with_view(trap.view()))).unwrap();
        session
    });
    assert!(!trap.intruder.attempts.lock().keys().any(|(thread, _)| thread.starts_with("fuser-")));
}
