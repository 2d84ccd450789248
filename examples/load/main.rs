//! Load generator of scripts/bench, scripts/soak and scripts/chaos: a generated swarm on disk, a
//! writer that changes it, clients that read it through a mount and check every answer, and a
//! recorder of workers.
//!
//! It uses a mount only through system calls. A run starts in calm weather, in which every answer
//! must be correct. Lines on stdin change the weather: `storm ERRNO…` allows the given errors, and
//! `calm` forbids errors again. Each line is echoed on stdout when it takes effect. The run ends at
//! the end of stdin or after `--seconds`.

// Where this tool panics, the test that runs it fails.
#![allow(clippy::disallowed_methods)]

mod client;
mod daemon;
mod disk;
#[path = "../../tests/support/frame.rs"]
mod frame;
mod record;
#[path = "../../tests/support/swarm.rs"]
mod swarm;
mod tally;
mod weather;

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Args, Parser};
use swarmletfs_record::write::Durability;

use client::{Client, Pulse};
use daemon::Daemon;
use swarm::Swarm;
use tally::Tally;
use weather::Weather;

/// Time limit for an operation, after which it hangs. A debug build on a loaded machine needs over
/// 10 s for a first evidence of the whole swarm, so that the limit is far above it.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of the check for operations that exceed [`TIMEOUT`].
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Generates, reads and verifies a swarm.
#[derive(Parser)]
enum Command {
    /// Generate a swarm in the directory STORE.
    Make {
        store: PathBuf,
        #[command(flatten)]
        shape: Shape,
    },
    /// Check that STORE has no changes except those of the writer.
    Verify {
        store: PathBuf,
        #[command(flatten)]
        shape: Shape,
    },
    /// Read workers' own files in FOLDER, a store or a mount of it, and print the duration in
    /// seconds.
    Read {
        folder: PathBuf,
        #[command(flatten)]
        shape: Shape,
        /// Number of simultaneous clients.
        #[arg(long, default_value_t = 64)]
        clients: u64,
        /// Number of operations of each client.
        #[arg(long, default_value_t = 500)]
        turns: u64,
    },
    /// Record workers in STORE, and print the duration in seconds.
    Record {
        store: PathBuf,
        /// Number of workers.
        #[arg(long, default_value_t = 100)]
        workers: usize,
        /// Size of the output of each worker's call, in bytes.
        #[arg(long, default_value_t = 4_096)]
        bytes: usize,
        /// Do not wait until changes are on disk.
        #[arg(long)]
        no_sync: bool,
    },
    /// Read the swarm in STORE through MOUNT, and change it at the same time.
    Run {
        store: PathBuf,
        mount: PathBuf,
        #[command(flatten)]
        shape: Shape,
        #[command(flatten)]
        load: Load,
    },
}

#[derive(Args)]
struct Shape {
    /// Number of workers.
    #[arg(long, default_value_t = 1_000)]
    workers: usize,
    /// Number of tool calls of each worker, which also has four other files.
    #[arg(long, default_value_t = 16)]
    calls: usize,
    /// Size of an output, in bytes.
    #[arg(long, default_value_t = 4_096)]
    bytes: usize,
    /// Seed of the random number generators.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct Load {
    /// Number of simultaneous clients.
    #[arg(long, default_value_t = 64)]
    clients: u64,
    /// Number of changes per second.
    #[arg(long, default_value_t = 50)]
    changes: u32,
    /// Duration in seconds; without it, the run ends with stdin.
    #[arg(long)]
    seconds: Option<u64>,
    /// Process that serves the mount, to report its memory, descriptors and threads.
    #[arg(long)]
    pid: Option<u32>,
}

impl From<Shape> for Swarm {
    fn from(shape: Shape) -> Swarm {
        let Shape { workers, calls, bytes, seed } = shape;
        Swarm { workers, calls, bytes, seed }
    }
}

fn main() -> ExitCode {
    match execute(Command::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Make { store, shape } => {
            Swarm::from(shape).make(&store).context("cannot make the swarm")
        }
        Command::Verify { store, shape } => disk::verify(shape.into(), &store),
        Command::Read { folder, shape, clients, turns } => {
            read(shape.into(), &folder, clients, turns)
        }
        Command::Record { store, workers, bytes, no_sync } => {
            let durability = if no_sync { Durability::None } else { Durability::Full };
            let took = record::record(&store, workers, bytes, durability)?;
            println!("{}", took.as_secs_f64());
            Ok(())
        }
        Command::Run { store, mount, shape, load } => {
            let mount = std::path::absolute(mount)?;
            // A relative path stays valid if scripts/chaos renames the store.
            std::env::set_current_dir(&store)
                .with_context(|| format!("cannot enter the store {}", store.display()))?;
            run(shape.into(), &mount, &load)
        }
    }
}

/// Runs clients on own files and prints the duration.
fn read(swarm: Swarm, folder: &Path, clients: u64, turns: u64) -> anyhow::Result<()> {
    let begun = Instant::now();
    let clients = (0..clients).map(|number| {
        let mut client = Client::new(swarm, folder, number, Arc::default(), Arc::default());
        thread::spawn(move || {
            (0..turns).for_each(|_| client.run_own_operation());
            client.tally
        })
    });
    let mut all = Tally::default();
    for client in clients.collect::<Vec<_>>() {
        match client.join() {
            Ok(tally) => all.add(tally)?,
            Err(_) => bail!("a client panicked"),
        }
    }
    let took = begun.elapsed();
    ensure!(all.wrong == 0, "{} answers were wrong:\n{}", all.wrong, all.table(took));
    println!("{}", took.as_secs_f64());
    Ok(())
}

/// Runs a writer and clients on a mount, and prints a report.
fn run(swarm: Swarm, mount: &Path, load: &Load) -> anyhow::Result<()> {
    ensure!(swarm.workers > 0 && load.clients > 0, "--workers and --clients must be positive");
    let (done, weather) = (Arc::new(AtomicBool::new(false)), Arc::new(Weather::default()));
    let begun = Instant::now();
    let end = load.seconds.map(|seconds| begun + Duration::from_secs(seconds));
    if end.is_none() {
        let (done, weather) = (done.clone(), weather.clone());
        thread::spawn(move || listen(&weather, &done));
    }
    let writer = {
        let (done, changes) = (done.clone(), load.changes);
        thread::spawn(move || disk::change(swarm, Path::new("."), changes, &done))
    };
    let mut clients = Vec::new();
    for number in 0..load.clients {
        let pulse = Arc::new(Pulse::default());
        let mut client = Client::new(swarm, mount, number, pulse.clone(), weather.clone());
        let done = done.clone();
        let work = move || {
            while !done.load(Ordering::Relaxed) {
                client.run_operation();
            }
            client.tally
        };
        clients.push((pulse, thread::spawn(work)));
    }
    let mut daemon = load.pid.map(Daemon::new);
    let mut took = Duration::ZERO;
    while !clients.iter().all(|(_, client)| client.is_finished()) {
        thread::sleep(CHECK_INTERVAL);
        if let Some(path) = clients.iter().find_map(|(pulse, _)| pulse.hanging_path(TIMEOUT)) {
            // The client's thread hangs in a system call and cannot be joined.
            println!("wrong: no answer within {TIMEOUT:?}: {}", path.display());
            std::process::exit(1);
        }
        if done.load(Ordering::Relaxed) {
            continue;
        }
        took = begun.elapsed();
        if let Some(daemon) = &mut daemon {
            daemon.sample()?;
        }
        if end.is_some_and(|end| Instant::now() >= end) || writer.is_finished() {
            done.store(true, Ordering::Relaxed);
        }
    }
    let mut all = Tally::default();
    for (_, client) in clients {
        match client.join() {
            Ok(tally) => all.add(tally)?,
            Err(_) => bail!("a client panicked"),
        }
    }
    let Ok(changes) = writer.join() else { bail!("the writer panicked") };
    println!(
        "{} clients for {:.0} s; {} changes of {} workers",
        load.clients,
        took.as_secs_f64(),
        changes?,
        swarm.workers
    );
    print!("{}", all.table(took));
    if let Some(daemon) = daemon {
        println!("{}", daemon.report());
    }
    ensure!(all.wrong == 0, "{} answers were wrong", all.wrong);
    Ok(())
}

/// Applies the lines of stdin to the weather. The end of stdin ends the run.
fn listen(weather: &Weather, done: &AtomicBool) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match weather.apply(&line) {
            Ok(()) => println!("{line}"),
            Err(why) => {
                println!("wrong: {why}");
                break;
            }
        }
    }
    done.store(true, Ordering::Relaxed);
}
