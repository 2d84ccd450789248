//! A workspace and a store of a user, and commands that run with and without a sandbox.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::support::skip;

/// An ordinary user, who owns nothing on this machine.
const USER: u32 = 12345;

/// Defines `attempt(f)` in Python, which prints `ok` or the name of the errno.
const PRELUDE: &str = "
import os, sys, errno, socket, signal, ctypes, fcntl
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), '')
    return result
def attempt(f):
    try:
        f()
        print('ok')
    except OSError as error:
        print(errno.errorcode[error.errno])
";

/// A directory with `workspace`, `store` and `home`, all of which belong to `uid`.
pub struct Place {
    folder: TempDir,
    pub uid: u32,
    workers: Cell<u32>,
}

/// Runs a test as an ordinary user, and as root if the tests run as root.
pub fn for_each_user(test: impl Fn(&Place)) {
    let own = rustix::process::geteuid().as_raw();
    let users = if own == 0 { vec![0, USER] } else { vec![own] };
    users.into_iter().for_each(|uid| test(&Place::new(uid)));
}

impl Place {
    pub fn new(uid: u32) -> Place {
        // Not in /tmp, of which the sandbox shows nothing.
        Place::in_folder(uid, TempDir::new_in("/var/tmp").unwrap())
    }

    /// Returns a place for an ordinary user.
    pub fn of_user() -> Place {
        let own = rustix::process::geteuid().as_raw();
        Place::new(if own == 0 { USER } else { own })
    }

    /// Returns a place for root, or `None` without root.
    pub fn of_root() -> Option<Place> {
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            skip("only root can run a worker as root");
        }
        is_root.then(|| Place::new(0))
    }

    pub fn in_folder(uid: u32, folder: TempDir) -> Place {
        let place = Place { folder, uid, workers: Cell::new(0) };
        fs::set_permissions(place.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["", "workspace", "workspace/dir", "home"] {
            place.make_dir(name);
        }
        place.write("workspace/file", "original\n");
        place.write("workspace/dir/inner", "inner\n");
        place.write("home/.profile", "profile\n");
        let made = place.plain(&[swarmletfs(), "init", place.path("store").to_str().unwrap()]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        for name in ["store/workers", "store/workers/other"] {
            place.make_dir(name);
        }
        place.write("store/workers/other/result.txt", "secret\n");
        place
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    pub fn make_dir(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        self.own(&path);
        path
    }

    pub fn write(&self, name: impl AsRef<Path>, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        self.own(&path);
        path
    }

    pub fn read(&self, name: impl AsRef<Path>) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn own(&self, path: &Path) {
        chown(path, Some(self.uid), Some(self.uid)).unwrap();
    }

    /// Returns a command of the user, in the workspace.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "60"]).args(words);
        if rustix::process::geteuid().is_root() && self.uid != 0 {
            command.uid(self.uid).gid(self.uid);
        }
        command.env("HOME", self.path("home")).current_dir(self.path("workspace"));
        command
    }

    /// Runs a command without a sandbox.
    pub fn plain(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Returns the command line that runs `words` in a sandbox.
    pub fn in_sandbox<'a>(&self, options: &[&'a str], words: &[&'a str]) -> Vec<String> {
        self.workers.set(self.workers.get() + 1);
        let id = format!("worker-{}", self.workers.get());
        let (store, workspace) = (self.path("store"), self.path("workspace"));
        let mut line: Vec<&str> = vec![swarmletfs(), "run", "--quiet", "--id", &id];
        line.extend(["--store", store.to_str().unwrap()]);
        line.extend(["--workspace", workspace.to_str().unwrap()]);
        line.extend(options);
        line.push("--");
        line.extend(words);
        line.into_iter().map(str::to_owned).collect()
    }

    /// Returns the number of workers so far, which is in the name of the last one.
    pub fn count(&self) -> u32 {
        self.workers.get()
    }

    /// Runs a command in a sandbox.
    pub fn run(&self, options: &[&str], words: &[&str]) -> Output {
        let line = self.in_sandbox(options, words);
        self.plain(&line.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Runs a shell script in a sandbox and returns its output. It must succeed.
    pub fn shell(&self, options: &[&str], script: &str) -> String {
        let output = self.run(options, &["sh", "-ec", script]);
        assert!(output.status.success(), "uid {}: {output:?}", self.uid);
        text(&output.stdout)
    }

    /// Runs Python code with and without a sandbox. Returns the lines of both outputs, the control
    /// first.
    pub fn attack(&self, options: &[&str], code: &str) -> (Vec<String>, Vec<String>) {
        let code = with_prelude(code);
        let words = ["python3", "-c", &code];
        let inside = self.run(options, &words);
        let outside = self.plain(&words);
        for output in [&inside, &outside] {
            assert!(output.status.success(), "uid {}: {output:?}", self.uid);
        }
        (lines(&outside.stdout), lines(&inside.stdout))
    }

    /// Runs Python code in a sandbox only. Attempts that would change the machine have no control
    /// outside of a namespace.
    pub fn attack_inside(&self, options: &[&str], code: &str) -> Vec<String> {
        let code = with_prelude(code);
        let output = self.run(options, &["python3", "-c", &code]);
        assert!(output.status.success(), "uid {}: {output:?}", self.uid);
        lines(&output.stdout)
    }

    /// Runs Python code with all capabilities in a user and a mount namespace of its own, whose
    /// mounts are private.
    pub fn attack_in_namespace(&self, code: &str) -> Vec<String> {
        let code = with_prelude(code);
        let words = ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"];
        let output = self.plain(&[&words[..], &["python3", "-c", &code]].concat());
        assert!(output.status.success(), "uid {}: {output:?}", self.uid);
        lines(&output.stdout)
    }

    /// Checks that each attempt of `code` succeeds outside, and has this result inside.
    pub fn fails_inside(&self, options: &[&str], code: &str, expected: &[&str]) {
        let (outside, inside) = self.attack(options, code);
        assert_eq!(outside, vec!["ok"; expected.len()], "uid {}: control of {code}", self.uid);
        assert_eq!(inside, expected, "uid {}: {code}", self.uid);
    }
}

/// Returns Python code that can use `attempt`.
pub fn with_prelude(code: &str) -> String {
    format!("{PRELUDE}\n{code}")
}

pub fn swarmletfs() -> &'static str {
    env!("CARGO_BIN_EXE_swarmletfs")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn lines(bytes: &[u8]) -> Vec<String> {
    text(bytes).lines().map(str::to_owned).collect()
}

/// Quotes a word for a shell.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
