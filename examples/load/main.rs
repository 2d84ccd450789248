//! The load of scripts/bench, scripts/soak and scripts/chaos: a made-up swarm on disk, a writer that
//! keeps changing it, and clients that read it through a mount and check every answer.
//!
//! It knows the program only through the kernel. A run begins in calm weather, in which every answer
//! must be correct. Lines on stdin change that: `storm ERRNO…` allows these errors, and `calm` forbids
//! them again. Each line is echoed on stdout once it is in force. The end of stdin, or `--seconds`,
//! ends the run.

mod client;
mod daemon;
mod disk;
#[path = "../../tests/support/frame.rs"]
mod frame;
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

use client::{Client, Pulse};
use daemon::Daemon;
use swarm::Swarm;
use tally::Tally;
use weather::Weather;

/// An operation that takes longer hangs.
const HANGS: Duration = Duration::from_secs(10);
/// How often it is looked whether one hangs.
const LOOKS: Duration = Duration::from_millis(100);

/// The load on a mounted swarm.
#[derive(Parser)]
enum Asked {
    /// Makes a swarm in the folder STORE.
    Make {
        store: PathBuf,
        #[command(flatten)]
        shape: Shape,
    },
    /// Checks that STORE is as it was made, but for what the writer changed.
    Verify {
        store: PathBuf,
        #[command(flatten)]
        shape: Shape,
    },
    /// Reads workers' own files at FOLDER, the store or whatever shows it, and tells how many seconds that took.
    Read {
        folder: PathBuf,
        #[command(flatten)]
        shape: Shape,
        /// How many clients read at once.
        #[arg(long, default_value_t = 64)]
        clients: u64,
        /// How many things each of them does.
        #[arg(long, default_value_t = 500)]
        turns: u64,
    },
    /// Reads the swarm at STORE through MOUNT, and changes it meanwhile.
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
    /// How many workers the swarm has.
    #[arg(long, default_value_t = 1_000)]
    workers: usize,
    /// How many tool calls a worker made; it has four files more.
    #[arg(long, default_value_t = 16)]
    calls: usize,
    /// How long an output is, in bytes.
    #[arg(long, default_value_t = 4_096)]
    bytes: usize,
    /// What all that is random follows from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct Load {
    /// How many clients read at once.
    #[arg(long, default_value_t = 64)]
    clients: u64,
    /// How many changes are made a second.
    #[arg(long, default_value_t = 50)]
    changes: u32,
    /// How long it lasts; else until the end of stdin.
    #[arg(long)]
    seconds: Option<u64>,
    /// The process that serves the mount, to watch what it uses.
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
    match act(Asked::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act(asked: Asked) -> anyhow::Result<()> {
    match asked {
        Asked::Make { store, shape } => Swarm::from(shape).make(&store).context("cannot make the swarm"),
        Asked::Verify { store, shape } => disk::verify(shape.into(), &store),
        Asked::Read { folder, shape, clients, turns } => read(shape.into(), &folder, clients, turns),
        Asked::Run { store, mount, shape, load } => {
            let mount = std::path::absolute(mount)?;
            // From within, the store is found also while somebody has renamed its folder.
            std::env::set_current_dir(&store).with_context(|| format!("there is no store {}", store.display()))?;
            run(shape.into(), &mount, &load)
        }
    }
}

fn read(swarm: Swarm, folder: &Path, clients: u64, turns: u64) -> anyhow::Result<()> {
    let begun = Instant::now();
    let clients = (0..clients).map(|number| {
        let mut client = Client::new(swarm, folder, number, Arc::default(), Arc::default());
        thread::spawn(move || {
            (0..turns).for_each(|_| client.turn_of_own());
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

fn run(swarm: Swarm, mount: &Path, load: &Load) -> anyhow::Result<()> {
    ensure!(swarm.workers > 0 && load.clients > 0, "without workers or clients there is no load");
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
                client.turn();
            }
            client.tally
        };
        clients.push((pulse, thread::spawn(work)));
    }
    let mut daemon = load.pid.map(Daemon::new);
    while !done.load(Ordering::Relaxed) {
        thread::sleep(LOOKS);
        if let Some(what) = clients.iter().find_map(|(pulse, _)| pulse.longer_than(HANGS)) {
            // Nobody can wait for this client, nor for its process to end by itself.
            println!("wrong: no answer within {HANGS:?}: {}", what.display());
            std::process::exit(1);
        }
        if let Some(daemon) = &mut daemon {
            daemon.sample()?;
        }
        if end.is_some_and(|end| Instant::now() >= end) || writer.is_finished() {
            done.store(true, Ordering::Relaxed);
        }
    }
    let took = begun.elapsed();
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

/// Follows what stdin says of the weather; its end ends the run.
fn listen(weather: &Weather, done: &AtomicBool) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match weather.turn(&line) {
            Ok(()) => println!("{line}"),
            Err(why) => {
                println!("wrong: {why}");
                break;
            }
        }
    }
    done.store(true, Ordering::Relaxed);
}
