//! JSON shapes that ignore values of an unexpected type, so that one odd field does not cost the
//! whole line. Ignored values are not built.

use std::borrow::Cow;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

/// A string, or `None` for any other type.
#[derive(Debug, Clone, Default)]
pub(super) struct MaybeStr<'a>(pub(super) Option<Cow<'a, str>>);

/// A boolean, or `None` for any other type.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MaybeBool(pub(super) Option<bool>);

/// A non-negative integer, or `None` for any other type.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MaybeU64(pub(super) Option<u64>);

/// A number, or `None` for any other type.
#[derive(Debug, Clone, Default)]
pub(super) struct MaybeNumber(pub(super) Option<Number>);

/// A text: a string, or the texts of a list of parts such as `{"type": "text", "text": "…"}`,
/// joined without a separator. `None` for any other type.
#[derive(Debug, Clone, Default)]
pub(super) struct MaybeText<'a>(pub(super) Option<Cow<'a, str>>);

/// A part of a text.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TextPart<'a> {
    #[serde(borrow)]
    text: MaybeStr<'a>,
}

/// An object of shape `T`, or `None` for any other type.
#[derive(Debug, Clone)]
pub(super) struct MaybeObject<T>(pub(super) Option<T>);

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
    /// Returns the string, or an empty one.
    pub(super) fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Returns the string if it is not empty.
    pub(super) fn non_empty(&self) -> Option<String> {
        self.0.as_deref().filter(|text| !text.is_empty()).map(str::to_owned)
    }
}

impl MaybeText<'_> {
    /// Returns the text, or an empty one.
    pub(super) fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl MaybeNumber {
    /// Returns the number if it is an integer.
    pub(super) fn as_i64(&self) -> Option<i64> {
        self.0.as_ref()?.as_i64()
    }

    /// Returns a number of seconds as milliseconds.
    pub(super) fn as_millis(&self) -> Option<i64> {
        let seconds = self.0.as_ref()?.as_f64()?;
        // The conversion saturates.
        Some((seconds * 1_000.0).round() as i64)
    }
}

impl MaybeBool {
    /// Returns true if the value is `true`.
    pub(super) fn is_set(self) -> bool {
        self.0 == Some(true)
    }
}

/// Adds `Visitor` methods that return the default value for the listed types.
macro_rules! ignore_kinds {
    (@kind number) => {
        ignore_kinds!(@value visit_i64(i64));
        ignore_kinds!(@kind unsigned);
        ignore_kinds!(@value visit_f64(f64));
    };
    (@kind signed) => {
        ignore_kinds!(@value visit_i64(i64));
        ignore_kinds!(@value visit_f64(f64));
    };
    (@kind unsigned) => { ignore_kinds!(@value visit_u64(u64)); };
    (@kind bool) => { ignore_kinds!(@value visit_bool(bool)); };
    (@kind str) => { ignore_kinds!(@value visit_str(&str)); };
    (@kind unit) => {
        fn visit_unit<E: ::serde::de::Error>(self) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }
    };
    (@kind seq) => {
        fn visit_seq<A: ::serde::de::SeqAccess<'de>>(
            self,
            mut seq: A,
        ) -> Result<Self::Value, A::Error> {
            while seq.next_element::<::serde::de::IgnoredAny>()?.is_some() {}
            Ok(Self::Value::default())
        }
    };
    (@kind map) => {
        fn visit_map<A: ::serde::de::MapAccess<'de>>(
            self,
            mut map: A,
        ) -> Result<Self::Value, A::Error> {
            while map.next_entry::<::serde::de::IgnoredAny, ::serde::de::IgnoredAny>()?.is_some() {}
            Ok(Self::Value::default())
        }
    };
    (@value $name:ident($kind:ty)) => {
        fn $name<E: ::serde::de::Error>(self, _: $kind) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }
    };
    ($($kind:ident)*) => {
        fn expecting(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
            f.write_str("anything")
        }
        $(ignore_kinds!(@kind $kind);)*
    };
}
pub(super) use ignore_kinds;

impl<'de: 'a, 'a> Deserialize<'de> for MaybeStr<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MaybeStr<'a>, D::Error> {
        struct Visit<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for Visit<'a> {
            type Value = MaybeStr<'a>;
            fn visit_borrowed_str<E: serde::de::Error>(
                self,
                text: &'de str,
            ) -> Result<MaybeStr<'a>, E> {
                Ok(MaybeStr(Some(Cow::Borrowed(text))))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<MaybeStr<'a>, E> {
                Ok(MaybeStr(Some(Cow::Owned(text.to_owned()))))
            }
            fn visit_string<E: serde::de::Error>(self, text: String) -> Result<MaybeStr<'a>, E> {
                Ok(MaybeStr(Some(Cow::Owned(text))))
            }
            ignore_kinds!(bool number unit seq map);
        }
        deserializer.deserialize_any(Visit(PhantomData))
    }
}

impl<'de> Deserialize<'de> for MaybeBool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MaybeBool, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = MaybeBool;
            fn visit_bool<E: serde::de::Error>(self, flag: bool) -> Result<MaybeBool, E> {
                Ok(MaybeBool(Some(flag)))
            }
            ignore_kinds!(str number unit seq map);
        }
        deserializer.deserialize_any(Visit)
    }
}

impl<'de> Deserialize<'de> for MaybeU64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MaybeU64, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = MaybeU64;
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<MaybeU64, E> {
                Ok(MaybeU64(Some(number)))
            }
            ignore_kinds!(str bool signed unit seq map);
        }
        deserializer.deserialize_any(Visit)
    }
}

impl<'de> Deserialize<'de> for MaybeNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MaybeNumber, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = MaybeNumber;
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<MaybeNumber, E> {
                Ok(MaybeNumber(Some(number.into())))
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<MaybeNumber, E> {
                Ok(MaybeNumber(Some(number.into())))
            }
            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<MaybeNumber, E> {
                Ok(MaybeNumber(Number::from_f64(number)))
            }
            ignore_kinds!(str bool unit seq map);
        }
        deserializer.deserialize_any(Visit)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for MaybeText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MaybeText<'a>, D::Error> {
        struct Visit<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for Visit<'a> {
            type Value = MaybeText<'a>;
            fn visit_borrowed_str<E: serde::de::Error>(
                self,
                text: &'de str,
            ) -> Result<MaybeText<'a>, E> {
                Ok(MaybeText(Some(Cow::Borrowed(text))))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<MaybeText<'a>, E> {
                Ok(MaybeText(Some(Cow::Owned(text.to_owned()))))
            }
            fn visit_string<E: serde::de::Error>(self, text: String) -> Result<MaybeText<'a>, E> {
                Ok(MaybeText(Some(Cow::Owned(text))))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<MaybeText<'a>, A::Error> {
                let mut texts = String::new();
                while let Some(part) = seq.next_element::<MaybeObject<TextPart<'_>>>()? {
                    texts.push_str(part.0.as_ref().map_or("", |part| part.text.as_str()));
                }
                Ok(MaybeText(Some(Cow::Owned(texts))))
            }
            ignore_kinds!(bool number unit map);
        }
        deserializer.deserialize_any(Visit(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for MaybeObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MaybeObject<T>, D::Error> {
        struct Visit<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Visit<T> {
            type Value = MaybeObject<T>;
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<MaybeObject<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
                    .map(|object| MaybeObject(Some(object)))
            }
            ignore_kinds!(str bool number unit seq);
        }
        deserializer.deserialize_any(Visit(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for MaybeList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MaybeList<T>, D::Error> {
        struct Visit<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Visit<T> {
            type Value = MaybeList<T>;
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<MaybeList<T>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(MaybeList(items))
            }
            ignore_kinds!(str bool number unit map);
        }
        deserializer.deserialize_any(Visit(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::RawValue;

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Shape<'a> {
        #[serde(borrow)]
        text: MaybeStr<'a>,
        flag: MaybeBool,
        number: MaybeU64,
        #[serde(borrow)]
        inner: MaybeObject<Inner<'a>>,
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
