//! Tests of the titles of sessions.

use super::*;

fn summary(text: &str, leaf: &str) -> Value {
    json!({"type": "summary", "summary": text, "leafUuid": leaf})
}

/// Returns the title in the worker's record and in its listing.
fn titles(transcript: &Transcript) -> [Value; 2] {
    let store = store();
    put(&store, "s", transcript);
    [shown(transcript).index("s")["summary"].clone(), json!(listed(&store).summary)]
}

/// Promise: A summary of another session is no title.
#[test]
fn summary_of_another_session_is_no_title() {
    let mut transcript = Transcript::new("s");
    transcript.line(summary("Another", "x")).user("look").says("Done.");
    assert_eq!(titles(&transcript), [Value::Null, Value::Null]);
    // The title of the program or the user stands alone.
    transcript.line(json!({"type": "ai-title", "aiTitle": "Looking"}));
    assert_eq!(titles(&transcript), ["Looking", "Looking"]);
}

#[test]
fn summary_is_the_title_if_its_line_comes_before_or_after_it() {
    let mut transcript = Transcript::new("s");
    transcript.line(summary("Early", "u3")).user("look");
    assert_eq!(titles(&transcript), [Value::Null, Value::Null]);
    transcript.says("Done.");
    assert_eq!(titles(&transcript), ["Early", "Early"]);
    transcript.line(summary("Late", "u3")).line(summary("Another", "x"));
    assert_eq!(titles(&transcript), ["Late", "Late"]);
    // A summary that names no line cannot be another session's.
    transcript.line(json!({"type": "summary", "summary": "Bare"}));
    assert_eq!(titles(&transcript), ["Bare", "Bare"]);
}

#[test]
fn last_summary_of_the_session_is_the_title() {
    let mut transcript = Transcript::new("s");
    transcript.line(summary("First", "u5")).line(summary("Second", "u4"));
    transcript.user("look").says("One.").says("Two.");
    assert_eq!(titles(&transcript), ["Second", "Second"]);
}

/// Of many summaries that wait for their line, the last ones are kept.
#[test]
fn of_many_summaries_the_last_are_kept() {
    let mut transcript = Transcript::new("s");
    for n in 0..100_u32 {
        transcript.line(summary(&format!("Title {n}"), &format!("v{n}")));
    }
    transcript.user("look");
    let with = |id: &str| {
        let mut transcript = transcript.clone();
        transcript.line(json!({"type": "system", "uuid": id}));
        titles(&transcript)[0].clone()
    };
    assert_eq!(with("v99"), "Title 99");
    assert_eq!(with("v92"), "Title 92");
    assert_eq!(with("v91"), Value::Null);
}

/// A listing reads both ends of a transcript: a line between them confirms no title.
#[test]
fn listing_shows_no_title_that_it_cannot_confirm() {
    let long = |leaf: &str| {
        let mut transcript = Transcript::new("s");
        transcript.line(summary("Title", leaf)).user("look");
        for n in 0..200 {
            transcript.bash(&format!("c{n}"), "ls", &"x".repeat(500));
        }
        transcript.says("Done.");
        let store = store();
        put(&store, "s", &transcript);
        listed(&store)
    };
    let title = |leaf: &str| long(leaf).summary;
    assert_eq!(title("u2").as_deref(), Some("Title"));
    assert_eq!(title("u200"), None);
}

/// The program writes its own words before the task of an agent in a workflow.
#[test]
fn task_of_a_workflow_agent_begins_after_the_words_of_the_program() {
    let mut transcript = Transcript::new("s");
    let text =
        "[Workflow harness — computed task] Phase 1 of 2\n\n  Check the disks.\n  All of them.";
    transcript.user(text).says("Done.");
    let index = shown(&transcript).index("s");
    assert_eq!(index["task"], "Check the disks.\n  All of them.");
}
