//! Confines the threads that answer requests to reading the stores and the cache directory, if the
//! kernel has Landlock.
//!
//! This is the second line of defense: the store already opens nothing outside its roots. If a bug
//! or a hostile file gets past that, the kernel still refuses every other open and write, the
//! execution of programs and TCP connections.
//!
//! Only the serving threads are confined. The thread that starts them must unmount at the end,
//! which a confined thread may not; it reads nothing that a worker wrote.

use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope,
};
use tracing::{info, warn};

/// Newest Landlock ABI that this program supports. An older kernel enforces the rules that it has.
const LANDLOCK_ABI: ABI = ABI::V7;

/// Confines this thread, and the threads that it starts later, to reading beneath `roots`. Logs
/// whether that succeeded.
pub(super) fn confine(roots: &[BorrowedFd<'_>]) {
    match restrict(roots) {
        Ok(RulesetStatus::FullyEnforced) => info!("confined to reading the stores"),
        Ok(RulesetStatus::PartiallyEnforced) => {
            info!("confined to the stores as far as this kernel's Landlock allows")
        }
        Ok(RulesetStatus::NotEnforced) => {
            info!("not confined to the stores: this kernel has no Landlock")
        }
        Err(error) => warn!("not confined to the stores: {error}"),
    }
}

fn restrict(roots: &[BorrowedFd<'_>]) -> Result<RulesetStatus, RulesetError> {
    let reads = AccessFs::ReadFile | AccessFs::ReadDir;
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK_ABI))?
        .handle_access(AccessNet::from_all(LANDLOCK_ABI))?
        .scope(Scope::from_all(LANDLOCK_ABI))?
        .create()?;
    for root in roots {
        rules = rules.add_rule(PathBeneath::new(root, reads))?;
    }
    Ok(rules.restrict_self()?.ruleset)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;
    use std::os::fd::AsFd;
    use std::thread;

    use super::*;

    #[test]
    fn roots_can_be_read_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("store");
        fs::create_dir_all(root.join("workers")).unwrap();
        fs::write(root.join("file"), "text").unwrap();
        let opened = fs::File::open(&root).unwrap();
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    let status = restrict(&[opened.as_fd()]).unwrap();
                    // Without Landlock, there is nothing to test.
                    if status == RulesetStatus::NotEnforced {
                        return;
                    }
                    assert_eq!(fs::read(root.join("file")).unwrap(), b"text");
                    for refused in [
                        fs::write(root.join("new"), ""),
                        fs::write(root.join("file"), ""),
                        fs::create_dir(root.join("folder")),
                        fs::remove_dir(root.join("workers")),
                        fs::remove_file(root.join("file")),
                        fs::rename(root.join("file"), root.join("moved")),
                        fs::hard_link(root.join("file"), root.join("link")),
                        std::os::unix::fs::symlink("/", root.join("link")),
                        fs::read_dir(folder.path()).map(drop),
                    ] {
                        assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
                    }
                })
                .join()
                .unwrap();
        });
    }
}
