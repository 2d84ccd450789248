//! `swarmletfs mcp --as worker`: tools for the files of a worker's view of a workspace.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use super::process::ProcessClient;
use super::roles;
use crate::cli::program::{LIMIT, run, swarmletfs, tmpfs, wait_until};
use crate::run::workspace::Workspace;
use crate::support::mount::PROGRAM;
use crate::support::{rng, scale};

fn command(place: &Workspace, role: &str, options: &[&str]) -> Command {
    let (store, workspace) = (place.at("store"), place.at("workspace"));
    let mut words: Vec<&OsStr> = [PROGRAM, "mcp", "--as", role].map(OsStr::new).to_vec();
    words.extend([OsStr::new("--store"), store.as_os_str()]);
    if role != "supervisor" {
        words.extend([OsStr::new("--workspace"), workspace.as_os_str()]);
    }
    words.extend(options.iter().map(OsStr::new));
    place.command(words)
}

fn client(place: &Workspace, role: &str) -> ProcessClient {
    ProcessClient::start(command(place, role, &[]), role == "supervisor")
}

/// Returns what `execute` returned.
#[track_caller]
fn execute(client: &mut ProcessClient, script: &str) -> Value {
    let answer =
        client.ask("tools/call", json!({"name": "execute", "arguments": {"command": script}}));
    serde_json::from_str(answer["result"]["content"][0]["text"].as_str().unwrap()).unwrap()
}

/// The tools, their required arguments and their other ones.
const TOOLS: [(&str, &[&str], &[&str]); 10] = [
    ("ls", &["path"], &[]),
    ("read_file", &["path"], &["limit", "offset"]),
    ("write_file", &["content", "path"], &[]),
    ("edit_file", &["new_string", "old_string", "path"], &["replace_all"]),
    ("delete_file", &["path"], &[]),
    ("glob", &["pattern"], &["path"]),
    ("grep", &["pattern"], &["glob", "output_mode", "path"]),
    ("execute", &["command"], &["timeout"]),
    ("note", &["text"], &[]),
    ("finish", &[], &["error", "result", "status", "summary"]),
];

/// Promise: A worker is offered the tools of its workspace and its record, and no others.
#[test]
fn worker_is_offered_its_own_tools_only() {
    let place = Workspace::new();
    let mut client = client(&place, "worker:w");
    let listed = client.ask("tools/list", json!({}));
    let mut tools = listed["result"]["tools"].as_array().unwrap().iter();
    for (name, required, optional) in TOOLS {
        let tool = tools.next().unwrap();
        assert_eq!(tool["name"], name);
        let schema = &tool["inputSchema"];
        let mut needed: Vec<&str> = schema["required"]
            .as_array()
            .map(|names| names.iter().map(|name| name.as_str().unwrap()).collect())
            .unwrap_or_default();
        needed.sort_unstable();
        let mut all: Vec<&str> =
            schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        all.sort_unstable();
        let mut expected = [required, optional].concat();
        expected.sort_unstable();
        assert_eq!((needed, all), (required.to_vec(), expected), "{name}");
    }
    assert_eq!(tools.next(), None);
    for tool in ["list_workers", "summarize", "create_worker", "apply_changes"] {
        let answer = client.ask("tools/call", json!({"name": tool, "arguments": {}}));
        assert!(answer["error"]["message"].as_str().unwrap().contains("unknown tool"), "{answer}");
    }
    assert!(client.ask("resources/list", json!({}))["result"]["resources"].is_null());
    client.end();
}

#[test]
fn files_are_listed_read_written_edited_and_deleted() {
    let place = Workspace::new();
    place.folder("workspace/src");
    place.write("workspace/src/a.rs", "fn a() {}\nfn b() {}\nfn a() {}\n");
    symlink("src/a.rs", place.at("workspace/link")).unwrap();
    let mut client = client(&place, "worker:w");
    let c = &mut client;
    let listed: Value = serde_json::from_str(&c.text("ls", json!({"path": "."}))).unwrap();
    let expected = json!([
        {"name": "link", "is_dir": false, "size": 30},
        {"name": "notes", "is_dir": false, "size": 8},
        {"name": "src", "is_dir": true, "size": null},
    ]);
    assert_eq!(listed, expected);
    assert!(c.error("ls", json!({"path": "notes"})).contains("it is a file, not a folder"));
    assert!(c.error("ls", json!({"path": "none"})).contains("cannot list none: there is no such"));

    let absolute = place.at("workspace/src/a.rs");
    for path in ["src/a.rs", "./src//a.rs", "src/../link", absolute.to_str().unwrap()] {
        let text = c.text("read_file", json!({"path": path}));
        assert_eq!(text, "fn a() {}\nfn b() {}\nfn a() {}\n", "{path}");
    }
    let part = c.text("read_file", json!({"path": "src/a.rs", "offset": 1, "limit": 1}));
    assert_eq!(part, "fn b() {}\n\n[... the file has 30 B; continue with offset=2 ...]");
    let part = c.text("read_file", json!({"path": "src/a.rs", "offset": 2}));
    assert_eq!(part, "fn a() {}\n");
    let part = c.text("read_file", json!({"path": "src/a.rs", "offset": 9}));
    assert_eq!(part, "[... nothing at line 9: the file has 3 lines ...]");
    assert!(c.error("read_file", json!({"path": "src"})).contains("it is a folder"));
    assert!(c.error("read_file", json!({})).contains("missing field `path`"));
    assert!(c.error("read_file", json!({"path": "a", "x": 1})).contains("unknown field `x`"));

    assert_eq!(
        c.text("write_file", json!({"path": "new/deep/b.txt", "content": "b\n"})),
        "wrote new/deep/b.txt"
    );
    assert_eq!(c.text("read_file", json!({"path": "new/deep/b.txt"})), "b\n");
    c.text("write_file", json!({"path": "notes", "content": ""}));
    assert_eq!(c.text("read_file", json!({"path": "notes"})), "");
    assert!(c.error("write_file", json!({"path": "src", "content": ""})).contains("a folder"));
    assert!(c.error("write_file", json!({"path": ".", "content": ""})).contains("a folder"));

    let edit =
        |old: &str, new: &str| json!({"path": "src/a.rs", "old_string": old, "new_string": new});
    let error = c.error("edit_file", edit("fn a() {}", "fn c() {}"));
    assert!(error.contains("occurs 2 times"), "{error}");
    assert!(c.error("edit_file", edit("fn z", "x")).contains("old_string is not in it"));
    c.text("write_file", json!({"path": "many", "content": "a".repeat(100_000)}));
    let (old, new) = ("a", "b".repeat(1_000));
    let grown = json!({"path": "many", "old_string": old, "new_string": new, "replace_all": true});
    assert!(c.error("edit_file", grown).contains("it would have more than 16 MiB"));
    assert_eq!(c.text("delete_file", json!({"path": "many"})), "deleted many");
    assert!(c.error("edit_file", edit("", "x")).contains("old_string is empty"));
    assert!(c.error("edit_file", edit("fn", "fn")).contains("are equal"));
    assert_eq!(
        c.text("read_file", json!({"path": "src/a.rs", "limit": 1})).lines().next(),
        Some("fn a() {}")
    );
    assert_eq!(c.text("edit_file", edit("fn b", "fn β")), "edited src/a.rs: 1 replacement");
    let mut all = edit("fn a() {}\n", "");
    all["replace_all"] = true.into();
    assert_eq!(c.text("edit_file", all), "edited src/a.rs: 2 replacements");
    assert_eq!(c.text("read_file", json!({"path": "link"})), "fn β() {}\n");

    assert!(c.error("delete_file", json!({"path": "src"})).contains("it is a folder"));
    assert_eq!(c.text("delete_file", json!({"path": "link"})), "deleted link");
    assert!(c.error("delete_file", json!({"path": "link"})).contains("there is no such file"));
    assert_eq!(c.text("delete_file", json!({"path": "src/a.rs"})), "deleted src/a.rs");
    client.end();
    assert_eq!(place.read("workspace/src/a.rs"), "fn a() {}\nfn b() {}\nfn a() {}\n");
    assert_eq!(place.read("workspace/notes"), "one\ntwo\n");
}

#[test]
fn files_and_lines_are_found() {
    let place = Workspace::new();
    for folder in ["src", "src/deep", ".git"] {
        place.folder(&format!("workspace/{folder}"));
    }
    for (name, text) in [
        ("a.rs", "fn main() {}\n// fn\n"),
        ("src/b.rs", "fn b() {}\n"),
        ("src/deep/c.rs", "none\n"),
        ("src/d.toml", "fn = 1\n"),
        (".git/e.rs", "fn e() {}\n"),
    ] {
        place.write(&format!("workspace/{name}"), text);
    }
    let mut client = client(&place, "worker:w");
    let c = &mut client;
    for (arguments, expected) in [
        (json!({"pattern": "**/*.rs"}), "a.rs\nsrc/b.rs\nsrc/deep/c.rs\n"),
        (json!({"pattern": "*.rs"}), "a.rs\n"),
        (json!({"pattern": "src/*.{rs,toml}"}), "src/b.rs\nsrc/d.toml\n"),
        (json!({"pattern": "**/*.rs", "path": "src"}), "src/b.rs\nsrc/deep/c.rs\n"),
        (json!({"pattern": "*", "path": ".git"}), ".git/e.rs\n"),
        (json!({"pattern": "*.py"}), "[... nothing matches ...]"),
    ] {
        assert_eq!(c.text("glob", arguments.clone()), expected, "{arguments}");
    }
    assert!(c.error("glob", json!({"pattern": "["})).contains('['));
    for (arguments, expected) in [
        (json!({"pattern": "^fn"}), "a.rs\nsrc/b.rs\nsrc/d.toml\n"),
        (json!({"pattern": "fn", "glob": "*.rs"}), "a.rs\nsrc/b.rs\n"),
        (json!({"pattern": "fn", "glob": "src/**"}), "src/b.rs\nsrc/d.toml\n"),
        (json!({"pattern": "fn", "path": "src"}), "src/b.rs\nsrc/d.toml\n"),
        (json!({"pattern": "fn", "path": "a.rs", "output_mode": "count"}), "a.rs:2\n"),
        (
            json!({"pattern": r"fn \w+\(", "output_mode": "content"}),
            "a.rs:1:fn main() {}\nsrc/b.rs:1:fn b() {}\n",
        ),
        (json!({"pattern": "zzz"}), "[... nothing matches ...]"),
    ] {
        assert_eq!(c.text("grep", arguments.clone()), expected, "{arguments}");
    }
    assert!(c.error("grep", json!({"pattern": "("})).contains("cannot search"));
    let error = c.error("grep", json!({"pattern": "a", "output_mode": "lines"}));
    assert!(error.contains("unknown variant"), "{error}");
    client.end();
}

/// Promise: The tools of a worker reach its view of the workspace, and nothing outside of it.
///
/// Each path outside is refused by each tool. The control is the same link within the workspace.
#[test]
fn tools_of_a_worker_reach_nothing_outside_of_its_view() {
    for place in Workspace::all() {
        place.write("outside/secret", "secret\n");
        run(place.command(
            [PROGRAM, "worker", "create", "--task", "x", "--id", "other", "--store"]
                .map(OsStr::new)
                .into_iter()
                .chain([place.at("store").as_os_str()]),
        ))
        .assert_success();
        let at = |name: &str| place.at("workspace").join(name);
        symlink(place.at("outside"), at("out")).unwrap();
        symlink("../outside/secret", at("up")).unwrap();
        symlink("/proc/self/root", at("root")).unwrap();
        symlink(place.at("outside/new"), at("dangling")).unwrap();
        place.folder("workspace/inner");
        symlink("inner", at("in")).unwrap();
        let mut client = client(&place, "worker:w");
        let other = place.at("store/workers/other/metadata.json");
        let secret = place.at("outside/secret");
        for path in [
            "out/secret",
            "up",
            "root/etc/passwd",
            "dangling",
            "../outside/secret",
            "inner/../../outside/secret",
            "/etc/passwd",
            other.to_str().unwrap(),
            secret.to_str().unwrap(),
        ] {
            let calls = [
                ("read_file", json!({"path": path})),
                ("write_file", json!({"path": path, "content": "evil"})),
                ("edit_file", json!({"path": path, "old_string": "s", "new_string": "evil"})),
                ("grep", json!({"pattern": ".", "path": path})),
                ("ls", json!({"path": path})),
                ("glob", json!({"pattern": "*", "path": path})),
            ];
            for (tool, arguments) in calls {
                let (text, is_error) = client.call(tool, arguments);
                assert!(is_error && !text.contains("secret\n"), "{tool} {path}: {text}");
            }
        }
        // Links are removed themselves; paths through them are not.
        assert!(client.error("delete_file", json!({"path": "out/secret"})).contains("leads out"));
        client.text("delete_file", json!({"path": "up"}));
        client.text("write_file", json!({"path": "in/file", "content": "x"}));
        assert_eq!(client.text("read_file", json!({"path": "inner/file"})), "x");
        // The walls hold commands, too: nothing outside is written, and no other worker is there.
        let script = format!(
            "ls {store}/workers; cat {other} {store}/audit/*; echo evil > {secret}; echo evil >> \
             out/secret; echo evil > {store}/x",
            store = place.at("store").display(),
            other = other.display(),
            secret = secret.display(),
        );
        let done = execute(&mut client, &script);
        assert_eq!(done["stdout"], "w\n", "{done}");
        assert_eq!(place.read("outside/secret"), "secret\n");
        // A program that would lend the rights of this user to others.
        let script = "cd $SWARMLET_STORE/workers/$SWARMLET_WORKER && cp /bin/true lend; \
                      chmod 4755 lend; chmod 755 lend; stat -c %a lend .";
        assert_eq!(execute(&mut client, script)["stdout"], "755\n750\n");
        client.end();
        assert!(!place.at("outside/new").exists() && at("up").is_symlink());
    }
}

/// Promise: The commands of a worker cannot read or write the connection of its client.
#[test]
fn commands_cannot_reach_the_connection_of_the_client() {
    for place in Workspace::all() {
        let mut client = client(&place, "worker:w");
        // Each process that is no ancestor of the shell can be opened: the control.
        let script = "sleep 30 & until grep -qx sleep /proc/$!/comm; do :; done; \
                      for p in /proc/[0-9]*; do n=$(cat $p/comm); \
                      cat $p/environ > /dev/null 2>&1 && echo \"read $n\"; \
                      for fd in 0 1; do (: > $p/fd/$fd) && echo \"open $n\"; done; \
                      done 2> /dev/null; kill $!";
        let done = execute(&mut client, script);
        let shown = done["stdout"].as_str().unwrap();
        assert!(shown.contains("read sleep") && shown.contains("open sleep"), "{done}");
        assert!(!shown.contains("swarmletfs") && !shown.contains("exe"), "{done}");
        // Nothing was written to the client: the next answer is read as usual.
        client.text("ls", json!({"path": "."}));
        client.end();
    }
}

#[test]
fn large_and_binary_files_are_bounded() {
    let place = Workspace::new();
    let lines: String = (0..100_000).map(|line| format!("line {line}\n")).collect();
    place.write("workspace/lines", &lines);
    place.write("workspace/one", &"x".repeat(300_000));
    fs::write(place.at("workspace/binary"), b"\x7fELF\0\0\0").unwrap();
    fs::write(place.at("workspace/latin"), b"caf\xe9\n").unwrap();
    let huge = fs::File::create(place.at("workspace/huge")).unwrap();
    huge.set_len(32 << 20).unwrap();
    let mut client = client(&place, "worker:w");
    let c = &mut client;
    // The default number of lines, and then the rest by its note.
    let text = c.text("read_file", json!({"path": "lines"}));
    assert!(text.contains("line 1999\n") && !text.contains("line 2000\n"), "{}", text.len());
    assert!(text.ends_with("continue with offset=2000 ...]"), "{}", text.len());
    let text = c.text("read_file", json!({"path": "lines", "offset": 99_999}));
    assert_eq!(text, "line 99999\n");
    let text = c.text("read_file", json!({"path": "lines", "limit": 1_000_000}));
    assert!(text.len() < 70_000 && text.contains("continue with offset="), "{}", text.len());
    let text = c.text("read_file", json!({"path": "one"}));
    assert!(text.len() < 70_000 && text.contains("line 0 is too long"), "{}", text.len());
    assert!(c.error("read_file", json!({"path": "binary"})).contains("it is binary and has 7 B"));
    assert!(c.error("read_file", json!({"path": "huge"})).contains("it is binary"));
    let text = c.text("read_file", json!({"path": "latin"}));
    assert!(text.starts_with("caf\u{fffd}\n") && text.contains("not valid UTF-8"), "{text}");
    let edit = json!({"path": "latin", "old_string": "caf", "new_string": "th"});
    c.text("edit_file", edit);
    assert_eq!(execute(c, "od -An -tx1 latin")["stdout"], " 74 68 e9 0a\n");
    let edit = json!({"path": "huge", "old_string": "a", "new_string": "b"});
    assert!(c.error("edit_file", edit).contains("more than 16 MiB"));
    c.text("delete_file", json!({"path": "huge"}));
    let found = c.text("grep", json!({"pattern": "line", "output_mode": "content"}));
    assert!(found.len() < 70_000 && found.contains("lines omitted"), "{}", found.len());
    let found = c.text("grep", json!({"pattern": "x", "output_mode": "content"}));
    assert!(found.contains("one:1:xxx") && found.len() < 1_000, "{found}");
    let done = execute(c, "yes | head -c 1000000; yes no | head -c 100000 >&2");
    assert_eq!(done["exit_code"], 0);
    let shown = done["stdout"].as_str().unwrap();
    assert!(shown.len() < 33_000 && shown.contains("967232 B omitted"), "{}", shown.len());
    client.end();
    // The record has all of it.
    let size = |name: &str| fs::metadata(place.at("store/workers/w/tool_calls").join(name));
    let recorded = fs::read_dir(place.at("store/workers/w/tool_calls")).unwrap();
    let last = recorded.map(|entry| entry.unwrap().file_name().into_string().unwrap()).max();
    assert_eq!(size(&last.unwrap()).unwrap().len(), 1_100_000);
}

#[test]
fn odd_paths_are_refused_or_stay_within() {
    let place = Workspace::new();
    let long = "x".repeat(300);
    let mut client = client(&place, "worker:w");
    for path in ["", ".", "./", "a/..", "//"] {
        let listed = client.call("ls", json!({"path": path}));
        let is_outside = path == "//";
        assert_eq!(listed.1, is_outside, "{path:?}: {listed:?}");
        client.error("read_file", json!({"path": path}));
        client.error("write_file", json!({"path": path, "content": "x"}));
        client.error("delete_file", json!({"path": path}));
    }
    for path in ["a\0b", &long, "notes/x", "notes/../notes/", "/", "~root/x\0"] {
        let error = client.error("write_file", json!({"path": path, "content": "x"}));
        assert!(error.starts_with("cannot ") && error.len() < 400, "{error}");
    }
    for path in ["~", "a b", "-", "ä/\u{1f600}", "\n", "$HOME"] {
        client.text("write_file", json!({"path": path, "content": "x"}));
        assert_eq!(client.text("read_file", json!({"path": path})), "x", "{path}");
    }
    let shown = client.text("glob", json!({"pattern": "**"}));
    assert!(shown.contains("\\u{a}\n") || shown.contains("\\n\n"), "{shown}");
    // A FIFO and a device block nothing.
    execute(&mut client, "mkfifo fifo; ln -s /dev/zero zero");
    for (tool, arguments) in [
        ("read_file", json!({"path": "fifo"})),
        ("write_file", json!({"path": "fifo", "content": "x"})),
        ("read_file", json!({"path": "zero"})),
    ] {
        client.error(tool, arguments);
    }
    client.text("grep", json!({"pattern": "x"}));
    client.end();
}

#[test]
fn edits_at_once_do_not_undo_each_other() {
    let place = Workspace::new();
    let words: Vec<String> = (0..40).map(|word| format!("<{word}>")).collect();
    place.write("workspace/notes", &words.join("\n"));
    let mut client = client(&place, "worker:w");
    for word in &words {
        let arguments = json!({"path": "notes", "old_string": word, "new_string": "done"});
        client.begin("tools/call", json!({"name": "edit_file", "arguments": arguments}));
    }
    client.skip(words.len());
    let text = client.text("read_file", json!({"path": "notes"}));
    assert_eq!(text, vec!["done"; words.len()].join("\n"));
    client.end();
    assert_eq!(fs::read_dir(place.at("store/workers/w/tool_calls")).unwrap().count(), 41);
}

/// Promise: Each call of a worker's tool is recorded with its outcome, before its result is sent.
#[test]
fn calls_of_tools_are_recorded() {
    let place = Workspace::new();
    let mut client = client(&place, "worker:w");
    client.text("write_file", json!({"path": "a", "content": "x".repeat(200_000)}));
    client.error("read_file", json!({"path": "none"}));
    execute(&mut client, "echo out; echo err >&2; exit 3");
    let lines = place.read("store/workers/w/metrics.jsonl");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ended: Vec<&Value> = lines.iter().filter(|line| line["event"] == "tool_call").collect();
    let facts =
        |line: &Value| (line["tool"].clone(), line["success"].clone(), line["exit_code"].clone());
    let facts: Vec<_> = ended.into_iter().map(facts).collect();
    assert_eq!(
        facts,
        [
            (json!("write_file"), json!(true), Value::Null),
            (json!("read_file"), json!(false), Value::Null),
            (json!("execute"), json!(false), json!(3)),
        ]
    );
    let content = lines[0]["input"]["content"].as_str().unwrap();
    assert!(content.ends_with("x[... 134464 B omitted ...]"), "{}", content.len());
    let call = |name: &str| place.read(&format!("store/workers/w/tool_calls/{name}"));
    assert_eq!(call("001_write_file.txt"), "wrote a");
    assert!(call("002_read_file.txt").starts_with("cannot read none: there is no such file"));
    let mut output: Vec<String> = call("003_execute.txt").lines().map(str::to_owned).collect();
    output.sort();
    assert_eq!(output, ["err", "out"]);
    client.text("note", json!({"text": "It is a trap."}));
    assert_eq!(call("004_note.txt"), "noted");
    client.error("finish", json!({"status": "completed", "error": "x"}));
    assert!(call("005_finish.txt").contains("cannot finish as completed with an error"));
    assert!(place.read("store/workers/w/thread.jsonl").contains("It is a trap."));
    client.end();
    // The protocol is no output of the worker.
    assert_eq!(place.read("store/workers/w/logs/execution.log"), "");
}

#[test]
fn commands_end_with_their_time_and_when_they_are_canceled() {
    let place = Workspace::new();
    let mut client = client(&place, "worker:w");
    let text = client
        .text("execute", json!({"command": "echo begun; sleep 100; echo done", "timeout": 1}));
    let expected = "{\"stdout\":\"begun\\n\",\"stderr\":\"\",\"exit_code\":124}\n\
                    [... the command timed out after 1s ...]";
    assert_eq!(text, expected);
    for timeout in [0, 1_000_000] {
        let error = client.error("execute", json!({"command": "true", "timeout": timeout}));
        assert!(error.contains("as timeout; try 1 to "), "{error}");
    }
    // A process in the background does not hold up the result.
    let begun = Instant::now();
    let done = execute(&mut client, "sleep 100 & echo started");
    assert_eq!((&done["stdout"], &done["exit_code"]), (&json!("started\n"), &json!(0)));
    assert!(begun.elapsed() < LIMIT);
    // Nor does one that goes on to print, and it is not ended.
    let ticks = "while :; do echo tick; sleep 0.05; done & echo $! > pid";
    assert_eq!(execute(&mut client, ticks)["exit_code"], 0);
    let done = execute(&mut client, "sleep 0.5; kill -0 $(cat pid) && echo alive; kill $(cat pid)");
    assert_eq!(done["stdout"], "alive\n", "{done}");
    let done = execute(&mut client, "kill -9 $$");
    assert_eq!(done["exit_code"], 137, "{done}");
    // Stdin is not that of the client.
    assert_eq!(execute(&mut client, "cat")["stdout"], "");
    let arguments = json!({"name": "execute", "arguments": {"command": "sleep 100"}});
    let id = client.begin("tools/call", arguments);
    let log = place.at("store/workers/w/metrics.jsonl");
    wait_until("the call to begin", || {
        fs::read_to_string(&log).unwrap().matches("sleep 100\"").count() >= 1
    });
    client.notify("notifications/cancelled", json!({"requestId": id}));
    let ended = || fs::read_to_string(&log).unwrap().matches("was canceled").count();
    wait_until("the call to end", || ended() == 1);
    // A command that ends well when it is told to end was canceled all the same.
    let command = "trap 'exit 0' TERM; touch begun; while :; do sleep 0.05; done";
    let arguments = json!({"name": "execute", "arguments": {"command": command}});
    let id = client.begin("tools/call", arguments);
    wait_until("the call to begin", || place.at("store/workers/w/changes").exists());
    wait_until("the command to begin", || {
        fs::read_to_string(&log).unwrap().matches("touch begun").count() >= 1
    });
    client.notify("notifications/cancelled", json!({"requestId": id}));
    wait_until("the call to end", || ended() == 2);
    let lines = fs::read_to_string(&log).unwrap();
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!((&last["success"], &last["error"]), (&json!(false), &json!("was canceled")));
    client.end();
}

/// Promise: When a command of a worker's tools times out or is canceled, all that it started ends.
///
/// The daemon left the process group and the session, lost its parent, and ignores SIGTERM. The
/// control is a daemon of a command that ended by itself: it runs on.
#[test]
fn all_that_a_command_started_ends_with_its_time() {
    let place = Workspace::new();
    let mut client = client(&place, "worker:w");
    let daemon = |name: &str| {
        format!(
            "trap '' TERM; (setsid sh -c 'echo $$ > {name}; while :; do sleep 1; done' \
             > /dev/null 2>&1 &); until [ -s {name} ]; do sleep 0.01; done; "
        )
    };
    execute(&mut client, &daemon("kept"));
    let command = daemon("timed") + "sleep 100";
    let begun = Instant::now();
    let text = client.text("execute", json!({"command": command, "timeout": 1}));
    assert!(text.contains("\"exit_code\":124") && text.contains("timed out after 1s"), "{text}");
    assert!(begun.elapsed() < LIMIT);
    // A stopped keeper is no hindrance.
    let command = daemon("canceled") + "kill -STOP $PPID; sleep 100";
    let arguments = json!({"name": "execute", "arguments": {"command": command}});
    let id = client.begin("tools/call", arguments);
    wait_until("the daemon to begin", || {
        client.call("read_file", json!({"path": "canceled"})).0.ends_with('\n')
    });
    client.notify("notifications/cancelled", json!({"requestId": id}));
    let log = place.at("store/workers/w/metrics.jsonl");
    wait_until("the call to end", || fs::read_to_string(&log).unwrap().contains("was canceled"));
    let script = "for name in kept timed canceled; do kill -0 $(cat $name) && echo $name; done";
    let done = execute(&mut client, script);
    assert_eq!(done["stdout"], "kept\n", "{done}");
    client.end();
}

/// Promise: Calls that a client has canceled, or left running at its end, are recorded with their
/// end.
#[test]
fn calls_that_are_left_at_the_end_are_ended_and_recorded() {
    let place = Workspace::new();
    let mut client = client(&place, "worker:w");
    let log = place.at("store/workers/w/metrics.jsonl");
    let arguments = json!({"name": "execute", "arguments": {"command": "exec sleep 1000"}});
    let id = client.begin("tools/call", arguments.clone());
    client.begin("tools/call", arguments);
    wait_until("the calls to begin", || {
        fs::read_to_string(&log).is_ok_and(|log| log.lines().count() == 2)
    });
    client.notify("notifications/cancelled", json!({"requestId": id}));
    client.end();
    assert_eq!(fs::read_to_string(&log).unwrap().matches("was canceled").count(), 2);
}

/// Promise: A worker whose session ends without `finish` is abandoned, not completed.
#[test]
fn session_that_ends_without_finish_is_abandoned() {
    let place = Workspace::new();
    client(&place, "worker:w").end();
    let metadata = place.metadata("w");
    assert_eq!(metadata["status"], "abandoned");
    assert_eq!(metadata["error"], "the session ended without finish");
    let mut client = client(&place, "worker:v");
    client.text("finish", json!({}));
    client.end();
    assert_eq!(place.metadata("v")["status"], "completed");
}

/// Promise: A file that a tool cannot write for lack of space keeps its old content.
#[test]
fn file_keeps_its_content_if_there_is_no_space() {
    let place = Workspace::new();
    let small = place.folder("small");
    if tmpfs(&small).is_none() {
        return;
    }
    let _mounted = MountedFolder(small.clone());
    rustix::mount::mount_remount(&small, rustix::mount::MountFlags::empty(), c"size=2m").unwrap();
    run(place.command([OsStr::new(PROGRAM), "init".as_ref(), small.as_os_str()])).assert_success();
    let workspace = place.at("workspace");
    let words = [PROGRAM, "mcp", "--as", "worker:w", "--store"].map(OsStr::new);
    let more = [small.as_os_str(), "--workspace".as_ref(), workspace.as_os_str()];
    let mut client = ProcessClient::start(place.command(words.into_iter().chain(more)), false);
    let content = "x".repeat(4 << 20);
    let error = client.error("write_file", json!({"path": "notes", "content": content}));
    assert!(error.starts_with("cannot write notes: "), "{error}");
    assert_eq!(client.text("read_file", json!({"path": "notes"})), "one\ntwo\n");
    client.text("write_file", json!({"path": "notes", "content": "2\n"}));
    assert_eq!(client.text("read_file", json!({"path": "notes"})), "2\n");
    client.end();
}

/// Unmounts a folder when it is dropped.
struct MountedFolder(PathBuf);

impl Drop for MountedFolder {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn null_is_an_absent_argument() {
    let place = Workspace::new();
    let mut client = client(&place, "worker:w");
    let c = &mut client;
    let arguments = json!({"path": "notes", "offset": null, "limit": null});
    assert_eq!(c.text("read_file", arguments), "one\ntwo\n");
    let arguments = json!({"pattern": "one", "path": null, "output_mode": null, "glob": null});
    assert_eq!(c.text("grep", arguments), "notes\n");
    assert!(c.error("read_file", json!({"path": null})).contains("missing field `path`"));
    let error = c.error("read_file", json!({"path": "notes", "limit": 0}));
    assert_eq!(error, "cannot read 0 lines; try a limit of 1 or more");
    client.end();
}

/// Promise: While as many tools run as a server runs at once, it still answers and cancels.
#[test]
fn server_answers_while_all_calls_are_in_use() {
    let place = Workspace::new();
    let mut client = client(&place, "worker:w");
    let arguments = json!({"name": "execute", "arguments": {"command": "exec sleep 1000"}});
    let ids: Vec<u64> = (0..40).map(|_| client.begin("tools/call", arguments.clone())).collect();
    client.ask("ping", json!({}));
    ids.iter().for_each(|id| client.notify("notifications/cancelled", json!({"requestId": id})));
    assert_eq!(client.text("read_file", json!({"path": "notes"})), "one\ntwo\n");
    client.end();
}

/// Promise: A start that fails leaves a created worker as it was.
#[test]
fn worker_can_be_started_after_a_start_that_failed() {
    let place = Workspace::new();
    let mut supervisor = client(&place, "supervisor");
    supervisor.text("create_worker", json!({"task": "x", "id": "w"}));
    supervisor.end();
    let log = place.folder("store/workers/w/logs/execution.log");
    run(command(&place, "worker:w", &[])).assert_failure(1, &["a folder, not a file"]);
    fs::remove_dir(log).unwrap();
    run(command(&place, "worker:w", &["--owner", "7"]))
        .assert_failure(1, &["cannot work as w: it is of another owner or run"]);
    let mut client = client(&place, "worker:w");
    client.text("finish", json!({}));
    client.end();
    assert_eq!(place.metadata("w")["status"], "completed");
}

/// Promise: `--timeout` ends the session of a worker, and `--memory` and `--pids` limit it.
#[test]
fn session_can_be_limited() {
    let place = Workspace::new();
    let mut limited = command(&place, "worker:w", &["--timeout", "2", "--memory", "2G"]);
    limited.stdin(std::process::Stdio::piped());
    let mut client = ProcessClient::spawn(limited);
    wait_until("the end of the worker", || {
        place.at("store/drafts/w/draft.json").exists()
            && place.json("store/drafts/w/draft.json")["state"] == "ended"
    });
    client.close();
    let metadata = place.metadata("w");
    assert_eq!(
        (&metadata["status"], &metadata["error"]),
        (&json!("failed"), &json!("timed out after 2s"))
    );
}

/// Promise: What a worker's tools changed is its draft when the session ends, and can be applied.
///
/// A client of the official Python SDK, which finishes the worker or only disconnects.
#[test]
fn changes_of_a_session_can_be_applied_after_it() {
    let write = json!({
        "tool": "edit_file",
        "arguments": {"path": "notes", "old_string": "two", "new_string": "2"},
    });
    let execute =
        json!({"tool": "execute", "arguments": {"command": "echo x > script; chmod +x script"}});
    let finish = json!({"tool": "finish", "arguments": {"result": "It is done."}});
    for mode in ["auto", "legacy"] {
        for finishes in [true, false] {
            let place = Workspace::new();
            let (store, workspace) = (place.at("store"), place.at("workspace"));
            let mut calls = vec![write.clone(), execute.clone()];
            calls.extend(finishes.then(|| finish.clone()));
            let session = json!({
                "command": [
                    PROGRAM, "mcp", "--as", "worker:w", "--store", store, "--workspace", workspace,
                    "--task", "Fix the notes",
                ],
                "mode": mode, "answer": null, "calls": calls,
            });
            let Some(done) = roles(vec![session]) else { return };
            for result in done[0]["results"].as_array().unwrap() {
                assert_eq!(result["error"], false, "{mode}: {result}");
            }
            // The SDK does not wait for the end of the process.
            wait_until("the end of the worker", || {
                let draft = place.json("store/drafts/w/draft.json");
                draft["state"] == "ended"
            });
            let metadata = place.metadata("w");
            assert_eq!(
                (&metadata["status"], &metadata["task"]),
                (&json!(if finishes { "completed" } else { "abandoned" }), &json!("Fix the notes"))
            );
            assert_eq!(place.at("store/workers/w/result.txt").exists(), finishes);
            assert_eq!(place.changes("w"), ["modified notes", "added script"]);
            assert_eq!(place.read("workspace/notes"), "one\ntwo\n");
            let words = [PROGRAM, "apply", "w", "--yes", "--store"].map(OsStr::new);
            run(place.command(words.into_iter().chain([store.as_os_str()]))).assert_success();
            assert_eq!(place.read("workspace/notes"), "one\n2\n");
            let mode = fs::metadata(place.at("workspace/script")).unwrap().permissions().mode();
            assert_eq!(mode & 0o111, 0o111);
        }
    }
}

/// Promise: A worker that has finished, or that works elsewhere, is not served again.
#[test]
fn worker_is_served_once() {
    let place = Workspace::new();
    let mut first = client(&place, "worker:w");
    let second = run(command(&place, "worker:w", &[]));
    second.assert_failure(1, &["cannot work as w: it has a draft"]);
    // The second session did not end the worker of the first one.
    first.text("ls", json!({"path": "."}));
    let error = first.error("finish", json!({"status": "completed", "error": "no"}));
    assert!(error.contains("cannot finish as completed with an error"), "{error}");
    first.text("finish", json!({"error": "I give up."}));
    first.end();
    let metadata = place.metadata("w");
    assert_eq!(
        (&metadata["status"], &metadata["error"]),
        (&json!("failed"), &json!("I give up.")),
        "{metadata}"
    );
    run(command(&place, "worker:w", &[])).assert_failure(1, &["it has finished"]);
    // Without an id, each session is a new worker.
    client(&place, "worker").end();
    assert_eq!(place.workers().len(), 2);
}

/// Promise: Supervisors and workers use one store at the same time.
///
/// The supervisor creates the workers, reads what they do while they work, and applies the changes
/// of one after a yes.
#[test]
fn supervisor_and_workers_use_one_store_at_once() {
    let place = Workspace::new();
    let mut supervisor = client(&place, "supervisor");
    for id in ["one", "two"] {
        supervisor.text("create_worker", json!({"task": "Improve the notes", "id": id}));
    }
    let [mut one, mut two] = ["worker:one", "worker:two"].map(|role| client(&place, role));
    one.text("write_file", json!({"path": "notes", "content": "by one\n"}));
    two.text("write_file", json!({"path": "notes", "content": "by two\n"}));
    assert_eq!(one.text("read_file", json!({"path": "notes"})), "by one\n");
    wait_until("the supervisor to see the calls", || {
        let (summary, _) = supervisor.call("summarize", json!({"worker": "two"}));
        summary.contains("write_file") && summary.contains("running")
    });
    let error = supervisor.error("apply_changes", json!({"worker": "one"}));
    assert!(error.contains("cannot"), "{error}");
    one.text("finish", json!({"result": "done"}));
    one.end();
    supervisor.answers = [Some(json!({"action": "accept", "content": {"apply": true}}))].into();
    let text = supervisor.text("apply_changes", json!({"worker": "one"}));
    assert!(text.starts_with("applied 1 change to "), "{text}");
    assert!(
        supervisor.questions[0].contains("two runs on this workspace"),
        "{:?}",
        supervisor.questions
    );
    assert_eq!(place.read("workspace/notes"), "by one\n");
    two.text("finish", json!({"result": "done"}));
    two.end();
    let error = supervisor.error("apply_changes", json!({"worker": "two"}));
    assert!(error.contains("conflict: notes: "), "{error}");
    assert_eq!(place.read("workspace/notes"), "by one\n");
    supervisor.end();
}

/// Promise: A supervisor that is limited to an owner is told no ids of other workers.
#[test]
fn limited_supervisor_is_told_no_ids_of_other_workers() {
    let place = Workspace::new();
    let start =
        |role, owner| ProcessClient::start(command(&place, role, &["--owner", owner]), true);
    let mut mine = start("worker:mine", "7");
    mine.text("write_file", json!({"path": "notes", "content": "x\n"}));
    mine.text("finish", json!({}));
    mine.end();
    let other = start("worker:secret", "8");
    let mut supervisor = start("supervisor", "7");
    supervisor.answers = [Some(json!({"action": "decline"}))].into();
    supervisor.error("apply_changes", json!({"worker": "mine"}));
    let question = &supervisor.questions[0];
    assert!(question.contains("a worker of someone else runs on this workspace"), "{question}");
    assert!(!question.contains("secret"), "{question}");
    let create = |id| json!({"task": "x", "id": id});
    let errors = ["secret", "free"].map(|id| supervisor.error("create_worker", create(id)));
    assert_eq!(errors[0], errors[1]);
    supervisor.end();
    other.end();
}

#[test]
fn hidden_files_and_the_network_are_not_there() {
    let place = Workspace::new();
    place.write("workspace/.env", "KEY=1\n");
    let options =
        ["--hide", place.at("workspace/.env").to_str().unwrap(), "--no-network"].map(str::to_owned);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut client = ProcessClient::start(command(&place, "worker:w", &options), false);
    assert!(client.error("read_file", json!({"path": ".env"})).contains("there is no such file"));
    assert_eq!(
        execute(&mut client, "ls -A; tail -n +3 /proc/net/dev | cut -d: -f1")["stdout"],
        "notes\n    lo\n"
    );
    client.end();
}

/// The commands of a worker find no token of the caller but those that an option names.
#[test]
fn commands_find_no_token_that_no_option_names() {
    for (options, expected) in [(&[][..], ""), (&["--env", "GITHUB_TOKEN"], "secret")] {
        let place = Workspace::new();
        let mut command = command(&place, "worker:w", options);
        command.env("GITHUB_TOKEN", "secret");
        let mut client = ProcessClient::start(command, false);
        assert_eq!(execute(&mut client, "echo $GITHUB_TOKEN")["stdout"], format!("{expected}\n"));
        client.end();
    }
}

/// Promise: The tools of a worker are never served without a draft behind them.
#[test]
fn tools_of_a_worker_are_not_served_without_a_sandbox() {
    let place = Workspace::new();
    let mut inner = swarmletfs(["__worker-tools"]);
    inner.arg(place.at("workspace")).env("SWARMLET_STORE", place.at("store"));
    inner.env("SWARMLET_WORKER", "w");
    run(inner).assert_failure(1, &["this is no sandbox"]);
    for (role, options, error) in [
        ("worker:w", &["--http", "127.0.0.1:0"][..], "cannot use --http with --as worker"),
        ("worker:w", &["--budget", "1k"], "cannot use --budget with --as worker"),
        ("worker:", &[], "expected supervisor, worker or worker:ID"),
        ("reader", &[], "expected supervisor, worker or worker:ID"),
        ("supervisor", &["--timeout", "1m"], "cannot use --timeout, --memory or --pids without"),
        ("supervisor", &["--task", "x"], "cannot use --task without --as worker"),
        ("worker:w", &["--answer-timeout", "1"], "--answer-timeout without --as supervisor"),
        ("worker:../w", &[], "cannot use"),
    ] {
        run(command(&place, role, options)).assert_failure(2, &[error]);
    }
    assert!(place.workers().is_empty());
}

/// Promise: A client that kills its server at the end of a session loses no changes of the worker.
#[test]
fn client_that_kills_its_server_loses_no_changes() {
    for finishes in [true, false] {
        let place = Workspace::new();
        let mut client = client(&place, "worker:w");
        client.text("write_file", json!({"path": "new", "content": "x\n"}));
        if finishes {
            client.text("finish", json!({}));
        }
        client.kill();
        client.close();
        wait_until("the end of the worker", || {
            place.json("store/drafts/w/draft.json")["state"] == "ended"
        });
        assert_eq!(place.changes("w"), ["added new"]);
        let expected = if finishes { "completed" } else { "abandoned" };
        assert_eq!(place.metadata("w")["status"], expected);
    }
}

#[test]
fn killed_session_can_be_recovered() {
    let place = Workspace::new();
    let mut client = client(&place, "worker:w");
    client.text("write_file", json!({"path": "new", "content": "x\n"}));
    let arguments = json!({"command": "echo begun; sleep 100"});
    client.begin("tools/call", json!({"name": "execute", "arguments": arguments}));
    let output = place.at("store/workers/w/tool_calls/002_execute.txt");
    wait_until("the command to begin", || {
        fs::read_to_string(&output).is_ok_and(|text| text == "begun\n")
    });
    client.kill_children();
    let error =
        run(command(&place, "worker:w", &[])).assert_failure(1, &["it has a draft"]).err.clone();
    assert!(error.contains("swarmletfs run --recover w"), "{error}");
    let words = [PROGRAM, "run", "--recover", "w", "--store"].map(OsStr::new);
    let store = place.at("store");
    let recover = || run(place.command(words.into_iter().chain([store.as_os_str()])));
    // The processes of the sandbox end a moment after the one that was killed.
    wait_until("the worker to be recovered", || recover().code == Some(0));
    assert_eq!(place.changes("w"), ["added new"]);
    assert_eq!(place.metadata("w")["status"], "failed");
}

/// Calls tools at random, keeps the expected files in memory, and applies the draft.
#[test]
fn random_changes_give_the_expected_workspace() {
    let place = Workspace::new();
    fs::remove_file(place.at("workspace/notes")).unwrap();
    let mut expected: BTreeMap<String, String> = BTreeMap::new();
    for number in 0..8 {
        let (path, text) = (format!("d{}/f{number}", number % 3), format!("{number}\n"));
        place.folder(&format!("workspace/d{}", number % 3));
        place.write(&format!("workspace/{path}"), &text);
        expected.insert(path, text);
    }
    let mut random = rng();
    let mut client = client(&place, "worker:w");
    for step in 0..scale(300) {
        let path = format!("d{}/f{}", random.u32(0..4), random.u32(0..8));
        match random.u32(0..4) {
            0 => {
                let text = format!("{step}\n").repeat(random.usize(0..5));
                client.text("write_file", json!({"path": path, "content": text}));
                expected.insert(path, text);
            }
            1 => {
                let (_, is_error) = client.call("delete_file", json!({"path": path}));
                assert_eq!(is_error, expected.remove(&path).is_none(), "{path}");
            }
            2 => {
                let edit = json!({
                    "path": path, "old_string": "1", "new_string": "one", "replace_all": true,
                });
                let (_, is_error) = client.call("edit_file", edit);
                let text = expected.get_mut(&path).filter(|text| text.contains('1'));
                assert_eq!(is_error, text.is_none(), "{path}");
                text.into_iter().for_each(|text| *text = text.replace('1', "one"));
            }
            _ => {
                let (text, is_error) = client.call("read_file", json!({"path": path}));
                match expected.get(&path) {
                    Some(expected) => assert_eq!((&text, is_error), (expected, false), "{path}"),
                    None => assert!(is_error, "{path}: {text}"),
                }
            }
        }
    }
    let paths: String = expected.keys().map(|path| format!("{path}\n")).collect();
    assert_eq!(client.text("glob", json!({"pattern": "**/f*"})), paths);
    client.text("finish", json!({}));
    client.end();
    let words = [PROGRAM, "apply", "w", "--yes", "--store"].map(OsStr::new);
    let store = place.at("store");
    run(place.command(words.into_iter().chain([store.as_os_str()]))).assert_success();
    let mut found = BTreeMap::new();
    for folder in fs::read_dir(place.at("workspace")).unwrap() {
        let folder = folder.unwrap();
        for file in fs::read_dir(folder.path()).unwrap() {
            let file = file.unwrap();
            let name = |entry: &fs::DirEntry| entry.file_name().into_string().unwrap();
            let path = format!("{}/{}", name(&folder), name(&file));
            found.insert(path, fs::read_to_string(file.path()).unwrap());
        }
    }
    assert_eq!(found, expected);
}
