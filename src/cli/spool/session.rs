//! The spool of one command, which is uploaded while the command runs and at its end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use nix::sys::signal::{SigSet, SigmaskHow};
use parking_lot::Mutex;
use tracing::debug;

use super::direct::explain_absence;
use super::upload::{UploadReport, Uploader, describe_waiting, writer};
use crate::cli::object_stores::catalog_if_many_wait;
use crate::cli::spools::Spool;
use crate::cli::terminal::{display_path, human_size, print_message};
use crate::deadline::Deadline;
use crate::objects::{BucketWriter, RequestFailure};
use swarmletfs_record::write::{Error, NewWorkerCheck, SpaceLimit};

/// Time between uploads of a command that runs.
const INTERVAL: Duration = Duration::from_secs(3);
/// Longest time of the uploads at the end of a command.
const END_MAX: Duration = Duration::from_secs(10);
/// Shortest time to bring the catalog up to date at the end of a command.
const CATALOG_MIN: Duration = Duration::from_secs(3);
/// Longest time of a request with all its repetitions.
const DEADLINE: Duration = Duration::from_secs(10);

pub(crate) struct SpoolSession {
    spool: Spool,
    bucket: BucketWriter,
    space: Arc<SpaceLimit>,
    space_max: u64,
    quiet: bool,
    /// Time at which no request is begun any more.
    end: Arc<Mutex<Option<Instant>>>,
    /// Why the first request of a new worker failed.
    failure: Arc<Mutex<Option<RequestFailure>>>,
    /// Dropped to end the thread that uploads.
    stop: Option<Sender<()>>,
    reports: Receiver<anyhow::Result<UploadReport>>,
    /// The last upload is followed by one message about the catalog.
    catalogs: Receiver<anyhow::Result<()>>,
}

impl SpoolSession {
    /// Opens the spool of `url`, makes it if it is missing, and starts to upload it. It holds at
    /// most `space_max` bytes.
    ///
    /// # Errors
    ///
    /// The URL is wrong, the spool cannot be written, or it is full.
    pub(crate) fn begin(url: &Path, space_max: u64, quiet: bool) -> anyhow::Result<SpoolSession> {
        let spool = Spool::for_url(url)?;
        // A signal for this process must reach the thread that waits for it, as for the end of a
        // command. So no thread that is started here takes one.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let mask = mask.context("cannot block signals")?;
        let begun = SpoolSession::start(spool, space_max, quiet);
        mask.thread_set_mask().context("cannot receive signals")?;
        begun
    }

    fn start(spool: Spool, space_max: u64, quiet: bool) -> anyhow::Result<SpoolSession> {
        let bucket = writer(&spool.url, DEADLINE)?;
        spool.make(bucket.scope())?;
        let end: Arc<Mutex<Option<Instant>>> = Arc::default();
        let mut size = spool.size()?;
        if size >= space_max / 2 {
            Uploader::new(&spool, bucket.clone(), end.clone())?.forget_applied()?;
            size = spool.size()?;
        }
        if size >= space_max {
            *end.lock() = Instant::now().checked_add(END_MAX);
            let uploader = Uploader::new(&spool, bucket.clone(), end.clone())?;
            uploader.run(Instant::now() + END_MAX, &mut UploadReport::default())?;
            *end.lock() = None;
            size = spool.size()?;
        }
        if size >= space_max {
            bail!(full(&spool, space_max));
        }
        let space = Arc::new(SpaceLimit::new(space_max - size));
        let (stop, stopped) = channel();
        let ((sender, reports), (catalog_sender, catalogs)) = (channel(), channel());
        let uploads = Uploads {
            spool: spool.clone(),
            bucket: bucket.clone(),
            space: space.clone(),
            space_max,
            end: end.clone(),
            stopped,
        };
        thread::Builder::new()
            .name("spool".into())
            .spawn(move || {
                let report = uploads.run();
                let has_ended = report.as_ref().is_ok_and(UploadReport::has_closed_all);
                // The command may be gone.
                let _ = sender.send(report);
                if has_ended {
                    let _ = catalog_sender.send(uploads.update_catalog());
                }
            })
            .context("cannot start a thread that uploads")?;
        let (failure, stop) = (Arc::default(), Some(stop));
        Ok(SpoolSession {
            spool,
            bucket,
            space,
            space_max,
            quiet,
            end,
            failure,
            stop,
            reports,
            catalogs,
        })
    }

    /// Returns the path of the local store.
    pub(crate) fn store_path(&self) -> PathBuf {
        self.spool.store_path()
    }

    pub(crate) fn space(&self) -> Arc<SpaceLimit> {
        self.space.clone()
    }

    /// Returns the check that gives a new worker its place in the object store. Without a
    /// connection, the worker keeps its id for now.
    pub(crate) fn check_new_workers(&self) -> NewWorkerCheck {
        let (spool, bucket) = (self.spool.clone(), self.bucket.clone());
        let (end, failure) = (self.end.clone(), self.failure.clone());
        NewWorkerCheck(Arc::new(move |id| {
            let claimed = Uploader::new(&spool, bucket.clone(), end.clone())
                .and_then(|uploader| uploader.claim(id));
            claimed.unwrap_or_else(|error| {
                debug!("cannot upload the beginning of {}: {error:#}", id.display());
                *failure.lock() = error.downcast().ok();
                true
            })
        }))
    }

    /// Replaces the error of a change of a worker that is not in the spool, or of a full spool.
    pub(crate) fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        if self.space.is_used_up() {
            return anyhow!(full(&self.spool, self.space_max));
        }
        let worker = error.chain().find_map(|cause| match cause.downcast_ref::<Error>() {
            Some(Error::NoWorker { worker, .. } | Error::Gone { worker, .. }) => Some(worker),
            _ => None,
        });
        match worker {
            Some(worker) => explain_absence(&self.bucket, worker),
            None => error,
        }
    }

    /// Uploads all new files, for a bounded time, and says how much is left.
    pub(crate) fn finish(mut self) {
        let time = if self.failure.lock().is_some() { Duration::ZERO } else { END_MAX };
        let now = Instant::now();
        *self.end.lock() = Some(now + time);
        self.stop = None;
        // A request that was begun ends by itself, and counts.
        let report = match self.reports.recv_timeout(time + DEADLINE) {
            Ok(Ok(report)) => report,
            Ok(Err(error)) => {
                print_message(&format!("cannot upload: {error:#}"));
                return;
            }
            Err(_) => {
                UploadReport { failure: Some(RequestFailure::timed_out()), ..Default::default() }
            }
        };
        if self.space.is_used_up() {
            print_message(&full(&self.spool, self.space_max));
        }
        say_problems(&self.spool, &report);
        if report.has_closed_all()
            && let Ok(Err(error)) = self
                .catalogs
                .recv_timeout((now + END_MAX).saturating_duration_since(Instant::now()))
            && !self.quiet
        {
            print_message(&format!("{error:#}; readers are not affected"));
        }
        if self.quiet {
            return;
        }
        match self.spool.waiting(Deadline::never()) {
            Ok(waiting) if waiting.is_none() || !report.clashes.is_empty() => {}
            Ok(waiting) => {
                let failure = self.failure.lock().clone().or(report.failure);
                let reason = match failure {
                    Some(failure) => format!(" ({failure}; {})", failure.cure()),
                    None => String::new(),
                };
                print_message(&format!("{}{reason}", describe_waiting(&self.spool, &waiting)));
            }
            Err(error) => print_message(&format!("{error:#}")),
        }
    }
}

/// Prints the problems of single workers.
pub(crate) fn say_problems(spool: &Spool, report: &UploadReport) {
    for id in &report.clashes {
        let path = display_path(&spool.store_path());
        print_message(&format!(
            "cannot upload worker {id}: {} has another worker with this id; it stays in {path}; \
             try `swarmletfs sync {path} URL` with another prefix",
            spool.url
        ));
    }
    for problem in &report.problems {
        print_message(&format!("cannot upload {problem}"));
    }
}

fn full(spool: &Spool, space_max: u64) -> String {
    format!(
        "cannot record more for {}: its spool {} is full ({}); try `swarmletfs flush`, or a larger \
         --spool-max",
        spool.url,
        display_path(&spool.path),
        human_size(space_max)
    )
}

/// The uploads beside a command.
struct Uploads {
    spool: Spool,
    bucket: BucketWriter,
    space: Arc<SpaceLimit>,
    space_max: u64,
    end: Arc<Mutex<Option<Instant>>>,
    stopped: Receiver<()>,
}

impl Uploads {
    /// Uploads now and then until the command has ended, and then once more.
    fn run(&self) -> anyhow::Result<UploadReport> {
        let uploader = Uploader::new(&self.spool, self.bucket.clone(), self.end.clone())?;
        let mut report = UploadReport::default();
        while self.stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            // It is uploaded later.
            if let Err(error) = uploader.run(Instant::now(), &mut report) {
                debug!("cannot upload: {error:#}");
            }
            report.problems.clear();
            if !self.space.is_used_up() {
                self.space.set(self.space_max.saturating_sub(self.spool.size().unwrap_or(0)));
            }
        }
        let end = self.end.lock().unwrap_or_else(Instant::now);
        if Instant::now() < end {
            uploader.run(end, &mut report)?;
        }
        Ok(report)
    }

    /// Brings the catalog up to date if many announcements wait and there is time for it.
    fn update_catalog(&self) -> anyhow::Result<()> {
        let end = self.end.lock().unwrap_or_else(Instant::now);
        match end.saturating_duration_since(Instant::now()) {
            time if time < CATALOG_MIN => Ok(()),
            time => catalog_if_many_wait(&self.bucket, Some(time)),
        }
    }
}
