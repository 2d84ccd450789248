//! The stdio transport: one message per line.
//!
//! A malformed line gets an error and never ends the connection: the next line is read as usual. At
//! the end of stdin, pending requests are still answered.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::io;

use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ErrorData, JsonRpcMessage, RequestId,
    ServerJsonRpcMessage,
};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::{RoleServer, ServerHandler, ServiceExt};
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, watch};
use tracing::debug;

/// Longest message, in bytes.
pub(super) const FRAME_MAX: usize = 16 << 20;
/// Part of a longer message that is searched for its id, in bytes.
const HEAD: usize = 64 << 10;
/// Most messages that wait to be written.
const QUEUE: usize = 64;
pub(super) const METHODS: [&str; 13] = [
    "initialize",
    "ping",
    "server/discover",
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/read",
    "resources/templates/list",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/list",
    "prompts/get",
    "completion/complete",
];

pub(super) struct Streams<R, W> {
    pub(super) input: R,
    pub(super) output: W,
    pub(super) ended: watch::Sender<bool>,
    /// Ends the connection once it is true, as the end of the input does.
    pub(super) stop: Option<watch::Receiver<bool>>,
}

pub(super) async fn serve<S, R, W>(server: S, streams: Streams<R, W>)
where
    S: ServerHandler,
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (messages, written) = mpsc::channel(QUEUE);
    let writer = tokio::spawn(write(streams.output, written));
    let transport = StdioTransport {
        input: BufReader::new(streams.input),
        line: Vec::new(),
        is_skipped: false,
        answer: None,
        is_begun: false,
        messages,
        unanswered: watch::Sender::new(Vec::new()),
        ended: streams.ended,
        stop: streams.stop,
    };
    match server.serve(transport).await {
        Ok(running) => drop(running.waiting().await),
        // The client disconnected before it sent a request.
        Err(error) => debug!("no client: {error}"),
    }
    // Write all answers before the end.
    drop(writer.await);
}

/// Writes messages until all senders are gone or the client stops reading.
async fn write<W: AsyncWrite + Unpin>(
    mut output: W,
    mut messages: mpsc::Receiver<ServerJsonRpcMessage>,
) {
    while let Some(message) = messages.recv().await {
        let done = async {
            output.write_all(&encode(&message)?).await?;
            if messages.is_empty() { output.flush().await } else { Ok(()) }
        };
        if let Err(error) = done.await {
            debug!("the client has stopped reading: {error}");
            return;
        }
    }
}

fn encode(message: &ServerJsonRpcMessage) -> io::Result<Vec<u8>> {
    let mut line = match message {
        // JSON-RPC requires a null id in an error about a message without a readable id.
        JsonRpcMessage::Error(error) if error.id.is_none() => {
            serde_json::to_vec(&json!({"jsonrpc": "2.0", "id": null, "error": error.error}))?
        }
        message => serde_json::to_vec(message)?,
    };
    line.push(b'\n');
    Ok(line)
}

struct StdioTransport<R> {
    input: BufReader<R>,
    /// The part of a line that was read so far. Kept here because `receive` may be canceled.
    line: Vec<u8>,
    /// True if the line is too long, so that the rest of it is skipped.
    is_skipped: bool,
    /// An error to send before the next line is read. Kept here because `receive` may be canceled.
    answer: Option<ServerJsonRpcMessage>,
    /// True once the client has sent a request.
    is_begun: bool,
    messages: mpsc::Sender<ServerJsonRpcMessage>,
    unanswered: watch::Sender<Vec<RequestId>>,
    ended: watch::Sender<bool>,
    stop: Option<watch::Receiver<bool>>,
}

async fn stopped(stop: &mut Option<watch::Receiver<bool>>) {
    if let Some(stop) = stop
        && stop.wait_for(|stops| *stops).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

enum Frame {
    Message(Box<ClientJsonRpcMessage>),
    Invalid(ErrorData, Option<RequestId>),
    /// A line that expects no answer.
    Ignored,
}

impl<R: AsyncRead + Send + Unpin> StdioTransport<R> {
    /// Reads the next line; `None` at the end. Canceling the future loses no input.
    async fn next(&mut self) -> Option<Frame> {
        loop {
            let read = self.input.fill_buf().await.ok()?;
            if read.is_empty() {
                // The last line may lack a line end.
                return if self.line.is_empty() { None } else { Some(self.take_frame()) };
            }
            let end = memchr::memchr(b'\n', read);
            let (part, used) = match end.and_then(|end| read.get(..end)) {
                Some(part) => (part, part.len() + 1),
                None => (read, read.len()),
            };
            if !self.is_skipped {
                self.is_skipped = self.line.len() + part.len() > FRAME_MAX;
                self.line.extend_from_slice(part);
                if self.is_skipped {
                    // Keep enough to find the id.
                    self.line.truncate(HEAD);
                    self.line.shrink_to_fit();
                }
            }
            self.input.consume(used);
            if end.is_some() {
                return Some(self.take_frame());
            }
        }
    }

    fn take_frame(&mut self) -> Frame {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_skipped) {
            let text =
                format!("message too long: a message is one line of at most {FRAME_MAX} bytes");
            return Frame::Invalid(ErrorData::invalid_request(text, None), id_of_truncated(&line));
        }
        parse(&line)
    }
}

fn id_of_truncated(head: &[u8]) -> Option<RequestId> {
    /// Stores the id in its reference: the truncated object always ends in a parse error.
    struct IdVisitor<'a>(&'a mut Option<RequestId>);
    impl<'de> Visitor<'de> for IdVisitor<'_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
            while let Some(key) = members.next_key::<String>()? {
                match key.as_str() {
                    "id" => *self.0 = members.next_value()?,
                    _ => drop(members.next_value::<IgnoredAny>()?),
                }
            }
            Ok(())
        }
    }
    let mut id = None;
    drop(serde_json::Deserializer::from_slice(head).deserialize_map(IdVisitor(&mut id)));
    id
}

fn parse(line: &[u8]) -> Frame {
    if line.trim_ascii().is_empty() {
        return Frame::Ignored;
    }
    let message: Value = match serde_json::from_slice(line) {
        Ok(message) => message,
        Err(error) => {
            return Frame::Invalid(
                ErrorData::parse_error(format!("invalid JSON: {error}"), None),
                None,
            );
        }
    };
    let invalid =
        |text: &'static str, id| Frame::Invalid(ErrorData::invalid_request(text, None), id);
    if message.is_array() {
        return invalid("batches are not supported; send one message per line", None);
    }
    let Some(members) = message.as_object() else {
        return invalid("a message must be an object", None);
    };
    let id = members.get("id").cloned();
    let id: Option<RequestId> = id.and_then(|id| serde_json::from_value(id).ok());
    if members.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return invalid("a message must have `\"jsonrpc\":\"2.0\"`", id);
    }
    match members.get("method") {
        Some(Value::String(_)) => {}
        Some(_) => return invalid("a method must be a string", id),
        // A response to a question. Nothing waits for one that does not parse.
        None if members.contains_key("result") || members.contains_key("error") => {
            return serde_json::from_value(message)
                .map_or(Frame::Ignored, |message| Frame::Message(Box::new(message)));
        }
        None => return invalid("a message must have a method", id),
    }
    let is_request = members.contains_key("id");
    if is_request && id.is_none() {
        return invalid("an id must be a string or an integer", None);
    }
    if is_request && members.get("params").is_some_and(|params| !params.is_object()) {
        return Frame::Invalid(ErrorData::invalid_params("parameters must be an object", None), id);
    }
    match serde_json::from_value(message) {
        Ok(message) => Frame::Message(Box::new(message)),
        Err(_) if is_request => Frame::Invalid(
            ErrorData::invalid_params("invalid parameters for this method", None),
            id,
        ),
        Err(_) => Frame::Ignored,
    }
}

fn remove_unanswered(unanswered: &watch::Sender<Vec<RequestId>>, id: &RequestId) {
    unanswered.send_modify(|unanswered| {
        if let Some(at) = unanswered.iter().position(|other| other == id) {
            unanswered.swap_remove(at);
        }
    });
}

impl<R: AsyncRead + Send + Unpin + 'static> Transport<RoleServer> for StdioTransport<R> {
    type Error = io::Error;

    fn name() -> Cow<'static, str> {
        "stdio".into()
    }

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (messages, unanswered) = (self.messages.clone(), self.unanswered.clone());
        async move {
            let answered = match &message {
                JsonRpcMessage::Response(response) => Some(response.id.clone()),
                JsonRpcMessage::Error(error) => error.id.clone(),
                JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
            };
            let sent = messages.send(message).await;
            if let Some(id) = answered {
                remove_unanswered(&unanswered, &id);
            }
            sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
        }
    }

    /// Receives the next message. The caller may cancel this future at any time and call it again,
    /// so input is consumed only after its result is stored in `self`.
    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if self.answer.is_some() {
                let place = self.messages.reserve().await.ok()?;
                if let Some(answer) = self.answer.take() {
                    place.send(answer);
                }
                continue;
            }
            let (messages, mut stop) = (self.messages.clone(), self.stop.clone());
            let line = tokio::select! {
                line = self.next() => line,
                () = stopped(&mut stop) => None,
                // The client has stopped reading.
                () = messages.closed() => return None,
            };
            match line {
                Some(Frame::Message(message)) => {
                    if let Some(message) = self.admit(*message) {
                        return Some(message);
                    }
                }
                Some(Frame::Invalid(error, id)) => {
                    self.answer = Some(ServerJsonRpcMessage::error(error, id))
                }
                Some(Frame::Ignored) => {}
                None => {
                    self.ended.send_replace(true);
                    let mut unanswered = self.unanswered.subscribe();
                    // Wait, because the service drops unanswered requests once this returns `None`.
                    tokio::select! {
                        _ = unanswered.wait_for(Vec::is_empty) => {}
                        () = messages.closed() => {}
                    }
                    return None;
                }
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<R> StdioTransport<R> {
    /// Records a message. Returns it if the service should handle it.
    fn admit(&mut self, message: ClientJsonRpcMessage) -> Option<ClientJsonRpcMessage> {
        match &message {
            // Only one of two pending requests with one id would get an answer.
            JsonRpcMessage::Request(request) if self.unanswered.borrow().contains(&request.id) => {
                let error =
                    ErrorData::invalid_request("a request with this id is still pending", None);
                self.answer = Some(ServerJsonRpcMessage::error(error, Some(request.id.clone())));
                return None;
            }
            JsonRpcMessage::Request(request) => {
                self.is_begun = true;
                self.unanswered.send_modify(|unanswered| unanswered.push(request.id.clone()));
            }
            // Ignore notifications before the first request.
            _ if !self.is_begun => return None,
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) =
                    &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    remove_unanswered(&self.unanswered, id);
                }
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
        }
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::ErrorCode;

    use super::*;

    /// Returns the code of the error that a line is answered with at once, if any.
    fn code(line: &str) -> Option<ErrorCode> {
        match parse(line.as_bytes()) {
            Frame::Invalid(error, _) => Some(error.code),
            Frame::Message(_) | Frame::Ignored => None,
        }
    }

    #[test]
    fn malformed_messages_get_an_error() {
        let deep = "[".repeat(100_000);
        for line in ["{", "\u{feff}{}", "nonsense", "{\"jsonrpc\":\"2.0\"", &deep] {
            assert_eq!(code(line), Some(ErrorCode::PARSE_ERROR), "{line}");
        }
        for line in [
            "17",
            "[]",
            "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]",
            "{}",
            "{\"id\":1,\"method\":\"ping\"}",
            "{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}",
            "{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}",
            "{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}",
            "{\"jsonrpc\":\"2.0\",\"id\":1}",
        ] {
            assert_eq!(code(line), Some(ErrorCode::INVALID_REQUEST), "{line}");
        }
        assert_eq!(
            code("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":[]}"),
            Some(ErrorCode::INVALID_PARAMS)
        );
        for line in [
            "",
            " \r",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}",
        ] {
            assert_eq!(code(line), None, "{line}");
        }
    }
}
