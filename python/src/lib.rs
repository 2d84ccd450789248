//! The module `swarmletfs._native`: what the Python package needs of the library.
//!
//! It translates arguments and errors, and holds no logic: the Python modules around it give it
//! types, names and documentation. The interpreter is released in every call that may read or
//! write a file.

mod failure;
mod recorder;
mod tree;

use pyo3::prelude::*;

/// Reads and records workers.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::budget_name;
    #[pymodule_export]
    use super::recorder::{Call, Recorder, init};
    #[pymodule_export]
    use super::tree::Tree;

    /// Version of the library.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}

/// Returns the name that a size has in a path of the tree, such as `4096` for `4k`.
#[pyfunction]
fn budget_name(size: &str) -> PyResult<String> {
    let parsed = failure::parse_budget(size);
    Ok(parsed?.name())
}
