//! Failures of the sandbox, with their known causes.

use std::fmt;
use std::io;

use rustix::io::Errno;

use super::NOT_RUN;

/// A failure before the command ran. Its text is a message for the user.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    text: String,
    exit_code: u8,
}

impl Failure {
    /// Returns a failure of the sandbox.
    pub(super) fn new(text: impl Into<String>) -> Failure {
        Failure { text: text.into(), exit_code: NOT_RUN }
    }

    /// Returns a failure of the command itself.
    pub(super) fn of_command(text: impl Into<String>, exit_code: u8) -> Failure {
        Failure { text: text.into(), exit_code }
    }

    /// Returns the exit code of the stage.
    pub(super) fn exit_code(&self) -> u8 {
        self.exit_code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

/// Turns the errors of calls into failures.
pub(super) trait Step<T> {
    /// Names the step that failed: `cannot STEP: …`.
    fn step(self, step: &str) -> Result<T, Failure>;

    /// Names the step that failed, its known cause and the remedy.
    fn step_with(
        self,
        step: &str,
        cause: impl FnOnce(Option<Errno>) -> Option<&'static str>,
    ) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: &str) -> Result<T, Failure> {
        self.step_with(step, |_| None)
    }

    fn step_with(
        self,
        step: &str,
        cause: impl FnOnce(Option<Errno>) -> Option<&'static str>,
    ) -> Result<T, Failure> {
        self.map_err(|error| {
            let error = error.into();
            let errno = error.raw_os_error().map(Errno::from_raw_os_error);
            Failure::new(match cause(errno) {
                Some(cause) => format!("cannot {step}: {error}: {cause}"),
                None => format!("cannot {step}: {error}"),
            })
        })
    }
}
