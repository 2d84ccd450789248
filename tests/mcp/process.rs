//! A client of `swarmletfs mcp` in a process of its own, with a person who answers its questions.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::cli::program::{LIMIT, wait_timeout};

/// A client and the process that serves it.
pub struct ProcessClient {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
    last: u64,
    /// The answers to coming questions; none for a person who does not answer.
    pub answers: VecDeque<Option<Value>>,
    /// The messages of all questions.
    pub questions: Vec<String>,
    last_question: Value,
}

impl ProcessClient {
    /// Starts a server. The client can ask a person if `can_ask`.
    pub fn start(command: Command, can_ask: bool) -> ProcessClient {
        let mut client = ProcessClient::spawn(command);
        let capabilities = if can_ask { json!({"elicitation": {}}) } else { json!({}) };
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": {"name": "test", "version": "1"},
        });
        let begun = client.ask("initialize", params);
        assert_eq!(begun["result"]["serverInfo"]["name"], "swarmletfs", "{begun}");
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    /// Starts a server, and a client that is not initialized.
    pub fn spawn(mut command: Command) -> ProcessClient {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let stderr = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        ProcessClient {
            child,
            stdin,
            lines,
            stderr: Some(stderr),
            last: 0,
            answers: VecDeque::new(),
            questions: Vec::new(),
            last_question: Value::Null,
        }
    }

    fn send(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{message}\n").as_bytes()).unwrap();
    }

    /// Sends a request and returns its id.
    pub fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        let id = self.last;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// Sends a notification.
    pub fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Returns the answer to the request `id`. Answers questions that come before it.
    #[track_caller]
    pub fn wait(&mut self, id: u64) -> Value {
        loop {
            let message = self.next();
            if message["method"].is_null() {
                assert_eq!(message["id"], id, "{message}");
                return message;
            }
            if message["method"] == "elicitation/create" {
                self.answer(&message);
            }
        }
    }

    /// Waits for a question and keeps its message.
    #[track_caller]
    pub fn wait_for_question(&mut self) {
        let message = self.next();
        assert_eq!(message["method"], "elicitation/create", "{message}");
        self.answer(&message);
    }

    fn answer(&mut self, question: &Value) {
        self.questions.push(question["params"]["message"].as_str().unwrap().to_owned());
        self.last_question = question["id"].clone();
        let answer = self.answers.pop_front().unwrap_or_else(|| panic!("a question: {question}"));
        if let Some(result) = answer {
            self.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result}));
        }
    }

    /// Waits for this many messages, in any order.
    #[track_caller]
    pub fn skip(&mut self, count: usize) {
        (0..count).for_each(|_| drop(self.next()));
    }

    /// Answers the last question, which was left open.
    pub fn reply_to_last(&mut self, result: Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": self.last_question, "result": result}));
    }

    #[track_caller]
    fn next(&mut self) -> Value {
        let line = self.lines.recv_timeout(LIMIT).expect("the server closed or did not answer");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Sends a request and returns its answer.
    #[track_caller]
    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        self.wait(id)
    }

    /// Returns the names of all tools.
    #[track_caller]
    pub fn tools(&mut self) -> Vec<String> {
        let listed = self.ask("tools/list", json!({}));
        let tools = listed["result"]["tools"].as_array().unwrap().iter();
        tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Calls a tool. Returns its texts, joined, and true if they are an error.
    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: Value) -> (String, bool) {
        let answer = self.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        texts(&answer)
    }

    /// Calls a tool that succeeds, and returns its texts.
    #[track_caller]
    pub fn text(&mut self, tool: &str, arguments: Value) -> String {
        let (text, is_error) = self.call(tool, arguments);
        assert!(!is_error, "{tool}: {text}");
        text
    }

    /// Calls a tool that fails, and returns its error.
    #[track_caller]
    pub fn error(&mut self, tool: &str, arguments: Value) -> String {
        let (text, is_error) = self.call(tool, arguments);
        assert!(is_error, "{tool}: {text}");
        text
    }

    /// Kills the server, but not the processes that it started.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Kills the processes that the server started.
    pub fn kill_children(&mut self) {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        for child in children.split_whitespace() {
            let child = Pid::from_raw(child.parse().unwrap()).unwrap();
            rustix::process::kill_process(child, Signal::KILL).unwrap();
        }
        self.child.wait().unwrap();
    }

    /// Closes the input of the server.
    pub fn close(&mut self) {
        drop(self.stdin.take());
    }

    /// Closes the input, and waits for the end of the server. Returns its messages.
    #[track_caller]
    pub fn end(mut self) -> String {
        self.close();
        let status = wait_timeout(&mut self.child, LIMIT).expect("the server does not end");
        let stderr = self.stderr.take().unwrap().join().unwrap();
        assert!(status.success(), "{status}: {stderr}");
        stderr
    }
}

impl Drop for ProcessClient {
    fn drop(&mut self) {
        self.close();
        if wait_timeout(&mut self.child, LIMIT).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns the texts of a result, joined, and true if they are an error.
#[track_caller]
pub fn texts(answer: &Value) -> (String, bool) {
    let result = &answer["result"];
    let content = result["content"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let texts: Vec<&str> = content.iter().map(|part| part["text"].as_str().unwrap()).collect();
    (texts.join("\n"), result["isError"].as_bool().unwrap_or(false))
}
