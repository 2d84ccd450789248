//! Model of one worker, computed from its directory: owner, status, calls, outcome and failed
//! checks.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::mutable_store::{RawEntries, RawKind, Time};

/// Record of a worker from its metadata, completed from the store's index.
#[derive(Debug, Clone, Default)]
pub struct Record {
    pub owner: Option<String>,
    pub run: Option<String>,
    /// Status as written in its source.
    pub word: Option<String>,
    pub task: String,
    pub tags: Vec<String>,
    pub created: Option<String>,
    pub model: Option<String>,
    pub cwd: Option<String>,
    pub flaws: Vec<&'static str>,
}

/// Entry of a worker in an index.
#[derive(Debug, Clone)]
pub struct Entry {
    pub id: String,
    pub owner: Option<String>,
    pub word: Option<String>,
    pub task: Option<String>,
    pub tags: Vec<String>,
}

/// Outcome of a call or a worker.
pub type Outcome = &'static str;

/// A call: a file with a valid name in `tool_calls/`.
#[derive(Debug, Clone)]
pub struct Call {
    pub seq: u64,
    pub tool: String,
    /// Path relative to the worker's directory.
    pub file: String,
    pub outcome: Outcome,
    pub exit_code: Option<i64>,
    pub bytes: usize,
    /// True if the entry is not a file.
    pub odd: bool,
}

/// Expected state of a worker.
#[derive(Debug, Clone)]
pub struct Worker {
    /// Path of the directory.
    pub path: Vec<u8>,
    pub record: Record,
    pub calls: Vec<Call>,
    pub outcome: Outcome,
    /// Names of the failed checks.
    pub checks: Vec<&'static str>,
    pub final_words: Option<String>,
    /// Number of files that serve as evidence without calls.
    pub loose: usize,
    /// Newest mtime in the directory.
    pub newest: Time,
    /// Path, size and mtime of each file.
    pub files: Vec<(Vec<u8>, usize, Time)>,
}

/// Converts a nonempty string or a number to text.
fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

impl Record {
    /// Builds the record from metadata and the entries of the index.
    pub fn new(metadata: &Value, id: &[u8], index: &[Entry], task_file: Option<&[u8]>) -> Record {
        let both = |key: &str| (word(&metadata[key]), word(&metadata["config"][key]));
        let either = |key: &str| both(key).0.or(both(key).1);
        let mut flaws = Vec::new();
        if either("worker_id").is_some_and(|claimed| claimed.as_bytes() != id) {
            flaws.push("other_id");
        }
        let owner = match both("owner_id") {
            (Some(a), Some(b)) if a != b => {
                flaws.push("two_owners");
                None
            }
            (a, b) => a.or(b),
        };
        // An entry with another owner describes another worker of that id.
        let theirs =
            |entry: &&Entry| owner.is_some() && entry.owner.is_some() && entry.owner != owner;
        let entry = index.iter().find(|entry| entry.id.as_bytes() == id && !theirs(entry));
        let indexed = entry.and_then(|entry| entry.word.clone());
        // An exit code states the status if no word does.
        let code = || Some(format!("exit_code {}", either("exit_code")?.parse::<i64>().ok()?));
        let said = either("status").or_else(code);
        if let (Some(said), Some(indexed)) = (&said, &indexed) {
            let end = status(indexed);
            if matches!(end, "completed" | "failed") && end != status(said) {
                flaws.push("index_disagrees");
            }
        }
        let file = || {
            let task = task_file.map(|bytes| String::from_utf8_lossy(bytes).trim_end().to_owned());
            task.filter(|task| !task.is_empty())
        };
        Record {
            owner,
            run: either("run_id"),
            word: said.or(indexed),
            task: either("task").or_else(file).or_else(|| entry?.task.clone()).unwrap_or_default(),
            tags: entry.map(|entry| entry.tags.clone()).unwrap_or_default(),
            created: either("created_at"),
            model: either("model"),
            cwd: either("cwd"),
            flaws,
        }
    }

    pub fn status(&self) -> &'static str {
        self.word.as_deref().map_or("unknown", status)
    }

    pub fn created(&self) -> Option<Timestamp> {
        self.created.as_ref()?.parse().ok()
    }
}

fn status(word: &str) -> &'static str {
    match word.to_ascii_lowercase().as_str() {
        "exit_code 0" => "completed",
        code if code.starts_with("exit_code ") => "failed",
        "created" => "created",
        "running" => "running",
        "success" | "completed" => "completed",
        "failed" => "failed",
        _ => "unknown",
    }
}

impl Worker {
    /// Builds the worker in the directory `path` with the record `record`.
    pub fn new(raw: &RawEntries, path: &[u8], record: Record) -> Worker {
        let at = |inner: &str| [path, b"/", inner.as_bytes()].concat();
        let (recorded, bad_lines) = metrics(raw.file(&at("metrics.jsonl")).unwrap_or_default());
        let calls = calls(raw, &at("tool_calls"), &recorded);
        let records_calls = raw.is_folder(&at("tool_calls"));
        let final_words = raw.file(&at("result.txt")).and_then(final_words);
        let outcome = ended(&calls, record.status(), bad_lines);
        let hidden = raw
            .below(path)
            .any(|(_, entry)| matches!(entry.kind, RawKind::Link | RawKind::Special));
        let checks = record.flaws.iter().copied().chain(checks(
            &calls,
            &record,
            records_calls,
            final_words.is_some(),
        ));
        let more = [("bad_lines", bad_lines), ("not_shown", hidden)];
        let checks = checks
            .chain(more.into_iter().filter(|(_, found)| *found).map(|(name, _)| name))
            .collect();
        let shown = raw
            .below(path)
            .filter(|(_, entry)| matches!(entry.kind, RawKind::File(_) | RawKind::Folder));
        let newest = shown
            .map(|(_, entry)| entry.mtime)
            .chain(raw.0.get(path).map(|own| own.mtime))
            .max()
            .unwrap();
        let files: Vec<(Vec<u8>, usize, Time)> = raw
            .below(path)
            .filter_map(|(inner, entry)| match &entry.kind {
                RawKind::File(bytes) => Some((inner.to_vec(), bytes.len(), entry.mtime)),
                _ => None,
            })
            .collect();
        let is_loose = |inner: &[u8]| {
            matches!(inner, b"result.txt" | b"outputs/report.md" | b"outputs/data.json")
                || inner.strip_prefix(b"logs/").is_some_and(|name| !name.contains(&b'/'))
        };
        let loose = files.iter().filter(|(inner, size, _)| *size > 0 && is_loose(inner)).count();
        let mut worker = Worker {
            path: path.to_vec(),
            record,
            calls,
            outcome,
            checks,
            final_words,
            loose,
            newest,
            files,
        };
        if worker.outcome == "ok" && !worker.doubts().is_empty() {
            worker.outcome = "unknown";
        }
        worker
    }

    /// Returns the name of the directory.
    pub fn id(&self) -> &[u8] {
        self.path.rsplit(|b| *b == b'/').next().unwrap()
    }

    /// Returns the names of the checks that contradict a claim of success.
    pub fn doubts(&self) -> Vec<&'static str> {
        let contradicting = [
            "no_tool_call",
            "success_but_last_call_failed",
            "failure_never_made_good",
            "index_disagrees",
        ];
        let is_doubt = |name: &&&'static str| {
            self.record.status() == "completed" && contradicting.contains(*name)
        };
        self.checks.iter().filter(is_doubt).copied().collect()
    }

    /// Returns how much the worker needs a person. In these stores only failures and contradicted
    /// claims need one.
    pub fn attention(&self) -> &'static str {
        if self.outcome == "failed" || !self.doubts().is_empty() { "high" } else { "none" }
    }

    pub fn count(&self, outcome: Outcome) -> usize {
        self.calls.iter().filter(|call| call.outcome == outcome).count()
    }
}

/// Parses metrics.jsonl: the recorded calls in order, and true if a line is invalid. A torn last
/// line is ignored.
fn metrics(text: &[u8]) -> (Vec<(String, Option<bool>)>, bool) {
    let mut recorded = Vec::new();
    let mut bad = false;
    for line in text.split_inclusive(|b| *b == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
        match serde_json::from_slice::<Value>(line) {
            Ok(Value::Object(line)) => {
                if line.get("event") == Some(&json!("tool_call"))
                    && let Some(tool) = line.get("tool").and_then(Value::as_str)
                {
                    recorded.push((tool.to_owned(), line.get("success").and_then(Value::as_bool)));
                }
            }
            _ => bad |= line.ends_with(b"\n"),
        }
    }
    (recorded, bad)
}

fn calls(raw: &RawEntries, folder: &[u8], recorded: &[(String, Option<bool>)]) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    for (name, entry) in raw.inside(folder).filter(|_| raw.is_folder(folder)) {
        let Ok(name) = str::from_utf8(name) else { continue };
        let Some((seq, tool)) = name.strip_suffix(".txt").and_then(|stem| stem.split_once('_'))
        else {
            continue;
        };
        let Ok(seq) = seq.parse() else { continue };
        let nth = calls.iter().filter(|call| call.tool == tool).count();
        let success =
            recorded.iter().filter(|(of, _)| of == tool).nth(nth).and_then(|(_, success)| *success);
        let (judged, exit_code, bytes) = match &entry.kind {
            RawKind::File(bytes) => {
                let (outcome, exit_code) = judge(bytes);
                (outcome, exit_code, bytes.len())
            }
            _ => ("unknown", None, 0),
        };
        let outcome = success.map_or(judged, |success| if success { "ok" } else { "failed" });
        let odd = !matches!(entry.kind, RawKind::File(_));
        calls.push(Call {
            seq,
            tool: tool.into(),
            file: format!("tool_calls/{name}"),
            outcome,
            exit_code,
            bytes,
            odd,
        });
    }
    calls
}

/// Returns the outcome and exit code that an output of these tests states.
fn judge(output: &[u8]) -> (Outcome, Option<i64>) {
    let text = output.trim_ascii();
    if text.starts_with(b"Error:") || text.starts_with(b"<tool-error>") {
        return ("failed", None);
    }
    let Ok(Value::Object(object)) = serde_json::from_slice(text) else { return ("unknown", None) };
    let exit_code = object.get("exit_code").and_then(Value::as_i64);
    let failed = object.get("ok") == Some(&json!(false)) || exit_code.is_some_and(|code| code != 0);
    let ok = object.get("ok") == Some(&json!(true)) || exit_code == Some(0);
    (
        if failed {
            "failed"
        } else if ok {
            "ok"
        } else {
            "unknown"
        },
        exit_code,
    )
}

/// Returns true if a failed call has no later successful call of its tool.
fn never_made_good(calls: &[Call]) -> bool {
    let good_after = |at: usize| {
        calls[at..].iter().any(|later| later.tool == calls[at].tool && later.outcome == "ok")
    };
    (0..calls.len()).any(|at| calls[at].outcome == "failed" && !good_after(at))
}

/// Returns the outcome of a worker. An invalid line may have held the end of a call.
fn ended(calls: &[Call], status: &str, bad_lines: bool) -> Outcome {
    if status == "failed" || calls.last().is_some_and(|call| call.outcome == "failed") {
        "failed"
    } else if status == "completed"
        && calls.iter().any(|call| call.outcome == "ok")
        && !never_made_good(calls)
        && !bad_lines
    {
        "ok"
    } else {
        "unknown"
    }
}

fn checks(calls: &[Call], record: &Record, records_calls: bool, words: bool) -> Vec<&'static str> {
    let status = record.status();
    let completed = status == "completed";
    let last_failed = calls.last().is_some_and(|call| call.outcome == "failed");
    let mut checks = Vec::new();
    let mut check = |name, found: bool| checks.extend(found.then_some(name));
    check(
        "no_tool_call",
        matches!(status, "completed" | "failed") && records_calls && calls.is_empty(),
    );
    check("no_final_words", completed && !words);
    check("success_but_last_call_failed", completed && last_failed);
    check("failure_never_made_good", completed && !last_failed && never_made_good(calls));
    calls.iter().for_each(|call| check("unreadable_output", call.odd));
    checks
}

/// Returns the final words of a worker; `None` if they state that there are none.
fn final_words(result: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(result).trim().to_owned();
    (!matches!(text.as_str(), "" | "(No output)")).then_some(text)
}
