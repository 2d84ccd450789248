//! Runs a command in its own view of a workspace, isolated by the kernel.
//!
//! The crate has no `unsafe` code, so no process forks. The program executes itself anew instead,
//! in stages, each of which is a process with a single thread:
//!
//! ```text
//! outer    enters the namespaces, builds the tree of mounts, and ends as the command ends
//!   maps     writes the id maps of the outer stage, for root only
//!   init     process 1 of the process namespace: mounts /proc, reaps, passes signals on
//!     inner    gives up every capability, enters the last isolation, and becomes the command
//! ```
//!
//! All stages are in the caller's session and process group, so the keys of the terminal reach the
//! command, which can be stopped and continued as a job of the shell.

mod files;
mod machine;
mod mount_table;
mod mounts;
mod overlay;
mod probe;
mod processes;
mod rights;
mod stage;

pub use files::{LeftFiles, close_descriptors_except};
pub use mount_table::{AttachedMount, AttachedMounts};
pub use overlay::preflight;
pub use probe::{Protections, TrialView, probe};
pub use processes::{LimitMethod, probe_limits};
pub use rights::LandlockLevel;
pub use stage::{OverlayDirs, SandboxSpec, Stage, WorkspaceView, WrappedCommand, writable_refusal};

use std::process::ExitCode;

/// Exit code of a stage that failed before the command ran.
const NOT_RUN: u8 = 125;

/// Runs a stage of the sandbox in this process, as [`SandboxSpec::wrap`] starts it.
///
/// `descriptor` holds the request. A failure is printed on stderr.
pub fn serve_stage(stage: Stage, descriptor: i32, status: Option<i32>) -> ExitCode {
    let ended = rights::allow_tracing(false).and_then(|()| match stage {
        Stage::Outer => processes::serve_outer(descriptor),
        Stage::Maps => rights::serve_maps(descriptor),
        Stage::Init => processes::serve_init(descriptor, status),
        Stage::Inner => processes::serve_inner(descriptor),
        Stage::Check => probe::serve_check(),
    });
    ended.unwrap_or_else(|failure| {
        // Nothing else can be done if stderr is closed.
        let _ = files::print_error(&format!("swarmletfs: {failure}\n"));
        ExitCode::from(failure.exit_code)
    })
}
