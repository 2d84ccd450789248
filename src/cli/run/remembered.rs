//! Remembers that the sandbox works, so that a run need not try it out first.
//!
//! A trial starts six processes. Its success is kept in a file beside the drafts, where no worker
//! can write, with the facts that it depends on. If the sandbox fails later, the run fails with the
//! reason, and the file is removed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::draft::Engine;
use crate::error::Error;
use crate::name::{Name, RelPath};
use crate::sandbox::LandlockLevel;
use crate::store::TEMPORARY_PREFIX;
use crate::trace::swarmlet::DRAFTS;
use swarmletfs_record::write::{Dir, Store};

const SIZE_MAX: u64 = 4 << 10;

/// The file that holds the boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

const OWN_PROGRAM: &str = "/proc/self/exe";

/// Text between the conditions of a trial and its result.
const SEPARATOR: &str = " landlock ";

#[derive(Debug)]
pub(super) struct TrialMemory {
    drafts: Dir,
    name: Name,
    /// The conditions of a trial, as one line.
    facts: String,
}

impl TrialMemory {
    /// Returns the memory of trials with an engine and a workspace. `None` if the store has no
    /// drafts yet, or if a fact is unknown.
    pub(super) fn new(store: &Store, workspace: &Path, engine: Engine) -> Option<TrialMemory> {
        let drafts = drafts_of(store).ok()?;
        let program = fs::metadata(OWN_PROGRAM).ok()?;
        let boot = fs::read_to_string(BOOT_ID).ok()?;
        let namespace = |name: &str| fs::metadata(Path::new("/proc/self/ns").join(name));
        let facts = format!(
            "{} {} user {} {} program {} {} {}.{} workspace {} drafts {} namespaces {} {}",
            engine.as_str(),
            boot.trim(),
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
            program.dev(),
            program.ino(),
            program.mtime(),
            program.mtime_nsec(),
            fs::metadata(workspace).ok()?.dev(),
            fs::metadata(drafts.path()).ok()?.dev(),
            namespace("user").ok()?.ino(),
            namespace("mnt").ok()?.ino(),
        );
        Some(TrialMemory { drafts, name: file_name().ok()?, facts })
    }

    /// Returns the level of Landlock, if a trial succeeded.
    pub(super) fn recall(&self) -> Option<LandlockLevel> {
        let own = rustix::process::geteuid().as_raw();
        self.drafts.meta(&self.name).ok()?.filter(|meta| meta.uid() == own)?;
        let text = self.drafts.read(&self.name, SIZE_MAX).ok()??;
        let level = text.strip_prefix(self.facts.as_bytes())?.strip_prefix(SEPARATOR.as_bytes())?;
        LandlockLevel::from_name(level.trim_ascii_end())
    }

    pub(super) fn remember(&self, landlock: LandlockLevel) {
        let text = format!("{}{SEPARATOR}{}\n", self.facts, landlock.as_str());
        let write = || {
            let drafts = self.drafts.without_sync()?;
            drafts.write_temporary(&mut text.as_bytes())?.replace(&drafts, &self.name)
        };
        // Without it, the next run tries again.
        if let Err(error) = write() {
            tracing::debug!("a trial of the sandbox is not remembered: {error}");
        }
    }
}

/// Forgets the trial of this user in a store.
pub(super) fn forget(store: &Store) {
    let removed = drafts_of(store).and_then(|drafts| drafts.remove_all(&file_name()?));
    if let Err(error) = removed {
        tracing::debug!("a trial of the sandbox is not forgotten: {error}");
    }
}

fn drafts_of(store: &Store) -> Result<Dir, Error> {
    store.root().enter(&RelPath::constant(DRAFTS))
}

/// Returns the name of the file of this user. It is the name of a temporary entry, so no worker has
/// it.
fn file_name() -> Result<Name, Error> {
    Name::new(format!("{TEMPORARY_PREFIX}trial-{}", rustix::process::geteuid().as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trial_is_remembered_under_the_same_conditions_only() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::init(folder.path().join("store")).unwrap();
        let memory = |workspace: &Path| TrialMemory::new(&store, workspace, Engine::Overlay);
        assert!(memory(folder.path()).is_none(), "there are no drafts");
        fs::create_dir(folder.path().join("store/drafts")).unwrap();
        let recall = || memory(folder.path()).unwrap().recall();
        assert_eq!(recall(), None);
        for landlock in [LandlockLevel::Full, LandlockLevel::Files, LandlockLevel::Nothing] {
            memory(folder.path()).unwrap().remember(landlock);
            assert_eq!(recall(), Some(landlock));
        }
        assert_eq!(memory(Path::new("/proc")).unwrap().recall(), None);
        let copy = TrialMemory::new(&store, folder.path(), Engine::Copy).unwrap();
        assert_eq!(copy.recall(), None);
        assert!(crate::draft::Draft::list(&store).unwrap().is_empty());
        forget(&store);
        assert_eq!(recall(), None);
        let file = folder.path().join("store/drafts").join(file_name().unwrap().as_os_str());
        fs::write(&file, "torn").unwrap();
        assert_eq!(recall(), None);
    }
}
