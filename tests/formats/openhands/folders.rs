//! Directories of events, read as one file of lines: growth, torn and removed events, and the cost
//! of following them.

use std::sync::atomic::{AtomicU64, Ordering};

use swarmletfs_base::error::Result;
use swarmletfs_base::store::{DirEntry, File};

use super::*;
use crate::support::TestStore;
use crate::support::intercept::{InterceptedStore, Interceptor};

/// Counts the calls of a store.
#[derive(Clone, Default)]
struct Counter(Arc<[AtomicU64; 3]>);

impl Counter {
    /// Returns the numbers of stats, listings and opened files since the last call.
    fn take(&self) -> (u64, u64, u64) {
        let [stats, lists, opens] = &*self.0;
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        (take(stats), take(lists), take(opens))
    }
}

impl Interceptor for Counter {
    fn stat(&self, store: &dyn Store, path: &RelPath) -> Result<Meta> {
        self.0[0].fetch_add(1, Ordering::Relaxed);
        store.stat(path)
    }

    fn list(&self, store: &dyn Store, path: &RelPath) -> Result<Vec<DirEntry>> {
        self.0[1].fetch_add(1, Ordering::Relaxed);
        store.list(path)
    }

    fn open(&self, store: &dyn Store, path: &RelPath) -> Result<Box<dyn File>> {
        self.0[2].fetch_add(1, Ordering::Relaxed);
        store.open(path)
    }
}

/// Returns a conversation of `count` events.
fn long(count: usize) -> Events {
    let mut events = Events::begun();
    while events.0.len() < count {
        let at = events.0.len();
        events.run(&format!("c{at}"), "echo", &format!("output {at}"), 0);
    }
    events
}

/// Promise: A refresh of a directory of events costs a listing and a few stats, however many events
/// it has.
#[test]
fn refresh_of_many_events_costs_a_listing_and_a_few_stats() {
    let (memory, counter) = (store(), Counter::default());
    let mut events = long(10_000);
    events.write(&memory, "c1");
    let store = InterceptedStore::new(counter.clone(), memory.clone());
    let format = OpenHands::transcripts();
    let at = path("c1/events");
    let found = format.find_workers(&store).unwrap();
    assert_eq!(found.folders, std::slice::from_ref(&at));
    let folder = format.enter(&store, &at).unwrap();
    counter.take();
    let state = format.folder_state(&*folder, &at).unwrap().unwrap();
    let (stats, lists, opens) = counter.take();
    assert!(stats <= 10_010 && lists == 1 && opens <= 1, "{stats} {lists} {opens}");
    // Nothing changed.
    assert_eq!(format.folder_state(&*folder, &at).unwrap().unwrap(), state);
    let (stats, lists, opens) = counter.take();
    assert!(stats <= 8 && lists == 0 && opens == 0, "{stats} {lists} {opens}");
    // The listing of a worker reads only a few events.
    format.read_worker(&*folder, &at, None);
    let (stats, lists, opens) = counter.take();
    assert!(stats <= 30 && lists == 0 && opens <= 400, "{stats} {lists} {opens}");
    let record = |worker: &Worker| {
        let source = RecordSource { folder: &*folder, outputs: None };
        format.read_record(source, worker, Deadline::never()).unwrap()
    };
    let worker = format.read_worker(&*folder, &at, None);
    let before = record(&worker).trace.calls.len();
    // Ten more events.
    let from = events.0.len();
    for n in 0..5 {
        events.run(&format!("new{n}"), "echo", "new", 0);
    }
    events.write_from(&memory, "c1", from);
    counter.take();
    assert_ne!(format.folder_state(&*folder, &at).unwrap().unwrap().key, state.key);
    let (stats, lists, opens) = counter.take();
    assert!(stats <= 20 && lists == 1 && opens <= 1, "{stats} {lists} {opens}");
    assert_eq!(record(&worker).trace.calls.len(), before + 5);
    let (stats, lists, opens) = counter.take();
    assert!(stats <= 60 && lists == 0 && opens <= 200, "{stats} {lists} {opens}");
    assert_eq!(record(&worker), {
        let fresh = OpenHands::transcripts();
        let folder = fresh.enter(&*memory, &at).unwrap();
        let source = RecordSource { folder: &*folder, outputs: None };
        fresh.read_record(source, &worker, Deadline::never()).unwrap()
    });
}

/// Promise: Events that are added to a directory are added to its conversation. A last event that
/// is not whole waits.
#[test]
fn events_appear_as_they_are_added() {
    let store = store();
    let mut events = long(12);
    events.0[3]["text"] = json!("漢 \u{1}");
    events.finish("Done.");
    let live = OpenHands::transcripts();
    let mut calls = 0;
    for at in 0..events.0.len() {
        let text = events.0[at].to_string();
        for end in [0, text.len() / 3, text.len() - 1, text.len()] {
            if !text.is_char_boundary(end) {
                continue;
            }
            store.write(&event_path("c1", at), &text.as_bytes()[..end]);
            let (live, fresh) = (read_with(&live, &*store), read(&*store));
            assert_same(&live, &fresh, &format!("event {at}, {end} bytes"));
            if let Some(shown) = fresh.values().next() {
                assert!(shown.record.trace.bad_lines.is_empty(), "event {at}, {end} bytes");
                let now = shown.record.trace.calls.len();
                assert!(now >= calls, "event {at}, {end} bytes");
                calls = now;
            }
        }
    }
    let shown = read_one(&*store);
    assert_eq!(shown.text("source.jsonl"), events.lines());
    assert_eq!(shown.text("result.txt"), "Done.");
}

#[test]
fn open_file_grows_with_its_directory() {
    let store = store();
    let mut events = long(4);
    events.write(&store, "c1");
    let format = OpenHands::transcripts();
    let folder = format.enter(&*store, &path("c1/events")).unwrap();
    let files = ["source.jsonl", "thread.jsonl"].map(|file| folder.open(&path(file)).unwrap());
    let from = events.0.len();
    events.says("agent", "More.");
    events.write_from(&store, "c1", from);
    for (file, name) in files.iter().zip(["source.jsonl", "thread.jsonl"]) {
        let fresh = folder.open(&path(name)).unwrap();
        let whole = |file: &dyn File| read_range(file, 0, 1 << 20).unwrap();
        assert_eq!(whole(&**file), whole(&*fresh), "{name}");
        assert_eq!(file.meta().unwrap().size, whole(&*fresh).len() as u64, "{name}");
    }
}

#[test]
fn removed_replaced_and_inserted_events_are_noticed() {
    let store = store();
    let events = long(20);
    events.write(&store, "c1");
    let live = OpenHands::transcripts();
    let check = |when: &str| {
        let fresh = read(&*store);
        assert_same(&read_with(&live, &*store), &fresh, when);
        fresh.into_values().next().unwrap().text("source.jsonl").lines().count()
    };
    assert_eq!(check("all"), 20);
    store.remove(&event_path("c1", 7));
    assert_eq!(check("one removed"), 19);
    store.write(&event_path("c1", 7), events.0[7].to_string());
    assert_eq!(check("it is back"), 20);
    store.remove(&event_path("c1", 19));
    assert_eq!(check("last removed"), 19);
    store.write(&path("c1/events/event-00002-ffffffff-0000.json"), events.0[7].to_string());
    assert_eq!(check("another with a number"), 20);
    // The whole directory is another one.
    store.remove(&path("c1"));
    let mut other = long(20);
    other.0[4]["source"] = json!("nobody");
    other.write(&store, "c1");
    assert_eq!(check("another directory"), 20);
}

#[test]
fn events_may_be_printed_over_several_lines() {
    let (store, plain) = (store(), super::store());
    let events = long(10);
    events.write(&plain, "c1");
    for (at, event) in events.0.iter().enumerate() {
        let text = serde_json::to_string_pretty(event).unwrap().replace('\n', "\r\n") + "\r\n";
        store.write(&event_path("c1", at), text);
    }
    let (pretty, plain) = (read_one(&*store), read_one(&*plain));
    assert_eq!(pretty.text("thread.jsonl"), plain.text("thread.jsonl"));
    assert_eq!(pretty.outcomes(), plain.outcomes());
    let lines = pretty.text("source.jsonl").lines();
    let parsed: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(parsed, events.0);
}

#[test]
fn other_entries_beside_events_are_no_events() {
    let store = store();
    let events = long(4);
    events.write(&store, "c1");
    for (name, kind) in [("event-00009-x.json", Kind::Link), ("event-00010-x.json", Kind::Folder)] {
        store.put(&path(&format!("c1/events/{name}")), kind);
    }
    store.write(&path("c1/events/.eventlog.lock"), "");
    store.write(&path("c1/events/index.json"), "{}");
    assert_eq!(read_one(&*store).text("source.jsonl"), events.lines());
}

/// Promise: The conversation of a directory of events may be read by those who may read every event
/// of it.
#[test]
fn permissions_are_those_that_all_events_have() {
    use std::os::unix::fs::PermissionsExt;
    let store = TestStore::new();
    let events = long(6);
    let mut files = events
        .0
        .iter()
        .enumerate()
        .map(|(at, event)| store.write(event_path("c1", at).as_bytes(), event.to_string()));
    let (first, second) = (files.next().unwrap(), files.next().unwrap());
    let folder = first.parent().unwrap().to_owned();
    files.for_each(drop);
    let chmod = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let mode = || {
        let disk = swarmletfs_base::store::Disk::open(&store.path()).unwrap();
        read_one(&disk).files[&path("source.jsonl")].0.mode & 0o777
    };
    chmod(&folder, 0o755);
    chmod(&first, 0o640);
    assert_eq!(mode() & 0o444, 0o440);
    chmod(&second, 0o604);
    assert_eq!(mode() & 0o444, 0o400);
    for file in [&first, &second] {
        chmod(file, 0o644);
    }
    assert_eq!(mode() & 0o444, 0o444);
    // Others may list the directory, but open nothing in it.
    chmod(&folder, 0o754);
    assert_eq!(mode() & 0o444, 0o440);
}
