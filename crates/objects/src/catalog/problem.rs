//! Why a catalog is not used.

use std::fmt;

use crate::failure::RequestFailure;

/// Why a catalog is not used. Only a request that failed may help when it is repeated.
#[derive(Debug)]
pub(crate) enum CatalogProblem {
    /// Its files are no files of a catalog.
    Damaged(String),
    /// Another version of this program wrote it.
    Version(u32),
    Request(RequestFailure),
}

impl fmt::Display for CatalogProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CatalogProblem::Damaged(reason) => write!(f, "it is damaged: {reason}"),
            CatalogProblem::Version(version) => {
                write!(f, "it has version {version}, which this program does not know")
            }
            CatalogProblem::Request(failure) => failure.fmt(f),
        }
    }
}

impl From<RequestFailure> for CatalogProblem {
    fn from(failure: RequestFailure) -> CatalogProblem {
        CatalogProblem::Request(failure)
    }
}
