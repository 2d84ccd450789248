//! Findings of the inspections.

use serde::{Deserialize, Serialize};

use crate::cli::diagnosis::Diagnosis;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Ok,
    /// Worth knowing, but not in the way.
    Note,
    /// Prevents mounting or reading.
    Problem,
}

impl Level {
    /// Returns the marker at the start of a line.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Problem => "problem",
        }
    }
}

/// One finding. All its texts are safe to print.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// Topic: `fuse`, `kernel`, `store`, `recording`, `run`, `places`, `view`,
    /// `limits`, `mounts`.
    pub(super) topic: String,
    /// Name of the check, stable between versions.
    pub(super) check: String,
    pub(super) level: Level,
    /// The store or mountpoint concerned, if there can be several.
    pub(super) about: Option<String>,
    #[serde(rename = "says")]
    pub(super) message: String,
    /// The remedy, with commands in backticks.
    #[serde(rename = "cure")]
    pub(super) remedy: Option<String>,
}

impl Finding {
    fn new(
        level: Level,
        topic: &str,
        check: &str,
        message: impl Into<String>,
        remedy: Option<String>,
    ) -> Finding {
        Finding {
            topic: topic.into(),
            check: check.into(),
            level,
            about: None,
            message: message.into(),
            remedy,
        }
    }

    pub(super) fn ok(topic: &str, check: &str, message: impl Into<String>) -> Finding {
        Finding::new(Level::Ok, topic, check, message, None)
    }

    pub(super) fn note(topic: &str, check: &str, message: impl Into<String>) -> Finding {
        Finding::new(Level::Note, topic, check, message, None)
    }

    pub(super) fn problem(topic: &str, check: &str, diagnosis: Diagnosis) -> Finding {
        Finding::new(Level::Problem, topic, check, diagnosis.message, diagnosis.remedy)
    }

    pub(super) fn with_remedy(self, remedy: impl Into<String>) -> Finding {
        Finding { remedy: Some(remedy.into()), ..self }
    }

    pub(super) fn about(self, what: &str) -> Finding {
        Finding { about: Some(what.into()), ..self }
    }
}
