//! Inspects the engine and the isolation that `run` can use here, by a trial in $TMPDIR.

use std::fs;

use anyhow::Context;
use serde::Serialize;

use super::finding::Finding;
use crate::cli::terminal::escape_controls;
use crate::sandbox::{self, LandlockLevel, LimitMethod, Protections, TrialView};

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

pub(super) fn inspect() -> (RunFacts, Vec<Finding>) {
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
