//! The file of `mount --owners`: which user each owner is.
//!
//! It is a JSON object from the ids of owners to user names or numbers:
//! `{"alice": "alice", "build-bot": 998}`.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, bail};
use nix::unistd::{Uid, User};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de};

use super::terminal::display_path;
use crate::fuse::OwnerDir;
use crate::name::{printable, to_file_name};
use crate::tree::FileOwner;

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
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<MappedOwner>> {
    let text = read_text(path)
        .with_context(|| format!("cannot read the owners in {}", display_path(path)))?;
    parse(&text, &|name| Ok(User::from_name(name)?), &|uid| Ok(User::from_uid(uid)?))
        .with_context(|| format!("cannot use the owners in {}", display_path(path)))
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    let file = std::fs::File::open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        bail!("it is not a regular file");
    }
    if meta.mode() & WRITABLE_BY_OTHERS != 0 {
        bail!(
            "other users can write it, and so choose what they see; try `chmod go-w {}`",
            super::terminal::shell_quote(path)
        );
    }
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
            let error = format!("{:#}", read(&path).unwrap_err());
            assert!(error.contains("other users can write it"), "{error}");
        }
        set_mode(0o644).unwrap();
        assert_eq!(read(&path).unwrap().len(), 1);
        assert!(format!("{:#}", read(folder.path()).unwrap_err()).contains("not a regular file"));
    }
}
