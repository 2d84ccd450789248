//! Reports whether the kernel notifies of late changes in a store, or whether they must be polled
//! for.

use super::finding::Finding;
use crate::error::Result;

/// Number of watched directories of a typical worker: its own and its `tool_calls`.
const FOLDERS_PER_WORKER: u64 = 2;

/// Returns the finding for a store of `workers` workers; `watchable` is the number of directories
/// that can be watched.
pub(super) fn finding(watchable: Result<Option<usize>>, workers: u64) -> Finding {
    const LATE: &str = "late changes of finished workers";
    let (message, remedy) = match watchable {
        Ok(Some(folders)) if folders as u64 > workers.saturating_mul(FOLDERS_PER_WORKER) => {
            let message = format!("{LATE} are reported by the kernel, for up to {folders} folders");
            return Finding::ok("store", "changes", message);
        }
        Ok(Some(folders)) => (
            format!(
                "{LATE} are reported by the kernel for up to {folders} folders, \
                 and polled for every 60 seconds in the others"
            ),
            "`sysctl fs.inotify.max_user_watches` is the limit; \
             a mount uses a quarter of it, up to 32768",
        ),
        Ok(None) => (
            format!(
                "{LATE} are polled for every 60 seconds, \
                 since other machines may write to the store's file system"
            ),
            "`swarmletfs mount --ttl SECONDS` polls more often",
        ),
        Err(error) => (
            format!(
                "{LATE} are polled for every 60 seconds, since nothing can be watched: {error}"
            ),
            "`sysctl fs.inotify.max_user_instances` \
             limits the number of watching programs per user",
        ),
    };
    Finding::note("store", "changes", message).with_remedy(remedy)
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
