//! The file that a command writes: whole or not at all.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::name::printable;

/// Mode of a new file. It has texts of files that may be readable by their owner only.
const MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// The place of a file, or stdout.
pub(super) enum OutputFile {
    Stdout,
    File {
        path: PathBuf,
        /// As it was given, safe to print.
        shown: String,
        /// Mode of the file that is replaced.
        mode: Option<u32>,
    },
}

impl OutputFile {
    /// Finds the place for `path`, through links; `-` is stdout.
    ///
    /// # Errors
    ///
    /// Something else than a file is there, or the folder does not exist.
    pub(super) fn find(path: &Path) -> anyhow::Result<OutputFile> {
        if path == Path::new("-") {
            return Ok(OutputFile::Stdout);
        }
        let shown = printable(path.as_os_str().as_bytes());
        match fs::metadata(path) {
            Ok(found) if found.is_file() => Ok(OutputFile::File {
                path: fs::canonicalize(path).with_context(|| format!("cannot write {shown}"))?,
                shown,
                mode: Some(found.permissions().mode()),
            }),
            Ok(_) => {
                bail!("cannot write {shown}: it is not a file; try -o FILE, or -o - for stdout")
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = folder(path);
                if !folder.is_dir() {
                    let folder = printable(folder.as_os_str().as_bytes());
                    bail!("cannot write {shown}: there is no folder {folder}; try mkdir first");
                }
                Ok(OutputFile::File { path: path.to_owned(), shown, mode: None })
            }
            Err(error) => Err(error).with_context(|| format!("cannot write {shown}")),
        }
    }

    /// Writes the file.
    ///
    /// # Errors
    ///
    /// It cannot be written. A file that was there is then as before.
    pub(super) fn write(&self, content: &[u8]) -> io::Result<()> {
        self.write_by(&mut |file| file.write_all(content))
    }

    /// Writes the file by calling `write`.
    ///
    /// # Errors
    ///
    /// It cannot be written, or `write` fails. A file that was there is then as before.
    pub(super) fn write_by(
        &self,
        write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let OutputFile::File { path, mode, .. } = self else {
            return write(&mut io::stdout().lock());
        };
        let mut file = tempfile::Builder::new()
            .prefix(".swarmletfs-")
            .permissions(Permissions::from_mode(MODE))
            .tempfile_in(folder(path))?;
        write(&mut file)?;
        if let Some(mode) = mode {
            file.as_file().set_permissions(Permissions::from_mode(*mode))?;
        }
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    }
}

/// A folder that a command fills: a new one, or one that is empty.
pub(super) struct OutputFolder {
    path: PathBuf,
    /// As it was given, safe to print.
    shown: String,
}

impl OutputFolder {
    /// Finds or makes the folder at `path`.
    ///
    /// # Errors
    ///
    /// Something else is there, the folder is not empty, or it cannot be made.
    pub(super) fn find(path: &Path) -> anyhow::Result<OutputFolder> {
        let shown = printable(path.as_os_str().as_bytes());
        match fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
            Ok(true) => {}
            Ok(false) => bail!("cannot write {shown}: it is not empty; try a new folder"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new()
                    .mode(FOLDER_MODE)
                    .create(path)
                    .with_context(|| format!("cannot make the folder {shown}"))?;
            }
            Err(error) => return Err(error).with_context(|| format!("cannot write {shown}")),
        }
        Ok(OutputFolder { path: path.to_owned(), shown })
    }

    /// Writes a file, in folders that are made if they are missing.
    ///
    /// # Errors
    ///
    /// It cannot be written, or is there already.
    pub(super) fn write(&self, names: &[&OsStr], content: &[u8]) -> io::Result<()> {
        self.create(names)?.write_all(content)
    }

    /// Creates a file, in folders that are made if they are missing.
    ///
    /// # Errors
    ///
    /// It cannot be created, or is there already.
    pub(super) fn create(&self, names: &[&OsStr]) -> io::Result<File> {
        let path = names.iter().fold(self.path.clone(), |path, name| path.join(name));
        DirBuilder::new().mode(FOLDER_MODE).recursive(true).create(folder(&path))?;
        OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)
    }
}

impl fmt::Display for OutputFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OutputFile::Stdout => "stdout",
            OutputFile::File { shown, .. } => shown,
        })
    }
}

impl fmt::Display for OutputFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
