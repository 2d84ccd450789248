//! Matches the calls of two workers and compares their sequences.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::lines::{DiffStep, common_items, hunk_header, hunks};
use super::section::{DiffBlock, DiffLine, DiffSection, inline};
use crate::analysis::UNRECORDED;
use swarmletfs_base::model::{Outcome, Output, ToolCall};
use swarmletfs_base::text::clean::one_line;
use swarmletfs_base::text::count;

/// Maximum length of an input, in bytes.
const INPUT_MAX: usize = 160;
/// Bonus for the substance of a hunk with a failed call.
const FAILED_SUBSTANCE: usize = 100_000;

pub(super) fn failed(call: &ToolCall) -> bool {
    call.outcome == Outcome::Failed
}

pub(super) fn unreadable(call: &ToolCall) -> String {
    match &call.output {
        Output::Unreadable(reason) => reason.clone(),
        Output::Pending => "no result yet".into(),
        Output::Unrecorded => UNRECORDED.into(),
        Output::InPlace | Output::OutOfBand(_) => "stored out of band".into(),
    }
}

/// Returns pairs of indices of corresponding calls.
///
/// Calls of one tool with equal input correspond, in order. Between those, calls of one tool
/// correspond in order if one of the inputs is unknown.
pub(super) fn corresponding(
    old: &[ToolCall],
    new: &[ToolCall],
    deadline: Instant,
) -> Vec<(usize, usize)> {
    let keys = |calls: &[ToolCall]| -> Vec<String> {
        calls
            .iter()
            .map(|call| format!("{}\0{}", call.tool, call.input.as_deref().unwrap_or_default()))
            .collect()
    };
    let equal = common_items(&keys(old), &keys(new), deadline);
    let mut pairs = Vec::new();
    let (mut old_from, mut new_from) = (0, 0);
    for (a, b) in equal.into_iter().chain([(old.len(), new.len())]) {
        let mut unpaired: HashMap<&str, VecDeque<(usize, &ToolCall)>> = HashMap::new();
        for (at, call) in new.iter().enumerate().take(b).skip(new_from) {
            unpaired.entry(&call.tool).or_default().push_back((at, call));
        }
        for (at, call) in old.iter().enumerate().take(a).skip(old_from) {
            let Some(queue) = unpaired.get_mut(call.tool.as_str()) else { continue };
            let Some((other_at, other)) = queue.front().copied() else { continue };
            if call.input.is_none() || other.input.is_none() {
                queue.pop_front();
                pairs.push((at, other_at));
            }
        }
        if a < old.len() && b < new.len() {
            pairs.push((a, b));
        }
        (old_from, new_from) = (a + 1, b + 1);
    }
    pairs
}

#[derive(Clone, Copy)]
pub(super) struct CallSequence<'a> {
    pub(super) path: &'a str,
    pub(super) calls: &'a [ToolCall],
}

impl CallSequence<'_> {
    /// Returns a text for each call; calls with equal texts are shown as equal.
    fn keys(self) -> Vec<String> {
        let keys = self.calls.iter().map(|call| {
            format!("{}\0{:?}\0{:?}\0{:?}", call.tool, call.outcome, call.exit_code, call.input)
        });
        keys.collect()
    }

    fn title(self) -> String {
        format!("{}: {}", self.path, count(self.calls.len(), "call"))
    }
}

/// Returns the difference between two sequences of calls, one line per call, or `None` if they are
/// equal.
pub(super) fn section(
    old: CallSequence<'_>,
    new: CallSequence<'_>,
    deadline: Instant,
) -> Option<DiffSection> {
    let pairs = common_items(&old.keys(), &new.keys(), deadline);
    let hunks = hunks(&pairs, (old.calls.len(), new.calls.len()));
    let line = |step: &DiffStep| {
        let (sign, call) = match step {
            DiffStep::Same(at, _) => (' ', old.calls.get(*at)?),
            DiffStep::Old(at) => ('-', old.calls.get(*at)?),
            DiffStep::New(at) => ('+', new.calls.get(*at)?),
        };
        Some((call, DiffLine::new(sign, call_line(call).as_bytes(), (0, 0), 0)))
    };
    let blocks = hunks.iter().map(|hunk| {
        let lines: Vec<(&ToolCall, DiffLine)> = hunk.iter().filter_map(line).collect();
        let has_failed = hunk
            .iter()
            .zip(&lines)
            .any(|(step, (call, _))| !matches!(step, DiffStep::Same(..)) && failed(call));
        let substance = lines.len() + if has_failed { FAILED_SUBSTANCE } else { 0 };
        DiffBlock {
            head: hunk_header(hunk),
            substance,
            lines: lines.into_iter().map(|(_, line)| line).collect(),
            matches: 0,
        }
    });
    let blocks: Vec<DiffBlock> = blocks.collect();
    (!blocks.is_empty()).then(|| DiffSection {
        head: format!("--- {}\n+++ {}\n", old.title(), new.title()),
        sources: Vec::new(),
        unit: "hunk",
        blocks,
        weight: 2,
        file: None,
    })
}

/// Returns a call as one line: `003_sql.txt failed exit=1 $ select 1`.
fn call_line(call: &ToolCall) -> String {
    let outcome = if failed(call) { "FAILED" } else { call.outcome.as_str() };
    let code = call
        .exit_code
        .filter(|code| *code != 0)
        .map(|code| format!(" exit={code}"))
        .unwrap_or_default();
    let input = call.input.as_deref().map(|input| format!(" $ {}", one_line(input, INPUT_MAX)));
    let name = call.path.file_name().map(|name| name.display()).unwrap_or_default();
    inline(&format!("{name} {outcome}{code}, {} B{}", call.bytes, input.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use swarmletfs_base::name::RelPath;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn call(tool: &str, input: Option<&str>, outcome: Outcome) -> ToolCall {
        ToolCall {
            outcome,
            bytes: 5,
            input: input.map(str::to_owned),
            ..ToolCall::new(1, tool, RelPath::parse(format!("tool_calls/001_{tool}.txt")).unwrap())
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
    fn sequences_are_shown_with_one_line_per_call() {
        let old = vec![call("sql", Some("a"), Outcome::Ok), call("web", None, Outcome::Failed)];
        let new = vec![call("sql", Some("a"), Outcome::Ok), call("web", None, Outcome::Ok)];
        let (old, new) = (
            CallSequence { path: "workers/a", calls: &old },
            CallSequence { path: "workers/b", calls: &new },
        );
        let text = section(old, new, later()).unwrap().within(1_000, 0).unwrap();
        assert_eq!(
            text,
            "--- workers/a: 2 calls\n+++ workers/b: 2 calls\n@@ -1,2 +1,2 @@\n 001_sql.txt ok, 5 B $ a\n\
             -001_web.txt FAILED, 5 B\n+001_web.txt ok, 5 B\n"
        );
        assert!(section(old, CallSequence { path: "workers/b", ..old }, later()).is_none());
    }
}
