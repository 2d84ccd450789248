//! The options of commands that may ask a language model.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};

use super::discover::state_folder;
use super::duration::parse_duration;
use super::exit::UsageError;
use super::terminal::display_path;
use crate::analysis::prose::ProseWriter;
use crate::cache::DiskCache;
use crate::model::{Prices, Usd};
use swarmletfs_prose::{Address, DayLimits, LanguageModel, ModelConfig, ModelSource, TIME_DEFAULT};

const KEY_VARIABLE: &str = "SWARMLETFS_MODEL_KEY";
/// Longest time for an answer.
const TIME_MAX: Duration = Duration::from_secs(86_400);
/// Name of the model of a server that serves only one.
const NAME_DEFAULT: &str = "default";

/// The language model to ask, if any. The background process of a mount receives them, too.
#[derive(Debug, Default, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
pub(super) struct ModelArgs {
    /// Ask a language model by this line for the shell, which reads the prompt on stdin and prints
    /// the answer, such as 'claude -p --tools ""'
    #[arg(long, value_name = "CMD", conflicts_with = "model_url")]
    model_command: Option<String>,

    /// Ask a language model of this server with the API of OpenAI, such as
    /// http://127.0.0.1:8080/v1; $SWARMLETFS_MODEL_KEY is its key, if it wants one
    #[arg(long, value_name = "URL")]
    model_url: Option<String>,

    /// The name of the model, for the server, for --prices, and in answers [default: the command,
    /// or `default`]
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,

    /// The most that the model may take a day (UTC), for all commands of this user: tokens, time
    /// and, with --prices, dollars [default: 1000000tok,1h]
    #[arg(long, value_name = "LIMITS", value_parser = check_limits)]
    model_budget: Option<String>,

    /// Longest time for an answer of the model: 30s, 5m, 1h30m, or whole seconds [default: 2m]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    model_timeout: Option<Duration>,
}

impl ModelArgs {
    pub(super) fn is_given(&self) -> bool {
        self.model_command.is_some() || self.model_url.is_some()
    }

    /// Starts the model, if one is given. Its answers are kept in `cache`.
    ///
    /// # Errors
    ///
    /// The URL cannot be used, or the log of uses cannot be written.
    pub(super) fn start(
        &self,
        prices: Option<Arc<Prices>>,
        cache: impl FnOnce() -> Option<Arc<DiskCache>>,
    ) -> anyhow::Result<Option<Arc<dyn ProseWriter>>> {
        let (source, name) = match (&self.model_command, &self.model_url) {
            (Some(line), _) => (ModelSource::Command(line.clone()), line.as_str()),
            (None, Some(url)) => {
                let address = Address::new(url, std::env::var(KEY_VARIABLE).ok());
                let address = address
                    .map_err(|why| UsageError(format!("cannot use --model-url {url}: {why}")))?;
                (ModelSource::Server(address), NAME_DEFAULT)
            }
            (None, None) => return Ok(None),
        };
        let limits = self.model_budget.as_deref().map(parse_limits).transpose();
        let log = model_folder()?;
        let config = ModelConfig {
            source,
            name: self.model_name.clone().unwrap_or_else(|| name.to_owned()),
            time_max: self.model_timeout.unwrap_or(TIME_DEFAULT).min(TIME_MAX),
            day: limits.map_err(UsageError)?.unwrap_or_default(),
            prices,
            log: log.clone(),
        };
        let model = LanguageModel::start(config, cache()).with_context(|| {
            format!("cannot log the uses of the model in {}", display_path(&log))
        })?;
        Ok(Some(Arc::new(model)))
    }
}

/// Returns the directory of the log of uses of language models, of this user.
///
/// # Errors
///
/// This user has no home directory.
pub(super) fn model_folder() -> anyhow::Result<PathBuf> {
    let state = state_folder().context(
        "cannot place the log of uses of the model: neither $XDG_STATE_HOME nor $HOME is set; set \
         one",
    )?;
    Ok(state.join("model"))
}

fn check_limits(text: &str) -> Result<String, String> {
    parse_limits(text).map(|_| text.to_owned())
}

/// Parses limits of a day, such as `500000tok,30m,2.50usd`. The others keep their defaults.
fn parse_limits(text: &str) -> Result<DayLimits, String> {
    let mut limits = DayLimits::default();
    for part in text.split(',') {
        let tokens = part.strip_suffix("tok").map(str::parse);
        let dollars = part.strip_suffix("usd").map(str::parse);
        match (tokens, dollars) {
            (Some(Ok(tokens)), _) => limits.tokens = tokens,
            (_, Some(Ok(dollars))) if Usd::from_dollars(dollars).is_some() => {
                limits.cost = Usd::from_dollars(dollars);
            }
            (None, None) if parse_duration(part).is_ok() => limits.time = parse_duration(part)?,
            _ => {
                return Err(format!(
                    "`{}` is no limit; use tokens, a time and dollars, as in 500000tok,30m,2.50usd",
                    part.escape_debug()
                ));
            }
        }
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_tokens_time_and_dollars() {
        let limits = parse_limits("2usd,500tok,90s").unwrap();
        let wanted = (500, Duration::from_secs(90), Usd::from_dollars(2.0));
        assert_eq!((limits.tokens, limits.time, limits.cost), wanted);
        assert_eq!(parse_limits("5tok").unwrap().time, DayLimits::default().time);
        for text in ["", "tok", "-1usd", "NaNusd", "1k", "1tok,,1h", "1.5tok"] {
            assert!(parse_limits(text).unwrap_err().contains("is no limit"), "{text}");
        }
    }
}
