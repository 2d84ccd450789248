//! What must be known of one worker, worked out from what lies in its folder: whose it is, how far it is, its calls,
//! how it ended, and what its record does not bear out.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::ground::{Raw, Time, What};

/// What metadata, and where that is silent the store's index, say of a worker.
#[derive(Debug, Clone, Default)]
pub struct Record {
    pub owner: Option<String>,
    pub run: Option<String>,
    /// The status in its source's own word.
    pub word: Option<String>,
    pub task: String,
    pub tags: Vec<String>,
    pub created: Option<String>,
    pub flaws: Vec<&'static str>,
}

/// What an index says of one worker.
#[derive(Debug, Clone)]
pub struct Entry {
    pub id: String,
    pub owner: Option<String>,
    pub word: Option<String>,
    pub task: Option<String>,
    pub tags: Vec<String>,
}

/// How a call or a worker ended.
pub type Outcome = &'static str;

/// One call: a file of the right name in `tool_calls/`.
#[derive(Debug, Clone)]
pub struct Call {
    pub seq: u64,
    pub tool: String,
    /// From the worker's folder.
    pub file: String,
    pub outcome: Outcome,
    pub exit_code: Option<i64>,
    pub bytes: usize,
    /// Whether it is no file.
    pub odd: bool,
}

/// All of it.
#[derive(Debug, Clone)]
pub struct Worker {
    /// The folder.
    pub path: Vec<u8>,
    pub record: Record,
    pub calls: Vec<Call>,
    pub outcome: Outcome,
    /// The names of the checks that find something.
    pub checks: Vec<&'static str>,
    pub final_words: Option<String>,
    /// How many files stand for the calls where there are none.
    pub loose: usize,
    /// The newest change of anything in the folder.
    pub newest: Time,
    /// Files with their sizes and times.
    pub files: Vec<(Vec<u8>, usize, Time)>,
}

/// A string that is not empty, or a number.
fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

impl Record {
    /// From metadata, or nothing where that cannot be read; `index` are the index's entries.
    pub fn of(metadata: &Value, id: &[u8], index: &[Entry], task_file: Option<&[u8]>) -> Record {
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
        // An entry that names another owner speaks of somebody else's worker of the same id.
        let theirs = |entry: &&Entry| owner.is_some() && entry.owner.is_some() && entry.owner != owner;
        let entry = index.iter().find(|entry| entry.id.as_bytes() == id && !theirs(entry));
        let indexed = entry.and_then(|entry| entry.word.clone());
        let said = either("status");
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
        "created" => "created",
        "running" => "running",
        "success" | "completed" => "completed",
        "failed" => "failed",
        _ => "unknown",
    }
}

impl Worker {
    /// The worker in the folder `path` whose record is `record`.
    pub fn of(raw: &Raw, path: &[u8], record: Record) -> Worker {
        let at = |inner: &str| [path, b"/", inner.as_bytes()].concat();
        let (recorded, bad_lines) = metrics(raw.file(&at("metrics.jsonl")).unwrap_or_default());
        let calls = calls(raw, &at("tool_calls"), &recorded);
        let records_calls = raw.is_folder(&at("tool_calls"));
        let final_words = raw.file(&at("result.txt")).and_then(final_words);
        let outcome = ended(&calls, record.status());
        let hidden = raw.below(path).any(|(_, lying)| matches!(lying.what, What::Link | What::Special));
        let checks = record.flaws.iter().copied().chain(checks(&calls, &record, records_calls, final_words.is_some()));
        let more = [("bad_lines", bad_lines), ("not_shown", hidden)];
        let checks = checks.chain(more.into_iter().filter(|(_, found)| *found).map(|(name, _)| name)).collect();
        let shown = raw.below(path).filter(|(_, lying)| matches!(lying.what, What::File(_) | What::Folder));
        let newest = shown.map(|(_, lying)| lying.mtime).chain(raw.0.get(path).map(|own| own.mtime)).max().unwrap();
        let files: Vec<(Vec<u8>, usize, Time)> = raw
            .below(path)
            .filter_map(|(inner, lying)| match &lying.what {
                What::File(bytes) => Some((inner.to_vec(), bytes.len(), lying.mtime)),
                _ => None,
            })
            .collect();
        let is_loose = |inner: &[u8]| {
            matches!(inner, b"result.txt" | b"outputs/report.md" | b"outputs/data.json")
                || inner.strip_prefix(b"logs/").is_some_and(|name| !name.contains(&b'/'))
        };
        let loose = files.iter().filter(|(inner, size, _)| *size > 0 && is_loose(inner)).count();
        Worker { path: path.to_vec(), record, calls, outcome, checks, final_words, loose, newest, files }
    }

    /// The folder's name.
    pub fn id(&self) -> &[u8] {
        self.path.rsplit(|b| *b == b'/').next().unwrap()
    }

    pub fn count(&self, outcome: Outcome) -> usize {
        self.calls.iter().filter(|call| call.outcome == outcome).count()
    }
}

/// What metrics.jsonl says of each tool's calls, in order; and whether a line of it is bad. A torn last line is none.
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

fn calls(raw: &Raw, folder: &[u8], recorded: &[(String, Option<bool>)]) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    for (name, lying) in raw.inside(folder).filter(|_| raw.is_folder(folder)) {
        let Ok(name) = str::from_utf8(name) else { continue };
        let Some((seq, tool)) = name.strip_suffix(".txt").and_then(|stem| stem.split_once('_')) else { continue };
        let Ok(seq) = seq.parse() else { continue };
        let nth = calls.iter().filter(|call| call.tool == tool).count();
        let success = recorded.iter().filter(|(of, _)| of == tool).nth(nth).and_then(|(_, success)| *success);
        let (judged, exit_code, bytes) = match &lying.what {
            What::File(bytes) => {
                let (outcome, exit_code) = judge(bytes);
                (outcome, exit_code, bytes.len())
            }
            _ => ("unknown", None, 0),
        };
        let outcome = success.map_or(judged, |success| if success { "ok" } else { "failed" });
        let odd = !matches!(lying.what, What::File(_));
        calls.push(Call { seq, tool: tool.into(), file: format!("tool_calls/{name}"), outcome, exit_code, bytes, odd });
    }
    calls
}

/// How a call ended by its output alone, for the outputs that are made up here.
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

/// The failed calls that no later call of the same tool made good.
fn never_made_good(calls: &[Call]) -> bool {
    let good_after = |at: usize| calls[at..].iter().any(|later| later.tool == calls[at].tool && later.outcome == "ok");
    (0..calls.len()).any(|at| calls[at].outcome == "failed" && !good_after(at))
}

fn ended(calls: &[Call], status: &str) -> Outcome {
    if status == "failed" || calls.last().is_some_and(|call| call.outcome == "failed") {
        "failed"
    } else if status == "completed" && calls.iter().any(|call| call.outcome == "ok") && !never_made_good(calls) {
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
    check("no_tool_call", matches!(status, "completed" | "failed") && records_calls && calls.is_empty());
    check("no_final_words", completed && !words);
    check("success_but_last_call_failed", completed && last_failed);
    check("failure_never_made_good", completed && !last_failed && never_made_good(calls));
    calls.iter().for_each(|call| check("unreadable_output", call.odd));
    checks
}

/// What a worker says at its end; nothing, if it says that there is nothing.
fn final_words(result: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(result).trim().to_owned();
    (!matches!(text.as_str(), "" | "(No output)")).then_some(text)
}
