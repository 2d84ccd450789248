//! `cat`: raw bytes of any length, and readers that stop early.

use std::fs::File;
use std::process::{Command, Stdio};

use super::super::program::{program, swarmletfs};
use super::{look, ok_text, two_owners};
use crate::support::TestStore;
use crate::support::mount::PROGRAM;

/// Runs a shell line with the program as `$0` and the store as `$1`.
fn shell(store: &TestStore, line: &str) -> (Option<i32>, String, String) {
    let mut command: Command = program("bash", ["-c", line, PROGRAM]);
    let done = command.arg(store.path()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.code(), text(done.stdout), text(done.stderr))
}

#[test]
fn bytes_are_printed_unchanged() {
    let store = two_owners();
    let odd: Vec<u8> = (0..=255).chain(*b"\r\n\x1b[31m").chain(0..=255).collect();
    store.write("workers/w1/odd", &odd);
    store.write("workers/w1/empty", "");
    let done = look(&store.path(), "cat", ["workers/w1/odd", "workers/w1/empty", "workers/w1/odd"]);
    assert_eq!(done.assert_success().out, odd.repeat(2));
    // Longer than one read, and of an odd length.
    let long: Vec<u8> = (0..3_000_017_u32).map(|at| (at % 251) as u8).collect();
    store.write("workers/w1/long", &long);
    assert!(look(&store.path(), "cat", ["workers/w1/long"]).assert_success().out == long);
    let size = ok_text(&store, "stat", ["workers/w1/long"]).lines().nth(2).unwrap().to_owned();
    assert_eq!(size, "size      3000017");
}

/// Promise: A file of any size is printed without being held in memory.
#[test]
fn file_of_any_size_is_printed_in_constant_memory() {
    let store = two_owners();
    File::create(store.at("workers/w1/huge")).unwrap().set_len(256 << 20).unwrap();
    // Less address space than the length of the file.
    let line = "ulimit -v 200000; \"$0\" cat --no-cache --store \"$1\" workers/w1/huge | wc -c; echo ${PIPESTATUS[0]}";
    let (_, out, err) = shell(&store, line);
    assert_eq!(out.lines().map(str::trim).collect::<Vec<_>>(), ["268435456", "0"], "{err}");
}

/// Promise: If the reader closes the pipe, the command ends quietly.
#[test]
fn closed_pipe_ends_the_command_quietly() {
    let store = two_owners();
    // More than a pipe and the output buffer hold.
    for number in 0..1_000 {
        store.write(format!("workers/{number}-{}/metadata.json", "x".repeat(200)), "{}");
    }
    store.write("workers/w1/long", "line\n".repeat(100_000));
    let words = [
        "cat workers/w1/long",
        "ls workers",
        "ls --json workers",
        "tree -L 1 workers",
        "stat $(yes workers | head -999)",
    ];
    for words in words {
        let line =
            format!("\"$0\" {words} --store \"$1\" | head -c 1 | wc -c; echo ${{PIPESTATUS[0]}}");
        let (_, out, err) = shell(&store, &line);
        assert_eq!(out.lines().map(str::trim).collect::<Vec<_>>(), ["1", "1"], "{words}: {err}");
        assert_eq!(err.lines().count(), 1, "stderr has more than the line about the store: {err}");
    }
}

/// Promise: A stdout that cannot be written is reported.
#[test]
fn unwritable_stdout_is_reported() {
    let store = two_owners();
    for words in [
        &["cat", "workers/w1/result.txt"][..],
        &["ls"],
        &["ls", "--json"],
        &["stat"],
        &["tree", "--json"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = swarmletfs(words);
        command.arg("--store").arg(store.path()).stdout(full).stderr(Stdio::piped());
        let done = command.output().unwrap();
        let err = String::from_utf8(done.stderr).unwrap();
        assert!(
            done.status.code() == Some(1) && err.contains("cannot write to stdout: "),
            "{words:?}: {err}"
        );
    }
}

/// Promise: A size may be written with `K`, `kB` or `KB` for `k`, and with `MB` for `M`.
#[test]
fn sizes_may_be_written_with_other_units() {
    let store = two_owners();
    store.write("workers/w1/tool_calls/002_sh.txt", "x\n".repeat(9_000));
    for (other, unit) in [("4K", "4k"), ("4kB", "4k"), ("4KB", "4k"), ("1MB", "1M")] {
        let named =
            |size: &str| ok_text(&store, "cat", [&format!("workers/w1/evidence.{size}.txt")]);
        assert_eq!(named(other), named(unit), "{other}");
        let limited =
            |size: &str| ok_text(&store, "cat", ["--budget", size, "workers/w1/evidence.txt"]);
        assert_eq!(limited(other), limited(unit), "{other}");
        let found = |dir: &str| ok_text(&store, "cat", [&format!("{dir}/x")]);
        assert_eq!(found(&format!("grep.{other}")), found(&format!("grep.{unit}")), "{other}");
    }
}
