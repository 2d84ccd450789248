//! The output of the command that is a worker itself.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use super::dir::{File, from_io};
use super::error::{During, Result};
use super::worker_folder::WorkerFolder;
use swarmletfs_base::error::Error as PathError;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_trace::swarmlet::{EXECUTION_LOG, LOGS};

/// Output of the command that a worker consists of, appended to `logs/execution.log` while the
/// command runs, so that readers can follow it.
///
/// The command may write its own directory, too. It can replace the file by another one; the output
/// then continues in a file without a name.
#[derive(Debug)]
pub struct ExecutionLog {
    worker: Arc<WorkerFolder>,
    file: File,
    /// Size of the file when it was opened, in bytes.
    start: u64,
    /// Hash of all that was written.
    written: blake3::Hasher,
    /// Length of all that was written, in bytes.
    length: u64,
}

/// What became of the log that a command can write, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogState {
    /// It holds what was written.
    Whole,
    /// It holds something else.
    Changed,
    /// It is no file any more.
    Missing,
}

impl ExecutionLog {
    /// Opens the log of a worker, and creates it if it is missing.
    pub(super) fn open(worker: &Arc<WorkerFolder>) -> Result<ExecutionLog> {
        let open = || -> Result<_, PathError> {
            let logs = worker.folder().enter_or_create(&Name::new(LOGS)?)?;
            let file = logs.open_append(&Name::new(EXECUTION_LOG)?)?;
            let start = file.metadata().map_err(from_io)?.len();
            Ok((file, start))
        };
        let (file, start) = open().during("write", worker.folder().path(), LOGS.as_bytes())?;
        let written = blake3::Hasher::new();
        Ok(ExecutionLog { worker: Arc::clone(worker), file, start, written, length: 0 })
    }

    /// Returns what became of the log. The command must have ended.
    pub fn state(&self) -> LogState {
        let read = || -> Result<_, PathError> {
            let logs = self.worker.folder().enter(&RelPath::constant(LOGS))?;
            let mut file =
                logs.open_to_read(&Name::new(EXECUTION_LOG)?)?.ok_or(PathError::NotFound)?;
            // What the command made of it may be larger than can be read in any time.
            let size = file.metadata().map_err(from_io)?.len();
            if Some(size) != self.start.checked_add(self.length) {
                return Ok(false);
            }
            file.seek(SeekFrom::Start(self.start)).map_err(from_io)?;
            let mut file = file.take(self.length);
            let mut found = blake3::Hasher::new();
            io::copy(&mut file, &mut found).map_err(from_io)?;
            Ok(found.finalize() == self.written.finalize())
        };
        match read() {
            Ok(true) => LogState::Whole,
            Err(error) if error.is_not_a_file() => LogState::Missing,
            Ok(false) | Err(_) => LogState::Changed,
        }
    }

    /// Waits until the log is on disk.
    ///
    /// # Errors
    ///
    /// The disk fails.
    pub fn end(self) -> Result<()> {
        let synced = self.worker.folder().sync_file(&self.file);
        synced.during("write", self.worker.folder().path(), LOGS.as_bytes())
    }
}

impl Write for ExecutionLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.length += count as u64;
        self.written.update(bytes.split_at_checked(count).map_or(bytes, |(written, _)| written));
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
