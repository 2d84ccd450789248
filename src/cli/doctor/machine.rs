//! Inspects the machine: the kernel features that a mount needs, the limits that apply to a mount
//! started from here, and the engine and the isolation that `run` can use here, by a trial in
//! $TMPDIR.

use std::{fs, io};

use anyhow::Context;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use super::Finding;
use crate::cache::DiskCache;
use crate::cli::terminal::{display_path, escape_controls};
use crate::cli::{mount_options, probe};
use crate::sandbox::{self, LandlockLevel, LimitMethod, Protections, TrialView};

#[derive(Debug, Serialize)]
pub(super) struct Kernel {
    /// Release, as printed by `uname -r`.
    pub(super) release: String,
    /// True if `openat2` works, which keeps paths inside a store.
    openat2: bool,
    /// Landlock ABI version; 0 if there is none, null if the query failed.
    landlock_abi: Option<i32>,
}

pub(super) fn inspect_kernel() -> (Kernel, Vec<Finding>) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let (openat2, landlock) = (probe::openat2(), probe::landlock());
    let note = |check, message: String| Finding::note("kernel", check, message);
    let findings = vec![
        match &openat2 {
            Ok(()) => Finding::ok("kernel", "openat2", "openat2 works: paths cannot leave a store"),
            Err(error) => note("openat2", no_openat2(error)),
        },
        match &landlock {
            Ok(version @ 1..) => {
                let message = format!("landlock is available, version {version}");
                Finding::ok("kernel", "landlock", message)
            }
            Ok(_) => note("landlock", "this kernel has no landlock, or it is disabled".into()),
            Err(error) => note("landlock", format!("cannot query landlock: {error}")),
        },
    ];
    (Kernel { release, openat2: openat2.is_ok(), landlock_abi: landlock.ok() }, findings)
}

fn no_openat2(error: &io::Error) -> String {
    format!(
        "openat2 does not work: {error}; it is missing before Linux 5.6, and a sandbox or a \
         container may forbid it. Paths are resolved name by name instead, which is slower"
    )
}

/// Number of descriptors below which a note is given. A mount holds about 20, and one for each
/// worker file open through it.
const MIN_DESCRIPTORS: u64 = 1_024;

/// Limits of a mount started from here; null if unlimited or unreadable.
#[derive(Debug, Serialize)]
pub(super) struct Limits {
    descriptors: Option<u64>,
    descriptors_max: Option<u64>,
    /// Limit for this user, over all programs.
    inotify_watches: Option<u64>,
}

pub(super) fn inspect_limits() -> (Limits, Vec<Finding>) {
    let limit = getrlimit(Resource::Nofile);
    let watches = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_watches").ok();
    let limits = Limits {
        descriptors: limit.current,
        descriptors_max: limit.maximum,
        inotify_watches: watches.and_then(|text| text.trim().parse().ok()),
    };
    (limits, vec![descriptors(limit.current, limit.maximum), cache()])
}

fn cache() -> Finding {
    let Some(place) = mount_options::default_cache_dir() else {
        let message = "there is no cache folder: each start parses everything again";
        return Finding::note("limits", "cache", message)
            .with_remedy("set $HOME or $XDG_CACHE_HOME");
    };
    let (path, most) = (display_path(&place), mount_options::CACHE_LIMIT >> 20);
    let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
    match DiskCache::size(&place) {
        Ok(bytes) => {
            let index = DiskCache::size(&place.join(mount_options::INDEX)).unwrap_or(0);
            let message = format!(
                "the cache is in {path}: {} of at most {most} MiB, and a search index of {} of at \
                 most {} MiB",
                mebibytes(bytes),
                mebibytes(index),
                mount_options::INDEX_LIMIT >> 20
            );
            Finding::ok("limits", "cache", message)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let message = format!("the cache will be created in {path}, with at most {most} MiB");
            Finding::ok("limits", "cache", message)
        }
        Err(error) => {
            let message = format!(
                "the cache in {path} cannot be used: {error}; each start parses everything again"
            );
            Finding::note("limits", "cache", message)
        }
    }
}

/// Returns the finding on the limits of open files; `None` is unlimited.
fn descriptors(soft: Option<u64>, hard: Option<u64>) -> Finding {
    let Some(soft) = soft else {
        return Finding::ok("limits", "descriptors", "any number of files may be open");
    };
    let message = format!("{soft} files may be open at a time");
    if soft >= MIN_DESCRIPTORS {
        return Finding::ok("limits", "descriptors", message);
    }
    let message =
        format!("{message}: a mount needs about 20, and one for each file open through it");
    let more = hard.unwrap_or(4_096).min(4_096);
    let note = Finding::note("limits", "descriptors", message);
    if more > soft {
        note.with_remedy(format!("run `ulimit -n {more}` before mounting"))
    } else {
        note
    }
}

const TOPIC: &str = "run";

const NO_SANDBOX: &str = "`swarmletfs run --no-sandbox` runs a command in a copy of its workspace, \
    without any protection";

#[derive(Debug, Default, Serialize)]
pub(super) struct RunFacts {
    /// The engine of `run`: `overlay` or `copy`; null if no command can be isolated.
    engine: Option<&'static str>,
    /// The extent of Landlock: `full`, `files` without signals and abstract sockets, or `none`;
    /// null if no command can be isolated.
    landlock: Option<&'static str>,
    /// Enforcement of `--memory` and `--pids`: `cgroup` for all processes together, `process` for
    /// each; null if no command can be isolated.
    limits: Option<&'static str>,
    /// The reason why there is no overlay, or no isolation at all; null if there is an overlay.
    refusal: Option<String>,
}

enum TrialResult {
    Overlay(Protections),
    /// No overlay works, for this reason.
    Copy(Protections, String),
    /// Nothing works, for this reason.
    Nothing(String),
}

pub(super) fn inspect_isolation() -> (RunFacts, Vec<Finding>) {
    match try_out() {
        TrialResult::Overlay(protections) => {
            let engine = Finding::ok(TOPIC, "engine", "run makes overlays of workspaces");
            let findings =
                vec![isolation(protections.landlock), engine, limits(protections.limits)];
            (RunFacts::new("overlay", protections, None), findings)
        }
        TrialResult::Copy(protections, reason) => {
            let message = format!("run copies workspaces, because no overlay works: {reason}");
            let engine = Finding::note(TOPIC, "engine", message);
            let findings =
                vec![isolation(protections.landlock), engine, limits(protections.limits)];
            (RunFacts::new("copy", protections, Some(reason)), findings)
        }
        TrialResult::Nothing(reason) => {
            let message = format!("run cannot protect this machine from a command: {reason}");
            let finding = Finding::note(TOPIC, "isolation", message).with_remedy(NO_SANDBOX);
            (RunFacts { refusal: Some(reason), ..RunFacts::default() }, vec![finding])
        }
    }
}

fn try_out() -> TrialResult {
    let folder = match tempfile::tempdir().context("cannot make a folder in $TMPDIR") {
        Ok(folder) => folder,
        Err(error) => return TrialResult::Nothing(escape_controls(&format!("{error:#}"))),
    };
    // The sandbox takes no path that leads through a link.
    let path = fs::canonicalize(folder.path()).unwrap_or_else(|_| folder.path().to_path_buf());
    // The drafts are outside of the workspace, where a copy of it does not cover them.
    let (workspace, drafts) = (path.join("workspace"), path.join("drafts"));
    for folder in [&workspace, &drafts] {
        if let Err(error) = fs::create_dir(folder) {
            return TrialResult::Nothing(format!("cannot make a folder in $TMPDIR: {error}"));
        }
    }
    let probe = |view| {
        let found = sandbox::probe(view, &workspace, &drafts);
        found.map_err(|refusal| escape_controls(&refusal.to_string()))
    };
    let refusal = match probe(TrialView::Overlay) {
        Ok(protections) => return TrialResult::Overlay(protections),
        Err(refusal) => refusal,
    };
    match probe(TrialView::Copy) {
        Ok(protections) => TrialResult::Copy(protections, refusal),
        Err(refusal) => TrialResult::Nothing(refusal),
    }
}

impl RunFacts {
    fn new(engine: &'static str, protections: Protections, refusal: Option<String>) -> RunFacts {
        RunFacts {
            engine: Some(engine),
            landlock: Some(protections.landlock.as_str()),
            limits: Some(match protections.limits {
                LimitMethod::ControlGroup => "cgroup",
                LimitMethod::Process => "process",
            }),
            refusal,
        }
    }
}

fn isolation(landlock: LandlockLevel) -> Finding {
    let isolation = "run isolates a command: namespaces, read-only files";
    let missing = "abstract sockets and the process group of the command stay open";
    match landlock {
        LandlockLevel::Full => Finding::ok(TOPIC, "isolation", format!("{isolation}, landlock")),
        LandlockLevel::Files => {
            let message = format!("{isolation}, landlock for files only; {missing}");
            Finding::note(TOPIC, "isolation", message)
                .with_remedy("Linux 6.12 and later close them; --no-network closes the former")
        }
        LandlockLevel::Nothing => {
            let message = format!("{isolation}; there is no landlock, so {missing}");
            Finding::note(TOPIC, "isolation", message).with_remedy(
                "enable landlock in the kernel; --no-network closes abstract sockets, too",
            )
        }
    }
}

fn limits(method: LimitMethod) -> Finding {
    let options = "--memory and --pids of run hold";
    match method {
        LimitMethod::ControlGroup => {
            Finding::ok(TOPIC, "command_limits", format!("{options} for all processes together"))
        }
        LimitMethod::Process => {
            let reason = "no control group can be made here";
            let message = format!("{options} for each process by itself: {reason}");
            Finding::note(TOPIC, "command_limits", message).with_remedy(
                "start it by `systemd-run --user --scope`, or where a control group is delegated; \
                 as root, --pids needs one, or --as USER",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn low_descriptor_limit_is_noted_with_a_command() {
        assert_eq!(descriptors(None, None).level, Level::Ok);
        assert_eq!(descriptors(Some(1_024), Some(20_000)).level, Level::Ok);
        assert!(descriptors(Some(64), Some(20_000)).remedy.unwrap().contains("`ulimit -n 4096`"));
        assert!(descriptors(Some(64), Some(512)).remedy.unwrap().contains("`ulimit -n 512`"));
        assert_eq!(descriptors(Some(64), Some(64)).remedy, None);
    }
}
