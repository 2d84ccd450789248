//! A machine that records into an object store: commands with a state folder of their own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::server::{Server, url};
use super::tree;
use crate::cli::program::{CommandOutput, run, swarmletfs};
use crate::recording::store::input;
use crate::support::{Seen, see_folder};

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

/// Returns the files of all workers in the object store; empty if there are none. Times and paths
/// in JSON differ between recordings, and are left out.
pub fn files_in_bucket(server: &Server, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    try_files_in_bucket(server, prefix).unwrap()
}

/// Returns the files as [`files_in_bucket`] does; `None` if one cannot be read now.
pub fn try_files_in_bucket(server: &Server, prefix: &str) -> Option<BTreeMap<String, Vec<u8>>> {
    let opened = swarmletfs_objects::open_if_any(Path::new(&url(prefix)), &server.settings());
    match opened.unwrap() {
        Some(bucket) => Some(files_of(see_folder(&tree(bucket), "workers").ok()?)),
        None => Some(BTreeMap::new()),
    }
}

/// Returns the files that the recorder wrote, from a tree of all workers.
pub fn files_of(seen: BTreeMap<Vec<u8>, Seen>) -> BTreeMap<String, Vec<u8>> {
    let is_recorded = |path: &str| {
        ["/tool_calls/", "/outputs/", "/result.txt", "/thread.jsonl"]
            .iter()
            .any(|part| path.contains(part))
    };
    seen.into_iter()
        .filter_map(|(path, seen)| {
            let path = String::from_utf8(path).unwrap();
            match seen {
                Seen::File { bytes, .. } if is_recorded(&path) => Some((path, bytes)),
                _ => None,
            }
        })
        .collect()
}
