//! Records workers through the library, as fast as it goes.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use swarmletfs_record::write::{CallEnd, Durability, Finish, NewWorker, Store, StoreOptions};

/// Records workers one after the other: creates each, records a call with an output of `bytes`
/// bytes, and finishes it. Returns the duration.
pub(crate) fn record(
    store: &Path,
    workers: usize,
    bytes: usize,
    durability: Durability,
) -> anyhow::Result<Duration> {
    Store::init(store)?;
    let store = StoreOptions::default().durability(durability).open(store)?;
    let output = vec![b'x'; bytes];
    let begun = Instant::now();
    for _ in 0..workers {
        let worker = store.create_worker(NewWorker::new("Check a backup"))?;
        let mut call = worker.begin_call("restore", Some("backup.dump".into()))?;
        call.write_all(&output).context("cannot record the output")?;
        call.end(CallEnd::exit_code(0))?;
        worker.finish(Finish::completed().result("The backup is fine."))?;
    }
    Ok(begun.elapsed())
}
