//! Operations on a store from a small alphabet of workers, owners, runs and names, so that they
//! collide.
//!
//! The debug output of an operation is its code, so a failing case can be pasted into a test. Every
//! operation is allowed in every state; one that is impossible does nothing.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use swarmletfs_base::store::Kind;

use super::model::INDEXES;
use super::mutable_store::{MutableStore, RawEntries, RawKind};

/// Names used by the debug output of operations.
pub mod words {
    pub use super::Body::*;
    pub use super::Day::*;
    pub use super::File::*;
    pub use super::Meta;
    pub use super::Odd::*;
    pub use super::Op::*;
    pub use super::Run::*;
    pub use super::Shape::*;
    pub use super::Slot::*;
    pub use super::Status::*;
    pub use super::Task::*;
    pub use super::Whose::*;
}

use words::*;

/// Directory of a worker; the last two are not valid for a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    A,
    OldA,
    TwinA,
    B,
    NamedIndex,
    NotUtf8,
    Supervisor,
    AllWorkers,
}

/// File in a worker's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum File {
    Itself,
    Metadata,
    TaskText,
    ResultText,
    Metrics,
    Calls,
    Call1,
    Call2,
    Call3,
    NoCall,
    Summary,
    SummaryOwn,
    IndexJson,
    Asked,
    Evidence,
    Logs,
    Log,
    OddName,
}

/// Content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    Empty,
    Plain,
    Fine,
    Refused,
    Exit3,
    ErrorText,
    Long,
    Binary,
    WentWell,
    WentWrong,
}

/// Content of metadata.json.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta(pub Status, pub Whose, pub Run, pub Day, pub Task);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Created,
    Running,
    Success,
    Failed,
    OddWord,
    Wordless,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    Nobodys,
    Mine,
    MineInConfig,
    Theirs,
    TwoOwners,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    Alone,
    Run7,
    CalledLatest,
    WithSlash,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Day {
    Undated,
    Monday,
    Tuesday,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    WithTask,
    NoTask,
}

/// Shape of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    List,
    Object,
}

/// Kind of an entry that is not a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Odd {
    Folder,
    Link,
    Fifo,
}

/// One change of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Writes metadata.json in place.
    Says(Slot, Meta),
    /// Replaces metadata.json with a new file.
    SaysAnew(Slot, Meta),
    /// Truncates metadata.json to so many 256ths.
    Tear(Slot, u8),
    /// Changes the byte of metadata.json at so many 256ths of its length.
    Flip(Slot, u8),
    /// Writes a file in place.
    Write(Slot, File, Body),
    /// Replaces the entry with a new file.
    Replace(Slot, File, Body),
    Append(Slot, File, Body),
    /// Truncates a file to half its length.
    Halve(Slot, File),
    /// Replaces the entry with one that is not a file.
    Plant(Slot, File, Odd),
    Remove(Slot, File),
    /// Renames a worker's directory, replacing the target.
    Rename(Slot, Slot),
    /// Renames a file within a worker, replacing the target.
    Move(Slot, File, File),
    /// Hard-links a file of one worker into another.
    Share(Slot, File, Slot),
    /// Writes one of the store's two indexes, with an entry of one worker.
    Index(usize, Shape, Slot, Status, Whose),
    TornIndex(usize),
    NoIndex(usize),
    /// Opens a file of the mounted tree, if it exists, and keeps it open.
    Open(&'static str),
    /// Closes all open files.
    Close,
}

impl Slot {
    pub fn path(self) -> &'static [u8] {
        match self {
            A => b"workers/a",
            OldA => b"a",
            TwinA => b"workers/a~2",
            B => b"workers/b",
            NamedIndex => b"workers/index.json",
            NotUtf8 => b"workers/\xff",
            Supervisor => b"supervisor",
            AllWorkers => b"workers",
        }
    }

    fn id(self) -> String {
        String::from_utf8_lossy(self.path().rsplit(|b| *b == b'/').next().unwrap()).into_owned()
    }
}

fn place(slot: Slot, file: File) -> Vec<u8> {
    let inner: &[u8] = match file {
        Itself => return slot.path().to_vec(),
        Metadata => b"metadata.json",
        TaskText => b"task.txt",
        ResultText => b"result.txt",
        Metrics => b"metrics.jsonl",
        Calls => b"tool_calls",
        Call1 => b"tool_calls/001_t.txt",
        Call2 => b"tool_calls/002_t.txt",
        Call3 => b"tool_calls/003_u.txt",
        NoCall => b"tool_calls/notes.txt",
        Summary => b"summary",
        SummaryOwn => b"summary.own",
        IndexJson => b"index.json",
        Asked => b"evidence.4k.txt",
        Evidence => b"evidence.txt",
        Logs => b"logs",
        Log => b"logs/errors.log",
        OddName => b"\xff\n",
    };
    [slot.path(), b"/", inner].concat()
}

impl Status {
    fn word(self) -> Option<&'static str> {
        match self {
            Created => Some("created"),
            Running => Some("running"),
            Success => Some("success"),
            Failed => Some("failed"),
            OddWord => Some("odd"),
            Wordless => None,
        }
    }
}

/// Owner of the second view.
pub const MINE: &str = "A";
const THEIRS: &str = "B";

impl Meta {
    /// Returns the text of metadata.json with the id of its directory and `token` as its task.
    fn text(self, slot: Slot, token: &str) -> Vec<u8> {
        let Meta(status, whose, run, day, task) = self;
        let (top, config) = match whose {
            Nobodys => (None, None),
            Mine => (Some(MINE), None),
            MineInConfig => (None, Some(MINE)),
            Theirs => (Some(THEIRS), None),
            TwoOwners => (Some(MINE), Some(THEIRS)),
        };
        let run = match run {
            Alone => Value::Null,
            Run7 => json!(7),
            CalledLatest => json!("latest"),
            WithSlash => json!("a/b"),
        };
        let created = match day {
            Undated => None,
            Monday => Some("2026-01-19T10:00:00+00:00"),
            Tuesday => Some("2026-01-20T10:00:00Z"),
        };
        let model = match day {
            Undated => None,
            Monday => Some("large/1"),
            Tuesday => Some("small"),
        };
        let cwd = if task == WithTask { "/srv/app/" } else { "/srv/%" };
        let task = (task == WithTask).then_some(token);
        let all = json!({"worker_id": slot.id(), "status": status.word(), "owner_id": top, "run_id": run,
            "created_at": created, "task": task, "cwd": cwd, "config": {"owner_id": config, "model": model}});
        all.to_string().into_bytes()
    }
}

impl Body {
    fn bytes(self, token: &str) -> Vec<u8> {
        let line = |success: bool| {
            json!({"event": "tool_call", "tool": "t", "success": success, "note": token})
                .to_string()
                + "\n"
        };
        match self {
            Empty => String::new(),
            Plain => format!("{token} and no more\n"),
            Fine => json!({"ok": true, "out": token}).to_string(),
            Refused => json!({"ok": false, "out": token}).to_string(),
            Exit3 => json!({"exit_code": 3, "out": token}).to_string(),
            ErrorText => format!("Error: {token} failed\n"),
            Long => format!("{token} is one line of many\n").repeat(700) + "Error: at last\n",
            Binary => return [token.as_bytes(), b"\0\xff\x1b[2J"].concat(),
            WentWell => line(true),
            WentWrong => line(false),
        }
        .into_bytes()
    }
}

impl Op {
    /// Applies the operation if it is possible in the state `raw`. Everything it writes contains
    /// `token`.
    pub fn apply(self, store: &dyn MutableStore, raw: &RawEntries, token: &str) {
        // All parents must be directories.
        let can = |path: &[u8]| {
            let above =
                path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| &path[..at]);
            above
                .into_iter()
                .all(|folder| raw.get(folder).is_none_or(|what| *what == RawKind::Folder))
        };
        let write = |path: &[u8], bytes: &[u8]| match raw.get(path) {
            Some(RawKind::File(_)) | None if can(path) => store.write(path, bytes),
            Some(_) if can(path) => store.replace(path, bytes),
            _ => {}
        };
        let file = |path: &[u8]| raw.file(path).filter(|_| can(path)).map(<[u8]>::to_vec);
        let rename = |from: &[u8], to: &[u8]| {
            let within = |a: &[u8], b: &[u8]| {
                a == b || a.strip_prefix(b).is_some_and(|rest| rest.starts_with(b"/"))
            };
            if raw.get(from).is_some() && can(to) && !within(from, to) && !within(to, from) {
                store.rename(from, to);
            }
        };
        match self {
            Says(at, meta) => write(&place(at, Metadata), &meta.text(at, token)),
            SaysAnew(at, meta) => {
                let path = place(at, Metadata);
                if can(&path) {
                    store.replace(&path, &meta.text(at, token));
                }
            }
            Tear(at, part) => {
                if let Some(text) = file(&place(at, Metadata)) {
                    store.truncate(&place(at, Metadata), text.len() * usize::from(part) / 256);
                }
            }
            Flip(at, part) => {
                if let Some(mut text) = file(&place(at, Metadata)).filter(|text| !text.is_empty()) {
                    let byte = text.len() * usize::from(part) / 256;
                    text[byte] ^= 0x20;
                    store.write(&place(at, Metadata), &text);
                }
            }
            Write(at, file, body) => write(&place(at, file), &body.bytes(token)),
            Replace(at, file, body) if can(&place(at, file)) => {
                store.replace(&place(at, file), &body.bytes(token))
            }
            Append(at, to, body) => match file(&place(at, to)) {
                Some(_) => store.append(&place(at, to), &body.bytes(token)),
                None => write(&place(at, to), &body.bytes(token)),
            },
            Halve(at, of) => {
                if let Some(bytes) = file(&place(at, of)) {
                    store.truncate(&place(at, of), bytes.len() / 2);
                }
            }
            Plant(at, file, odd) if can(&place(at, file)) => {
                let kind = match odd {
                    Folder => Kind::Folder,
                    Link => Kind::Link,
                    Fifo => Kind::Special,
                };
                store.create_special(&place(at, file), kind);
            }
            Remove(at, file) if raw.get(&place(at, file)).is_some() => {
                store.remove(&place(at, file))
            }
            Rename(from, to) => rename(from.path(), to.path()),
            Move(at, from, to) => rename(&place(at, from), &place(at, to)),
            Share(from, of, to) => {
                let (from, to) = (place(from, of), place(to, of));
                if file(&from).is_some() && can(&to) && from != to {
                    store.link(&from, &to);
                }
            }
            Index(which, shape, of, status, whose) => {
                let entry = json!({"id": of.id(), "status": status.word(), "task": token, "tags": [token],
                    "owner_id": match whose { Mine | MineInConfig => Some(MINE), Theirs => Some(THEIRS), _ => None }});
                let index =
                    if shape == List { json!([entry]) } else { json!({"workers": [entry]}) };
                write(INDEXES[which].as_bytes(), index.to_string().as_bytes());
            }
            TornIndex(which) => write(INDEXES[which].as_bytes(), b"[{\"id\": "),
            NoIndex(which) if raw.get(INDEXES[which].as_bytes()).is_some() => {
                store.remove(INDEXES[which].as_bytes())
            }
            Replace(..) | Plant(..) | Remove(..) | NoIndex(_) | Open(_) | Close => {}
        }
    }
}

/// Paths to hold open.
const HELD: [&str; 9] = [
    "index.json",
    "evidence.txt",
    "runs/7/summary",
    "workers/a/index.json",
    "workers/a/evidence.4k.txt",
    "workers/a/metadata.json",
    "workers/a/tool_calls/001_t.txt",
    "workers/b/summary.own",
    "workers/b/tool_calls/002_t.txt",
];

fn slot() -> impl Strategy<Value = Slot> {
    prop_oneof![5 => Just(A), 4 => Just(OldA), 2 => Just(TwinA), 4 => Just(B), 1 => Just(NamedIndex), 1 => Just(NotUtf8)]
}

fn status() -> impl Strategy<Value = Status> {
    select(&[Running, Success, Success, Failed, Created, OddWord, Wordless][..])
}

fn whose() -> impl Strategy<Value = Whose> {
    select(&[Mine, Mine, MineInConfig, Theirs, Nobodys, TwoOwners][..])
}

fn meta() -> impl Strategy<Value = Meta> {
    let run = select(&[Alone, Run7, Run7, CalledLatest, WithSlash][..]);
    let (day, task) =
        (select(&[Undated, Monday, Tuesday][..]), select(&[WithTask, WithTask, NoTask][..]));
    (status(), whose(), run, day, task)
        .prop_map(|(status, whose, run, day, task)| Meta(status, whose, run, day, task))
}

fn file() -> impl Strategy<Value = File> {
    const MOSTLY: [File; 8] = [Call1, Call1, Call2, Call2, Call3, Metrics, ResultText, TaskText];
    const MORE: [File; 11] = [
        Metadata, Calls, NoCall, Summary, SummaryOwn, IndexJson, Asked, Evidence, Logs, Log,
        OddName,
    ];
    prop_oneof![2 => select(&MOSTLY[..]), 1 => select(&MORE[..])]
}

fn body() -> impl Strategy<Value = Body> {
    select(
        &[Plain, Fine, Fine, Refused, Exit3, ErrorText, WentWell, WentWrong, Long, Binary, Empty][..],
    )
}

/// Generates the operations between two comparisons: mostly one, sometimes several.
pub fn turn() -> impl Strategy<Value = Vec<Op>> {
    prop_oneof![
        24 => change().prop_map(|op| vec![op]),
        6 => proptest::collection::vec(change(), 2..4),
        2 => select(&HELD[..]).prop_map(|path| vec![Open(path)]),
        1 => Just(vec![Close]),
    ]
}

/// Generates an operation; common ones are more likely.
fn change() -> impl Strategy<Value = Op> {
    let odd = || select(&[Folder, Link, Fifo][..]);
    let which = || 0_usize..2;
    prop_oneof![
        8 => (slot(), meta()).prop_map(|(at, meta)| Says(at, meta)),
        2 => (slot(), meta()).prop_map(|(at, meta)| SaysAnew(at, meta)),
        4 => (slot(), any::<u8>()).prop_map(|(at, part)| Tear(at, part)),
        1 => (slot(), any::<u8>()).prop_map(|(at, part)| Flip(at, part)),
        8 => (slot(), file(), body()).prop_map(|(at, file, body)| Write(at, file, body)),
        2 => (slot(), file(), body()).prop_map(|(at, file, body)| Replace(at, file, body)),
        2 => (slot(), file(), body()).prop_map(|(at, file, body)| Append(at, file, body)),
        1 => (slot(), file()).prop_map(|(at, file)| Halve(at, file)),
        2 => (slot(), file(), odd()).prop_map(|(at, file, odd)| Plant(at, file, odd)),
        1 => (slot(), odd()).prop_map(|(at, odd)| Plant(at, Itself, odd)),
        2 => (slot(), file()).prop_map(|(at, file)| Remove(at, file)),
        1 => slot().prop_map(|at| Remove(at, Itself)),
        2 => (slot(), slot()).prop_map(|(from, to)| Rename(from, to)),
        1 => (slot(), file(), file()).prop_map(|(at, from, to)| Move(at, from, to)),
        1 => (slot(), file(), slot()).prop_map(|(from, of, to)| Share(from, of, to)),
        2 => (which(), select(&[List, Object][..]), slot(), status(), whose())
            .prop_map(|(which, shape, of, status, whose)| Index(which, shape, of, status, whose)),
        1 => which().prop_map(TornIndex),
        1 => which().prop_map(NoIndex),
        1 => (select(&[Log, Summary, OddName][..]), body()).prop_map(|(file, body)| Write(Supervisor, file, body)),
        1 => prop_oneof![
            select(&[Supervisor, AllWorkers][..]).prop_map(|at| Remove(at, Itself)),
            (select(&[Supervisor, AllWorkers][..]), odd()).prop_map(|(at, odd)| Plant(at, Itself, odd)),
        ],
    ]
}
