//! `by/file`, `by/file.read`, `by/project` and `by/branch` of sessions, and files that several of
//! them edited at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use swarmletfs_base::error::Error;
use swarmletfs_base::store::Memory;
use swarmletfs_trace::ClaudeCode;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::{Filter, View};

use super::{names, text};
use crate::hostile::Dice;
use crate::support::transcript::{self, Transcript, place};
use crate::support::{see, seeds};

/// A use of a file in a session.
struct Use {
    /// Minute of the day.
    minute: u32,
    path: &'static str,
    edits: bool,
    fails: bool,
}

fn edit(minute: u32, path: &'static str) -> Use {
    Use { minute, path, edits: true, fails: false }
}

fn read(minute: u32, path: &'static str) -> Use {
    Use { minute, path, edits: false, fails: false }
}

/// Writes a session in the directory `cwd` on `branch`.
fn write(store: &Memory, session: &str, cwd: &str, branch: &str, uses: &[Use]) {
    let mut transcript = Transcript::new(session);
    let common = |minute: u32| {
        let time = format!("2026-02-01T{:02}:{:02}:00.000Z", minute / 60, minute % 60);
        json!({"cwd": cwd, "gitBranch": branch, "timestamp": time})
    };
    let mut line = |minute: u32, kind: &str, message: Value| {
        let mut fields = common(minute);
        fields["type"] = json!(kind);
        fields["message"] = message;
        transcript.line(fields);
    };
    line(0, "user", json!({"role": "user", "content": "Do it."}));
    for (number, one) in uses.iter().enumerate() {
        let id = format!("toolu_{number}");
        let (tool, input) = match one.edits {
            true => ("Edit", json!({"file_path": one.path, "old_string": "a", "new_string": "b"})),
            false => ("Read", json!({"file_path": one.path})),
        };
        let call = json!([{"type": "tool_use", "id": id, "name": tool, "input": input}]);
        let message = json!({"model": "claude-large", "id": format!("msg_{number}"), "type": "message",
            "role": "assistant", "content": call, "usage": {"input_tokens": 1, "output_tokens": 1}});
        line(one.minute, "assistant", message);
        let result = json!([{"type": "tool_result", "tool_use_id": id, "content": "done", "is_error": one.fails}]);
        line(one.minute, "user", json!({"role": "user", "content": result}));
    }
    store.write(&place(session), transcript.bytes());
}

fn tree_of_run(store: &Arc<Memory>, run: Option<&str>) -> Tree {
    let source =
        Source::from_store(store.clone(), None).with_format(Box::new(ClaudeCode::transcripts()));
    let fresh = Freshness { unfinished: Duration::ZERO, finished: Duration::ZERO };
    let filter = Filter { owner: None, run: run.map(str::to_owned) };
    Tree::new(View::new(vec![source], fresh, filter).unwrap(), Settings::default())
}

/// Returns the lines of a summary about files that several workers edited at once.
fn overlaps(tree: &Tree, path: &str) -> Vec<String> {
    let summary = text(tree, path);
    let lines = summary.lines().skip_while(|line| !line.starts_with("edited by "));
    lines.take_while(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn workers_are_found_by_the_files_that_they_edited_or_read() {
    let store = transcript::store();
    let refused = Use { fails: true, ..edit(2, "/srv/app/src/b.rs") };
    write(
        &store,
        "s-one",
        "/srv/app",
        "fix/x",
        &[edit(1, "/srv/app/src/a.rs"), refused, read(3, "/srv/app/src/b.rs")],
    );
    write(
        &store,
        "s-two",
        "/srv/other/",
        "main",
        &[edit(1, "/srv/other/src/a.rs"), edit(2, "/etc/hosts"), edit(3, "/srv/other/.env")],
    );
    let tree = transcript::tree(&store);
    for (path, found) in [
        ("by/file", &["%2Eenv", "%2Fetc%2Fhosts", "src%2Fa.rs"][..]),
        ("by/file.read", &["src%2Fb.rs"]),
        ("by/project", &["app", "other"]),
        ("by/branch", &["fix%2Fx", "main"]),
        ("by/model", &["claude-large"]),
        ("by/file/src%2Fa.rs", &["s-one", "s-two"]),
        ("by/file/src%2fa%2Ers", &["s-one", "s-two"]),
        ("by/file/.env", &["s-two"]),
        ("by/file.read/src%2Fb.rs", &["s-one"]),
        ("by/branch/fix%2Fx", &["s-one"]),
        ("by/project/app/file", &["src%2Fa.rs"]),
        ("by/project/app/file/src%2Fa.rs", &["s-one"]),
        ("by/file/src%2Fa.rs/file.read/src%2Fb.rs", &["s-one"]),
        ("by/file/src%2Fa.rs/outcome/failed", &[]),
        ("by/file/src%2Fa.rs/limit/1", &["s-two"]),
    ] {
        assert_eq!(names(&tree, path), found, "{path}");
    }
    // The edit of src/b.rs failed, so that file was only read.
    for absent in ["by/file/src%2Fb.rs", "by/file.read/src%2Fa.rs", "by/file/src", "by/branch/fix"]
    {
        assert_eq!(see(&tree, absent).err(), Some(Error::NotFound), "{absent}");
    }
    assert!(text(&tree, "by/file/src%2Fa.rs/grep/Do it").contains("workers/s-one/"));
}

/// Promise: `by/file` lists the 1,000 most edited files; the others can be looked up.
#[test]
fn only_the_most_edited_files_are_listed() {
    let store = transcript::store();
    let paths: Vec<String> = (0..1_003).map(|number| format!("f{number:04}")).collect();
    let twice = ["f1002", "f1001"];
    let mut transcript = Transcript::new("s-many");
    let edited = paths.iter().map(String::as_str).chain(twice);
    for (number, path) in edited.enumerate() {
        let id = format!("toolu_{number}");
        let input = json!({"file_path": path, "old_string": "a", "new_string": "b"});
        transcript.call(&id, "Edit", input).result(&id, json!({"content": "done"}));
    }
    store.write(&place("s-many"), transcript.bytes());
    let tree = transcript::tree(&store);
    let expected: Vec<&str> = paths
        .iter()
        .map(String::as_str)
        .filter(|path| !["f0998", "f0999", "f1000"].contains(path))
        .collect();
    assert_eq!(names(&tree, "by/file"), expected);
    for path in ["f0000", "f1000", "f1002"] {
        assert_eq!(names(&tree, &format!("by/file/{path}")), ["s-many"], "{path}");
    }
    assert_eq!(see(&tree, "by/file/f1003").err(), Some(Error::NotFound));
}

/// Promise: Files that several workers edited at overlapping times are named with the workers.
#[test]
fn files_edited_by_several_workers_at_once_are_named() {
    let store = transcript::store();
    let (a, b) = ("/srv/app/src/a.rs", "/srv/app/b [EVIDENCE:x\n.rs");
    write(&store, "w1", "/srv/app", "main", &[edit(1, a), edit(5, a), edit(2, b), read(9, a)]);
    // A worker in a directory below edits the same file.
    write(&store, "w2", "/srv/app/src", "main", &[edit(5, a), edit(6, a)]);
    // Later than both, and in another project.
    write(&store, "w3", "/srv/app", "main", &[edit(7, a), read(3, b)]);
    write(&store, "w4", "/srv/fork", "main", &[edit(5, "/srv/fork/src/a.rs")]);
    write(&store, "w5", "/srv/app", "main", &[edit(2, b)]);
    write(&store, "w6", "/srv/app", "main", &[edit(2, b)]);
    let tree = transcript::tree(&store);
    let expected = [
        "edited by two at once: src/a.rs: w1, w2",
        "edited by 3 at once: b [\\EVIDENCE:x .rs: w1, w5, w6",
    ];
    assert_eq!(overlaps(&tree, "summary"), expected);
    // The view of one run holds one session, which overlaps nothing.
    assert_eq!(overlaps(&tree_of_run(&store, Some("w1")), "summary"), [""; 0]);
    assert_eq!(overlaps(&tree, "runs/w1/summary"), [""; 0]);
}

#[test]
fn files_edited_at_once_beyond_twelve_are_counted() {
    let store = transcript::store();
    let paths: Vec<&'static str> = vec![
        "/p/a", "/p/b", "/p/c", "/p/d", "/p/e", "/p/f", "/p/g", "/p/h", "/p/i", "/p/j", "/p/k",
        "/p/l", "/p/m", "/p/n",
    ];
    let edits = || paths.iter().map(|path| edit(1, path)).collect::<Vec<_>>();
    write(&store, "w1", "/p", "main", &edits());
    write(&store, "w2", "/p", "main", &edits());
    let lines = overlaps(&transcript::tree(&store), "summary");
    assert_eq!(lines.len(), 13);
    assert_eq!(lines[0], "edited by two at once: a: w1, w2");
    assert_eq!(lines[12], "  and 2 more");
}

const PATHS: [&str; 8] = [
    "/p/a/src/x.rs",
    "/p/b/src/x.rs",
    "/p/a/100%",
    "/p/a/.env",
    "/p/b/with space/\u{fc}",
    "/etc/hosts",
    "/p/a/unread",
    "/p/ab/src/x.rs",
];

/// A random session: its directory, its branch and its uses of files.
type Session = (&'static str, &'static str, Vec<Use>);

fn random_session(dice: &mut Dice) -> Session {
    let cwd = *dice.pick(&["/p/a", "/p/b/", "/p"]);
    let branch = *dice.pick(&["main", "fix/x", ""]);
    let mut minute = dice.below(20) as u32;
    let uses = (0..dice.below(7)).map(|_| {
        minute += dice.below(9) as u32;
        let path = *dice.pick(&PATHS);
        Use { minute, path, edits: !dice.once_in(3), fails: dice.once_in(5) }
    });
    (cwd, branch, uses.collect())
}

fn shown<'a>(path: &'a str, cwd: &str) -> &'a str {
    let inside = path.strip_prefix(cwd.trim_end_matches('/'));
    inside.and_then(|rest| rest.strip_prefix('/')).unwrap_or(path)
}

fn file_name(value: &str) -> String {
    let name = value.replace('%', "%25").replace('/', "%2F");
    match name.strip_prefix('.') {
        Some(rest) => format!("%2E{rest}"),
        None if name == "unread" => "%75nread".into(),
        None => name,
    }
}

/// Returns the expected workers of each value of a facet.
fn expected_values(
    facet: &str,
    sessions: &[(String, Session)],
) -> BTreeMap<String, BTreeSet<String>> {
    let mut values: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (id, (cwd, branch, uses)) in sessions {
        let own: Vec<&str> = match facet {
            "project" => cwd.split('/').rfind(|part| !part.is_empty()).into_iter().collect(),
            "branch" => Some(*branch).into_iter().filter(|branch| !branch.is_empty()).collect(),
            _ => {
                let edits = facet == "file";
                let matching = uses.iter().filter(|one| one.edits == edits && !one.fails);
                matching.map(|one| shown(one.path, cwd)).collect()
            }
        };
        for value in own {
            values.entry(file_name(value)).or_default().insert(id.clone());
        }
    }
    values
}

/// Returns the expected sets of workers that edited one file at overlapping times.
fn expected_overlaps(sessions: &[(String, Session)]) -> BTreeSet<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for path in PATHS {
        let spans = sessions.iter().filter_map(|(id, (_, _, uses))| {
            let minutes = || {
                let edits = uses.iter().filter(|one| one.path == path && one.edits && !one.fails);
                edits.map(|one| one.minute)
            };
            Some((id, minutes().min()?, minutes().max()?))
        });
        let spans: Vec<(&String, u32, u32)> = spans.collect();
        for (id, ..) in &spans {
            // Everything that a chain of overlaps leads to.
            let mut reached = BTreeSet::from([(*id).clone()]);
            for _ in 0..spans.len() {
                for (other, from, to) in &spans {
                    let joins = spans
                        .iter()
                        .any(|(known, a, b)| reached.contains(*known) && from <= b && a <= to);
                    if joins {
                        reached.insert((*other).clone());
                    }
                }
            }
            if reached.len() > 1 {
                all.insert(reached);
            }
        }
    }
    all
}

/// Promise: A view shows the files, projects and branches of its own workers only.
#[test]
fn random_sessions_are_listed_by_file_project_and_branch() {
    for seed in seeds(40) {
        let mut dice = Dice::new(seed);
        let store = transcript::store();
        let sessions: Vec<(String, Session)> = (0..2 + dice.below(4))
            .map(|number| (format!("s{number}"), random_session(&mut dice)))
            .collect();
        for (id, (cwd, branch, uses)) in &sessions {
            write(&store, id, cwd, branch, uses);
        }
        let views = sessions.iter().map(|(id, _)| Some(id.as_str())).chain([None]);
        for run in views {
            let tree = tree_of_run(&store, run);
            let is_own = |id: &str| run.is_none_or(|run| run == id);
            let own = sessions.iter().filter(|(id, _)| is_own(id));
            let own: Vec<(String, Session)> = own
                .map(|(id, (cwd, branch, uses))| {
                    let uses = uses.iter().map(|one| Use { ..*one });
                    (id.clone(), (*cwd, *branch, uses.collect()))
                })
                .collect();
            for facet in ["file", "file.read", "project", "branch"] {
                let expected = expected_values(facet, &own);
                let folder = format!("by/{facet}");
                let listed: BTreeSet<String> = names(&tree, &folder).into_iter().collect();
                assert_eq!(listed, expected.keys().cloned().collect(), "{seed} {run:?} {folder}");
                for (value, workers) in &expected {
                    let found: BTreeSet<String> =
                        names(&tree, &format!("{folder}/{value}")).into_iter().collect();
                    assert_eq!(found, *workers, "{seed} {run:?} {folder}/{value}");
                }
                for value in expected_values(facet, &sessions).into_keys() {
                    let is_there = see(&tree, format!("{folder}/{value}")).is_ok();
                    assert_eq!(is_there, expected.contains_key(&value), "{seed} {run:?} {value}");
                }
            }
            let found: BTreeSet<BTreeSet<String>> = overlaps(&tree, "summary")
                .iter()
                .map(|line| {
                    line.rsplit(": ").next().unwrap().split(", ").map(str::to_owned).collect()
                })
                .collect();
            assert_eq!(found, expected_overlaps(&own), "{seed} {run:?}");
        }
    }
}
