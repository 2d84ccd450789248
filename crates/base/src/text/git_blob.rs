//! Contents in the formats of git: object names and binary patches.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha1::{Digest, Sha1};

/// Number of bytes in a line of a binary patch.
const LINE_BYTES: usize = 52;
/// Number of bytes that the first letter of the alphabet stands for, up to the last one.
const UPPER_MAX: usize = 26;
/// The digits of base 85 in the order that git uses.
const GIT_DIGITS: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
/// The digits of base 85 in the order of Z85.
const Z85_DIGITS: &[u8; 85] =
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

pub fn blob_id(content: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", content.len()));
    hash.update(content);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the lines of a binary patch that writes `new`. With `old`, the patch can be reversed.
pub fn binary_patch(old: Option<&[u8]>, new: &[u8]) -> String {
    let reverse = old.map(literal).unwrap_or_default();
    format!("GIT binary patch\n{}{reverse}", literal(new))
}

fn literal(content: &[u8]) -> String {
    let mut out = format!("literal {}\n", content.len());
    for line in deflated(content).chunks(LINE_BYTES) {
        out.push(length_digit(line.len()));
        let mut padded = line.to_vec();
        padded.resize(line.len().next_multiple_of(4), 0);
        out.extend(z85::encode(&padded).bytes().map(git_digit));
        out.push('\n');
    }
    out.push('\n');
    out
}

fn deflated(content: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to memory cannot fail.
    let _ = encoder.write_all(content);
    encoder.finish().unwrap_or_default()
}

/// Returns the letter that states the number of bytes of a line: A to Z for 1 to 26, then a to z.
fn length_digit(bytes: usize) -> char {
    let (first, offset) = if bytes <= UPPER_MAX { (b'A', 1) } else { (b'a', UPPER_MAX + 1) };
    let offset = u8::try_from(bytes.saturating_sub(offset)).unwrap_or_default();
    char::from(first.saturating_add(offset))
}

fn git_digit(digit: u8) -> char {
    let value = Z85_DIGITS.iter().position(|other| *other == digit);
    value.and_then(|value| GIT_DIGITS.get(value)).copied().map_or('0', char::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_git() {
        assert_eq!(blob_id(b""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(blob_id(b"hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
    }

    #[test]
    fn lengths_and_digits_are_those_of_git() {
        assert_eq!([1, 26, 27, 52].map(length_digit), ['A', 'Z', 'a', 'z']);
        // Five digits stand for four bytes.
        let bytes = deflated(b"").len();
        let literal = literal(b"");
        let line = literal.strip_prefix("literal 0\n").and_then(|rest| rest.strip_suffix("\n\n"));
        assert_eq!(line.unwrap().len(), 1 + bytes.div_ceil(4) * 5, "{literal}");
        assert!(line.unwrap().starts_with(length_digit(bytes)), "{literal}");
        let digits: String = Z85_DIGITS.iter().map(|digit| git_digit(*digit)).collect();
        assert_eq!(digits.as_bytes(), GIT_DIGITS);
    }
}
