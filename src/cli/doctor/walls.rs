//! Inspects which engine and which walls `run` can use here, by a trial in $TMPDIR.

use std::fs;

use anyhow::Context;
use serde::Serialize;

use super::finding::Finding;
use crate::cli::run::try_copy;
use crate::cli::terminal::escape_controls;
use crate::sandbox::{self, LimitMethod, Protections};

const TOPIC: &str = "run";

/// The way out if there are no walls.
const NO_SANDBOX: &str = "`swarmletfs run --no-sandbox` runs a command in a copy of its workspace, \
    without any protection";

/// Facts about `run`.
#[derive(Debug, Default, Serialize)]
pub(super) struct RunFacts {
    /// The engine of `run`: `overlay` or `copy`; null if no command can be run behind walls.
    engine: Option<&'static str>,
    /// True if Landlock is a second wall; null if that was not tried.
    landlock: Option<bool>,
    /// Enforcement of `--memory` and `--pids`: `cgroup` for all processes together, `process` for
    /// each; null if that was not tried.
    limits: Option<&'static str>,
    /// The reason why there is no overlay, or no wall at all; null if there is an overlay.
    refusal: Option<String>,
}

/// A trial of the sandbox.
enum TrialResult {
    Overlay(Protections),
    /// No overlay works, for this reason.
    Copy(String),
    /// Nothing works, for this reason.
    Nothing(String),
}

/// Tries out the sandbox. Returns the facts and the findings.
pub(super) fn inspect() -> (RunFacts, Vec<Finding>) {
    match try_out() {
        TrialResult::Overlay(protections) => with_overlay(protections),
        TrialResult::Copy(reason) => {
            let message = format!("run copies workspaces, because no overlay works: {reason}");
            let facts = RunFacts { engine: Some("copy"), ..RunFacts::default() };
            let findings = vec![walls(""), Finding::note(TOPIC, "engine", message)];
            (RunFacts { refusal: Some(reason), ..facts }, findings)
        }
        TrialResult::Nothing(reason) => {
            let message = format!("run cannot protect this machine from a command: {reason}");
            let finding = Finding::note(TOPIC, "walls", message).with_remedy(NO_SANDBOX);
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
    let refusal = match sandbox::probe(&workspace, &drafts) {
        Ok(protections) => return TrialResult::Overlay(protections),
        Err(refusal) => escape_controls(&refusal.to_string()),
    };
    match try_copy(&workspace, &drafts) {
        Ok(()) => TrialResult::Copy(refusal),
        Err(error) => TrialResult::Nothing(escape_controls(&format!("{error:#}"))),
    }
}

fn with_overlay(protections: Protections) -> (RunFacts, Vec<Finding>) {
    let facts = RunFacts {
        engine: Some("overlay"),
        landlock: Some(protections.landlock),
        limits: Some(match protections.limits {
            LimitMethod::ControlGroup => "cgroup",
            LimitMethod::Process => "process",
        }),
        refusal: None,
    };
    let landlock = if protections.landlock { ", landlock" } else { "" };
    let engine = Finding::ok(TOPIC, "engine", "run makes overlays of workspaces");
    (facts, vec![walls(landlock), engine])
}

/// Returns the finding on the walls that hold. `more` names further ones.
fn walls(more: &str) -> Finding {
    let message = format!("run puts a command behind walls: namespaces, read-only files{more}");
    Finding::ok(TOPIC, "walls", message)
}
