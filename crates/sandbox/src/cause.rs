//! Failures of the sandbox, with their known causes.

use std::fmt;
use std::io;

use rustix::io::Errno;

use super::NOT_RUN;

/// A failure before the command ran. Its text is a message for the user.
#[derive(Debug, Clone)]
pub struct StageFailure {
    text: String,
    exit_code: u8,
}

impl StageFailure {
    pub(super) fn new(text: impl Into<String>) -> StageFailure {
        StageFailure { text: text.into(), exit_code: NOT_RUN }
    }

    pub(super) fn of_command(text: impl Into<String>, exit_code: u8) -> StageFailure {
        StageFailure { text: text.into(), exit_code }
    }

    pub(super) fn exit_code(&self) -> u8 {
        self.exit_code
    }
}

impl fmt::Display for StageFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for StageFailure {}

pub(super) trait FailedStep<T> {
    /// Names the step that failed: `cannot STEP: …`.
    fn step(self, step: &str) -> Result<T, StageFailure>;

    /// Names the step that failed, its known cause and the remedy.
    fn step_with(
        self,
        step: &str,
        cause: impl FnOnce(Option<Errno>) -> Option<&'static str>,
    ) -> Result<T, StageFailure>;
}

impl<T, E: Into<io::Error>> FailedStep<T> for Result<T, E> {
    fn step(self, step: &str) -> Result<T, StageFailure> {
        self.step_with(step, |_| None)
    }

    fn step_with(
        self,
        step: &str,
        cause: impl FnOnce(Option<Errno>) -> Option<&'static str>,
    ) -> Result<T, StageFailure> {
        self.map_err(|error| {
            let error = error.into();
            let errno = error.raw_os_error().map(Errno::from_raw_os_error);
            StageFailure::new(match cause(errno) {
                Some(cause) => format!("cannot {step}: {error}: {cause}"),
                None => format!("cannot {step}: {error}"),
            })
        })
    }
}
