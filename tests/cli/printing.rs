//! Printed and logged lines contain no raw control character from a name, and no name can forge a
//! line.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;

use serde_json::json;

use super::program::{
    LIMIT, MountSandbox, check_log_later, check_printable, mount, run, small_store, swarmletfs,
    umount, wait_timeout, wait_until,
};
use crate::needs_fuse;
use crate::support::TestStore;
use crate::support::mount::PROGRAM;

/// A line that must never be printed on its own.
const FORGED: &str = "swarmletfs: forged";

pub fn hostile_names() -> [Vec<u8>; 2] {
    let text = "\u{1b}[31mred\u{7}\u{8}\u{7f}\u{9b}2J\t\u{202e}gnp\u{2066}\u{feff}\u{200b}\u{e0041}\r\nswarmletfs: forged\nx";
    [text.into(), [b"\xff\xfe\x9b".as_slice(), text.as_bytes()].concat()]
}

#[track_caller]
pub fn check_lines(text: &str) {
    check_printable(text);
    assert!(!text.lines().any(|line| line.starts_with(FORGED)), "{text:?}");
}

#[test]
fn messages_escape_control_characters_in_names() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    for name in hostile_names() {
        let raw = OsString::from_vec(name.clone());
        let folder = sandbox.folder([b"f".as_slice(), &name].concat());
        fs::write(folder.join(&raw), "").unwrap();
        let inner = folder.join("empty");
        fs::create_dir(&inner).unwrap();
        let file = folder.join(&raw);
        let with = |first: &str, value: &OsStr| {
            let mut item = OsString::from(first);
            item.push(value);
            item
        };
        let (store, point) = (store.path(), point.clone());
        let os_string = |path: &Path| path.as_os_str().to_os_string();
        let commands: Vec<Vec<OsString>> = vec![
            vec![
                "mount".into(),
                "--store".into(),
                os_string(&store),
                os_string(&sandbox.at("missing").join(&raw)),
            ],
            vec!["mount".into(), "--store".into(), os_string(&store), os_string(&file)],
            vec!["mount".into(), "--store".into(), os_string(&store), os_string(&folder)],
            vec![
                "mount".into(),
                "--store".into(),
                os_string(&sandbox.at("missing").join(&raw)),
                os_string(&point),
            ],
            vec!["mount".into(), "--store".into(), os_string(&file), os_string(&point)],
            vec!["mount".into(), "--store".into(), os_string(&folder), os_string(&point)],
            vec!["mount".into(), "--store".into(), os_string(&folder), os_string(&inner)],
            vec![
                "mount".into(),
                "--store".into(),
                os_string(&store),
                "--log".into(),
                os_string(&file.join("x")),
                os_string(&point),
            ],
            vec![
                "mount".into(),
                "--store".into(),
                os_string(&store),
                "--log".into(),
                os_string(&folder),
                os_string(&point),
            ],
            vec!["mount".into(), "--budget".into(), raw.clone(), os_string(&point)],
            vec!["mount".into(), "--ttl".into(), raw.clone(), os_string(&point)],
            vec!["mount".into(), with("--", &raw), os_string(&point)],
            vec!["mount".into(), "-o".into(), raw.clone(), os_string(&point)],
            vec!["mount".into(), "-o".into(), with("ttl=", &raw), os_string(&point)],
            vec!["mount".into(), "-o".into(), with("budget=", &raw), os_string(&point)],
            vec!["mount".into(), "-o".into(), with("store=/", &raw), os_string(&point)],
            vec!["mount".into(), os_string(&store), raw.clone(), os_string(&point)],
            vec!["umount".into(), os_string(&folder)],
            vec!["umount".into(), os_string(&sandbox.at("missing").join(&raw))],
            vec!["umount".into(), os_string(&point), raw.clone()],
            vec![raw.clone()],
            vec![with("-", &raw)],
        ];
        for command in commands {
            let done = run(swarmletfs(&command));
            assert!(matches!(done.code, Some(1 | 2)), "{command:?}: {done:#?}");
            assert!(done.err.starts_with("swarmletfs: "), "{command:?}: {done:#?}");
            assert!(!done.err.contains("panicked"), "{command:?}: {done:#?}");
            check_lines(&done.err);
            check_lines(&done.out);
        }
        for variable in ["SWARMLET_DATA_PATH", "SWARMLETFS_LOG"] {
            // The environment can hold all of these bytes except NUL.
            let mut command = swarmletfs(["mount"]);
            command
                .arg(&point)
                .env("SWARMLET_DATA_PATH", with("/", &raw))
                .env(variable, with("/", &raw));
            let done = run(command);
            assert!(matches!(done.code, Some(1 | 2)), "{variable}: {done:#?}");
            check_lines(&done.err);
        }
        let mut command = swarmletfs(["mount"]);
        command.arg(&point).current_dir(&folder);
        let done = run(command);
        check_lines(&done.err);
    }
}

#[test]
fn mount_with_hostile_names_prints_clean_lines() {
    needs_fuse!();
    let sandbox = MountSandbox::new();
    for name in hostile_names() {
        let store = sandbox.folder([b"s".as_slice(), &name].concat());
        fs::create_dir_all(store.join("workers").join(OsStr::from_bytes(&name)).join("tool_calls"))
            .unwrap();
        let point = sandbox.folder([b"m".as_slice(), &name].concat());
        let done = mount(&store, &point, &[]);
        done.assert_success();
        check_lines(&done.err);
        assert!(point.join("workers").join(OsStr::from_bytes(&name)).join("summary").exists());
        let again = mount(&store, &point, &[]);
        again.assert_failure(1, &["already mounted"]);
        check_lines(&again.err);
        let open = fs::File::open(point.join("README.md")).unwrap();
        let busy = umount(&point, &[]);
        busy.assert_failure(1, &["in use"]);
        check_lines(&busy.err);
        drop(open);
        umount(&point, &[]).assert_success();
    }
}

#[test]
fn log_escapes_control_characters_in_names() {
    needs_fuse!();
    let (store, sandbox) = (TestStore::new(), MountSandbox::new());
    let (point, log) = (sandbox.folder("mnt"), sandbox.at("log"));
    let names = hostile_names();
    for name in &names {
        let at = |path: &str| [b"workers/".as_slice(), name, b"/", path.as_bytes()].concat();
        let text = String::from_utf8_lossy(name).into_owned();
        let metadata = json!({"worker_id": text, "owner_id": text, "run_id": text, "task": text, "status": text});
        store.write(at("metadata.json"), metadata.to_string());
        store.write(
            [at("tool_calls/001_"), name.clone(), b".txt".to_vec()].concat(),
            format!("Error: {text}"),
        );
        std::os::unix::fs::symlink("/nowhere", store.at([at("link"), name.clone()].concat()))
            .unwrap();
        crate::hostile::make_fifo(&store.at([at("pipe"), name.clone()].concat()));
    }
    check_log_later(&point, &log);
    let mut command = swarmletfs(["mount", "--foreground", "--store"]);
    command.arg(store.path()).arg("--log").arg(&log).arg(&point).env("SWARMLETFS_LOG", "trace");
    command
        .stdout(fs::File::create(sandbox.at("out")).unwrap())
        .stderr(fs::File::create(sandbox.at("err")).unwrap());
    let mut child = command.spawn().unwrap();
    wait_until("the mount", || {
        fs::read_to_string(sandbox.at("err")).unwrap().contains("mounted on")
    });
    for name in &names {
        let worker = point.join("workers").join(OsStr::from_bytes(name));
        let inner =
            |prefix: &str| worker.join(OsString::from_vec([prefix.as_bytes(), name].concat()));
        for path in [
            inner("absent"),
            inner("link"),
            inner("pipe"),
            inner("tool_calls/001_"),
            point.join(inner("x")),
        ] {
            assert!(fs::read(path).is_err());
        }
        assert!(fs::read_to_string(worker.join("evidence.txt")).unwrap().contains("forged"));
        assert_eq!(fs::read_dir(&worker).unwrap().count(), 5);
    }
    umount(&point, &[]).assert_success();
    assert_eq!(wait_timeout(&mut child, LIMIT).expect("no hang").code(), Some(0));
    let text = String::from_utf8(fs::read(&log).unwrap()).unwrap();
    assert!(
        text.contains("TRACE") || text.contains("DEBUG"),
        "the log has the wrong level: {text}"
    );
    check_lines(&text);
    for line in text.lines() {
        assert!(line.starts_with("20"), "a line without a time: {line:?}");
    }
    check_lines(&fs::read_to_string(sandbox.at("err")).unwrap());
    assert_eq!(fs::read_to_string(sandbox.at("out")).unwrap(), "");
    // The program's own path must not match.
    assert!(!PROGRAM.contains("forged"));
}

/// Otherwise the lines of two runs in the background of one shell are mixed.
#[test]
fn message_is_printed_by_one_write() {
    // A datagram holds the bytes of one write.
    let (reader, stderr) = UnixDatagram::pair().unwrap();
    reader.set_nonblocking(true).unwrap();
    let mut command = swarmletfs(["umount", "/no/such/mountpoint"]);
    command.stderr(Stdio::from(OwnedFd::from(stderr)));
    let mut child = command.spawn().unwrap();
    assert!(!wait_timeout(&mut child, LIMIT).unwrap().success());
    let mut buffer = [0; 4_096];
    let mut lines = 0;
    while let Ok(count) = reader.recv(&mut buffer) {
        let line = std::str::from_utf8(&buffer[..count]).unwrap();
        assert!(line.starts_with("swarmletfs: ") && line.ends_with('\n'), "{line:?}");
        lines += 1;
    }
    assert!(lines > 0);
}
