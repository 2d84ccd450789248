//! Serves until the mount ends, by an unmount or by a signal to this process, in the foreground or
//! in the background.
//!
//! SIGTERM and SIGINT unmount. SIGHUP unmounts in the foreground, where the terminal is gone; in
//! the background it is ignored. A mount in use is detached, and its users get a moment to finish.
//!
//! Once a second, the session checks whether a store's directory was replaced by another one. The
//! roots were opened once, and the serving threads may read nothing else. So the new store is
//! opened, read and mounted in place of the old one, which stays available to processes that have
//! it open.
//!
//! Two processes serve in the background, without a fork. The parent runs this program again,
//! writes the mount options to its stdin, and waits for a report. The child mounts, leaves the
//! terminal's session, and reports over its stdout: a mark byte, then a text. The parent returns
//! once the mount answers. If the parent has exited before the report, the child unmounts again.
//!
//! The limit of open files is raised, and the allocator gets few arenas.
//!
//! The stores of a served mount can be attached, detached and replaced.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{error, info, warn};

use super::control::{ControlSocket, StoreChange};
use super::mount_options::MountOptions;
use super::mountinfo::{FolderIdentity, Mount, MountTable};
use super::mountpoint::{self, check_apart, identify_store, is_dead, read_mount_table};
use super::plan::{MountContent, MountedSession, Plan};
use super::teardown::{self, HeldMount, UnmountMode, unmount, unmount_or_detach};
use super::terminal::{display_path, escape_controls, print_message};
use super::{log, probe};
use crate::fuse::{Session, catch_panic};
use crate::store::is_object_url;

/// Time for a session to end after its mount is detached.
const SESSION_END_TIMEOUT: Duration = Duration::from_secs(2);
const REPLACEMENT_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Reads the stores, mounts, calls `ready` with a description of the mount, and serves until the
/// mount ends. Unmounts if `ready` fails.
pub(super) fn serve(plan: Plan, ready: impl FnOnce(&str) -> io::Result<()>) -> anyhow::Result<()> {
    raise_open_files();
    let content = plan.read()?;
    let description = content.description.clone();
    let signals = catch_signals()?;
    let (mountpoint, foreground) = (plan.mountpoint.clone(), plan.options.foreground);
    let mounted = plan.mount(content)?;
    let live = LiveMount::new(plan, mounted);
    if let Err(error) = ready(&description) {
        let _ = unmount(&mountpoint, UnmountMode::Detached);
        live.place().lock().socket = None;
        return Err(error.into());
    }
    run_until_unmounted(&live, signals, foreground)
}

/// Starts to queue signals for [`run_until_unmounted`], so that a signal during mounting leaves no
/// mount behind.
fn catch_signals() -> anyhow::Result<Signals> {
    Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot watch for signals")
}

/// Waits until the session ends. Mounts again when a store was replaced.
fn run_until_unmounted(live: &LiveMount, signals: Signals, foreground: bool) -> anyhow::Result<()> {
    let place = live.place();
    let signal_place = place.clone();
    let started = std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || exit_on_signal(signals, &signal_place, foreground));
    if let Err(error) = started {
        unmount_device(&place.lock().device)?;
        return Err(error).context("cannot watch for signals");
    }
    while !live.has_ended(REPLACEMENT_POLL_INTERVAL) {
        live.remount_if_replaced()?;
    }
    let mut place = place.lock();
    place.socket = None;
    clear(&place.device)
}

/// Waits for a signal that ends the mount, unmounts and exits. SIGHUP ends it only in the
/// `foreground`.
fn exit_on_signal(mut signals: Signals, place: &Mutex<MountPlace>, foreground: bool) {
    for signal in signals.forever() {
        if signal != SIGHUP || foreground {
            info!(signal, "unmounting because of a signal");
            let unmounted = {
                let mut place = place.lock();
                place.socket = None;
                unmount_device(&place.device)
            };
            // With the place unlocked, the process ends as soon as the session does.
            std::process::exit(end(unmounted));
        }
    }
}

/// Removes the dead mount that an aborted connection leaves behind.
fn clear(device: &str) -> anyhow::Result<()> {
    for mount in MountTable::read()?.with_device(device) {
        if let Err(error) = clear_at(&mount.point, device) {
            error!(mountpoint = display_path(&mount.point), %error, "cannot clear the mount");
        }
    }
    Ok(())
}

/// Removes a dead mount of `device` at `point`.
///
/// The kernel reuses device numbers at once, possibly for the same mountpoint. A mount that answers
/// is therefore another one.
fn clear_at(point: &Path, device: &str) -> io::Result<()> {
    let Some(held) = HeldMount::pin(point, device)? else { return Ok(()) };
    if probe::check_alive(point).is_err_and(|error| is_dead(&error)) {
        held.detach()?;
    }
    Ok(())
}

/// Waits for an unmounted session to end by itself. Returns the exit code to use if it does not.
fn end(unmounted: io::Result<()>) -> i32 {
    if let Err(error) = unmounted {
        error!(%error, "cannot unmount");
        print_message(&format!("cannot unmount: {error}"));
        return 1;
    }
    std::thread::sleep(SESSION_END_TIMEOUT);
    0
}

fn unmount_device(device: &str) -> io::Result<()> {
    let mounts = MountTable::read()?;
    mounts.with_device(device).try_for_each(|mount| {
        if mounts.at(&mount.point).is_some_and(|top| top.device != device) {
            let covered =
                format!("another file system is mounted over it on {}", display_path(&mount.point));
            return Err(io::Error::other(covered));
        }
        unmount_or_detach(&mount.point)
    })
}

/// Mark of a report that the mount is up; the text describes it.
pub(super) const READY: u8 = b'+';

/// Mark of a report that mounting failed; the text gives the reason.
pub(super) const FAILED: u8 = b'-';

/// Mounts in a child process and returns a description of the mount once it answers.
///
/// # Errors
///
/// Fails if the child cannot be started or cannot mount. No mount is left behind.
pub(super) fn start_in_background(plan: &Plan) -> anyhow::Result<String> {
    let options =
        postcard::to_stdvec(&plan.options).context("cannot encode the options of the mount")?;
    let mut child =
        Command::new(std::env::current_exe().context("cannot find the path of this program")?)
            .args(["mount", "--__serve", "--"])
            .arg(&plan.mountpoint)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the background process")?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that cannot read them reports why, or ends without a report.
        let _ = stdin.write_all(&options);
    }
    let mut report = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout
            .read_to_end(&mut report)
            .context("cannot read the report of the background process")?;
    }
    match report.split_first() {
        Some((&READY, text)) => {
            check_readable(&plan.mountpoint)
                .inspect_err(|_| end_child(&mut child, &plan.mountpoint))?;
            Ok(String::from_utf8_lossy(text).into_owned())
        }
        Some((&FAILED, text)) => bail!("{}", escape_controls(&String::from_utf8_lossy(text))),
        _ => {
            let status = child.wait()?;
            let cleanup_error =
                mountpoint::clear_dead(&plan.mountpoint).err().map(|error| format!("; {error:#}"));
            bail!(
                "the background process ended without a report ({status}){}",
                cleanup_error.unwrap_or_default()
            )
        }
    }
}

/// Checks that a new mount can be read.
///
/// # Errors
///
/// Fails if README.md of the mount cannot be read in time.
pub(super) fn check_readable(mountpoint: &Path) -> anyhow::Result<()> {
    probe::check_readable(&mountpoint.join("README.md")).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::TimedOut => {
                format!("did not answer within {} seconds", probe::MOUNT_TIMEOUT.as_secs())
            }
            _ => format!("cannot be read ({error})"),
        };
        anyhow::anyhow!(
            "{} was mounted, but its README.md {why}, so it was unmounted again; \
             `SWARMLETFS_LOG=debug swarmletfs mount --foreground` shows what happens",
            display_path(mountpoint),
        )
    })
}

fn end_child(child: &mut Child, mountpoint: &Path) {
    if let Err(error) = teardown::unmount(mountpoint, teardown::UnmountMode::Detached) {
        print_message(&format!("cannot unmount {}: {error}", display_path(mountpoint)));
    }
    let _ = child.kill();
}

/// Runs the child: mounts, reports, and serves.
pub(super) fn serve_in_background(mountpoint: PathBuf) -> anyhow::Result<()> {
    mount_and_serve(mountpoint).inspect_err(|error| {
        // After readiness, stdout and stderr are /dev/null.
        let _ = report(FAILED, format!("{error:#}").as_bytes());
        let _ = leave_terminal();
    })
}

fn mount_and_serve(mountpoint: PathBuf) -> anyhow::Result<()> {
    let plan = Plan::new(mountpoint, read_options()?)?;
    plan.start_log()?;
    serve(plan, |text| {
        // Not before it is mounted: an automount of systemd lets only its own process group through
        // until then. This fails only for a process group leader, which has already left its
        // terminal's session.
        let _ = rustix::process::setsid();
        report(READY, text.as_bytes())?;
        leave_terminal()
    })
}

fn read_options() -> anyhow::Result<MountOptions> {
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).context("cannot read the options of the mount")?;
    postcard::from_bytes(&bytes).context("cannot decode the options of the mount")
}

pub(super) fn report(mark: u8, text: &[u8]) -> io::Result<()> {
    let mut bytes = vec![mark];
    bytes.extend_from_slice(text);
    let mut stdout = io::stdout().lock();
    stdout.write_all(&bytes)?;
    stdout.flush()
}

/// Releases the parent's terminal, pipes and current directory.
fn leave_terminal() -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")
}

const ARENA_COUNT: &str = "MALLOC_ARENA_MAX";
/// Size in bytes from which an allocation gets its own mapping, which is returned to the system
/// when freed. Slightly above 1 MiB, so that the 1 MiB segments of the index, which are built
/// repeatedly, stay below it.
const MMAP_THRESHOLD: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "1114112");
/// Free bytes kept at the end of a heap. With glibc's default, they would be returned and requested
/// again with each render.
const TRIM_THRESHOLD: (&str, &str) = ("MALLOC_TRIM_THRESHOLD_", "4194304");
/// Address space limit in bytes below which only one arena is used. A second arena reserves 64 MiB,
/// which the buffers of the serving threads then lack.
const SMALL_ADDRESS_SPACE: u64 = 1 << 30;

/// Raises the limit on open files to its maximum: each worker file open through the mount needs one
/// descriptor.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        warn!("no more than {:?} files can be open at once: {error}", limit.current);
    }
}

/// Restarts this program with few malloc arenas and a fixed mmap threshold.
///
/// glibc gives each thread its own arena, and each arena keeps its peak memory. Together they hold
/// up to half as much again as is in use, and reserve 64 MiB of address space each, more than a
/// common limit allows.
///
/// By default, freeing a large mapping also raises the threshold, so later large allocations go to
/// the heaps and fragment them: a fifth of the memory for 100,000 workers. Both settings can only
/// be given to a new process.
pub(super) fn reexec_with_few_arenas() {
    if std::env::var_os(ARENA_COUNT).is_some() {
        return;
    }
    if let Ok(program) = std::env::current_exe() {
        let mut arguments = std::env::args_os();
        let mut command = Command::new(program);
        let short =
            getrlimit(Resource::As).current.is_some_and(|limit| limit < SMALL_ADDRESS_SPACE);
        let heaps = (ARENA_COUNT, if short { "1" } else { "2" });
        // Variables that the user set are kept.
        let unset = [heaps, MMAP_THRESHOLD, TRIM_THRESHOLD]
            .into_iter()
            .filter(|(name, _)| std::env::var_os(name).is_none());
        command.arg0(arguments.next().unwrap_or_default()).args(arguments).envs(unset);
        // `exec` returns only on failure; the program then continues with the defaults.
        let _ = command.exec();
    }
}

struct LiveMount {
    /// Locked while the stores change.
    served: Mutex<Served>,
    place: Arc<Mutex<MountPlace>>,
}

struct Served {
    plan: Plan,
    session: Arc<Session>,
    /// Error of the last attempt to serve a store that replaced another, if it failed.
    last_error: Option<String>,
}

struct MountPlace {
    /// Device of the mount (`major:minor`). Its mountpoint may be moved or covered at any time.
    pub(super) device: String,
    /// The socket for changes of the stores, if there can be one.
    pub(super) socket: Option<ControlSocket>,
}

impl LiveMount {
    pub(super) fn new(plan: Plan, mounted: MountedSession) -> Arc<LiveMount> {
        let MountedSession { session, device } = mounted;
        let place = MountPlace { device: device.clone(), socket: None };
        let live = Arc::new(LiveMount {
            served: Mutex::new(Served { plan, session: Arc::new(session), last_error: None }),
            place: Arc::new(Mutex::new(place)),
        });
        let shared = live.clone();
        match ControlSocket::start(&device, move |change| shared.handle(change)) {
            Ok(socket) => live.place.lock().socket = Some(socket),
            Err(error) => info!("no store can be attached or detached: {error}"),
        }
        live
    }

    /// Returns the place of the mount. It is locked while one mount replaces another, so that a
    /// signal then ends the new one.
    pub(super) fn place(&self) -> Arc<Mutex<MountPlace>> {
        self.place.clone()
    }

    /// Waits up to `limit` for the mount to end. Returns true if it has ended.
    pub(super) fn has_ended(&self, limit: Duration) -> bool {
        let session = self.served.lock().session.clone();
        session.has_ended(limit)
    }

    fn handle(&self, change: StoreChange) -> anyhow::Result<String> {
        match change {
            StoreChange::Attach(store) => self.attach(store),
            StoreChange::Detach(store) => self.detach(&store),
        }
    }

    fn attach(&self, store: PathBuf) -> anyhow::Result<String> {
        let mut served = self.served.lock();
        let Served { plan, session, .. } = &mut *served;
        let shown = display_path(&store);
        plan.check_stores_can_change()?;
        if !store.is_absolute() && !is_object_url(&store) {
            bail!("cannot attach {shown}: the path is not absolute");
        }
        let mounts = read_mount_table()?;
        let mut identities: Vec<FolderIdentity> = Vec::new();
        for known in &plan.options.stores {
            identify_store(known.clone(), &mut identities, &mounts)?;
        }
        let known = identities.len();
        let store = identify_store(store, &mut identities, &mounts)?;
        let Some(store) = store.filter(|store| !plan.options.stores.contains(store)) else {
            bail!("cannot attach {shown}: the mount shows it already");
        };
        let added = identities.split_off(known);
        let point = FolderIdentity::new(plan.mountpoint.clone(), &mounts);
        let point = point.with_context(|| format!("cannot attach {shown}"))?;
        check_apart(&point, &added)?;
        if let Some(log) = &plan.options.log {
            log::check_place(log, &added, &point)?;
        }
        let mut changed = plan.clone();
        changed.options.stores.push(store);
        let description =
            show(session, &changed).with_context(|| format!("cannot attach {shown}"))?;
        *plan = changed;
        Ok(format!("attached {shown}; the mount shows {description}"))
    }

    fn detach(&self, store: &Path) -> anyhow::Result<String> {
        let mut served = self.served.lock();
        let Served { plan, session, .. } = &mut *served;
        let shown = display_path(store);
        plan.check_stores_can_change()?;
        let stores = &plan.options.stores;
        // A store that is gone no longer has another name.
        let resolved = probe::resolve(store).unwrap_or_else(|_| store.to_path_buf());
        let Some(at) = stores.iter().position(|known| *known == resolved || known == store) else {
            let names: Vec<String> = stores.iter().map(|store| display_path(store)).collect();
            bail!(
                "cannot detach {shown}: the mount does not show it; it shows {}",
                names.join(", ")
            );
        };
        if stores.len() == 1 {
            bail!(
                "cannot detach {shown}: the mount shows no other store; attach another one first, or \
                 try `swarmletfs umount`"
            );
        }
        let mut changed = plan.clone();
        changed.options.stores.remove(at);
        let description =
            show(session, &changed).with_context(|| format!("cannot detach {shown}"))?;
        *plan = changed;
        Ok(format!("detached {shown}; the mount shows {description}"))
    }

    /// Mounts again if a store was replaced by another one. An invalid new store does not end the
    /// old mount.
    ///
    /// # Errors
    ///
    /// The old mount is gone, and the new one cannot be mounted.
    fn remount_if_replaced(&self) -> anyhow::Result<()> {
        let mut served = self.served.lock();
        let Served { plan, session, last_error } = &mut *served;
        if !session.is_replaced() {
            *last_error = None;
            return Ok(());
        }
        let read = catch_panic(|| plan.read())
            .unwrap_or_else(|| Err(anyhow!("reading the new store panicked")));
        let content = match read {
            Ok(content) => content,
            Err(error) => {
                let why = format!("{error:#}");
                if last_error.as_ref() != Some(&why) {
                    warn!(
                        "cannot serve the store that replaced the old one; the old one stays: {why}"
                    );
                    *last_error = Some(why);
                }
                return Ok(());
            }
        };
        let mut place = self.place.lock();
        let mounts = MountTable::read()?;
        let old: Vec<&Mount> = mounts.with_device(&place.device).collect();
        if old.is_empty() {
            // The user has just unmounted it.
            return Ok(());
        }
        old.iter().try_for_each(|mount| unmount(&mount.point, UnmountMode::Detached))?;
        let description = content.description.clone();
        let mounted = plan
            .mount(content)
            .context("the store was replaced, but the new one cannot be mounted")?;
        *session = Arc::new(mounted.session);
        if let Some(socket) = &mut place.socket {
            socket.rename(&mounted.device).context("cannot rename the socket of the mount")?;
        }
        place.device = mounted.device;
        info!("the store was replaced by another folder, which is now served: {description}");
        Ok(())
    }
}

/// Reads the stores of `plan` and shows them in the mount of `session`. Returns a description of
/// the mount.
fn show(session: &Session, plan: &Plan) -> anyhow::Result<String> {
    let MountContent { views, description } = plan.read()?;
    let mut views = views.into_iter();
    let shown = session.show(|tree| views.next().map(|view| tree.with_view(view)));
    shown.context("the system refuses more threads")?;
    Ok(description)
}
