//! Inspects FUSE: the device, the right to mount, and a trial mount.

use std::io;

use rustix::io::Errno;
use serde::Serialize;

use super::finding::Finding;
use super::trial_mount::{Failure, TrialKind, run_trial};
use crate::cli::diagnosis::{Diagnosis, check_fuse};
use crate::cli::{probe, teardown};

/// Facts about FUSE. A null was not tried.
#[derive(Debug, Serialize)]
pub(super) struct Fuse {
    device: bool,
    /// True for root, which mounts without fusermount3.
    root: bool,
    fusermount: Option<&'static str>,
    /// True if /etc/fuse.conf permits --allow-other to other users than root.
    user_allow_other: bool,
    /// True if a trial mount succeeded and was readable.
    mount: Option<bool>,
    /// True if passthrough works: the kernel reads backing files itself.
    passthrough: Option<bool>,
}

pub(super) fn inspect() -> (Fuse, Vec<Finding>) {
    let (root, fusermount) = (rustix::process::geteuid().is_root(), teardown::find_fusermount());
    let conf = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    let user_allow_other = has_user_allow_other(&conf);
    let mut fuse =
        Fuse { device: true, root, fusermount, user_allow_other, mount: None, passthrough: None };
    let mut findings = Vec::new();
    if let Err(diagnosis) = check_fuse() {
        fuse.device = false;
        findings.push(Finding::problem("fuse", "device", diagnosis));
        return (fuse, findings);
    }
    findings.push(Finding::ok("fuse", "device", "/dev/fuse exists and can be opened"));
    let trial = run_trial(TrialKind::Tree);
    fuse.mount = works(&trial);
    findings.push(mounting(trial, root, fusermount));
    if !root {
        findings.push(if user_allow_other {
            Finding::ok("fuse", "allow_other", "/etc/fuse.conf permits --allow-other")
        } else {
            Finding::note("fuse", "allow_other", "this user may not use --allow-other").with_remedy(
                "add the line `user_allow_other` to /etc/fuse.conf as root, or mount as root",
            )
        });
    }
    if fuse.mount == Some(true) {
        let trial = run_trial(TrialKind::Passthrough);
        fuse.passthrough = works(&trial);
        findings.push(passthrough(trial));
    }
    (fuse, findings)
}

fn works(trial: &Result<(), Failure>) -> Option<bool> {
    match trial {
        Ok(()) => Some(true),
        Err(Failure::Untried(_)) => None,
        Err(Failure::Refused(_) | Failure::Unreadable(_)) => Some(false),
    }
}

fn mounting(trial: Result<(), Failure>, root: bool, fusermount: Option<&str>) -> Finding {
    match trial {
        Ok(()) => {
            let by = match fusermount {
                Some(program) if !root => format!(" through {program}"),
                _ => String::new(),
            };
            Finding::ok(
                "fuse",
                "mount",
                format!("mounting works: an empty tree was mounted{by} and read"),
            )
        }
        Err(Failure::Refused(diagnosis)) => Finding::problem("fuse", "mount", diagnosis),
        Err(Failure::Unreadable(error)) => {
            let why = match error.kind() {
                io::ErrorKind::TimedOut => {
                    format!("did not answer within {} seconds", probe::MOUNT_TIMEOUT.as_secs())
                }
                _ => format!("could not be read: {error}"),
            };
            let remedy = "`SWARMLETFS_LOG=debug swarmletfs mount --foreground STORE MOUNTPOINT` \
                          shows what happens";
            Finding::problem(
                "fuse",
                "mount",
                Diagnosis::new(format!("a trial mount {why}"), remedy),
            )
        }
        Err(Failure::Untried(why)) => {
            Finding::note("fuse", "mount", format!("mounting was not tried: {why}"))
                .with_remedy("choose a folder with `TMPDIR=FOLDER swarmletfs doctor`")
        }
    }
}

fn passthrough(trial: Result<(), Failure>) -> Finding {
    let unavailable = |why: String| {
        Finding::note("fuse", "passthrough", format!("passthrough is not available: {why}"))
    };
    match trial {
        Ok(()) => Finding::ok(
            "fuse",
            "passthrough",
            "passthrough is available: the kernel reads large files directly",
        ),
        Err(Failure::Unreadable(error)) => match error.raw_os_error().map(Errno::from_raw_os_error)
        {
            Some(Errno::OPNOTSUPP) => unavailable("it needs Linux 6.9 or later".into()),
            Some(Errno::PERM) => unavailable("only root outside of containers may use it".into()),
            _ => unavailable(error.to_string()),
        },
        Err(Failure::Refused(diagnosis)) => unavailable(diagnosis.message),
        Err(Failure::Untried(why)) => unavailable(why),
    }
}

/// Returns true if fuse.conf has the option; parses it as fusermount3 does.
fn has_user_allow_other(conf: &str) -> bool {
    conf.lines().any(|line| line.split('#').next().unwrap_or_default().trim() == "user_allow_other")
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn fuse_conf_is_parsed_like_fusermount() {
        for (conf, allows) in [
            ("user_allow_other", true),
            ("# comment\n  user_allow_other # yes\nmount_max = 5\n", true),
            ("#user_allow_other\n", false),
            ("user_allow_others\nuser_allow_other = 1\n", false),
            ("", false),
        ] {
            assert_eq!(has_user_allow_other(conf), allows, "{conf:?}");
        }
    }

    #[test]
    fn failed_trial_gives_its_reason() {
        let diagnosis = Diagnosis::new("no", "yes");
        let not_mounted = mounting(Err(Failure::Refused(diagnosis)), true, None);
        assert_eq!(
            (not_mounted.level, not_mounted.remedy.as_deref()),
            (Level::Problem, Some("yes"))
        );
        let hung = mounting(Err(Failure::Unreadable(io::ErrorKind::TimedOut.into())), true, None);
        assert!(hung.level == Level::Problem && hung.message.contains("10 seconds"), "{hung:?}");
        let untried = mounting(Err(Failure::Untried("no folder".into())), true, None);
        assert!(
            untried.level == Level::Note && untried.message.contains("no folder"),
            "{untried:?}"
        );
        for (errno, why) in
            [(Errno::OPNOTSUPP, "6.9"), (Errno::PERM, "root"), (Errno::LOOP, "symbolic")]
        {
            let unavailable = passthrough(Err(Failure::Unreadable(errno.into())));
            assert!(
                unavailable.level == Level::Note && unavailable.message.contains(why),
                "{unavailable:?}"
            );
        }
    }
}
