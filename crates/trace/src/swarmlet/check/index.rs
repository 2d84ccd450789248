//! Checks the store's index files.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::super::super::check::quote;
use super::super::super::value::scalar_text;
use super::super::index::{FILES, SIZE_MAX};
use super::super::layout::path;
use super::super::status::{self, StatusWord};
use super::document::{FileRemarks, JsonType, KnownKeys, ObjectFields, SCALAR};
use super::metadata::unknown_status;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::model::{RemarkSubject, Remarks};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::{Store, read_whole};

const FIELDS: KnownKeys = KnownKeys {
    keys: &[
        ("id", SCALAR),
        ("owner_id", SCALAR),
        ("task", SCALAR),
        ("task_type", SCALAR),
        ("tags", &[JsonType::List]),
        ("summary", SCALAR),
        ("status", SCALAR),
        ("created_at", SCALAR),
        ("config", &[JsonType::Object]),
    ],
    aliases: &[("worker_id", "id"), ("title", "summary")],
    ignored: &["path"],
    is_open: false,
};

pub(super) fn check(store: &dyn Store, remarks: &mut Remarks, deadline: Deadline<'_>) {
    for file in FILES.map(path) {
        let bytes = match read_whole(store, &file, SIZE_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => continue,
            Err(error) => {
                FileRemarks::new(&file, remarks).problem(
                    "unreadable",
                    RemarkSubject::Content,
                    || format!("cannot be read: {error}"),
                );
                continue;
            }
        };
        let mut remarks = FileRemarks::new(&file, remarks);
        let whole = RemarkSubject::Content;
        let Some(bytes) = bytes else {
            remarks.problem("too_long", whole, || {
                format!("larger than {SIZE_MAX} bytes, so it is not read")
            });
            continue;
        };
        let mut json = serde_json::Deserializer::from_slice(&bytes);
        let folder = file.parent();
        let mut items = ItemChecker { store, folder: &folder, remarks, deadline, seen: None };
        let read = json.deserialize_any(&mut items).and_then(|()| json.end());
        let (seen, mut remarks) = (items.seen, items.remarks);
        remarks.prefix.clear();
        match (read, seen) {
            (Err(error), _) if !error.is_data() => {
                remarks.problem("bad_index", whole, || format!("not read: {error}"));
            }
            (Err(_), _) | (Ok(()), None) => remarks.problem("bad_index", whole, || {
                "not read: expected a list of workers, or an object with a list in workers".into()
            }),
            (Ok(()), Some(_)) => {}
        }
        remarks.finish();
    }
}

struct ItemChecker<'a> {
    store: &'a dyn Store,
    /// The folder of the index file, in which its workers are.
    folder: &'a RelPath,
    remarks: FileRemarks<'a>,
    deadline: Deadline<'a>,
    /// Number of entries; `None` if there is no list.
    seen: Option<u64>,
}

impl ItemChecker<'_> {
    fn check(&mut self, number: u64, item: &RawValue) {
        let subject = RemarkSubject::Content;
        self.remarks.prefix = format!("entry {number}: ");
        let Some(fields) = ObjectFields::parse(item.get().as_bytes()) else {
            return self.remarks.problem("wrong_type", subject, || "not an object".into());
        };
        let text = |key: &str| {
            let value = serde_json::from_str(fields.get(key)?.get()).ok();
            scalar_text(value.as_ref())
        };
        let id = text("id").or_else(|| text("worker_id"));
        let missing: &[&str] = if id.is_some() { &[] } else { &["id"] };
        self.remarks.check_fields(&fields, &FIELDS, missing, "", &|_| subject, subject);
        if let Some(word) = text("status") {
            match StatusWord::parse(&word) {
                None => self.remarks.problem("status", subject, || unknown_status(&word)),
                Some(StatusWord { is_documented: false, .. }) => {
                    self.remarks.note("accepted_status", subject, || {
                        format!("status {} is read as {}", quote(&word), status::parse(&word))
                    });
                }
                Some(_) => {}
            }
        }
        let Some(id) = id else { return };
        let folder = Name::new(&id).map(|name| self.folder.join(&name));
        let is_missing = folder.is_ok_and(|folder| {
            self.store.stat_without_acl(&folder).is_err_and(|error| error.is_not_found())
        });
        if is_missing {
            self.remarks
                .note("no_folder", subject, || format!("there is no folder {}", quote(&id)));
        }
    }
}

impl<'de> Visitor<'de> for &mut ItemChecker<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of workers, or an object with a list in workers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.seen = Some(0);
        let mut number = 0;
        while self.deadline.has_time()
            && let Some(item) = list.next_element::<&RawValue>()?
        {
            number += 1;
            self.check(number, item);
        }
        self.seen = Some(number);
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "workers" {
                map.next_value_seed(ItemSeed(&mut *self))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct ItemSeed<'a, 'b>(&'a mut ItemChecker<'b>);

impl<'de> DeserializeSeed<'de> for ItemSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self.0)
    }
}
