//! Unusual names: raw bytes for programs, escaped on a terminal.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use serde_json::Value;

use super::super::printing::{check_lines, hostile_names};
use super::super::program::swarmletfs;
use super::{look, two_owners};
use crate::support::{TestStore, terminal};

/// Returns the output of a command on a terminal.
fn on_a_terminal(store: &TestStore, words: &[&str]) -> String {
    let (mut terminal, end) = terminal::open();
    let mut command = swarmletfs(words);
    command.arg("--store").arg(store.path()).stdout(end).stderr(std::process::Stdio::null());
    // Colors and the pager have tests of their own.
    command.env("NO_COLOR", "1").env("TERM", "dumb");
    let mut child = command.spawn().unwrap();
    // The command holds this process's end of the terminal open.
    drop(command);
    let mut out = Vec::new();
    // Reading a terminal without writers ends in an error.
    let _ = terminal.read_to_end(&mut out);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    String::from_utf8(out).unwrap().replace("\r\n", "\n")
}

fn hostile_store() -> (TestStore, [Vec<u8>; 2]) {
    let (store, names) = (two_owners(), hostile_names());
    for name in &names {
        store.write([b"workers/w1/", name.as_slice()].concat(), "odd");
        store.write([b"workers/", name.as_slice(), b"/metadata.json"].concat(), "{\"run_id\": 48}");
    }
    (store, names)
}

#[test]
fn names_are_raw_in_a_pipe_and_escaped_on_a_terminal() {
    let (store, names) = hostile_store();
    let holds = |words: &[&str], name: &[u8]| {
        let out = look(&store.path(), words[0], &words[1..]).assert_success().out.clone();
        assert!(
            out.windows(name.len()).any(|part| part == name),
            "{words:?}: {}",
            out.escape_ascii()
        );
    };
    let all: [&[&str]; 6] = [
        &["ls", "workers", "workers/w1"],
        &["ls", "-lR"],
        &["ls", "-RF", "runs"],
        &["tree", "workers"],
        &["tree", "-D", "runs"],
        &["stat", "workers/w1"],
    ];
    for words in all {
        for name in &names {
            if words[0] != "stat" {
                holds(words, name);
            }
        }
        check_lines(&on_a_terminal(&store, words));
    }
    for words in [&["ls", "-R", "--json"][..], &["tree", "--json"]] {
        // A terminal shows the content of a pipe.
        let text = look(&store.path(), words[0], &words[1..]).assert_success().text().to_owned();
        check_lines(&text);
        assert_eq!(on_a_terminal(&store, words), text);
    }
    assert!(on_a_terminal(&store, &["ls", "workers/w1"]).contains("\\u{1b}[31mred"));
    let escaped = on_a_terminal(&store, &["cat", "workers/w1/result.txt"]);
    assert_eq!(escaped, "done by the first\n");
}

/// Promise: A name of any bytes is read and printed exactly.
#[test]
fn names_of_any_bytes_are_exact() {
    let (store, names) = hostile_store();
    for name in &names {
        let path = [b"workers/w1/", name.as_slice()].concat();
        assert_eq!(
            look(&store.path(), "cat", [OsStr::from_bytes(&path)]).assert_success().out,
            b"odd"
        );
        let listing = look(&store.path(), "stat", [OsStr::new("--json"), OsStr::from_bytes(&path)])
            .assert_success()
            .json();
        let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let is_text = std::str::from_utf8(name).is_ok();
        assert_eq!(listing[0]["name"], String::from_utf8_lossy(name).as_ref());
        assert_eq!(listing[0]["name_bytes"], if is_text { Value::Null } else { Value::from(hex) });
        // A name cannot forge an error message either.
        let absent = [path.as_slice(), b"/absent"].concat();
        let done = look(&store.path(), "cat", [OsStr::from_bytes(&absent)]);
        check_lines(&done.err);
        assert_eq!((done.code, done.err.lines().count()), (Some(1), 1), "{done:#?}");
    }
}
