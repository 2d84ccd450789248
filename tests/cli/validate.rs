//! `validate`: the remarks on a store, a worker and a transcript, through the program.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use jsonschema::Validator;
use serde_json::{Value, json};

use super::program::{CommandOutput, check_printable, run, swarmletfs};
use crate::support::TestStore;
use crate::support::transcript::{PROJECT, Transcript};

/// Runs `validate` and checks that its output is printable.
#[track_caller]
fn validate(path: &Path, options: &[&str]) -> CommandOutput {
    let arguments = options.iter().map(OsStr::new).chain([path.as_os_str()]);
    let done = run(swarmletfs([OsStr::new("validate")].into_iter().chain(arguments)));
    check_printable(&done.out);
    done
}

/// Runs `validate --json` and checks the report against its schema, its exit code, and the text.
#[track_caller]
fn report(path: &Path) -> Value {
    let done = validate(path, &["--json"]);
    let report: Value =
        serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:#?}"));
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema/validate.schema.json");
    let schema: Validator =
        jsonschema::validator_for(&serde_json::from_slice(&fs::read(schema).unwrap()).unwrap())
            .unwrap();
    let faults: Vec<String> = schema.iter_errors(&report).map(|fault| fault.to_string()).collect();
    assert!(faults.is_empty(), "{faults:?}: {report:#}");
    assert_eq!(done.code, Some(i32::from(report["not_understood"] != 0)), "{report:#}");
    let text = validate(path, &[]).out;
    for says in sentences(&report, "not_understood").iter().chain(&sentences(&report, "note")) {
        assert!(text.contains(says.as_str()), "{says} is not in {text}");
    }
    report
}

/// Returns all remarks of a level.
fn sentences(report: &Value, level: &str) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap();
    let workers = list(&report["workers"]);
    let groups = workers.iter().flat_map(|worker| list(&worker["remarks"]));
    let groups = groups.chain(list(&report["store"])).filter(|group| group["level"] == level);
    groups
        .flat_map(|group| list(&group["first"]))
        .map(|remark| remark["says"].as_str().unwrap().to_owned())
        .collect()
}

/// Asserts the remarks on `workers/w`, a worker of which `files` are written.
#[track_caller]
fn assert_remarks(files: &[(&str, &str)], not_understood: &[&str], notes: &[&str]) {
    let store = TestStore::new();
    store.write("workers/w/metadata.json", r#"{"status": "completed"}"#);
    for (path, text) in files {
        store.write(format!("workers/w/{path}"), text);
    }
    let report = report(&store.path());
    assert_eq!(sentences(&report, "not_understood"), not_understood, "{files:?}");
    assert_eq!(sentences(&report, "note"), notes, "{files:?}");
}

const OK_CALL: (&str, &str) = ("tool_calls/001_shell.txt", r#"{"ok": true}"#);

#[test]
fn names_of_calls_and_files_are_checked() {
    assert_remarks(
        &[OK_CALL, ("tool_calls/002_shell.json", "x"), ("tool_calls/3_sql.txt", r#"{"ok": true}"#)],
        &["tool_calls/002_shell.json is not counted as a call; calls are NNN_<tool>.txt"],
        &["tool_calls/3_sql.txt is read as 003_sql.txt"],
    );
    assert_remarks(
        &[OK_CALL, ("threads.jsonl", ""), ("results.txt", "x"), ("diff.patch", "x"), (".x", "x")],
        &[
            "results.txt is not read; result.txt was probably meant",
            "threads.jsonl is not read; thread.jsonl was probably meant",
        ],
        &[],
    );
    assert_remarks(
        &[("metrics.jsonl/x", ""), ("tool_calls", "")],
        &[
            "metrics.jsonl is a folder; a file is expected",
            "tool_calls is a file; a folder is expected",
        ],
        &[],
    );
}

/// Promise: A line that is not understood is reported with its file and its number.
#[test]
fn lines_of_metrics_are_checked() {
    let lines = [
        r#"{"event": "tool_call", "tool": "shell", "success": true}"#,
        "",
        r#"{"event": "tool_call", "tool_name": "shell", "succeeded": true}"#,
        r#"{"event": "tool_call", "tool": "shel", "success": true}"#,
        r#"{"event": "tool_call", "tool": "shell", "success": "yes"}"#,
        "[1]",
        "{\"event\": tool_call}",
        r#"{"event": "toolcall", "tool": "shell"}"#,
        r#"{"event": "llm_call", "tokens": 5}"#,
        r#"{"event": "start"}"#,
        r#"{"tool": "#,
    ];
    assert_remarks(
        &[OK_CALL, ("metrics.jsonl", &lines.join("\n"))],
        &[
            "metrics.jsonl:3: unknown keys tool_name, succeeded; expected tool, success",
            r#"metrics.jsonl:4: tool "shel" has no file in tool_calls/; "shell" has one"#,
            r#"metrics.jsonl:5: there are fewer files of tool "shell" in tool_calls/ than records"#,
            "metrics.jsonl:5: success is a string; expected true or false",
            "metrics.jsonl:6: not a JSON object",
            "metrics.jsonl:7: not JSON at column 12",
            r#"metrics.jsonl:8: event "toolcall" is not known; tool_call is"#,
        ],
        &[
            "metrics.jsonl: not read: event \"start\"",
            "metrics.jsonl:11: the last line is incomplete",
        ],
    );
    assert_remarks(
        &[OK_CALL, ("metrics.jsonl", "{\"name\": \"shell\", \"ok\": true}\n")],
        &[],
        &[
            "metrics.jsonl:1: read as event tool_call",
            "metrics.jsonl:1: name is read as tool",
            "metrics.jsonl:1: ok is read as success",
        ],
    );
}

#[test]
fn numbers_and_starts_of_calls_are_checked() {
    let files = [
        OK_CALL,
        ("tool_calls/002_sql.txt", r#"{"ok": true}"#),
        ("tool_calls/003_shell.txt", "begun"),
    ];
    let lines = [
        r#"{"event": "call_start", "seq": 1, "tool": "shell", "input": {"command": "df"}, "start_ts": "2026-01-20T10:00:00Z"}"#,
        r#"{"event": "tool_call", "tool": "shell", "success": true}"#,
        r#"{"event": "tool_call", "seq": 1, "tool": "shell", "success": true, "end_ts": 5, "error": "x"}"#,
        r#"{"event": "tool_call", "seq": 1, "tool": "shell", "success": true}"#,
        r#"{"event": "tool_call", "seq": 2, "tool": "shell", "success": true}"#,
        r#"{"event": "tool_call", "seq": 9, "tool": "shell", "success": true}"#,
        r#"{"event": "tool_call", "seq": "1", "tool": "shell", "success": true}"#,
        r#"{"event": "tool_call", "seq": 1.5, "tool": "shell", "success": true}"#,
        r#"{"event": "call_start", "tool": "shell", "input": "x"}"#,
        r#"{"event": "call_start", "seq": 3, "tool": "shell", "start_ts": "now"}"#,
        r#"{"event": "call_started", "seq": 3, "tool": "shell"}"#,
    ];
    let lines = lines.join("\n");
    let files: Vec<_> = files.into_iter().chain([("metrics.jsonl", &*lines)]).collect();
    assert_remarks(
        &files,
        &[
            "metrics.jsonl:4: call 1 has an earlier record, which is used",
            r#"metrics.jsonl:5: call 2 is of tool "sql" in tool_calls/, not of "shell""#,
            r#"metrics.jsonl:6: call 9 of tool "shell" has no file in tool_calls/"#,
            r#"metrics.jsonl:2: there are fewer files of tool "shell" in tool_calls/ than records"#,
            "metrics.jsonl:7: seq is a string; expected a number",
            "metrics.jsonl:8: seq 1.5 is not a whole number",
            "metrics.jsonl:9: expected seq",
            r#"metrics.jsonl:10: start_ts "now" is not a time; expected a form of 2026-01-20T10:00:00Z"#,
            r#"metrics.jsonl:11: event "call_started" is not known; call_start is"#,
        ],
        &["1 call without a record of the end"],
    );
}

#[test]
fn log_of_changes_and_temporary_entries_cause_no_remark() {
    let store = TestStore::new();
    store.worker("w", json!({"status": "completed"})).call("w", 1, "sh", r#"{"ok": true}"#);
    store.write("audit/2026-11-24.jsonl", "{}\n");
    for folder in ["", "workers/", "workers/w/", "workers/w/tool_calls/"] {
        store.write(format!("{folder}.swarmletfs-new-1/metadata.jsn"), "torn");
    }
    let report = report(&store.path());
    assert_eq!((&report["not_understood"], &report["notes"]), (&json!(0), &json!(0)), "{report:#}");
}

#[test]
fn messages_are_checked() {
    let lines = [
        r#"{"role": "user", "content": [1]}"#,
        r#"{"rol": "user"}"#,
        r#"{"role": "robot"}"#,
        r#"{"role": "assistant", "content": [{"type": "text", "text": "x"}]}"#,
        r#"{"role": "assistant", "tool_calls": [{"name": "shell", "input": {}}, 5]}"#,
        r#"{"role": "assistant", "tool_calls": [{"function": {"name": "shell", "arguments": "{}"}}]}"#,
    ];
    assert_remarks(
        &[OK_CALL, ("thread.jsonl", &lines.join("\n"))],
        &[
            "thread.jsonl:2: unknown key rol; expected role",
            "thread.jsonl:5: unknown key tool_calls.input; expected tool_calls.args",
            r#"thread.jsonl:3: role "robot" is not known; user, assistant, system, tool are"#,
            "thread.jsonl:4: content is a list; expected a string",
            "thread.jsonl:5: an item of tool_calls is not an object",
        ],
        &["1 call without a result", "thread.jsonl:6: arguments is read as args"],
    );
}

#[test]
fn metadata_is_checked() {
    let metadata = "{\n  \"stauts\": \"x\",\n  \"created_at\": \"yesterday\",\n  \"tags\": 5,\n  \
                    \"worker_id\": \"v\",\n  \"host\": \"h\",\n  \"config\": {\"owner\": 7}\n}\n";
    assert_remarks(
        &[OK_CALL, ("metadata.json", metadata)],
        &[
            r#"metadata.json: worker_id "v" is not the folder's name; "w" is used"#,
            "metadata.json: unknown key stauts; expected status",
            "metadata.json: unknown key config.owner; expected config.owner_id",
            r#"metadata.json:3: created_at "yesterday" is not a time; expected a form of 2026-01-20T10:00:00Z"#,
            "metadata.json:4: tags is a number; expected a list",
        ],
        &["metadata.json: not read: host"],
    );
    for (status, remark) in [
        (r#""complet""#, r#"metadata.json: status "complet" is not known; completed is"#),
        (
            r#""odd""#,
            r#"metadata.json: status "odd" is not known; created, running, waiting, completed, success, failed are"#,
        ),
        (
            r#""completed", "exit_code": 2"#,
            r#"metadata.json: exit_code 2 contradicts status "completed", which is used"#,
        ),
        (r#""failed", "exit_code": "x""#, r#"metadata.json: exit_code "x" is not a whole number"#),
        ("\"completed\", ", "metadata.json: not JSON: trailing comma at line 1 column 25"),
    ] {
        let metadata = format!("{{\"status\": {status}}}");
        assert_remarks(&[OK_CALL, ("metadata.json", &metadata)], &[remark], &[]);
    }
    for (metadata, note) in [
        (r#"{"status": "done"}"#, r#"metadata.json: status "done" is read as completed"#),
        (
            r#"{"status": "done", "exit_code": 1}"#,
            r#"metadata.json: status "done" is read as failed"#,
        ),
        (r#"{"exit_code": 1}"#, "metadata.json: without a status, exit_code 1 is read as failed"),
        (r#"{"status": "failed", "title": "T"}"#, "metadata.json: title is read as summary"),
    ] {
        assert_remarks(&[OK_CALL, ("metadata.json", metadata)], &[], &[note]);
    }
    assert_remarks(
        &[("tools_used.json", "[\"a\", true, {\"name\": \"b\"}]")],
        &["tools_used.json: an item is not the name of a tool"],
        &[],
    );
}

#[test]
fn a_store_is_checked_outside_of_its_workers() {
    let store = TestStore::new();
    store.worker("w", json!({"owner_id": "7"}));
    store.call("w", 1, "a", "[TOOL_OUTPUT:artifact_id=12,tool=a,bytes=1]");
    let id = "0123456789abcdef0123456789abcdef";
    store.call("w", 2, "a", format!("[TOOL_OUTPUT:artifact_id={id},tool=a,bytes=1]"));
    store.write(format!("tool_outputs/7/{id}.txt"), "x");
    store.write(format!("tool_outputs/8/{id}.json"), r#"{"owner_id": "7"}"#);
    store.write("tool_outputs/8/12.txt", "x");
    store.write("workers/v/meta.json", "{}");
    store.write(
        "workers/index.json",
        r#"{"workers": [{"id": "w", "stats": "x"}, {"id": "gone", "status": "odd"}, {"task": "x"}, 5]}"#,
    );
    symlink("w", store.at("workers/link")).unwrap();
    let report = report(&store.path());
    let found = sentences(&report, "not_understood");
    for says in [
        "tool_calls/001_a.txt: not a marker; expected [TOOL_OUTPUT:artifact_id=<32 hexadecimal digits>,tool=<tool>,bytes=<number>]",
        r#"tool_calls/002_a.txt: the output is not found in tool_outputs/ as <id>.txt and <id>.json of owner "7""#,
        &format!("tool_outputs/7/{id}.txt is not read; {id}.json is missing"),
        &format!(r#"tool_outputs/8/{id}.json: owner_id is "7"; expected "8", as the folder"#),
        "tool_outputs/8/12.txt is not read; the name is <32 hexadecimal digits>.txt",
        "workers/v is not a worker; a worker is a folder with a metadata.json or a tool_calls/",
        "workers/v/meta.json is not read; metadata.json was probably meant",
        "workers/link is a link, which is not followed",
        "workers/index.json: entry 1: unknown key stats; expected status",
        r#"workers/index.json: entry 2: status "odd" is not known; created, running, waiting, completed, success, failed are"#,
        "workers/index.json: entry 3: expected id",
        "workers/index.json: entry 4: not an object",
    ] {
        assert!(found.contains(&says.to_owned()), "{says} is not in {found:#?}");
    }
    assert_eq!(found.len(), 12, "{found:#?}");
    let notes = sentences(&report, "note");
    assert!(
        notes.contains(&r#"workers/index.json: entry 2: there is no folder "gone""#.to_owned()),
        "{notes:#?}"
    );
    store.write("workers/index.json", "{\"workers\": [");
    let torn = sentences(&self::report(&store.path()), "not_understood");
    assert!(
        torn.iter().any(|says| says.starts_with("workers/index.json: not read: EOF")),
        "{torn:#?}"
    );
    store.write("workers/index.json", "{\"w\": {}}");
    let other = sentences(&self::report(&store.path()), "not_understood");
    let says = "workers/index.json: not read: expected a list of workers, or an object with a list \
                in workers";
    assert!(other.contains(&says.to_owned()), "{other:#?}");
}

#[test]
fn one_worker_is_checked_alone() {
    let store = TestStore::new();
    store.worker("w", json!({"owner_id": "7"})).call("w", 1, "a", r#"{"ok": true}"#);
    store.write("workers/other/metadata.json", "torn");
    store.write("workers/index.json", r#"[{"id": "w", "summary": "S"}]"#);
    let report = report(&store.at("workers/w"));
    assert_eq!((&report["kind"], &report["contents"]["calls"]), (&json!("worker"), &json!(1)));
    assert_eq!((&report["contents"]["workers"], &report["notes"]), (&json!(1), &json!(0)));
    // A worker outside of `workers/`, through a link.
    store.write("w2/metadata.json", r#"{"status": "odd"}"#);
    symlink(store.at("w2"), store.path().parent().unwrap().join("link")).unwrap();
    let report = self::report(&store.path().parent().unwrap().join("link"));
    assert_eq!(report["not_understood"], 1, "{report:#}");
}

#[test]
fn transcripts_are_checked() {
    let store = TestStore::new();
    let mut transcript = Transcript::new("5e551014-0000-4000-8000-000000000001");
    transcript.user("do it").call("toolu_1", "Bash", json!({"command": "ls"}));
    transcript.result("toolu_1", json!({"content": "a"}));
    transcript.raw("{\"torn\": \n{\"type\": \"odd-\u{202e}kind\"}\n");
    transcript.result("toolu_9", json!({"content": "an orphan"}));
    let path = format!("{PROJECT}/5e551014-0000-4000-8000-000000000001.jsonl");
    let file = store.write(&path, transcript.bytes());
    for (checked, kind) in [(store.path(), "store"), (file.clone(), "transcript")] {
        let report = report(&checked);
        assert_eq!((&report["kind"], &report["format"]), (&json!(kind), &json!("claude-code")));
        assert_eq!(report["contents"]["calls"], 1, "{report:#}");
        assert_eq!(
            sentences(&report, "not_understood"),
            [
                "1 result without a call",
                "source.jsonl:4: not a JSON object",
                "source.jsonl:5: type \"odd-kind\" is not known",
            ]
        );
    }
    let other = store.write("other.jsonl", "{\"a\": 1}\n");
    validate(&other, &[]).assert_failure(2, &["expected a transcript of"]);
    let other = store.write("notes.txt", "x");
    validate(&other, &[]).assert_failure(2, &["expected a transcript of"]);
}

/// Promise: `validate` exits with 0 only if everything was understood.
#[test]
fn exit_code_tells_understood_from_not_understood_and_unreadable() {
    let store = TestStore::new();
    store.worker("w", json!({"status": "done"})).call("w", 1, "a", "plain");
    assert_eq!(validate(&store.path(), &[]).code, Some(0), "notes are no errors");
    store.write("workers/w/tool_calls/x", "");
    assert_eq!(validate(&store.path(), &[]).code, Some(1));
    assert_eq!(validate(&store.path(), &["--max-time", "0s", "--json"]).code, Some(3));
    validate(&store.at("nowhere"), &[]).assert_failure(2, &["cannot open", "nowhere"]);
    assert_eq!(validate(&store.path(), &["--nonsense"]).code, Some(2));
    let empty = TestStore::new();
    empty.write("w/meta.json", "{}");
    validate(&empty.path(), &[]).assert_failure(
        2,
        &["no workers in", "w/meta.json is not read; metadata.json was probably meant"],
    );
}

/// Promise: A report stays small, however much was not understood.
#[test]
fn a_report_is_small_unless_all_of_it_is_asked_for() {
    let store = TestStore::new();
    for id in 0..30 {
        store.worker(&format!("w{id:02}"), json!({})).call(&format!("w{id:02}"), 1, "a", "{}");
        store.write(format!("workers/w{id:02}/thread.jsonl"), "x\n".repeat(5_000));
    }
    let begun = Instant::now();
    let short = validate(&store.path(), &[]);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(short.code, Some(1));
    assert!(short.out.len() < 8_000, "{}", short.out.len());
    assert!(short.out.contains("not understood: 150000\n"), "{}", short.out);
    assert!(short.out.contains("  and 4997 more of this kind\n"), "{}", short.out);
    assert!(short.out.ends_with("\n10 more workers with remarks; try --all\n"), "{}", short.out);
    let all = validate(&store.path(), &["--all"]).out;
    assert_eq!(all.matches("thread.jsonl:4999: not JSON").count(), 30);
    assert!(!all.contains("more of this kind") && !all.contains("more workers"));
}

/// Promise: No text of a store reaches a report as it is.
#[test]
fn hostile_content_is_escaped_and_read_in_time() {
    let store = TestStore::new();
    let hostile = "\u{1b}[31m\u{202e}[EVIDENCE:run_id=1,job_id=1,worker_id=w]\n";
    let mut metadata = json!({"status": hostile, "created_at": hostile, "config": {}});
    metadata[hostile] = json!(1);
    metadata[format!("stat{hostile}us")] = json!(1);
    store.worker("w", metadata);
    store.write(format!("workers/w/tool_calls/{}", hostile.trim()), "");
    let line = json!({"role": hostile, hostile: 1}).to_string();
    store.write("workers/w/thread.jsonl", format!("{line}\n{}", "[".repeat(3 << 20)));
    let many: String = (0..200_000).map(|key| format!("\"k{key}\": 0,")).collect();
    store.write("workers/w/metrics.jsonl", format!("{{{many}\"event\": \"tool_call\"}}\n"));
    store.write("workers/index.json", format!("[{}1]", "{},".repeat(200_000)));
    for options in [&[][..], &["--json"], &["--all"]] {
        let begun = Instant::now();
        let done = validate(&store.path(), options);
        assert_eq!(done.code, Some(1), "{done:#?}");
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
        assert!(!done.out.contains(" [EVIDENCE:") && !done.out.contains("\"[EVIDENCE:"));
    }
}
