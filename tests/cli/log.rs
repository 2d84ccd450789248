//! `--log` accepts only a regular file.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::program::{MountSandbox, mount_count_at, run, small_store, swarmletfs};
use crate::needs_fuse;

/// Promise: A log that is not a regular file is refused at once.
#[test]
fn log_that_is_not_a_regular_file_is_refused_at_once() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let fifo = sandbox.at("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let _socket = UnixListener::bind(sandbox.at("socket")).unwrap();
    fs::write(sandbox.at("file"), "mine\n").unwrap();
    let link = |name: &str, target: &str| {
        symlink(target, sandbox.at(name)).unwrap();
        sandbox.at(name)
    };
    let wrong: [(PathBuf, &str); 7] = [
        (fifo, "a FIFO"),
        (sandbox.at("socket"), "a socket"),
        (link("to-fifo", "fifo"), "a symbolic link"),
        (link("to-file", "file"), "a symbolic link"),
        (link("to-nothing", "nothing"), "a symbolic link"),
        (sandbox.folder("folder"), "a directory"),
        (Path::new("/dev/null").to_owned(), "a device"),
    ];
    for (log, kind) in wrong {
        for mode in [&["mount"][..], &["mount", "--foreground"]] {
            let mut command = swarmletfs(mode);
            command.arg("--log").arg(&log).arg("--store").arg(store.path()).arg(&point);
            let done = run(command);
            let why = format!("cannot log to {}: it is {kind}; use a regular file", log.display());
            done.assert_failure(1, &[&why]);
            assert_eq!(done.err.matches("swarmletfs: cannot").count(), 1, "{done:#?}");
            assert!(!done.err.contains("without a report"), "{done:#?}");
            assert_eq!(mount_count_at(&point), 0);
        }
    }
    assert_eq!(fs::read_to_string(sandbox.at("file")).unwrap(), "mine\n");
    assert!(!sandbox.at("nothing").exists());
}
