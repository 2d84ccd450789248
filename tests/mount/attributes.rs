//! Times, ids, modes, ACLs and extended attributes (R33). The mount reports them as in the store or
//! omits them. Nobody gains rights through the mount that they lack at the source.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, StatVfsMountFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::{eventually, swarm};
use crate::cli::program::{MountSandbox, check_log_later, is_root, program, run, tmpfs};
use crate::needs_fuse;
use crate::support::mount::PROGRAM;
use crate::support::skip;
use crate::support::user::as_user;
use crate::support::{Mount, TestStore};

const EVERYONE: [&str; 2] = ["--allow-other", "--all-owners"];

/// Seconds and nanoseconds, and the time as index.json shows it.
const TIMES: [(i64, i64, &str); 14] = [
    (-1, 500_000_000, "1969-12-31T23:59:59Z"),
    (0, 0, "1970-01-01T00:00:00Z"),
    (0, 999_999_999, "1970-01-01T00:00:00Z"),
    (-2_208_988_800, 1, "1900-01-01T00:00:00Z"),
    (i32::MIN as i64 - 1, 2, "1901-12-13T20:45:51Z"),
    (i32::MAX as i64, 3, "2038-01-19T03:14:07Z"),
    (i32::MAX as i64 + 1, 4, "2038-01-19T03:14:08Z"),
    (u32::MAX as i64, 5, "2106-02-07T06:28:15Z"),
    (u32::MAX as i64 + 1, 6, "2106-02-07T06:28:16Z"),
    (1 << 34, 7, "2514-05-30T01:53:04Z"),
    (253_402_128_000, 8, "9999-12-30T00:00:00Z"),
    (253_402_300_800, 9, "-"),
    (i64::MAX, 0, "-"),
    (i64::MIN, 0, "-"),
];

fn times(path: &Path) -> [i64; 4] {
    let meta = fs::metadata(path).unwrap();
    [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()]
}

#[test]
fn timestamps_are_exact_in_every_year() {
    needs_fuse!();
    let sandbox = MountSandbox::new();
    // This file system can store every time.
    if tmpfs(&sandbox.folder("store")).is_none() {
        return;
    }
    let calls = sandbox.folder("store/workers/w/tool_calls");
    fs::write(sandbox.at("store/workers/w/metadata.json"), r#"{"worker_id": "w"}"#).unwrap();
    for (number, (secs, nanos, _)) in TIMES.into_iter().enumerate() {
        let path = calls.join(format!("{number:03}_x.txt"));
        fs::write(&path, "x\n").unwrap();
        let time = Timespec { tv_sec: secs, tv_nsec: nanos };
        let both = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &both, AtFlags::empty()).unwrap();
        assert_eq!(times(&path)[..2], [secs, nanos], "{path:?}");
    }
    let mount = Mount::new(&sandbox.at("store"));
    let index: Value = serde_json::from_slice(&mount.read("workers/w/index.json")).unwrap();
    for (number, (secs, nanos, expected)) in TIMES.into_iter().enumerate() {
        let path = format!("tool_calls/{number:03}_x.txt");
        let shown = mount.at(&format!("workers/w/{path}"));
        assert_eq!(
            times(&shown),
            times(&sandbox.at(format!("store/workers/w/{path}"))),
            "{secs}.{nanos:09}"
        );
        let file = index["files"]
            .as_array()
            .unwrap()
            .iter()
            .find(|file| file["path"] == path.as_str())
            .unwrap();
        assert_eq!(file["mtime"], expected, "{secs}.{nanos:09}");
    }
    // Files generated from all of them are as new as the newest.
    for path in [
        "workers/w/summary",
        "workers/w/index.json",
        "workers/w/evidence.txt",
        "summary",
        "workers/w",
    ] {
        assert_eq!(times(&mount.at(path))[..2], [i64::MAX, 0], "{path}");
    }
}

/// Promise: Owners are reported unchanged, and modes without write, setuid, setgid and sticky bits.
#[test]
fn owners_are_unchanged_and_modes_lose_special_bits() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let store = TestStore::new();
    store.worker("w", json!({}));
    let ids = [0, 1, 65_534, i32::MAX as u32, i32::MAX as u32 + 1, u32::MAX - 1];
    let modes = [0o4755, 0o2755, 0o1777, 0o7777, 0o666, 0o222, 0o111, 0o000, 0o440, 0o4711, 0o6555];
    let mut paths = Vec::new();
    for (id, mode) in ids.into_iter().flat_map(|id| modes.map(|mode| (id, mode))) {
        for (name, folder) in [("file", false), ("folder", true)] {
            let path = format!("workers/w/{name}-{id}-{mode:o}");
            if folder {
                fs::create_dir(store.at(&path)).unwrap()
            } else {
                drop(store.write(&path, "x"))
            }
            chown(store.at(&path), Some(id), Some(u32::MAX - 1 - id)).unwrap();
            fs::set_permissions(store.at(&path), fs::Permissions::from_mode(mode)).unwrap();
            paths.push(path);
        }
    }
    let mount = Mount::with(&store.path(), &EVERYONE);
    for path in paths {
        let (source, shown) =
            (fs::metadata(store.at(&path)).unwrap(), fs::metadata(mount.at(&path)).unwrap());
        assert_eq!((shown.uid(), shown.gid()), (source.uid(), source.gid()), "{path}");
        assert_eq!(shown.mode() & 0o7777, source.mode() & 0o555, "{path}");
    }
    let flags = rustix::fs::statvfs(mount.path()).unwrap().f_flag;
    let wanted = StatVfsMountFlags::RDONLY | StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV;
    assert!(flags.contains(wanted), "{flags:?}");
}

#[test]
fn setuid_program_of_a_worker_grants_no_rights() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let store = TestStore::new();
    store.worker("w", json!({}));
    let program = store.write("workers/w/id", fs::read("/usr/bin/id").unwrap());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(store.path().parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let mount = Mount::with(&store.path(), &EVERYONE);
    let whose = |path: &Path| {
        let mut command = crate::cli::program::program(
            "setpriv",
            ["--reuid=54321", "--regid=54321", "--clear-groups", "--"],
        );
        run_text(command.arg(path).arg("-u"))
    };
    // At the source the program runs with its owner's rights.
    assert_eq!(whose(&program), "0");
    assert_eq!(whose(&mount.at("workers/w/id")), "54321");
}

fn run_text(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

#[test]
fn no_extended_attribute_is_passed_on() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({}));
    let path = store.write("workers/w/file", "x");
    // One attribute that gives a program a capability, and one of each other kind.
    let right = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let attributes: [(&str, &[u8]); 4] = [
        ("user.note", b"1"),
        ("trusted.note", b"1"),
        ("security.note", b"1"),
        ("security.capability", &right),
    ];
    for (name, value) in attributes {
        rustix::fs::setxattr(&path, name, value, XattrFlags::empty()).unwrap();
    }
    set_acl(&path, &encode_acl(&[(Tag::User, 4, 5_002)], 4, 4, 4));
    let mount = Mount::new(&store.path());
    let shown = mount.at("workers/w/file");
    let mut buffer = [0; 256];
    for name in attributes
        .map(|(name, _)| name)
        .into_iter()
        .chain(["system.posix_acl_access", "user.absent"])
    {
        let found = rustix::fs::getxattr(&shown, name, &mut buffer);
        assert!(matches!(found, Err(Errno::OPNOTSUPP | Errno::NODATA)), "{name}: {found:?}");
    }
    let listed = rustix::fs::listxattr(&shown, &mut buffer);
    assert!(matches!(listed, Ok(0) | Err(Errno::OPNOTSUPP)), "{listed:?}");
}

#[derive(Clone, Copy)]
enum Tag {
    User = 2,
    Group = 8,
}

/// Encodes an ACL as the kernel takes it: the owner has mode 6, followed by the named entries and
/// by the bits of the owning group, the mask and others.
fn encode_acl(named: &[(Tag, u16, u32)], group: u16, mask: u16, other: u16) -> Vec<u8> {
    let nobody = u32::MAX;
    let of = |wanted: u16| {
        named.iter().filter(move |entry| entry.0 as u16 == wanted).map(|e| (e.0 as u16, e.1, e.2))
    };
    let entries =
        [(1, 6, nobody)].into_iter().chain(of(2)).chain([(4, group, nobody)]).chain(of(8));
    let entries = entries.chain([(16, mask, nobody), (32, other, nobody)]);
    let bytes = |(tag, rights, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    2_u32.to_le_bytes().into_iter().chain(entries.flat_map(bytes)).collect()
}

fn set_acl(path: &Path, list: &[u8]) {
    rustix::fs::setxattr(path, "system.posix_acl_access", list, XattrFlags::empty()).unwrap();
}

/// Gives a file an ACL that denies a user whom the mode would admit. Prints SKIP and returns `None`
/// where ACLs are not supported.
pub fn shut_out(path: &Path) -> Option<()> {
    let list = encode_acl(&[(Tag::User, 0, 5_002)], 4, 4, 4);
    let set = rustix::fs::setxattr(path, "system.posix_acl_access", &list, XattrFlags::empty());
    if let Err(errno) = set {
        skip(&format!("this file system keeps no lists of access: {errno}"));
    }
    set.ok()
}

/// Promise: A user whom an ACL of the store shuts out is shut out of the mount.
#[test]
fn user_denied_by_an_acl_is_denied_in_the_mount() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    const OWNER: u32 = 5_001;
    const NAMED: u32 = 5_002;
    let store = TestStore::new();
    store.worker("w", json!({}));
    fs::set_permissions(store.path().parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut names = Vec::new();
    for bits in 0..64 {
        let may = |bit: u32| if bits & 1 << bit != 0 { 4 } else { 0 };
        let path = store.write(format!("workers/w/{bits}"), "x");
        chown(&path, Some(OWNER), Some(OWNER)).unwrap();
        let named = [(Tag::User, may(0), NAMED), (Tag::Group, may(1), NAMED + 1)];
        set_acl(
            &path,
            &encode_acl(if may(5) == 0 { &named } else { &named[..1] }, may(2), may(3), may(4)),
        );
        names.push(bits.to_string());
    }
    let plain = store.write("workers/w/plain", "x");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    names.push("plain".into());
    let mount = Mount::with(&store.path(), &EVERYONE);
    // Each user's group has the user's number: owner, owner's group, named user, named group,
    // other.
    let (mut denied, mut allowed) = (0, 0);
    for id in [OWNER, NAMED, NAMED + 1, NAMED + 2] {
        for name in &names {
            let opens = |path: PathBuf| as_user(id, || File::open(path).is_ok());
            let at_source = opens(store.at(format!("workers/w/{name}")));
            let in_mount = opens(mount.at(&format!("workers/w/{name}")));
            assert!(
                at_source || !in_mount,
                "ACL {name}: user {id} can read the file in the mount but not in the store"
            );
            denied += usize::from(!at_source);
            allowed += usize::from(in_mount);
        }
        assert!(as_user(id, || File::open(mount.at("workers/w/plain")).is_ok()));
    }
    assert!(denied > 50 && allowed > 50, "{denied} denied, {allowed} allowed");
}

/// A listing reads no ACLs of the files that its times come from; the reports need them.
#[test]
fn a_report_is_denied_by_an_acl_of_a_source_after_a_listing() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let store = TestStore::new();
    for worker in ["denied", "open"] {
        store.worker(worker, json!({"status": "success"}));
        let path = store.write(format!("workers/{worker}/notes.txt"), "x");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        if worker == "denied" && shut_out(&path).is_none() {
            return;
        }
    }
    let mount = Mount::with(&store.path(), &EVERYONE);
    let listed = mount.shell("ls -l \"$M\"/workers \"$M\"/by/status/*");
    assert!(listed.status.success(), "{listed:?}");
    let opens = |worker, id| {
        let path = mount.at(&format!("workers/{worker}/summary"));
        as_user(id, || File::open(path).is_ok())
    };
    assert_eq!((opens("denied", 5_002), opens("open", 5_002)), (false, true));
    assert!(!as_user(5_002, || File::open(mount.at("summary")).is_ok()));
}

/// Mounts in a user namespace. `$1` is the program, followed by the store, the mountpoint and the
/// log.
const MOUNT_IN_USER_NAMESPACE: &str = r#"
"$1" mount --store "$2" --log "$4" "$3"
stat -c '%u %a' "$3/workers/w/mine.txt" "$3/workers/w/other.txt"
cat "$3/workers/w/mine.txt" "$3/workers/w/summary"
"$1" umount "$3"
"#;

#[test]
fn mount_in_a_user_namespace_maps_unknown_ids_to_nobody() {
    needs_fuse!();
    if !program("unshare", ["-Urm", "true"]).status().is_ok_and(|status| status.success()) {
        skip("user namespaces are not permitted here");
        return;
    }
    let (store, sandbox) = (TestStore::new(), MountSandbox::new());
    store.worker("w", json!({"task": "look around"}));
    store.write("workers/w/mine.txt", "mine\n");
    let other = store.write("workers/w/other.txt", "other\n");
    chown(other, Some(5_001), Some(5_001)).unwrap();
    let (point, log) = (sandbox.folder("mnt"), sandbox.at("log"));
    check_log_later(&point, &log);
    let mut command =
        program("unshare", ["-Urm", "bash", "-euc", MOUNT_IN_USER_NAMESPACE, "bash", PROGRAM]);
    command.arg(store.path()).arg(&point).arg(&log);
    let done = run(command);
    assert_eq!(done.code, Some(0), "{done:#?}");
    assert!(
        done.out.starts_with("0 444\n65534 444\nmine\n") && done.out.contains("look around"),
        "{done:#?}"
    );
}

#[test]
fn server_clock_is_in_no_generated_file() {
    needs_fuse!();
    let preload = Command::new("faketime").args(["-f", "+0", "printenv", "LD_PRELOAD"]).output();
    let Ok(preload) = preload.map(|out| String::from_utf8(out.stdout).unwrap()) else {
        assert!(std::env::var_os("SWARMLETFS_REQUIRE_FUSE").is_none(), "faketime is missing");
        skip("faketime is missing");
        return;
    };
    let (store, logs) = (swarm(), tempfile::tempdir().unwrap());
    let look = |mount: &Mount| {
        let folders = ["", "workers/alpha", "workers/gamma", "runs/r1"];
        let names = ["index.json", "summary", "evidence.txt"];
        let paths =
            folders.iter().flat_map(|folder| names.map(|name| Path::new(folder).join(name)));
        paths
            .map(|path| {
                (times(&mount.path().join(&path)), fs::read(mount.path().join(path)).unwrap())
            })
            .collect()
    };
    for (shift, century) in [("+3650d", "203"), ("-3650d", "201")] {
        let log = logs.path().join(shift);
        let preload = format!("LD_PRELOAD={}", preload.trim());
        let before =
            ["env", &preload, &format!("FAKETIME={shift}"), "FAKETIME_DONT_FAKE_MONOTONIC=1"];
        let mount = Mount::by(&before, &store.path(), &["--log", log.to_str().unwrap()]);
        let (there, here): (Vec<_>, Vec<_>) = (look(&mount), look(&Mount::new(&store.path())));
        assert!(there == here, "a clock shift of {shift} changed the content");
        let added = store.call("gamma", 2, "sql", "4\n").at("workers/gamma/tool_calls/002_sql.txt");
        eventually("a new file", || {
            mount.text("workers/gamma/summary").contains("002_sql").then_some(())
        });
        fs::remove_file(added).unwrap();
        // This server ran with another clock.
        let text = fs::read_to_string(&log).unwrap();
        assert!(text.lines().all(|line| line.starts_with(century)) && !text.is_empty(), "{text}");
    }
}
