//! Expected tree of a view: every path with its kind, the bytes of own files, and the required
//! content of generated files.
//!
//! Expected content of `by/`: a directory for each shared property, with a symlink to each worker
//! that has it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::model::{INDEXES, Swarm};
use super::mutable_store::{Identity, RawEntries, RawEntry, RawKind, Time};
use super::worker::{Outcome, Worker};

/// Expected node of a path.
#[derive(Debug)]
pub enum ExpectedNode {
    /// A directory, with its mtime if it is specified.
    Folder(Option<Time>),
    /// A symlink to one of these targets.
    Link(Vec<Vec<u8>>),
    /// A file of the store.
    Own { bytes: Vec<u8>, mode: u32, mtime: Time, identity: Identity },
    /// A generated file.
    Made { says: ExpectedContent, mtime: Option<Time> },
}

/// Required content of a generated file.
#[derive(Debug)]
pub enum ExpectedContent {
    /// These bytes.
    Exactly(&'static str),
    /// At least these values; null stands for an absent key.
    Json(Value),
    /// All of these strings, in at most so many bytes.
    Text(usize, Vec<String>),
    /// All of these strings, in at most so many bytes, and the causes of exactly these workers.
    Causes(usize, Vec<String>, Vec<String>),
}

/// A worker with its name in the view.
pub struct Member<'a> {
    name: Vec<u8>,
    pub worker: &'a Worker,
}

impl Member<'_> {
    /// Returns the name of its directory; `index.json` is reserved.
    pub fn folder(&self) -> &[u8] {
        if self.name == b"index.json" { b"index.json.own" } else { &self.name }
    }
}

/// Returns the expected tree of `swarm` for `owner`, or of the whole swarm.
pub fn view(
    swarm: &Swarm,
    raw: &RawEntries,
    owner: Option<&str>,
) -> BTreeMap<Vec<u8>, ExpectedNode> {
    let members = members(swarm, owner);
    let mut all = BTreeMap::new();
    let mut put = |path: &[&[u8]], shown: ExpectedNode| {
        let before = all.insert(path.concat(), shown);
        assert!(before.is_none(), "two things under {}", path.concat().escape_ascii());
    };
    let whole = owner.is_none();
    let skipped = whole.then_some(swarm.skipped);
    let readme = include_str!("../../docs/AGENTS.md");
    put(
        &[b"README.md"],
        ExpectedNode::Made { says: ExpectedContent::Exactly(readme), mtime: None },
    );
    put(&[b"workers"], ExpectedNode::Folder(None));
    put(&[b"runs"], ExpectedNode::Folder(None));
    let root = if whole { raw.0[&b""[..]].mtime } else { Default::default() };
    many(&mut put, b"", &members.iter().collect::<Vec<_>>(), Many { run: None, skipped, root });
    put(&[b"workers/index.json"], all_index(&members, skipped, root));
    for member in &members {
        one(&mut put, raw, member);
    }
    runs(&mut put, &members);
    by(&mut put, &members);
    let asked = include_str!("../../crates/tree/src/route/grep/README.md");
    put(&[b"grep"], ExpectedNode::Folder(None));
    put(
        &[b"grep/README.md"],
        ExpectedNode::Made { says: ExpectedContent::Exactly(asked), mtime: None },
    );
    let asked = include_str!("../../crates/tree/src/route/search/README.md");
    put(&[b"search"], ExpectedNode::Folder(None));
    put(
        &[b"search/README.md"],
        ExpectedNode::Made { says: ExpectedContent::Exactly(asked), mtime: None },
    );
    let meant = include_str!("../../crates/tree/src/route/search/semantic.md");
    put(&[b"semantic"], ExpectedNode::Folder(None));
    put(
        &[b"semantic/README.md"],
        ExpectedNode::Made { says: ExpectedContent::Exactly(meant), mtime: None },
    );
    let compared = include_str!("../../crates/tree/src/route/compare/README.md");
    put(&[b"compare"], ExpectedNode::Folder(None));
    put(
        &[b"compare/README.md"],
        ExpectedNode::Made { says: ExpectedContent::Exactly(compared), mtime: None },
    );
    if whole {
        shared(&mut put, raw, &members);
    }
    all
}

/// Returns the workers of `owner`, sorted by time and name. A worker whose id is taken gets a
/// numbered name.
fn members<'a>(swarm: &'a Swarm, owner: Option<&str>) -> Vec<Member<'a>> {
    let is_shown =
        |worker: &&Worker| owner.is_none_or(|owner| worker.record.owner.as_deref() == Some(owner));
    let mut workers: Vec<&Worker> = swarm.workers.iter().filter(is_shown).collect();
    workers.sort_by_key(|worker| (worker.id(), worker.path.iter().filter(|b| **b == b'/').count()));
    let ids: BTreeSet<&[u8]> = workers.iter().map(|worker| worker.id()).collect();
    let mut taken: BTreeSet<Vec<u8>> = BTreeSet::new();
    let mut members: Vec<Member<'_>> = Vec::new();
    for worker in workers {
        let id = worker.id();
        let free = |name: &[u8]| !taken.contains(name) && (name == id || !ids.contains(name));
        let numbered = (2..).map(|n| [id, format!("~{n}").as_bytes()].concat());
        let name = std::iter::once(id.to_vec()).chain(numbered).find(|name| free(name)).unwrap();
        taken.insert(name.clone());
        members.push(Member { name, worker });
    }
    members.sort_by_key(|member| (member.worker.record.created(), member.name.clone()));
    members
}

pub type Put<'a> = dyn FnMut(&[&[u8]], ExpectedNode) + 'a;

/// Subject of the files about many workers.
struct Many<'a> {
    run: Option<&'a str>,
    skipped: Option<[u64; 3]>,
    /// Time of the files if there is no worker.
    root: Time,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Escapes a name for a line of text; these stores use only \xff.
fn display(name: &[u8]) -> String {
    name.iter()
        .map(|b| if *b == 0xff { "\\xff".to_owned() } else { char::from(*b).to_string() })
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn utc(time: Time) -> String {
    Timestamp::from_second(time.0).unwrap().to_string()
}

fn sorted<'a>(names: impl IntoIterator<Item = &'a &'static str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = names.into_iter().copied().collect();
    names.sort_unstable();
    names
}

/// Returns the row of a worker in an index.json.
fn row(member: &Member<'_>) -> Value {
    let Member { name, worker } = member;
    let record = &worker.record;
    let status = record.status();
    let lossy = str::from_utf8(name).is_err();
    let doubts = worker.doubts();
    let doubts = sorted(&doubts);
    let mut row = json!({
        "id": text(name),
        "id_hex": lossy.then(|| hex(name)),
        "path": format!("workers/{}", text(member.folder())),
        "path_hex": lossy.then(|| hex(&[b"workers/", member.folder()].concat())),
        "task": record.task,
        "status": status,
        "status_source": record.word.as_ref().filter(|word| *word != status),
        "outcome": worker.outcome,
        "created_at": record.created().map_or(record.created.clone(), |time| Some(time.to_string())),
        "last_write": utc(worker.newest),
        "title": record.task,
        "tags": record.tags,
        "owner_id": record.owner,
        "run_id": record.run,
        "calls": {
            "total": worker.calls.len(), "failed": worker.count("failed"), "suspect": 0,
            "unknown": worker.count("unknown"), "not_run": 0,
            "bytes": worker.calls.iter().map(|call| call.bytes).sum::<usize>(),
        },
        "files_changed": 0,
        "doubts": if doubts.is_empty() { Value::Null } else { json!(doubts) },
        "check_names": if worker.checks.is_empty() { Value::Null } else { json!(sorted(&worker.checks)) },
    });
    // The model does not cover how long or unprintable tasks are shortened and cleaned.
    if record.task.len() > 200 || !record.task.bytes().all(|b| matches!(b, b' '..=b'~')) {
        row.as_object_mut().unwrap().remove("task");
        row.as_object_mut().unwrap().remove("title");
    }
    row
}

/// Adds the index, summary and evidence of the swarm or a run.
fn many(put: &mut Put<'_>, folder: &[u8], members: &[&Member<'_>], about: Many<'_>) {
    let count =
        |outcome: Outcome| members.iter().filter(|member| member.worker.outcome == outcome).count();
    let (failed, unknown, ok) = (count("failed"), count("unknown"), count("ok"));
    let newest = members.iter().map(|member| member.worker.newest).max().unwrap_or(about.root);
    put(&[folder, b"index.json"], many_index(members, about.run, about.skipped, newest));
    let mut says = vec![
        format!("workers  {}", members.len()),
        format!("\noutcomes {failed} failed, {unknown} unknown, {ok} ok\n"),
    ];
    let [links, special, not_workers] = about.skipped.unwrap_or_default();
    if links + special + not_workers > 0 {
        says.push(format!(
            "in the store but not shown: {links} links, {special} special files, {not_workers} folders that are \
             not workers, 0 unreadable"
        ));
    }
    put(
        &[folder, b"summary"],
        ExpectedNode::Made { says: ExpectedContent::Text(usize::MAX, says), mtime: Some(newest) },
    );
    let title = about.run.map_or("Swarm".to_owned(), |run| format!("Run {run}"));
    let says = vec![
        format!("--- Evidence for {title} --- #"),
        format!("| Workers: {} ({failed} failed, {unknown} unknown) |", members.len()),
    ];
    let failing = members.iter().filter(|member| member.worker.outcome == "failed");
    let says = ExpectedContent::Causes(
        28_000,
        says,
        failing.map(|member| display(&member.name)).collect(),
    );
    put(&[folder, b"evidence.txt"], ExpectedNode::Made { says, mtime: Some(newest) });
}

fn many_index(
    members: &[&Member<'_>],
    run: Option<&str>,
    skipped: Option<[u64; 3]>,
    newest: Time,
) -> ExpectedNode {
    let active =
        |member: &&&Member<'_>| matches!(member.worker.record.status(), "created" | "running");
    let says = json!({
        "complete": true,
        "workers": members.iter().map(|member| row(member)).collect::<Vec<_>>(),
        "run_id": run,
        "last_updated": utc(newest),
        "total_workers": members.len(),
        "active_workers": members.iter().filter(active).count(),
        "outcomes_read": members.len(),
        "skipped": skipped.map(|[links, special, not_workers]| {
            json!({"links": links, "special": special, "not_workers": not_workers, "unreadable": 0})
        }),
        "troubles": null,
    });
    ExpectedNode::Made { says: ExpectedContent::Json(says), mtime: Some(newest) }
}

fn all_index(members: &[Member<'_>], skipped: Option<[u64; 3]>, root: Time) -> ExpectedNode {
    let newest = members.iter().map(|member| member.worker.newest).max().unwrap_or(root);
    many_index(&members.iter().collect::<Vec<_>>(), None, skipped, newest)
}

/// Adds a worker's directory with its content.
fn one(put: &mut Put<'_>, raw: &RawEntries, member: &Member<'_>) {
    let worker = member.worker;
    let folder = [b"workers/", member.folder()].concat();
    put(&[&folder], ExpectedNode::Folder(Some(worker.newest)));
    own(put, raw, &folder, &worker.path, is_taken);
    let made = |says| ExpectedNode::Made { says, mtime: Some(worker.newest) };
    put(&[&folder, b"/index.json"], made(ExpectedContent::Json(index(member))));
    put(&[&folder, b"/summary"], made(ExpectedContent::Text(usize::MAX, summary(member))));
    put(&[&folder, b"/evidence.txt"], made(ExpectedContent::Text(16_000, evidence(member))));
}

fn index(member: &Member<'_>) -> Value {
    let worker = member.worker;
    let mut all = row(member);
    let call = |call: &super::worker::Call| {
        json!({"seq": call.seq, "tool": call.tool, "file": call.file, "outcome": call.outcome, "bytes": call.bytes,
            "exit_code": call.exit_code})
    };
    let mut files: Vec<Value> = worker
        .files
        .iter()
        .map(|(path, bytes, mtime)| {
            let path = shown_path(path, is_taken);
            let hex = str::from_utf8(&path).is_err().then(|| hex(&path));
            json!({"path": text(&path), "path_hex": hex, "bytes": bytes, "mtime": utc(*mtime)})
        })
        .collect();
    files.sort_by_key(|file| file["path"].as_str().map(str::to_owned));
    let more = json!({
        "tool_calls": worker.calls.iter().map(call).collect::<Vec<_>>(),
        "final_words": worker.final_words,
        "total_files": files.len(),
        "total_bytes": worker.files.iter().map(|(_, bytes, _)| bytes).sum::<usize>(),
        "files": files,
        "outputs_not_read_in_time": null,
        "checks": sorted(&worker.checks),
        "complete": true,
        "marker": marker(member),
    });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    if worker.final_words.as_ref().is_some_and(|words| words.len() > 4_096) {
        all.as_object_mut().unwrap().remove("final_words");
    }
    all
}

fn marker(member: &Member<'_>) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"._:-".contains(b);
    let run = member
        .worker
        .record
        .run
        .as_deref()
        .filter(|run| run.bytes().all(|b| plain(&b)))
        .unwrap_or("-");
    let encoded = |b: &u8| if plain(b) { char::from(*b).to_string() } else { format!("%{b:02X}") };
    let id: String = member.name.iter().map(encoded).collect();
    format!("[EVIDENCE:run_id={run},job_id=-,worker_id={id}]")
}

fn summary(member: &Member<'_>) -> Vec<String> {
    let worker = member.worker;
    let mut says = vec![
        format!("worker   {}\nstatus   {}", display(&member.name), worker.record.status()),
        format!("\noutcome  {}: ", worker.outcome),
        format!("\n\n{}\n", marker(member)),
    ];
    if !worker.calls.is_empty() {
        let (failed, unknown, ok) =
            (worker.count("failed"), worker.count("unknown"), worker.count("ok"));
        says.push(format!(
            "\ncalls    {}: {failed} failed, 0 suspect, {unknown} unknown, {ok} ok, 0 not run\n",
            worker.calls.len()
        ));
    }
    says.extend(worker.checks.iter().map(|name| format!("\n  ! {name}: ")));
    says
}

fn evidence(member: &Member<'_>) -> Vec<String> {
    let worker = member.worker;
    let counted = if worker.calls.is_empty() {
        format!("| Calls: 0 | Files: {} |", worker.loose)
    } else {
        format!(
            "| Calls: {} ({} failed, {} unknown) |",
            worker.calls.len(),
            worker.count("failed"),
            worker.count("unknown")
        )
    };
    let mut says =
        vec![format!("--- Evidence for Worker - ({}) --- #", display(&member.name)), counted];
    // Every call is named, shown or only listed.
    says.extend(worker.calls.iter().map(|call| call.file.clone()));
    says
}

/// Returns true if this is the name of a generated file.
fn is_generated(name: &[u8]) -> bool {
    let size = name.strip_prefix(b"evidence.").and_then(|rest| rest.strip_suffix(b".txt"));
    matches!(name, b"index.json" | b"summary" | b"evidence.txt" | b"children")
        || matches!(size, Some(b"4k"))
}

/// Returns true if a worker's own file of this name is shown under another name: its name is that
/// of a generated file, possibly with `.own` behind it.
fn is_taken(name: &[u8]) -> bool {
    is_generated(strip_own(name))
}

/// Returns the path of an own file in the view: with `.own` behind the first component, if that is
/// taken.
fn shown_path(path: &[u8], taken: fn(&[u8]) -> bool) -> Vec<u8> {
    let first = path.split(|b| *b == b'/').next().unwrap();
    let own: &[u8] = if taken(first) { b".own" } else { b"" };
    [first, own, &path[first.len()..]].concat()
}

fn strip_own(mut name: &[u8]) -> &[u8] {
    while let Some(rest) = name.strip_suffix(b".own") {
        name = rest;
    }
    name
}

/// Adds the files and directories in `from` to `folder`; names that are `taken` get the suffix
/// `.own`.
fn own(put: &mut Put<'_>, raw: &RawEntries, folder: &[u8], from: &[u8], taken: fn(&[u8]) -> bool) {
    for (path, entry) in raw.below(from) {
        let mut put = |shown| put(&[folder, b"/", &shown_path(path, taken)], shown);
        match &entry.kind {
            RawKind::File(bytes) => put(own_file(entry, bytes)),
            RawKind::Folder => put(ExpectedNode::Folder(Some(entry.mtime))),
            RawKind::Link | RawKind::Special => {}
        }
    }
}

fn runs(put: &mut Put<'_>, members: &[Member<'_>]) {
    let mut runs: BTreeMap<&str, Vec<&Member<'_>>> = BTreeMap::new();
    for member in members {
        if let Some(run) = &member.worker.record.run {
            runs.entry(run).or_default().push(member);
        }
    }
    let newest =
        |members: &[&Member<'_>]| members.iter().map(|member| member.worker.newest).max().unwrap();
    let latest = runs.values().map(|members| newest(members)).max();
    let mut targets = Vec::new();
    for (run, members) in &runs {
        let name = run_name(run);
        let folder = format!("runs/{name}");
        let time = newest(members);
        put(&[folder.as_bytes()], ExpectedNode::Folder(Some(time)));
        put(&[folder.as_bytes(), b"/workers"], ExpectedNode::Folder(Some(time)));
        let about = Many { run: Some(run), skipped: None, root: Time::default() };
        many(put, &[folder.as_bytes(), b"/"].concat(), members, about);
        for member in members {
            let target = [b"../../../workers/", member.folder()].concat();
            put(
                &[folder.as_bytes(), b"/workers/", member.folder()],
                ExpectedNode::Link(vec![target]),
            );
        }
        if Some(time) == latest {
            targets.push(name.into_bytes());
        }
    }
    if !targets.is_empty() {
        put(&[b"runs/latest"], ExpectedNode::Link(targets));
    }
}

/// Returns the name of a run's directory; `latest` is reserved.
fn run_name(run: &str) -> String {
    let name = run.replace('%', "%25").replace('/', "%2F");
    if name == "latest" { "%6Catest".into() } else { name }
}

/// Adds the files that belong to no worker: the supervisor's notes and the store's own index.
fn shared(put: &mut Put<'_>, raw: &RawEntries, members: &[Member<'_>]) {
    if raw.is_folder(b"supervisor") {
        put(&[b"supervisor"], ExpectedNode::Folder(Some(raw.0[&b"supervisor"[..]].mtime)));
        own(put, raw, b"supervisor", b"supervisor", |_| false);
    }
    // A worker of that name takes precedence.
    let free = members.iter().all(|member| member.folder() != b"index.json.own");
    let files = INDEXES
        .iter()
        .filter_map(|path| Some((raw.0.get(path.as_bytes())?, raw.file(path.as_bytes())?)));
    if let Some((entry, bytes)) = files.take(usize::from(free)).next() {
        put(&[b"workers/index.json.own"], own_file(entry, bytes));
    }
}

fn own_file(entry: &RawEntry, bytes: &[u8]) -> ExpectedNode {
    let RawEntry { mode, mtime, identity, .. } = *entry;
    ExpectedNode::Own { bytes: bytes.to_vec(), mode: mode & 0o555, mtime, identity }
}

const FACETS: [&str; 15] = [
    "status",
    "outcome",
    "attention",
    "type",
    "tag",
    "tool",
    "job",
    "run",
    "day",
    "project",
    "branch",
    "model",
    "source",
    "file",
    "file.read",
];

/// Adds all of `by/`. These stores have no task types, no jobs, no branches, and no record of
/// files.
pub fn by(put: &mut Put<'_>, members: &[Member<'_>]) {
    put(&[b"by"], ExpectedNode::Folder(None));
    for facet in FACETS {
        let folder = format!("by/{facet}");
        put(&[folder.as_bytes()], ExpectedNode::Folder(None));
        let mut values: BTreeMap<String, Vec<&Member<'_>>> = BTreeMap::new();
        for member in members {
            let own: BTreeSet<String> = facet_values(facet, member).into_iter().collect();
            own.into_iter().for_each(|value| values.entry(value).or_default().push(member));
        }
        for (value, members) in values {
            let folder = format!("{folder}/{}", escaped(&value));
            let newest = members.iter().map(|member| member.worker.newest).max();
            put(&[folder.as_bytes()], ExpectedNode::Folder(newest));
            for member in members {
                let target = [b"../../../workers/", member.folder()].concat();
                put(&[folder.as_bytes(), b"/", &link(member)], ExpectedNode::Link(vec![target]));
            }
        }
    }
}

fn facet_values(facet: &str, member: &Member<'_>) -> Vec<String> {
    let record = &member.worker.record;
    match facet {
        "status" => vec![record.status().to_owned()],
        "outcome" => vec![member.worker.outcome.to_owned()],
        "attention" => vec![member.worker.attention().to_owned()],
        "tag" => record.tags.clone(),
        "tool" => member.worker.calls.iter().map(|call| call.tool.clone()).collect(),
        "run" => record.run.iter().cloned().collect(),
        "project" => {
            let cwd = record.cwd.as_deref().unwrap_or_default();
            cwd.split('/').rfind(|part| !part.is_empty()).map(str::to_owned).into_iter().collect()
        }
        "source" => vec!["swarmlet".into()],
        "model" => record.model.iter().cloned().collect(),
        "day" => record.created().iter().map(|time| time.to_string()[..10].to_owned()).collect(),
        _ => Vec::new(),
    }
}

/// Returns the name of a worker's symlink, which avoids reserved names.
fn link(member: &Member<'_>) -> Vec<u8> {
    let folder = member.folder();
    let ours = FACETS.into_iter().chain(["limit"]).any(|name| folder == name.as_bytes());
    if ours { [folder, b".own"].concat() } else { folder.to_vec() }
}

fn escaped(value: &str) -> String {
    let escape = |(at, c): (usize, char)| match c {
        '/' | '%' => format!("%{:02X}", c as u32),
        '.' if at == 0 => "%2E".to_owned(),
        c if c.is_control() => c.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect(),
        c => c.to_string(),
    };
    if value.is_empty() { "%".into() } else { value.chars().enumerate().map(escape).collect() }
}
