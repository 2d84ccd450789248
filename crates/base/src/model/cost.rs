//! Numbers of tokens, and costs: those that a record states, and those that a list of prices gives.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

const NANOS: f64 = 1e9;

/// Token counts, as stated by the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Tokens {
    /// Tokens read by the model, without the tokens from its cache.
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_creation: u64,
    /// The part of `cache_creation` that the cache keeps for an hour instead of minutes.
    pub cache_creation_1h: u64,
}

impl Tokens {
    /// Returns the counts of a program that counts the tokens that the cache returned and took as
    /// parts of the prompt.
    pub fn of_prompt(prompt: u64, output: u64, [cache_read, cache_creation]: [u64; 2]) -> Tokens {
        let input = prompt.saturating_sub(cache_read).saturating_sub(cache_creation);
        Tokens { input, output, cache_read, cache_creation, cache_creation_1h: 0 }
    }

    /// Returns the number of tokens that the model was given.
    pub fn context(self) -> u64 {
        self.input.saturating_add(self.cache_read).saturating_add(self.cache_creation)
    }

    pub fn total(self) -> u64 {
        self.context().saturating_add(self.output)
    }
}

impl std::ops::AddAssign for Tokens {
    fn add_assign(&mut self, more: Tokens) {
        self.input = self.input.saturating_add(more.input);
        self.output = self.output.saturating_add(more.output);
        self.cache_read = self.cache_read.saturating_add(more.cache_read);
        self.cache_creation = self.cache_creation.saturating_add(more.cache_creation);
        self.cache_creation_1h = self.cache_creation_1h.saturating_add(more.cache_creation_1h);
    }
}

impl std::ops::SubAssign for Tokens {
    fn sub_assign(&mut self, less: Tokens) {
        self.input = self.input.saturating_sub(less.input);
        self.output = self.output.saturating_sub(less.output);
        self.cache_read = self.cache_read.saturating_sub(less.cache_read);
        self.cache_creation = self.cache_creation.saturating_sub(less.cache_creation);
        self.cache_creation_1h = self.cache_creation_1h.saturating_sub(less.cache_creation_1h);
    }
}

/// An amount of US dollars, in billionths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Usd(u64);

impl Usd {
    /// Returns `None` if `dollars` is no amount: negative, infinite or not a number.
    pub fn from_dollars(dollars: f64) -> Option<Usd> {
        // The cast saturates.
        (dollars.is_finite() && dollars >= 0.0).then(|| Usd((dollars * NANOS).round() as u64))
    }

    pub fn dollars(self) -> f64 {
        self.0 as f64 / NANOS
    }

    pub fn saturating_sub(self, less: Usd) -> Usd {
        Usd(self.0.saturating_sub(less.0))
    }
}

impl std::ops::AddAssign for Usd {
    fn add_assign(&mut self, more: Usd) {
        self.0 = self.0.saturating_add(more.0);
    }
}

impl std::iter::Sum for Usd {
    fn sum<I: Iterator<Item = Usd>>(all: I) -> Usd {
        all.fold(Usd::default(), |mut sum, one| {
            sum += one;
            sum
        })
    }
}

impl fmt::Display for Usd {
    /// Formats the amount with two digits after the point, or four if it is below ten cents.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.0 < 100_000_000 && self.0 > 0 { 4 } else { 2 };
        f.pad(&format!("${:.digits$}", self.dollars()))
    }
}

/// The cost of a worker, as its record states it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StatedCost {
    pub total: Usd,
    /// The parts of the total that are stated by language model.
    pub by_model: BTreeMap<String, Usd>,
    /// The number of tokens that the total is for; 0 if it is not stated.
    pub tokens: u64,
    /// True if the total includes the workers that it started.
    pub includes_children: bool,
    /// True if the record says that the total leaves something out.
    pub is_partial: bool,
}

impl std::ops::AddAssign<&StatedCost> for StatedCost {
    fn add_assign(&mut self, more: &StatedCost) {
        self.total += more.total;
        for (model, cost) in &more.by_model {
            *self.by_model.entry(model.clone()).or_default() += *cost;
        }
        self.tokens = self.tokens.saturating_add(more.tokens);
        self.includes_children |= more.includes_children;
        self.is_partial |= more.is_partial;
    }
}

/// Dollars per million tokens of one model, by kind of token.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelPrices {
    input: f64,
    output: f64,
    cache_read: Option<f64>,
    cache_creation: Option<f64>,
    /// The price of tokens that the cache keeps for an hour.
    cache_creation_1h: Option<f64>,
}

impl ModelPrices {
    fn all(&self) -> impl Iterator<Item = f64> {
        let optional = [self.cache_read, self.cache_creation, self.cache_creation_1h];
        [self.input, self.output].into_iter().chain(optional.into_iter().flatten())
    }

    /// Returns the cost of `tokens`, or `None` if a kind of token has no price.
    fn cost(&self, tokens: Tokens) -> Option<Usd> {
        let hour = tokens.cache_creation_1h.min(tokens.cache_creation);
        let kinds = [
            (tokens.input, Some(self.input)),
            (tokens.output, Some(self.output)),
            (tokens.cache_read, self.cache_read),
            (tokens.cache_creation - hour, self.cache_creation),
            (hour, self.cache_creation_1h.or(self.cache_creation)),
        ];
        kinds.into_iter().filter(|(count, _)| *count > 0).try_fold(Usd::default(), |sum, kind| {
            let (count, price) = kind;
            let mut sum = sum;
            sum += Usd::from_dollars(count as f64 * price? / 1e6)?;
            Some(sum)
        })
    }
}

/// Prices of language models, by their names.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Prices {
    exact: BTreeMap<String, ModelPrices>,
    /// By the beginning of a name, the longest first.
    beginnings: Vec<(String, ModelPrices)>,
}

impl Prices {
    /// Parses a JSON object: names of models, each with dollars per million tokens by kind. A name
    /// that ends in `*` stands for all names that begin so.
    ///
    /// # Errors
    /// The reason why `text` is no list of prices.
    pub fn parse(text: &[u8]) -> Result<Prices, String> {
        let all: BTreeMap<String, ModelPrices> =
            serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let mut prices = Prices::default();
        for (name, of_model) in all {
            if of_model.all().any(|price| Usd::from_dollars(price).is_none()) {
                return Err(format!("a price of {name} is negative"));
            }
            match name.strip_suffix('*') {
                Some(beginning) => prices.beginnings.push((beginning.to_owned(), of_model)),
                None => _ = prices.exact.insert(name, of_model),
            }
        }
        prices.beginnings.sort_by_key(|(beginning, _)| std::cmp::Reverse(beginning.len()));
        Ok(prices)
    }

    /// Returns the cost of tokens of the model `model`, or `None` if it has no price.
    pub fn cost(&self, model: &str, tokens: Tokens) -> Option<Usd> {
        if tokens == Tokens::default() {
            return Some(Usd::default());
        }
        let mut beginnings = self.beginnings.iter();
        let by_beginning =
            || Some(&beginnings.find(|(beginning, _)| model.starts_with(beginning.as_str()))?.1);
        self.exact.get(model).or_else(by_beginning)?.cost(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: Tokens = Tokens {
        input: 1_000_000,
        output: 2_000_000,
        cache_read: 0,
        cache_creation: 0,
        cache_creation_1h: 0,
    };

    #[test]
    fn prices_are_found_by_name_and_by_beginning() {
        let prices = Prices::parse(
            br#"{"a-1": {"input": 1, "output": 2}, "a-*": {"input": 3, "output": 3},
                 "a-2*": {"input": 0.5, "output": 0, "cache_creation": 1, "cache_creation_1h": 2}}"#,
        )
        .unwrap();
        let cost = |model| prices.cost(model, TOKENS).map(Usd::dollars);
        assert_eq!(cost("a-1"), Some(5.0));
        assert_eq!(cost("a-1-x"), Some(9.0));
        assert_eq!(cost("a-2-20260101"), Some(0.5));
        assert_eq!(cost("b"), None);
        assert_eq!(prices.cost("b", Tokens::default()), Some(Usd::default()));
        let cached = Tokens { cache_creation: 3_000_000, cache_creation_1h: 1_000_000, ..TOKENS };
        assert_eq!(prices.cost("a-2", cached).map(Usd::dollars), Some(4.5));
        // This kind of token has no price.
        assert_eq!(prices.cost("a-1", cached), None);
    }

    #[test]
    fn bad_prices_are_refused() {
        for (text, reason) in [
            ("[]", "expected a map"),
            (r#"{"a": {"input": 1}}"#, "missing field `output`"),
            (r#"{"a": {"input": 1, "output": 2, "cached": 3}}"#, "unknown field `cached`"),
            (r#"{"a": {"input": -1, "output": 2}}"#, "a price of a is negative"),
        ] {
            let error = Prices::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn amounts_are_shown_in_dollars() {
        for (dollars, shown) in
            [(0.0, "$0.00"), (0.00056, "$0.0006"), (0.0999, "$0.0999"), (1.234, "$1.23")]
        {
            assert_eq!(Usd::from_dollars(dollars).unwrap().to_string(), shown);
        }
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Usd::from_dollars(bad), None);
        }
        assert_eq!(Usd::from_dollars(1e300), Some(Usd(u64::MAX)));
    }
}
