//! The calls of two workers: which of them correspond, and in what they differ as a sequence.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::lines::{Step, common, head, hunks};
use super::section::{Line, Piece, Section, inline};
use crate::model::{Outcome, Output, ToolCall};

/// The longest input that is shown, in bytes.
const INPUT_MAX: usize = 160;
/// A hunk with a call that failed tells so much more.
const FAILED_SUBSTANCE: usize = 100_000;

pub(super) fn failed(call: &ToolCall) -> bool {
    call.outcome == Outcome::Failed
}

/// Why there is no output to be read.
pub(super) fn unreadable(call: &ToolCall) -> String {
    match &call.output {
        Output::Unreadable(reason) => reason.clone(),
        Output::Pending => "no result has come".into(),
        Output::InPlace | Output::OutOfBand(_) => "stored out of band".into(),
    }
}

/// The calls that correspond, as pairs of their places: of one tool and one input, in order; between those, of one tool in
/// the order of its calls, where one of the inputs is not known.
pub(super) fn corresponding(old: &[ToolCall], new: &[ToolCall], deadline: Instant) -> Vec<(usize, usize)> {
    let key = |call: &ToolCall| format!("{}\0{}", call.tool, call.input.as_deref().unwrap_or_default());
    let keys = |calls: &[ToolCall]| calls.iter().map(key).collect::<Vec<_>>();
    let same = common(&keys(old), &keys(new), deadline);
    let mut pairs = Vec::new();
    let (mut from, mut to) = (0, 0);
    for (a, b) in same.into_iter().chain([(old.len(), new.len())]) {
        let mut waiting: HashMap<&str, VecDeque<(usize, &ToolCall)>> = HashMap::new();
        for (at, call) in new.iter().enumerate().take(b).skip(to) {
            waiting.entry(&call.tool).or_default().push_back((at, call));
        }
        for (at, call) in old.iter().enumerate().take(a).skip(from) {
            let of_tool = waiting.get_mut(call.tool.as_str());
            let is_alike = |other: &ToolCall| call.input.is_none() || other.input.is_none();
            if let Some(of_tool) = of_tool.filter(|of_tool| of_tool.front().is_some_and(|(_, other)| is_alike(other))) {
                pairs.extend(of_tool.pop_front().map(|(other, _)| (at, other)));
            }
        }
        if a < old.len() && b < new.len() {
            pairs.push((a, b));
        }
        (from, to) = (a + 1, b + 1);
    }
    pairs
}

/// In what two workers' sequences of calls differ, a line a call; `None` if in nothing.
pub(super) fn section(
    (old, mine): (&str, &[ToolCall]),
    (new, other): (&str, &[ToolCall]),
    deadline: Instant,
) -> Option<Section> {
    let key = |call: &ToolCall| format!("{}\0{:?}\0{:?}\0{:?}", call.tool, call.outcome, call.exit_code, call.input);
    let keys = |calls: &[ToolCall]| calls.iter().map(key).collect::<Vec<_>>();
    let pairs = common(&keys(mine), &keys(other), deadline);
    let hunks = hunks(&pairs, (mine.len(), other.len()));
    let line = |step: &Step| {
        let (sign, call) = match step {
            Step::Same(at, _) => (' ', mine.get(*at)?),
            Step::Old(at) => ('-', mine.get(*at)?),
            Step::New(at) => ('+', other.get(*at)?),
        };
        Some((call, Line::of(sign, told(call).as_bytes(), (0, 0), 0)))
    };
    let piece = |hunk: &Vec<Step>| {
        let lines: Vec<(&ToolCall, Line)> = hunk.iter().filter_map(line).collect();
        let has_failed =
            hunk.iter().zip(&lines).any(|(step, (call, _))| !matches!(step, Step::Same(..)) && failed(call));
        let substance = lines.len() + if has_failed { FAILED_SUBSTANCE } else { 0 };
        Piece { head: head(hunk), substance, lines: lines.into_iter().map(|(_, line)| line).collect(), held: 0 }
    };
    let pieces: Vec<Piece> = hunks.iter().map(piece).collect();
    let count = |calls: &[ToolCall]| super::super::text::count(calls.len(), "call");
    (!pieces.is_empty()).then(|| Section {
        head: format!("--- {old}: {}\n+++ {new}: {}\n", count(mine), count(other)),
        sources: Vec::new(),
        what: "hunk",
        pieces,
        weight: 2,
        file: None,
    })
}

/// A call on a line: `003_sql.txt failed exit=1 $ select 1`.
fn told(call: &ToolCall) -> String {
    let outcome = if failed(call) { "FAILED" } else { call.outcome.as_str() };
    let code = call.exit_code.filter(|code| *code != 0).map(|code| format!(" exit={code}")).unwrap_or_default();
    let input = call.input.as_deref().map(|input| format!(" $ {}", super::super::clean::one_line(input, INPUT_MAX)));
    let name = call.path.file_name().map(|name| name.display()).unwrap_or_default();
    inline(&format!("{name} {outcome}{code}, {} B{}", call.bytes, input.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::name::RelPath;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn call(tool: &str, input: Option<&str>, outcome: Outcome) -> ToolCall {
        ToolCall {
            seq: 1,
            tool: tool.into(),
            path: RelPath::parse(format!("tool_calls/001_{tool}.txt")).unwrap(),
            output: Output::InPlace,
            outcome,
            cancelled: false,
            exit_code: None,
            duration_ms: None,
            bytes: 5,
            input: input.map(str::to_owned),
        }
    }

    fn calls(all: &[(&str, Option<&str>)]) -> Vec<ToolCall> {
        all.iter().map(|(tool, input)| call(tool, *input, Outcome::Ok)).collect()
    }

    #[test]
    fn calls_correspond_by_tool_and_input_and_order() {
        let old = calls(&[("sql", Some("a")), ("sql", Some("b")), ("web", None), ("web", None)]);
        let new = calls(&[("sql", Some("b")), ("web", None), ("sql", Some("c")), ("web", None)]);
        assert_eq!(corresponding(&old, &new, later()), [(1, 0), (2, 1), (3, 3)]);
        let steps = calls(&[("a", None), ("b", None), ("a", None)]);
        let others = calls(&[("b", None), ("a", None), ("a", None)]);
        assert_eq!(corresponding(&steps, &others, later()).len(), 2);
        assert_eq!(corresponding(&old, &[], later()), []);
        let (known, unknown) = (calls(&[("sql", Some("a"))]), calls(&[("sql", None)]));
        assert_eq!(corresponding(&known, &unknown, later()), [(0, 0)]);
        assert_eq!(corresponding(&known, &calls(&[("sql", Some("x"))]), later()), []);
    }

    #[test]
    fn sequences_are_told_a_line_a_call() {
        let old = vec![call("sql", Some("a"), Outcome::Ok), call("web", None, Outcome::Failed)];
        let new = vec![call("sql", Some("a"), Outcome::Ok), call("web", None, Outcome::Ok)];
        let text = section(("workers/a", &old), ("workers/b", &new), later()).unwrap().within(1_000, 0).unwrap();
        assert_eq!(
            text,
            "--- workers/a: 2 calls\n+++ workers/b: 2 calls\n@@ -1,2 +1,2 @@\n 001_sql.txt ok, 5 B $ a\n\
             -001_web.txt FAILED, 5 B\n+001_web.txt ok, 5 B\n"
        );
        assert!(section(("workers/a", &old), ("workers/b", &old), later()).is_none());
    }
}
