//! Confines the threads that answer requests to reading the stores and the cache directory, if the
//! kernel has Landlock.
//!
//! This is the second line of defense: the store already opens nothing outside its roots. If a bug
//! or a hostile file gets past that, the kernel still refuses every other open, every write, the
//! execution of programs and TCP connections.
//!
//! Only the serving threads are confined. The thread that starts them must unmount at the end,
//! which a confined thread may not; it reads nothing that a worker wrote.

use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope,
};
use tracing::{info, warn};

/// Newest Landlock ABI that this program knows. An older kernel enforces the rules that it has.
const LANDLOCK_ABI: ABI = ABI::V7;

/// Confines this thread, and the threads that it starts later, to reading beneath `roots`. Logs
/// whether that succeeded.
pub(super) fn confine(roots: &[BorrowedFd<'_>]) {
    match restrict(roots) {
        Ok(RulesetStatus::FullyEnforced) => info!("confined to reading the stores"),
        Ok(RulesetStatus::PartiallyEnforced) => {
            info!("confined to the stores as far as this kernel's Landlock allows")
        }
        Ok(RulesetStatus::NotEnforced) => {
            info!("not confined to the stores: this kernel has no Landlock")
        }
        Err(error) => warn!("not confined to the stores: {error}"),
    }
}

fn restrict(roots: &[BorrowedFd<'_>]) -> Result<RulesetStatus, RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK_ABI))?
        .handle_access(AccessNet::from_all(LANDLOCK_ABI))?
        .scope(Scope::from_all(LANDLOCK_ABI))?
        .create()?;
    for root in roots {
        rules = rules.add_rule(PathBeneath::new(root, AccessFs::ReadFile | AccessFs::ReadDir))?;
    }
    Ok(rules.restrict_self()?.ruleset)
}
