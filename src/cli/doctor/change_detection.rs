//! Reports whether the kernel notifies of late changes in a store, or whether they must be polled
//! for.

use super::finding::Finding;
use crate::error::Result;

/// Number of watched directories of a typical worker: its own and its `tool_calls`.
const FOLDERS_PER_WORKER: u64 = 2;

/// Returns the finding for a store of `workers` workers; `watchable` is the number of directories
/// that can be watched.
pub(super) fn finding(watchable: Result<Option<usize>>, workers: u64) -> Finding {
    let note = |message: String| Finding::note("store", "changes", message);
    const LATE: &str = "late changes of finished workers";
    match watchable {
        Ok(Some(folders)) if folders as u64 > workers.saturating_mul(FOLDERS_PER_WORKER) => {
            Finding::ok("store", "changes", format!("{LATE} are reported by the kernel, for up to {folders} folders"))
        }
        Ok(Some(folders)) => note(format!(
            "{LATE} are reported by the kernel for up to {folders} folders, and polled for every 60 seconds in the others"
        ))
        .with_remedy(
            "`sysctl fs.inotify.max_user_watches` is the limit; a mount uses a quarter of it, up to 32768",
        ),
        Ok(None) => note(format!(
            "{LATE} are polled for every 60 seconds, since other machines may write to the store's file system"
        ))
        .with_remedy("`swarmletfs mount --ttl SECONDS` polls more often"),
        Err(error) => note(format!("{LATE} are polled for every 60 seconds, since nothing can be watched: {error}"))
            .with_remedy("`sysctl fs.inotify.max_user_instances` limits the number of watching programs per user"),
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::super::finding::Level;
    use super::*;
    use crate::error::Error;

    #[test]
    fn polling_notes_give_reason_and_remedy() {
        assert_eq!(finding(Ok(Some(200)), 99).level, Level::Ok);
        for (watchable, why) in [
            (Ok(Some(100)), "100 folders"),
            (Ok(None), "other machines"),
            (Err(Error::Io(Errno::MFILE)), "files"),
        ] {
            let found = finding(watchable, 100);
            assert!(
                found.level == Level::Note && found.message.contains(why) && found.remedy.is_some(),
                "{found:?}"
            );
        }
    }
}
