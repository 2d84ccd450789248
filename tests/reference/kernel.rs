//! The same through the kernel, over a store on disk: two mounts, of everything and of one owner's.
//!
//! The kernel believes for a second what it was told of a worker's own files, so what is seen is awaited. Nothing that
//! the store held before may be seen for longer than the patience here; how much sooner it is gone is not measured.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use swarmletfs::catalog::Source;
use swarmletfs::fuse::{MountAccess, log_panics, mount};

use super::eyes::Mounted;
use super::ops::MINE;
use super::world::World;
use super::{Dose, Turn, tree};
use crate::needs_fuse;
use crate::support::{Mount, TestStore};

/// How many cases run at once: most of their time is spent waiting.
const LANES: usize = 8;
/// No machine should need longer than this to show what is due within a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where to mount, what, and whose; set for the process that serves.
const POINT: &str = "SWARMLETFS_TEST_SHOWS_AT";
const STORE: &str = "SWARMLETFS_TEST_SHOWS";
const OWNER: &str = "SWARMLETFS_TEST_SHOWS_TO";

/// A mount that always looks at its store, which the program does once a second. It is served by this test binary, run
/// once more, until `_alive` is closed.
struct Shown {
    mount: Mount,
    _alive: ChildStdin,
}

impl Shown {
    fn new(store: &Path, owner: Option<&str>) -> Shown {
        let mut mount = Mount::of(|point| {
            let mut command = Command::new(env::current_exe().unwrap());
            let test = concat!(module_path!(), "::serves_other_tests").split_once("::").unwrap().1;
            command.args(["--exact", test, "--nocapture"]).env(POINT, point).env(STORE, store);
            command.envs(owner.map(|owner| (OWNER, owner)));
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            command
        });
        let alive = mount.process().stdin.take().unwrap();
        Shown { mount, _alive: alive }
    }
}

/// No test by itself: the other process that [`Shown::new`] starts.
#[test]
fn serves_other_tests() {
    let (Some(point), Some(store)) = (env::var_os(POINT), env::var_os(STORE)) else { return };
    tracing_subscriber::fmt().with_env_filter("warn,fuser::reply=off").with_ansi(false).with_writer(io::stderr).init();
    log_panics();
    let (point, owner) = (PathBuf::from(point), env::var(OWNER).ok());
    let tree = tree(Source::open(Path::new(&store)).unwrap(), owner.as_deref());
    let session = mount(tree, &point, MountAccess::Mounter).unwrap();
    thread::spawn(move || {
        // The test is over, in whatever way.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
    });
    while !session.has_ended(Duration::MAX) {}
}

/// One case, mounted.
fn mounted(turns: &[Turn]) -> Result<(), String> {
    let store = TestStore::new();
    let shown = [None, Some(MINE)].map(|owner| Shown::new(&store.path(), owner));
    let eyes = [0, 1].map(|view: usize| Mounted(shown[view].mount.path()));
    let mut world = World::new(&store, [&eyes[0], &eyes[1]]);
    for (at, turn) in turns.iter().enumerate() {
        world.turn(at, turn);
        eventually(|| world.check()).map_err(|what| format!("after turn {at}, {turn:?}: {what}"))?;
    }
    world.close_all();
    Ok(())
}

/// Waits until `check` finds nothing wrong; what is still wrong in the end is.
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

#[test]
fn what_is_seen_through_the_kernel_is_what_must_be_seen_after_every_change() {
    needs_fuse!();
    let Dose { cases, turns } = Dose::of(3, 15);
    thread::scope(|scope| {
        for lane in 0..LANES {
            scope.spawn(move || Dose { cases, turns }.run(100 + lane as u64, mounted));
        }
    });
}
