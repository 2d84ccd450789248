//! What tells the outcome in an output that is a JSON object or a Python literal; the rest of it is passed over, so that
//! an output of millions of values costs no memory.

use std::fmt;

use py_literal::Value as Python;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A larger Python literal is plain text, in bytes: its parser is slow.
const PYTHON_MAX: usize = 1 << 20;
/// A Python literal with more brackets open at once is plain text: its parser recurses.
const PYTHON_DEPTH_MAX: usize = 64;
/// One of more values is plain text too: its parser takes some 10 µs and 300 bytes for each.
const PYTHON_VALUES_MAX: usize = 10_000;

/// A value, of which only so much is kept as outcomes are read from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    Null,
    Bool(bool),
    Number(f64),
    /// Text or a list; whether there is anything in it.
    Filled(bool),
    Object(Fields),
}

/// The fields of an object that outcomes are read from.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Fields {
    pub(super) ok: Option<Box<Literal>>,
    pub(super) exit_code: Option<Box<Literal>>,
    pub(super) status_code: Option<Box<Literal>>,
    pub(super) data: Option<Box<Literal>>,
    any: bool,
}

impl Fields {
    fn slot(&mut self, key: &str) -> Option<&mut Option<Box<Literal>>> {
        self.any = true;
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
    /// A whole number; a fraction counts as the next one away from zero, so that 0.5 is not 0. What is larger than any
    /// exit code or status is no number.
    pub(super) fn whole(&self) -> Option<i64> {
        match self {
            Literal::Number(n) if n.abs() < 9e15 => Some(if *n > 0.0 { n.ceil() } else { n.floor() } as i64),
            _ => None,
        }
    }

    /// Whether something stands here that should be a number and is none.
    pub(super) fn is_odd_number(&self) -> bool {
        !matches!(self, Literal::Null) && self.whole().is_none()
    }

    /// What Python takes for false.
    pub(super) fn is_falsy(&self) -> bool {
        match self {
            Literal::Null | Literal::Bool(false) | Literal::Filled(false) => true,
            Literal::Bool(true) | Literal::Filled(true) => false,
            Literal::Number(n) => *n == 0.0,
            Literal::Object(fields) => !fields.any,
        }
    }
}

impl<'de> Deserialize<'de> for Literal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Literal, D::Error> {
        deserializer.deserialize_any(Keep)
    }
}

struct Keep;

impl<'de> Visitor<'de> for Keep {
    type Value = Literal;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Literal, E> {
        Ok(Literal::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Literal, E> {
        Ok(Literal::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Literal, E> {
        Ok(Literal::Number(value as f64))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Literal, E> {
        Ok(Literal::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Literal, E> {
        Ok(Literal::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Literal, E> {
        Ok(Literal::Filled(!value.is_empty()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Literal, A::Error> {
        let mut any = false;
        while list.next_element::<IgnoredAny>()?.is_some() {
            any = true;
        }
        Ok(Literal::Filled(any))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Literal, A::Error> {
        let mut fields = Fields::default();
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

/// A Python dictionary literal, as older stores have it.
pub(super) fn python(text: &[u8]) -> Option<Literal> {
    if text.len() > PYTHON_MAX || depth(text) > PYTHON_DEPTH_MAX || values(text)? > PYTHON_VALUES_MAX {
        return None;
    }
    let literal: Python = std::str::from_utf8(text).ok()?.parse().ok()?;
    matches!(literal, Python::Dict(_)).then(|| keep(literal))
}

/// The most brackets open at once; more than there really are where strings hold some, which errs to safety.
fn depth(text: &[u8]) -> usize {
    let (mut open, mut most) = (0_usize, 0);
    for byte in text {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

/// How many values there are, going by what stands before or between them outside of strings. `None` where a string may
/// begin or end with several quotes, which tells nothing apart; what a program prints of itself has no such.
fn values(text: &[u8]) -> Option<usize> {
    let (mut quote, mut escaped, mut values) = (None, false, 0);
    for (at, byte) in text.iter().enumerate() {
        let is_quote = matches!(byte, b'\'' | b'"');
        if is_quote && text.get(at..at + 3).is_some_and(|three| three.iter().all(|other| other == byte)) {
            return None;
        }
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if *byte == b'\\' => escaped = true,
            Some(open) if open == byte => quote = None,
            Some(_) => {}
            None if is_quote => quote = Some(byte),
            None => values += usize::from(matches!(byte, b',' | b':' | b'(' | b'[' | b'{')),
        }
    }
    Some(values)
}

fn keep(value: Python) -> Literal {
    match value {
        Python::None => Literal::Null,
        Python::Boolean(value) => Literal::Bool(value),
        // What does not fit is surely not 0.
        Python::Integer(value) => Literal::Number(i64::try_from(value).map_or(-1.0, |n| n as f64)),
        Python::Float(value) => Literal::Number(value),
        Python::Complex(value) => Literal::Filled(value.re != 0.0 || value.im != 0.0),
        Python::String(text) => Literal::Filled(!text.is_empty()),
        Python::Bytes(bytes) => Literal::Filled(!bytes.is_empty()),
        Python::Tuple(items) | Python::List(items) | Python::Set(items) => Literal::Filled(!items.is_empty()),
        Python::Dict(pairs) => {
            let mut fields = Fields { any: !pairs.is_empty(), ..Fields::default() };
            for (key, value) in pairs {
                let Python::String(key) = key else { continue };
                if let Some(slot) = fields.slot(&key) {
                    *slot = Some(Box::new(keep(value)));
                }
            }
            Literal::Object(fields)
        }
    }
}
