//! A store with a coarse clock, so that many changes share one time.

use swarmletfs::error::Result;
use swarmletfs::name::RelPath;
use swarmletfs::store::{Meta, Store, Time};

use crate::support::intercept::Interceptor;

/// Rounds change times down to ticks of this many seconds.
#[derive(Clone, Copy)]
pub(super) struct Coarse(pub(super) i64);

impl Interceptor for Coarse {
    fn stat(&self, store: &dyn Store, path: &RelPath) -> Result<Meta> {
        let tick = |time: Time| Time { secs: time.secs - time.secs % self.0, nanos: 0 };
        let meta = store.stat(path)?;
        Ok(Meta { ctime: tick(meta.ctime), ..meta })
    }
}
