//! The workspace, and the paths of the options.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::cli::exit::UsageError;
use crate::cli::terminal::display_path;
use crate::name::RelPath;
use crate::sandbox;

#[derive(Debug)]
pub(super) struct StartPlace {
    /// Absolute and resolved.
    pub(super) workspace: PathBuf,
    /// The workspace, or a folder beneath it.
    pub(super) directory: PathBuf,
}

impl StartPlace {
    /// Finds the workspace at `path`. The command starts in the current folder if that is beneath.
    ///
    /// # Errors
    ///
    /// The path is no folder, or the root of the machine.
    pub(super) fn find(path: &Path) -> anyhow::Result<StartPlace> {
        let workspace = resolve(path, "the workspace")?;
        if !workspace.is_dir() {
            let shown = display_path(path);
            bail!("cannot use {shown} as the workspace: it is not a folder; try its folder");
        }
        if workspace.parent().is_none() {
            bail!("cannot use / as the workspace: it is the whole machine; try a folder beneath");
        }
        let current = std::env::current_dir().ok().filter(|dir| dir.starts_with(&workspace));
        Ok(StartPlace { directory: current.unwrap_or_else(|| workspace.clone()), workspace })
    }

    pub(super) fn holds(&self, path: &Path) -> bool {
        path.starts_with(&self.workspace)
    }

    /// Returns the top of the git repository that the workspace is only a part of. Git does not
    /// look above the folders in `$GIT_CEILING_DIRECTORIES`.
    pub(super) fn enclosing_repository(&self) -> Option<&Path> {
        let ceilings = std::env::var_os("GIT_CEILING_DIRECTORIES").unwrap_or_default();
        let ceilings: Vec<PathBuf> = std::env::split_paths(&ceilings).collect();
        let is_below = |folder: &&Path| !ceilings.iter().any(|ceiling| ceiling == folder);
        let is_top = |folder: &&Path| folder.join(".git").exists();
        let top = self.workspace.ancestors().take_while(is_below).find(is_top)?;
        (top != self.workspace).then_some(top)
    }

    pub(super) fn directory_in_workspace(&self) -> &Path {
        self.directory.strip_prefix(&self.workspace).unwrap_or(Path::new(""))
    }

    /// Returns the path of the entry `hidden` from the workspace. A link is hidden itself.
    ///
    /// # Errors
    ///
    /// There is no such entry, or it is not in the workspace.
    pub(super) fn hidden(&self, hidden: &Path) -> anyhow::Result<OsString> {
        let shown = display_path(hidden);
        let absent = || format!("cannot hide {shown}: check the path");
        let absolute = std::path::absolute(hidden).with_context(absent)?;
        fs::symlink_metadata(&absolute).with_context(absent)?;
        let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
            return Err(UsageError(format!("cannot hide {shown}: it has no name")).into());
        };
        let path = fs::canonicalize(parent).with_context(absent)?.join(name);
        let reason = match path.strip_prefix(&self.workspace) {
            Ok(inner) if inner.as_os_str().is_empty() => "it is the workspace".to_owned(),
            Ok(_) if self.directory.starts_with(&path) => "the command starts in it".to_owned(),
            Ok(inner) => match RelPath::parse(inner.as_os_str().as_bytes()) {
                Ok(_) => return Ok(inner.as_os_str().to_owned()),
                Err(error) => error.to_string(),
            },
            Err(_) => format!("it is not in the workspace {}", display_path(&self.workspace)),
        };
        Err(UsageError(format!("cannot hide {shown}: {reason}")).into())
    }

    /// Returns the resolved path of `--write`.
    ///
    /// # Errors
    ///
    /// There is no such entry, or a command must not write it directly.
    pub(super) fn writable(&self, path: &Path, store: &Path) -> anyhow::Result<PathBuf> {
        let resolved = resolve(path, "a path to write")?;
        let reason = sandbox::writable_refusal(&resolved, store).or_else(|| {
            let is_inside = self.holds(&resolved);
            is_inside
                .then_some("it is in the workspace; changes there are recorded without --write")
        });
        match reason {
            None => Ok(resolved),
            Some(reason) => {
                let shown = display_path(path);
                Err(UsageError(format!("cannot use --write {shown}: {reason}")).into())
            }
        }
    }
}

/// Returns the resolved path of a socket. `role` is its meaning, for a message.
///
/// # Errors
///
/// There is no such entry, or it is no socket.
pub(super) fn resolve_socket(path: &Path, role: &str) -> anyhow::Result<PathBuf> {
    let resolved = resolve(path, role)?;
    if fs::metadata(&resolved).is_ok_and(|meta| !meta.file_type().is_socket()) {
        let shown = display_path(path);
        return Err(UsageError(format!("cannot use {shown} as {role}: it is no socket")).into());
    }
    Ok(resolved)
}

/// Returns the absolute path of an existing entry, without links. `role` is its meaning, for a
/// message.
///
/// # Errors
///
/// There is no such entry.
pub(super) fn resolve(path: &Path, role: &str) -> anyhow::Result<PathBuf> {
    let shown = display_path(path);
    fs::canonicalize(path).with_context(|| format!("cannot use {shown} as {role}: check the path"))
}
