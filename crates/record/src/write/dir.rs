//! A directory of a store, opened for changes beneath it.
//!
//! This is the only module that opens a file of a store for writing. Every path is resolved with
//! `openat2` beneath an open directory: no symlink is followed, no other mount is entered, and only
//! regular files with a single hard link are written. So a link or FIFO that another process plants
//! in a worker's directory, at any moment, leads nowhere.
//!
//! A file is replaced by a temporary file and a rename; an existing file is otherwise only
//! extended. With [`Durability::Full`], data reaches the disk before a change is reported as done.
//!
//! The system releases the locks of directories and files when their process ends.

mod untrusted;
mod workspace;

pub use std::fs::File;
pub(super) use std::fs::Metadata;
pub use untrusted::{SetIdReport, set_mode};
pub use workspace::{EntryIdentity, EntryMeta, NewOwner, ViewEntry, set_file_attributes};

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{
    AtFlags, FlockOperation, Gid, Mode, OFlags, RenameFlags, ResolveFlags, StatVfsMountFlags,
    Statx, StatxFlags, Uid,
};
use rustix::io::Errno;

use super::names;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{BENEATH, Kind, kind_of, open_beneath};

/// Flags of every open. NONBLOCK makes it return at once if a FIFO has taken the place of a file.
const OPEN: OFlags =
    OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
/// Mode of new files before the umask.
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
/// Mode of new directories before the umask.
const DIR_MODE: Mode = Mode::from_raw_mode(0o777);
/// Maximum number of attempts of an interrupted or raced call.
const ATTEMPTS: usize = 16;
/// Smallest run of zeros that a copy leaves out, in bytes: a block of common file systems.
const HOLE_MIN: usize = 4096;
const COPY_SIZE: usize = 256 << 10;
/// Deepest directory that [`Dir::clear_set_id`] enters.
const DEPTH_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// A change that was reported as done survives a power failure.
    Full,
    /// The system decides when it writes data. A change survives the end of the process, but not a
    /// power failure.
    None,
}

#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    /// The path at which it was opened, for messages only.
    path: PathBuf,
    durability: Durability,
}

impl Dir {
    /// Opens the directory at `path`, which the user named: symlinks are followed.
    pub fn open(path: &Path, durability: Durability) -> Result<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Dir { fd, path: path.to_path_buf(), durability })
    }

    /// Creates the directory at `path`, which the user named, and its parents, and opens it.
    pub fn create(path: &Path, durability: Durability) -> Result<Dir> {
        std::fs::create_dir_all(path).map_err(from_io)?;
        let created = Dir::open(path, durability)?;
        // The parent has the name of a new directory.
        if let Ok(parent) = Dir::open(&path.join(".."), durability) {
            parent.sync()?;
        }
        Ok(created)
    }

    /// Returns where the directory was opened, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn enter(&self, path: &RelPath) -> Result<Dir> {
        let fd = self.openat2(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(self.child(fd, path))
    }

    /// Opens the directory `name`, on which another file system is mounted. A sandbox shows a
    /// worker its own directory so, in a directory that nobody can write.
    ///
    /// # Errors
    ///
    /// [`Error::Escape`] if this directory can be written. Then somebody may have mounted a file
    /// system that never answers.
    pub fn enter_mount(&self, name: &Name) -> Result<Dir> {
        let flags = rustix::fs::fstatvfs(&self.fd)?.f_flag;
        if !flags.contains(StatVfsMountFlags::RDONLY) {
            return Err(Error::Escape);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OPEN;
        let resolve = BENEATH.difference(ResolveFlags::NO_XDEV);
        let path = RelPath::from(name.clone());
        let fd = open_beneath(self.fd.as_fd(), &path, flags, Mode::empty(), resolve)?;
        Ok(self.child(fd, &path))
    }

    /// Creates the directory `name` and opens it.
    ///
    /// # Errors
    ///
    /// `EEXIST` if any entry has the name.
    pub fn create_dir(&self, name: &Name) -> Result<Dir> {
        rustix::fs::mkdirat(&self.fd, name.as_os_str(), DIR_MODE)?;
        let opened = self.enter(&RelPath::from(name.clone())).and_then(|created| {
            // Another writer of this directory can replace the new one. A directory of root that
            // has entries is not the new one.
            if self.owner_to_give_to()?.is_some() && created.list()?.is_empty() {
                self.give_to_owner(created.fd.as_fd())?;
            }
            Ok(created)
        });
        self.or_remove(opened, name, AtFlags::REMOVEDIR)
    }

    /// Creates the directory `name`, if it is missing, and gives it the permissions of this one,
    /// regardless of the umask.
    pub fn create_dir_alike(&self, name: &Name) -> Result<()> {
        let created = self.enter_or_create(name)?;
        let mode = u32::from(stat(self.fd.as_fd())?.stx_mode) & 0o7777;
        rustix::fs::fchmod(&created.fd, Mode::from_raw_mode(mode))?;
        created.sync()
    }

    pub fn enter_or_create(&self, name: &Name) -> Result<Dir> {
        let path = RelPath::from(name.clone());
        match self.enter(&path) {
            Err(Error::NotFound) => {}
            entered => return entered,
        }
        match self.create_dir(name) {
            Ok(created) => {
                self.sync()?;
                Ok(created)
            }
            // Another process created it meanwhile.
            Err(Error::Io(Errno::EXIST)) => self.enter(&path),
            Err(error) => Err(error),
        }
    }

    pub fn kind(&self, path: &RelPath) -> Result<Option<Kind>> {
        match self.openat2(path, OFlags::PATH, Mode::empty()) {
            Ok(fd) => Ok(Some(kind_of(&stat(fd.as_fd())?))),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn list(&self) -> Result<Vec<Name>> {
        let fd =
            self.openat2(&RelPath::root(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(fd)? {
            // Skips `.` and `..`, which are not valid names.
            names.extend(Name::new(entry?.file_name().to_bytes()).ok());
        }
        Ok(names)
    }

    /// Reads the file `name`. Returns `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// `EFBIG` if it has more than `limit` bytes.
    pub fn read(&self, name: &Name, limit: u64) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.open_to_read(name)? else { return Ok(None) };
        read_whole(file, limit).map(Some)
    }

    /// Creates the file `name` for writing.
    ///
    /// # Errors
    ///
    /// `EEXIST` if any entry has the name.
    pub fn create_file(&self, name: &Name) -> Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let fd = self.openat2(&RelPath::from(name.clone()), flags, FILE_MODE)?;
        let given = self.give_to_owner(fd.as_fd());
        self.or_remove(given, name, AtFlags::empty())?;
        Ok(File::from(fd))
    }

    /// Removes the new entry `name` if `created` is an error, and returns `created`.
    fn or_remove<T>(&self, created: Result<T>, name: &Name, flags: AtFlags) -> Result<T> {
        if created.is_err() {
            // The first error counts.
            let _ = rustix::fs::unlinkat(&self.fd, name.as_os_str(), flags);
        }
        created
    }

    /// Opens the file `name` to append to it, and creates it if it is missing. Its last bytes can
    /// be read, too.
    pub fn open_append(&self, name: &Name) -> Result<File> {
        let path = RelPath::from(name.clone());
        let flags = OFlags::RDWR | OFlags::APPEND;
        for _ in 0..ATTEMPTS {
            match self.openat2(&path, flags, Mode::empty()) {
                Err(Error::NotFound) => {}
                opened => {
                    let opened = opened?;
                    if self.is_only_name(&path, opened.as_fd())? {
                        return Ok(File::from(opened));
                    }
                    continue;
                }
            }
            // EXCL, so that no other file than a new one gets another owner.
            match self.openat2(&path, flags | OFlags::CREATE | OFlags::EXCL, FILE_MODE) {
                Err(Error::Io(Errno::EXIST)) => {}
                created => {
                    let created = created?;
                    self.give_to_owner(created.as_fd())?;
                    self.sync()?;
                    return Ok(File::from(created));
                }
            }
        }
        Err(Error::Escape)
    }

    /// Returns true if `path` is the only name of the regular file `opened`. Another process may
    /// plant a hard link for the open, and remove it before the number of links is read. So the
    /// name is looked up while the file's links do not change.
    ///
    /// # Errors
    ///
    /// [`Error::Escape`] if the file has several names, and `EPERM` if root was led to a file of
    /// another user than the owner of this directory.
    fn is_only_name(&self, path: &RelPath, opened: BorrowedFd<'_>) -> Result<bool> {
        let before = stat(opened)?;
        must_be_own_file(&before)?;
        // The time below may be too coarse to show a change. What root creates here belongs to the
        // owner of the directory, so a file of another user may have been planted.
        if self.owner_to_give_to()?.is_some_and(|owner| owner.as_raw() != before.stx_uid) {
            return Err(Error::Io(Errno::PERM));
        }
        let named = match self.openat2(path, OFlags::PATH, Mode::empty()) {
            Ok(named) => stat(named.as_fd())?,
            Err(Error::NotFound) => return Ok(false),
            Err(error) => return Err(error),
        };
        let after = stat(opened)?;
        must_be_own_file(&after)?;
        let inode = |stat: &Statx| (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
        // A new or removed link changes this time, as a write does.
        let changed = |stat: &Statx| (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec);
        Ok(inode(&before) == inode(&named) && changed(&before) == changed(&after))
    }

    pub fn open_to_lock(&self, name: &Name) -> Result<OwnedFd> {
        let fd = self.openat2(&RelPath::from(name.clone()), OFlags::RDONLY, Mode::empty())?;
        kind_of(&stat(fd.as_fd())?).must_be(Kind::File)?;
        Ok(fd)
    }

    pub fn write_temporary(&self, content: &mut dyn Read) -> Result<Temporary<'_>> {
        let name = names::temporary_name()?;
        let file = self.create_file(&name)?;
        let temporary = Temporary { dir: self, name, file, is_renamed: false };
        // The lock tells a write in progress from one that a crash interrupted.
        lock_file(&temporary.file)?;
        copy(content, &mut &temporary.file)?;
        self.sync_file(&temporary.file)?;
        Ok(temporary)
    }

    /// Fails if the entry `name` exists and is not a regular file.
    fn must_be_replaceable(&self, name: &Name) -> Result<()> {
        let existing = self.kind(&RelPath::from(name.clone()))?;
        existing.map_or(Ok(()), |kind| kind.must_be(Kind::File))
    }

    /// Gives the directory `from` the name `to`, unless that is taken.
    ///
    /// # Errors
    ///
    /// `EEXIST` if the name is taken.
    pub fn rename_new(&self, from: &Name, to: &Name) -> Result<()> {
        let (from, to) = (from.as_os_str(), to.as_os_str());
        rustix::fs::renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE)?;
        self.sync()
    }

    /// Takes the lock of this directory, which every change of its contents holds.
    ///
    /// # Errors
    ///
    /// `EBUSY` if another process holds the lock for long; see `wait_for_lock`.
    pub fn lock(&self) -> Result<Lock> {
        wait_for_lock(|| self.try_lock())
    }

    /// Takes the lock of this directory. Returns `None` if it is taken.
    pub fn try_lock(&self) -> Result<Option<Lock>> {
        // A lock belongs to an open file, so that threads exclude each other, too.
        let fd =
            self.openat2(&RelPath::root(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Lock::try_new(fd)
    }

    pub fn try_lock_file(&self, name: &Name) -> Result<Option<Lock>> {
        Lock::try_new(self.open_to_lock(name)?)
    }

    pub fn open_to_read(&self, name: &Name) -> Result<Option<File>> {
        let path = RelPath::from(name.clone());
        let file = match self.openat2(&path, OFlags::RDONLY, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Error::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        // Bytes that are read here are written again, and a process that planted a link would see
        // them.
        must_be_own_file(&stat(file.as_fd())?)?;
        Ok(Some(file))
    }

    /// Waits until the names in this directory are on disk.
    pub fn sync(&self) -> Result<()> {
        match self.durability {
            Durability::Full => sync(self.fd.as_fd()),
            Durability::None => Ok(()),
        }
    }

    pub fn sync_file(&self, file: &File) -> Result<()> {
        match self.durability {
            Durability::Full => sync(file.as_fd()),
            Durability::None => Ok(()),
        }
    }

    pub fn meta(&self, name: &Name) -> Result<Option<Metadata>> {
        match self.openat2(&RelPath::from(name.clone()), OFlags::PATH, Mode::empty()) {
            Ok(fd) => File::from(fd).metadata().map(Some).map_err(from_io),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// As root, gives a new entry to the owner of this directory, who could otherwise not change
    /// or remove it. The group and the mode are set by the kernel: setgid, default ACL and umask.
    fn give_to_owner(&self, created: BorrowedFd<'_>) -> Result<()> {
        let Some(owner) = self.owner_to_give_to()? else { return Ok(()) };
        // Otherwise an entry of another user has taken the place of the new one.
        if stat(created)?.stx_uid == 0 {
            rustix::fs::fchown(created, Some(owner), None::<Gid>)?;
        }
        Ok(())
    }

    /// Returns the owner of this directory if this process is root and another user owns it.
    fn owner_to_give_to(&self) -> Result<Option<Uid>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let owner = stat(self.fd.as_fd())?.stx_uid;
        Ok((owner != 0).then(|| Uid::from_raw(owner)))
    }

    fn child(&self, fd: OwnedFd, path: &RelPath) -> Dir {
        Dir { fd, path: self.path.join(path.as_os_str()), durability: self.durability }
    }

    fn openat2(&self, path: &RelPath, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let changes_or_path = OFlags::WRONLY | OFlags::RDWR | OFlags::CREATE | OFlags::PATH;
        if !flags.intersects(changes_or_path) {
            // A search changes no atime. Only the owner may use that flag.
            match self.openat2_flags(path, flags | OFlags::NOATIME, mode) {
                Err(Error::Io(Errno::PERM)) => {}
                opened => return opened,
            }
        }
        self.openat2_flags(path, flags, mode)
    }

    fn openat2_flags(&self, path: &RelPath, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        // O_PATH allows no other flags than these.
        let more =
            if flags.contains(OFlags::PATH) { OFlags::CLOEXEC | OFlags::NOFOLLOW } else { OPEN };
        self.open_resolving(path, flags | more, mode, BENEATH)
    }

    fn open_resolving(
        &self,
        path: &RelPath,
        flags: OFlags,
        mode: Mode,
        resolve: ResolveFlags,
    ) -> Result<OwnedFd> {
        let mut attempts = 0;
        loop {
            match open_beneath(self.fd.as_fd(), path, flags, mode, resolve) {
                Err(Errno::INTR | Errno::AGAIN) if attempts < ATTEMPTS => attempts += 1,
                // A FIFO without a reader.
                Err(Errno::NXIO) => return Err(Error::Special),
                opened => return opened.map_err(Error::from),
            }
        }
    }
}

/// A file that was written under a temporary name. Dropping it removes it.
pub struct Temporary<'a> {
    dir: &'a Dir,
    name: Name,
    file: File,
    is_renamed: bool,
}

impl Temporary<'_> {
    /// Sets the time of the last write.
    pub fn set_modified(&self, time: SystemTime) -> Result<()> {
        self.file.set_modified(time).map_err(from_io)
    }

    /// Gives the file its name `to` in the directory `dir`, in place of a file that has the name.
    ///
    /// # Errors
    ///
    /// The name is taken by something other than a regular file, or the system refuses.
    pub fn replace(mut self, dir: &Dir, to: &Name) -> Result<()> {
        dir.must_be_replaceable(to)?;
        rustix::fs::renameat(&self.dir.fd, self.name.as_os_str(), &dir.fd, to.as_os_str())?;
        self.is_renamed = true;
        dir.sync()
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.is_renamed {
            // Nothing more can be done here; `doctor` finds the file.
            let _ = rustix::fs::unlinkat(&self.dir.fd, self.name.as_os_str(), AtFlags::empty());
        }
    }
}

/// Copies `from` to its end into a new file. Zeros become holes: a file that consists of holes
/// would otherwise fill the disk.
fn copy(from: &mut dyn Read, to: &mut &File) -> Result<()> {
    let mut buffer = vec![0; COPY_SIZE];
    let (mut size, mut ends_with_hole) = (0_u64, false);
    loop {
        match from.read(&mut buffer) {
            Ok(0) if ends_with_hole => return to.set_len(size).map_err(from_io),
            Ok(0) => return Ok(()),
            Ok(n) => {
                let filled = buffer.get(..n).ok_or(Error::Io(Errno::IO))?;
                size += n as u64;
                ends_with_hole = n >= HOLE_MIN && filled.iter().all(|byte| *byte == 0);
                if ends_with_hole {
                    to.seek(SeekFrom::Start(size)).map_err(from_io)?;
                } else {
                    to.write_all(filled).map_err(from_io)?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(from_io(error)),
        }
    }
}

pub fn from_io(error: io::Error) -> Error {
    Errno::from_io_error(&error).map_or(Error::Io(Errno::IO), Error::from)
}

fn sync(fd: BorrowedFd<'_>) -> Result<()> {
    match rustix::fs::fsync(fd) {
        // A file system without this call holds nothing that could be lost.
        Err(Errno::INVAL | Errno::NOTSUP) => Ok(()),
        result => Ok(result?),
    }
}

fn stat(fd: BorrowedFd<'_>) -> Result<Statx> {
    Ok(rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?)
}

/// Fails unless this is a regular file with a single name: other names may be outside of the store.
fn must_be_own_file(stat: &Statx) -> Result<()> {
    kind_of(stat).must_be(Kind::File)?;
    if stat.stx_nlink > 1 { Err(Error::Escape) } else { Ok(()) }
}

/// Time to wait for a lock. A longer wait means that its holder hangs.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest pause between two attempts to take a lock.
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(10);

/// An exclusive lock of a directory or a file, released when dropped or when the process ends.
#[derive(Debug)]
#[must_use = "dropping a lock releases it"]
pub struct Lock {
    _fd: OwnedFd,
}

impl Lock {
    /// Takes the lock of an open file or directory. Returns `None` if it is taken.
    pub fn try_new(fd: OwnedFd) -> Result<Option<Lock>> {
        Ok(try_lock(fd.as_fd())?.then_some(Lock { _fd: fd }))
    }
}

fn try_lock(fd: BorrowedFd<'_>) -> Result<bool> {
    match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn is_locked(fd: BorrowedFd<'_>) -> Result<bool> {
    // Shared, so that two searches do not take each other for a writer.
    match rustix::fs::flock(fd, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn read_whole(file: File, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(from_io)?;
    if bytes.len() as u64 > limit { Err(Error::Io(Errno::FBIG)) } else { Ok(bytes) }
}

/// Waits for the lock of an open file.
///
/// # Errors
///
/// `EBUSY` if another process holds the lock for more than [`LOCK_TIMEOUT`].
pub(super) fn lock_file(file: impl AsFd) -> Result<()> {
    wait_for_lock(|| Ok(try_lock(file.as_fd())?.then_some(())))
}

/// Calls `try_lock` until it returns a lock.
///
/// # Errors
///
/// `EBUSY` if that takes more than [`LOCK_TIMEOUT`].
fn wait_for_lock<T>(mut try_lock: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    // flock has no timeout, and a holder that hangs must not hang every other writer.
    let (start, mut pause) = (Instant::now(), Duration::from_micros(100));
    loop {
        if let Some(lock) = try_lock()? {
            return Ok(lock);
        }
        if start.elapsed() > LOCK_TIMEOUT {
            return Err(Error::Io(Errno::BUSY));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LOCK_PAUSE_MAX);
    }
}
