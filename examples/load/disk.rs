//! The disk side of the mount: changes the swarm as its workers would, and verifies the result.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use fastrand::Rng;

use crate::swarm::{Part, Swarm};

/// A new version is written under this name first, where no worker's folder shows it.
const FRESH: &str = "fresh.tmp";

/// Whether the worker's metadata is rewritten in place, so that a reader may find half of it.
pub(crate) fn is_torn(worker: usize) -> bool {
    worker.is_multiple_of(2)
}

/// Makes so many changes a second to running workers until `done`, and returns how many there were. Metadata, result
/// or an output is replaced by a rename, a thread grows, and some workers' metadata is rewritten in place, piece by
/// piece.
pub(crate) fn change(swarm: Swarm, store: &Path, each_second: u32, done: &AtomicBool) -> anyhow::Result<u64> {
    let mut rng = Rng::with_seed(swarm.seed);
    let running: Vec<usize> = (0..swarm.workers).filter(|worker| swarm.is_running(*worker)).collect();
    let begun = Instant::now();
    let mut changes = 0;
    while !done.load(Ordering::Relaxed) {
        let due = begun.elapsed().as_secs_f64() * f64::from(each_second);
        let Some(worker) = rng.choice(&running).copied().filter(|_| (changes as f64) < due) else {
            thread::sleep(Duration::from_millis(2));
            continue;
        };
        changes += 1;
        let folder = store.join("workers").join(swarm.id(worker));
        let part = match rng.u8(..4) {
            0 => Part::Metadata,
            1 => Part::Result,
            2 => Part::Thread,
            _ if swarm.calls == 0 => Part::Task,
            _ => Part::Call(rng.usize(1..=swarm.calls)),
        };
        let path = folder.join(part.path());
        let done = match part {
            Part::Thread => append(&path, &swarm.next_message(worker, &fs::read(&path)?)),
            Part::Metadata if is_torn(worker) => in_pieces(&path, &swarm.bytes(worker, part, changes), &mut rng),
            _ => replace(&store.join(FRESH), &path, &swarm.bytes(worker, part, changes)),
        };
        done.with_context(|| format!("cannot change {}", path.display()))?;
    }
    Ok(changes)
}

fn replace(fresh: &Path, path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    fs::write(fresh, bytes)?;
    Ok(fs::rename(fresh, path)?)
}

fn append(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    Ok(File::options().append(true).open(path)?.write_all(bytes)?)
}

/// Truncates, then writes in up to four pieces with a little time between them.
fn in_pieces(path: &Path, bytes: &[u8], rng: &mut Rng) -> anyhow::Result<()> {
    let mut file = File::options().write(true).truncate(true).open(path)?;
    for piece in bytes.chunks(bytes.len() / rng.usize(1..=4) + 1) {
        file.write_all(piece)?;
        thread::sleep(Duration::from_millis(rng.u64(..5)));
    }
    Ok(())
}

/// Checks that the store holds the swarm and nothing else: every file is a version of itself, and those that the
/// writer leaves alone are as they were made, time and mode included.
pub(crate) fn verify(swarm: Swarm, store: &Path) -> anyhow::Result<()> {
    let mut expected = BTreeSet::from([PathBuf::from("workers/index.json")]);
    for worker in 0..swarm.workers {
        for part in swarm.parts() {
            let path = Path::new("workers").join(swarm.id(worker)).join(part.path());
            let file = store.join(&path);
            let shown = file.display();
            let bytes = fs::read(&file).with_context(|| format!("{shown} is lost"))?;
            swarm.check(worker, part, &bytes).map_err(|why| anyhow::anyhow!("{shown}: {why}"))?;
            if !swarm.is_running(worker) {
                ensure!(bytes == swarm.bytes(worker, part, 0), "{shown} was changed");
                let modified = fs::metadata(&file)?.modified()?;
                ensure!(modified == swarm.made(worker, part), "the time of {shown} was changed");
            }
            expected.insert(path);
        }
    }
    let mut found = BTreeSet::new();
    files(store, Path::new(""), &mut found)?;
    let other: Vec<&PathBuf> = found.symmetric_difference(&expected).collect();
    ensure!(other.is_empty(), "not as it was made: {other:?}");
    println!("the store is as it was made, but for what the writer changed: {} files", found.len());
    Ok(())
}

fn files(store: &Path, folder: &Path, found: &mut BTreeSet<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(store.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            files(store, &path, found)?;
        } else {
            found.insert(path);
        }
    }
    Ok(())
}
