//! A store with a coarse clock, so that many changes share one time.

use swarmletfs_base::error::Result;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Meta, Store, Time};

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
