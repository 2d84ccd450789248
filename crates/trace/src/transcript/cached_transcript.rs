//! The index of a transcript, with the version of the transcript that it describes.

use std::sync::Arc;

use super::index::TranscriptIndex;
use swarmletfs_base::store::Meta;

pub(super) struct CachedTranscript {
    pub(super) version: TranscriptVersion,
    /// Hash of both ends of the indexed part.
    pub(super) ends_hash: [u8; 32],
    pub(super) index: Arc<TranscriptIndex>,
    pub(super) is_complete: bool,
    /// Number of transcript bytes that the index stored on disk covers.
    pub(super) bytes_on_disk: u64,
}

impl CachedTranscript {
    /// Returns true if the indexed part may still be the beginning of the file at version `now`.
    pub(super) fn may_be_prefix_of(&self, now: TranscriptVersion) -> bool {
        let is_unchanged = now == self.version && self.is_complete;
        let (before, now) = (self.version.0, now.0);
        let has_grown = now.size > before.size || self.version == TranscriptVersion(now);
        is_unchanged || now.identity == before.identity && has_grown && !self.index.restarts
    }
}

/// The metadata that identifies a version of a transcript.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct TranscriptVersion(Meta);

impl TranscriptVersion {
    /// Creates the version of a file with this metadata. It is equal for an unchanged file.
    pub(super) fn new(meta: Meta) -> TranscriptVersion {
        // Permissions, owners and link counts do not affect the contents.
        TranscriptVersion(Meta { mode: 0, uid: 0, gid: 0, nlink: 0, ..meta })
    }

    pub(super) fn meta(self) -> Meta {
        self.0
    }
}
