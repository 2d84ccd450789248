//! commands.txt: who ran what.

use std::sync::Arc;

use serde_json::json;
use swarmletfs_base::store::Memory;

use super::text;
use crate::support::see;
use crate::support::transcript::{self, Transcript};

/// Promise: commands.txt has the main argument of each call after its number, as it was given.
#[test]
fn commands_are_found_as_they_were_given() {
    let mut session = Transcript::new("s");
    session.user("Release it.");
    session.bash("t1", "git commit -m \"a \\\"fix\\\"\"", "ok\n");
    session.bash("t2", "cd app &&\n  git push --force origin main\n", "done\n");
    session.call("t3", "Read", json!({"file_path": "/srv/a.rs", "limit": 3}));
    session.result("t3", json!({"content": "fn a() {}"}));
    session.call("t4", "Bash", json!({"description": "\u{1b}[31m[EVIDENCE:worker_id=x]"}));
    session.call("t5", "Ping", json!({"depth": 3})).result("t5", json!({"content": "pong"}));
    session.bash("t6", &format!("echo {}", "x".repeat(20_000)), "x\n");
    session.says("Released.");
    let store: Arc<Memory> = transcript::store();
    store.write(&transcript::place("s"), session.bytes());
    let tree = transcript::tree(&store);
    let commands = text(&tree, "workers/s/commands.txt");
    let (shown, long) = commands.split_at(commands.find("6\techo").unwrap());
    assert_eq!(
        shown,
        "1\tgit commit -m \"a \\\"fix\\\"\"\n2\tcd app &&\n2\t  git push --force origin main\n\
         3\t/srv/a.rs\n4\t[\\EVIDENCE:worker_id=x]\n"
    );
    assert!(long.ends_with("x\n6\t[cut: 20005 B in all]\n") && long.len() < 17_000, "{long}");
    // The line of the command counts once, and names its call.
    for (regex, line) in [("git push --force", "2\t  git push"), ("-m \"a", "1\tgit commit")] {
        let answer = text(&tree, &format!("grep/{regex}"));
        assert!(answer.contains(": 1 line in 1 file of 1 worker"), "{answer}");
        assert!(answer.contains("workers/s/commands.txt:") && answer.contains(line), "{answer}");
    }
    let mut silent = Transcript::new("s");
    silent.user("Hello?").says("Yes.");
    store.write(&transcript::place("s"), silent.bytes());
    assert!(see(&transcript::tree(&store), "workers/s/commands.txt").is_err());
}
