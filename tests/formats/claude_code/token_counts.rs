//! Tests of token counts that leave out tokens, and of messages that no model wrote.

use super::*;

fn usage(output: u64) -> Value {
    json!({"input_tokens": 3, "output_tokens": output})
}

/// Returns true if the index says that tokens are missing.
fn is_partial(transcript: &Transcript) -> bool {
    match shown(transcript).index("s").get("tokens_complete") {
        None => false,
        Some(complete) => {
            assert_eq!(complete, false);
            true
        }
    }
}

/// Promise: Token counts that cannot be complete are marked.
#[test]
fn text_longer_than_its_tokens_is_marked() {
    let with = |bytes: usize, output: u64| {
        let mut transcript = begun();
        transcript.message("m", texts(&[&"x".repeat(bytes)]), usage(output));
        is_partial(&transcript)
    };
    assert!(with(800, 11));
    assert!(!with(800, 67));
    // So short a text may be one that needs few tokens.
    assert!(!with(199, 1));
    assert!(with(200, 1));
}

#[test]
fn calls_that_need_more_tokens_are_marked() {
    let with = |calls: usize, output: u64| {
        let mut transcript = begun();
        for n in 0..calls {
            let id = format!("c{n}");
            let call = json!([{"type": "tool_use", "id": id, "name": "Read", "input": {}}]);
            transcript.message("m", call, usage(output)).result(&id, json!({"content": "x"}));
        }
        transcript.message("m", texts(&["done"]), usage(output));
        is_partial(&transcript)
    };
    assert!(with(7, 4));
    assert!(with(7, 69));
    assert!(!with(7, 70));
    assert!(!with(0, 0));
}

/// Returns the line of a summary about tokens.
fn tokens_line(transcript: &Transcript) -> String {
    let seen = shown(transcript);
    let line = seen.text("s", "summary").lines().find(|line| line.starts_with("tokens "));
    line.unwrap_or_default().to_owned()
}

fn synthetic(transcript: &mut Transcript, text: &str) {
    let usage = json!({"input_tokens": 0, "output_tokens": 0});
    transcript.line(json!({"type": "assistant", "message": {"model": "<synthetic>", "id": "syn",
        "content": texts(&[text]), "usage": usage}}));
}

#[test]
fn message_that_no_model_wrote_names_no_model() {
    let mut transcript = begun();
    transcript.message("m", texts(&["Done."]), usage(20));
    let before = tokens_line(&transcript);
    assert!(before.ends_with(" of claude-large"), "{before}");
    synthetic(&mut transcript, &"No response requested. ".repeat(20));
    assert_eq!(tokens_line(&transcript), before);
    let index = shown(&transcript).index("s");
    let models: Vec<&String> = index["tokens_by_model"].as_object().unwrap().keys().collect();
    assert_eq!(models, ["claude-large"]);
    assert_eq!(index["model"], "claude-large");
    // Alone, it counts no tokens.
    let mut transcript = begun();
    synthetic(&mut transcript, "No response requested.");
    assert_eq!(tokens_line(&transcript), "");
    let index = shown(&transcript).index("s");
    assert_eq!((index["tokens"].clone(), index["model"].clone()), (Value::Null, Value::Null));
}

/// A message without a model counts if it has tokens.
#[test]
fn message_of_an_unknown_model_counts_its_tokens() {
    let with = |output: u64| {
        let mut transcript = begun();
        transcript.line(json!({"type": "assistant", "message": {"id": "m",
            "content": texts(&["Done."]), "usage": {"output_tokens": output}}}));
        shown(&transcript).index("s")["tokens"].clone()
    };
    assert_eq!(with(0), Value::Null);
    assert_eq!(with(20)["output"], 20);
}

/// A listing reads both ends of a transcript, and more of them until one names the model.
#[test]
fn listing_finds_the_last_model_before_messages_of_the_program() {
    let mut transcript = begun();
    for n in 0..100 {
        transcript.user("y".repeat(500)).user(format!("go on {n}"));
    }
    transcript.message("m", texts(&["Done."]), usage(20));
    for _ in 0..50 {
        synthetic(&mut transcript, &"x".repeat(500));
    }
    let store = store();
    put(&store, "s", &transcript);
    assert_eq!(listed(&store).model.as_deref(), Some("claude-large"));
}
