//! The page for people, as data and in a real browser. `tests/page/browser.mjs` drives the browser.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use regex::Regex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::cli::program::swarmletfs;
use crate::support::TestStore;
use crate::support::swarm::Swarm;
use crate::support::transcript::{PROJECT, Transcript};
use crate::support::{skip, tool};

const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/page/browser.mjs");

/// Writes a page with these arguments, and returns its path.
fn report(store: &TestStore, arguments: &[&str]) -> PathBuf {
    let page = store.path().with_file_name("report.html");
    let mut command = swarmletfs(["report", "-q", "--no-cache", "-o", page.to_str().unwrap()]);
    let done = command.args(arguments).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    page
}

fn report_of(store: &TestStore, arguments: &[&str]) -> PathBuf {
    let path = store.path();
    report(store, &[&["--store", path.to_str().unwrap()], arguments].concat())
}

/// The data of a page.
struct PageContent {
    html: String,
    overview: Value,
    marks: Value,
    /// The panels, in the order of the workers; null where there was no room.
    panels: Vec<Value>,
}

impl PageContent {
    fn read(page: &Path) -> PageContent {
        let html = fs::read_to_string(page).unwrap();
        let element = |id: &str| {
            let (_, rest) = html.split_once(&format!("id=\"{id}\">")).unwrap();
            rest.split_once("</script>").unwrap().0.to_owned()
        };
        let panels = element("panels");
        PageContent {
            overview: decoded(&element("overview")),
            marks: decoded(&element("marks")),
            panels: panels.lines().map(decoded).collect(),
            html,
        }
    }

    fn worker(&self, id: &str) -> usize {
        let workers = self.overview["workers"].as_array().unwrap();
        workers.iter().position(|worker| worker["id"] == id).unwrap()
    }
}

fn decoded(text: &str) -> Value {
    if text.is_empty() {
        return Value::Null;
    }
    let mut json = String::new();
    ZlibDecoder::new(&*STANDARD.decode(text).unwrap()).read_to_string(&mut json).unwrap();
    serde_json::from_str(&json).unwrap()
}

/// Runs a check of the driver in a browser; see `tests/page/browser.mjs`. Returns `None` if there
/// is no browser.
fn in_browser(check: &str, arguments: &[&str]) -> Option<Value> {
    static MODULES: LazyLock<PathBuf> =
        LazyLock::new(|| Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("page"));
    if !MODULES.join("node_modules/playwright-core").exists() || !tool::is_here("chromium") {
        skip("a browser is not installed; to get it: scripts/setup");
        return None;
    }
    let mut node = Command::new("node");
    let done = node.arg(DRIVER).arg(&*MODULES).arg(check).args(arguments).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{check}: {out}{err}");
    Some(serde_json::from_str(out.lines().last().unwrap()).unwrap())
}

/// A swarm with one of everything, in two stores.
fn usual() -> (TestStore, PathBuf) {
    let store = TestStore::new();
    store.worker("child", json!({"parent_id": "asks", "run_id": "48", "owner_id": "7"}));
    store.call("child", 1, "sql", r#"{"ok": true, "data": {"exit_code": 0, "stdout": "42"}}"#);
    store.worker("disk", json!({"status": "failed", "error": "No space left on device"}));
    store.worker("loud", json!({"run_id": "48", "cwd": "/home/dev/app"}));
    for number in 1..=40 {
        store.call("loud", number, "shell", format!("line {number}\n").repeat(50));
    }
    store.worker("quiet", json!({"status": "running"}));
    let sessions = store.path().with_file_name("sessions");
    let folder = sessions.join(PROJECT);
    fs::create_dir_all(&folder).unwrap();
    let mut full = Transcript::new("full");
    full.user("Replace one by two, then build.");
    let edit = json!({"file_path": "/home/dev/app/a.rs", "old_string": "one", "new_string": "two"});
    full.call("t1", "Edit", edit).result("t1", json!({"content": "The file has been updated."}));
    full.call("t2", "Bash", json!({"command": "cargo build"}));
    let text = "Exit code 101\nerror: No space left on device (os error 28)";
    full.result("t2", json!({"content": text, "is_error": true}));
    full.says("All is built.");
    fs::write(folder.join("full.jsonl"), full.bytes()).unwrap();
    let mut asks = Transcript::new("asks");
    asks.user("Clean up the backups.");
    let question = json!({"questions": [{"question": "May I delete the old backups?", "header": "Delete",
        "options": [{"label": "Yes", "description": ""}, {"label": "No", "description": ""}]}]});
    asks.call("t1", "AskUserQuestion", question);
    fs::write(folder.join("asks.jsonl"), asks.bytes()).unwrap();
    (store, sessions)
}

fn report_of_usual() -> (TestStore, PathBuf) {
    let (store, sessions) = usual();
    let first = store.path();
    let stores = ["--store", first.to_str().unwrap(), "--store", sessions.to_str().unwrap()];
    let page = report(&store, &stores);
    (store, page)
}

#[test]
fn a_page_holds_everything_and_permits_nothing_else() {
    let (_store, page) = report_of_usual();
    let page = PageContent::read(&page);
    let policy = Regex::new(r#"Content-Security-Policy" content="([^"]*)""#).unwrap();
    let policy = policy.captures(&page.html).unwrap()[1].to_owned();
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    for (open, close, directive) in
        [("<script>", "</script>", "script-src"), ("<style>", "</style>", "style-src")]
    {
        let (_, rest) = page.html.split_once(open).unwrap();
        let content = rest.split_once(close).unwrap().0;
        let hash = STANDARD.encode(Sha256::digest(content.as_bytes()));
        assert!(policy.contains(&format!("{directive} 'sha256-{hash}'")), "{policy}");
    }
    assert!(!page.html.contains("http://") || page.html.contains("http://www.w3.org"));
    let at = page.worker("full");
    let (worker, panel) = (&page.overview["workers"][at], &page.panels[at]);
    assert_eq!((&worker["section"], &worker["outcome"]), (&json!("failed"), &json!("failed")));
    assert_eq!(panel["calls"].as_array().unwrap().len(), 2);
    assert_eq!(panel["calls"][1]["outcome"], "failed");
    assert!(panel["calls"][1]["excerpt"].as_str().unwrap().contains("No space left"));
    assert!(panel["evidence"][0]["text"].as_str().unwrap().contains("[FAILED]"));
    assert!(panel["changes"].as_str().unwrap().contains("+two"));
    assert!(panel["requests"]["text"].as_str().unwrap().contains("Replace one by two"));
    assert_eq!(page.marks[at]["tools"]["Bash"], json!([0, 1, 0, 0, 0, 0]));
    let causes = page.overview["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 2, "{causes:?}");
    let asks = &page.overview["workers"][page.worker("asks")];
    assert_eq!(asks["section"], "needs_you");
}

/// Promise: A page of an owner has nothing of others.
#[test]
fn a_page_of_an_owner_has_nothing_of_others() {
    let (store, _) = usual();
    store.worker("theirs", json!({"owner_id": "8", "task": "their secret", "run_id": "48"}));
    store.call("theirs", 1, "shell", "their output");
    let of = |arguments: &[&str]| PageContent::read(&report_of(&store, arguments));
    let page = of(&["--owner", "7"]);
    assert_eq!(page.overview["workers"].as_array().unwrap().len(), 1);
    let all = format!("{}{}{:?}", page.overview, page.marks, page.panels);
    assert!(!all.contains("their") && !all.contains("disk"), "{all}");
    let page = of(&["--run", "48"]);
    assert_eq!(page.overview["workers"].as_array().unwrap().len(), 3);
    assert_eq!(page.overview["title"], "run 48");
    let page = of(&["by/outcome/failed"]);
    assert_eq!(page.overview["workers"].as_array().unwrap().len(), 1);
    // An owner without workers has a page that says so.
    let page = of(&["--owner", "nobody"]);
    assert_eq!(page.overview["workers"], json!([]));
}

#[test]
fn a_file_is_replaced_whole_or_not_at_all() {
    let (store, _) = usual();
    let path = store.path();
    let place = path.with_file_name("out");
    fs::create_dir(&place).unwrap();
    let run = |output: &Path, more: &[&str]| {
        let mut command = swarmletfs(["report", "--no-cache", "--store", path.to_str().unwrap()]);
        command.arg("-o").arg(output).args(more).output().unwrap()
    };
    let refused = |output: &Path, more: &[&str], text: &str| {
        let done = run(output, more);
        let err = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(1) && err.contains(text), "{err}");
    };
    let file = place.join("report.html");
    fs::write(&file, "before").unwrap();
    refused(&file, &["by/nothing/here"], "cannot find workers at by/nothing/here: no such file");
    assert_eq!(fs::read_to_string(&file).unwrap(), "before");
    refused(&place, &[], "it is not a file; try -o FILE");
    refused(&place.join("no/report.html"), &[], "there is no folder");
    refused(Path::new("/dev/null"), &[], "it is not a file");
    // Through a link, the file behind it is replaced.
    let link = place.join("link.html");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let done = run(&link, &[]);
    assert!(done.status.success());
    assert!(link.is_symlink() && fs::read_to_string(&file).unwrap().starts_with("<!doctype html>"));
    assert!(String::from_utf8_lossy(&done.stderr).contains("4 workers"));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    let new = place.join("new.html");
    assert!(run(&file, &[]).status.success() && run(&new, &[]).status.success());
    assert_eq!((mode(&file), mode(&new)), (0o640, 0o600));
    let done = run(Path::new("-"), &[]);
    assert!(done.stdout.starts_with(b"<!doctype html>"));
    assert_eq!(fs::read_dir(&place).unwrap().count(), 3, "a temporary file is left");
}

#[test]
fn a_page_keeps_to_its_size_and_says_what_it_leaves_out() {
    let store = TestStore::new();
    for worker in 0..20 {
        let id = format!("w{worker}");
        store.worker(&id, json!({"status": if worker == 0 { "failed" } else { "success" }}));
        // Text that does not compress well.
        let mut random = fastrand::Rng::with_seed(worker);
        for call in 1..=60 {
            let line: String = (0..30_000).map(|_| random.alphanumeric()).collect();
            store.call(&id, call, "shell", line);
        }
    }
    let page = report_of(&store, &[]);
    let size = fs::metadata(&page).unwrap().len();
    assert!(size < 2_000_000, "{size}");
    let page = PageContent::read(&page);
    let at = page.worker("w0");
    let calls = page.panels[at]["calls"].as_array().unwrap();
    let listed = calls.len() as u64 + page.panels[at]["calls_not_listed"].as_u64().unwrap();
    assert_eq!(listed, 60);
    assert!(calls.iter().all(|call| call["whole"].is_null()), "a whole output of 30 kB");
    assert!(page.panels.iter().all(|panel| !panel.is_null()));
}

#[test]
fn a_browser_shows_every_view() {
    let (store, page) = report_of_usual();
    let shots = store.path().with_file_name("shots");
    fs::create_dir(&shots).unwrap();
    in_browser("views", &[page.to_str().unwrap(), shots.to_str().unwrap()]);
}

/// Promise: Worker text is never markup in a page, and a page makes no request.
#[test]
fn a_browser_runs_nothing_of_a_hostile_swarm() {
    let store = TestStore::new();
    let evil = "</script><script>window.ran = 1; alert(1)</script><img src=x onerror=\"window.ran = 2\">\
        <svg onload=window.ran=3></svg><iframe src=//example.org></iframe><base href=//example.org>\
        <!-- <script> --> ]]> \u{202e}desrever\u{2066} {{constructor.constructor('window.ran=4')()}}";
    let long = "n".repeat(180);
    for id in
        ["<img src=x onerror=alert(1)>", "a'b\"c&amp;<", &long, "javascript:alert(1)", "#w=x&q=y"]
    {
        let times = json!({"task": evil, "status": "failed", "error": evil, "model": evil, "summary": evil,
            "cwd": format!("/x/{evil}"), "branch": evil, "waiting_for": evil, "supervisor_notes": evil,
            "owner_id": evil, "run_id": evil, "parent_id": evil, "title": "t".repeat(1_000)});
        store.worker(id, times);
        store.call(id, 1, "<b onclick=alert(1)>x<", evil);
        store.call(id, 2, "shell", format!("Error: {evil}\n").repeat(60_000));
        store.call(id, 3, "bin", [0, 159, 146, 150].repeat(1_000));
        store.write(format!("workers/{id}/result.txt"), evil);
        let line = json!({"role": "assistant", "content": evil, "tool_calls": [{"name": evil, "args": {evil: evil}}]});
        store.write(format!("workers/{id}/thread.jsonl"), format!("{line}\n"));
    }
    let page = report_of(&store, &[]);
    let html = fs::read_to_string(&page).unwrap();
    assert!(!html.contains("window.ran") && !html.contains("example.org"));
    in_browser("hostile", &[page.to_str().unwrap()]);
}

#[test]
fn a_page_of_many_workers_draws_the_rows_in_sight() {
    let swarm = Swarm { workers: 400, calls: 3, bytes: 400, seed: 3 };
    let store = TestStore::new();
    swarm.make(&store.path()).unwrap();
    let page = report_of(&store, &[]);
    assert!(fs::metadata(&page).unwrap().len() < 2_800_000);
    if let Some(seen) = in_browser("speed", &[page.to_str().unwrap()]) {
        assert!(seen["rows"].as_u64().unwrap() < 150, "{seen}");
    }
}

#[test]
fn a_trace_has_an_event_for_each_call_with_a_time() {
    let (store, sessions) = usual();
    let mut command = swarmletfs(["export", "-q", "--format", "chrome-trace"]);
    command.arg("--store").arg(store.path()).arg("--store").arg(sessions);
    let done = command.output().unwrap();
    assert!(done.status.success());
    let trace: Value = serde_json::from_slice(&done.stdout).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let failed = events.iter().find(|event| event["name"] == "failed: Bash").unwrap();
    assert_eq!(failed["args"]["input"].as_str(), Some("cargo build"));
    assert_eq!(failed["cat"], "failed");
    let named = |id: &str| {
        let named = |event: &&Value| {
            event["name"] == "thread_name"
                && event["args"]["name"].as_str().unwrap().starts_with(&format!("{id} "))
        };
        events.iter().find(named).unwrap()["pid"].as_u64().unwrap()
    };
    assert_eq!(named("child"), named("asks"), "a child is in the process of its parent");
    assert_ne!(named("child"), named("loud"));
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(err.contains("41 calls without a time left out"), "{err}");
}

#[cfg(feature = "mcp")]
mod live {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;
    use std::process::{Child, Stdio};

    use super::*;
    use crate::support::mount::PROGRAM;

    const TOKEN: &str = "a-token-of-this-test";

    struct Server {
        process: Child,
        address: String,
    }

    impl Server {
        fn start(store: &TestStore) -> Server {
            let mut command = swarmletfs(["serve", "-q", "--no-cache", "--http", "127.0.0.1:0"]);
            command.arg("--store").arg(store.path()).env("SWARMLETFS_TOKEN", TOKEN);
            let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
            let mut said = BufReader::new(process.stderr.take().unwrap()).lines();
            let line = said.next().unwrap().unwrap();
            let address = line.split("http://").nth(1).unwrap().trim_end_matches('/').to_owned();
            Server { process, address }
        }

        /// Returns the answer to a request with these lines after the first one.
        fn ask(&self, first: &str, lines: &[&str]) -> String {
            let mut stream = TcpStream::connect(&self.address).unwrap();
            let lines = lines.join("\r\n");
            let end = if lines.is_empty() { "" } else { "\r\n" };
            let request = format!("{first} HTTP/1.1\r\nConnection: close\r\n{lines}{end}\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    /// Promise: A live page answers only its own address, and gives data only for the token.
    #[test]
    fn a_live_page_gives_data_for_the_token_only() {
        let store = TestStore::new();
        store.worker("w", json!({"task": "the secret task"}));
        let server = Server::start(&store);
        let host = format!("Host: {}", server.address);
        let bearer = format!("Authorization: Bearer {TOKEN}");
        let page = server.ask("GET /", &[&host]);
        assert!(page.starts_with("HTTP/1.1 200") && !page.contains("secret"), "{page}");
        assert!(page.contains("frame-ancestors 'none'") && page.contains("nosniff"));
        for (request, lines, status) in [
            ("GET /panel?id=w", &[&*host][..], "401"),
            ("GET /events", &[&host, "Authorization: Bearer wrong-token-wrong"], "401"),
            ("GET /panel?id=w", &[&host, &bearer, "Origin: http://evil.example"], "403"),
            ("GET /", &["Host: evil.example"], "403"),
            ("GET /panel?id=w", &["Host: evil.example", &bearer], "403"),
            ("GET /", &[], "403"),
            ("POST /panel?id=w", &[&host, &bearer, "Content-Length: 0"], "405"),
            ("GET /panel?id=nobody", &[&host, &bearer], "404"),
            ("GET /panel?id=..%2f..%2fetc", &[&host, &bearer], "404"),
            ("GET /marks?id=nobody", &[&host, &bearer], "404"),
            ("GET /mcp", &[&host, &bearer], "404"),
        ] {
            let answer = server.ask(request, lines);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
            assert!(!answer.contains("secret"), "{request}: {answer}");
        }
        let answer = server.ask("GET /panel?id=w", &[&host, &bearer]);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"verdict\""), "{answer}");
    }

    #[test]
    fn a_stream_has_everything_first_and_then_what_changes() {
        let store = TestStore::new();
        for id in ["a", "b", "c"] {
            store.worker(id, json!({"status": "running"}));
        }
        let server = Server::start(&store);
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let head = format!("GET /events HTTP/1.1\r\nHost: {}\r\n", server.address);
        write!(stream, "{head}Authorization: Bearer {TOKEN}\r\n\r\n").unwrap();
        let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
        let mut event = || -> Value {
            let line = lines.find(|line| line.starts_with("data: ")).unwrap();
            serde_json::from_str(&line[6..]).unwrap()
        };
        let ids = |event: &Value| -> Vec<String> {
            let rows = event["rows"].as_array().unwrap().iter();
            rows.map(|row| row["id"].as_str().unwrap().to_owned()).collect()
        };
        let first = event();
        assert_eq!(ids(&first).len(), 3);
        assert_eq!(first["order"].as_array().unwrap().len(), 3);
        store.worker("b", json!({"status": "failed", "error": "No space left"}));
        let second = event();
        assert_eq!(ids(&second), ["b"]);
        assert!(second.get("order").is_none() && second["causes"].as_array().unwrap().len() == 1);
        fs::remove_dir_all(store.path().join("workers/a")).unwrap();
        let third = event();
        assert!(ids(&third).is_empty(), "{third}");
        assert_eq!(third["order"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_live_page_follows_its_workers() {
        let store = TestStore::new();
        store.worker("child", json!({"status": "running", "task": "the child"}));
        store.worker("other", json!({}));
        in_browser("live", &[PROGRAM, store.path().to_str().unwrap()]);
    }
}
