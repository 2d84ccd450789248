//! Real mount in a temporary directory, with a watchdog: a hung mount would block even `ls` of its
//! parent.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::log::unannounced;
use super::scale::patience;

/// Time after which the watchdog ends the mount by force, multiplied by [`factor`]. Every waiting
/// client gets an error.
const WATCHDOG: Duration = Duration::from_secs(120);
/// Time limit for a mount to become ready.
const READY: Duration = Duration::from_secs(20);

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_swarmletfs");

/// Cache directory of the program, unless a test sets another.
pub const CACHES: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/caches");

/// Directory for the sockets of mounts.
pub const RUNTIME: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/runtime");

/// A mounted store. Dropping it unmounts, and fails the test if the program logged an unexpected
/// warning.
pub struct Mount {
    dir: tempfile::TempDir,
    child: Child,
    connection: u64,
    expected: Vec<String>,
    _alive: mpsc::Sender<()>,
}

impl Mount {
    /// Mounts the store at `store` in the foreground.
    pub fn new(store: &Path) -> Mount {
        Mount::with(store, &[])
    }

    /// Mounts `store` with more arguments.
    pub fn with(store: &Path, arguments: &[&str]) -> Mount {
        Mount::by(&[], store, arguments)
    }

    /// Mounts `store` with the program started by a wrapper command; `before` is the wrapper and
    /// its arguments.
    pub fn by(before: &[&str], store: &Path, arguments: &[&str]) -> Mount {
        Mount::of(|point| {
            let mut words = before.iter().map(OsStr::new).chain([OsStr::new(PROGRAM)]);
            let mut command = Command::new(words.next().unwrap());
            command
                .args(words)
                .args(["mount", "--foreground", "--store"])
                .arg(store)
                .args(arguments)
                .arg(point);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command
        })
    }

    /// Runs the command that `command` returns for a mountpoint. Its process must mount there and
    /// log to stderr.
    pub fn of(command: impl FnOnce(&Path) -> Command) -> Mount {
        let dir = tempfile::tempdir().unwrap();
        // Lets other users reach the mount, which checks their access itself.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let point = dir.path().join("mnt");
        fs::create_dir(&point).unwrap();
        let log = fs::File::create(dir.path().join("stderr")).unwrap();
        fs::create_dir_all(RUNTIME).unwrap();
        let child = command(&point)
            .env_remove("SWARMLETFS_LOG")
            .env("XDG_CACHE_HOME", CACHES)
            .env("XDG_RUNTIME_DIR", RUNTIME)
            .stderr(log)
            .spawn()
            .unwrap();
        let (alive, dropped) = mpsc::channel();
        let mut mount = Mount { dir, child, connection: 0, expected: Vec::new(), _alive: alive };
        mount.connection = mount.wait_until_ready();
        await_start(&mut mount.child);
        let point = mount.path();
        thread::spawn(move || {
            if dropped.recv_timeout(patience(WATCHDOG)) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("watchdog: a mount test took too long");
                end_by_force(&point);
            }
        });
        mount
    }

    /// Returns the mountpoint.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// Returns the path of an entry in the mount.
    pub fn at(&self, path: &str) -> PathBuf {
        self.path().join(path)
    }

    /// Reads a file in the mount.
    pub fn read(&self, path: &str) -> Vec<u8> {
        fs::read(self.at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Reads a text file in the mount.
    pub fn text(&self, path: &str) -> String {
        String::from_utf8(self.read(path)).unwrap()
    }

    /// Returns the sorted names in a directory of the mount.
    pub fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Runs a shell command with the mountpoint in `$M`.
    pub fn shell(&self, command: &str) -> Output {
        Command::new("bash")
            .args(["-c", command])
            .env("M", self.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs `attach` or `detach` with a store for this mount, and returns what it says.
    pub fn change_stores(&self, command: &str, store: &Path) -> String {
        let ran = run_on_mount(command, &self.path(), store);
        let said = String::from_utf8(ran.stderr).unwrap();
        assert!(ran.status.success() && ran.stdout.is_empty(), "{said}");
        said
    }

    /// Changes an option of the mount. Requires root.
    pub fn remount(&self, option: &str) {
        // -i: the helper mount.fuse does not support remount.
        let out = Command::new("mount")
            .args(["-i", "-o", &format!("remount,{option}")])
            .arg(self.path())
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }

    /// Makes the kernel drop every unused dentry, inode and page, as under memory pressure.
    pub fn forget(&self) {
        let flags =
            MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
        rustix::mount::mount_remount(self.path(), flags, "").unwrap();
    }

    /// Returns the process of the program.
    pub fn process(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Returns the process id of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Limits `resource` of the program to `most`.
    pub fn limit(&self, resource: Resource, most: u64) {
        limit(Pid::from_child(&self.child), resource, most);
    }

    /// Returns the targets of the program's open descriptors.
    pub fn descriptors(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        entries.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok()).collect()
    }

    /// Returns the FUSE connection number of the mount.
    pub fn connection(&self) -> u64 {
        self.connection
    }

    /// Announces a warning that contains `text`.
    pub fn expect_warning(&mut self, text: &str) {
        self.expected.push(text.to_owned());
    }

    /// Returns what the program wrote to stderr.
    pub fn log(&self) -> String {
        let mut text = Vec::new();
        fs::File::open(self.dir.path().join("stderr")).unwrap().read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    fn wait_until_ready(&mut self) -> u64 {
        let point = self.path();
        let begun = Instant::now();
        loop {
            if let Some(connection) = connection_at(&point) {
                return connection;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the mount ended with {ended:?}: {}", self.log());
            assert!(begun.elapsed() < READY, "the mount is not there: {}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the logged problems that were not announced. After byte `end` of the log the mount
    /// is being unmounted, so failed replies to requests in flight (readahead, release) are
    /// ignored.
    fn unexpected_lines(&self, end: usize) -> Vec<String> {
        let log = self.log();
        let (during, after) = log.split_at_checked(end).unwrap_or((&log, ""));
        let after = after.lines().filter(|line| !line.contains("Failed to send FUSE reply"));
        unannounced(during.lines().chain(after), &self.expected)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let before = self.log().len();
        let _ = rustix::mount::unmount(self.path(), UnmountFlags::DETACH);
        let begun = Instant::now();
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            if begun.elapsed() > Duration::from_secs(5) {
                end_by_force(&self.path());
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let unexpected = self.unexpected_lines(before);
        if !thread::panicking() {
            assert!(unexpected.is_empty(), "the program logged: {unexpected:#?}");
        }
    }
}

/// Runs `attach` or `detach` for the mount at `point`.
pub fn run_on_mount(command: &str, point: &Path, store: &Path) -> Output {
    Command::new(PROGRAM)
        .arg(command)
        .args([point, store])
        .env("XDG_RUNTIME_DIR", RUNTIME)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Waits until the program has checked its new mount and serves it, or has ended. Returns at once
/// for another program.
pub fn await_start(child: &mut Child) {
    let process = PathBuf::from(format!("/proc/{}", child.id()));
    let is_ours = || fs::read_link(process.join("exe")).is_ok_and(|exe| exe == Path::new(PROGRAM));
    let waits_for_signals = || {
        let tasks = fs::read_dir(process.join("task")).into_iter().flatten();
        // A thread may end meanwhile.
        let mut names =
            tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.any(|name| name.trim_end() == "signals")
    };
    let begun = Instant::now();
    while is_ours() && !waits_for_signals() && child.try_wait().is_ok_and(|ended| ended.is_none()) {
        assert!(begun.elapsed() < READY, "the mount is not served");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Limits `resource` of a process to `most`.
pub fn limit(process: Pid, resource: Resource, most: u64) {
    // Only the soft limit, because the hard limit cannot be raised again.
    let maximum = getrlimit(resource).maximum;
    prlimit(Some(process), resource, Rlimit { current: Some(most), maximum }).unwrap();
}

/// Ends the mount at `point` by force; every waiting client gets an error.
pub fn end_by_force(point: &Path) {
    let _ = rustix::mount::unmount(point, UnmountFlags::FORCE | UnmountFlags::DETACH);
}

/// Returns the connection number of the FUSE mount at `point`. Reads the mount table, because a
/// stat could hang.
pub fn connection_at(point: &Path) -> Option<u64> {
    // Lossy, because another mountpoint may have a name that is not UTF-8.
    let table = fs::read("/proc/self/mountinfo").unwrap();
    let table = String::from_utf8_lossy(&table);
    let wanted =
        fs::canonicalize(point.parent().unwrap()).unwrap().join(point.file_name().unwrap());
    let line = table.lines().find(|line| line.split(' ').nth(4).map(Path::new) == Some(&wanted))?;
    line.split(' ').nth(2)?.split_once(':')?.1.parse().ok()
}
