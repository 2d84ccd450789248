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

/// Names in a worker's directory in the store.
const OWN: [&str; 5] = ["metadata.json", "task.txt", "result.txt", "thread.jsonl", "tool_calls"];
/// Generated files of a worker, a run and the swarm.
const GENERATED: [&str; 3] = ["evidence.txt", "index.json", "summary"];
/// Pause of a client after an error.
const PAUSE: Duration = Duration::from_millis(5);

/// Current operation of a client, for the watchdog.
#[derive(Default)]
pub(crate) struct Pulse(Mutex<Option<(Instant, PathBuf)>>);

impl Pulse {
    /// Returns the path of the operation if it takes longer than `limit`.
    pub(crate) fn hanging_path(&self, limit: Duration) -> Option<PathBuf> {
        let operation = self.0.lock();
        operation
            .as_ref()
            .filter(|(since, _)| since.elapsed() > limit)
            .map(|(_, path)| path.clone())
    }

    fn set(&self, operation: Option<(Instant, PathBuf)>) {
        *self.0.lock() = operation;
    }
}

/// Reader of a mount or a store.
pub(crate) struct Client {
    swarm: Swarm,
    mount: PathBuf,
    rng: Rng,
    pulse: Arc<Pulse>,
    weather: Arc<Weather>,
    pub(crate) tally: Tally,
}

impl Client {
    pub(crate) fn new(
        swarm: Swarm,
        mount: &Path,
        number: u64,
        pulse: Arc<Pulse>,
        weather: Arc<Weather>,
    ) -> Client {
        let rng = Rng::with_seed(swarm.seed.wrapping_mul(1_000).wrapping_add(number));
        Client { swarm, mount: mount.to_path_buf(), rng, pulse, weather, tally: Tally::default() }
    }

    /// Runs a random operation: 60 % lookups and stats, 25 % reads of own files, 10 % listings, and
    /// 5 % reads of generated files.
    pub(crate) fn run_operation(&mut self) {
        let worker = self.rng.usize(..self.swarm.workers);
        let folder = self.folder(worker);
        match self.rng.u8(..100) {
            dice @ 0..85 => self.use_own_file(&folder, worker, dice),
            85..94 => self
                .list(&folder, OWN.iter().chain(&GENERATED).map(|name| (*name).into()).collect()),
            94 => {
                let ids = (0..self.swarm.workers).map(|worker| self.swarm.id(worker));
                self.list(
                    &self.mount.join("workers"),
                    ids.chain(["index.json".into(), "index.json.own".into()]).collect(),
                );
            }
            // Files about the whole swarm are read rarely.
            _ if self.rng.u8(..20) == 0 => self.read_generated(&self.mount.clone(), None),
            _ => self.read_generated(&folder, Some(worker)),
        }
    }

    /// Runs a random operation on own files, which works in any copy of the store. The proportions
    /// are those of [`Client::run_operation`]. A listing may contain further names.
    pub(crate) fn run_own_operation(&mut self) {
        let worker = self.rng.usize(..self.swarm.workers);
        let folder = self.folder(worker);
        match self.rng.u8(..95) {
            dice @ 0..85 => self.use_own_file(&folder, worker, dice),
            _ => self.operation(Kind::List, &folder, names, |names| {
                match OWN.iter().find(|own| !names.iter().any(|name| name == *own)) {
                    Some(missing) => Err(format!("{missing} is missing")),
                    None => Ok(()),
                }
            }),
        }
    }

    /// Returns the directory of a worker.
    fn folder(&self, worker: usize) -> PathBuf {
        self.mount.join("workers").join(self.swarm.id(worker))
    }

    /// Runs a lookup or stat if `dice` is below 60, and a read otherwise; `dice` is below 85.
    fn use_own_file(&mut self, folder: &Path, worker: usize, dice: u8) {
        let parts: Vec<Part> = self.swarm.parts().collect();
        let part = self.rng.choice(parts).unwrap_or(Part::Metadata);
        match dice {
            0..30 => self.stat(folder, true),
            30..60 => self.stat(&folder.join(part.path()), false),
            _ => self.read_own(&folder.join(part.path()), worker, part),
        }
    }

    fn stat(&mut self, path: &Path, folder: bool) {
        self.operation(
            Kind::Stat,
            path,
            |path| fs::symlink_metadata(path),
            |meta: &fs::Metadata| {
                if meta.is_dir() == folder {
                    Ok(())
                } else {
                    Err(format!("{:?}", meta.file_type()))
                }
            },
        );
    }

    fn read_own(&mut self, path: &Path, worker: usize, part: Part) {
        let swarm = self.swarm;
        let may_change_while_open =
            part == Part::Thread || (part == Part::Metadata && is_torn(worker));
        self.operation(Kind::Own, path, read, |(size, bytes)| {
            if !may_change_while_open {
                same_size(*size, bytes)?;
            }
            // A read of a file that is rewritten in place may be torn, as on disk.
            if part == Part::Metadata && may_change_while_open {
                Ok(())
            } else {
                swarm.check(worker, part, bytes)
            }
        });
    }

    fn list(&mut self, path: &Path, expected: BTreeSet<String>) {
        self.operation(Kind::List, path, names, |names| {
            let found: BTreeSet<String> = names.iter().cloned().collect();
            let differs: Vec<&String> = found.symmetric_difference(&expected).take(3).collect();
            if found.len() == names.len() && differs.is_empty() {
                Ok(())
            } else {
                Err(format!(
                    "{} names instead of {}; differences include {differs:?}",
                    names.len(),
                    expected.len()
                ))
            }
        });
    }

    fn read_generated(&mut self, folder: &Path, worker: Option<usize>) {
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

    /// Runs an operation on a path and checks its result. The time of the check does not count.
    fn operation<T>(
        &mut self,
        kind: Kind,
        path: &Path,
        run: impl FnOnce(&Path) -> io::Result<T>,
        check: impl FnOnce(&T) -> Result<(), String>,
    ) {
        let began = Instant::now();
        self.pulse.set(Some((began, path.to_path_buf())));
        let result = run(path);
        let took = began.elapsed();
        self.pulse.set(None);
        match result {
            Ok(value) => match check(&value) {
                Ok(()) => self.tally.ok(kind, took),
                Err(why) => self.tally.wrong(format!("{}: {why}", path.display())),
            },
            Err(error) => {
                let name = name(&error);
                if self.weather.allows(&name, began) {
                    *self.tally.errors.entry(name).or_default() += 1;
                } else {
                    self.tally.wrong(format!(
                        "{}: {name} in calm weather, after {took:?}",
                        path.display()
                    ));
                }
                thread::sleep(PAUSE);
            }
        }
    }
}

/// Returns the size from fstat and all bytes of a file.
fn read(path: &Path) -> io::Result<(u64, Vec<u8>)> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok((size, bytes))
}

/// Returns the names in a directory.
fn names(path: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Checks that the size from fstat is the number of bytes read.
fn same_size(size: u64, bytes: &[u8]) -> Result<(), String> {
    if size == bytes.len() as u64 {
        Ok(())
    } else {
        Err(format!("fstat reports {size} bytes, but {} were read", bytes.len()))
    }
}

/// Checks the index.json of a worker or of the swarm: it is complete, about the right workers, and
/// of one version.
fn check_index(swarm: Swarm, worker: Option<usize>, bytes: &[u8]) -> Result<(), String> {
    let index: Value =
        serde_json::from_slice(bytes).map_err(|error| format!("not JSON: {error}"))?;
    let Some(worker) = worker else {
        let rows = index.get("workers").and_then(Value::as_array).map_or(0, Vec::len);
        return if rows == swarm.workers {
            Ok(())
        } else {
            Err(format!("{rows} workers of {}", swarm.workers))
        };
    };
    let text = |key: &str| index.get(key).and_then(Value::as_str).unwrap_or_default();
    if text("id") != swarm.id(worker) {
        return Err(format!("it describes {}", text("id")));
    }
    let [first, second] = ["task_type", "summary"].map(|key| version_in(text(key).as_bytes()));
    match first {
        Some(_) if first == second => Ok(()),
        _ => Err(format!("task_type has version {first:?}, but summary has version {second:?}")),
    }
}
