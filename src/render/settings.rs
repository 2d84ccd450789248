//! What can be set of generated files.

use std::time::Duration;

use super::{Budget, Scope};

/// How long one render may look into outputs before the file says what was not read, unless something else is set.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// What can be set of generated files.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The size of evidence.txt where no size is asked for; without it 16,000 bytes for a worker and 28,000 for more.
    pub budget: Option<Budget>,
    /// How long one render may look into outputs before the file says what was not read.
    pub deadline: Duration,
}

impl Settings {
    /// How large a file about `scope` may be, for which one may have `asked`.
    pub(super) fn budget_of(&self, scope: &Scope, asked: Option<Budget>) -> Budget {
        self.budget_or(if matches!(scope, Scope::Worker(_)) { Budget::WORKER } else { Budget::SWARM }, asked)
    }

    /// How large a file may be that has `default` where nothing is set and nothing `asked`.
    pub(super) fn budget_or(&self, default: Budget, asked: Option<Budget>) -> Budget {
        asked.or(self.budget).unwrap_or(default)
    }

    /// How long one worker of many may take, or what changes again and again.
    pub(super) fn patience(&self) -> Duration {
        self.deadline / 4
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { budget: None, deadline: DEADLINE }
    }
}
