//! Paths that git tracks. Rules to ignore files do not hold for them.

use std::cell::OnceCell;

use filetime::FileTime;
use gix_index::State;
use gix_index::decode::Options;
use gix_index::hash::Kind;

use swarmletfs_base::name::RelPath;

/// Limit of one allocation while an index is decoded, in bytes.
const ALLOCATION_MAX: usize = 1 << 30;

/// The paths in an index of git. They are parsed when they are first needed.
#[derive(Default)]
pub(super) struct TrackedPaths {
    index: Vec<u8>,
    paths: OnceCell<Vec<RelPath>>,
}

impl TrackedPaths {
    /// Returns the paths in `index`, which may hold any bytes.
    pub(super) fn new(index: Vec<u8>) -> TrackedPaths {
        TrackedPaths { index, paths: OnceCell::new() }
    }

    pub(super) fn has(&self, path: &RelPath) -> bool {
        self.paths().binary_search(path).is_ok()
    }

    pub(super) fn has_beneath(&self, path: &RelPath) -> bool {
        // Names that continue the directory's, such as `a.b`, come before the entries in `a`.
        let begin = [path.as_bytes(), b"/"].concat();
        let at = self.paths().partition_point(|tracked| tracked.as_bytes() < begin.as_slice());
        self.paths().get(at).is_some_and(|tracked| tracked.is_within(path))
    }

    fn paths(&self) -> &[RelPath] {
        self.paths.get_or_init(|| {
            let parsed =
                [Kind::Sha1, Kind::Sha256].into_iter().find_map(|hash| parse(&self.index, hash));
            let mut paths = parsed.unwrap_or_default();
            paths.sort_unstable();
            paths
        })
    }
}

/// Decodes an index with hashes of this kind. Returns `None` if it is none.
fn parse(index: &[u8], hash: Kind) -> Option<Vec<RelPath>> {
    let options = Options {
        thread_limit: Some(1),
        alloc_limit_bytes: Some(ALLOCATION_MAX),
        ..Options::default()
    };
    let (state, _) = State::from_bytes(index, FileTime::zero(), hash, options).ok()?;
    let paths = state.entries().iter().filter_map(|entry| {
        let path: &[u8] = entry.path(&state);
        // A directory, in a sparse index, ends with a slash.
        RelPath::parse(path.strip_suffix(b"/").unwrap_or(path)).ok()
    });
    Some(paths.filter(|path| !path.is_root()).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn the_paths_of_each_kind_of_index_are_found() {
        let long = format!("deep/{}/x", "d".repeat(200));
        let names = ["a", "a.b", "a-c/d", "dist/x", "dist/é", "z z", &long];
        for (version, hash) in [("2", "sha1"), ("4", "sha1"), ("2", "sha256"), ("4", "sha256")] {
            let folder = tempfile::tempdir().unwrap();
            let git = |arguments: &[&str]| {
                let output = Command::new("git")
                    .args(arguments)
                    .current_dir(folder.path())
                    .env("GIT_CONFIG_GLOBAL", "/dev/null")
                    .output()
                    .unwrap();
                assert!(output.status.success(), "{output:?}");
            };
            git(&["init", "-q", "--object-format", hash]);
            for name in names {
                fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
                fs::write(folder.path().join(name), name).unwrap();
            }
            git(&["add", "-A"]);
            git(&["add", "-N", "a"]);
            git(&["update-index", "--index-version", version]);
            fs::write(folder.path().join("later"), "").unwrap();
            git(&["add", "-N", "later"]);
            let index = fs::read(folder.path().join(".git/index")).unwrap();
            let tracked = TrackedPaths::new(index.clone());
            assert_eq!(tracked.paths().len(), names.len() + 1, "{version} {hash}");
            for name in names.into_iter().chain(["later"]) {
                assert!(tracked.has(&RelPath::parse(name).unwrap()), "{version} {hash} {name}");
            }
            for (name, expected) in
                [("dist", true), ("a-c", true), ("a", false), ("di", false), ("deep", true)]
            {
                let path = RelPath::parse(name).unwrap();
                assert_eq!(tracked.has_beneath(&path), expected, "{version} {hash} {name}");
            }
            for length in 0..index.len() {
                let cut = TrackedPaths::new(index[..length].to_vec());
                assert!(cut.paths().len() <= names.len() + 1);
            }
        }
        assert!(TrackedPaths::new(b"DIRCxxxxxxxxxxxxxxx".to_vec()).paths().is_empty());
    }
}
