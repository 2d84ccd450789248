//! Asks a model behind a server with the API of OpenAI: `POST URL/chat/completions`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use ureq::Agent;

use super::{ANSWER_MAX, Said};

/// Maximum length of a response, in bytes.
const RESPONSE_MAX: u64 = 1 << 20;
/// Part of an unexpected response that is shown, in bytes.
const SHOWN_MAX: usize = 300;
/// Most tokens of an answer.
pub(super) const ANSWER_TOKENS: u64 = 1_000;
const PATH: &str = "/chat/completions";

/// A server, with the key that it wants.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    url: String,
    key: Option<String>,
}

impl std::fmt::Debug for Address {
    /// Leaves out the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Address").field(&self.url).finish()
    }
}

/// Returns true if this build reaches servers at https.
pub fn has_tls() -> bool {
    cfg!(feature = "tls")
}

impl Address {
    /// Returns the server at `url`, such as `http://127.0.0.1:8080/v1`.
    ///
    /// # Errors
    ///
    /// A message for the user if this build cannot reach the server.
    pub fn new(url: &str, key: Option<String>) -> Result<Address, String> {
        match url.split_once("://") {
            Some(("http", _)) => {}
            Some(("https", _)) if has_tls() => {}
            Some(("https", _)) => {
                let why = "this build has no TLS; try a build with --features tls, or \
                           --model-command with curl";
                return Err(why.into());
            }
            _ => return Err("it is no http:// or https:// URL".into()),
        }
        let base = url.trim_end_matches('/');
        let base = base.strip_suffix(PATH).unwrap_or(base);
        Ok(Address { url: format!("{base}{PATH}"), key })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

#[derive(Serialize)]
struct CompletionRequest<'a> {
    model: &'a str,
    messages: [ChatMessage<'a>; 1],
    max_tokens: u64,
    temperature: u8,
}

#[derive(Serialize)]
struct ChatMessage<'a> {
    role: &'a str,
    content: &'a str,
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
    usage: Option<TokenCount>,
}

#[derive(Deserialize)]
struct Choice {
    message: AnswerMessage,
}

#[derive(Deserialize)]
struct AnswerMessage {
    content: Option<String>,
}

#[derive(Deserialize)]
struct TokenCount {
    prompt_tokens: u64,
    completion_tokens: u64,
}

/// Asks the model `name` of a server for at most `time_max`.
///
/// # Errors
///
/// The reason why there is no answer.
pub(super) fn ask(
    address: &Address,
    name: &str,
    prompt: &str,
    time_max: Duration,
) -> Result<Said, String> {
    let config = Agent::config_builder()
        .timeout_global(Some(time_max))
        .max_redirects(0)
        .http_status_as_error(false)
        .build();
    let question = CompletionRequest {
        model: name,
        messages: [ChatMessage { role: "user", content: prompt }],
        max_tokens: ANSWER_TOKENS,
        temperature: 0,
    };
    let body = serde_json::to_vec(&question).map_err(|error| error.to_string())?;
    let mut request = Agent::new_with_config(config)
        .post(&address.url)
        .header("content-type", "application/json");
    if let Some(key) = &address.key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let unreachable = |error: ureq::Error| format!("cannot ask {}: {error}", address.url);
    let mut response = request.send(&body[..]).map_err(unreachable)?;
    let status = response.status();
    let body = response.body_mut().with_config().limit(RESPONSE_MAX).read_to_vec();
    let body = body.map_err(unreachable)?;
    if !status.is_success() {
        let text = String::from_utf8_lossy(&body);
        let shown = text.get(..text.floor_char_boundary(SHOWN_MAX)).unwrap_or_default();
        return Err(format!("the server answered {status}: {shown}"));
    }
    let completion: Completion = serde_json::from_slice(&body)
        .map_err(|error| format!("the server answered with no completion: {error}"))?;
    let text = completion.choices.into_iter().find_map(|choice| choice.message.content);
    let text = text.unwrap_or_default();
    if text.len() > ANSWER_MAX {
        return Err(format!("the model said more than {ANSWER_MAX} bytes"));
    }
    let tokens = completion.usage.map(|usage| (usage.prompt_tokens, usage.completion_tokens));
    Ok(Said { text, tokens })
}
