//! A machine that records into an object store: commands with a state folder of their own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use swarmletfs_base::error::Result;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Store, read_whole};
use tempfile::TempDir;

use super::server::{Server, url};
use crate::cli::program::{CommandOutput, run, swarmletfs};
use crate::recording::store::input;

pub struct Machine<'a> {
    server: &'a Server,
    pub state: TempDir,
    /// Address of the object store, or of a proxy before it.
    pub address: String,
}

/// One command of a session, with its standard input.
pub type Step = (Vec<String>, Vec<u8>);

impl Machine<'_> {
    pub fn new(server: &Server) -> Machine<'_> {
        Machine { server, state: tempfile::tempdir().unwrap(), address: server.address() }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = swarmletfs(arguments);
        self.server.configure(&mut command);
        command
            .env("AWS_ENDPOINT_URL", format!("http://{}", self.address))
            .env("XDG_STATE_HOME", self.state.path());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> CommandOutput {
        run(self.command(arguments))
    }

    pub fn run_with(&self, arguments: &[&str], stdin: impl AsRef<[u8]>) -> CommandOutput {
        let mut command = self.command(arguments);
        command.stdin(input(stdin));
        run(command)
    }

    pub fn start(&self, arguments: &[&str], stdin: impl AsRef<[u8]>) -> Child {
        let mut command = self.command(arguments);
        command.stdin(input(stdin)).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// Returns the ids of the workers in the spools of this machine.
    pub fn spooled(&self) -> Vec<String> {
        let spools = self.state.path().join("swarmletfs/spool");
        let entries = |path: &Path| -> Vec<_> {
            fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
        };
        let workers = entries(&spools);
        let workers = workers.iter().flat_map(|spool| entries(&spool.join("store/workers")));
        let mut ids: Vec<String> = workers
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .filter(|name| !name.starts_with(".swarmletfs-"))
            .collect();
        ids.sort();
        ids
    }
}

/// Returns the commands of a worker, each with its input, without the option that names the store.
pub fn session(id: &str) -> Vec<Step> {
    let step = |arguments: &[&str], stdin: &[u8]| {
        (arguments.iter().map(|&argument| argument.to_owned()).collect(), stdin.to_vec())
    };
    vec![
        step(&["worker", "create", "--id", id, "--task", "Check the disks", "--run", "48"], b""),
        step(&["worker", "message", id], b"{\"role\": \"assistant\", \"content\": \"I look.\"}\n"),
        step(
            &["worker", "record", id, "--tool", "df", "--exit", "1", "--duration-ms", "5"],
            b"error: No space left on device\n",
        ),
        step(&["worker", "put", id, "outputs/report.md"], b"# The disk is full\n"),
        step(&["worker", "finish", id, "--result", "-", "--status", "failed"], b"It is full.\n"),
    ]
}

/// Runs a command of a session for the store `store`.
pub fn take_step(machine: &Machine<'_>, (arguments, stdin): &Step, store: &str) -> CommandOutput {
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--store", store]);
    machine.run_with(&arguments, stdin)
}

/// Maximum size of a recorded file, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Directories and files of a worker that the commands of a session write.
const RECORDED: [&str; 4] = ["tool_calls", "outputs", "result.txt", "thread.jsonl"];

/// Returns the recorded files of all workers in the object store; empty if there are none.
pub fn files_in_bucket(server: &Server, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    let opened = swarmletfs_objects::open_if_any(Path::new(&url(prefix)), &server.settings());
    opened.unwrap().map(|bucket| files_in_store(&bucket)).unwrap_or_default()
}

/// Returns the recorded files of all workers of a store, with the directory of each worker.
pub fn files_in_store(store: &dyn Store) -> BTreeMap<String, Vec<u8>> {
    let ids = worker_ids(store).into_iter();
    let files = ids.flat_map(|id| {
        let files = recorded_files(store, &id).unwrap().into_iter();
        files.map(move |(path, bytes)| (format!("{id}/{path}"), bytes))
    });
    files.collect()
}

/// Returns the ids of the workers of a store.
pub fn worker_ids(store: &dyn Store) -> Vec<String> {
    let entries = store.list(&RelPath::parse("workers").unwrap()).unwrap_or_default();
    entries.into_iter().map(|entry| entry.name.to_text().into_owned()).collect()
}

/// Returns the recorded files of a worker, by their paths in its directory. Nothing is generated.
///
/// # Errors
///
/// A file cannot be read, such as one that was replaced meanwhile.
pub fn recorded_files(store: &dyn Store, id: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let top = RelPath::parse(format!("workers/{id}"))?;
    let (mut files, mut folders) = (BTreeMap::new(), vec![RelPath::root()]);
    while let Some(folder) = folders.pop() {
        for entry in store.list(&top.join_path(&folder))? {
            let path = folder.join(&entry.name);
            let first = path.names().next().unwrap();
            if !RECORDED.iter().any(|name| first.as_bytes() == name.as_bytes()) {
                continue;
            }
            if entry.kind == Kind::Folder {
                folders.push(path);
                continue;
            }
            let bytes = read_whole(store, &top.join_path(&path), FILE_MAX)?.unwrap_or_default();
            files.insert(path.to_text().into_owned(), bytes);
        }
    }
    Ok(files)
}
