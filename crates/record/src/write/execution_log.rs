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
    start: u64,
    written: blake3::Hasher,
    length: u64,
}

/// State of the log, which its command can write, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogState {
    /// It holds exactly the recorded output.
    Whole,
    Changed,
    /// It is no regular file any more.
    Missing,
}

impl ExecutionLog {
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

    /// Returns the state of the log. The command must have ended.
    pub fn state(&self) -> LogState {
        let read = || -> Result<_, PathError> {
            let logs = self.worker.folder().enter(&RelPath::constant(LOGS))?;
            let mut file =
                logs.open_to_read(&Name::new(EXECUTION_LOG)?)?.ok_or(PathError::NotFound)?;
            // The command may have made the file too large to read.
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
