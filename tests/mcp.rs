//! `swarmletfs mcp`: the tree over the Model Context Protocol.

mod frames;
mod http;
pub mod process;
mod sdk;
mod supervisor;
mod tools;
mod worker_tools;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

use crate::support::python;
use serde_json::{Value, json};
use swarmletfs_mcp::ServedTree;
use swarmletfs_tree::tree::Tree;

/// A client and its server, both in this process.
pub struct Client {
    input: BufReader<UnixStream>,
    output: Option<UnixStream>,
    server: Option<JoinHandle<()>>,
    last: u64,
}

impl Client {
    /// Starts a server of `tree`, and initializes a client.
    pub fn new(tree: Tree) -> Client {
        Client::uninitialized(tree).initialize()
    }

    /// Starts a server that reopens its tree, and initializes a client.
    pub fn with_served_tree(tree: ServedTree) -> Client {
        Client::start(tree).initialize()
    }

    fn initialize(mut self) -> Client {
        let client = &mut self;
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
        });
        let begun = client.ask("initialize", params);
        assert_eq!(begun["result"]["serverInfo"]["name"], "swarmletfs", "{begun}");
        client.send(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
        self
    }

    /// Starts a server of `tree`, and a client that is not initialized.
    pub fn uninitialized(tree: Tree) -> Client {
        Client::start(ServedTree::new(tree, || None))
    }

    fn start(tree: ServedTree) -> Client {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let open = || Ok(tokio::net::UnixStream::from_std(theirs)?.into_split());
        let server = thread::spawn(move || swarmletfs_mcp::serve(tree, None, open).unwrap());
        Client {
            input: BufReader::new(ours.try_clone().unwrap()),
            output: Some(ours),
            server: Some(server),
            last: 0,
        }
    }

    /// Sends raw bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.output.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Returns the next message.
    #[track_caller]
    pub fn next(&mut self) -> Value {
        let mut line = String::new();
        assert_ne!(self.input.read_line(&mut line).unwrap(), 0, "the server has closed");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Sends a request and returns the answer.
    #[track_caller]
    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let request =
            json!({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params});
        self.send(format!("{request}\n").as_bytes());
        let answer = self.next();
        assert_eq!(
            (&answer["jsonrpc"], &answer["id"]),
            (&json!("2.0"), &json!(self.last)),
            "{answer}"
        );
        answer
    }

    /// Calls a tool. Returns its texts, and true if they are an error.
    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: Value) -> (Vec<String>, bool) {
        let answer = self.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        let result = &answer["result"];
        let content = result["content"].as_array().unwrap_or_else(|| panic!("{tool}: {answer}"));
        let texts =
            content.iter().map(|content| content["text"].as_str().unwrap().to_owned()).collect();
        (texts, result["isError"].as_bool().unwrap_or(false))
    }

    /// Calls a tool and returns its only text.
    #[track_caller]
    pub fn text(&mut self, tool: &str, arguments: Value) -> String {
        let (mut texts, is_error) = self.call(tool, arguments);
        assert!(!is_error && texts.len() == 1, "{tool}: {texts:?}");
        texts.remove(0)
    }

    /// Calls a tool that fails and returns its error message.
    #[track_caller]
    pub fn error(&mut self, tool: &str, arguments: Value) -> String {
        let (mut texts, is_error) = self.call(tool, arguments);
        assert!(is_error && texts.len() == 1, "{tool}: {texts:?}");
        texts.remove(0)
    }

    /// Stops reading answers.
    pub fn stop_reading(&mut self) {
        self.input.get_ref().shutdown(std::net::Shutdown::Read).unwrap();
    }

    /// Waits until the server ends by itself.
    pub fn join(&mut self) {
        self.server.take().unwrap().join().unwrap();
    }

    /// Closes the server's input.
    pub fn close(&mut self) {
        self.output.take().unwrap().shutdown(std::net::Shutdown::Write).unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.output.is_some() {
            self.close();
        }
        let ended = self.server.take().map_or(Ok(()), JoinHandle::join);
        assert!(ended.is_ok() || thread::panicking(), "the server has panicked");
    }
}

/// Runs sessions of the Python SDK, as tests/mcp/roles.py describes; `None` without the SDK.
pub fn roles(sessions: Vec<Value>) -> Option<Vec<Value>> {
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp/roles.py");
    let mut child = Command::new(python()?)
        .arg(SCRIPT)
        .env_remove("SWARMLET_WORKER")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(json!(sessions).to_string().as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    Some(serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {said}")))
}
