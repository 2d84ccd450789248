//! A mount over a store that fails as it is told, with a tree that can be asked what it holds: neither can be had of
//! the program. It is served by this test binary, run once more, so that its log is its own and its end ends nothing.

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
use swarmletfs::fuse::{MountAccess, log_panics, mount};
use swarmletfs::name::RelPath;

use super::{store, tree_of};
use crate::support::Mount;
use crate::support::faulty::{Fault, Plan};

/// Where to mount; set for the process that serves.
const POINT: &str = "SWARMLETFS_TEST_SERVES";
/// What an answer begins with, among what the test harness prints.
const ANSWER: &str = "answer: ";

/// A mount over the store of [`super::store`].
pub struct Served {
    mount: Mount,
    orders: ChildStdin,
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
        let (orders, answers) = (mount.process().stdin.take(), mount.process().stdout.take());
        Served { mount, orders: orders.unwrap(), answers: BufReader::new(answers.unwrap()) }
    }

    /// Changes every worker a little, so that all that is made of them is made anew.
    pub fn change(&mut self) {
        self.ask("change");
    }

    /// From now on the `k`-th call of the store panics.
    pub fn panic_at(&mut self, k: u64) {
        self.ask(&format!("panic {k}"));
    }

    /// From now on every call of the store from the `k`-th on is one that the system does not know.
    pub fn unknown_from(&mut self, k: u64) {
        self.ask(&format!("unknown {k}"));
    }

    /// From now on nothing fails. Whether a call was met by what was planned before.
    pub fn heal(&mut self) -> bool {
        self.ask("heal") == "true"
    }

    /// How many inodes and handles the tree holds.
    pub fn held(&mut self) -> (usize, usize) {
        let answer = self.ask("held");
        let (inodes, handles) = answer.split_once(' ').unwrap();
        (inodes.parse().unwrap(), handles.parse().unwrap())
    }

    fn ask(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the server is gone: {}", self.mount.log());
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

/// No test by itself: the other process that [`Served::new`] starts.
#[test]
fn serves_other_tests() {
    if let Some(point) = env::var_os(POINT) {
        serve(PathBuf::from(point));
    }
}

fn serve(point: PathBuf) {
    tracing_subscriber::fmt().with_env_filter("warn,fuser::reply=off").with_ansi(false).with_writer(io::stderr).init();
    log_panics();
    let plan = Plan::quiet();
    let store = Arc::new(store());
    let tree = Arc::new(tree_of(store.clone(), &plan));
    let session = mount(tree.clone(), &point, MountAccess::Mounter).unwrap();
    thread::spawn(move || {
        for order in io::stdin().lines() {
            let order = order.unwrap();
            let answer = match order.split_once(' ') {
                Some(("panic", k)) => {
                    plan.fail(k.parse().unwrap(), Fault::Panic, false);
                    String::new()
                }
                Some(("unknown", k)) => {
                    plan.fail(k.parse().unwrap(), Fault::Errno(Errno::NOSYS), true);
                    String::new()
                }
                _ if order == "change" => {
                    for id in ["failed", "plain"] {
                        store.write(&RelPath::parse(format!("{id}/changed")).unwrap(), "?");
                    }
                    String::new()
                }
                _ if order == "heal" => plan.heal().to_string(),
                _ if order == "held" => {
                    let (inodes, handles) = tree.open_counts();
                    format!("{inodes} {handles}")
                }
                _ => panic!("no such order: {order}"),
            };
            println!("\n{ANSWER}{answer}");
        }
        // The test is over, in whatever way.
        let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
    });
    while !session.has_ended(Duration::MAX) {}
}
