//! Finds the changes of paths that programs run unasked.
//!
//! Names are compared as the most forgiving file system would compare them. A path counts by its
//! own names, by the repository of git that it belongs to, and by the links and the settings of git
//! that lead to it. So the workspace is inspected, too: a repository can be made of old entries and
//! new ones. A link also counts if it leads into the store.

mod table;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use swarmletfs_base::error::Result;
use swarmletfs_base::model::{EntryKind, EntryState, decode};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::Kind;
use swarmletfs_base::unicode::visible;
use swarmletfs_record::write::{Dir, Durability, EntryMeta, from_io};
use table::{HOOKS, REPOSITORY, SETTINGS, STORE, TABLE, UnaskedEntry};

/// The file that stands for the directory of git, and the start of its content.
const GIT_FILE: &str = ".git";
const GIT_DIR: &[u8] = b"gitdir:";
const GIT_FILE_MAX: u64 = 8 << 10;
/// Most links that are followed for one path.
const LINKS_MAX: usize = 40;
/// Most entries of a listed folder that are searched for links.
const ENTRIES_MAX: usize = 2_000;
/// Number of letters of a long name in its short form, as `gitmod~1`.
const SHORT_NAME: usize = 6;
/// Number of letters of a long name in a short form with a hash, as `gi7eba~1`.
const HASHED_NAME: usize = 2;

#[derive(Debug, Clone, Copy, Default)]
pub struct PathRules {
    /// Allows paths that git runs.
    pub allows_git: bool,
    /// Allows paths that other programs run.
    pub allows_programs: bool,
}

impl PathRules {
    fn allows(self, is_of_git: bool) -> bool {
        if is_of_git { self.allows_git } else { self.allows_programs }
    }
}

/// A change of one path, reduced to the parts that matter here.
#[derive(Clone, Copy)]
pub(super) struct ChangedEntry<'a> {
    pub(super) path: &'a RelPath,
    /// The entry afterwards; `None` if there is none.
    state: Option<&'a EntryState>,
}

impl<'a> ChangedEntry<'a> {
    pub(super) fn new(path: &'a RelPath, state: Option<&'a EntryState>) -> ChangedEntry<'a> {
        ChangedEntry { path, state }
    }

    fn kind(self) -> Option<EntryKind> {
        self.state.map(|state| state.kind)
    }

    fn target(self) -> Option<Vec<u8>> {
        self.state?.target.as_deref().map(decode)
    }
}

/// Folded names of a path. Equal ones may be one path, by the file system of the workspace.
type FoldedPath = Vec<String>;

/// The places of one workspace that count by more than their names.
#[derive(Debug, Default)]
pub(super) struct UnaskedPaths {
    repositories: BTreeSet<FoldedPath>,
    /// Paths that links with listed names lead to, or through.
    targets: Vec<(FoldedPath, &'static UnaskedEntry)>,
    into_store: BTreeSet<RelPath>,
}

enum Destination {
    Inside(RelPath),
    Outside(PathBuf),
    /// Too many links, or no path.
    Nowhere,
}

#[derive(Debug, Default)]
struct RepositoryParts {
    has_head: bool,
    has_objects: bool,
    has_refs: bool,
    has_common_dir: bool,
}

impl RepositoryParts {
    fn add(&mut self, name: &str) {
        match name {
            "head" => self.has_head = true,
            "objects" => self.has_objects = true,
            "refs" => self.has_refs = true,
            "commondir" => self.has_common_dir = true,
            _ => {}
        }
    }

    fn is_repository(&self) -> bool {
        self.has_head && (self.has_objects && self.has_refs || self.has_common_dir)
    }
}

impl UnaskedPaths {
    /// Inspects the folders of `changes`, as they are in the `workspace` and as they will be, and
    /// the links that would lead into `store`.
    pub(super) fn find<'a>(
        workspace: Option<&Dir>,
        store: &Path,
        changes: impl IntoIterator<Item = ChangedEntry<'a>>,
    ) -> UnaskedPaths {
        let mut folders: BTreeSet<RelPath> = BTreeSet::new();
        let mut parts: BTreeMap<FoldedPath, RepositoryParts> = BTreeMap::new();
        let mut links: BTreeMap<RelPath, Vec<u8>> = BTreeMap::new();
        for change in changes {
            let parent = change.path.parent();
            if let (Some(name), Some(_)) = (change.path.file_name(), change.kind()) {
                parts.entry(folded(&parent)).or_default().add(&fold(&name));
            }
            links.extend(change.target().map(|target| (change.path.clone(), target)));
            let mut folder = Some(parent);
            while let Some(new) = folder.take_if(|folder| !folders.contains(folder)) {
                folder = (!new.is_root()).then(|| new.parent());
                folders.insert(new);
            }
        }
        let mut found = UnaskedPaths::default();
        if let Some(workspace) = workspace {
            found.look_into_git(workspace);
            for folder in &folders {
                let parts = parts.entry(folded(folder)).or_default();
                found.look_into(workspace, folder, parts);
            }
            let store = real_path(store);
            for (path, target) in &links {
                let destination =
                    destination(workspace, &links, &path.parent(), target.clone(), |_| ());
                let is_in_store = |path: &Path| {
                    let path = real_path(path);
                    store
                        .as_ref()
                        .is_some_and(|store| path.is_some_and(|path| path.starts_with(store)))
                };
                if matches!(destination, Destination::Outside(path) if is_in_store(&path)) {
                    found.into_store.insert(path.clone());
                }
            }
        }
        let repositories = parts.into_iter().filter(|(_, parts)| parts.is_repository());
        found.repositories.extend(repositories.map(|(folder, _)| folder));
        found
    }

    /// Adds the paths that the workspace's repository runs or reads: the files that its settings
    /// name, and its hooks, each of which can be a link.
    fn look_into_git(&mut self, workspace: &Dir) {
        let root = RelPath::root();
        for path in named_paths(workspace) {
            self.follow(workspace, &root, path, &SETTINGS);
        }
        let Some(hooks) = hooks_folder(workspace) else { return };
        if let Destination::Inside(hooks) = self.follow(workspace, &root, hooks, &HOOKS) {
            self.follow_links_in(workspace, hooks, &HOOKS);
        }
    }

    /// Adds the listed entries of a folder of the workspace. Unreadable ones are skipped: nothing
    /// is applied there, either.
    fn look_into(&mut self, workspace: &Dir, folder: &RelPath, parts: &mut RepositoryParts) {
        let names = workspace.enter(folder).and_then(|folder| folder.list()).unwrap_or_default();
        let mut path = folded(folder);
        for name in names {
            path.push(fold(&name));
            parts.add(path.last().map_or("", String::as_str));
            for entry in entries_at(&path) {
                let target = target_of(workspace, &folder.join(&name), entry);
                if let Some(target) = target.ok().flatten() {
                    self.follow(workspace, folder, target, entry);
                } else if entry.path != GIT_FILE {
                    self.follow_links_in(workspace, folder.join(&name), entry);
                }
            }
            path.pop();
        }
    }

    /// Adds the targets of the links in a folder with a listed name, or beneath it.
    fn follow_links_in(&mut self, workspace: &Dir, folder: RelPath, entry: &'static UnaskedEntry) {
        let mut folders = vec![folder];
        let mut left = ENTRIES_MAX;
        while let Some(folder) = folders.pop() {
            let names = workspace.enter(&folder).and_then(|folder| folder.list());
            for path in names.unwrap_or_default().iter().map(|name| folder.join(name)) {
                let Some(fewer) = left.checked_sub(1) else { return };
                left = fewer;
                match workspace.entry(&path).ok().flatten().map(|meta| meta.kind) {
                    Some(Kind::Folder) => folders.push(path),
                    Some(Kind::Link) => {
                        if let Ok(target) = workspace.link_target(&path) {
                            self.follow(workspace, &folder, target, entry);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// Adds the path to which `target` leads from `folder`, and the links on the way.
    fn follow(
        &mut self,
        workspace: &Dir,
        folder: &RelPath,
        target: Vec<u8>,
        entry: &'static UnaskedEntry,
    ) -> Destination {
        let mut passed = Vec::new();
        let to = destination(workspace, &BTreeMap::new(), folder, target, |link| {
            passed.push(folded(link));
        });
        if let Destination::Inside(path) = &to {
            passed.push(folded(path));
        }
        self.targets.extend(passed.into_iter().map(|path| (path, entry)));
        to
    }

    /// Returns the reason to leave `change` out unless `rules` allow it; `None` if no program runs
    /// it unasked.
    pub(super) fn refusal(&self, change: ChangedEntry<'_>, rules: PathRules) -> Option<String> {
        let path = folded(change.path);
        // Each folder of the path, from the root down, and then the path itself.
        let beginnings = || (0..=path.len()).filter_map(|end| path.get(..end));
        let is_above = change.kind().is_some_and(|kind| kind != EntryKind::Folder);
        let leads_here =
            |target: &[String]| path.starts_with(target) || is_above && target.starts_with(&path);
        let linked = self.targets.iter().filter(|(target, _)| leads_here(target));
        let linked = linked.map(|(_, entry)| *entry);
        let mut entries = beginnings().flat_map(entries_at).chain(linked);
        if let Some(entry) = entries.find(|entry| !rules.allows(entry.is_of_git)) {
            return Some(with_cure(entry.reason, entry.is_of_git));
        }
        if self.into_store.contains(change.path) && !rules.allows(STORE.is_of_git) {
            return Some(with_cure(STORE.reason, STORE.is_of_git));
        }
        let is_in_repository =
            beginnings().any(|folder| folder != path && self.repositories.contains(folder));
        (is_in_repository && !rules.allows(true)).then(|| with_cure(REPOSITORY, true))
    }
}

/// Returns the listed entries that match the last names of a path.
fn entries_at(path: &[String]) -> impl Iterator<Item = &'static UnaskedEntry> {
    static BY_NAME: LazyLock<HashMap<&str, Vec<&UnaskedEntry>>> = LazyLock::new(|| {
        let mut by_name: HashMap<&str, Vec<&UnaskedEntry>> = HashMap::new();
        for entry in TABLE {
            let name = entry.path.rsplit('/').next().unwrap_or_default();
            by_name.entry(name.trim_start_matches('*')).or_default().push(entry);
        }
        by_name
    });
    let name = path.last().map_or("", String::as_str);
    let named = |key: &str| BY_NAME.get(key).into_iter().flatten().copied();
    let end = name.rfind('.').filter(|dot| *dot > 0).and_then(|dot| name.get(dot..));
    // A short form can stand for any entry.
    let short = if name.contains('~') { TABLE } else { &[] };
    let entries = named(name).chain(end.into_iter().flat_map(named)).chain(short);
    entries.filter(|entry| entry.is_at(path))
}

impl UnaskedEntry {
    /// Returns true if the last names of a path match this entry.
    fn is_at(&self, path: &[String]) -> bool {
        let mut names = path.iter().rev();
        self.path.rsplit('/').all(|part| names.next().is_some_and(|name| is_called(name, part)))
    }
}

/// Returns true if a folded name opens the entry `listed` on some file system.
fn is_called(name: &str, listed: &str) -> bool {
    match listed.strip_prefix('*') {
        Some(end) => name.ends_with(end),
        None => name == listed || is_short_form(name, listed),
    }
}

/// Returns true if a folded name may be the short form of `listed` on a file system like vfat, such
/// as `git~1` for `.git`.
fn is_short_form(name: &str, listed: &str) -> bool {
    let Some((base, number)) = name.split_once('~') else { return false };
    let long = listed.trim_start_matches('.').split('.').next().unwrap_or_default();
    let begins = |letters: usize| base.get(..letters) == Some(long.get(..letters).unwrap_or(long));
    let has_hash = base.len() == SHORT_NAME
        && begins(HASHED_NAME)
        && base.bytes().skip(HASHED_NAME).all(|byte| byte.is_ascii_hexdigit());
    let is_cut = base == long.get(..SHORT_NAME).unwrap_or(long);
    number.starts_with(|first: char| first.is_ascii_digit()) && (is_cut || has_hash)
}

/// Folds a name as file systems do that ignore case, invisible characters, and spaces and dots at
/// its end.
fn fold(name: &Name) -> String {
    let text = name.to_text();
    let text = text.split([':', '\\']).next().unwrap_or_default();
    let text = visible(text);
    // Twice, since some letters have the same upper case only.
    let text = text.trim_end_matches([' ', '.']).to_uppercase();
    text.to_lowercase()
}

fn folded(path: &RelPath) -> FoldedPath {
    path.names().map(|name| fold(&name)).collect()
}

/// Returns the destination of `target` from `folder`, and calls `pass` with each link on the way.
/// The links in `new` count as if they were in the workspace.
fn destination(
    workspace: &Dir,
    new: &BTreeMap<RelPath, Vec<u8>>,
    folder: &RelPath,
    target: Vec<u8>,
    mut pass: impl FnMut(&RelPath),
) -> Destination {
    let (mut at, mut rest, mut links) = (folder.clone(), Vec::new(), 0);
    let outside = |start: &Path, rest: Vec<Vec<u8>>| {
        let rest: PathBuf = rest.iter().rev().map(|name| OsStr::from_bytes(name)).collect();
        Destination::Outside(start.join(rest))
    };
    let mut next = Some(target);
    loop {
        if let Some(target) = next.take() {
            links += 1;
            if links > LINKS_MAX {
                return Destination::Nowhere;
            }
            let Some(inside) = inside(workspace, &target) else {
                return outside(Path::new(OsStr::from_bytes(&target)), rest);
            };
            if target.starts_with(b"/") {
                at = RelPath::root();
            }
            rest.extend(inside.rsplit(|byte| *byte == b'/').map(<[u8]>::to_vec));
        }
        let Some(name) = rest.pop() else { return Destination::Inside(at) };
        match name.as_slice() {
            b"" | b"." => {}
            b".." if at.is_root() => return outside(&workspace.path().join(".."), rest),
            b".." => at = at.parent(),
            name => {
                let Ok(name) = Name::new(name) else { return Destination::Nowhere };
                let path = at.join(&name);
                let is_link = |meta: EntryMeta| meta.kind == Kind::Link;
                let known = || {
                    let is_link = workspace.entry(&path).ok().flatten().is_some_and(is_link);
                    is_link.then(|| workspace.link_target(&path).unwrap_or_default())
                };
                next = new.get(&path).cloned().or_else(known);
                if next.is_some() {
                    pass(&path);
                } else {
                    at = path;
                }
            }
        }
    }
}

/// Returns a path without links, as far as its folders can be opened; `None` if none can.
fn real_path(path: &Path) -> Option<PathBuf> {
    path.ancestors().find_map(|above| {
        let real = Dir::open(above, Durability::None).ok()?.real_path().ok()?;
        Some(real.join(path.strip_prefix(above).ok()?))
    })
}

/// Returns the destination of an entry with a listed name: the target of a link, or the directory
/// that a file `.git` names.
fn target_of(workspace: &Dir, path: &RelPath, entry: &UnaskedEntry) -> Result<Option<Vec<u8>>> {
    match workspace.entry(path)?.map(|meta| meta.kind) {
        Some(Kind::Link) => workspace.link_target(path).map(Some),
        Some(Kind::File) if entry.path == GIT_FILE => {
            let mut content = Vec::new();
            let file = workspace.open_workspace_file(path)?;
            file.take(GIT_FILE_MAX).read_to_end(&mut content).map_err(from_io)?;
            Ok(content.strip_prefix(GIT_DIR).map(|path| path.trim_ascii().to_vec()))
        }
        _ => Ok(None),
    }
}

/// Returns an absolute target relative to the root of the workspace, and any other target
/// unchanged; `None` for an absolute one outside the workspace.
fn inside<'t>(workspace: &Dir, target: &'t [u8]) -> Option<&'t [u8]> {
    if !target.starts_with(b"/") {
        return Some(target);
    }
    let root = workspace.path().as_os_str().as_bytes();
    let inside = target.strip_prefix(root.strip_suffix(b"/").unwrap_or(root))?;
    (inside.is_empty() || inside.starts_with(b"/")).then_some(inside)
}

fn with_cure(reason: &str, is_of_git: bool) -> String {
    let flag = if is_of_git { "--git-dir" } else { "--with-programs" };
    format!("{reason}; try {flag}")
}

/// Last parts of the names of settings whose values are commands, or files that name commands.
const RUN: [&[u8]; 22] = [
    b"askpass",
    b"attributesfile",
    b"browser",
    b"clean",
    b"cmd",
    b"command",
    b"difffilter",
    b"driver",
    b"editor",
    b"external",
    b"fsmonitor",
    b"gitproxy",
    b"helper",
    b"packobjectshook",
    b"pager",
    b"process",
    b"program",
    b"receivepack",
    b"smudge",
    b"sshcommand",
    b"textconv",
    b"uploadpack",
];
/// Groups of settings that are all commands.
const GROUPS: [&[u8]; 2] = [b"alias.", b"pager."];
const SETTINGS_MAX: usize = 10_000;

/// Returns the files from which git takes settings, the files that they include, and the words of
/// commands that can be paths. All are absolute, or relative to the workspace.
fn named_paths(workspace: &Dir) -> Vec<Vec<u8>> {
    let listed =
        run_git(workspace, &["config", "--list", "--show-origin", "-z"]).unwrap_or_default();
    let mut fields = listed.split(|byte| *byte == 0);
    let mut paths = Vec::new();
    for _ in 0..SETTINGS_MAX {
        let (Some(origin), Some(setting)) = (fields.next(), fields.next()) else { break };
        let file = origin.strip_prefix(b"file:").unwrap_or_default();
        paths.extend(
            Some(file.to_vec()).filter(|file| !file.is_empty() && paths.last() != Some(file)),
        );
        let mut setting = setting.splitn(2, |byte| *byte == b'\n');
        let (Some(key), Some(value)) = (setting.next(), setting.next()) else { continue };
        let last = key.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
        if key.starts_with(b"include") && last == b"path" {
            let folder = Path::new(std::ffi::OsStr::from_bytes(file)).parent();
            let included = Path::new(std::ffi::OsStr::from_bytes(value));
            let path = folder.unwrap_or(Path::new("")).join(included);
            paths.push(path.into_os_string().into_vec());
        } else if RUN.contains(&last) || GROUPS.iter().any(|group| key.starts_with(group)) {
            paths.extend(words(value));
        }
    }
    paths
}

/// Returns the words of a command that can be paths. The first one is looked up in `$PATH`, unless
/// it has a slash.
fn words(command: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let words = command.split(|byte| b" \t\n;&|()'\"!<>=$`".contains(byte));
    let words = words.filter(|word| !word.is_empty()).enumerate();
    words.filter(|(at, word)| *at > 0 || word.contains(&b'/')).map(|(_, word)| word.to_vec())
}

/// Returns the absolute path of the folder with the hooks of the workspace's repository; `None` if
/// it is in none, or git is not installed.
fn hooks_folder(workspace: &Dir) -> Option<Vec<u8>> {
    let path = run_git(workspace, &["rev-parse", "--path-format=absolute", "--git-path", "hooks"])?;
    path.strip_suffix(b"\n").map(<[u8]>::to_vec)
}

fn run_git(workspace: &Dir, arguments: &[&str]) -> Option<Vec<u8>> {
    let mut git = Command::new("git");
    git.arg("-C").arg(workspace.path()).args(arguments);
    for variable in ["GIT_DIR", "GIT_COMMON_DIR", "GIT_WORK_TREE"] {
        git.env_remove(variable);
    }
    let found = git.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    found.status.success().then_some(found.stdout)
}
