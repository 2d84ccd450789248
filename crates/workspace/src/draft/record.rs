//! draft.json: the workspace of a draft, and the progress of its worker.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use swarmletfs_base::error::Result;
use swarmletfs_base::model::{decode, encode};
use swarmletfs_record::write::{Dir, Durability, EntryIdentity};

const VERSION: u32 = 1;

/// The content of draft.json. Workers cannot write it, so it can be trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftRecord {
    version: u32,
    /// Absolute path of the workspace, percent-encoded.
    workspace: String,
    pub engine: Engine,
    /// Time before which every entry of the view existed.
    pub started_at: Timestamp,
    /// True if ignored paths count as changes.
    #[serde(default)]
    pub all_changes: bool,
    /// True if each write waited for the disk, so that a crash of the machine tears nothing.
    #[serde(default)]
    pub is_durable: bool,
    /// Paths that the worker could not see, relative to the workspace and percent-encoded. Their
    /// absence is no change.
    #[serde(default)]
    hidden: Vec<String>,
    /// The directory that was the workspace when the worker began.
    #[serde(default)]
    workspace_entry: Option<EntryIdentity>,
    #[serde(default)]
    pub(super) folder_mode: Option<u32>,
    pub state: DraftState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// An overlay of the kernel: nothing is copied at the start.
    Overlay,
    Copy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DraftState {
    /// The worker runs, or its end is not recorded.
    Running,
    Ended,
    /// The changes were discarded. They cannot be applied any more.
    Discarded,
}

impl Engine {
    pub fn as_str(self) -> &'static str {
        match self {
            Engine::Overlay => "overlay",
            Engine::Copy => "copy",
        }
    }
}

/// Longest wait for a tick of the kernel's clock, in milliseconds.
const TICK_MS: usize = 50;

/// Returns the time of the clock that the kernel stamps files with. A file whose ctime is earlier
/// did not change since, without an allowance for the tick of that clock.
pub(super) fn kernel_time() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let nanos = i32::try_from(now.tv_nsec).unwrap_or_default();
    Timestamp::new(now.tv_sec, nanos).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Waits for a time after all stamps that files have now, and returns it: a later stamp means a
/// change.
pub(super) fn next_tick() -> Timestamp {
    // Some stamps are of the exact clock, which is ahead of the one that ticks.
    let latest = Timestamp::now();
    // At least 100 ticks a second. A clock that is set back gives more to compare, and no error.
    for _ in 0..TICK_MS {
        if kernel_time() > latest {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    kernel_time()
}

impl DraftRecord {
    /// Returns the record of a draft that begins now. Waits for the next tick of the clock of
    /// files, so that all earlier changes have earlier stamps.
    pub fn new(workspace: &Path, engine: Engine) -> DraftRecord {
        DraftRecord {
            version: VERSION,
            workspace: encode(workspace.as_os_str().as_bytes()),
            engine,
            started_at: next_tick(),
            all_changes: false,
            is_durable: false,
            hidden: Vec::new(),
            workspace_entry: None,
            folder_mode: None,
            state: DraftState::Running,
        }
    }

    /// Returns true if this program knows the meaning of every field.
    pub(super) fn is_known(&self) -> bool {
        self.version == VERSION
    }

    pub fn workspace(&self) -> PathBuf {
        PathBuf::from(std::ffi::OsString::from_vec(decode(&self.workspace)))
    }

    /// Notes which directory the workspace is now. Another one may get its path later.
    pub(super) fn identify_workspace(&mut self) {
        let workspace = Dir::open(&self.workspace(), Durability::None);
        // A workspace that cannot be opened gets no changes applied.
        self.workspace_entry = workspace.and_then(|workspace| workspace.identity()).ok();
    }

    /// Returns true if `folder` is the workspace with which the worker began.
    pub fn is_workspace(&self, folder: &Dir) -> Result<bool> {
        let Some(entry) = self.workspace_entry else { return Ok(true) };
        Ok(folder.identity()? == entry)
    }

    pub fn hidden(&self) -> Vec<PathBuf> {
        let paths = self.hidden.iter().map(|path| decode(path));
        paths.map(|path| PathBuf::from(std::ffi::OsString::from_vec(path))).collect()
    }

    pub fn hide(&mut self, path: &OsStr) {
        self.hidden.push(encode(path.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_directory_at_the_path_is_not_the_workspace() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("w"), folder.path().join("moved"));
        std::fs::create_dir(&path).unwrap();
        let mut record = DraftRecord::new(&path, Engine::Overlay);
        record.identify_workspace();
        let json = serde_json::to_string(&record).unwrap();
        let record: DraftRecord = serde_json::from_str(&json).unwrap();
        let is_same =
            |path: &Path| record.is_workspace(&Dir::open(path, Durability::None).unwrap()).unwrap();
        assert!(is_same(&path));
        std::fs::rename(&path, &moved).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(is_same(&moved) && !is_same(&path));
        std::fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink(folder.path(), &path).unwrap();
        assert!(!is_same(&path));
    }

    #[test]
    fn every_path_survives_json() {
        let workspace = OsStr::from_bytes(b"/w/\xff, a:b\\%41");
        let mut record = DraftRecord::new(Path::new(workspace), Engine::Overlay);
        record.hide(OsStr::from_bytes(b".env\xfe"));
        let json = serde_json::to_string(&record).unwrap();
        let read: DraftRecord = serde_json::from_str(&json).unwrap();
        assert_eq!(read, record);
        assert_eq!(read.workspace(), Path::new(workspace));
        assert_eq!(read.hidden(), [PathBuf::from(OsStr::from_bytes(b".env\xfe"))]);
        assert!(read.is_known());
    }
}
