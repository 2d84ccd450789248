//! Contents of small objects that the catalog holds, so that nobody needs to request them.
//!
//! A list of workers reads each content once, soon after the store was opened. Contents that nobody
//! took until then are dropped; they can be requested.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::key_tree::ListedObject;

/// Maximum size of all contents, in bytes.
const BYTES_MAX: usize = 256 << 20;
/// Time for which contents are kept.
const KEPT: Duration = Duration::from_secs(120);

/// Path and ETag of an object.
type SeedVersion = (Arc<str>, Arc<str>);

#[derive(Default)]
pub(crate) struct Seeds(Mutex<KeptSeeds>);

#[derive(Default)]
struct KeptSeeds {
    contents: HashMap<SeedVersion, Bytes>,
    bytes: usize,
    added_at: Option<Instant>,
}

impl Seeds {
    /// Adds contents of objects. Objects without an ETag are left out.
    pub(crate) fn add(&self, contents: Vec<(ListedObject, Bytes)>) {
        let mut kept = self.0.lock();
        let now = Instant::now();
        if kept.added_at.is_some_and(|at| now.duration_since(at) > KEPT) {
            *kept = KeptSeeds::default();
        }
        if contents.is_empty() {
            return;
        }
        kept.added_at = Some(now);
        for (object, content) in contents {
            let Some(etag) = object.etag else { continue };
            if kept.bytes + content.len() > BYTES_MAX {
                break;
            }
            kept.bytes += content.len();
            let replaced = kept.contents.insert((object.path, etag), content);
            kept.bytes -= replaced.map_or(0, |content| content.len());
        }
    }

    /// Takes the content of an object, if it is there.
    pub(crate) fn take(&self, object: &ListedObject) -> Option<Bytes> {
        let mut kept = self.0.lock();
        if kept.contents.is_empty() {
            return None;
        }
        let content = kept.contents.remove(&(object.path.clone(), object.etag.clone()?))?;
        kept.bytes -= content.len();
        Some(content)
    }
}
