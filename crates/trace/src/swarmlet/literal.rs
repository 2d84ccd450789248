//! A value in an output, reduced to the fields that decide its outcome. Other values are skipped,
//! so an output of millions of values costs no memory.

use std::borrow::Cow;

use serde::de::{IgnoredAny, MapAccess, SeqAccess};
use serde_json::Number;

use super::super::lenient::{Lenient, deserialize_lenient};

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Literal {
    #[default]
    Null,
    Bool(bool),
    Number(f64),
    /// Any other value; true if Python considers it true.
    Truthy(bool),
    Object(OutcomeFields),
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct OutcomeFields {
    pub(super) ok: Option<Box<Literal>>,
    pub(super) exit_code: Option<Box<Literal>>,
    pub(super) status_code: Option<Box<Literal>>,
    pub(super) data: Option<Box<Literal>>,
    pub(super) is_non_empty: bool,
}

impl OutcomeFields {
    /// Notes that the object has a field, and returns the slot of `key` if outcomes are derived
    /// from it.
    pub(super) fn slot(&mut self, key: &str) -> Option<&mut Option<Box<Literal>>> {
        self.is_non_empty = true;
        match key {
            "ok" => Some(&mut self.ok),
            "exit_code" => Some(&mut self.exit_code),
            "status_code" => Some(&mut self.status_code),
            "data" => Some(&mut self.data),
            _ => None,
        }
    }
}

impl Literal {
    /// Returns a number, rounded away from zero so that 0.5 is not 0. Returns `None` for anything
    /// else, and for a number beyond any exit code or status.
    pub(super) fn as_integer(&self) -> Option<i64> {
        match self {
            Literal::Number(n) if n.abs() < 9e15 => {
                Some(if *n > 0.0 { n.ceil() } else { n.floor() } as i64)
            }
            _ => None,
        }
    }

    /// Returns true for any value that is neither null nor an integer in range.
    pub(super) fn is_not_a_number(&self) -> bool {
        !matches!(self, Literal::Null) && self.as_integer().is_none()
    }

    /// Returns true if Python considers the value false.
    pub(super) fn is_falsy(&self) -> bool {
        match self {
            Literal::Null | Literal::Bool(false) | Literal::Truthy(false) => true,
            Literal::Bool(true) | Literal::Truthy(true) => false,
            Literal::Number(n) => *n == 0.0,
            Literal::Object(fields) => !fields.is_non_empty,
        }
    }
}

deserialize_lenient!([] Literal;);

impl<'de> Lenient<'de> for Literal {
    fn from_bool(value: bool) -> Self {
        Literal::Bool(value)
    }

    fn from_number(value: Number) -> Self {
        value.as_f64().map_or(Literal::Truthy(true), Literal::Number)
    }

    fn from_text(value: Cow<'de, str>) -> Self {
        Literal::Truthy(!value.is_empty())
    }

    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut any = false;
        while list.next_element::<IgnoredAny>()?.is_some() {
            any = true;
        }
        Ok(Literal::Truthy(any))
    }

    fn from_object<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut fields = OutcomeFields::default();
        while let Some(key) = map.next_key::<String>()? {
            match fields.slot(&key) {
                Some(slot) => *slot = Some(Box::new(map.next_value()?)),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Literal::Object(fields))
    }
}
