//! Translates Python dictionaries, as printed by `repr()`, to JSON.

use serde::de::IgnoredAny;

/// Characters that may follow a comma or a colon.
const SPACES: [char; 4] = [' ', '\t', '\r', '\n'];
/// Maximum number of open brackets, as in the parser of JSON.
const DEPTH_MAX: usize = 127;

/// Translates the `repr()` of a dictionary in one pass, without recursion. A key that is not a
/// string becomes an empty one. A value without an equivalent becomes a list, which is empty if
/// Python considers the value false.
///
/// Other text gives `None`, or text that is not valid JSON.
pub fn to_json(text: &[u8]) -> Option<Vec<u8>> {
    let mut rest = std::str::from_utf8(text).ok()?;
    let mut json = Vec::with_capacity(text.len());
    let mut open: Vec<OpenBracket> = Vec::new();
    loop {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-');
        let length = rest.find(|c| !is_word(c))?.max(1);
        let (token, after) = rest.split_at_checked(length)?;
        let from_token = std::mem::replace(&mut rest, after);
        match (token, open.last_mut()) {
            ("{", _) => open.push(OpenBracket::new('}', &mut json)),
            (_, None) => return None,
            ("[", _) => open.push(OpenBracket::new(']', &mut json)),
            ("(", _) => open.push(OpenBracket::new(')', &mut json)),
            ("}" | "]" | ")", _) => {
                let bracket = open.pop().filter(|bracket| token.starts_with(bracket.closing))?;
                bracket.close(&mut json)?;
                let Some(outer) = open.last_mut() else {
                    return (rest.is_empty() && json.starts_with(b"{")).then_some(json);
                };
                outer.has_unhashable |= token != ")" || bracket.has_unhashable;
            }
            (",", Some(bracket)) => {
                json.push(b',');
                bracket.commas += 1;
                bracket.item = json.len();
                bracket.has_unhashable &= !bracket.is_dict;
                rest = rest.trim_start_matches(SPACES);
            }
            (":", Some(bracket)) => {
                bracket.end_key(&mut json)?;
                json.push(b':');
                rest = rest.trim_start_matches(SPACES);
            }
            ("'" | "\"", _) => {
                let (value, after) = decode_string(from_token)?;
                rest = after;
                serde_json::to_writer(&mut json, &value).ok()?;
            }
            ("b", _) => {
                let (value, after) = decode_string(rest)?;
                let literal = rest.get(..rest.len() - after.len())?;
                rest = Some(after).filter(|_| literal.is_ascii())?;
                json.extend(if value.is_empty() { "[]" } else { "[0]" }.bytes());
            }
            ("set", Some(bracket)) => {
                rest = rest.strip_prefix("()")?;
                bracket.has_unhashable = true;
                json.extend(b"[]");
            }
            ("None", _) => json.extend(b"null"),
            ("True", _) => json.extend(b"true"),
            ("False", _) => json.extend(b"false"),
            ("inf" | "-inf" | "nan" | "...", _) => json.extend(b"[0]"),
            (number, _) if number.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => {
                json.extend(number.bytes());
            }
            _ => return None,
        }
        if open.len() > DEPTH_MAX {
            return None;
        }
    }
}

struct OpenBracket {
    closing: char,
    /// Position in the JSON, as also in `item`.
    start: usize,
    item: usize,
    commas: usize,
    is_dict: bool,
    /// True if something that cannot be a key was read: in a dictionary, since the last comma.
    has_unhashable: bool,
}

impl OpenBracket {
    fn new(closing: char, json: &mut Vec<u8>) -> OpenBracket {
        let start = json.len();
        json.push(if closing == '}' { b'{' } else { b'[' });
        OpenBracket {
            closing,
            start,
            item: start + 1,
            commas: 0,
            is_dict: false,
            has_unhashable: false,
        }
    }

    /// Ends a key. Checks one that is not a string, since the JSON does not contain it.
    fn end_key(&mut self, json: &mut Vec<u8>) -> Option<()> {
        let key = json.get(self.item..)?;
        if self.closing == '}' && !key.starts_with(b"\"") {
            serde_json::from_slice::<IgnoredAny>(key).ok().filter(|_| !self.has_unhashable)?;
            json.truncate(self.item);
            json.extend(b"\"\"");
        }
        self.is_dict = true;
        Some(())
    }

    fn close(&self, json: &mut Vec<u8>) -> Option<()> {
        let is_empty = json.len() == self.start + 1;
        if self.closing == ')' && !is_empty {
            let ends_with_comma = self.item == json.len();
            match self.commas {
                0 => return None,
                1 if ends_with_comma && self.item > self.start + 2 => drop(json.pop()),
                _ => {}
            }
        }
        let is_set = self.closing == '}' && !self.is_dict && !is_empty;
        if is_set {
            *json.get_mut(self.start).filter(|_| !self.has_unhashable)? = b'[';
        }
        json.push(if self.closing == '}' && !is_set { b'}' } else { b']' });
        Some(())
    }
}

/// Decodes the string that `text` starts with. Returns its value and the text after it.
fn decode_string(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let mut rest = text.get(1..)?;
    let mut value = String::new();
    loop {
        let end = memchr::memchr2(quote as u8, b'\\', rest.as_bytes())?;
        let (plain, after) = rest.split_at_checked(end)?;
        if plain.bytes().any(|byte| byte.is_ascii_control()) {
            return None;
        }
        value.push_str(plain);
        let mut after = after.chars();
        if after.next()? == quote {
            return Some((value, after.as_str()));
        }
        let escape = after.next()?;
        rest = after.as_str();
        let digits = match escape {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        value.push(match escape {
            '\\' | '\'' | '"' => escape,
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            _ if digits > 0 => {
                let (code, after) = rest.split_at_checked(digits)?;
                rest = after;
                let is_code = code.bytes().all(|byte| byte.is_ascii_hexdigit());
                let code = u32::from_str_radix(code, 16)
                    .ok()
                    .filter(|code| is_code && *code <= u32::from(char::MAX))?;
                // Python keeps a lone surrogate as a character of its own.
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return None,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(text: &str) -> Option<serde_json::Value> {
        serde_json::from_slice(&to_json(text.as_bytes())?).ok()
    }

    #[test]
    fn printed_values_are_translated() {
        let escapes = r#"'"\\\n\r\t\x00\xe9\u2028\U0001f600\udc80'"#;
        for (value, json) in [
            ("None", "null"),
            ("[True, False]", "[true,false]"),
            ("-1", "-1"),
            ("1e+16", "1e+16"),
            ("inf", "[0]"),
            ("-inf", "[0]"),
            ("nan", "[0]"),
            (r"'it\'s'", r#""it's""#),
            (r#""it's""#, r#""it's""#),
            (escapes, r#""\"\\\n\r\t\u0000\u00e9\u2028\ud83d\ude00\ufffd""#),
            (r"b'\xff\''", "[0]"),
            ("b''", "[]"),
            ("()", "[]"),
            ("(1,)", "[1]"),
            ("(1, (2, 3))", "[1,[2,3]]"),
            ("set()", "[]"),
            ("{1, 'a'}", r#"[1,"a"]"#),
            ("{'a': {}, (1, 'b'): [],\n 'c': {...}}", r#"{"a":{},"":[],"c":[[0]]}"#),
        ] {
            let wanted: serde_json::Value = serde_json::from_str(json).unwrap();
            let found = translated(&format!("{{'a': {value}}}"));
            assert_eq!(found.unwrap()["a"], wanted, "{value}");
        }
    }

    #[test]
    fn other_text_is_not_translated() {
        for value in [
            "",
            "nope",
            "none",
            "True1",
            "set",
            "set(1)",
            "f'a'",
            "r'a'",
            "1 2",
            "\u{a0}1",
            "\u{b}1",
            "01",
            "1_0",
            "0x1",
            "1.",
            "--1",
            "-True",
            "1j",
            "'a",
            "'a\nb'",
            "'''a'''",
            "'a' 'b'",
            "'a''b'",
            r"'\x4'",
            r"'\x+1'",
            r"'\U00110000'",
            r"'\d'",
            "b'é'",
            "(1)",
            "(,)",
            "(1, 2,)",
            "[1,]",
            "[1 2]",
            "[1,,2]",
            "[1}",
            "[1",
            "1]",
            "{1, 2: 3}",
            "{1: 2, 3}",
            "{1: 2: 3}",
            "{[1]: 2}",
            "{1, []}",
            "{([],): 1}",
            "{1 2: 3}",
            "{1:}",
            "{:1}",
            "(1, 2: 3)",
            "x.y",
            "<object at 0x1>",
        ] {
            assert_eq!(translated(&format!("{{'a': {value}}}")), None, "{value:?}");
        }
        for text in ["", "1", "['a']", "{1}", "{'a': 1} ", "{'a': 1}, 2", "{", "}", "{}}"] {
            assert_eq!(translated(text), None, "{text:?}");
        }
    }

    #[test]
    fn brackets_nest_as_deep_as_in_json() {
        let nested = |n: usize| format!("{{'a': {}{}}}", "[".repeat(n), "]".repeat(n));
        assert!(translated(&nested(DEPTH_MAX - 1)).is_some());
        assert_eq!(to_json(nested(DEPTH_MAX).as_bytes()), None);
    }
}
