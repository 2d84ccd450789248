//! The threads that answer requests may read the stores and the cache folder and do nothing else, where the kernel has
//! Landlock.
//!
//! It is the second line: the store opens nothing outside its roots by itself. Should a bug or a hostile file get past
//! that, the kernel still refuses every other open, every write, every program to be run and every TCP connection.
//! Only the threads that serve are confined. The one that started them must unmount at the end, which no confined
//! thread may; it reads nothing that a worker wrote.

use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope,
};
use tracing::{info, warn};

/// The newest rules that are known here. Of an older kernel as many as it has are asked for.
const RULES: ABI = ABI::V7;

/// Confines this thread, and those it starts from now on, to reading beneath `roots`. A kernel that cannot do so is
/// named in the log, and so is one that fails to.
pub(super) fn confine(roots: &[BorrowedFd<'_>]) {
    match restrict(roots) {
        Ok(RulesetStatus::FullyEnforced) => info!("confined to reading the stores"),
        Ok(RulesetStatus::PartiallyEnforced) => info!("confined to the stores as far as this kernel's Landlock goes"),
        Ok(RulesetStatus::NotEnforced) => info!("not confined to the stores: this kernel has no Landlock"),
        Err(error) => warn!("not confined to the stores: {error}"),
    }
}

fn restrict(roots: &[BorrowedFd<'_>]) -> Result<RulesetStatus, RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(RULES))?
        .handle_access(AccessNet::from_all(RULES))?
        .scope(Scope::from_all(RULES))?
        .create()?;
    for root in roots {
        rules = rules.add_rule(PathBeneath::new(root, AccessFs::ReadFile | AccessFs::ReadDir))?;
    }
    Ok(rules.restrict_self()?.ruleset)
}
