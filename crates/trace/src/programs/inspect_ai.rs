//! Logs of inspect_ai, as archives and as documents.

use std::io::Write;

use rawzip::{CompressionMethod, ZipArchiveWriter};

use super::*;

fn spec() -> Value {
    json!({"run_id": "run 1", "task": "repair", "model": "lab/lab-1"})
}

fn tool_event(id: &str, second: u8, more: Value) -> Value {
    let mut event = json!({"event": "tool", "id": id, "function": "bash", "arguments": {"cmd": "make"},
        "result": "done", "error": null,
        "timestamp": format!("2026-11-01T10:00:{second:02}+00:00"),
        "completed": format!("2026-11-01T10:00:{:02}.500+00:00", second + 1)});
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    event
}

/// A sample with a call that succeeds, one that fails, one that is refused, and one that no message
/// shows.
fn repair() -> Value {
    let call = |id: &str| json!({"id": id, "function": "bash", "arguments": {"cmd": "make"}});
    json!({"id": "a/1", "epoch": 2, "messages": [
            {"role": "system", "content": "Rules."},
            {"id": "m1", "role": "user", "source": "input", "content": "Mend it."},
            {"id": "m2", "role": "assistant", "content": [
                {"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "I look."}],
                "tool_calls": [call("c1"), call("c2"), call("c3")]},
            {"role": "tool", "tool_call_id": "c1", "function": "bash", "content": "attachment://f00"},
            {"role": "tool", "tool_call_id": "c2", "function": "bash", "content": "",
                "error": {"type": "timeout", "message": "too slow"}},
            {"role": "tool", "tool_call_id": "c3", "function": "bash", "content": "",
                "error": {"type": "approval", "message": "no"}},
            {"role": "user", "content": "Please go on."},
            {"id": "m3", "role": "assistant", "content": "Done."}],
        "events": [
            {"event": "sample_init", "timestamp": "2026-11-01T10:00:00+00:00"},
            {"event": "model", "timestamp": "2026-11-01T10:00:01+00:00",
                "output": {"choices": [{"message": {"id": "m2"}}]}},
            tool_event("c1", 2, json!({"truncated": [9, 4]})),
            tool_event("c2", 4, json!({"error": {"type": "timeout", "message": "too slow"}})),
            tool_event("c3", 6, json!({"error": {"type": "approval", "message": "no"}})),
            {"event": "subtask", "timestamp": "2026-11-01T10:00:07+00:00",
                "events": [tool_event("s1", 7, json!({"failed": true}))]},
            {"event": "model", "timestamp": "2026-11-01T10:00:09+00:00",
                "output": {"choices": [{"message": {"id": "m3"}}]}}],
        "attachments": {"f00": "a long text"},
        "output": {"completion": "Done."},
        "scores": {"includes": {"value": "I"}},
        "model_usage": {"lab/lab-1": {"input_tokens": 90, "output_tokens": 20, "total_tokens": 110,
            "input_tokens_cache_read": 10}, "lab/judge": {"input_tokens": 5, "output_tokens": 1,
            "total_tokens": 16, "input_tokens_cache_read": 10, "total_cost": 0.25}}})
}

fn document(samples: &[Value]) -> Vec<u8> {
    json!({"version": 2, "status": "success", "eval": spec(), "plan": {}, "samples": samples})
        .to_string()
        .into_bytes()
}

fn archive(method: CompressionMethod, members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut archive = ZipArchiveWriter::new(&mut bytes);
    for (name, content) in members {
        let (mut entry, config) =
            archive.new_file(name).compression_method(method).start().unwrap();
        let compressed = match method {
            CompressionMethod::STORE => content.clone(),
            CompressionMethod::ZSTD => zstd::encode_all(&**content, 1).unwrap(),
            _ => {
                let level = flate2::Compression::fast();
                let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), level);
                encoder.write_all(content).unwrap();
                encoder.finish().unwrap()
            }
        };
        entry.write_all(&compressed).unwrap();
        let mut sums = config.wrap(std::io::sink());
        sums.write_all(content).unwrap();
        let (_, sums) = sums.finish().unwrap();
        entry.finish(sums).unwrap();
    }
    archive.finish().unwrap();
    bytes
}

fn log(method: CompressionMethod, samples: &[Value]) -> Vec<u8> {
    let start = json!({"eval": spec(), "plan": {}}).to_string().into_bytes();
    let mut members = vec![("_journal/start.json".to_owned(), start)];
    for sample in samples {
        let name =
            format!("samples/{}_epoch_{}.json", sample["id"].as_str().unwrap(), sample["epoch"]);
        members.push((name, sample.to_string().into_bytes()));
    }
    archive(method, &members)
}

fn file(name: &'static str, bytes: Vec<u8>) -> ProgramSample {
    ProgramSample { format: "inspect-ai", files: vec![(name, bytes)] }
}

pub(super) fn sample() -> ProgramSample {
    file("repair.json", document(&[repair()]))
}

#[test]
fn sample_of_a_log_is_a_worker() {
    let logs = [CompressionMethod::STORE, CompressionMethod::DEFLATE, CompressionMethod::ZSTD]
        .map(|method| file("repair.eval", log(method, &[repair()])));
    for log in logs.into_iter().chain([sample()]) {
        let Detected::Format(found) = detect(&store(&log.files)).unwrap() else { panic!() };
        assert_eq!(found.name, "inspect-ai");
        let seen = log.read_one();
        let calls = [
            ("bash", "ok", None, false),
            ("bash", "failed", None, false),
            ("bash", "not_run", None, false),
            ("bash", "failed", None, false),
        ];
        assert_eq!(seen.calls(), calls);
        assert_eq!(seen.record.trace.calls[1].duration_ms, Some(1_500));
        assert_eq!(seen.text("tool_calls/001_bash.txt"), "a long text");
        assert_eq!(seen.text("tool_calls/002_bash.txt"), "too slow");
        assert_eq!(seen.text("task.txt"), "Mend it.");
        assert_eq!(seen.text("result.txt"), "Done.");
        assert_eq!(seen.status(), (Status::Completed, Some("includes I")));
        assert!(seen.record.trace.status_is_derived);
        assert_eq!(seen.tokens(), Some((85, 21, 20)));
        assert_eq!(seen.record.trace.cost.as_ref().unwrap().total.dollars(), 0.25);
        let worker = &seen.worker;
        assert_eq!(worker.id.to_text(), "a%2F1_epoch_2");
        assert_eq!(worker.run.as_deref(), Some("run 1"));
        assert_eq!(worker.model.as_deref(), Some("lab/lab-1"));
        let times = [worker.started_at.timestamp(), worker.finished_at.timestamp()];
        assert_eq!(
            times.map(|time| time.unwrap().to_string()),
            ["2026-11-01T10:00:00Z", "2026-11-01T10:00:09Z"]
        );
    }
}

#[test]
fn errors_and_limits_of_a_sample_are_failures() {
    let with = |more: Value| {
        let mut sample = repair();
        sample.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let seen = file("a.json", document(&[sample])).read_one();
        (seen.worker.status, seen.worker.status_source.as_deref().map(str::to_owned))
    };
    let error = with(json!({"error": {"message": "RuntimeError('x')\nmore"}}));
    assert_eq!(error, (Status::Failed, Some("RuntimeError('x')".into())));
    let limit = with(json!({"limit": {"type": "token", "limit": 9}}));
    assert_eq!(limit, (Status::Failed, Some("token limit".into())));
}

#[test]
fn answer_of_a_call_is_the_result() {
    let mut sample = repair();
    sample["output"]["completion"] = json!("42");
    let seen = file("a.json", document(&[sample])).read_one();
    assert_eq!(seen.text("result.txt"), "42");
}

#[test]
fn call_without_an_end_has_no_outcome() {
    let mut sample = repair();
    sample["messages"] = json!([]);
    sample["output"] = json!({});
    sample["events"] = json!([tool_event("c1", 2, json!({"pending": true, "result": ""}))]);
    let seen = file("a.json", document(&[sample])).read_one();
    assert_eq!((seen.calls()[0].1, seen.record.trace.unanswered.total()), ("unknown", 1));
}

#[test]
fn log_that_grows_keeps_its_samples() {
    let path = RelPath::constant("a.eval");
    let mut second = repair();
    second["id"] = json!("b");
    let (one, two) = (log(CompressionMethod::DEFLATE, &[repair()]), [repair(), second]);
    let two = log(CompressionMethod::DEFLATE, &two);
    let store = store(&[("a.eval", one)]);
    let live = format("inspect-ai");
    let before = read_all(&*live, &store);
    assert_eq!(before.len(), 1);
    // It is being written.
    store.write(&path, &two[..two.len() / 2]);
    let torn = live.find_workers(&store).unwrap();
    assert_eq!((torn.folders.len(), torn.skipped.is_empty()), (1, false));
    store.write(&path, two);
    let after = read_all(&*live, &store);
    assert_eq!(after.len(), 2);
    assert_eq!(after["a%2F1_epoch_2"], before["a%2F1_epoch_2"]);
}

#[test]
fn torn_log_is_named_each_time_it_is_listed() {
    let mut torn = document(&[repair(), repair()]);
    torn.truncate(torn.len() - 20);
    let (store, live) = (store(&[("a.json", torn)]), format("inspect-ai"));
    for _ in 0..2 {
        let found = live.find_workers(&store).unwrap();
        assert_eq!((found.folders.len(), found.skipped.is_empty()), (1, false));
    }
}

#[test]
fn numbers_that_json_lacks_cost_no_sample() {
    let text = String::from_utf8(document(&[repair()])).unwrap();
    let odd =
        text.replace("\"value\":\"I\"", "\"value\":NaN,\"more\":[-Infinity,\"NaN \\\" NaN\"]");
    let text = odd.replace("Mend it.", "Mend NaN.");
    let seen = file("a.json", text.into_bytes()).read_one();
    assert_eq!((seen.calls().len(), seen.text("task.txt")), (4, "Mend NaN.".into()));
}

#[test]
fn damaged_logs_are_survived() {
    let mut random = rng();
    let whole = [log(CompressionMethod::DEFLATE, &[repair()]), document(&[repair()])];
    for _ in 0..scale(200) {
        for (name, whole) in ["a.eval", "a.json"].into_iter().zip(&whole) {
            let mut bytes = whole.clone();
            bytes.truncate(random.usize(1..=bytes.len()));
            for _ in 0..random.usize(..4) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            let store = store(&[(name, bytes)]);
            let format = format("inspect-ai");
            for path in format.find_workers(&store).unwrap().folders {
                if let Ok(folder) = format.enter(&store, &path) {
                    let worker = format.read_worker(&*folder, &path, None);
                    let source = RecordSource { folder: &*folder, outputs: None };
                    let _ = format.read_record(source, &worker, Deadline::never());
                }
            }
        }
    }
}

#[test]
fn text_that_is_put_in_many_times_is_bounded() {
    let mut sample = repair();
    let message = json!({"role": "user", "content": vec!["attachment://f00"; 20]});
    sample["messages"] = json!(vec![message; 20]);
    sample["attachments"]["f00"] = json!("x".repeat(4 << 20));
    let all = file("a.json", document(&[sample]));
    let format = format("inspect-ai");
    let store = store(&all.files);
    let path = format.find_workers(&store).unwrap().folders.pop().unwrap();
    let folder = format.enter(&store, &path).unwrap();
    let worker = format.read_worker(&*folder, &path, None);
    assert_eq!(worker.status, Status::Completed);
    let source = RecordSource { folder: &*folder, outputs: None };
    let record = format.read_record(source, &worker, Deadline::never()).unwrap();
    assert_eq!(record.trace.unused.kinds["message or call beyond 64 MiB"], 17);
    assert!(folder.stat(&RelPath::constant("source.jsonl")).unwrap().size <= 64 << 20);
}
