//! Tests of costs that records state, and of the use of the context.

use super::*;

/// The start of the process that begins with the session, in milliseconds since 1970.
const START: u64 = 1_769_940_000_000;

/// Appends the cost of the process that began at `start`, in which `tokens` were used.
fn cost(session: &mut Transcript, start: u64, usd: f64, tokens: u64) {
    session.line(json!({"type": "cost-state", "totalCostUSD": usd, "startTime": start,
        "modelUsage": {"claude-large": {"inputTokens": tokens, "outputTokens": 0, "costUSD": usd}},
        "hasUnknownModelCost": false}));
}

fn answer(session: &mut Transcript) -> &mut Transcript {
    session.user("Do it.").says("Done.")
}

/// Returns `cost` of the only session.
fn shown_cost(session: &Transcript) -> Value {
    shown(session).index("s").get("cost").cloned().unwrap_or_default()
}

/// Promise: A cost is stated by the record or computed from given prices, and says which.
#[test]
fn cost_is_that_of_all_processes() {
    let stated = |usd: f64| json!({"usd": usd, "source": "stated", "includes_children": true});
    let partial = |usd: f64| {
        let mut cost = stated(usd);
        cost["complete"] = json!(false);
        cost
    };
    type Costs<'a> = &'a [(u64, f64, u64)];
    let cases: [(&str, Costs<'_>, Value); 6] = [
        ("no process states a cost", &[], Value::Null),
        ("a process states it again", &[(START, 0.25, 8), (START, 0.5, 8)], stated(0.5)),
        ("another process went on", &[(START, 0.5, 4), (START + 1, 0.25, 4)], stated(0.75)),
        ("a process was killed", &[(START, 0.5, 7)], partial(0.5)),
        ("the cost is zero", &[(START, 0.0, 8)], stated(0.0)),
        ("the cost is no amount", &[(START, -1.0, 8)], Value::Null),
    ];
    for (case, costs, expected) in cases {
        let mut session = Transcript::new("s");
        answer(&mut session);
        costs.iter().for_each(|(start, usd, tokens)| cost(&mut session, *start, *usd, *tokens));
        assert_eq!(shown_cost(&session), expected, "{case}");
    }
    let mut session = Transcript::new("s");
    answer(&mut session).line(json!({"type": "cost-state", "totalCostUSD": 0.5,
        "startTime": START, "hasUnknownModelCost": true}));
    assert_eq!(shown_cost(&session), partial(0.5));
}

#[test]
fn cost_that_goes_on_with_that_of_the_original_is_not_the_copys() {
    let mut original = Transcript::new("s");
    answer(&mut original);
    let copy = |start: u64| {
        let mark = |line: &mut Value| {
            if line["type"] == "assistant" {
                line["requestSessionId"] = json!("s");
            }
        };
        let mut copy = original.copied("copy", mark);
        answer(&mut copy);
        cost(&mut copy, start, 0.5, 8);
        let store = store();
        store.write(&place("s"), original.bytes());
        store.write(&place("copy"), copy.bytes());
        read_once(&store).index("copy")["cost"]["usd"].clone()
    };
    let copied_at = 1_769_940_001_000;
    assert_eq!(copy(copied_at - 2_000), Value::Null);
    assert_eq!(copy(copied_at + 1_000), json!(0.5));
}

#[test]
fn summary_and_index_have_the_use_of_the_context() {
    let usage = |read: u64| {
        json!({"input_tokens": 10, "output_tokens": 500, "cache_read_input_tokens": read,
            "cache_creation_input_tokens": 40, "cache_creation": {"ephemeral_1h_input_tokens": 30}})
    };
    let mut session = Transcript::new("s");
    session.user("Do it.").message("m1", texts(&["I look."]), usage(150_000));
    session.line(json!({"type": "user", "isCompactSummary": true,
        "message": {"role": "user", "content": "What was done so far."}}));
    session.message("m2", texts(&["Done."]), usage(20_000));
    cost(&mut session, START, 1.234, 171_100);
    let seen = shown(&session);
    let index = seen.index("s");
    assert_eq!(index["context"], json!({"peak_tokens": 150_050, "compactions": 1}));
    assert_eq!(
        index["tokens"],
        json!({"input": 20, "output": 1_000, "cache_read": 170_000, "cache_creation": 80,
            "cache_creation_1h": 60})
    );
    let summary = seen.text("s", "summary");
    assert!(
        summary.contains("\ncontext  largest request 150k tokens, compacted once\n"),
        "{summary}"
    );
    let cost = "\ncost     $1.23 stated, with the workers that it started\n";
    assert!(summary.contains(cost), "{summary}");
}
