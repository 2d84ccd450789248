//! JSON shapes that ignore values of an unexpected type, so that one odd field does not cost the
//! whole line. Ignored values are not built.

use std::borrow::Cow;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

/// A string, or `None` for any other type.
#[derive(Debug, Clone, Default)]
pub(super) struct MaybeStr<'a>(pub(super) Option<Cow<'a, str>>);

/// A boolean, or `None` for any other type.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MaybeBool(pub(super) Option<bool>);

/// A non-negative integer, or `None` for any other type.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MaybeU64(pub(super) Option<u64>);

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
