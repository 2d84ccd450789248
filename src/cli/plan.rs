//! A validated mount: the stores to mount, the mountpoint, the users of `mount --owners`, the
//! prices, and the log of reads.
//!
//! The file of `mount --owners` is a JSON object from the ids of owners to user names or numbers:
//! `{"alice": "alice", "build-bot": 998}`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, bail};
use nix::unistd::{Uid, User};
use rustix::fs::OFlags;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::discover::{state_folder, user_folder};
use super::exit::UsageError;
use super::mount_options::MountOptions;
use super::mountinfo::{Mount, MountTable};
use super::store_selection::{StoreSelection, canonical};
use super::terminal::{QuietArg, display_path};
use super::{diagnosis, log};
use crate::cache::vary;
use crate::catalog::{Freshness, STALE_AFTER};
use crate::digest::{digest, to_hex};
use crate::fuse::{MountAccess, MountExtras, MountListing, OwnerDir, OwnerDirs, Session, Trees};
use crate::model::{Prices, add_programs};
use crate::name::{printable, to_file_name};
use crate::read_log::{LIMIT_DEFAULT, ReadLog};
use crate::text::budget::Budget;
use crate::text::count;
use crate::tree::{FileOwner, InoRange, Settings, Tree};
use crate::view::{Filter, View};

/// A validated mount: every path is absolute, and all checks that do not read the store have
/// passed.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Absolute and resolved.
    pub(super) mountpoint: PathBuf,
    /// Contains at least one store.
    pub(super) options: MountOptions,
    /// The owners who have a directory each, if the mount is for several.
    owners: Option<Vec<MappedOwner>>,
    prices: Option<Arc<Prices>>,
}

pub(super) struct MountContent {
    /// One view, or one for each owner.
    pub(super) views: Vec<View>,
    /// A text for people, such as the number of workers.
    pub(super) description: String,
}

pub(super) struct MountedSession {
    pub(super) session: Session,
    /// Device of the mount. Its mountpoint may be moved or covered at any time.
    pub(super) device: String,
}

impl Plan {
    /// Starts the log. Without a log file it goes to stderr in the foreground, otherwise nowhere.
    pub(super) fn start_log(&self) -> anyhow::Result<()> {
        log::start(self.options.log.as_deref(), self.options.foreground)
    }

    /// Plans a mount of `options` at `mountpoint`, and reads the files of owners and of prices, if
    /// there are any.
    ///
    /// # Errors
    ///
    /// The file of owners or of prices is invalid.
    pub(super) fn new(mountpoint: PathBuf, options: MountOptions) -> anyhow::Result<Plan> {
        let owners = options.owners.as_deref().map(read_owners).transpose()?;
        let prices = read_prices(options.prices.as_deref())?;
        Ok(Plan { mountpoint, options, owners, prices })
    }

    pub(super) fn read(&self) -> anyhow::Result<MountContent> {
        let options = &self.options;
        let mut freshness = Freshness::default();
        if let Some(seconds) = options.ttl {
            freshness.finished = Duration::from_secs(seconds.into());
        }
        let filter = Filter { owner: options.owner.clone(), run: options.run.clone() };
        let (stores, hard_links) = (options.stores.clone(), options.hard_links);
        let selection = StoreSelection {
            stores,
            format: options.format(),
            hard_links,
            stale_after: options.stale.unwrap_or(STALE_AFTER),
            cache: options.cache.clone(),
            objects: options.objects.clone(),
            filter,
            // A mount shows no progress itself.
            quiet: QuietArg::new(true),
        };
        let Some(owners) = &self.owners else {
            let view = selection.open(freshness)?;
            return Ok(MountContent { description: view.describe(), views: vec![view] });
        };
        let ids = owners.iter().map(|owner| owner.id.as_str());
        let views = selection.open_for_owners(freshness, ids)?;
        let workers: usize = views.iter().map(|view| view.visible().members.len()).sum();
        let description =
            format!("{} of {}", count(workers, "worker"), count(owners.len(), "owner"));
        Ok(MountContent { views, description })
    }

    /// Returns the trees of `views`, and the directories around them if there are several.
    fn trees(&self, views: Vec<View>) -> anyhow::Result<(Trees, Option<OwnerDirs>)> {
        let budget = self.options.budget.as_deref().map(Budget::parse);
        let settings = Settings {
            budget: budget.transpose().map_err(UsageError)?,
            prices: self.prices.clone(),
            // Before the threads of the mount are confined.
            prose: self
                .options
                .model
                .start(self.prices.clone(), || self.options.cache.open(&self.options.stores))?,
            ..Settings::default()
        };
        let Some(owners) = &self.owners else {
            let view = views.into_iter().next().context("there is no view to show")?;
            return Ok((Trees::One(Arc::new(Tree::new(view, settings))), None));
        };
        let settings = Settings { trees: owners.len(), ..settings };
        let dirs = || owners.iter().map(|mapped| &mapped.dir);
        let places = dirs().zip(InoRange::split(owners.len()));
        let tree = |((dir, range), view): ((&OwnerDir, InoRange), View)| {
            Arc::new(Tree::of_reader(view, settings.clone(), range, Some(dir.user)))
        };
        let trees = Trees::Owners(places.zip(views).map(tree).collect());
        Ok((trees, Some(OwnerDirs::new(dirs().cloned().collect()))))
    }

    /// Checks that stores can be attached and detached.
    ///
    /// # Errors
    ///
    /// The mount records the reads of its only store.
    pub(super) fn check_stores_can_change(&self) -> anyhow::Result<()> {
        if self.options.audit {
            bail!(
                "the stores of this mount cannot change, since it has --audit; mount the other \
                 store elsewhere"
            );
        }
        Ok(())
    }

    fn read_log(&self) -> anyhow::Result<Option<ReadLog>> {
        if !self.options.audit {
            return Ok(None);
        }
        let folder = reads_folder(&self.options.stores)?;
        let limit = self.options.audit_max.unwrap_or(LIMIT_DEFAULT);
        let log = ReadLog::start(&folder, limit);
        log.map(Some).with_context(|| {
            let folder = display_path(&folder);
            format!("cannot write the log of reads in {folder}; try without --audit")
        })
    }

    pub(super) fn mount(&self, content: MountContent) -> anyhow::Result<MountedSession> {
        let is_shared = self.options.allow_other || self.owners.is_some();
        let access = if is_shared { MountAccess::Everyone } else { MountAccess::Mounter };
        let (trees, owner_dirs) = self.trees(content.views)?;
        let listing =
            MountListing { source: self.options.source.clone(), no_exec: self.options.no_exec };
        let extras = MountExtras { log: self.read_log()?, owner_dirs, listing };
        let session = crate::fuse::mount_with(trees, &self.mountpoint, access, extras)
            .map_err(|error| diagnosis::diagnose_mount(&error).or_without_mount())?;
        let mounts = MountTable::read()?;
        let mount = mounts.at(&self.mountpoint).filter(|mount| Mount::is_ours(mount));
        let mount = mount.with_context(|| {
            format!("{} was unmounted again by another process", display_path(&self.mountpoint))
        })?;
        Ok(MountedSession { session, device: mount.device.clone() })
    }
}

const SIZE_MAX: u64 = 4 << 20;
/// Maximum number of owners: each has a tree, and a part of the inode numbers.
const OWNERS_MAX: usize = 4_096;
const WRITABLE_BY_OTHERS: u32 = 0o022;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MappedOwner {
    pub(super) id: String,
    pub(super) dir: OwnerDir,
}

/// Reads the owners from the file at `path`. They are sorted by the name of their directory.
///
/// # Errors
///
/// The file cannot be read, others can write it, it has another form, or it names an unknown user.
fn read_owners(path: &Path) -> anyhow::Result<Vec<MappedOwner>> {
    let text = read_trusted(path)
        .with_context(|| format!("cannot read the owners in {}", display_path(path)))?;
    parse(&text, &|name| Ok(User::from_name(name)?), &|uid| Ok(User::from_uid(uid)?))
        .with_context(|| format!("cannot use the owners in {}", display_path(path)))
}

/// Reads a list of prices from the file at `path`, if there is one.
///
/// # Errors
///
/// The file cannot be read, or is no list of prices.
pub(super) fn read_prices(path: Option<&Path>) -> anyhow::Result<Option<Arc<Prices>>> {
    let Some(path) = path else { return Ok(None) };
    let read = || {
        Prices::parse(read_text(&open_regular(path)?.0)?.as_bytes()).map_err(|error| {
            anyhow::anyhow!("{error}; `swarmletfs cost --help` shows the form of the file")
        })
    };
    let prices = read().with_context(|| format!("cannot use the prices in {}", display_path(path)));
    Ok(Some(Arc::new(prices?)))
}

/// Reads the programs that the user names as checks, if there is a list of them.
///
/// # Errors
///
/// The list cannot be read, or has a line of another form.
pub(super) fn read_own_programs() -> anyhow::Result<()> {
    let Some(folder) = user_folder("XDG_CONFIG_HOME", ".config") else { return Ok(()) };
    let path = folder.join("swarmletfs/checks");
    let file = match open_regular(&path) {
        Err(error) if is_absent(&error) => return Ok(()),
        file => file.and_then(|(file, _)| read_text(&file)),
    };
    let add =
        |list: String| add_programs(&list).map(|()| vary(list.as_bytes())).map_err(Error::msg);
    file.and_then(add)
        .with_context(|| format!("cannot use the list of checks {}", display_path(&path)))
}

fn is_absent(error: &Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    let kind = error.downcast_ref().map(io::Error::kind);
    matches!(kind, Some(NotFound | NotADirectory | PermissionDenied))
}

fn open_regular(path: &Path) -> anyhow::Result<(File, Metadata)> {
    // Opening a FIFO must not wait for a writer.
    let file = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        bail!("it is not a regular file");
    }
    Ok((file, meta))
}

fn read_trusted(path: &Path) -> anyhow::Result<String> {
    let (file, meta) = open_regular(path)?;
    if meta.mode() & WRITABLE_BY_OTHERS != 0 {
        bail!(
            "other users can write it, and so choose what they see; try `chmod go-w {}`",
            super::terminal::shell_quote(path)
        );
    }
    read_text(&file)
}

fn read_text(file: &File) -> anyhow::Result<String> {
    let mut text = String::new();
    file.take(SIZE_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > SIZE_MAX {
        bail!("it is larger than {} MB", SIZE_MAX >> 20);
    }
    Ok(text)
}

/// Parses the file's `text`. `by_name` and `by_uid` find a user of this machine.
fn parse(
    text: &str,
    by_name: &dyn Fn(&str) -> anyhow::Result<Option<User>>,
    by_uid: &dyn Fn(Uid) -> anyhow::Result<Option<User>>,
) -> anyhow::Result<Vec<MappedOwner>> {
    let OwnerUsers(users) = serde_json::from_str(text).context(
        "expected a JSON object of owners and users, such as {\"alice\": \"alice\", \"bot\": 998}",
    )?;
    if users.is_empty() {
        bail!("it names no owner");
    }
    if users.len() > OWNERS_MAX {
        bail!("it names {} owners; a mount can have {OWNERS_MAX}", users.len());
    }
    let mut owners = Vec::with_capacity(users.len());
    for (id, user) in users {
        let user = match user {
            UserRef::Name(name) => match by_name(&name)? {
                Some(user) => FileOwner { uid: user.uid.as_raw(), gid: user.gid.as_raw() },
                None => bail!(
                    "there is no user {}; name another, or give a number",
                    printable(name.as_bytes())
                ),
            },
            // The user may be one of a container, without a name here. The group has no rights.
            UserRef::Number(uid) => {
                let group = by_uid(Uid::from_raw(uid))?.map(|user| user.gid);
                FileOwner { uid, gid: group.unwrap_or(nix::unistd::getegid()).as_raw() }
            }
        };
        let name = to_file_name(&id, &[]);
        owners.push(MappedOwner { id, dir: OwnerDir { name, user } });
    }
    owners.sort_by(|a, b| a.dir.name.cmp(&b.dir.name));
    Ok(owners)
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected the name or the number of a user")]
enum UserRef {
    Number(u32),
    Name(String),
}

#[derive(Debug)]
struct OwnerUsers(BTreeMap<String, UserRef>);

impl<'de> Deserialize<'de> for OwnerUsers {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<OwnerUsers, D::Error> {
        struct EachOnce;

        impl<'de> Visitor<'de> for EachOnce {
            type Value = OwnerUsers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of owners and users")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OwnerUsers, A::Error> {
                let mut users = BTreeMap::new();
                while let Some((id, user)) = map.next_entry::<String, UserRef>()? {
                    if id.is_empty() {
                        return Err(de::Error::custom("an owner's id cannot be empty"));
                    }
                    // Taking either could show one user the workers of another.
                    if users.insert(id.clone(), user).is_some() {
                        let id = printable(id.as_bytes());
                        return Err(de::Error::custom(format!("the owner {id} is there twice")));
                    }
                }
                Ok(OwnerUsers(users))
            }
        }

        source.deserialize_map(EachOnce)
    }
}

/// Returns the directory of the log of reads of these stores, in the state directory of this user.
///
/// # Errors
///
/// A store cannot be found, or this user has no home directory.
pub(super) fn reads_folder(stores: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let state = state_folder().context(
        "cannot place the log of reads: neither $XDG_STATE_HOME nor $HOME is set; set one",
    )?;
    let mut hash = blake3::Hasher::new();
    for store in stores {
        let path = canonical(store)
            .with_context(|| format!("cannot find {}", super::terminal::display_path(store)))?;
        hash.update(path.as_os_str().as_bytes()).update(b"\0");
    }
    let key: [u8; 8] = digest(&hash);
    Ok(state.join("reads").join(to_hex(&key)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn parsed(text: &str) -> anyhow::Result<Vec<(String, String, u32)>> {
        let user = |uid: u32, name: &str| User {
            name: name.into(),
            passwd: c"".into(),
            uid: Uid::from_raw(uid),
            gid: nix::unistd::Gid::from_raw(uid + 1),
            gecos: c"".into(),
            dir: "/".into(),
            shell: "/".into(),
        };
        let by_name = |name: &str| Ok((name == "alice").then(|| user(1_001, name)));
        let owners = parse(text, &by_name, &|_| Ok(None))?;
        let shown = owners
            .into_iter()
            .map(|MappedOwner { id, dir }| (id, dir.name.display(), dir.user.uid));
        Ok(shown.collect())
    }

    #[test]
    fn users_are_named_or_numbered() {
        let owners = parsed(r#"{"b/c": 7, "a": "alice", "..": 0}"#).unwrap();
        let expected = [("..", "%2E.", 0), ("a", "a", 1_001), ("b/c", "b%2Fc", 7)];
        assert_eq!(owners, expected.map(|(id, name, uid)| (id.into(), name.into(), uid)));
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (text, named) in [
            ("", "expected a JSON object"),
            ("[]", "expected a JSON object"),
            ("{}", "names no owner"),
            (r#"{"a": 1, "b": 2, "a": 3}"#, "the owner a is there twice"),
            (r#"{"": 1}"#, "cannot be empty"),
            (r#"{"a": "bob"}"#, "there is no user bob"),
            (r#"{"a": -1}"#, "the name or the number of a user"),
            (r#"{"a": 4294967296}"#, "the name or the number of a user"),
            (r#"{"a": null}"#, "the name or the number of a user"),
        ] {
            let error = format!("{:#}", parsed(text).unwrap_err());
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_others_can_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("owners.json");
        std::fs::write(&path, r#"{"a": 0}"#).unwrap();
        let set_mode = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode));
        for mode in [0o664, 0o646] {
            set_mode(mode).unwrap();
            let error = format!("{:#}", read_owners(&path).unwrap_err());
            assert!(error.contains("other users can write it"), "{error}");
        }
        set_mode(0o644).unwrap();
        assert_eq!(read_owners(&path).unwrap().len(), 1);
        assert!(
            format!("{:#}", read_owners(folder.path()).unwrap_err()).contains("not a regular file")
        );
    }
}
