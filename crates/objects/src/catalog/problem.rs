//! Why a catalog is not used, or not brought up to date.

use std::{fmt, io};

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

/// Why a catalog was not brought up to date. Readers are not affected.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    #[error(
        "the store ignores the conditions of writes, so two machines could not share a catalog; \
         readers list it"
    )]
    Unconditional,
    #[error("there are no workers; try the prefix that has a folder workers")]
    Empty,
    #[error("it has version {0}; try a newer version of this program")]
    Version(u32),
    #[error("other processes changed it {0} times meanwhile; try again later")]
    Contended(u32),
    #[error("it took too long; try again, beginning with a shorter prefix")]
    TooLong,
    #[error("the workers could not be read: {0}")]
    Workers(String),
    #[error("a file could not be encoded: {0}")]
    Encode(io::Error),
    #[error("{0}; {cure}", cure = .0.cure())]
    Failed(#[from] RequestFailure),
}
