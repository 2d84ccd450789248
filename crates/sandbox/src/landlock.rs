//! Landlock: a second wall behind the read-only mounts, and the only one around abstract sockets
//! and around processes outside that are in the process group of the command.

use std::path::{Path, PathBuf};

use ::landlock::{
    ABI, Access, AccessFs, LandlockStatus, RestrictSelf, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope, path_beneath_rules,
};

use super::cause::StageFailure;
use super::spec::SandboxSpec;

/// Newest version of Landlock that this program supports. An older kernel has fewer rights.
const VERSION: ABI = ABI::V7;
/// Oldest version that restricts signals and abstract sockets. Linux 6.12 has it.
const SCOPES_VERSION: ABI = ABI::V6;

/// The accesses that Landlock restricts on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LandlockLevel {
    /// Files, signals and abstract sockets.
    Full,
    /// Files only: the kernel is older than Linux 6.12.
    Files,
    /// Nothing: the kernel has no Landlock, or it is disabled.
    Nothing,
}

impl LandlockLevel {
    const ALL: [LandlockLevel; 3] =
        [LandlockLevel::Full, LandlockLevel::Files, LandlockLevel::Nothing];

    pub fn as_str(self) -> &'static str {
        match self {
            LandlockLevel::Full => "full",
            LandlockLevel::Files => "files",
            LandlockLevel::Nothing => "none",
        }
    }

    pub fn from_name(name: &[u8]) -> Option<LandlockLevel> {
        LandlockLevel::ALL.into_iter().find(|level| level.as_str().as_bytes() == name)
    }
}

/// Lets this process write only where the mounts allow it, and reach no process or abstract socket
/// outside of the sandbox. If the command may build a sandbox of its own, the files are left out:
/// rules for them would forbid every mount.
///
/// A kernel without Landlock restricts nothing: only the mounts and namespaces hold. The trial of
/// the sandbox reports that, see [`level`].
pub(super) fn restrict(spec: &SandboxSpec) -> Result<(), StageFailure> {
    apply(spec).map_err(|error| StageFailure::new(format!("cannot restrict the command: {error}")))
}

pub(super) fn level() -> LandlockLevel {
    // Without rules nothing is restricted; this only queries the version.
    let status = RestrictSelf::default().no_new_privs(false).apply();
    match status.map(|status| status.landlock) {
        Ok(LandlockStatus::Available { effective_abi, .. }) if effective_abi >= SCOPES_VERSION => {
            LandlockLevel::Full
        }
        Ok(LandlockStatus::Available { .. }) => LandlockLevel::Files,
        _ => LandlockLevel::Nothing,
    }
}

fn apply(spec: &SandboxSpec) -> Result<(), RulesetError> {
    if spec.nested {
        return scopes(Ruleset::default())?.create()?.restrict_self().map(drop);
    }
    let all = AccessFs::from_all(VERSION);
    let reading = AccessFs::from_read(VERSION);
    // Devices and the files of processes are written in place.
    let in_place = reading | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let mut writable: Vec<PathBuf> = ["/tmp", "/dev/shm"].map(PathBuf::from).to_vec();
    writable.extend([spec.workspace.clone(), spec.worker_folder.clone()]);
    writable.extend(spec.git_common.iter().map(|(path, _)| path.clone()));
    writable.extend(spec.write.iter().cloned());
    // All rights are handled and granted together, else a rename between folders fails.
    scopes(Ruleset::default().handle_access(all)?)?
        .create()?
        .add_rules(path_beneath_rules([Path::new("/")], reading))?
        .add_rules(path_beneath_rules(["/dev", "/proc"], in_place))?
        .add_rules(path_beneath_rules(&writable, all))?
        .restrict_self()?;
    Ok(())
}

/// Adds the walls around processes and abstract sockets. A process namespace does not hold
/// `kill(0)`, which signals every process of the group, also the processes of the terminal outside.
fn scopes(ruleset: Ruleset) -> Result<Ruleset, RulesetError> {
    ruleset.scope(Scope::from_all(VERSION))
}
