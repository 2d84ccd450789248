//! Parses the status of a worker, which is a word, an exit code, or both.

use swarmletfs_base::model::Status;

/// The status words of the format.
pub(super) const WORDS: [(&str, Status); 6] = [
    ("created", Status::Created),
    ("running", Status::Running),
    ("waiting", Status::Waiting),
    ("completed", Status::Completed),
    ("success", Status::Completed),
    ("failed", Status::Failed),
];
/// Other words for them that are unambiguous.
const SYNONYMS: [(&str, Status); 29] = [
    ("blocked", Status::Waiting),
    ("input_required", Status::Waiting),
    ("needs_input", Status::Waiting),
    ("waiting_for_input", Status::Waiting),
    ("waiting_for_user", Status::Waiting),
    ("pending", Status::Created),
    ("queued", Status::Created),
    ("in_progress", Status::Running),
    ("started", Status::Running),
    ("complete", Status::Completed),
    ("succeeded", Status::Completed),
    ("successful", Status::Completed),
    ("ok", Status::Completed),
    ("passed", Status::Completed),
    ("done", Status::Completed),
    ("finished", Status::Completed),
    ("ended", Status::Completed),
    ("exited", Status::Completed),
    ("error", Status::Failed),
    ("errored", Status::Failed),
    ("fail", Status::Failed),
    ("failure", Status::Failed),
    ("crashed", Status::Failed),
    ("timeout", Status::Failed),
    ("timed_out", Status::Failed),
    ("cancelled", Status::Abandoned),
    ("canceled", Status::Abandoned),
    ("aborted", Status::Abandoned),
    ("abandoned", Status::Abandoned),
];
/// Synonyms that state an end without success or failure, so that an exit code decides.
const ENDED: [&str; 4] = ["done", "finished", "ended", "exited"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StatusWord {
    pub(super) status: Status,
    /// False for a synonym of a documented word.
    pub(super) is_documented: bool,
    states_only_an_end: bool,
}

impl StatusWord {
    /// Parses a status word. Returns `None` if it is not recognized.
    pub(super) fn parse(word: &str) -> Option<StatusWord> {
        let word = word.trim().to_ascii_lowercase().replace([' ', '-'], "_");
        let find = |words: &[(&str, Status)]| {
            words.iter().find(|(known, _)| *known == word).map(|(_, status)| *status)
        };
        let documented = find(&WORDS);
        Some(StatusWord {
            status: documented.or_else(|| find(&SYNONYMS))?,
            is_documented: documented.is_some(),
            states_only_an_end: ENDED.contains(&word.as_str()),
        })
    }
}

/// Returns the status that a word states, or `Unknown` for other words.
pub(super) fn parse(word: &str) -> Status {
    StatusWord::parse(word).map_or(Status::Unknown, |word| word.status)
}

/// Returns the status of a worker by its word, and by the exit code of its process if the word
/// states only an end.
pub(super) fn with_exit_code(word: &str, exit_code: Option<i64>) -> Status {
    match (StatusWord::parse(word), exit_code) {
        (Some(StatusWord { states_only_an_end: true, .. }), Some(code)) => from_exit_code(code),
        (Some(word), _) => word.status,
        (None, _) => Status::Unknown,
    }
}

pub(super) fn from_exit_code(code: i64) -> Status {
    if code == 0 { Status::Completed } else { Status::Failed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_words_and_their_synonyms_are_recognized() {
        for (word, status) in WORDS.iter().chain(&SYNONYMS) {
            assert_eq!(parse(word), *status, "{word}");
            assert_eq!(parse(&word.to_uppercase().replace('_', "-")), *status, "{word}");
        }
        for word in ["succeeded?", "", "not done", "unknown", "partial"] {
            assert_eq!(parse(word), Status::Unknown, "{word}");
        }
    }

    #[test]
    fn an_exit_code_decides_only_after_words_that_state_no_more_than_an_end() {
        assert_eq!(with_exit_code("done", Some(1)), Status::Failed);
        assert_eq!(with_exit_code("finished", Some(0)), Status::Completed);
        assert_eq!(with_exit_code("done", None), Status::Completed);
        assert_eq!(with_exit_code("completed", Some(1)), Status::Completed);
        assert_eq!(with_exit_code("failed", Some(0)), Status::Failed);
        assert_eq!(with_exit_code("odd", Some(0)), Status::Unknown);
    }
}
