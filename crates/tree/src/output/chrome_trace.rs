//! Workers and their calls as events of the Chrome trace format, which Perfetto opens.

use std::collections::BTreeMap;

use serde::Serialize;

use swarmletfs_base::model::{Outcome, Record, Status, ToolCall};
use swarmletfs_base::text::clean::one_line;

const NAME_MAX: usize = 200;
const INPUT_MAX: usize = 1_000;
/// Maximum number of calls of a worker that are shown at one time; more share the last lane.
const LANES_MAX: usize = 64;

/// An event. Times are in microseconds since 1970.
#[derive(Debug, Serialize)]
pub struct TraceEvent {
    /// `X` has a duration, `i` has none, and `M` names a process or a thread.
    ph: &'static str,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<i64>,
    pid: usize,
    tid: usize,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    args: BTreeMap<&'static str, String>,
}

/// Number of the worker, of the family that it belongs to, and its name.
pub struct TracePlace<'a> {
    pub family: usize,
    pub worker: usize,
    pub name: &'a str,
    pub outcome: Outcome,
    /// Its start and its end, in milliseconds since 1970.
    pub span: Option<(i64, i64)>,
}

/// Returns the events of a worker, and the number of its calls without a time, which have none.
pub fn events(record: &Record, place: &TracePlace<'_>) -> (Vec<TraceEvent>, usize) {
    let status = record.worker.status;
    let title = one_line(record.worker.title(), NAME_MAX);
    let label = format!("{} {title}", one_line(place.name, NAME_MAX));
    // The first lane is the worker itself.
    let lane = |number: usize| place.worker * (LANES_MAX + 1) + number;
    let named = |name: &str, tid: usize, text: String| TraceEvent {
        args: BTreeMap::from([("name", text)]),
        ..event("M", name.to_owned(), place.family, tid)
    };
    let mut found = vec![named("thread_name", lane(0), label.clone())];
    if place.family == place.worker {
        found.push(named("process_name", lane(0), label.clone()));
    }
    if let Some((from, to)) = place.span {
        found.push(TraceEvent {
            cat: Some(place.outcome.as_str()),
            ts: Some(from.saturating_mul(1_000)),
            dur: Some(to.saturating_sub(from).max(0).saturating_mul(1_000)),
            args: BTreeMap::from([
                ("outcome", place.outcome.to_string()),
                ("status", status.to_string()),
                ("task", one_line(&record.worker.task, INPUT_MAX)),
            ]),
            ..event("X", label, place.family, lane(0))
        });
    }
    let mut timed: Vec<(i64, &ToolCall)> = record
        .trace
        .calls
        .iter()
        .filter_map(|call| Some((call.at?.as_microsecond(), call)))
        .collect();
    let untimed = record.trace.calls.len() - timed.len();
    timed.sort_by_key(|(at, call)| (*at, call.seq));
    // Calls that overlap are in lanes of their own.
    let mut ends: Vec<i64> = Vec::new();
    for (at, call) in timed {
        let took = call.duration_ms.and_then(|ms| i64::try_from(ms).ok());
        let took = took.map(|ms| ms.saturating_mul(1_000));
        let free = ends.iter().position(|end| *end <= at);
        let number = free.unwrap_or(ends.len()).min(LANES_MAX - 1);
        let end = at.saturating_add(took.unwrap_or_default());
        match ends.get_mut(number) {
            Some(known) => *known = end,
            None => {
                found.push(named("thread_name", lane(number + 1), format!("{} calls", place.name)));
                ends.push(end);
            }
        }
        found.push(call_event(call, status, (at, took), (place.family, lane(number + 1))));
    }
    (found, untimed)
}

fn event(ph: &'static str, name: String, pid: usize, tid: usize) -> TraceEvent {
    TraceEvent { ph, name, cat: None, ts: None, dur: None, pid, tid, args: BTreeMap::new() }
}

fn call_event(
    call: &ToolCall,
    status: Status,
    (at, took): (i64, Option<i64>),
    (pid, tid): (usize, usize),
) -> TraceEvent {
    let outcome = call.state(status).as_str();
    let sign = if call.looks_failed() { format!("{outcome}: ") } else { String::new() };
    let optional = [
        ("input", call.input.as_deref().map(|input| one_line(input, INPUT_MAX))),
        ("suspect", call.suspect.as_deref().map(|line| one_line(line, NAME_MAX))),
        ("exit_code", call.exit_code.map(|code| code.to_string())),
    ];
    let always = [
        ("outcome", outcome.to_owned()),
        ("file", one_line(&call.path.display(), NAME_MAX)),
        ("bytes", call.bytes.to_string()),
    ];
    let optional = optional.into_iter().filter_map(|(key, value)| Some((key, value?)));
    TraceEvent {
        cat: Some(outcome),
        ts: Some(at),
        dur: took,
        args: always.into_iter().chain(optional).collect(),
        ..event(
            if took.is_some() { "X" } else { "i" },
            format!("{sign}{}", one_line(&call.tool, NAME_MAX)),
            pid,
            tid,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarmletfs_base::model::{Trace, Worker};
    use swarmletfs_base::name::{Name, RelPath};

    #[test]
    fn calls_at_one_time_are_in_lanes_and_calls_without_a_time_are_counted() {
        let call = |seq: u64, at: Option<&str>, ms: Option<u64>, outcome| ToolCall {
            at: at.map(|at| format!("2026-01-01T00:00:{at}Z").parse().unwrap()),
            duration_ms: ms,
            outcome,
            ..ToolCall::new(seq, "Bash", RelPath::parse(format!("tool_calls/{seq}")).unwrap())
        };
        let calls = vec![
            call(1, Some("00"), Some(5_000), Outcome::Ok),
            call(2, Some("01"), Some(1_000), Outcome::Failed),
            call(3, Some("02"), Some(1_000), Outcome::Ok),
            call(4, Some("09"), None, Outcome::Unknown),
            call(5, None, None, Outcome::Ok),
        ];
        let record = Record {
            worker: Worker::new(Name::new("w").unwrap(), RelPath::root()),
            trace: Trace { calls, records_calls: true, ..Trace::default() },
            unread: 0,
        };
        let place = TracePlace {
            family: 1,
            worker: 1,
            name: "w",
            outcome: Outcome::Ok,
            span: Some((1, 3)),
        };
        let (found, untimed) = events(&record, &place);
        assert_eq!(untimed, 1);
        let calls: Vec<(&str, usize)> = found
            .iter()
            .filter(|event| event.args.contains_key("bytes"))
            .map(|event| (event.ph, event.tid - 65))
            .collect();
        assert_eq!(calls, [("X", 1), ("X", 2), ("X", 2), ("i", 1)]);
        assert!(found.iter().any(|event| event.name == "failed: Bash"));
        let whole = found.iter().find(|event| event.cat == Some("ok") && event.tid == 65).unwrap();
        assert_eq!((whole.ts, whole.dur), (Some(1_000), Some(2_000)));
    }
}
