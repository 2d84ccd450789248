//! Random changes of all kinds to many running and finished workers at once (R15). After each
//! change the test waits until it is visible by stat, by reading, in the directory listing and in
//! `grep/`. All files were read just before, so every cache is warm. Open handles must keep their
//! version. No times are measured.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;

use serde_json::json;

use super::eventually;
use crate::hostile::Dice;
use crate::needs_fuse;
use crate::support::{Mount, TestStore, scale, seed};

/// Concurrent writers. Each changes its own workers and waits until its change is visible.
const WRITERS: usize = 16;
/// Changes per writer.
const CHANGES: usize = 20;
/// Size in bytes from which the kernel may read a file directly.
const LARGE: usize = 150_000;

/// The expected state of a worker.
struct Worker {
    id: String,
    finished: bool,
    /// The files in its directory of outputs, by name.
    files: BTreeMap<String, Vec<u8>>,
}

struct Writer<'a> {
    store: &'a TestStore,
    mount: &'a Mount,
    number: usize,
    dice: Dice,
    words: usize,
    workers: Vec<Worker>,
    /// Words that must not be found any more.
    gone: Vec<String>,
    done: Vec<String>,
}

/// An open generated file, and its bytes when it was opened.
struct OpenFile {
    path: String,
    file: File,
    bytes: Vec<u8>,
}

impl OpenFile {
    fn open(mount: &Mount, path: String) -> OpenFile {
        let file = File::open(mount.at(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        OpenFile { path, file, bytes }
    }

    fn check(&self, done: &[String]) {
        let mut now = vec![0; self.bytes.len() + 1];
        let read = self
            .file
            .read_at(&mut now, 0)
            .unwrap_or_else(|error| panic!("{} held: {error}", self.path));
        assert!(
            now[..read] == self.bytes,
            "an open handle of {} reads other bytes, after {done:?}",
            self.path
        );
        assert_eq!(
            self.file.metadata().unwrap().size(),
            self.bytes.len() as u64,
            "{}: its size",
            self.path
        );
    }
}

/// Returns the word that a file begins with.
fn first_word(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == b'\n').next().unwrap_or_default())
        .into_owned()
}

impl Writer<'_> {
    fn outputs(id: &str) -> String {
        format!("workers/{id}/outputs")
    }

    /// Makes new bytes that begin with a unique word.
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        self.words += 1;
        let word = format!("word-{:03}-{:05}\n", self.number, self.words);
        let filler = (0..length.saturating_sub(word.len()))
            .map(|at| if at % 60 == 59 { b'\n' } else { b'a' + (at % 23) as u8 });
        word.bytes().chain(filler).collect()
    }

    fn length(&mut self) -> usize {
        if self.dice.once_in(4) {
            LARGE + self.dice.below(1_000)
        } else {
            15 + self.dice.below(9_000)
        }
    }

    fn put_metadata(&self, worker: &Worker) {
        let status = if worker.finished { "success" } else { "running" };
        let metadata = json!({"worker_id": worker.id, "status": status, "run_id": "r"}).to_string();
        let path = format!("workers/{}/metadata.json", worker.id);
        let new = self.store.write(format!("{path}.new"), metadata);
        fs::rename(new, self.store.at(path)).unwrap();
    }

    fn add_worker(&mut self, finished: bool) {
        let id = format!("w{}-{}", self.number, self.words);
        let mut worker = Worker { id, finished, files: BTreeMap::new() };
        for _ in 0..3 {
            let length = self.length();
            let bytes = self.bytes(length);
            let name = format!("{}.txt", first_word(&bytes));
            self.store.write(format!("{}/{name}", Self::outputs(&worker.id)), &bytes);
            worker.files.insert(name, bytes);
        }
        self.put_metadata(&worker);
        self.done.push(format!("worker {}", worker.id));
        self.workers.push(worker);
    }

    fn change(&mut self) -> usize {
        let at = self.dice.below(self.workers.len());
        let outputs = Self::outputs(&self.workers[at].id);
        let names: Vec<String> = self.workers[at].files.keys().cloned().collect();
        let kind = if names.is_empty() { 8 } else { self.dice.below(11) };
        let name = if names.is_empty() { String::new() } else { self.dice.pick(&names).clone() };
        let path = self.store.at(format!("{outputs}/{name}"));
        let old = self.workers[at].files.get(&name).cloned().unwrap_or_default();
        let length = self.length();
        let what = match kind {
            0 | 1 => {
                let more = format!("and word-{:03}-{:05}-more\n", self.number, self.words);
                File::options()
                    .append(true)
                    .open(path)
                    .unwrap()
                    .write_all(more.as_bytes())
                    .unwrap();
                self.workers[at].files.insert(name.clone(), [old, more.into_bytes()].concat());
                "append"
            }
            2 | 3 => {
                // Of equal size: only its times show the change.
                let bytes = self.bytes(old.len());
                File::options().write(true).open(path).unwrap().write_all_at(&bytes, 0).unwrap();
                self.gone.push(first_word(&old));
                self.workers[at].files.insert(name.clone(), bytes);
                "rewrite in place"
            }
            4 => {
                let bytes = self.bytes(length);
                fs::write(path, &bytes).unwrap();
                self.gone.push(first_word(&old));
                self.workers[at].files.insert(name.clone(), bytes);
                "truncate and write"
            }
            5 => {
                let bytes = self.bytes(length);
                let new = self.store.write(format!("beside-{}", self.number), &bytes);
                fs::rename(new, path).unwrap();
                self.gone.push(first_word(&old));
                self.workers[at].files.insert(name.clone(), bytes);
                "replace"
            }
            6 => {
                fs::remove_file(path).unwrap();
                self.gone.push(first_word(&old));
                self.workers[at].files.remove(&name);
                "delete"
            }
            7 => {
                let to = format!("renamed-{}-{}", self.words, name);
                fs::rename(path, self.store.at(format!("{outputs}/{to}"))).unwrap();
                self.workers[at].files.remove(&name);
                self.workers[at].files.insert(to, old);
                self.words += 1;
                "rename"
            }
            8 => {
                let bytes = self.bytes(length);
                let name = format!("{}.txt", first_word(&bytes));
                self.store.write(format!("{outputs}/{name}"), &bytes);
                self.workers[at].files.insert(name, bytes);
                "new file"
            }
            9 => {
                self.workers[at].finished ^= true;
                self.put_metadata(&self.workers[at]);
                "status"
            }
            _ if self.workers.len() > 3 => {
                let worker = self.workers.remove(at);
                fs::remove_dir_all(self.store.at(format!("workers/{}", worker.id))).unwrap();
                self.gone.extend(worker.files.values().map(|bytes| first_word(bytes)));
                self.done.push(format!("delete worker {}", worker.id));
                eventually(&format!("that {} is gone", worker.id), || {
                    fs::metadata(self.mount.at(&Self::outputs(&worker.id))).is_err().then_some(())
                });
                return 0;
            }
            _ => {
                let finished = self.dice.once_in(2);
                self.add_worker(finished);
                return self.workers.len() - 1;
            }
        };
        self.done.push(format!("{what} {outputs}/{name}"));
        at
    }

    /// Waits until the whole state of a worker is visible in every way.
    fn await_seen(&mut self, at: usize) {
        let worker = &self.workers[at];
        let (outputs, describe) =
            (Self::outputs(&worker.id), |what: &str| format!("{what} after {:?}", self.done));
        for (name, bytes) in &worker.files {
            let path = self.mount.at(&format!("{outputs}/{name}"));
            let size = || fs::metadata(&path).ok().map(|meta| meta.len());
            eventually(&describe(&format!("the size of {name}")), || {
                (size()? == bytes.len() as u64).then_some(())
            });
            eventually(&describe(&format!("the bytes of {name}")), || {
                (fs::read(&path).ok()? == *bytes).then_some(())
            });
            assert_eq!(
                size(),
                Some(bytes.len() as u64),
                "{}",
                describe(&format!("the size of {name} when it was read"))
            );
        }
        let names: Vec<&String> = worker.files.keys().collect();
        eventually(&describe("its names"), || {
            let entries = fs::read_dir(self.mount.at(&outputs)).ok()?;
            let mut seen: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            seen.sort();
            seen.iter().eq(names.iter().copied()).then_some(())
        });
        let status = if worker.finished { "completed" } else { "running" };
        eventually(&describe("its status"), || {
            fs::metadata(self.mount.at(&format!("by/status/{status}/{}", worker.id))).ok().map(drop)
        });
        let found = |word: &str| {
            fs::read_to_string(self.mount.at(&format!("grep/{word}$"))).unwrap_or_default()
        };
        if let Some((name, bytes)) =
            worker.files.iter().nth(self.dice.below(worker.files.len().max(1)))
        {
            let line = format!("\n{outputs}/{name}:1:{}\n", first_word(bytes));
            eventually(&describe(&format!("grep finds {line:?}")), || {
                found(&first_word(bytes)).contains(&line).then_some(())
            });
        }
        if let Some(word) = self.gone.pop() {
            eventually(&describe(&format!("grep finds {word} no more")), || {
                found(&word).contains("no line matches").then_some(())
            });
        }
    }
}

#[test]
fn every_random_change_is_visible_by_every_means() {
    needs_fuse!();
    let store = TestStore::new();
    fs::create_dir(store.at("workers")).unwrap();
    let make = |mount, number| Writer {
        store: &store,
        mount,
        number,
        dice: Dice::new(seed() + number as u64),
        words: 0,
        workers: Vec::new(),
        gone: Vec::new(),
        done: Vec::new(),
    };
    // During this test no finished worker is checked because of its age.
    let mount = Mount::with(&store.path(), &["--ttl", "3600"]);
    thread::scope(|scope| {
        for number in 0..WRITERS {
            let mut writer = make(&mount, number);
            scope.spawn(move || {
                writer.add_worker(true);
                writer.add_worker(false);
                writer.add_worker(true);
                (0..3).for_each(|at| writer.await_seen(at));
                let mut held = Vec::new();
                for _ in 0..scale(CHANGES) {
                    let worker = &writer.workers[writer.dice.below(writer.workers.len())].id;
                    let file = *writer.dice.pick(&["index.json", "summary", "evidence.txt"]);
                    held.push(OpenFile::open(writer.mount, format!("workers/{worker}/{file}")));
                    let at = writer.change();
                    writer.await_seen(at);
                    if held.len() > 8 {
                        held.remove(0);
                    }
                    held.iter().for_each(|held: &OpenFile| held.check(&writer.done));
                }
            });
        }
    });
}
