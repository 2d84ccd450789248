//! Confines the threads that answer requests to reading the stores and the cache directory, and to
//! changing the notes if they are served, if the kernel has Landlock.
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

/// Newest Landlock ABI that this program knows. An older kernel enforces the rules that it has.
const LANDLOCK_ABI: ABI = ABI::V7;

/// Confines this thread, and the threads that it starts later, to reading beneath `roots` and to
/// changing files and directories beneath `writable`. Logs whether that succeeded.
pub(super) fn confine(roots: &[BorrowedFd<'_>], writable: Option<BorrowedFd<'_>>) {
    match restrict(roots, writable) {
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

fn restrict(
    roots: &[BorrowedFd<'_>],
    writable: Option<BorrowedFd<'_>>,
) -> Result<RulesetStatus, RulesetError> {
    let reads = AccessFs::ReadFile | AccessFs::ReadDir;
    let changes = AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::Refer;
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK_ABI))?
        .handle_access(AccessNet::from_all(LANDLOCK_ABI))?
        .scope(Scope::from_all(LANDLOCK_ABI))?
        .create()?;
    for root in roots {
        rules = rules.add_rule(PathBeneath::new(root, reads))?;
    }
    if let Some(writable) = writable {
        rules = rules.add_rule(PathBeneath::new(writable, reads | changes))?;
    }
    Ok(rules.restrict_self()?.ruleset)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;
    use std::os::fd::AsFd;
    use std::thread;

    use super::*;

    #[test]
    fn only_the_notes_can_be_changed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("store");
        let (notes, worker) = (root.join("supervisor"), root.join("workers"));
        for made in [&notes.join("a"), &worker] {
            fs::create_dir_all(made).unwrap();
            fs::write(made.join("file"), "text").unwrap();
        }
        let opened = [&root, &notes].map(|path| fs::File::open(path).unwrap());
        let [root_fd, notes_fd] = &opened;
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    let status = restrict(&[root_fd.as_fd()], Some(notes_fd.as_fd())).unwrap();
                    // Without Landlock, there is nothing to test.
                    if status == RulesetStatus::NotEnforced {
                        return;
                    }
                    fs::write(notes.join("new"), "text").unwrap();
                    fs::write(notes.join("a/file"), "").unwrap();
                    fs::rename(notes.join("new"), notes.join("a/new")).unwrap();
                    fs::create_dir(notes.join("folder")).unwrap();
                    fs::remove_dir(notes.join("folder")).unwrap();
                    fs::remove_file(notes.join("a/new")).unwrap();
                    for refused in [
                        fs::write(worker.join("new"), ""),
                        fs::write(worker.join("file"), ""),
                        fs::create_dir(root.join("folder")),
                        fs::remove_file(worker.join("file")),
                        fs::rename(worker.join("file"), notes.join("file")),
                        fs::rename(notes.join("a/file"), worker.join("moved")),
                        fs::hard_link(worker.join("file"), notes.join("link")),
                        std::os::unix::fs::symlink("/", notes.join("link")),
                        fs::read(folder.path()).map(drop),
                    ] {
                        let kind = refused.unwrap_err().kind();
                        let expected = [ErrorKind::PermissionDenied, ErrorKind::CrossesDevices];
                        assert!(expected.contains(&kind), "{kind:?}");
                    }
                })
                .join()
                .unwrap();
        });
    }
}
