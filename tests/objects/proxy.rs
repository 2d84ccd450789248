//! A proxy before the object store that fails chosen requests.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

/// Time by which a slow answer is late.
pub const SLOW: Duration = Duration::from_secs(3);
/// Bytes a second of a slow network.
pub const TRICKLE: usize = 1 << 20;
pub const HEAD_END: &[u8] = b"\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebFault {
    Status(u16),
    /// An error of S3: a status, and a code in the body.
    Code(u16, &'static str),
    /// Status 503 with a request to wait for a second.
    Throttled,
    /// The connection ends without an answer.
    Reset,
    /// The connection ends in the middle of the body.
    Truncated,
    /// The header announces a byte less than the range has.
    WrongLength,
    Slow,
    /// The request is made after this time.
    Late(Duration),
    /// The answer comes with [`TRICKLE`] bytes a second.
    Trickle,
    /// The request is made, and the connection ends without an answer.
    LostAnswer,
    /// The request is neither made nor answered.
    Blocked,
    /// A put whose condition does not hold is answered as if it did.
    Unconditional,
}

impl WebFault {
    pub const ALL: [WebFault; 6] = [
        WebFault::Status(500),
        WebFault::Status(503),
        WebFault::Reset,
        WebFault::Truncated,
        WebFault::WrongLength,
        WebFault::Slow,
    ];
}

/// Changes the body of a listing.
type ListingEdit = Arc<dyn Fn(String) -> String + Send + Sync>;

#[derive(Default)]
struct FaultyRequests {
    count: u64,
    /// The fault, the number of the first request that has it, and true if all later ones have it.
    fault: Option<(WebFault, u64, bool)>,
    edit: Option<ListingEdit>,
}

/// The number of requests in progress, and the most there were at once.
#[derive(Default)]
struct RequestsInProgress {
    now: usize,
    most: usize,
}

/// A proxy; it ends with the process.
pub struct Proxy {
    port: u16,
    requests: Arc<Mutex<FaultyRequests>>,
    progress: Arc<Mutex<RequestsInProgress>>,
}

impl Proxy {
    /// Starts a proxy before the server at `upstream`.
    pub fn start(upstream: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<FaultyRequests>> = Arc::default();
        let progress: Arc<Mutex<RequestsInProgress>> = Arc::default();
        let (shared, upstream) = ((requests.clone(), progress.clone()), upstream.to_owned());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (shared, upstream) = (shared.clone(), upstream.clone());
                // A client that goes away is no error.
                thread::spawn(move || drop(serve(client, &upstream, &shared.0, &shared.1)));
            }
        });
        Proxy { port, requests, progress }
    }

    /// Returns the most requests that were in progress at once since the last call.
    pub fn most_at_once(&self) -> usize {
        std::mem::take(&mut self.progress.lock().most)
    }

    /// Returns the number of requests since [`Proxy::fail`].
    pub fn count(&self) -> u64 {
        self.requests.lock().count
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Counts from the next request on, and fails the one with the number `k`, from 0. All later
    /// ones fail too if the fault `stays`.
    pub fn fail(&self, fault: WebFault, k: u64, stays: bool) {
        *self.requests.lock() =
            FaultyRequests { fault: Some((fault, k, stays)), ..FaultyRequests::default() };
    }

    /// Changes all listings from now on, but for those of the catalog.
    pub fn edit_listings(&self, edit: impl Fn(String) -> String + Send + Sync + 'static) {
        *self.requests.lock() =
            FaultyRequests { edit: Some(Arc::new(edit)), ..FaultyRequests::default() };
    }

    /// Stops to fail requests. Returns the number of requests since [`Proxy::fail`].
    pub fn heal(&self) -> u64 {
        std::mem::take(&mut *self.requests.lock()).count
    }
}

fn serve(
    mut client: TcpStream,
    upstream: &str,
    requests: &Mutex<FaultyRequests>,
    progress: &Mutex<RequestsInProgress>,
) -> std::io::Result<()> {
    let (request, content) = read_request(&mut client)?;
    if request.is_empty() {
        return Ok(());
    }
    {
        let mut progress = progress.lock();
        progress.now += 1;
        progress.most = progress.most.max(progress.now);
    }
    let served = answer(client, &request, &content, upstream, requests);
    progress.lock().now -= 1;
    served
}

fn answer(
    mut client: TcpStream,
    request: &[u8],
    content: &[u8],
    upstream: &str,
    requests: &Mutex<FaultyRequests>,
) -> std::io::Result<()> {
    let (fault, edit) = {
        let mut requests = requests.lock();
        let number = requests.count;
        requests.count += 1;
        let is_hit = |(_, k, stays): &(WebFault, u64, bool)| number == *k || *stays && number > *k;
        (requests.fault.filter(is_hit), requests.edit.clone())
    };
    let fault = fault.map(|(fault, ..)| fault);
    let error = |status: u16, header: &str, code: &str| {
        let body = match code {
            "" => String::new(),
            code => format!("<Error><Code>{code}</Code><Message>a fault</Message></Error>"),
        };
        let length = body.len();
        format!(
            "HTTP/1.1 {status} Fault\r\n{header}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
    };
    match fault {
        Some(WebFault::Status(status)) => {
            return client.write_all(error(status, "", "").as_bytes());
        }
        Some(WebFault::Code(status, code)) => {
            return client.write_all(error(status, "", code).as_bytes());
        }
        Some(WebFault::Throttled) => {
            return client.write_all(error(503, "Retry-After: 1\r\n", "SlowDown").as_bytes());
        }
        Some(WebFault::Reset) => return client.shutdown(Shutdown::Both),
        Some(WebFault::Slow) => thread::sleep(SLOW),
        Some(WebFault::Late(time)) => thread::sleep(time),
        Some(WebFault::Blocked) => return client.read_to_end(&mut Vec::new()).map(drop),
        _ => {}
    }
    let mut answer = exchange(upstream, request, content)?;
    let has = |text: &[u8]| request.windows(text.len()).any(|part| part == text);
    if let Some(edit) = edit.filter(|_| has(b"list-type=2") && !has(b"%2Fcatalog%2F")) {
        let text = String::from_utf8(answer).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(!head.contains("chunked"), "{head}");
        let body = edit(body.to_owned());
        let length = body.len();
        answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        )
        .into_bytes();
    }
    let body = answer.windows(4).position(|end| end == HEAD_END).map_or(0, |at| at + 4);
    match fault {
        Some(WebFault::Unconditional) if answer.starts_with(b"HTTP/1.1 412") => {
            let done =
                "HTTP/1.1 200 OK\r\nETag: \"0\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            answer = done.into();
        }
        Some(WebFault::LostAnswer) => return client.shutdown(Shutdown::Both),
        Some(WebFault::Truncated) => answer.truncate(body + (answer.len() - body) / 2),
        Some(WebFault::WrongLength) if answer.len() > body => {
            let length = answer.len() - body;
            let head = String::from_utf8(answer[..body].to_vec()).unwrap();
            let [right, wrong] = [length, length - 1].map(|n| format!("Content-Length: {n}\r\n"));
            let end = answer[body..answer.len() - 1].to_vec();
            answer = [head.replace(&right, &wrong).as_bytes(), &end].concat();
        }
        _ => {}
    }
    if fault == Some(WebFault::Trickle) {
        for part in answer.chunks(TRICKLE / 32) {
            client.write_all(part)?;
            thread::sleep(Duration::from_secs(1) / 32);
        }
        return Ok(());
    }
    client.write_all(&answer)
}

/// Reads a request: its head, which is empty if there is none, and its content.
pub fn read_request(client: &mut TcpStream) -> std::io::Result<(Vec<u8>, Vec<u8>)> {
    let head = read_head(client)?;
    let mut content = vec![0; content_length(&head)];
    client.read_exact(&mut content)?;
    Ok((head, content))
}

/// Sends a request to the server at `upstream` and returns its answer.
pub fn exchange(upstream: &str, head: &[u8], content: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut server = TcpStream::connect(upstream)?;
    let head = head.strip_suffix(HEAD_END).unwrap_or(head);
    server.write_all(&[head, b"\r\nConnection: close", HEAD_END, content].concat())?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    Ok(answer)
}

fn read_head(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(HEAD_END) && client.read(&mut byte)? > 0 {
        head.extend(byte);
    }
    Ok(head)
}

/// Returns the length of the content that follows this head.
fn content_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let length = head.split("\r\ncontent-length:").nth(1).and_then(|rest| rest.split('\r').next());
    length.map_or(0, |length| length.trim().parse().unwrap())
}
