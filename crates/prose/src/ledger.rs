//! The log of all uses of the model, and the limits of a day that follow from it.
//!
//! A question has a line before it is asked, with the most that it may take, and a line after it.
//! So processes that ask at once share the limits, and a question whose process was killed counts.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use rustix::process::{getpid, getuid};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::server::ANSWER_TOKENS;
use super::{ModelConfig, Said};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::digest::to_hex;
use swarmletfs_base::error::Result;
use swarmletfs_base::model::{Tokens, Usd};
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::Disk;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_record::audit::{AuditSkips, LogEntry, LogGroup, day, read_folder};
use swarmletfs_record::write::{Dir, Durability, append_line, to_line};
use swarmletfs_tree::analysis::prose::ProseRequest;

/// Maximum size of the log, in bytes. The oldest days are removed first.
const LOG_MAX: u64 = 64 << 20;
/// Result of a question that has no answer yet.
const ASKED: &str = "asked";
const OK: &str = "ok";

/// The most that a day may take. A day begins at midnight UTC.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DayLimits {
    /// Tokens of prompts and answers.
    pub tokens: u64,
    pub time: Duration,
    /// Only for models with a price.
    pub cost: Option<Usd>,
}

impl Default for DayLimits {
    fn default() -> DayLimits {
        DayLimits { tokens: 1_000_000, time: Duration::from_secs(3_600), cost: None }
    }
}

/// One use of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelUse {
    pub time: Timestamp,
    pub uid: u32,
    pub pid: u32,
    /// Names the use, since it has two lines.
    pub id: String,
    /// `summarize`, `line` or `compare`.
    pub purpose: String,
    pub workers: Vec<String>,
    pub model: String,
    /// Tokens of the prompt.
    pub tokens_in: u64,
    /// Tokens of the answer; the most possible while there is none.
    pub tokens_out: u64,
    pub ms: u64,
    /// Cost in dollars, if the model has a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
    /// `ok`, the error, or `asked` while there is no answer.
    pub result: String,
}

impl LogEntry for ModelUse {
    fn time(&self) -> Timestamp {
        self.time
    }
}

pub(super) struct Ledger {
    folder: Dir,
    disk: Disk,
    config: ModelConfig,
}

impl Ledger {
    pub(super) fn open(config: &ModelConfig) -> Result<Ledger> {
        let folder = Dir::create(&config.log, Durability::None)?;
        folder.set_own_mode(0o700)?;
        Ok(Ledger { folder, disk: Disk::open(&config.log)?, config: config.clone() })
    }

    /// Logs a question that is about to be asked.
    ///
    /// # Errors
    ///
    /// It may exceed a limit of the day, or cannot be logged.
    pub(super) fn begin(&self, request: &ProseRequest, prompt: &str) -> Result<ModelUse, String> {
        let failed = |error| format!("cannot log the use of the model: {error}");
        let time = Timestamp::now();
        let mut random = [0; 8];
        getrandom(&mut random, GetRandomFlags::empty()).map_err(|error| failed(error.into()))?;
        let mut entry = ModelUse {
            time,
            uid: getuid().as_raw(),
            pid: getpid().as_raw_nonzero().get().cast_unsigned(),
            id: to_hex(&random),
            purpose: request.purpose.into(),
            workers: request.workers.clone(),
            model: self.config.name.clone(),
            tokens_in: tokens(prompt),
            tokens_out: ANSWER_TOKENS,
            ms: millis(self.config.time_max),
            usd: None,
            result: ASKED.into(),
        };
        entry.usd = self.cost(&entry)?;
        let _lock = self.folder.lock().map_err(failed)?;
        let mut today = Used::default();
        read_uses_in(&self.disk, Some(start_of_day(time)), |earlier| today.add(&earlier))
            .map_err(failed)?;
        today.add(&entry);
        today.check(self.config.day)?;
        self.append(&entry).map_err(failed)?;
        Ok(entry)
    }

    /// Logs the end of a question.
    pub(super) fn end(&self, asked: &ModelUse, said: &Result<Said, String>, took: Duration) {
        let mut entry = ModelUse { ms: millis(took), ..asked.clone() };
        match said {
            Ok(said) => {
                let counted = || (asked.tokens_in, tokens(&said.text));
                (entry.tokens_in, entry.tokens_out) = said.tokens.unwrap_or_else(counted);
                entry.result = OK.into();
            }
            Err(why) => {
                entry.tokens_out = 0;
                entry.result = why.clone();
            }
        }
        entry.usd = self.cost(&entry).unwrap_or_default();
        let locked = self.folder.lock();
        if let Err(error) = locked.and_then(|_lock| self.append(&entry)) {
            warn!("cannot log the use of the model: {error}");
        }
    }

    fn append(&self, entry: &ModelUse) -> Result<()> {
        let line = to_line(entry)?;
        let day = day(entry.time);
        append_line(&self.folder, &line, day, LogGroup::default(), LOG_MAX).map(|_| ())
    }

    /// Returns the cost of a use in dollars, if the model has a price.
    ///
    /// # Errors
    ///
    /// The cost of a day is limited, and the model has no price.
    fn cost(&self, entry: &ModelUse) -> Result<Option<f64>, String> {
        let counts =
            Tokens { input: entry.tokens_in, output: entry.tokens_out, ..Tokens::default() };
        let prices = self.config.prices.as_deref();
        let cost = prices.and_then(|prices| prices.cost(&entry.model, counts));
        if cost.is_none() && self.config.day.cost.is_some() {
            return Err(format!(
                "the cost of a day is limited, and {} has no price; try --prices FILE",
                entry.model
            ));
        }
        Ok(cost.map(Usd::dollars))
    }
}

/// The sum of the uses of a day.
#[derive(Default)]
struct Used {
    tokens: u64,
    ms: u64,
    usd: f64,
}

impl Used {
    fn add(&mut self, entry: &ModelUse) {
        let tokens = entry.tokens_in.saturating_add(entry.tokens_out);
        self.tokens = self.tokens.saturating_add(tokens);
        self.ms = self.ms.saturating_add(entry.ms);
        self.usd += entry.usd.unwrap_or_default().max(0.0);
    }

    fn check(&self, limits: DayLimits) -> Result<(), String> {
        let day = "for the model may be exceeded; try tomorrow, or a larger --model-budget";
        if self.tokens > limits.tokens {
            return Err(format!("the {} tokens of a day {day}", limits.tokens));
        }
        if self.ms > millis(limits.time) {
            return Err(format!("the {} s of a day {day}", limits.time.as_secs()));
        }
        match limits.cost {
            Some(cost) if self.usd > cost.dollars() => Err(format!("the {cost} of a day {day}")),
            _ => Ok(()),
        }
    }
}

/// Calls `each` with the uses in the log in `folder`, each once, in the order of their beginnings.
///
/// # Errors
///
/// The log cannot be read. A missing one is empty.
pub fn read_uses(
    folder: &Path,
    since: Option<Timestamp>,
    each: impl FnMut(ModelUse),
) -> Result<AuditSkips> {
    if !folder.exists() {
        return Ok(AuditSkips::default());
    }
    read_uses_in(&Disk::open(folder)?, since, each)
}

fn read_uses_in(
    disk: &Disk,
    since: Option<Timestamp>,
    each: impl FnMut(ModelUse),
) -> Result<AuditSkips> {
    let (mut uses, mut places) = (Vec::<ModelUse>::new(), HashMap::<String, usize>::new());
    let is_wanted = |entry: &ModelUse| since.is_none_or(|since| entry.time >= since);
    let add = |entry: ModelUse| {
        match places.get(&entry.id).and_then(|place| uses.get_mut(*place)) {
            // The second line of a use has the time of the first.
            Some(first) => *first = entry,
            None => {
                places.insert(entry.id.clone(), uses.len());
                uses.push(entry);
            }
        }
        true
    };
    let skipped = read_folder(disk, &RelPath::root(), since, is_wanted, Deadline::never(), add)?;
    uses.into_iter().for_each(each);
    Ok(skipped)
}

fn start_of_day(time: Timestamp) -> Timestamp {
    let second = time.as_second();
    Timestamp::from_second(second - second.rem_euclid(86_400)).unwrap_or(time)
}

fn tokens(text: &str) -> u64 {
    Budget::MAX_TOKENS.used(text) as u64
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelSource, TIME_DEFAULT};

    fn request() -> ProseRequest {
        ProseRequest {
            purpose: "line",
            workers: vec!["w1".into()],
            instruction: String::new(),
            material: Vec::new(),
        }
    }

    fn ledger(folder: &Path, day: DayLimits) -> Ledger {
        let config = ModelConfig {
            source: ModelSource::Command("true".into()),
            name: "m".into(),
            time_max: TIME_DEFAULT,
            day,
            prices: None,
            log: folder.join("model"),
        };
        Ledger::open(&config).unwrap()
    }

    #[test]
    fn question_counts_with_its_most_until_it_is_answered() {
        let folder = tempfile::tempdir().unwrap();
        let limits = DayLimits { tokens: 1_500, ..DayLimits::default() };
        let ledger = ledger(folder.path(), limits);
        let asked = ledger.begin(&request(), "a few words").unwrap();
        let refused = ledger.begin(&request(), "a few words").unwrap_err();
        assert!(refused.starts_with("the 1500 tokens of a day"), "{refused}");
        let said = Said { text: "yes".into(), tokens: Some((40, 2)) };
        ledger.end(&asked, &Ok(said), Duration::from_millis(7));
        let asked = ledger.begin(&request(), "a few words").unwrap();
        ledger.end(&asked, &Err("no key".into()), Duration::ZERO);
        let mut uses = Vec::new();
        read_uses(&folder.path().join("model"), None, |entry| uses.push(entry)).unwrap();
        let shown: Vec<_> =
            uses.iter().map(|it| (it.tokens_in, it.tokens_out, &*it.result)).collect();
        assert_eq!(shown, [(40, 2, "ok"), (3, 0, "no key")]);
    }

    #[test]
    fn time_and_cost_of_a_day_are_limited() {
        let folder = tempfile::tempdir().unwrap();
        let limits = DayLimits { time: Duration::from_secs(60), ..DayLimits::default() };
        let refused = ledger(folder.path(), limits).begin(&request(), "").unwrap_err();
        assert!(refused.starts_with("the 60 s of a day"), "{refused}");
        let limits = DayLimits { cost: Usd::from_dollars(1.0), ..DayLimits::default() };
        let refused = ledger(folder.path(), limits).begin(&request(), "").unwrap_err();
        assert!(refused.ends_with("m has no price; try --prices FILE"), "{refused}");
    }
}
