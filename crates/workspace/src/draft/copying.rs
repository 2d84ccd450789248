//! Copies a workspace: for a worker that cannot have an overlay.

use std::io;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::candidate::is_gone;
use super::content::ContentHash;
use super::manifest::{CopiedEntry, CopyFacts, Manifest};
use super::record::next_tick;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::EntryKind;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::split::Split;
use swarmletfs_base::store::{EntryStat, Kind, OpenFile, OpenFolder};
use swarmletfs_record::write::{Dir, from_io, set_file_attributes};

/// Deepest directory that is copied, in names. Each level holds two descriptors.
const DEPTH_MAX: usize = 200;
/// Maximum number of attempts to copy a file that changes meanwhile.
const ATTEMPTS: usize = 3;
/// Permissions that are copied. A copy belongs to another user, so the setuid and setgid bits would
/// mean something else.
const MODE: u32 = 0o1777;
/// Size of the buffer where the system cannot copy by itself, in bytes.
const BUFFER: usize = 256 << 10;

pub(super) struct Copying<'a> {
    hidden: &'a [RelPath],
    mount: Option<u64>,
    manifest: Manifest,
    facts: CopyFacts,
}

impl Copying<'_> {
    /// Copies the directory `from` into the empty directory `to`, without the paths in `hidden`.
    /// Links are copied and not followed; files with several names become separate files. Returns
    /// the copied entries.
    ///
    /// # Errors
    ///
    /// The copy cannot be written. An entry that cannot be read is left out.
    pub(super) fn run(from: &OpenFolder, to: &Dir, hidden: &[RelPath]) -> Result<Manifest> {
        let stat = from.stat_self()?;
        let mut copying = Copying {
            hidden,
            mount: stat.mount,
            manifest: Manifest::default(),
            facts: CopyFacts::default(),
        };
        copying.folder(&RelPath::root(), from, to)?;
        to.set_attributes(stat.mode & MODE, &stat)?;
        copying.facts.copied_at = next_tick().into();
        copying.manifest.set_facts(copying.facts);
        Ok(copying.manifest)
    }

    fn folder(&mut self, path: &RelPath, from: &OpenFolder, to: &Dir) -> Result<()> {
        if path.depth() > DEPTH_MAX {
            return Err(Error::Io(Errno::LOOP));
        }
        for name in from.list()? {
            let path = path.join(&name);
            if self.hidden.contains(&path) {
                continue;
            }
            match self.entry(&path, from, &name, to) {
                Err(Error::Io(Errno::ACCESS)) => self.facts.unreadable += 1,
                // Others may remove it at any moment.
                Err(error) if is_gone(&error) => {}
                copied => copied?,
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &RelPath, from: &OpenFolder, name: &Name, to: &Dir) -> Result<()> {
        let stat = from.stat(name)?.ok_or(Error::NotFound)?;
        let mut entry = CopiedEntry {
            kind: EntryKind::File,
            mode: stat.mode & MODE,
            size: 0,
            sha256: String::new(),
            target: Vec::new(),
            mtime: stat.mtime,
            ctime: stat.ctime,
            is_foreign: stat.mount != self.mount,
        };
        match stat.kind {
            Kind::File => {
                let id = copy_file(from, name, to, entry.mode)?;
                (entry.size, entry.sha256) = (id.size, id.sha256);
            }
            Kind::Link => {
                entry.kind = EntryKind::Link;
                entry.target = from.read_link(name)?;
                to.create_link(name, &entry.target, &stat)?;
            }
            Kind::Folder => {
                entry.kind = EntryKind::Folder;
                let inner = from.enter(name)?;
                // Opened before the directory is made: one that cannot be listed is left out.
                inner.list()?;
                let made = to.create_dir(name)?;
                self.folder(path, &inner, &made)?;
                made.set_attributes(entry.mode, &stat)?;
            }
            Kind::Special => {
                self.facts.special += 1;
                return Ok(());
            }
        }
        let copied = to.entry_stat(name)?;
        (entry.mode, entry.mtime, entry.ctime) = (copied.mode, copied.mtime, copied.ctime);
        self.manifest.insert(path, entry);
        Ok(())
    }
}

/// Copies a file. Returns the size and the hash of the copy.
fn copy_file(from: &OpenFolder, name: &Name, to: &Dir, mode: u32) -> Result<ContentHash> {
    let (source, mut before) = from.open_file(name)?;
    let copy = to.create_file(name)?;
    for _ in 0..ATTEMPTS {
        copy_data(&source, &copy, before.size)?;
        let after = EntryStat::of_open(&source)?;
        if after == before {
            break;
        }
        before = after;
    }
    let written = to.open_to_read(name)?.ok_or(Error::NotFound)?;
    let id = ContentHash::of(written)?;
    set_file_attributes(&copy, mode, &before)?;
    Ok(id)
}

/// Copies `size` bytes, or as many as there are. Holes stay holes.
fn copy_data(from: &OpenFile, to: &OpenFile, size: u64) -> Result<()> {
    rustix::fs::ftruncate(to, 0)?;
    rustix::fs::ftruncate(to, size)?;
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Only a hole is left.
            Err(Errno::NXIO) => return Ok(()),
            // The file system knows no holes.
            Err(_) => at,
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        copy_range(from, to, start, end)?;
        at = end.max(start + 1);
    }
    Ok(())
}

fn copy_range(from: &OpenFile, to: &OpenFile, start: u64, end: u64) -> Result<()> {
    let (mut source, mut target) = (start, start);
    while source < end {
        let length = usize::try_from(end - source).unwrap_or(usize::MAX);
        let copied =
            rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), length);
        match copied {
            // The file is shorter by now.
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO) => {
                copied?;
            }
            // The two file systems cannot do it by themselves.
            Err(_) => return copy_bytes(from, to, source, end),
        }
    }
    Ok(())
}

fn copy_bytes(from: &OpenFile, to: &OpenFile, start: u64, end: u64) -> Result<()> {
    let mut buffer = vec![0; BUFFER];
    let mut at = start;
    while at < end {
        let wanted = usize::try_from(end - at).map_or(BUFFER, |left| left.min(BUFFER));
        let Some(space) = buffer.get_mut(..wanted) else { break };
        let read = match rustix::io::pread(from, &mut *space, at) {
            Ok(0) => break,
            Ok(read) => read,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let (mut bytes, _) = space.split_at_known(read);
        while !bytes.is_empty() {
            let written = match rustix::io::pwrite(to, bytes, at) {
                Ok(0) => return Err(from_io(io::ErrorKind::WriteZero.into())),
                Ok(written) => written,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            (_, bytes) = bytes.split_at_known(written);
            at += written as u64;
        }
    }
    Ok(())
}
