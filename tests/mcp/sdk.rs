//! The official Python SDK over stdio and HTTP: every tool returns the bytes of a mount and of the
//! command line.
//!
//! R31: for random stores and views, clients read exactly the files of the tree.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Client;
use super::http::{Server, TOKEN};
use crate::hostile::views::random_store;
use crate::mount::PATIENCE;
use crate::support::{Mount, Seen, TestStore, fuse_is_here, python, see, see_folder, seeds};
use swarmletfs_tree::tree::{Settings, Tree};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp/client.py");
const PROGRAM: &str = env!("CARGO_BIN_EXE_swarmletfs");

fn store() -> TestStore {
    let store = TestStore::new();
    store.worker("a", json!({"run_id": "r1", "job_id": 1, "status": "failed"}));
    store.call("a", 1, "sh", "{\"exit_code\": 1, \"stderr\": \"no space left on device\"}");
    store.worker("b", json!({"run_id": "r1", "job_id": 2})).call("b", 1, "sh", "{\"ok\": true}");
    store
}

/// Returns a request for every tool and resource, and the path with equal content in a mount.
fn requests() -> Vec<(Value, Option<&'static str>)> {
    let tool = |name: &str, arguments: Value| json!({"tool": name, "arguments": arguments});
    vec![
        (tool("list_workers", json!({"status": "failed"})), None),
        (tool("summarize", json!({"worker": "a"})), Some("workers/a/summary")),
        (
            tool("get_evidence", json!({"worker": "a", "bytes": 2048})),
            Some("workers/a/evidence.2k.txt"),
        ),
        (
            tool("get_evidence", json!({"run": "r1", "tokens": 500})),
            Some("runs/r1/evidence.500tok.txt"),
        ),
        (
            tool("get_tool_output", json!({"worker": "a", "call": 1})),
            Some("workers/a/tool_calls/001_sh.txt"),
        ),
        (tool("compare", json!({"workers": ["a", "b"]})), Some("compare/a..b")),
        (tool("changes_since", json!({"cursor": "0"})), Some("since/0")),
        (tool("expand", json!({"text": "[EVIDENCE:run_id=r1,job_id=1,worker_id=a]"})), None),
        (tool("list_dir", json!({"path": "workers"})), None),
        (tool("read_file", json!({"path": "index.json"})), Some("index.json")),
        (tool("info", json!({"path": "workers/a"})), None),
        (tool("exists", json!({"path": "workers/a"})), None),
        (tool("glob", json!({"pattern": "workers/*/summary"})), None),
        (tool("grep", json!({"pattern": "space"})), Some("grep/space")),
        (tool("search", json!({"query": "space"})), Some("search/space")),
        (json!({"resource": "swarm:///workers/a/index.json"}), Some("workers/a/index.json")),
        (json!({"resource": "swarm:///evidence.txt"}), Some("evidence.txt")),
    ]
}

/// Runs the Python client against `server` and returns its report.
fn run_client(python: &Path, mut server: Value) -> Value {
    server["asks"] = requests().into_iter().map(|(ask, _)| ask).collect();
    let mut child = Command::new(python)
        .arg(SCRIPT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(server.to_string().as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// Promise: A client receives the bytes of a mount and of the command line.
///
/// Compares each tool and resource over both transports with a mount and the command line.
#[test]
fn client_receives_the_bytes_of_mount_and_command_line() {
    let Some(python) = python() else { return };
    let store = store();
    let command = json!([PROGRAM, "mcp", "--no-cache", "--store", store.path()]);
    let by_stdio = run_client(&python, json!({"command": command}));
    let server = Server::start(&store);
    let by_http = run_client(&python, json!({"url": server.url(), "token": TOKEN}));
    assert_eq!(by_stdio, by_http);
    let (asked, mut called) = (requests(), Vec::new());
    let mount = fuse_is_here("mcp::sdk").then(|| Mount::new(&store.path()));
    for ((ask, path), answer) in asked.iter().zip(by_stdio["answers"].as_array().unwrap()) {
        assert_eq!(answer["error"], false, "{ask}: {answer}");
        called.extend(ask["tool"].as_str());
        let Some(path) = path else { continue };
        let out = Command::new(PROGRAM)
            .args(["cat", "--no-cache", "--store"])
            .arg(store.path())
            .arg(path)
            .output()
            .unwrap();
        assert_eq!(answer["texts"][0].as_str().unwrap().as_bytes(), out.stdout, "{ask}");
        if let Some(mount) = &mount {
            assert_eq!(mount.read(path), out.stdout, "{ask}");
        }
    }
    let all: Vec<&str> = by_stdio["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert!(all.len() >= 14 && all.iter().all(|name| called.contains(name)), "{all:?}");
}

/// Promise: Over HTTP, requests without the token or from a web page of another origin are refused.
#[test]
fn http_requires_the_token_and_a_local_origin() {
    if !crate::support::tool::is_here("curl") {
        return;
    }
    let server = Server::start(&store());
    let code = |arguments: &[&str]| {
        let out = Command::new("curl")
            .args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-d", "{}"])
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let (known, url) = (format!("Authorization: Bearer {TOKEN}"), server.url());
    for wrong in [
        "Authorization: Bearer wrong",
        "Authorization: Basic YTpi",
        "X-No: one",
        &known[..known.len() - 1],
    ] {
        assert_eq!(code(&["-H", wrong, &url]), "401", "{wrong}");
    }
    assert_eq!(code(&["-H", &known, "-H", "Origin: http://localhost:1", &url]), "403");
    assert_eq!(code(&["-H", &known, "-H", "Host: elsewhere.example", &url]), "403");
    assert_eq!(code(&["-H", &known, &url.replace("/mcp", "/")]), "404");
    assert_ne!(code(&["-H", &known, "-H", "Content-Type: application/json", &url]), "200");
}

/// Promise: The process ends when nobody reads its answers.
///
/// A client may stop reading while another process keeps the server's stdin open.
#[test]
fn process_ends_when_nobody_reads_its_answers() {
    let store = store();
    let mut command = Command::new(PROGRAM);
    command
        .args(["mcp", "--no-cache", "--store"])
        .arg(store.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n").unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the server waits for a stdin that nobody closes");
        }
        std::thread::yield_now();
    }
    drop(stdin);
}

/// Promise: The HTTP server listens on loopback only, and refuses a weak token.
#[test]
fn http_listens_on_loopback_and_refuses_a_weak_token() {
    let store = store();
    let run = |arguments: &[&str], token: &str| {
        let mut command = Command::new(PROGRAM);
        command
            .arg("mcp")
            .args(arguments)
            .arg("--store")
            .arg(store.path())
            .env("SWARMLETFS_TOKEN", token);
        let out = command.stdin(Stdio::null()).output().unwrap();
        (out.status.code(), String::from_utf8(out.stderr).unwrap())
    };
    let (code, said) = run(&["--http", "0.0.0.0:0"], TOKEN);
    assert!(code == Some(2) && said.contains("is not on the loopback"), "{said}");
    let (code, said) = run(&["--http", "127.0.0.1:0"], "short");
    assert!(
        code == Some(2) && said.contains("$SWARMLETFS_TOKEN: a token is at least 16"),
        "{said}"
    );
    // A client that disconnects without a request is not an error.
    assert_eq!(run(&[], TOKEN).0, Some(0));
}

/// Number of random stores.
const STORES: usize = 64;

/// Promise: A client can read everything in the tree.
#[test]
fn client_reads_what_the_tree_holds() {
    for seed in seeds(STORES) {
        let (store, filter, ids) = random_store(seed);
        let view = || {
            Tree::new(store.view(Duration::from_secs(3_600), filter.clone()), Settings::default())
        };
        let tree = view();
        let mut client = Client::new(view());
        let seen = see_folder(&tree, "").unwrap();
        for (path, one) in &seen {
            let Ok(path) = std::str::from_utf8(path) else { continue };
            match one {
                Seen::File { bytes, .. } => {
                    let (texts, is_error) = client.call(
                        "read_file",
                        json!({"path": path, "unit": "bytes", "limit": 1 << 20}),
                    );
                    assert!(!is_error, "{seed}: {path}: {texts:?}");
                    match std::str::from_utf8(bytes) {
                        Ok(text) if !text.contains('\0') => {
                            assert_eq!(texts, [text], "{seed}: {path}")
                        }
                        _ => assert!(
                            texts.last().unwrap().starts_with('['),
                            "{seed}: {path}: {texts:?}"
                        ),
                    }
                }
                Seen::Folder { .. } => {
                    let listed = client.text("list_dir", json!({"path": path}));
                    let listed: Value = serde_json::from_str(&listed).unwrap();
                    let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
                    let inside = |other: &Vec<u8>| {
                        let name = other.strip_prefix(prefix.as_bytes());
                        name.is_some_and(|name| !name.is_empty() && !name.contains(&b'/'))
                    };
                    let all = seen.keys().filter(|other| inside(other)).count();
                    assert_eq!(listed["entries"].as_array().unwrap().len(), all, "{seed}: {path}");
                }
                Seen::Link(_) => {}
            }
        }
        // No tool finds a worker outside the view, and the error equals that of an unknown worker.
        for id in ids {
            let is_here = see(&tree, format!("workers/{id}/summary")).is_ok();
            for (tool, arguments) in [
                ("summarize", json!({"worker": id})),
                ("get_evidence", json!({"worker": id})),
                ("get_tool_output", json!({"worker": id, "call": 1})),
                ("compare", json!({"workers": [id, "never-was"]})),
            ] {
                let (texts, is_error) = client.call(tool, arguments);
                let is_absent = is_error
                    && (texts[0].contains("no such file or folder in this view")
                        || texts[0].contains("not a worker here")
                        || texts[0].contains("not workers here"));
                assert!(is_absent || is_here, "{seed}: {tool} of {id}: {texts:?}");
            }
        }
    }
}
