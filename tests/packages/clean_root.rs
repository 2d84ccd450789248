//! The package built from the program under test, and a Debian root to install it in.
//!
//! The root is the lower layer of an overlay in memory. It has its own mounts and processes: ending
//! the first process ends every server and mount in it, even a hung one.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::cli::program::{CommandOutput, is_root, program, run, small_store};
use crate::support::TestStore;
use crate::support::tool::is_here;
use crate::support::{fuse_is_here, skip};

/// Time for the root to start.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Time for all processes in the root to end.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Builds an overlay over `$1` in `$2` with the package `$3` and the store `$4`, and waits in it.
const ENTER: &str = r#"
mount -t tmpfs none "$2"
cd "$2"
mkdir upper work root
mount -t overlay -o "lowerdir=$1,upperdir=upper,workdir=work" none root
mount -t proc none root/proc
mknod -m 666 root/dev/fuse c 10 229
mkdir root/srv/swarm
mount --bind "$4" root/srv/swarm
cp "$3" root/swarmletfs.deb
exec chroot root sleep infinity
"#;

/// Boots systemd in an overlay over `$1`, with the package `$3` and the store `$4`, in a control
/// group called `$2`.
const BOOT: &str = r#"
keep=
if [ ! -d /run/systemd/system ]; then
    keep=--keep-unit
    for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
        [ -e "$hierarchy/cgroup.procs" ] || continue
        mkdir "$hierarchy/$2"
        echo $$ > "$hierarchy/$2/cgroup.procs"
    done
fi
exec systemd-nspawn --quiet --directory "$1" --volatile=overlay --machine "$2" --register=no $keep \
    --boot --console=pipe --timezone=off --link-journal=no --bind=/dev/fuse --bind=/dev/autofs \
    --bind-ro="$3:/swarmletfs.deb" --bind="$4:/srv/swarm"
"#;

/// A fresh Debian root without fuse3, with the package in `/swarmletfs.deb` and a store of one
/// worker of owner 7 in `/srv/swarm`.
pub struct CleanRoot {
    keeper: Child,
    /// Number of the first process in the root, outside its namespace.
    pid: u32,
    /// Name of its control group, if it was booted.
    group: String,
    _store: TestStore,
    _dir: tempfile::TempDir,
}

impl CleanRoot {
    /// Enters a root in which nothing runs. Prints a skip and returns `None` if that is not
    /// possible here.
    pub fn enter() -> Option<CleanRoot> {
        CleanRoot::start(ENTER, |root| root.run("test -e /swarmletfs.deb"))
    }

    /// Boots a root with systemd. Prints a skip and returns `None` if that is not possible here.
    pub fn boot() -> Option<CleanRoot> {
        if !is_here("systemd-nspawn") {
            return None;
        }
        CleanRoot::start(BOOT, |root| root.run("systemctl is-system-running --wait"))
    }

    fn start(script: &str, is_ready: impl Fn(&CleanRoot) -> CommandOutput) -> Option<CleanRoot> {
        let lower = debian_root()?;
        if !is_root() || !fuse_is_here("packages") || !can_be_built() {
            return None;
        }
        let (dir, store) = (tempfile::tempdir().unwrap(), small_store());
        let group = format!("swarmletfs-{}", dir.path().file_name()?.to_str()?.replace('.', ""));
        let place = if script == ENTER { dir.path().as_os_str() } else { OsStr::new(&group) };
        let mut command = program("unshare", ["--mount", "--pid", "--fork", "--kill-child"]);
        command.args(["--mount-proc", "bash", "-euc", script, "bash"]);
        command.arg(&lower).arg(place).arg(package()).arg(store.path());
        let log = fs::File::create(dir.path().join("log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let mut root =
            CleanRoot { keeper: command.spawn().unwrap(), pid: 0, group, _store: store, _dir: dir };
        let begun = Instant::now();
        while !root.find_first_process(script == BOOT) || is_ready(&root).code != Some(0) {
            let log = || fs::read_to_string(root._dir.path().join("log")).unwrap();
            let ended = root.keeper.try_wait().unwrap();
            assert!(ended.is_none(), "the root ended with {ended:?}: {}", log());
            assert!(begun.elapsed() < START_LIMIT, "the root did not start: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(root)
    }

    /// Finds the first process in the root, whose parent is systemd-nspawn if it is `booted`.
    fn find_first_process(&mut self, booted: bool) -> bool {
        let first = child_of(self.keeper.id());
        let found = if booted { first.and_then(child_of) } else { first };
        self.pid = found.unwrap_or(0);
        found.is_some()
    }

    /// Runs a script with bash in the root, to its first error.
    #[track_caller]
    pub fn run(&self, script: &str) -> CommandOutput {
        let mut command = program("nsenter", ["--all", "--target", &self.pid.to_string()]);
        command.arg(format!("--root=/proc/{}/root", self.pid)).arg("--wdns=/");
        command.args(["env", "-i", "HOME=/root", "LC_ALL=C.UTF-8", "TERM=dumb"]);
        command.args(["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "bash", "-euo", "pipefail", "-c"]);
        command.arg(script);
        run(command)
    }

    /// Runs a script, which succeeds, and returns its output.
    #[track_caller]
    pub fn output(&self, script: &str) -> String {
        let done = self.run(script);
        assert_eq!(done.code, Some(0), "{script}: {done:#?}");
        done.out
    }

    /// Returns the mountpoints of all swarmletfs mounts in the root, one a line.
    #[track_caller]
    pub fn mounts(&self) -> String {
        self.output("findmnt --noheadings --raw --output TARGET --types fuse.swarmletfs || :")
    }

    /// Installs the package.
    #[track_caller]
    pub fn install(&self) {
        self.output("dpkg --install /swarmletfs.deb");
    }
}

impl Drop for CleanRoot {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
        let groups = ["", "systemd", "unified"]
            .map(|hierarchy| Path::new("/sys/fs/cgroup").join(hierarchy).join(&self.group));
        // A group cannot be removed before its last process has ended.
        let begun = Instant::now();
        while groups.iter().any(|group| group.exists()) && begun.elapsed() < END_LIMIT {
            for group in groups.iter().filter(|group| group.exists()) {
                let mut remove = Command::new("find");
                remove.arg(group).args(["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"]);
                let _ = remove.stderr(Stdio::null()).status();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns the first child of a process.
fn child_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Returns the directory of what Cargo builds.
pub fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
}

/// Returns the root of the source tree.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the Debian root that scripts/setup --all makes. Without one, reports a skip.
fn debian_root() -> Option<PathBuf> {
    let root = target().join("debian-root");
    if !root.with_extension("content").exists() {
        skip("no Debian root to install in: scripts/setup --all makes it as root on Debian");
        return None;
    }
    Some(root)
}

/// Returns the package of the program under test.
pub fn package() -> &'static Path {
    static PACKAGE: OnceLock<PathBuf> = OnceLock::new();
    PACKAGE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (own, file) = (format!("{}.deb", std::process::id()), folder.join("swarmletfs.deb"));
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let mut command = Command::new(root().join("scripts/package"));
        command.args(["--profile", profile, "--no-build", "--quiet", "--output"]);
        command.arg(folder.join(&own)).args(["--fast", "-Z", "gz"]);
        let done = command.stdin(Stdio::null()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        // Another process may use the last one.
        fs::rename(folder.join(own), &file).unwrap();
        file
    })
}

/// Returns true if cargo deb and the tools that it runs are there. Otherwise reports a skip.
pub fn can_be_built() -> bool {
    if !target().join("tools/bin/cargo-deb").exists() {
        skip("cargo-deb is not installed: scripts/setup --all installs it");
        return false;
    }
    is_here("dpkg-deb") && is_here("dpkg-shlibdeps")
}
