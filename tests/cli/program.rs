//! Runs commands with a time limit, and cleans up mounts after each test.

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
use crate::support::patience;
use crate::support::skip;

/// Time limit of a command.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Returns a command that runs the program with these arguments in `/`, without variables that
/// choose a store.
pub fn swarmletfs<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    program(PROGRAM, arguments)
}

/// Returns a command that runs another program in `/`, without variables that choose a store.
pub fn program<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").stdin(Stdio::null());
    for variable in ["SWARMLET_STORE", "SWARMLET_DATA_PATH", "SWARMLETFS_LOG", "XDG_RUNTIME_DIR"] {
        command.env_remove(variable);
    }
    command
        .env("XDG_CACHE_HOME", CACHES)
        .env("XDG_CONFIG_HOME", CACHES)
        .env("XDG_STATE_HOME", CACHES);
    command
}

/// Output and exit code of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl CommandOutput {
    /// Asserts this exit code and a message that contains all of `named`.
    #[track_caller]
    pub fn assert_failure(&self, code: i32, named: &[&str]) -> &CommandOutput {
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
    pub fn assert_success(&self) -> &CommandOutput {
        assert_eq!(self.code, Some(0), "{self:#?}");
        check_printable(&self.err);
        self
    }
}

/// Asserts that the text has no control, bidirectional or invisible characters.
#[track_caller]
pub fn check_printable(text: &str) {
    let bad = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(c, '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}')
    };
    assert!(!text.contains(bad), "{text:?}");
}

/// Runs a command to its end. Panics after [`LIMIT`], which is longer in a soak.
#[track_caller]
pub fn run(mut command: Command) -> CommandOutput {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    command
        .stdout(fs::File::create(at("out")).unwrap())
        .stderr(fs::File::create(at("err")).unwrap());
    let mut child = command.spawn().unwrap();
    let Some(status) = wait_timeout(&mut child, patience(LIMIT)) else {
        let _ = child.kill();
        panic!(
            "{command:?} did not end in time: {}",
            String::from_utf8_lossy(&fs::read(at("err")).unwrap())
        );
    };
    // Strict: only UTF-8 may be printed.
    let text = |name: &str| String::from_utf8(fs::read(at(name)).unwrap()).unwrap();
    let done = CommandOutput { code: status.code(), out: text("out"), err: text("err") };
    assert_eq!(
        unannounced(done.err.lines(), &[]),
        [""; 0],
        "{command:?} logged a problem: {done:#?}"
    );
    let is_log = |argument: &OsStr| argument == "--log" || argument.as_bytes().starts_with(b"log=");
    let has_log = || command.get_args().any(is_log);
    let serves = command.get_program() == PROGRAM && done.err.contains(": mounted on ");
    assert!(
        !serves || has_log(),
        "{command:?} starts a server whose log is not checked: use `logged`"
    );
    done
}

/// Server logs, by mountpoint.
static LOGS: Mutex<Vec<(PathBuf, PathBuf)>> = Mutex::new(Vec::new());

/// Registers a log to be checked when the [`MountSandbox`] of `point` is dropped.
pub fn check_log_later(point: &Path, log: &Path) {
    LOGS.lock().unwrap().push((point.to_path_buf(), log.to_path_buf()));
}

/// Makes a command that mounts on `point` write a log, which is checked when its [`MountSandbox`]
/// is dropped.
pub fn with_log(mut command: Command, point: &Path) -> Command {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("{}-{}.log", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    check_log_later(point, &log);
    command.args(["-o", &format!("log={}", log.to_str().unwrap().replace(',', "\\,"))]);
    command
}

/// Waits for a child to exit; `None` if it has not after `limit`.
pub fn wait_timeout(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
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

/// Waits until `condition` holds. Panics after [`LIMIT`].
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "timed out waiting for: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Creates a store of one worker, `w1` of owner 7 in run 48.
pub fn small_store() -> TestStore {
    let store = TestStore::new();
    store.worker("w1", json!({"owner_id": 7, "run_id": 48})).call("w1", 1, "sh", "{\"ok\": true}");
    store.write("workers/w1/result.txt", "done");
    store
}

/// A temporary directory for mountpoints.
///
/// When it is dropped, everything mounted in it is unmounted and the servers are ended. The test
/// fails if one of them logged an unexpected warning.
pub struct MountSandbox {
    dir: tempfile::TempDir,
    announced: RefCell<Vec<String>>,
}

impl Default for MountSandbox {
    fn default() -> MountSandbox {
        MountSandbox::new()
    }
}

impl MountSandbox {
    pub fn new() -> MountSandbox {
        MountSandbox { dir: tempfile::tempdir().unwrap(), announced: RefCell::default() }
    }

    /// Expects that a server logs a warning that contains `text`.
    pub fn expect_warning(&self, text: &str) {
        self.announced.borrow_mut().push(text.to_owned());
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap()
    }

    pub fn at(&self, name: impl AsRef<[u8]>) -> PathBuf {
        self.path().join(OsStr::from_bytes(name.as_ref()))
    }

    /// Creates a directory in the sandbox.
    pub fn folder(&self, name: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for MountSandbox {
    fn drop(&mut self) {
        let inside = |point: &PathBuf| point.starts_with(self.dir.path());
        let points: Vec<PathBuf> =
            mounted().into_iter().map(|(point, _)| point).filter(inside).collect();
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
        let own =
            LOGS.lock().unwrap().extract_if(.., |(point, _)| inside(point)).collect::<Vec<_>>();
        for (point, log) in own {
            let text = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
            let _ = fs::remove_file(log);
            let trouble = unannounced(text.lines(), &self.announced.borrow());
            assert!(
                trouble.is_empty() || thread::panicking(),
                "the server of {point:?} logged: {trouble:#?}"
            );
        }
    }
}

/// Returns all mounts as mountpoint and type, in the order of the kernel's table.
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
        if let Some(code) =
            octal.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 8).ok())
        {
            out.push(code);
            rest = &after[3..];
        } else {
            out.push(*byte);
            rest = after;
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// Returns the number of swarmletfs mounts at `point`.
pub fn mount_count_at(point: &Path) -> usize {
    mounted().iter().filter(|(at, kind)| at == point && kind == "fuse.swarmletfs").count()
}

/// Returns the background servers whose mountpoint satisfies `wanted`.
pub fn servers(wanted: impl Fn(&Path) -> bool) -> Vec<rustix::process::Pid> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap() {
        let entry = entry.unwrap();
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
        let arguments: Vec<&[u8]> =
            line.strip_suffix(b"\0").unwrap_or(&line).split(|b| *b == 0).collect();
        let serves = arguments.first() == Some(&PROGRAM.as_bytes())
            && arguments.contains(&&b"--__serve"[..]);
        if serves
            && arguments.last().is_some_and(|point| wanted(Path::new(OsStr::from_bytes(point))))
        {
            found.extend(rustix::process::Pid::from_raw(pid));
        }
    }
    found
}

/// Mounts in the background; `more` are additional arguments.
#[track_caller]
pub fn mount(store: &Path, point: &Path, more: &[&str]) -> CommandOutput {
    let mut command = swarmletfs(["mount"]);
    if !more.contains(&"--log") {
        command = with_log(command, point);
    }
    command.args(more).arg("--store").arg(store).arg("--").arg(point);
    run(command)
}

/// Unmounts with `swarmletfs umount`; `more` are additional arguments.
#[track_caller]
pub fn umount(point: &Path, more: &[&str]) -> CommandOutput {
    let mut command = swarmletfs(["umount"]);
    command.args(more).arg("--").arg(point);
    run(command)
}

/// Mounts in the foreground and returns once it is mounted.
#[track_caller]
pub fn mount_in_foreground(store: &Path, point: &Path, log: &Path) -> Child {
    check_log_later(point, log);
    let mut command = swarmletfs(["mount", "--foreground", "--store"]);
    command.arg(store).arg(point).stdout(Stdio::null()).stderr(fs::File::create(log).unwrap());
    let mut child = command.spawn().unwrap();
    wait_until("a mount in the foreground", || {
        assert!(child.try_wait().unwrap().is_none(), "{}", fs::read_to_string(log).unwrap());
        fs::read_to_string(log).unwrap().contains("mounted on")
    });
    child
}

/// Bind-mounts a directory. Prints a skip and returns `None` if that is not permitted.
pub fn bind(from: &Path, to: &Path) -> Option<()> {
    let done = rustix::mount::mount_bind(from, to);
    if let Err(errno) = done {
        skip(&format!("a bind mount is not permitted here: {errno}"));
    }
    done.ok()
}

/// A bind mount outside a [`MountSandbox`], unmounted when dropped.
pub struct Bound(PathBuf);

impl Bound {
    /// Bind-mounts a directory like [`bind`].
    pub fn new(from: &Path, to: &Path) -> Option<Bound> {
        bind(from, to).map(|()| Bound(to.to_path_buf()))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
}

/// Mounts an empty tmpfs. Prints a skip and returns `None` if that is not permitted.
pub fn tmpfs(at: &Path) -> Option<()> {
    let done = rustix::mount::mount("none", at, "tmpfs", MountFlags::empty(), None);
    if let Err(errno) = done {
        skip(&format!("mounting a tmpfs is not permitted here: {errno}"));
    }
    done.ok()
}

/// Returns true for root; prints a skip otherwise.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("this test needs root");
    }
    root
}

/// Returns the command prefixed with one that drops all privileges.
pub fn without_privileges<'a>(command: &[&'a OsStr]) -> Vec<&'a OsStr> {
    let nobody =
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"];
    nobody.iter().map(|word| OsStr::new(*word)).chain(command.iter().copied()).collect()
}

/// Makes a private directory accessible to other users.
pub fn make_accessible(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
}
