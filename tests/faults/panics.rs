//! A panic at every store call (R25): the request fails with EIO, one line is logged, and no later
//! request blocks.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::served::Served;
use super::{PATHS, read, tree};
use crate::cli::program::is_root;
use crate::needs_fuse;
use crate::support::fault_injection::{Fault, FaultPlan, PRIVATE};
use crate::support::{is_exhaustive, sample, scale};

/// Time limit for a request, to detect a deadlock.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads a file or symlink at `path` through the kernel, or lists the names of a directory.
fn read_in(mount: &Path, path: &str) -> io::Result<Vec<u8>> {
    let path = mount.join(path);
    let meta = fs::symlink_metadata(&path)?;
    if meta.is_symlink() {
        return Ok(fs::read_link(path)?.as_os_str().as_bytes().to_vec());
    }
    if meta.is_file() {
        return fs::read(path);
    }
    let names: io::Result<BTreeSet<_>> =
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect();
    Ok(names?.iter().map(|name| name.as_bytes()).collect::<Vec<_>>().join(&b'\n'))
}

/// Calls `ask` in `N` threads at once and returns their results. Fails if one of them blocks.
fn at_once<T: Send + 'static, const N: usize>(
    what: &str,
    ask: impl Fn() -> T + Send + Sync + 'static,
) -> [T; N] {
    let (ask, (sender, answers)) = (Arc::new(ask), mpsc::channel());
    for _ in 0..N {
        let (ask, sender) = (ask.clone(), sender.clone());
        thread::spawn(move || sender.send(ask()));
    }
    [(); N].map(|()| answers.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what}: no answer")))
}

#[test]
fn a_panic_at_any_call_leaves_nothing_behind_in_the_tree() {
    let mut panics = 0;
    // Two threads read at once, so every call is made twice.
    let step = if is_exhaustive() { 1 } else { 2 };
    for path in PATHS {
        let plan = FaultPlan::none();
        let right = read(&tree(&plan), path).unwrap();
        for k in sample((1..).step_by(step)) {
            let tree = Arc::new(tree(&plan));
            plan.fail(k, Fault::Panic, false);
            let asked = tree.clone();
            let ask = move || catch_unwind(AssertUnwindSafe(|| read(&asked, path)));
            let answers: [_; 2] = at_once(&format!("{path}, call {k}"), ask);
            let met = plan.heal();
            let panicked = answers.iter().filter(|answer| answer.is_err()).count();
            assert_eq!(
                panicked,
                usize::from(met),
                "{path}, call {k}: a panic must fail exactly one request"
            );
            for answer in answers.into_iter().flatten() {
                assert_eq!(answer.as_ref(), Ok(&right), "{path}, call {k}: a concurrent request");
            }
            let [again] = at_once(&format!("{path} after call {k}"), move || read(&tree, path));
            assert_eq!(again.as_ref(), Ok(&right), "{path}: wrong content after call {k}");
            panics += panicked;
            if !met {
                break;
            }
        }
    }
    assert!(panics > scale(150) / 2, "only {panics} panics");
}

/// Promise: A panic is an error of one request and one line in the log.
#[test]
fn panic_is_one_error_and_one_log_line() {
    needs_fuse!();
    if is_root() {
        check_panics(PATHS.into_iter().step_by(2));
    }
}

/// The other half of the paths, so that no mount is tested for too long.
#[test]
fn panic_is_one_error_and_one_log_line_at_other_paths() {
    needs_fuse!();
    if is_root() {
        check_panics(PATHS.into_iter().skip(1).step_by(2));
    }
}

/// Panics at each store call of reading each of `paths`, with two readers at once.
fn check_panics(paths: impl Iterator<Item = &'static str>) {
    let mut served = Served::new();
    served.expect_warning(
        "ERROR swarmletfs_fuse::service: panicked at tests/support/fault_injection.rs:",
    );
    let mut panics = 0;
    for path in paths {
        for k in sample(1..) {
            served.change();
            served.forget();
            served.panic_at(k);
            let point = served.path();
            let answers: [_; 2] =
                at_once(&format!("{path}, call {k}"), move || read_in(&point, path));
            let met = served.heal();
            let right = read_in(&served.path(), path)
                .unwrap_or_else(|error| panic!("{path}: wrong content after call {k}: {error}"));
            for answer in answers {
                match answer {
                    Ok(found) => {
                        assert!(found == right, "{path}, call {k}: wrong content beside a panic")
                    }
                    Err(error) => assert_eq!(
                        error.raw_os_error(),
                        Some(Errno::IO.raw_os_error()),
                        "{path}, call {k}"
                    ),
                }
            }
            panics += usize::from(met);
            if !met {
                break;
            }
        }
    }
    assert!(panics > scale(150) / 2, "only {panics} panics");
    let log = served.log();
    assert_eq!(log.lines().count(), panics, "{log}");
    assert!(!log.contains(PRIVATE), "{log}");
    served.forget();
    crate::mount::eventually("the end of all handles and inodes", || {
        (served.held() == (0, 0)).then_some(())
    });
}
