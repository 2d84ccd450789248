//! The grammar of names: parses the name of a generated file into a request, and shows a worker's
//! own file whose name collides with one.

pub mod compare;
mod content_kind;
pub mod cursor;
mod document;
mod focus;
pub mod grep;
pub mod name_collision;
pub mod parsed_name;
pub mod query_dir;
pub mod search;
pub mod shown_path;

pub use content_kind::ContentKind;
pub use document::{CHANGES, Document, Group, Report, Scope};
