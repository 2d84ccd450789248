//! Unchanged files are checked less thoroughly on later looks, with equal results: permissions and
//! mounts are respected.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::json;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{DirEntry, Disk, Kind, Store};
use swarmletfs_tree::catalog::{Fingerprint, Freshness, Source};
use swarmletfs_tree::view::{Filter, View};

use crate::cli::program::{Bound, is_root};
use crate::mount::attributes::shut_out;
use crate::mount::eventually;
use crate::support::TestStore;
use crate::support::intercept::{InterceptedStore, Interceptor};

fn view(store: &TestStore) -> View {
    View::new(vec![Source::open(&store.path()).unwrap()], Freshness::default(), Filter::default())
        .unwrap()
}

fn stamp(view: &View) -> Arc<Fingerprint> {
    let member = view.worker(&Name::new("w").unwrap()).unwrap();
    view.fingerprint_now(&member).unwrap()
}

/// Looks at a worker until it is at rest, and then once more.
fn stamp_at_rest(view: &View) -> Arc<Fingerprint> {
    let at_rest = || stamp(view).newest_ctime.was_past_tick(SystemTime::now()).then_some(());
    eventually("a store at rest", at_rest);
    // Continue from the first look that began at rest.
    stamp(view);
    stamp(view)
}

fn at(path: &str) -> RelPath {
    RelPath::parse(path).unwrap()
}

/// Promise: A user whom an ACL shuts out stays shut out when a file is read again.
#[test]
fn user_denied_by_an_acl_stays_denied_on_repeated_reads() {
    let store = TestStore::new();
    store.worker("w", json!({"status": "success"}));
    let secret = store.write("workers/w/a/secret.txt", "x");
    fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    if shut_out(&secret).is_none() {
        return;
    }
    let view = view(&store);
    let first = stamp(&view);
    assert_eq!(first.access().mode & 0o004, 0);
    assert_eq!(
        (stamp_at_rest(&view).key, stamp_at_rest(&view).access()),
        (first.key, first.access())
    );
    // The permissions from a stat without ACL would admit everybody.
    let disk = Disk::open(&store.path()).unwrap();
    let folder = disk.enter(&at("workers/w/a")).unwrap();
    assert_eq!(folder.stat_without_acl(&at("secret.txt")).unwrap().mode & 0o004, 0o004);
    assert_eq!(folder.stat(&at("secret.txt")).unwrap().mode & 0o004, 0);
    // Removing an ACL is a change.
    rustix::fs::removexattr(&secret, "system.posix_acl_access").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(stamp(&view).access().mode & 0o004, 0o004);
}

/// Promise: A file system that is mounted over a worker's file or directory is not read.
#[test]
fn file_system_mounted_in_a_worker_is_not_read() {
    let (store, other) = (TestStore::new(), TestStore::new());
    store.worker("w", json!({"status": "success"}));
    store.write("workers/w/a/file.txt", "x");
    store.write("workers/w/b.txt", "x");
    other.write("foreign/one.txt", "x");
    if !is_root() {
        return;
    }
    let (view, disk) = (view(&store), Disk::open(&store.path()).unwrap());
    let folder = disk.enter(&at("workers/w")).unwrap();
    let before = stamp_at_rest(&view);
    for (place, from) in [("a", "foreign"), ("b.txt", "foreign/one.txt")] {
        let over = |path: &Path| Bound::new(&other.at(from), path);
        let Some(bound) = over(&store.at(format!("workers/w/{place}"))) else { return };
        for seen in [folder.stat_without_acl(&at(place)), folder.stat(&at(place))] {
            assert_eq!(seen.err(), Some(Error::Escape), "{place}");
        }
        for _ in 0..3 {
            let now = stamp(&view);
            assert_eq!((now.skipped.special, now.files), (1, before.files - 1), "{place}");
        }
        drop(bound);
        assert_eq!(stamp(&view), before, "{place}");
    }
}

/// A store that moves the directory `a` into the directory of another worker, whose owner writes
/// there, when it is listed.
#[derive(Clone)]
struct MovingStore {
    workers: PathBuf,
    in_a: bool,
    moved: Arc<AtomicBool>,
}

impl Interceptor for MovingStore {
    fn list(&self, store: &dyn Store, path: &RelPath) -> Result<Vec<DirEntry>> {
        let moves = self.in_a && !self.moved.load(Ordering::Relaxed);
        if moves {
            fs::rename(self.workers.join("w/a"), self.workers.join("other/a")).unwrap();
            fs::write(self.workers.join("other/a/secret.txt"), "x").unwrap();
        }
        let entries = store.list(path)?;
        if moves {
            assert!(
                entries.iter().any(|entry| entry.name.as_bytes() == b"secret.txt"),
                "the control"
            );
            self.moved.store(true, Ordering::Relaxed);
        }
        Ok(entries)
    }

    fn enter(&self, path: &RelPath) -> Result<MovingStore> {
        Ok(MovingStore { in_a: *path == at("a"), ..self.clone() })
    }
}

/// Promise: A directory that is moved into another worker discloses nothing of that worker.
#[test]
fn directory_moved_into_another_worker_discloses_nothing() {
    let store = TestStore::new();
    store.worker("w", json!({}));
    store.worker("other", json!({}));
    store.write("workers/w/a/file.txt", "x");
    let moved = Arc::new(AtomicBool::new(false));
    let moving = MovingStore { workers: store.at("workers"), in_a: false, moved: moved.clone() };
    let moving = InterceptedStore::new(moving, Arc::new(Disk::open(&store.path()).unwrap()));
    let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    let view =
        View::new(vec![Source::from_store(Arc::new(moving), None)], fresh, Filter::default())
            .unwrap();
    let member = view.worker(&Name::new("w").unwrap()).unwrap();
    let (files, stamp) = view.files(&member, 100).unwrap();
    assert!(moved.load(Ordering::Relaxed));
    let paths: Vec<String> = files.iter().map(|file| file.path.display()).collect();
    assert_eq!((paths.as_slice(), stamp.files), (&["metadata.json".to_owned()][..], 1));
}

#[test]
fn a_single_name_is_resolved_like_a_path() {
    let store = TestStore::new();
    store.write("folder/file", "bytes");
    std::os::unix::fs::symlink("file", store.at("folder/link")).unwrap();
    std::os::unix::fs::symlink("/", store.at("folder/out")).unwrap();
    let disk = Disk::open(&store.path()).unwrap();
    let folder = disk.enter(&at("folder")).unwrap();
    for (name, kind) in [
        ("file", Some(Kind::File)),
        ("link", Some(Kind::Link)),
        ("out", Some(Kind::Link)),
        ("no", None),
    ] {
        let seen = [
            folder.stat_without_acl(&at(name)),
            folder.stat(&at(name)),
            disk.stat_without_acl(&at(&format!("folder/{name}"))),
        ];
        for one in &seen {
            assert_eq!(*one, seen[0], "{name}");
            assert_eq!(one.as_ref().ok().map(|meta| meta.kind), kind, "{name}");
        }
    }
    assert_eq!(folder.stat_without_acl(&at("out/etc")).err(), Some(Error::Escape));
}
