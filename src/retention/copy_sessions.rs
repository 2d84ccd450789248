//! Copies of the sessions of other programs, which stay when these programs remove the sessions.
//!
//! A copy has the paths of its source, so it can be mounted as the source could. Only files that
//! are new or have grown are copied. Nothing in a copy is ever removed or shortened: a file that is
//! shorter than its copy is not copied, and if a file was rewritten, its former copy gets another
//! name.

use std::io::Read;
use std::path::Path;

use rustix::io::Errno;

use crate::error::{Error as PathError, Result as PathResult};
use crate::name::{Name, RelPath, printable_path};
use crate::store::{EntryStat, Kind, is_temporary};
use crate::trace::known::SessionFiles;
use swarmletfs_record::write::{Dir, Durability, During, Error, Result, set_file_attributes};

const DEPTH_MAX: usize = 64;
/// Permissions that are copied.
const MODE: u32 = 0o777;
const NAMED_MAX: usize = 20;
const CHUNK: usize = 64 << 10;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CopiedSessions {
    pub(crate) new: u64,
    pub(crate) grown: u64,
    pub(crate) unchanged: u64,
    /// Size of the files that were copied, in bytes.
    pub(crate) bytes: u64,
    /// Entries that were rewritten or replaced. Their former copies have other names.
    pub(crate) rewritten: PathList,
    /// Files that are shorter than their copies, which stay.
    pub(crate) shrunk: PathList,
    /// Links, special files and files that are being written, which are not copied.
    pub(crate) skipped: PathList,
    /// Files and directories that could not be copied: they cannot be read, or their former copy
    /// would get too long a name.
    pub(crate) unreadable: PathList,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PathList {
    pub(crate) count: u64,
    pub(crate) paths: Vec<RelPath>,
}

impl PathList {
    fn add(&mut self, path: &RelPath) {
        self.count += 1;
        if self.paths.len() < NAMED_MAX {
            self.paths.push(path.clone());
        }
    }
}

/// Copies the sessions in the directory `source` to `dest`, which is made if it is missing.
///
/// # Errors
///
/// One of them is in the other, another process writes `dest`, or `dest` cannot be written. Files
/// that were copied until then are whole.
pub(crate) fn copy_sessions(
    source: &Path,
    dest: &Path,
    files: SessionFiles,
) -> Result<CopiedSessions> {
    let from = Dir::open(source, Durability::None).during("open", source, b"")?;
    let to = Dir::create(dest, Durability::Full).during("make the folder", dest, b"")?;
    let lock = to.try_lock().during("lock", dest, b"")?;
    let Some(_lock) = lock else {
        return Err(Error::Approval {
            action: format!("archive to {}", printable_path(dest)),
            reason: "another process writes it".to_owned(),
            cure: "try again when it has ended".to_owned(),
        });
    };
    let mut copying = SessionCopy { files, copied: CopiedSessions::default() };
    let folders = copying.folders(&from).during("list", source, b"")?;
    for path in folders {
        let mut copy = || {
            let mut target = to.enter(&RelPath::root())?;
            for name in path.names() {
                target = target.enter_or_create_private(&name)?;
            }
            match from.enter(&path) {
                Ok(folder) => copying.folder(&path, &folder, &target, DEPTH_MAX),
                Err(error) => copying.failed(&path, error),
            }
        };
        copy().during("copy to", dest, path.as_bytes())?;
    }
    Ok(copying.copied)
}

struct SessionCopy {
    files: SessionFiles,
    copied: CopiedSessions,
}

impl SessionCopy {
    fn folders(&self, from: &Dir) -> PathResult<Vec<RelPath>> {
        let mut found = Vec::new();
        if let SessionFiles::Folders(names) = self.files {
            for name in names {
                let path = RelPath::parse(name)?;
                if from.kind(&path)? == Some(Kind::Folder) {
                    found.push(path);
                }
            }
        }
        Ok(if found.is_empty() { vec![RelPath::root()] } else { found })
    }

    /// Copies the directory `from`, which has the path `path`, to `to`.
    ///
    /// # Errors
    ///
    /// `to` cannot be written.
    fn folder(&mut self, path: &RelPath, from: &Dir, to: &Dir, depth: usize) -> PathResult<()> {
        let Some(depth) = depth.checked_sub(1) else {
            return self.failed(path, PathError::Io(Errno::LOOP));
        };
        // Only this process writes here, so these are leftovers of a crash.
        for name in to.list()?.iter().filter(|name| is_temporary(name)) {
            to.remove_entry(name)?;
        }
        let names = match from.list() {
            Ok(names) => names,
            Err(error) => return self.failed(path, error),
        };
        for name in names {
            let path = path.join(&name);
            // The next call would take its copy for a leftover of a crash.
            if is_temporary(&name) {
                self.copied.skipped.add(&path);
                continue;
            }
            let stat = match from.entry_stat(&name) {
                Ok(stat) => stat,
                Err(error) => {
                    self.failed(&path, error)?;
                    continue;
                }
            };
            match stat.kind {
                Kind::Folder => match from.enter(&name.clone().into()) {
                    Ok(folder) => {
                        if to.kind(&name.clone().into())? == Some(Kind::File)
                            && !self.set_aside(&path, to, &name)?
                        {
                            continue;
                        }
                        let target = to.enter_or_create_private(&name)?;
                        self.folder(&path, &folder, &target, depth)?;
                    }
                    Err(error) => self.failed(&path, error)?,
                },
                Kind::File if self.is_wanted(&path) => {
                    self.file(&path, (from, &name, &stat), to)?;
                }
                Kind::File => {}
                Kind::Link | Kind::Special => self.copied.skipped.add(&path),
            }
        }
        Ok(())
    }

    fn is_wanted(&self, path: &RelPath) -> bool {
        match self.files {
            SessionFiles::Folders(_) | SessionFiles::Store => true,
            SessionFiles::At(is_session) => is_session(path),
            SessionFiles::Database => false,
        }
    }

    /// Copies the file `name` of `from` to `to`, if its copy there is older.
    fn file(
        &mut self,
        path: &RelPath,
        (from, name, stat): (&Dir, &Name, &EntryStat),
        to: &Dir,
    ) -> PathResult<()> {
        let mut source = match from.open_workspace_file(&name.clone().into()) {
            Ok(source) => source,
            Err(error) => return self.failed(path, error),
        };
        let entry = RelPath::from(name.clone());
        let old = to.entry(&entry)?;
        let mut is_replaced = old.as_ref().is_some_and(|old| old.kind == Kind::Folder);
        let old = old.filter(|_| !is_replaced);
        if old.as_ref().is_some_and(|old| old.kind != Kind::File) {
            return Err(PathError::Special);
        }
        // The beginning of the new copy.
        let mut kept = None;
        let counter: fn(&mut CopiedSessions) -> &mut u64 = match &old {
            None => |copied| &mut copied.new,
            Some(old) => {
                let is_same_time = old.mtime == (stat.mtime.secs, stat.mtime.nanos);
                if old.size == stat.size && is_same_time {
                    self.copied.unchanged += 1;
                    return Ok(());
                }
                let mut copy = to.open_workspace_file(&entry)?;
                if stat.size < old.size {
                    match begins_with(&mut copy, source) {
                        Ok(true) => {
                            self.copied.shrunk.add(path);
                            return Ok(());
                        }
                        Ok(false) => {}
                        Err(error) => return self.failed(path, error),
                    }
                    copy = to.open_workspace_file(&entry)?;
                    source = match from.open_workspace_file(&entry) {
                        Ok(source) => source,
                        Err(error) => return self.failed(path, error),
                    };
                }
                match begins_with(&mut source, copy) {
                    Ok(true) if old.size == stat.size => {
                        // Only its time differs.
                        let copy = to.open_workspace_file(&entry)?;
                        set_file_attributes(&copy, stat.mode & MODE, stat)?;
                        self.copied.unchanged += 1;
                        return Ok(());
                    }
                    Ok(true) => {
                        kept = Some(to.open_workspace_file(&entry)?);
                        |copied| &mut copied.grown
                    }
                    Ok(false) => {
                        is_replaced = true;
                        |copied| &mut copied.grown
                    }
                    Err(error) => return self.failed(path, error),
                }
            }
        };
        let new = match kept {
            // The source may be shortened meanwhile; the bytes that were copied before stay.
            Some(kept) => to.write_temporary(&mut kept.chain(source))?,
            None => {
                let mut source = match from.open_workspace_file(&entry) {
                    Ok(source) => source,
                    Err(error) => return self.failed(path, error),
                };
                to.write_temporary(&mut source)?
            }
        };
        // Only now, so that the former copy keeps its name if the new one cannot be written.
        if is_replaced && !self.set_aside(path, to, name)? {
            return Ok(());
        }
        new.replace(to, name)?;
        let copy = to.open_workspace_file(&entry)?;
        set_file_attributes(&copy, stat.mode & MODE, stat)?;
        *counter(&mut self.copied) += 1;
        self.copied.bytes += stat.size;
        Ok(())
    }

    /// Gives the former copy of an entry another name. Returns false if that would be too long:
    /// then the copy stays, and the entry is not copied.
    fn set_aside(&mut self, path: &RelPath, to: &Dir, name: &Name) -> PathResult<bool> {
        let Some(former) = former_name(to, name)? else {
            self.copied.unreadable.add(path);
            return Ok(false);
        };
        to.rename_new(name, &former)?;
        self.copied.rewritten.add(path);
        Ok(true)
    }

    /// Counts an entry of the source that cannot be read. One that is gone is none.
    fn failed(&mut self, path: &RelPath, error: PathError) -> PathResult<()> {
        if !error.is_not_found() {
            self.copied.unreadable.add(path);
        }
        Ok(())
    }
}

/// Returns a free name for the former copy of a file that was rewritten. Readers do not take it for
/// a session. Returns `None` if the name would be too long.
fn former_name(to: &Dir, name: &Name) -> PathResult<Option<Name>> {
    for number in 1..=u32::MAX {
        let former = [name.as_bytes(), format!(".former-{number}").as_bytes()].concat();
        let Ok(former) = Name::new(former) else { return Ok(None) };
        match to.kind(&former.clone().into()) {
            Ok(None) => return Ok(Some(former)),
            Ok(Some(_)) => {}
            Err(PathError::NameTooLong) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Returns true if `source` begins with all bytes of `copy`.
fn begins_with(source: &mut impl Read, mut copy: impl Read) -> PathResult<bool> {
    let (mut expected, mut found) = (vec![0; CHUNK], Vec::with_capacity(CHUNK));
    loop {
        let size = copy.read(&mut expected).map_err(swarmletfs_record::write::from_io)?;
        if size == 0 {
            return Ok(true);
        }
        found.clear();
        let part = source.by_ref().take(size as u64).read_to_end(&mut found);
        part.map_err(swarmletfs_record::write::from_io)?;
        if expected.get(..size) != Some(found.as_slice()) {
            return Ok(false);
        }
    }
}
