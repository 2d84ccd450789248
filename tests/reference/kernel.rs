//! The same through the kernel, over a store on disk: two mounts of one catalog, of everything and of one owner's.
//!
//! The kernel believes for a second what it was told of a worker's own files, so what is seen is awaited. Nothing that
//! the store held before may be seen for longer than the watchdog's patience; how much sooner it is not measured here.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use swarmletfs::catalog::Source;
use swarmletfs::fuse::{Access, Session};
use swarmletfs::tree::Tree;

use super::eyes::Mounted;
use super::ops::MINE;
use super::world::World;
use super::{Dose, Turn, catalog, tree};
use crate::needs_fuse;
use crate::support::TestStore;
use crate::support::mount::{abort, connection_at};

/// How many cases run at once: most of their time is spent waiting.
const LANES: u32 = 8;
/// No machine should need longer than this to show what is due within a second.
const PATIENCE: Duration = Duration::from_secs(60);
/// After this long the watchdog aborts a mount, and whoever waits for it gets an error.
const WATCHDOG: Duration = Duration::from_secs(600);

/// A tree that is mounted by this process.
struct Mount {
    dir: tempfile::TempDir,
    session: Session,
    _alive: mpsc::Sender<()>,
}

impl Mount {
    fn new(tree: Tree) -> Mount {
        let dir = tempfile::tempdir().unwrap();
        let point = dir.path().join("mnt");
        std::fs::create_dir(&point).unwrap();
        let session = swarmletfs::fuse::mount(tree, &point, Access::Mounter).unwrap();
        let connection = connection_at(&point).unwrap();
        let (alive, dropped) = mpsc::channel();
        thread::spawn(move || {
            if dropped.recv_timeout(WATCHDOG) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("watchdog: a mounted case took too long");
                abort(connection);
            }
        });
        Mount { dir, session, _alive: alive }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        unmount(&self.path());
        let _ = self.session.wait();
    }
}

fn unmount(point: &Path) {
    let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
}

/// One case, mounted.
fn mounted(turns: &[Turn]) -> Result<(), String> {
    let store = TestStore::new();
    let catalog = catalog(Source::open(&store.path()).unwrap());
    let mounts = [None, Some(MINE)].map(|owner| Mount::new(tree(&catalog, owner)));
    let eyes = [0, 1].map(|view: usize| Mounted(mounts[view].path()));
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
    let Dose { cases, turns } = Dose::or(256, 30);
    let dose = Dose { cases: cases.div_ceil(10 * LANES), turns: turns.div_ceil(2) };
    thread::scope(|scope| {
        for lane in 0..LANES {
            scope.spawn(move || dose.run(100 + u64::from(lane), mounted));
        }
    });
}
