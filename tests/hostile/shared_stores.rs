//! Several users record into one store: owners, groups and modes of what they record, privacy, and
//! the log of their changes.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::XattrFlags;
use swarmletfs_record::write::{NewWorker, Store};

use super::CANARY;
use crate::cli::program::{CommandOutput, is_root, make_accessible, program, run};
use crate::support::mount::PROGRAM;
use crate::support::user::as_user;
use crate::support::{TestStore, is_full, scale, skip};

/// The group of all users of the shared store.
const GROUP: u32 = 54_300;
/// Number of messages while a hard link is planted.
const MESSAGES: usize = 2_000;

/// A user with a umask.
#[derive(Debug, Clone, Copy)]
struct User {
    uid: u32,
    umask: u32,
}

const ANNA: User = User { uid: 54_301, umask: 0o077 };
const BEN: User = User { uid: 54_302, umask: 0o077 };
/// A user who lets the group read.
const CARL: User = User { uid: 54_303, umask: 0o027 };

impl User {
    /// Returns a command of this user.
    fn command(self, arguments: &[&str]) -> Command {
        let (uid, gid) = (format!("--reuid={}", self.uid), format!("--regid={}", self.uid));
        let groups = format!("--groups={GROUP}");
        let umask = format!("umask {:o}; exec \"$@\"", self.umask);
        let before = [&uid, &gid, &groups, "--inh-caps=-all", "--", "sh", "-c", &umask, "sh"];
        program("setpriv", before.into_iter().chain(arguments.iter().copied()))
    }

    /// Runs swarmletfs on a store.
    #[track_caller]
    fn run(self, store: &Path, arguments: &[&str]) -> CommandOutput {
        let words: Vec<&str> = [PROGRAM].iter().chain(arguments).copied().collect();
        let mut command = self.command(&words);
        command.arg("--store").arg(store);
        run(command)
    }

    /// Records a worker: a call, a message, a file, and its end.
    #[track_caller]
    fn record(self, store: &Path, id: &str) {
        let content = store.parent().unwrap().join("message");
        let with_stdin = |arguments: &[&str]| {
            let words: Vec<&str> = [PROGRAM, "worker"].iter().chain(arguments).copied().collect();
            let mut command = self.command(&words);
            command.arg("--store").arg(store).stdin(fs::File::open(&content).unwrap());
            let done = run(command);
            done.assert_success();
            assert_eq!(done.err, "", "{done:#?}");
        };
        with_stdin(&["create", "--id", id, "--task", CANARY]);
        with_stdin(&["record", id, "--tool", "sh"]);
        with_stdin(&["message", id]);
        with_stdin(&["put", id, "outputs/report"]);
        with_stdin(&["finish", id, "--result", "-"]);
    }

    /// Returns true if this user can read a file.
    fn can_read(self, path: &Path) -> bool {
        run(self.command(&["cat", path.to_str().unwrap()])).code == Some(0)
    }
}

/// Makes a folder of this mode and group, owned by root, beside a message to record.
fn shared_folder(mode: u32) -> TestStore {
    let folder = TestStore::new();
    make_accessible(folder.path().parent().unwrap());
    let message = folder.path().parent().unwrap().join("message");
    fs::write(&message, "{\"role\": \"user\", \"content\": \"hi\"}\n").unwrap();
    chown(folder.path(), None, Some(GROUP)).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
    folder
}

/// Returns the owner, the group and the mode of an entry.
fn attributes(path: impl AsRef<Path>) -> (u32, u32, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.uid(), meta.gid(), meta.mode() & 0o7777)
}

/// Returns everything beneath a directory, and the directory.
fn all_below(folder: &Path) -> Vec<PathBuf> {
    let inside = super::walk(folder).into_keys();
    let inside =
        inside.map(|path| folder.join(std::ffi::OsStr::new(std::str::from_utf8(&path).unwrap())));
    inside.chain([folder.to_path_buf()]).collect()
}

fn init(store: &Path) {
    let mut command = program(PROGRAM, [OsString::from("init"), store.into()]);
    command.env("LC_ALL", "C");
    run(command).assert_success();
}

#[test]
fn store_of_a_group_gives_each_worker_its_group_and_the_umask_of_its_user() {
    if !is_root() {
        return;
    }
    let folder = shared_folder(0o2770);
    let store = folder.path();
    init(&store);
    for name in ["workers", "audit"] {
        assert_eq!(attributes(folder.at(name)), (0, GROUP, 0o2770), "{name}");
    }
    for (user, id, dir, file) in
        [(ANNA, "anna", 0o2700, 0o600), (BEN, "ben", 0o2700, 0o600), (CARL, "carl", 0o2750, 0o640)]
    {
        user.record(&store, id);
        for path in all_below(&folder.at(format!("workers/{id}"))) {
            let mode = if path.is_dir() { dir } else { file };
            assert_eq!(attributes(&path), (user.uid, GROUP, mode), "{path:?}");
        }
    }
    let result = |id: &str| folder.at(format!("workers/{id}/result.txt"));
    assert!(ANNA.can_read(&result("anna")) && !ANNA.can_read(&result("ben")));
    assert!(BEN.can_read(&result("carl")) && !CARL.can_read(&result("anna")));
}

#[test]
fn neither_of_two_users_can_read_or_change_the_workers_of_the_other() {
    if !is_root() {
        return;
    }
    for mode in [0o1777, 0o2770] {
        let folder = shared_folder(mode);
        let store = folder.path();
        init(&store);
        thread::scope(|scope| {
            for (user, ids) in [(ANNA, ["a1", "a2", "a3"]), (BEN, ["b1", "b2", "b3"])] {
                let store = &store;
                scope.spawn(move || ids.iter().for_each(|id| user.record(store, id)));
            }
        });
        ANNA.run(&store, &["worker", "create", "--id", "open"]).assert_success();
        for arguments in [
            &["worker", "put", "open", "outputs/x"][..],
            &["worker", "message", "open"],
            &["worker", "record", "open", "--tool", "sh"],
            &["worker", "finish", "open"],
        ] {
            let done = BEN.run(&store, arguments);
            done.assert_failure(1, &["open", "; try as a user who may"]);
        }
        BEN.run(&store, &["worker", "create", "--id", "a1"])
            .assert_failure(1, &["the id is taken"]);
        for (user, other) in [(ANNA, "b1"), (BEN, "a1")] {
            for file in ["metadata.json", "result.txt", "tool_calls/001_sh.txt", "thread.jsonl"] {
                assert!(!user.can_read(&folder.at(format!("workers/{other}/{file}"))), "{file}");
            }
            let done = user.run(&store, &["cat", &format!("workers/{other}/result.txt")]);
            assert!(!done.out.contains(CANARY), "{done:#?}");
        }
    }
}

#[test]
fn log_of_two_users_has_a_file_for_the_one_to_whom_the_first_is_closed() {
    if !is_root() {
        return;
    }
    let folder = shared_folder(0o1777);
    let store = folder.path();
    // Anna makes the store, so that the first file is hers and closed to Ben.
    run(ANNA.command(&[PROGRAM, "init", store.to_str().unwrap()])).assert_success();
    assert_eq!(attributes(folder.at("workers")).2, 0o1777);
    ANNA.record(&store, "a");
    BEN.record(&store, "b");
    let mut names: Vec<String> = fs::read_dir(folder.at("audit"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let own = format!(".uid{}.jsonl", BEN.uid);
    assert!(names.len() >= 2, "{names:?}");
    assert!(names.iter().all(|name| name.ends_with(&own) || name.matches('.').count() == 1));
    for name in &names {
        let user = if name.ends_with(&own) { BEN } else { ANNA };
        assert_eq!(attributes(folder.at(format!("audit/{name}"))).0, user.uid, "{name}");
    }
    // Root reads both logs; Ben reads his own, and is told of the other.
    let mut all = program(PROGRAM, ["audit", "--json", "--store"]);
    all.arg(&store);
    let all = run(all);
    all.assert_success();
    let count = |text: &str, uid: u32| text.matches(&format!("\"uid\":{uid}")).count();
    assert_eq!((count(&all.out, ANNA.uid), count(&all.out, BEN.uid)), (6, 5), "{all:#?}");
    let own = BEN.run(&store, &["audit", "--json"]);
    assert_eq!((count(&own.out, ANNA.uid), count(&own.out, BEN.uid)), (0, 5), "{own:#?}");
}

#[test]
fn planted_file_of_the_log_does_not_keep_another_user_from_logging() {
    if !is_root() {
        return;
    }
    let folder = shared_folder(0o1777);
    let store = folder.path();
    init(&store);
    for entry in fs::read_dir(folder.at("audit")).unwrap() {
        let path = entry.unwrap().path();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
    }
    // A recording prints no warning.
    BEN.record(&store, "b");
}

#[test]
fn default_acl_of_the_store_holds_for_what_is_recorded() {
    if !is_root() {
        return;
    }
    let folder = shared_folder(0o1777);
    let store = folder.path();
    init(&store);
    // Carl may read; nobody else apart from the owner.
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let any = u32::MAX;
    let entries = [(1, 7, any), (2, 5, CARL.uid), (4, 0, any), (16, 5, any), (32, 0, any)];
    let entries = entries.iter().flat_map(|(tag, rights, id)| entry(*tag, *rights, *id));
    let list: Vec<u8> = 2_u32.to_le_bytes().into_iter().chain(entries).collect();
    let set = rustix::fs::setxattr(
        folder.at("workers"),
        "system.posix_acl_default",
        &list,
        XattrFlags::empty(),
    );
    if let Err(errno) = set {
        return skip(&format!("this file system keeps no lists of access: {errno}"));
    }
    ANNA.record(&store, "a");
    for file in
        ["metadata.json", "result.txt", "tool_calls/001_sh.txt", "thread.jsonl", "outputs/report"]
    {
        let path = folder.at(format!("workers/a/{file}"));
        assert!(CARL.can_read(&path), "{file}");
        assert!(!BEN.can_read(&path), "{file}");
    }
}

/// Makes a store that root made and Anna owns.
fn store_of_anna() -> TestStore {
    let folder = shared_folder(0o755);
    chown(folder.path(), Some(ANNA.uid), Some(ANNA.uid)).unwrap();
    init(&folder.path());
    folder
}

#[test]
fn what_root_records_belongs_to_the_owner_of_the_store() {
    if !is_root() {
        return;
    }
    let folder = store_of_anna();
    let store = folder.path();
    let root = User { uid: 0, umask: 0o022 };
    root.record(&store, "r");
    let context = folder.path().parent().unwrap().join("message");
    let pair = format!("spec.md={}", context.display());
    root.run(&store, &["worker", "create", "--id", "c", "--index", "--context", &pair])
        .assert_success();
    for path in all_below(&store) {
        assert_eq!(attributes(&path).0, ANNA.uid, "{path:?}");
    }
    // So the owner goes on.
    ANNA.run(&store, &["worker", "finish", "c"]).assert_success();
}

#[test]
fn root_gives_no_file_away_that_it_did_not_create() {
    if !is_root() {
        return;
    }
    let folder = store_of_anna();
    let store = folder.path();
    let opened = Store::open(&store).unwrap();
    let worker = opened.create_worker(NewWorker::new("x").id("w")).unwrap();
    let secret = store.parent().unwrap().join("secret");
    fs::write(&secret, CANARY).unwrap();
    let thread = folder.at("workers/w/thread.jsonl");
    let stop = AtomicBool::new(false);
    let (mut made, mut refused) = (0, 0);
    thread::scope(|scope| {
        let planter = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::hard_link(&secret, &thread);
                let _ = fs::remove_file(&thread);
            }
        });
        for _ in 0..scale(MESSAGES) {
            match worker.message("user", "hi") {
                Ok(()) => made += 1,
                Err(_) => refused += 1,
            }
        }
        stop.store(true, Ordering::Relaxed);
        planter.join().unwrap();
    });
    assert_eq!(fs::read_to_string(&secret).unwrap(), CANARY);
    assert_eq!(attributes(&secret).0, 0, "root gave a file away");
    assert!(made > 0 && refused > 0 || !is_full(), "{made} made, {refused} refused");
}

#[test]
fn store_whose_workers_are_all_private_can_be_recorded_to() {
    if !is_root() {
        return;
    }
    let folder = shared_folder(0o1777);
    let store = folder.path();
    init(&store);
    as_user(ANNA.uid, || {
        let opened = Store::open(&store).unwrap();
        for number in 0..20 {
            opened.create_worker(NewWorker::new("x").id(format!("a{number:02}"))).unwrap();
        }
    });
    for path in fs::read_dir(folder.at("workers")).unwrap() {
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(path.unwrap().path(), private).unwrap();
    }
    BEN.record(&store, "b");
}
