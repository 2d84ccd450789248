//! Messages on stdin and stdout, one a line.
//!
//! What is no message is answered with an error, never dropped in silence and never the end: the next line is as good as
//! the first. At the end of stdin what was asked is still answered.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::io;

use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::{RoleServer, ServiceExt};
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, watch};
use tracing::debug;

use super::Door;

/// The longest message, in bytes.
pub(super) const FRAME_MAX: usize = 16 << 20;
/// So much of a longer one is looked at for its id, in bytes.
const HEAD: usize = 64 << 10;
/// So many messages wait to be written at most.
const QUEUE: usize = 64;
/// What a client may ask for that is of the protocol.
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

/// Serves one client until it closes `input`.
pub(super) async fn serve<R, W>(door: Door, input: R, output: W)
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (messages, written) = mpsc::channel(QUEUE);
    let writer = tokio::spawn(write(output, written));
    match door.serve(Lines::new(input, messages)).await {
        Ok(running) => drop(running.waiting().await),
        // It went without a word.
        Err(error) => debug!("no client: {error}"),
    }
    // What was answered is written before the end.
    drop(writer.await);
}

/// Writes messages as they come, until nobody has any more or nobody reads them.
async fn write<W: AsyncWrite + Unpin>(mut output: W, mut messages: mpsc::Receiver<ServerJsonRpcMessage>) {
    while let Some(message) = messages.recv().await {
        let done = async {
            output.write_all(&line(&message)?).await?;
            if messages.is_empty() { output.flush().await } else { Ok(()) }
        };
        if let Err(error) = done.await {
            debug!("the client reads no more: {error}");
            return;
        }
    }
}

/// A message as a line.
fn line(message: &ServerJsonRpcMessage) -> io::Result<Vec<u8>> {
    let mut line = match message {
        // An error about what has no id says so.
        JsonRpcMessage::Error(error) if error.id.is_none() => {
            serde_json::to_vec(&json!({"jsonrpc": "2.0", "id": null, "error": error.error}))?
        }
        message => serde_json::to_vec(message)?,
    };
    line.push(b'\n');
    Ok(line)
}

/// Messages as lines.
struct Lines<R> {
    input: BufReader<R>,
    /// Of a line whose end has not come: waiting for it may be given up at any time.
    line: Vec<u8>,
    /// Whether the line is too long: what comes more of it is skipped.
    is_skipped: bool,
    /// What is answered at once and has no place among the messages yet: waiting for one may be given up at any time.
    answer: Option<ServerJsonRpcMessage>,
    /// Whether the client has introduced itself.
    is_begun: bool,
    messages: mpsc::Sender<ServerJsonRpcMessage>,
    /// The requests that are not answered.
    open: watch::Sender<Vec<RequestId>>,
}

/// What a line is.
enum Line {
    Message(Box<ClientJsonRpcMessage>),
    Wrong(ErrorData, Option<RequestId>),
    /// Nobody waits for an answer to it.
    Nothing,
}

impl<R: AsyncRead + Send + Unpin> Lines<R> {
    fn new(input: R, messages: mpsc::Sender<ServerJsonRpcMessage>) -> Lines<R> {
        Lines {
            input: BufReader::new(input),
            line: Vec::new(),
            is_skipped: false,
            answer: None,
            is_begun: false,
            messages,
            open: watch::Sender::new(Vec::new()),
        }
    }

    /// The next line; none at the end. Where its future is dropped, what was read of it is kept.
    async fn next(&mut self) -> Option<Line> {
        loop {
            let read = self.input.fill_buf().await.ok()?;
            if read.is_empty() {
                // The last line may have no end.
                return if self.line.is_empty() { None } else { Some(self.ended()) };
            }
            let end = memchr::memchr(b'\n', read);
            let (part, used) = match end {
                Some(at) => (read.get(..at).unwrap_or_default(), at + 1),
                None => (read, read.len()),
            };
            if !self.is_skipped {
                self.is_skipped = self.line.len() + part.len() > FRAME_MAX;
                self.line.extend_from_slice(part);
                if self.is_skipped {
                    // Enough to see whom to answer.
                    self.line.truncate(HEAD);
                    self.line.shrink_to_fit();
                }
            }
            self.input.consume(used);
            if end.is_some() {
                return Some(self.ended());
            }
        }
    }

    fn ended(&mut self) -> Line {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_skipped) {
            let text = format!("a message is one line of at most {FRAME_MAX} bytes");
            return Line::Wrong(ErrorData::invalid_request(text, None), id_of(&line));
        }
        parsed(&line)
    }
}

/// The id that a message names whose end is missing.
fn id_of(head: &[u8]) -> Option<RequestId> {
    /// Notes the id: the object is not whole, so that reading it is an error in the end.
    struct Note<'a>(&'a mut Option<RequestId>);
    impl<'de> Visitor<'de> for Note<'_> {
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
    drop(serde_json::Deserializer::from_slice(head).deserialize_map(Note(&mut id)));
    id
}

/// What a line says.
fn parsed(line: &[u8]) -> Line {
    if line.trim_ascii().is_empty() {
        return Line::Nothing;
    }
    let message: Value = match serde_json::from_slice(line) {
        Ok(message) => message,
        Err(error) => return Line::Wrong(ErrorData::parse_error(format!("this is no JSON: {error}"), None), None),
    };
    let invalid = |text: &'static str, id| Line::Wrong(ErrorData::invalid_request(text, None), id);
    if message.is_array() {
        return invalid("batches are not taken: send one message a line", None);
    }
    let Some(members) = message.as_object() else { return invalid("a message is an object", None) };
    let id = members.get("id").cloned();
    let id: Option<RequestId> = id.and_then(|id| serde_json::from_value(id).ok());
    if members.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return invalid("a message says `\"jsonrpc\":\"2.0\"`", id);
    }
    match members.get("method") {
        Some(Value::String(_)) => {}
        Some(_) => return invalid("a method is a string", id),
        // An answer to a question that nobody asked here.
        None if members.contains_key("result") || members.contains_key("error") => return Line::Nothing,
        None => return invalid("a message names a method", id),
    }
    let is_request = members.contains_key("id");
    if is_request && id.is_none() {
        return invalid("an id is a string or a whole number", None);
    }
    if is_request && members.get("params").is_some_and(|params| !params.is_object()) {
        return Line::Wrong(ErrorData::invalid_params("parameters are an object", None), id);
    }
    match serde_json::from_value(message) {
        Ok(message) => Line::Message(Box::new(message)),
        Err(_) if is_request => {
            Line::Wrong(ErrorData::invalid_params("the parameters are not those of the method", None), id)
        }
        Err(_) => Line::Nothing,
    }
}

/// Notes that nobody waits for this answer any more.
fn settle(open: &watch::Sender<Vec<RequestId>>, id: &RequestId) {
    open.send_modify(|open| {
        if let Some(at) = open.iter().position(|other| other == id) {
            open.swap_remove(at);
        }
    });
}

impl<R: AsyncRead + Send + Unpin + 'static> Transport<RoleServer> for Lines<R> {
    type Error = io::Error;

    fn name() -> Cow<'static, str> {
        "stdio".into()
    }

    fn send(&mut self, message: TxJsonRpcMessage<RoleServer>) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (messages, open) = (self.messages.clone(), self.open.clone());
        async move {
            let answered = match &message {
                JsonRpcMessage::Response(response) => Some(response.id.clone()),
                JsonRpcMessage::Error(error) => error.id.clone(),
                JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
            };
            let sent = messages.send(message).await;
            if let Some(id) = answered {
                settle(&open, &id);
            }
            sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
        }
    }

    /// What is awaited here may be given up at any time, and is begun anew: nothing is taken before it can be kept.
    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if self.answer.is_some() {
                let place = self.messages.reserve().await.ok()?;
                if let Some(answer) = self.answer.take() {
                    place.send(answer);
                }
                continue;
            }
            let messages = self.messages.clone();
            let line = tokio::select! {
                line = self.next() => line,
                // Nobody reads the answers.
                () = messages.closed() => return None,
            };
            match line {
                Some(Line::Message(message)) => {
                    if let Some(message) = self.admitted(*message) {
                        return Some(message);
                    }
                }
                Some(Line::Wrong(error, id)) => self.answer = Some(ServerJsonRpcMessage::error(error, id)),
                Some(Line::Nothing) => {}
                None => {
                    let mut open = self.open.subscribe();
                    // Whoever serves drops what is not answered when this ends.
                    tokio::select! {
                        _ = open.wait_for(Vec::is_empty) => {}
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

impl<R> Lines<R> {
    /// Notes a message, if it is for whoever serves.
    fn admitted(&mut self, message: ClientJsonRpcMessage) -> Option<ClientJsonRpcMessage> {
        match &message {
            // Of two that wait under one id only one would be answered.
            JsonRpcMessage::Request(request) if self.open.borrow().contains(&request.id) => {
                let error = ErrorData::invalid_request("a request with this id is not answered yet", None);
                self.answer = Some(ServerJsonRpcMessage::error(error, Some(request.id.clone())));
                return None;
            }
            JsonRpcMessage::Request(request) => {
                self.is_begun = true;
                self.open.send_modify(|open| open.push(request.id.clone()));
            }
            // Before it has introduced itself a client has nothing to notify of.
            _ if !self.is_begun => return None,
            JsonRpcMessage::Notification(told) => {
                if let ClientNotification::CancelledNotification(cancelled) = &told.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    settle(&self.open, id);
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

    /// The code of what a line is answered with at once; none where it is for others to answer.
    fn code(line: &str) -> Option<ErrorCode> {
        match parsed(line.as_bytes()) {
            Line::Wrong(error, _) => Some(error.code),
            Line::Message(_) | Line::Nothing => None,
        }
    }

    #[test]
    fn what_is_no_message_has_its_error() {
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
