//! Versions of generated files: what is known of each without its bytes, and the bytes of those read lately.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quick_cache::Weighter;
use quick_cache::sync::{Cache, EntryAction, EntryResult};

use super::attr::Attr;
use crate::cache::single_shard;
use crate::digest::digest;
use crate::error::{Error, Result};
use crate::render::{Generated, Key, Rendered, Renderer, Scope, State};

/// How many bytes of versions are kept that no handle holds.
const BYTES: u64 = 64 << 20;
/// About how many versions that is.
const ITEMS: usize = 10_000;
/// How many versions are known without their bytes.
const KNOWN: usize = 100_000;

/// How many are known for a moment, whatever they would be made from by now, since not all could be read for them in
/// time; and how long that is.
const LATELY: usize = 1_000;
const FOR_A_MOMENT: Duration = Duration::from_millis(500);
/// To find out whether a version is known takes no longer, unless another is being made.
const WAITED: Duration = Duration::from_millis(1);

/// One version of a generated file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Version {
    /// Its attributes; the size is exact.
    pub(super) attr: Attr,
    /// The hash of its bytes.
    content: [u8; 16],
}

type File = (Scope, Generated);

/// The latest version of each file, and bytes by their hash.
pub(super) struct Versions {
    /// One of each file: what it was made from, and what came of it.
    known: Cache<File, (Key, Arc<Version>), ByQuestion>,
    /// Those for which not all could be read in time, and when they were made.
    lately: Cache<File, (Instant, Key, Arc<Version>)>,
    bytes: Cache<(File, [u8; 16]), Arc<[u8]>, ByLength>,
}

#[derive(Clone)]
struct ByQuestion;

impl Weighter<File, (Key, Arc<Version>)> for ByQuestion {
    /// One, and one for every so many bytes of what was asked.
    fn weight(&self, (_, file): &File, _: &(Key, Arc<Version>)) -> u64 {
        let asked = match file {
            Generated::Grep(query) => query.regex.len(),
            Generated::Search(query) | Generated::Focus(query) => query.words.len(),
            Generated::Compare(query) => query.len(),
            _ => 0,
        };
        1 + asked as u64 / 256
    }
}

#[derive(Clone)]
struct ByLength;

impl Weighter<(File, [u8; 16]), Arc<[u8]>> for ByLength {
    fn weight(&self, _: &(File, [u8; 16]), bytes: &Arc<[u8]>) -> u64 {
        bytes.len() as u64 + 200
    }
}

impl Versions {
    pub(super) fn new() -> Versions {
        Versions {
            known: Cache::with_weighter(KNOWN, KNOWN as u64, ByQuestion),
            lately: Cache::new(LATELY),
            bytes: single_shard(ITEMS, BYTES, ByLength),
        }
    }

    /// The version that the file has now; made only if another or none is known. Requests for the same one that come at
    /// once share one render, and those for another wait for it.
    pub(super) fn current(&self, renderer: &Renderer, file: &File) -> Result<Arc<Version>> {
        let begun = Instant::now();
        // The kernel looks a name up twice where the first look changed what is behind it.
        if let Some(version) = self.lately(file, None) {
            return Ok(version);
        }
        let state = renderer.state(&file.0, &file.1)?;
        let key = state.key;
        if let Some((_, version)) = self.known.get(file).filter(|(of, _)| *of == key) {
            return Ok(version);
        }
        let known = |_: &File, (of, version): &mut (Key, Arc<Version>)| match *of == key {
            true => EntryAction::Retain(version.clone()),
            false => EntryAction::ReplaceWithGuard,
        };
        let asked = Instant::now();
        let (guard, held) = match self.known.entry(file, None, known) {
            EntryResult::Retained(version) => return Ok(version),
            EntryResult::Vacant(guard) => (Some(guard), None),
            EntryResult::Replaced(guard, held) => (Some(guard), Some(held)),
            EntryResult::Removed(..) | EntryResult::Timeout => (None, None),
        };
        // So do those who waited for the same.
        if let Some(version) = self.lately(file, Some(key)) {
            return Ok(version);
        }
        // Who had to wait for another to be made is given the one of now.
        let (begun, state) = match asked.elapsed() > WAITED {
            true => (Instant::now(), renderer.state(&file.0, &file.1)?),
            false => (begun, state),
        };
        let key = state.key;
        if let Some((of, version)) = held.filter(|(of, _)| *of == key) {
            let _ = guard.map(|guard| guard.insert((of, version.clone())));
            return Ok(version);
        }
        let (version, complete) = self.make(renderer, file, state)?;
        if complete {
            // What a full cache does not take is made again when asked for.
            let _ = guard.map(|guard| guard.insert((key, version.clone())));
        } else if begun.elapsed() >= renderer.settings().deadline / 2 {
            // What failed for another reason may go well the next time.
            self.lately.insert(file.clone(), (Instant::now(), key, version.clone()));
        }
        Ok(version)
    }

    /// The version for which not all could be read in time, if it was made just now: of many workers, whatever it would be
    /// made from by now; of one, only of what has this key.
    fn lately(&self, file: &File, key: Option<Key>) -> Option<Arc<Version>> {
        let (made, of, version) = self.lately.get(file)?;
        let is_of_one = matches!(file.0, Scope::Worker(_));
        (made.elapsed() < FOR_A_MOMENT && (!is_of_one || key == Some(of))).then_some(version)
    }

    /// The bytes of a version; made again if they are no longer held. [`Error::Stale`] if the file has another by now.
    pub(super) fn bytes(&self, renderer: &Renderer, file: &File, version: &Version) -> Result<Arc<[u8]>> {
        if let Some(bytes) = self.bytes.get(&(file.clone(), version.content)) {
            return Ok(bytes);
        }
        let state = renderer.state(&file.0, &file.1)?;
        let rendered = renderer.render(&file.0, &file.1, state)?;
        if content(&rendered) != version.content {
            return Err(Error::Stale);
        }
        self.bytes.insert((file.clone(), version.content), rendered.bytes.clone());
        Ok(rendered.bytes)
    }

    /// Keeps no bytes any more.
    #[cfg(test)]
    pub(super) fn evict(&self) {
        self.bytes.clear();
    }

    fn make(&self, renderer: &Renderer, file: &File, state: State) -> Result<(Arc<Version>, bool)> {
        let rendered = renderer.render(&file.0, &file.1, state)?;
        let content = content(&rendered);
        let attr = Attr::of_version(rendered.bytes.len() as u64, content, rendered.access, rendered.newest);
        self.bytes.insert((file.clone(), content), rendered.bytes);
        Ok((Arc::new(Version { attr, content }), rendered.complete))
    }
}

fn content(rendered: &Rendered) -> [u8; 16] {
    let mut hash = blake3::Hasher::new();
    hash.update(&rendered.bytes);
    digest(&hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Freshness, Source};
    use crate::name::{Name, RelPath};
    use crate::render::Settings;
    use crate::store::Memory;
    use crate::view::{Filter, View};

    #[test]
    fn of_a_file_that_changes_again_and_again_one_version_is_known() {
        let store = Arc::new(Memory::new());
        let path = |name: &str| RelPath::parse(format!("workers/w/{name}")).unwrap();
        store.write(&path("metadata.json"), r#"{"status": "running"}"#);
        let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
        let view = View::over(vec![Source::from_store(store.clone(), None)], fresh, Filter::default()).unwrap();
        let (renderer, versions) = (Renderer::new(view, Settings::default()), Versions::new());
        let file = (Scope::Worker(Name::new("w").unwrap()), Generated::Index);
        let mut before = None;
        for number in 0..100 {
            store.write(&path("tool_calls/001_sh.txt"), "x".repeat(number));
            let version = versions.current(&renderer, &file).unwrap();
            assert_eq!(versions.current(&renderer, &file).unwrap(), version);
            assert_ne!(before.replace(version.clone()), Some(version), "{number}");
        }
        assert_eq!(versions.known.len(), 1);
    }
}
