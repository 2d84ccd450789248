//! Why a catalog is not used.

use thiserror::Error;

use crate::failure::RequestFailure;

/// Why a catalog is not used. Only a request that failed may help when it is repeated.
#[derive(Debug, Error)]
pub(crate) enum CatalogProblem {
    /// Its files are no files of a catalog.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// Another version of this program wrote it.
    #[error("it has version {0}, which this program does not know")]
    Version(u32),
    #[error(transparent)]
    Request(#[from] RequestFailure),
}
