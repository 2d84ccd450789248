//! What a worker changes in its view of a workspace, and how the changes come into the workspace.
//!
//! ```text
//! draft      the files that a worker writes in its view, and what they change
//! approval   applies changes to the workspace, and takes them back
//! ```

pub mod approval;
pub mod draft;
#[cfg(test)]
#[path = "../../../tests/support/scale.rs"]
#[allow(dead_code, unreachable_pub)]
mod scale;
