//! How large an excerpt may be.

use std::fmt;
use std::str::FromStr;

/// A bound in bytes for a whole generated file, from 0 to [`Budget::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Budget(usize);

impl Budget {
    /// The largest budget: 64 MiB.
    pub const MAX: Budget = Budget(64 << 20);
    /// What a worker's evidence.txt takes if nothing is said.
    pub const WORKER: Budget = Budget(16_000);
    /// What the evidence.txt of a run or the swarm takes if nothing is said. Tools that show a command's output to an
    /// agent commonly cut at 30,000 characters; a larger file would be cut a second time.
    pub const SWARM: Budget = Budget(28_000);

    /// Reads a size: digits with nothing behind (bytes), `k` (1,024) or `M` (1,048,576). The error is a sentence.
    pub fn parse(text: &str) -> Result<Budget, String> {
        let wrong =
            || format!("`{}` is no size: digits, then nothing, k or M, as in 500, 4k or 1M", text.escape_debug());
        let (digits, unit) = match text.strip_suffix('k') {
            Some(digits) => (digits, 1 << 10),
            None => match text.strip_suffix('M') {
                Some(digits) => (digits, 1 << 20),
                None => (text, 1),
            },
        };
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(wrong());
        }
        let bytes = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(unit));
        match bytes.filter(|bytes| *bytes <= Budget::MAX.0) {
            Some(bytes) => Ok(Budget(bytes)),
            None => Err(format!("{text} is too large: a budget is at most 64M")),
        }
    }

    /// The bound in bytes.
    pub fn bytes(self) -> usize {
        self.0
    }
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Budget, String> {
        Budget::parse(text)
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_digits_with_a_unit() {
        for (text, bytes) in [("0", 0), ("500", 500), ("4k", 4_096), ("1M", 1 << 20), ("64M", 64 << 20), ("007", 7)] {
            assert_eq!(Budget::parse(text).map(Budget::bytes), Ok(bytes), "{text}");
        }
        for text in
            ["", "k", "4K", "4m", "-1", "+1", "1.5k", "4kk", " 4", "65M", "99999999999999999999", "2000tok", "٤"]
        {
            assert!(Budget::parse(text).is_err(), "{text}");
        }
    }
}
