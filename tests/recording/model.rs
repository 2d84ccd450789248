//! Random changes through the library, compared with a model: what was recorded is what is there.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use proptest::prelude::*;
use swarmletfs_record::write::{
    CallEnd, Durability, Error, Finish, NewWorker, Store, StoreOptions, Worker,
};

use super::store::{assert_whole, ended_calls, metadata, outputs, read_tree, worker, worker_lines};
use crate::support::cases;

/// A change of a worker, with parts from small alphabets.
#[derive(Debug, Clone)]
enum Change {
    Call {
        tool: &'static str,
        output: &'static str,
        code: Option<i64>,
    },
    /// A call that is dropped without an end.
    LostCall(&'static str),
    Message {
        role: &'static str,
        content: &'static str,
    },
    Put {
        path: &'static str,
        content: &'static str,
    },
    Finish {
        result: Option<&'static str>,
        error: &'static str,
    },
    Reopen,
}

const TEXTS: [&str; 5] = ["", "a", "a\n", "two\nlines\n", "\u{1f98a}\"\\\r\n"];
const TOOLS: [&str; 3] = ["sh", "read_file", "é/x"];
/// Paths of which some are directories of others, so that a change can fail.
const PATHS: [&str; 5] = ["a", "outputs/a", "outputs/b/c", "outputs/b", "a/b"];

fn change() -> impl Strategy<Value = Change> {
    use proptest::sample::select;
    let text = || select(&TEXTS[..]);
    prop_oneof![
        4 => (select(&TOOLS[..]), text(), prop_oneof![Just(None), Just(Some(0)), Just(Some(3))])
            .prop_map(|(tool, output, code)| Change::Call { tool, output, code }),
        1 => select(&TOOLS[..]).prop_map(Change::LostCall),
        4 => (select(&["user", "assistant", "judge"][..]), text())
            .prop_map(|(role, content)| Change::Message { role, content }),
        4 => (select(&PATHS[..]), text())
            .prop_map(|(path, content)| Change::Put { path, content }),
        1 => (proptest::option::of(text()), select(&["", "it broke"][..]))
            .prop_map(|(result, error)| Change::Finish { result, error }),
        1 => Just(Change::Reopen),
    ]
}

/// A call of the model: its tool in the name of a file, its output, and how it ended.
#[derive(Debug)]
struct ModelCall {
    tool: String,
    output: &'static str,
    /// `None` for a call without an end.
    end: Option<Option<i64>>,
}

/// Returns the name of a tool in the name of its output.
fn name_in_file(tool: &str) -> String {
    tool.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
}

/// What a worker is expected to hold.
#[derive(Debug, Default)]
struct Model {
    calls: Vec<ModelCall>,
    messages: Vec<(&'static str, &'static str)>,
    files: BTreeMap<&'static str, &'static str>,
    /// The final words and the error, once it has finished.
    end: Option<(Option<&'static str>, &'static str)>,
}

impl Model {
    /// Returns true if a directory or a file is in the way of the file `path`.
    fn is_blocked(&self, path: &str) -> bool {
        self.files.keys().any(|file| {
            let is_in = |inner: &str, outer: &str| {
                inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
            };
            is_in(file, path) || is_in(path, file)
        })
    }

    /// Applies `change` to the worker and to the model. Returns the error of the worker.
    fn apply(&mut self, worker: &Worker, change: &Change) -> Option<Error> {
        let is_finished = self.end.is_some();
        match *change {
            Change::Call { tool, output, code } => {
                let mut call = match worker.begin_call(tool, None) {
                    Ok(call) => call,
                    Err(error) => return Some(error),
                };
                call.write_all(output.as_bytes()).unwrap();
                let end = code.map_or(CallEnd::unknown(), CallEnd::exit_code);
                let recorded = call.end(end).unwrap();
                assert_eq!(recorded.seq, self.calls.len() as u64 + 1);
                assert_eq!(recorded.bytes, output.len() as u64);
                let tool = name_in_file(tool);
                self.calls.push(ModelCall { tool, output, end: Some(code) });
                None
            }
            Change::LostCall(tool) => {
                let tool_name = name_in_file(tool);
                match worker.begin_call(tool, None) {
                    Ok(call) => drop(call),
                    Err(error) => return Some(error),
                }
                self.calls.push(ModelCall { tool: tool_name, output: "", end: None });
                None
            }
            Change::Message { role, content } => {
                let error = worker.message(role, content).err();
                if role == "judge" {
                    assert!(matches!(error, Some(Error::Message { .. })), "{error:?}");
                    return None;
                }
                if error.is_none() {
                    self.messages.push((role, content));
                }
                error
            }
            Change::Put { path, content } => {
                let error = worker.put(path, &mut content.as_bytes()).err();
                if self.is_blocked(path) && !is_finished {
                    assert!(matches!(error, Some(Error::Path { .. })), "{error:?}");
                    return None;
                }
                if error.is_none() {
                    self.files.insert(path, content);
                }
                error
            }
            Change::Finish { result, error } => {
                let mut finish =
                    if error.is_empty() { Finish::completed() } else { Finish::failed(error) };
                if let Some(words) = result {
                    finish = finish.result(words);
                }
                let failed = worker.finish(finish).err();
                if failed.is_none() {
                    self.end = Some((result, error));
                }
                failed
            }
            Change::Reopen => None,
        }
    }

    /// Compares the files of the worker `w1` with the model.
    fn compare(&self, store: &Path) {
        let found = outputs(store, "w1");
        assert_eq!(found.len(), self.calls.len());
        let ended = ended_calls(store, "w1");
        for (seq, call) in (1..).zip(&self.calls) {
            assert_eq!(found[&seq].0, format!("{seq:03}_{}.txt", call.tool));
            assert_eq!(found[&seq].1, call.output.as_bytes());
            let code = ended.get(&seq).map(|line| line.get("exit_code").cloned());
            assert_eq!(code, call.end.map(|code| code.map(Into::into)));
        }
        let messages = worker_lines(store, "w1", "thread.jsonl");
        let messages: Vec<(&str, &str)> = messages
            .iter()
            .map(|line| (line["role"].as_str().unwrap(), line["content"].as_str().unwrap()))
            .collect();
        assert_eq!(messages, self.messages);
        let files: BTreeMap<String, Vec<u8>> = read_tree(&worker(store, "w1"))
            .into_iter()
            .filter_map(|(path, bytes)| Some((path, bytes?)))
            .filter(|(path, _)| path.starts_with("outputs/") || path.split('/').next() == Some("a"))
            .collect();
        let expected: BTreeMap<String, Vec<u8>> = self
            .files
            .iter()
            .map(|(path, text)| (path.to_string(), text.as_bytes().into()))
            .collect();
        assert_eq!(files, expected);
        let metadata = metadata(store, "w1");
        let result = fs::read_to_string(worker(store, "w1").join("result.txt")).ok();
        match self.end {
            None => assert_eq!((&metadata["status"], result), (&"running".into(), None)),
            Some((words, "")) => {
                assert_eq!((&metadata["status"], result.as_deref()), (&"completed".into(), words));
            }
            Some((words, error)) => {
                assert_eq!((&metadata["status"], result.as_deref()), (&"failed".into(), words));
                assert_eq!(metadata["error"], error);
            }
        }
    }
}

fn open(path: &Path) -> Store {
    StoreOptions::default().durability(Durability::None).open(path).unwrap()
}

/// Every random sequence of changes leaves exactly what the model holds, and a worker that has
/// finished refuses each of them.
#[test]
fn random_changes_leave_what_the_model_holds() {
    proptest!(cases(96), |(changes in proptest::collection::vec(change(), 0..24))| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        fs::create_dir_all(path.join("workers")).unwrap();
        open(&path).create_worker(NewWorker::new("a task").id("w1")).unwrap();
        let mut store = open(&path);
        let mut worker = store.worker("w1").unwrap();
        let mut model = Model::default();
        for change in &changes {
            if let Change::Reopen = change {
                store = open(&path);
                worker = store.worker("w1").unwrap();
            }
            let was_finished = model.end.is_some();
            let error = model.apply(&worker, change);
            let is_refused = matches!(error, Some(Error::Finished { .. }));
            assert!(error.is_none() || (was_finished && is_refused), "{change:?}: {error:?}");
            model.compare(&path);
        }
        assert_eq!(store.take_warnings(), Vec::<String>::new());
        assert_whole(&path);
    });
}
