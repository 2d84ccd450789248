//! Capabilities: the rights of the command beyond the rights of its user.

use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

use super::cause::{FailedStep, StageFailure};

/// Capabilities that root keeps, for files and processes of the sandbox. Without FSETID, a file
/// that is written loses its setuid bit.
const OF_ROOT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::KILL);

/// Gives up for good all capabilities that the command does not keep.
pub(super) fn give_up() -> Result<(), StageFailure> {
    let kept = if geteuid().is_root() { OF_ROOT } else { CapabilitySet::empty() };
    clear_ambient_capability_set().step("give up capabilities")?;
    for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        if !kept.contains(capability) {
            // The kernel has fewer capabilities than bits; that all are gone is checked below.
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    set(kept)?;
    set_no_new_privs(true).step("forbid new privileges")
}

/// Lets the next stage have the capabilities of this process. An ordinary user would lose them when
/// a program is executed.
pub(super) fn pass_on() -> Result<(), StageFailure> {
    let held = capabilities(None).step("pass capabilities on")?.permitted;
    let sets = CapabilitySets { effective: held, permitted: held, inheritable: held };
    set_capabilities(None, sets).step("pass capabilities on")?;
    for capability in held.iter() {
        configure_capability_in_ambient_set(capability, true).step("pass capabilities on")?;
    }
    Ok(())
}

/// Forbids other processes of the same user to trace this one, or to read its memory, environment
/// and descriptors by /proc, or allows it. It is allowed again when a program is executed.
pub(super) fn allow_tracing(is_allowed: bool) -> Result<(), StageFailure> {
    let behavior =
        if is_allowed { DumpableBehavior::Dumpable } else { DumpableBehavior::NotDumpable };
    set_dumpable_behavior(behavior).step("protect a process of the sandbox")
}

pub(super) fn keep_none() -> Result<(), StageFailure> {
    set(CapabilitySet::empty())
}

fn set(kept: CapabilitySet) -> Result<(), StageFailure> {
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).step("give up capabilities")
}
