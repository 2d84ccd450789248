//! A workspace and a store, of the user who runs the tests or of an ordinary user.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::cli::program::{
    CommandOutput, make_accessible, program, run, wait_until, without_privileges,
};
use crate::support::mount::PROGRAM;

/// The ordinary user, and the group.
pub const ORDINARY: u32 = 65_534;

/// A workspace with a file `notes`, beside a store.
pub struct Workspace {
    dir: tempfile::TempDir,
    /// True to run everything as the ordinary user.
    is_ordinary: bool,
}

/// Makes a folder that is not beneath /tmp, which is private in a sandbox.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

impl Workspace {
    /// Makes a workspace beneath /tmp.
    pub fn in_tmp() -> Workspace {
        let place = Workspace { dir: tempfile::tempdir_in("/tmp").unwrap(), is_ordinary: false };
        place.fill();
        place
    }

    /// Makes a workspace of the user who runs the tests.
    pub fn new() -> Workspace {
        let place = Workspace { dir: folder(), is_ordinary: false };
        place.fill();
        place
    }

    /// Makes a workspace of an ordinary user, who runs the program.
    pub fn of_ordinary_user() -> Workspace {
        let is_ordinary = rustix::process::geteuid().is_root();
        let place = Workspace { dir: folder(), is_ordinary };
        if is_ordinary {
            make_accessible(place.dir.path());
            chown(place.dir.path(), Some(ORDINARY), Some(ORDINARY)).unwrap();
        }
        place.fill();
        place
    }

    /// Makes a workspace of each kind of user.
    pub fn all() -> [Workspace; 2] {
        [Workspace::new(), Workspace::of_ordinary_user()]
    }

    /// Returns true if an ordinary user runs everything.
    pub fn is_ordinary(&self) -> bool {
        self.is_ordinary || !rustix::process::geteuid().is_root()
    }

    fn fill(&self) {
        run(self.command([OsStr::new(PROGRAM), "init".as_ref(), self.at("store").as_os_str()]))
            .assert_success();
        for name in ["workspace", "home", "outside"] {
            self.folder(name);
        }
        self.write("workspace/notes", "one\ntwo\n");
    }

    /// Returns the path of an entry beside the workspace.
    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    /// Makes a folder of the user.
    pub fn folder(&self, name: &str) -> PathBuf {
        fs::create_dir_all(self.at(name)).unwrap();
        self.give(&self.at(name));
        self.at(name)
    }

    /// Writes a file of the user.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.at(name), text).unwrap();
        self.give(&self.at(name));
        self.at(name)
    }

    /// Reads a file.
    #[track_caller]
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }

    fn give(&self, path: &Path) {
        if self.is_ordinary {
            chown(path, Some(ORDINARY), Some(ORDINARY)).unwrap();
        }
    }

    /// Returns the program that becomes the user, and its arguments; empty for the user who runs
    /// the tests.
    pub fn user(&self) -> Vec<&'static OsStr> {
        if self.is_ordinary { without_privileges(&[]) } else { Vec::new() }
    }

    /// Runs a shell script as the user, without a sandbox, and returns its output.
    #[track_caller]
    pub fn outside(&self, script: &str) -> String {
        let mut command = self.command(["sh", "-ec", script].map(OsStr::new));
        command.current_dir(self.at("workspace"));
        let done = run(command);
        done.assert_success();
        done.out
    }

    /// Returns a command of the user.
    pub fn command<'a>(&self, words: impl IntoIterator<Item = &'a OsStr>) -> Command {
        let words: Vec<&OsStr> = words.into_iter().collect();
        self.command_of_root(if self.is_ordinary { without_privileges(&words) } else { words })
    }

    /// Returns a command of the user who runs the tests.
    pub fn command_of_root<'a>(&self, words: impl IntoIterator<Item = &'a OsStr>) -> Command {
        let mut words = words.into_iter();
        let mut command = program(words.next().unwrap(), words);
        command.current_dir(self.dir.path()).env("HOME", self.at("home"));
        // The folder of the tests may be in a repository of git.
        command.env("GIT_CEILING_DIRECTORIES", self.at(""));
        // A directory that the user may not enter would make a missing program a forbidden one.
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        for variable in ["SWARMLET_WORKER", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CACHE_HOME"] {
            command.env_remove(variable);
        }
        command
    }

    /// Returns `swarmletfs run` of a command, as the worker `w` unless an option says otherwise.
    pub fn runner(&self, options: &[&str], command: &[&str]) -> Command {
        let (store, workspace) = (self.at("store"), self.at("workspace"));
        let mut words: Vec<&OsStr> = [PROGRAM, "run"].iter().map(OsStr::new).collect();
        words.extend([OsStr::new("--store"), store.as_os_str()]);
        words.extend([OsStr::new("--workspace"), workspace.as_os_str()]);
        let names_worker = ["--id", "--each", "--recover"];
        if !options.iter().any(|option| names_worker.contains(option)) {
            words.extend(["--id", "w"].map(OsStr::new));
        }
        words.extend(options.iter().map(OsStr::new));
        if !command.is_empty() {
            words.push(OsStr::new("--"));
            words.extend(command.iter().map(OsStr::new));
        }
        self.command(words)
    }

    /// Runs a command to its end.
    #[track_caller]
    pub fn run(&self, options: &[&str], command: &[&str]) -> CommandOutput {
        run(self.runner(options, command))
    }

    /// Runs a shell script to its end.
    #[track_caller]
    pub fn sh(&self, options: &[&str], script: &str) -> CommandOutput {
        self.run(options, &["sh", "-c", script])
    }

    /// Starts a shell script that prints `ready`, and waits until it has.
    #[track_caller]
    pub fn start(&self, options: &[&str], script: &str) -> Child {
        let mut command = self.runner(options, &["sh", "-c", script]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let log = self.at("store/workers/w/logs/execution.log");
        wait_until("the command to be ready", || {
            fs::read_to_string(&log).is_ok_and(|text| text.contains("ready"))
        });
        child
    }

    /// Returns metadata.json of a worker.
    #[track_caller]
    pub fn metadata(&self, worker: &str) -> Value {
        self.json(&format!("store/workers/{worker}/metadata.json"))
    }

    /// Returns the kinds and paths in changes.json of a worker, such as `modified notes`.
    #[track_caller]
    pub fn changes(&self, worker: &str) -> Vec<String> {
        let changes = self.json(&format!("store/workers/{worker}/changes.json"));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let describe = |file: &Value| format!("{} {}", text(&file["kind"]), text(&file["path"]));
        changes["files"].as_array().unwrap().iter().map(describe).collect()
    }

    #[track_caller]
    pub fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.read(name)).unwrap()
    }

    /// Returns the ids of all workers, sorted.
    pub fn workers(&self) -> Vec<String> {
        let entries = fs::read_dir(self.at("store/workers")).unwrap();
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<String> =
            entries.map(|entry| name(entry).into_string().unwrap()).collect();
        names.sort();
        names
    }
}
