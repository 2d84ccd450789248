//! One reader of the mount: chooses an operation, runs it and checks the answer.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use parking_lot::Mutex;
use serde_json::Value;

use crate::disk::is_torn;
use crate::frame::check_frame;
use crate::swarm::{Part, Swarm, version_in};
use crate::tally::{Kind, Tally};
use crate::weather::{Weather, name};

/// What is in a worker's folder in the store.
const OWN: [&str; 5] = ["metadata.json", "task.txt", "result.txt", "thread.jsonl", "tool_calls"];
/// The generated files of a worker, a run and the swarm.
const GENERATED: [&str; 3] = ["evidence.txt", "index.json", "summary"];
/// Who was refused waits so long before the next operation.
const PAUSE: Duration = Duration::from_millis(5);

/// What a client is doing, for those who watch over it.
#[derive(Default)]
pub(crate) struct Pulse(Mutex<Option<(Instant, PathBuf)>>);

impl Pulse {
    /// What the client has been waiting for longer than `limit`.
    pub(crate) fn longer_than(&self, limit: Duration) -> Option<PathBuf> {
        let doing = self.0.lock();
        doing.as_ref().filter(|(since, _)| since.elapsed() > limit).map(|(_, path)| path.clone())
    }

    fn set(&self, doing: Option<(Instant, PathBuf)>) {
        *self.0.lock() = doing;
    }
}

/// A reader.
pub(crate) struct Client {
    swarm: Swarm,
    mount: PathBuf,
    rng: Rng,
    pulse: Arc<Pulse>,
    weather: Arc<Weather>,
    pub(crate) tally: Tally,
}

impl Client {
    pub(crate) fn new(swarm: Swarm, mount: &Path, number: u64, pulse: Arc<Pulse>, weather: Arc<Weather>) -> Client {
        let rng = Rng::with_seed(swarm.seed.wrapping_mul(1_000).wrapping_add(number));
        Client { swarm, mount: mount.to_path_buf(), rng, pulse, weather, tally: Tally::default() }
    }

    /// Does one thing: of a hundred 60 lookups and stats, 25 reads of an own file, 10 listings, 5 generated files.
    pub(crate) fn turn(&mut self) {
        let worker = self.rng.usize(..self.swarm.workers);
        let folder = self.folder(worker);
        match self.rng.u8(..100) {
            of @ 0..85 => self.of_own(&folder, worker, of),
            85..94 => self.list(&folder, OWN.iter().chain(&GENERATED).map(|name| (*name).into()).collect()),
            94 => {
                let ids = (0..self.swarm.workers).map(|worker| self.swarm.id(worker));
                self.list(
                    &self.mount.join("workers"),
                    ids.chain(["index.json".into(), "index.json.own".into()]).collect(),
                );
            }
            // The swarm's own files are asked for now and then.
            _ if self.rng.u8(..20) == 0 => self.generated(&self.mount.clone(), None),
            _ => self.generated(&folder, Some(worker)),
        }
    }

    /// Does one thing that can be done wherever a worker's own files are, in the same proportions: in a listing there may
    /// be more.
    pub(crate) fn turn_of_own(&mut self) {
        let worker = self.rng.usize(..self.swarm.workers);
        let folder = self.folder(worker);
        match self.rng.u8(..95) {
            of @ 0..85 => self.of_own(&folder, worker, of),
            _ => self.operation(Kind::List, &folder, names, |names| {
                match OWN.iter().find(|own| !names.iter().any(|name| name == *own)) {
                    Some(missing) => Err(format!("{missing} is missing")),
                    None => Ok(()),
                }
            }),
        }
    }

    fn folder(&self, worker: usize) -> PathBuf {
        self.mount.join("workers").join(self.swarm.id(worker))
    }

    /// Of 85, 60 lookups and stats, and 25 reads.
    fn of_own(&mut self, folder: &Path, worker: usize, of: u8) {
        let parts: Vec<Part> = self.swarm.parts().collect();
        let part = self.rng.choice(parts).unwrap_or(Part::Metadata);
        match of {
            0..30 => self.stat(folder, true),
            30..60 => self.stat(&folder.join(part.path()), false),
            _ => self.own(&folder.join(part.path()), worker, part),
        }
    }

    fn stat(&mut self, path: &Path, folder: bool) {
        self.operation(
            Kind::Stat,
            path,
            |path| fs::symlink_metadata(path),
            |meta: &fs::Metadata| {
                if meta.is_dir() == folder { Ok(()) } else { Err(format!("{:?}", meta.file_type())) }
            },
        );
    }

    fn own(&mut self, path: &Path, worker: usize, part: Part) {
        let swarm = self.swarm;
        let as_on_disk = part == Part::Thread || (part == Part::Metadata && is_torn(worker));
        self.operation(Kind::Own, path, read, |(size, bytes)| {
            if !as_on_disk {
                same_size(*size, bytes)?;
            }
            // What is rewritten in place may be read in pieces, as on disk.
            if part == Part::Metadata && as_on_disk { Ok(()) } else { swarm.check(worker, part, bytes) }
        });
    }

    fn list(&mut self, path: &Path, expected: BTreeSet<String>) {
        self.operation(Kind::List, path, names, |names| {
            let found: BTreeSet<String> = names.iter().cloned().collect();
            let differs: Vec<&String> = found.symmetric_difference(&expected).take(3).collect();
            if found.len() == names.len() && differs.is_empty() {
                Ok(())
            } else {
                Err(format!("{} names, {} expected, among those that differ {differs:?}", names.len(), expected.len()))
            }
        });
    }

    fn generated(&mut self, folder: &Path, worker: Option<usize>) {
        let swarm = self.swarm;
        let file = self.rng.choice(GENERATED).unwrap_or_default();
        self.operation(Kind::Generated, &folder.join(file), read, |(size, bytes)| {
            same_size(*size, bytes)?;
            match file {
                "evidence.txt" => check_frame(bytes).map(drop),
                "index.json" => check_index(swarm, worker, bytes),
                _ if bytes.ends_with(b"\n") && str::from_utf8(bytes).is_ok() => Ok(()),
                _ => Err("torn".into()),
            }
        });
    }

    /// Does something to a path and judges the answer, which is not part of its time.
    fn operation<T>(
        &mut self,
        kind: Kind,
        path: &Path,
        act: impl FnOnce(&Path) -> io::Result<T>,
        judge: impl FnOnce(&T) -> Result<(), String>,
    ) {
        let began = Instant::now();
        self.pulse.set(Some((began, path.to_path_buf())));
        let answer = act(path);
        let took = began.elapsed();
        self.pulse.set(None);
        match answer {
            Ok(answer) => match judge(&answer) {
                Ok(()) => self.tally.well(kind, took),
                Err(why) => self.tally.wrong(format!("{}: {why}", path.display())),
            },
            Err(error) => {
                let name = name(&error);
                if self.weather.allows(&name, began) {
                    *self.tally.errors.entry(name).or_default() += 1;
                } else {
                    self.tally.wrong(format!("{}: {name} in calm weather, after {took:?}", path.display()));
                }
                thread::sleep(PAUSE);
            }
        }
    }
}

/// The size that fstat tells, and all bytes of the file.
fn read(path: &Path) -> io::Result<(u64, Vec<u8>)> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok((size, bytes))
}

fn names(path: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn same_size(told: u64, bytes: &[u8]) -> Result<(), String> {
    if told == bytes.len() as u64 {
        Ok(())
    } else {
        Err(format!("fstat tells {told} bytes, and {} are read", bytes.len()))
    }
}

/// Checks index.json of a worker or of the swarm: whole, about whom it should be, and of one version.
fn check_index(swarm: Swarm, worker: Option<usize>, bytes: &[u8]) -> Result<(), String> {
    let index: Value = serde_json::from_slice(bytes).map_err(|error| format!("not JSON: {error}"))?;
    let Some(worker) = worker else {
        let rows = index.get("workers").and_then(Value::as_array).map_or(0, Vec::len);
        return if rows == swarm.workers { Ok(()) } else { Err(format!("{rows} workers of {}", swarm.workers)) };
    };
    let text = |key: &str| index.get(key).and_then(Value::as_str).unwrap_or_default();
    if text("id") != swarm.id(worker) {
        return Err(format!("it is about {}", text("id")));
    }
    let [first, second] = ["task_type", "summary"].map(|key| version_in(text(key).as_bytes()));
    match first {
        Some(_) if first == second => Ok(()),
        _ => Err(format!("its task_type is of version {first:?} and its summary of {second:?}")),
    }
}
