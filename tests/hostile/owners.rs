//! R4: nothing leaks from one owner to another through the kernel's caches. Eight owners share a
//! store, and each has a mount, or a directory in one mount that is for all. Clients of all of them
//! use the same paths at once, own and foreign, in any order, with open handles.
//!
//! Each owner has a token in the names, the bytes and the metadata of all his files. No answer in
//! another owner's mount may hold it, and foreign paths fail like missing ones.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::{fs, iter};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::json;

use super::Dice;
use crate::needs_fuse;
use crate::support::user::as_user;
use crate::support::{Mount, TestStore, scale, seed};

const OWNERS: usize = 8;
/// Number of workers of each owner.
const WORKERS: usize = 25;
const CLIENTS: usize = 8;
/// Number of operations of all clients together.
const OPS: usize = 20_000;
/// Maximum number of open handles of a client.
const OPEN_MAX: usize = 40;
/// Size of a file that is large enough for the kernel to read itself, in bytes.
const LARGE: usize = 140_000;

/// A script that maps whole files into memory. It reads paths, and answers each with an error
/// number, or with the size and the arguments that it found.
const MAPPER: &str = r#"
import mmap, os, sys
for line in sys.stdin:
    try:
        fd = os.open(line.rstrip("\n"), os.O_RDONLY)
        try:
            with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as found:
                print("ok", len(found), *[word for word in sys.argv[1:] if found.find(word.encode()) >= 0], flush=True)
        finally:
            os.close(fd)
    except OSError as error:
        print(error.errno, flush=True)
"#;

fn token(owner: usize) -> String {
    format!("{:016x}", Dice::new(owner as u64 + 1_000).next())
}

/// Returns a worker's ID. The number [`WORKERS`] has no worker.
fn id(owner: usize, number: usize) -> String {
    format!("w{number:02}-{}", token(owner))
}

fn store() -> TestStore {
    let store = TestStore::new();
    for (owner, number) in
        (0..OWNERS).flat_map(|owner| (0..WORKERS).map(move |number| (owner, number)))
    {
        let (id, token) = (id(owner, number), token(owner));
        let status = *["success", "running", "failed"].get(number % 3).unwrap();
        let error = format!("the error of {token}");
        store.worker(
            &id,
            json!({"status": status, "run_id": "r", "config": {"owner_id": token}, "error": error}),
        );
        store.call(&id, 1, "sh", format!("output of {token}\n"));
        store.call(&id, 2, "sh", format!("Error: no such file: /home/{token}\n"));
        store.write(format!("workers/{id}/outputs/{token}.txt"), format!("small of {token}\n"));
        // Each owner's files have a different size.
        let line = format!("large of {token}\n");
        store.write(format!("workers/{id}/outputs/large"), line.repeat(LARGE / line.len() + owner));
    }
    store
}

/// Paths that belong to no single owner: lists of all workers, and files generated from all.
const SHARED: [&str; 16] = [
    "",
    "workers",
    "runs/r/workers",
    "by/status/completed",
    "by/status/running",
    "by/run/r",
    "by/outcome/failed",
    "runs/r/index.json",
    "workers/index.json",
    "index.json",
    "summary",
    "evidence.txt",
    "runs/r/evidence.txt",
    "grep/Error",
    "search/error",
    "README.md",
];

/// Returns a path inside a worker.
fn worker_path(dice: &mut Dice, id: &str, token: &str) -> String {
    match dice.below(12) {
        0 => format!("workers/{id}"),
        1 => format!("workers/{id}/outputs"),
        2 => format!("workers/{id}/outputs/{token}.txt"),
        3 => format!("workers/{id}/outputs/large"),
        4 => format!("workers/{id}/metadata.json"),
        5 => format!("workers/{id}/tool_calls/002_sh.txt"),
        6 => format!("workers/{id}/evidence.txt"),
        7 => format!("workers/{id}/index.json"),
        8 => format!("workers/{id}/grep/{token}"),
        9 => format!("runs/r/workers/{id}"),
        10 => format!("by/run/r/{id}/summary"),
        _ => format!("runs/r/workers/{id}/tool_calls"),
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Op {
    Lookup,
    Stat,
    Open,
    Read,
    Map,
    List,
    ListXattr,
    GetXattr,
    ReadLink,
}

const OPS_OF_ALL: [Op; 9] = [
    Op::Lookup,
    Op::Stat,
    Op::Open,
    Op::Read,
    Op::Map,
    Op::List,
    Op::ListXattr,
    Op::GetXattr,
    Op::ReadLink,
];

/// The state of one client.
struct Client {
    dice: Dice,
    /// The user, `None` for that of this process.
    uid: Option<u32>,
    mapper: Child,
    paths: ChildStdin,
    answers: BufReader<ChildStdout>,
    held: VecDeque<File>,
}

impl Client {
    /// Creates a client with the rights of the user `uid`, or those of this process.
    fn new(seed: u64, tokens: &[String], uid: Option<u32>) -> Client {
        let mut python = Command::new("python3");
        python.args(["-c", MAPPER]).args(tokens).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut mapper = with_rights_of(uid, || python.spawn().expect("python3"));
        let (paths, answers) = (mapper.stdin.take().unwrap(), mapper.stdout.take().unwrap());
        let dice = Dice::new(seed);
        let answers = BufReader::new(answers);
        Client { dice, uid, mapper, paths, answers, held: VecDeque::new() }
    }

    /// Applies an operation to a path. Returns everything in the answer (names, bytes and sizes),
    /// or the error.
    fn call(&mut self, op: Op, path: &Path) -> Result<Vec<u8>, Errno> {
        with_rights_of(self.uid, || self.call_here(op, path))
    }

    fn call_here(&mut self, op: Op, path: &Path) -> Result<Vec<u8>, Errno> {
        let open = |flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
        let system = |error: io::Error| Errno::from_raw_os_error(error.raw_os_error().unwrap());
        match op {
            Op::Lookup => open(OFlags::PATH).map(|_| Vec::new()),
            Op::Stat => {
                rustix::fs::lstat(path).map(|stat| format!("{} bytes", stat.st_size).into_bytes())
            }
            Op::Open => {
                self.held.push_back(open(OFlags::RDONLY)?.into());
                if self.held.len() > OPEN_MAX {
                    self.held.pop_front();
                }
                Ok(Vec::new())
            }
            Op::Read => {
                let mut bytes = Vec::new();
                let mut file = File::from(open(OFlags::RDONLY)?);
                file.read_to_end(&mut bytes).map_err(system)?;
                Ok(bytes)
            }
            Op::Map => {
                writeln!(self.paths, "{}", path.display()).unwrap();
                let mut answer = String::new();
                self.answers.read_line(&mut answer).unwrap();
                match answer.trim_end().parse() {
                    Ok(errno) => Err(Errno::from_raw_os_error(errno)),
                    Err(_) => Ok(answer.into_bytes()),
                }
            }
            Op::List => {
                let mut names = Vec::new();
                for entry in fs::read_dir(path).map_err(system)? {
                    names.extend_from_slice(entry.map_err(system)?.file_name().as_bytes());
                    names.push(b'\n');
                }
                Ok(names)
            }
            Op::ListXattr => {
                let mut names = vec![0; 1_000];
                let read = rustix::fs::llistxattr(path, &mut names)?;
                names.truncate(read);
                Ok(names)
            }
            Op::GetXattr => {
                let mut value = vec![0; 1_000];
                let read = rustix::fs::lgetxattr(path, c"user.owner", &mut value)?;
                value.truncate(read);
                Ok(value)
            }
            Op::ReadLink => {
                rustix::fs::readlink(path, Vec::new()).map(|target| target.into_bytes())
            }
        }
    }

    /// Reads an open handle from its start.
    fn read_open_handle(&mut self) -> Vec<u8> {
        let at = self.dice.below(self.held.len().max(1));
        let Some(file) = self.held.get(at) else { return Vec::new() };
        let mut bytes = vec![0; 5_000];
        // A directory cannot be read; an open file can, whatever happened to its name.
        let read = rustix::io::pread(file, &mut bytes, 0).unwrap_or_else(|errno| {
            assert_eq!(errno, Errno::ISDIR, "through a handle");
            0
        });
        bytes.truncate(read);
        bytes
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.mapper.kill();
        let _ = self.mapper.wait();
    }
}

/// Returns the owners, other than `mine`, whose tokens an answer holds.
fn foreign_owners(answer: &[u8], tokens: &[String], mine: usize) -> Vec<usize> {
    let holds = |token: &String| memchr::memmem::find(answer, token.as_bytes()).is_some();
    (0..tokens.len()).filter(|owner| *owner != mine && holds(&tokens[*owner])).collect()
}

/// Calls `work` with the rights of the user `uid`, or of this process.
fn with_rights_of<T: Send>(uid: Option<u32>, work: impl FnOnce() -> T + Send) -> T {
    match uid {
        Some(uid) => as_user(uid, work),
        None => work(),
    }
}

/// Where an owner's clients find the tree, and who they are.
struct Place<'a> {
    mount: &'a Mount,
    /// Paths of the owner's tree in the mount. Each has the same content.
    roots: Vec<String>,
    /// Path of the tree as all users name it.
    shared_root: String,
    uid: Option<u32>,
}

impl<'a> Place<'a> {
    /// Returns the place of an owner whose mount is `mount`.
    fn own_mount(mount: &'a Mount) -> Place<'a> {
        Place { mount, roots: vec![String::new()], shared_root: String::new(), uid: None }
    }

    /// Returns the place of the owner `token`, the user `uid`, in a mount for several.
    fn in_shared_mount(mount: &'a Mount, token: &str, uid: u32) -> Place<'a> {
        let shared_root = format!("owners/{token}/");
        let roots = vec![shared_root.clone(), "self/".into()];
        Place { mount, roots, shared_root, uid: Some(uid) }
    }
}

/// Lets a client of each owner use own and foreign paths. Returns what was revealed of others, by
/// operation and path; it should be nothing.
fn run_clients(
    places: &[Place<'_>],
    tokens: &[String],
    seed: u64,
    ops: usize,
) -> Vec<(Op, String)> {
    let client = |(owner, place): (usize, &Place<'_>)| {
        Client::new(seed ^ (owner as u64) << 48, tokens, place.uid)
    };
    let mut clients: Vec<Client> = places.iter().enumerate().map(client).collect();
    let mut dice = Dice::new(seed);
    let mut leaks = Vec::new();
    for number in 0..ops / 3 {
        let (mine, theirs) = (dice.below(OWNERS), dice.below(OWNERS));
        let worker = id(theirs, dice.below(WORKERS));
        let path = worker_path(&mut dice, &worker, &tokens[theirs]);
        let (op, again) = (*dice.pick(&OPS_OF_ALL), *dice.pick(&OPS_OF_ALL));
        // Its owner comes first or last, so that the kernel has it cached or not.
        let order = if dice.once_in(2) { [theirs, mine] } else { [mine, theirs] };
        for (owner, op) in order.into_iter().zip([op, again]) {
            let is_his = owner == theirs;
            let place = &places[owner];
            // The owner's name for his tree, and his path to the other's.
            let root = match is_his || dice.once_in(2) {
                true => dice.pick(&place.roots),
                false => &places[theirs].shared_root,
            };
            let at = |path: &str| place.mount.at(&format!("{root}{path}"));
            let found = clients[owner].call(op, &at(&path));
            match &found {
                Ok(answer) if !foreign_owners(answer, tokens, owner).is_empty() => {
                    leaks.push((op, path.clone()))
                }
                Err(errno) if is_his => {
                    let other_kind =
                        [Errno::NOTDIR, Errno::ISDIR, Errno::INVAL, Errno::NOTSUP, Errno::NODATA];
                    assert!(
                        other_kind.contains(errno) || *errno == Errno::NODEV,
                        "{op:?} of his own {path}: {errno}"
                    );
                }
                _ => {}
            }
            if !is_his {
                // A worker that never existed must give an equal answer.
                let absent = path.replace(&worker, &id(theirs, WORKERS));
                let never = clients[owner].call(op, &at(&absent));
                if found.as_ref().err() != never.as_ref().err() {
                    leaks.push((
                        op,
                        format!("{path}: {:?}, of what never was: {:?}", found.err(), never.err()),
                    ));
                }
            }
        }
        let shared = *dice.pick(&SHARED);
        let op = *dice.pick(&[Op::Read, Op::Read, Op::List, Op::Map, Op::Open, Op::Stat]);
        let (place, client) = (&places[mine], &mut clients[mine]);
        // In one mount for all, the path is another's as often as not.
        let root = if dice.once_in(2) { &place.shared_root } else { &places[theirs].shared_root };
        let answers = [
            client.call(op, &place.mount.at(&format!("{root}{shared}"))).unwrap_or_default(),
            client.read_open_handle(),
        ];
        if answers.iter().any(|answer| !foreign_owners(answer, tokens, mine).is_empty()) {
            leaks.push((op, shared.to_owned()));
        }
        if number % 500 == 499 {
            places[mine].mount.forget();
        }
    }
    leaks
}

/// Runs clients of all owners at once, and fails if anything is revealed.
fn assert_nothing_leaks(places: &[Place<'_>], tokens: &[String], ops: usize) {
    thread::scope(|scope| {
        let first = seed();
        for client in 0..CLIENTS as u64 {
            let seed = first + client;
            scope.spawn(move || {
                let leaks = run_clients(places, tokens, seed, ops / CLIENTS);
                assert!(leaks.is_empty(), "{} leaks, the first: {:?}", leaks.len(), leaks[0]);
            });
        }
    });
}

/// Time for which the kernel may cache a finished worker, in seconds.
const TTLS: [&str; 4] = ["0", "1", "60", "3600"];

/// Returns what `workers` lists for an owner.
fn listed(owner: usize) -> Vec<String> {
    let ids = (0..WORKERS).map(|number| id(owner, number));
    ids.chain(["index.json".into()]).collect::<BTreeSet<_>>().into_iter().collect()
}

#[test]
fn no_owner_sees_anything_of_another_in_any_order_of_operations() {
    needs_fuse!();
    let store = store();
    let tokens: Vec<String> = (0..OWNERS).map(token).collect();
    let mount = |(owner, token): (usize, &String)| {
        Mount::with(&store.path(), &["--owner", token, "--ttl", TTLS[owner % TTLS.len()]])
    };
    let mounts: Vec<Mount> = tokens.iter().enumerate().map(mount).collect();
    for (owner, mount) in mounts.iter().enumerate() {
        assert_eq!(mount.list("workers"), listed(owner));
    }
    let places: Vec<Place<'_>> = mounts.iter().map(Place::own_mount).collect();
    assert_nothing_leaks(&places, &tokens, scale(OPS));
}

/// Returns a mount of `store` for all owners, each of them a user with a number of its own.
fn mount_for_all(store: &TestStore, tokens: &[String], ttl: &str) -> Mount {
    let users: serde_json::Map<_, _> = tokens
        .iter()
        .enumerate()
        .map(|(owner, token)| (token.clone(), json!(uid(owner))))
        .collect();
    let map = store.path().parent().unwrap().join(format!("owners-{ttl}.json"));
    fs::write(&map, serde_json::to_vec(&users).unwrap()).unwrap();
    Mount::with(&store.path(), &["--owners", map.to_str().unwrap(), "--ttl", ttl])
}

fn uid(owner: usize) -> u32 {
    41_000 + owner as u32
}

/// Promise: In a mount for several owners, no user sees anything of another owner, whatever the
/// kernel has cached.
#[test]
fn no_user_sees_anything_of_another_in_a_mount_for_all() {
    needs_fuse!();
    let store = store();
    let tokens: Vec<String> = (0..OWNERS).map(token).collect();
    for ttl in TTLS {
        let mount = mount_for_all(&store, &tokens, ttl);
        let place =
            |(owner, token): (usize, &String)| Place::in_shared_mount(&mount, token, uid(owner));
        let places: Vec<Place<'_>> = tokens.iter().enumerate().map(place).collect();
        for (owner, place) in places.iter().enumerate() {
            for root in &place.roots {
                let seen = as_user(uid(owner), || mount.list(&format!("{root}workers")));
                assert_eq!(seen, listed(owner), "{root}");
            }
        }
        assert_nothing_leaks(&places, &tokens, scale(OPS) / TTLS.len());
    }
}

/// Promise: In a mount for several owners, no user sees anything of another owner while stores are
/// attached and detached, either.
#[test]
fn no_user_sees_anything_of_another_while_stores_come_and_go() {
    needs_fuse!();
    let store = store();
    let tokens: Vec<String> = (0..OWNERS).map(token).collect();
    let other = TestStore::new();
    for token in &tokens {
        let id = format!("x-{token}");
        other.worker(&id, json!({"config": {"owner_id": token}, "task": format!("of {token}")}));
        other.call(&id, 1, "sh", format!("Error: more of {token}\n"));
    }
    let mount = mount_for_all(&store, &tokens, "60");
    let place =
        |(owner, token): (usize, &String)| Place::in_shared_mount(&mount, token, uid(owner));
    let places: Vec<Place<'_>> = tokens.iter().enumerate().map(place).collect();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                for (command, expected) in [("attach", 2 + WORKERS), ("detach", 1 + WORKERS)] {
                    mount.change_stores(command, &other.path());
                    for (owner, place) in places.iter().enumerate() {
                        let workers = format!("{}workers", place.shared_root);
                        let seen = as_user(uid(owner), || mount.list(&workers));
                        assert_eq!(seen.len(), expected, "{seen:?}");
                    }
                }
            }
        });
        // The other thread must end also if this one fails.
        let _done = OnDrop(&is_done);
        assert_nothing_leaks(&places, &tokens, scale(OPS) / 4);
    });
}

/// Sets a flag when dropped.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Root may enter every directory, so the same clients must find foreign data then.
#[test]
fn control_root_finds_the_data_of_all_owners() {
    needs_fuse!();
    let store = store();
    let tokens: Vec<String> = (0..OWNERS).map(token).collect();
    let mount = mount_for_all(&store, &tokens, "60");
    let place = |(owner, token): (usize, &String)| {
        let place = Place::in_shared_mount(&mount, token, uid(owner));
        Place { roots: vec![place.shared_root.clone()], uid: None, ..place }
    };
    let places: Vec<Place<'_>> = tokens.iter().enumerate().map(place).collect();
    assert_all_kinds_of_leaks(&places, &tokens);
}

/// In unrestricted mounts, the same clients must find foreign data with every kind of call.
#[test]
fn control_clients_find_foreign_data_in_unrestricted_mounts() {
    needs_fuse!();
    let store = store();
    let tokens: Vec<String> = (0..OWNERS).map(token).collect();
    let mounts: Vec<Mount> = iter::repeat_with(|| Mount::new(&store.path())).take(OWNERS).collect();
    let places: Vec<Place<'_>> = mounts.iter().map(Place::own_mount).collect();
    assert_all_kinds_of_leaks(&places, &tokens);
}

/// Runs clients until every kind of call and of shared file has revealed something, and fails if
/// one never does.
fn assert_all_kinds_of_leaks(places: &[Place<'_>], tokens: &[String]) {
    let ops = [Op::Lookup, Op::Stat, Op::Open, Op::Read, Op::Map, Op::List];
    let shared = ["index.json", "evidence.txt", "workers"];
    let mut leaks = Vec::new();
    for seed in seed()..seed() + 20 {
        leaks.extend(run_clients(places, tokens, seed, 200));
        let missing_ops = ops.iter().filter(|op| leaks.iter().all(|(by, _)| by != *op));
        let missing_paths = shared.iter().filter(|path| leaks.iter().all(|(_, of)| of != **path));
        if missing_ops.count() + missing_paths.count() == 0 {
            return;
        }
    }
    panic!("not everything leaked: {leaks:?}");
}
