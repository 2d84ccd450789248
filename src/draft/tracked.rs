//! Paths that git tracks. Rules to ignore files do not hold for them.

use std::cell::OnceCell;

use crate::name::RelPath;

/// First bytes of the index of git.
const SIGNATURE: &[u8] = b"DIRC";
/// Versions of the index that are known.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=4;
/// The version that shortens each path by what it shares with the one before.
const SHORTENED: u32 = 4;
/// Bytes before the hash in an entry: times, numbers and mode.
const BEFORE_HASH: usize = 40;
/// Sizes of the hash in an entry: SHA-1, or SHA-256.
const HASHES: [usize; 2] = [20, 32];
/// Flag of an entry that has more flags.
const IS_EXTENDED: u16 = 0x4000;
/// Multiple to which the size of an entry is filled up.
const ALIGNMENT: usize = 8;

/// The paths in an index of git. They are parsed when they are first needed.
#[derive(Default)]
pub(super) struct TrackedPaths {
    index: Vec<u8>,
    paths: OnceCell<Vec<RelPath>>,
}

impl TrackedPaths {
    /// Returns the paths in `index`, which may be anything.
    pub(super) fn new(index: Vec<u8>) -> TrackedPaths {
        TrackedPaths { index, paths: OnceCell::new() }
    }

    /// Returns true if git tracks the file `path`.
    pub(super) fn has(&self, path: &RelPath) -> bool {
        self.paths().binary_search(path).is_ok()
    }

    /// Returns true if git tracks a file in the directory `path`.
    pub(super) fn has_beneath(&self, path: &RelPath) -> bool {
        // Names that continue the directory's, such as `a.b`, come before what is in `a`.
        let begin = [path.as_bytes(), b"/"].concat();
        let at = self.paths().partition_point(|tracked| tracked.as_bytes() < begin.as_slice());
        self.paths().get(at).is_some_and(|tracked| tracked.is_within(path))
    }

    fn paths(&self) -> &[RelPath] {
        self.paths.get_or_init(|| {
            let parsed = HASHES.iter().find_map(|hash| parse(&self.index, *hash));
            let mut paths = parsed.unwrap_or_default();
            paths.sort_unstable();
            paths
        })
    }
}

/// Parses an index whose hashes have `hash` bytes. Returns `None` if it is none.
fn parse(index: &[u8], hash: usize) -> Option<Vec<RelPath>> {
    let mut rest = index.strip_prefix(SIGNATURE)?;
    let version = take_u32(&mut rest).filter(|version| VERSIONS.contains(version))?;
    let count = take_u32(&mut rest)?;
    let mut paths = Vec::new();
    let mut before = Vec::new();
    for _ in 0..count {
        let entry = rest;
        take(&mut rest, BEFORE_HASH + hash)?;
        if take_u16(&mut rest)? & IS_EXTENDED != 0 {
            take_u16(&mut rest)?;
        }
        if version == SHORTENED {
            let dropped = take_varint(&mut rest)?;
            before.truncate(before.len().checked_sub(dropped)?);
        } else {
            before.clear();
        }
        let end = memchr::memchr(0, rest)?;
        before.extend_from_slice(take(&mut rest, end)?);
        let filled = if version == SHORTENED {
            1
        } else {
            ALIGNMENT - (entry.len() - rest.len()) % ALIGNMENT
        };
        take(&mut rest, filled)?;
        // A directory, in a sparse index, ends with a slash.
        let path = before.strip_suffix(b"/").unwrap_or(&before);
        paths.push(RelPath::parse(path).ok().filter(|path| !path.is_root())?);
    }
    Some(paths)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(take(rest, 4)?.try_into().ok()?))
}

fn take_u16(rest: &mut &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(take(rest, 2)?.try_into().ok()?))
}

/// Takes a number in groups of seven bits, the highest first, each but the first one less by one.
fn take_varint(rest: &mut &[u8]) -> Option<usize> {
    let mut number = 0_usize;
    loop {
        let byte = *take(rest, 1)?.first()?;
        number = number.checked_mul(128)?.checked_add(usize::from(byte & 127))?;
        if byte & 128 == 0 {
            return Some(number);
        }
        number = number.checked_add(1)?;
    }
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
