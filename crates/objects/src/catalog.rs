//! The catalog of a store: a row for each worker in files of Parquet, so that nobody needs to
//! list and read all objects.
//!
//! ```text
//! layout           keys, and announcements of workers that changed
//! problem          why a catalog is not used
//! manifest         the files that make up the catalog
//! rows             a worker as a row
//! reading          the catalog as readers see it
//! conditions       finds out whether the store honors conditions of writes
//! turn             which process brings the catalog up to date, where many could
//! compaction       writes rows for workers that changed, and replaces the manifest
//! ```
//!
//! The objects are the truth. The catalog repeats what a listing says about them, so it can be
//! removed at any time: readers then list, and the next compaction makes a new one.

mod compaction;
mod conditions;
mod layout;
mod manifest;
mod problem;
mod reading;
mod rows;
mod turn;

pub use compaction::{
    CatalogError, CatalogReport, Compaction, DescribeWorkers, WholeSearch, announce,
};
pub use conditions::{ConditionSupport, find_conditions};
pub use layout::{MANIFEST as CATALOG_MANIFEST, WorkerNews};
pub use reading::CatalogFacts;
pub use turn::{CompactionTurn, have_many_announced};

pub(crate) use layout::{
    Announcement, CATALOG, ObjectsByWorker, ROOT, is_announced_open, looks_max, news_by_worker,
    split_by_worker, split_worker,
};
pub(crate) use problem::CatalogProblem;
pub(crate) use reading::{CatalogReader, CatalogState};
pub(crate) use rows::CatalogedWorker;
