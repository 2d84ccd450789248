//! Chooses the engine and the isolation of a run, and prepares the command that is run in it.
//!
//! A trial of the sandbox starts six processes. So its success is kept in a file beside the drafts,
//! where no worker can write, with the facts that it depends on. If the sandbox fails later, the
//! run fails with the reason, and the file is removed.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use rustix::fs::{Access, access};

use super::environment::{EnvironmentRules, Needs, Variables};
use super::report::Reporter;
use super::{AccessArgs, EngineArg, RunArgs, StartPlace, resolve_socket, user};
use crate::cli::discover::state_folder;
use crate::cli::exit::UsageError;
use crate::cli::mount_options;
use crate::cli::run_command::find_program;
use crate::cli::terminal::{display_path, escape_controls};
use crate::cli::tree_commands::format::human_size;
use crate::cli::write_args::{STORE_VARIABLE, WORKER_VARIABLE};
use crate::draft::{Draft, Engine, LayerPaths};
use crate::error::Error;
use crate::name::{Name, RelPath};
use crate::sandbox::{
    self, LandlockLevel, LimitMethod, OverlayDirs, SandboxSpec, TrialView, WorkspaceView,
    WrappedCommand,
};
use crate::store::TEMPORARY_PREFIX;
use crate::text::count;
use crate::trace::swarmlet::{DRAFTS, WORKERS};
use swarmletfs_record::write::{Dir, Store, Worker};

const SSH_AGENT: &str = "SSH_AUTH_SOCK";

const TMPDIR: &str = "TMPDIR";

const PRIVATE_TMP: &str = "/tmp";

/// Free space of a disk below which a run is worth a warning, in bytes.
const LITTLE_SPACE: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Isolation {
    pub(super) engine: Engine,
    /// False with `--no-sandbox`.
    is_isolated: bool,
    /// The common `.git` of a linked worktree, which the worker sees in an overlay, too.
    git_common: Option<PathBuf>,
    /// Entries of other users in the workspace, which are copied into an overlay.
    pub(super) foreign: Vec<PathBuf>,
    sockets: Vec<PathBuf>,
    needs: Needs,
    /// The variables of the command, without the variables of the preset and the worker.
    environment: Variables,
}

pub(super) struct PreparedCommand {
    pub(super) command: Vec<OsString>,
    pub(super) environment: Variables,
    /// Reason why the command may not find a program that exists outside; `None` if it exists
    /// inside.
    pub(super) private_program: Option<String>,
    /// Holds the descriptor that the command inherits.
    wrapped: Option<WrappedCommand>,
}

impl PreparedCommand {
    /// Describes the files that the command left where they vanished; `None` if there are none, or
    /// nothing is known of them.
    pub(super) fn describe_vanished(&self) -> Option<String> {
        let left = self.wrapped.as_ref()?.left_files().filter(|left| left.files > 0)?;
        let named: Vec<String> = left.paths.iter().map(|path| display_path(path)).collect();
        let more =
            if left.files > named.len() as u64 || left.has_more { " and others" } else { "" };
        let at_least = if left.has_more { "at least " } else { "" };
        let (files, size) = (count(left.files, "file"), human_size(left.bytes));
        Some(format!(
            "{at_least}{files} of {size} outside of the workspace vanished with the command: \
             {}{more}; to keep such files, write into the workspace, or use --write",
            named.join(", ")
        ))
    }
}

impl Isolation {
    pub(super) fn is_isolated(&self) -> bool {
        self.is_isolated
    }

    /// Chooses the engine and the isolation for a workspace and a store. Reports a choice that the
    /// user did not make.
    ///
    /// # Errors
    ///
    /// The machine or the workspace does not allow the requested isolation.
    pub(super) fn choose(
        arguments: &RunArgs,
        place: &StartPlace,
        store: &Store,
        reporter: &Reporter,
    ) -> anyhow::Result<Isolation> {
        must_be_writable(store.root().path())?;
        let access = &arguments.access;
        let mut needs = access.preset.needs()?;
        needs.nested |= access.nested;
        for path in &access.writable {
            needs.writable.push(place.writable(path, store.root().path())?);
        }
        let mut sockets = Vec::new();
        for path in &access.sockets {
            sockets.push(resolve_socket(path, "a socket")?);
        }
        if access.ssh_agent {
            let agent = std::env::var_os(SSH_AGENT).filter(|path| !path.is_empty());
            let agent = agent.context("cannot use --ssh-agent: $SSH_AUTH_SOCK is not set")?;
            sockets.push(resolve_socket(Path::new(&agent), "the socket of the SSH agent")?);
        }
        for path in &needs.writable {
            if let Some(reason) = sandbox::writable_refusal(path, store.root().path()) {
                bail!("cannot use the preset: cannot write {}: {reason}", display_path(path));
            }
        }
        let mut isolation = Isolation {
            engine: Engine::Copy,
            is_isolated: !access.no_sandbox,
            git_common: None,
            foreign: Vec::new(),
            sockets,
            needs,
            environment: choose_variables(access, reporter)?,
        };
        if access.no_sandbox {
            if access.engine == Some(EngineArg::Overlay) {
                let message = "cannot make an overlay with --no-sandbox; use --engine copy";
                return Err(UsageError(message.to_owned()).into());
            }
            must_be_outside(store.root().path(), place)?;
            reporter.notice(
                "nothing protects this machine from the command (--no-sandbox); it runs in a copy \
                 of the workspace",
            );
        } else {
            isolation.choose_engine(arguments, place, store, reporter)?;
            if access.nested && rustix::process::geteuid().is_root() {
                // The map of root's id needs a capability with which a file could be made that
                // gives all of them.
                reporter.notice(
                    "sandboxes with user namespaces do not work in a run of root; try --as USER",
                );
            }
        }
        Ok(isolation)
    }

    /// Chooses the engine of an isolated command, and tries it out.
    fn choose_engine(
        &mut self,
        arguments: &RunArgs,
        place: &StartPlace,
        store: &Store,
        reporter: &Reporter,
    ) -> anyhow::Result<()> {
        let root = store.root().path();
        let preflight = sandbox::preflight(&place.workspace, root);
        let workspace = display_path(&place.workspace);
        if preflight.workspace_in_store {
            bail!(
                "cannot use {workspace} as the workspace: it is in the store, which workers cannot \
                 see; try a workspace or a store elsewhere"
            );
        }
        self.engine = match (arguments.access.engine, preflight.overlay_refusal()) {
            (Some(EngineArg::Copy), _) => Engine::Copy,
            (_, None) => Engine::Overlay,
            (Some(EngineArg::Overlay), Some(cause)) => {
                bail!("cannot make an overlay of {workspace}: {cause}; try --engine copy");
            }
            (None, Some(cause)) => {
                reporter.notice(format!(
                    "the command runs in a copy of the workspace, not in an overlay: {cause}"
                ));
                Engine::Copy
            }
        };
        if preflight.free_space.is_some_and(|free| free < LITTLE_SPACE) {
            let shown = display_path(root);
            reporter.notice(format!("the disk of {shown} is nearly full; the command may fail"));
        }
        match self.engine {
            Engine::Overlay => {
                self.git_common = preflight.git_common;
                self.foreign = preflight.foreign;
            }
            Engine::Copy => {
                must_be_outside(root, place)?;
                if let Some(path) = self.sockets.iter().find(|path| place.holds(path)) {
                    let shown = display_path(path);
                    bail!(
                        "cannot use the socket {shown}: the copy of the workspace has no sockets"
                    );
                }
            }
        }
        let trial = self.try_out(place, store);
        check_limits(arguments, reporter)?;
        let landlock = trial.map_err(|error| {
            anyhow!(
                "cannot protect this machine from the command: {error:#}; to run it with no \
                 protection at all, in a copy of the workspace, add --no-sandbox"
            )
        })?;
        if let Some(missing) = describe_missing(landlock) {
            reporter.notice(missing);
        }
        Ok(())
    }

    /// Tries out the sandbox, unless a trial is remembered. Returns the level of Landlock.
    fn try_out(&self, place: &StartPlace, store: &Store) -> anyhow::Result<LandlockLevel> {
        let memory = TrialMemory::new(store, &place.workspace, self.engine);
        if let Some(landlock) = memory.as_ref().and_then(TrialMemory::recall) {
            return Ok(landlock);
        }
        let drafts = drafts_of(store.root().path());
        let view = match self.engine {
            Engine::Overlay => TrialView::Overlay,
            Engine::Copy => TrialView::Copy,
        };
        let landlock = sandbox::probe(view, &place.workspace, &drafts)?.landlock;
        memory.iter().for_each(|memory| memory.remember(landlock));
        Ok(landlock)
    }

    /// Prepares the command of a worker, whose draft is ready. Without isolation, this process
    /// enters the copy of the workspace.
    ///
    /// # Errors
    ///
    /// The draft cannot be used.
    pub(super) fn prepare(
        self,
        arguments: &RunArgs,
        place: &StartPlace,
        store: &Store,
        (worker, draft): (&Worker, &Draft),
    ) -> anyhow::Result<PreparedCommand> {
        let root = store.root().path();
        let mut environment = self.environment;
        environment.extend(self.needs.environment);
        environment.insert(WORKER_VARIABLE.into(), worker.id().as_os_str().to_owned());
        environment.insert(STORE_VARIABLE.into(), root.into());
        let command = arguments.command.clone();
        if !self.is_isolated {
            let beneath = place.directory_in_workspace();
            let copy = draft.copy_dir();
            let is_root = beneath.as_os_str().is_empty();
            let directory = if is_root { copy } else { copy.join(beneath) };
            std::env::set_current_dir(&directory)
                .with_context(|| format!("cannot enter {}", display_path(&directory)))?;
            environment.insert("PWD".into(), directory.into());
            let private_program = None;
            return Ok(PreparedCommand { command, environment, private_program, wrapped: None });
        }
        environment.insert("PWD".into(), place.directory.clone().into());
        if let Some(folder) = environment.get_mut(OsStr::new(TMPDIR)) {
            *folder = PRIVATE_TMP.into();
        }
        let private_program = find_private(&command, place, &self.needs.writable);
        let view = match self.engine {
            Engine::Overlay => {
                WorkspaceView::Overlay(layers(draft.overlay_dirs(), arguments.durable))
            }
            Engine::Copy => WorkspaceView::Copy(draft.copy_dir()),
        };
        let spec = SandboxSpec {
            workspace: place.workspace.clone(),
            directory: place.directory.clone(),
            view,
            git_common: self
                .git_common
                .map(|path| (path, layers(draft.git_overlay_dirs(), arguments.durable))),
            store: root.to_path_buf(),
            // The stores of other workspaces, and logs of reads, are in the state folder.
            hidden: mount_options::default_cache_dir().into_iter().chain(state_folder()).collect(),
            worker_folder: worker.folder().path().to_path_buf(),
            write: self.needs.writable,
            sockets: self.sockets,
            nested: self.needs.nested,
            network: !arguments.access.no_network,
            max_memory: arguments.limits.memory,
            max_processes: arguments.limits.pids,
        };
        let wrapped = spec.wrap(&command).context("cannot prepare the sandbox")?;
        let command = wrapped.command.clone();
        Ok(PreparedCommand { command, environment, private_program, wrapped: Some(wrapped) })
    }
}

/// Returns the variables of the command. Without isolation, it receives all variables of this
/// process, since it can read them anyway.
///
/// # Errors
///
/// The patterns of `--env` are too large.
fn choose_variables(access: &AccessArgs, reporter: &Reporter) -> anyhow::Result<Variables> {
    let passed = if access.no_sandbox { "*" } else { access.preset.variables() };
    let agent = if access.ssh_agent { SSH_AGENT } else { "" };
    let rules = EnvironmentRules::new(&format!("{passed} {agent}"), &access.env)?;
    for pattern in &rules.unmatched {
        let shown = escape_controls(pattern);
        reporter.notice(format!("no variable is passed on for --env {shown}: none is set"));
    }
    Ok(rules.apply(std::env::vars_os()))
}

/// Reports limits that hold for each process only.
///
/// # Errors
///
/// The number of processes cannot be limited.
fn check_limits(arguments: &RunArgs, reporter: &Reporter) -> anyhow::Result<()> {
    let limits = &arguments.limits;
    let has_limits = limits.memory.is_some() || limits.pids.is_some();
    if !has_limits || sandbox::probe_limits() == LimitMethod::ControlGroup {
        return Ok(());
    }
    if limits.pids.is_some() && rustix::process::geteuid().is_root() {
        bail!(
            "cannot limit the number of root's processes: no control group can be made here; try \
             --as USER, or leave out --pids"
        );
    }
    let options = match (limits.memory, limits.pids) {
        (Some(_), Some(_)) => "--memory and --pids hold",
        (Some(_), None) => "--memory holds",
        _ => "--pids holds",
    };
    reporter
        .notice(format!("{options} for each process by itself: no control group can be made here"));
    Ok(())
}

/// Explains why the program of `command` does not exist in the sandbox: it is beneath /tmp, in a
/// part that the command does not see. Returns `None` if it does not exist or is elsewhere.
fn find_private(command: &[OsString], place: &StartPlace, writable: &[PathBuf]) -> Option<String> {
    let program = find_program(command.first()?)?;
    // A link elsewhere may lead there, too.
    let real = std::fs::canonicalize(&program).ok()?;
    let is_shown = place.holds(&real) || writable.iter().any(|path| real.starts_with(path));
    if !real.starts_with(PRIVATE_TMP) || is_shown {
        return None;
    }
    let folder = display_path(real.parent()?);
    Some(format!(
        "{} is not there for the command, whose {PRIVATE_TMP} is its own; put it in the workspace, \
         or add --write {folder}",
        display_path(&program)
    ))
}

/// Returns the directory of the drafts of a store, or the store if there is none yet. It is on the
/// same file system.
fn drafts_of(root: &Path) -> PathBuf {
    let drafts = root.join(DRAFTS);
    if drafts.is_dir() { drafts } else { root.to_path_buf() }
}

/// Fails if this user cannot make workers and drafts in the store at `root`.
fn must_be_writable(root: &Path) -> anyhow::Result<()> {
    for folder in [root.join(WORKERS), drafts_of(root)] {
        if let Err(error) = access(&folder, Access::WRITE_OK | Access::EXEC_OK) {
            let (root, folder) = (display_path(root), display_path(&folder));
            let user = user::own_name();
            bail!(
                "cannot use the store {root}: the user {user} cannot write {folder}: {error}; try \
                 a store of that user, by --store"
            );
        }
    }
    Ok(())
}

/// Fails if the store is in the workspace, so that a copy of the workspace would hold itself.
fn must_be_outside(root: &Path, place: &StartPlace) -> anyhow::Result<()> {
    if !root.starts_with(&place.workspace) {
        return Ok(());
    }
    let (root, workspace) = (display_path(root), display_path(&place.workspace));
    bail!("cannot copy {workspace}: it holds the store {root}; try a store outside of it")
}

fn layers(paths: LayerPaths, is_durable: bool) -> OverlayDirs {
    OverlayDirs { upper: paths.upper, work: paths.work, is_durable }
}

/// Returns a text on the access that a command has without all of Landlock; `None` if Landlock is
/// complete.
fn describe_missing(landlock: LandlockLevel) -> Option<String> {
    let reason = match landlock {
        LandlockLevel::Full => return None,
        LandlockLevel::Files => "the Landlock of this kernel is older than Linux 6.12",
        LandlockLevel::Nothing => "this kernel has no Landlock",
    };
    Some(format!(
        "{reason}, so the command can connect to abstract sockets and signal the processes of its \
         process group; try --no-network against the former"
    ))
}

const SIZE_MAX: u64 = 4 << 10;

/// The file that holds the boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

const OWN_PROGRAM: &str = "/proc/self/exe";

/// Text between the conditions of a trial and its result.
const SEPARATOR: &str = " landlock ";

#[derive(Debug)]
pub(super) struct TrialMemory {
    drafts: Dir,
    name: Name,
    /// The conditions of a trial, as one line.
    facts: String,
}

impl TrialMemory {
    /// Returns the memory of trials with an engine and a workspace. `None` if the store has no
    /// drafts yet, or if a fact is unknown.
    pub(super) fn new(store: &Store, workspace: &Path, engine: Engine) -> Option<TrialMemory> {
        let drafts = folder_of_drafts(store).ok()?;
        let program = fs::metadata(OWN_PROGRAM).ok()?;
        let boot = fs::read_to_string(BOOT_ID).ok()?;
        let namespace = |name: &str| fs::metadata(Path::new("/proc/self/ns").join(name));
        let facts = format!(
            "{} {} user {} {} program {} {} {}.{} workspace {} drafts {} namespaces {} {}",
            engine.as_str(),
            boot.trim(),
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
            program.dev(),
            program.ino(),
            program.mtime(),
            program.mtime_nsec(),
            fs::metadata(workspace).ok()?.dev(),
            fs::metadata(drafts.path()).ok()?.dev(),
            namespace("user").ok()?.ino(),
            namespace("mnt").ok()?.ino(),
        );
        Some(TrialMemory { drafts, name: file_name().ok()?, facts })
    }

    /// Returns the level of Landlock, if a trial succeeded.
    fn recall(&self) -> Option<LandlockLevel> {
        let own = rustix::process::geteuid().as_raw();
        self.drafts.meta(&self.name).ok()?.filter(|meta| meta.uid() == own)?;
        let text = self.drafts.read(&self.name, SIZE_MAX).ok()??;
        let level = text.strip_prefix(self.facts.as_bytes())?.strip_prefix(SEPARATOR.as_bytes())?;
        LandlockLevel::from_name(level.trim_ascii_end())
    }

    fn remember(&self, landlock: LandlockLevel) {
        let text = format!("{}{SEPARATOR}{}\n", self.facts, landlock.as_str());
        let write = || {
            let drafts = self.drafts.without_sync()?;
            drafts.write_temporary(&mut text.as_bytes())?.replace(&drafts, &self.name)
        };
        // Without it, the next run tries again.
        if let Err(error) = write() {
            tracing::debug!("a trial of the sandbox is not remembered: {error}");
        }
    }
}

/// Forgets the trial of this user in a store.
pub(super) fn forget_trial(store: &Store) {
    let removed = folder_of_drafts(store).and_then(|drafts| drafts.remove_all(&file_name()?));
    if let Err(error) = removed {
        tracing::debug!("a trial of the sandbox is not forgotten: {error}");
    }
}

fn folder_of_drafts(store: &Store) -> Result<Dir, Error> {
    store.root().enter(&RelPath::constant(DRAFTS))
}

/// Returns the name of the file of this user. It is the name of a temporary entry, so no worker has
/// it.
fn file_name() -> Result<Name, Error> {
    Name::new(format!("{TEMPORARY_PREFIX}trial-{}", rustix::process::geteuid().as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trial_is_remembered_under_the_same_conditions_only() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::init(folder.path().join("store")).unwrap();
        let memory = |workspace: &Path| TrialMemory::new(&store, workspace, Engine::Overlay);
        assert!(memory(folder.path()).is_none(), "there are no drafts");
        fs::create_dir(folder.path().join("store/drafts")).unwrap();
        let recall = || memory(folder.path()).unwrap().recall();
        assert_eq!(recall(), None);
        for landlock in [LandlockLevel::Full, LandlockLevel::Files, LandlockLevel::Nothing] {
            memory(folder.path()).unwrap().remember(landlock);
            assert_eq!(recall(), Some(landlock));
        }
        assert_eq!(memory(Path::new("/proc")).unwrap().recall(), None);
        let copy = TrialMemory::new(&store, folder.path(), Engine::Copy).unwrap();
        assert_eq!(copy.recall(), None);
        assert!(crate::draft::Draft::list(&store).unwrap().is_empty());
        forget_trial(&store);
        assert_eq!(recall(), None);
        let file = folder.path().join("store/drafts").join(file_name().unwrap().as_os_str());
        fs::write(&file, "torn").unwrap();
        assert_eq!(recall(), None);
    }
}
