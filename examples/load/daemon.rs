//! Samples the memory, descriptors and threads of the process that serves the mount.

use std::fs;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::Context;

/// Interval between samples.
const INTERVAL: Duration = Duration::from_secs(2);
/// Duration of the warm-up; at most half of the run.
const WARM_UP: Duration = Duration::from_secs(300);

/// Monitored process.
pub(crate) struct Daemon {
    pid: u32,
    begun: Instant,
    samples: Vec<Sample>,
}

#[derive(Clone, Copy)]
struct Sample {
    /// Time since the start, in seconds.
    at: f64,
    /// Resident memory, in MiB.
    resident: f64,
    descriptors: u64,
    threads: u64,
}

impl Daemon {
    pub(crate) fn new(pid: u32) -> Daemon {
        Daemon { pid, begun: Instant::now(), samples: Vec::new() }
    }

    /// Takes a sample if the last one is older than [`INTERVAL`].
    pub(crate) fn sample(&mut self) -> anyhow::Result<()> {
        let at = self.begun.elapsed().as_secs_f64();
        if self.samples.last().is_some_and(|last| at - last.at < INTERVAL.as_secs_f64()) {
            return Ok(());
        }
        let (resident, threads) = (self.status("VmRSS:")?, self.status("Threads:")?);
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.pid))?.count() as u64;
        self.samples.push(Sample { at, resident: resident as f64 / 1_024.0, descriptors, threads });
        Ok(())
    }

    /// Reads a number from /proc/PID/status, where memory is in KiB.
    fn status(&self, key: &str) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))
            .context("the mount's process is gone")?;
        let value = status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .and_then(|rest| rest.split_whitespace().next());
        value
            .with_context(|| format!("/proc/{}/status has no {key}", self.pid))?
            .parse()
            .context("not a number")
    }

    /// Describes the resources used after the warm-up, and the growth of memory.
    pub(crate) fn report(&self) -> String {
        let end = self.samples.last().map_or(0.0, |last| last.at);
        let warm = WARM_UP.as_secs_f64().min(end / 2.0);
        let after: Vec<Sample> =
            self.samples.iter().copied().filter(|sample| sample.at >= warm).collect();
        let resident = after.iter().map(|sample| sample.resident);
        let (least, most) = resident
            .fold((f64::MAX, 0.0_f64), |(least, most), one| (least.min(one), most.max(one)));
        let peak = self.status("VmHWM:").map_or(0, |kib| kib / 1_024);
        format!(
            "process: after {warm:.0} s of warm-up RSS {least:.1}-{most:.1} MiB, {:+.2} MiB/h (peak {peak} MiB), \
             {:?} descriptors, {:?} threads",
            slope(&after) * 3_600.0,
            range(after.iter().map(|sample| sample.descriptors)),
            range(after.iter().map(|sample| sample.threads)),
        )
    }
}

/// Returns the smallest and the largest value.
fn range(values: impl Iterator<Item = u64> + Clone) -> RangeInclusive<u64> {
    values.clone().min().unwrap_or(0)..=values.max().unwrap_or(0)
}

/// Returns the growth of memory in MiB per second, by linear regression over the samples.
fn slope(samples: &[Sample]) -> f64 {
    let count = samples.len() as f64;
    let mean = |value: fn(&Sample) -> f64| samples.iter().map(value).sum::<f64>() / count;
    let (at, resident) = (mean(|sample| sample.at), mean(|sample| sample.resident));
    let rise: f64 =
        samples.iter().map(|sample| (sample.at - at) * (sample.resident - resident)).sum();
    let run: f64 = samples.iter().map(|sample| (sample.at - at).powi(2)).sum();
    if run > 0.0 { rise / run } else { 0.0 }
}
