//! Nothing can be changed (R17): by no user, through no kind of node, and not even after root has
//! remounted the mount read-write.
//!
//! The error is EROFS. [`ELSEWHERE`] lists exactly the calls that the kernel refuses earlier with
//! another error: any call not listed must fail with EROFS, and each row of the list must occur.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, IFlags, Mode, OFlags, RenameFlags, Timespec,
    Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::swarm;
use crate::needs_fuse;
use crate::support::user::as_user;
use crate::support::{Mount, TestStore};

/// User id of another user.
const OTHER: u32 = 54_321;

/// A node, and names for calls that need more than one.
struct Target {
    kind: Kind,
    node: PathBuf,
    /// A name that does not exist: in the node if it is a directory, else in another directory.
    absent: PathBuf,
    /// A name that does not exist, beside the node.
    beside: PathBuf,
    /// Another existing node.
    other: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Root,
    Workers,
    Worker,
    Own,
    Generated,
    Link,
}
use Kind::{Generated, Link, Own, Root, Worker, Workers};

const KINDS: [Kind; 6] = [Root, Workers, Worker, Own, Generated, Link];
const FOLDERS: [Kind; 3] = [Root, Workers, Worker];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mounted {
    Ro,
    Rw,
}
use Mounted::{Ro, Rw};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Superuser,
    Someone,
}
use Who::{Someone, Superuser};

type Call = (&'static str, fn(&Target) -> Result<(), Errno>);

/// Opens the node itself without following symlinks.
fn open(target: &Target, flags: OFlags) -> Result<rustix::fd::OwnedFd, Errno> {
    rustix::fs::open(
        &target.node,
        flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o644),
    )
}

fn read_only(target: &Target) -> Result<rustix::fd::OwnedFd, Errno> {
    open(target, OFlags::RDONLY)
}

fn renamed(target: &Target, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
    rustix::fs::renameat_with(CWD, &target.node, CWD, to, flags)
}

fn truncate(target: &Target) -> Result<(), Errno> {
    const SCRIPT: &str = "import os,sys\ntry: os.truncate(sys.argv[1], 1)\nexcept OSError as e: print(e.errno)\nelse: print(0)";
    let out = Command::new("/usr/bin/python3")
        .args(["-c", SCRIPT])
        .arg(&target.node)
        .output()
        .expect("python3");
    match String::from_utf8(out.stdout).unwrap().trim().parse().expect("an error number") {
        0 => Ok(()),
        number => Err(Errno::from_raw_os_error(number)),
    }
}

const CALLS: [Call; 30] = [
    ("open O_WRONLY", |t| open(t, OFlags::WRONLY).map(drop)),
    ("open O_RDWR", |t| open(t, OFlags::RDWR).map(drop)),
    ("open O_TRUNC", |t| open(t, OFlags::RDONLY | OFlags::TRUNC).map(drop)),
    ("open O_APPEND", |t| open(t, OFlags::WRONLY | OFlags::APPEND).map(drop)),
    ("open O_CREAT", |t| open(t, OFlags::WRONLY | OFlags::CREATE).map(drop)),
    ("open O_CREAT new", |t| {
        rustix::fs::open(&t.absent, OFlags::WRONLY | OFlags::CREATE, Mode::RUSR).map(drop)
    }),
    ("open O_CREAT|O_EXCL new", |t| {
        rustix::fs::open(&t.absent, OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL, Mode::RUSR)
            .map(drop)
    }),
    ("open O_TMPFILE", |t| {
        rustix::fs::open(t.absent.parent().unwrap(), OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR)
            .map(drop)
    }),
    ("write", |t| read_only(t).and_then(|fd| rustix::io::write(fd, b"x").map(drop))),
    ("truncate", truncate),
    ("ftruncate", |t| read_only(t).and_then(|fd| rustix::fs::ftruncate(fd, 0))),
    ("fallocate", |t| {
        read_only(t).and_then(|fd| rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, 1))
    }),
    ("mkdir", |t| rustix::fs::mkdir(&t.absent, Mode::RWXU)),
    ("mknod file", |t| rustix::fs::mknodat(CWD, &t.absent, FileType::RegularFile, Mode::RUSR, 0)),
    ("mknod FIFO", |t| rustix::fs::mknodat(CWD, &t.absent, FileType::Fifo, Mode::RUSR, 0)),
    ("unlink", |t| rustix::fs::unlink(&t.node)),
    ("rmdir", |t| rustix::fs::rmdir(&t.node)),
    ("rename", |t| rustix::fs::rename(&t.node, &t.beside)),
    ("rename onto", |t| rustix::fs::rename(&t.other, &t.beside)),
    ("rename NOREPLACE", |t| renamed(t, &t.beside, RenameFlags::NOREPLACE)),
    ("rename EXCHANGE", |t| renamed(t, &t.other, RenameFlags::EXCHANGE)),
    ("rename WHITEOUT", |t| renamed(t, &t.beside, RenameFlags::WHITEOUT)),
    ("link", |t| rustix::fs::link(&t.node, &t.beside)),
    ("symlink", |t| rustix::fs::symlink("target", &t.absent)),
    ("chmod", |t| rustix::fs::chmod(&t.node, Mode::RWXU)),
    ("chown", |t| {
        let (uid, gid) = (Some(Uid::from_raw(1)), Some(Gid::from_raw(1)));
        rustix::fs::chownat(CWD, &t.node, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
    }),
    ("utimensat", |t| {
        let then = Timespec { tv_sec: 1, tv_nsec: 1 };
        let times = Timestamps { last_access: then, last_modification: then };
        rustix::fs::utimensat(CWD, &t.node, &times, AtFlags::SYMLINK_NOFOLLOW)
    }),
    ("setxattr", |t| rustix::fs::lsetxattr(&t.node, "user.x", b"x", XattrFlags::empty())),
    ("removexattr", |t| rustix::fs::lremovexattr(&t.node, "user.x")),
    ("ioctl FS_IOC_SETFLAGS", |t| {
        read_only(t).and_then(|fd| rustix::fs::ioctl_setflags(fd, IFlags::NOATIME))
    }),
];

/// Calls copy_file_range into the node, which needs a source file.
fn copy_into(target: &Target) -> Result<(), Errno> {
    let from = rustix::fs::open(&target.other, OFlags::RDONLY, Mode::empty())?;
    let into = read_only(target)?;
    rustix::fs::copy_file_range(from, None, into, None, 1).map(drop)
}

/// Errors that the kernel returns without a request to the program.
struct Elsewhere {
    calls: &'static [&'static str],
    kinds: &'static [Kind],
    mounted: &'static [Mounted],
    who: &'static [Who],
    /// Several only where a setting of the machine decides.
    errnos: &'static [Errno],
    /// The reason for this error.
    why: &'static str,
}

/// Calls that open the node for writing.
const OPENS: [&str; 5] =
    ["open O_WRONLY", "open O_RDWR", "open O_TRUNC", "open O_APPEND", "open O_CREAT"];
/// Calls that create a name.
const MAKES: [&str; 8] = [
    "open O_CREAT new",
    "open O_CREAT|O_EXCL new",
    "open O_TMPFILE",
    "mkdir",
    "mknod file",
    "mknod FIFO",
    "symlink",
    "rename onto",
];
const RENAMES: [&str; 4] = ["rename", "rename NOREPLACE", "rename EXCHANGE", "rename WHITEOUT"];
const FILES: [Kind; 2] = [Own, Generated];
const NOT_FOLDERS: [Kind; 3] = [Own, Generated, Link];
const NOT_LINK: [Kind; 5] = [Root, Workers, Worker, Own, Generated];
const NOT_ROOT: [Kind; 5] = [Workers, Worker, Own, Generated, Link];
const EITHER: [Mounted; 2] = [Ro, Rw];
const ANYBODY: [Who; 2] = [Superuser, Someone];

const fn row(
    calls: &'static [&'static str],
    kinds: &'static [Kind],
    mounted: &'static [Mounted],
    who: &'static [Who],
    errnos: &'static [Errno],
    why: &'static str,
) -> Elsewhere {
    Elsewhere { calls, kinds, mounted, who, errnos, why }
}

static ELSEWHERE: [Elsewhere; 28] = [
    row(&OPENS, &FOLDERS, &EITHER, &ANYBODY, &[Errno::ISDIR], "no folder is opened for writing"),
    row(&OPENS, &[Link], &EITHER, &ANYBODY, &[Errno::LOOP], "a link itself cannot be opened"),
    row(
        &OPENS,
        &FILES,
        &[Rw],
        &[Someone],
        &[Errno::ACCESS],
        "nobody has the right to write: default_permissions",
    ),
    row(
        &MAKES,
        &KINDS,
        &[Rw],
        &[Someone],
        &[Errno::ACCESS],
        "nobody has the right to write into the folder",
    ),
    row(
        &["open O_TMPFILE"],
        &KINDS,
        &[Rw],
        &[Superuser],
        &[Errno::OPNOTSUPP],
        "what a file system without it answers",
    ),
    row(
        &["write", "fallocate"],
        &NOT_LINK,
        &EITHER,
        &ANYBODY,
        &[Errno::BADF],
        "the descriptor is only for reading",
    ),
    row(
        &["copy_file_range"],
        &FILES,
        &EITHER,
        &ANYBODY,
        &[Errno::BADF],
        "the descriptor is only for reading",
    ),
    row(
        &["ftruncate"],
        &NOT_LINK,
        &EITHER,
        &ANYBODY,
        &[Errno::INVAL],
        "the descriptor is only for reading",
    ),
    row(
        &["copy_file_range"],
        &FOLDERS,
        &EITHER,
        &ANYBODY,
        &[Errno::ISDIR],
        "a folder has no bytes",
    ),
    row(
        &["write", "fallocate", "ftruncate", "copy_file_range", "ioctl FS_IOC_SETFLAGS"],
        &[Link],
        &EITHER,
        &ANYBODY,
        &[Errno::LOOP],
        "a link itself cannot be opened, so there is no descriptor",
    ),
    row(
        &["ioctl FS_IOC_SETFLAGS"],
        &NOT_LINK,
        &[Rw],
        &[Superuser],
        &[Errno::NOTTY],
        "it asks for the flags first",
    ),
    row(
        &["ioctl FS_IOC_SETFLAGS"],
        &NOT_LINK,
        &[Rw],
        &[Someone],
        &[Errno::PERM],
        "only the owner may",
    ),
    row(&["truncate"], &FOLDERS, &EITHER, &ANYBODY, &[Errno::ISDIR], "a folder has no bytes"),
    row(&["truncate"], &[Link], &EITHER, &ANYBODY, &[Errno::ISDIR], "it leads to a folder"),
    row(
        &["truncate"],
        &FILES,
        &[Rw],
        &[Someone],
        &[Errno::ACCESS],
        "nobody has the right to write",
    ),
    row(
        &["chmod", "chown", "utimensat"],
        &KINDS,
        &[Rw],
        &[Someone],
        &[Errno::PERM],
        "only the owner may",
    ),
    row(
        &["setxattr", "removexattr"],
        &[Link],
        &[Rw],
        &ANYBODY,
        &[Errno::PERM],
        "links have no user attributes",
    ),
    row(
        &["setxattr", "removexattr"],
        &NOT_LINK,
        &[Rw],
        &[Someone],
        &[Errno::ACCESS],
        "nobody has the right to write",
    ),
    row(&["link"], &FOLDERS, &[Rw], &ANYBODY, &[Errno::PERM], "folders have one name"),
    row(
        &["link"],
        &NOT_FOLDERS,
        &[Rw],
        &[Someone],
        &[Errno::PERM, Errno::ACCESS],
        "fs.protected_hardlinks, or else the folder's rights",
    ),
    row(
        &RENAMES,
        &[Root],
        &EITHER,
        &ANYBODY,
        &[Errno::XDEV],
        "the mountpoint's name is in another file system",
    ),
    row(
        &RENAMES,
        &NOT_ROOT,
        &[Rw],
        &[Someone],
        &[Errno::ACCESS],
        "nobody has the right to write into the folder",
    ),
    row(
        &["unlink", "rmdir"],
        &[Root],
        &EITHER,
        &[Someone],
        &[Errno::ACCESS],
        "the folder it is in is somebody else's",
    ),
    row(&["rmdir"], &[Root], &EITHER, &[Superuser], &[Errno::BUSY], "a mountpoint"),
    row(&["unlink"], &FOLDERS, &[Rw], &[Superuser], &[Errno::ISDIR], "a folder"),
    row(&["rmdir"], &NOT_FOLDERS, &[Rw], &[Superuser], &[Errno::NOTDIR], "not a folder"),
    row(
        &["unlink"],
        &[Root],
        &[Ro],
        &[Superuser],
        &[Errno::ISDIR],
        "a folder, whose name is in another file system",
    ),
    row(
        &["unlink", "rmdir"],
        &NOT_ROOT,
        &[Rw],
        &[Someone],
        &[Errno::ACCESS],
        "nobody has the right to write",
    ),
];

fn expected(call: &str, kind: Kind, mounted: Mounted, who: Who) -> &'static [Errno] {
    let mut rows = ELSEWHERE.iter().filter(|row| {
        row.calls.contains(&call)
            && row.kinds.contains(&kind)
            && row.mounted.contains(&mounted)
            && row.who.contains(&who)
    });
    let first = rows.next();
    let second = rows.next().map(|row| row.why);
    assert!(second.is_none(), "two lines cover {call} {kind:?} {mounted:?} {who:?}: {second:?}");
    first.map_or(&[Errno::ROFS], |row| row.errnos)
}

fn targets(mount: &Mount) -> Vec<Target> {
    let target = |kind, node: &str, absent: &str, beside: &str, other: &str| Target {
        kind,
        node: if node.is_empty() { mount.path() } else { mount.at(node) },
        absent: mount.at(absent),
        beside: mount.at(beside),
        other: mount.at(other),
    };
    vec![
        target(Root, "", "new", "moved", "index.json"),
        target(Workers, "workers", "workers/new", "moved", "index.json"),
        target(Worker, "workers/alpha", "workers/alpha/new", "workers/moved", "workers/index.json"),
        target(
            Own,
            "workers/alpha/result.txt",
            "workers/alpha/tool_calls/new",
            "workers/alpha/moved",
            "workers/alpha/summary",
        ),
        target(
            Generated,
            "workers/alpha/evidence.txt",
            "runs/r1/new",
            "workers/alpha/moved",
            "workers/alpha/result.txt",
        ),
        target(
            Link,
            "runs/r1/workers/alpha",
            "runs/r1/workers/new",
            "runs/r1/workers/moved",
            "index.json",
        ),
    ]
}

/// The answer to each call on a node of each kind.
type Answers = BTreeMap<(&'static str, Kind, Mounted, Who), Result<(), Errno>>;

/// Asserts that every call was refused with the expected error.
fn assert_refused(seen: &Answers) {
    let mut wrong: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ((call, kind, mounted, who), answer) in seen {
        if !answer.is_err_and(|errno| expected(call, *kind, *mounted, *who).contains(&errno)) {
            let place = format!("{kind:?} {mounted:?} {who:?}");
            wrong.entry(format!("{call} answers {answer:?}")).or_default().push(place);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(seen.values().all(|answer| !matches!(answer, Ok(()) | Err(Errno::NOSYS))));
}

/// Makes every call on every node as `who`.
fn attempt(targets: &[Target], mounted: Mounted, who: Who, seen: &mut Answers) {
    let calls: Vec<Call> =
        CALLS.into_iter().chain([("copy_file_range", copy_into as fn(&Target) -> _)]).collect();
    let all = || {
        let mut all = Vec::new();
        for target in targets {
            for (name, call) in &calls {
                all.push(((*name, target.kind, mounted, who), call(target)));
            }
        }
        all
    };
    seen.extend(if who == Someone { as_user(OTHER, all) } else { all() });
}

/// All metadata and bytes of the store's files, read without changing their atimes.
#[derive(Debug, PartialEq, Eq)]
pub struct State(BTreeMap<PathBuf, (Vec<i128>, Vec<u8>)>);

impl State {
    pub fn of(paths: &[PathBuf]) -> State {
        let stat = |path: &PathBuf| {
            let meta = fs::symlink_metadata(path).unwrap();
            vec![
                meta.ino().into(),
                meta.mode().into(),
                meta.uid().into(),
                meta.gid().into(),
                meta.size().into(),
                meta.nlink().into(),
                meta.atime().into(),
                meta.atime_nsec().into(),
                meta.mtime().into(),
                meta.mtime_nsec().into(),
                meta.ctime().into(),
                meta.ctime_nsec().into(),
            ]
        };
        let stats: Vec<Vec<i128>> = paths.iter().map(stat).collect();
        let bytes = paths.iter().map(|path| {
            let mut bytes = Vec::new();
            if fs::symlink_metadata(path).unwrap().is_file() {
                let flags = OFlags::RDONLY | OFlags::NOATIME | OFlags::CLOEXEC;
                File::from(rustix::fs::open(path, flags, Mode::empty()).unwrap())
                    .read_to_end(&mut bytes)
                    .unwrap();
            }
            bytes
        });
        State(paths.iter().cloned().zip(stats.into_iter().zip(bytes)).collect())
    }

    /// Describes all differences from `after`.
    pub fn differences(&self, after: &State) -> Vec<String> {
        let changed = |(path, before): (&PathBuf, &(Vec<i128>, Vec<u8>))| {
            let now = &after.0[path];
            (now != before)
                .then(|| format!("{}: {:?} became {:?}", path.display(), before.0, now.0))
        };
        self.0.iter().filter_map(changed).collect()
    }
}

fn everything_in(folder: &Path, found: &mut Vec<PathBuf>) {
    found.push(folder.to_path_buf());
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => everything_in(&entry.path(), found),
            false => found.push(entry.path()),
        }
    }
}

/// Returns all paths of a store, with atimes far older than their mtimes, so that a read without
/// O_NOATIME would change them.
pub fn settled(store: &TestStore) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    everything_in(&store.path(), &mut paths);
    for path in &paths {
        let last_access = Timespec { tv_sec: 1_000, tv_nsec: 0 };
        let last_modification = Timespec { tv_sec: 1_700_000_000, tv_nsec: 123_456_789 };
        rustix::fs::utimensat(
            CWD,
            path,
            &Timestamps { last_access, last_modification },
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap();
    }
    paths
}

/// Promise: Nobody can change anything through any node, whatever the mount options.
#[test]
fn nothing_can_be_changed_through_any_node() {
    needs_fuse!();
    let store = swarm();
    let paths = settled(&store);
    let before = State::of(&paths);
    let mount = Mount::with(&store.path(), &["--allow-other", "--all-owners"]);
    let targets = targets(&mount);
    let mut seen = Answers::new();
    for mounted in [Ro, Rw] {
        if mounted == Rw {
            mount.remount("rw");
        }
        for who in [Superuser, Someone] {
            attempt(&targets, mounted, who, &mut seen);
        }
        let out = mount
            .shell(r#"find "$M" -type f -exec cat {} + >/dev/null && ls -laR "$M" >/dev/null"#);
        assert!(out.status.success(), "{out:?}");
    }
    assert_eq!(seen.len(), (CALLS.len() + 1) * KINDS.len() * 4);
    for call in ELSEWHERE.iter().flat_map(|row| row.calls) {
        assert!(
            seen.contains_key(&(*call, Own, Rw, Superuser)),
            "{call} is in the list but was never made"
        );
    }
    assert_refused(&seen);
    let differences = before.differences(&State::of(&paths));
    assert!(differences.is_empty(), "the store was changed: {differences:#?}");
    let mut after = Vec::new();
    everything_in(&store.path(), &mut after);
    assert_eq!(
        paths.iter().collect::<BTreeSet<_>>(),
        after.iter().collect(),
        "the files of the store changed"
    );
}

#[test]
fn reading_everything_leaves_no_trace_in_the_store() {
    needs_fuse!();
    let store = swarm();
    let paths = settled(&store);
    let before = State::of(&paths);
    let mount = Mount::new(&store.path());
    let out =
        mount.shell(r#"for i in 1 2; do grep -rc . "$M"; ls -laR "$M"; cat "$M"/workers/*/evidence.1M.txt; done"#);
    assert!(!out.stdout.is_empty());
    let differences = before.differences(&State::of(&paths));
    assert!(differences.is_empty(), "the store was touched: {differences:#?}");
}

/// Promise: The mount is marked read-only for the kernel.
#[test]
fn mount_is_flagged_read_only() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    let table = fs::read("/proc/self/mountinfo").unwrap();
    let table = String::from_utf8_lossy(&table);
    let point = fs::canonicalize(mount.path().parent().unwrap()).unwrap().join("mnt");
    let line =
        table.lines().find(|line| line.split(' ').nth(4).map(Path::new) == Some(&point)).unwrap();
    let options: Vec<&str> = line.split(' ').nth(5).unwrap().split(',').collect();
    for option in ["ro", "nosuid", "nodev", "noatime"] {
        assert!(options.contains(&option), "{line} lacks {option}");
    }
    assert!(
        line.ends_with(",default_permissions") || line.contains(",default_permissions,"),
        "{line}"
    );
    let error = File::create(mount.at("new")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
}

/// Promise: The program holds no writable descriptor of the store.
#[test]
fn server_holds_no_writable_descriptor_of_the_store() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    let _held: Vec<File> = [
        "workers/alpha/result.txt",
        "workers/alpha/evidence.txt",
        "workers/alpha",
        "supervisor/strategy.md",
    ]
    .map(|path| File::open(mount.at(path)).unwrap())
    .into();
    let root = fs::canonicalize(store.path()).unwrap();
    let mut of_the_store = Vec::new();
    for entry in fs::read_dir(format!("/proc/{}/fd", mount.pid())).unwrap() {
        let entry = entry.unwrap();
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        if !target.starts_with(&root) {
            continue;
        }
        let info = format!("/proc/{}/fdinfo/{}", mount.pid(), entry.file_name().to_string_lossy());
        let info = fs::read_to_string(info).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        let flags = u32::from_str_radix(flags, 8).unwrap();
        assert_eq!(flags & 0o3, 0, "{} is open for writing: {info}", target.display());
        of_the_store.push(target);
    }
    for held in ["", "workers/alpha/result.txt", "supervisor/strategy.md"] {
        let path = if held.is_empty() { root.clone() } else { root.join(held) };
        assert!(of_the_store.contains(&path), "{held:?} is not among {of_the_store:?}");
    }
}
