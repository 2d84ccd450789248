//! Paths that git takes from the settings of the workspace's repository.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Stdio};

use swarmletfs_record::write::Dir;

/// Last parts of the names of settings whose values are commands, or files that name commands.
const RUN: [&[u8]; 22] = [
    b"askpass",
    b"attributesfile",
    b"browser",
    b"clean",
    b"cmd",
    b"command",
    b"difffilter",
    b"driver",
    b"editor",
    b"external",
    b"fsmonitor",
    b"gitproxy",
    b"helper",
    b"packobjectshook",
    b"pager",
    b"process",
    b"program",
    b"receivepack",
    b"smudge",
    b"sshcommand",
    b"textconv",
    b"uploadpack",
];
/// Groups of settings that are all commands.
const GROUPS: [&[u8]; 2] = [b"alias.", b"pager."];
const SETTINGS_MAX: usize = 10_000;

/// Returns the files from which git takes settings, the files that they include, and the words of
/// commands that can be paths. All are absolute, or relative to the workspace.
pub(super) fn named_paths(workspace: &Dir) -> Vec<Vec<u8>> {
    let listed = git(workspace, &["config", "--list", "--show-origin", "-z"]).unwrap_or_default();
    let mut fields = listed.split(|byte| *byte == 0);
    let mut paths = Vec::new();
    for _ in 0..SETTINGS_MAX {
        let (Some(origin), Some(setting)) = (fields.next(), fields.next()) else { break };
        let file = origin.strip_prefix(b"file:").unwrap_or_default();
        paths.extend(
            Some(file.to_vec()).filter(|file| !file.is_empty() && paths.last() != Some(file)),
        );
        let mut setting = setting.splitn(2, |byte| *byte == b'\n');
        let (Some(key), Some(value)) = (setting.next(), setting.next()) else { continue };
        let last = key.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
        if key.starts_with(b"include") && last == b"path" {
            let folder = Path::new(std::ffi::OsStr::from_bytes(file)).parent();
            let included = Path::new(std::ffi::OsStr::from_bytes(value));
            let path = folder.unwrap_or(Path::new("")).join(included);
            paths.push(path.into_os_string().into_vec());
        } else if RUN.contains(&last) || GROUPS.iter().any(|group| key.starts_with(group)) {
            paths.extend(words(value));
        }
    }
    paths
}

/// Returns the words of a command that can be paths. The first one is looked up in `$PATH`, unless
/// it has a slash.
fn words(command: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let words = command.split(|byte| b" \t\n;&|()'\"!<>=$`".contains(byte));
    let words = words.filter(|word| !word.is_empty()).enumerate();
    words.filter(|(at, word)| *at > 0 || word.contains(&b'/')).map(|(_, word)| word.to_vec())
}

/// Returns the absolute path of the folder with the hooks of the workspace's repository; `None` if
/// it is in none, or git is not installed.
pub(super) fn hooks_folder(workspace: &Dir) -> Option<Vec<u8>> {
    let path = git(workspace, &["rev-parse", "--path-format=absolute", "--git-path", "hooks"])?;
    path.strip_suffix(b"\n").map(<[u8]>::to_vec)
}

fn git(workspace: &Dir, arguments: &[&str]) -> Option<Vec<u8>> {
    let mut git = Command::new("git");
    git.arg("-C").arg(workspace.path()).args(arguments);
    for variable in ["GIT_DIR", "GIT_COMMON_DIR", "GIT_WORK_TREE"] {
        git.env_remove(variable);
    }
    let found = git.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    found.status.success().then_some(found.stdout)
}
