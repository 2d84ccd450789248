//! The fields of a JSON object as written, to find unknown keys and values of an unexpected type.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::super::super::check::{note, problem, quote};
use super::names::most_similar;
use swarmletfs_base::model::{RemarkSubject, Remarks};
use swarmletfs_base::name::RelPath;

/// Maximum number of fields of one object that are checked.
const FIELDS_MAX: usize = 1_000;
/// Maximum number of unknown keys of one file or object that are named.
const NAMED_MAX: usize = 10;

/// The fields of a JSON object, with values that are not decoded.
#[derive(Debug)]
pub(super) struct ObjectFields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for ObjectFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ObjectFields<'de>, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = ObjectFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<ObjectFields<'de>, A::Error> {
                let mut fields = Vec::new();
                while fields.len() < FIELDS_MAX
                    && let Some(field) = map.next_entry()?
                {
                    fields.push(field);
                }
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(ObjectFields(fields))
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}

impl<'a> ObjectFields<'a> {
    /// Parses an object. Returns `None` if `bytes` are not a JSON object.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<ObjectFields<'a>> {
        serde_json::from_slice(bytes).ok()
    }

    /// Returns the value of the last field of this name, unless it is null.
    pub(super) fn get(&self, key: &str) -> Option<&'a RawValue> {
        let found = self.0.iter().rfind(|(name, _)| name == key).map(|(_, value)| *value);
        found.filter(|value| JsonType::from_value(value) != JsonType::Null)
    }

    /// Returns true if one of these fields has a value other than null.
    pub(super) fn has_any(&self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.get(key).is_some())
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| key.as_str())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JsonType {
    Null,
    Bool,
    Number,
    Text,
    List,
    Object,
}

impl JsonType {
    /// Returns the type of a value, which its first byte shows.
    pub(super) fn from_value(value: &RawValue) -> JsonType {
        match value.get().as_bytes().first() {
            Some(b'"') => JsonType::Text,
            Some(b'[') => JsonType::List,
            Some(b'{') => JsonType::Object,
            Some(b't' | b'f') => JsonType::Bool,
            Some(b'n') | None => JsonType::Null,
            Some(_) => JsonType::Number,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            JsonType::Null => "null",
            JsonType::Bool => "true or false",
            JsonType::Number => "a number",
            JsonType::Text => "a string",
            JsonType::List => "a list",
            JsonType::Object => "an object",
        }
    }
}

/// A key, and the types of its value that are read; the first one is documented.
pub(super) type TypedKey = (&'static str, &'static [JsonType]);

/// The types of a short text, which may be written as a number.
pub(super) const SCALAR: &[JsonType] = &[JsonType::Text, JsonType::Number];

pub(super) const ANY: &[JsonType] =
    &[JsonType::Object, JsonType::Text, JsonType::Number, JsonType::Bool, JsonType::List];

pub(super) struct KnownKeys {
    pub(super) keys: &'static [TypedKey],
    /// Keys that are read instead of documented ones: each with the documented one.
    pub(super) aliases: &'static [(&'static str, &'static str)],
    /// Keys that are documented although nothing reads them.
    pub(super) ignored: &'static [&'static str],
    /// True if other keys have a meaning for other programs, so that they are no cause for a note.
    pub(super) is_open: bool,
}

pub(super) struct FileRemarks<'a> {
    pub(super) path: &'a RelPath,
    pub(super) remarks: &'a mut Remarks,
    /// Precedes each remark, such as `entry 3: `.
    pub(super) prefix: String,
    /// Keys and events that nothing reads, of all objects in the file.
    unread: BTreeSet<String>,
    has_more_unread: bool,
    /// Keys that are read instead of documented ones: each with the documented one, the first
    /// place, and the number of places.
    aliases: BTreeMap<&'static str, (&'static str, RemarkSubject, u64)>,
}

impl<'a> FileRemarks<'a> {
    pub(super) fn new(path: &'a RelPath, remarks: &'a mut Remarks) -> FileRemarks<'a> {
        FileRemarks {
            path,
            remarks,
            prefix: String::new(),
            unread: BTreeSet::new(),
            has_more_unread: false,
            aliases: BTreeMap::new(),
        }
    }

    pub(super) fn problem(
        &mut self,
        kind: &'static str,
        subject: RemarkSubject,
        text: impl FnOnce() -> String,
    ) {
        let prefix = &self.prefix;
        self.remarks.add(problem(kind), self.path, subject, || format!("{prefix}{}", text()));
    }

    pub(super) fn note(
        &mut self,
        kind: &'static str,
        subject: RemarkSubject,
        text: impl FnOnce() -> String,
    ) {
        let prefix = &self.prefix;
        self.remarks.add(note(kind), self.path, subject, || format!("{prefix}{}", text()));
    }

    /// Checks the keys of an object and the types of their values. `place` precedes each key, such
    /// as `config.`. `missing` are keys without which the object is not understood.
    pub(super) fn check_fields(
        &mut self,
        fields: &ObjectFields<'_>,
        vocabulary: &KnownKeys,
        missing: &[&'static str],
        place: &str,
        subject_of: &dyn Fn(&RawValue) -> RemarkSubject,
        whole: RemarkSubject,
    ) {
        let mut unknown: Vec<String> = Vec::new();
        let mut expected: Vec<&str> = missing.to_vec();
        for (key, value) in &fields.0 {
            let value = *value;
            if let Some((_, types)) = vocabulary.keys.iter().find(|(known, _)| known == key) {
                let found = JsonType::from_value(value);
                if found != JsonType::Null && !types.contains(&found) {
                    self.problem("wrong_type", subject_of(value), || {
                        format!(
                            "{place}{key} is {}; expected {}",
                            found.as_str(),
                            types.first().map_or("nothing", |known| known.as_str())
                        )
                    });
                }
            } else if let Some((alias, meant)) =
                vocabulary.aliases.iter().find(|(alias, _)| alias == key)
            {
                let (.., number) =
                    self.aliases.entry(alias).or_insert_with(|| (meant, subject_of(value), 0));
                *number += 1;
            } else if vocabulary.ignored.contains(&key.as_str()) {
            } else {
                let absent = vocabulary
                    .keys
                    .iter()
                    .map(|(known, _)| *known)
                    .filter(|known| fields.get(known).is_none());
                match most_similar(key, absent) {
                    Some(meant) => {
                        unknown.push(key.clone());
                        if !expected.contains(&meant) {
                            expected.push(meant);
                        }
                    }
                    None if !missing.is_empty() => unknown.push(key.clone()),
                    None if vocabulary.is_open => {}
                    None => self.add_unread(shown_key(place, key)),
                }
            }
        }
        if expected.is_empty() {
            return;
        }
        self.problem("unknown_keys", whole, || {
            let keys = if unknown.len() == 1 { "key" } else { "keys" };
            let unknown = names(unknown.iter().map(String::as_str), place);
            let expected = names(expected.into_iter(), place);
            if unknown.is_empty() {
                format!("expected {expected}")
            } else {
                format!("unknown {keys} {unknown}; expected {expected}")
            }
        });
    }

    pub(super) fn add_unread(&mut self, name: String) {
        if self.unread.len() < NAMED_MAX {
            self.unread.insert(name);
        } else {
            self.has_more_unread |= !self.unread.contains(&name);
        }
    }

    /// Adds one note for each alias, and one for all that nothing reads.
    pub(super) fn finish(mut self) {
        self.prefix.clear();
        for (alias, (meant, subject, number)) in std::mem::take(&mut self.aliases) {
            let times = if number > 1 { format!(" ({number} times)") } else { String::new() };
            self.note("accepted_key", subject, || format!("{alias} is read as {meant}{times}"));
        }
        if self.unread.is_empty() {
            return;
        }
        let mut names: Vec<String> = std::mem::take(&mut self.unread).into_iter().collect();
        if self.has_more_unread {
            names.push("…".into());
        }
        let text = || format!("not read: {}", names.join(", "));
        self.note("unread_keys", RemarkSubject::Content, text);
    }
}

/// Lists keys, at most [`NAMED_MAX`].
fn names<'k>(keys: impl Iterator<Item = &'k str>, place: &str) -> String {
    let mut keys = keys.map(|key| shown_key(place, key));
    let mut shown: Vec<String> = keys.by_ref().take(NAMED_MAX).collect();
    if keys.next().is_some() {
        shown.push("…".into());
    }
    shown.join(", ")
}

/// Returns a key as shown in a remark, in quotes unless it is a plain word.
fn shown_key(place: &str, key: &str) -> String {
    let is_plain = !key.is_empty()
        && key.len() <= 40
        && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    if is_plain { format!("{place}{key}") } else { format!("{place}{}", quote(key)) }
}

/// Returns the line of `value` in `document`, of which it is a part. A document of one line has no
/// line numbers.
pub(super) fn line_in(document: &[u8], value: &RawValue) -> RemarkSubject {
    let before = (value.get().as_ptr() as usize)
        .checked_sub(document.as_ptr() as usize)
        .and_then(|at| document.get(..at));
    let newlines = |bytes: &[u8]| memchr::memchr_iter(b'\n', bytes).count() as u64;
    match before {
        Some(before) if newlines(document.trim_ascii()) > 0 => {
            RemarkSubject::Line(newlines(before) + 1)
        }
        _ => RemarkSubject::Content,
    }
}
