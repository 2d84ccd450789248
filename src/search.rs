//! What is found in the files of workers. It knows of views and files, not of what is shown to anybody.

pub mod glob;
pub mod ranked;
pub mod regex;
pub(crate) mod spread;
