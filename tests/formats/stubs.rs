//! Tests of out-of-band outputs: only their owner can read them, and all others see that they are
//! stored elsewhere.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::*;

const ID: &str = "0123456789abcdef0123456789abcdef";
const BODY: &str = "the real output of the call\n";

fn stub() -> String {
    format!("[TOOL_OUTPUT:artifact_id={ID},tool=ssh_exec,bytes={}]", BODY.len())
}

/// Creates a store with one worker of owner 7, whose only call is a stub.
fn store_with(stub: &str) -> TestStore {
    let store = TestStore::new();
    store.worker("w", json!({"config": {"owner_id": 7}})).call("w", 1, "ssh_exec", stub);
    store
}

/// Writes an output and its description into the directory of `owner`. The description names the
/// owner `described`.
fn put(folder: PathBuf, owner: &str, described: Value, body: &str) {
    let folder = folder.join(owner);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(format!("{ID}.txt")), body).unwrap();
    let description = json!({"artifact_id": ID, "owner_id": described, "tool_name": "ssh_exec", "run_id": 1,
        "tool_call_id": "c1", "created_at": "2026-01-20T10:00:00Z", "size_bytes": body.len()});
    fs::write(folder.join(format!("{ID}.json")), description.to_string()).unwrap();
}

fn beside(store: &TestStore) -> PathBuf {
    store.path().parent().unwrap().join("tool_outputs")
}

#[test]
fn an_out_of_band_output_of_the_owner_is_shown() {
    for place in ["inside", "beside"] {
        for described in [json!(7), json!("7")] {
            let store = store_with(&stub());
            let folder = if place == "inside" { store.at("tool_outputs") } else { beside(&store) };
            put(folder, "7", described, BODY);
            for tree in [store.tree(), store.tree_of_owner("7")] {
                let evidence = text(&tree, "w", "evidence.txt");
                assert!(evidence.contains(BODY), "{place}: {evidence}");
                assert!(!evidence.contains("stored out of band"), "{place}: {evidence}");
                assert_eq!(call(&index(&tree, "w"), 1)["bytes"], BODY.len(), "{place}");
            }
        }
    }
}

#[test]
fn an_out_of_band_output_is_judged_like_any_other() {
    for (body, outcome, exit_code) in [
        (r#"{"ok": true, "data": {"exit_code": 3}}"#, "failed", Some(3)),
        (r#"{"ok": true}"#, "ok", None),
        ("Error: x", "failed", None),
        ("plain", "unknown", None),
    ] {
        let store = store_with(&stub());
        put(beside(&store), "7", json!(7), body);
        let call = call(&index(&store.tree(), "w"), 1);
        assert_eq!(
            (call["outcome"].as_str(), call["exit_code"].as_i64()),
            (Some(outcome), exit_code),
            "{body}"
        );
    }
}

/// Prepares a store for a case.
type Prepare = fn(&TestStore);

#[test]
fn an_output_without_a_matching_owner_or_description_is_never_shown() {
    let cases: [(&str, Prepare); 8] = [
        ("missing", |_| {}),
        ("in the folder of another", |store| put(beside(store), "8", json!(8), BODY)),
        ("described as another's", |store| put(beside(store), "7", json!(8), BODY)),
        ("described as nobody's", |store| put(beside(store), "7", Value::Null, BODY)),
        ("not described", |store| {
            put(beside(store), "7", json!(7), BODY);
            fs::remove_file(beside(store).join(format!("7/{ID}.json"))).unwrap();
        }),
        ("described without sense", |store| {
            put(beside(store), "7", json!(7), BODY);
            fs::write(beside(store).join(format!("7/{ID}.json")), "{").unwrap();
        }),
        ("a link to another's", |store| {
            put(beside(store), "8", json!(8), BODY);
            put(beside(store), "7", json!(7), "");
            let link = beside(store).join(format!("7/{ID}.txt"));
            fs::remove_file(&link).unwrap();
            symlink(beside(store).join(format!("8/{ID}.txt")), &link).unwrap();
        }),
        ("the owner's folder is a link", |store| {
            put(beside(store), "8", json!(7), BODY);
            symlink("8", beside(store).join("7")).unwrap();
        }),
    ];
    let mut all = Vec::new();
    for (case, prepare) in cases {
        let store = store_with(&stub());
        prepare(&store);
        let tree = store.tree_of_owner("7");
        let evidence = text(&tree, "w", "evidence.txt");
        assert!(evidence.contains("stored out of band"), "{case}: {evidence}");
        assert!(!evidence.contains(BODY.trim()), "{case}: {evidence}");
        let index = index(&tree, "w");
        assert_eq!(call(&index, 1)["outcome"], "unknown", "{case}");
        assert_eq!(call(&index, 1)["bytes"], BODY.len(), "the size that the stub tells");
        assert!(!index.to_string().contains(BODY.trim()), "{case}");
        all.push((evidence, call(&index, 1).to_string()));
    }
    assert!(
        all.iter().all(|one| *one == all[0]),
        "a missing and a foreign output must give equal answers: {all:#?}"
    );
}

#[test]
fn a_worker_without_an_owner_has_no_out_of_band_outputs() {
    let store = TestStore::new();
    store.worker("w", json!({})).call("w", 1, "ssh_exec", stub());
    for owner in ["7", "null", "None", "-"] {
        put(beside(&store), owner, json!(owner), BODY);
    }
    let evidence = text(&store.tree(), "w", "evidence.txt");
    assert!(
        evidence.contains("stored out of band") && !evidence.contains(BODY.trim()),
        "{evidence}"
    );
}

#[test]
fn an_owner_name_cannot_leave_the_outputs_folder() {
    for owner in ["..", ".", "../7", "a/b", "7/../7"] {
        let store = TestStore::new();
        store.worker("w", json!({"owner_id": owner})).call("w", 1, "ssh_exec", stub());
        put(beside(&store), "7", json!(owner), BODY);
        put(store.path().parent().unwrap().to_path_buf(), ".", json!(owner), BODY);
        let evidence = text(&store.tree(), "w", "evidence.txt");
        assert!(!evidence.contains(BODY.trim()), "{owner}: {evidence}");
    }
}

#[test]
fn a_stub_that_reports_an_error_failed_even_without_its_output() {
    let stub = format!("{}\nTool error detected: connection refused", stub());
    let store = store_with(&stub);
    let outcome = |store: &TestStore| call(&index(&store.tree(), "w"), 1)["outcome"].clone();
    assert_eq!(outcome(&store), "failed");
    put(beside(&store), "7", json!(7), r#"{"ok": true}"#);
    assert_eq!(outcome(&store), "failed");
}

#[test]
fn text_that_only_looks_like_a_stub_is_plain_text() {
    for text_of_call in [
        "[TOOL_OUTPUT:artifact_id=../../../etc/passwd,tool=x,bytes=5]".to_owned(),
        "[TOOL_OUTPUT:artifact_id=0123,tool=x,bytes=5]".to_owned(),
        format!("see [TOOL_OUTPUT:artifact_id={ID},tool=x,bytes=5] above"),
        format!("[TOOL_OUTPUT:artifact_id={ID}]"),
    ] {
        let store = store_with(&text_of_call);
        put(beside(&store), "7", json!(7), BODY);
        let evidence = text(&store.tree(), "w", "evidence.txt");
        assert!(evidence.contains(&text_of_call.replace("[TOOL", "[\\TOOL")), "{evidence}");
        assert!(!evidence.contains(BODY.trim()), "{evidence}");
    }
}

#[test]
fn omissions_in_an_out_of_band_output_name_no_wrong_file() {
    let store = store_with(&stub());
    let numbered = |line: u32| format!("line {line} of the real output\nand another\n");
    let body: String = (0..20_000).map(numbered).collect();
    put(beside(&store), "7", json!(7), &body);
    let evidence = text(&store.tree(), "w", "evidence.4k.txt");
    let (_, section) = evidence.split_once("\ntool_calls/001_ssh_exec.txt (").unwrap();
    let (line, section) = section.split_once('\n').unwrap();
    let (notes, _) = line.split_once("): #").unwrap();
    assert!(
        notes.ends_with(&format!(", offsets in the store's tool_outputs/7/{ID}.txt")),
        "{line}"
    );
    let (section, _) = section.split_once("\n--- End Evidence").unwrap();
    let mut again = String::new();
    for line in section.split_inclusive('\n') {
        let Some((_, range)) = line.split_once(" B omitted: bytes ") else {
            again.push_str(line);
            continue;
        };
        let (first, last) = range.strip_suffix(" ...]\n").unwrap().split_once('-').unwrap();
        let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        assert_eq!(
            again.len(),
            first,
            "what is shown before it ends where the omission begins: {line}"
        );
        again.push_str(&body[first..=last]);
    }
    assert!(section.contains(" B omitted: bytes ") && again == body, "{evidence}");
}

#[test]
fn an_out_of_band_output_shown_whole_names_no_file() {
    let store = store_with(&stub());
    put(beside(&store), "7", json!(7), BODY);
    let evidence = text(&store.tree(), "w", "evidence.txt");
    assert!(evidence.contains(BODY) && !evidence.contains("offsets in"), "{evidence}");
}
