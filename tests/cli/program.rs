//! Commands with a limit, and yards for their mountpoints in which nothing stays mounted.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::json;

use crate::support::TestStore;
use crate::support::log::unannounced;
use crate::support::mount::{CACHES, PROGRAM};
use crate::support::skip;

/// No command may take longer.
pub const LIMIT: Duration = Duration::from_secs(10);

/// The program with these arguments, in `/`, with nothing in its environment that chooses for it.
pub fn typed<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    plain(PROGRAM, arguments)
}

/// Another program likewise.
pub fn plain<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").stdin(Stdio::null());
    for variable in ["SWARMLET_DATA_PATH", "SWARMLETFS_LOG", "XDG_RUNTIME_DIR"] {
        command.env_remove(variable);
    }
    command.env("XDG_CACHE_HOME", CACHES);
    command
}

/// What came of a command.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Done {
    /// Refused with this exit code, in words that hold all of `named`.
    #[track_caller]
    pub fn refused(&self, code: i32, named: &[&str]) -> &Done {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(self.err.starts_with("swarmletfs: ") && self.err.ends_with('\n'), "{self:#?}");
        assert!(!self.err.contains("panicked"), "{self:#?}");
        for text in named {
            assert!(self.err.contains(text), "{text} is not in {self:#?}");
        }
        check_printable(&self.err);
        self
    }

    #[track_caller]
    pub fn fine(&self) -> &Done {
        assert_eq!(self.code, Some(0), "{self:#?}");
        check_printable(&self.err);
        self
    }
}

/// Nothing in it moves a cursor, reverses a line, is invisible or is not text.
#[track_caller]
pub fn check_printable(text: &str) {
    let bad = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(c, '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}')
    };
    assert!(!text.contains(bad), "{text:?}");
}

/// Runs to the end. Fails after [`LIMIT`].
#[track_caller]
pub fn run(mut command: Command) -> Done {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    command.stdout(fs::File::create(at("out")).unwrap()).stderr(fs::File::create(at("err")).unwrap());
    let mut child = command.spawn().unwrap();
    let Some(status) = ended(&mut child, LIMIT) else {
        let _ = child.kill();
        panic!("{command:?} did not end in time: {}", String::from_utf8_lossy(&fs::read(at("err")).unwrap()));
    };
    // Strict: what is not UTF-8 must not be printed.
    let text = |name: &str| String::from_utf8(fs::read(at(name)).unwrap()).unwrap();
    let done = Done { code: status.code(), out: text("out"), err: text("err") };
    assert_eq!(unannounced(done.err.lines(), &[]), [""; 0], "{command:?} said: {done:#?}");
    let is_log = |argument: &OsStr| argument == "--log" || argument.as_bytes().starts_with(b"log=");
    let has_log = || command.get_args().any(is_log);
    let serves = command.get_program() == PROGRAM && done.err.contains(": mounted on ");
    assert!(!serves || has_log(), "{command:?} serves without a log that is looked through: see `logged`");
    done
}

/// The logs of servers, by the mountpoint that each serves.
static LOGS: Mutex<Vec<(PathBuf, PathBuf)>> = Mutex::new(Vec::new());

/// Has a log looked through at the end of the [`Yard`] that `point` is in.
pub fn look_through(point: &Path, log: &Path) {
    LOGS.lock().unwrap().push((point.to_path_buf(), log.to_path_buf()));
}

/// Has a command that mounts on `point` write a log, which is looked through at the end of the [`Yard`].
pub fn logged(mut command: Command, point: &Path) -> Command {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("{}-{}.log", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    look_through(point, &log);
    command.args(["-o", &format!("log={}", log.to_str().unwrap().replace(',', "\\,"))]);
    command
}

/// How a child ended; `None` if it has not when `limit` is over.
pub fn ended(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if begun.elapsed() > limit {
            return None;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until `condition` holds. Fails after [`LIMIT`].
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "not in time: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A store of one worker, `w1` of owner 7 in run 48.
pub fn small_store() -> TestStore {
    let store = TestStore::new();
    store.worker("w1", json!({"owner_id": 7, "run_id": 48})).call("w1", 1, "sh", "{\"ok\": true}");
    store.write("workers/w1/result.txt", "done");
    store
}

/// A folder for mountpoints. When it is dropped, whatever is mounted in it is taken down, whoever serves it ends, and
/// the test fails if one of them logged a warning that was not announced.
pub struct Yard {
    dir: tempfile::TempDir,
    announced: RefCell<Vec<String>>,
}

impl Default for Yard {
    fn default() -> Yard {
        Yard::new()
    }
}

impl Yard {
    pub fn new() -> Yard {
        Yard { dir: tempfile::tempdir().unwrap(), announced: RefCell::default() }
    }

    /// Announces that a server will log a warning with `text` in it.
    pub fn expect_warning(&self, text: &str) {
        self.announced.borrow_mut().push(text.to_owned());
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap()
    }

    pub fn at(&self, name: impl AsRef<[u8]>) -> PathBuf {
        self.path().join(OsStr::from_bytes(name.as_ref()))
    }

    /// Makes a folder in it.
    pub fn folder(&self, name: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        let inside = |point: &PathBuf| point.starts_with(self.dir.path());
        let points: Vec<PathBuf> = mounted().into_iter().map(|(point, _)| point).filter(inside).collect();
        for point in points.iter().rev() {
            let _ = rustix::mount::unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        let begun = Instant::now();
        loop {
            let servers = servers(|point| point.starts_with(self.dir.path()));
            if servers.is_empty() {
                break;
            }
            if begun.elapsed() > Duration::from_secs(5) {
                for pid in servers {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let own = LOGS.lock().unwrap().extract_if(.., |(point, _)| inside(point)).collect::<Vec<_>>();
        for (point, log) in own {
            let text = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
            let _ = fs::remove_file(log);
            let trouble = unannounced(text.lines(), &self.announced.borrow());
            assert!(trouble.is_empty() || thread::panicking(), "the server of {point:?} logged: {trouble:#?}");
        }
    }
}

/// What is mounted: mountpoint and type, in the order of the kernel's table.
pub fn mounted() -> Vec<(PathBuf, String)> {
    let table = fs::read("/proc/self/mountinfo").unwrap();
    let parse = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        let kind = fields.iter().position(|field| *field == b"-")? + 1;
        Some((unescaped(fields.get(4)?), String::from_utf8_lossy(fields.get(kind)?).into_owned()))
    };
    table.split(|b| *b == b'\n').filter_map(parse).collect()
}

fn unescaped(field: &[u8]) -> PathBuf {
    let mut out = Vec::new();
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *byte == b'\\');
        if let Some(code) = octal.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 8).ok()) {
            out.push(code);
            rest = &after[3..];
        } else {
            out.push(*byte);
            rest = after;
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// How many mounts of ours are at `point`.
pub fn ours_at(point: &Path) -> usize {
    mounted().iter().filter(|(at, kind)| at == point && kind == "fuse.swarmletfs").count()
}

/// The processes that serve in the background on mountpoints for which `wanted` holds.
pub fn servers(wanted: impl Fn(&Path) -> bool) -> Vec<rustix::process::Pid> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap() {
        let entry = entry.unwrap();
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
        let arguments: Vec<&[u8]> = line.strip_suffix(b"\0").unwrap_or(&line).split(|b| *b == 0).collect();
        let serves = arguments.first() == Some(&PROGRAM.as_bytes()) && arguments.contains(&&b"--__serve"[..]);
        if serves && arguments.last().is_some_and(|point| wanted(Path::new(OsStr::from_bytes(point)))) {
            found.extend(rustix::process::Pid::from_raw(pid));
        }
    }
    found
}

/// Mounts in the background; `more` are further arguments.
#[track_caller]
pub fn mount(store: &Path, point: &Path, more: &[&str]) -> Done {
    let mut command = typed(["mount"]);
    if !more.contains(&"--log") {
        command = logged(command, point);
    }
    command.args(more).arg("--store").arg(store).arg("--").arg(point);
    run(command)
}

/// Unmounts as a user would.
#[track_caller]
pub fn umount(point: &Path, more: &[&str]) -> Done {
    let mut command = typed(["umount"]);
    command.args(more).arg("--").arg(point);
    run(command)
}

/// Mounts in the foreground and returns when it is mounted.
#[track_caller]
pub fn in_foreground(store: &Path, point: &Path, log: &Path) -> Child {
    look_through(point, log);
    let mut command = typed(["mount", "--foreground", "--store"]);
    command.arg(store).arg(point).stdout(Stdio::null()).stderr(fs::File::create(log).unwrap());
    let mut child = command.spawn().unwrap();
    wait_until("a mount in the foreground", || {
        assert!(child.try_wait().unwrap().is_none(), "{}", fs::read_to_string(log).unwrap());
        fs::read_to_string(log).unwrap().contains("mounted on")
    });
    child
}

/// Binds a folder to another place. `None`, said aloud, where that is not permitted.
pub fn bind(from: &Path, to: &Path) -> Option<()> {
    let done = rustix::mount::mount_bind(from, to);
    if let Err(errno) = done {
        skip(&format!("a bind mount is not permitted here: {errno}"));
    }
    done.ok()
}

/// A bind mount that ends with its value, for places outside of a [`Yard`].
pub struct Bound(PathBuf);

impl Bound {
    /// See [`bind`].
    pub fn new(from: &Path, to: &Path) -> Option<Bound> {
        bind(from, to).map(|()| Bound(to.to_path_buf()))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
}

/// Mounts an empty tmpfs. `None`, said aloud, where that is not permitted.
pub fn tmpfs(at: &Path) -> Option<()> {
    let done = rustix::mount::mount("none", at, "tmpfs", MountFlags::empty(), None);
    if let Err(errno) = done {
        skip(&format!("mounting a tmpfs is not permitted here: {errno}"));
    }
    done.ok()
}

/// Whether this is root. Said aloud if not.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("this test needs root");
    }
    root
}

/// The same command without any right of root's.
pub fn as_nobody<'a>(command: &[&'a OsStr]) -> Vec<&'a OsStr> {
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"];
    nobody.iter().map(|word| OsStr::new(*word)).chain(command.iter().copied()).collect()
}

/// Lets everyone through a folder that is for its maker alone.
pub fn open_up(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
}
