//! Content of the mounted tree: listings, query names, workers' files, modes, times and inode
//! numbers.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use serde_json::{Value, json};

use super::{Snapshot, eventually, swarm};
use crate::needs_fuse;
use crate::support::skip;
use crate::support::{Mount, TestStore};

/// Promise: The root lists the directories and files about the whole swarm.
#[test]
fn root_lists_the_files_of_the_swarm() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    let root = [
        "README.md",
        "by",
        "compare",
        "evidence.txt",
        "grep",
        "index.json",
        "runs",
        "search",
        "semantic",
        "summary",
        "supervisor",
        "workers",
    ];
    assert_eq!(mount.list(""), root);
    assert_eq!(mount.list("workers"), ["alpha", "beta", "gamma", "index.json", "index.json.own"]);
    assert_eq!(mount.list("runs"), ["latest", "r1", "r2"]);
    assert_eq!(mount.list("runs/r1"), ["evidence.txt", "index.json", "summary", "workers"]);
    assert_eq!(mount.list("runs/r1/workers"), ["alpha", "beta"]);
    assert_eq!(mount.list("supervisor"), ["strategy.md"]);
    let alpha =
        ["evidence.txt", "index.json", "metadata.json", "result.txt", "summary", "tool_calls"];
    assert_eq!(mount.list("workers/alpha"), alpha);
    assert_eq!(
        mount.list("workers/alpha/tool_calls"),
        ["001_ssh_exec.txt", "002_ssh_exec.txt", "003_grep_logs.txt"]
    );
    assert_eq!(mount.text("supervisor/strategy.md"), "# Strategy\n");
}

#[test]
fn a_store_without_notes_has_no_supervisor() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("a", json!({}));
    let mount = Mount::new(&store.path());
    assert_eq!(
        mount.list(""),
        [
            "README.md",
            "by",
            "compare",
            "evidence.txt",
            "grep",
            "index.json",
            "runs",
            "search",
            "semantic",
            "summary",
            "workers"
        ]
    );
    assert_eq!(mount.list("runs"), [""; 0]);
    assert_eq!(fs::metadata(mount.at("supervisor")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(
        fs::symlink_metadata(mount.at("runs/latest")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

/// Promise: The root, every worker and every run have `index.json`, `evidence.txt` and `summary`.
#[test]
fn root_workers_and_runs_have_the_generated_files() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    for place in
        ["", "workers/alpha/", "workers/beta/", "workers/gamma/", "runs/r1/", "runs/latest/"]
    {
        let index: Value =
            serde_json::from_slice(&mount.read(&format!("{place}index.json"))).unwrap();
        assert!(index.is_object());
        assert!(
            mount.text(&format!("{place}evidence.txt")).starts_with("--- Evidence for "),
            "{place}"
        );
        assert!(mount.text(&format!("{place}summary")).ends_with('\n'), "{place}");
    }
    assert_eq!(mount.read("workers/index.json"), mount.read("index.json"));
    let index: Value = serde_json::from_slice(&mount.read("index.json")).unwrap();
    assert_eq!(index["total_workers"], 3);
    assert!(mount.read("README.md").len() < 2_048);
}

/// Promise: Children are links in their parent's directory.
#[test]
fn children_are_links_in_the_parent_directory() {
    needs_fuse!();
    let store = TestStore::new();
    for (id, owner, parent) in
        [("p", "1", "-"), ("mine", "1", "p"), ("other", "2", "p"), ("alone", "1", "gone")]
    {
        store.worker(id, json!({"owner_id": owner, "parent_id": parent, "status": "running"}));
    }
    store.write("workers/alone/children/own.txt", "its own");
    let all = Mount::new(&store.path());
    assert_eq!(all.list("workers/p/children"), ["mine", "other"]);
    assert_eq!(fs::read_link(all.at("workers/p/children/mine")).unwrap().as_os_str(), "../../mine");
    assert_eq!(
        all.read("workers/p/children/mine/metadata.json"),
        all.read("workers/mine/metadata.json")
    );
    assert!(all.list("workers/p").contains(&"children".to_owned()));
    // There is no empty directory, and a worker's own directory of that name gets another name.
    for childless in ["mine", "alone"] {
        assert!(!all.list(&format!("workers/{childless}")).contains(&"children".to_owned()));
        let absent = fs::metadata(all.at(&format!("workers/{childless}/children"))).unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::NotFound);
    }
    assert_eq!(all.text("workers/alone/children.own/own.txt"), "its own");
    let mine = Mount::with(&store.path(), &["--owner", "1"]);
    assert_eq!(mine.list("workers/p/children"), ["mine"]);
    assert!(fs::read_link(mine.at("workers/p/children/other")).is_err());
    store.worker("late", json!({"owner_id": "1", "parent_id": "p", "status": "running"}));
    eventually("a child that came later", || {
        (mine.list("workers/p/children") == ["late", "mine"]).then_some(())
    });
}

/// Promise: Links lead to workers and to the latest run.
#[test]
fn links_lead_to_workers_and_the_latest_run() {
    needs_fuse!();
    let store = swarm();
    store.worker("delta", json!({"run_id": "r1", "status": "running"}));
    let earlier = SystemTime::now() - Duration::from_secs(5_000);
    for path in ["workers/alpha", "workers/beta", "workers/delta"] {
        age(&store.at(path), earlier);
    }
    let mount = Mount::new(&store.path());
    assert_eq!(fs::read_link(mount.at("runs/latest")).unwrap().as_os_str(), "r2");
    let through = fs::canonicalize(mount.at("runs/r1/workers/alpha")).unwrap();
    assert_eq!(through, fs::canonicalize(mount.at("workers/alpha")).unwrap());
    assert_eq!(
        mount.read("runs/latest/workers/gamma/metadata.json"),
        fs::read(store.at("workers/gamma/metadata.json")).unwrap()
    );
    for link in ["runs/latest", "runs/r1/workers/alpha"] {
        let size = fs::symlink_metadata(mount.at(link)).unwrap().len();
        assert_eq!(size, fs::read_link(mount.at(link)).unwrap().as_os_str().len() as u64, "{link}");
    }
    store.call("delta", 1, "echo", "later\n");
    eventually("the latest run is another", || {
        (fs::read_link(mount.at("runs/latest")).ok()?.as_os_str() == "r1").then_some(())
    });
}

/// Sets the times of a directory and of its content to `then`.
fn age(path: &std::path::Path, then: SystemTime) {
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| age(&entry.unwrap().path(), then));
    }
    fs::File::open(path).unwrap().set_modified(then).unwrap();
}

/// Promise: Names with options can be opened and are never listed.
#[test]
fn names_with_options_open_but_are_not_listed() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    let found = || -> BTreeSet<String> {
        let out = mount.shell(r#"find "$M" -type f -printf '%P\n'"#);
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect()
    };
    let before = found();
    for place in ["", "workers/alpha/", "runs/r1/"] {
        assert_eq!(mount.read(&format!("{place}evidence.0.txt")), b"");
        for (size, most) in [("500", 500), ("4k", 4_096), ("1M", 1 << 20), ("64M", 64 << 20)] {
            let bytes = mount.read(&format!("{place}evidence.{size}.txt"));
            assert!(!bytes.is_empty() && bytes.len() <= most, "{place} {size}: {}", bytes.len());
        }
        for none in [
            "evidence.65M.txt",
            "evidence..txt",
            "evidence.x.txt",
            "evidence.4k",
            "evidence.4k.txt.own",
            ".git",
            ".ignore",
        ] {
            let error = fs::metadata(mount.at(&format!("{place}{none}"))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{place}{none}");
        }
    }
    assert_eq!(found(), before, "a name with options is listed");
    assert!(before.iter().all(|path| !path.contains("evidence.4k")), "{before:?}");
    let out =
        mount.shell(r#"cd / && grep -rlE '' "$M" | sed "s|^$M/||"; rg -uuu --files "$M" >/dev/null 2>&1 || true"#);
    let grepped: BTreeSet<String> =
        String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(grepped, before, "grep -r and find visit different files");
}

/// Promise: A worker's own file with a reserved name appears with the suffix `.own`.
#[test]
fn own_file_with_a_reserved_name_gets_the_own_suffix() {
    needs_fuse!();
    let store = swarm();
    for name in
        ["summary", "index.json", "evidence.txt", "evidence.4k.txt", "summary.own", "README.md"]
    {
        store.write(format!("workers/alpha/{name}"), format!("mine: {name}"));
    }
    let mount = Mount::new(&store.path());
    for (shown, name) in [
        ("summary.own", "summary"),
        ("index.json.own", "index.json"),
        ("evidence.txt.own", "evidence.txt"),
        ("evidence.4k.txt.own", "evidence.4k.txt"),
        ("summary.own.own", "summary.own"),
        ("README.md", "README.md"),
    ] {
        assert_eq!(mount.text(&format!("workers/alpha/{shown}")), format!("mine: {name}"));
        assert!(mount.list("workers/alpha").contains(&shown.to_owned()), "{shown}");
    }
    assert!(!mount.text("workers/alpha/summary").contains("mine"));
    assert_eq!(mount.text("workers/index.json.own"), r#"{"workers":[]}"#);
    let listed = mount.list("workers/alpha");
    assert_eq!(listed.len(), listed.iter().collect::<BTreeSet<_>>().len(), "{listed:?}");
}

/// Promise: A worker's own files are shown byte for byte.
#[test]
fn own_files_are_shown_byte_for_byte() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({"status": "running"}));
    let sizes = [0, 1, 4_095, 4_096, 4_097, 131_071, 131_072, 131_073, 5_000_000];
    let body = |size: usize| -> Vec<u8> { (0..size).map(|at| (at * 7 + at / 251) as u8).collect() };
    for size in sizes {
        store.write(format!("workers/w/outputs/{size}.bin"), body(size));
    }
    let sparse = store.write("workers/w/outputs/sparse", "");
    let file = fs::File::options().write(true).open(&sparse).unwrap();
    file.set_len(1 << 33).unwrap();
    file.write_all_at(b"middle", (1 << 32) - 3).unwrap();
    let mount = Mount::new(&store.path());
    for size in sizes {
        let path = mount.at(&format!("workers/w/outputs/{size}.bin"));
        let expected = body(size);
        let whole = Snapshot::open(&path).unwrap();
        assert_eq!(whole.size, size as u64);
        assert!(whole.bytes == expected, "{size}");
        let file = fs::File::open(&path).unwrap();
        for at in [0, 1, 511, 4_095, 4_096, 65_537, 131_072, 4_999_999, 5_000_000, 1 << 40] {
            for length in [1, 4_096, 100_000] {
                let mut buffer = vec![0; length];
                let mut read = 0;
                while read < length {
                    match file.read_at(&mut buffer[read..], (at + read) as u64).unwrap() {
                        0 => break,
                        n => read += n,
                    }
                }
                let end = (at + length).min(size);
                assert_eq!(
                    &buffer[..read],
                    expected.get(at..end).unwrap_or_default(),
                    "{size}: {length} at {at}"
                );
            }
        }
    }
    let sparse = fs::File::open(mount.at("workers/w/outputs/sparse")).unwrap();
    assert_eq!(sparse.metadata().unwrap().len(), 1 << 33);
    let mut buffer = [1; 12];
    sparse.read_exact_at(&mut buffer, (1 << 32) - 6).unwrap();
    assert_eq!(&buffer, b"\0\0\0middle\0\0\0");
    sparse.read_exact_at(&mut buffer, (1 << 33) - 12).unwrap();
    assert_eq!(buffer, [0; 12]);
}

/// Promise: A directory of many files is listed completely, each name once.
#[test]
fn large_directory_is_listed_completely() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({}));
    let names: Vec<String> =
        (0..3_000).map(|n| format!("artifact-{n:05}-{}", "x".repeat(n % 150))).collect();
    for name in &names {
        store.write(format!("workers/w/outputs/{name}"), name);
    }
    let mount = Mount::new(&store.path());
    let mut expected = names.clone();
    expected.sort();
    assert_eq!(mount.list("workers/w/outputs"), expected);
    assert_eq!(mount.text(&format!("workers/w/outputs/{}", names[2_718])), names[2_718]);
}

#[test]
fn links_in_a_worker_are_not_shown() {
    needs_fuse!();
    let store = swarm();
    store.write("secret", "secret");
    symlink("../../secret", store.at("workers/alpha/up")).unwrap();
    symlink("/etc/hostname", store.at("workers/alpha/absolute")).unwrap();
    symlink("metadata.json", store.at("workers/alpha/inner")).unwrap();
    symlink("nowhere", store.at("workers/alpha/dangling")).unwrap();
    symlink("../beta", store.at("workers/alpha/neighbour")).unwrap();
    symlink("alpha", store.at("workers/linked")).unwrap();
    let mut mount = Mount::new(&store.path());
    mount.expect_warning("lookup: a link or a path out of the store");
    assert_eq!(mount.list("workers"), ["alpha", "beta", "gamma", "index.json", "index.json.own"]);
    for name in ["up", "absolute", "inner", "dangling", "neighbour", "neighbour/metadata.json"] {
        assert!(!mount.list("workers/alpha").contains(&name.to_owned()));
        let error = fs::symlink_metadata(mount.at(&format!("workers/alpha/{name}"))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{name}");
    }
    assert_eq!(
        fs::symlink_metadata(mount.at("workers/linked")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert!(mount.text("workers/alpha/index.json").contains("5 links"), "links are not counted");
}

/// Promise: Modes are those of the source without write permission.
#[test]
fn modes_are_those_of_the_source_without_write() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({"status": "running"}));
    for mode in [0o644_u32, 0o600, 0o640, 0o777, 0o755, 0o4755, 0o2755, 0o1777, 0o222, 0o000] {
        let path = store.write(format!("workers/w/outputs/{mode:o}"), "x");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        fs::create_dir(store.at(format!("workers/w/folder-{mode:o}"))).unwrap();
        fs::set_permissions(
            store.at(format!("workers/w/folder-{mode:o}")),
            fs::Permissions::from_mode(mode),
        )
        .unwrap();
    }
    std::os::unix::fs::chown(store.at("workers/w/outputs/644"), Some(4_242), Some(4_343)).unwrap();
    let mount = Mount::new(&store.path());
    for mode in [0o644_u32, 0o600, 0o640, 0o777, 0o755, 0o4755, 0o2755, 0o1777, 0o222, 0o000] {
        for path in [format!("workers/w/outputs/{mode:o}"), format!("workers/w/folder-{mode:o}")] {
            let shown = fs::metadata(mount.at(&path)).unwrap();
            assert_eq!(shown.mode() & 0o7777, mode & 0o555, "{path}");
            assert_eq!(shown.nlink(), 1, "{path}");
        }
    }
    let meta = fs::metadata(mount.at("workers/w/outputs/644")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (4_242, 4_343));
    // Generated from files that not everyone may read, so not everyone may read it.
    for name in ["index.json", "summary", "evidence.txt"] {
        let mode = fs::metadata(mount.at(&format!("workers/w/{name}"))).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o000, "{name} quotes a file that nobody may read");
    }
    let readme = fs::metadata(mount.at("README.md")).unwrap();
    assert_eq!((readme.mode() & 0o7777, readme.nlink()), (0o444, 1));
}

#[test]
fn there_are_no_extended_attributes() {
    needs_fuse!();
    let store = swarm();
    let path = store.at("workers/alpha/result.txt");
    let set =
        rustix::fs::setxattr(&path, "user.secret", b"canary", rustix::fs::XattrFlags::empty());
    let mount = Mount::new(&store.path());
    let mut buffer = [0_u8; 256];
    for path in ["workers/alpha/result.txt", "workers/alpha", "", "index.json", "runs/latest"] {
        let at = mount.at(path);
        for name in ["user.secret", "security.capability", "system.posix_acl_access", "trusted.x"] {
            let error = rustix::fs::lgetxattr(&at, name, &mut buffer).unwrap_err();
            // NODATA: for symlinks the kernel answers by itself.
            assert!([Errno::OPNOTSUPP, Errno::NODATA].contains(&error), "{path} {name}: {error}");
        }
        let listed = rustix::fs::llistxattr(&at, &mut buffer);
        assert!(matches!(listed, Err(Errno::OPNOTSUPP) | Ok(0)), "{path}: {listed:?}");
    }
    if let Err(errno) = set {
        skip(&format!("a source with extended attributes: {errno}"));
    }
}

/// Promise: A worker's mtime is that of its newest change.
#[test]
fn mtime_of_a_worker_is_its_newest_change() {
    needs_fuse!();
    let store = swarm();
    let newest = SystemTime::UNIX_EPOCH + Duration::new(2_000_000_000, 123_456_789);
    let path = store.write("workers/alpha/outputs/deep/er/file", "x");
    fs::File::open(&path).unwrap().set_modified(newest).unwrap();
    let mount = Mount::new(&store.path());
    assert_eq!(fs::metadata(mount.at("workers/alpha")).unwrap().modified().unwrap(), newest);
    assert_eq!(
        fs::metadata(mount.at("workers/alpha/outputs/deep/er/file")).unwrap().modified().unwrap(),
        newest
    );
    for file in ["workers/alpha/summary", "runs/r1/index.json", "index.json", "evidence.txt"] {
        assert_eq!(fs::metadata(mount.at(file)).unwrap().modified().unwrap(), newest, "{file}");
    }
    let out = mount.shell(r#"ls -td "$M"/workers/*/ | head -n 1"#);
    assert!(String::from_utf8(out.stdout).unwrap().ends_with("workers/alpha/\n"));
}

#[test]
fn inode_numbers_of_unchanged_files_are_stable() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    let device = fs::metadata(mount.path()).unwrap().dev();
    assert_eq!(u64::from(rustix::fs::minor(device)), mount.connection());
    let paths = [
        "",
        "workers",
        "workers/alpha",
        "workers/alpha/tool_calls",
        "workers/alpha/result.txt",
        "workers/alpha/summary",
        "workers/alpha/evidence.777.txt",
        "index.json",
        "evidence.txt",
        "summary",
        "README.md",
        "runs/latest",
        "runs/r1",
        "runs/r1/workers/alpha",
        "runs/r1/index.json",
        "supervisor/strategy.md",
        "workers/index.json",
        "workers/index.json.own",
    ];
    let number = |path: &str| {
        let meta = fs::symlink_metadata(mount.at(path)).unwrap();
        assert_eq!(meta.dev(), device, "{path}");
        meta.ino()
    };
    let numbers: Vec<u64> = paths.iter().map(|path| number(path)).collect();
    assert_eq!(
        numbers.iter().collect::<BTreeSet<_>>().len(),
        paths.len(),
        "two files share an inode number"
    );
    // Longer than any cache time: the kernel requests all of them again.
    let asked_again = eventually("a second and a half", {
        let begun = std::time::Instant::now();
        move || (begun.elapsed() > Duration::from_millis(1_500)).then_some(true)
    });
    assert!(asked_again);
    for (path, before) in paths.iter().zip(numbers) {
        assert_eq!(number(path), before, "the inode number of {path} changed");
        assert_eq!(number(path), before, "{path}");
    }
}
