//! The output of the command that is a worker itself.

use std::io::{self, Write};
use std::sync::Arc;

use super::dir::File;
use super::error::{During, Result};
use super::worker_folder::WorkerFolder;
use crate::error::Error as PathError;
use crate::name::Name;
use crate::trace::swarmlet::{EXECUTION_LOG, LOGS};

/// Output of the command that a worker consists of, appended to `logs/execution.log` while the
/// command runs, so that readers can follow it.
///
/// The command may write its own directory, too. It can replace the file by another one; the output
/// then continues in a file without a name.
#[derive(Debug)]
pub struct ExecutionLog {
    worker: Arc<WorkerFolder>,
    file: File,
}

impl ExecutionLog {
    /// Opens the log of a worker, and creates it if it is missing.
    pub(super) fn open(worker: &Arc<WorkerFolder>) -> Result<ExecutionLog> {
        let open = || -> Result<File, PathError> {
            let logs = worker.folder().enter_or_create(&Name::new(LOGS)?)?;
            logs.open_append(&Name::new(EXECUTION_LOG)?)
        };
        let file = open().during("write", worker.folder().path(), LOGS.as_bytes())?;
        Ok(ExecutionLog { worker: Arc::clone(worker), file })
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
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
