//! JSON text that is safe to print, and bytes in hexadecimal.

use crate::digest::to_hex;
use crate::name::is_unprintable;

/// Escapes every character in JSON text that could move a cursor, reverse a line or hide text.
/// Outside strings there are none but line feeds, so the value does not change.
pub fn printable(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c != '\n' && is_unprintable(c) {
            let mut units = [0; 2];
            c.encode_utf16(&mut units)
                .iter()
                .for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    out
}

/// Decodes a part of a string literal, up to the end of the literal if the part has it. Returns
/// `None` if it is not part of a literal.
pub fn decode_literal(part: &str) -> Option<String> {
    let literal = format!("\"{part}\"");
    serde_json::Deserializer::from_str(&literal).into_iter::<String>().next()?.ok()
}

/// Returns the bytes of a name or path in hexadecimal, or `None` if it is UTF-8.
pub fn hex(name: &[u8]) -> Option<String> {
    let is_text = std::str::from_utf8(name).is_ok();
    (!is_text).then(|| to_hex(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unprintable_characters_are_escaped_without_changing_the_value() {
        let text = "a\u{9b}2J\u{202e}\u{7f}\u{200b}\u{e0041}\n";
        let json = printable(&serde_json::to_string(text).unwrap());
        assert!(json.bytes().all(|b| (b' '..=b'~').contains(&b)), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
