//! Arbitrary input of an MCP client: every answer is a valid message, and a later request is
//! answered.
#![no_main]

mod swarm;

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use swarmletfs_mcp::ServedTree;
use swarmletfs_tree::tree::{Settings, Tree};
use tokio::io::AsyncWrite;

const BEGIN: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":\"begin\",\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2025-11-25\",\
\"capabilities\":{},\"clientInfo\":{\"name\":\"f\",\"version\":\"1\"}}}\n";
const PING: &[u8] = b"\n{\"jsonrpc\":\"2.0\",\"id\":\"behind\",\"method\":\"ping\"}\n";

/// Collects the output of the server.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl AsyncWrite for Written {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fuzz_target!(|sent: &[u8]| {
    // Skips input that reuses the id of the last request or cancels a request.
    if sent.windows(6).any(|part| part == b"behind") || sent.windows(9).any(|part| part == b"cancelled") {
        return;
    }
    let written = Written::default();
    let output = written.clone();
    let input = io::Cursor::new([BEGIN, sent, PING].concat());
    let tree = Tree::new(swarm::view(), Settings::default());
    swarmletfs_mcp::serve(ServedTree::new(tree, || None), None, || Ok((input, output))).unwrap();
    let written = written.0.lock().unwrap();
    let mut is_answered = false;
    for line in written.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let message: Value = serde_json::from_slice(line).unwrap();
        assert_eq!(message["jsonrpc"], "2.0");
        assert!(message.get("id").is_some() && message.get("result").is_some() != message.get("error").is_some());
        is_answered |= message["id"] == "behind" && message["result"].is_object();
    }
    assert!(is_answered, "{}", String::from_utf8_lossy(&written));
});
