//! R30: any input gets a well-formed answer or none, and the next request is answered correctly.

use proptest::prelude::*;
use serde_json::{Value, json};
use swarmletfs_tree::tree::Tree;

use super::Client;
use crate::support::{TestStore, cases};

fn tree() -> (TestStore, Tree) {
    let store = TestStore::new();
    store.worker("a", json!({})).call("a", 1, "sh", "well");
    let tree = store.tree();
    (store, tree)
}

/// Sends lines and then a ping. Returns the error codes of the answers before the pong.
fn codes(client: &mut Client, lines: &[u8]) -> Vec<Option<i64>> {
    client.send(lines);
    client.send(b"\n{\"jsonrpc\":\"2.0\",\"id\":\"behind\",\"method\":\"ping\"}\n");
    let mut codes = Vec::new();
    loop {
        let answer = client.next();
        assert_eq!(answer["jsonrpc"], "2.0", "{answer}");
        assert!(answer.get("result").is_some() != answer.get("error").is_some(), "{answer}");
        assert!(answer.as_object().unwrap().contains_key("id"), "{answer}");
        if answer["id"] == "behind" {
            assert!(answer["result"].is_object(), "{answer}");
            return codes;
        }
        codes.push(answer["error"]["code"].as_i64());
    }
}

/// Promise: Every message of a client is answered, and the next request succeeds.
#[test]
fn every_message_is_answered_and_the_next_succeeds() {
    let (_store, tree) = tree();
    let mut client = Client::new(tree);
    let (parse, request, method, params) = (Some(-32700), Some(-32600), Some(-32601), Some(-32602));
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let deep_inside =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{{\"x\":{deep}}}}}");
    for (line, code) in [
        (&b"nonsense"[..], parse),
        (b"{\"jsonrpc\":", parse),
        (b"\xff\xfe{}", parse),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", parse),
        (deep.as_bytes(), parse),
        (deep_inside.as_bytes(), parse),
        (b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", request),
        (b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"ping\"}", request),
        (b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}", request),
        (b"{\"id\":1,\"method\":\"ping\"}", request),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1}", request),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"no/such\"}", method),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"prompts/list\"}", method),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\"}", params),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":7}", params),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":7}}", params),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"no\"}}", params),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/read\",\"params\":{\"uri\":17}}", params),
    ] {
        let shown = String::from_utf8_lossy(&line[..line.len().min(80)]);
        assert_eq!(codes(&mut client, line), [code], "{shown}");
    }
    for quiet in [
        "",
        " ",
        "{\"jsonrpc\":\"2.0\",\"id\":9,\"result\":{}}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"no/such\"}",
    ] {
        assert_eq!(codes(&mut client, quiet.as_bytes()), [], "{quiet}");
    }
}

/// Promise: A message that is too long is skipped and reported.
#[test]
fn message_that_is_too_long_is_skipped_and_reported() {
    let (_store, tree) = tree();
    let mut client = Client::new(tree);
    let long = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{{\"x\":\"{}\"}}}}",
        "x".repeat(64 << 20)
    );
    client.send(long.as_bytes());
    client.send(b"\n");
    let answer = client.next();
    // The error has the id of the request.
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32600)));
    assert_eq!(codes(&mut client, "x".repeat(17 << 20).as_bytes()), [Some(-32600)]);
}

/// Promise: Invalid messages among valid requests are each answered.
#[test]
fn invalid_messages_are_each_answered() {
    let (_store, tree) = tree();
    let mut client = Client::new(tree);
    for _ in 0..200 {
        let line = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"exists\",\"arguments\":{\"path\":\"a\"}}}";
        client.send(format!("{line}\nnonsense\n").as_bytes());
        let mut ids = [client.next()["id"].clone(), client.next()["id"].clone()];
        ids.sort_by_key(Value::to_string);
        assert_eq!(ids, [json!(1), Value::Null]);
    }
    // Again, without waiting for each answer.
    let lines: String = (0..500)
        .map(|id| {
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}\n{{\"id\":{id}}}\n")
        })
        .collect();
    client.send(lines.as_bytes());
    client.close();
    let answers: Vec<Value> = (0..1_000).map(|_| client.next()).collect();
    assert_eq!(answers.iter().filter(|answer| answer["result"].is_object()).count(), 500);
}

/// Promise: A client that reads no answers is not served forever.
#[test]
fn client_that_reads_no_answers_is_disconnected() {
    let (_store, tree) = tree();
    let mut client = Client::new(tree);
    client.stop_reading();
    client.send(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n");
    // The client's output stays open.
    client.join();
}

#[test]
fn malformed_messages_before_initialization_are_answered() {
    let (_store, tree) = tree();
    let mut client = Client::uninitialized(tree);
    let begin = b"nonsense\n{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}\n[]\n";
    let mut answered = codes(&mut client, begin);
    answered.sort_unstable();
    assert_eq!(answered, [Some(-32700), Some(-32602), Some(-32600)]);
}

/// Promise: A thousand simultaneous requests are all answered, even if the input then ends.
#[test]
fn thousand_simultaneous_requests_are_answered() {
    let (_store, tree) = tree();
    let mut client = Client::new(tree);
    let mut lines = String::new();
    for id in 0..1_000 {
        lines += &json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": "read_file", "arguments": {"path": "workers/a/summary"}}})
        .to_string();
        lines.push('\n');
    }
    client.send(lines.as_bytes());
    client.close();
    let mut ids: Vec<i64> = (0..1_000)
        .map(|_| {
            let answer = client.next();
            assert!(
                answer["result"]["content"][0]["text"]
                    .as_str()
                    .unwrap()
                    .starts_with("worker   a\n"),
                "{answer}"
            );
            answer["id"].as_i64().unwrap()
        })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..1_000).collect::<Vec<i64>>());
}

/// Promise: The id of a pending request cannot be reused.
#[test]
fn pending_request_id_cannot_be_reused() {
    let (_store, tree) = tree();
    let mut client = Client::new(tree);
    let line = "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{\"name\":\"exists\",\"arguments\":{\"path\":\"a\"}}}\n";
    client.send(line.repeat(50).as_bytes());
    client.close();
    let answers: Vec<Value> = (0..50).map(|_| client.next()).collect();
    let is_right = |answer: &Value| {
        answer["id"] == 7 && (answer["result"].is_object() || answer["error"]["code"] == -32600)
    };
    assert!(
        answers.iter().all(is_right) && answers.iter().any(|answer| answer["result"].is_object()),
        "{answers:?}"
    );
}

/// Generates messages from parts of the protocol, some of them invalid.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just(json!("tools/call")),
        Just(json!("tools/list")),
        Just(json!("resources/read")),
        Just(json!("initialize")),
        Just(json!("ping")),
        Just(json!("2.0")),
        Just(json!(null)),
        Just(json!(-1.5)),
        Just(json!([])),
        Just(json!({})),
        Just(json!({"name": "read_file", "arguments": {"path": "../../etc"}})),
        Just(json!({"name": "grep", "arguments": {"pattern": "("}})),
        Just(json!({"name": "list_dir", "arguments": {"recursive": true}})),
        Just(json!({"uri": "swarm:///..//summary"})),
        Just(json!({"_meta": {"progressToken": 1}, "requestId": 3})),
        any::<i64>().prop_map(|n| json!(n)),
        ".{0,9}".prop_map(|text| json!(text)),
    ];
    let key = prop_oneof![
        Just("jsonrpc"),
        Just("id"),
        Just("method"),
        Just("params"),
        Just("result"),
        Just("error"),
        Just("x")
    ];
    let object = proptest::collection::vec((key, word), 0..6).prop_map(|members| {
        let mut object: serde_json::Map<String, Value> =
            members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        object.entry("jsonrpc").or_insert(json!("2.0"));
        Value::Object(object).to_string().into_bytes()
    });
    // Truncate some messages, and change a byte of others.
    (object, any::<prop::sample::Index>(), any::<u8>(), 0..4_u8).prop_map(
        |(mut bytes, at, byte, how)| {
            let at = at.index(bytes.len());
            match how {
                0 => bytes.truncate(at),
                1 => bytes[at] = byte,
                _ => {}
            }
            bytes
        },
    )
}

#[test]
fn random_messages_neither_stop_nor_end_the_server() {
    let (_store, tree) = tree();
    let client = std::cell::RefCell::new(Client::new(tree));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        max_shrink_iters: 0,
        ..cases(1_000)
    });
    runner
        .run(&proptest::collection::vec(message(), 1..6), |messages| {
            // Leave out messages with the id of the ping.
            let lines: Vec<Vec<u8>> = messages
                .into_iter()
                .filter(|line| !line.windows(6).any(|part| part == b"behind"))
                .collect();
            codes(&mut client.borrow_mut(), &lines.join(&b'\n'));
            Ok(())
        })
        .unwrap();
}
