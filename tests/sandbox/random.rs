//! Random sequences of attacks from inside a sandbox, with links, renames and processes planted
//! between: nothing outside changes, and no process is left.

use std::collections::BTreeMap;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fastrand::Rng;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;

use super::for_each_user;
use super::lifetime::{await_that, has_signal_scopes, processes_with};
use super::place::{Place, swarmletfs, text};
use crate::support::seeds;

/// Attacks, and the program that makes them.
const SCRIPT: &str = include_str!("random.py");
/// Number of sequences of each kind of user.
const SEQUENCES: usize = 6;
/// Another user of the machine, with a uid that nobody has.
const OTHER_USER: u32 = 23456;
/// Prints the programs in these directories that would lend that user the rights of their owner,
/// whenever they were there until the end of the input.
const LOOKER: &str = "
import os, select, sys
found, looked = set(), False
while not looked or not select.select([sys.stdin], [], [], 0.01)[0]:
    for top in sys.argv[1:]:
        for folder, _, names in os.walk(top):
            for path in (os.path.join(folder, name) for name in names):
                try:
                    if os.lstat(path).st_mode & 0o6000:
                        found.add(path)
                except OSError:
                    pass
    looked = True
print('\\n'.join(sorted(found)))
";
/// Files of the machine that no attack may change.
const CANARIES: [&str; 7] = [
    "/etc",
    "/etc/passwd",
    "/etc/hostname",
    "/etc/hosts",
    "/usr/bin/env",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/vm/swappiness",
];

/// Attributes and content of entries by path.
type Fingerprint = BTreeMap<PathBuf, (u32, u32, i128, u64, Vec<u8>)>;

/// Adds an entry and all beneath it, but for the paths that `leaves_out` names.
fn collect(path: &Path, leaves_out: &dyn Fn(&Path) -> bool, found: &mut Fingerprint) {
    let meta = fs::symlink_metadata(path).unwrap();
    let is_kernel = path.starts_with("/proc");
    let content = if meta.is_symlink() {
        fs::read_link(path).unwrap().into_os_string().into_encoded_bytes()
    } else if meta.is_file() {
        fs::read(path).unwrap()
    } else {
        Vec::new()
    };
    let changed = i128::from(meta.ctime()) * 1_000_000_000 + i128::from(meta.ctime_nsec());
    let changed = if is_kernel { 0 } else { changed };
    let state = (meta.mode(), meta.uid(), changed, meta.nlink(), content);
    found.insert(path.to_owned(), state);
    if meta.is_dir() && !path.starts_with("/etc") {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if !leaves_out(&path) {
                collect(&path, leaves_out, found);
            }
        }
    }
}

/// A place with something to attack.
struct Target<'a> {
    place: &'a Place,
    victim: Child,
    marker: String,
    _sockets: [UnixListener; 3],
    _fifo: fs::File,
}

impl<'a> Target<'a> {
    fn new(place: &'a Place) -> Target<'a> {
        let marker = format!("escape-{:09}", fastrand::u32(..1_000_000_000));
        place.make_dir("home/folder");
        place.write("home/folder/file", "kept\n");
        place.write("workspace/secret", "secret!!\n");
        place.make_dir("home/.cache");
        place.make_dir("home/.cache/swarmletfs");
        place.write("home/.cache/swarmletfs/segment", "secret\n");
        ["store/drafts", "store/registry", "cache"]
            .into_iter()
            .for_each(|name| drop(place.make_dir(name)));
        let path = place.path("home/agent.sock");
        let _ = fs::remove_file(&path);
        let socket = UnixListener::bind(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        for name in ["linked.sock", "bound.sock", "renamed.sock", "fifo"] {
            let _ = fs::remove_file(place.path("home").join(name));
        }
        fs::hard_link(&path, place.path("home/linked.sock")).unwrap();
        let renamed = UnixListener::bind(place.path("home/bound.sock")).unwrap();
        fs::rename(place.path("home/bound.sock"), place.path("home/renamed.sock")).unwrap();
        let fifo = place.path("home/fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::empty(), 0).unwrap();
        for name in ["renamed.sock", "fifo"] {
            let open = fs::Permissions::from_mode(0o666);
            fs::set_permissions(place.path("home").join(name), open).unwrap();
        }
        let fifo = fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
        let lends = place.write("home/lends", "");
        fs::set_permissions(&lends, fs::Permissions::from_mode(0o4755)).unwrap();
        let address = SocketAddr::from_abstract_name(&marker).unwrap();
        let sockets = [socket, renamed, UnixListener::bind_addr(&address).unwrap()];
        let mut victim = Command::new("sleep");
        victim.arg("60").stdout(Stdio::null()).stderr(Stdio::null());
        let is_root = rustix::process::geteuid().is_root();
        let victim = if is_root { victim.uid(place.uid).gid(place.uid) } else { &mut victim };
        let victim = victim.spawn().unwrap();
        Target { place, victim, marker, _sockets: sockets, _fifo: fifo }
    }

    fn context(&self, hides: bool) -> String {
        let path = |name: &str| self.place.path(name).to_str().unwrap().to_owned();
        json!({
            "home": path("home"), "workspace": path("workspace"), "store": path("store"),
            "victim": self.victim.id(), "marker": self.marker, "hides": hides,
        })
        .to_string()
    }

    /// Returns the state of all that no worker may change.
    fn fingerprint(&self) -> Fingerprint {
        let mut found = Fingerprint::new();
        let nothing = |_: &Path| false;
        for name in ["home", "workspace", "store/workers/other"] {
            collect(&self.place.path(name), &nothing, &mut found);
        }
        CANARIES.iter().for_each(|path| collect(Path::new(path), &nothing, &mut found));
        found
    }

    /// Returns the names in the store and beside it.
    fn names(&self) -> Vec<String> {
        let names = ["", "store", "store/workers", "store/drafts"].into_iter().flat_map(|folder| {
            let entries = fs::read_dir(self.place.path(folder)).unwrap();
            entries.map(move |entry| {
                format!("{folder}/{}", entry.unwrap().file_name().to_str().unwrap())
            })
        });
        let mut names: Vec<String> = names
            .filter(|name| !name.contains("worker-") && !name.contains("/.swarmletfs-"))
            .collect();
        names.sort();
        names
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        let _ = self.victim.kill();
        let _ = self.victim.wait();
    }
}

/// Makes one random sequence of attacks, and checks that it had no effect.
fn check(place: &Place, seed: u64) {
    let mut target = Target::new(place);
    let mut rng = Rng::with_seed(seed);
    let hides = rng.bool();
    let secret = place.path("workspace/secret");
    let mut options = vec!["--engine", if rng.u8(..4) == 0 { "copy" } else { "overlay" }];
    if hides {
        options.extend(["--hide", secret.to_str().unwrap()]);
    }
    // Without Landlock's scopes, the process group and abstract sockets can be reached.
    if rng.bool() && has_signal_scopes() {
        options.push("--nested");
    }
    if rng.bool() {
        options.push("--no-network");
    }
    let (context, number, count) =
        (target.context(hides), seed.to_string(), rng.u8(10..=50).to_string());
    let about = format!("uid {}, seed {seed}, {count} attacks, {options:?}", place.uid);
    let (before, names) = (target.fingerprint(), target.names());

    let line = place.in_sandbox(&options, &["python3", "-c", SCRIPT, &context, &number, &count]);
    // A mount that escapes must not reach this machine.
    let private = ["unshare", "--mount", "--propagation", "private"];
    let private = if place.uid == 0 { &private[..] } else { &[] };
    let mut words = private.to_vec();
    words.extend(line.iter().map(String::as_str));
    let looker = rustix::process::geteuid().is_root().then(|| {
        let mut looker = Command::new("python3");
        looker.args(["-c", LOOKER]).args(["home", "store"].map(|name| place.path(name)));
        looker.uid(OTHER_USER).gid(OTHER_USER).stdin(Stdio::piped()).stdout(Stdio::piped());
        looker.spawn().unwrap()
    });
    let output = place.plain(&words);
    if let Some(looker) = looker {
        let found = text(&looker.wait_with_output().unwrap().stdout);
        let control = place.path("home/lends");
        assert_eq!(found.trim_end(), control.to_str().unwrap(), "{about}: {output:?}");
    }
    // A record that a worker has damaged cannot be completed, which is said.
    let is_refused = output.status.code() == Some(125)
        && text(&output.stderr).starts_with("swarmletfs: cannot ");
    assert!(output.status.success() || is_refused, "{about}: {output:?}");
    assert_eq!(text(&output.stdout), "", "{about}");
    assert!(!text(&output.stderr).contains("panicked"), "{about}: {output:?}");

    let compare = |what: &str| {
        let after = target.fingerprint();
        let all = before.keys().chain(after.keys());
        let differing: Vec<_> = all.filter(|path| before.get(*path) != after.get(*path)).collect();
        assert!(differing.is_empty(), "{about}, {what}: {differing:?}");
        assert_eq!(target.names(), names, "{about}, {what}");
    };
    compare("after the end");
    // The record is read by the user afterwards.
    let id = format!("worker-{}", place.count());
    let store = place.path("store");
    let cache = format!("XDG_CACHE_HOME={}", place.path("cache").display());
    for words in [&["changes", &id][..], &["cat", &format!("workers/{id}/summary")]] {
        let program = ["env", &cache, swarmletfs()];
        let words = [&program, words, &["--store", store.to_str().unwrap()]].concat();
        let output = place.plain(&words);
        assert!(output.status.code().is_some_and(|code| code < 3), "{about}: {output:?}");
        assert!(!text(&output.stderr).contains("panicked"), "{about}: {output:?}");
    }
    compare("after the record was shown");
    for folder in ["/tmp", "/dev/shm"] {
        assert!(!Path::new(folder).join(&target.marker).exists(), "{about}: {folder}");
    }
    let mark = target.marker[target.marker.len() - 9..].to_owned();
    await_that("all processes end", || processes_with(&mark).is_empty());
    assert!(target.victim.try_wait().unwrap().is_none(), "{about}: the victim ended");
}

/// Promise: No sequence of attacks from inside a sandbox changes the workspace, the store, another
/// worker or any file outside, and no process outlives it.
#[test]
fn random_attacks_change_nothing_outside() {
    for_each_user(|place| {
        seeds(SEQUENCES).for_each(|seed| check(place, seed));
    });
}

/// Without this, an attack that has no effect anywhere would prove nothing.
#[test]
fn each_attack_succeeds_without_a_sandbox() {
    let place = Place::of_user();
    let target = Target::new(&place);
    let context = target.context(false);
    let listed = text(&place.plain(&["python3", "-c", SCRIPT, &context, "list"]).stdout);
    assert!(listed.lines().count() > 35, "{listed}");
    drop(target);
    for name in listed.lines() {
        let place = Place::of_user();
        let target = Target::new(&place);
        let context = target.context(false);
        let words = ["python3", "-c", SCRIPT, &context, "only", name];
        let namespace =
            ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"];
        let needs_namespace = ["uncover_the_store_by_a_bind", "mount_over_the_home"];
        let namespace = if needs_namespace.contains(&name) { &namespace[..] } else { &[] };
        let output = place.plain(&[namespace, &words].concat());
        assert_eq!(text(&output.stdout), "done\n", "{name}: {output:?}");
    }
}
