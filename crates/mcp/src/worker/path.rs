//! Paths in the arguments of tools: relative to the workspace, or absolute ones within it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use super::session::WorkerSession;
use crate::slice::echo;
use crate::tools::ToolError;
use swarmletfs_base::error::Error;
use swarmletfs_base::name::RelPath;

impl WorkerSession {
    /// Parses a path. `..` is resolved by the names alone.
    ///
    /// # Errors
    ///
    /// The path leads out of the workspace.
    pub(super) fn parse_path(&self, typed: &str) -> Result<RelPath, ToolError> {
        let path = Path::new(typed);
        let inner = match path.is_absolute() {
            true => path.strip_prefix(self.workspace()).ok(),
            false => Some(path),
        };
        let outside = || {
            let text = format!(
                "cannot use {}: it is outside of the workspace; try a path from its root",
                echo(typed)
            );
            ToolError::new(text)
        };
        let mut names: Vec<&OsStr> = Vec::new();
        for part in inner.ok_or_else(outside)?.components() {
            match part {
                Component::Normal(name) => names.push(name),
                Component::ParentDir => drop(names.pop().ok_or_else(outside)?),
                Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            }
        }
        let names: Vec<&[u8]> = names.into_iter().map(OsStrExt::as_bytes).collect();
        RelPath::parse(names.join(&b'/')).map_err(|error| {
            ToolError::new(format!("cannot use {}: {error}; try another path", echo(typed)))
        })
    }
}

/// Returns a function that converts errors of `action` on a path. `action` is a verb for messages,
/// such as `read`.
pub(super) fn failed(action: &'static str, path: &RelPath) -> impl Fn(Error) -> ToolError {
    let path = if path.is_root() { "the workspace".to_owned() } else { path.display() };
    move |error| {
        let (reason, cure) = match &error {
            Error::NotFound => ("there is no such file".to_owned(), "; try ls or glob"),
            Error::Escape => {
                ("a link on the way leads out of the workspace".to_owned(), "; try another path")
            }
            Error::IsADirectory => ("it is a folder".to_owned(), "; try a file in it"),
            Error::NotADirectory => {
                ("it is a file, not a folder".to_owned(), "; try the folder that it is in")
            }
            error => (error.to_string(), "; try another path, or execute to see more"),
        };
        ToolError::new(format!("cannot {action} {path}: {reason}{cure}"))
    }
}
