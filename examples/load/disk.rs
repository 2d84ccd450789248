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

/// Temporary name of a new version, outside every worker's directory.
const TEMPORARY: &str = "fresh.tmp";

/// Returns true if the worker's metadata is rewritten in place, so that a read may be torn.
pub(crate) fn is_torn(worker: usize) -> bool {
    worker.is_multiple_of(2)
}

/// Changes running workers at the given rate until `done`, and returns the number of changes.
///
/// A change replaces metadata, a result or an output by a rename, or appends to a thread. The
/// metadata of some workers is rewritten in place, chunk by chunk.
pub(crate) fn change(
    swarm: Swarm,
    store: &Path,
    per_second: u32,
    done: &AtomicBool,
) -> anyhow::Result<u64> {
    let mut rng = Rng::with_seed(swarm.seed);
    let running: Vec<usize> =
        (0..swarm.workers).filter(|worker| swarm.is_running(*worker)).collect();
    let begun = Instant::now();
    let mut changes = 0;
    while !done.load(Ordering::Relaxed) {
        let due = begun.elapsed().as_secs_f64() * f64::from(per_second);
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
        let result = match part {
            Part::Thread => append(&path, &swarm.next_message(worker, &fs::read(&path)?)),
            Part::Metadata if is_torn(worker) => {
                write_in_chunks(&path, &swarm.bytes(worker, part, changes), &mut rng)
            }
            _ => replace(&store.join(TEMPORARY), &path, &swarm.bytes(worker, part, changes)),
        };
        result.with_context(|| format!("cannot change {}", path.display()))?;
    }
    Ok(changes)
}

/// Replaces a file by a rename.
fn replace(temporary: &Path, path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    fs::write(temporary, bytes)?;
    Ok(fs::rename(temporary, path)?)
}

fn append(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    Ok(File::options().append(true).open(path)?.write_all(bytes)?)
}

/// Truncates a file and writes it in up to four chunks, with a short pause after each.
fn write_in_chunks(path: &Path, bytes: &[u8], rng: &mut Rng) -> anyhow::Result<()> {
    let mut file = File::options().write(true).truncate(true).open(path)?;
    for chunk in bytes.chunks(bytes.len() / rng.usize(1..=4) + 1) {
        file.write_all(chunk)?;
        thread::sleep(Duration::from_millis(rng.u64(..5)));
    }
    Ok(())
}

/// Checks that the store holds the swarm and nothing else. Every file must be a version of itself,
/// and files that the writer does not change must have their original content and mtime.
pub(crate) fn verify(swarm: Swarm, store: &Path) -> anyhow::Result<()> {
    let mut expected = BTreeSet::from([PathBuf::from("workers/index.json")]);
    for worker in 0..swarm.workers {
        for part in swarm.parts() {
            let path = Path::new("workers").join(swarm.id(worker)).join(part.path());
            let file = store.join(&path);
            let shown = file.display();
            let bytes = fs::read(&file).with_context(|| format!("cannot read {shown}"))?;
            swarm.check(worker, part, &bytes).map_err(|why| anyhow::anyhow!("{shown}: {why}"))?;
            if !swarm.is_running(worker) {
                ensure!(
                    bytes == swarm.bytes(worker, part, 0),
                    "the content of {shown} has changed"
                );
                let modified = fs::metadata(&file)?.modified()?;
                ensure!(modified == swarm.made(worker, part), "the mtime of {shown} has changed");
            }
            expected.insert(path);
        }
    }
    let mut found = BTreeSet::new();
    files(store, Path::new(""), &mut found)?;
    let differences: Vec<&PathBuf> = found.symmetric_difference(&expected).collect();
    ensure!(differences.is_empty(), "files are missing or unexpected: {differences:?}");
    println!("the store has only the changes of the writer: {} files", found.len());
    Ok(())
}

/// Adds the files under `folder` to `found`.
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
