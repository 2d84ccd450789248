//! Finds the log of reads of a mount.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};

use crate::digest::{digest, to_hex};

/// Returns the directory of the log of reads of these stores, in the state directory of this user.
///
/// # Errors
///
/// A store cannot be found, or this user has no home directory.
pub(super) fn folder(stores: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let state = state_folder(&|name| std::env::var_os(name).map(PathBuf::from))?;
    let mut hash = blake3::Hasher::new();
    for store in stores {
        let path = std::fs::canonicalize(store)
            .with_context(|| format!("cannot find {}", super::terminal::display_path(store)))?;
        hash.update(path.as_os_str().as_bytes()).update(b"\0");
    }
    let key: [u8; 8] = digest(&hash);
    Ok(state.join("reads").join(to_hex(&key)))
}

/// Returns the state directory of this program. `variable` returns the value of an environment
/// variable.
fn state_folder(variable: &dyn Fn(&str) -> Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let absolute = |path: Option<PathBuf>| path.filter(|path| path.is_absolute());
    let state = absolute(variable("XDG_STATE_HOME"));
    let home = || absolute(variable("HOME")).map(|home| home.join(".local/state"));
    let state = state.or_else(home).ok_or_else(|| {
        anyhow!("cannot place the log of reads: neither $XDG_STATE_HOME nor $HOME is set; set one")
    })?;
    Ok(state.join(Path::new("swarmletfs")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_where_the_user_keeps_it() {
        let found = |state: Option<&str>, home: Option<&str>| {
            let value = |name: &str| if name == "HOME" { home } else { state }.map(PathBuf::from);
            state_folder(&value).ok().map(|path| path.display().to_string())
        };
        assert_eq!(found(Some("/s"), Some("/h")).unwrap(), "/s/swarmletfs");
        assert_eq!(found(Some("s"), Some("/h")).unwrap(), "/h/.local/state/swarmletfs");
        assert_eq!(found(None, None), None);
    }
}
