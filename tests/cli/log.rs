//! `--log`: a regular file, or nothing.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::program::{Yard, ours_at, run, small_store, typed};
use crate::needs_fuse;

#[test]
fn a_log_that_is_not_a_regular_file_is_refused_at_once() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    let fifo = yard.at("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let _socket = UnixListener::bind(yard.at("socket")).unwrap();
    fs::write(yard.at("file"), "mine\n").unwrap();
    let link = |name: &str, target: &str| {
        symlink(target, yard.at(name)).unwrap();
        yard.at(name)
    };
    let wrong: [(PathBuf, &str); 7] = [
        (fifo, "a FIFO"),
        (yard.at("socket"), "a socket"),
        (link("to-fifo", "fifo"), "a symbolic link"),
        (link("to-file", "file"), "a symbolic link"),
        (link("to-nothing", "nothing"), "a symbolic link"),
        (yard.folder("folder"), "a directory"),
        (Path::new("/dev/null").to_owned(), "a device"),
    ];
    for (log, kind) in wrong {
        for mode in [&["mount"][..], &["mount", "--foreground"]] {
            let mut command = typed(mode);
            command.arg("--log").arg(&log).arg("--store").arg(store.path()).arg(&point);
            let done = run(command);
            let why = format!("cannot log to {}: it is {kind}; use a regular file", log.display());
            done.refused(1, &[&why]);
            assert_eq!(done.err.matches("swarmletfs: cannot").count(), 1, "{done:#?}");
            assert!(!done.err.contains("without a report"), "{done:#?}");
            assert_eq!(ours_at(&point), 0);
        }
    }
    assert_eq!(fs::read_to_string(yard.at("file")).unwrap(), "mine\n");
    assert!(!yard.at("nothing").exists());
}
