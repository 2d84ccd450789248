//! Mount over a store with fault injection, whose tree reports its open inodes and handles.
//!
//! The program offers neither. A second process of this test binary serves the mount, so that its
//! log is separate and a crash does not end the test.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use swarmletfs_base::name::RelPath;
use swarmletfs_fuse::{MountAccess, log_panics, mount};

use super::{store, tree_of};
use crate::support::Mount;
use crate::support::fault_injection::{Fault, FaultPlan};

/// Environment variable with the mountpoint, set for the serving process.
const POINT: &str = "SWARMLETFS_TEST_SERVES";
/// Prefix of an answer, to tell it from the output of the test harness.
const ANSWER: &str = "answer: ";

/// A mount over the store of [`super::store`].
pub struct Served {
    mount: Mount,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Default for Served {
    fn default() -> Served {
        Served::new()
    }
}

impl Served {
    pub fn new() -> Served {
        let mut mount = Mount::of(|point| {
            let mut command = Command::new(env::current_exe().unwrap());
            let test = concat!(module_path!(), "::serves_other_tests").split_once("::").unwrap().1;
            command.args(["--exact", test, "--nocapture"]).env(POINT, point);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command
        });
        let (requests, answers) = (mount.process().stdin.take(), mount.process().stdout.take());
        Served { mount, requests: requests.unwrap(), answers: BufReader::new(answers.unwrap()) }
    }

    /// Changes every worker, so that all generated files are rendered again.
    pub fn change(&mut self) {
        self.request("change");
    }

    /// Makes the `k`-th store call from now on panic.
    pub fn panic_at(&mut self, k: u64) {
        self.request(&format!("panic {k}"));
    }

    /// Makes every store call from the `k`-th on fail with ENOSYS.
    pub fn unknown_from(&mut self, k: u64) {
        self.request(&format!("unknown {k}"));
    }

    /// Removes the fault. Returns true if it was triggered.
    pub fn heal(&mut self) -> bool {
        self.request("heal") == "true"
    }

    /// Returns the numbers of inodes and handles in use.
    pub fn held(&mut self) -> (usize, usize) {
        let answer = self.request("held");
        let (inodes, handles) = answer.split_once(' ').unwrap();
        (inodes.parse().unwrap(), handles.parse().unwrap())
    }

    fn request(&mut self, request: &str) -> String {
        writeln!(self.requests, "{request}").unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(
                self.answers.read_line(&mut line).unwrap(),
                0,
                "the server is gone: {}",
                self.mount.log()
            );
            if let Some(answer) = line.strip_prefix(ANSWER) {
                return answer.trim_end().to_owned();
            }
        }
    }
}

impl Deref for Served {
    type Target = Mount;

    fn deref(&self) -> &Mount {
        &self.mount
    }
}

impl DerefMut for Served {
    fn deref_mut(&mut self) -> &mut Mount {
        &mut self.mount
    }
}

/// Serves the mount in the process that [`Served::new`] starts; otherwise does nothing.
#[test]
fn serves_other_tests() {
    if let Some(point) = env::var_os(POINT) {
        serve(PathBuf::from(point));
    }
}

fn serve(point: PathBuf) {
    tracing_subscriber::fmt()
        .with_env_filter("warn,fuser::reply=off")
        .with_ansi(false)
        .with_writer(io::stderr)
        .init();
    log_panics();
    let plan = FaultPlan::none();
    let store = Arc::new(store());
    let tree = Arc::new(tree_of(store.clone(), &plan));
    let session = mount(tree.clone(), &point, MountAccess::Mounter).unwrap();
    thread::spawn(move || {
        for request in io::stdin().lines() {
            let request = request.unwrap();
            let answer = match request.split_once(' ') {
                Some(("panic", k)) => {
                    plan.fail(k.parse().unwrap(), Fault::Panic, false);
                    String::new()
                }
                Some(("unknown", k)) => {
                    plan.fail(k.parse().unwrap(), Fault::Errno(Errno::NOSYS), true);
                    String::new()
                }
                _ if request == "change" => {
                    for id in ["failed", "plain"] {
                        store.write(&RelPath::parse(format!("{id}/changed")).unwrap(), "?");
                    }
                    String::new()
                }
                _ if request == "heal" => plan.heal().to_string(),
                _ if request == "held" => {
                    let (inodes, handles) = tree.open_counts();
                    format!("{inodes} {handles}")
                }
                _ => panic!("no such request: {request}"),
            };
            println!("\n{ANSWER}{answer}");
        }
        // stdin is closed, so the test has ended.
        let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
    });
    while !session.has_ended(Duration::MAX) {}
}
