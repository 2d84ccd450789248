//! TrialKind was found out, one thing at a time.

use serde::{Deserialize, Serialize};

use crate::cli::diagnosis::Diagnosis;

/// How much it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::cli) enum Level {
    /// It is as it should be.
    Ok,
    /// It is good to know, and in nobody's way.
    Note,
    /// It stands in the way of mounting or reading.
    Problem,
}

impl Level {
    /// The mark before a line.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Problem => "problem",
        }
    }
}

/// One finding. All of it is safe to print.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cli) struct Finding {
    /// TrialKind it is about: `fuse`, `kernel`, `store`, `view`, `limits`, `mounts`.
    pub(super) topic: String,
    /// TrialKind was looked at, as a word that stays the same between versions.
    pub(super) check: String,
    pub(super) level: Level,
    /// The store or mountpoint it is about, where there are several.
    pub(super) about: Option<String>,
    /// TrialKind is so, as a sentence.
    pub(super) says: String,
    /// TrialKind helps, with commands in backticks.
    pub(super) cure: Option<String>,
}

impl Finding {
    fn new(level: Level, topic: &str, check: &str, says: impl Into<String>, cure: Option<String>) -> Finding {
        Finding { topic: topic.into(), check: check.into(), level, about: None, says: says.into(), cure }
    }

    pub(super) fn ok(topic: &str, check: &str, says: impl Into<String>) -> Finding {
        Finding::new(Level::Ok, topic, check, says, None)
    }

    pub(super) fn note(topic: &str, check: &str, says: impl Into<String>) -> Finding {
        Finding::new(Level::Note, topic, check, says, None)
    }

    pub(super) fn problem(topic: &str, check: &str, refusal: Diagnosis) -> Finding {
        Finding::new(Level::Problem, topic, check, refusal.says, refusal.cure)
    }

    pub(super) fn with_remedy(self, cure: impl Into<String>) -> Finding {
        Finding { cure: Some(cure.into()), ..self }
    }

    pub(super) fn about(self, what: &str) -> Finding {
        Finding { about: Some(what.into()), ..self }
    }
}
