//! Entries of a workspace and of a worker's view of it, with exact attributes.
//!
//! A workspace belongs to a person and not to a store. So files may have several hard links, links
//! are made and removed but never followed, and permissions are set exactly, as in the layers of
//! overlays and in copies of trees.
//!
//! The tools of a worker read and write the files of its view. A workspace holds links, and its
//! programs follow them. So links are followed there, but only those that stay beneath the
//! directory: a link that leads out, also by an absolute path, is an [`Error::Escape`]. The view is
//! a draft, so nothing waits for the disk.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Statx,
    StatxFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::{DIR_MODE, Dir, Durability, FILE_MODE, File, copy, from_io, set_mode, stat, sync};
use crate::write::names;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::EntryKind;
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{EntryStat, Kind, Time, kind_of};

/// Bits of a mode that are permissions, without setuid, setgid and sticky.
const PERMISSIONS: u32 = 0o777;
/// The extended attribute that holds the ACL of a file.
const ACL: &[u8] = b"system.posix_acl_access";
/// Start of the names of extended attributes that users set.
const USER_ATTRIBUTE: &[u8] = b"user.";
/// Maximum length of a list of extended attributes, and of one value, in Linux.
const ATTRIBUTE_MAX: usize = 64 << 10;

/// Attributes of an entry of a workspace. Links are not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryMeta {
    pub kind: Kind,
    /// Permissions, without setuid, setgid and sticky bits.
    pub mode: u32,
    pub size: u64,
    pub uid: u32,
    pub gid: u32,
    /// Number of names of the entry; more than one for a file with hard links.
    pub links: u32,
    pub identity: EntryIdentity,
    /// Time of the last write, in seconds and nanoseconds.
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
}

/// Tells an entry from others that have had its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct EntryIdentity {
    inode: u64,
    /// Time of creation in seconds and nanoseconds; zero where the file system has none.
    created: (i64, u32),
}

impl EntryIdentity {
    pub fn inode(self) -> u64 {
        self.inode
    }

    pub fn created(self) -> (i64, u32) {
        self.created
    }
}

/// Owner that a new entry gets if root makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewOwner {
    OfFolder,
    /// The owner and group of the entry that it replaces.
    Like(u32, u32),
}

impl Dir {
    pub fn durability(&self) -> Durability {
        self.durability
    }

    pub fn identity(&self) -> Result<EntryIdentity> {
        self.entry(&RelPath::root())?.map(|entry| entry.identity).ok_or(Error::NotFound)
    }

    /// Returns the attributes of the entry `path`, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Escape`] if a folder of the path is a link.
    pub fn entry(&self, path: &RelPath) -> Result<Option<EntryMeta>> {
        match self.openat2(path, OFlags::PATH, Mode::empty()) {
            Ok(fd) => Ok(Some(entry_meta(&stat_with_birth(&fd)?))),
            Err(Error::NotFound | Error::NotADirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the path of this directory without links.
    pub fn real_path(&self) -> Result<PathBuf> {
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let path = rustix::fs::readlink(path, Vec::new())?.into_bytes();
        Ok(PathBuf::from(OsString::from_vec(path)))
    }

    pub fn link_target(&self, path: &RelPath) -> Result<Vec<u8>> {
        let fd = self.openat2(path, OFlags::PATH, Mode::empty())?;
        Ok(rustix::fs::readlinkat(&fd, "", Vec::new())?.into_bytes())
    }

    /// Opens the regular file `path` to read it, however many names it has.
    pub fn open_workspace_file(&self, path: &RelPath) -> Result<File> {
        let fd = self.openat2(path, OFlags::RDONLY, Mode::empty())?;
        kind_of(&stat(fd.as_fd())?).must_be(Kind::File)?;
        Ok(File::from(fd))
    }

    pub fn temporary_name() -> Result<Name> {
        names::temporary_name()
    }

    /// Makes the file `name` with this content and these permissions. It gets the ACL and the
    /// extended attributes of `old`, the file that it replaces.
    ///
    /// # Errors
    ///
    /// `EEXIST` if the name is taken.
    pub fn make_file(
        &self,
        name: &Name,
        content: &mut dyn Read,
        mode: u32,
        owner: NewOwner,
        old: Option<&File>,
    ) -> Result<EntryIdentity> {
        let file = self.create_file(name)?;
        // Nobody else may read private content, not even before it is complete.
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        copy(content, &mut &file)?;
        keep_owner(&file, owner)?;
        if let Some(old) = old {
            keep_attributes(&file, old)?;
        }
        rustix::fs::fchmod(&file, permissions(mode))?;
        self.sync_file(&file)?;
        Ok(entry_meta(&stat_with_birth(&file)?).identity)
    }

    /// Makes the link `name`.
    ///
    /// # Errors
    ///
    /// `EEXIST` if the name is taken.
    pub fn make_link(&self, name: &Name, target: &[u8], owner: NewOwner) -> Result<EntryIdentity> {
        rustix::fs::symlinkat(OsStr::from_bytes(target), &self.fd, name.as_os_str())?;
        let fd = self.openat2(&name.clone().into(), OFlags::PATH, Mode::empty())?;
        let made = entry_meta(&stat_with_birth(&fd)?);
        // Otherwise an entry of another user has taken the place of the new one.
        if rustix::process::geteuid().is_root() && made.kind == Kind::Link && made.uid == 0 {
            let (uid, gid) = match owner {
                NewOwner::Like(uid, gid) => (uid, Some(Gid::from_raw(gid))),
                NewOwner::OfFolder => (stat(self.fd.as_fd())?.stx_uid, None),
            };
            rustix::fs::chownat(&fd, "", Some(Uid::from_raw(uid)), gid, AtFlags::EMPTY_PATH)?;
        }
        Ok(made.identity)
    }

    /// Makes the empty directory `name` with these permissions.
    ///
    /// # Errors
    ///
    /// `EEXIST` if the name is taken.
    pub fn make_folder(&self, name: &Name, mode: u32, owner: NewOwner) -> Result<EntryIdentity> {
        let made = self.create_dir(name)?;
        keep_owner(&made.fd, owner)?;
        // The kernel may have set setgid, which passes a group on.
        let inherited = u32::from(stat(made.fd.as_fd())?.stx_mode) & 0o7000;
        let mode = permissions(mode) | Mode::from_raw_mode(inherited);
        rustix::fs::fchmod(&made.fd, mode)?;
        made.sync()?;
        Ok(entry_meta(&stat_with_birth(&made.fd)?).identity)
    }

    /// Gives the entry `name` the name `to` in the directory `folder`.
    ///
    /// # Errors
    ///
    /// `EEXIST` if that name is taken.
    pub fn move_entry(&self, name: &Name, folder: &Dir, to: &Name) -> Result<()> {
        self.rename_with(name, folder, to, RenameFlags::NOREPLACE)
    }

    /// Exchanges the entry `name` and the entry `other` of the directory `folder`, at once for
    /// every reader.
    pub fn exchange_entries(&self, name: &Name, folder: &Dir, other: &Name) -> Result<()> {
        self.rename_with(name, folder, other, RenameFlags::EXCHANGE)
    }

    fn rename_with(&self, from: &Name, folder: &Dir, to: &Name, flags: RenameFlags) -> Result<()> {
        let (from, to) = (from.as_os_str(), to.as_os_str());
        match rustix::fs::renameat_with(&self.fd, from, &folder.fd, to, flags) {
            // Not an escape: both directories were opened beneath the workspace.
            Err(Errno::XDEV) => Err(Error::Io(Errno::OPNOTSUPP)),
            Err(Errno::INVAL) => Err(Error::Io(Errno::OPNOTSUPP)),
            renamed => Ok(renamed?),
        }
    }

    /// Sets the permissions of the file or directory `path`. Setuid, setgid and sticky bits of a
    /// directory stay.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] if it is another entry than `identity`.
    pub fn set_mode(&self, path: &RelPath, mode: u32, identity: EntryIdentity) -> Result<()> {
        // Its owner may have no right to read it, neither before nor after.
        let fd = self.openat2(path, OFlags::PATH, Mode::empty())?;
        let stat = stat_with_birth(&fd)?;
        let meta = entry_meta(&stat);
        if meta.identity != identity {
            return Err(Error::Stale);
        }
        let kept = if meta.kind == Kind::Folder { u32::from(stat.stx_mode) & 0o7000 } else { 0 };
        set_mode(&fd, (mode & PERMISSIONS) | kept)?;
        match (self.durability, self.openat2(path, OFlags::RDONLY, Mode::empty())) {
            (Durability::None, _) => Ok(()),
            (Durability::Full, Ok(fd)) => sync(fd.as_fd()),
            (Durability::Full, Err(_)) => self.sync_file_system(),
        }
    }

    /// Removes the entry `name`: a file, a link or an empty directory. Returns false if there is
    /// none.
    pub fn remove_entry(&self, name: &Name) -> Result<bool> {
        let Some(meta) = self.entry(&name.clone().into())? else { return Ok(false) };
        let flags = if meta.kind == Kind::Folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match rustix::fs::unlinkat(&self.fd, name.as_os_str(), flags) {
            Err(Errno::NOENT) => Ok(false),
            removed => Ok(removed.map(|()| true)?),
        }
    }
}

/// Gives a new file or directory the owner and group of the entry that it replaces. Only root can
/// give it to another user; the group counts if this user may set it.
fn keep_owner(made: &impl AsFd, owner: NewOwner) -> Result<()> {
    let NewOwner::Like(uid, gid) = owner else { return Ok(()) };
    let made_as = stat(made.as_fd())?;
    if (made_as.stx_uid, made_as.stx_gid) == (uid, gid) {
        return Ok(());
    }
    let is_root = rustix::process::geteuid().is_root();
    let uid = is_root.then(|| Uid::from_raw(uid));
    match rustix::fs::fchown(made, uid, Some(Gid::from_raw(gid))) {
        Err(Errno::PERM) if !is_root => Ok(()),
        changed => Ok(changed?),
    }
}

/// Gives a new file the ACL of `old` and the extended attributes that users set there.
fn keep_attributes(made: &File, old: &File) -> Result<()> {
    let mut names = vec![0; ATTRIBUTE_MAX];
    let length = match rustix::fs::flistxattr(old, names.as_mut_slice()) {
        // The file system has none.
        Err(Errno::OPNOTSUPP) => return Ok(()),
        length => length?,
    };
    names.truncate(length);
    let names: Vec<&[u8]> = names.split(|byte| *byte == 0).collect();
    if !names.contains(&ACL) {
        // The directory may have given one to the new file.
        match rustix::fs::fremovexattr(made, ACL) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut value = Vec::new();
    for name in names {
        if name == ACL || name.starts_with(USER_ATTRIBUTE) {
            value.resize(ATTRIBUTE_MAX, 0);
            let length = rustix::fs::fgetxattr(old, name, value.as_mut_slice())?;
            value.truncate(length);
            rustix::fs::fsetxattr(made, name, &value, XattrFlags::empty())?;
        }
    }
    Ok(())
}

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & PERMISSIONS)
}

fn stat_with_birth(fd: &impl AsFd) -> Result<Statx> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    Ok(rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, mask)?)
}

fn entry_meta(stat: &Statx) -> EntryMeta {
    let kind = kind_of(stat);
    let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let created = if has_birth { (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec) } else { (0, 0) };
    EntryMeta {
        kind,
        mode: u32::from(stat.stx_mode) & PERMISSIONS,
        size: if kind == Kind::File { stat.stx_size } else { 0 },
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        links: stat.stx_nlink,
        identity: EntryIdentity { inode: stat.stx_ino, created },
        mtime: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
        ctime: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
    }
}

impl Dir {
    /// Sets the permissions of this directory, regardless of the umask.
    pub fn set_own_mode(&self, mode: u32) -> Result<()> {
        set_mode(&self.fd, mode)
    }

    /// Marks the name `name` as deleted in the upper layer of an overlay.
    pub fn create_whiteout(&self, name: &Name) -> Result<()> {
        let kind = FileType::CharacterDevice;
        Ok(rustix::fs::mknodat(&self.fd, name.as_os_str(), kind, Mode::empty(), 0)?)
    }

    /// Creates the link `name` to `target`, with the time and the owner of `like`.
    pub fn create_link(&self, name: &Name, target: &[u8], like: &EntryStat) -> Result<()> {
        let name = name.as_os_str();
        rustix::fs::symlinkat(target, &self.fd, name)?;
        if let Some((uid, gid)) = owner(like) {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(&self.fd, name, Some(uid), Some(gid), flags)?;
        }
        let times = times(like.mtime);
        Ok(rustix::fs::utimensat(&self.fd, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    pub fn entry_stat(&self, name: &Name) -> Result<EntryStat> {
        EntryStat::of_open(self.openat2(
            &RelPath::from(name.clone()),
            OFlags::PATH,
            Mode::empty(),
        )?)
    }

    /// Gives this directory the mode `mode`, and the time and the owner of `like`. Only root can
    /// set an owner.
    pub fn set_attributes(&self, mode: u32, like: &EntryStat) -> Result<()> {
        if let Some((uid, gid)) = owner(like) {
            rustix::fs::fchown(&self.fd, Some(uid), Some(gid))?;
        }
        set_mode(&self.fd, mode)?;
        Ok(rustix::fs::futimens(&self.fd, &times(like.mtime))?)
    }
}

pub fn set_file_attributes(file: &File, mode: u32, like: &EntryStat) -> Result<()> {
    if let Some((uid, gid)) = owner(like) {
        rustix::fs::fchown(file, Some(uid), Some(gid))?;
    }
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
    Ok(rustix::fs::futimens(file, &times(like.mtime))?)
}

fn owner(like: &EntryStat) -> Option<(Uid, Gid)> {
    let is_root = rustix::process::geteuid().is_root();
    is_root.then(|| (Uid::from_raw(like.uid), Gid::from_raw(like.gid)))
}

fn times(mtime: Time) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() },
    }
}

/// Keeps the resolution of a path beneath the directory, and in its mount.
const WITHIN: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);
/// Flags of every open. NONBLOCK makes it return at once for a FIFO.
const OPEN: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

const BASIC: StatxFlags = StatxFlags::BASIC_STATS;

/// An entry of a directory of a view. Links are not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewEntry {
    pub name: Name,
    pub kind: EntryKind,
    pub size: u64,
}

impl Dir {
    pub fn view_folder(&self, path: &RelPath) -> Result<Dir> {
        let fd = self.open_within(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(self.child(fd, path))
    }

    pub fn view_file(&self, path: &RelPath) -> Result<File> {
        must_be_file(self.open_within(path, OFlags::RDONLY, Mode::empty())?)
    }

    /// Returns the kind and the size of the entry `path` of a view. Links are followed.
    pub fn view_kind(&self, path: &RelPath) -> Result<(EntryKind, u64)> {
        let fd = self.open_within(path, OFlags::PATH, Mode::empty())?;
        let found = stat(fd.as_fd())?;
        Ok((kind_of(&found).into(), found.stx_size))
    }

    /// Lists this directory of a view, sorted by name.
    pub fn view_entries(&self) -> Result<Vec<ViewEntry>> {
        let mut names = self.list()?;
        names.sort();
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let found = rustix::fs::statx(&self.fd, name.as_os_str(), flags, BASIC);
            // Others are removed while they are listed.
            let Ok(found) = found else { continue };
            entries.push(ViewEntry { name, kind: kind_of(&found).into(), size: found.stx_size });
        }
        Ok(entries)
    }

    /// Writes the file `path` of a view: a new one, or the whole content of the existing one, which
    /// keeps its permissions. Missing directories are made.
    ///
    /// # Errors
    ///
    /// If the disk is full, the file keeps its old content. After another error of the system, it
    /// may have a part of the new one.
    pub fn write_view_file(&self, path: &RelPath, content: &[u8]) -> Result<()> {
        self.make_view_folders(&path.parent())?;
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let mut file = must_be_file(self.open_within(path, flags, FILE_MODE)?)?;
        // The file is not replaced by a new one: it may be reached by a link or have several names.
        reserve(&file, content.len() as u64)?;
        file.write_all(content).map_err(from_io)?;
        file.set_len(content.len() as u64).map_err(from_io)
    }

    /// Removes the file or link `path` of a view. A link is removed itself.
    ///
    /// # Errors
    ///
    /// It is a directory.
    pub fn remove_view_file(&self, path: &RelPath) -> Result<()> {
        let name = path.file_name().ok_or(Error::IsADirectory)?;
        let parent = self.view_folder(&path.parent())?;
        match parent.kind(&RelPath::from(name.clone()))? {
            None => Err(Error::NotFound),
            Some(Kind::Folder) => Err(Error::IsADirectory),
            Some(_) => Ok(rustix::fs::unlinkat(&parent.fd, name.as_os_str(), AtFlags::empty())?),
        }
    }

    fn make_view_folders(&self, path: &RelPath) -> Result<()> {
        let mut made = RelPath::root();
        for name in path.names() {
            let next = made.join(&name);
            match self.view_folder(&next) {
                Err(Error::NotFound) => self.view_folder(&made)?.make_view_folder(&name)?,
                opened => drop(opened?),
            }
            made = next;
        }
        Ok(())
    }

    fn make_view_folder(&self, name: &Name) -> Result<()> {
        match rustix::fs::mkdirat(&self.fd, name.as_os_str(), DIR_MODE) {
            // Another call of the worker made it meanwhile.
            Err(Errno::EXIST) => Ok(()),
            made => Ok(made?),
        }
    }

    fn open_within(&self, path: &RelPath, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        // O_PATH allows no other flags than these.
        let more = if flags.contains(OFlags::PATH) { OFlags::CLOEXEC } else { OPEN };
        self.open_resolving(path, flags | more, mode, WITHIN)
    }
}

/// Reserves space for `size` bytes, so that writing them does not fill the disk. The content stays.
/// On a file system that cannot reserve, writing alone shows whether there is space.
fn reserve(file: &File, size: u64) -> Result<()> {
    if size == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, size) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        reserved => Ok(reserved?),
    }
}

fn must_be_file(fd: OwnedFd) -> Result<File> {
    kind_of(&stat(fd.as_fd())?).must_be(Kind::File)?;
    Ok(File::from(fd))
}
