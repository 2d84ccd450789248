//! Directories are listed completely and without duplicates (R11): ten thousand workers, a hundred
//! thousand files, and changes meanwhile, with handles that are held open, rewound and moved. The
//! kernel shares cached listings of finished workers' directories among all readers. These must not
//! mix entries of different times.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use serde_json::json;
use swarmletfs_base::store::TICK_MAX;

use super::{PATIENCE, eventually, reply_count};
use crate::hostile::Dice;
use crate::needs_fuse;
use crate::support::{Mount, TestStore, scale, seed};

const MIB: u64 = 1 << 20;
/// Memory that listings of ten thousand workers may use beyond that of an idle server, in bytes.
const OVER_IDLE: u64 = 32 * MIB;
/// Time without changes after which a directory may be cached.
const QUIET: Duration = TICK_MAX;
/// During the test nothing is checked because of its age.
const HOUR: [&str; 2] = ["--ttl", "3600"];

/// Promise: Names that begin with `.swarmletfs-` are not listed, and make no worker.
#[test]
fn temporary_entries_are_not_listed() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({"status": "running"})).write("workers/w/outputs/report.md", "x");
    let mount = Mount::with(&store.path(), &["--ttl", "0"]);
    let before = mount.text("index.json");
    store.write("workers/.swarmletfs-new-abc/metadata.json", r#"{"status": "completed"}"#);
    store.write("workers/w/outputs/.swarmletfs-tmp-1", "half");
    assert_eq!(mount.list("workers"), ["index.json", "w"]);
    assert_eq!(mount.list("workers/w/outputs"), ["report.md"]);
    for path in ["grep/half", "search/half", "index.json"] {
        assert!(!mount.text(path).contains(".swarmletfs-"), "{path}");
    }
    assert!(before.contains("\"total_workers\":1"), "{before}");
    // Renamed, both appear as a whole.
    let rename = |from: &str, to: &str| fs::rename(store.at(from), store.at(to)).unwrap();
    rename("workers/w/outputs/.swarmletfs-tmp-1", "workers/w/outputs/whole.md");
    rename("workers/.swarmletfs-new-abc", "workers/abc");
    eventually("the worker and its file appear", || {
        let is_shown = mount.list("workers") == ["abc", "index.json", "w"]
            && mount.list("workers/w/outputs") == ["report.md", "whole.md"];
        is_shown.then_some(())
    });
}

/// A reader that lists a directory in parts.
struct Reader {
    folder: OwnedFd,
    /// The entries listed since the start, and the offset after each.
    listed: Vec<(String, u64)>,
    ended: bool,
    /// The round in which this listing started.
    began: usize,
}

impl Reader {
    fn open(path: &Path, round: usize) -> Reader {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())
            .unwrap_or_else(|errno| panic!("{path:?}: {errno}"));
        Reader { folder, listed: Vec::new(), ended: false, began: round }
    }

    /// Continues the listing with one call that has a buffer of `room` bytes.
    fn read_part(&mut self, room: usize) {
        let mut buffer = Vec::with_capacity(room);
        let mut entries = RawDir::new(&self.folder, buffer.spare_capacity_mut());
        self.ended = true;
        while let Some(entry) = entries.next() {
            let entry = entry.unwrap();
            let (name, behind) =
                (entry.file_name().to_string_lossy().into_owned(), entry.next_entry_cookie());
            self.ended = false;
            self.listed.push((name, behind));
            if entries.is_buffer_empty() {
                break;
            }
        }
    }

    /// Lists the remaining entries.
    fn read_rest(&mut self, room: usize) {
        while !self.ended {
            self.read_part(room);
        }
    }

    fn rewind(&mut self, round: usize) {
        rustix::fs::seek(&self.folder, SeekFrom::Start(0)).unwrap();
        (self.listed, self.ended, self.began) = (Vec::new(), false, round);
    }

    /// Seeks back to the offset after the first `kept` entries.
    fn seek_back_to(&mut self, kept: usize) {
        let behind = kept.checked_sub(1).map_or(0, |last| self.listed[last].1);
        rustix::fs::seek(&self.folder, SeekFrom::Start(behind)).unwrap();
        self.listed.truncate(kept);
        self.ended = false;
    }

    /// Returns how often each name was listed.
    fn counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for (name, _) in self.listed.iter().filter(|(name, _)| name != "." && name != "..") {
            *counts.entry(name.as_str()).or_default() += 1;
        }
        counts
    }

    /// Returns an error for a finished listing in which a name of `throughout` is missing or
    /// duplicated.
    fn find_error<'a>(&self, throughout: impl Iterator<Item = &'a String>) -> Option<String> {
        let counts = self.counts();
        let bad: Vec<String> = throughout
            .filter_map(|name| match counts.get(name.as_str()).copied().unwrap_or_default() {
                1 => None,
                times => Some(format!("{name} {times} times")),
            })
            .collect();
        let few: Vec<&String> = bad.iter().take(3).collect();
        (!bad.is_empty())
            .then(|| format!("of {} names {} are wrong: {few:?}", counts.len(), bad.len()))
    }
}

/// Returns names of equal length, so that parts of two listings end at equal offsets.
fn name(number: usize) -> String {
    format!("artifact-{number:06}-of-a-worker")
}

fn memory(mount: &Mount) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", mount.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// Waits until the directory has not changed for longer than [`QUIET`].
fn await_quiet(path: &Path) {
    eventually("the folder rests", || {
        let changed = fs::metadata(path).unwrap().modified().unwrap();
        changed.elapsed().is_ok_and(|age| age > QUIET).then_some(())
    });
}

#[test]
fn ten_thousand_workers_are_listed_once() {
    needs_fuse!();
    let store = TestStore::new();
    let workers: BTreeSet<String> = (0..scale(10_000)).map(name).collect();
    let mount = {
        let metadata =
            json!({"status": "success", "run_id": "r", "task": "one of many"}).to_string();
        for worker in &workers {
            store.write(format!("workers/{worker}/metadata.json"), &metadata);
        }
        Mount::new(&store.path())
    };
    for folder in ["workers", "runs/r/workers", "by/status/completed"] {
        let mut readers: Vec<Reader> = (0..4).map(|_| Reader::open(&mount.at(folder), 0)).collect();
        for reader in &mut readers {
            reader.read_part(4_096);
        }
        for reader in &mut readers {
            reader.read_rest(32_768);
            assert_eq!(reader.find_error(workers.iter()), None, "{folder}");
            let half = reader.listed.len() / 2;
            reader.seek_back_to(half);
            reader.read_rest(5_000);
            assert_eq!(reader.find_error(workers.iter()), None, "{folder}, sought in");
        }
    }
    let empty = TestStore::new();
    let idle = memory(&Mount::new(&empty.path()));
    let more = memory(&mount).saturating_sub(idle);
    assert!(
        more < OVER_IDLE * scale(1) as u64,
        "{} MiB over idle for {} workers",
        more / MIB,
        workers.len()
    );
}

/// Each permanent name is listed once despite the changes, and a new handle shows the current
/// entries.
#[test]
fn hundred_thousand_files_are_listed_once_during_changes() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({"status": "success"}));
    let all = scale(100_000);
    let folder = store.at("workers/w/outputs");
    fs::create_dir(&folder).unwrap();
    let made = |number: usize| drop(fs::File::create(folder.join(name(number))).unwrap());
    // One of every ten comes and goes.
    let stay: BTreeSet<String> = (0..all).filter(|number| number % 10 != 0).map(name).collect();
    (0..all).filter(|number| number % 20 != 10).for_each(made);
    let mount = Mount::with(&store.path(), &HOUR);
    let path = mount.at("workers/w/outputs");
    let idle = memory(&mount);
    let mut dice = Dice::new(seed());
    let mut readers: Vec<Reader> = (0..4).map(|_| Reader::open(&path, 0)).collect();
    for turn in 0..10 {
        // The files at 10 of 20 come and those at 0 go, or the reverse, a tenth of them in each
        // turn.
        let mut changed = 0;
        for number in (0..all).step_by(10).filter(|number| number / 10 % 10 == turn) {
            let path = folder.join(name(number));
            if path.exists() {
                fs::remove_file(path).unwrap()
            } else {
                made(number)
            }
            changed += 1;
        }
        assert!(changed > 0);
        for reader in &mut readers {
            let wanted = reader.listed.len() + all / 8;
            while !reader.ended && reader.listed.len() < wanted {
                reader.read_part(32_768);
            }
            let back = dice.below(reader.listed.len());
            match dice.below(4) {
                0 => reader.seek_back_to(back),
                _ if reader.ended => {
                    assert_eq!(reader.find_error(stay.iter()), None, "in turn {turn}");
                    reader.rewind(turn);
                }
                _ => {}
            }
        }
    }
    for reader in &mut readers {
        reader.read_rest(32_768);
        assert_eq!(reader.find_error(stay.iter()), None, "at the end");
    }
    let there: BTreeSet<String> =
        fs::read_dir(&folder).unwrap().map(|entry| typed(entry.unwrap().file_name())).collect();
    // The directory of a finished worker is looked at again after a while.
    let last = eventually("a new handle shows the current entries", || {
        let mut last = Reader::open(&path, 0);
        last.read_rest(32_768);
        last.find_error(there.iter()).is_none().then_some(last)
    });
    assert_eq!(last.counts().len(), there.len(), "opened at the end");
    let more = memory(&mount).saturating_sub(idle);
    // Every open handle may hold its own listing.
    let most = (readers.len() + 1) * all * 512;
    assert!(
        more < most as u64,
        "{} MiB over idle for {all} files and {} handles",
        more / MIB,
        readers.len() + 1
    );
}

/// Promise: A reader that pauses in a listing continues it, whatever changes meanwhile.
#[test]
fn a_reader_continues_in_a_changed_directory_after_many_other_listings() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({"status": "success"}));
    let folder = store.at("workers/w/outputs");
    fs::create_dir(&folder).unwrap();
    let made = |number: usize| drop(fs::File::create(folder.join(name(number))).unwrap());
    let all = 2_000;
    (0..all).for_each(made);
    let others = 400;
    for other in 0..others {
        store.worker(&format!("other-{other}"), json!({"status": "success"}));
    }
    let mount = Mount::with(&store.path(), &HOUR);
    let path = mount.at("workers/w/outputs");
    let mut dice = Dice::new(seed());
    let mut stay: BTreeSet<String> = (0..all).map(name).collect();
    let mut readers: Vec<Reader> = (0..3).map(|_| Reader::open(&path, 0)).collect();
    for (at, reader) in readers.iter_mut().enumerate() {
        while reader.listed.len() < all / 4 * (at + 1) {
            reader.read_part(4_096);
        }
        // The last entry that it was given vanishes, too.
        let last = reader.listed.last().unwrap().0.clone();
        fs::remove_file(folder.join(&last)).unwrap();
        stay.remove(&last);
    }
    for number in (0..all).filter(|_| dice.once_in(10)) {
        if stay.remove(&name(number)) {
            fs::remove_file(folder.join(name(number))).unwrap();
        }
    }
    for number in 0..all / 10 {
        fs::File::create(folder.join(format!("{}~{number}", name(number)))).unwrap();
    }
    for other in 0..others {
        assert_eq!(fs::read_dir(mount.at(&format!("workers/other-{other}"))).unwrap().count(), 4);
    }
    for reader in &mut readers {
        reader.read_rest(4_096);
        assert_eq!(reader.find_error(stay.iter()), None);
    }
}

fn typed(name: std::ffi::OsString) -> String {
    name.into_string().unwrap()
}

/// Number of directories, and of rounds of changes.
const FOLDERS: usize = 24;
const ROUNDS: usize = 4;
/// Steps per directory in each half of a round: before and after the change has appeared.
const STEPS: usize = 60;
/// Names in a directory. Those with even numbers stay.
const NAMES: usize = 400;

/// A directory that changes, and its readers.
struct Folder {
    store: std::path::PathBuf,
    shown: std::path::PathBuf,
    there: BTreeSet<String>,
    readers: Vec<Reader>,
    dice: Dice,
    steps: Vec<String>,
}

impl Folder {
    fn change(&mut self) {
        for _ in 0..=self.dice.below(5) {
            let changed = name(self.dice.below(NAMES / 2) * 2 + 1);
            let path = self.store.join(&changed);
            if self.there.remove(&changed) {
                fs::remove_file(path).unwrap();
            } else {
                fs::File::create(path).unwrap();
                self.there.insert(changed);
            }
        }
        self.steps.push("change".into());
    }

    /// Returns true if a new reader sees what is there.
    fn is_current(&self) -> bool {
        let mut reader = Reader::open(&self.shown, 0);
        reader.read_rest(32_768);
        reader.counts().keys().copied().eq(self.there.iter().map(String::as_str))
    }

    /// Takes a step in half a round; the change has appeared in those with odd numbers.
    fn step(&mut self, round: usize) -> Result<(), String> {
        let at = self.dice.below(self.readers.len().max(1));
        let room = *self.dice.pick(&[300, 4_096, 4_096, 32_768]);
        let dice = self.dice.below(10);
        let Some(reader) = self.readers.get_mut(at).filter(|_| dice > 0) else {
            if self.readers.len() < 6 {
                self.readers.push(Reader::open(&self.shown, round));
                self.steps.push("open".into());
            }
            return Ok(());
        };
        match dice {
            1 => {
                let kept = self.dice.below(reader.listed.len() + 1);
                // A listing that began before the change may be restarted with the current entries.
                if kept > 0 {
                    reader.seek_back_to(kept);
                    self.steps.push(format!("{at} back to {kept}"));
                }
            }
            2 => {
                reader.read_rest(room);
                self.steps.push(format!("{at} all"));
            }
            _ => {
                reader.read_part(room);
                self.steps.push(format!("{at} part of {room}"));
            }
        }
        if !reader.ended {
            return Ok(());
        }
        let reader = self.readers.remove(at);
        let stay: Vec<String> = (0..NAMES).step_by(2).map(name).collect();
        let mut wrong = reader.find_error(stay.iter());
        // The change had appeared when it began.
        if reader.began == round && round % 2 == 1 {
            let counts = reader.counts();
            let others = counts.keys().filter(|name| !self.there.contains(**name)).count();
            wrong = wrong.or_else(|| reader.find_error(self.there.iter()));
            wrong = wrong
                .or_else(|| (others > 0).then(|| format!("{others} are listed that are gone")));
        }
        let last = self.steps.len().saturating_sub(40);
        wrong.map_or(Ok(()), |wrong| {
            Err(format!(
                "round {round}, who began in {}: {wrong}; steps: {:?}",
                reader.began,
                &self.steps[last..]
            ))
        })
    }
}

/// Readers of one directory of a finished worker take turns, a part at a time, while the directory
/// changes. The kernel caches what one of them reads for the others.
#[test]
fn listings_cached_by_the_kernel_are_complete_and_current() {
    needs_fuse!();
    let store = TestStore::new();
    for number in 0..FOLDERS {
        store.worker(&format!("w{number}"), json!({"status": "success"}));
        for file in (0..NAMES).filter(|file| file % 4 != 1) {
            store.write(format!("workers/w{number}/outputs/{}", name(file)), "");
        }
    }
    let mount = Mount::with(&store.path(), &HOUR);
    let mut folders: Vec<Folder> = (0..FOLDERS)
        .map(|number| {
            let path = format!("workers/w{number}/outputs");
            let there = (0..NAMES).filter(|file| file % 4 != 1).map(name).collect();
            let (store, shown) = (store.at(&path), mount.at(&path));
            Folder {
                store,
                shown,
                there,
                readers: Vec::new(),
                dice: Dice::new(seed() + number as u64),
                steps: Vec::new(),
            }
        })
        .collect();
    let mut wrong = Vec::new();
    let rounds = scale(ROUNDS);
    for half in 0..2 * rounds {
        for folder in &mut folders {
            if half % 2 == 0 {
                folder.change();
            } else {
                eventually("the change", || folder.is_current().then_some(()));
            }
            wrong.extend((0..STEPS).filter_map(|_| folder.step(half).err()).take(1));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {FOLDERS} folders in {rounds} rounds: {}",
        wrong.len(),
        wrong[0]
    );
}

/// Four readers of one directory, the first of which began before a change. The rest of its listing
/// must not become the rest of the others' listings.
#[test]
fn listing_is_not_continued_with_an_outdated_rest() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({"status": "success"}));
    let stay: Vec<String> = (0..1_000).filter(|number| number % 2 == 0).map(name).collect();
    for name in stay.iter().cloned().chain([name(1)]) {
        store.write(format!("workers/w/outputs/{name}"), "");
    }
    let folder = store.at("workers/w/outputs");
    let mount = Mount::with(&store.path(), &["--ttl", &(PATIENCE.as_secs() * 4).to_string()]);
    let open = || Reader::open(&mount.at("workers/w/outputs"), 0);
    await_quiet(&folder);
    let mut before = open();
    before.read_part(4_096);
    fs::remove_file(folder.join(name(1))).unwrap();
    await_quiet(&folder);
    let mut all = open();
    all.read_rest(4_096);
    assert_eq!(all.find_error(stay.iter()), None, "a listing read at once is wrong");
    let mut after = open();
    after.read_part(4_096);
    before.read_rest(4_096);
    assert_eq!(
        before.find_error(stay.iter()),
        None,
        "a listing that began before the change is wrong"
    );
    let mut then = open();
    then.read_rest(4_096);
    assert_eq!(
        then.find_error(stay.iter()),
        None,
        "a listing opened after the first one ended is wrong"
    );
    after.read_rest(4_096);
    assert_eq!(
        after.find_error(stay.iter()),
        None,
        "a listing that began after the change is wrong"
    );
}

/// Promise: Listing a finished worker's directories again asks the file system nothing.
#[test]
fn a_warm_listing_of_finished_workers_costs_no_request() {
    needs_fuse!();
    let store = TestStore::new();
    for worker in 0..20 {
        store.worker(&format!("w{worker}"), json!({"status": "success"}));
        store.write(format!("workers/w{worker}/outputs/a/report.md"), "x");
    }
    let mount = Mount::with(&store.path(), &HOUR);
    let find = || {
        let found = mount.shell("cd \"$M\" && find workers -path 'workers/w*'");
        assert!(found.status.success(), "{found:?}");
        found.stdout.iter().filter(|byte| **byte == b'\n').count()
    };
    assert_eq!(find(), 20 * 8);
    // Attributes of lists of workers expire after a second.
    eventually("a listing without requests", || {
        find();
        let before = reply_count(&mount);
        find();
        (reply_count(&mount) == before).then_some(())
    });
}

/// Promise: A program that reads attributes of the files that it lists gets them with the listing.
#[test]
fn files_are_listed_with_their_attributes() {
    needs_fuse!();
    let store = TestStore::new();
    let (workers, files) = (20, 30);
    for worker in 0..workers {
        store.worker(&format!("w{worker}"), json!({"status": "success"}));
        for file in 0..files {
            let path = format!("workers/w{worker}/outputs/{file}.txt");
            store.write(path, "x".repeat(1 + worker * file));
        }
    }
    let mount = Mount::with(&store.path(), &HOUR);
    let sizes = "cd \"$M\"/workers && ls -lR w*/outputs | awk '/txt/ {print $5, $NF}'";
    let before = reply_count(&mount);
    let listed = String::from_utf8(mount.shell(sizes).stdout).unwrap();
    let replies = reply_count(&mount) - before;
    let expected =
        Command::new("bash").args(["-c", sizes]).env("M", store.path()).output().unwrap();
    assert_eq!(listed, String::from_utf8(expected.stdout).unwrap());
    // The first files of the program are looked up one by one.
    let most = files + 10 * workers;
    assert!(replies < most as u64, "{replies} replies for {} files", workers * files);
}

/// The kernel counts a lookup of each entry of a listing, also of those that come without
/// attributes. An inode that it gives back too often would be removed while a request uses it. The
/// program logs that, which fails the test.
#[test]
fn entries_without_attributes_are_given_back_as_often_as_they_were_listed() {
    needs_fuse!();
    let store = TestStore::new();
    for worker in 0..5 {
        store.worker(&format!("w{worker}"), json!({"status": "running"}));
        store.write(format!("workers/w{worker}/outputs/report.md"), "x");
    }
    let mount = Mount::with(&store.path(), &["--ttl", "0"]);
    for round in 0..3 {
        for folder in ["", "by", "by/status", "runs", "workers", "workers/w1"] {
            mount.list(folder);
        }
        let all = mount.shell("cd \"$M\" && find . -maxdepth 4 | xargs stat > /dev/null");
        assert!(all.status.success(), "{all:?}");
        store.write(format!("workers/w{round}/new.txt"), "x");
        mount.forget();
    }
    // What the kernel gave back arrives among other requests.
    for _ in 0..5 {
        mount.list("workers");
        mount.shell("ls -lR \"$M\"/workers");
    }
}

#[test]
fn a_long_listing_comes_with_attributes_to_its_end() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({"status": "success"})).write("workers/w/first/1.txt", "x");
    for file in 0..5_000 {
        store.write(format!("workers/w/outputs/{file}.txt"), "x");
    }
    let mount = Mount::with(&store.path(), &HOUR);
    let before = reply_count(&mount);
    // A lookup of a file comes first.
    let listed = mount.shell("cd \"$M\"/workers/w && ls -lR first outputs | grep -c 'txt$'").stdout;
    let replies = reply_count(&mount) - before;
    assert_eq!(String::from_utf8(listed).unwrap(), "5001\n");
    assert!(replies < 200, "{replies} replies for 5,000 files");
}

/// Promise: A program that goes through the directories of a worker asks for none of them by name.
#[test]
fn directories_are_listed_with_their_attributes() {
    needs_fuse!();
    let (store, folders) = (TestStore::new(), 300);
    store.worker("w", json!({"status": "success"}));
    for folder in 0..folders {
        store.write(format!("workers/w/outputs/{folder}/1.txt"), "x");
    }
    let mount = Mount::with(&store.path(), &HOUR);
    mount.list("workers/w");
    let before = reply_count(&mount);
    let found = mount.shell("find \"$M\"/workers/w/outputs -type f | wc -l").stdout;
    let replies = reply_count(&mount) - before;
    assert_eq!(String::from_utf8(found).unwrap().trim(), folders.to_string());
    // Each listing takes two requests, the second of which finds the end.
    assert!(replies < 2 * folders + 30, "{replies} replies for {folders} directories");
}

/// Promise: A program that goes through all workers, or all groups of them, asks for none by name
/// if the state of their files is known.
#[test]
fn workers_and_groups_are_listed_with_their_attributes() {
    needs_fuse!();
    let (store, workers) = (TestStore::new(), 100);
    for worker in 0..workers {
        store.worker(&format!("w{worker}"), json!({"status": "success", "job_id": worker}));
    }
    await_quiet(&store.at(format!("workers/w{}", workers - 1)));
    let mount = Mount::with(&store.path(), &HOUR);
    mount.read("summary");
    for folder in ["workers", "by/job"] {
        let before = reply_count(&mount);
        let command = format!("find \"$M\"/{folder} -mindepth 1 -type d | wc -l");
        let found = mount.shell(&command).stdout;
        let replies = reply_count(&mount) - before;
        assert_eq!(String::from_utf8(found).unwrap().trim(), workers.to_string());
        // Each listing takes two requests, the second of which finds the end.
        assert!(replies < 2 * workers + 30, "{replies} replies for {workers} in {folder}");
    }
}
