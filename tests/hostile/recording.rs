//! Recording into a store that others have prepared: odd paths of stores, every byte in ids and
//! names, and links, FIFOs, hard links and mounts in place of a worker's files, also while they are
//! exchanged. Nothing outside of the worker's folder is changed or created, and nothing hangs.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags};
use serde_json::json;
use swarmletfs_record::write::{
    CallEnd, Durability, Error, Finish, NewWorker, Store, StoreOptions, Worker,
};

use super::{CANARY, make_fifo, walk};
use crate::cli::program::{
    Bound, MountSandbox, check_printable, is_root, make_accessible, mount, program, run,
    small_store, swarmletfs, umount, without_privileges,
};
use crate::needs_fuse;
use crate::support::{TestStore, is_full, patience, scale, skip};

/// A test that runs longer hangs.
const WATCHDOG: Duration = Duration::from_secs(100);
/// Number of rounds of all changes while entries are exchanged.
const ROUNDS: usize = 60;
/// Number of tries after which a control counts as broken.
const TRIES: usize = 1_000_000;
/// The user whose store root records to.
const OWNER: u32 = 54_321;

/// Runs `work` on a thread, and fails if it does not end.
fn watched<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let worker = thread::spawn(move || sender.send(work()));
    match receiver.recv_timeout(patience(WATCHDOG)) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a recorder hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(worker.join().unwrap_err())
        }
    }
}

/// Makes an empty store, beside which is a folder `outside` with a canary.
fn new_store() -> TestStore {
    let folder = TestStore::new();
    Store::init(folder.path()).unwrap();
    fs::create_dir_all(outside(&folder).join("sub")).unwrap();
    fs::write(outside(&folder).join("secret"), CANARY).unwrap();
    folder
}

fn outside(folder: &TestStore) -> PathBuf {
    folder.path().parent().unwrap().join("outside")
}

/// Gives a folder and all that it holds to a user.
fn give_away(folder: &Path, owner: u32) {
    let inside = walk(folder).into_keys();
    let inside = inside.map(|path| folder.join(OsStr::from_bytes(&path)));
    for path in inside.chain([folder.to_path_buf()]) {
        std::os::unix::fs::lchown(path, Some(owner), None).unwrap();
    }
}

/// Opens a store without waiting for the disk.
fn open(path: &Path) -> Store {
    StoreOptions::default().durability(Durability::None).open(path).unwrap()
}

/// The state of everything outside of the store.
#[derive(Debug, PartialEq)]
struct OutsideState {
    content: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Owner, mode, and time of the last change of each entry.
    attributes: Vec<[i64; 4]>,
}

fn outside_state(folder: &TestStore) -> OutsideState {
    let outside = outside(folder);
    let paths = [outside.clone(), outside.join("sub"), outside.join("secret")];
    let attributes = paths.iter().map(|path| {
        let meta = fs::symlink_metadata(path).unwrap();
        [meta.uid().into(), meta.mode().into(), meta.mtime(), meta.mtime_nsec()]
    });
    OutsideState { attributes: attributes.collect(), content: walk(&outside) }
}

/// Makes every kind of change to a worker. Returns the results by name; any may fail.
fn change_all(worker: &Worker) -> Vec<(&'static str, Result<(), Error>)> {
    let record = |tool| -> Result<(), Error> {
        let mut call = worker.begin_call(tool, Some(json!({"a": 1})))?;
        let _ = call.write_all(b"output");
        call.end(CallEnd::exit_code(0)).map(drop)
    };
    let put = |path: &str| worker.put(path, &mut &b"content"[..]).map(drop);
    vec![
        ("put", put("outputs/secret")),
        ("put deep", put("outputs/sub/deep/file")),
        ("message", worker.message("user", "hello")),
        ("record", record("sh")),
        ("record again", record("../../x")),
    ]
}

/// An entry that is planted in place of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plant {
    LinkToFolder,
    LinkToFile,
    DanglingLink,
    LinkToItself,
    Fifo,
    HardLink,
    Folder,
    MountedFolder,
    MountedFile,
}

const PLANTS: [Plant; 9] = [
    Plant::LinkToFolder,
    Plant::LinkToFile,
    Plant::DanglingLink,
    Plant::LinkToItself,
    Plant::Fifo,
    Plant::HardLink,
    Plant::Folder,
    Plant::MountedFolder,
    Plant::MountedFile,
];

impl Plant {
    /// Plants the entry at `path`. A mount ends when the result is dropped.
    fn plant(self, path: &Path, outside: &Path) -> Option<Bound> {
        let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
        match self {
            Plant::LinkToFolder => symlink(outside, path).unwrap(),
            Plant::LinkToFile => symlink(outside.join("secret"), path).unwrap(),
            Plant::DanglingLink => symlink(outside.join("created"), path).unwrap(),
            Plant::LinkToItself => symlink(path, path).unwrap(),
            Plant::Fifo => make_fifo(path),
            Plant::HardLink => fs::hard_link(outside.join("secret"), path).unwrap(),
            Plant::Folder => fs::create_dir(path).unwrap(),
            Plant::MountedFolder => {
                fs::create_dir(path).unwrap();
                return Some(Bound::new(outside, path).unwrap());
            }
            Plant::MountedFile => {
                fs::write(path, "").unwrap();
                return Some(Bound::new(&outside.join("secret"), path).unwrap());
            }
        }
        None
    }
}

/// The entries of a worker's folder that changes open.
const ENTRIES: [&str; 9] = [
    "tool_calls",
    "outputs",
    "outputs/sub",
    "outputs/secret",
    "metrics.jsonl",
    "thread.jsonl",
    "metadata.json",
    "result.txt",
    "context",
];

#[test]
fn planted_entries_lead_no_change_out_of_the_worker() {
    if !is_root() {
        return;
    }
    for owner in [0, OWNER] {
        let folder = new_store();
        let store = open(&folder.path());
        for (number, (entry, plant)) in
            ENTRIES.iter().flat_map(|entry| PLANTS.map(|plant| (entry, plant))).enumerate()
        {
            let id = format!("w{number}");
            let worker = store.create_worker(NewWorker::new("x").id(&id)).unwrap();
            let at = folder.at(format!("workers/{id}"));
            if entry.starts_with("outputs/") {
                fs::create_dir(at.join("outputs")).unwrap();
            }
            give_away(&at, owner);
            let bound = plant.plant(&at.join(entry), &outside(&folder));
            let before = outside_state(&folder);
            let results = watched(move || {
                let mut results = change_all(&worker);
                let end = Finish::completed().result("words");
                results.push(("finish", worker.finish(end)));
                results
            });
            assert_eq!(outside_state(&folder), before, "{plant:?} as {entry}: {results:?}");
            for (_, result) in &results {
                if let Err(error) = result {
                    check_printable(&error.to_string());
                }
            }
            // Control: the entry is met.
            let meets_all = results.iter().all(|(_, result)| result.is_ok());
            let is_replaced = plant == Plant::HardLink || plant == Plant::Folder;
            let is_unused = *entry == "context";
            assert_eq!(
                meets_all && !is_replaced,
                is_unused && !is_replaced,
                "{plant:?} as {entry}: {results:?}"
            );
            drop(bound);
            fs::remove_dir_all(&at).unwrap();
        }
        store.take_warnings();
    }
}

#[test]
fn planted_entries_among_the_workers_lead_no_change_out_of_the_store() {
    if !is_root() {
        return;
    }
    for entry in ["workers/index.json", "audit", "workers/w9"] {
        for plant in PLANTS {
            let folder = new_store();
            let store = open(&folder.path());
            let bound = plant.plant(&folder.at(entry), &outside(&folder));
            let before = outside_state(&folder);
            let created = watched(move || {
                let created = store.create_worker(NewWorker::new("x").id("w1").starting_index());
                let worker = store.worker("w1").unwrap();
                let mut results = change_all(&worker);
                results.push(("finish", worker.finish(Finish::completed())));
                let taken = store.create_worker(NewWorker::new("x").id("w9")).map(drop);
                let opened = store.worker("w9").map(|worker| {
                    change_all(&worker);
                });
                let _ = (taken, opened);
                let warnings = store.take_warnings();
                warnings.iter().for_each(|warning| check_printable(warning));
                // An index or a log that cannot be written is a warning.
                assert!(results.iter().all(|(_, result)| result.is_ok()), "{results:?}");
                created.map(drop)
            });
            created.unwrap();
            assert_eq!(outside_state(&folder), before, "{plant:?} as {entry}");
            drop(bound);
        }
    }
}

/// Stops an exchange when it is dropped.
struct Stopper<'a>(&'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Exchanges `a` and `b` until `stopped`, and counts that in `turns`.
fn exchange(a: &Path, b: &Path, stopped: &AtomicBool, turns: &AtomicU64) {
    while !stopped.load(Ordering::Relaxed) {
        // One of them may be missing for a moment.
        // Otherwise the folder's lock is never free for others.
        thread::yield_now();
        if rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).is_ok() {
            turns.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Entries and what they are exchanged for.
const EXCHANGED: [(&str, Plant); 8] = [
    ("tool_calls", Plant::LinkToFolder),
    ("outputs", Plant::LinkToFolder),
    ("outputs/sub", Plant::LinkToFolder),
    ("metrics.jsonl", Plant::HardLink),
    ("thread.jsonl", Plant::HardLink),
    ("thread.jsonl", Plant::Fifo),
    ("metadata.json", Plant::LinkToFile),
    ("result.txt", Plant::Fifo),
];

#[test]
fn exchanged_entries_lead_no_change_out_of_the_worker() {
    if !is_root() {
        return;
    }
    let mut made = BTreeMap::<&str, [usize; 2]>::new();
    for (entry, plant) in EXCHANGED {
        let folder = new_store();
        let store = open(&folder.path());
        let worker = store.create_worker(NewWorker::new("x").id("w")).unwrap();
        let at = folder.at("workers/w");
        for folder in ["outputs/sub", "tool_calls"] {
            fs::create_dir_all(at.join(folder)).unwrap();
        }
        for file in ["thread.jsonl", "metrics.jsonl", "result.txt"] {
            fs::write(at.join(file), "").unwrap();
        }
        let running = fs::read(at.join("metadata.json")).unwrap();
        let planted = at.join("planted");
        // Root gives what it creates to the owner of the folder, and nothing else.
        give_away(&at, OWNER);
        plant.plant(&planted, &outside(&folder));
        let before = outside_state(&folder);
        let entry_path = at.join(entry);
        let results = watched(move || {
            let (stop, turns) = (AtomicBool::new(false), AtomicU64::new(0));
            thread::scope(|scope| {
                scope.spawn(|| exchange(&entry_path, &planted, &stop, &turns));
                let _stopper = Stopper(&stop);
                while turns.load(Ordering::Relaxed) == 0 {
                    thread::yield_now();
                }
                let mut results = Vec::new();
                for _ in 0..scale(ROUNDS) {
                    results.extend(change_all(&worker));
                    let end = Finish::completed().result("words");
                    results.push(("finish", worker.finish(end)));
                    // The next round finds a worker that has not finished.
                    fs::write(at.join("metadata.new"), &running).unwrap();
                    fs::rename(at.join("metadata.new"), at.join("metadata.json")).unwrap();
                }
                results
            })
        });
        assert_eq!(outside_state(&folder), before, "{plant:?} as {entry}");
        for (name, result) in results {
            made.entry(name).or_default()[usize::from(result.is_err())] += 1;
        }
    }
    eprintln!("changes made and refused: {made:?}");
    let are_both = made.values().all(|[made, refused]| *made > 0 && *refused > 0);
    assert!(are_both || !is_full(), "{made:?}");
}

#[test]
fn control_append_by_path_loses_the_race() {
    let folder = new_store();
    let entry = folder.write("workers/w/thread.jsonl", "");
    let planted = folder.at("workers/w/planted");
    Plant::LinkToFile.plant(&planted, &outside(&folder));
    let secret = outside(&folder).join("secret");
    let loses = watched(move || {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| exchange(&entry, &planted, &stop, &AtomicU64::new(0)));
            let _stopper = Stopper(&stop);
            (0..TRIES).any(|_| {
                if fs::symlink_metadata(&entry).is_ok_and(|meta| meta.is_file()) {
                    let opened = OpenOptions::new().append(true).open(&entry);
                    let _ = opened.and_then(|mut file| file.write_all(b"x"));
                }
                fs::read(&secret).unwrap() != CANARY.as_bytes()
            })
        })
    });
    assert!(loses, "not one change of the outside in {TRIES} tries: the exchange does not race");
}

/// Characters that have a meaning somewhere.
const ODD: [char; 16] = [
    '/', '.', '\0', '\n', '\x1b', ' ', '-', '\\', '\'', '"', '$', '*', ':', '\u{7f}', '\u{85}',
    '\u{ff}',
];

/// Returns every character up to U+00FF alone, and in pairs with odd ones on either side.
fn odd_texts() -> Vec<String> {
    let all: Vec<char> = (0..=0xff_u8).map(char::from).collect();
    let pairs = all.iter().flat_map(|c| ODD.map(|odd| [format!("{c}{odd}"), format!("{odd}{c}")]));
    all.iter().map(char::to_string).chain(pairs.flatten()).collect()
}

/// Asserts that a refusal is safe to print, and one of a value.
#[track_caller]
fn check_refusal<T>(result: Result<T, Error>) -> bool {
    let Err(error) = result else { return true };
    assert!(matches!(error, Error::Invalid { .. } | Error::Taken(_)), "{error:?}");
    check_printable(&error.to_string());
    false
}

#[test]
fn every_character_in_ids_tools_and_words_stays_a_part_of_a_name() {
    let folder = new_store();
    let before = outside_state(&folder);
    let path = folder.path();
    watched(move || {
        let store = open(&path);
        let worker = store.create_worker(NewWorker::new("x").id("tools")).unwrap();
        let (mut ids, mut tools) = (0, 0);
        for text in odd_texts() {
            ids += usize::from(check_refusal(store.create_worker(NewWorker::new("").id(&text))));
            let words = NewWorker::new(&text).id("x.own").run(&text).tag(&text).owner(&text);
            check_refusal(store.create_worker(words));
            if tools < 500
                && let Ok(call) = worker.begin_call(&text, None)
            {
                call.end(CallEnd::unknown()).unwrap();
                tools += 1;
            }
        }
        assert!(ids > 100 && tools > 100, "{ids} ids and {tools} tools were accepted");
        // A worker whose words were accepted is one that readers read.
        let odd = NewWorker::new("x").id("last").run("48 '\"$*\\é").tag("a/b");
        store.create_worker(odd).unwrap();
    });
    assert_eq!(outside_state(&folder), before);
    let is_plain = |name: &OsStr| {
        name.as_bytes().iter().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(b))
    };
    for name in
        names(&folder.at("workers")).iter().chain(&names(&folder.at("workers/tools/tool_calls")))
    {
        assert!(is_plain(name), "{name:?}");
    }
    assert_eq!(names(&folder.path()), ["audit", "workers"]);
    // Readers see them all.
    let mut list = swarmletfs(["ls", "workers", "--store"]);
    list.arg(folder.path());
    run(list).assert_success();
}

fn names(folder: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

#[test]
fn every_byte_in_a_path_of_put_stays_beneath_the_worker() {
    let folder = new_store();
    let before = outside_state(&folder);
    let path = folder.path();
    let accepted = watched(move || {
        let store = open(&path);
        let worker = store.create_worker(NewWorker::new("x").id("w")).unwrap();
        let odd = b"/.\0\n\x1b -\\\xff\xc3";
        let single = (0..=0xff_u8).map(|byte| vec![byte]);
        let pairs = (0..=0xff_u8)
            .flat_map(|byte| odd.iter().flat_map(move |o| [vec![byte, *o], vec![*o, byte]]));
        let paths: Vec<Vec<u8>> = single.chain(pairs).collect();
        let inside = paths.iter().map(|path| [b"outputs/", &path[..], b"/../x"].concat());
        let mut accepted = 0;
        for path in paths.iter().cloned().chain(inside) {
            accepted += usize::from(check_refusal(worker.put(&path, &mut &b""[..])));
        }
        for path in [
            "..",
            "../w2/x",
            "../../outside/secret",
            "outputs/../../../outside/secret",
            "/",
            "",
            "/etc/passwd",
            "outputs/..",
            "./x",
            "a//b",
            "a/",
        ] {
            assert!(!check_refusal(worker.put(path, &mut &b""[..])), "{path}");
        }
        accepted
    });
    assert!(accepted > 250, "{accepted} paths were accepted");
    assert_eq!(outside_state(&folder), before);
    assert_eq!(names(&folder.at("workers")), ["w"]);
    assert_eq!(names(&folder.path()), ["audit", "workers"]);
}

#[test]
fn odd_bytes_on_the_command_line_are_escaped_in_errors() {
    let folder = new_store();
    open(&folder.path()).create_worker(NewWorker::new("x").id("w")).unwrap();
    for byte in [0x01, 0x0a, 0x1b, b' ', b'/', b'.', b'-', 0x7f, 0x80, 0xc3, 0xff] {
        let odd = [b'a', byte, b'/', b'.', b'.'];
        let cases: [(&[&str], bool); 5] = [
            (&["create", "--id"], true),
            (&["create", "--run"], false),
            (&["create", "--tag"], false),
            (&["record", "w", "--tool"], false),
            (&["put", "w"], true),
        ];
        for (arguments, is_refused) in cases {
            let mut command = swarmletfs(["worker"]);
            command.args(arguments).arg(OsStr::from_bytes(&odd)).arg("--store");
            command.arg(folder.path());
            let done = run(command);
            check_printable(&done.err);
            assert!(!done.err.contains("panicked"), "{done:#?}");
            assert!(matches!(done.code, Some(0 | 2)), "{done:#?}");
            assert!(!is_refused || done.code == Some(2), "{done:#?}");
        }
    }
    assert_eq!(names(&folder.path()), ["audit", "workers"]);
}

/// Runs `worker create` on a store, named by an option or a variable.
fn create_in(store: &Path, by_variable: bool) -> Command {
    let mut command = swarmletfs(["worker", "create", "--task", "x"]);
    if by_variable {
        command.env("SWARMLET_DATA_PATH", store);
    } else {
        command.arg("--store").arg(store);
    }
    command
}

#[test]
fn store_that_is_none_is_refused_with_a_remedy() {
    let folder = new_store();
    let parent = folder.path().parent().unwrap().to_path_buf();
    let at = |name: &str| parent.join(name);
    // Not among what is read below.
    let other = TestStore::new();
    make_fifo(&other.at("fifo"));
    fs::write(at("file"), "text").unwrap();
    symlink(at("nothing"), at("dangling")).unwrap();
    symlink(at("loop"), at("loop")).unwrap();
    let one = small_store();
    let transcripts = TestStore::new();
    let line = json!({"type": "user", "uuid": "u", "sessionId": "s", "message": {"role": "user", "content": "hi"}});
    transcripts.write("s.jsonl", format!("{line}\n"));
    let before = walk(&parent);
    for by_variable in [false, true] {
        for (path, named) in [
            (other.at("fifo"), "not a folder"),
            (at("file"), "not a folder"),
            (at("missing"), "no such folder"),
            (at("dangling"), "no such folder"),
            (at("loop"), "loop"),
            (at("outside"), "holds something else than workers"),
            (at("odd\x1b\nname"), r"odd\u{1b}\u{a}name"),
            (one.at("workers/w1"), "it is the folder of one worker"),
            (transcripts.path(), "something else than workers"),
        ] {
            let done = run(create_in(&path, by_variable));
            done.assert_failure(1, &[named]);
            assert!(done.err.contains("try") || path.ends_with("loop"), "{done:#?}");
        }
    }
    assert_eq!(walk(&parent), before);
    // A symlink that the user names is followed.
    symlink(folder.path(), at("link")).unwrap();
    for by_variable in [false, true] {
        run(create_in(&at("link"), by_variable)).assert_success();
    }
    assert_eq!(names(&folder.at("workers")).len(), 2);
}

#[test]
fn store_inside_a_store_is_refused_and_makes_no_folder() {
    let outer = new_store();
    for path in ["workers/inner", "notes/inner"] {
        let inner = outer.at(path);
        let Err(error) = Store::init(&inner) else { panic!("{path} was made a store") };
        assert!(error.to_string().contains("it is inside the store "), "{error}");
        assert!(!inner.exists(), "{path}");
    }
    Store::init(outer.path()).unwrap();
}

#[test]
fn store_of_another_user_is_refused_with_a_remedy() {
    if !is_root() {
        return;
    }
    let folder = new_store();
    make_accessible(folder.path().parent().unwrap());
    for mode in [0o755, 0o700] {
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(mode))
            .unwrap();
        let create = create_in(&folder.path(), false);
        let words: Vec<&OsStr> =
            [create.get_program()].into_iter().chain(create.get_args()).collect();
        let words = without_privileges(&words);
        let done = run(program(words[0], &words[1..]));
        done.assert_failure(1, &["permission denied", "; try as a user who may"]);
    }
}

#[test]
fn mount_is_refused_as_a_store_to_record_to() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    mount(&store.path(), &point, &[]).assert_success();
    for path in [point.clone(), point.join("workers")] {
        run(create_in(&path, false)).assert_failure(1, &["mount", "try the store"]);
    }
    umount(&point, &[]).assert_success();
}

#[test]
fn full_quota_is_an_error_with_a_remedy_and_leaves_nothing() {
    let folder = new_store();
    open(&folder.path()).create_worker(NewWorker::new("x").id("w")).unwrap();
    let content = folder.path().parent().unwrap().join("content");
    fs::write(&content, "content").unwrap();
    let workers = walk(&folder.at("workers"));
    for (call, arguments) in [
        ("fsync", &["worker", "create"][..]),
        ("mkdirat", &["worker", "create"]),
        ("fsync", &["worker", "put", "w", "outputs/x"]),
        ("renameat", &["worker", "put", "w", "outputs/x"]),
        ("fsync", &["worker", "finish", "w"]),
    ] {
        let inject = format!("inject={call}:error=EDQUOT");
        let mut command = program("strace", ["-f", "-qq", "-o", "/dev/null", "-e"]);
        command.arg(format!("trace={call}")).args(["-e", &inject]);
        command.arg(crate::support::mount::PROGRAM).args(arguments);
        command.arg("--store").arg(folder.path()).stdin(File::open(&content).unwrap());
        if Command::new("strace").arg("-V").output().is_err() {
            return skip("strace is missing");
        }
        let done = run(command);
        done.assert_failure(1, &["quota", "; try again with more space"]);
        let mut left = walk(&folder.at("workers"));
        // A folder on the way to a file may have been made.
        left.remove(&b"w/outputs"[..]);
        assert_eq!(left, workers, "{call} {arguments:?}");
    }
    // The next command works.
    let worker = open(&folder.path()).worker("w").unwrap();
    change_all(&worker).into_iter().for_each(|(_, result)| result.unwrap());
    worker.finish(Finish::completed()).unwrap();
}
