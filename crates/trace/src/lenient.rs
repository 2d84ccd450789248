//! JSON shapes that ignore values of an unexpected type, so that one odd field does not cost the
//! whole line. Ignored lists and objects are not built.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use swarmletfs_base::model::{StatedCost, Usd};

/// A string, or `None` for any other type.
#[derive(Debug, Clone, Default)]
pub(super) struct MaybeStr<'a>(pub(super) Option<Cow<'a, str>>);

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MaybeBool(pub(super) Option<bool>);

/// A non-negative integer, or `None` for any other type.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MaybeU64(pub(super) Option<u64>);

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MaybeI64(pub(super) Option<i64>);

#[derive(Debug, Clone, Default)]
pub(super) struct MaybeNumber(pub(super) Option<Number>);

/// A text: a string, or the texts of a list of parts such as `{"type": "text", "text": "…"}`,
/// joined without a separator. `None` for any other type.
#[derive(Debug, Clone, Default)]
pub(super) struct MaybeText<'a>(pub(super) Option<Cow<'a, str>>);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TextPart<'a> {
    #[serde(borrow)]
    text: MaybeStr<'a>,
}

#[derive(Debug, Clone)]
pub(super) struct MaybeObject<T>(pub(super) Option<T>);

/// Decodes a JSON object. Returns `None` for anything else.
pub(super) fn object<'a, T: Deserialize<'a>>(json: &'a str) -> Option<T> {
    serde_json::from_str::<MaybeObject<T>>(json).ok()?.0
}

/// A list of `T`, empty for any other type. `T` must accept any value.
#[derive(Debug, Clone)]
pub(super) struct MaybeList<T>(pub(super) Vec<T>);

impl<T> Default for MaybeList<T> {
    fn default() -> MaybeList<T> {
        MaybeList(Vec::new())
    }
}

impl<T> Default for MaybeObject<T> {
    fn default() -> MaybeObject<T> {
        MaybeObject(None)
    }
}

impl MaybeStr<'_> {
    pub(super) fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    pub(super) fn non_empty(&self) -> Option<String> {
        self.0.as_deref().filter(|text| !text.is_empty()).map(str::to_owned)
    }
}

impl MaybeU64 {
    pub(super) fn or_zero(self) -> u64 {
        self.0.unwrap_or_default()
    }
}

impl MaybeText<'_> {
    pub(super) fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl MaybeNumber {
    pub(super) fn as_i64(&self) -> Option<i64> {
        self.0.as_ref()?.as_i64()
    }

    /// Returns a number of dollars, if it is an amount.
    pub(super) fn as_usd(&self) -> Option<Usd> {
        Usd::from_dollars(self.0.as_ref()?.as_f64()?)
    }

    /// Returns the cost of a worker, if the number is an amount that is not zero. Programs write
    /// zero where they know no prices.
    pub(super) fn as_stated_cost(&self) -> Option<StatedCost> {
        let total = self.as_usd().filter(|total| *total > Usd::default())?;
        Some(StatedCost { total, ..StatedCost::default() })
    }

    /// Returns a number of seconds as milliseconds.
    pub(super) fn as_millis(&self) -> Option<i64> {
        let seconds = self.0.as_ref()?.as_f64()?;
        // The conversion saturates.
        Some((seconds * 1_000.0).round() as i64)
    }
}

impl MaybeBool {
    pub(super) fn is_set(self) -> bool {
        self.0 == Some(true)
    }
}

/// A type that JSON values of several types can be read as. A value of any other type becomes the
/// default.
pub(super) trait Lenient<'de>: Default {
    fn from_bool(_: bool) -> Self {
        Self::default()
    }

    fn from_number(_: Number) -> Self {
        Self::default()
    }

    fn from_text(_: Cow<'de, str>) -> Self {
        Self::default()
    }

    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }

    fn from_object<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }
}

pub(super) struct LenientVisitor<T>(pub(super) PhantomData<T>);

impl<'de, T: Lenient<'de>> Visitor<'de> for LenientVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_bool<E>(self, flag: bool) -> Result<T, E> {
        Ok(T::from_bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<T, E> {
        Ok(T::from_number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<T, E> {
        Ok(T::from_number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<T, E> {
        Ok(Number::from_f64(number).map(T::from_number).unwrap_or_default())
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<T, E> {
        Ok(T::from_text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok(T::from_text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::from_list(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::from_object(map)
    }
}

macro_rules! deserialize_lenient {
    ($([$($generics:tt)*] $type:ty;)*) => {$(
        impl<'de $($generics)*> ::serde::Deserialize<'de> for $type {
            fn deserialize<D>(deserializer: D) -> Result<Self, D::Error>
            where
                D: ::serde::Deserializer<'de>,
            {
                deserializer.deserialize_any($crate::lenient::LenientVisitor(
                    ::std::marker::PhantomData,
                ))
            }
        }
    )*};
}
pub(super) use deserialize_lenient;

deserialize_lenient! {
    [: 'a, 'a] MaybeStr<'a>;
    [] MaybeBool;
    [] MaybeU64;
    [] MaybeI64;
    [] MaybeNumber;
    [: 'a, 'a] MaybeText<'a>;
    [, T: Deserialize<'de>] MaybeObject<T>;
    [, T: Deserialize<'de>] MaybeList<T>;
}

impl<'de: 'a, 'a> Lenient<'de> for MaybeStr<'a> {
    fn from_text(text: Cow<'de, str>) -> Self {
        MaybeStr(Some(text))
    }
}

impl Lenient<'_> for MaybeBool {
    fn from_bool(flag: bool) -> Self {
        MaybeBool(Some(flag))
    }
}

impl Lenient<'_> for MaybeU64 {
    fn from_number(number: Number) -> Self {
        MaybeU64(number.as_u64())
    }
}

impl Lenient<'_> for MaybeI64 {
    fn from_number(number: Number) -> Self {
        MaybeI64(number.as_i64())
    }
}

impl Lenient<'_> for MaybeNumber {
    fn from_number(number: Number) -> Self {
        MaybeNumber(Some(number))
    }
}

impl<'de: 'a, 'a> Lenient<'de> for MaybeText<'a> {
    fn from_text(text: Cow<'de, str>) -> Self {
        MaybeText(Some(text))
    }

    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut all = Cow::Borrowed("");
        while let Some(part) = list.next_element::<MaybeObject<TextPart<'de>>>()? {
            let text = part.0.and_then(|part| part.text.0).unwrap_or_default();
            if all.is_empty() {
                all = text;
            } else {
                all.to_mut().push_str(&text);
            }
        }
        Ok(MaybeText(Some(all)))
    }
}

impl<'de, T: Deserialize<'de>> Lenient<'de> for MaybeObject<T> {
    fn from_object<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(|object| MaybeObject(Some(object)))
    }
}

impl<'de, T: Deserialize<'de>> Lenient<'de> for MaybeList<T> {
    fn from_list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        items(list, Some).map(MaybeList)
    }
}

/// Maximum memory of a list's items, in bytes. Each `{}` of a hostile list takes as much as a whole
/// object.
const LIST_BYTES_MAX: usize = 128 << 20;

/// Returns the items of a list, as far as `wanted` returns them.
pub(crate) fn items<'de, A: SeqAccess<'de>, I: Deserialize<'de>, T>(
    mut list: A,
    wanted: impl Fn(I) -> Option<T>,
) -> Result<Vec<T>, A::Error> {
    let mut items = Vec::new();
    while let Some(item) = list.next_element()? {
        items.extend(wanted(item));
        check_length(&items)?;
    }
    Ok(items)
}

/// Fails if the items take more than [`LIST_BYTES_MAX`].
pub(crate) fn check_length<T, E: serde::de::Error>(items: &[T]) -> Result<(), E> {
    match size_of_val(items) {
        ..=LIST_BYTES_MAX => Ok(()),
        _ => Err(E::custom("a list is too long")),
    }
}

/// Returns the objects of a list.
pub(crate) fn objects<'de, A: SeqAccess<'de>, T: Deserialize<'de>>(
    list: A,
) -> Result<Vec<T>, A::Error> {
    items(list, |MaybeObject(object)| object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::RawValue;

    #[derive(Deserialize, Default)]
    #[serde(default, bound(deserialize = "'de: 'a"))]
    struct Shape<'a> {
        text: MaybeStr<'a>,
        flag: MaybeBool,
        number: MaybeU64,
        inner: MaybeObject<Inner<'a>>,
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct LargeObject {
        _numbers: [[u64; 16]; 32],
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Inner<'a> {
        #[serde(borrow)]
        raw: Option<&'a RawValue>,
    }

    #[test]
    fn texts_are_strings_or_lists_of_parts() {
        for (json, text) in [
            (r#""a""#, Some("a")),
            (r#""\u0061\n""#, Some("a\n")),
            (r#"[{"type":"text","text":"a"},{"type":"image_url"},7,{"text":"b"}]"#, Some("ab")),
            ("[]", Some("")),
            ("null", None),
            (r#"{"text":"a"}"#, None),
        ] {
            let read: MaybeText<'_> = serde_json::from_str(json).unwrap();
            assert_eq!(read.0.as_deref(), text, "{json}");
        }
    }

    #[test]
    fn list_of_many_empty_objects_is_refused() {
        let list = |count: usize| format!("[{}]", vec!["{}"; count].join(","));
        type Large = MaybeList<MaybeObject<LargeObject>>;
        assert_eq!(serde_json::from_str::<Large>(&list(1_000)).unwrap().0.len(), 1_000);
        assert!(serde_json::from_str::<Large>(&list(40_000)).is_err());
    }

    #[test]
    fn numbers_of_any_kind_are_read() {
        for (json, whole, millis) in [
            ("-1", Some(-1), Some(-1_000)),
            ("1773066512.3302476", None, Some(1_773_066_512_330)),
            ("18446744073709551615", None, Some(i64::MAX)),
            ("1e300", None, Some(i64::MAX)),
            (r#""1""#, None, None),
        ] {
            let read: MaybeNumber = serde_json::from_str(json).unwrap();
            assert_eq!((read.as_i64(), read.as_millis()), (whole, millis), "{json}");
        }
    }

    #[test]
    fn a_field_of_an_unexpected_type_does_not_affect_the_others() {
        let right = r#"{"text":"a","flag":true,"number":7,"inner":{"raw":[1, {"b":2}]}}"#;
        let shape: Shape<'_> = serde_json::from_str(right).unwrap();
        assert_eq!(
            (shape.text.as_str(), shape.flag.is_set(), shape.number.0),
            ("a", true, Some(7))
        );
        assert_eq!(shape.inner.0.unwrap().raw.unwrap().get(), r#"[1, {"b":2}]"#);
        for odd in [
            "null",
            "true",
            "-1",
            "1.5",
            "\"x\"",
            "[1,{\"a\":[]}]",
            "{\"raw\":1}",
            "18446744073709551616",
        ] {
            for field in ["text", "flag", "number", "inner"] {
                let line = format!(r#"{{"{field}":{odd},"more":[{odd}],"{}":"rest"}}"#, "unknown");
                let shape: Shape<'_> =
                    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
                assert_eq!(shape.text.0.is_some(), field == "text" && odd == "\"x\"", "{line}");
                assert_eq!(shape.flag.0.is_some(), field == "flag" && odd == "true", "{line}");
                assert_eq!(
                    shape.inner.0.is_some(),
                    field == "inner" && odd.starts_with("{\"raw"),
                    "{line}"
                );
            }
        }
    }
}
