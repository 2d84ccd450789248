//! R1: no path escapes, whatever it contains: at names, the disk store, the tree and the mount.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde_json::json;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{NAME_MAX, Name, RelPath};
use swarmletfs_base::store::{Disk, Kind, Store, read_range};
use swarmletfs_tree::tree::{DirPosition, Ino, NodeKind, ROOT, Settings, Tree};
use swarmletfs_tree::view::Filter;

use super::{CANARY, Dice, holds_canary};
use crate::needs_fuse;
use crate::support::{Mount, TestStore, is_full, scale, seed};

/// Number of paths tried without a mount.
const PATHS: usize = 20_000;
/// Number of paths tried through a mount.
const PATHS_MOUNTED: usize = 2_000;
/// Nothing changes in this test, so nothing need be read again.
const NEVER: Duration = Duration::from_secs(3_600);

/// Other owners' workers, with names as similar as possible to that of the visible worker.
const SIBLINGS: [&str; 5] = ["w1-evil", "W1", "w1.", "w1~2", "w"];

/// A store where `workers/w1` is the reader's own and canaries lie everywhere else.
struct Scene {
    store: TestStore,
}

impl Scene {
    fn new() -> Scene {
        let store = TestStore::new();
        store.worker("w1", json!({"owner_id": "A", "run_id": "r1"})).call(
            "w1",
            1,
            "sh",
            "{\"ok\": true}",
        );
        store.write("workers/w1/result.txt", "fine");
        store.write("workers/w1/outputs/deep/report.md", "all is well");
        for id in SIBLINGS {
            store.worker(id, json!({"owner_id": "B", "run_id": "r2", "task": CANARY}));
            store.write(format!("workers/{id}/canary.txt"), format!("{CANARY} sibling"));
        }
        store.write("canary.txt", format!("{CANARY} beside"));
        store.write("supervisor/canary.txt", format!("{CANARY} beside"));
        fs::write(store.path().parent().unwrap().join("canary.txt"), format!("{CANARY} outside"))
            .unwrap();
        Scene { store }
    }

    fn own(&self) -> PathBuf {
        self.store.at("workers/w1")
    }

    /// Returns a hostile path, relative to the directory `own` or to the root of the mount.
    fn path(&self, dice: &mut Dice) -> Vec<u8> {
        let outside = self.store.path().parent().unwrap().join("canary.txt");
        let mut path = match dice.below(9) {
            0 => outside.as_os_str().as_bytes().to_vec(),
            1 => [b"/proc/self/root", outside.as_os_str().as_bytes()].concat(),
            2 | 3 => format!("../{}/canary.txt", dice.pick(&SIBLINGS)).into_bytes(),
            4 => b"../../canary.txt".to_vec(),
            5 => b"../../../canary.txt".to_vec(),
            6 => format!("workers/w1/../{}/canary.txt", dice.pick(&SIBLINGS)).into_bytes(),
            7 => dice.pick(&GOOD).as_bytes().to_vec(),
            _ => {
                let parts: Vec<&str> = (0..=dice.below(9)).map(|_| *dice.pick(&PARTS)).collect();
                parts.join("/").into_bytes()
            }
        };
        for _ in 0..dice.below(4) {
            path = distort(dice, path);
        }
        path
    }
}

const GOOD: [&str; 7] = [
    "result.txt",
    "tool_calls/001_sh.txt",
    "outputs/deep/report.md",
    "summary",
    "workers/w1/result.txt",
    "workers/w1/evidence.900.txt",
    "runs/r1/workers/w1",
];

const PARTS: [&str; 33] = [
    "..",
    "..",
    "..",
    ".",
    "",
    "w1",
    "w1-evil",
    "W1",
    "workers",
    "runs",
    "r1",
    "r2",
    "latest",
    "tool_calls",
    "outputs",
    "deep",
    "canary.txt",
    "result.txt",
    "...",
    "~",
    "%2e%2e",
    "%2E.",
    "..%2f..",
    "supervisor",
    "index.json",
    "summary",
    "by",
    "status",
    "limit",
    "grep",
    "grep@..%2F*",
    "compare",
    "compare@..%2F..",
];

/// Makes a path worse in one of many ways.
fn distort(dice: &mut Dice, path: Vec<u8>) -> Vec<u8> {
    let join = |parts: &[&[u8]]| parts.concat();
    let at = dice.below(path.len() + 1);
    match dice.below(16) {
        0 => join(&[
            dice.pick(&["outputs/../", "./", "outputs/deep/../../", "../w1/"]).as_bytes(),
            &path,
        ]),
        1 => replaced(
            &path,
            b'/',
            dice.pick::<&[u8]>(&[b"/./", b"//", b"///", b"\\", b"/../w1/../"]),
        ),
        2 => join(&[
            &path,
            dice.pick(&["/", "/.", "/..", "//", "/../..", "\0", "\0.txt"]).as_bytes(),
        ]),
        3 => percent(&path, dice.once_in(2)),
        4 => percent(&percent(&path, false), true),
        5 => replaced(&replaced(&path, b'.', b"\xc0\xae"), b'/', b"\xc0\xaf"),
        6 => replaced(&path, b'.', b"\xe0\x80\xae"),
        7 => path.iter().map(|b| if dice.once_in(3) { b ^ (b & 0x40) >> 1 } else { *b }).collect(),
        8 => join(&[&path[..at], b"\0", &path[at..]]),
        9 => join(&[&path[..at], b"\xff\xfe", &path[at..]]),
        10 => {
            join(&[&b"a".repeat(*dice.pick(&[255, 256, NAME_MAX, NAME_MAX + 1])), b"/../", &path])
        }
        11 => join(&[&path, b"/", &b"b".repeat(*dice.pick(&[255, 256, NAME_MAX, NAME_MAX + 1]))]),
        12 => {
            let length = *dice.pick(&[4_095, 4_096]);
            let mut long = b"./".repeat(length / 2);
            long.truncate(length.saturating_sub(path.len()) & !1);
            long.extend_from_slice(&path);
            while long.len() < length {
                long.push(b'/');
            }
            long
        }
        13 => join(&[b"/", &path]),
        14 => replaced(
            &path,
            b'/',
            dice.pick::<&[u8]>(&[b"..;/", b"....//", b"../ /", b".../", b"..%00/"]),
        ),
        _ => join(&["../".repeat(dice.below(20)).as_bytes(), &path]),
    }
}

fn replaced(path: &[u8], byte: u8, with: &[u8]) -> Vec<u8> {
    path.iter().flat_map(|b| if *b == byte { with.to_vec() } else { vec![*b] }).collect()
}

fn percent(path: &[u8], upper: bool) -> Vec<u8> {
    let code = |b: u8| if upper { format!("%{b:02X}") } else { format!("%{b:02x}") }.into_bytes();
    path.iter().flat_map(|b| if b.is_ascii_alphanumeric() { vec![*b] } else { code(*b) }).collect()
}

fn unpercent(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = path;
    while let Some((byte, after)) = rest.split_first() {
        let code = after
            .get(..2)
            .and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        match (byte, code) {
            (b'%', Some(code)) => {
                out.push(code);
                rest = &after[2..];
            }
            _ => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    out
}

#[track_caller]
fn check_named(error: &Error, path: &[u8]) {
    let named = matches!(
        error,
        Error::NotFound
            | Error::Escape
            | Error::InvalidName
            | Error::NameTooLong
            | Error::NotADirectory
            | Error::IsADirectory
            | Error::Special
    );
    assert!(named, "{error:?} for {}", path.escape_ascii());
}

#[track_caller]
fn check_reply(reply: Result<Vec<u8>>, path: &[u8]) -> bool {
    match reply {
        Ok(bytes) => {
            assert!(!holds_canary(&bytes), "the canary was reached by {}", path.escape_ascii());
            true
        }
        Err(error) => {
            check_named(&error, path);
            false
        }
    }
}

#[test]
fn no_hostile_path_is_a_valid_name_or_leaves_the_disk_store() {
    let scene = Scene::new();
    let disk = Disk::open(&scene.own()).unwrap();
    let mut dice = Dice::new(seed());
    let (mut parsed, mut read) = (0, 0);
    for _ in 0..scale(PATHS) {
        let path = scene.path(&mut dice);
        for part in path.split(|b| *b == b'/').chain([path.as_slice()]) {
            match Name::new(part) {
                Ok(name) => {
                    assert!(name.as_bytes() == part && !part.is_empty() && part.len() <= NAME_MAX);
                    assert!(
                        part != b"."
                            && part != b".."
                            && !part.contains(&b'/')
                            && !part.contains(&0)
                    );
                }
                Err(error) => {
                    assert!(matches!(error, Error::InvalidName | Error::NameTooLong), "{error:?}")
                }
            }
        }
        let relative = match RelPath::parse(&path) {
            Ok(relative) => relative,
            Err(error) => {
                assert!(matches!(error, Error::InvalidName | Error::NameTooLong), "{error:?}");
                continue;
            }
        };
        assert_eq!(relative.as_bytes(), path);
        assert!(relative.names().all(|name| name.as_bytes() != b".."), "{relative:?}");
        parsed += 1;
        let bytes = disk.open(&relative).and_then(|file| read_range(&*file, 0, 1 << 16));
        read += usize::from(check_reply(bytes, &path));
        let names = disk.list(&relative).map(|entries| {
            let names = entries.iter().map(|entry| entry.name.as_bytes().to_vec());
            names.collect::<Vec<_>>().join(&b'/')
        });
        assert!(
            !names.as_ref().is_ok_and(|names| memchr::memmem::find(names, b"canary").is_some())
        );
        check_reply(names, &path);
        match disk.stat(&relative) {
            Ok(meta) => assert!(matches!(meta.kind, Kind::File | Kind::Folder)),
            Err(error) => check_named(&error, &path),
        }
    }
    assert!(
        parsed > scale(1_000) && read > scale(100),
        "the paths are not all refused for their form: {parsed} {read}"
    );
}

/// Reads `path` with one lookup per part, as a careless kernel would.
fn ask(tree: &Tree, from: Ino, path: &[u8]) -> Result<Vec<u8>> {
    let mut held = Vec::new();
    let mut last = (from, NodeKind::Folder);
    let mut found = Ok(());
    for part in path.split(|b| *b == b'/') {
        match tree.lookup(last.0, part) {
            Ok(next) => {
                held.push(next.ino);
                last = (next.ino, next.attr.kind);
            }
            Err(error) => {
                found = Err(error);
                break;
            }
        }
    }
    let reply = found.and_then(|()| match last.1 {
        NodeKind::Link => tree.read_link(last.0),
        NodeKind::File => {
            let fh = tree.open(last.0)?.fh;
            let bytes = tree.read(fh, 0, 1 << 20, <[u8]>::to_vec);
            tree.release(fh);
            bytes
        }
        NodeKind::Folder => {
            let items = tree.entries(last.0, DirPosition::Start)?.0.items;
            Ok(items
                .iter()
                .map(|item| item.name.as_bytes().to_vec())
                .collect::<Vec<_>>()
                .join(&b'/'))
        }
    });
    held.into_iter().for_each(|ino| tree.forget(ino, 1));
    reply
}

/// Promise: No hostile path leads out of an owner's view.
#[test]
fn hostile_paths_stay_in_the_view_of_an_owner() {
    let scene = Scene::new();
    let filter = Filter { owner: Some("A".into()), run: None };
    let tree = Tree::new(scene.store.view(NEVER, filter), Settings::default());
    let workers = tree.lookup(ROOT, b"workers").unwrap().ino;
    let own = tree.lookup(workers, b"w1").unwrap().ino;
    let mut dice = Dice::new(seed());
    let mut read = 0;
    for _ in 0..scale(PATHS) {
        let path = scene.path(&mut dice);
        for from in [ROOT, workers, own] {
            read += usize::from(check_reply(ask(&tree, from, &path), &path));
            // The whole path as one name: a name with a `/` is invalid.
            let whole = tree.lookup(from, &path);
            assert!(!path.contains(&b'/') || whole.is_err(), "{} is a name", path.escape_ascii());
            if let Ok(found) = whole {
                tree.forget(found.ino, 1);
            }
        }
    }
    assert!(read > scale(100), "the paths are not all refused for their form: {read}");
    tree.forget(own, 1);
    tree.forget(workers, 1);
    assert_eq!(tree.open_counts(), (0, 0), "every inode and handle was given back");
}

#[test]
fn control_common_resolvers_reach_the_canary() {
    let scene = Scene::new();
    let own = scene.own();
    let prefix = own.to_string_lossy().into_owned();
    let mut dice = Dice::new(seed());
    let (mut joined, mut decoded, mut checked) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let place = |bytes: &[u8]| String::from_utf8_lossy(bytes).split(' ').nth(1).map(str::to_owned);
    for _ in 0..PATHS {
        let path = scene.path(&mut dice);
        let (plain, clear) =
            (own.join(OsStr::from_bytes(&path)), own.join(OsStr::from_bytes(&unpercent(&path))));
        let reach = |path: &Path| fs::read(path).ok().filter(|bytes| holds_canary(bytes));
        joined.extend(reach(&plain).as_deref().and_then(place));
        if clear != plain {
            decoded.extend(reach(&clear).as_deref().and_then(place));
        }
        // Many servers do this: resolve the path, then compare it as text.
        if let Ok(real) = plain.canonicalize()
            && real.to_string_lossy().starts_with(&prefix)
        {
            checked.extend(reach(&real).as_deref().and_then(place));
        }
    }
    let all: BTreeSet<String> = ["beside", "outside", "sibling"].map(str::to_owned).into();
    assert_eq!(joined, all, "join and open");
    assert_eq!(decoded, all, "decode, join and open");
    assert_eq!(
        checked,
        BTreeSet::from(["sibling".to_owned()]),
        "resolve, compare prefixes and open"
    );
}

/// Promise: No hostile path leads out of the mount.
#[test]
fn hostile_paths_stay_in_the_mount() {
    needs_fuse!();
    let scene = Scene::new();
    let mut mount = Mount::with(&scene.store.path(), &["--owner", "A"]);
    mount.expect_warning("the name is too long");
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let roots: Vec<_> = ["", "workers/w1"]
        .iter()
        .map(|path| {
            rustix::fs::open(mount.at(path), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
        })
        .collect();
    let mut dice = Dice::new(seed());
    let mut read = 0;
    for turn in 0..scale(PATHS_MOUNTED) {
        let path = scene.path(&mut dice);
        let root = &roots[turn % 2];
        // A `..` that leaves the mount is the reader's own step; all answers of the mount must stay
        // inside.
        let climbs = path.starts_with(b"/") || path.split(|b| *b == b'/').any(|part| part == b"..");
        let resolve = if climbs { ResolveFlags::BENEATH } else { ResolveFlags::empty() };
        let opened =
            rustix::fs::openat2(root, OsStr::from_bytes(&path), flags, Mode::empty(), resolve);
        let errno = match opened {
            Ok(fd) => {
                let stat = rustix::fs::fstat(&fd).unwrap();
                if rustix::fs::FileType::from_raw_mode(stat.st_mode)
                    == rustix::fs::FileType::Directory
                {
                    let names = rustix::fs::Dir::read_from(&fd).unwrap();
                    for entry in names {
                        let entry = entry.unwrap();
                        assert!(
                            memchr::memmem::find(entry.file_name().to_bytes(), b"canary").is_none()
                        );
                    }
                    continue;
                }
                let mut bytes = vec![0; 1 << 16];
                let n = rustix::io::pread(&fd, &mut bytes, 0).unwrap();
                assert!(
                    !holds_canary(&bytes[..n]),
                    "the canary was reached by {}",
                    path.escape_ascii()
                );
                read += 1;
                continue;
            }
            Err(errno) => errno,
        };
        let allowed = [Errno::NOENT, Errno::NOTDIR, Errno::NAMETOOLONG, Errno::XDEV, Errno::INVAL];
        assert!(allowed.contains(&errno), "{errno:?} for {}", path.escape_ascii());
        assert!(
            errno != Errno::INVAL || path.contains(&0),
            "{errno:?} for {}",
            path.escape_ascii()
        );
    }
    assert!(read > 10 || !is_full(), "the paths are not all refused for their form: {read}");
}
