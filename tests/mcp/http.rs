//! A server over HTTP in a process of its own, and requests as bytes.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;

use crate::mount::PATIENCE;
use crate::support::TestStore;

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
