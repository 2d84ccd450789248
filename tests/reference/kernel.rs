//! Comparison of two mounts over a store on disk with the reference model: the whole store and one
//! owner.
//!
//! The kernel caches attributes of a worker's own files for a second, so the test waits for the
//! expected state. Stale data must disappear within the patience of this test; how soon is not
//! measured.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use swarmletfs_fuse::{MountAccess, log_panics, mount};
use swarmletfs_tree::catalog::Source;

use super::harness::Harness;
use super::observer::Mounted;
use super::ops::MINE;
use super::{CaseCount, Turn, tree};
use crate::needs_fuse;
use crate::support::{Mount, TestStore};

/// Number of cases that run at once; they spend most of their time waiting.
const LANES: usize = 8;
/// Time limit for a change to become visible, which takes a second on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Environment variables with the mountpoint, the store and the owner, set for the serving process.
const POINT: &str = "SWARMLETFS_TEST_SHOWS_AT";
const STORE: &str = "SWARMLETFS_TEST_SHOWS";
const OWNER: &str = "SWARMLETFS_TEST_SHOWS_TO";

/// A mount without caching; the program itself caches for a second. A second process of this test
/// binary serves it until `_alive` is closed.
struct MountedView {
    mount: Mount,
    _alive: ChildStdin,
}

impl MountedView {
    fn new(store: &Path, owner: Option<&str>) -> MountedView {
        let mut mount = Mount::of(|point| {
            let mut command = Command::new(env::current_exe().unwrap());
            let test = concat!(module_path!(), "::serves_other_tests").split_once("::").unwrap().1;
            command.args(["--exact", test, "--nocapture"]).env(POINT, point).env(STORE, store);
            command.envs(owner.map(|owner| (OWNER, owner)));
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            command
        });
        let alive = mount.process().stdin.take().unwrap();
        MountedView { mount, _alive: alive }
    }
}

/// Serves the mount in the process that [`MountedView::new`] starts; otherwise does nothing.
#[test]
fn serves_other_tests() {
    let (Some(point), Some(store)) = (env::var_os(POINT), env::var_os(STORE)) else { return };
    tracing_subscriber::fmt()
        .with_env_filter("warn,fuser::reply=off")
        .with_ansi(false)
        .with_writer(io::stderr)
        .init();
    log_panics();
    let (point, owner) = (PathBuf::from(point), env::var(OWNER).ok());
    let tree = tree(Source::open(Path::new(&store)).unwrap(), owner.as_deref());
    let session = mount(tree, &point, MountAccess::Mounter).unwrap();
    thread::spawn(move || {
        // stdin is closed, so the test has ended.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
    });
    while !session.has_ended(Duration::MAX) {}
}

/// Runs one case through mounts.
fn mounted(turns: &[Turn]) -> Result<(), String> {
    let store = TestStore::new();
    let shown = [None, Some(MINE)].map(|owner| MountedView::new(&store.path(), owner));
    let observer = [0, 1].map(|view: usize| Mounted(shown[view].mount.path()));
    let mut harness = Harness::new(&store, [&observer[0], &observer[1]]);
    for (at, turn) in turns.iter().enumerate() {
        harness.turn(at, turn);
        eventually(|| harness.check())
            .map_err(|what| format!("after turn {at}, {turn:?}: {what}"))?;
    }
    harness.close_all();
    Ok(())
}

/// Repeats `check` until it succeeds or the time limit expires.
fn eventually(check: impl Fn() -> Result<(), String>) -> Result<(), String> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(10);
    loop {
        match check() {
            Err(wrong) if begun.elapsed() > PATIENCE => return Err(wrong),
            Err(_) => thread::sleep(pause),
            Ok(()) => return Ok(()),
        }
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// Promise: After every change, a mount shows what the reference model predicts.
#[test]
fn mount_matches_the_reference_model_after_every_change() {
    needs_fuse!();
    let count = CaseCount::scaled(3, 15);
    thread::scope(|scope| {
        for lane in 0..LANES {
            scope.spawn(move || count.run(100 + lane as u64, mounted));
        }
    });
}
