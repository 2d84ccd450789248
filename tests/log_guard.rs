//! At the end of a test, the log of every server that it started is checked (R35). These tests
//! check that check: an unannounced problem fails the test, whichever way the server was started.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, Resource};

use crate::cli::program::{MountSandbox, mount, mount_in_foreground, servers, small_store};
use crate::faults::served::Served;
use crate::needs_fuse;
use crate::support::Mount;
use crate::support::log::unannounced;
use crate::support::mount::limit;

const FILE: &str = "workers/w1/result.txt";
/// Warning that the server logs after [`starve`].
const WARNING: &str = "too many open files";

/// Makes a server log a warning: takes its free descriptors away and opens a file.
fn starve(server: Pid, point: &Path) {
    assert_eq!(fs::read(point.join(FILE)).unwrap(), b"done");
    limit(server, Resource::Nofile, 3);
    assert_eq!(
        fs::File::open(point.join(FILE)).unwrap_err().raw_os_error(),
        Some(Errno::MFILE.raw_os_error())
    );
    limit(server, Resource::Nofile, 1_000);
}

/// Returns true if dropping `value` panics, which fails the test.
fn drop_panics<T>(value: T) -> bool {
    catch_unwind(AssertUnwindSafe(|| drop(value))).is_err()
}

#[test]
fn unannounced_warning_of_a_mount_fails_its_test() {
    needs_fuse!();
    for announced in [false, true] {
        let store = small_store();
        let mut mount = Mount::new(&store.path());
        if announced {
            mount.expect_warning(WARNING);
        }
        starve(Pid::from_child(mount.process()), &mount.path());
        assert!(mount.log().contains(WARNING), "{}", mount.log());
        assert_eq!(drop_panics(mount), !announced);
    }
}

#[test]
fn unannounced_warning_of_a_background_or_foreground_server_fails_its_test() {
    needs_fuse!();
    for (announced, background) in [(false, false), (false, true), (true, false), (true, true)] {
        let (store, sandbox) = (small_store(), MountSandbox::new());
        let point = sandbox.folder("mnt");
        let mut child = None;
        let server = if background {
            mount(&store.path(), &point, &[]).assert_success();
            servers(|at| at == point)[0]
        } else {
            Pid::from_child(child.insert(mount_in_foreground(
                &store.path(),
                &point,
                &sandbox.at("log"),
            )))
        };
        if announced {
            sandbox.expect_warning(WARNING);
        }
        starve(server, &point);
        assert_eq!(drop_panics(sandbox), !announced, "in the background: {background}");
        child.map(|mut child| child.wait().unwrap());
    }
}

#[test]
fn panic_of_a_server_fails_its_test() {
    needs_fuse!();
    let mut served = Served::new();
    served.panic_at(1);
    assert!(fs::read_dir(served.at("workers")).is_err());
    assert!(served.heal());
    assert!(drop_panics(served));
}

#[test]
fn only_problems_are_found_in_a_log() {
    let log = "2026-01-20T10:00:00Z  INFO swarmletfs: all is well, said ERRORS.txt\n\
               2026-01-20T10:00:00Z  WARN swarmletfs_fuse: open: too many open files\n\
               2026-01-20T10:00:00Z ERROR swarmletfs_fuse::service: a bug\n\
               thread 'main' (7) panicked at src/main.rs:1:1:\n\
               memory allocation of 7 bytes failed\n\
               thread 'render-0' (7) has overflowed its stack\n\
               fatal runtime error: stack overflow, aborting\n";
    assert_eq!(unannounced(log.lines(), &[]).len(), 6);
    assert_eq!(unannounced(log.lines(), &[WARNING.to_owned(), "a bug".to_owned()]).len(), 4);
}
