//! The state of a call, as it is shown.

/// The outcome of a call for a reader, who also wants to know whether it runs or looks failed.
/// Pages hold the number of a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallState {
    Ok,
    Failed,
    Suspect,
    Unknown,
    NotRun,
    Running,
}

impl CallState {
    pub fn as_str(self) -> &'static str {
        match self {
            CallState::Ok => "ok",
            CallState::Failed => "failed",
            CallState::Suspect => "suspect",
            CallState::Unknown => "unknown",
            CallState::NotRun => "not_run",
            CallState::Running => "running",
        }
    }
}
