//! Lists of messages in JSON: markers count in tool results, and the rest of the text is unchanged.

use serde_json::Value;
use swarmletfs_tree::render::expand::{ExpandError, InputFormat};
use swarmletfs_tree::view::Filter;

use super::{evidence, expand, marker, renderer, store};

/// Lists in which `@` stands for a marker that is expanded, and `!` for one that is not.
const LISTS: [(InputFormat, &str); 17] = [
    (
        InputFormat::OpenAi,
        r#"[{"role":"user","content":"!"},{"role":"tool","tool_call_id":"x","content":"done @"}]"#,
    ),
    (
        InputFormat::OpenAi,
        " [ {\"content\" : \"a\\u00e9\\n@\\nb\" , \"role\":\"tool\"} , 1e5, null, [\"!\"] ]\n\n",
    ),
    (
        InputFormat::OpenAi,
        r#"[{"role":"tool","content":[{"type":"text","text":"@"},{"type":"image_url","image_url":"!"}]}]"#,
    ),
    (
        InputFormat::OpenAi,
        r#"[{"type":"function_call_output","call_id":"1","output":"@"},{"type":"message","content":"!"}]"#,
    ),
    (
        InputFormat::OpenAi,
        r#"{"model":"m","messages":[{"role":"function","content":"@"}],"n":[{"role":"tool","content":"!"}]}"#,
    ),
    (
        InputFormat::OpenAi,
        r#"{"input":"!","instructions":{"messages":[{"role":"tool","content":"!"}]},"messages":[{"role":"tool","content":"@"}]}"#,
    ),
    (
        InputFormat::Anthropic,
        r#"[{"role":"user","content":[{"type":"text","text":"!"},{"type":"tool_result","tool_use_id":"1","content":"@"}]}]"#,
    ),
    (
        InputFormat::Anthropic,
        r#"[{"role":"user","content":[{"content":[{"text":"\\@\\","type":"text"}],"type":"tool_result"}]},{"role":"user","content":"!"}]"#,
    ),
    (
        InputFormat::LangChain,
        r#"[{"type":"human","data":{"content":"!"}},{"type":"tool","data":{"content":"@","artifact":"!","type":"tool"}}]"#,
    ),
    (
        InputFormat::LangChain,
        r#"[{"type":"tool","data":{"content":["@",{"type":"text","text":"and"}]}}]"#,
    ),
    (
        InputFormat::LangChain,
        r#"[{"lc":1,"type":"constructor","id":["langchain","schema","messages","ToolMessage"],"kwargs":{"content":"@"}},{"lc":1,"id":["a","AIMessage"],"kwargs":{"content":"!"}}]"#,
    ),
    (InputFormat::LangChain, r#"[{"type":"ToolMessageChunk","data":{"content":"\ud800 @"}}]"#),
    (
        InputFormat::OpenAi,
        r#"[{"content":"\ud800\udc00 \ud800 @\udfff","role":"tool","name":"\ud800"}]"#,
    ),
    (
        InputFormat::OpenAi,
        r#"[{"type":"shell_call_output","output":[{"stdout":"@","stderr":"","outcome":{"type":"!"}}]}]"#,
    ),
    (InputFormat::OpenAi, r#"[{"type":"mcp_call","name":"!","arguments":"!","output":"@"}]"#),
    (
        InputFormat::Anthropic,
        r#"[{"content":[{"type":"bash_code_execution_tool_result","content":{"type":"x","stdout":"@","url":"!"}}]}]"#,
    ),
    (
        InputFormat::LangChain,
        r#"[{"content":"@","type":"tool"},{"role":"tool","content":"x"},{"content":"!","type":"ai"}]"#,
    ),
];

fn with_markers(list: &str) -> String {
    list.replace(['@', '!'], &marker("48", "1", "a"))
}

/// Promise: Only markers in tool results are expanded, and all other messages stay the same.
#[test]
fn only_markers_in_tool_results_are_expanded() {
    let store = store();
    let renderer = renderer(&store, Filter::default());
    let of_a = evidence(&store, "workers/a/evidence.txt");
    for (format, list) in LISTS {
        let (text, stats) = expand(&renderer, format, None, &with_markers(list));
        assert_eq!(
            (stats.expanded, stats.outside),
            (1, list.matches('!').count() as u64),
            "{list}"
        );
        let at = list.find('@').unwrap();
        let end = if list[at + 1..].starts_with(['"']) || list[at + 1..].starts_with("\\n") {
            ""
        } else {
            "\n"
        };
        let put_in = serde_json::to_string(&format!("\n\n{of_a}{end}")).unwrap();
        let wanted = list
            .replace('@', &format!("!{}", put_in.trim_matches('"')))
            .replace('!', &with_markers("!"));
        assert_eq!(text, wanted, "{list}");
        assert!(list.contains("\\ud800") || serde_json::from_str::<Value>(&text).is_ok(), "{text}");
    }
}

/// Promise: Of JSON members with the same name, the last counts.
///
/// JSON parsers take the last of several members of one name, so evidence in another would be lost.
#[test]
fn last_of_equal_json_members_counts() {
    let store = store();
    let renderer = renderer(&store, Filter::default());
    for (format, list) in [
        (InputFormat::OpenAi, r#"[{"role":"user","role":"tool","content":"@"}]"#),
        (InputFormat::OpenAi, r#"[{"role":"tool","content":"!","content":"@"}]"#),
        (
            InputFormat::OpenAi,
            r#"[{"role":"tool","content":"!","content":[{"text":"!","text":"@"}]}]"#,
        ),
        (
            InputFormat::OpenAi,
            r#"[{"role":"tool","role":"user","content":"!"},{"role":"tool","content":"@"}]"#,
        ),
        (
            InputFormat::Anthropic,
            r#"[{"content":[{"type":"tool_result","type":"text","content":"!"},{"type":"x","type":"tool_result","content":"@"}]}]"#,
        ),
        (
            InputFormat::LangChain,
            r#"[{"type":"ai","type":"tool","data":{"content":"!"},"data":{"content":"@"}}]"#,
        ),
        (
            InputFormat::LangChain,
            r#"[{"id":["ToolMessage"],"id":["AIMessage"],"kwargs":{"content":"!"}},{"role":"tool","content":"@"}]"#,
        ),
    ] {
        let (text, stats) = expand(&renderer, format, None, &with_markers(list));
        assert_eq!(
            (stats.expanded, stats.outside),
            (1, list.matches('!').count() as u64),
            "{list}"
        );
        let before = list.find('@').unwrap();
        assert!(text.starts_with(&with_markers(&list[..=before])), "{text}");
        assert!(text.contains(&format!("{}\\n\\n", with_markers(&list[..=before]))), "{text}");
    }
}

#[test]
fn a_name_that_is_escaped_in_json_is_found() {
    let store = store();
    store.worker("ü\"x", serde_json::json!({})).call("ü\"x", 1, "sh", "well");
    for name in ["\\u00fc\\\"x", "ü\\\"x", "%C3%BC%22x"] {
        let list = format!(r#"[{{"role":"tool","content":"{}"}}]"#, marker("-", "-", name));
        assert_eq!(
            expand(&renderer(&store, Filter::default()), InputFormat::OpenAi, None, &list)
                .1
                .expanded,
            1,
            "{list}"
        );
    }
}

/// Promise: Input that is not a list of messages is passed through and reported.
#[test]
fn input_that_is_no_message_list_is_passed_through() {
    let renderer = renderer(&store(), Filter::default());
    let list = with_markers(r#"[{"role":"tool","content":"@"}"#);
    for text in [
        "",
        "\"@\"",
        "17",
        "{}",
        "{\"input\":\"x\"}",
        "[{]",
        "[1] x",
        "[\"\\x\"]",
        &list,
        &"[".repeat(100_000),
        "\u{feff}[]",
    ] {
        let mut out = Vec::new();
        let error =
            renderer.expand(InputFormat::OpenAi, None, text.as_bytes(), &mut out).unwrap_err();
        assert!(matches!(error, ExpandError::Messages(_)), "{error}");
        assert!(error.to_string().contains("as a JSON list of messages"), "{error}");
        let out = String::from_utf8(out).unwrap();
        let rest = list.strip_prefix(&with_markers(r#"[{"role":"tool","content":"@"#)).unwrap();
        let is_whole =
            if text == list { out.ends_with(rest) && out.len() > text.len() } else { out == text };
        assert!(is_whole, "{text}: {out}");
    }
}
