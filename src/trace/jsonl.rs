//! Lines of JSON, one object each, read in pieces: the last line may be torn, a line may be huge, a line may be junk.

use serde::de::DeserializeOwned;

use crate::error::Result;
use crate::store::{File, read_range};

/// Read at once, in bytes.
const PIECE: usize = 1 << 20;
/// A longer line is skipped and counted, in bytes.
const LINE_MAX: usize = 16 << 20;
/// What lies behind this is not read, in bytes.
const FILE_MAX: u64 = 256 << 20;

/// Calls `each` with every line of `file` that decodes as `T`; returns how many others there were. Empty lines do
/// not count, and a last line without its newline is tried and, if torn, not counted.
pub(super) fn for_each<T: DeserializeOwned>(file: &dyn File, mut each: impl FnMut(T)) -> Result<u64> {
    let mut bad = 0;
    let mut take = |line: &[u8], torn: bool| match serde_json::from_slice(line) {
        Ok(value) => each(value),
        Err(_) if torn || line.trim_ascii().is_empty() => {}
        Err(_) => bad += 1,
    };
    let mut carry: Vec<u8> = Vec::new();
    let mut too_long = false;
    let mut offset = 0;
    while offset < FILE_MAX {
        let piece = read_range(file, offset, PIECE)?;
        if piece.is_empty() {
            break;
        }
        offset += piece.len() as u64;
        let mut rest = piece.as_slice();
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            if too_long {
                take(b"!", false);
            } else if carry.is_empty() {
                take(line, false);
            } else {
                carry.extend_from_slice(line);
                take(&carry, false);
            }
            carry.clear();
            too_long = false;
        }
        if carry.len() + rest.len() > LINE_MAX {
            carry = Vec::new();
            too_long = true;
        } else if !too_long {
            carry.extend_from_slice(rest);
        }
    }
    if too_long {
        take(b"!", false);
    } else if !carry.is_empty() {
        take(&carry, true);
    }
    Ok(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Meta;

    struct Bytes(Vec<u8>);

    impl File for Bytes {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
            let rest = self.0.get(offset as usize..).unwrap_or_default();
            let n = rest.len().min(buffer.len());
            buffer[..n].copy_from_slice(&rest[..n]);
            Ok(n)
        }

        fn meta(&self) -> Result<Meta> {
            unreachable!("only bytes are asked for")
        }
    }

    fn numbers(text: &[u8]) -> (Vec<u64>, u64) {
        let mut seen = Vec::new();
        let bad = for_each(&Bytes(text.to_vec()), |n: u64| seen.push(n)).unwrap();
        (seen, bad)
    }

    #[test]
    fn bad_lines_are_counted_and_torn_ends_are_not() {
        assert_eq!(numbers(b"1\n\nx\n2\r\n3"), (vec![1, 2, 3], 1));
        assert_eq!(numbers(b"1\n{\"a"), (vec![1], 0));
        assert_eq!(numbers(b""), (vec![], 0));
    }

    #[test]
    fn lines_longer_than_a_piece_are_read_and_endless_ones_are_counted() {
        let mut text = vec![b' '; PIECE + 7];
        text.extend_from_slice(b"5\n6\n");
        assert_eq!(numbers(&text), (vec![5, 6], 0));
        let mut text = vec![b'7'; LINE_MAX + PIECE];
        text.extend_from_slice(b"\n8\n");
        assert_eq!(numbers(&text), (vec![8], 1));
    }
}
