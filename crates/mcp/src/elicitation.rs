//! Questions to the person behind a client, by elicitation.
//!
//! Two ways exist. Up to the protocol of 2025, the server sends a request of its own while the call
//! of the tool waits. Since 2026-07-28, the call is answered with the question, and the client
//! repeats the call with the answer.

use std::time::Duration;

use rmcp::model::{
    BooleanSchema, ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult,
    ElicitationAction, ElicitationSchema, ErrorData, InputRequest, InputRequests, InputResponses,
    PrimitiveSchemaDefinition, ProtocolVersion, ServerRequest,
};
use rmcp::service::{PeerRequestOptions, RequestContext};
use rmcp::{RoleServer, ServiceError};
use serde_json::Value;
use tokio::sync::watch;

/// Name of the field that holds the yes, and of the question in an answer.
const FIELD: &str = "apply";

pub(super) enum AskChannel {
    /// Requests to the client. The receiver changes once the client has closed its input.
    Requests(watch::Receiver<bool>),
    /// Answers that require input, after which the client repeats the call.
    Rounds,
}

impl AskChannel {
    /// Returns the way to ask the client of a request; `None` if it cannot be asked.
    /// `input_ended` is set for a connection that can carry requests to the client.
    pub(super) fn for_client(
        context: &RequestContext<RoleServer>,
        input_ended: Option<&watch::Receiver<bool>>,
    ) -> Option<AskChannel> {
        let elicitation = context.client_capabilities()?.elicitation?;
        // A client that names no mode has forms.
        if elicitation.form.is_none() && elicitation.url.is_some() {
            return None;
        }
        let is_new = |version| version >= ProtocolVersion::V_2026_07_28;
        match context.protocol_version().is_some_and(is_new) {
            true => Some(AskChannel::Rounds),
            false => input_ended.cloned().map(AskChannel::Requests),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Yes,
    /// Accepted, but the field does not say yes.
    AcceptedWithoutYes,
    Declined,
    /// The question was closed without an answer, or the call was canceled.
    Canceled,
    TimedOut,
    /// The client is gone or gave no valid answer.
    Failed,
}

impl Answer {
    /// Returns the reason why nothing is done; `None` for a yes.
    pub(super) fn refusal(self) -> Option<&'static str> {
        match self {
            Answer::Yes => None,
            Answer::AcceptedWithoutYes => Some("the answer was accepted without a yes"),
            Answer::Declined => Some("the person declined"),
            Answer::Canceled => Some("the question was canceled"),
            Answer::TimedOut => Some("nobody answered in time"),
            Answer::Failed => Some("the client returned no answer"),
        }
    }

    fn from_result(result: ElicitResult) -> Answer {
        let is_yes =
            |content: Value| content.get(FIELD).and_then(Value::as_bool).unwrap_or_default();
        match result.action {
            ElicitationAction::Accept if result.content.is_some_and(is_yes) => Answer::Yes,
            ElicitationAction::Accept => Answer::AcceptedWithoutYes,
            ElicitationAction::Decline => Answer::Declined,
            ElicitationAction::Cancel => Answer::Canceled,
            _ => Answer::Failed,
        }
    }

    pub(super) fn from_responses(responses: Option<InputResponses>) -> Answer {
        let answer = responses.and_then(|mut responses| responses.remove(FIELD));
        let answer = answer.and_then(|answer| serde_json::from_value(answer).ok());
        answer.map_or(Answer::Failed, Answer::from_result)
    }
}

fn to_params(message: String) -> Result<ElicitRequestParams, ErrorData> {
    let field = BooleanSchema::new()
        .title("Apply these changes")
        .description("Yes changes the files of the workspace")
        .with_default(false);
    let requested_schema = ElicitationSchema::builder()
        .required_property(FIELD, PrimitiveSchemaDefinition::Boolean(field))
        .build()
        .map_err(|error| ErrorData::internal_error(error.to_owned(), None))?;
    Ok(ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema })
}

/// Returns the question as the input that an answer requires.
///
/// # Errors
///
/// The question has no valid form.
pub(super) fn to_input_requests(message: String) -> Result<InputRequests, ErrorData> {
    let request = ElicitRequest::new(to_params(message)?);
    Ok(InputRequests::from([(FIELD.to_owned(), InputRequest::Elicitation(request))]))
}

/// Asks by a request to the client, and waits for the answer at most `limit`.
///
/// # Errors
///
/// The question has no valid form.
pub(super) async fn ask(
    context: &RequestContext<RoleServer>,
    mut input_ended: watch::Receiver<bool>,
    message: String,
    limit: Duration,
) -> Result<Answer, ErrorData> {
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(to_params(message)?));
    let options = PeerRequestOptions::with_timeout(limit);
    let asked = async {
        let sent = context.peer.send_request_with_option(request, options).await?;
        sent.await_response().await
    };
    let response = tokio::select! {
        response = asked => response,
        () = context.ct.cancelled() => return Ok(Answer::Canceled),
        // An error means that the connection is gone.
        _ = input_ended.wait_for(|has_ended| *has_ended) => return Ok(Answer::Failed),
    };
    Ok(match response {
        Ok(result) => from_client_result(&result),
        Err(ServiceError::Timeout { .. }) => Answer::TimedOut,
        Err(error) => {
            tracing::debug!("a question was not answered: {error}");
            Answer::Failed
        }
    })
}

fn from_client_result(result: &ClientResult) -> Answer {
    // The variants of a result cannot be told apart by their form alone.
    let value = serde_json::to_value(result);
    let result = value.and_then(serde_json::from_value);
    result.map_or(Answer::Failed, Answer::from_result)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_an_accepted_true_is_a_yes() {
        let answer = |answer: Value| {
            Answer::from_responses(Some(InputResponses::from([(FIELD.to_owned(), answer)])))
        };
        let accepted = |content| answer(json!({"action": "accept", "content": content}));
        assert_eq!(accepted(json!({"apply": true})), Answer::Yes);
        for no in [json!({"apply": false}), json!({"apply": "true"}), json!({}), json!(null)] {
            assert_eq!(accepted(no.clone()), Answer::AcceptedWithoutYes, "{no}");
        }
        let with_yes = |action| answer(json!({"action": action, "content": {"apply": true}}));
        assert_eq!(with_yes("decline"), Answer::Declined);
        assert_eq!(with_yes("cancel"), Answer::Canceled);
        assert_eq!(with_yes("maybe"), Answer::Failed);
        assert_eq!(answer(json!("yes")), Answer::Failed);
        assert_eq!(Answer::from_responses(None), Answer::Failed);
    }
}
