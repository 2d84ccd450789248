//! Compares the entries of a path before and after, and stores the contents that differ.

use std::time::{Duration, SystemTime};

use super::bases::{Bases, OldContent, Proof};
use super::candidates::{self, LiveEntry, OldEntry, PossibleChange, is_gone, unreadable};
use super::content::{
    self, ContentHash, FileContent, LineCounts, MEMORY_MAX, ReadLimits, count_lines, describe_limit,
};
use super::folder::Draft;
use crate::git::GitRepository;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{
    Base, ChangeKind, ChangedFile, ChangedPath, EntryKind, EntryState, encode,
};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Kind, OpenFile, OpenFolder};
use swarmletfs_record::write::{Dir, During, Result as WriteResult, set_mode};
use swarmletfs_trace::swarmlet::{BASE, CHANGES};

/// Time without a write after which a large file is stored while the worker runs. Otherwise a log
/// that grows would be copied again and again.
const SETTLED: Duration = Duration::from_secs(4);
const SPECIAL: &str = "it is a device, FIFO or socket";
const OWNER_READ: u32 = 0o400;

pub(super) struct PathComparison {
    bases: Bases,
    /// The repository of the workspace, and the commit with which the worker began.
    commit: Option<(GitRepository, String)>,
    pub(super) is_final: bool,
}

pub(super) enum ComparedPath {
    Same,
    Changed(Box<ChangedFile>),
    /// The path is changing, or the worker is in the way. The next search compares it.
    Later,
}

/// An entry without its content.
struct Side {
    kind: EntryKind,
    mode: u32,
    size: u64,
    target: Option<Vec<u8>>,
}

struct OldFile {
    content: Option<FileContent>,
    proof: Proof,
    /// Size and hash, if they are known without the content.
    id: Option<ContentHash>,
}

#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    pub(super) worker: &'a Dir,
    pub(super) workspace: &'a OpenFolder,
    pub(super) limits: ReadLimits<'a>,
}

impl Side {
    fn of_live(entry: &LiveEntry<'_>) -> Result<Side> {
        let stat = entry.stat;
        let target = match stat.kind {
            Kind::Link => Some(entry.folder.read_link(entry.name)?),
            _ => None,
        };
        Ok(Side { kind: EntryKind::from(stat.kind), mode: stat.mode, size: stat.size, target })
    }

    fn of_old(entry: &OldEntry<'_>) -> Result<Side> {
        match entry {
            OldEntry::Live(entry) => Side::of_live(entry),
            OldEntry::Copied(entry) => Ok(Side {
                kind: entry.kind,
                mode: entry.mode,
                size: entry.size,
                target: (entry.kind == EntryKind::Link).then(|| entry.target.clone()),
            }),
        }
    }

    /// Returns the target of a link; the inner `None` is one that is not text.
    fn target_text(&self) -> Option<Option<&str>> {
        self.target.as_deref().map(|target| std::str::from_utf8(target).ok())
    }

    fn state(&self, id: Option<ContentHash>) -> EntryState {
        let is_file = self.kind == EntryKind::File;
        let (size, sha256) = match id {
            Some(id) => (id.size, id.sha256),
            None => (if is_file { self.size } else { 0 }, String::new()),
        };
        let target = self.target.as_deref().map(encode);
        EntryState { kind: self.kind, mode: self.mode, size, sha256, target }
    }
}

impl PathComparison {
    pub(super) fn new(draft: &Draft) -> WriteResult<PathComparison> {
        let record = draft.record();
        let folder = draft.folder();
        let folder = if record.is_durable {
            draft.shared_folder()
        } else {
            // The layer of the worker does not survive a crash of the machine, either.
            std::sync::Arc::new(folder.without_sync().during("open", folder.path(), b"")?)
        };
        let head = record.repository.as_ref().and_then(|repository| repository.head.clone());
        let commit = GitRepository::of_workspace(&record.workspace()).zip(head);
        let bases = Bases::new(folder, record.started_at.into());
        Ok(PathComparison { bases, commit, is_final: false })
    }

    /// Compares a path, and stores the contents if they differ.
    pub(super) fn compare(
        &mut self,
        candidate: &PossibleChange<'_>,
        places: Places<'_>,
    ) -> WriteResult<ComparedPath> {
        let new = candidate.new.as_ref().map(Side::of_live).transpose();
        let old = candidate.old.as_ref().map(Side::of_old).transpose();
        let (mut old, new) = match (old, new) {
            (Ok(old), Ok(new)) => (old, new),
            // Others removed the link from the workspace.
            (Err(_), Ok(new)) if self.is_final => (None, new),
            (_, Err(error)) if self.is_final => {
                let path = candidate.path.as_bytes();
                return Err(error).during("read a change in", places.worker.path(), path);
            }
            _ => return Ok(ComparedPath::Later),
        };
        let mut orphan = None;
        if old.as_ref().is_none_or(|old| old.kind != EntryKind::File)
            && new.as_ref().is_some_and(|new| new.kind == EntryKind::File)
            && candidates::path_refusal(candidate.path).is_none()
        {
            // Another command replaced the file meanwhile, and saved the file that the worker had
            // found.
            orphan = self.bases.saved(candidate.path, places.limits).ok().flatten();
            if orphan.is_some() {
                let mode = new.as_ref().map_or(0o644, |new| new.mode);
                old = Some(Side { kind: EntryKind::File, mode, size: 0, target: None });
            }
        }
        match (old, new) {
            (None, None) => Ok(ComparedPath::Same),
            (Some(old), Some(new)) if old.kind == new.kind => {
                self.same_kind(candidate, &old, &new, orphan, places)
            }
            (old, new) => self.differing(candidate, [old.as_ref(), new.as_ref()], places),
        }
    }

    /// Describes an entry that one side lacks, or has as another kind.
    fn differing(
        &mut self,
        candidate: &PossibleChange<'_>,
        [old, new]: [Option<&Side>; 2],
        places: Places<'_>,
    ) -> WriteResult<ComparedPath> {
        let kind = match (old, new) {
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Deleted,
            _ => ChangeKind::Replaced,
        };
        let mut change = changed(candidate.path, kind, old, new);
        if refuse(&mut change, candidate, [old, new]) {
            return Ok(ComparedPath::Changed(Box::new(change)));
        }
        let file = old.map(|old| self.old_file(candidate, old, None, places)).transpose();
        let mut file = match file {
            Ok(file) => file.flatten(),
            Err(error) => return Ok(self.old_failed(change, &error)),
        };
        let content = match new.map(|new| self.new_content(candidate, new, &mut change, places)) {
            Some(NewContent::Content(content)) => Some(content),
            Some(NewContent::Later) => return Ok(ComparedPath::Later),
            Some(NewContent::None) | None => None,
        };
        if change.refused.is_some() {
            return Ok(ComparedPath::Changed(Box::new(change)));
        }
        file.iter_mut().for_each(|file| self.use_commit(candidate.path, file));
        let removed = old.map(|old| old_counts(old, file.as_ref()));
        let added = new.map(|new| new_counts(new, content.as_ref()));
        let counts = LineCounts::replaced(removed.unwrap_or_default(), added.unwrap_or_default());
        set_counts(&mut change, counts);
        if let Some(old) = old
            && !self.store_old(candidate, old, file.as_mut(), &mut change, places)?
        {
            return Ok(ComparedPath::Later);
        }
        match (content, new) {
            (Some(content), Some(new)) if change.refused.is_none() => {
                self.store_new(candidate.path, &content, new, change, places)
            }
            _ => Ok(ComparedPath::Changed(Box::new(change))),
        }
    }

    fn same_kind(
        &mut self,
        candidate: &PossibleChange<'_>,
        old: &Side,
        new: &Side,
        orphan: Option<FileContent>,
        places: Places<'_>,
    ) -> WriteResult<ComparedPath> {
        let kind = if old.mode == new.mode { ChangeKind::Modified } else { ChangeKind::Mode };
        let mut change = changed(candidate.path, kind, Some(old), Some(new));
        match new.kind {
            EntryKind::Folder | EntryKind::Special => {
                let is_refused = refuse(&mut change, candidate, [Some(old), Some(new)]);
                let is_unknown = is_refused && new.kind == EntryKind::Folder;
                if old.mode == new.mode && (!is_unknown || candidate.refused.is_none()) {
                    return Ok(ComparedPath::Same);
                }
                return Ok(ComparedPath::Changed(Box::new(change)));
            }
            EntryKind::Link => {
                if old.target == new.target {
                    return Ok(ComparedPath::Same);
                }
                change.kind = ChangeKind::Modified;
                change.base = self.base_of_entry(candidate);
                if !refuse(&mut change, candidate, [Some(old), Some(new)]) {
                    let counts = LineCounts::between(old.target_text(), new.target_text());
                    set_counts(&mut change, counts);
                }
                return Ok(ComparedPath::Changed(Box::new(change)));
            }
            EntryKind::File => {}
        }
        let content = match self.new_content(candidate, new, &mut change, places) {
            NewContent::Content(content) => content,
            NewContent::None => return Ok(ComparedPath::Changed(Box::new(change))),
            NewContent::Later => return Ok(ComparedPath::Later),
        };
        let file = self.old_file(candidate, old, orphan, places);
        let mut file = match file {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(ComparedPath::Later),
            Err(error) => return Ok(self.old_failed(change, &error)),
        };
        let limits = places.limits;
        let is_same = match (&file.content, &file.id) {
            (Some(old), _) => old.equals(&content, limits),
            (None, Some(id)) => content.id(limits).map(|new| new == *id),
            (None, None) => Ok(false),
        };
        // Equal contents with different permissions need a hash.
        let same = match is_same {
            Ok(true) if old.mode == new.mode => return Ok(ComparedPath::Same),
            Ok(true) => content.id(limits).map(Some),
            Ok(false) => {
                self.use_commit(candidate.path, &mut file);
                Ok(None)
            }
            Err(error) => Err(error),
        };
        match same {
            Ok(Some(id)) => {
                change.old = Some(old.state(Some(id.clone())));
                change.new = Some(new.state(Some(id)));
                change.base = self.base_of_entry(candidate);
                refuse(&mut change, candidate, [Some(old), Some(new)]);
                return Ok(ComparedPath::Changed(Box::new(change)));
            }
            Ok(None) => change.kind = ChangeKind::Modified,
            Err(_) if !self.is_final => return Ok(ComparedPath::Later),
            Err(error) => {
                change.refused = Some(unreadable(&error));
                return Ok(ComparedPath::Changed(Box::new(change)));
            }
        }
        if refuse(&mut change, candidate, [Some(old), Some(new)]) {
            change.base = Base::Unknown;
            return Ok(ComparedPath::Changed(Box::new(change)));
        }
        if file.content.is_some() {
            set_counts(&mut change, count_lines(file.content.as_ref(), Some(&content)));
        }
        if !self.store_old(candidate, old, Some(&mut file), &mut change, places)? {
            return Ok(ComparedPath::Later);
        }
        if change.refused.is_some() {
            return Ok(ComparedPath::Changed(Box::new(change)));
        }
        self.store_new(candidate.path, &content, new, change, places)
    }

    /// Returns the base of a change without contents: unknown if others may have changed the entry.
    fn base_of_entry(&self, candidate: &PossibleChange<'_>) -> Base {
        match candidate.old {
            Some(OldEntry::Live(live)) if !self.bases.is_proved(&live.stat) => Base::Unknown,
            _ => Base::None,
        }
    }

    fn old_file(
        &self,
        candidate: &PossibleChange<'_>,
        old: &Side,
        orphan: Option<FileContent>,
        places: Places<'_>,
    ) -> Result<Option<OldFile>> {
        if let Some(content) = orphan {
            let content = Some(content);
            return Ok(Some(OldFile { content, proof: Proof::Saved, id: None }));
        }
        if old.kind != EntryKind::File {
            return Ok(None);
        }
        let limits = places.limits;
        match candidate.old {
            None => Ok(None),
            Some(OldEntry::Live(live)) => {
                let (content, proof) = match self.bases.read(candidate.path, &live, limits) {
                    Ok(OldContent { content, proof }) => (Some(content), proof),
                    // Others removed the file from the workspace.
                    Err(error) if is_gone(&error) && self.is_final => (None, Proof::None),
                    Err(error) => return Err(error),
                };
                Ok(Some(OldFile { content, proof, id: None }))
            }
            Some(OldEntry::Copied(entry)) => {
                let id = ContentHash { size: entry.size, sha256: entry.sha256.clone() };
                let workspace = places.workspace;
                let content = self.bases.read_copied(candidate.path, workspace, &id.sha256, limits);
                let proof = Proof::Fresh;
                Ok(Some(OldFile { content: content.unwrap_or(None), proof, id: Some(id) }))
            }
        }
    }

    /// Takes the content of the commit with which the worker began in place of one that nobody can
    /// prove: both sides come from it, so it shows a diff and can be merged.
    fn use_commit(&self, path: &RelPath, file: &mut OldFile) {
        let Some((git, head)) = self.commit.as_ref().filter(|_| file.proof == Proof::None) else {
            return;
        };
        let Ok(path) = std::str::from_utf8(path.as_bytes()) else { return };
        let found = git.output(&["cat-file", "blob", &format!("{head}:{path}")], b"");
        let found = found.ok().filter(|found| found.code == Some(0));
        if let Some(found) = found.filter(|found| found.out.len() as u64 <= MEMORY_MAX) {
            let content = Some(FileContent::Small(found.out));
            *file = OldFile { content, proof: Proof::Committed, id: None };
        }
    }

    fn old_failed(&self, mut change: ChangedFile, error: &Error) -> ComparedPath {
        if is_gone(error) && !self.is_final {
            return ComparedPath::Later;
        }
        change.base = Base::Unknown;
        let reason = || format!("its old content cannot be read: {error}");
        change.refused = Some(describe_limit(error).unwrap_or_else(reason));
        ComparedPath::Changed(Box::new(change))
    }

    fn new_content(
        &self,
        candidate: &PossibleChange<'_>,
        new: &Side,
        change: &mut ChangedFile,
        places: Places<'_>,
    ) -> NewContent {
        let Some(entry) = candidate.new.filter(|_| new.kind == EntryKind::File) else {
            return NewContent::None;
        };
        if !self.is_final && new.size > MEMORY_MAX && !is_settled(&entry) {
            return NewContent::Later;
        }
        let read = |file| FileContent::read(file, places.limits);
        match self.open_new(&entry).and_then(read) {
            Ok(content) => NewContent::Content(content),
            Err(error) if is_gone(&error) && !self.is_final => NewContent::Later,
            Err(error) => {
                change.refused = Some(unreadable(&error));
                NewContent::None
            }
        }
    }

    fn open_new(&self, entry: &LiveEntry<'_>) -> Result<OpenFile> {
        match entry.folder.open_file(entry.name) {
            Err(Error::Io(rustix::io::Errno::ACCESS)) if self.is_final => {}
            opened => return opened.map(|(file, _)| file),
        }
        // The worker may have taken the right to read from the owner, who is this user.
        let closed = entry.folder.open_entry(entry.name)?;
        set_mode(&closed, entry.stat.mode | OWNER_READ)?;
        let opened = entry.folder.open_file(entry.name);
        set_mode(&closed, entry.stat.mode)?;
        opened.map(|(file, _)| file)
    }

    /// Stores the content before, if it is proved. Returns false if the worker is in the way.
    fn store_old(
        &mut self,
        candidate: &PossibleChange<'_>,
        old: &Side,
        file: Option<&mut OldFile>,
        change: &mut ChangedFile,
        places: Places<'_>,
    ) -> WriteResult<bool> {
        let Some(file) = file else {
            if old.kind == EntryKind::Link {
                change.base = self.base_of_entry(candidate);
            }
            return Ok(true);
        };
        change.base = Base::Unknown;
        let Some(content) = file.content.as_mut() else {
            change.old = Some(old.state(file.id.clone()));
            return Ok(true);
        };
        let limits = places.limits;
        if file.proof == Proof::None {
            match content.id(limits) {
                Err(error) if describe_limit(&error).is_some() => refuse_unread(change, &error),
                id => change.old = Some(old.state(id.ok())),
            }
            return Ok(true);
        }
        let path = candidate.path.as_bytes();
        if file.proof == Proof::Fresh {
            let is_unchanged = |stored: &ContentHash| match (&file.id, candidate.old) {
                (Some(id), _) => stored == id,
                (None, Some(OldEntry::Live(live))) => {
                    live.folder.stat(live.name).is_ok_and(|stat| stat == Some(live.stat))
                }
                (None, _) => false,
            };
            match self.bases.save(candidate.path, content, limits, is_unchanged) {
                Ok(true) => {}
                Ok(false) => {
                    change.old = Some(old.state(file.id.clone()));
                    return Ok(true);
                }
                Err(error) if describe_limit(&error).is_some() => {
                    refuse_unread(change, &error);
                    return Ok(self.is_final);
                }
                Err(error) => return Err(error).during("write", &self.bases.path(), path),
            }
        }
        match put(places.worker, BASE, candidate.path, content, limits) {
            Ok(id) => {
                change.old = Some(old.state(Some(id)));
                let is_committed = file.proof == Proof::Committed;
                change.base = if is_committed { Base::Commit } else { Base::Saved };
                Ok(true)
            }
            Err(_) if !self.is_final => Ok(false),
            Err(error) if describe_limit(&error).is_some() => {
                refuse_unread(change, &error);
                Ok(true)
            }
            Err(error) => Err(error).during("write", &places.worker.path().join(BASE), path),
        }
    }

    fn store_new(
        &self,
        path: &RelPath,
        content: &FileContent,
        new: &Side,
        mut change: ChangedFile,
        places: Places<'_>,
    ) -> WriteResult<ComparedPath> {
        match put(places.worker, CHANGES, path, content, places.limits) {
            Ok(id) => {
                change.new = Some(new.state(Some(id)));
                Ok(ComparedPath::Changed(Box::new(change)))
            }
            Err(_) if !self.is_final => Ok(ComparedPath::Later),
            Err(error) if describe_limit(&error).is_some() => {
                refuse_unread(&mut change, &error);
                Ok(ComparedPath::Changed(Box::new(change)))
            }
            Err(error) => {
                Err(error).during("write", &places.worker.path().join(CHANGES), path.as_bytes())
            }
        }
    }
}

enum NewContent {
    Content(FileContent),
    /// There is none, or it cannot be read.
    None,
    Later,
}

fn put(
    worker: &Dir,
    tree: &str,
    path: &RelPath,
    content: &FileContent,
    limits: ReadLimits<'_>,
) -> Result<ContentHash> {
    let name = Name::new(tree)?;
    content::enter_or_replace(worker, &name)?;
    // The file in the workspace may be private, or in a private folder.
    let root = worker.enter_or_create_private(&name)?;
    content.hashed(limits, |reader| content::store_content(&root, path, reader)).map(|(_, id)| id)
}

fn is_settled(entry: &LiveEntry<'_>) -> bool {
    let age = SystemTime::now().duration_since(entry.stat.ctime.to_system());
    age.is_ok_and(|age| age >= SETTLED)
}

fn changed(
    path: &RelPath,
    kind: ChangeKind,
    old: Option<&Side>,
    new: Option<&Side>,
) -> ChangedFile {
    ChangedFile {
        path: ChangedPath::new(path),
        kind,
        old: old.map(|side| side.state(None)),
        new: new.map(|side| side.state(None)),
        added: 0,
        removed: 0,
        is_binary: false,
        base: Base::None,
        refused: None,
    }
}

/// Refuses a change if the limits prevented reading one of its contents.
fn refuse_unread(change: &mut ChangedFile, error: &Error) {
    change.refused = Some(unreadable(error));
    change.base = Base::Unknown;
}

/// Sets the reason if the change can never be applied. Returns true if there is one.
fn refuse(
    change: &mut ChangedFile,
    candidate: &PossibleChange<'_>,
    sides: [Option<&Side>; 2],
) -> bool {
    let is_special = sides.into_iter().flatten().any(|side| side.kind == EntryKind::Special);
    let file_size = |side: &Side| if side.kind == EntryKind::File { side.size } else { 0 };
    let size = sides.into_iter().flatten().map(file_size).max().unwrap_or_default();
    let reason = candidate.refused.clone().or_else(|| candidates::path_refusal(candidate.path));
    let reason = reason.or_else(|| candidates::size_refusal(size));
    change.refused = reason.or_else(|| is_special.then(|| SPECIAL.to_owned()));
    if change.refused.is_some()
        && change.old.as_ref().is_some_and(|old| old.kind == EntryKind::File)
    {
        change.base = Base::Unknown;
    }
    change.refused.is_some()
}

/// Returns the counts of lines if everything is removed. Git sees the target of a link as a line.
fn old_counts(old: &Side, file: Option<&OldFile>) -> LineCounts {
    match old.kind {
        EntryKind::File => count_lines(file.and_then(|file| file.content.as_ref()), None),
        _ => LineCounts::between(old.target_text(), None),
    }
}

fn new_counts(new: &Side, content: Option<&FileContent>) -> LineCounts {
    match new.kind {
        EntryKind::File => count_lines(None, content),
        _ => LineCounts::between(None, new.target_text()),
    }
}

fn set_counts(change: &mut ChangedFile, counts: LineCounts) {
    change.added = counts.added;
    change.removed = counts.removed;
    change.is_binary = counts.is_binary;
}
