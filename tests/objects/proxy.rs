//! A proxy before the object store that fails chosen requests.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

/// Time by which a slow answer is late.
pub const SLOW: Duration = Duration::from_secs(3);
const HEAD_END: &[u8] = b"\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebFault {
    Status(u16),
    /// The connection ends without an answer.
    Reset,
    /// The connection ends in the middle of the body.
    Truncated,
    /// The header announces a byte less than the range has.
    WrongLength,
    Slow,
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

#[derive(Default)]
struct FaultyRequests {
    count: u64,
    /// The fault, the number of the first request that has it, and true if all later ones have it.
    fault: Option<(WebFault, u64, bool)>,
}

/// A proxy; it ends with the process.
pub struct Proxy {
    port: u16,
    requests: Arc<Mutex<FaultyRequests>>,
}

impl Proxy {
    /// Starts a proxy before the server at `upstream`.
    pub fn start(upstream: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<FaultyRequests>> = Arc::default();
        let (shared, upstream) = (requests.clone(), upstream.to_owned());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (shared, upstream) = (shared.clone(), upstream.clone());
                // A client that goes away is no error.
                thread::spawn(move || drop(serve(client, &upstream, &shared)));
            }
        });
        Proxy { port, requests }
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
        *self.requests.lock() = FaultyRequests { count: 0, fault: Some((fault, k, stays)) };
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
) -> std::io::Result<()> {
    let request = read_head(&mut client)?;
    if request.is_empty() {
        return Ok(());
    }
    let mut content = vec![0; content_length(&request)];
    client.read_exact(&mut content)?;
    let fault = {
        let mut requests = requests.lock();
        let number = requests.count;
        requests.count += 1;
        requests.fault.filter(|(_, k, stays)| number == *k || *stays && number > *k)
    };
    let fault = fault.map(|(fault, ..)| fault);
    match fault {
        Some(WebFault::Status(status)) => {
            return write!(
                client,
                "HTTP/1.1 {status} Fault\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
        Some(WebFault::Reset) => return client.shutdown(Shutdown::Both),
        Some(WebFault::Slow) => thread::sleep(SLOW),
        Some(WebFault::Blocked) => return client.read_to_end(&mut Vec::new()).map(drop),
        _ => {}
    }
    let mut server = TcpStream::connect(upstream)?;
    let head = request.strip_suffix(HEAD_END).unwrap_or(&request);
    server.write_all(&[head, b"\r\nConnection: close", HEAD_END, &content].concat())?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
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
    client.write_all(&answer)
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
