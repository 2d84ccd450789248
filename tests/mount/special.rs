//! Special files (R9): no read blocks on them, none is opened, and the files generated for their
//! worker mention them.

use std::fs;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::{Snapshot, eventually};
use crate::needs_fuse;
use crate::support::skip;
use crate::support::{Mount, TestStore};

fn fifo(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
}

/// Creates a device. Prints SKIP where the system does not permit that.
fn device(path: &Path, kind: FileType, major: u32, minor: u32) {
    match mknodat(CWD, path, kind, Mode::from_raw_mode(0o666), makedev(major, minor)) {
        Err(Errno::PERM) => skip(&format!("{}: devices cannot be made here", path.display())),
        made => made.unwrap(),
    }
}

/// Returns a store with a worker whose directory contains each kind of special file.
fn store() -> TestStore {
    let store = TestStore::new();
    store.worker("odd", json!({"status": "running"}));
    store.call("odd", 1, "echo", "fine\n");
    fifo(&store.at("workers/odd/tool_calls/002_fifo.txt"));
    let _ = UnixListener::bind(store.at("workers/odd/tool_calls/003_socket.txt")).unwrap();
    device(&store.at("workers/odd/tool_calls/004_zero.txt"), FileType::CharacterDevice, 1, 5);
    device(&store.at("workers/odd/tool_calls/005_block.txt"), FileType::BlockDevice, 7, 200);
    fs::create_dir(store.at("workers/odd/tool_calls/006_folder.txt")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", store.at("workers/odd/tool_calls/007_link.txt"))
        .unwrap();
    for name in ["result.txt", "thread.jsonl", "metrics.jsonl", "task.txt", "summary"] {
        fifo(&store.at(format!("workers/odd/{name}")));
    }
    store.call("fifo-metadata", 1, "echo", "seen all the same\n");
    fifo(&store.at("workers/fifo-metadata/metadata.json"));
    store.call("folder-metadata", 1, "echo", "seen all the same\n");
    fs::create_dir(store.at("workers/folder-metadata/metadata.json")).unwrap();
    fs::create_dir(store.at("workers/fifo-calls")).unwrap();
    store.worker("fifo-calls", json!({}));
    fifo(&store.at("workers/fifo-calls/tool_calls"));
    fifo(&store.at("workers/loose-fifo"));
    fifo(&store.at("index.json"));
    fifo(&store.at("workers/index.json"));
    fifo(&store.at("supervisor"));
    store
}

/// Reads all files that the mount lists, and looks up all names of the store.
fn read_all(mount: &Mount) {
    let out = mount
        .shell(r#"find "$M" -type f -exec cat {} + >/dev/null; ls -laR "$M" >/dev/null; grep -rc . "$M" >/dev/null"#);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

const SPECIAL: [&str; 12] = [
    "workers/odd/tool_calls/002_fifo.txt",
    "workers/odd/tool_calls/003_socket.txt",
    "workers/odd/tool_calls/004_zero.txt",
    "workers/odd/tool_calls/005_block.txt",
    "workers/odd/tool_calls/007_link.txt",
    "workers/odd/result.txt",
    "workers/odd/thread.jsonl",
    "workers/odd/summary.own",
    "workers/fifo-metadata/metadata.json",
    "workers/fifo-calls/tool_calls",
    "workers/loose-fifo",
    "supervisor",
];

/// Promise: Special files are not shown, and no reader waits for them.
#[test]
fn special_files_are_hidden_and_never_waited_for() {
    needs_fuse!();
    let store = store();
    let mut mount = Mount::new(&store.path());
    for expected in ["lookup: not a regular file", "lookup: a link or a path out of the store"] {
        mount.expect_warning(expected);
    }
    read_all(&mount);
    assert_eq!(mount.list("workers/odd/tool_calls"), ["001_echo.txt", "006_folder.txt"]);
    assert_eq!(
        mount.list("workers/odd"),
        ["evidence.txt", "index.json", "metadata.json", "summary", "tool_calls"]
    );
    let workers = ["fifo-calls", "fifo-metadata", "folder-metadata", "index.json", "odd"];
    assert_eq!(mount.list("workers"), workers);
    assert!(!mount.list("").contains(&"supervisor".to_owned()));
    for path in SPECIAL {
        assert_eq!(
            fs::symlink_metadata(mount.at(path)).unwrap_err().kind(),
            ErrorKind::NotFound,
            "{path}"
        );
        assert_eq!(
            fs::File::open(mount.at(path)).unwrap_err().kind(),
            ErrorKind::NotFound,
            "{path}"
        );
    }
}

#[test]
fn generated_files_name_special_files() {
    needs_fuse!();
    let store = store();
    let mount = Mount::new(&store.path());
    let evidence = mount.text("workers/odd/evidence.txt");
    assert!(evidence.contains("fine\n"), "a malformed file hid the rest: {evidence}");
    for (name, says) in [
        ("002_fifo.txt", "a special file, which is not opened"),
        ("003_socket.txt", "a special file, which is not opened"),
        ("006_folder.txt", "a folder, not a file"),
        ("007_link.txt", "a link, which is not read"),
    ] {
        let at = evidence
            .find(&format!("tool_calls/{name} ("))
            .unwrap_or_else(|| panic!("{name} is not in {evidence}"));
        let section: Vec<&str> = evidence[at..].lines().take(2).collect();
        assert!(
            section[0].contains("outcome unknown, not read") && section[1].contains(says),
            "{section:?}"
        );
    }
    let index: Value = serde_json::from_slice(&mount.read("workers/odd/index.json")).unwrap();
    let checks = index["checks"].to_string();
    assert!(checks.contains("special file") && checks.contains("unreadable_output"), "{checks}");
    for worker in ["fifo-metadata", "folder-metadata"] {
        let summary = mount.text(&format!("workers/{worker}/summary"));
        assert!(
            summary.contains("metadata.json"),
            "the summary of {worker} names no problem: {summary}"
        );
        assert!(
            mount.text(&format!("workers/{worker}/evidence.txt")).contains("seen all the same"),
            "{worker}"
        );
    }
    let swarm: Value = serde_json::from_slice(&mount.read("index.json")).unwrap();
    assert_eq!(swarm["total_workers"], 4);
}

#[test]
fn special_files_are_never_opened() {
    needs_fuse!();
    let store = store();
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    for folder in [
        "",
        "workers",
        "workers/odd",
        "workers/odd/tool_calls",
        "workers/fifo-metadata",
        "workers/fifo-calls",
    ] {
        inotify::add_watch(&watch, store.at(folder), WatchFlags::OPEN).unwrap();
    }
    let mut mount = Mount::new(&store.path());
    for expected in ["lookup: not a regular file", "lookup: a link or a path out of the store"] {
        mount.expect_warning(expected);
    }
    read_all(&mount);
    for path in SPECIAL {
        assert!(fs::File::open(mount.at(path)).is_err(), "{path}");
    }
    let mut opened = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); 65_536];
    let mut events = inotify::Reader::new(&watch, &mut buffer);
    while let Ok(event) = events.next() {
        assert!(!event.events().contains(rustix::fs::inotify::ReadFlags::QUEUE_OVERFLOW));
        opened.extend(event.file_name().map(|name| name.to_string_lossy().into_owned()));
    }
    // The watch works: it saw regular files being opened beside them.
    for regular in ["001_echo.txt", "metadata.json"] {
        assert!(
            opened.iter().any(|name| name == regular),
            "the control file {regular} was not opened: {opened:?}"
        );
    }
    let in_calls = [
        "002_",
        "003_",
        "004_",
        "005_",
        "007_",
        "result.txt",
        "thread.jsonl",
        "metrics.jsonl",
        "task.txt",
    ];
    for name in in_calls.iter().chain(&["summary", "supervisor", "loose-fifo", "index.json"]) {
        assert!(
            !opened.iter().any(|opened| opened.starts_with(name)),
            "{name} was opened: {opened:?}"
        );
    }
}

#[test]
fn regular_file_may_become_special_and_back() {
    needs_fuse!();
    let store = store();
    let mut mount = Mount::new(&store.path());
    mount.expect_warning("not a regular file");
    let path = store.write("workers/odd/logs/run.log", "regular\n");
    let shown = mount.at("workers/odd/logs/run.log");
    eventually("the file", || fs::read(&shown).ok().filter(|bytes| bytes == b"regular\n"));
    for _ in 0..3 {
        fs::remove_file(&path).unwrap();
        fifo(&path);
        eventually("the FIFO hides", || fs::read(&shown).is_err().then_some(()));
        fs::remove_file(&path).unwrap();
        fs::write(&path, "again\n").unwrap();
        eventually("the file is back", || {
            fs::read(&shown).ok().filter(|bytes| bytes == b"again\n")
        });
    }
}

#[test]
fn unreadable_and_sparse_files_do_no_harm() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({"status": "running"}));
    store.call("w", 1, "echo", "fine\n").call("w", 2, "closed", "for nobody\n");
    let closed = store.at("workers/w/tool_calls/002_closed.txt");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let sparse = store.write("workers/w/tool_calls/003_sparse.txt", "");
    let file = fs::File::options().write(true).open(&sparse).unwrap();
    file.set_len(8 << 20).unwrap();
    file.write_all_at(b"\nError: in the middle of nothing\n", 5 << 20).unwrap();
    fs::File::create(store.at("workers/w/huge")).unwrap().set_len(1 << 40).unwrap();
    let mount = Mount::new(&store.path());
    for name in ["index.json", "summary", "evidence.txt"] {
        let Snapshot { size, bytes, .. } =
            Snapshot::open(&mount.at(&format!("workers/w/{name}"))).unwrap();
        assert_eq!(size, bytes.len() as u64, "{name}");
    }
    let evidence = mount.text("workers/w/evidence.txt");
    assert!(
        evidence.contains("fine\n") && evidence.contains("003_sparse.txt (8388608 B"),
        "{evidence}"
    );
    assert!(!evidence.contains('\0'));
    let huge = fs::File::open(mount.at("workers/w/huge")).unwrap();
    assert_eq!(huge.metadata().unwrap().len(), 1 << 40);
    let mut buffer = [1; 8];
    for at in [(1_u64 << 31) - 4, (1 << 32) - 4, (1 << 40) - 8] {
        huge.read_exact_at(&mut buffer, at).unwrap();
        assert_eq!(buffer, [0; 8]);
    }
    assert_eq!(huge.read_at(&mut buffer, (1 << 40) - 1).unwrap(), 1);
    assert_eq!(huge.read_at(&mut buffer, 1 << 40).unwrap(), 0);
}
