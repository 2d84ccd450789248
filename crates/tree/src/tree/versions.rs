//! Versions of generated files: attributes of the latest version of each file, and recently read
//! bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quick_cache::Weighter;
use quick_cache::sync::{Cache, GuardResult};

use super::node::Attr;
use crate::render::{Rendered, Renderer};
use crate::route::Document;
use swarmletfs_base::cache::{share_of_memory, single_shard};
use swarmletfs_base::digest::{Key, digest};
use swarmletfs_base::error::{Error, Result};

/// Most bytes of versions cached beyond the bytes that open handles hold.
const CACHE_BYTES: u64 = 64 << 20;
/// Expected number of versions in that cache.
const CACHE_ITEMS: usize = 10_000;
const VERSIONS_MAX: usize = 100_000;

/// Most incomplete versions cached, and the time for which each is reused.
const INCOMPLETE_MAX: usize = 1_000;
const INCOMPLETE_TTL: Duration = Duration::from_millis(500);
/// A longer wait for the cache entry means that another thread was rendering this file.
const LOOKUP_TIME: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) attr: Attr,
    content: [u8; 16],
}

/// Cache of the latest version of each file, and of bytes by their hash.
pub(super) struct Versions {
    latest: Cache<Document, (Key, Arc<Version>), QueryWeight>,
    /// Versions made without all of their sources for lack of time, and when they were made.
    incomplete: Cache<Document, (Instant, Key, Arc<Version>)>,
    bytes: Cache<(Document, [u8; 16]), Arc<[u8]>, ByteWeight>,
}

#[derive(Clone)]
struct QueryWeight;

impl Weighter<Document, (Key, Arc<Version>)> for QueryWeight {
    /// Returns one, plus one for each 256 bytes of the query.
    fn weight(&self, document: &Document, _: &(Key, Arc<Version>)) -> u64 {
        let query_len = match document {
            Document::Grep(_, query) => query.regex.len(),
            Document::Search(_, query) | Document::Focus(_, query) => query.words.len(),
            Document::Compare(query) => query.len(),
            Document::Readme
            | Document::QueryReadme(_)
            | Document::Since(_)
            | Document::Group(..)
            | Document::Changes(..)
            | Document::Prose(_)
            | Document::Worker(..) => 0,
        };
        1 + query_len as u64 / 256
    }
}

#[derive(Clone)]
struct ByteWeight;

impl Weighter<(Document, [u8; 16]), Arc<[u8]>> for ByteWeight {
    fn weight(&self, _: &(Document, [u8; 16]), bytes: &Arc<[u8]>) -> u64 {
        bytes.len() as u64 + 200
    }
}

impl Versions {
    /// Creates a cache that gets an equal share of the memory for `trees` of them.
    pub(super) fn new(trees: usize) -> Versions {
        let cache_bytes = share_of_memory(CACHE_BYTES, trees);
        Versions {
            latest: Cache::with_weighter(VERSIONS_MAX, VERSIONS_MAX as u64, QueryWeight),
            incomplete: Cache::new(INCOMPLETE_MAX),
            bytes: single_shard(CACHE_ITEMS, cache_bytes, ByteWeight),
        }
    }

    /// Returns the current version of `document`. Renders it only if its sources have changed since
    /// the cached version. Concurrent requests for one version share one render; requests for
    /// another version of the file wait for that render.
    pub(super) fn current(&self, renderer: &Renderer, document: &Document) -> Result<Arc<Version>> {
        // The kernel looks a name up twice if the first lookup changed its inode.
        if let Some(version) = self.recent_incomplete(document, None) {
            return Ok(version);
        }
        let (mut started, mut state) = (Instant::now(), renderer.state(document)?);
        let mut requested = Instant::now();
        // `Cache::entry` would do the same, but spins from the end of another thread's render until
        // that thread has stored its version.
        let guard = loop {
            match self.latest.get_value_or_guard(document, None) {
                GuardResult::Value((cached, version)) if cached == state.key => return Ok(version),
                // Another render finished while this thread waited, so the state may be outdated.
                GuardResult::Value(_) if requested.elapsed() > LOOKUP_TIME => {
                    (started, state) = (Instant::now(), renderer.state(document)?);
                    requested = Instant::now();
                }
                GuardResult::Value((outdated, _)) => {
                    self.latest.remove_if(document, |(cached, _)| *cached == outdated);
                }
                GuardResult::Guard(guard) => break Some(guard),
                GuardResult::Timeout => break None,
            }
        };
        // Threads that waited for an incomplete version use it too.
        if let Some(version) = self.recent_incomplete(document, Some(state.key)) {
            return Ok(version);
        }
        if requested.elapsed() > LOOKUP_TIME {
            (started, state) = (Instant::now(), renderer.state(document)?);
        }
        let key = state.key;
        let rendered = renderer.render(state)?;
        let version = self.add(document, &rendered);
        if rendered.complete {
            // A version that the full cache rejects is rendered again at the next request.
            let _ = guard.map(|guard| guard.insert((key, version.clone())));
        } else if started.elapsed() >= renderer.settings().deadline / 2 {
            // Failures for any reason but lack of time may not happen again.
            self.incomplete.insert(document.clone(), (Instant::now(), key, version.clone()));
        }
        Ok(version)
    }

    /// Returns the incomplete version of `document` if it was made a moment ago. For one worker its
    /// sources must have this key; for several workers any sources will do.
    fn recent_incomplete(&self, document: &Document, key: Option<Key>) -> Option<Arc<Version>> {
        let (made_at, cached, version) = self.incomplete.get(document)?;
        (made_at.elapsed() < INCOMPLETE_TTL
            && (!document.is_about_one_worker() || key == Some(cached)))
        .then_some(version)
    }

    /// Returns the bytes of a version, rendered again if they were evicted.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] if the file has another version by now.
    pub(super) fn bytes(
        &self,
        renderer: &Renderer,
        document: &Document,
        version: &Version,
    ) -> Result<Arc<[u8]>> {
        if let Some(bytes) = self.bytes.get(&(document.clone(), version.content)) {
            return Ok(bytes);
        }
        let state = renderer.state(document)?;
        let rendered = renderer.render(state)?;
        if content_hash(&rendered) != version.content {
            return Err(Error::Stale);
        }
        self.bytes.insert((document.clone(), version.content), rendered.bytes.clone());
        Ok(rendered.bytes)
    }

    #[cfg(test)]
    pub(super) fn evict(&self) {
        self.bytes.clear();
    }

    #[cfg(test)]
    pub(super) fn contains(&self, document: &Document) -> bool {
        self.latest.peek(document).is_some()
    }

    fn add(&self, document: &Document, rendered: &Rendered) -> Arc<Version> {
        let content = content_hash(rendered);
        let attr =
            Attr::generated(rendered.bytes.len() as u64, content, rendered.access, rendered.newest);
        self.bytes.insert((document.clone(), content), rendered.bytes.clone());
        Arc::new(Version { attr, content })
    }
}

fn content_hash(rendered: &Rendered) -> [u8; 16] {
    let mut hash = blake3::Hasher::new();
    hash.update(&rendered.bytes);
    digest(&hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::settings::Settings;
    use crate::catalog::{Freshness, Source};
    use crate::route::Report;
    use crate::view::{Filter, View};
    use swarmletfs_base::name::{Name, RelPath};
    use swarmletfs_base::store::Memory;

    #[test]
    fn one_version_is_cached_of_a_file_that_changes_all_the_time() {
        let store = Arc::new(Memory::new());
        let path = |name: &str| RelPath::parse(format!("workers/w/{name}")).unwrap();
        store.write(&path("metadata.json"), r#"{"status": "running"}"#);
        let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
        let view =
            View::new(vec![Source::from_store(store.clone(), None)], fresh, Filter::default())
                .unwrap();
        let (renderer, versions) = (Renderer::new(view, Settings::default()), Versions::new(1));
        let document = Document::Worker(Name::new("w").unwrap(), Report::Index);
        let mut before = None;
        for number in 0..100 {
            store.write(&path("tool_calls/001_sh.txt"), "x".repeat(number));
            let version = versions.current(&renderer, &document).unwrap();
            assert_eq!(versions.current(&renderer, &document).unwrap(), version);
            assert_ne!(before.replace(version.clone()), Some(version), "{number}");
        }
        assert_eq!(versions.latest.len(), 1);
    }
}
