//! A server over HTTP in a process of its own, and requests as bytes.
//!
//! R42: clients without the token cannot block others by silence, slowness or numbers.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::cli::program::small_store;
use crate::mount::PATIENCE;
use crate::support::mount::limit;
use crate::support::tool::is_here;
use crate::support::{TestStore, scale};

const PROGRAM: &str = env!("CARGO_BIN_EXE_swarmletfs");
/// The token of every server here.
pub const TOKEN: &str = "a-token-that-only-this-test-knows";
/// The body of a request that every server answers.
const PING: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}";

/// Ticks a second in which `/proc` counts processor time, on every Linux.
const TICKS: f64 = 100.0;

/// A server over HTTP. Its process ends when this is dropped.
pub struct Server {
    child: Child,
    address: SocketAddr,
    /// Held open, since the server writes to it.
    _stderr: BufReader<std::process::ChildStderr>,
}

impl Server {
    /// Starts a server of `store` at any port.
    pub fn start(store: &TestStore) -> Server {
        Server::start_at(store, "127.0.0.1:0", &[])
    }

    /// Starts a server of `store` at `address`. The words of `before` stand before the command.
    pub fn start_at(store: &TestStore, address: &str, before: &[&str]) -> Server {
        let words =
            [before, &[PROGRAM, "mcp", "--no-cache", "--http", address, "--store"]].concat();
        let mut command = Command::new(words[0]);
        command.args(words[1..].iter().map(OsStr::new).chain([store.path().as_os_str()]));
        Server::start_command(command)
    }

    /// Starts a server by a command.
    pub fn start_command(mut command: Command) -> Server {
        let command = command.env("SWARMLETFS_TOKEN", TOKEN).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let url = stderr
            .by_ref()
            .lines()
            .map(Result::unwrap)
            .find(|line| line.contains("serving at "))
            .unwrap();
        let address = url.rsplit(' ').next().unwrap().strip_prefix("http://").unwrap();
        let address = address.strip_suffix("/mcp").unwrap().parse().unwrap();
        Server { child, address, _stderr: stderr }
    }

    /// Returns the URL that clients use.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Opens a connection. What takes longer than [`PATIENCE`] on it fails.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.address, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Returns the headers of a request for `/mcp` with the token, without the empty line at the
    /// end.
    pub fn headers(&self) -> String {
        format!("{}Authorization: Bearer {TOKEN}\r\n", self.headers_without_token())
    }

    /// Returns the headers of a request for `/mcp` without a token, and without the empty line at
    /// the end.
    pub fn headers_without_token(&self) -> String {
        format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n",
            self.address
        )
    }

    /// Returns a whole request with the token.
    pub fn ping(&self) -> String {
        format!("{}Content-Length: {}\r\n\r\n{PING}", self.headers(), PING.len())
    }

    /// Sends a request with the token on a new connection. Fails if it is not answered.
    #[track_caller]
    pub fn expect_answer(&self) {
        expect_pong(&mut self.connect(), &self.ping());
    }

    /// Returns the processor time that the server has used.
    pub fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The name, which may hold spaces, ends at the last parenthesis; the state follows.
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks: u64 = fields[11..=12].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_secs_f64(ticks as f64 / TICKS)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Sends `ping` on a connection that stays open, and reads the answer.
#[track_caller]
pub fn expect_pong(stream: &mut TcpStream, ping: &str) {
    try_ping(stream, ping).unwrap();
}

/// Sends `ping` on a connection that stays open, and reads the answer. Returns an error if the
/// connection is closed first.
pub fn try_ping(stream: &mut TcpStream, ping: &str) -> io::Result<()> {
    stream.write_all(ping.as_bytes())?;
    let mut answer = Vec::new();
    let end = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}";
    while !answer.ends_with(end) {
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes)?;
        if read == 0 {
            assert!(answer.is_empty(), "{}", answer.escape_ascii());
            return Err(ErrorKind::ConnectionAborted.into());
        }
        answer.extend(&bytes[..read]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", answer.escape_ascii());
    Ok(())
}

/// Silent connections.
const SILENT: usize = 2_000;
/// Connections that send their headers slowly.
const SLOW_HEADERS: usize = 200;
/// Connections with the token that send their bodies slowly.
const SLOW_BODIES: usize = 50;
/// Time over which the server's processor time is measured.
const WATCHED: Duration = Duration::from_secs(3);

/// Opens `count` connections that say nothing.
fn silent(server: &Server, count: usize) -> Vec<TcpStream> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = (count + 1_024) as u64;
    if limit.current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }).unwrap();
    }
    (0..count).map(|_| server.connect()).collect()
}

/// Returns the processor time that this thread has used.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Fails if the server uses more than a third of the processor time that a busy thread gets beside
/// it.
#[track_caller]
fn expect_idle(server: &Server) {
    let (begun, used, spent) = (Instant::now(), server.cpu_time(), thread_time());
    while begun.elapsed() < WATCHED {
        std::hint::spin_loop();
    }
    let (used, busy) = (server.cpu_time() - used, thread_time() - spent);
    assert!(used < busy / 3, "{used:?}, and a busy thread {busy:?}");
}

/// Sends a request with the token, again where hundreds of connections came between the client's
/// connection and its request. Fails if it is not answered.
#[track_caller]
fn expect_answer_in_flood(server: &Server) {
    let begun = Instant::now();
    while let Err(error) = try_ping(&mut server.connect(), &server.ping()) {
        assert!(begun.elapsed() < PATIENCE, "not answered: {error}");
    }
}

/// Reads what has come without waiting. Returns false once the connection is closed.
fn read_some(stream: &mut TcpStream, answer: &mut Vec<u8>) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return false,
            Ok(read) => answer.extend(&bytes[..read]),
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// Reads until the connection is closed, by whatever means.
fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A server that has not read everything resets the connection behind its answer.
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{}", answer.escape_ascii());
    }
    String::from_utf8(answer).unwrap()
}

/// Promise: Silent connections do not block clients with the token.
#[test]
fn silent_connections_do_not_block_clients() {
    let server = Server::start(&small_store());
    limit(server.pid(), Resource::Nofile, 1_024);
    let mut client = server.connect();
    expect_pong(&mut client, &server.ping());
    let mut flood = silent(&server, SILENT);
    server.expect_answer();
    expect_idle(&server);
    for _ in 0..scale(1) {
        // While one flood goes, another comes.
        thread::scope(|scope| {
            let next = scope.spawn(|| silent(&server, SILENT));
            flood.clear();
            while !next.is_finished() {
                expect_answer_in_flood(&server);
            }
            flood = next.join().unwrap();
        });
        server.expect_answer();
        // A client that has presented the token is not closed in favor of newer connections.
        expect_pong(&mut client, &server.ping());
    }
}

/// Promise: Slow headers and slow bodies time out.
#[test]
fn slow_headers_and_bodies_time_out() {
    let server = &Server::start(&small_store());
    let mut idle = server.connect();
    expect_pong(&mut idle, &server.ping());
    let begin = |count: usize, head: String| {
        let open = move |_| {
            let mut stream = server.connect();
            stream.write_all(head.as_bytes()).unwrap();
            stream.set_nonblocking(true).unwrap();
            (stream, Vec::new(), true)
        };
        (0..count).map(open).collect::<Vec<_>>()
    };
    let mut headers = begin(SLOW_HEADERS, format!("{}X-Slow: ", server.headers_without_token()));
    let mut bodies =
        begin(SLOW_BODIES, format!("{}Content-Length: 1000000\r\n\r\n", server.headers()));
    let begun = Instant::now();
    while headers.iter().chain(&bodies).any(|(_, _, is_open)| *is_open) {
        assert!(begun.elapsed() < PATIENCE, "slow connections are still open");
        for (stream, answer, is_open) in
            headers.iter_mut().chain(&mut bodies).filter(|(_, _, is_open)| *is_open)
        {
            *is_open = read_some(stream, answer) && stream.write_all(b"a").is_ok();
        }
        server.expect_answer();
        thread::sleep(Duration::from_millis(500));
    }
    for (_, answer, _) in &bodies {
        assert!(answer.starts_with(b"HTTP/1.1 408 "), "{}", answer.escape_ascii());
    }
    // An idle connection that has presented the token outlives them.
    expect_pong(&mut idle, &server.ping());
}

/// Promise: A server without free descriptors pauses and resumes when some are free.
#[test]
fn server_without_descriptors_pauses_and_resumes() {
    let server = Server::start(&small_store());
    limit(server.pid(), Resource::Nofile, 0);
    let mut waiting = server.connect();
    waiting.write_all(server.ping().as_bytes()).unwrap();
    expect_idle(&server);
    limit(server.pid(), Resource::Nofile, 1_024);
    expect_pong(&mut waiting, "");
}

/// Promise: Silent connections leave free descriptors to a server with few.
#[test]
fn silent_connections_leave_descriptors_free() {
    if !is_here("prlimit") {
        return;
    }
    let server = Server::start_at(&small_store(), "127.0.0.1:0", &["prlimit", "--nofile=64:64"]);
    let _flood = silent(&server, 200);
    server.expect_answer();
    expect_idle(&server);
    server.expect_answer();
}

/// Promise: A request without the token is refused before its body, and its connection is closed.
#[test]
fn request_without_the_token_is_refused_before_its_body() {
    let server = Server::start(&small_store());
    // The body never comes.
    let mut stream = server.connect();
    stream
        .write_all(
            format!("{}Content-Length: 1000000\r\n\r\n", server.headers_without_token()).as_bytes(),
        )
        .unwrap();
    let answer = read_all(&mut stream);
    assert!(
        answer.starts_with("HTTP/1.1 401 ") && answer.contains("\r\nwww-authenticate: Bearer\r\n"),
        "{answer}"
    );
    // Neither a request behind it is answered, with or without the token, nor one in its body.
    for wrong in ["\r\n".to_owned(), format!("Content-Length: {}\r\n\r\n", server.ping().len())] {
        let mut stream = server.connect();
        let wrong = format!("{}{wrong}", server.headers_without_token());
        stream.write_all(format!("{wrong}{}{wrong}", server.ping()).as_bytes()).unwrap();
        let answer = read_all(&mut stream);
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    }
    server.expect_answer();
}

#[test]
fn headers_over_16_kib_are_refused() {
    let server = Server::start(&small_store());
    let mut stream = server.connect();
    let long = "a".repeat(17 << 10);
    stream.write_all(format!("{}X-Long: {long}", server.headers()).as_bytes()).unwrap();
    let answer = read_all(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[test]
fn any_loopback_address_can_be_served() {
    for address in ["127.0.0.1:0", "127.0.0.2:0"] {
        Server::start_at(&small_store(), address, &[]).expect_answer();
    }
}
