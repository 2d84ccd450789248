//! Uploads everything that waits in spools.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::session::say_problems;
use super::upload::{UploadReport, Uploader, writer};
use crate::cli::object_facts::FlushedSpool;
use crate::cli::object_stores::catalog_if_many_wait;
use crate::cli::spools::Spool;
use crate::cli::terminal::print_message;
use crate::deadline::Deadline;
use crate::objects::BucketWriter;

/// Longest time of a request with all its repetitions.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longest time to wait for uploads of other processes.
const LOCK_MAX: Duration = Duration::from_secs(60);

/// Uploads the files that wait in the spool of `url`, or in all spools, and prints the problems of
/// single workers. Of all spools, only those are uploaded that were used for the endpoint of this
/// environment: a bucket of the same name elsewhere may belong to somebody else.
///
/// # Errors
///
/// The spools cannot be read.
pub(crate) fn flush(url: Option<&Path>) -> anyhow::Result<Vec<FlushedSpool>> {
    if let Some(url) = url {
        let spool = Spool::for_url(url)?;
        let bucket = writer(&spool.url, DEADLINE)?;
        return Ok(vec![match spool.exists() {
            true => flush_one(&spool, bucket)?,
            false => FlushedSpool { url: spool.url, ..FlushedSpool::default() },
        }]);
    }
    let mut flushed = Vec::new();
    for spool in Spool::list()? {
        // Most spools are empty, and need no connection.
        if spool.size()? == 0 {
            continue;
        }
        flushed.push(match writer(&spool.url, DEADLINE) {
            Ok(bucket) => flush_one(&spool, bucket)?,
            // Others may be uploaded.
            Err(error) => FlushedSpool {
                failure: Some(format!("{error:#}")),
                waiting: spool.waiting(Deadline::never())?,
                url: spool.url,
                ..FlushedSpool::default()
            },
        });
    }
    Ok(flushed)
}

fn flush_one(spool: &Spool, bucket: BucketWriter) -> anyhow::Result<FlushedSpool> {
    let mut flushed = FlushedSpool { url: spool.url.clone(), ..FlushedSpool::default() };
    if let Some(scope) = spool.scope.as_ref().filter(|scope| **scope != bucket.scope()) {
        flushed.waiting = spool.waiting(Deadline::never())?;
        flushed.failure = Some(format!(
            "it was recorded for {scope}, and the environment has {}; set the endpoint, such as \
             $AWS_ENDPOINT_URL, or name the store with --store",
            bucket.scope()
        ));
        return Ok(flushed);
    }
    let mut report = UploadReport::default();
    let uploader = Uploader::new(spool, bucket.clone(), Arc::default())?;
    uploader.run(Instant::now() + LOCK_MAX, &mut report)?;
    say_problems(spool, &report);
    flushed.files = report.files;
    flushed.bytes = report.bytes;
    flushed.opened = report.opened.len() as u64;
    flushed.closed = report.closed.len() as u64;
    flushed.closed_bytes = report.closed_bytes;
    flushed.waiting = spool.waiting(Deadline::never())?;
    if report.failure.is_none()
        && let Err(error) = catalog_if_many_wait(&bucket, None)
    {
        print_message(&format!("{error:#}; readers are not affected"));
    }
    flushed.failure = match report.failure {
        Some(failure) => Some(format!("{failure}; {}", failure.cure())),
        None if report.is_locked => {
            Some("another process uploads; try again when it has ended".into())
        }
        None => None,
    };
    Ok(flushed)
}
