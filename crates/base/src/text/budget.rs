//! Size limits of generated files, in bytes or in tokens, their shares, and the items that fit.
//!
//! Tokens are counted with a real tokenizer, since the bytes per token of prose and of logs differ
//! by half.
//!
//! A budget is shared by weight; bytes that one demand does not need go to the others.

use std::str::FromStr;
use std::sync::Once;
use std::{fmt, thread};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Budget {
    size: usize,
    unit: BudgetUnit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BudgetUnit {
    Bytes,
    /// Tokens of o200k_base.
    Tokens,
}

/// Upper estimate of the bytes per token of ordinary text.
const BYTES_PER_TOKEN: usize = 4;

impl Budget {
    /// The largest budget in bytes: 64 MiB.
    pub const MAX: Budget = Budget::bytes(64 << 20);
    /// The largest budget in tokens: 16 Mi tokens, about 64 MiB of text.
    pub const MAX_TOKENS: Budget =
        Budget { size: Budget::MAX.size / BYTES_PER_TOKEN, unit: BudgetUnit::Tokens };
    /// Default budget of a worker's evidence.txt.
    pub const WORKER: Budget = Budget::bytes(16_000);
    /// Default budget of the passages in a worker's `summary@<words>`.
    pub const FOCUS: Budget = Budget::bytes(4_000);
    /// Default budget of the evidence.txt of a run or the swarm.
    ///
    /// Tools that show the output of a command to an agent commonly truncate it at 30,000
    /// characters.
    pub const SWARM: Budget = Budget::bytes(28_000);

    /// Default budget of a worker's changes.diff. Nearly all diffs fit.
    pub const CHANGES: Budget = Budget::bytes(16 << 20);

    const fn bytes(size: usize) -> Budget {
        Budget { size, unit: BudgetUnit::Bytes }
    }

    /// Parses a size: digits, then nothing (bytes), `k` (1,024), `M` (1,048,576) or `tok` (tokens).
    /// `K`, `kB` and `KB` stand for `k`, and `MB` for `M`.
    ///
    /// # Errors
    ///
    /// Returns a message for the user if `text` is not a size or exceeds [`Budget::MAX`] or
    /// [`Budget::MAX_TOKENS`].
    pub fn parse(text: &str) -> Result<Budget, String> {
        let units = [
            ("tok", 1, Budget::MAX_TOKENS),
            ("k", 1 << 10, Budget::MAX),
            ("K", 1 << 10, Budget::MAX),
            ("kB", 1 << 10, Budget::MAX),
            ("KB", 1 << 10, Budget::MAX),
            ("M", 1 << 20, Budget::MAX),
            ("MB", 1 << 20, Budget::MAX),
        ];
        let unit = units
            .iter()
            .find_map(|(name, factor, max)| Some((text.strip_suffix(name)?, *factor, *max)));
        let (digits, factor, max) = unit.unwrap_or((text, 1, Budget::MAX));
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(format!(
                "`{}` is not a size; use digits with an optional unit, as in 500, 4k, 1M or 2000tok",
                text.escape_debug()
            ));
        }
        let size = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(factor));
        match size.filter(|size| *size <= max.size) {
            Some(size) => Ok(Budget { size, ..max }),
            None => Err(format!(
                "{text} is too large: a budget is at most 64M or {}tok",
                Budget::MAX_TOKENS.size
            )),
        }
    }

    pub fn size(self) -> usize {
        self.size
    }

    pub fn with_size(self, size: usize) -> Budget {
        Budget { size, ..self }
    }

    /// Returns the budget as it appears in the name of a file: `4k`, `2000tok`.
    pub fn name(self) -> String {
        match self.unit {
            BudgetUnit::Bytes if self.size > 0 && self.size.is_multiple_of(1 << 20) => {
                format!("{}M", self.size >> 20)
            }
            BudgetUnit::Bytes if self.size > 0 && self.size.is_multiple_of(1 << 10) => {
                format!("{}k", self.size >> 10)
            }
            BudgetUnit::Bytes => self.size.to_string(),
            BudgetUnit::Tokens => format!("{}tok", self.size),
        }
    }

    pub fn unit(self) -> BudgetUnit {
        self.unit
    }

    /// Returns the approximate number of bytes within the limit; an upper estimate for ordinary
    /// text.
    pub fn approx_bytes(self) -> usize {
        match self.unit {
            BudgetUnit::Bytes => self.size,
            BudgetUnit::Tokens => self.size * BYTES_PER_TOKEN,
        }
    }

    /// Starts loading the vocabulary that [`Budget::used`] needs, in the background.
    pub fn prepare(self) {
        if self.unit == BudgetUnit::Tokens {
            prepare();
        }
    }

    pub fn used(self, text: &str) -> usize {
        match self.unit {
            BudgetUnit::Bytes => text.len(),
            BudgetUnit::Tokens => count(text),
        }
    }

    /// Returns the first of `texts` that fits, or an empty string if none does.
    pub fn first_fitting<'a>(self, texts: impl IntoIterator<Item = &'a str>) -> &'a str {
        texts.into_iter().find(|text| self.used(text) <= self.size()).unwrap_or_default()
    }

    /// Formats `size` with the unit of the budget: `512 B`, `100 tok`.
    pub fn format_amount(self, size: usize) -> String {
        self.with_size(size).to_string()
    }
}

impl From<usize> for Budget {
    /// Returns a budget of so many bytes, at most [`Budget::MAX`].
    fn from(bytes: usize) -> Budget {
        Budget::bytes(bytes.min(Budget::MAX.size))
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
        match self.unit {
            BudgetUnit::Bytes => write!(f, "{} B", self.size),
            BudgetUnit::Tokens => write!(f, "{} tok", self.size),
        }
    }
}

/// Name of the vocabulary of OpenAI's models since GPT-4o.
const VOCABULARY: &str = "o200k_base";

/// Unpacks the vocabulary in the background, for a count that comes soon.
fn prepare() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Without the thread, the first count unpacks it.
        let _ = thread::Builder::new().name("vocabulary".to_owned()).spawn(|| count(""));
    });
}

/// Returns the number of tokens of [`VOCABULARY`] in `text`.
///
/// The vocabulary is embedded in the program. The first call unpacks it, which takes about
/// 110 ms and 25 MiB.
pub(super) fn count(text: &str) -> usize {
    // Without the vocabulary, an estimate that is never too low: a token has a byte or more.
    tiktoken::get_encoding(VOCABULARY).map_or(text.len(), |vocabulary| vocabulary.count(text))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Bytes that satisfy the demand.
    pub need: usize,
    /// Relative weight; 0 counts as 1.
    pub weight: usize,
}

/// Allocates `total` bytes to `demands`.
///
/// No share exceeds its need, and the sum is at most `total`. Unsatisfied demands receive shares in
/// proportion to their weights.
pub fn allocate(demands: &[Demand], total: usize) -> Vec<usize> {
    let mut shares = vec![0; demands.len()];
    // By need per weight: each demand takes its need while its part of the remaining bytes covers
    // it.
    let mut order: Vec<(&Demand, &mut usize)> = demands.iter().zip(&mut shares).collect();
    order.sort_by_key(|(demand, _)| {
        (demand.need as u128 * 1_000_000) / demand.weight.max(1) as u128
    });
    let mut left = total;
    let mut weights: usize = demands.iter().map(|demand| demand.weight.max(1)).sum();
    for (demand, share) in order {
        let weight = demand.weight.max(1);
        let part = (left as u128 * weight as u128 / weights.max(1) as u128) as usize;
        *share = demand.need.min(part);
        left -= *share;
        weights -= weight;
    }
    shares
}

/// Returns the number of leading items of `sizes` that fit in `room`.
pub fn count_fitting(sizes: impl ExactSizeIterator<Item = usize>, room: usize) -> usize {
    count_fitting_with_rest(sizes, room, |_| 0)
}

/// Returns the number of leading items of `sizes` that fit in `room` together with the line that
/// counts the others. `rest` returns the size of that line from their number.
pub fn count_fitting_with_rest(
    sizes: impl ExactSizeIterator<Item = usize>,
    room: usize,
    rest: impl Fn(usize) -> usize,
) -> usize {
    let (mut used, mut left) = (0, sizes.len());
    let fitting = sizes.take_while(|size| {
        (used, left) = (used + size, left - 1);
        used + rest(left) <= room
    });
    fitting.count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::Split;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_digits_with_a_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("500", 500),
            ("4k", 4_096),
            ("4K", 4_096),
            ("4kB", 4_096),
            ("4KB", 4_096),
            ("1M", 1 << 20),
            ("1MB", 1 << 20),
            ("64M", 64 << 20),
            ("007", 7),
        ] {
            assert_eq!(Budget::parse(text), Ok(Budget::bytes(bytes)), "{text}");
        }
        for (text, size) in [("0tok", 0), ("2000tok", 2_000), ("16777216tok", 16 << 20)] {
            assert_eq!(
                Budget::parse(text),
                Ok(Budget { size, unit: BudgetUnit::Tokens }),
                "{text}"
            );
        }
        let wrong = [
            "",
            "k",
            "4KiB",
            "4B",
            "KB",
            "4m",
            "-1",
            "+1",
            "1.5k",
            "4kk",
            " 4",
            "65M",
            "99999999999999999999",
            "٤",
        ];
        for text in wrong.into_iter().chain([
            "tok",
            "2000 tok",
            "2ktok",
            "16777217tok",
            "2000tokens",
            "2000TOK",
        ]) {
            assert!(Budget::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn tokens_are_those_of_the_vocabulary() {
        // As OpenAI's own tokenizer counts them.
        for (text, tokens) in
            [("", 0), ("hello world", 2), ("1234567", 3), ("\n\n", 1), ("漢字", 2)]
        {
            assert_eq!(count(text), tokens, "{text:?}");
        }
    }

    /// Checks that bpe-openai, another tokenizer, counts as many tokens.
    fn check(text: &str) {
        let (start, rest) = text.split_at_most(20);
        assert_eq!(count(text), bpe_openai::o200k_base().count(text), "{start:?}… {}", rest.len());
    }

    #[test]
    fn characters_of_all_scripts_are_split_as_by_another_tokenizer() {
        let chars = |step| ('\0'..=char::MAX).filter(move |c| u32::from(*c) % step == 0);
        check(&chars(16).collect::<String>());
        check(&chars(64).map(|c| format!("a{c}{c} B")).collect::<String>());
    }

    #[test]
    fn long_runs_of_anything_are_counted_as_by_another_tokenizer() {
        for part in
            ["a", "aB", "\n", " ", " \t", "\r\n ", "=-", "'s", "1234567890", "漢字", "\u{301}"]
        {
            check(&part.repeat(200_000));
        }
    }

    fn demand(need: usize, weight: usize) -> Demand {
        Demand { need, weight }
    }

    #[test]
    fn a_large_demand_does_not_starve_small_ones() {
        assert_eq!(
            allocate(&[demand(1_000_000, 1), demand(10, 1), demand(20, 1)], 100),
            [70, 10, 20]
        );
        assert_eq!(allocate(&[demand(1_000, 3), demand(1_000, 1)], 400), [300, 100]);
        assert_eq!(allocate(&[], 100), Vec::<usize>::new());
    }

    proptest! {
        #![proptest_config(crate::scale::cases(256))]

        #[test]
        fn shares_are_bounded_and_nothing_is_left_that_somebody_needs(
            demands in proptest::collection::vec((0_usize..5_000, 1_usize..9), 0..30), total in 0_usize..20_000,
        ) {
            let demands: Vec<Demand> = demands.into_iter().map(|(need, weight)| demand(need, weight)).collect();
            let shares = allocate(&demands, total);
            let dealt: usize = shares.iter().sum();
            prop_assert!(dealt <= total);
            prop_assert!(shares.iter().zip(&demands).all(|(share, demand)| *share <= demand.need));
            let unmet = shares.iter().zip(&demands).any(|(share, demand)| *share < demand.need);
            prop_assert!(!unmet || total - dealt < demands.len(), "{} left", total - dealt);
        }
    }
}
