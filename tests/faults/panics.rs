//! A panic at every call of the store (R25): that request is an I/O error, told in one line, and nothing is left behind
//! that the next one could wait for.

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
use super::{PATHS, look, tree};
use crate::cli::program::is_root;
use crate::needs_fuse;
use crate::support::dose;
use crate::support::faulty::{Fault, PRIVATE, Plan};

/// Nothing that is asked here takes longer, unless it waits for what never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is at `path`, through the kernel: of a folder its names.
fn look_in(mount: &Path, path: &str) -> io::Result<Vec<u8>> {
    let path = mount.join(path);
    let meta = fs::symlink_metadata(&path)?;
    if meta.is_symlink() {
        return Ok(fs::read_link(path)?.as_os_str().as_bytes().to_vec());
    }
    if meta.is_file() {
        return fs::read(path);
    }
    let names: io::Result<BTreeSet<_>> = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect();
    Ok(names?.iter().map(|name| name.as_bytes()).collect::<Vec<_>>().join(&b'\n'))
}

/// What `N` get who ask at once. Fails if one of them waits for ever.
fn at_once<T: Send + 'static, const N: usize>(what: &str, ask: impl Fn() -> T + Send + Sync + 'static) -> [T; N] {
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
    // Two ask, so every place is passed twice.
    let step = if dose(1) > 1 { 1 } else { 2 };
    for path in PATHS {
        let plan = Plan::quiet();
        let right = look(&tree(&plan), path).unwrap();
        for k in (1..).step_by(step) {
            let tree = Arc::new(tree(&plan));
            plan.fail(k, Fault::Panic, false);
            let asked = tree.clone();
            let ask = move || catch_unwind(AssertUnwindSafe(|| look(&asked, path)));
            let answers: [_; 2] = at_once(&format!("{path}, call {k}"), ask);
            let met = plan.heal();
            let panicked = answers.iter().filter(|answer| answer.is_err()).count();
            assert_eq!(panicked, usize::from(met), "{path}, call {k}: a panic is one request's");
            for answer in answers.into_iter().flatten() {
                assert_eq!(answer.as_ref(), Ok(&right), "{path}, call {k}: another asker at the same time");
            }
            let [again] = at_once(&format!("{path} after call {k}"), move || look(&tree, path));
            assert_eq!(again.as_ref(), Ok(&right), "{path}: not right again after call {k}");
            panics += panicked;
            if !met {
                break;
            }
        }
    }
    assert!(panics > 300, "only {panics} panics");
}

#[test]
fn a_panic_is_one_requests_error_and_one_line_in_the_log() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let mut served = Served::new();
    served.expect_warning("ERROR swarmletfs::fuse::guard: panicked at tests/support/faulty.rs:");
    let mut panics = 0;
    for path in PATHS {
        for k in 1.. {
            served.change();
            served.forget();
            served.panic_at(k);
            let point = served.path();
            let answers: [_; 2] = at_once(&format!("{path}, call {k}"), move || look_in(&point, path));
            let met = served.heal();
            let right = look_in(&served.path(), path)
                .unwrap_or_else(|error| panic!("{path}: not right again after call {k}: {error}"));
            for answer in answers {
                match answer {
                    Ok(found) => assert!(found == right, "{path}, call {k}: wrong beside a panic"),
                    Err(error) => assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{path}, call {k}"),
                }
            }
            panics += usize::from(met);
            if !met {
                break;
            }
        }
    }
    assert!(panics > 300, "only {panics} panics");
    let log = served.log();
    assert_eq!(log.lines().count(), panics, "{log}");
    assert!(!log.contains(PRIVATE), "{log}");
    served.forget();
    crate::mount::eventually("the end of all handles and inodes", || (served.held() == (0, 0)).then_some(()));
}
