//! Inspects the limits that apply to a mount started from here.

use std::io;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use super::finding::Finding;
use crate::cache::DiskCache;
use crate::cli::cache_args;
use crate::cli::terminal::display_path;

/// Number of descriptors below which a note is given. A mount holds about 20, and one for each
/// worker file open through it.
const MIN_DESCRIPTORS: u64 = 1_024;

/// Limits of a mount started from here; null if unlimited or unreadable.
#[derive(Debug, Serialize)]
pub(super) struct Limits {
    descriptors: Option<u64>,
    descriptors_max: Option<u64>,
    /// Limit for this user, over all programs.
    inotify_watches: Option<u64>,
}

pub(super) fn inspect() -> (Limits, Vec<Finding>) {
    let limit = getrlimit(Resource::Nofile);
    let watches = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_watches").ok();
    let limits = Limits {
        descriptors: limit.current,
        descriptors_max: limit.maximum,
        inotify_watches: watches.and_then(|text| text.trim().parse().ok()),
    };
    (limits, vec![descriptors(limit.current, limit.maximum), cache()])
}

fn cache() -> Finding {
    let Some(place) = cache_args::default_dir() else {
        let message = "there is no cache folder: each start parses everything again";
        return Finding::note("limits", "cache", message)
            .with_remedy("set $HOME or $XDG_CACHE_HOME");
    };
    let (path, most) = (display_path(&place), cache_args::CACHE_LIMIT >> 20);
    let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
    match DiskCache::size(&place) {
        Ok(bytes) => {
            let index = DiskCache::size(&place.join(cache_args::INDEX)).unwrap_or(0);
            let message = format!(
                "the cache is in {path}: {} of at most {most} MiB, and a search index of {} of at \
                 most {} MiB",
                mebibytes(bytes),
                mebibytes(index),
                cache_args::INDEX_LIMIT >> 20
            );
            Finding::ok("limits", "cache", message)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let message = format!("the cache will be created in {path}, with at most {most} MiB");
            Finding::ok("limits", "cache", message)
        }
        Err(error) => {
            let message = format!(
                "the cache in {path} cannot be used: {error}; each start parses everything again"
            );
            Finding::note("limits", "cache", message)
        }
    }
}

/// Returns the finding on the limits of open files; `None` is unlimited.
fn descriptors(soft: Option<u64>, hard: Option<u64>) -> Finding {
    let Some(soft) = soft else {
        return Finding::ok("limits", "descriptors", "any number of files may be open");
    };
    let message = format!("{soft} files may be open at a time");
    if soft >= MIN_DESCRIPTORS {
        return Finding::ok("limits", "descriptors", message);
    }
    let message =
        format!("{message}: a mount needs about 20, and one for each file open through it");
    let more = hard.unwrap_or(4_096).min(4_096);
    let note = Finding::note("limits", "descriptors", message);
    if more > soft {
        note.with_remedy(format!("run `ulimit -n {more}` before mounting"))
    } else {
        note
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn low_descriptor_limit_is_noted_with_a_command() {
        assert_eq!(descriptors(None, None).level, Level::Ok);
        assert_eq!(descriptors(Some(1_024), Some(20_000)).level, Level::Ok);
        assert!(descriptors(Some(64), Some(20_000)).remedy.unwrap().contains("`ulimit -n 4096`"));
        assert!(descriptors(Some(64), Some(512)).remedy.unwrap().contains("`ulimit -n 512`"));
        assert_eq!(descriptors(Some(64), Some(64)).remedy, None);
    }
}
