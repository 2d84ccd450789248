//! Distinguishes transcripts from other files by their contents.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::super::Candidates;
use super::super::probe::{Probe, ProbeBudget};
use super::cached_transcript::TranscriptVersion;
use super::format::TranscriptFormat;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Store;

/// Results of recognizing files. Each version of a file is read once.
#[derive(Default)]
pub(super) struct RecognizedFiles(Mutex<HashMap<RelPath, RecognizedFile>>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum RecognizedFile {
    /// The file is a transcript, and stays one.
    Transcript,
    /// This version of the file is something else.
    Other(TranscriptVersion),
}

impl RecognizedFiles {
    pub(super) fn filter(
        &self,
        store: &dyn Store,
        format: &dyn TranscriptFormat,
        mut found: Candidates,
    ) -> Candidates {
        let budget = ProbeBudget::default();
        let known = std::mem::take(&mut *self.0.lock());
        let mut now = HashMap::new();
        found.folders.retain(|path| {
            if !format.must_be_recognized(path) {
                return true;
            }
            let before = known.get(path).copied();
            let version = match before {
                Some(RecognizedFile::Transcript) => None,
                _ => store.stat(path).ok().map(TranscriptVersion::new),
            };
            let recognition = match (before, version) {
                (Some(RecognizedFile::Transcript), _) => RecognizedFile::Transcript,
                (Some(RecognizedFile::Other(old)), Some(new)) if old == new => {
                    RecognizedFile::Other(new)
                }
                (_, Some(new)) => match format.recognizes(&Probe::new(store, path, &budget)) {
                    true => RecognizedFile::Transcript,
                    false => RecognizedFile::Other(new),
                },
                (_, None) => return false,
            };
            // A file that exceeds the budget is read the next time.
            if !budget.is_spent() || recognition == RecognizedFile::Transcript {
                now.insert(path.clone(), recognition);
            }
            recognition == RecognizedFile::Transcript
        });
        *self.0.lock() = now;
        found
    }
}
