//! R6: a view of a store equals, byte for byte, a view of a store that holds only what the view may
//! see.
//!
//! Each random store is written twice: whole, and with one owner's workers alone. Both trees of
//! that owner must have equal names, bytes, sizes, modes and times. Other workers change the times
//! of the store's own directories, so those may differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use swarmletfs_base::error::Error;
use swarmletfs_tree::tree::{ROOT, Settings, Tree};
use swarmletfs_tree::view::Filter;

use super::{CANARY, Dice, make_fifo};
use crate::cli::program::{MountSandbox, check_log_later, run, swarmletfs, umount};
use crate::needs_fuse;
use crate::support::seen::names;
use crate::support::{Seen, TestStore, see, see_folder, seeds};

/// Number of random stores, split over two tests.
const STORES: usize = 256;
/// Nothing changes in this test, so nothing need be read again.
const NEVER: Duration = Duration::from_secs(3_600);

const OWNERS: [&str; 4] = ["A", "B", "7", "A "];
const RUNS: [&str; 5] = ["48", "49", "latest", "a/b", ".."];
/// The owner whose view is compared.
const MINE: &str = "A";

/// A worker to write.
#[derive(Debug)]
struct WorkerSpec {
    folder: String,
    /// The owner, as far as its metadata is valid.
    owner: Option<&'static str>,
    run: Option<&'static str>,
    files: BTreeMap<Vec<u8>, (Vec<u8>, u32)>,
    links: Vec<String>,
    pipe: bool,
    /// Its entry in the store's index.
    entry: Option<Value>,
}

/// A store to write.
#[derive(Debug)]
struct StoreSpec {
    workers: Vec<WorkerSpec>,
    /// The path of the store's index, and true if it is an object.
    index: Option<(&'static str, bool)>,
    /// Out-of-band outputs: owner, number, text, and the owner in the description.
    outputs: Vec<(&'static str, usize, String, &'static str)>,
    outputs_beside: bool,
    notes: bool,
    junk: bool,
}

fn artifact(number: usize) -> String {
    format!("{number:032x}")
}

fn random_spec(seed: u64) -> StoreSpec {
    let mut dice = Dice::new(seed);
    let object = dice.once_in(2);
    let index =
        (!dice.once_in(3)).then(|| (*dice.pick(&["index.json", "workers/index.json"]), object));
    let mut workers: Vec<WorkerSpec> = Vec::new();
    let count = 2 + dice.below(5);
    for number in 0..count {
        let made = worker(&mut dice, number, object, &workers);
        workers.push(made);
    }
    // A worker of somebody else always exists, or the control would be useless.
    workers.push(foreign_worker(count));
    let outputs = (0..dice.below(6))
        .map(|number| {
            let owner = *dice.pick(&OWNERS[..3]);
            let claimed = if dice.once_in(4) { *dice.pick(&OWNERS) } else { owner };
            (
                owner,
                number,
                format!("output {number} of {owner}\n").repeat(1 + dice.below(30)),
                claimed,
            )
        })
        .collect();
    StoreSpec {
        workers,
        index,
        outputs,
        outputs_beside: dice.once_in(2),
        notes: dice.once_in(2),
        junk: dice.once_in(2),
    }
}

fn foreign_worker(number: usize) -> WorkerSpec {
    let metadata = json!({"worker_id": "foreign", "config": {"owner_id": "B"}, "task": CANARY, "status": "failed",
        "run_id": RUNS[number % RUNS.len()], "error": CANARY,
        "model": CANARY, "cwd": format!("/srv/{CANARY}")});
    let files = [
        ("metadata.json", metadata.to_string()),
        ("tool_calls/001_sh.txt", format!("Error: {CANARY}")),
    ];
    WorkerSpec {
        folder: format!("workers/foreign-{number}"),
        owner: Some("B"),
        run: Some(RUNS[number % RUNS.len()]),
        files: files
            .into_iter()
            .map(|(path, text)| (path.into(), (text.into_bytes(), 0o600)))
            .collect(),
        links: Vec::new(),
        pipe: false,
        entry: Some(json!({"id": format!("foreign-{number}"), "task": CANARY, "status": "failed"})),
    }
}

fn worker(dice: &mut Dice, number: usize, object: bool, before: &[WorkerSpec]) -> WorkerSpec {
    let mut nested = dice.once_in(2);
    let mut id =
        format!("{}{number}", dice.pick(&["w", "worker-", "2026-01-20T10-00-00_x_", "W w", "ü"]));
    let mut owner = (!dice.once_in(6)).then(|| *dice.pick(&[MINE, MINE, "B", "7", "A "]));
    if let Some(twin) =
        before.iter().find(|made| made.owner.is_some()).filter(|_| !object && dice.once_in(3))
    {
        // Another owner's worker with an equal ID in the other layout: an index without owners
        // could not tell them apart.
        nested = !twin.folder.starts_with("workers/");
        id = twin.folder.rsplit('/').next().unwrap().to_owned();
        owner = Some(if twin.owner == Some(MINE) { "B" } else { MINE });
    }
    let folder = if nested { format!("workers/{id}") } else { id.clone() };
    if before.iter().any(|made| made.folder == folder) {
        return foreign_worker(100 + number);
    }
    let run = (!dice.once_in(3)).then(|| *dice.pick(&RUNS));
    let mut metadata =
        json!({"worker_id": id, "created_at": format!("2026-01-2{}T10:00:00Z", dice.below(9))});
    if !dice.once_in(3) {
        metadata["task"] = json!(format!("task {number}"));
    }
    if !dice.once_in(3) {
        metadata["status"] =
            json!(dice.pick(&["success", "completed", "failed", "running", "created", "odd"]));
    }
    if dice.once_in(4) {
        metadata["error"] = json!("it broke");
    }
    metadata["cwd"] = json!(format!("/srv/{}", owner.unwrap_or("nobody")));
    metadata["model"] = json!(format!("model/{}", number % 2));
    let owned =
        |owner: &str| owner.parse::<u64>().map_or_else(|_| json!(owner), |number| json!(number));
    if let Some(owner) = owner {
        if dice.once_in(2) {
            metadata["owner_id"] = owned(owner);
        } else {
            metadata["config"] = json!({"owner_id": owned(owner), "model": "m"});
        }
    }
    if let Some(run) = run {
        metadata["run_id"] = json!(run);
    }
    let mut entry = json!({"status": dice.pick(&["success", "failed", "running"]), "task": format!("indexed {folder}"),
        "tags": [folder], "summary": format!("summary of {folder}")});
    entry[if object { "id" } else { "worker_id" }] = json!(id);
    if !object && let Some(owner) = owner {
        entry["config"] = json!({"owner_id": owned(owner)});
    }
    let mut believed = owner;
    if dice.once_in(8) && owner.is_some() {
        metadata["owner_id"] = json!("B");
        metadata["config"]["owner_id"] = json!(MINE);
        believed = None;
    }
    let mut text = serde_json::to_vec_pretty(&metadata).unwrap();
    if dice.once_in(6) {
        text.truncate(dice.below(text.len()));
        believed = None;
    }
    let mut files = BTreeMap::new();
    let mode = |dice: &mut Dice| *dice.pick(&[0o644, 0o644, 0o600, 0o440, 0o4755]);
    files.insert(b"metadata.json".to_vec(), (text, mode(dice)));
    for call in 1..=dice.below(4) {
        let tool = dice.pick(&["sh", "ssh_exec", "http"]);
        let path = format!("tool_calls/{call:03}_{tool}.txt").into_bytes();
        files.insert(path, (output(dice), mode(dice)));
    }
    let more: [(&[u8], &str); 10] = [
        (b"result.txt", "all done"),
        (b"task.txt", "the task\n"),
        (b"thread.jsonl", "{\"role\":\"assistant\",\"content\":\"last words\"}\n{torn"),
        (
            b"metrics.jsonl",
            "{\"event\":\"tool_call\",\"tool\":\"sh\",\"duration_ms\":5,\"success\":false}\n",
        ),
        (b"logs/errors.log", "ERROR: lost\n"),
        (b"outputs/report.md", "# fine\n"),
        (b"summary", "my own summary"),
        (b"index.json", "{}"),
        (b"evidence.900.txt", "mine"),
        (b"odd \xff\n name", "x"),
    ];
    for (path, text) in more {
        if dice.once_in(3) {
            files.insert(path.to_vec(), (text.into(), mode(dice)));
        }
    }
    let mut links = Vec::new();
    if dice.once_in(3) {
        links.push("tool_calls/009_link.txt".to_owned());
    }
    WorkerSpec {
        folder,
        owner: believed,
        run,
        files,
        links,
        pipe: dice.once_in(4),
        entry: Some(entry),
    }
}

fn output(dice: &mut Dice) -> Vec<u8> {
    match dice.below(7) {
        0 => b"{\"ok\": true, \"data\": {\"exit_code\": 0}}".to_vec(),
        1 => b"{\"ok\": false, \"error\": \"refused\"}".to_vec(),
        2 => b"{'ok': False, 'exit_code': 2}".to_vec(),
        3 => b"<tool-error>no such host".to_vec(),
        4 | 5 => format!("[TOOL_OUTPUT:artifact_id={},tool=sh,bytes=77]", artifact(dice.below(6)))
            .into_bytes(),
        _ => "line of plain text\n".repeat(dice.below(120)).into_bytes(),
    }
}

fn stamp(path: &Path, root: &Path) {
    let name = path.strip_prefix(root).unwrap().as_os_str().as_encoded_bytes();
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, b| {
        (hash ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
    });
    let time = SystemTime::UNIX_EPOCH
        + Duration::new(1_700_000_000 + hash % 10_000_000, (hash % 1_000_000_000) as u32);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

/// Gives everything in a worker's directory a time that depends only on its path.
fn stamp_all(folder: &Path, root: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            stamp_all(&entry.path(), root);
        } else if kind.is_file() {
            stamp(&entry.path(), root);
        }
    }
    stamp(folder, root);
}

/// Writes the workers for which `keep` returns true. With `whole`, also writes files that belong to
/// nobody.
fn write(made: &StoreSpec, whole: bool, keep: impl Fn(&WorkerSpec) -> bool) -> TestStore {
    let store = TestStore::new();
    let root = store.path();
    fs::create_dir(root.join("workers")).unwrap();
    for folder in [root.clone(), root.join("workers")] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut entries = Vec::new();
    for worker in made.workers.iter().filter(|made| keep(made)) {
        let at = |path: &[u8]| store.at([worker.folder.as_bytes(), b"/", path].concat());
        for (path, (bytes, mode)) in &worker.files {
            let path = store.write([worker.folder.as_bytes(), b"/", path].concat(), bytes);
            fs::set_permissions(path, fs::Permissions::from_mode(*mode)).unwrap();
        }
        for link in &worker.links {
            fs::create_dir_all(at(link.as_bytes()).parent().unwrap()).unwrap();
            symlink("../../foreign/result.txt", at(link.as_bytes())).unwrap();
        }
        if worker.pipe {
            make_fifo(&at(b"pipe"));
        }
        stamp_all(&store.at(&worker.folder), &root);
        entries.extend(worker.entry.clone());
    }
    if let Some((path, object)) = made.index {
        if whole {
            entries.insert(0, json!({"id": "gone", "worker_id": "gone", "task": CANARY}));
        }
        let index =
            if object { json!({"workers": entries, "total_workers": 99}) } else { json!(entries) };
        store.write(path, index.to_string());
    }
    let outputs: PathBuf =
        if made.outputs_beside { root.parent().unwrap().to_path_buf() } else { root.clone() };
    for (owner, number, text, claimed) in
        made.outputs.iter().filter(|(owner, ..)| whole || *owner == MINE)
    {
        let folder = outputs.join("tool_outputs").join(owner);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{}.txt", artifact(*number))), text).unwrap();
        let description =
            json!({"artifact_id": artifact(*number), "owner_id": claimed}).to_string();
        fs::write(folder.join(format!("{}.json", artifact(*number))), description).unwrap();
    }
    if whole && made.notes {
        store.write("supervisor/strategy.md", CANARY);
    }
    if whole && made.junk {
        store.write("workers/not-a-worker/notes.txt", CANARY);
        store.write("index.json.lock", "");
        symlink("/nowhere", store.at("workers/link")).unwrap();
        make_fifo(&store.at("pipe"));
    }
    store
}

/// Returns a random store, the filter of a random view of it, and the IDs of all workers.
pub fn random_store(seed: u64) -> (TestStore, Filter, Vec<String>) {
    let (made, mut dice) = (random_spec(seed), Dice::new(!seed));
    let owner = (!dice.once_in(3)).then(|| (*dice.pick(&OWNERS)).to_owned());
    let run = dice.once_in(3).then(|| (*dice.pick(&RUNS)).to_owned());
    let ids = made.workers.iter().map(|made| made.folder.rsplit('/').next().unwrap().to_owned());
    (write(&made, true, |_| true), Filter { owner, run }, ids.collect())
}

/// Returns a random store in which some files are hard links to another worker's. Also returns
/// filters: everything, two owners, an owner's run and a run.
pub fn random_linked_store(seed: u64) -> (TestStore, [Filter; 5]) {
    let (made, mut dice) = (random_spec(seed), Dice::new(!seed));
    let store = write(&made, true, |_| true);
    for _ in 0..dice.below(6) {
        let (from, to) = (dice.pick(&made.workers), dice.pick(&made.workers));
        let file = dice.pick(&[
            "metadata.json",
            "metadata.json",
            "task.txt",
            "result.txt",
            "tool_calls/001_sh.txt",
        ]);
        let [from, to] = [from, to].map(|worker| store.at(format!("{}/{file}", worker.folder)));
        if from != to && from.is_file() {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            let _ = fs::remove_file(&to);
            fs::hard_link(from, to).unwrap();
        }
    }
    let filter = |owner: Option<&str>, run: Option<&str>| Filter {
        owner: owner.map(str::to_owned),
        run: run.map(str::to_owned),
    };
    let [owner, run] = [*dice.pick(&OWNERS), *dice.pick(&RUNS)];
    let filters = [
        filter(None, None),
        filter(Some(MINE), None),
        filter(Some("B"), None),
        filter(Some(owner), Some(run)),
        filter(None, Some(run)),
    ];
    (store, filters)
}

fn tree(store: &TestStore, filter: &Filter) -> Tree {
    Tree::new(store.view(NEVER, filter.clone()), Settings::default())
}

/// Returns the names of workers for paths in `compare/`.
fn listed_workers(tree: &Tree) -> Vec<String> {
    let text = |name: Vec<u8>| String::from_utf8(name).ok();
    let names = names(tree, "workers").unwrap().into_iter().filter_map(text);
    let is_one = |name: &String| !name.starts_with('.') && !name.starts_with("index.json");
    names.filter(is_one).map(|name| name.replace('%', "%25")).collect()
}

/// Returns everything visible, including query results.
pub fn everything(tree: &Tree) -> BTreeMap<Vec<u8>, Result<Seen, Error>> {
    let listed = see_folder(tree, "").unwrap();
    let mut all: BTreeMap<Vec<u8>, Result<Seen, Error>> = BTreeMap::new();
    let folders =
        listed.keys().filter(|path| path.ends_with(b"/summary") || path.as_slice() == b"summary");
    for folder in folders.map(|path| &path[..path.len() - b"summary".len()]) {
        for asked in [
            "evidence.0.txt",
            "evidence.900.txt",
            "evidence.4k.txt",
            "grep/.",
            "grep.i.2k@*.txt/error|a",
            "search/error a",
            "search.2k@*.txt/the -x",
            "summary@error",
        ] {
            let path = [folder, asked.as_bytes()].concat();
            all.insert(path.clone(), see(tree, &path));
        }
    }
    all.extend(listed.into_iter().map(|(path, seen)| (path, Ok(seen))));
    let ids: Vec<String> = listed_workers(tree);
    for pair in ids.windows(2).take(3) {
        let path = format!("compare.6k/{}..{}", pair[0], pair[1]).into_bytes();
        all.insert(path.clone(), see(tree, &path));
    }
    for asked in ["compare/a..nobody", "compare@x y/a"] {
        all.insert(asked.into(), see(tree, asked));
    }
    for asked in [
        "by/status/failed/outcome/failed",
        "by/status/completed/limit/2",
        "by/tag/a",
        "by/run/48/tool/sh",
    ] {
        let listed = names(tree, asked).map(|names| Seen::Link(names.concat()));
        all.insert(asked.into(), listed);
    }
    let (root, _) = tree.attr(ROOT).unwrap();
    let times = (root.mtime.secs, root.mtime.nanos);
    all.insert(
        Vec::new(),
        Ok(Seen::Folder { attr: (root.mode, root.uid, root.gid), mtime: times }),
    );
    all
}

fn in_run(made: &WorkerSpec, filter: &Filter) -> bool {
    filter.run.as_deref().is_none_or(|run| made.run == Some(run))
}

/// Compares both trees of one random store. Returns true if the control saw a difference.
fn compare(seed: u64) -> bool {
    let made = random_spec(seed);
    let mut dice = Dice::new(!seed);
    let run = dice.once_in(2).then(|| (*dice.pick(&RUNS)).to_owned());
    let filter = Filter { owner: Some(MINE.into()), run };
    let mine = |made: &WorkerSpec| made.owner == Some(MINE) && in_run(made, &filter);
    let (whole, alone) = (write(&made, true, |_| true), write(&made, false, mine));
    let (in_whole, in_alone) = (tree(&whole, &filter), tree(&alone, &filter));
    let (seen, wanted) = (everything(&in_whole), everything(&in_alone));
    for path in seen.keys().chain(wanted.keys()).collect::<BTreeSet<_>>() {
        let (a, b) = (seen.get(path), wanted.get(path));
        assert!(
            a == b,
            "store {seed}, {}:\nin the whole store {a:#?}\nalone {b:#?}",
            path.escape_ascii()
        );
    }
    // Everything outside the view is absent, and nothing else.
    for made in &made.workers {
        let id = made.folder.rsplit('/').next().unwrap();
        for path in [
            format!("workers/{id}"),
            format!("workers/{id}~2"),
            format!("workers/{id}/metadata.json"),
        ] {
            let (a, b) = (see(&in_whole, &path).err(), see(&in_alone, &path).err());
            assert_eq!(a, b, "store {seed}: {path}");
            let absent = see(&in_whole, path.replace(id, "never-there")).err();
            assert!(
                a.is_none() || a == absent,
                "store {seed}: {path}: {a:?}, but of what is absent {absent:?}"
            );
        }
    }
    for path in [
        "supervisor",
        "supervisor/strategy.md",
        "workers/index.json.own",
        "runs/48",
        "runs/a%2Fb",
        "runs/never",
    ] {
        assert_eq!(see(&in_whole, path).err(), see(&in_alone, path).err(), "store {seed}: {path}");
    }
    // Control: without the owner in the filter, the comparison must fail.
    let unfiltered = everything(&tree(&whole, &Filter { owner: None, run: filter.run.clone() }));
    unfiltered != wanted
        || !made
            .workers
            .iter()
            .any(|made| made.owner.is_some_and(|id| id != MINE) && in_run(made, &filter))
}

/// Promise: The log of a mount for one owner names no worker of another.
///
/// Logs name nothing outside the view, as long as it causes no error.
#[test]
fn log_of_an_owner_mount_names_no_foreign_worker() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w1", json!({"owner_id": MINE, "run_id": "mine"}));
    store.worker(CANARY, json!({"owner_id": "B", "run_id": CANARY, "task": CANARY}));
    store.write(format!("workers/{CANARY}-torn/metadata.json"), "{\"owner_id\": \"A\", ");
    store.write(format!("workers/{CANARY}-torn/tool_calls/001_{CANARY}.txt"), "[TOOL_OUTPUT:");
    store.write(format!("workers/{CANARY}-none/{CANARY}"), "");
    symlink("/nowhere", store.at(format!("workers/{CANARY}-link"))).unwrap();
    make_fifo(&store.at(format!("workers/{CANARY}-pipe")));
    let sandbox = MountSandbox::new();
    let (point, log) = (sandbox.folder("mnt"), sandbox.at("log"));
    check_log_later(&point, &log);
    let mut command = swarmletfs(["mount", "--owner", MINE, "--store"]);
    command.arg(store.path()).arg("--log").arg(&log).arg(&point).env("SWARMLETFS_LOG", "trace");
    let done = run(command);
    done.assert_success();
    assert!(done.err.contains("1 worker in 1 run"), "{done:#?}");
    assert!(!super::walk(&point).keys().any(|path| super::holds_canary(path)));
    umount(&point, &[]).assert_success();
    let text = fs::read(&log).unwrap();
    assert!(text.len() > 1_000 && !super::holds_canary(&text), "{}", text.escape_ascii());
}

fn compare_all(seeds: impl Iterator<Item = u64>) {
    let blind: Vec<u64> = seeds.filter(|seed| !compare(*seed)).collect();
    assert!(blind.is_empty(), "without the filter no difference was seen in {blind:?}");
}

/// Promise: An owner's view of a shared store equals the view of a store that holds only that
/// owner's workers.
#[test]
fn owner_view_equals_view_of_a_store_of_that_owner_alone() {
    compare_all(seeds(STORES).step_by(2));
}

#[test]
fn owner_view_equals_view_of_a_store_of_that_owner_alone_odd_seeds() {
    compare_all(seeds(STORES).skip(1).step_by(2));
}
